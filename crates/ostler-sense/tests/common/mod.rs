//! A fake guest: a process of its own with real threads and a QMP socket that behaves as it is told.
//!
//! The test binary runs itself again as that process (`as_guest`), because the sensor takes the guest's process from
//! the kernel: the one that listens on the socket.
#![allow(dead_code, unreachable_pub)] // Each test binary uses its own part.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ostler_model::{GuestView, Snapshot};
use ostler_sense::{Sensor, now};
use rustix::thread::gettid;
use serde_json::{Value, json};

/// How a fake monitor behaves.
pub const BEHAVIOURS: [&str; 9] = [
    "normal",
    "mute",
    "no-accept",
    "hang",
    "garbage",
    "endless",
    "deep",
    "drip",
    "flood",
];

pub struct FakeGuest {
    child: Child,
    stdin: ChildStdin,
    pub pid: u32,
}

impl FakeGuest {
    /// Starts one that listens at `socket` and returns when it does. `as_guest` must be a test of the calling binary.
    pub fn start(socket: &Path, name: &str, behaviour: &str, vcpus: u32) -> FakeGuest {
        FakeGuest::start_with(socket, name, behaviour, vcpus, &[])
    }

    /// The same with further environment.
    pub fn start_with(
        socket: &Path,
        name: &str,
        behaviour: &str,
        vcpus: u32,
        environment: &[(&str, &str)],
    ) -> FakeGuest {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["as_guest", "--exact", "--nocapture", "--test-threads=1"])
            .env("FAKE_GUEST", socket)
            .env("FAKE_NAME", name)
            .env("FAKE_BEHAVIOUR", behaviour)
            .env("FAKE_VCPUS", vcpus.to_string())
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let pid = child.id();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut lines = stdout.lines();
        let ready = lines.any(|line| line.is_ok_and(|line| line.contains("FAKE-GUEST-READY")));
        assert!(ready, "the fake guest {name} did not start");
        // What else it prints is of no interest, but it must not block on it.
        thread::spawn(move || lines.for_each(drop));
        FakeGuest { child, stdin, pid }
    }

    /// Plugs in another vCPU.
    pub fn plug(&mut self) {
        self.stdin.write_all(b"plug\n").unwrap();
    }

    /// What `query-status` says from now on, `running` at first. No event tells of it. When it is `silent`, nothing is answered at all.
    pub fn set_status(&mut self, status: &str) {
        writeln!(self.stdin, "status {status}").unwrap();
    }

    /// Starts another thread, which has no name of its own until it is told to name itself.
    pub fn start_nameless(&mut self) {
        self.stdin.write_all(b"nameless\n").unwrap();
    }

    /// Has all nameless threads name themselves vhost workers.
    pub fn name_them(&mut self) {
        self.stdin.write_all(b"name\n").unwrap();
    }

    /// Starts another thread that is no vCPU.
    pub fn start_worker(&mut self) {
        self.stdin.write_all(b"worker\n").unwrap();
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for FakeGuest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other side: what the process does. Returns at once unless it was started by [`FakeGuest::start`].
pub fn run_as_guest() {
    let Some(socket) = std::env::var_os("FAKE_GUEST") else {
        return;
    };
    let behaviour = std::env::var("FAKE_BEHAVIOUR").unwrap();
    let vcpus: u32 = std::env::var("FAKE_VCPUS").unwrap().parse().unwrap();
    let status = std::env::var("FAKE_STATUS").unwrap_or_else(|_| "running".to_owned());
    let status = Arc::new(Mutex::new(status));
    let tids = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..vcpus {
        add_vcpu(&tids);
    }
    // Kept open until the process ends.
    let _taps = std::env::var("FAKE_TAP_QUEUES").map(|n| open_taps(n.parse().unwrap()));
    let listener = UnixListener::bind(&socket).unwrap();
    println!("FAKE-GUEST-READY");
    let shared = (Arc::clone(&tids), Arc::clone(&status));
    thread::spawn(move || {
        if behaviour == "no-accept" {
            // Kept, so that the socket goes on listening.
            std::mem::forget(listener);
            return;
        }
        for stream in listener.incoming() {
            // A client that goes away is no failure of the guest.
            let _ = serve(&stream.unwrap(), &behaviour, &shared.0, &shared.1);
        }
    });
    let worker = format!("vhost-{}", std::process::id());
    let mut nameless = Vec::new();
    for line in std::io::stdin().lock().lines() {
        match line.unwrap().as_str() {
            "plug" => add_vcpu(&tids),
            "worker" => {
                sleeper(worker.clone());
            }
            "nameless" => nameless.push(sleeper("nameless".to_owned())),
            "name" => {
                for tid in nameless.drain(..) {
                    fs::write(format!("/proc/self/task/{tid}/comm"), &worker).unwrap();
                }
            }
            other => match other.strip_prefix("status ") {
                Some(new) => new.clone_into(&mut status.lock().unwrap()),
                None => panic!("{other}?"),
            },
        }
    }
    std::process::exit(0);
}

/// The name of the tap that a guest with queues has.
pub const TAP: &str = "ostlertap0";

/// Opens a tap with so many queues, in a network namespace of its own.
#[allow(unsafe_code)]
fn open_taps(queues: usize) -> Vec<fs::File> {
    const IFF_TAP_NO_PI_MULTI_QUEUE: i16 = 0x0002 | 0x1000 | 0x0100;
    // SAFETY: a new network namespace closes no descriptor and shares no memory.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.unwrap();
    (0..queues)
        .map(|_| {
            let tun = fs::File::options();
            let tun = tun
                .clone()
                .read(true)
                .write(true)
                .open("/dev/net/tun")
                .unwrap();
            // SAFETY: all-zero bytes are a valid ifreq.
            let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
            for (to, from) in request.ifr_name.iter_mut().zip(TAP.bytes()) {
                *to = from.cast_signed();
            }
            request.ifr_ifru.ifru_flags = IFF_TAP_NO_PI_MULTI_QUEUE;
            // SAFETY: TUNSETIFF takes an ifreq, which lives throughout the call.
            let result =
                unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &raw const request) };
            assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
            tun
        })
        .collect()
}

