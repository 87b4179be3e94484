//! How guests shared their cores in a round: what a scheduler of vCPUs is judged by (the thesis's chapter 3).
//!
//! **Ratio.** vCPUs of the guests that the policy's cores are divided over, by those cores. A steward leaves unmanaged guests alone, so
//! they don't count where there is one. Nor do guests that other loads are for: they wait for their turn.
//!
//! **Fairness.** Guests that compute are always busy, so each wants all that it can get; one that serves requests sleeps, and what it leaves
//! is the others'. So a fair share is found as water fills a vessel: what guests had in all is divided by vCPUs; who had less without being
//! always busy has what it wanted, and is taken out together with it; the rest is divided anew. An IO guest that had more than its share
//! stays in, and shows as what the others lack. Of what guests *had*: what interrupts and the kernel took of the cores is unfair to
//! nobody. CPU time is that of a guest's cgroup, its vhost workers included, as sampled once a second. The error is the largest over all
//! windows of 10 s, which the sampler's seconds make up to 11 s long.
//!
//! **Work.** Best-effort guests count rounds of a loop and say once a second how many, so in a cell of few seconds the second that they haven't told
//! yet shows. What a core-second is worth is measured where every vCPU has a core: in the round in which most was done, as guests that were booted a
//! minute ago still have other things to do.

use std::collections::BTreeMap;

use ostler_model::{Class, GuestBoost, Nanos, RunState, delay_bound};

use super::Seen;
use crate::events::GuestSample;
use crate::report::{Account, GuestShare, GuestSpan, GuestTimeline, Spread};
use ostler_scenario::{Guest, Policy, Scenario, Workload};

/// Over so long a time, guests' shares are compared.
const WINDOW_S: f64 = 10.0;

/// A guest that shares cores: one of as many as its table stands for.
#[derive(Clone, Debug)]
struct Sharer<'a> {
    name: String,
    table: &'a Guest,
}

impl Sharer<'_> {
    fn vcpus(&self) -> f64 {
        f64::from(self.table.vcpus)
    }
}

/// The guests that share a policy's cores while one of them is loaded.
#[derive(Debug)]
pub struct Sharers<'a> {
    guests: Vec<Sharer<'a>>,
    loaded: &'a str,
    cores: Option<u32>,
}

