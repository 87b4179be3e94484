//! A whole run: check the settings, preload, connect, start the threads, put their windows together.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::mpsc;
use std::time::Duration;

use crate::clock::{monotonic_ns, unix_ms};
use crate::driver::{Driver, Shape};
use crate::error::LoadError;
use crate::ledger::{Limits, Outcome, Window};
use crate::lines::{Line, Start, StepLine, Writer};
use crate::link::Link;
use crate::net::Worker;
use crate::proto::{Echo, Http, KeyRequest, KeyValue, Memcached, Ping, Protocol, Redis, Reply};
use crate::schedule::Plan;

/// Threads connect first and start together after this pause.
const START_DELAY_NS: u64 = 5_000_000;
/// Sets in flight while preloading.
const PRELOAD_BATCH: usize = 64;
const PRELOAD_READ_BYTES: usize = 4 << 10;
const PRELOAD_TIME_MAX: Duration = Duration::from_secs(10);

/// What is common to all protocols.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The server.
    pub target: SocketAddr,
    /// Rates and durations.
    pub plan: Plan,
    /// Connections in all.
    pub connections: usize,
    /// Client threads; connections and rate are split evenly.
    pub threads: usize,
    /// Outstanding requests per connection.
    pub depth: usize,
    /// Requests that may wait for a free connection, per thread.
    pub queue: usize,
    /// Same seed, same requests at the same intended times.
    pub seed: u64,
    /// Deadline, lateness, objective.
    pub limits: Limits,
}

impl Config {
    fn check(&self) -> Result<(), LoadError> {
        let bounds = [
            ("connections", self.connections, 1, 65_536),
            ("threads", self.threads, 1, 256),
            ("depth", self.depth, 1, 1_024),
            ("queue", self.queue, 1, 1 << 24),
        ];
        for (name, value, min, max) in bounds {
            if !(min..=max).contains(&value) {
                return Err(LoadError::Setting {
                    name,
                    value: value.to_string(),
                    why: "is out of its range",
                });
            }
        }
        if !self.connections.is_multiple_of(self.threads) {
            return Err(LoadError::Setting {
                name: "connections",
                value: self.connections.to_string(),
                why: "must be a multiple of --threads, so that all threads carry the same load",
            });
        }
        if self.limits.drain_ns == 0 {
            return Err(LoadError::Setting {
                name: "drain-ms",
                value: "0".to_owned(),
                why: "must be above 0",
            });
        }
        Ok(())
    }
}

/// Drives a memcached server with ETC-like traffic; `line` is called with each result line as it becomes final.
pub fn memcached(
    config: &Config,
    memcached: &Memcached,
    line: &mut dyn FnMut(Line),
) -> Result<Vec<StepLine>, LoadError> {
    run(config, "memcached", memcached, line)
}

/// Drives a redis server with the same traffic.
pub fn redis(
    config: &Config,
    redis: &Redis,
    line: &mut dyn FnMut(Line),
) -> Result<Vec<StepLine>, LoadError> {
    run(config, "redis", redis, line)
}

/// Drives an HTTP/1.1 server.
pub fn http(
    config: &Config,
    http: &Http,
    line: &mut dyn FnMut(Line),
) -> Result<Vec<StepLine>, LoadError> {
    run(config, "http", http, line)
}

/// Drives a server that sends back what it is sent.
pub fn echo(config: &Config, line: &mut dyn FnMut(Line)) -> Result<Vec<StepLine>, LoadError> {
    run(config, "echo", &Echo, line)
}

/// Sends a machine ICMP echo requests; the target's port means nothing.
pub fn ping(config: &Config, line: &mut dyn FnMut(Line)) -> Result<Vec<StepLine>, LoadError> {
    run(config, "ping", &Ping, line)
}

