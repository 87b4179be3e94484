use proptest::prelude::*;

use super::super::QueueCount;
use super::*;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const LIMITS: GuestLimits = GuestLimits {
    vcpus: 4,
    max_queues: 4,
};

/// A peer, a clock, and an honest guest to answer with.
struct Bench {
    peer: Peer,
    now: Instant,
    applied: Vec<u32>,
    confined: bool,
    queues: u32,
    clock_ns: u64,
    /// All requests the agent got.
    asked: Vec<request::Body>,
}

impl Bench {
    fn new() -> Self {
        let now = Instant::now();
        let mut bench = Self {
            peer: Peer::new(LIMITS, Timing::default(), now),
            now,
            applied: vec![0, 1, 2, 3],
            confined: false,
            queues: 4,
            clock_ns: 1,
            asked: Vec::new(),
        };
        assert!(bench.peer.wants_connection(now));
        bench.peer.connected(now);
        bench.peer.poll(now);
        bench
    }

    /// A bench whose peer has seen one state.
    fn healthy() -> Self {
        let mut bench = Self::new();
        bench.settle();
        assert_eq!(*bench.peer.health(), Health::Healthy);
        bench
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.clock_ns += u64::try_from(time.as_nanos()).unwrap();
        self.peer.poll(self.now);
    }

    /// The request waiting to be sent.
    fn take_request(&mut self) -> Option<(u32, request::Body)> {
        let bytes = self.peer.outgoing().to_vec();
        self.peer.sent(bytes.len());
        let frame = FrameDecoder::new().push(&mut bytes.as_slice()).unwrap()?;
        let request: wire::Request = frame::decode_payload(&frame.payload).unwrap();
        let body = request.body.unwrap();
        self.asked.push(body.clone());
        Some((frame.request_id, body))
    }

    fn state(&self) -> wire::State {
        wire::State {
            online_vcpus: vec![0b1111],
            applied_vcpus: bits::from_ids(self.applied.iter().copied()),
            confined: self.confined,
            nics: vec![wire::Nic {
                name: "eth0".into(),
                mac: MAC.to_vec(),
                combined_current: self.queues,
                combined_max: 4,
                irqs: vec![],
            }],
            vcpu_times: vec![wire::VcpuTime {
                vcpu: 0,
                busy_ns: self.clock_ns,
                steal_ns: 5,
            }],
            monotonic_ns: self.clock_ns,
            time_resolution_ns: 1,
        }
    }

    fn honest_answer(&mut self, body: &request::Body) -> reply::Body {
        let ack = reply::Body::Ack(wire::Ack {
            changed: true,
            left_alone: 0,
        });
        match body {
            request::Body::Hello(_) => reply::Body::Hello(wire::Hello {
                capabilities: vec![Capability::Vcpus.into(), Capability::Queues.into()],
                ..Default::default()
            }),
            request::Body::GetState(_) => reply::Body::State(self.state()),
            request::Body::SetVcpus(set) => {
                self.applied = bits::to_ids(&set.vcpus, 4).unwrap();
                self.confined = true;
                ack
            }
            request::Body::SetQueues(set) => {
                self.queues = set.count;
                ack
            }
            request::Body::Restore(_) => {
                (self.applied, self.confined, self.queues) = (vec![0, 1, 2, 3], false, 4);
                ack
            }
        }
    }

    fn reply(&mut self, id: u32, body: reply::Body) {
        let bytes = frame::encode_reply(id, &wire::Reply { body: Some(body) }).unwrap();
        self.peer.received(self.now, &bytes);
    }

    /// Answers honestly until nothing more is asked.
    fn settle(&mut self) {
        for _ in 0..20 {
            let Some((id, body)) = self.take_request() else {
                return;
            };
            let answer = self.honest_answer(&body);
            self.reply(id, answer);
        }
        panic!("never stops asking");
    }

