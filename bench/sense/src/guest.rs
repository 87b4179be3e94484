//! Guests as far as a sensor can tell: processes with vCPU threads, a vhost worker, and a monitor that answers.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

use rustix::thread::gettid;
use serde_json::{Value, json};

/// The processes; they end with this.
pub struct Guests {
    children: Vec<Child>,
    pids: Vec<u32>,
}

impl Guests {
    /// Starts so many, each with a socket in the folder.
    pub fn start(folder: &Path, count: u32, vcpus: u32) -> Guests {
        let children: Vec<Child> = (0..count)
            .map(|n| {
                Command::new(std::env::current_exe().expect("we run"))
                    .env("BENCH_GUEST", folder.join(format!("{n:03}.qmp")))
                    .env("BENCH_VCPUS", vcpus.to_string())
                    // It ends when this pipe does, however we end.
                    .stdin(Stdio::piped())
                    .spawn()
                    .expect("a process")
            })
            .collect();
        let pids = children.iter().map(Child::id).collect();
        Guests { children, pids }
    }

    pub fn len(&self) -> usize {
        self.pids.len()
    }

    pub fn pids(&self) -> &[u32] {
        &self.pids
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        for child in &mut self.children {
            drop(child.stdin.take());
            // Killed already, if it fails: then there is nothing to wait for either.
            let _ = child.wait();
        }
    }
}

/// Is a guest, if the environment says so, until standard input ends.
pub fn run_if_asked() -> bool {
    let Some(socket) = std::env::var_os("BENCH_GUEST") else {
        return false;
    };
    let vcpus = std::env::var("BENCH_VCPUS")
        .ok()
        .and_then(|n| n.parse().ok());
    let tids: Vec<i32> = (0..vcpus.unwrap_or(1))
        .map(|n| sleeper(format!("CPU {n}/KVM")))
        .collect();
    sleeper(format!("vhost-{}", std::process::id()));
    let listener = UnixListener::bind(socket).expect("a fresh folder");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that goes is no failure.
            let _ = serve(&stream, &tids);
        }
    });
    for line in std::io::stdin().lock().lines() {
        if line.is_err() {
            break;
        }
    }
    true
}

fn sleeper(name: String) -> i32 {
    let (tell, told) = mpsc::channel();
    thread::Builder::new()
        .name(name)
        .spawn(move || {
            tell.send(gettid().as_raw_nonzero().get()).expect("heard");
            loop {
                thread::park();
            }
        })
        .expect("a thread");
    told.recv().expect("told")
}

fn serve(mut stream: &UnixStream, tids: &[i32]) -> std::io::Result<()> {
    stream.write_all(b"{\"QMP\": {\"version\": {}, \"capabilities\": []}}\r\n")?;
    for line in BufReader::new(stream).lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let answer = match request["execute"].as_str() {
            Some("query-name") => json!({"name": format!("bench-{}", std::process::id())}),
            Some("query-cpus-fast") => tids
                .iter()
                .enumerate()
                .map(|(index, tid)| {
                    // All that QEMU 10 says of a vCPU.
                    json!({"cpu-index": index, "thread-id": tid, "target": "x86_64",
                        "qom-path": format!("/machine/unattached/device[{index}]"),
                        "props": {"core-id": index, "thread-id": 0, "socket-id": 0, "node-id": 0}})
                })
                .collect(),
            _ => json!([]),
        };
        let reply = json!({"return": answer, "id": request["id"]});
        stream.write_all(format!("{reply}\r\n").as_bytes())?;
    }
    Ok(())
}