fn run<P>(
    config: &Config,
    protocol_name: &str,
    protocol: &P,
    line: &mut dyn FnMut(Line),
) -> Result<Vec<StepLine>, LoadError>
where
    P: Protocol + Clone + Send,
    P::Request: Send,
    P::Parser: Send,
{
    config.check()?;
    let threads = config.threads;
    let plan = config.plan.share(threads);
    let lanes = config.connections / threads;
    let links = (0..threads)
        .map(|_| Link::open_all(config.target, protocol.wire(), lanes))
        .collect::<Result<Vec<_>, _>>()?;

    let start_monotonic_ns = monotonic_ns() + START_DELAY_NS;
    let slo_us = config.limits.slo_ns.map(|ns| ns as f64 / 1e3);
    line(Line::Start(Start {
        protocol: protocol_name.to_owned(),
        target: config.target.to_string(),
        seed: config.seed,
        connections: config.connections,
        depth: config.depth,
        threads,
        steps: config.plan.steps().len(),
        start_unix_ms: unix_ms() + START_DELAY_NS / 1_000_000,
        start_monotonic_ns,
        slo_us,
    }));

    let mut workers = Vec::with_capacity(threads);
    for (stream, links) in (0..).zip(links) {
        let shape = Shape {
            lanes,
            depth: config.depth,
            queue: config.queue,
            seed: config.seed,
            stream,
        };
        let driver = Driver::new(protocol.clone(), &plan, shape, config.limits);
        workers.push(Worker::new(
            driver,
            config.target,
            links,
            start_monotonic_ns,
        )?);
    }

    std::thread::scope(|scope| {
        let mut receivers = Vec::with_capacity(threads);
        let mut handles = Vec::with_capacity(threads);
        for worker in workers {
            // Unbounded in type, bounded in fact: one window a second.
            let (sender, receiver) = mpsc::channel();
            receivers.push(receiver);
            handles.push(scope.spawn(move || worker.run(&sender)));
        }
        let mut writer = Writer::new(&config.plan, slo_us);
        let mut steps = Vec::with_capacity(config.plan.steps().len());
        for _ in config.plan.windows() {
            let Some(window) = next_merged(&receivers) else {
                break;
            };
            let (window_line, step_line) = writer.window(&window);
            line(Line::Window(window_line));
            if let Some(step) = step_line {
                steps.push(step.clone());
                line(Line::Step(step));
            }
        }
        for handle in handles {
            handle.join().map_err(|_| LoadError::Worker)??;
        }
        if steps.len() == config.plan.steps().len() {
            Ok(steps)
        } else {
            Err(LoadError::Worker)
        }
    })
}

/// The next window of every thread, put together.
fn next_merged(receivers: &[mpsc::Receiver<Window>]) -> Option<Window> {
    let mut merged: Option<Window> = None;
    for receiver in receivers {
        let window = receiver.recv().ok()?;
        match &mut merged {
            None => merged = Some(window),
            Some(so_far) => so_far.merge(&window),
        }
    }
    merged
}

/// Writes every key once, so that gets find their values.
pub fn preload<P: KeyValue>(target: SocketAddr, protocol: &P) -> Result<(), LoadError> {
    let io = |what: &str| {
        let what = what.to_owned();
        move |source| LoadError::Preload {
            target,
            what,
            source: Some(source),
        }
    };
    let stream =
        TcpStream::connect_timeout(&target, PRELOAD_TIME_MAX).map_err(io("cannot connect"))?;
    stream
        .set_read_timeout(Some(PRELOAD_TIME_MAX))
        .map_err(io("cannot set a timeout"))?;
    stream
        .set_write_timeout(Some(PRELOAD_TIME_MAX))
        .map_err(io("cannot set a timeout"))?;
    let mut out = Vec::new();
    let mut replies = Replies {
        stream: &stream,
        parser: P::Parser::default(),
        buffer: vec![0; PRELOAD_READ_BYTES],
        unread: 0..0,
    };
    let count = u32::try_from(protocol.keys().len()).unwrap_or(u32::MAX);
    let numbers: Vec<u32> = (0..count).collect();
    for batch in numbers.chunks(PRELOAD_BATCH) {
        out.clear();
        for &key in batch {
            protocol.encode(KeyRequest::Set(key), &mut out);
        }
        let at = || format!("keys {} to {} of {count}", batch[0], batch[batch.len() - 1]);
        (&stream).write_all(&out).map_err(io(&at()))?;
        for &key in batch {
            let stored = replies.is_stored(protocol, key).map_err(io(&at()))?;
            if let Err(said) = stored {
                return Err(LoadError::Preload {
                    target,
                    what: format!("{}: the server said {said:?}", at()),
                    source: None,
                });
            }
        }
    }
    Ok(())
}

/// Reads replies to sets, one after the other.
struct Replies<'a, P: KeyValue> {
    stream: &'a TcpStream,
    parser: P::Parser,
    buffer: Vec<u8>,
    unread: Range<usize>,
}

impl<P: KeyValue> Replies<'_, P> {
    /// Whether the next reply says that the key was stored; else what was said instead, as far as it has come.
    fn is_stored(&mut self, protocol: &P, key: u32) -> std::io::Result<Result<(), String>> {
        loop {
            if self.unread.is_empty() {
                let count = self.stream.read(&mut self.buffer)?;
                if count == 0 {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                self.unread = 0..count;
            }
            let bytes = &self.buffer[self.unread.clone()];
            let (used, reply) = protocol.parse(&mut self.parser, KeyRequest::Set(key), bytes);
            let said = &bytes[..used];
            self.unread.start += used;
            match reply {
                Reply::Incomplete => {}
                Reply::Complete(Outcome::Done) => return Ok(Ok(())),
                Reply::Complete(_) | Reply::Last(_) | Reply::Broken => {
                    let said = String::from_utf8_lossy(said);
                    return Ok(Err(said.trim_end().to_owned()));
                }
            }
        }
    }
}
