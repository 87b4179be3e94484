//! One turn of the loop, and what carries over from turn to turn.

use std::sync::Arc;

use anyhow::Context as _;
use ostler_model::config::Config;
use ostler_model::{
    ActMode, ExitPolicy, Facts, Intent, Layer, Nanos, Plan, Reason, Snapshot, State,
};
use ostler_record::{Cost, Inputs, Period, Recorder, Wall};
use tracing::{debug, error, info, warn};

use super::totals::Totals;
use super::view::{ConfigStatus, Shared, View};
use super::{Act, Agents, Clock, Decide, Restored, Sense};

/// What the loop meets.
pub struct Parts {
    /// Sees the host.
    pub sense: Box<dyn Sense>,
    /// Speaks with agents.
    pub agents: Box<dyn Agents>,
    /// Decides and checks.
    pub decide: Box<dyn Decide>,
    /// Carries plans out.
    pub act: Box<dyn Act>,
    /// Tells the time.
    pub clock: Box<dyn Clock>,
}

/// The loop between two turns.
pub struct Steward {
    parts: Parts,
    facts: Arc<Facts>,
    intent: Arc<Intent>,
    state: Arc<State>,
    /// Of this run; each period's seed follows from it and the snapshot's number.
    seed: u64,
    /// The last plan that broke no rule: the next one's parent.
    adopted: Option<Arc<Plan>>,
    last: Option<Arc<Period>>,
    last_change: Option<Arc<Period>>,
    outcome: Option<Arc<ostler_model::Outcome>>,
    totals: Totals,
    recorder: Option<Recorder>,
    started: Wall,
    config: ConfigStatus,
    sense_error: Option<String>,
    record_complaints: u64,
    acted: bool,
}

