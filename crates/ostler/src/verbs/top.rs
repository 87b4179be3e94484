//! `ostler top`: the status, drawn again and again.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{SocketArg, status};
use crate::api::client;
use crate::output::{self, Paint};
use crate::steward::view::{Explained, Status};

/// Show the running steward live: groups, guests, and the reasons of the plan in force
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  ostler top\n  ostler top --interval-ms 200\n\nCtrl-C ends it.\n\n\
    Exit codes: 0 ended; 3 no steward is running; 1 it can't be asked."
)]
pub struct Args {
    #[command(flatten)]
    socket: SocketArg,
    /// Time between two drawings
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(50..=60_000))]
    interval_ms: u64,
    /// End after so many drawings
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let socket = args.socket.path()?;
    let terminal = std::io::IsTerminal::is_terminal(&std::io::stdout());
    let paint = Paint(output::colours());
    let (stop, stopper) =
        std::os::unix::net::UnixStream::pair().context("could not make a socket pair")?;
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        let stopper = stopper
            .try_clone()
            .context("could not duplicate a socket")?;
        signal_hook::low_level::pipe::register(signal, stopper)
            .with_context(|| format!("could not listen for signal {signal}"))?;
    }
    // The other screen, so that what was on the terminal is there again at the end.
    let enter = if terminal { "\x1b[?1049h\x1b[?25l" } else { "" };
    let leave = if terminal { "\x1b[?25h\x1b[?1049l" } else { "" };
    output::print(enter)?;
    let result = draw(args, &socket, terminal, paint, &stop);
    output::print(leave)?;
    result.map(|()| ExitCode::SUCCESS)
}

fn draw(
    args: &Args,
    socket: &std::path::Path,
    terminal: bool,
    paint: Paint,
    stop: &std::os::unix::net::UnixStream,
) -> anyhow::Result<()> {
    let pause = Duration::from_millis(args.interval_ms);
    for drawn in 1_u64.. {
        let now: Status = client::get(socket, "/v1/status")?;
        let mut text = status::render(&now, paint);
        if let Ok(explained) = client::get::<Explained>(socket, "/v1/explain") {
            let _ = writeln!(text, "\n{}", paint.bold("WHY"));
            for why in &explained.reasons {
                let _ = writeln!(text, "  {}", why.text);
            }
        }
        if terminal {
            // Each line is cleared to its end and the rest of the screen below: nothing flickers and nothing old stays.
            text = format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n"));
        }
        output::print(&text)?;
        if args.count.is_some_and(|count| drawn >= count) {
            return Ok(());
        }
        let timeout = Timespec::try_from(pause).context("the interval is too long")?;
        let mut fds = [PollFd::new(stop, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => {}
            Ok(_) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error).context("could not wait for the next drawing"),
        }
    }
    Ok(())
}
