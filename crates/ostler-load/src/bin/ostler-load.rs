//! The command line of the load generator.

use std::io::{IsTerminal, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use ostler_load::ledger::Limits;
use ostler_load::lines::{Figures, Line};
use ostler_load::proto::{Http, Keyspace, MemcachedMix};
use ostler_load::run::{self, Config};
use ostler_load::schedule::{Plan, Step, seconds_to_ns};

/// Open-loop, Poisson, coordinated-omission-free load for memcached and HTTP/1.1.
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
    Memcached(MemcachedArgs),
    /// HTTP/1.1 gets.
    Http(HttpArgs),
}

#[derive(Debug, Args)]
struct Common {
    /// Server, as HOST:PORT.
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
struct MemcachedArgs {
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

impl Common {
    fn config(&self) -> anyhow::Result<Config> {
        let target: SocketAddr = self
            .target
            .to_socket_addrs()
            .with_context(|| format!("--target {}: write HOST:PORT", self.target))?
            .next()
            .with_context(|| format!("--target {}: the name has no address", self.target))?;
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
    let (Verb::Memcached(MemcachedArgs { common, .. }) | Verb::Http(HttpArgs { common, .. })) =
        &cli.protocol;
    let config = common.config()?;
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
            let keys = Arc::new(Keyspace::new(args.keys, args.max_value, common.seed)?);
            if args.preload {
                run::preload(config.target, &keys)?;
            }
            let mix = MemcachedMix {
                set_share: args.set_share,
                key_skew: args.key_skew,
            };
            run::memcached(&config, &keys, mix, &mut emit)?;
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
