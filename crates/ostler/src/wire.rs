//! Where the rooms meet: the loop's traits over ostler-sense, ostler-policy, ostler-check, ostler-act and ostler-guest. Nothing else in this program names them.

mod agents;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use ostler_act::{ActConfig, Actuator, GuestPort, Journal, LinuxHost, LinuxSchedulers, UndoReport};
use ostler_model::config::{AgentConfig, Config};
use ostler_model::{
    ActIntent, ActMode, ExitPolicy, Facts, ForeignPolicy, Nanos, Outcome, Plan, Snapshot,
};
use ostler_record::{Decided, Inputs};
use ostler_sense::{Bell, SenseConfig, Sensor};

use crate::steward::control::mix;
use crate::steward::{Act, Decide, Restored, Sense};

pub use agents::{AgentPort, GuestAgents};
pub use ostler_act::Change;

/// Where the kernel's file systems are; tests put trees of their own there.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Roots {
    /// Take /proc, /sys and the cgroup tree from this folder's proc, sys and cgroup, and use no BPF.
    #[arg(long, value_name = "DIR", hide = true)]
    root: Option<PathBuf>,
}

impl Roots {
    fn sense(&self) -> ostler_sense::Roots {
        match &self.root {
            None => ostler_sense::Roots::default(),
            Some(root) => ostler_sense::Roots {
                proc: root.join("proc"),
                sys: root.join("sys"),
                cgroup: root.join("cgroup"),
            },
        }
    }

    /// The process tree that is acted on.
    pub fn proc(&self) -> PathBuf {
        self.sense().proc
    }

    fn host(&self) -> LinuxHost {
        match &self.root {
            None => LinuxHost::detect(),
            Some(root) => LinuxHost::new(root.join("cgroup"), root.join("proc"), root.join("sys")),
        }
    }
}

/// What this host is.
pub fn facts() -> anyhow::Result<Facts> {
    let config = sense_config(&Config::default(), &Roots::default());
    let sensor = Sensor::new(config).context(CANT_SENSE)?;
    Ok(sensor.facts().clone())
}

const CANT_SENSE: &str = "could not begin to sense this host";

/// Begins to sense. `changed` is called, from any thread, when guests came, changed or went.
pub fn sense(
    config: &Config,
    roots: &Roots,
    changed: impl Fn() + Send + Sync + 'static,
) -> anyhow::Result<HostSense> {
    let config = sense_config(config, roots);
    let bell = Bell::new(changed);
    Ok(HostSense {
        sensor: Sensor::with_bell(config.clone(), &bell).context(CANT_SENSE)?,
        bell,
        config,
        roots: roots.clone(),
    })
}

fn sense_config(config: &Config, roots: &Roots) -> SenseConfig {
    SenseConfig {
        roots: roots.sense(),
        qmp_globs: config.daemon.discovery.qmp.clone(),
        libvirt: config.daemon.discovery.libvirt.clone(),
        nics: config.intent.nics.clone(),
        bpf: roots.root.is_none(),
        ..SenseConfig::default()
    }
}

/// Senses this host.
pub struct HostSense {
    sensor: Sensor,
    bell: Bell,
    config: SenseConfig,
    roots: Roots,
}

impl Sense for HostSense {
    fn facts(&self) -> &Facts {
        self.sensor.facts()
    }

    fn snapshot(&mut self, now: Nanos) -> anyhow::Result<Snapshot> {
        Ok(self.sensor.snapshot(now))
    }

    fn configure(&mut self, config: &Config) -> anyhow::Result<()> {
        let config = sense_config(config, &self.roots);
        if config == self.config {
            return Ok(());
        }
        // A new sensor counts from the beginning; the old one stays where the new one can't be had.
        self.sensor = Sensor::with_bell(config.clone(), &self.bell)
            .context("could not sense this host by the new configuration")?;
        self.config = config;
        Ok(())
    }
}

/// The policies and the checker.
pub struct Policies;

/// What decides and checks.
pub fn decider() -> Policies {
    Policies
}

/// A decision by the policies. Randomness follows from the seed alone.
pub fn decide(inputs: Inputs<'_>) -> Decided {
    let mut drawn = 0_u64;
    let mut random = || {
        drawn += 1;
        mix(inputs.seed, drawn)
    };
    let decision = ostler_policy::decide(
        inputs.facts,
        inputs.snapshot,
        inputs.intent,
        inputs.state,
        inputs.now,
        &mut random,
    );
    Decided {
        plan: decision.plan,
        reasons: decision.reasons,
        state: decision.state,
    }
}

