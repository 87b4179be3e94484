//! The agent as a process, over a real socket, on a guest's file tree made of ordinary files; and both ends of the wire together.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ostler_abi::guest::frame::{self, FrameDecoder};
use ostler_abi::guest::wire;
use ostler_guest::host::{AgentPool, AgentView, Desired, Endpoint, GuestLimits, Health, Timing};
use wire::{reply, request};

/// Far beyond anything that should happen here; reached only by failure.
const PATIENCE: Duration = Duration::from_mins(1);

/// A guest's tree: a cgroup with cpuset enabled, a virtio NIC with two queue pairs' interrupts.
fn make_tree(root: &Path) {
    let files = [
        (
            "proc/self/mounts",
            "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
        ),
        ("proc/self/cgroup", "0::/agent\n"),
        (
            "proc/stat",
            "cpu0 1 0 1 9 0 0 0 2 0 0\ncpu1 1 0 1 9 0 0 0 2 0 0\n",
        ),
        (
            "proc/interrupts",
            "      CPU0\n 25: 1 PCI-MSIX 1-edge virtio0-input.0\n 26: 1 PCI-MSIX 2-edge virtio0-output.0\n",
        ),
        ("proc/irq/25/smp_affinity_list", "0-1\n"),
        ("proc/irq/25/virtio0-input.0/", ""),
        ("proc/irq/26/smp_affinity_list", "0-1\n"),
        ("proc/irq/26/virtio0-output.0/", ""),
        ("sys/devices/system/cpu/online", "0-1\n"),
        ("sys/fs/cgroup/cgroup.controllers", "cpuset cpu\n"),
        ("sys/fs/cgroup/cgroup.subtree_control", "cpuset\n"),
        ("sys/fs/cgroup/cgroup.procs", ""),
        ("sys/fs/cgroup/app/cgroup.events", "populated 1\n"),
        ("sys/fs/cgroup/app/cpuset.cpus", "\n"),
        ("sys/fs/cgroup/agent/cgroup.events", "populated 1\n"),
        ("sys/fs/cgroup/agent/cpuset.cpus", "\n"),
        ("sys/class/net/eth0/address", "02:00:00:00:00:01\n"),
    ];
    for (path, text) in files {
        let path = root.join(path);
        if path.to_str().unwrap().ends_with('/') {
            fs::create_dir_all(path).unwrap();
            continue;
        }
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    std::os::unix::fs::symlink("../../../virtio0", root.join("sys/class/net/eth0/device")).unwrap();
}

/// Every file below `root` with what it holds.
fn contents(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                found.push((entry.path(), fs::read(entry.path()).unwrap()));
            }
        }
    }
    found.sort();
    found
}

struct Guest {
    child: Child,
    folder: tempfile::TempDir,
}

