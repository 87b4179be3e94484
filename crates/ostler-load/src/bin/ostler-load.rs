//! The command line of the load generator.

use std::io::{IsTerminal, Write};
use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};
use ostler_load::ledger::Limits;
use ostler_load::lines::{Figures, Line};
use ostler_load::proto::{Http, KeyMix, Keyspace, Memcached, Redis};
use ostler_load::run::{self, Config};
use ostler_load::schedule::{Plan, Step, seconds_to_ns};

/// Open-loop, Poisson, coordinated-omission-free load for memcached, redis, HTTP/1.1, TCP and ICMP echo.
///
/// Latency runs from the time a request was *due*, whatever the server or the client did. Every request that was due is in the
/// figures: unanswered ones with their age, failed ones as if never answered.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    protocol: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// memcached's text protocol, ETC-like sizes.
    Memcached(KeyArgs),
    /// redis's protocol (RESP2), with memcached's keys and sizes.
    Redis(KeyArgs),
    /// HTTP/1.1 gets.
    Http(HttpArgs),
    /// A few bytes over TCP connections, to a server that sends back what it is sent.
    Echo(Common),
    /// ICMP echo requests, which the target's kernel answers.
    Ping(Common),
}

impl Verb {
    fn common(&self) -> &Common {
        match self {
            Verb::Memcached(args) | Verb::Redis(args) => &args.common,
            Verb::Http(args) => &args.common,
            Verb::Echo(common) | Verb::Ping(common) => common,
        }
    }

    /// Where to send requests.
    fn target(&self) -> anyhow::Result<SocketAddr> {
        let given = &self.common().target;
        let (found, form) = match self {
            Verb::Ping(_) if given.contains(':') && given.parse::<Ipv6Addr>().is_err() => {
                bail!("--target {given}: write HOST, without a port")
            }
            Verb::Ping(_) => ((given.as_str(), 0).to_socket_addrs(), "HOST"),
            _ => (given.to_socket_addrs(), "HOST:PORT"),
        };
        found
            .with_context(|| format!("--target {given}: write {form}"))?
            .next()
            .with_context(|| format!("--target {given}: the name has no address"))
    }
}

#[derive(Debug, Args)]
struct Common {
    /// Server, as HOST:PORT; of a ping, HOST alone.
    #[arg(long)]
    target: String,
    /// Mean requests per second.
    #[arg(long, default_value_t = 1000.0, conflicts_with = "steps")]
    rate: f64,
    /// How long.
    #[arg(long, default_value_t = 10.0, conflicts_with = "steps")]
    seconds: f64,
    /// A sequence of rates instead: "500x5,1000x5" (RATExSECONDS), or a file of such.
    #[arg(long)]
    steps: Option<String>,
    /// Connections in all.
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// Client threads.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Outstanding requests per connection.
    #[arg(long, default_value_t = 1)]
    depth: usize,
    /// Requests that may wait for a free connection, per thread.
    #[arg(long, default_value_t = 262_144)]
    queue: usize,
    /// Same seed, same requests at the same times.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Objective for P95.
    #[arg(long)]
    slo_us: Option<f64>,
    /// How long after its second a request may still be answered.
    #[arg(long, default_value_t = 1000)]
    drain_ms: u64,
    /// Sent later than this after its time counts as late.
    #[arg(long, default_value_t = 100)]
    late_us: u64,
    /// JSON lines, even on a terminal.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct KeyArgs {
    #[command(flatten)]
    common: Common,
    /// Different keys.
    #[arg(long, default_value_t = 10_000)]
    keys: usize,
    /// Share of sets.
    #[arg(long, default_value_t = 1.0 / 31.0)]
    set_share: f64,
    /// Zipf exponent of the keys' popularity; 0 is uniform.
    #[arg(long, default_value_t = 0.99)]
    key_skew: f64,
    /// Longest value, bytes.
    #[arg(long, default_value_t = 65_536)]
    max_value: usize,
    /// Write every key once before the schedule starts.
    #[arg(long)]
    preload: bool,
}

#[derive(Debug, Args)]
struct HttpArgs {
    #[command(flatten)]
    common: Common,
    /// Different paths.
    #[arg(long, default_value_t = 1)]
    paths: usize,
    /// Path; {} stands for the number below --paths. Default: / for one path, /{} for more.
    #[arg(long)]
    path: Option<String>,
    /// Body length that every reply must have.
    #[arg(long)]
    body_bytes: Option<u64>,
}

impl KeyArgs {
    fn keys(&self) -> anyhow::Result<Arc<Keyspace>> {
        let keys = Keyspace::new(self.keys, self.max_value, self.common.seed)?;
        Ok(Arc::new(keys))
    }

