//! The agent's round trip beside a bare echo over the same transport. See the README.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use bench_harness::{Args, compare, ns_per_call};
use ostler_abi::guest::frame::{self, FrameDecoder};
use ostler_abi::guest::wire::{self, reply, request};
use ostler_guest::agent::serve::{self, Listener};
use ostler_guest::agent::{Agent, Config, Linux};
use vsock::{VMADDR_CID_LOCAL, VsockListener, VsockStream};

const VCPUS: u32 = 8;
const QUEUES: u32 = 4;
const AGENT_PORT: u32 = 10_772;
const ECHO_PORT: u32 = 10_773;

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let folder = tempfile::tempdir().context("can't make a folder for the guest's tree")?;
    let root = folder.path().join("root");
    make_tree(&root).context("can't make the guest's tree")?;

    let agent_path = folder.path().join("agent");
    let agent = start_agent(&root, Listener::unix(&agent_path)?)?;
    let client = Client::new(UnixStream::connect(&agent_path)?);
    let echo_path = folder.path().join("echo");
    let echo = UnixListener::bind(&echo_path)?;
    let echo_client = UnixStream::connect(&echo_path)?;
    let (echo_end, _) = echo.accept()?;
    measure(&args, "get-state-unix", client, echo_end, echo_client)?;
    agent.end()?;

    // Whether an address can be bound says whether this kernel has the loopback.
    match VsockListener::bind_with_cid_port(VMADDR_CID_LOCAL, ECHO_PORT) {
        Err(error) => eprintln!("SKIP get-state-vsock: no vsock loopback here ({error})"),
        Ok(echo) => {
            let agent = start_agent(&root, Listener::vsock(AGENT_PORT, VMADDR_CID_LOCAL)?)?;
            let connect = |port| VsockStream::connect_with_cid_port(VMADDR_CID_LOCAL, port);
            let client = Client::new(connect(AGENT_PORT)?);
            let echo_client = connect(ECHO_PORT)?;
            let (echo_end, _) = echo.accept()?;
            measure(&args, "get-state-vsock", client, echo_end, echo_client)?;
            agent.end()?;
        }
    }
    Ok(())
}

/// Measures one transport.
fn measure<S: Read + Write + Send + 'static>(
    args: &Args,
    case: &str,
    mut client: Client<S>,
    mut echo_end: S,
    mut echo_client: S,
) -> anyhow::Result<()> {
    let (request_bytes, reply_bytes) = client.round_trip()?;
    let echo = std::thread::spawn(move || {
        let (mut request, reply) = (vec![0; request_bytes], vec![0; reply_bytes]);
        while echo_end.read_exact(&mut request).is_ok() && echo_end.write_all(&reply).is_ok() {}
    });
    let iterations = if args.quick { 50 } else { 5000 };
    let (request, mut reply) = (vec![0; request_bytes], vec![0; reply_bytes]);
    let line = compare(
        "agent",
        case,
        "us",
        args.runs(15, 3),
        || {
            ns_per_call(iterations, || {
                client.round_trip().expect("the agent answers")
            }) / 1000.0
        },
        || {
            ns_per_call(iterations, || {
                echo_client.write_all(&request).expect("the echo listens");
                echo_client
                    .read_exact(&mut reply)
                    .expect("the echo answers");
            }) / 1000.0
        },
    );
    line.print(args);
    drop(echo_client);
    echo.join().ok().context("the echo failed")
}

/// The host's side, as plain as can be.
struct Client<S> {
    stream: S,
    decoder: FrameDecoder,
    next_id: u32,
}

impl<S: Read + Write> Client<S> {
    fn new(stream: S) -> Self {
        Self {
            stream,
            decoder: FrameDecoder::new(),
            next_id: 0,
        }
    }

    /// Asks for the state; returns the sizes of request and reply.
    fn round_trip(&mut self) -> anyhow::Result<(usize, usize)> {
        self.next_id = self.next_id.wrapping_add(1);
        let body = request::Body::GetState(wire::GetState {});
        let request = frame::encode_request(self.next_id, &wire::Request { body: Some(body) })?;
        self.stream.write_all(&request)?;
        let (mut buffer, mut received) = ([0; 8192], 0);
        loop {
            let count = self.stream.read(&mut buffer)?;
            if count == 0 {
                bail!("the agent hung up");
            }
            received += count;
            let Some(frame) = self.decoder.push(&mut &buffer[..count])? else {
                continue;
            };
            let reply: wire::Reply = frame::decode_payload(&frame.payload)?;
            let Some(reply::Body::State(state)) = reply.body else {
                bail!("not a state: {:?}", reply.body);
            };
            // A state that isn't the tree's would make the figure mean something else.
            if state.vcpu_times.len() != VCPUS as usize
                || state.nics[0].irqs.len() != 2 * QUEUES as usize
            {
                bail!("not this guest's state: {state:?}");
            }
            return Ok((request.len(), received));
        }
    }
}

/// An agent in a thread of its own.
struct RunningAgent {
    stop: UnixStream,
    thread: JoinHandle<std::io::Result<()>>,
}

impl RunningAgent {
    fn end(mut self) -> anyhow::Result<()> {
        self.stop.write_all(&[0])?;
        self.thread.join().ok().context("the agent panicked")??;
        Ok(())
    }
}

fn start_agent(root: &Path, listener: Listener) -> anyhow::Result<RunningAgent> {
    let (stop, stopped) = UnixStream::pair()?;
    let kernel = Linux::new(root);
    let thread = std::thread::spawn(move || {
        let config = Config {
            act: false,
            dead_man: Duration::from_hours(1),
            ..Config::default()
        };
        let mut agent = Agent::new(kernel, config, Instant::now());
        serve::run(&mut agent, &listener, None, &stopped)
    });
    Ok(RunningAgent { stop, thread })
}

/// What a guest's kernel would show.
fn make_tree(root: &Path) -> std::io::Result<()> {
    let put = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap_or(root))?;
        fs::write(path, text)
    };
    put(
        "sys/devices/system/cpu/online",
        &format!("0-{}\n", VCPUS - 1),
    )?;
    let times: Vec<String> = (0..VCPUS)
        .map(|vcpu| format!("cpu{vcpu} 123456 17 34567 8901234 55 1234 5678 910 0 0\n"))
        .collect();
    put("proc/stat", &times.concat())?;
    let mut interrupts = vec!["           CPU0".to_owned()];
    for queue in 0..QUEUES {
        for (offset, direction) in [(0, "input"), (1, "output")] {
            let irq = 25 + 2 * queue + offset;
            interrupts.push(format!(
                " {irq}: 1234 PCI-MSIX {irq}-edge virtio0-{direction}.{queue}"
            ));
            put(
                &format!("proc/irq/{irq}/smp_affinity_list"),
                &format!("{queue}\n"),
            )?;
        }
    }
    put("proc/interrupts", &interrupts.join("\n"))?;
    // A name no machine has: the queue count is asked of the real kernel, which is to say no on every one.
    put("sys/class/net/ostler-bench0/address", "02:00:00:00:00:01\n")?;
    std::os::unix::fs::symlink(
        "../../../virtio0",
        root.join("sys/class/net/ostler-bench0/device"),
    )
}
