//! Two processes that work on one block, as two emulators of one machine do: the test starts itself once more.
#![allow(unsafe_code, reason = "a mapping of a file that both processes have")]

mod common;

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};

use common::Random;
use common::checker::check;
use common::quanta::{QUANTA, assert_rates, quantum, shape, textbook};
use common::shape::{NODE_BYTES, Pool, Shape};
use ostler_machine_memory::{Kind, Policy, System};
use rustix::mm::{MapFlags, ProtFlags, mmap};

/// The file, for the other process.
const FILE: &str = "OSTLER_TEST_BLOCK";
/// Words behind the block, where the processes wait for each other.
const BARRIER: usize = 512;

/// A file of zeros that holds a machine's block and a barrier.
fn file(shape: &Shape) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a file");
    file.as_file()
        .set_len(8 * (words(shape) + BARRIER) as u64)
        .expect("it is sparse");
    file
}

fn words(shape: &Shape) -> usize {
    let (topology, catalogue) = shape.machine();
    let bytes = System::block_bytes(&topology, &catalogue);
    bytes.expect("a good machine").div_ceil(8)
}

/// A machine in a file, and the barrier behind it.
fn open(path: &Path, shape: &Shape) -> (System, Barrier) {
    let file = File::options()
        .read(true)
        .write(true)
        .open(path)
        .expect("the first process made it");
    let words = words(shape);
    let all = words + BARRIER;
    // SAFETY: the file is that long and stays so; nobody touches the mapping but as atomics, and it is never taken away.
    let block: &'static [AtomicU64] = unsafe {
        let start = mmap(
            std::ptr::null_mut(),
            8 * all,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            &file,
            0,
        );
        std::slice::from_raw_parts(start.expect("a mapping").cast(), all)
    };
    let (block, words) = block.split_at(words);
    let barrier = Barrier { words };
    let (topology, catalogue) = shape.machine();
    let system = System::attach(&topology, &catalogue, block);
    (system.expect("the same machine"), barrier)
}

/// Where the processes wait for each other, and whether one of them has failed, so that the other needn't wait for good.
struct Barrier {
    words: &'static [AtomicU64],
}

impl Barrier {
    /// Waits until `all` have come here for the `round`th time, in both processes.
    fn wait(&self, all: usize, round: usize) {
        self.words[0].fetch_add(1, Ordering::AcqRel);
        while self.words[0].load(Ordering::Acquire) < (all * (round + 1)) as u64 {
            assert_eq!(self.words[16].load(Ordering::Relaxed), 0, "one has failed");
            std::thread::yield_now();
        }
    }
}

impl Drop for Barrier {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.words[16].store(1, Ordering::Relaxed);
        }
    }
}

/// Starts one of this file's tests as another process, which finds the file. It is ended if the first fails.
struct Other(Child);

impl Other {
    fn start(test: &str, file: &Path) -> Other {
        let ourselves = std::env::current_exe().expect("the test has a file");
        let child = Command::new(ourselves)
            .args(["--exact", test, "--nocapture"])
            .env(FILE, file)
            .spawn();
        Other(child.expect("it starts once more"))
    }

    fn ends_well(mut self) {
        assert!(self.0.wait().expect("it ends").success());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It has ended unless this process fails; then there is nobody to tell.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Does what half of the cores do, as threads of this process: the other half's threads are in the other one.
fn half(shape: &Shape, second: bool, work: impl Fn(usize) + Sync) {
    let half = shape.count() / 2;
    let cores = if second { half..2 * half } else { 0..half };
    std::thread::scope(|scope| {
        for core in cores {
            let work = &work;
            scope.spawn(move || work(core));
        }
    });
}

/// Quanta in both processes at once.
fn quanta(policy: Policy, path: &Path, second: bool) -> System {
    let shape = shape(policy);
    let (system, barrier) = open(path, &shape);
    half(&shape, second, |core| {
        for now in 0..QUANTA {
            barrier.wait(shape.count(), now);
            for (kind, address) in quantum(core, now) {
                system.access(core, kind, address, || now as u64 * 10_000_000);
            }
        }
    });
    system
}

fn processes_hit_as_often(policy: Policy, test: &str) {
    if let Some(path) = std::env::var_os(FILE) {
        quanta(policy, Path::new(&path), true);
        return;
    }
    let shape = shape(policy);
    let file = file(&shape);
    let other = Other::start(test, file.path());
    let system = quanta(policy, file.path(), false);
    other.ends_well();
    assert_rates(&system, &textbook(&shape), &format!("{policy:?}"));
    assert_coherent(&system);
}

fn assert_coherent(system: &System) {
    let wrong = check(&system.contents(), |address| {
        system.node_of_address(address)
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(system.forced_locks(), 0, "nobody died");
}

#[test]
fn two_processes_with_inclusive_caches_hit_as_often_as_the_textbook_says() {
    let test = "two_processes_with_inclusive_caches_hit_as_often_as_the_textbook_says";
    processes_hit_as_often(Policy::Inclusive, test);
}

#[test]
fn two_processes_with_victim_caches_hit_as_often_as_the_textbook_says() {
    let test = "two_processes_with_victim_caches_hit_as_often_as_the_textbook_says";
    processes_hit_as_often(Policy::Victim, test);
}

/// Few lines, small caches and many stores.
fn crowded() -> Shape {
    Shape {
        sockets: 2,
        cores: 4,
        group_cores: 2,
        l1i: (4, 4),
        l1d: (8, 2),
        l2: (8, 4),
        l3: Some(((16, 3), Policy::Inclusive)),
        pool: Pool::Filtered((4, 4)),
    }
}

/// Random accesses in both processes at once.
fn hammer(path: &Path, second: bool) -> System {
    let shape = crowded();
    let (system, barrier) = open(path, &shape);
    half(&shape, second, |core| {
        let mut random = Random(core as u64 + 1);
        barrier.wait(shape.count(), 0);
        for step in 0..50_000 {
            let kind = Kind::ALL[usize::try_from(random.below(4)).expect("small")];
            let address = random.below(3) * NODE_BYTES + random.below(48) * 64;
            system.access(core, kind, address, || step * 1000);
        }
    });
    system
}

#[test]
fn caches_are_coherent_after_two_processes_at_once() {
    if let Some(path) = std::env::var_os(FILE) {
        hammer(Path::new(&path), true);
        return;
    }
    let shape = crowded();
    let file = file(&shape);
    let test = "caches_are_coherent_after_two_processes_at_once";
    let other = Other::start(test, file.path());
    let system = hammer(file.path(), false);
    other.ends_well();
    assert_coherent(&system);
    let counts = (0..shape.count()).map(|core| system.counts(core));
    let (mut served, mut snoops) = (0, 0);
    for counts in counts {
        served += counts.accesses();
        snoops += counts.snoops_received;
    }
    assert_eq!(served, 8 * 50_000, "each access is counted once");
    assert!(snoops > 0, "they had lines of each other");
}
