//! Which vCPU now? The boost layer's arithmetic: `bpf/core/boost.h`, which heads it with an essay, compiled natively.
//!
//! The kernel's scheduler runs the same C, so what holds here holds there. Nothing here keeps time or state of its own.
//!
//! May depend on: nothing of ostler.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What the operator wants, `struct boost_config`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, Immutable)]
#[repr(C)]
pub struct Config {
    /// A turn, ns.
    pub slice_ns: u64,
    /// The longest that a vCPU that does IO runs at a stretch, ns.
    pub slice_max_ns: u64,
    /// How far a guest's balance may be from zero, ns.
    pub limit_ns: u64,
    /// Confidence from which a vCPU does IO.
    pub threshold: u32,
    /// The most that it can have.
    pub confidence_max: u32,
    /// What becomes of confidence when a tick tells nothing.
    pub degradation: Degradation,
    /// Which of two that do IO has the core.
    pub conflict: Conflict,
    /// 0: nothing is boosted.
    pub enabled: u32,
    /// Nothing.
    pub spare: u32,
}

impl Default for Config {
    /// A turn of 3 ms, which is EEVDF's on hosts of eight cores and more, and the thesis's threshold of 4.
    fn default() -> Config {
        Config {
            slice_ns: 3_000_000,
            slice_max_ns: 12_000_000,
            limit_ns: 50_000_000,
            threshold: 4,
            confidence_max: 64,
            degradation: Degradation::Halve,
            conflict: Conflict::ByConfidence,
            enabled: 1,
            spare: 0,
        }
    }
}

impl Config {
    /// The same where ticks are this far apart, ns. A turn of more than half a tick ends at the tick that is nearest to its end, so it is given as
    /// many whole ones as it has: or accounts that know turns as shorter than they are would have guests lose what is their due. Shorter ones end
    /// by a timer, exactly. 0: the ticks aren't known, and all do.
    #[must_use]
    pub fn in_ticks(self, tick_ns: u64) -> Config {
        let half = tick_ns / 2;
        if tick_ns == 0 || self.slice_ns <= half {
            return self;
        }
        let slice_ns = self.slice_ns.saturating_add(half) / tick_ns * tick_ns;
        Config {
            slice_ns,
            slice_max_ns: self.slice_max_ns.max(slice_ns),
            ..self
        }
    }
}

/// `enum boost_degradation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, Immutable)]
#[repr(u32)]
pub enum Degradation {
    /// It is halved, as in the thesis.
    Halve,
    /// One less.
    Decrement,
    /// None is left.
    Forget,
}

/// `enum boost_conflict`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, Immutable)]
#[repr(u32)]
pub enum Conflict {
    /// That of more confidence, as in the thesis.
    ByConfidence,
    /// That whose guest has had less.
    ByBalance,
    /// Neither is boosted over the other.
    Neither,
}

/// A vCPU, `struct boost_vcpu`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Vcpu {
    /// Run time that it was charged, ns.
    pub vtime: u64,
    /// IO Points.
    pub points: u64,
    /// Those at the last tick.
    pub points_seen: u64,
    /// The guest's task when it last did IO; 0: unknown.
    pub io_task: u64,
    /// How often it was found to do IO.
    pub confidence: u32,
    /// 1: the guest has gone on to another task since.
    pub ended: u32,
    /// How much of its pool's `each_ns` it has had, ns.
    pub had_ns: i64,
}

/// A guest, `struct boost_guest`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Guest {
    /// Run time beyond its share, ns; below zero where it has had less.
    pub balance_ns: i64,
    /// Of all time: what its vCPUs ran beyond their shares, ns.
    pub borrowed_ns: u64,
    /// What they gave back.
    pub paid_ns: u64,
    /// What others' vCPUs took of its share.
    pub lent_ns: u64,
    /// What it was given back.
    pub returned_ns: u64,
}

/// What those of a guest's vCPUs leave that sleep in one domain of cores, `struct boost_pool`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Pool {
    /// The domain's virtual time up to which it is reckoned.
    pub seen: u64,
    /// What they didn't use of their shares, ns; below zero while they have had more.
    pub left_ns: i64,
    /// What each that is awake has been due of that, of all time, ns.
    pub each_ns: i64,
    /// What is yet to be shared out among them, ns.
    pub rest_ns: u32,
    /// Which domain's.
    pub domain: u32,
    /// How many sleep there.
    pub asleep: u32,
    /// How many don't; nobody at all: the pool is free.
    pub awake: u32,
}

/// Domains in which a guest's vCPUs are told apart.
pub const POOLS: usize = 4;

