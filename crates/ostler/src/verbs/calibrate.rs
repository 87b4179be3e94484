//! `ostler calibrate`: what slows the stages of packets' ways down on this host, from what it has recorded.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use ostler_model::Intent;
use ostler_policy::{Calibration, StageCalibrated, StageKind};
use ostler_record::{Reader, RecordError, Wall};
use serde::{Serialize, Serializer};

use crate::output;

/// Find the weights of [placement] from what a host has recorded
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Softirqs, vhost workers and vCPUs are slowed down by the caches, memory and interconnects that they meet, by how much \
    goes by the host. Records tell it in which they were on different sockets under different loads, such as those of a while under each \
    policy of [placement]. What is printed goes into the configuration as it is.\n\n\
    Examples:\n  ostler calibrate /var/lib/ostler/record.db\n  ostler sim bench/placement/calibration.toml --records kept\n  \
    ostler calibrate kept/*/record.db\n\n\
    Exit codes: 0 all weights found; 1 a record can't be read, or tells too little of a stage (less than a hundred samples)."
)]
pub struct Args {
    /// The records, of one host
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// A stage's weights.
#[derive(Serialize)]
struct Weighed {
    stage: &'static str,
    samples: usize,
    error: f64,
    packet_ns: u64,
    #[serde(flatten, serialize_with = "by_name")]
    weights: [(&'static str, f64); 7],
}

fn by_name<S: Serializer>(
    weights: &[(&'static str, f64); 7],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(weights.iter().copied())
}

impl Weighed {
    fn new(kind: StageKind, found: &StageCalibrated) -> Weighed {
        Weighed {
            stage: name(kind),
            samples: found.samples,
            error: found.calibrated.error,
            packet_ns: found.packet.0,
            weights: found.settings().weights(),
        }
    }
}

fn name(kind: StageKind) -> &'static str {
    match kind {
        StageKind::Softirq => "softirq",
        StageKind::Vhost => "vhost",
        StageKind::Vcpu => "vcpu",
    }
}

#[derive(Serialize)]
struct Summary {
    periods: u64,
    damaged: Vec<String>,
    stages: Vec<Weighed>,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut calibration = Calibration::default();
    let mut intent = Intent::default();
    let mut summary = Summary {
        periods: 0,
        damaged: Vec::new(),
        stages: Vec::new(),
    };
    for file in &args.files {
        calibration.pause();
        for period in Reader::open(file)?.range(Wall::MIN, Wall::MAX) {
            match period {
                Ok(period) => {
                    calibration.see(
                        &period.facts,
                        &period.snapshot,
                        &period.intent,
                        &period.plan,
                        period.adopted,
                    );
                    if *period.intent != intent {
                        intent = Intent::clone(&period.intent);
                    }
                    summary.periods += 1;
                }
                Err(error @ RecordError::Damaged { .. }) => {
                    calibration.pause();
                    summary.damaged.push(error.to_string());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    let mut refused = Vec::new();
    for kind in StageKind::ALL {
        match calibration.weights(kind, &intent) {
            Ok(found) => summary.stages.push(Weighed::new(kind, &found)),
            Err(why) => refused.push(format!("of {}s {why}", name(kind))),
        }
    }
    if args.json {
        output::print_json(&summary)?;
    } else {
        output::print(&text(&summary))?;
    }
    if !refused.is_empty() {
        bail!(
            "{} periods tell too little: {}",
            summary.periods,
            refused.join("; ")
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn text(summary: &Summary) -> String {
    let mut text = String::new();
    for damaged in &summary.damaged {
        let _ = writeln!(text, "# {damaged}");
    }
    for stage in &summary.stages {
        let _ = writeln!(
            text,
            "# From {} samples; off by {:.2} of a packet's time at its best.\n[placement.{}]\npacket = \"{}ns\"",
            stage.samples, stage.error, stage.stage, stage.packet_ns
        );
        for (key, weight) in stage.weights {
            let _ = writeln!(text, "{key} = {weight:.3}");
        }
        text.push('\n');
    }
    text
}