fn sleeper(name: String) -> i32 {
    let (tell, told) = std::sync::mpsc::channel();
    thread::Builder::new()
        .name(name)
        .spawn(move || {
            tell.send(gettid().as_raw_nonzero().get()).unwrap();
            loop {
                thread::park();
            }
        })
        .unwrap();
    told.recv().unwrap()
}

fn add_vcpu(tids: &Mutex<Vec<i32>>) {
    let mut tids = tids.lock().unwrap();
    let name = format!("CPU {}/KVM", tids.len());
    tids.push(sleeper(name));
}

fn serve(
    mut stream: &UnixStream,
    behaviour: &str,
    tids: &Mutex<Vec<i32>>,
    status: &Mutex<String>,
) -> std::io::Result<()> {
    match behaviour {
        "mute" => {
            let _ = stream.read(&mut [0]);
            return Ok(());
        }
        "garbage" => loop {
            stream.write_all(b"\x00\xff{\"QMP\": [}\n")?;
        },
        "endless" => loop {
            stream.write_all(&[b'a'; 4096])?;
        },
        "deep" => {
            stream.write_all("[".repeat(500_000).as_bytes())?;
            stream.write_all(b"\n")?;
        }
        _ => {}
    }
    stream.write_all(b"{\"QMP\": {\"version\": {}, \"capabilities\": []}}\r\n")?;
    let mut said = 0;
    for line in BufReader::new(stream).lines() {
        let request: Value = serde_json::from_str(&line?).unwrap();
        said += 1;
        log(&request)?;
        if behaviour == "hang" && said > 1 {
            continue;
        }
        if behaviour == "flood" {
            loop {
                stream.write_all(b"{\"event\": \"RESET\", \"timestamp\": {}}\r\n")?;
            }
        }
        if *status.lock().unwrap() == "silent" {
            continue;
        }
        let answer = answer(&request, tids, status);
        let reply = json!({"return": answer, "id": request["id"]}).to_string();
        if behaviour == "drip" {
            for byte in reply.as_bytes() {
                stream.write_all(&[*byte])?;
                thread::sleep(Duration::from_micros(200));
            }
            stream.write_all(b"\r\n")?;
        } else {
            stream.write_all(format!("{reply}\r\n").as_bytes())?;
        }
    }
    Ok(())
}

/// Notes a question where the test that started the guest reads it.
fn log(request: &Value) -> std::io::Result<()> {
    let Some(path) = std::env::var_os("FAKE_LOG") else {
        return Ok(());
    };
    let mut file = fs::File::options().create(true).append(true).open(path)?;
    writeln!(file, "{}", request["execute"].as_str().unwrap())
}

fn answer(request: &Value, tids: &Mutex<Vec<i32>>, status: &Mutex<String>) -> Value {
    let name = std::env::var("FAKE_NAME").unwrap();
    match request["execute"].as_str().unwrap() {
        "query-status" => json!({ "status": *status.lock().unwrap(), "running": true }),
        "query-name" => json!({ "name": name }),
        "query-uuid" => json!({"UUID": "00000000-0000-0000-0000-000000000000"}),
        "query-cpus-fast" => {
            let mut cpus: Vec<Value> = tids
                .lock()
                .unwrap()
                .iter()
                .enumerate()
                .map(|(index, tid)| json!({"cpu-index": index, "thread-id": tid, "target": "x86_64"}))
                .collect();
            if name == "liar" {
                cpus.push(json!({"cpu-index": 999, "thread-id": 1}));
            }
            Value::Array(cpus)
        }
        "human-monitor-command" => json!(format!(
            "s: index=0,type=tap,ifname=stolen0\r\n\
             net0: index=0,type=nic,model=virtio-net-pci,macaddr=52:54:00:12:34:56\r\n \
             \\ hn0: index=0,type=tap,ifname={TAP}\r\n"
        )),
        "qom-list" if request["arguments"]["path"] == "/machine/peripheral" => {
            json!([{"name": "vsock0", "type": "child<vhost-vsock-pci>"}, {"name": "type", "type": "string"}])
        }
        "qom-get" => json!(77),
        _ => json!([]),
    }
}

/// Takes snapshots, as the daemon would, until one shows what is wanted; then returns it.
pub fn until(
    sensor: &mut Sensor,
    what: &str,
    mut wanted: impl FnMut(&Snapshot) -> bool,
) -> Snapshot {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let snapshot = sensor.snapshot(now());
        if wanted(&snapshot) {
            return snapshot;
        }
        assert!(
            Instant::now() < deadline,
            "{what}: not in 20 s: {snapshot:#?}"
        );
        thread::sleep(Duration::from_millis(10));
    }
}

pub fn named<'a>(snapshot: &'a Snapshot, name: &str) -> Option<&'a GuestView> {
    snapshot.guests.iter().find(|guest| guest.name == name)
}

/// The CPUs a thread may run on by the kernel's own words.
pub fn allowed(pid: u32, tid: u32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.unwrap().trim().to_owned()
}