impl Guest {
    fn start(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        make_tree(&folder.path().join("root"));
        let child = Command::new(env!("CARGO_BIN_EXE_ostler-guest"))
            .arg("--root")
            .arg(folder.path().join("root"))
            .arg("--unix")
            .arg(folder.path().join("socket"))
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, folder }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.root().join(path)).unwrap()
    }

    fn connect(&self) -> UnixStream {
        let start = Instant::now();
        loop {
            if let Ok(stream) = UnixStream::connect(self.socket()) {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                return stream;
            }
            assert!(start.elapsed() < PATIENCE, "the agent never listens");
            std::thread::yield_now();
        }
    }

    fn terminate(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_reply(stream: &mut impl Read) -> (u32, reply::Body) {
    let mut decoder = FrameDecoder::new();
    let mut byte = [0];
    loop {
        stream.read_exact(&mut byte).unwrap();
        if let Some(frame) = decoder.push(&mut &byte[..]).unwrap() {
            let reply: wire::Reply = frame::decode_payload(&frame.payload).unwrap();
            return (frame.request_id, reply.body.unwrap());
        }
    }
}

fn request(id: u32, body: request::Body) -> Vec<u8> {
    frame::encode_request(id, &wire::Request { body: Some(body) }).unwrap()
}

fn set_vcpu_1() -> request::Body {
    request::Body::SetVcpus(wire::SetVcpus { vcpus: vec![0b10] })
}

#[test]
fn the_pool_and_the_agent_understand_each_other() {
    let guest = Guest::start(&[]);
    let before = contents(&guest.root());
    let pool = AgentPool::new(Timing::default()).unwrap();
    let limits = GuestLimits {
        vcpus: 2,
        max_queues: 2,
    };
    pool.ensure("g", Endpoint::Unix(guest.socket()), limits)
        .unwrap();
    let wait_for = |test: &dyn Fn(&AgentView) -> bool| {
        let start = Instant::now();
        loop {
            let view = pool.view("g").unwrap();
            if test(&view) {
                return view;
            }
            assert!(start.elapsed() < PATIENCE, "{view:?}");
            std::thread::yield_now();
        }
    };
    let view = wait_for(&|view| view.health == Health::Healthy);
    let state = view.seen.unwrap().state;
    assert_eq!(state.online_vcpus, [0, 1]);
    assert_eq!(state.nics[0].name, "eth0");
    assert_eq!(state.nics[0].irqs[0].vcpus, [0, 1]);
    assert_eq!(state.vcpu_times[1].steal_ns, 20_000_000);
    let desired = Desired {
        vcpus: Some(vec![1]),
        queues: None,
    };
    pool.desire("g", desired).unwrap();
    wait_for(&|view| {
        let seen = view.seen.as_ref();
        seen.is_some_and(|seen| seen.state.confined && seen.state.applied_vcpus == [1])
    });
    assert_eq!(guest.read("sys/fs/cgroup/app/cpuset.cpus"), "1");
    assert_eq!(guest.read("sys/fs/cgroup/agent/cpuset.cpus"), "\n");
    assert_eq!(guest.read("proc/irq/25/smp_affinity_list"), "1");
    pool.restore("g").unwrap();
    wait_for(&|view| !view.restore_pending);
    assert_eq!(contents(&guest.root()), before);
}

#[test]
fn sigterm_puts_everything_back() {
    let mut guest = Guest::start(&[]);
    let before = contents(&guest.root());
    let mut stream = guest.connect();
    stream.write_all(&request(1, set_vcpu_1())).unwrap();
    assert!(matches!(read_reply(&mut stream), (1, reply::Body::Ack(ack)) if ack.changed));
    assert_ne!(contents(&guest.root()), before);
    guest.terminate();
    assert_eq!(contents(&guest.root()), before);
}

#[test]
fn a_host_that_goes_silent_frees_the_guest() {
    let guest = Guest::start(&["--dead-man-s", "1"]);
    let before = contents(&guest.root());
    let mut stream = guest.connect();
    stream.write_all(&request(1, set_vcpu_1())).unwrap();
    read_reply(&mut stream);
    assert_ne!(contents(&guest.root()), before);
    let start = Instant::now();
    while contents(&guest.root()) != before {
        assert!(start.elapsed() < PATIENCE, "never put back");
        std::thread::yield_now();
    }
}

#[test]
fn the_newest_connection_wins() {
    let guest = Guest::start(&["--no-act"]);
    let mut old = guest.connect();
    let get = |id| request(id, request::Body::GetState(wire::GetState {}));
    old.write_all(&get(1)).unwrap();
    read_reply(&mut old);
    let mut new = guest.connect();
    new.write_all(&get(2)).unwrap();
    assert_eq!(read_reply(&mut new).0, 2);
    assert_eq!(old.read(&mut [0; 16]).unwrap(), 0, "the old one is closed");
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let guest = Guest::start(&["--no-act"]);
    let mut stream = guest.connect();
    let mut bytes = Vec::new();
    for id in 0..100 {
        bytes.extend(request(id, request::Body::GetState(wire::GetState {})));
    }
    stream.write_all(&bytes).unwrap();
    for id in 0..100 {
        assert_eq!(read_reply(&mut stream).0, id);
    }
}

#[test]
fn another_version_is_answered_with_those_spoken() {
    let guest = Guest::start(&["--no-act"]);
    let mut stream = guest.connect();
    let mut bytes = request(7, request::Body::GetState(wire::GetState {}));
    bytes[4] = 9;
    stream.write_all(&bytes).unwrap();
    let (id, body) = read_reply(&mut stream);
    let reply::Body::Error(error) = body else {
        panic!("not an error");
    };
    assert_eq!((id, error.code()), (7, wire::ErrorCode::Version));
    assert_eq!(error.supported_versions, [1]);
    assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0, "and then closed");
    // The agent outlives it.
    let mut stream = guest.connect();
    stream
        .write_all(&request(8, request::Body::GetState(wire::GetState {})))
        .unwrap();
    assert_eq!(read_reply(&mut stream).0, 8);
}

