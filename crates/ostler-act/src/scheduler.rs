//! Which vCPU now: the scheduler of `bpf/boost`, loaded and fed.
//!
//! It schedules the threads that have its policy ([`SCHED_EXT`]), as guests' that it was told of ([`VcpuScheduler::own`]); all
//! others stay with the kernel's own scheduler. It lives as long as the [`Scheduler`], and is gone with the process that
//! holds it, however that ends: the kernel then schedules the same threads itself, without a pause. So it does when it finds
//! that one of them hasn't run for five seconds.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use libbpf_rs::{Link, MapCore, MapFlags, MapType, Object, ObjectBuilder, ProgramInput};
use ostler_boost::{
    CORES_MAX, Core, DOMAIN_CORES_MAX, Delays, Domain, End, Guest, NOBODY, Service, Settings,
    Thread, places,
};
use ostler_bpf::{
    BOOST_ON_TICK, BpfError, boost_wants_ticks, forget_warning, map, program, quiet_libbpf,
    require_btf,
};
use ostler_model::{CpuSet, Pid, Tid};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::boost::{VcpuScheduler, VcpuSchedulers};

/// The oldest kernel that can have it.
const KERNEL_MIN: &str = "6.12";
/// The scheduling policy of `sched_ext` (`<linux/sched.h>`).
pub(crate) const SCHED_EXT: i32 = 7;
/// The same, but for threads that such a one starts: QEMU's vCPUs start none, and if they do, those aren't vCPUs.
pub const SCHED_EXT_ONCE: i32 = SCHED_EXT | libc::SCHED_RESET_ON_FORK;

type Hook = (&'static str, &'static str);

/// What tells of events: a program, and what of. Where in the kernel each is attached, its section says.
const HOOKS: [Hook; 5] = [
    ("boost_on_interrupt", "interrupts"),
    ("boost_on_mmio", "accesses to devices' memory"),
    ("boost_on_fast_mmio", "doorbells"),
    ("boost_on_pio", "accesses to ports"),
    (BOOST_ON_TICK, "other work that keeps a core"),
];

/// Why there is no such scheduler here.
#[derive(Debug, thiserror::Error)]
pub enum BoostError {
    /// The kernel was built without it.
    #[error(
        "this kernel has no sched_ext ({path} is not there), so vCPUs are scheduled as it does by itself; boot Linux {KERNEL_MIN} or later, built with CONFIG_SCHED_CLASS_EXT"
    )]
    NoSchedExt {
        /// What was looked for.
        path: std::path::PathBuf,
    },
    /// Someone else's runs.
    #[error(
        "another sched_ext scheduler runs on this host ({name}), and there is room for one; end it first, or leave vCPUs to it"
    )]
    Taken {
        /// Its name.
        name: String,
    },
    /// A group of cores that can't be.
    #[error(
        "can't have {what}: a domain has up to {DOMAIN_CORES_MAX} cores, below {CORES_MAX}, each in one domain alone"
    )]
    Domain {
        /// What.
        what: String,
    },
    /// The kernel doesn't take it.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// It was loaded, and something can't be told to it or read from it.
    #[error("can't {what} the vCPU scheduler: {source}")]
    Map {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: libbpf_rs::Error,
    },
}

/// Schedulers for this host.
#[derive(Clone, Debug)]
pub struct LinuxSchedulers {
    /// `/sys`.
    pub sys: PathBuf,
}

impl VcpuSchedulers for LinuxSchedulers {
    fn load(
        &self,
        settings: Settings,
        domains: &[CpuSet],
    ) -> Result<Box<dyn VcpuScheduler + Send>, BoostError> {
        let possible = self.sys.join("devices/system/cpu/possible");
        let text = std::fs::read_to_string(possible).unwrap_or_default();
        let cpus = text.parse::<CpuSet>().unwrap_or_default();
        let highest = cpus.iter().last().ok_or_else(|| BoostError::Domain {
            what: "a host that doesn't tell its possible CPUs".into(),
        })?;
        Ok(Box::new(Scheduler::load(
            &self.sys,
            settings,
            domains,
            highest.0.saturating_add(1),
        )?))
    }
}

/// What a host is like on which schedulers are started.
#[derive(Clone, Debug)]
struct Place {
    sys: PathBuf,
    /// Its possible CPUs are below this.
    possible: u32,
}

