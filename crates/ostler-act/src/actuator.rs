//! The reconciler: once per period, what should hold is compared with what was last known to hold, and what differs is
//! journaled, then written.
//!
//! It is level-triggered: nothing is remembered of how a plan came about, and applying one twice writes nothing the second
//! time. It is cheap when nothing changes, because a value that we wrote is not read again in each period but in turn, so
//! that each is looked at once in ten seconds (`ROUND_PERIODS`); and at once when the snapshot, which tells the effect of many of them
//! (a thread's allowed CPUs, an interrupt's affinity, whether a guest is frozen), disagrees. Watching files would not do:
//! most of these are made up by the kernel as they are read, and neither inotify nor their times tell of a change.
//!
//! A write that fails leaves the rest applied. It is tried again after a while that doubles each time, unless its kind never
//! succeeds. Where a guest's cgroups can't be had, its threads' own affinities are set in the same period.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;

use ostler_model::{
    Class, ExitPolicy, Facts, Failure, ForeignChange, ForeignHandling, ForeignPolicy, GuestId,
    Outcome, Plan, Snapshot,
};

use crate::boost::{Boost, VcpuSchedulers};
use crate::guests::Guests;
use crate::irqbalance;
use crate::journal::{Journal, JournalError, Row};
use crate::settings::{Setting, of_nic};
use crate::undo::{UndoReport, is_aside, made_by_us, origins, put_back};
use crate::{Host, Target, Value};

/// Each value is read again once in so many periods: every ten seconds at 100 ms.
const ROUND_PERIODS: usize = 100;

/// At most so many values are read again in one period, on their turn.
const ROUND_SHARE_MAX: usize = 64;

/// A failed write is tried again after at most so many periods: a minute at 100 ms.
pub(crate) const RETRY_PERIODS_MAX: u64 = 600;

/// How often to look whether irqbalance runs.
const IRQBALANCE_PERIODS: u64 = 600;

/// How to act.
#[derive(Clone, Debug)]
pub struct ActConfig {
    /// The journal's file. Its directory must exist.
    pub journal: PathBuf,
    /// What happens when someone else changes a value that we set. Under [`ForeignPolicy::Respect`] it is theirs until the
    /// target is no longer wanted, across restarts too, and undo leaves it. Under [`ForeignPolicy::Reown`] it is set again,
    /// and their value takes the place of the original: undo restores what the host would hold had we not been there.
    pub foreign: ForeignPolicy,
}

/// Asks things of guests' agents. Calls must not block: they leave wishes for whoever talks to the agents.
pub trait GuestPort {
    /// What a guest should use, from now on; `None` leaves it as it is. Called each period.
    fn desire(&self, guest: &GuestId, vcpus_active: Option<u32>, queues: Option<u32>);
    /// The guest is to be as it was before the first wish.
    fn restore(&self, guest: &GuestId);
}

/// Carries out plans on a host.
pub struct Actuator {
    pub(crate) host: Box<dyn Host + Send>,
    pub(crate) journal: Journal,
    pub(crate) foreign: ForeignPolicy,
    port: Option<Arc<dyn GuestPort + Send + Sync>>,
    /// Counts periods.
    pub(crate) tick: u64,
    pub(crate) guests: Guests,
    boost: Boost,
    nics: Vec<Setting>,
    pub(crate) wanted: BTreeMap<Target, Wanted>,
    pub(crate) owned: BTreeMap<Target, Owned>,
    pub(crate) failed: BTreeMap<Target, Backoff>,
    /// Whether everything wanted was found or made to hold, and only turns and disagreements are to be looked at.
    settled: bool,
    /// Whether all that is no longer wanted was taken back, or is to be tried again later.
    released: bool,
    /// Whether something that was thought to hold was lost, so that all has to be looked at again.
    pub(crate) reopened: bool,
    /// The target whose turn it was last.
    turn: Option<Target>,
    irqbalance: Option<ostler_model::Pid>,
}

/// What should hold.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) value: Value,
    pub(crate) guest: Option<GuestId>,
}