impl Decide for Policies {
    fn decide(&self, inputs: Inputs<'_>) -> Decided {
        decide(inputs)
    }

    fn check(&self, inputs: Inputs<'_>, previous: Option<&Plan>, plan: &Plan) -> Vec<String> {
        ostler_check::check(inputs.facts, inputs.snapshot, inputs.intent, previous, plan)
            .iter()
            .map(ToString::to_string)
            .collect()
    }
}

/// Begins to speak with agents: what fills snapshots, and what carries wishes.
pub fn agents(config: &AgentConfig) -> anyhow::Result<(GuestAgents, Option<Arc<AgentPort>>)> {
    GuestAgents::start(config)
}

/// What carries plans out. Nothing is opened before it is needed: a steward that observes touches no journal.
pub fn act(journal: &Path, roots: &Roots, port: Option<Arc<AgentPort>>) -> HostAct {
    HostAct {
        journal: journal.to_owned(),
        roots: roots.clone(),
        foreign: ActIntent::default().foreign,
        port,
        actuator: None,
    }
}

/// Carries plans out on this host.
pub struct HostAct {
    journal: PathBuf,
    roots: Roots,
    foreign: ForeignPolicy,
    port: Option<Arc<AgentPort>>,
    actuator: Option<Actuator>,
}

impl Act for HostAct {
    fn apply(
        &mut self,
        facts: &Facts,
        snapshot: &Snapshot,
        plan: &Plan,
    ) -> anyhow::Result<Outcome> {
        let actuator = match &mut self.actuator {
            Some(actuator) => actuator,
            none => {
                let config = ActConfig {
                    journal: self.journal.clone(),
                    foreign: self.foreign,
                };
                let port = self
                    .port
                    .clone()
                    .map(|port| port as Arc<dyn GuestPort + Send + Sync>);
                let actuator = Actuator::new(Box::new(self.roots.host()), &config, port)?;
                // Threads of a tree of files can't be scheduled.
                none.insert(match self.roots.root {
                    Some(_) => actuator,
                    None => actuator.with_schedulers(Box::new(LinuxSchedulers {
                        sys: self.roots.sense().sys,
                    })),
                })
            }
        };
        Ok(actuator.apply(facts, snapshot, plan)?)
    }

    fn configure(&mut self, intent: ActIntent) {
        self.foreign = intent.foreign;
        if let Some(actuator) = &mut self.actuator {
            actuator.set_foreign(intent.foreign);
        }
    }

    fn recover(&mut self, intent: ActIntent) -> anyhow::Result<Option<Restored>> {
        // An actuator goes on where the journal ends, and puts back what is no longer wanted.
        if intent.mode == ActMode::Act
            || intent.on_exit == ExitPolicy::Keep
            || !self.journal.exists()
        {
            return Ok(None);
        }
        let restored = undo(&self.journal, &self.roots)?;
        Ok((restored != Restored::default()).then_some(restored))
    }

    fn restore(&mut self) -> anyhow::Result<Restored> {
        let restored = match self.actuator.take() {
            Some(actuator) => Restored::from(actuator.exit(ExitPolicy::Restore)?),
            None if self.journal.exists() => undo(&self.journal, &self.roots)?,
            None => Restored::default(),
        };
        if let Some(port) = &self.port {
            port.await_restores();
        }
        Ok(restored)
    }
}

impl From<UndoReport> for Restored {
    fn from(report: UndoReport) -> Restored {
        Restored {
            put_back: report.restored,
            unchanged: report.unchanged + report.gone,
            by_agents: report.by_themselves,
            left: report
                .left
                .iter()
                .map(|left| {
                    let found = left.found.as_deref().unwrap_or("can't be read");
                    format!(
                        "{} (now {found}, before us {}): {}",
                        left.target, left.original, left.why
                    )
                })
                .collect(),
        }
    }
}

/// Takes back what a journal holds.
pub fn undo(journal: &Path, roots: &Roots) -> anyhow::Result<Restored> {
    let host = roots.host();
    let mut journal = Journal::open(journal, &host)?;
    Ok(ostler_act::undo(&mut journal, &host, None)?.into())
}

/// What acting on a plan would change.
pub fn preview(roots: &Roots, facts: &Facts, snapshot: &Snapshot, plan: &Plan) -> Vec<Change> {
    ostler_act::preview(&roots.host(), facts, snapshot, plan)
}
