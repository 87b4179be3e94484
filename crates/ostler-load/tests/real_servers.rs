//! End to end over loopback, against the real servers where they are installed.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ostler_load::LoadError;
use ostler_load::ledger::Limits;
use ostler_load::lines::{Line, StepLine};
use ostler_load::proto::{Http, KeyMix, Keyspace, Memcached, Redis};
use ostler_load::run::{self, Config};
use ostler_load::schedule::Plan;

struct Server {
    child: Child,
    target: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is ours and it is gone after this.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

/// Starts a server and waits, in bounded time, until it accepts connections; `None` where it isn't installed.
fn start(mut command: Command, target: SocketAddr) -> Option<Server> {
    let child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut server = Server { child, target };
    let started = Instant::now();
    while TcpStream::connect_timeout(&target, Duration::from_millis(200)).is_err() {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "the server didn't come up"
        );
        assert!(
            server.child.try_wait().unwrap().is_none(),
            "the server ended at its start"
        );
        std::thread::yield_now();
    }
    Some(server)
}

fn memcached() -> Option<Server> {
    let target = free_address();
    let mut command = Command::new("memcached");
    command.args([
        "-U",
        "0",
        "-l",
        "127.0.0.1",
        "-t",
        "1",
        "-m",
        "64",
        "-u",
        "nobody",
        "-p",
    ]);
    command.arg(target.port().to_string());
    start(command, target)
}

fn redis() -> Option<Server> {
    let target = free_address();
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--save", "", "--port"]);
    command.arg(target.port().to_string());
    start(command, target)
}

fn config(target: SocketAddr, steps: &str) -> Config {
    Config {
        target,
        plan: Plan::parse(steps).unwrap(),
        connections: 8,
        threads: 1,
        depth: 1,
        queue: 100_000,
        seed: 42,
        limits: Limits {
            drain_ns: 20_000_000_000,
            late_ns: 1_000_000,
            slo_ns: Some(1_000_000),
        },
    }
}

fn balanced(step: &StepLine) {
    let f = &step.figures;
    assert_eq!(
        f.due,
        f.completed + f.errors + f.timeouts + f.dropped,
        "{step:?}"
    );
}

#[test]
fn memcached_answers_every_request() {
    let Some(server) = memcached() else {
        println!(
            "SKIP memcached_answers_every_request: no memcached here (apt-get install memcached)"
        );
        return;
    };
    let memcached = Memcached::new(keys(42), MIX).unwrap();
    run::preload(server.target, &memcached).unwrap();
    for threads in [1, 2] {
        let config = Config {
            threads,
            ..config(server.target, STEPS)
        };
        let mut lines = Vec::new();
        run::memcached(&config, &memcached, &mut |line| lines.push(line)).unwrap();
        every_request_was_a_hit_or_stored(&lines);
    }
}

#[test]
fn redis_answers_every_request() {
    let Some(server) = redis() else {
        println!(
            "SKIP redis_answers_every_request: no redis-server here (apt-get install redis-server)"
        );
        return;
    };
    let redis = Redis::new(keys(42), MIX).unwrap();
    run::preload(server.target, &redis).unwrap();
    let mut lines = Vec::new();
    let config = config(server.target, STEPS);
    run::redis(&config, &redis, &mut |line| lines.push(line)).unwrap();
    every_request_was_a_hit_or_stored(&lines);

    // Keys of another seed have other names or lengths.
    let other = Redis::new(keys(43), MIX).unwrap();
    let steps = run::redis(&config, &other, &mut |_| {}).unwrap();
    balanced(&steps[0]);
    assert!(steps[0].figures.hit_rate.unwrap() < 0.9, "{:?}", steps[0]);
}

const STEPS: &str = "1000x1,2000x1.5";
const MIX: KeyMix = KeyMix {
    set_share: 0.1,
    key_skew: 0.99,
};

fn keys(seed: u64) -> Arc<Keyspace> {
    Arc::new(Keyspace::new(2_000, 4_096, seed).unwrap())
}

fn every_request_was_a_hit_or_stored(lines: &[Line]) {
    let steps: Vec<_> = lines
        .iter()
        .filter_map(|line| match line {
            Line::Step(step) => Some(step),
            _ => None,
        })
        .collect();
    assert_eq!(steps.len(), 2);
    for step in &steps {
        balanced(step);
        assert_eq!(step.figures.errors, 0, "{step:?}");
        assert_eq!(step.figures.hit_rate, Some(1.0));
        assert!(step.figures.p50_us.unwrap() > 1.0);
    }
    // Poisson counts: six standard deviations.
    assert!((steps[0].figures.due as f64 - 1000.0).abs() < 190.0);
    assert!((steps[1].figures.due as f64 - 3000.0).abs() < 330.0);
    let windows = lines
        .iter()
        .filter(|l| matches!(l, Line::Window(_)))
        .count();
    assert_eq!(windows, 1 + 2);
    for line in lines {
        let text = serde_json::to_string(line).unwrap();
        assert_eq!(&serde_json::from_str::<Line>(&text).unwrap(), line);
    }
}