/// What is known of a target that is or was wanted.
#[derive(Clone, Debug)]
pub(crate) struct Owned {
    pub(crate) row: Row,
    /// The value last seen or written; `None` when only the journal's word is there, or a write failed.
    pub(crate) confirmed: Option<Value>,
    /// Whether the journal has the row.
    pub(crate) journaled: bool,
}

/// When a failed write is tried again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    pub(crate) tries: u32,
    /// The first period in which to try; `None` for never.
    pub(crate) at: Option<u64>,
}

impl Actuator {
    /// An actuator that goes on where the journal's last one ended. Nothing is written before [`Actuator::apply`].
    pub fn new(
        host: Box<dyn Host + Send>,
        config: &ActConfig,
        port: Option<Arc<dyn GuestPort + Send + Sync>>,
    ) -> Result<Actuator, JournalError> {
        let journal = Journal::open(&config.journal, &*host)?;
        let owned = journal
            .rows()?
            .into_iter()
            .map(|row| {
                let owned = Owned {
                    row,
                    confirmed: None,
                    journaled: true,
                };
                (owned.row.target.clone(), owned)
            })
            .collect();
        Ok(Actuator {
            host,
            journal,
            foreign: config.foreign,
            port,
            tick: 0,
            guests: Guests::default(),
            boost: Boost::default(),
            nics: Vec::new(),
            wanted: BTreeMap::new(),
            owned,
            failed: BTreeMap::new(),
            settled: false,
            released: false,
            reopened: false,
            turn: None,
            irqbalance: None,
        })
    }

    /// It schedules vCPUs where plans want it to, with what comes from here; otherwise it leaves them to the kernel.
    #[must_use]
    pub fn with_schedulers(mut self, source: Box<dyn VcpuSchedulers + Send>) -> Actuator {
        self.boost = Boost::new(source);
        self
    }

    /// Takes over another policy for foreign changes, after the configuration was read again.
    pub fn set_foreign(&mut self, policy: ForeignPolicy) {
        self.foreign = policy;
    }

    /// Makes a plan hold. An error means that the journal can't be written, and that nothing was written without it.
    pub fn apply(
        &mut self,
        facts: &Facts,
        snapshot: &Snapshot,
        plan: &Plan,
    ) -> Result<Outcome, JournalError> {
        self.tick += 1;
        let mut outcome = Outcome {
            generation: plan.generation,
            ..Outcome::default()
        };
        self.look_for_irqbalance(plan, &mut outcome);
        if self.tick == 1 {
            self.bring_back_from_aside()?;
        }
        let origins = || origins(self.owned.values().map(|owned| &owned.row));
        let guests_changed = self
            .guests
            .refresh(&*self.host, facts, snapshot, plan, origins);
        let nics: Vec<Setting> = plan
            .nics
            .iter()
            .flat_map(|nic| of_nic(facts, nic))
            .collect();
        let boost = plan.boost.as_ref();
        let policies_changed =
            self.boost
                .refresh(&*self.host, boost, snapshot, self.tick, &mut outcome);
        if guests_changed || policies_changed || nics != self.nics {
            self.nics = nics;
            self.merge();
        }
        let looks_wrong = if self.settled {
            self.guests.looks_wrong(snapshot, plan, self.tick)
        } else {
            BTreeSet::new()
        };
        let mut todo = self.todo(looks_wrong);
        // Two rounds: the second is for guests that turn out to be placeable by affinity alone.
        for _ in 0..2 {
            let unplaceable = self.reconcile(&todo, &mut outcome)?;
            self.settled = unplaceable.is_empty();
            if self.settled {
                break;
            }
            self.guests.fall_back(facts, plan, snapshot, unplaceable);
            self.merge();
            todo = self.todo(BTreeSet::new());
        }
        self.settled &= !std::mem::take(&mut self.reopened);
        outcome.failures.extend(self.guests.fallen_back());
        if guests_changed {
            outcome.failures.extend(self.guests.weighed_in_vain());
        }
        self.release(plan, &mut outcome)?;
        self.boost.finish(boost);
        self.ask_agents(plan)?;
        let wanted = u32::try_from(self.wanted.len()).unwrap_or(u32::MAX);
        let failures = u32::try_from(outcome.failures.len()).unwrap_or(u32::MAX);
        outcome.unchanged = wanted
            .saturating_sub(outcome.written)
            .saturating_sub(failures);
        Ok(outcome)
    }