/// What a guest's vCPUs leave that sleep, by domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Pools(pub [Pool; POOLS]);

const _: () = {
    assert!(size_of::<Pool>() == 40);
    assert!(size_of::<Config>() == 48);
    assert!(size_of::<Vcpu>() == 48);
    assert!(size_of::<Guest>() == 40);
};

#[allow(
    unsafe_code,
    reason = "C that takes plain values and pointers to live ones"
)]
mod native {
    use super::{Config, Guest, Pool, Pools, Vcpu};

    unsafe extern "C" {
        pub safe fn core_boost_point(vcpu: &mut Vcpu, task: u64);
        pub safe fn core_boost_tick(config: &Config, vcpu: &mut Vcpu, task: u64);
        pub safe fn core_boost_does_io(config: &Config, vcpu: &Vcpu) -> u32;
        pub safe fn core_boost_pays(config: &Config, vcpu: &Vcpu) -> u32;
        pub safe fn core_boost_room(config: &Config, borrower: &Guest, lender: &Guest) -> u64;
        pub safe fn core_boost_charge(
            config: &Config,
            vcpu: &mut Vcpu,
            guest: &mut Guest,
            waits: &mut Vcpu,
            lender: &mut Guest,
            ran_ns: u64,
            boosted: u32,
        );
        pub safe fn core_boost_pay(
            config: &Config,
            vcpu: &mut Vcpu,
            guest: &mut Guest,
            waits: &mut Vcpu,
            paid: &mut Guest,
        ) -> u64;
        pub safe fn core_boost_allowance(
            config: &Config,
            vcpu: &Vcpu,
            guest: &Guest,
            least: u64,
            lender: &Guest,
        ) -> i64;
        pub safe fn core_boost_preempts(
            config: &Config,
            vcpu: &Vcpu,
            guest: &Guest,
            least: u64,
            runs: &Vcpu,
            runs_guest: &Guest,
            runs_boosted: u32,
        ) -> u32;
        pub safe fn core_boost_goes_on(
            config: &Config,
            vcpu: &Vcpu,
            guest: &Guest,
            waits: &Vcpu,
            lender: &Guest,
            ran_ns: u64,
            event_ns: u64,
        ) -> u32;
        pub safe fn core_boost_rate(vtime: u64, boosted: u32, runs: u32) -> u64;
        pub safe fn core_boost_stays(rated: u64, now: u64) -> u32;
        pub safe fn core_boost_place(tid: u32, way: u32) -> u32;
        pub safe fn core_boost_may_borrow(config: &Config, vtime: u64, now: u64) -> u32;
        pub safe fn core_boost_instalment(config: &Config, late: u64, ran_ns: u64) -> u64;
        pub safe fn core_boost_left(config: &Config, vtime: u64, least: u64) -> u64;
        pub safe fn core_boost_order(config: &Config, vtime: u64, now: u64) -> u64;
        pub safe fn core_boost_misplaced(config: &Config, before: u64, vtime: u64) -> u32;
        pub safe fn core_boost_arrives(config: &Config, vtime: u64, least: u64) -> u64;
        pub safe fn core_boost_redeem(
            config: &Config,
            vcpu: &mut Vcpu,
            guest: &mut Guest,
            waits: &mut Vcpu,
            paid: &mut Guest,
            least: u64,
            pool: Option<&mut Pool>,
            now: u64,
        ) -> u64;
        pub safe fn core_boost_joins(
            config: &Config,
            pools: &mut Pools,
            vcpu: &mut Vcpu,
            domain: u32,
            now: u64,
        ) -> u32;
        pub safe fn core_boost_leaves(config: &Config, pool: &mut Pool, vcpu: &Vcpu, now: u64);
        pub safe fn core_boost_sleeps(config: &Config, pool: &mut Pool, vcpu: &Vcpu, now: u64);
        pub safe fn core_boost_wakes(
            config: &Config,
            pool: &mut Pool,
            vcpu: &mut Vcpu,
            least: u64,
            now: u64,
        );
        pub safe fn core_boost_bear(
            config: &Config,
            pool: &mut Pool,
            vcpu: &mut Vcpu,
            vtime: u64,
            now: u64,
            ran_ns: u64,
        ) -> u64;
    }
}

impl Vcpu {
    /// A device's interrupt or a rescheduling IPI comes, or it touches a device.
    #[inline]
    pub fn point(&mut self, task: u64) {
        native::core_boost_point(self, task);
    }