/// A well-mixed number from any two (splitmix64's finaliser).
pub fn mix(a: u64, b: u64) -> u64 {
    let mut z = a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Steward {
    /// Gets ready: takes back what a steward before us left behind.
    pub fn new(
        mut parts: Parts,
        intent: Intent,
        seed: u64,
        recorder: Option<Recorder>,
        config: ConfigStatus,
    ) -> anyhow::Result<Steward> {
        let facts = parts.sense.facts().clone();
        parts.act.configure(intent.act);
        if let Some(restored) = parts
            .act
            .recover(intent.act)
            .context("could not take back what the steward before left behind")?
        {
            tell_restored(
                "the steward before did not end in order; its writes were taken back",
                &restored,
            );
        }
        let started = parts.clock.wall();
        Ok(Steward {
            parts,
            facts: Arc::new(facts),
            intent: Arc::new(intent),
            state: Arc::new(State::default()),
            seed,
            adopted: None,
            last: None,
            last_change: None,
            outcome: None,
            totals: Totals::default(),
            recorder,
            started,
            config,
            sense_error: None,
            record_complaints: 0,
            acted: false,
        })
    }

    /// What is wanted now.
    pub fn intent(&self) -> &Intent {
        &self.intent
    }

    /// What the host is.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// One period. A failure to sense is told and counted, and the period is skipped.
    pub fn turn(&mut self, missed: u64, lateness: Nanos) {
        self.totals.missed_periods += missed;
        self.totals.lateness.observe(lateness);
        let began = self.parts.clock.now();
        let mut snapshot = match self.parts.sense.snapshot(began) {
            Ok(snapshot) => snapshot,
            Err(failure) => {
                self.totals.sense_failures += 1;
                let text = format!("{failure:#}");
                if self.sense_error.as_ref() != Some(&text) {
                    error!("could not sense the host, this period is skipped: {text}");
                }
                self.sense_error = Some(text);
                return;
            }
        };
        if self.sense_error.take().is_some() {
            info!("the host can be sensed again");
        }
        self.parts.agents.fill(&self.intent, &mut snapshot);
        if *self.parts.sense.facts() != *self.facts {
            info!("the host's hardware or abilities changed");
            self.facts = Arc::new(self.parts.sense.facts().clone());
        }
        let sensed = self.parts.clock.now();

        let seed = mix(self.seed, snapshot.seq);
        let inputs = Inputs {
            facts: &self.facts,
            snapshot: &snapshot,
            intent: &self.intent,
            state: &self.state,
            now: sensed,
            seed,
        };
        let decided = self.parts.decide.decide(inputs);
        let previous = self.adopted.as_deref();
        let violations = self.parts.decide.check(inputs, previous, &decided.plan);
        let decided_at = self.parts.clock.now();
        self.totals.decisions += 1;
        let adopted = violations.is_empty();
        if !adopted {
            self.complain(&violations);
        }

        let outcome = (adopted && self.intent.act.mode == ActMode::Act)
            .then(|| self.act(&snapshot, &decided.plan))
            .flatten();
        let acted_at = self.parts.clock.now();
        let cost = Cost {
            sense: sensed.saturating_sub(began),
            decide: decided_at.saturating_sub(sensed),
            act: acted_at.saturating_sub(decided_at),
        };
        let period = Period {
            wall: self.parts.clock.wall(),
            facts: Arc::clone(&self.facts),
            intent: Arc::clone(&self.intent),
            snapshot: Arc::new(snapshot),
            before: Some(Arc::clone(&self.state)),
            now: sensed,
            seed,
            plan: Arc::new(decided.plan),
            reasons: decided.reasons.into(),
            violations,
            adopted,
            outcome,
            cost,
        };
        if adopted {
            self.state = Arc::new(decided.state);
            self.adopted = Some(Arc::clone(&period.plan));
        }
        self.keep(period);
    }

    fn act(&mut self, snapshot: &Snapshot, plan: &Plan) -> Option<ostler_model::Outcome> {
        self.acted = true;
        match self.parts.act.apply(&self.facts, snapshot, plan) {
            Ok(outcome) => {
                let before = self.outcome.as_deref();
                // What fails fails again each period: it is told when it is new.
                for failure in &outcome.failures {
                    if !before.is_some_and(|before| before.failures.contains(failure)) {
                        warn!(
                            target = failure.target,
                            value = failure.value,
                            "could not set a value: {}",
                            failure.error
                        );
                    }
                }
                for change in &outcome.foreign {
                    if !before.is_some_and(|before| before.foreign.contains(change)) {
                        warn!(
                            target = change.target, ours = change.ours, found = change.found, handling = ?change.handling,
                            "someone else changed a value"
                        );
                    }
                }
                if outcome.written > 0 {
                    debug!(
                        generation = outcome.generation,
                        written = outcome.written,
                        "acted"
                    );
                }
                self.totals.add_outcome(&outcome);
                self.outcome = Some(Arc::new(outcome.clone()));
                Some(outcome)
            }
            Err(failure) => {
                self.totals.failures += 1;
                error!("could not act on plan {}: {failure:#}", plan.generation);
                None
            }
        }
    }

    fn complain(&mut self, violations: &[String]) {
        self.totals.violations += violations.len() as u64;
        let before = self
            .last
            .as_deref()
            .map_or(&[][..], |last| &last.violations);
        for violation in violations {
            if !before.contains(violation) {
                error!("the plan breaks a rule and is not acted on: {violation}");
            }
        }
    }

    fn keep(&mut self, period: Period) {
        let intent = &period.intent;
        self.totals.sense.observe(period.cost.sense);
        self.totals.decide.observe(period.cost.decide);
        self.totals.act.observe(period.cost.act);
        self.totals
            .add_snapshot(&period.snapshot, |guest| intent.classify(guest).1);
        let before = self.last.as_deref().map_or(&[][..], |last| &last.reasons);
        if let Some(why) = newly_lacks_scheduler(before, &period.reasons) {
            warn!("vCPUs are left to the kernel's scheduler, whatever [boost] asks for: {why}");
        }
        let changed = self
            .last
            .as_deref()
            .is_none_or(|last| !last.plan.same_wishes(&period.plan));
        let period = Arc::new(period);
        if changed {
            self.totals.plan_changes += 1;
            let groups = &period.plan.groups;
            info!(
                generation = period.plan.generation,
                vcpu = %groups.vcpu, nq = %groups.nq, best_effort = %groups.best_effort, idle = %groups.idle,
                "the plan changes"
            );
            self.last_change = Some(Arc::clone(&period));
        }
        if let Some(recorder) = &self.recorder {
            recorder.record(Period::clone(&period));
            let stats = recorder.stats();
            let complaints = stats.dropped + stats.failed;
            if complaints > self.record_complaints && self.record_complaints == 0 {
                warn!(
                    dropped = stats.dropped,
                    failed = stats.failed,
                    "the record lost periods: {}",
                    stats
                        .last_error
                        .as_deref()
                        .unwrap_or("the disk is too slow")
                );
            }
            self.record_complaints = complaints;
        }
        self.last = Some(period);
    }

    /// Puts a new configuration in force.
    pub fn adopt(&mut self, config: Config, status: ConfigStatus) -> anyhow::Result<()> {
        self.totals.reloads += 1;
        self.parts.sense.configure(&config)?;
        let intent = config.intent;
        self.parts.act.configure(intent.act);
        let stops_acting = self.acted && intent.act.mode == ActMode::Observe;
        if stops_acting && intent.act.on_exit == ExitPolicy::Restore {
            let restored = self.parts.act.restore()?;
            tell_restored(
                "no longer acting; what was written was taken back",
                &restored,
            );
            self.acted = false;
        }
        self.intent = Arc::new(intent);
        self.config = status;
        Ok(())
    }

    /// Notes that a configuration was refused; the old one stays in force.
    pub fn refuse(&mut self, why: String) {
        self.totals.reloads += 1;
        self.totals.reloads_refused += 1;
        self.config.refused = Some(why);
    }

    /// What others may see now.
    pub fn view(&self) -> View {
        View {
            facts: Arc::clone(&self.facts),
            intent: Arc::clone(&self.intent),
            acting: self.intent.act.mode == ActMode::Act,
            last: self.last.clone(),
            last_change: self.last_change.clone(),
            outcome: self.outcome.clone(),
            totals: Arc::new(self.totals.clone()),
            record: self.recorder.as_ref().map(Recorder::stats),
            started: self.started,
            config: self.config.clone(),
            sense_error: self.sense_error.clone(),
        }
    }

    /// Lets others see what is now.
    pub fn publish(&self, shared: &Shared) {
        shared.set(self.view());
    }

    /// Ends in order: writes are taken back or stay, as the intent has it, and the record is written out.
    pub fn end(mut self) -> anyhow::Result<()> {
        let result = match (self.acted, self.intent.act.on_exit) {
            (true, ExitPolicy::Restore) => self
                .parts
                .act
                .restore()
                .map(|restored| tell_restored("what was written was taken back", &restored))
                .context("could not take back what was written; `ostler undo` tries again"),
            (true, ExitPolicy::Keep) => {
                info!("what was written stays; `ostler undo` takes it back");
                Ok(())
            }
            (false, _) => Ok(()),
        };
        if let Some(recorder) = self.recorder.take() {
            let stats = recorder.finish();
            if stats.dropped + stats.failed > 0 {
                warn!(
                    dropped = stats.dropped,
                    failed = stats.failed,
                    "the record lost periods"
                );
            }
        }
        result
    }
}

/// Why vCPUs have no scheduler of their own, where the configuration asks for one and the host can't have it.
fn lacks_scheduler(reasons: &[Reason]) -> Option<&str> {
    reasons.iter().find_map(|reason| match reason {
        Reason::TurnedDown {
            layer: Layer::Boost,
            alternative,
        } => Some(alternative.why.as_ref()),
        _ => None,
    })
}

/// The same, if the period before didn't lack it, or for another reason: periods are many, and a log tells of changes.
fn newly_lacks_scheduler<'a>(before: &[Reason], now: &'a [Reason]) -> Option<&'a str> {
    lacks_scheduler(now).filter(|why| lacks_scheduler(before) != Some(*why))
}