    /// Ends acting: with [`ExitPolicy::Restore`] everything is taken back, with [`ExitPolicy::Keep`] it stays for `undo`.
    pub fn exit(mut self, policy: ExitPolicy) -> Result<UndoReport, JournalError> {
        match policy {
            ExitPolicy::Keep => Ok(UndoReport::default()),
            ExitPolicy::Restore => {
                let rows = self.journal.rows()?;
                let made = made_by_us(&rows);
                let port = self.port.as_deref();
                let port = port.map(|port| port as &dyn GuestPort);
                put_back(&mut self.journal, &*self.host, port, rows, &made)
                    .map(|(report, _)| report)
            }
        }
    }

    /// Joins all settings; where two guests need the same (a cgroup above both), the first one's is it.
    fn merge(&mut self) {
        let settings = self.guests.settings().chain(&self.nics);
        let settings = settings.chain(self.boost.settings());
        self.wanted = BTreeMap::new();
        for Setting {
            target,
            value,
            guest,
        } in settings
        {
            self.wanted.entry(target.clone()).or_insert_with(|| Wanted {
                value: value.clone(),
                guest: guest.clone(),
            });
        }
        self.failed.retain(|target, _| {
            self.wanted.contains_key(target) || self.owned.contains_key(target)
        });
        self.settled = false;
        self.released = false;
    }

    /// What to look at in this period.
    fn todo(&mut self, mut todo: BTreeSet<Target>) -> BTreeSet<Target> {
        todo.extend(self.turns());
        let due = |backoff: &Backoff| backoff.at.is_some_and(|at| at <= self.tick);
        if !self.settled || self.failed.values().any(due) {
            let open = self.wanted.iter().filter(|(target, want)| {
                self.owned
                    .get(target)
                    .is_none_or(|owned| owned.confirmed.as_ref() != Some(&want.value))
            });
            todo.extend(open.map(|(target, _)| target.clone()));
        }
        todo.retain(|target| {
            self.wanted.contains_key(target)
                && self.failed.get(target).is_none_or(due)
                && self.owned.get(target).is_none_or(|owned| !owned.row.ceded)
        });
        todo
    }

    /// The targets whose turn it is to be read again.
    fn turns(&mut self) -> Vec<Target> {
        let share = self
            .wanted
            .len()
            .div_ceil(ROUND_PERIODS)
            .min(ROUND_SHARE_MAX);
        let from = self.turn.take().map_or(Bound::Unbounded, Bound::Excluded);
        let turns: Vec<Target> = self
            .wanted
            .range((from, Bound::Unbounded))
            .take(share)
            .map(|(target, _)| target.clone())
            .collect();
        // Past the end, the next period begins anew.
        self.turn = turns.last().filter(|_| turns.len() == share).cloned();
        turns
    }

    /// Takes back what is no longer wanted.
    fn release(&mut self, plan: &Plan, outcome: &mut Outcome) -> Result<(), JournalError> {
        let due = |backoff: &Backoff| backoff.at.is_some_and(|at| at <= self.tick);
        let managed = |guest: &GuestId| {
            plan.guest(guest)
                .is_some_and(|given| given.class != Class::Unmanaged)
        };
        // Agents are the last kind of target: this visits them alone.
        let first = Target::Agent {
            guest: GuestId::from(""),
        };
        let leaves = |target: &Target| matches!(target, Target::Agent { guest } if !managed(guest));
        if self.released
            && !self.failed.values().any(due)
            && !self.owned.range(first..).any(|(target, _)| leaves(target))
        {
            return Ok(());
        }
        self.released = true;
        let unwanted: Vec<Target> = self
            .owned
            .keys()
            .filter(|target| match target {
                Target::Agent { guest } => !managed(guest),
                _ => !self.wanted.contains_key(target),
            })
            .filter(|target| self.failed.get(target).is_none_or(due))
            .cloned()
            .collect();
        if unwanted.is_empty() {
            return Ok(());
        }
        let made = made_by_us(self.owned.values().map(|owned| &owned.row));
        let mut rows = Vec::new();
        for target in &unwanted {
            match self.owned.get(target) {
                Some(owned) if owned.journaled => rows.push(owned.row.clone()),
                _ => {
                    self.owned.remove(target);
                }
            }
        }
        let port = self.port.as_deref().map(|port| port as &dyn GuestPort);
        let (report, done) = put_back(&mut self.journal, &*self.host, port, rows, &made)?;
        for target in &done {
            self.owned.remove(target);
            self.failed.remove(target);
        }
        outcome.written = outcome.written.saturating_add(report.restored);
        for left in report.left {
            if left.kept {
                outcome.failures.push(Failure {
                    target: left.target,
                    value: left.original,
                    error: left.why,
                });
            } else {
                outcome.foreign.push(ForeignChange {
                    target: left.target,
                    ours: left.ours,
                    found: left.found.unwrap_or_else(|| "unknown".into()),
                    handling: ForeignHandling::Respected,
                });
            }
        }
        for target in unwanted {
            if self.owned.contains_key(&target) {
                self.put_off(target, false);
            }
        }
        Ok(())
    }