/// The scheduler's programs in the kernel, which schedule nobody until they are started.
///
/// The verifier goes through more than a hundred thousand instructions to let them in (bpf/verifier.toml): fifteen seconds of a host at ten nanoseconds an instruction. So who wants a scheduler with other
/// settings or domains starts these again: all that their maps hold of the last one is forgotten.
#[derive(Debug)]
pub struct Programs {
    object: Object,
    /// Hooks that this kernel has a use for.
    hooks: Vec<Hook>,
    /// Hooks that this kernel doesn't take, and why.
    without: Vec<(Hook, String)>,
    place: Place,
    /// They have been a scheduler's before.
    used: bool,
}

impl Programs {
    /// Loads them. Where KVM isn't loaded, or hides a function, that is without those hooks: see [`VcpuScheduler::deaf_to`].
    ///
    /// # Errors
    ///
    /// Why there can't be such a scheduler here, and what to do.
    pub fn load(sys: &Path, possible: u32) -> Result<Programs, BoostError> {
        Programs::load_in(Place {
            sys: sys.to_owned(),
            possible,
        })
    }

    fn load_in(place: Place) -> Result<Programs, BoostError> {
        quiet_libbpf();
        available(&place.sys)?;
        require_btf(&place.sys)?;
        let failed = |e| step("load the vCPU scheduler", &e);
        let ticks = boost_wants_ticks().map_err(failed)?;
        let hooks = HOOKS
            .into_iter()
            .filter(|(name, _)| ticks || *name != BOOST_ON_TICK);
        let hooks: Vec<Hook> = hooks.collect();
        let (object, without) = with_hooks(&hooks, load).map_err(failed)?;
        forget_warning();
        Ok(Programs {
            object,
            hooks,
            without,
            place,
            used: false,
        })
    }

    /// Starts the scheduler and hands it all threads that have its policy. Cores in no domain are each one of their own.
    ///
    /// # Errors
    ///
    /// Why there can't be one here, and what to do.
    pub fn start(
        mut self,
        settings: Settings,
        domains: &[CpuSet],
    ) -> Result<Scheduler, BoostError> {
        let domains = whole(domains, self.place.possible)?;
        available(&self.place.sys)?;
        if self.used {
            let cleared = clear(&self.object);
            cleared.map_err(|e| step("have the vCPU scheduler forget what it knew", &e))?;
        }
        self.used = true;
        let tick_us = tick_us();
        let settings = Settings {
            config: settings.config.in_ticks(u64::from(tick_us) * 1000),
            domains: u32::try_from(domains.len()).unwrap_or(CORES_MAX),
            tick_us,
            ..settings
        };
        put(&self.object, ".data.settings", 0, &settings)?;
        for (number, cores) in (0..).zip(&domains) {
            seat(&self.object, number, cores)?;
        }
        let ops = map(&mut self.object, "boost_ops")
            .attach_struct_ops()
            .map_err(|e| step("start the vCPU scheduler", &e))?;
        let mut hooks = Vec::new();
        let mut deaf_to = self.without.clone();
        for hook in self.hooks.iter().copied() {
            if deaf_to.iter().any(|(deaf, _)| *deaf == hook) {
                continue;
            }
            match program(&self.object, hook.0).attach() {
                Ok(link) => hooks.push(link),
                Err(why) => deaf_to.push((hook, why.to_string())),
            }
        }
        let deaf_to = deaf_to
            .iter()
            .map(|((_, what), why)| format!("{what} ({why})"));
        let deaf_to = deaf_to.collect();
        // These need nothing but the kernel itself.
        for (name, what) in [
            ("boost_on_event", "let events be told to the vCPU scheduler"),
            (
                "boost_on_switch",
                "tell the vCPU scheduler what guests' other threads run",
            ),
        ] {
            let link = program(&self.object, name).attach();
            hooks.push(link.map_err(|e| step(what, &e))?);
        }
        forget_warning();
        Ok(Scheduler {
            telling: Mutex::new(()),
            _hooks: hooks,
            _ops: ops,
            programs: self,
            deaf_to,
        })
    }

    /// Whether they are as good as newly loaded ones: not where a hook is missing, which may be there by now, as KVM is loaded when it is first needed.
    fn whole(&self) -> bool {
        self.without.is_empty()
    }
}

fn step(what: &str, error: &libbpf_rs::Error) -> BpfError {
    BpfError::step(what, error, KERNEL_MIN)
}

/// The loaded scheduler. It ends when this is dropped.
#[derive(Debug)]
pub struct Scheduler {
    /// There is one place to say for whom an event is.
    telling: Mutex<()>,
    // Dropped in this order: nobody tells it of events any more when it ends.
    _hooks: Vec<Link>,
    _ops: Link,
    programs: Programs,
    deaf_to: Vec<String>,
}

