//! Schedulers of vCPUs that schedule nobody, and go wrong as tests want them to.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use ostler_act::{BoostError, VcpuScheduler, VcpuSchedulers};
use ostler_boost::{Delays, Guest, Service, Settings, Thread, Vcpu};
use ostler_model::{CpuSet, Pid, Tid};

/// What is known of them from outside.
#[derive(Debug, Default)]
pub struct State {
    /// How often one was asked for.
    pub asked: u32,
    /// How often that was in the place of one.
    pub again: u32,
    /// Whether none can be had.
    pub none: bool,
    /// What the last one was loaded with.
    pub settings: Option<Settings>,
    /// Whether one is loaded.
    pub loaded: bool,
    /// Why the kernel has ended it.
    pub end: Option<String>,
    /// Guests' numbers by process.
    pub owners: BTreeMap<Pid, u32>,
    /// Guests' numbers by the threads that work for them.
    pub workers: BTreeMap<Tid, u32>,
}

#[derive(Clone, Debug, Default)]
pub struct Schedulers(pub Arc<Mutex<State>>);

impl Schedulers {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test panics with it")
    }
}

impl VcpuSchedulers for Schedulers {
    fn load(
        &self,
        settings: Settings,
        _: &[CpuSet],
    ) -> Result<Box<dyn VcpuScheduler + Send>, BoostError> {
        let mut state = self.lock();
        state.asked += 1;
        if state.none {
            return Err(BoostError::Taken {
                name: "theirs".into(),
            });
        }
        assert!(!state.loaded, "there is room for one");
        state.loaded = true;
        state.end = None;
        state.owners.clear();
        state.workers.clear();
        state.settings = Some(settings);
        Ok(Box::new(Scheduler(self.clone())))
    }
}

struct Scheduler(Schedulers);

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.0.lock().loaded = false;
    }
}

impl VcpuScheduler for Scheduler {
    fn own(&self, process: Pid, guest: u32) -> Result<(), BoostError> {
        let owners = &mut self.0.lock().owners;
        if guest == ostler_boost::NOBODY {
            owners.remove(&process);
        } else {
            assert!(owners.values().all(|number| *number != guest));
            owners.insert(process, guest);
        }
        Ok(())
    }

    fn works(&self, thread: Tid, guest: u32) -> Result<(), BoostError> {
        let mut state = self.0.lock();
        if guest == ostler_boost::NOBODY {
            state.workers.remove(&thread);
        } else {
            assert!(state.owners.values().any(|number| *number == guest));
            state.workers.insert(thread, guest);
        }
        Ok(())
    }

    /// Each has run for as many nanoseconds as its number.
    fn thread(&self, thread: Tid) -> Result<Option<Thread>, BoostError> {
        Ok(Some(Thread {
            vcpu: Vcpu {
                confidence: 4,
                ..Vcpu::default()
            },
            ran_ns: thread.0.into(),
            ..Thread::default()
        }))
    }

    fn guest(&self, guest: u32) -> Result<Option<Guest>, BoostError> {
        Ok(Some(Guest {
            balance_ns: guest.into(),
            ..Guest::default()
        }))
    }

    fn delays(&self, _: u32) -> Result<Option<Delays>, BoostError> {
        Ok(None)
    }

    fn service(&self, guest: u32) -> Result<Option<Service>, BoostError> {
        Ok(Some(Service {
            ran_ns: guest.into(),
            ..Service::default()
        }))
    }

    fn end(&self) -> Result<Option<String>, BoostError> {
        Ok(self.0.lock().end.clone())
    }

    fn deaf_to(&self) -> Vec<String> {
        vec!["doorbells (no such tracepoint)".into()]
    }

    fn again(
        self: Box<Self>,
        settings: Settings,
        domains: &[CpuSet],
    ) -> Result<Box<dyn VcpuScheduler + Send>, BoostError> {
        let schedulers = self.0.clone();
        drop(self);
        schedulers.lock().again += 1;
        schedulers.load(settings, domains)
    }
}
