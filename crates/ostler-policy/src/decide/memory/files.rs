//! Sizing, wired into a decision: each guest's control loop, and what its files are granted of what there is.
//!
//! A loop goes on where the state left it when its own interval is over, with what was seen of its guest's tasks. What it wishes for is between the least
//! and the most of its guest's rule; all wishes together are cut to the operator's budget, leasts first, latency-critical guests before others.
//!
//! **In turn.** Loops that began together are due together, for ever. So no more than [`LOOPS_MAX`] go on in a period, those that have waited longest before others, and the rest in the next ones: a
//! step looks at half a minute or more, and reckons with how long that really was. Guests that have no loop yet are given one at once, as on a fresh host.

use std::collections::BTreeMap;
use std::sync::Arc;

use ostler_model::{
    Alternative, Bytes, Class, FilesCause, FilesControl, FilesPlan, FilesView, FilesWish,
    GuestFiles, Layer, Nanos, Reason, SizingParts, SizingSettings, SizingState,
};

use super::super::not_seen;
use crate::sizing::queue::{Service, ServiceError, Solution};
use crate::sizing::share::{Wish, share};
use crate::sizing::{Control, Parts, Seen as SeenTasks, Settings, Step, enter};
use crate::tier::moves::Files as Lacks;
use crate::tier::proportion::Files;
use crate::walk::Walk;
use crate::{Member, Seen};

/// How often memory is shared out again while somebody wants more than he has.
const AGAIN: Nanos = Nanos::from_secs(1);

/// As many loops go on in a period.
const LOOPS_MAX: usize = 32;

/// A guest that has files.
#[derive(Debug)]
pub(super) struct Taker {
    /// By place in the roster.
    pub(super) guest: usize,
    /// Its loop, as it is now.
    pub(super) control: Arc<FilesControl>,
    /// What they have, as far as is known.
    pub(super) held: u64,
    /// What they are to have: the least, and what is wished for within the budget.
    pub(super) wish: Wish,
    /// Why it wishes for that, if that was decided now.
    cause: Option<FilesCause>,
}

/// The layer's buffers. What is in them between decisions is of no consequence.
#[derive(Debug, Default)]
pub(super) struct Layered {
    pub(super) takers: Vec<Taker>,
    /// What guests of a rule are reckoned with, by the place of its wish in memory, for as long as a decision takes.
    services: BTreeMap<usize, Result<Service, ServiceError>>,
    /// Loops whose interval is over, by since when and place in the state.
    late: Vec<(Nanos, usize)>,
    order: Vec<usize>,
    wishes: Vec<Wish>,
    shared: Vec<u64>,
    /// What each is granted, in order of `takers`.
    pub(super) grants: Vec<u64>,
    /// Whether any loop went on, or others take part than before.
    changed: bool,
    /// What there was to share out.
    most: u64,
}

impl Layered {
    /// Has loops go on, and adds up what they wish for.
    pub(super) fn wish(
        &mut self,
        seen: &Seen<'_>,
        settings: &SizingSettings,
        state: &SizingState,
        reasons: &mut Vec<Reason>,
    ) {
        self.takers.clear();
        self.services.clear();
        self.changed = false;
        let mut views = Walk::new(&seen.snapshot.files, |view| &view.guest);
        let mut controls = Walk::new(&state.guests, |control| &control.guest);
        let last = self.last_in_turn(state, seen.snapshot.at);
        let old = seen.intent.old_after().max(settings.interval_min);
        let mut unseen = 0;
        for (guest, member) in seen.roster.members().iter().enumerate() {
            let Some(wish) = wish_of(member) else {
                continue;
            };
            let id = &member.view.id;
            let view = views.find(id).filter(|view| view.age <= old);
            let control = controls.place(id).map(|at| {
                let control = &state.guests[at];
                (control, (control.next, at) <= last)
            });
            unseen += u32::from(view.is_none());
            let by = settings_of(settings, wish);
            self.take(seen, guest, (wish, &by), control, view, reasons);
        }
        if unseen > 0 {
            let what = format!("word of the file services of {unseen} guests");
            reasons.push(not_seen(Layer::Sizing, what));
        }
        self.changed |= self.takers.len() != state.guests.len();
        self.cut(seen, settings.budget);
    }

