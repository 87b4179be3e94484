//! What a record promises: what is written is read back to the bit, decisions can be made again, limits hold, and damage is told and survived.

use std::path::Path;
use std::sync::Arc;

use ostler_model::{
    Bytes, CpuId, CpuSet, CpuUsage, Facts, Group, Groups, GuestId, GuestSource, GuestView,
    HostCounters, Intent, LatencyView, Nanos, Pid, Plan, Reason, Sample, Snapshot, State,
    ThreadUsage, Tid, VcpuView,
};
use ostler_record::{
    Cost, Decided, Inputs, Limits, Period, Reader, RecordError, Recorder, Wall, replay,
};
use proptest::prelude::*;

const LIMITS: Limits = Limits {
    size_max: Bytes(64 << 20),
    age_max: Nanos::from_secs(86_400),
};

/// Numbers that look random and depend on the seed alone.
struct Noise(u64);

impl Noise {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % below
    }

    fn share(&mut self) -> f64 {
        self.next(1_000_003) as f64 / 1_000_003.0
    }
}

/// A policy small enough to see through, whose plans depend on everything a decision is made from.
fn decide(inputs: Inputs<'_>) -> Decided {
    let mut noise = Noise(inputs.seed);
    let mut state = inputs.state.clone();
    let busy = inputs.snapshot.busy_cores(&CpuSet::range(0, 8));
    state.generation += 1;
    state.partition.samples.push(Sample {
        p95_over_slo: busy / 3.0 + noise.share(),
        vcpu: busy / 7.0,
        nq: inputs.now.as_secs_f64(),
    });
    if state.partition.samples.len() > 30 {
        state.partition.samples.clear();
        state.partition.explorations += 1;
    }
    let mean = state.partition.samples.iter().map(|s| s.vcpu).sum::<f64>();
    let tenths = (0..60).take_while(|&n| f64::from(n) < mean * 10.0).count();
    let cores = u32::try_from(tenths).unwrap_or(0) % 6 + u32::from(inputs.intent.nics.is_empty());
    Decided {
        plan: Plan {
            generation: state.generation,
            parent: Some(inputs.state.generation),
            at: inputs.snapshot.at,
            groups: Groups {
                vcpu: CpuSet::range(0, cores),
                ..Groups::default()
            },
            ..Plan::default()
        },
        reasons: vec![Reason::Demand {
            group: Group::Vcpu,
            busy_cores: busy,
            threshold: 0.7,
            required: mean,
        }],
        state,
    }
}

fn snapshot(seq: u64, guests: u32, noise: &mut Noise) -> Snapshot {
    let usage = |noise: &mut Noise| ThreadUsage {
        run: Nanos(noise.next(100_000_000)),
        wait: Nanos(noise.next(1_000_000)),
    };
    let guest = |index: u32, noise: &mut Noise| GuestView {
        id: GuestId::from(format!("c7a5fdbd-edaf-9455-926a-{index:012}").as_str()),
        name: format!("guest-{index}"),
        uuid: Some(format!("c7a5fdbd-edaf-9455-926a-{index:012}")),
        metadata: Vec::new(),
        source: GuestSource::Qmp,
        pid: Pid(1000 + index),
        cgroup: Some(format!("/machine.slice/guest-{index}")),
        frozen: false,
        vcpus: (0..4)
            .map(|vcpu| VcpuView {
                index: vcpu,
                tid: Tid(10_000 + index * 10 + vcpu),
                allowed: CpuSet::range(0, 8),
                usage: usage(noise),
            })
            .collect(),
        vhost: Vec::new(),
        emulator: vec![Tid(1000 + index)],
        taps: Vec::new(),
        vsock_cid: Some(index),
        latency: Some(LatencyView {
            responses: noise.next(10_000),
            p50: Nanos(noise.next(1_000_000)),
            p95: Nanos(noise.next(2_000_000)),
            p99: Nanos(noise.next(4_000_000)),
            age: Nanos::ZERO,
        }),
        agent: None,
        age: Nanos::ZERO,
    };
    Snapshot {
        seq,
        at: Nanos(seq * 100_000_000),
        interval: Nanos(if seq == 1 { 0 } else { 100_000_000 }),
        cpus: (0..8)
            .map(|cpu| CpuUsage {
                cpu: CpuId(cpu),
                busy: Nanos(noise.next(100_000_000)),
                irq: Nanos(noise.next(1_000_000)),
                softirq: Nanos(noise.next(1_000_000)),
                yielding: (cpu % 2 == 0).then(|| Nanos(noise.next(1_000_000))),
            })
            .collect(),
        guests: (0..guests).map(|index| guest(index, noise)).collect(),
        counters: HostCounters {
            ctx_switches: Some(noise.next(100_000)),
            ..HostCounters::default()
        },
        ..Snapshot::default()
    }
}

