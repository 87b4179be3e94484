//! What recording a period costs with 64 guests, beside a row of plain JSON for each period.

use std::path::Path;
use std::sync::Arc;

use bench_harness::{Args, compare};
use ostler_model::{
    AgentHealth, AgentState, AgentView, Bytes, CpuId, CpuSet, CpuUsage, Facts, Group, Groups,
    GuestId, GuestSource, GuestView, HostCounters, Intent, LatencyView, Nanos, Pid, Plan, Reason,
    Snapshot, State, ThreadUsage, Tid, VcpuView, VhostView,
};
use ostler_record::{Cost, Limits, Period, QUEUE_PERIODS, Recorder, Wall};
use rustix::time::{ClockId, clock_gettime};

const CORES: u32 = 64;
const GUESTS: u32 = 64;

/// Figures that change from period to period as a host's do: each in its own way, repeatably.
struct Noise(u64);

impl Noise {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn usage(&mut self) -> ThreadUsage {
        ThreadUsage {
            run: Nanos(self.below(100_000_000)),
            wait: Nanos(self.below(2_000_000)),
        }
    }
}

fn guest(at: u32, noise: &mut Noise) -> GuestView {
    let uuid = format!("{at:08x}-0000-4000-8000-000000000000");
    GuestView {
        id: GuestId::from(uuid.as_str()),
        name: format!("guest-{at}"),
        uuid: Some(uuid),
        metadata: vec![("team".into(), "a".into())],
        source: GuestSource::Qmp,
        pid: Pid(10_000 + at),
        cgroup: Some(format!("/machine.slice/guest-{at}.scope")),
        frozen: false,
        vcpus: (0..4)
            .map(|index| VcpuView {
                index,
                tid: Tid(100_000 + 10 * at + index),
                allowed: CpuSet::range(0, CORES),
                usage: noise.usage(),
            })
            .collect(),
        vhost: (0..2)
            .map(|queue| VhostView {
                tid: Tid(200_000 + 10 * at + queue),
                queue: Some(queue),
                allowed: CpuSet::range(0, CORES),
                usage: noise.usage(),
            })
            .collect(),
        emulator: vec![Tid(300_000 + at)],
        taps: Vec::new(),
        vsock_cid: Some(100 + at),
        latency: Some(LatencyView {
            responses: noise.below(2_000),
            p50: Nanos(noise.below(400_000)),
            p95: Nanos(noise.below(900_000)),
            p99: Nanos(noise.below(2_000_000)),
            age: Nanos::ZERO,
        }),
        agent: Some(AgentView {
            health: AgentHealth::Healthy,
            state: Some(AgentState {
                vcpus_online: (0..4).collect(),
                vcpus_active: (0..2).collect(),
                queues: 2,
                queues_max: 2,
            }),
            age: Nanos(noise.below(500_000_000)),
        }),
        age: Nanos(noise.below(1_000_000_000)),
    }
}

