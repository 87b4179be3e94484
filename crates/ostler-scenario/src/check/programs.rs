//! What only simulated guests are told: the parameters of their work, and how they use memory.

use ostler_model::Nanos;
use toml::Spanned;

use super::raw::{RawFiles, RawForward, RawGuest, RawHeat, RawLock, RawPhase, RawScenario};
use super::{Checker, ScenarioError};
use crate::{
    Barrier, Files, Forward, Guest, Heat, HeatPhase, Lock, MPKI, Program, Serve, Wait, Wakeups,
    Workload,
};

/// Threads of a program.
const THREADS_MAX: u32 = 4096;
/// Guests that a packet passes, one after the other.
const CHAIN_MAX: usize = 8;
/// Every other instruction of most programs accesses memory; with more misses than this, no cache would be worth having.
const MPKI_MAX: f64 = 500.0;
/// Phases of a guest's heat.
const PHASES_MAX: usize = 10_000;

impl Checker<'_> {
    /// What a guest's work is made of, if its file says.
    pub(super) fn program(
        &self,
        guest: &RawGuest,
        vcpus: u32,
    ) -> Result<Option<Program>, ScenarioError> {
        let workload = *guest.workload.get_ref();
        if workload.only_simulated() {
            self.only_simulated(&guest.workload, format!("`{workload}`"))?;
        }
        let serves = workload.service().is_some() && workload != Workload::Ping;
        self.belongs(guest.serve.as_ref(), "serve", serves, workload)?;
        let is = |one| workload == one;
        self.belongs(
            guest.barrier.as_ref(),
            "barrier",
            is(Workload::Barrier),
            workload,
        )?;
        self.belongs(
            guest.forward.as_ref(),
            "forward",
            is(Workload::Forward),
            workload,
        )?;
        self.belongs(guest.files.as_ref(), "files", is(Workload::Files), workload)?;
        self.belongs(guest.lock.as_ref(), "lock", is(Workload::Lock), workload)?;
        if let Some(serve) = &guest.serve {
            self.only_simulated(serve, "the time that requests take")?;
            let raw = serve.get_ref();
            let threads = raw.threads.as_ref();
            return Ok(Some(Program::Serve(Serve {
                time: self.time(&raw.time)?,
                threads: threads
                    .map(|threads| self.between(threads, "threads", 1, THREADS_MAX))
                    .transpose()?,
            })));
        }
        if let Some(barrier) = &guest.barrier {
            let raw = barrier.get_ref();
            return Ok(Some(Program::Barrier(Barrier {
                threads: self.threads(raw.threads.as_ref(), vcpus)?,
                compute: self.time(&raw.compute)?,
                wait: self.wait(raw.wait.as_ref(), Wait::Block)?,
            })));
        }
        if let Some(forward) = &guest.forward {
            return self.forward(forward.get_ref()).map(Some);
        }
        if let Some(files) = &guest.files {
            return self.files(files.get_ref()).map(Some);
        }
        match &guest.lock {
            Some(lock) => self.lock(lock.get_ref(), vcpus).map(Some),
            None => Ok(None),
        }
    }

    /// Refuses parameters of another workload.
    fn belongs<T>(
        &self,
        parameters: Option<&Spanned<T>>,
        key: &str,
        fits: bool,
        workload: Workload,
    ) -> Result<(), ScenarioError> {
        match parameters {
            Some(parameters) if !fits => self.refuse(
                parameters,
                format!("`{key}` for a guest whose workload is `{workload}`"),
                "remove it, or change the workload to one that it belongs to",
            ),
            _ => Ok(()),
        }
    }

    fn threads(&self, threads: Option<&Spanned<u32>>, vcpus: u32) -> Result<u32, ScenarioError> {
        match threads {
            Some(threads) => self.between(threads, "threads", 1, THREADS_MAX),
            None => Ok(vcpus),
        }
    }

    fn forward(&self, raw: &RawForward) -> Result<Program, ScenarioError> {
        let work = raw.work.as_ref().map(|work| self.time(work)).transpose()?;
        Ok(Program::Forward(Forward {
            to: raw.to.as_ref().map(|to| to.get_ref().clone()),
            work,
        }))
    }

    fn files(&self, raw: &RawFiles) -> Result<Program, ScenarioError> {
        Ok(Program::Files(Files {
            count: self.between(&raw.count, "count", 1, 100_000_000)?,
            size: self.bytes(&raw.size)?,
            cacheable: self.share(&raw.cacheable, "cacheable", false)?,
            threads: self.threads(raw.threads.as_ref(), 64)?,
            time: self.time(&raw.time)?,
            disk: self.nanos(&raw.disk)?,
        }))
    }

    fn lock(&self, raw: &RawLock, vcpus: u32) -> Result<Program, ScenarioError> {
        let threads = self.threads(raw.threads.as_ref(), vcpus)?;
        Ok(Program::Lock(Lock {
            threads,
            locks: self.between(&raw.locks, "locks", 1, threads)?,
            think: self.time(&raw.think)?,
            hold: self.time(&raw.hold)?,
            lines: self.between(&raw.lines, "lines", 0, 10_000)?,
            wait: self.wait(raw.wait.as_ref(), Wait::Spin)?,
            declared: raw.declared,
        }))
    }

    pub(super) fn wakeups(&self, guest: &RawGuest) -> Result<Wakeups, ScenarioError> {
        match &guest.wakeups {
            Some(wakeups) if *wakeups.get_ref() != Wakeups::default() => {
                self.only_simulated(wakeups, "how a guest's kernel chooses vCPUs")?;
                Ok(*wakeups.get_ref())
            }
            _ => Ok(Wakeups::default()),
        }
    }

    pub(super) fn halt_poll(&self, guest: &RawGuest) -> Result<Nanos, ScenarioError> {
        let Some(halt_poll) = &guest.halt_poll else {
            return Ok(Nanos::ZERO);
        };
        self.only_simulated(halt_poll, "how long idle vCPUs spin")?;
        self.nanos(halt_poll)
    }

    pub(super) fn heat(
        &self,
        guest: &RawGuest,
        memory_mib: u64,
    ) -> Result<Option<Heat>, ScenarioError> {
        let Some(heat) = &guest.heat else {
            return Ok(None);
        };
        self.only_simulated(heat, "the heat of memory")?;
        let RawHeat {
            mpki,
            repeat,
            phases,
        } = heat.get_ref();
        let mpki = match mpki {
            None => MPKI,
            Some(own) if (0.0..=MPKI_MAX).contains(own.get_ref()) => *own.get_ref(),
            Some(own) => {
                return self.refuse(
                    own,
                    format!("mpki = {}", own.get_ref()),
                    format!("write 0 to {MPKI_MAX} misses for each thousand instructions"),
                );
            }
        };
        let number = phases.get_ref().len();
        if !(1..=PHASES_MAX).contains(&number) {
            return self.refuse(
                phases,
                format!("{number} phases"),
                format!("write 1 to {PHASES_MAX}, like {{ hot = \"64M\", cold = \"128M\" }}"),
            );
        }
        let mut taken: Vec<HeatPhase> = Vec::with_capacity(number);
        for raw in phases.get_ref() {
            let phase = self.phase(raw)?;
            let after = taken.last().map_or(Nanos::ZERO, |last| last.at);
            let rises = match taken.last() {
                None => phase.at == Nanos::ZERO,
                Some(last) => phase.at > last.at,
            };
            if !rises {
                let (what, remedy) = match &raw.at {
                    Some(at) if taken.is_empty() => (
                        format!("the first phase begins at {}", at.get_ref()),
                        "it begins with the cell: leave its `at` out".to_owned(),
                    ),
                    at => (
                        format!(
                            "a phase that begins at {}, and one before it at {} ns",
                            at.as_ref().map_or("0s", |at| at.get_ref()),
                            after.0
                        ),
                        "list phases by rising `at`".to_owned(),
                    ),
                };
                return match &raw.at {
                    Some(at) => self.refuse(at, what, remedy),
                    None => self.refuse(phases, what, remedy),
                };
            }
            if phase.used_mib() > memory_mib {
                return self.refuse(
                    phases,
                    format!(
                        "a phase uses {} MiB of a memory of {memory_mib}",
                        phase.used_mib()
                    ),
                    "hot, warm and cold together are at most the guest's memory",
                );
            }
            taken.push(phase);
        }
        let last = taken.last().map_or(Nanos::ZERO, |last| last.at);
        let repeat = match repeat {
            Some(raw) => {
                let repeat = self.nanos(raw)?;
                if repeat <= last {
                    return self.refuse(
                        raw,
                        format!("repeat = \"{}\"", raw.get_ref()),
                        "it begins anew after the last phase: write more than its `at`",
                    );
                }
                Some(repeat)
            }
            None => None,
        };
        Ok(Some(Heat {
            mpki,
            repeat,
            phases: taken,
        }))
    }

    fn phase(&self, raw: &RawPhase) -> Result<HeatPhase, ScenarioError> {
        let size = |size: &Option<Spanned<String>>| match size {
            Some(size) => self.mebibytes(size),
            None => Ok(0),
        };
        Ok(HeatPhase {
            at: match &raw.at {
                Some(at) => self.nanos(at)?,
                None => Nanos::ZERO,
            },
            hot_mib: size(&raw.hot)?,
            warm_mib: size(&raw.warm)?,
            cold_mib: size(&raw.cold)?,
        })
    }

    /// Each guest that packets are sent on to is there once and takes them, and no packet runs in a circle.
    pub(super) fn chains(&self, raw: &RawScenario, guests: &[Guest]) -> Result<(), ScenarioError> {
        for (raw, guest) in raw.guest.iter().zip(guests) {
            let to = raw
                .forward
                .as_ref()
                .and_then(|raw| raw.get_ref().to.as_ref());
            let Some(to) = to else { continue };
            let name = to.get_ref();
            let Some(next) = guests.iter().find(|guest| guest.name == *name) else {
                let known: Vec<_> = guests.iter().map(|g| g.name.as_str()).collect();
                return self.refuse(
                    to,
                    format!("no guest is named `{name}`"),
                    format!("there are: {}", known.join(", ")),
                );
            };
            if !next.workload.answers() || next.count != guest.count {
                return self.refuse(
                    to,
                    format!(
                        "packets of {} `{}` for {} `{name}`, which runs `{}`",
                        guest.count, guest.name, next.count, next.workload
                    ),
                    "send them to as many guests that answer, or that send them on",
                );
            }
            let length = chain(guests, guest).take(CHAIN_MAX + 1).count();
            if length > CHAIN_MAX {
                return self.refuse(
                    to,
                    format!("packets that pass more than {CHAIN_MAX} guests, or run in a circle"),
                    "shorten the chain",
                );
            }
        }
        Ok(())
    }
}

/// The guests that a packet for one of them passes.
fn chain<'g>(guests: &'g [Guest], first: &'g Guest) -> impl Iterator<Item = &'g Guest> {
    std::iter::successors(Some(first), move |guest| {
        let to = guest.sends_to()?;
        guests.iter().find(|guest| guest.name == to)
    })
}