impl Scheduler {
    /// Loads its programs and starts it.
    ///
    /// # Errors
    ///
    /// Why there can't be one here, and what to do.
    pub fn load(
        sys: &Path,
        settings: Settings,
        domains: &[CpuSet],
        possible: u32,
    ) -> Result<Scheduler, BoostError> {
        Programs::load(sys, possible)?.start(settings, domains)
    }

    /// Ends it: the kernel schedules its threads from now on. Its programs stay loaded.
    pub fn stop(self) -> Programs {
        self.programs
    }

    /// Tells of an event for a thread, as an interrupt would.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn event(&self, thread: Tid) -> Result<(), BoostError> {
        let tell = |source| BoostError::Map {
            what: "tell an event to",
            source,
        };
        let _one = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        let tid = thread.0.to_ne_bytes();
        self.map(".data.told")
            .update(&0_u32.to_ne_bytes(), &tid, MapFlags::ANY)
            .map_err(tell)?;
        program(&self.programs.object, "boost_on_event")
            .test_run(ProgramInput::default())
            .map(|_| ())
            .map_err(tell)
    }

    fn map(&self, name: &str) -> libbpf_rs::Map<'_> {
        named(&self.programs.object, name)
    }

    fn look<T: FromBytes>(&self, name: &str, key: u32) -> Result<Option<T>, BoostError> {
        let read = |source| BoostError::Map {
            what: "read from",
            source,
        };
        let found = self.map(name).lookup(&key.to_ne_bytes(), MapFlags::ANY);
        let bytes = found.map_err(read)?;
        Ok(bytes.and_then(|bytes| T::read_from_prefix(&bytes).ok().map(|(value, _)| value)))
    }
}

impl VcpuScheduler for Scheduler {
    fn own(&self, process: Pid, guest: u32) -> Result<(), BoostError> {
        let owners = self.map("owners");
        let key = process.0.to_ne_bytes();
        let done = if guest == NOBODY {
            match owners.delete(&key) {
                Err(e) if e.kind() == libbpf_rs::ErrorKind::NotFound => Ok(()),
                done => done,
            }
        } else {
            let number = guest.to_ne_bytes();
            // Somebody else may have had the number.
            let put =
                |name: &str, value: &[u8]| self.map(name).update(&number, value, MapFlags::ANY);
            put("guests", Guest::default().as_bytes())
                .and_then(|()| put("delays", Delays::default().as_bytes()))
                .and_then(|()| put("services", Service::default().as_bytes()))
                .and_then(|()| owners.update(&key, &number, MapFlags::ANY))
        };
        done.map_err(|source| BoostError::Map {
            what: "tell a guest to",
            source,
        })
    }

    fn works(&self, thread: Tid, guest: u32) -> Result<(), BoostError> {
        let workers = self.map("workers");
        let key = thread.0.to_ne_bytes();
        let done = if guest == NOBODY {
            match workers.delete(&key) {
                Err(e) if e.kind() == libbpf_rs::ErrorKind::NotFound => Ok(()),
                done => done,
            }
        } else {
            workers.update(&key, &guest.to_ne_bytes(), MapFlags::ANY)
        };
        done.map_err(|source| BoostError::Map {
            what: "tell a guest's worker to",
            source,
        })
    }

    fn thread(&self, thread: Tid) -> Result<Option<Thread>, BoostError> {
        for place in places(thread.0) {
            let there: Option<Thread> = self.look("threads", place)?;
            if there.is_some_and(|there| there.tid == thread.0) {
                return Ok(there);
            }
        }
        self.look("overflow", thread.0)
    }

    fn guest(&self, guest: u32) -> Result<Option<Guest>, BoostError> {
        self.look("guests", guest)
    }

    fn delays(&self, guest: u32) -> Result<Option<Delays>, BoostError> {
        self.look("delays", guest)
    }

    fn service(&self, guest: u32) -> Result<Option<Service>, BoostError> {
        self.look("services", guest)
    }

    fn end(&self) -> Result<Option<String>, BoostError> {
        let end: Option<End> = self.look(".data.end", 0)?;
        Ok(end.filter(|end| end.kind != 0).map(|end| {
            let text = end.text.split(|byte| *byte == 0).next().unwrap_or(&[]);
            String::from_utf8_lossy(text).into_owned()
        }))
    }

    fn deaf_to(&self) -> Vec<String> {
        self.deaf_to.clone()
    }