#[test]
fn privileges_are_dropped() {
    let guest = Guest::start(&["--no-act"]);
    // Once it answers, it has dropped them.
    let mut stream = guest.connect();
    stream
        .write_all(&request(1, request::Body::GetState(wire::GetState {})))
        .unwrap();
    read_reply(&mut stream);
    let status = fs::read_to_string(format!("/proc/{}/status", guest.child.id())).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(field("NoNewPrivs:"), "1");
    // CAP_NET_ADMIN is 12, CAP_SYS_NICE is 23.
    let kept = 1_u64 << 12 | 1 << 23;
    for set in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
        let held = u64::from_str_radix(&field(set), 16).unwrap();
        assert_eq!(held & !kept, 0, "{set} {held:x}");
    }
    if rustix::process::geteuid().is_root() {
        // A process without CAP_SETPCAP can't shrink its bounding set, but then it has nothing to regain.
        let bounding = u64::from_str_radix(&field("CapBnd:"), 16).unwrap();
        assert_ne!(
            bounding & 1 << 21,
            1 << 21,
            "CAP_SYS_ADMIN could be regained"
        );
    } else {
        println!("SKIP privileges_are_dropped (bounding set): needs root");
    }
}

#[test]
fn standard_input_and_output_end_with_their_peer() {
    let folder = tempfile::tempdir().unwrap();
    make_tree(folder.path());
    let mut child = Command::new(env!("CARGO_BIN_EXE_ostler-guest"))
        .arg("--root")
        .arg(folder.path())
        .arg("--stdio")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let before = contents(folder.path());
    let mut input = child.stdin.take().unwrap();
    let mut output = child.stdout.take().unwrap();
    input.write_all(&request(1, set_vcpu_1())).unwrap();
    assert!(matches!(read_reply(&mut output), (1, reply::Body::Ack(_))));
    drop(input);
    assert!(child.wait().unwrap().success());
    assert_eq!(contents(folder.path()), before);
}

#[test]
fn over_vsock_where_this_kernel_has_its_loopback() {
    const PORT: u32 = 10_771;
    let listener = match vsock::VsockListener::bind_with_cid_port(vsock::VMADDR_CID_LOCAL, PORT) {
        Ok(listener) => listener,
        Err(error) => {
            println!("SKIP over_vsock_where_this_kernel_has_its_loopback: {error}");
            return;
        }
    };
    drop(listener);
    let folder = tempfile::tempdir().unwrap();
    make_tree(folder.path());
    let mut child = Command::new(env!("CARGO_BIN_EXE_ostler-guest"))
        .arg("--root")
        .arg(folder.path())
        .args(["--port", "10771", "--peer-cid", "1"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pool = AgentPool::new(Timing::default()).unwrap();
    let limits = GuestLimits {
        vcpus: 2,
        max_queues: 2,
    };
    let endpoint = Endpoint::Vsock { cid: 1, port: PORT };
    pool.ensure("g", endpoint, limits).unwrap();
    let start = Instant::now();
    while pool.view("g").unwrap().health != Health::Healthy {
        assert!(start.elapsed() < PATIENCE, "{:?}", pool.view("g"));
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
}