impl<'a> Sharers<'a> {
    /// Those of a policy, under the load of a guest.
    pub fn of(scenario: &'a Scenario, policy: &Policy, loaded: &'a str) -> Sharers<'a> {
        let takes_part = |guest: &&Guest| {
            let managed = policy.steward.is_none() || guest.class != Class::Unmanaged;
            let waits =
                guest.name != loaded && scenario.loads.iter().any(|l| l.guest == guest.name);
            managed && !waits
        };
        let each = |table: &'a Guest| table.names().map(move |name| Sharer { name, table });
        let tables = scenario.guests.iter().filter(takes_part);
        Sharers {
            guests: tables.flat_map(each).collect(),
            loaded,
            cores: policy
                .managed(&scenario.host)
                .map(|cores| cores.len())
                .filter(|cores| *cores > 0),
        }
    }

    /// Their vCPUs.
    pub fn vcpus(&self) -> u32 {
        self.guests.iter().map(|guest| guest.table.vcpus).sum()
    }

    /// vCPUs to a core.
    pub fn ratio(&self) -> Option<f64> {
        Some(f64::from(self.vcpus()) / f64::from(self.cores?))
    }

    /// The cores' time that a guest would have of these seconds if all were always busy.
    fn equal_share_s(&self, guest: &Sharer<'_>, seconds: f64) -> Option<f64> {
        let vcpus = guest.vcpus();
        let of_cores = f64::from(self.cores?) * vcpus / f64::from(self.vcpus());
        Some(of_cores.min(vcpus) * seconds).filter(|share| *share > 0.0)
    }

    /// Each guest's CPU time over the cell, in equal shares.
    pub fn of_equal<'s>(
        &'s self,
        seen: &'s Seen<'_>,
    ) -> impl Iterator<Item = (&'s str, Option<f64>)> + 's {
        self.guests.iter().map(|guest| {
            let counters = seen.counters;
            let counted = counters.and_then(|c| c.guests.iter().find(|g| g.name == guest.name));
            let share = counters.and_then(|c| self.equal_share_s(guest, c.seconds));
            let of_equal = counted
                .zip(share)
                .map(|(counted, share)| counted.cpu_seconds / share);
            (guest.name.as_str(), of_equal)
        })
    }

    fn has(&self, name: &str) -> bool {
        self.guests.iter().any(|guest| guest.name == name)
    }

    /// Whether they competed as equals under load: none suspended, none of another weight, all on the same cores.
    fn are_equals(&self, seen: &Seen<'_>) -> bool {
        let sampled = under_load(seen).all(|(_, guests)| {
            let mut sharing = guests.iter().filter(|sample| self.has(&sample.name));
            sharing.all(|sample| !sample.frozen && !sample.idle)
        });
        // Where vCPUs may run is a matter of cgroups within the one that is sampled.
        sampled
            && seen.plans_under_load().all(|plan| {
                let mut guests = plan.guests.iter().filter(|g| self.has(g.guest.as_str()));
                let first = guests.clone().next();
                guests.all(|guest| {
                    guest.run == RunState::Running
                        && guest.vcpu_pins.is_empty()
                        && first.map(|g| (g.vcpu_cpus, g.weight))
                            == Some((guest.vcpu_cpus, guest.weight))
                })
            })
    }

    /// The largest error over the cell's windows; see the head.
    pub fn fairness_error(&self, seen: &Seen<'_>) -> Option<f64> {
        if !self.are_equals(seen) {
            return None;
        }
        let samples: Vec<_> = under_load(seen).collect();
        let sum = |samples: &[(f64, &[GuestSample])], name: &str| {
            let of_guest = samples
                .iter()
                .flat_map(|(_, guests)| guests.iter().filter(|guest| guest.name == name));
            of_guest.map(|guest| guest.cpu_ms as f64 / 1e3).sum::<f64>()
        };
        let windows = samples
            .iter()
            .enumerate()
            .filter_map(|(from, (from_s, _))| {
                let rest = &samples[from..];
                let length = rest.iter().position(|(t_s, _)| t_s - from_s >= WINDOW_S)?;
                // A sample is of the time since the one before it.
                let within = &rest[1..=length];
                let had: Vec<_> = self
                    .guests
                    .iter()
                    .map(|guest| sum(within, &guest.name))
                    .collect();
                Some(self.error(&had))
            });
        let windows: Vec<_> = windows.collect();
        if windows.is_empty() {
            let counted = &seen.counters?.guests;
            let had = |guest: &Sharer<'_>| {
                let counted = counted.iter().find(|counted| counted.name == guest.name)?;
                Some(counted.cpu_seconds)
            };
            return self.error(&self.guests.iter().map(had).collect::<Option<Vec<_>>>()?);
        }
        windows.into_iter().flatten().reduce(f64::max)
    }

    /// How far any guest that is always busy was from its share, each having had so much.
    fn error(&self, had: &[f64]) -> Option<f64> {
        let busy =
            |guest: &Sharer<'_>| matches!(guest.table.workload, Workload::Spin | Workload::Mixed);
        let mut sharing: Vec<_> = self.guests.iter().zip(had.iter().copied()).collect();
        let level = loop {
            let all: f64 = sharing.iter().map(|(_, had)| had).sum();
            let vcpus: f64 = sharing.iter().map(|(guest, _)| guest.vcpus()).sum();
            let level = all / vcpus;
            let before = sharing.len();
            sharing.retain(|(guest, had)| busy(guest) || *had >= level * guest.vcpus());
            if sharing.len() == before {
                break level;
            }
        };
        if !(level.is_finite() && level > 0.0) {
            return None;
        }
        let errors = sharing.iter().filter(|(guest, _)| busy(guest));
        errors
            .map(|(guest, had)| (had / (level * guest.vcpus()) - 1.0).abs())
            .reduce(f64::max)
    }

    /// The best-effort guests beside the loaded one.
    fn neighbours(&self) -> impl Iterator<Item = &Sharer<'a>> {
        let guests = self.guests.iter();
        guests.filter(|guest| {
            guest.table.class == Class::BestEffort && guest.table.name != self.loaded
        })
    }

    /// Work of the neighbours, in what they do in an equal share of the cores, where a core-second is worth so much.
    pub fn neighbour_throughput(&self, seen: &Seen<'_>, work_per_core_second: f64) -> Option<f64> {
        let counters = seen.counters?;
        let (mut work, mut share_s) = (0.0, 0.0);
        for guest in self.neighbours() {
            let counted = counters
                .guests
                .iter()
                .find(|counted| counted.name == guest.name);
            if let Some(done) = counted.and_then(|counted| counted.work) {
                work += done;
                share_s += self.equal_share_s(guest, counters.seconds)?;
            }
        }
        let throughput = work / (share_s * work_per_core_second);
        throughput.is_finite().then_some(throughput)
    }
}