    fn again(
        self: Box<Self>,
        settings: Settings,
        domains: &[CpuSet],
    ) -> Result<Box<dyn VcpuScheduler + Send>, BoostError> {
        let programs = self.stop();
        let place = programs.place.clone();
        if programs.whole()
            && let Ok(again) = programs.start(settings, domains)
        {
            return Ok(Box::new(again));
        }
        // A kernel that doesn't take the same ones twice has them anew, or says what is wrong.
        Ok(Box::new(
            Programs::load_in(place)?.start(settings, domains)?,
        ))
    }
}

/// libbpf puts a part of the object's name before those of its own maps.
fn named<'a>(object: &'a Object, name: &str) -> libbpf_rs::Map<'a> {
    object
        .maps()
        .find(|map| map.name().to_string_lossy().ends_with(name))
        .unwrap_or_else(|| unreachable!("{name} is in the object that build.rs compiled"))
}

/// Whether there can be such a scheduler.
fn available(sys: &Path) -> Result<(), BoostError> {
    let folder = sys.join("kernel/sched_ext");
    if !folder.is_dir() {
        return Err(BoostError::NoSchedExt { path: folder });
    }
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
    if read("state").trim() == "disabled" {
        return Ok(());
    }
    let name = read("root/ops");
    let name = match name.trim() {
        "" => "it doesn't say its name",
        name => name,
    };
    Err(BoostError::Taken {
        name: name.to_owned(),
    })
}

/// Loads something with all hooks that the kernel takes, and says why it doesn't take the others.
///
/// What a hook is attached to is looked up when an object is loaded, so that a single one whose function or tracepoint isn't there
/// has the kernel refuse all of it. Which one that was isn't told, so each is tried alone.
fn with_hooks<T, E: ToString>(
    hooks: &[Hook],
    load: impl Fn(&[Hook]) -> Result<T, E>,
) -> Result<(T, Vec<(Hook, String)>), E> {
    if let Ok(all) = load(hooks) {
        return Ok((all, Vec::new()));
    }
    let (mut taken, mut refused) = (Vec::new(), Vec::new());
    for &hook in hooks {
        match load(&[hook]) {
            Ok(_) => taken.push(hook),
            Err(why) => refused.push((hook, why.to_string())),
        }
    }
    load(&taken).map(|object| (object, refused))
}

fn load(hooks: &[Hook]) -> Result<Object, libbpf_rs::Error> {
    let mut open = ObjectBuilder::default().open_memory(ostler_bpf::BOOST)?;
    for mut program in open.progs_mut() {
        let named = |(name, _): &Hook| program.name() == *name;
        if HOOKS.iter().any(named) && !hooks.iter().any(named) {
            program.set_autoload(false);
        }
    }
    open.load()
}

