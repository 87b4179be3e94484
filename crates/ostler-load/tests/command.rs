//! The program itself, against a server in this process: no package needed, so this runs everywhere.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use ostler_load::lines::{Line, StepLine};

/// Answers every request line that ends a header; hangs up without a word after `replies_max` replies on a connection.
struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    accepted: Arc<AtomicUsize>,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    fn start(replies_max: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let accepted = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&accepted);
        let acceptor = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let stream = stream.unwrap();
                counter.fetch_add(1, Ordering::SeqCst);
                // Each ends when its client hangs up, which it does when the program ends.
                std::thread::spawn(move || serve(&stream, replies_max));
            }
        });
        Self {
            address,
            stop,
            accepted,
            acceptor: Some(acceptor),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the acceptor; if that fails it isn't listening any more.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.join().unwrap();
        }
    }
}

fn serve(mut stream: &TcpStream, replies_max: usize) {
    let mut lines = BufReader::new(stream).lines();
    for _ in 0..replies_max {
        // A request is a few lines and an empty one.
        loop {
            match lines.next() {
                Some(Ok(line)) if line.is_empty() => break,
                Some(Ok(_)) => {}
                _ => return,
            }
        }
        if stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
            .is_err()
        {
            return;
        }
    }
}

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ostler-load"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Vec<Line> {
    // A busy test machine may be slow; what is tested here isn't speed.
    let output = program(arguments)
        .args(["--drain-ms", "20000"])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}")))
        .collect()
}

fn steps(lines: &[Line]) -> Vec<&StepLine> {
    lines
        .iter()
        .filter_map(|l| {
            if let Line::Step(step) = l {
                Some(step)
            } else {
                None
            }
        })
        .collect()
}

#[test]
fn steps_from_a_file_come_out_in_order_as_json_lines() {
    let server = Server::start(usize::MAX);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "# up\n300x1.2\n600x1 # and down\n100x0.5\n").unwrap();
    let target = server.address.to_string();
    let path = file.path().to_str().unwrap();
    let lines = run(&[
        "http",
        "--target",
        &target,
        "--steps",
        path,
        "--connections",
        "4",
        "--slo-us",
        "500000",
        "--body-bytes",
        "5",
        "--json",
    ]);
    let Line::Start(start) = &lines[0] else {
        panic!("{:?}", lines[0])
    };
    assert_eq!(
        (start.protocol.as_str(), start.steps, start.connections),
        ("http", 3, 4)
    );
    let order: Vec<_> = lines[1..]
        .iter()
        .map(|line| match line {
            Line::Window(w) => (w.step, Some(w.window)),
            Line::Step(s) => (s.step, None),
            Line::Start(_) => panic!("a second start"),
        })
        .collect();
    assert_eq!(
        order,
        [
            (0, Some(0)),
            (0, Some(1)),
            (0, None),
            (1, Some(0)),
            (1, None),
            (2, Some(0)),
            (2, None)
        ]
    );
    for step in steps(&lines) {
        assert_eq!(step.figures.completed, step.figures.due, "{step:?}");
        assert!(step.slo_met_share.is_some());
    }
    // The counts are the seed's alone.
    let again = run(&[
        "http",
        "--target",
        &target,
        "--steps",
        "300x1.2,600x1,100x0.5",
        "--connections",
        "1",
        "--depth",
        "8",
        "--json",
    ]);
    let due = |lines: &[Line]| {
        steps(lines)
            .iter()
            .map(|s| s.figures.due)
            .collect::<Vec<_>>()
    };
    assert_eq!(due(&lines), due(&again));
}

#[test]
fn echoes_are_counted_and_what_isnt_an_echo_is_an_error() {
    let due = |reply: fn(u8) -> u8| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = listener.local_addr().unwrap().to_string();
        // It ends with the program, which ends its connection.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut bytes = [0; 64];
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    let replies = bytes.map(reply);
                    if stream.write_all(&replies[..count]).is_err() {
                        break;
                    }
                }
            }
        });
        let lines = run(&[
            "echo",
            "--target",
            &target,
            "--rate",
            "50",
            "--seconds",
            "1",
            "--connections",
            "1",
        ]);
        steps(&lines)[0].figures.clone()
    };
    let good = due(|byte| byte);
    assert!(good.due > 0 && good.completed == good.due, "{good:?}");
    let bad = due(|byte| byte ^ 1);
    assert_eq!((bad.completed, bad.errors > 0), (0, true), "{bad:?}");
}

#[test]
fn a_server_that_hangs_up_costs_errors_and_the_run_goes_on() {
    let server = Server::start(40);
    let target = server.address.to_string();
    let lines = run(&[
        "http",
        "--target",
        &target,
        "--rate",
        "400",
        "--seconds",
        "2",
        "--connections",
        "2",
        "--json",
    ]);
    let figures = &steps(&lines)[0].figures;
    assert_eq!(
        figures.due,
        figures.completed + figures.errors + figures.timeouts + figures.dropped
    );
    assert!(figures.completed > 80, "{figures:?}");
    assert!(
        figures.completed < figures.due || figures.late > 0,
        "hanging up can't be free: {figures:?}"
    );
}

#[test]
fn a_connection_is_kept_through_all_steps() {
    let server = Server::start(usize::MAX);
    let target = server.address.to_string();
    let lines = run(&[
        "http",
        "--target",
        &target,
        "--steps",
        "30x1,30x1,30x0.5",
        "--connections",
        "3",
        "--json",
    ]);
    assert_eq!(steps(&lines).len(), 3);
    assert_eq!(server.accepted.load(Ordering::SeqCst), 3);
}

#[test]
fn results_stream_while_the_run_goes_on() {
    let server = Server::start(usize::MAX);
    let target = server.address.to_string();
    let mut child = program(&[
        "http",
        "--target",
        &target,
        "--rate",
        "100",
        "--seconds",
        "4",
        "--json",
    ])
    .stdout(Stdio::piped())
    .spawn()
    .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first_two: Vec<String> = lines.by_ref().take(2).map(Result::unwrap).collect();
    assert!(
        first_two[1].contains("\"kind\":\"window\""),
        "{}",
        first_two[1]
    );
    assert!(
        child.try_wait().unwrap().is_none(),
        "the first window came before the end"
    );
    assert_eq!(lines.count(), 4, "three more windows and the step");
    assert!(child.wait().unwrap().success());
}

#[test]
fn mistakes_are_said_in_words_that_help() {
    for (arguments, expected) in [
        (
            vec!["http", "--target", "127.0.0.1:1", "--steps", "5y5"],
            "RATExSECONDS",
        ),
        (
            vec!["http", "--target", "127.0.0.1:1", "--rate", "1"],
            "is the server listening",
        ),
        (vec!["http", "--target", "nowhere"], "write HOST:PORT"),
        (
            vec!["ping", "--target", "127.0.0.1:7"],
            "write HOST, without",
        ),
        (vec!["ping", "--target", "::1"], "net.ipv4.ping_group_range"),
        (
            vec![
                "http",
                "--target",
                "127.0.0.1:1",
                "--connections",
                "3",
                "--threads",
                "2",
            ],
            "multiple of --threads",
        ),
        (
            vec!["memcached", "--target", "127.0.0.1:1", "--set-share", "2"],
            "must be a share",
        ),
        (
            vec!["memcached", "--target", "127.0.0.1:1", "--keys", "0"],
            "must be 1 to",
        ),
    ] {
        let output = program(&arguments).output().unwrap();
        assert!(!output.status.success());
        let mut said = String::new();
        output.stderr.as_slice().read_to_string(&mut said).unwrap();
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
}