/// So many periods of a busy host, whose plan changes once a second.
fn periods(count: u64) -> Vec<Period> {
    let mut noise = Noise(1);
    let facts = Arc::new(Facts::default());
    let intent = Arc::new(Intent::default());
    let state = Arc::new(State::default());
    (1..=count)
        .map(|seq| {
            let at = Nanos(seq * 100_000_000);
            let snapshot = Snapshot {
                seq,
                at,
                interval: Nanos::from_millis(100),
                cpus: (0..CORES)
                    .map(|cpu| CpuUsage {
                        cpu: CpuId(cpu),
                        busy: Nanos(noise.below(100_000_000)),
                        irq: Nanos(noise.below(1_000_000)),
                        softirq: Nanos(noise.below(5_000_000)),
                        yielding: Some(Nanos::ZERO),
                    })
                    .collect(),
                guests: (0..GUESTS).map(|at| guest(at, &mut noise)).collect(),
                counters: HostCounters {
                    ctx_switches: Some(noise.below(100_000)),
                    migrations: Some(noise.below(1_000)),
                    irqs: Some(noise.below(100_000)),
                    kvm_exits: Some(noise.below(1_000_000)),
                },
                ..Snapshot::default()
            };
            let vcpu = u32::try_from(seq / 10 % 32).unwrap_or(0) + 1;
            let reasons: Vec<Reason> = (0..6)
                .map(|_| Reason::Demand {
                    group: Group::Vcpu,
                    busy_cores: noise.below(64_000) as f64 / 1000.0,
                    threshold: 0.7,
                    required: noise.below(64_000) as f64 / 700.0,
                })
                .collect();
            Period {
                wall: Wall(1_700_000_000_000_000_000 + at.0),
                facts: Arc::clone(&facts),
                intent: Arc::clone(&intent),
                snapshot: Arc::new(snapshot),
                before: Some(Arc::clone(&state)),
                now: at,
                seed: noise.below(u64::MAX),
                plan: Arc::new(Plan {
                    generation: seq,
                    parent: Some(seq - 1),
                    at,
                    groups: Groups {
                        vcpu: CpuSet::range(0, vcpu),
                        idle: CpuSet::range(vcpu, CORES),
                        ..Groups::default()
                    },
                    ..Plan::default()
                }),
                reasons: reasons.into(),
                violations: Vec::new(),
                adopted: true,
                outcome: None,
                cost: Cost::default(),
            }
        })
        .collect()
}

/// CPU time that this process, all its threads, has used.
fn cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Records the periods; CPU time and bytes for each.
fn ours(periods: &[Period], folder: &Path) -> (f64, f64) {
    let path = folder.join("record.db");
    let limits = Limits {
        size_max: Bytes(1 << 40),
        age_max: Nanos(u64::MAX),
    };
    let before = cpu_ns();
    // Whole queues at a time: blocks fill up as they would over a second each, without the second.
    for part in periods.chunks(QUEUE_PERIODS) {
        let recorder = Recorder::start(&path, limits).expect("a recorder");
        for period in part {
            assert!(recorder.record(period.clone()), "a queue's worth fits");
        }
        let stats = recorder.finish();
        assert_eq!(stats.written, part.len() as u64, "{stats:?}");
    }
    let cost = cpu_ns() - before;
    finish(&path, cost, periods)
}

/// The baseline: a row, a commit, for each period.
fn naive(periods: &[Period], folder: &Path) -> (f64, f64) {
    let path = folder.join("naive.db");
    let before = cpu_ns();
    {
        let db = rusqlite::Connection::open(&path).expect("a database");
        db.execute_batch(
            "pragma journal_mode = wal; pragma synchronous = normal;
             create table period (wall integer primary key, snapshot text, plan text, reasons text);",
        )
        .expect("a table");
        for period in periods {
            let json = |text: serde_json::Result<String>| text.expect("JSON");
            db.execute(
                "insert into period values (?1, ?2, ?3, ?4)",
                (
                    i64::try_from(period.wall.0).unwrap_or(i64::MAX),
                    json(serde_json::to_string(&*period.snapshot)),
                    json(serde_json::to_string(&*period.plan)),
                    json(serde_json::to_string(&period.reasons)),
                ),
            )
            .expect("a row");
        }
    }
    let cost = cpu_ns() - before;
    finish(&path, cost, periods)
}

fn finish(path: &Path, cost: f64, periods: &[Period]) -> (f64, f64) {
    let bytes = std::fs::metadata(path).expect("a file").len();
    std::fs::remove_file(path).expect("a file to remove");
    let count = periods.len() as f64;
    (cost / count, bytes as f64 / count)
}

fn main() {
    let args = Args::parse();
    let periods = periods(if args.quick { 20 } else { 500 });
    let folder = tempfile::tempdir().expect("a folder");
    let runs = args.runs(15, 2);
    compare(
        "record",
        "64-guests-cpu",
        "ns/period",
        runs,
        || ours(&periods, folder.path()).0,
        || naive(&periods, folder.path()).0,
    )
    .print(&args);
    compare(
        "record",
        "64-guests-size",
        "B/period",
        args.runs(3, 1),
        || ours(&periods, folder.path()).1,
        || naive(&periods, folder.path()).1,
    )
    .print(&args);
}