/// The samples under load, with their time on its clock.
fn under_load<'s, 'a>(
    seen: &'s Seen<'a>,
) -> impl Iterator<Item = (f64, &'a [GuestSample])> + use<'s, 'a> {
    let samples = seen.samples.iter();
    samples
        .map(|(t_ms, guests)| (seen.load_s_of_uptime(*t_ms), *guests))
        .filter(|(t_s, _)| (0.0..=seen.load_s()).contains(t_s))
}

/// Rounds of work that the neighbours do in a core-second, in the best round of the scenario's first policy; `None` where its guests share cores.
pub fn work_per_core_second(scenario: &Scenario, cells: &[&Seen<'_>]) -> Option<f64> {
    let first = scenario.policies.first()?;
    let sharers = Sharers::of(scenario, first, &cells.first()?.cell.guest);
    sharers.ratio().filter(|ratio| *ratio <= 1.0)?;
    let neighbour = |name: &str| sharers.neighbours().any(|guest| guest.name == name);
    let rounds = cells
        .iter()
        .filter(|seen| seen.good() && seen.cell.policy == first.name);
    let rates = rounds.filter_map(|seen| {
        let counted = seen.counters?.guests.iter();
        let (work, seconds) = counted
            .filter(|guest| neighbour(&guest.name))
            .filter_map(|guest| Some((guest.work?, guest.cpu_seconds)))
            .fold((0.0, 0.0), |(work, seconds), (more, longer)| {
                (work + more, seconds + longer)
            });
        Some(work / seconds)
    });
    rates
        .filter(|rate| rate.is_finite() && *rate > 0.0)
        .reduce(f64::max)
}

/// How soon vCPUs of the loaded guest ran after their events under load; empty where nobody counted.
pub fn delays(seen: &Seen<'_>) -> Vec<u64> {
    let of_guest = |period: Option<&super::BoostPeriod>| {
        let guest = period?
            .guests
            .iter()
            .find(|g| g.guest.as_str() == seen.cell.guest)?;
        Some(guest.delays.clone())
    };
    let (first, last) = (of_guest(seen.boost.first()), of_guest(seen.boost.last()));
    // A scheduler that was loaded anew counts from zero: what was between two readings is unknown then.
    let since = first.zip(last).and_then(|(first, last)| {
        let bins = last.iter().zip(&first);
        bins.map(|(last, first)| last.checked_sub(*first))
            .collect::<Option<Vec<_>>>()
    });
    since.filter(|_| seen.boost.len() > 1).unwrap_or_default()
}

/// A bound that 99 % of delays are below.
pub fn delay_p99_us(seen: &Seen<'_>) -> Option<f64> {
    delay_bound(&delays(seen), 0.99).map(Nanos::as_micros_f64)
}

/// The delays of all rounds together.
pub fn all_delays(rounds: &[&Seen<'_>]) -> Vec<u64> {
    let mut all = Vec::new();
    for more in rounds.iter().map(|seen| delays(seen)) {
        all.resize(all.len().max(more.len()), 0);
        for (sum, more) in all.iter_mut().zip(more) {
            *sum += more;
        }
    }
    all
}

/// Each guest's CPU time in equal shares, over all rounds.
pub fn shares(sharers: &Sharers<'_>, loaded: &str, rounds: &[&Seen<'_>]) -> Vec<GuestShare> {
    let mut by_guest: BTreeMap<&str, Vec<Option<f64>>> = BTreeMap::new();
    for seen in rounds {
        for (name, of_equal) in sharers.of_equal(seen) {
            by_guest.entry(name).or_default().push(of_equal);
        }
    }
    sharers
        .guests
        .iter()
        .map(|guest| GuestShare {
            guest: guest.name.clone(),
            loaded: guest.table.name == loaded,
            vcpus: guest.table.vcpus,
            of_equal: by_guest
                .get(guest.name.as_str())
                .and_then(|rounds| Spread::of(rounds.iter().copied())),
        })
        .collect()
}

/// A round, guest by guest: by the scheduler's own account where it told one, else by what was sampled of their cgroups.
pub fn timeline(sharers: &Sharers<'_>, seen: &Seen<'_>) -> Vec<GuestTimeline> {
    let spans = |guest: &Sharer<'_>| {
        if seen.boost.len() > 1 {
            accounted(seen, &guest.name)
        } else {
            sampled(seen, &guest.name)
        }
    };
    sharers
        .guests
        .iter()
        .map(|guest| GuestTimeline {
            guest: guest.name.clone(),
            loaded: guest.table.name == seen.cell.guest,
            spans: spans(guest),
        })
        .collect()
}