/// A loop's run of so many periods. The intent changes half way; every seventh decision is not adopted.
fn run(periods: u64, guests: u32, seed: u64) -> Vec<Period> {
    let mut noise = Noise(seed);
    let facts = Arc::new(Facts {
        kernel: format!("test-{seed}"),
        ..Facts::default()
    });
    let mut intent = Arc::new(Intent::default());
    let mut state = Arc::new(State::default());
    let mut out = Vec::new();
    for seq in 1..=periods {
        if seq == periods / 2 {
            intent = Arc::new(Intent {
                nics: vec!["eth0".to_owned()],
                ..Intent::default()
            });
        }
        let snapshot = Arc::new(snapshot(seq, guests, &mut noise));
        let seed = noise.next(u64::MAX);
        let decided = decide(Inputs {
            facts: &facts,
            snapshot: &snapshot,
            intent: &intent,
            state: &state,
            now: snapshot.at,
            seed,
        });
        let adopted = seq % 7 != 0;
        out.push(Period {
            wall: Wall(1_000_000_000_000 + seq * 100_000_000),
            facts: Arc::clone(&facts),
            intent: Arc::clone(&intent),
            now: snapshot.at,
            snapshot,
            before: Some(Arc::clone(&state)),
            seed,
            plan: Arc::new(decided.plan),
            reasons: decided.reasons.into(),
            violations: if adopted {
                Vec::new()
            } else {
                vec!["empty group".to_owned()]
            },
            adopted,
            outcome: None,
            cost: Cost::default(),
        });
        if adopted {
            state = Arc::new(decided.state);
        }
    }
    out
}

/// Records periods, a queue's worth at a time at the most.
fn record(path: &Path, periods: &[Period], limits: Limits) {
    for part in periods.chunks(200) {
        let recorder = Recorder::start(path, limits).expect("a record starts");
        for period in part {
            assert!(recorder.record(period.clone()));
        }
        let stats = recorder.finish();
        assert_eq!(
            (stats.written, stats.failed),
            (part.len() as u64, 0),
            "{stats:?}"
        );
    }
}

fn all(reader: &Reader) -> Vec<Period> {
    reader
        .range(Wall::MIN, Wall::MAX)
        .map(|period| period.expect("readable"))
        .collect()
}

