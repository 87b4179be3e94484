//! From text to a checked [`Scenario`]. The raw types mirror the file; what serde can't judge is judged here, with the
//! line of the key that is wrong.

mod fleet;
mod guests;
mod hosts;
mod loads;
mod programs;
pub(crate) mod raw;
mod trials;
mod values;

use std::fmt;
use std::path::PathBuf;

use toml::Spanned;

use crate::{Load, Scenario, World};
use raw::RawScenario;

/// Letters of names that nothing but people and folders must bear.
const NAME_MAX: usize = 40;

/// Why a scenario is refused.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file can't be read.
    #[error("could not read the scenario {}; check its path and permissions", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// It isn't TOML, or a key is unknown, missing or of the wrong type.
    #[error("{}: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What the parser said, with line and column.
        message: String,
    },
    /// A value makes no sense.
    #[error("{}:{line}: {what}; {remedy}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        what: String,
        /// What to write instead.
        remedy: String,
    },
}

struct Checker<'a> {
    text: &'a str,
    path: PathBuf,
    world: &'a dyn World,
}

pub fn parse(text: &str, path: PathBuf, world: &dyn World) -> Result<Scenario, ScenarioError> {
    let raw: RawScenario = match toml::from_str(text) {
        Ok(raw) => raw,
        Err(e) => {
            return Err(ScenarioError::Syntax {
                path,
                message: e.to_string().trim_end().to_owned(),
            });
        }
    };
    Checker { text, path, world }.scenario(raw)
}

impl Checker<'_> {
    fn refuse<T>(
        &self,
        at: &Spanned<impl Sized>,
        what: impl fmt::Display,
        remedy: impl fmt::Display,
    ) -> Result<T, ScenarioError> {
        let start = at.span().start.min(self.text.len());
        Err(ScenarioError::Value {
            path: self.path.clone(),
            line: 1 + self.text[..start].matches('\n').count(),
            what: what.to_string(),
            remedy: remedy.to_string(),
        })
    }

    /// Refuses, where the scenario isn't simulated, what nothing else has.
    fn only_simulated(
        &self,
        at: &Spanned<impl Sized>,
        what: impl fmt::Display,
    ) -> Result<(), ScenarioError> {
        if self.world.limits().simulates {
            return Ok(());
        }
        self.refuse(
            at,
            format!("{what} can only be simulated"),
            "leave it out, or run the scenario by `ostler sim`",
        )
    }

    fn scenario(&self, raw: RawScenario) -> Result<Scenario, ScenarioError> {
        self.name(&raw.name, NAME_MAX)?;
        let rounds = self.between(&raw.rounds, "rounds", 1, 100)?;
        let settle_s = *raw.settle_s.get_ref();
        if !(0.0..=60.0).contains(&settle_s) {
            return self.refuse(
                &raw.settle_s,
                format!("settle_s = {settle_s}"),
                "write 0 to 60 seconds",
            );
        }
        let host = self.host(&raw.host)?;
        let fleet = raw.fleet.as_ref().map(|fleet| self.fleet(fleet, &raw));
        let fleet = fleet.transpose()?;
        let mut guests = self.guests(&raw, &host, fleet.is_some())?;
        let loads = raw
            .load
            .iter()
            .map(|load| self.load(load, &guests))
            .collect::<Result<Vec<_>, _>>()?;
        for guest in &mut guests {
            let named = |load: &Load| !load.background && load.guest == guest.name;
            guest.in_turn = guest.workload.works() && loads.iter().any(named);
        }
        let policies = self.policies(&raw, &host)?;
        let mut expectations = self.expectations(&raw, &policies)?;
        // A simulated host runs no programs: what can be compared there are the other policies.
        let simulates = self.world.limits().simulates;
        let (left_out, policies): (Vec<_>, Vec<_>) = policies
            .into_iter()
            .partition(|policy| simulates && policy.host_scheduler.is_some());
        expectations.retain(|expected| {
            let both = [Some(&expected.policy), expected.of.as_ref()];
            let mut both = both.into_iter().flatten();
            both.all(|name| left_out.iter().all(|policy| policy.name != *name))
        });
        let faults = self.faults(&raw, &guests)?;
        let timed_faults = self.timed_faults(&raw, &guests, fleet.as_ref())?;
        Ok(Scenario {
            name: raw.name.into_inner(),
            summary: raw.summary,
            rounds,
            settle_s,
            host,
            guests,
            loads,
            policies,
            left_out,
            expectations,
            faults,
            timed_faults,
            fleet,
        })
    }
}

/// Puts `own` over `base`; tables are merged, everything else is replaced.
pub fn merge(base: &mut toml::Table, own: &toml::Table) {
    for (key, value) in own {
        match (base.get_mut(key), value) {
            (Some(toml::Value::Table(base)), toml::Value::Table(own)) => merge(base, own),
            _ => {
                base.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod simulated_tests;
#[cfg(test)]
mod tests;