    fn mix(&self) -> KeyMix {
        KeyMix {
            set_share: self.set_share,
            key_skew: self.key_skew,
        }
    }
}

impl Common {
    fn config(&self, target: SocketAddr) -> anyhow::Result<Config> {
        let plan = match &self.steps {
            Some(steps) if Path::new(steps).is_file() => Plan::parse(
                &std::fs::read_to_string(steps)
                    .with_context(|| format!("reading --steps {steps}"))?,
            )?,
            Some(steps) => Plan::parse(steps)?,
            None => {
                let duration_ns = seconds_to_ns(self.seconds).context("--seconds: out of range")?;
                Plan::new(vec![Step {
                    rate_per_s: self.rate,
                    duration_ns,
                }])?
            }
        };
        let slo_ns = self
            .slo_us
            .map(|us| {
                seconds_to_ns(us / 1e6)
                    .filter(|&ns| ns > 0)
                    .context("--slo-us: must be above 0")
            })
            .transpose()?;
        Ok(Config {
            target,
            plan,
            connections: self.connections,
            threads: self.threads,
            depth: self.depth,
            queue: self.queue,
            seed: self.seed,
            limits: Limits {
                drain_ns: self
                    .drain_ms
                    .saturating_mul(1_000_000)
                    .min(3_600_000_000_000),
                late_ns: self.late_us.saturating_mul(1_000),
                slo_ns,
            },
        })
    }
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let common = cli.protocol.common();
    let config = common.config(cli.protocol.target()?)?;
    let json = common.json || !std::io::stdout().is_terminal();
    let mut broken_pipe = false;
    let mut emit = |line: Line| {
        let text = if json {
            serde_json::to_string(&line).unwrap_or_default()
        } else {
            for_people(&line)
        };
        // A reader that went away ends the output, not the load: the schedule was promised.
        if !broken_pipe {
            broken_pipe = writeln!(std::io::stdout().lock(), "{text}").is_err();
        }
    };
    match &cli.protocol {
        Verb::Memcached(args) => {
            let memcached = Memcached::new(args.keys()?, args.mix())?;
            if args.preload {
                run::preload(config.target, &memcached)?;
            }
            run::memcached(&config, &memcached, &mut emit)?;
        }
        Verb::Redis(args) => {
            let redis = Redis::new(args.keys()?, args.mix())?;
            if args.preload {
                run::preload(config.target, &redis)?;
            }
            run::redis(&config, &redis, &mut emit)?;
        }
        Verb::Http(args) => {
            let default_path = if args.paths == 1 { "/" } else { "/{}" };
            let path = args.path.as_deref().unwrap_or(default_path);
            run::http(
                &config,
                &Http::new(&common.target, path, args.paths, args.body_bytes)?,
                &mut emit,
            )?;
        }
        Verb::Echo(_) => {
            run::echo(&config, &mut emit)?;
        }
        Verb::Ping(_) => {
            run::ping(&config, &mut emit)?;
        }
    }
    Ok(())
}

fn for_people(line: &Line) -> String {
    match line {
        Line::Start(start) => format!(
            "{} {}: {} step(s), {} connections x depth {}, {} thread(s), seed {}\n{:>8} {:>10} {:>10} {:>9} {:>9} {:>9} {:>7} {:>7} {:>7}",
            start.protocol,
            start.target,
            start.steps,
            start.connections,
            start.depth,
            start.threads,
            start.seed,
            "time s",
            "rate/s",
            "done",
            "p50 us",
            "p95 us",
            "p99 us",
            "errors",
            "unansw.",
            "late",
        ),
        Line::Window(w) => row(&format!("{:.1}", w.start_s), w.rate_per_s, &w.figures),
        Line::Step(s) => {
            let slo = s.slo_met_share.map_or(String::new(), |share| {
                format!("  SLO met {:.0} %", share * 100.0)
            });
            format!(
                "{}{slo}\n",
                row(&format!("step {}", s.step), s.rate_per_s, &s.figures)
            )
        }
    }
}

fn row(label: &str, rate_per_s: f64, f: &Figures) -> String {
    let us = |x: Option<f64>| x.map_or("-".to_owned(), |x| format!("{x:.0}"));
    format!(
        "{label:>8} {rate_per_s:>10.0} {:>10} {:>9} {:>9} {:>9} {:>7} {:>7} {:>7}",
        f.completed,
        us(f.p50_us),
        us(f.p95_us),
        us(f.p99_us),
        f.errors,
        f.timeouts + f.dropped,
        f.late,
    )
}
