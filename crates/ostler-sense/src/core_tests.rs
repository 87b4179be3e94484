//! The C that runs in the kernel (`bpf/core`), run here: properties, and agreement with the Rust of this crate.
#![allow(unsafe_code)] // Calls to C that takes plain values and pointers to live ones.

use std::collections::VecDeque;

use ostler_abi::bpf::{ACCT_HARDIRQ, ACCT_SOFTIRQ, ACCT_STATE_BITS, ACCT_TASK, HIST_BUCKETS};
use proptest::prelude::*;

use crate::tap::hist;

/// `struct flow`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Flow {
    sent_ns: u64,
    responded_ns: u64,
    latency_ns: u64,
    request_end: u32,
    sent_end: u32,
    response_end: u32,
    owed: u8,
    seen: u8,
    request_open: u8,
    guest_asks: u8,
}

/// `struct flow_segment`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Segment {
    now_ns: u64,
    seq: u32,
    end: u32,
    ack: u32,
    unordered: u8,
    message: u8,
}

unsafe extern "C" {
    safe fn core_acct_step(word: u64, now_ns: u64, event: u32) -> u64;
    safe fn core_acct_bucket(word: u64) -> u32;
    safe fn core_hist_bucket(ns: u64) -> u32;
    safe fn core_hist_lower_ns(bucket: u32) -> u64;
    fn core_hist_percentile_ns(counts: *const u32, total: u64, permille: u32) -> u64;
    fn core_flow_request(flow: *mut Flow, segment: *const Segment);
    fn core_flow_response(flow: *mut Flow, segment: *const Segment) -> u64;
}

impl Flow {
    fn request(&mut self, segment: Segment) {
        // SAFETY: both are live, and laid out as the C says.
        unsafe { core_flow_request(self, &raw const segment) }
    }

    fn response(&mut self, segment: Segment) -> Option<u64> {
        // SAFETY: as above.
        let took = unsafe { core_flow_response(self, &raw const segment) };
        (took > 0).then_some(took)
    }
}

/// `enum acct_event`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    ToIdle = 0,
    ToTask = 1,
    SoftirqEntry = 2,
    SoftirqExit = 3,
    HardirqEntry = 4,
    HardirqExit = 5,
    ToYielding = 6,
}

/// One CPU as the programs drive it, with interrupts that come at the worst moment: between reading the word and
/// replacing it.
#[derive(Default)]
struct Cpu {
    word: u64,
    started: u64,
    ns: [u64; 5],
    clock: u64,
}

impl Cpu {
    fn begin(clock: u64) -> Cpu {
        Cpu {
            word: core_acct_step(0, clock, Event::ToIdle as u32),
            started: clock,
            ns: [0; 5],
            clock,
        }
    }

    /// An event whose compare-and-swap is disturbed by whole interrupts, one per entry.
    fn event(&mut self, event: Event, gap: u64, disturbed: &[u64]) {
        self.clock += gap;
        let mut disturbed = disturbed.iter();
        loop {
            let old = self.word;
            let new = core_acct_step(old, self.clock, event as u32);
            if let Some(&gap) = disturbed.next() {
                self.event(Event::HardirqEntry, gap, &[]);
                self.event(Event::HardirqExit, gap, &[]);
            }
            if self.word == old {
                self.word = new;
                let span = (new >> ACCT_STATE_BITS) - (old >> ACCT_STATE_BITS);
                self.ns[core_acct_bucket(old) as usize] += span;
                return;
            }
            self.clock += 1;
        }
    }
}

fn events() -> impl Strategy<Value = Vec<(u8, u64, Vec<u64>)>> {
    let one = (0u8..7, 0u64..10_000, prop::collection::vec(1u64..500, 0..3));
    prop::collection::vec(one, 0..200)
}