fn without_state(period: &Period) -> Period {
    Period {
        before: None,
        ..period.clone()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn what_is_written_is_read_back_and_replays(periods in 1..190_u64, guests in 0..4_u32, seed: u64) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/record.db");
        let written = run(periods, guests, seed);
        record(&path, &written, LIMITS);
        let reader = Reader::open(&path).unwrap();
        let read = all(&reader);
        prop_assert_eq!(read.len(), written.len());
        for (read, written) in read.iter().zip(&written) {
            prop_assert_eq!(without_state(read), without_state(written));
            if read.before.is_some() {
                prop_assert_eq!(&read.before, &written.before);
            }
        }
        let report = replay(&reader, Wall::MIN, Wall::MAX, decide).unwrap();
        prop_assert!(report.difference.is_none(), "{:?}", report.difference);
        prop_assert_eq!((report.replayed, report.skipped), (periods, 0));
    }

    #[test]
    fn a_time_finds_its_period(at in 0..3_000_u64, from in 0..3_000_u64, to in 0..3_000_u64) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.db");
        let written = run(25, 1, 1);
        record(&path, &written, LIMITS);
        let reader = Reader::open(&path).unwrap();
        let wall = |millis: u64| Wall(1_000_000_000_000 + millis * 1_000_000);
        let seq = |period: &Period| period.snapshot.seq;
        let want = written.iter().rfind(|period| period.wall <= wall(at)).map(seq);
        prop_assert_eq!(reader.at(wall(at)).unwrap().as_ref().map(seq), want);

        let range = wall(from)..=wall(to);
        let want: Vec<u64> = written.iter().filter(|p| range.contains(&p.wall)).map(seq).collect();
        let found: Vec<u64> = reader.range(wall(from), wall(to)).map(|p| seq(&p.unwrap())).collect();
        prop_assert_eq!(found, want);

        let new = |at: usize| at == 0 || !written[at].plan.same_wishes(&written[at - 1].plan);
        let want: Vec<u64> = (0..written.len())
            .filter(|&at| new(at) && range.contains(&written[at].wall))
            .map(|at| seq(&written[at]))
            .collect();
        let found: Vec<u64> = reader.changes(wall(from), wall(to)).map(|p| seq(&p.unwrap())).collect();
        prop_assert_eq!(found, want);
    }

    /// Damage to any bytes of the file gives an error, or leaves blocks out, or touches nothing that is read; it never panics and never gives
    /// a period that was not written.
    #[test]
    fn damage_is_told_and_the_rest_is_read(
        seed: u64,
        at in any::<prop::sample::Index>(),
        length in 1..600_usize,
        cut in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.db");
        let written = run(150, 2, seed);
        record(&path, &written, LIMITS);
        let mut bytes = std::fs::read(&path).unwrap();
        let at = at.index(bytes.len());
        if cut {
            bytes.truncate(at);
        } else {
            let end = (at + length).min(bytes.len());
            bytes[at..end].fill(0xa5);
        }
        std::fs::write(&path, &bytes).unwrap();
        let Ok(reader) = Reader::open(&path) else { return Ok(()) };
        for period in reader.range(Wall::MIN, Wall::MAX).flatten() {
            // The header row of a block is SQLite's own and has no checksum; its body has.
            let original = written.iter().find(|w| w.snapshot.seq == period.snapshot.seq);
            prop_assert_eq!(original.map(|w| &w.snapshot), Some(&period.snapshot));
        }
        let _ = replay(&reader, Wall::MIN, Wall::MAX, decide);
        // A steward starts on such a file all the same.
        drop(reader);
        let _ = Recorder::start(&path, LIMITS);
    }
}

#[test]
fn a_changed_policy_is_found_at_its_first_difference() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record.db");
    record(&path, &run(100, 1, 7), LIMITS);
    let reader = Reader::open(&path).unwrap();
    let report = replay(&reader, Wall::MIN, Wall::MAX, |inputs| {
        let late = inputs.snapshot.seq >= 60;
        let mut decided = decide(inputs);
        if late {
            decided.plan.groups.idle = CpuSet::single(CpuId(7));
        }
        decided
    })
    .unwrap();
    let difference = report.difference.expect("a difference");
    assert_eq!(
        (difference.period.snapshot.seq, difference.what),
        (60, "the plan")
    );
    assert_eq!(report.replayed, 60);
}

#[test]
fn a_changed_state_is_found_at_the_next_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record.db");
    // Two parts: the second begins with a checkpoint, but in a run of its own, so the first part must be longer than a checkpoint's distance.
    let written = run(650, 0, 3);
    let recorder = Recorder::start(&path, LIMITS).unwrap();
    let mut rest = written.iter();
    let mut kept = rest.next();
    // A full queue drops periods, which would make a checkpoint earlier: offer again until there is room.
    while let Some(period) = kept {
        if recorder.record(period.clone()) {
            kept = rest.next();
        } else {
            std::thread::yield_now();
        }
    }
    assert_eq!(recorder.finish().written, 650);
    let reader = Reader::open(&path).unwrap();
    let report = replay(&reader, Wall::MIN, Wall::MAX, |inputs| {
        let mut decided = decide(inputs);
        if inputs.snapshot.seq == 599 {
            // No plan shows it yet.
            decided.state.partition.explorations += 1;
        }
        decided
    })
    .unwrap();
    let difference = report.difference.expect("a difference");
    assert_eq!(difference.what, "the state carried over");
    assert_eq!(difference.period.snapshot.seq, 601);
}