    /// Lets the state become due and answers it with `lie`.
    fn tell(&mut self, lie: wire::State) {
        self.pass(Timing::default().state_interval);
        let (id, body) = self.take_request().unwrap();
        assert!(matches!(body, request::Body::GetState(_)));
        self.reply(id, reply::Body::State(lie));
    }

    fn lie(&self) -> Option<&Lie> {
        match self.peer.health() {
            Health::Lying { what } => Some(what),
            _ => None,
        }
    }
}

#[test]
fn says_hello_then_asks_for_the_state_at_its_pace() {
    let mut bench = Bench::healthy();
    assert!(matches!(
        bench.asked[..],
        [request::Body::Hello(_), request::Body::GetState(_)]
    ));
    let (state, at) = bench.peer.seen().unwrap().clone();
    assert_eq!(at, bench.now);
    assert_eq!(state.applied_vcpus, [0, 1, 2, 3]);
    assert_eq!(
        state.nics[0].queues,
        Some(QueueCount { current: 4, max: 4 })
    );
    bench.pass(Duration::from_millis(499));
    assert!(bench.peer.outgoing().is_empty());
    bench.pass(Duration::from_millis(1));
    assert!(!bench.peer.outgoing().is_empty());
}

#[test]
fn only_a_difference_makes_a_request() {
    let mut bench = Bench::healthy();
    let desired = Desired {
        vcpus: Some(vec![1, 2]),
        queues: Some((MAC, 2)),
    };
    bench.peer.desire(desired.clone());
    bench.pass(Duration::ZERO);
    bench.settle();
    bench.pass(Duration::from_millis(500));
    bench.settle();
    assert_eq!((bench.applied.as_slice(), bench.queues), (&[1, 2][..], 2));
    bench.asked.clear();
    bench.peer.desire(desired);
    for _ in 0..5 {
        bench.pass(Duration::from_millis(500));
        bench.settle();
    }
    assert!(
        bench
            .asked
            .iter()
            .all(|body| matches!(body, request::Body::GetState(_)))
    );
    // Someone in the guest undoes it: seen with the next state, and asked for again.
    (bench.applied, bench.queues) = (vec![0, 1, 2, 3], 4);
    for _ in 0..2 {
        bench.pass(Duration::from_millis(500));
        bench.settle();
    }
    assert_eq!((bench.applied.as_slice(), bench.queues), (&[1, 2][..], 2));
}

#[test]
fn queues_are_left_alone_while_a_guest_gets_used_to_its_vcpus() {
    let mut bench = Bench::healthy();
    let desired = |vcpus: &[u32], queues| Desired {
        vcpus: Some(vcpus.to_vec()),
        queues: Some((MAC, queues)),
    };
    bench.peer.desire(desired(&[1, 2, 3], 3));
    bench.pass(Duration::ZERO);
    bench.settle();
    assert_eq!(
        (bench.applied.as_slice(), bench.queues),
        (&[1, 2, 3][..], 4)
    );
    // Another wish doesn't shorten that, nor do more vCPUs again make it longer, so that queues have their turn at last.
    bench.pass(Duration::from_millis(300));
    bench.peer.desire(desired(&[1, 2], 2));
    bench.pass(Duration::ZERO);
    bench.settle();
    assert_eq!((bench.applied.as_slice(), bench.queues), (&[1, 2][..], 4));
    let due = bench.peer.next_deadline();
    assert_eq!(due, bench.now + Duration::from_millis(200));
    bench.pass(Duration::from_millis(199));
    bench.settle();
    assert_eq!(bench.queues, 4);
    bench.pass(Duration::from_millis(1));
    bench.settle();
    assert_eq!(bench.queues, 2);
    // Nothing is due again before the next state: the worker isn't woken in vain.
    let due = bench.peer.next_deadline();
    assert_eq!(due, bench.now + Timing::default().state_interval);
    // Where only queues are wished for, there is nothing to wait for.
    bench.peer.desire(desired(&[1, 2], 1));
    bench.pass(Duration::ZERO);
    bench.settle();
    assert_eq!(bench.queues, 1);
}