    /// Brings threads back that a steward killed while taking something back left aside.
    fn bring_back_from_aside(&mut self) -> Result<(), JournalError> {
        let rows: Vec<Row> = self
            .owned
            .values()
            .map(|owned| &owned.row)
            .filter(|row| is_aside(&row.target))
            .cloned()
            .collect();
        let (_, done) = put_back(&mut self.journal, &*self.host, None, rows, &BTreeSet::new())?;
        for target in done {
            self.owned.remove(&target);
        }
        Ok(())
    }

    /// Notes that a write failed, and when to try again.
    pub(crate) fn put_off(&mut self, target: Target, never: bool) {
        let tick = self.tick;
        let backoff = self.failed.entry(target).or_insert(Backoff {
            tries: 0,
            at: Some(tick),
        });
        backoff.tries = backoff.tries.saturating_add(1);
        let wait = 1_u64
            .checked_shl(backoff.tries)
            .map_or(RETRY_PERIODS_MAX, |wait| wait.min(RETRY_PERIODS_MAX));
        backoff.at = (!never).then(|| tick.saturating_add(wait));
    }

    fn ask_agents(&mut self, plan: &Plan) -> Result<(), JournalError> {
        let Some(port) = self.port.clone() else {
            return Ok(());
        };
        let asked: Vec<_> = plan
            .guests
            .iter()
            .filter(|given| given.class != Class::Unmanaged)
            .filter(|given| given.vcpus_active.is_some() || given.queues.is_some())
            .collect();
        let mut rows = Vec::new();
        for given in &asked {
            let target = Target::Agent {
                guest: given.guest.clone(),
            };
            if !self.owned.contains_key(&target) {
                rows.push(Row {
                    target,
                    identity: None,
                    original: Value::Absent,
                    previous: Value::Absent,
                    ours: Value::Asked,
                    ceded: false,
                });
            }
        }
        if !rows.is_empty() {
            self.journal.commit(&rows, [])?;
        }
        for row in rows {
            let owned = Owned {
                confirmed: Some(Value::Asked),
                journaled: true,
                row,
            };
            self.owned.insert(owned.row.target.clone(), owned);
        }
        for given in asked {
            port.desire(&given.guest, given.vcpus_active, given.queues);
        }
        Ok(())
    }

    /// Says, once for each, that an irqbalance runs.
    fn look_for_irqbalance(&mut self, plan: &Plan, outcome: &mut Outcome) {
        let moves_irqs = plan.nics.iter().any(|nic| !nic.irqs.is_empty());
        if !moves_irqs || self.tick % IRQBALANCE_PERIODS != 1 {
            return;
        }
        let before = self.irqbalance;
        self.irqbalance = irqbalance::running(&*self.host);
        if let Some(pid) = self.irqbalance.filter(|_| self.irqbalance != before) {
            outcome.failures.push(Failure {
                target: format!("irqbalance (process {pid})"),
                value: "not running".into(),
                error: "it moves the interrupts that the plan places: stop it, or give it the managed NICs' interrupts with --banirq".into(),
            });
        }
    }
}