    /// A tick, with the guest's task of now; 0: unknown.
    #[inline]
    pub fn tick(&mut self, config: &Config, task: u64) {
        native::core_boost_tick(config, self, task);
    }

    /// Whether it does IO.
    #[inline]
    pub fn does_io(&self, config: &Config) -> bool {
        native::core_boost_does_io(config, self) != 0
    }

    /// Whether it pays what its guest has borrowed.
    #[inline]
    pub fn pays(&self, config: &Config) -> bool {
        native::core_boost_pays(config, self) != 0
    }

    /// It comes to a core on which `least` is the least virtual time.
    #[inline]
    pub fn arrives(&mut self, config: &Config, least: u64) {
        self.vtime = native::core_boost_arrives(config, self.vtime, least);
    }

    /// It wakes where `least` is the least virtual time, that of another guest's: what it is about to lose, arriving, and no sibling has had, pays. `pool`: the
    /// one that it is still in, if any, and its domain's virtual time. Returns how much, ns.
    #[inline]
    pub fn redeem(
        &mut self,
        config: &Config,
        guest: &mut Guest,
        (waits, paid): (&mut Vcpu, &mut Guest),
        least: u64,
        pool: Option<(&mut Pool, u64)>,
    ) -> u64 {
        let (pool, now) = pool.map_or((None, 0), |(pool, now)| (Some(pool), now));
        native::core_boost_redeem(config, self, guest, waits, paid, least, pool, now)
    }

    /// It has run while another guest's vCPU waited, the one of least virtual time of all that did.
    #[inline]
    pub fn charge(
        &mut self,
        config: &Config,
        guest: &mut Guest,
        (waits, lender): (&mut Vcpu, &mut Guest),
        ran_ns: u64,
        boosted: bool,
    ) {
        native::core_boost_charge(config, self, guest, waits, lender, ran_ns, boosted.into());
    }

    /// It is about to run, and another guest's vCPU waits: pays, if it is to. Returns how much, ns.
    #[inline]
    pub fn pay(
        &mut self,
        config: &Config,
        guest: &mut Guest,
        (waits, paid): (&mut Vcpu, &mut Guest),
    ) -> u64 {
        native::core_boost_pay(config, self, guest, waits, paid)
    }

    /// How long it may run when it is boosted, while another guest's vCPU waits and `least` is the least virtual time of those that do, ns.
    #[inline]
    pub fn allowance(&self, config: &Config, guest: &Guest, least: u64, lender: &Guest) -> i64 {
        native::core_boost_allowance(config, self, guest, least, lender)
    }

    /// Whether it takes the core from another, now that it has an event, where `least` is the least virtual time of all others.
    #[inline]
    pub fn preempts(
        &self,
        config: &Config,
        guest: &Guest,
        least: u64,
        (runs, runs_guest): (&Vcpu, &Guest),
        runs_boosted: bool,
    ) -> bool {
        let boosted = runs_boosted.into();
        native::core_boost_preempts(config, self, guest, least, runs, runs_guest, boosted) != 0
    }

    /// Whether it goes on once its turn is over, after a time that it isn't charged yet; `event_ns` is how long ago the last event came
    /// that it runs with, if any did.
    #[inline]
    pub fn goes_on(
        &self,
        config: &Config,
        guest: &Guest,
        (waits, lender): (&Vcpu, &Guest),
        ran_ns: u64,
        event_ns: Option<u64>,
    ) -> bool {
        let event_ns = event_ns.unwrap_or(u64::MAX);
        native::core_boost_goes_on(config, self, guest, waits, lender, ran_ns, event_ns) != 0
    }
}

/// How readily a vCPU takes a core from the one that has it, if it may: above 0. `vtime` is that one's, up to now; `runs`: no other work has the core.
#[inline]
pub fn rate(vtime: u64, boosted: bool, runs: bool) -> u64 {
    native::core_boost_rate(vtime, boosted.into(), runs.into())
}

/// Whether a vCPU stays on the core that it was on, by how readily it takes that, where `now` is the domain's virtual time.
#[inline]
pub fn stays(rated: u64, now: u64) -> bool {
    native::core_boost_stays(rated, now) != 0
}

/// What has a place in a domain's queue, where `now` is the domain's virtual time: virtual time, but those that have had about as much as their domain go in the order in which they come.
#[inline]
pub fn order(config: &Config, vtime: u64, now: u64) -> u64 {
    native::core_boost_order(config, vtime, now)
}