#[test]
fn a_gap_is_bridged_by_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record.db");
    let mut written = run(100, 1, 5);
    written.drain(40..60);
    record(&path, &written, LIMITS);
    let reader = Reader::open(&path).unwrap();
    let report = replay(&reader, Wall::MIN, Wall::MAX, decide).unwrap();
    assert!(report.difference.is_none(), "{:?}", report.difference);
    assert_eq!((report.replayed, report.skipped), (80, 0));
}

#[test]
fn the_size_is_bounded_and_the_newest_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record.db");
    let limits = Limits {
        size_max: Bytes(256 << 10),
        ..LIMITS
    };
    let written = run(2_000, 6, 11);
    record(&path, &written, limits);
    let length = std::fs::metadata(&path).unwrap().len();
    assert!(length <= 2 * limits.size_max.0, "{length} bytes");
    let reader = Reader::open(&path).unwrap();
    let read = all(&reader);
    assert!(
        read.len() < written.len(),
        "nothing was dropped: {length} bytes"
    );
    assert_eq!(
        read.last().map(without_state),
        written.last().map(without_state)
    );
    let first = usize::try_from(read[0].snapshot.seq).unwrap() - 1;
    assert!(
        read.iter()
            .map(without_state)
            .eq(written[first..].iter().map(without_state))
    );
}

#[test]
fn what_is_too_old_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record.db");
    let limits = Limits {
        age_max: Nanos::from_secs(10),
        ..LIMITS
    };
    record(&path, &run(600, 1, 2), limits);
    let span = Reader::open(&path)
        .unwrap()
        .span()
        .unwrap()
        .expect("periods");
    let kept = span.last.0 - span.first.0;
    // Whole blocks are dropped, and one holds up to 3.2 s.
    assert!((9_900_000_000..=13_300_000_000).contains(&kept), "{kept}");
}

#[test]
fn a_file_that_is_no_record_is_moved_aside_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record.db");
    std::fs::write(&path, "precious words, and no database at all").unwrap();
    assert!(matches!(
        Reader::open(&path),
        Err(RecordError::NotARecord { .. })
    ));
    let recorder = Recorder::start(&path, LIMITS).unwrap();
    let aside = recorder.moved_aside().expect("moved").to_owned();
    assert_eq!(
        std::fs::read_to_string(aside).unwrap(),
        "precious words, and no database at all"
    );
    assert!(recorder.record(run(1, 0, 0).remove(0)));
    assert_eq!(recorder.finish().written, 1);
    assert_eq!(all(&Reader::open(&path).unwrap()).len(), 1);
}

#[test]
fn a_full_queue_drops_and_counts_and_never_waits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record.db");
    let recorder = Recorder::start(&path, LIMITS).unwrap();
    // A writer that holds the file keeps the recorder's thread busy for its whole busy time-out.
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("begin immediate").unwrap();
    let written = run(600, 0, 1);
    let taken = written
        .iter()
        .filter(|period| recorder.record((*period).clone()))
        .count();
    other.execute_batch("commit").unwrap();
    let stats = recorder.finish();
    assert_eq!(stats.dropped, (written.len() - taken) as u64);
    assert!(stats.dropped > 0, "{stats:?}");
    assert_eq!(stats.written + stats.failed, taken as u64);
    let reader = Reader::open(&path).unwrap();
    let report = replay(&reader, Wall::MIN, Wall::MAX, decide).unwrap();
    assert!(report.difference.is_none(), "{:?}", report.difference);
}
