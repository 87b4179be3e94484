//! A made-up emulator with real threads for cores: they execute "instructions", halt, wake each other and set timers, and the real machine's
//! scheduler interferes as it likes.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::super::*;
use crate::clock::Cost;
use crate::threads::become_role;

pub(super) const QUANTUM: i64 = 10_000;
pub(super) const BLOCK: u64 = 50;
/// What a test may take in real time before it counts as hung; the watchdog of these tests.
pub(super) const HUNG: Duration = Duration::from_mins(2);

thread_local! {
    /// Whether this thread has the lock.
    static LOCKED: Cell<bool> = const { Cell::new(false) };
}

#[derive(Default)]
pub(super) struct FakeCore {
    pub(super) counted: AtomicU64,
    /// What it has counted in all, and what it had at the start of the block before this one, and of this.
    pub(super) all: AtomicU64,
    pub(super) before: AtomicU64,
    pub(super) begun: AtomicU64,
    pub(super) halted: AtomicBool,
    /// Interrupts that it hasn't taken.
    pub(super) pending: AtomicU32,
    pub(super) leave: AtomicBool,
    /// By another thread.
    pub(super) called: AtomicBool,
    pub(super) bed: Gate,
    pub(super) shown: Mutex<Vec<SoFar>>,
}

#[derive(Default)]
pub(super) struct Fake {
    pub(super) cores: Vec<FakeCore>,
    pub(super) lock: Mutex<()>,
    /// When the one timer is due, and whom it wakes.
    pub(super) timer: Mutex<Option<(i64, usize)>>,
    pub(super) late: AtomicI64,
    /// Doorbells: when each was due, and when it was heard by a core that ran.
    pub(super) heard: Mutex<Vec<(i64, i64)>>,
    pub(super) disk: AtomicBool,
    /// A thread that wants a real core and gets none, and how often somebody looked.
    pub(super) starves: AtomicBool,
    pub(super) looked: AtomicU32,
    pub(super) said: Mutex<Vec<String>>,
    pub(super) machine: std::sync::OnceLock<std::sync::Weak<Machine<Fake>>>,
}

impl FakeCore {
    pub(super) fn count(&self, more: u64) {
        self.counted.fetch_add(more, Ordering::Relaxed);
        self.all.fetch_add(more, Ordering::Relaxed);
    }
}

impl Fake {
    pub(super) fn machine(&self) -> Arc<Machine<Fake>> {
        self.machine
            .get()
            .and_then(std::sync::Weak::upgrade)
            .expect("it is there")
    }

    /// Under the lock, as a core halts: so it either halts before, or sees it.
    pub(super) fn interrupt(&self, core: usize) {
        if LOCKED.get() {
            self.interrupt_locked(core);
        } else {
            self.locked(&mut || self.interrupt_locked(core));
        }
    }

    pub(super) fn interrupt_locked(&self, core: usize) {
        let machine = self.machine();
        self.cores[core].pending.fetch_add(1, Ordering::SeqCst);
        machine.interrupted(core);
        machine.kicked(core);
        if !matches!(role(), Role::Core(own) if own == core) {
            self.cores[core].called.store(true, Ordering::SeqCst);
        }
        self.cores[core].leave.store(true, Ordering::SeqCst);
        self.cores[core].bed.wake();
        machine.asked(core);
    }
}

impl Emulator for Fake {
    fn counted(&self, core: usize) -> u64 {
        self.cores[core].counted.load(Ordering::Relaxed)
    }
    fn restart_count(&self, core: usize, from: u64) {
        self.cores[core].counted.store(from, Ordering::Relaxed);
    }
    fn uninterrupted(&self, core: usize) -> u64 {
        let core = &self.cores[core];
        core.begun.load(Ordering::Relaxed) - core.before.load(Ordering::Relaxed)
    }
    fn has_work(&self, core: usize) -> bool {
        let core = &self.cores[core];
        !core.halted.load(Ordering::SeqCst) || core.pending.load(Ordering::SeqCst) > 0
    }
    fn asked_to_leave(&self, core: usize) -> bool {
        self.cores[core].leave.load(Ordering::SeqCst)
    }
    fn called_away(&self, core: usize) -> bool {
        self.cores[core].called.load(Ordering::SeqCst)
    }
    fn must_not_wait(&self, _: usize) -> bool {
        false
    }
    fn locked(&self, body: &mut dyn FnMut()) {
        let _guard = self.lock.lock().expect("nobody panicked");
        LOCKED.set(true);
        body();
        LOCKED.set(false);
    }
    fn due_in(&self) -> Option<i64> {
        let (due, _) = (*self.timer.lock().expect("nobody panicked"))?;
        Some((due - self.machine().read()).max(0))
    }
    fn run_timers(&self) {
        let now = self.machine().read();
        let due = self
            .timer
            .lock()
            .expect("nobody panicked")
            .take_if(|(due, _)| *due <= now);
        if let Some((due, core)) = due {
            self.late.fetch_max(now - due, Ordering::SeqCst);
            self.interrupt(core);
        }
    }
    fn wake_main_loop(&self) {}
    fn disk_is_busy(&self) -> bool {
        self.disk.load(Ordering::SeqCst)
    }
    fn busy_disks(&self) -> Vec<String> {
        vec!["root".to_owned()]
    }
    fn ring(&self, core: usize) {
        let at = HAPPENS_AT.get().expect("it is known when");
        let heard = match role() {
            Role::Core(own) if own == core => self.machine().local(core),
            _ => at,
        };
        self.heard
            .lock()
            .expect("nobody panicked")
            .push((at, heard));
        self.interrupt(core);
    }
    fn describe(&self, core: usize) -> String {
        format!(
            "{} pending",
            self.cores[core].pending.load(Ordering::SeqCst)
        )
    }
    fn say(&self, text: &str) {
        self.said
            .lock()
            .expect("nobody panicked")
            .push(text.to_owned());
    }
    fn wanting(&self) -> Wanting {
        self.looked.fetch_add(1, Ordering::SeqCst);
        if self.starves.load(Ordering::SeqCst) {
            Wanting::made_up(&[(1, 0)])
        } else {
            Wanting::default()
        }
    }
    fn show(&self, core: usize, so_far: SoFar) {
        let mut shown = self.cores[core].shown.lock().expect("nobody panicked");
        shown.push(so_far);
    }
}

