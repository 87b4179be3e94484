//! `ostler guest`: the agent, in the steward's own binary, so that one static file serves hosts and guests.

use std::process::ExitCode;

/// Run in a guest: let the steward on the host say which vCPUs and network queues this guest should use
// Both are called Args, and clap names groups after types.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(
    after_help = "Everything it changes is put back when it ends, when the host asks, and when the host has been silent for too long.\n\n\
    To install it in a guest that has a vhost-vsock device: copy this binary there and run `ostler guest` from whatever starts services, as root; \
    it keeps only the capabilities that it needs. The smaller program ostler-guest is the same agent by itself.\n\n\
    Examples:\n  ostler guest\n  ostler guest --cgroup system.slice/memcached.service\n  ostler guest --no-act                    # report only\n\n\
    Exit codes: 0 ended as told; 1 otherwise."
)]
pub struct Args {
    #[command(flatten)]
    agent: ostler_guest::cli::Args,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    ostler_guest::cli::serve(args.agent)?;
    Ok(ExitCode::SUCCESS)
}
