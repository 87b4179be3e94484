//! The load generator's command line: it runs in the client's namespace, on cores that are not under test.

use std::process::{Command, Stdio};

use anyhow::Context;

use super::net::CLIENT;
use crate::machine;
use crate::program::Program;
use crate::scenario::{Guest, Load, Workload};

/// The guest that a load is meant for, and its position.
pub fn target<'a>(program: &'a Program, load: &Load) -> anyhow::Result<(usize, &'a Guest)> {
    let mut guests = program.scenario.guests.iter().enumerate();
    guests
        .find(|(_, guest)| guest.name == load.guest)
        .with_context(|| format!("no guest is named {}", load.guest))
}

/// The generator with these steps, like `500x5,1000x5`, in place of the load's own.
pub fn command(program: &Program, load: &Load, steps: &str, seed: u64) -> anyhow::Result<Command> {
    let (index, guest) = target(program, load)?;
    let port = guest
        .workload
        .port()
        .context("the guest answers no requests")?;
    let protocol = if guest.workload == Workload::Memcached {
        "memcached"
    } else {
        "http"
    };
    let mut command = Command::new("ip");
    command
        .args(["netns", "exec", CLIENT])
        .args(&program.load)
        .arg(protocol);
    command.args([
        "--target",
        &format!("{}:{port}", machine::guest_address(index)),
        "--json",
    ]);
    command.args([
        "--steps",
        steps,
        "--seed",
        &seed.to_string(),
        "--connections",
        &load.connections.to_string(),
    ]);
    if let Some(slo) = guest.slo_p95_us {
        command.args(["--slo-us", &slo.to_string()]);
    }
    if guest.workload == Workload::Nginx {
        command.args(["--paths", "2000"]);
    }
    command.args(&load.args).stdin(Stdio::null());
    Ok(command)
}