pub(super) fn build(cores: usize) -> Arc<Machine<Fake>> {
    build_with(cores, HUNG)
}

pub(super) fn build_with(cores: usize, patience: Duration) -> Arc<Machine<Fake>> {
    let options = Options {
        quantum_ns: QUANTUM,
        cost: Cost::from_ps(1000),
        ..Options::default()
    };
    finish(Machine::new(fake(cores), cores, options), patience)
}

pub(super) fn fake(cores: usize) -> Fake {
    let mut fake = Fake::default();
    fake.cores.resize_with(cores, FakeCore::default);
    for core in &fake.cores {
        core.halted.store(true, Ordering::SeqCst);
    }
    fake
}

pub(super) fn finish(mut machine: Machine<Fake>, patience: Duration) -> Arc<Machine<Fake>> {
    machine.patience = patience;
    let machine = Arc::new(machine);
    let _ = machine.emulator.machine.set(Arc::downgrade(&machine));
    machine
}

impl Machine<Fake> {
    /// One core executes so many instructions, in blocks.
    pub(super) fn execute(&self, core: usize, instructions: u64) {
        let fake = &self.emulator.cores[core];
        for _ in 0..instructions / BLOCK {
            fake.count(BLOCK);
            let begun = fake.all.load(Ordering::Relaxed);
            let before = fake.begun.swap(begun, Ordering::Relaxed);
            fake.before.store(before, Ordering::Relaxed);
            if fake.counted.load(Ordering::Relaxed) >= self.options.step() {
                self.quantum(core);
            }
            // As the translated code does at the start of each block.
            if fake.leave.swap(false, Ordering::SeqCst) {
                fake.called.store(false, Ordering::SeqCst);
                fake.pending.store(0, Ordering::SeqCst);
            }
        }
    }

    /// One core executes a block whose accesses take so long.
    pub(super) fn access(&self, core: usize, accesses: &[u64]) {
        self.execute(core, BLOCK);
        let fake = &self.emulator.cores[core];
        for &access in accesses {
            fake.count(access);
            if fake.counted.load(Ordering::Relaxed) >= self.options.step() {
                self.hold(core);
            }
        }
    }

    /// One core halts until it is interrupted.
    pub(super) fn halt(&self, core: usize) {
        let fake = &self.emulator.cores[core];
        fake.halted.store(true, Ordering::SeqCst);
        self.emulator.locked(&mut || self.rest(core));
        let hung = fake
            .bed
            .wait_while(HUNG, || fake.pending.load(Ordering::SeqCst) == 0);
        assert!(!hung, "core {core} was never woken; {}", self.told());
        // Under the lock, which QEMU's threads sleep by: whoever brought the work has also said so.
        self.emulator.locked(&mut || {
            fake.halted.store(false, Ordering::SeqCst);
            // While it has its work, as a core of QEMU's that is told to go on: others look without the lock, and would take its kick to have
            // been for nothing.
            self.resume(core);
            fake.pending.store(0, Ordering::SeqCst);
            fake.leave.store(false, Ordering::SeqCst);
            fake.called.store(false, Ordering::SeqCst);
        });
    }

    pub(super) fn told(&self) -> String {
        let seats: Vec<_> = (0..self.lockstep.cores())
            .map(|c| self.lockstep.seat(c))
            .collect();
        format!("now {}, {seats:?}", self.lockstep.now())
    }
}

/// Runs a body per core, and the thread that skips idle time; all cores begin halted, and the first one is woken.
pub(super) fn run(machine: &Arc<Machine<Fake>>, body: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        let skipper = scope.spawn(|| {
            become_role(Role::Ours);
            machine.skip_idle_time();
        });
        let body = &body;
        let cores: Vec<_> = (0..machine.lockstep.cores())
            .map(|core| {
                scope.spawn(move || {
                    become_role(Role::Core(core));
                    machine.halt(core);
                    body(core);
                    let fake = &machine.emulator.cores[core];
                    fake.halted.store(true, Ordering::SeqCst);
                    machine.rest(core);
                })
            })
            .collect();
        for core in 0..machine.lockstep.cores() {
            machine.emulator.interrupt(core);
        }
        let ends: Vec<_> = cores
            .into_iter()
            .map(std::thread::ScopedJoinHandle::join)
            .collect();
        machine.end();
        skipper.join().expect("the skipper ended well");
        for end in ends {
            end.expect("the core ended well");
        }
    });
}
