//! The agent's command line: the program `ostler-guest`, and `ostler guest` in the steward's own binary, so that one static file serves
//! both sides.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use signal_hook::consts::{SIGINT, SIGTERM};
use tracing::info;

use crate::agent::serve::{Connection, Listener, run};
use crate::agent::{Agent, Config, Linux, Scope, privilege};

/// Lets the steward on the host say which vCPUs and network queues this guest should use.
///
/// Everything it changes is put back when it ends, when the host asks, and when the host has been silent for too long.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The vsock port to listen on.
    #[arg(long, default_value_t = ostler_abi::guest::PORT)]
    port: u32,
    /// The only vsock address to take connections from; 2 is the host.
    #[arg(long, default_value_t = vsock::VMADDR_CID_HOST, hide = true)]
    peer_cid: u32,
    /// Listen on this unix socket instead.
    #[arg(long, value_name = "PATH", conflicts_with = "stdio")]
    unix: Option<PathBuf>,
    /// Speak on standard input and output instead, and end with them.
    #[arg(long)]
    stdio: bool,
    /// A cgroup to confine, below the cgroup root; may be given again. Default: all but the agent's own.
    #[arg(long, value_name = "PATH")]
    cgroup: Vec<String>,
    /// Report only; change nothing.
    #[arg(long)]
    no_act: bool,
    /// After how many seconds without a word from the host everything is put back.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    dead_man_s: u64,
    /// The folder that holds /proc and /sys.
    #[arg(long, default_value = "/", hide = true)]
    root: PathBuf,
}

/// Runs the agent until it is told to end; it has put back what it changed by then.
pub fn serve(args: Args) -> anyhow::Result<()> {
    // SIGTERM and SIGINT become a byte to read, so that the loop can put everything back first.
    let (stop, stop_writer) = UnixStream::pair().context("can't make a socket pair")?;
    for signal in [SIGTERM, SIGINT] {
        let writer = stop_writer
            .try_clone()
            .context("can't duplicate a socket")?;
        signal_hook::low_level::pipe::register(signal, writer)
            .with_context(|| format!("can't handle signal {signal}"))?;
    }

    let (listener, given) = if args.stdio {
        let connection = Connection::stdio().context("can't use standard input and output")?;
        (Listener::None, Some(connection))
    } else if let Some(path) = &args.unix {
        let listener = Listener::unix(path)
            .with_context(|| format!("can't listen on {}; is its folder there?", path.display()))?;
        (listener, None)
    } else {
        let listener = Listener::vsock(args.port, args.peer_cid).with_context(|| {
            format!(
                "can't listen on vsock port {}; does this guest have a vhost-vsock-pci device and its driver?",
                args.port
            )
        })?;
        (listener, None)
    };
    privilege::drop_privileges().context("can't drop privileges")?;

    let scope = if args.cgroup.is_empty() {
        Scope::All
    } else {
        Scope::Named(args.cgroup)
    };
    let config = Config {
        scope,
        act: !args.no_act,
        dead_man: Duration::from_secs(args.dead_man_s),
        ..Config::default()
    };
    let mut agent = Agent::new(Linux::new(&args.root), config, Instant::now());
    info!("listening");
    run(&mut agent, &listener, given, &stop).context("can't serve on")
}