#[test]
fn one_that_agrees_and_does_nothing_is_asked_at_a_bounded_pace() {
    let mut bench = Bench::healthy();
    bench.peer.desire(Desired {
        vcpus: Some(vec![1]),
        queues: None,
    });
    bench.asked.clear();
    for _ in 0..100 {
        bench.pass(Duration::from_millis(100));
        while let Some((id, body)) = bench.take_request() {
            bench.honest_answer(&body);
            (bench.applied, bench.confined) = (vec![0, 1, 2, 3], false);
            let answer = bench.honest_answer(&request::Body::GetState(wire::GetState {}));
            let answer = match body {
                request::Body::GetState(_) => answer,
                _ => reply::Body::Ack(wire::Ack::default()),
            };
            bench.reply(id, answer);
        }
    }
    let sets = bench
        .asked
        .iter()
        .filter(|body| matches!(body, request::Body::SetVcpus(_)))
        .count();
    assert!((2..=10).contains(&sets), "{sets} in ten seconds");
}

#[test]
fn a_refusal_is_told_in_printable_words() {
    let mut bench = Bench::healthy();
    bench.peer.desire(Desired {
        vcpus: Some(vec![3]),
        queues: None,
    });
    bench.pass(Duration::ZERO);
    let (id, _) = bench.take_request().unwrap();
    bench.reply(
        id,
        reply::Body::Error(wire::Error {
            code: ErrorCode::Invalid.into(),
            text: "no\u{1b}]such vCPU".into(),
            supported_versions: vec![],
        }),
    );
    assert_eq!(
        bench.peer.refusal(),
        Some("ERROR_CODE_INVALID: no?]such vCPU")
    );
    bench.settle();
    assert_eq!(*bench.peer.health(), Health::Healthy);
}

#[test]
fn a_restore_is_asked_until_acknowledged_and_across_connections() {
    let mut bench = Bench::healthy();
    bench.peer.desire(Desired {
        vcpus: Some(vec![1]),
        queues: Some((MAC, 1)),
    });
    bench.pass(Duration::ZERO);
    bench.settle();
    bench.peer.restore();
    bench.peer.refused(bench.now);
    assert!(bench.peer.restore_pending());
    bench.now += Duration::from_mins(1);
    assert!(bench.peer.wants_connection(bench.now));
    bench.peer.connected(bench.now);
    bench.pass(Duration::ZERO);
    bench.settle();
    assert!(!bench.peer.restore_pending());
    assert_eq!((bench.confined, bench.queues), (false, 4));
}

#[test]
fn silence_and_dripping_end_at_the_same_deadline() {
    for drip in [false, true] {
        let mut bench = Bench::healthy();
        bench.pass(Duration::from_millis(500));
        let (id, _) = bench.take_request().unwrap();
        let reply = wire::Reply {
            body: Some(reply::Body::State(bench.state())),
        };
        let bytes = frame::encode_reply(id, &reply).unwrap();
        for byte in bytes.iter().take(9) {
            assert!(bench.peer.has_link());
            if drip {
                bench.peer.received(bench.now, &[*byte]);
            }
            bench.pass(Duration::from_millis(110));
        }
        bench.pass(Duration::from_millis(10));
        let expected = if drip { Health::Slow } else { Health::Silent };
        assert_eq!(*bench.peer.health(), expected);
        assert!(!bench.peer.has_link());
        assert!(bench.peer.seen().is_some(), "old, but as true as it was");
    }
}

#[test]
fn a_late_answer_counts_but_is_slow() {
    let mut bench = Bench::healthy();
    bench.pass(Duration::from_millis(500));
    bench.pass(Duration::from_millis(250));
    bench.settle();
    assert_eq!(*bench.peer.health(), Health::Slow);
    assert_eq!(bench.peer.seen().unwrap().1, bench.now);
    bench.pass(Duration::from_millis(500));
    bench.settle();
    assert_eq!(*bench.peer.health(), Health::Healthy);
}