    /// The last of those loops whose turn it is, if they are due.
    fn last_in_turn(&mut self, state: &SizingState, now: Nanos) -> (Nanos, usize) {
        self.late.clear();
        let loops = state.guests.iter().enumerate();
        let late = loops.filter(|(_, control)| now >= control.next);
        self.late
            .extend(late.map(|(at, control)| (control.next, at)));
        if self.late.len() <= LOOPS_MAX {
            return (Nanos(u64::MAX), usize::MAX);
        }
        *self.late.select_nth_unstable(LOOPS_MAX - 1).1
    }

    fn take(
        &mut self,
        seen: &Seen<'_>,
        guest: usize,
        (wish, by): (&FilesWish, &Settings),
        control: Option<(&Arc<FilesControl>, bool)>,
        view: Option<&FilesView>,
        reasons: &mut Vec<Reason>,
    ) {
        let now = seen.snapshot.at;
        let id = &seen.roster.members()[guest].view.id;
        let known = control.filter(|(control, in_turn)| {
            (now < control.next || !in_turn) && control.unit.0 == by.size_step
        });
        let mut cause = None;
        let control = match (known, view) {
            (Some((control, _)), _) => Arc::clone(control),
            (None, view) => {
                let resumed = control.and_then(|(control, _)| Control::resume(control, by));
                let mut going = match (resumed, view) {
                    (Some(control), _) => control,
                    (None, Some(view)) => {
                        cause = Some(FilesCause::New);
                        Control::new(now, view.bytes.0, by)
                    }
                    // Nobody knows of any files.
                    (None, None) => return,
                };
                self.changed = true;
                if cause.is_none() {
                    let rule = std::ptr::from_ref(wish).addr();
                    let service = self.services.entry(rule);
                    match service.or_insert_with(|| service_of(wish)) {
                        Ok(service) => {
                            let tasks = view.map_or(NO_TASKS, tasks);
                            cause = cause_of(going.step(now, tasks, service, by));
                        }
                        Err(error) => reasons.push(Reason::TurnedDown {
                            layer: Layer::Sizing,
                            alternative: Alternative {
                                what: format!("a size for files of guest {id} by their tasks")
                                    .into(),
                                why: error.to_string().into(),
                            },
                        }),
                    }
                }
                Arc::new(going.remember(id.clone()))
            }
        };
        let held = view.map_or(control.granted.0, |view| view.bytes.0);
        self.takers.push(Taker {
            guest,
            held,
            wish: Wish {
                least: by.size_min,
                bytes: control.wish.0.clamp(by.size_min, by.size_max),
            },
            control,
            cause,
        });
    }

    /// Cuts wishes, and leasts if need be, to the budget.
    fn cut(&mut self, seen: &Seen<'_>, budget: Bytes) {
        self.order.clear();
        let members = seen.roster.members();
        // In order of id within a class.
        for rest in [false, true] {
            let takers = self.takers.iter().enumerate();
            let of_class = takers.filter(|(_, taker)| {
                (members[taker.guest].class != Class::LatencyCritical) == rest
            });
            self.order.extend(of_class.map(|(at, _)| at));
        }
        self.share(budget.0);
        for (taker, grant) in self.takers.iter_mut().zip(&self.grants) {
            taker.wish.bytes = *grant;
            taker.wish.least = taker.wish.least.min(*grant);
        }
    }

    /// Shares so many bytes out by the wishes; into `grants`.
    fn share(&mut self, bytes: u64) {
        self.wishes.clear();
        let takers = &self.takers;
        let wishes = self.order.iter().map(|&at| takers[at].wish);
        self.wishes.extend(wishes);
        share(bytes, &self.wishes, &mut self.shared);
        self.grants.clear();
        self.grants.resize(self.takers.len(), 0);
        for (&at, &grant) in self.order.iter().zip(&self.shared) {
            self.grants[at] = grant;
        }
    }

