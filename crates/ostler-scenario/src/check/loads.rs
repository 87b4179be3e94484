//! What is asked of guests.

use super::raw::RawLoad;
use super::{Checker, ScenarioError};
use crate::load::{DEPTH, DEPTH_MAX};
use crate::{Arrivals, Guest, Load};

impl Checker<'_> {
    pub(super) fn load(&self, raw: &RawLoad, guests: &[Guest]) -> Result<Load, ScenarioError> {
        let name = raw.guest.get_ref();
        let Some(guest) = guests.iter().find(|g| &g.name == name) else {
            let known: Vec<_> = guests.iter().map(|g| g.name.as_str()).collect();
            return self.refuse(
                &raw.guest,
                format!("no guest is named `{name}`"),
                format!("there are: {}", known.join(", ")),
            );
        };
        let answers = guest.workload.answers();
        if !answers && !guest.workload.works() {
            return self.refuse(
                &raw.guest,
                format!(
                    "`{name}` runs `{}`, which answers no requests and counts no work",
                    guest.workload
                ),
                "load a guest whose workload does either, such as memcached or disk-read",
            );
        }
        if raw.steps.get_ref().is_empty() {
            return self.refuse(
                &raw.steps,
                "a load without steps",
                "add at least one, like { rate = 500, seconds = 5 }",
            );
        }
        for step in raw.steps.get_ref() {
            if !answers && step.rate.abs() > 0.0 {
                return self.refuse(
                    &raw.steps,
                    format!(
                        "`{name}` runs `{}`, which answers no requests, and {} a second are asked of it",
                        guest.workload, step.rate
                    ),
                    "write rate = 0: what its work comes to in that time is counted",
                );
            }
            if !((step.rate > 0.0 || !answers)
                && step.rate <= 1e7
                && step.seconds > 0.0
                && step.seconds <= 3600.0)
            {
                return self.refuse(
                    &raw.steps,
                    format!("a step of rate {} for {} seconds", step.rate, step.seconds),
                    "rates are 0 to 10 million a second (0 not included), steps up to an hour",
                );
            }
        }
        let background = match &raw.background {
            Some(background) if *background.get_ref() => {
                self.only_simulated(background, "a load in the background of others")?;
                true
            }
            _ => false,
        };
        let arrivals = match &raw.arrivals {
            Some(arrivals) if *arrivals.get_ref() != Arrivals::default() => {
                self.only_simulated(arrivals, "arrivals other than Poisson's")?;
                *arrivals.get_ref()
            }
            _ => Arrivals::default(),
        };
        let packets = match &raw.packets {
            Some(packets) => {
                self.only_simulated(packets, "requests of several packets")?;
                self.between(packets, "packets", 1, 64)?
            }
            None => 1,
        };
        let args = raw.args.as_ref().map(|args| args.get_ref().clone());
        let load = Load {
            guest: name.clone(),
            connections: self.between(&raw.connections, "connections", 1, 4096)?,
            args: args.unwrap_or_default(),
            steps: raw.steps.get_ref().clone(),
            arrivals,
            background,
            packets,
        };
        if let (Err(word), Some(args)) = (load.said_depth(), &raw.args) {
            return self.refuse(
                args,
                format!("{DEPTH} {word}"),
                format!("write {DEPTH} and 1 to {DEPTH_MAX}, the requests that a connection may have on their way"),
            );
        }
        Ok(load)
    }
}
