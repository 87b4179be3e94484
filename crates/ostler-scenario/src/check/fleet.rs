//! Several hosts, and their VMs.

use ostler_model::Nanos;
use toml::Spanned;

use super::raw::{RawFleet, RawScenario};
use super::{Checker, ScenarioError};
use crate::{Fleet, Vms};

const HOSTS_MAX: u32 = 100_000;
const VMS_MAX: u32 = 10_000_000;

impl Checker<'_> {
    pub(super) fn fleet(
        &self,
        fleet: &Spanned<RawFleet>,
        scenario: &RawScenario,
    ) -> Result<Fleet, ScenarioError> {
        self.only_simulated(fleet, "a fleet")?;
        if let Some(load) = scenario.load.first() {
            return self.refuse(
                &load.guest,
                "a load beside a fleet, whose VMs bring their own",
                "remove the [[load]] or the [fleet]",
            );
        }
        let raw = fleet.get_ref();
        let oversubscription = *raw.oversubscription.get_ref();
        if !(0.1..=100.0).contains(&oversubscription) {
            return self.refuse(
                &raw.oversubscription,
                format!("oversubscription = {oversubscription}"),
                "write 0.1 to 100 vCPUs to a core, like 3.0",
            );
        }
        let lasts = self.nanos(&raw.lasts)?;
        if lasts == Nanos::ZERO {
            return self.refuse(
                &raw.lasts,
                format!("lasts = \"{}\"", raw.lasts.get_ref()),
                "write for how long VMs are watched, like \"1h\"",
            );
        }
        Ok(Fleet {
            hosts: self.between(&raw.hosts, "hosts", 1, HOSTS_MAX)?,
            oversubscription,
            placement: raw.placement,
            vms: self.vms(fleet, lasts)?,
            slo_p95_us: self.micros(&raw.slo_p95)?,
        })
    }

    fn vms(&self, fleet: &Spanned<RawFleet>, lasts: Nanos) -> Result<Vms, ScenarioError> {
        let raw = fleet.get_ref();
        match (&raw.trace, &raw.generate) {
            (Some(table), None) => {
                if table.get_ref().is_empty() {
                    return self.refuse(table, "a path of nothing", "name the file");
                }
                let readings = match &raw.readings {
                    Some(paths) => {
                        let named = !paths.get_ref().is_empty();
                        if !named || paths.get_ref().iter().any(String::is_empty) {
                            return self.refuse(
                                paths,
                                "readings without a path",
                                "name the files, like [\"readings-1.csv\"], or leave it out",
                            );
                        }
                        paths.get_ref().clone()
                    }
                    None => Vec::new(),
                };
                let one_of = raw.one_of.as_ref();
                let one_of = one_of.map(|one_of| self.between(one_of, "one_of", 1, VMS_MAX));
                Ok(Vms::Trace {
                    table: table.get_ref().clone(),
                    readings,
                    one_of: one_of.transpose()?.unwrap_or(1),
                    from: match &raw.from {
                        Some(from) => self.nanos(from)?,
                        None => Nanos::ZERO,
                    },
                    lasts,
                })
            }
            (None, Some(count)) => {
                let places = [
                    raw.readings.as_ref().map(Spanned::span),
                    raw.one_of.as_ref().map(Spanned::span),
                    raw.from.as_ref().map(Spanned::span),
                ];
                if let Some(place) = places.into_iter().flatten().next() {
                    return self.refuse(
                        &Spanned::new(place, ()),
                        "`readings`, `one_of` and `from` are of a trace, and VMs are generated",
                        "remove it, or name a trace instead of `generate`",
                    );
                }
                Ok(Vms::Generated {
                    count: self.between(count, "generate", 1, VMS_MAX)?,
                    lasts,
                })
            }
            (Some(trace), Some(_)) => self.refuse(
                trace,
                "VMs from a trace, and generated ones",
                "keep `trace` or `generate`",
            ),
            (None, None) => self.refuse(
                fleet,
                "a fleet without VMs",
                "add trace = \"FILE\", a table of VMs in the format of the Azure public dataset, or generate = 1000",
            ),
        }
    }
}