    /// Whether memory is to be shared out again, where no other layer has its say in it.
    pub(super) fn is_due(&self, state: &SizingState, now: Nanos) -> bool {
        let mut takers = self.takers.iter();
        let unmet = takers.any(|taker| taker.control.granted.0 < taker.wish.bytes);
        let waited = state
            .shared
            .is_none_or(|shared| now.saturating_sub(shared) >= AGAIN);
        self.must() || (unmet && waited)
    }

    /// Whether what was granted can't stay as it is.
    pub(super) fn must(&self) -> bool {
        let mut takers = self.takers.iter();
        // Other rules, or a smaller budget.
        let beyond = takers.any(|taker| taker.control.granted.0 > taker.wish.bytes);
        self.changed || beyond
    }

    /// Nobody has files.
    pub(super) fn clear(&mut self) {
        self.takers.clear();
        self.changed = false;
        self.order.clear();
        self.grants.clear();
    }

    /// What files have and want together.
    pub(super) fn claims(&self) -> Files {
        let mut files = Files::default();
        for taker in &self.takers {
            files.held = files.held.saturating_add(taker.held);
            files.least = files.least.saturating_add(taker.wish.least);
            files.wish = files.wish.saturating_add(taker.wish.bytes);
        }
        files
    }

    /// Divides what files are to have together, as far as they have wishes.
    pub(super) fn divide(&mut self, bytes: u64) {
        self.share(bytes);
    }

    /// What they lack of that.
    pub(super) fn lacks(&self) -> Lacks {
        let mut lacks = Lacks::default();
        let (mut held, mut granted) = (0_u64, 0_u64);
        for (taker, &grant) in self.takers.iter().zip(&self.grants) {
            let least = taker.wish.least.min(grant);
            let to_least = least.saturating_sub(taker.held);
            let more = grant.saturating_sub(taker.held) - to_least;
            lacks.leasts = lacks.leasts.saturating_add(to_least);
            lacks.wishes = lacks.wishes.saturating_add(more);
            held = held.saturating_add(taker.held);
            granted = granted.saturating_add(grant);
        }
        lacks.more = granted.saturating_sub(held);
        lacks
    }

    /// Grants what there is: no more is given out than is free, as who has less gives it back only when that is done. With nothing known of free memory, the budget
    /// alone bounds it.
    pub(super) fn grant(&mut self, bytes: u64, free: Option<u64>) {
        self.divide(bytes);
        self.give(bytes, free);
    }

    /// The same, of what was divided last.
    pub(super) fn give(&mut self, bytes: u64, free: Option<u64>) {
        self.most = bytes;
        let mut left = free.unwrap_or(u64::MAX);
        let takers = &self.takers;
        // Leasts before anybody has more.
        for least in [true, false] {
            for (&at, granted) in self.order.iter().zip(&mut self.shared) {
                let (taker, grant) = (&takers[at], &mut self.grants[at]);
                if least {
                    *granted = taker.held.min(*grant);
                }
                let to = if least {
                    taker.wish.least.min(*grant)
                } else {
                    *grant
                };
                let more = to.saturating_sub(*granted).min(left);
                left -= more;
                *granted += more;
            }
        }
        for (&at, &granted) in self.order.iter().zip(&self.shared) {
            self.grants[at] = granted;
        }
    }

    /// Has everybody keep what he has, but for what is beyond his wish.
    pub(super) fn keep(&mut self) {
        self.grants.clear();
        let grants = self.takers.iter();
        self.grants
            .extend(grants.map(|taker| taker.control.granted.0));
        self.most = u64::MAX;
    }

    /// So much there is to share out, as it was when that was granted.
    pub(super) fn bound(&mut self, bytes: u64) {
        self.most = bytes;
    }