/// Whether one of a virtual time that comes after another in a queue is out of its place there.
#[inline]
pub fn misplaced(config: &Config, before: u64, vtime: u64) -> bool {
    let asked = || native::core_boost_misplaced(config, before, vtime) != 0;
    // It is asked of all of a queue, where hardly any has less than the one before it.
    debug_assert!(vtime < before || !asked());
    vtime < before && asked()
}

/// What is left of the turn of one that was stopped in it, ns, where `least` is the least virtual time of those that wait. 0: less than half, and it waits for another.
#[inline]
pub fn left(config: &Config, vtime: u64, least: u64) -> u64 {
    native::core_boost_left(config, vtime, least)
}

/// Whether a vCPU of a virtual time may have come beyond its share, where `now` is its domain's.
#[inline]
pub fn may_borrow(config: &Config, vtime: u64, now: u64) -> bool {
    native::core_boost_may_borrow(config, vtime, now) != 0
}

/// The places of its map that a thread of a number may be in, in order.
#[inline]
pub fn places(tid: u32) -> impl Iterator<Item = u32> {
    (0..WAYS).map(move |way| native::core_boost_place(tid, way))
}

/// How much of what a guest's other threads have run, and isn't charged yet, a vCPU of it is charged for that has run for a time itself, ns.
#[inline]
pub fn instalment(config: &Config, late: u64, ran_ns: u64) -> u64 {
    native::core_boost_instalment(config, late, ran_ns)
}

impl Guest {
    /// How much it may yet take of another's share, ns.
    #[inline]
    pub fn room(&self, config: &Config, lender: &Guest) -> u64 {
        native::core_boost_room(config, self, lender)
    }
}

impl Pool {
    /// How much of what one of the guest's vCPUs has run those bear that sleep, where `vtime` is its virtual time if it bears that itself, ns.
    #[inline]
    pub fn bear(
        &mut self,
        config: &Config,
        vcpu: &mut Vcpu,
        vtime: u64,
        now: u64,
        ran_ns: u64,
    ) -> u64 {
        native::core_boost_bear(config, self, vcpu, vtime, now, ran_ns)
    }

    /// One that is in it falls asleep, where the domain's virtual time is `now`.
    #[inline]
    pub fn sleeps(&mut self, config: &Config, vcpu: &Vcpu, now: u64) {
        native::core_boost_sleeps(config, self, vcpu, now);
    }

    /// One that slept wakes, where `least` is the least virtual time, as it is to arrive there ([`Vcpu::arrives`]).
    #[inline]
    pub fn wakes(&mut self, config: &Config, vcpu: &mut Vcpu, least: u64, now: u64) {
        native::core_boost_wakes(config, self, vcpu, least, now);
    }

    /// One that is awake goes to another domain, or is gone.
    #[inline]
    pub fn leaves(&mut self, config: &Config, vcpu: &Vcpu, now: u64) {
        native::core_boost_leaves(config, self, vcpu, now);
    }
}

impl Pools {
    /// A vCPU comes to a domain, awake, whose virtual time is `now`. Returns its pool's number, from 1 on; 0: none is free.
    #[inline]
    pub fn joins(&mut self, config: &Config, vcpu: &mut Vcpu, domain: u32, now: u64) -> u32 {
        native::core_boost_joins(config, self, vcpu, domain, now)
    }

    /// That of a number; none is of 0.
    #[inline]
    pub fn at(&mut self, number: u32) -> Option<&mut Pool> {
        self.0.get_mut((number as usize).wrapping_sub(1))
    }
}

/// Guests that the scheduler tells apart, and the one that means nobody.
pub const GUESTS_MAX: u32 = 1024;

/// Places of the map of threads, and how many of them a thread may be in: `BOOST_PLACES`, `BOOST_WAYS`.
pub const PLACES: u32 = 16_384;

/// See [`PLACES`].
pub const WAYS: u32 = 4;
/// Threads of nobody's guest are scheduled fairly and never boosted.
pub const NOBODY: u32 = 0;
/// Cores, and domains of cores.
pub const CORES_MAX: u32 = 1024;
/// Cores that may share a queue.
pub const DOMAIN_CORES_MAX: usize = 16;
/// Bins of [`Delays`].
pub const BINS: usize = 24;

/// What the scheduler is told, `struct boost_settings`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, Immutable)]
#[repr(C)]
pub struct Settings {
    /// The arithmetic's.
    pub config: Config,
    /// One that wakes takes a core by its own right from who has had more by this, ns.
    pub wake_granularity_ns: u64,
    /// Domains are numbered below this.
    pub domains: u32,
    /// Between two ticks of the kernel's, us.
    pub tick_us: u32,
}