/// Has all maps be as they were when they were made, but for what user space sets anyhow, and the lock, which nobody holds.
fn clear(object: &Object) -> Result<(), libbpf_rs::Error> {
    for map in object.maps() {
        let name = map.name().to_string_lossy();
        if [".rodata", ".data.ledger"]
            .iter()
            .any(|kept| name.ends_with(kept))
        {
            continue;
        }
        match map.map_type() {
            MapType::Hash => {
                let keys: Vec<Vec<u8>> = map.keys().collect();
                for key in keys {
                    map.delete(&key)?;
                }
            }
            MapType::Array => {
                let entries = map.max_entries();
                let keys: Vec<u8> = (0..entries).flat_map(u32::to_ne_bytes).collect();
                let nothing = vec![0; entries as usize * map.value_size() as usize];
                map.update_batch(&keys, &nothing, entries, MapFlags::ANY, MapFlags::ANY)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Between two ticks of this kernel's: what its coarse clocks can tell apart (kernel/time/posix-timers.c).
fn tick_us() -> u32 {
    let tick = rustix::time::clock_getres(rustix::time::ClockId::MonotonicCoarse);
    let us = tick
        .tv_sec
        .saturating_mul(1_000_000)
        .saturating_add(tick.tv_nsec / 1000);
    u32::try_from(us).unwrap_or(u32::MAX)
}

/// All cores in domains.
fn whole(domains: &[CpuSet], possible: u32) -> Result<Vec<Vec<u32>>, BoostError> {
    let wrong = |what: String| BoostError::Domain { what };
    if possible > CORES_MAX {
        return Err(wrong(format!("{possible} cores")));
    }
    let mut all: Vec<Vec<u32>> = Vec::new();
    let mut placed = vec![false; possible as usize];
    for domain in domains {
        let cores: Vec<u32> = domain.iter().map(|cpu| cpu.0).collect();
        if cores.is_empty() || cores.len() > DOMAIN_CORES_MAX {
            return Err(wrong(format!("a domain of {} cores", cores.len())));
        }
        for &core in &cores {
            let place = placed.get_mut(core as usize);
            match place {
                Some(place) if !*place => *place = true,
                Some(_) => return Err(wrong(format!("core {core} twice"))),
                None => return Err(wrong(format!("core {core} of {possible}"))),
            }
        }
        all.push(cores);
    }
    let alone = (0..possible).filter(|core| !placed[*core as usize]);
    all.extend(alone.map(|core| vec![core]));
    Ok(all)
}

/// Puts a domain's cores where they are.
fn seat(object: &Object, number: u32, cores: &[u32]) -> Result<(), BoostError> {
    let mut domain = Domain::default();
    for (place, &core) in domain.core.iter_mut().zip(cores) {
        *place = core;
        domain.cores += 1;
    }
    put(object, "domains", number, &domain)?;
    for &core in cores {
        let seat = Core {
            domain: number,
            ..Core::default()
        };
        put(object, "cores", core, &seat)?;
    }
    Ok(())
}

fn put<T: IntoBytes + Immutable>(
    object: &Object,
    name: &str,
    key: u32,
    value: &T,
) -> Result<(), BoostError> {
    named(object, name)
        .update(&key.to_ne_bytes(), value.as_bytes(), MapFlags::ANY)
        .map_err(|source| BoostError::Map {
            what: "tell settings and cores to",
            source,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(cpus: &str) -> CpuSet {
        cpus.parse().expect("a list")
    }

    #[test]
    fn cores_in_no_domain_are_each_one_of_their_own() {
        let domains = whole(&[set("1-2")], 4).expect("they can be");
        assert_eq!(domains, [vec![1, 2], vec![0], vec![3]]);
    }

    #[test]
    fn domains_that_cannot_be_are_refused() {
        let refused = |domains: &[CpuSet], possible, what: &str| {
            let error = whole(domains, possible).expect_err("they can't be");
            assert!(error.to_string().contains(what), "{error}");
        };
        refused(&[set("0-1"), set("1-2")], 4, "can't have core 1 twice");
        refused(&[set("0-4")], 4, "can't have core 4 of 4");
        refused(&[set("0-16")], 32, "a domain of 17 cores");
        refused(&[CpuSet::EMPTY], 4, "a domain of 0 cores");
        refused(&[], CORES_MAX + 1, "can't have 1025 cores");
    }

    #[test]
    fn one_hook_that_isnt_there_costs_no_other() {
        // A kernel that lacks some: it refuses an object that has one of them.
        let kernel = |lacks: &'static [&str]| {
            move |hooks: &[Hook]| match hooks.iter().find(|(name, _)| lacks.contains(name)) {
                Some((name, _)) => Err(format!("no {name}")),
                None => Ok(hooks.to_vec()),
            }
        };
        let (all, refused) = with_hooks(&HOOKS, kernel(&[])).expect("it lacks nothing");
        assert_eq!((all.as_slice(), refused.len()), (&HOOKS[..], 0));
        let lacks = kernel(&["boost_on_mmio", "boost_on_pio"]);
        let (some, refused) = with_hooks(&HOOKS, lacks).expect("some");
        assert_eq!(some, [HOOKS[0], HOOKS[2], HOOKS[4]]);
        let why = ["no boost_on_mmio", "no boost_on_pio"].map(str::to_owned);
        assert_eq!(
            refused,
            [HOOKS[1], HOOKS[3]]
                .into_iter()
                .zip(why)
                .collect::<Vec<_>>()
        );
        // And one that wants none of it has its own reason told.
        let never = with_hooks(&HOOKS, |_| Err::<(), _>("no sched_ext")).expect_err("it can't");
        assert_eq!(never, "no sched_ext");
    }

    #[test]
    fn a_kernel_without_it_and_another_scheduler_are_told() {
        let sys = tempfile::tempdir().expect("a folder");
        let told = |sys: &Path| available(sys).map_err(|error| error.to_string());
        let error = told(sys.path()).expect_err("there is no such folder");
        assert!(error.contains("CONFIG_SCHED_CLASS_EXT"), "{error}");
        let folder = sys.path().join("kernel/sched_ext");
        std::fs::create_dir_all(folder.join("root")).expect("a folder");
        std::fs::write(folder.join("state"), "disabled\n").expect("a file");
        assert_eq!(told(sys.path()), Ok(()));
        std::fs::write(folder.join("state"), "enabled\n").expect("a file");
        std::fs::write(folder.join("root/ops"), "simple\n").expect("a file");
        let error = told(sys.path()).expect_err("there is one");
        assert!(error.contains("(simple)"), "{error}");
    }
}