proptest! {
    /// No span is charged twice and none is lost, whatever comes in whatever order.
    #[test]
    fn charged_time_is_elapsed_time(events in events(), start in 1u64..1 << 60) {
        let mut cpu = Cpu::begin(start);
        for (event, gap, disturbed) in events {
            let event = [
                Event::ToIdle, Event::ToTask, Event::SoftirqEntry,
                Event::SoftirqExit, Event::HardirqEntry, Event::HardirqExit, Event::ToYielding,
            ][usize::from(event)];
            // A hard interrupt is not interrupted by another.
            let disturbed = if cpu.word & ACCT_HARDIRQ == 0 { &disturbed[..] } else { &[] };
            cpu.event(event, gap, disturbed);
            prop_assert_eq!(cpu.started + cpu.ns.iter().sum::<u64>(), cpu.word >> ACCT_STATE_BITS);
            prop_assert_eq!(cpu.word >> ACCT_STATE_BITS, cpu.clock);
        }
    }

    /// Each context is charged exactly what was spent in it, an interrupt within a softirq as an interrupt.
    #[test]
    fn each_context_is_charged_its_own(spans in prop::collection::vec((0u8..5, 1u64..1000), 1..100)) {
        let mut cpu = Cpu::begin(1000);
        let mut want = [0u64; 5];
        for (kind, span) in spans {
            match kind {
                0 => {
                    cpu.event(Event::ToIdle, 0, &[]);
                    cpu.event(Event::ToIdle, span, &[]);
                    want[0] += span;
                }
                1 => {
                    cpu.event(Event::ToTask, 0, &[]);
                    cpu.event(Event::ToTask, span, &[]);
                    want[1] += span;
                }
                2 => {
                    cpu.event(Event::SoftirqEntry, 0, &[]);
                    cpu.event(Event::HardirqEntry, span, &[]);
                    cpu.event(Event::HardirqExit, span, &[]);
                    cpu.event(Event::SoftirqExit, span, &[]);
                    want[2] += 2 * span;
                    want[3] += span;
                }
                3 => {
                    // It yields again after the interrupt.
                    cpu.event(Event::ToYielding, 0, &[]);
                    cpu.event(Event::HardirqEntry, span, &[]);
                    cpu.event(Event::HardirqExit, span, &[]);
                    cpu.event(Event::ToIdle, span, &[]);
                    want[3] += span;
                    want[4] += 2 * span;
                }
                _ => {
                    cpu.event(Event::HardirqEntry, 0, &[]);
                    cpu.event(Event::HardirqExit, span, &[]);
                    want[3] += span;
                }
            }
        }
        prop_assert_eq!(cpu.ns, want);
    }

    #[test]
    fn a_bucket_holds_the_times_between_its_bounds(ns in any::<u64>()) {
        let bucket = core_hist_bucket(ns);
        prop_assert!((bucket as usize) < HIST_BUCKETS);
        prop_assert!(core_hist_lower_ns(bucket) <= ns);
        if (bucket as usize) < HIST_BUCKETS - 1 {
            prop_assert!(ns < core_hist_lower_ns(bucket + 1));
            let width = core_hist_lower_ns(bucket + 1) - core_hist_lower_ns(bucket);
            prop_assert!(width <= 256.max(ns / 16), "{width} at {ns}");
        }
    }

    #[test]
    fn rust_and_c_agree_on_bounds_and_percentiles(
        counts in prop::collection::vec((0..HIST_BUCKETS, 1u32..5000), 1..40),
        permille in 1u32..1000,
    ) {
        let mut table = [0u32; HIST_BUCKETS];
        for (bucket, count) in counts {
            table[bucket] += count;
        }
        let total = table.iter().map(|&c| u64::from(c)).sum();
        // SAFETY: the table has as many counts as the C reads.
        let c = unsafe { core_hist_percentile_ns(table.as_ptr(), total, permille) };
        prop_assert_eq!(hist::percentile_ns(&table, total, permille), Some(c));
        for bucket in 0..=HIST_BUCKETS {
            prop_assert_eq!(hist::lower_ns(bucket), core_hist_lower_ns(u32::try_from(bucket).unwrap()));
        }
    }

    /// Against the exact percentile of the very times: no further off than a bucket is wide.
    #[test]
    fn a_percentile_is_within_a_bucket_of_the_exact_one(
        mut times in prop::collection::vec(0u64..1 << 33, 1..300),
        permille in 1usize..1000,
    ) {
        let mut table = [0u32; HIST_BUCKETS];
        for &ns in &times {
            table[core_hist_bucket(ns) as usize] += 1;
        }
        times.sort_unstable();
        let rank = (times.len() * permille).div_ceil(1000);
        let exact = times[rank - 1];
        let got = hist::percentile_ns(&table, times.len() as u64, u32::try_from(permille).unwrap()).unwrap();
        prop_assert!(got.abs_diff(exact) <= 256.max(exact / 16), "{got} for {exact}");
    }

    /// A server that answers each request before the next: each is sampled once, and right, at any place in sequence
    /// space, however many segments requests and responses have.
    #[test]
    fn each_answered_request_is_sampled_once(
        exchanges in prop::collection::vec((1u32..4, 1u32..3000, 1u64..1_000_000, 1u32..4), 1..50),
        mut seq in any::<u32>(),
        mut rsp in any::<u32>(),
    ) {
        let mut flow = Flow::default();
        let mut clock = 1;
        for (segments, bytes, took, parts) in exchanges {
            clock += 10;
            let sent = clock;
            for part in 0..segments {
                let end = seq.wrapping_add(bytes);
                let message = u8::from(part == segments - 1);
                flow.request(Segment { now_ns: clock, seq, end, ack: rsp, unordered: 0, message });
                seq = end;
                clock += 1;
            }
            clock = sent + u64::from(segments) + took;
            let mut samples = Vec::new();
            for part in 0..parts {
                let end = rsp.wrapping_add(bytes);
                let message = u8::from(part == parts - 1);
                let segment = Segment { now_ns: clock, seq: rsp, end, ack: seq, unordered: 0, message };
                samples.extend(flow.response(segment));
                rsp = end;
                clock += 1;
            }
            prop_assert_eq!(samples, vec![u64::from(segments) + took]);
        }
    }

    /// Whatever a guest and its peers send, there is never more than one sample per request, and none is longer than
    /// the flow is old.
    #[test]
    fn no_traffic_yields_more_samples_than_requests(
        packets in prop::collection::vec((any::<bool>(), any::<u32>(), 1u32..70_000, any::<u32>(), 0u8..2, 1u64..1000), 0..200),
        unordered in 0u8..2,
    ) {
        let mut flow = Flow::default();
        let (mut clock, mut requests, mut samples) = (1, 0, 0);
        for (inward, seq, len, ack, message, gap) in packets {
            clock += gap;
            let segment = Segment { now_ns: clock, seq, end: seq.wrapping_add(len), ack, unordered, message };
            if inward {
                flow.request(segment);
                requests += 1;
            } else if let Some(took) = flow.response(segment) {
                samples += 1;
                prop_assert!(took < clock);
            }
            prop_assert!(samples <= requests);
            prop_assert!(flow.owed <= 15);
        }
    }

    /// Pipelined requests answered one by one, in order, each in one packet: what is sampled is right.
    #[test]
    fn what_is_sampled_of_a_pipeline_is_right(
        steps in prop::collection::vec((any::<bool>(), 1u64..10_000), 1..200),
    ) {
        let mut flow = Flow::default();
        let mut clock = 1_000_000;
        let (mut seq, mut rsp) = (0u32, 0u32);
        let mut waiting: VecDeque<u64> = VecDeque::new();
        for (send, gap) in steps {
            clock += gap;
            if send && waiting.len() < 8 {
                let end = seq.wrapping_add(100);
                flow.request(Segment { now_ns: clock, seq, end, ack: rsp, unordered: 0, message: 1 });
                seq = end;
                waiting.push_back(clock);
            } else if let Some(sent) = waiting.pop_front() {
                let end = rsp.wrapping_add(100);
                // The guest has received everything, so its answers acknowledge everything.
                let segment = Segment { now_ns: clock, seq: rsp, end, ack: seq, unordered: 0, message: 1 };
                if let Some(took) = flow.response(segment) {
                    prop_assert!(took <= clock - sent, "too long is never right");
                }
                rsp = end;
            }
        }
    }
}