    /// Enters the grants: loops learn from what they were granted.
    pub(super) fn finish(
        &mut self,
        seen: &Seen<'_>,
        settings: &SizingSettings,
        state: &SizingState,
        shared: Option<Nanos>,
        reasons: &mut Vec<Reason>,
    ) -> SizingState {
        let mut changed = self.changed;
        let budget = settings.budget.min(Bytes(self.most));
        for (taker, &grant) in self.takers.iter_mut().zip(&self.grants) {
            let member = &seen.roster.members()[taker.guest];
            let before = taker.control.granted;
            if before.0 != grant {
                // One that went on in this decision is nobody else's yet.
                enter(Arc::make_mut(&mut taker.control), grant);
                changed = true;
            }
            if let Some(cause) = taker
                .cause
                .or((before.0 != grant).then_some(FilesCause::Share))
                && (before.0 != grant || taker.wish.bytes != grant)
            {
                reasons.push(Reason::Files {
                    guest: member.view.id.clone(),
                    from: before,
                    to: Bytes(grant),
                    wish: taker.control.wish,
                    cause,
                });
            }
        }
        let same = |plan: &&Arc<FilesPlan>| {
            plan.budget == budget
                && plan.guests.len() == self.takers.len()
                && plan.guests.iter().zip(&self.takers).zip(&self.grants).all(
                    |((files, taker), &grant)| {
                        files.guest == taker.control.guest
                            && files.wish.0 == taker.wish.bytes
                            && files.bytes.0 == grant
                    },
                )
        };
        let plan = state.plan.as_ref().filter(same).map_or_else(
            || {
                let takers = self.takers.iter().zip(&self.grants);
                Arc::new(FilesPlan {
                    since: seen.snapshot.at,
                    budget,
                    guests: takers
                        .map(|(taker, &grant)| GuestFiles {
                            guest: taker.control.guest.clone(),
                            wish: Bytes(taker.wish.bytes),
                            bytes: Bytes(grant),
                        })
                        .collect(),
                })
            },
            Arc::clone,
        );
        SizingState {
            shared: shared.or(state.shared),
            plan: Some(plan),
            guests: if changed {
                let takers = self.takers.iter();
                takers.map(|taker| Arc::clone(&taker.control)).collect()
            } else {
                Arc::clone(&state.guests)
            },
        }
    }
}

/// No response time: no figure.
const NO_TASKS: SeenTasks = SeenTasks {
    response: f64::NAN,
    arrivals: f64::NAN,
};

fn tasks(view: &FilesView) -> SeenTasks {
    SeenTasks {
        response: view.response.map_or(f64::NAN, Nanos::as_secs_f64),
        arrivals: view.arrivals_per_s,
    }
}

fn wish_of<'a>(member: &Member<'a>) -> Option<&'a FilesWish> {
    member.rule?.terms.files.as_ref()
}

fn service_of(wish: &FilesWish) -> Result<Service, ServiceError> {
    let times = wish.service.iter();
    let times: Vec<(u64, f64)> = times
        .map(|time| (time.bytes.0, time.time.as_secs_f64()))
        .collect();
    Service::new(&times)
}

fn settings_of(settings: &SizingSettings, wish: &FilesWish) -> Settings {
    Settings {
        wanted: wish.response.as_secs_f64(),
        response_step: settings.response_step.as_secs_f64(),
        size_step: settings.size_step.0.max(1),
        size_min: wish.least.0,
        size_max: wish.most.0.max(wish.least.0),
        interval_min: settings.interval_min,
        interval_max: settings.interval_max,
        parts: match settings.parts {
            SizingParts::Corrected => Parts::Corrected,
            SizingParts::Both => Parts::Both,
            SizingParts::Queue => Parts::Queue,
            SizingParts::Adaptive => Parts::Adaptive,
        },
        memory: settings.memory,
    }
}

fn cause_of(step: Step) -> Option<FilesCause> {
    match step {
        Step::Solved(Solution::Size(_)) => Some(FilesCause::Model),
        Step::Solved(Solution::Ample(_)) => Some(FilesCause::Ample),
        Step::Solved(Solution::OutOfReach(_)) => Some(FilesCause::OutOfReach),
        Step::Adapted { made: true, .. } => Some(FilesCause::Learned),
        Step::Blind => Some(FilesCause::Blind),
        Step::Adapted { made: false, .. } | Step::Waits | Step::Rests => None,
    }
}