fn tell_restored(what: &str, restored: &Restored) {
    info!(
        put_back = restored.put_back,
        unchanged = restored.unchanged,
        left = restored.left.len(),
        "{what}"
    );
    for left in &restored.left {
        warn!("left as it is: {left}");
    }
}

#[cfg(test)]
mod tests {
    use ostler_model::Alternative;

    use super::*;

    fn down(layer: Layer, why: &'static str) -> Reason {
        Reason::TurnedDown {
            layer,
            alternative: Alternative {
                what: "it".into(),
                why: why.into(),
            },
        }
    }

    #[test]
    fn what_other_layers_turn_down_is_no_lack_of_a_scheduler() {
        let others = [
            down(Layer::Placement, "no sched_ext"),
            down(Layer::Tier, "no sched_ext"),
        ];
        assert_eq!(lacks_scheduler(&others), None);
        let [placement, tier] = others;
        let with = [placement, down(Layer::Boost, "no sched_ext"), tier];
        assert_eq!(lacks_scheduler(&with), Some("no sched_ext"));
    }

    #[test]
    fn a_lack_of_a_scheduler_is_told_when_it_begins_or_has_another_reason() {
        let periods: [&[Reason]; 6] = [
            &[],
            &[down(Layer::Boost, "no sched_ext")],
            &[
                down(Layer::Tier, "full"),
                down(Layer::Boost, "no sched_ext"),
            ],
            &[down(Layer::Boost, "no KVM hooks")],
            &[down(Layer::Tier, "no sched_ext")],
            &[down(Layer::Boost, "no KVM hooks")],
        ];
        let told: Vec<_> = periods
            .windows(2)
            .map(|two| newly_lacks_scheduler(two[0], two[1]))
            .collect();
        let (first, other) = (Some("no sched_ext"), Some("no KVM hooks"));
        assert_eq!(told, [first, None, other, None, other]);
    }
}