/// What cgroups had, from sample to sample.
fn sampled(seen: &Seen<'_>, name: &str) -> Vec<GuestSpan> {
    let samples: Vec<_> = under_load(seen).collect();
    let spans = samples.windows(2).map(|pair| {
        let [(from_s, _), (to_s, guests)] = pair else {
            return GuestSpan::default();
        };
        let guest = guests.iter().find(|guest| guest.name == name);
        GuestSpan {
            from_s: *from_s,
            to_s: *to_s,
            cores: guest.and_then(|guest| per_second(guest.cpu_ms as f64 / 1e3, to_s - from_s)),
            account: None,
        }
    });
    spans.collect()
}

/// What vCPUs had, from period to period, and what the scheduler did for it.
fn accounted(seen: &Seen<'_>, name: &str) -> Vec<GuestSpan> {
    let find = |period: &super::BoostPeriod| -> Option<GuestBoost> {
        let mut guests = period.guests.iter();
        guests.find(|guest| guest.guest.as_str() == name).cloned()
    };
    let origin = seen.boost.first().and_then(find);
    let spans = seen.boost.windows(2).map(|pair| {
        let [before, now] = pair else {
            return GuestSpan::default();
        };
        let at = |period: &super::BoostPeriod| seen.load_s_of_unix(period.unix_ms as f64);
        let (from_s, to_s) = (at(before), at(now));
        let readings = find(before).zip(find(now));
        let since = |read: fn(&GuestBoost) -> u64| {
            let (before, now) = readings.as_ref()?;
            read(now).checked_sub(read(before))
        };
        let account = || {
            let (now, origin) = (&readings.as_ref()?.1, origin.as_ref()?);
            let ms = |read: fn(&GuestBoost) -> Nanos| {
                let since = read(now).0.checked_sub(read(origin).0)?;
                Some(since as f64 / 1e6)
            };
            let rate = |count: u64| per_second(count as f64, to_s - from_s);
            Some(Account {
                boosts_per_s: rate(since(|guest| guest.boosts)?)?,
                refused_per_s: rate(since(|guest| guest.refused)?)?,
                borrowed_ms: ms(|guest| guest.borrowed)?,
                paid_ms: ms(|guest| guest.paid)?,
                lent_ms: ms(|guest| guest.lent)?,
                returned_ms: ms(|guest| guest.returned)?,
                balance_ms: now.balance_ns as f64 / 1e6,
            })
        };
        GuestSpan {
            from_s,
            to_s,
            cores: since(|guest| guest.ran.0)
                .and_then(|ns| per_second(ns as f64 / 1e9, to_s - from_s)),
            account: account(),
        }
    });
    spans.collect()
}

fn per_second(count: f64, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then(|| count / seconds)
}

#[cfg(test)]
#[path = "sharing_tests.rs"]
mod tests;