fn segment(now_ns: u64, seq: u32, ack: u32) -> Segment {
    Segment {
        now_ns,
        seq,
        end: seq.wrapping_add(100),
        ack,
        unordered: 0,
        message: 1,
    }
}

#[test]
fn a_request_sent_again_is_not_sampled() {
    let mut flow = Flow::default();
    flow.request(segment(1000, 0, 0));
    flow.request(segment(5000, 0, 0));
    assert_eq!(flow.response(segment(6000, 0, 100)), None);
    flow.request(segment(7000, 100, 100));
    assert_eq!(flow.response(segment(7500, 100, 200)), Some(500));
}

#[test]
fn a_response_sent_again_is_no_response() {
    let mut flow = Flow::default();
    flow.request(segment(1000, 0, 0));
    assert_eq!(flow.response(segment(1300, 0, 100)), Some(300));
    flow.request(segment(2000, 100, 0));
    // The client lost the first response; the guest sends it again, and by now acknowledges the second request.
    assert_eq!(flow.response(segment(2100, 0, 200)), None);
    assert_eq!(flow.response(segment(2900, 100, 200)), Some(900));
}

#[test]
fn an_answer_that_does_not_acknowledge_the_request_is_to_another() {
    let mut flow = Flow::default();
    flow.request(segment(1000, 0, 0));
    assert_eq!(flow.response(segment(1100, 0, 50)), None);
    assert_eq!(flow.response(segment(1200, 100, 100)), Some(200));
}

#[test]
fn an_interrupt_in_an_idle_cpu_counts() {
    let mut cpu = Cpu::begin(1000);
    cpu.event(Event::HardirqEntry, 50, &[]);
    cpu.event(Event::SoftirqEntry, 7, &[]);
    cpu.event(Event::HardirqExit, 1, &[]);
    cpu.event(Event::SoftirqExit, 20, &[]);
    cpu.event(Event::ToTask, 5, &[]);
    assert_eq!(cpu.ns, [55, 0, 20, 8, 0]);
    assert_eq!(
        cpu.word & (ACCT_HARDIRQ | ACCT_SOFTIRQ | ACCT_TASK),
        ACCT_TASK
    );
}