/// Why the scheduler has ended, `struct boost_end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct End {
    /// The kernel's `enum scx_exit_kind`; 0: it hasn't.
    pub kind: u32,
    /// What it says, up to a zero.
    pub text: [u8; 124],
}

/// A vCPU's thread, `struct boost_thread`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Thread {
    /// What the arithmetic knows of it.
    pub vcpu: Vcpu,
    /// Whose it is; [`NOBODY`]'s.
    pub guest: u32,
    /// The domain on whose scale its virtual time is.
    pub domain: u32,
    /// `enum boost_state`: asleep, waits, runs.
    pub state: u32,
    /// Where it waits or runs.
    pub cpu: u32,
    /// When it came to wait, ns of `CLOCK_MONOTONIC`.
    pub waits_since: u64,
    /// When it came to its core, or was last charged there, likewise.
    pub runs_since: u64,
    /// Its run time of all when it was last charged, ns.
    pub charged_at: u64,
    /// When the oldest event came that it hasn't run since; 0: none.
    pub event_at: u64,
    /// When the last interrupt came while it had its core; 0: none.
    pub met_at: u64,
    /// When the last interrupt came as it ran, or it last came to its core with an event; 0: never.
    pub served_at: u64,
    /// It was put before others for an event, and hasn't given up its core since.
    pub boosted: u32,
    /// 1: others than before may share its cores.
    pub moved: u32,
    /// Of all time: run, ns.
    pub ran_ns: u64,
    /// Waited, ns.
    pub waited_ns: u64,
    /// Put before others for an event.
    pub boosts: u64,
    /// Events for which it wasn't.
    pub refused: u64,
    /// The kernel's `struct kvm_vcpu`, once an interrupt told it; 0 before.
    pub kvm_vcpu: u64,
    /// Ticks at which it was known which task the guest runs.
    pub tasks_seen: u64,
    /// 1: it works for its guest's vCPUs, and isn't one of them.
    pub works: u32,
    /// Which of its guest's pools it is in, from 1 on; 0: in none.
    pub pool: u32,
    /// Such a one's virtual time when its guest's account last had what changed of it.
    pub followed: u64,
    /// 1: it sleeps, as its pool knows.
    pub rests: u32,
    /// 1: it waits at the head of its queue, before those of less virtual time.
    pub ahead: u32,
    /// Its number; 0: there is none in this place.
    pub tid: u32,
    /// Nothing.
    pub spare: u32,
}

/// From an event to its vCPU running: bin n counts those that took `[2^n, 2^(n+1))` us, the last all that took longer.
pub type Delays = [u64; BINS];

/// What a guest's threads beside its vCPUs have run, and what its vCPUs owe for it; and what those of them leave that sleep: `struct boost_service`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Service {
    /// Since the guest was told of, ns.
    pub ran_ns: u64,
    /// How much of that its vCPUs are charged for, were let off, or owe.
    pub settled_ns: u64,
    /// What those that are let in were charged, and no vCPU yet, ns.
    pub owed_ns: i64,
    /// The virtual time of the vCPU that last had a core; 0: none had one.
    pub vtime: u64,
    /// On whose scale that is.
    pub domain: u32,
    /// That vCPU's.
    pub confidence: u32,
    /// What its vCPUs leave that sleep.
    pub pools: Pools,
}

/// Cores that share a queue, `struct boost_domain`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Domain {
    /// Its virtual time.
    pub now: u64,
    /// How many cores it has.
    pub cores: u32,
    /// Which.
    pub core: [u32; DOMAIN_CORES_MAX],
    /// Nothing.
    pub spare: u32,
}

/// A core, `struct boost_core`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Core {
    /// Whose queue it serves first.
    pub domain: u32,
    /// The thread that runs, and one that is to run next; 0: none.
    pub runs: u32,
    /// Likewise.
    pub next: u32,
    /// One that had the core when other work took it; 0: none.
    pub held: u32,
    /// The virtual time of the one that has it; of one that runs less the time when it was that.
    pub vtime: u64,
    /// Ticks in a row that found other work there, and a vCPU behind it.
    pub kept: u32,
    /// 1: whoever came to it before the one that is to be next was told to make room.
    pub told: u32,
}

const _: () = {
    assert!(size_of::<Settings>() == 64);
    assert!(size_of::<End>() == 128);
    assert!(size_of::<Thread>() == 200);
    assert!(size_of::<Delays>() == 192);
    assert!(size_of::<Service>() == 200);
    assert!(size_of::<Domain>() == 80);
    assert!(size_of::<Core>() == 32);
};