#[test]
fn impossible_states_are_lies_and_nothing_of_them_is_kept() {
    type Twist = fn(&mut wire::State);
    type Verdict = fn(&Lie) -> bool;
    let twists: [(Twist, Verdict); 12] = [
        (
            |s| s.online_vcpus = vec![0b1_1111],
            |l| matches!(l, Lie::Vcpus { .. }),
        ),
        (
            |s| s.applied_vcpus = vec![1, 0],
            |l| matches!(l, Lie::Vcpus { .. }),
        ),
        (
            |s| s.applied_vcpus = vec![],
            |l| matches!(l, Lie::NoVcpu { .. }),
        ),
        (
            |s| s.nics[0].combined_max = 5,
            |l| matches!(l, Lie::Queues { .. }),
        ),
        (
            |s| s.nics[0].combined_current = 0,
            |l| matches!(l, Lie::Queues { .. }),
        ),
        (
            |s| (s.nics[0].combined_current, s.nics[0].combined_max) = (3, 2),
            |l| matches!(l, Lie::Queues { .. }),
        ),
        (
            |s| s.nics[0].mac = vec![1; 7],
            |l| matches!(l, Lie::Malformed { .. }),
        ),
        (
            |s| s.nics[0].name = "\u{1b}[2J".into(),
            |l| matches!(l, Lie::Malformed { .. }),
        ),
        (
            |s| s.nics = vec![s.nics[0].clone(); 17],
            |l| matches!(l, Lie::Malformed { .. }),
        ),
        (
            |s| s.monotonic_ns = 0,
            |l| matches!(l, Lie::ClockBack { .. }),
        ),
        (
            |s| s.vcpu_times[0].busy_ns = 0,
            |l| matches!(l, Lie::ClockBack { .. }),
        ),
        (
            |s| s.vcpu_times[0].vcpu = 4,
            |l| matches!(l, Lie::Malformed { .. }),
        ),
    ];
    for (at, (twist, expected)) in twists.into_iter().enumerate() {
        let mut bench = Bench::healthy();
        let mut state = bench.state();
        state.monotonic_ns += 1;
        twist(&mut state);
        bench.tell(state);
        let lie = bench
            .lie()
            .unwrap_or_else(|| panic!("twist {at} was believed"));
        assert!(expected(lie), "twist {at}: {lie}");
        assert!(bench.peer.seen().is_none());
        assert!(!bench.peer.has_link());
    }
}

#[test]
fn a_guest_that_rebooted_may_start_its_clock_over() {
    let mut bench = Bench::healthy();
    bench.peer.refused(bench.now);
    bench.now += Duration::from_secs(10);
    bench.clock_ns = 0;
    bench.peer.connected(bench.now);
    bench.peer.poll(bench.now);
    bench.settle();
    assert_eq!(*bench.peer.health(), Health::Healthy);
}

#[test]
fn replies_nobody_asked_for_are_lies() {
    // When nothing is asked, to another request, before the request has left, and of the wrong kind.
    let ack = || reply::Body::Ack(wire::Ack::default());
    let mut bench = Bench::healthy();
    bench.reply(3, ack());
    assert_eq!(bench.lie(), Some(&Lie::Unasked));

    let mut bench = Bench::healthy();
    bench.pass(Duration::from_millis(500));
    let (id, _) = bench.take_request().unwrap();
    bench.reply(id + 1, ack());
    assert_eq!(bench.lie(), Some(&Lie::Unasked));

    let mut bench = Bench::healthy();
    bench.pass(Duration::from_millis(500));
    bench.reply(3, ack());
    assert_eq!(bench.lie(), Some(&Lie::Unasked));

    let mut bench = Bench::healthy();
    bench.pass(Duration::from_millis(500));
    let (id, _) = bench.take_request().unwrap();
    bench.reply(id, ack());
    assert_eq!(bench.lie(), Some(&Lie::WrongReply));
}