#[test]
fn without_preload_gets_miss_and_wrong_lengths_are_errors() {
    let Some(server) = memcached() else {
        println!("SKIP without_preload_gets_miss_and_wrong_lengths_are_errors: no memcached here");
        return;
    };
    let gets = KeyMix {
        set_share: 0.0,
        key_skew: 0.0,
    };
    let keys = Arc::new(Keyspace::new(100, 1_000, 1).unwrap());
    let config = config(server.target, "500x0.5");
    let memcached = Memcached::new(keys, gets).unwrap();
    let steps = run::memcached(&config, &memcached, &mut |_| {}).unwrap();
    assert_eq!(steps[0].figures.hit_rate, Some(0.0));
    assert_eq!(steps[0].figures.errors, 0);

    // Another seed writes the keys, some of the same name, with other lengths.
    let other = Arc::new(Keyspace::new(100, 1_000, 2).unwrap());
    run::preload(server.target, &Memcached::new(other, gets).unwrap()).unwrap();
    let steps = run::memcached(&config, &memcached, &mut |_| {}).unwrap();
    balanced(&steps[0]);
    assert!(steps[0].figures.errors > 0);
}

#[test]
fn nginx_answers_every_request() {
    let dir = tempfile::tempdir().unwrap();
    let target = free_address();
    let root = dir.path().display();
    let conf = format!(
        "daemon off; master_process off; pid {root}/pid; error_log {root}/error.log; events {{}}\n\
         http {{ access_log off; client_body_temp_path {root}/b; proxy_temp_path {root}/p; fastcgi_temp_path {root}/f;\n\
         uwsgi_temp_path {root}/u; scgi_temp_path {root}/s; keepalive_requests 300;\n\
         server {{ listen {target}; root {root}; }} }}\n"
    );
    std::fs::write(dir.path().join("nginx.conf"), conf).unwrap();
    for page in 0..3 {
        let mut file = std::fs::File::create(dir.path().join(format!("{page}.html"))).unwrap();
        file.write_all(&[b'x'; 777]).unwrap();
    }
    let mut command = Command::new("nginx");
    command
        .args(["-e", "stderr", "-p"])
        .arg(dir.path())
        .arg("-c")
        .arg(dir.path().join("nginx.conf"));
    let Some(server) = start(command, target) else {
        println!("SKIP nginx_answers_every_request: no nginx here (apt-get install nginx-light)");
        return;
    };
    // 300 requests close a connection, so reconnecting is part of this.
    let http = Http::new("localhost", "/{}.html", 3, Some(777)).unwrap();
    let steps = run::http(&config(server.target, "2000x2"), &http, &mut |_| {}).unwrap();
    balanced(&steps[0]);
    assert_eq!(steps[0].figures.errors, 0, "{:?}", steps[0]);
    assert_eq!(steps[0].figures.completed, steps[0].figures.due);

    let missing = Http::new("localhost", "/nothing-here", 1, None).unwrap();
    let steps = run::http(&config(server.target, "200x0.5"), &missing, &mut |_| {}).unwrap();
    assert_eq!(steps[0].figures.errors, steps[0].figures.due);
}

#[test]
fn the_kernel_answers_every_ping() {
    let loopback = "127.0.0.1:0".parse().unwrap();
    let mut lines = Vec::new();
    let steps = match run::ping(&config(loopback, "1000x1"), &mut |line| lines.push(line)) {
        Err(LoadError::Icmp { source, .. }) => {
            println!("SKIP the_kernel_answers_every_ping: no ICMP socket here ({source})");
            return;
        }
        steps => steps.unwrap(),
    };
    balanced(&steps[0]);
    assert_eq!(steps[0].figures.completed, steps[0].figures.due);
    assert!(steps[0].figures.due > 0);
}

#[test]
fn nobody_listening_is_said_so() {
    let redis = Redis::new(keys(1), MIX).unwrap();
    let error = run::preload(free_address(), &redis).unwrap_err();
    assert!(error.to_string().contains("cannot connect"), "{error}");
    let http = Http::new("h", "/", 1, None).unwrap();
    let error = run::http(&config(free_address(), "1x1"), &http, &mut |_| {}).unwrap_err();
    assert!(
        error.to_string().contains("is the server listening"),
        "{error}"
    );
}
