//! The loop: what happens next happens, and those whom it concerns are told.
//!
//! The world is the only one who knows both the host and those who own its threads. It has the host take its events, then carries out what owners have asked
//! for, in order, until nobody asks for more. So nobody is ever entered twice, and there is one order of everything: the same world with
//! the same seed does the same, byte for byte.
//!
//! Owners that make each other ask for ever, without time going on, are cut off and told of ([`WorldError`]).

use ostler_model::{Nanos, Topology};

use crate::event::Queue;
use crate::ftrace::{Line, Tracer};
use crate::host::{Event, Host, HostCosts, Scene};
use crate::work::{Effect, Effects, Work};

/// As much may happen at one instant: events, and what owners ask for. A thousand guests that all wake at a tick do a hundredth of it.
pub const INSTANT_MAX: u32 = 1_000_000;

/// What a world can't go on with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorldError {
    /// Time stands still.
    #[error(
        "at {} ns {INSTANT_MAX} events and wishes came without time going on, the last of them {last}: two owners of threads make each other ask for ever; run with the \
         same seed up to then to see which",
        at.0
    )]
    Endless {
        /// When.
        at: Nanos,
        /// What came last.
        last: String,
    },
}

/// A host, those who own its threads, and what is to happen.
#[derive(Clone, Debug)]
pub struct World<W> {
    /// What is to happen.
    pub queue: Queue<Event>,
    /// The host.
    pub host: Host,
    /// Who owns its threads.
    pub work: W,
    out: Effects,
    instant: (Nanos, u32),
}

impl<W: Work> World<W> {
    /// A world at its beginning.
    pub fn new(topology: &Topology, costs: HostCosts, work: W) -> World<W> {
        World {
            queue: Queue::default(),
            host: Host::new(topology, costs),
            work,
            out: Effects::default(),
            instant: (Nanos::ZERO, 0),
        }
    }

    /// What happens is traced from now on.
    pub fn trace(&mut self) {
        self.out.trace();
    }

    /// What was traced since the last time; nothing, where nobody traces.
    pub fn traced(&mut self) -> Vec<Line> {
        self.out.tracer().map_or_else(Vec::new, Tracer::take)
    }

    /// Now.
    pub fn now(&self) -> Nanos {
        self.queue.now()
    }

    /// Has everything happen that is to happen until a time. An event of the world's own ([`Event::World`]) that comes before is given back:
    /// whoever put it in sees to it, and calls again.
    pub fn run(&mut self, until: Nanos) -> Result<Option<u32>, WorldError> {
        while let Some(event) = self.queue.take(until) {
            self.count(|| format!("{event:?}"))?;
            match event {
                Event::World(number) => return Ok(Some(number)),
                Event::Alarm(token) => {
                    let now = self.queue.now();
                    self.work.alarm(token, now, &mut self.out);
                }
                event => {
                    let mut scene = Scene {
                        queue: &mut self.queue,
                        work: &mut self.work,
                        out: &mut self.out,
                    };
                    self.host.happen(event, &mut scene);
                }
            }
            self.settle()?;
        }
        self.queue.pass(until);
        Ok(None)
    }

    /// Does something to the host and to those who own its threads, now, and carries out what they want of it.
    pub fn act<T>(
        &mut self,
        act: impl FnOnce(&mut Host, &mut Scene<'_, W>) -> T,
    ) -> Result<T, WorldError> {
        let mut scene = Scene {
            queue: &mut self.queue,
            work: &mut self.work,
            out: &mut self.out,
        };
        let value = act(&mut self.host, &mut scene);
        self.settle()?;
        Ok(value)
    }

    /// Carries out all that owners want.
    fn settle(&mut self) -> Result<(), WorldError> {
        // What carrying one out brings is put behind those that are there already.
        let mut next = 0;
        loop {
            let Some(effect) = self.out.0.get(next).copied() else {
                let mut scene = Scene {
                    queue: &mut self.queue,
                    work: &mut self.work,
                    out: &mut self.out,
                };
                if self.host.leave_next(&mut scene) {
                    continue;
                }
                break;
            };
            if let Some(tracer) = self.out.tracer() {
                tracer.carries_out(next);
            }
            next += 1;
            if let Effect::Alarm { at, token } = effect {
                self.queue.at(at, Event::Alarm(token));
                continue;
            }
            if let Err(endless) = self.count(|| format!("{effect:?}")) {
                self.out.0.drain(..next);
                return Err(endless);
            }
            let mut scene = Scene {
                queue: &mut self.queue,
                work: &mut self.work,
                out: &mut self.out,
            };
            self.host.carry_out(effect, &mut scene);
        }
        self.out.0.clear();
        if let Some(tracer) = self.out.tracer() {
            tracer.carried_out();
        }
        Ok(())
    }

    /// One more at this instant.
    fn count(&mut self, last: impl Fn() -> String) -> Result<(), WorldError> {
        let now = self.queue.now();
        if self.instant.0 != now {
            self.instant = (now, 0);
        }
        self.instant.1 += 1;
        if self.instant.1 > INSTANT_MAX {
            return Err(WorldError::Endless {
                at: now,
                last: last(),
            });
        }
        Ok(())
    }
}