#[test]
fn another_version_is_refused_not_a_lie() {
    let mut bench = Bench::new();
    bench.take_request().unwrap();
    bench.peer.received(
        bench.now,
        b"OSTL\x02\x00\x02\x00\x01\x00\x00\x00\x00\x00\x00\x00",
    );
    assert_eq!(*bench.peer.health(), Health::Refused);
    assert!(bench.peer.refusal().unwrap().contains("version 2"));
}

#[test]
fn pauses_double_to_their_bound_and_a_good_spell_shortens_them() {
    let timing = Timing::default();
    let mut bench = Bench::new();
    let mut pauses = Vec::new();
    for _ in 0..8 {
        bench.peer.refused(bench.now);
        let pause = bench.peer.next_deadline() - bench.now;
        assert!(
            !bench
                .peer
                .wants_connection(bench.now + pause.saturating_sub(Duration::from_nanos(1)))
        );
        bench.now += pause;
        assert!(bench.peer.wants_connection(bench.now));
        bench.peer.connected(bench.now);
        pauses.push(pause);
    }
    assert_eq!(pauses[..3], [1, 2, 4].map(|n| timing.backoff_min * n));
    assert_eq!(pauses[7], timing.backoff_max);
    bench.now += timing.backoff_max;
    bench.peer.refused(bench.now);
    assert_eq!(bench.peer.next_deadline() - bench.now, timing.backoff_min);
}

/// The fuzzer's scripts can say everything an agent can: a short one reaches a believed state, and the setting it brings about.
#[test]
fn a_fuzzers_script_reaches_the_depths() {
    let sent = [7, 255];
    let script = [
        &[4, 0][..],
        &sent,
        &[5, 6, 0x0a, 4, 0x1a, 2, 1, 2], // Hello, able to do both
        &sent,
        &[5, 8, 0x12, 6, 0x0a, 1, 0xff, 0x12, 1, 0xff], // State: eight vCPUs
        &sent,
        &[5, 2, 0x1a, 0], // Ack, to SetVcpus
    ];
    let peer = fuzz(&script.concat());
    assert_eq!(*peer.health(), Health::Healthy);
    assert_eq!(peer.seen().unwrap().0.online_vcpus.len(), 8);
    let Link::Up(session) = &peer.link else {
        panic!("no connection");
    };
    assert!(session.stale, "the setting was acknowledged");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// What the fuzzer runs, on plain random data.
    #[test]
    fn no_script_breaks_the_peer(data in prop::collection::vec(any::<u8>(), 0..600)) {
        fuzz(&data);
    }

    /// Honest conversations, cut, twisted and replayed: nearer to the interesting states than random data.
    #[test]
    fn a_twisted_conversation_never_breaks_the_peer(
        twists in prop::collection::vec((any::<u16>(), any::<u8>(), 0_u8..4), 1..30),
    ) {
        let mut bench = Bench::healthy();
        for (at, byte, how) in twists {
            bench.pass(Duration::from_millis(500));
            if bench.peer.wants_connection(bench.now) {
                bench.peer.connected(bench.now);
                bench.peer.poll(bench.now);
            }
            let Some((id, body)) = bench.take_request() else { continue };
            let answer = bench.honest_answer(&body);
            let mut bytes = frame::encode_reply(id, &wire::Reply { body: Some(answer) }).unwrap();
            let at = usize::from(at) % bytes.len();
            match how {
                0 => {}
                1 => bytes[at] = byte,
                2 => bytes.truncate(at),
                _ => bytes.extend_from_within(..at),
            }
            bench.peer.received(bench.now, &bytes);
            if let Some((state, _)) = bench.peer.seen() {
                prop_assert!(state.applied_vcpus.iter().all(|&vcpu| vcpu < LIMITS.vcpus));
                prop_assert!(state.nics.iter().all(|nic| nic.queues.is_none_or(|q| q.max <= 4)));
            }
        }
    }
}
