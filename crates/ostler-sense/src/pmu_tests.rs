use std::cell::RefCell;

use ostler_abi::pmu::{KINDS, LEVELS};
use ostler_model::{GuestId, GuestSource, Pid, ThreadUsage, VcpuView};

use super::*;

fn counts(of: u64) -> Counts {
    let mut served = [[0; LEVELS]; KINDS];
    for (kind, row) in served.iter_mut().enumerate() {
        for (level, count) in row.iter_mut().enumerate() {
            *count = of * (1 + kind as u64) * (1 + level as u64);
        }
    }
    Counts {
        time_ns: 10 * of,
        halted_ns: 4 * of,
        instructions: 6 * of,
        stall_ps: 2000 * of,
        queued_ps: 1000 * of,
        snoops_sent: 3 * of,
        snoops_received: 5 * of,
        served,
        node_bytes: std::array::from_fn(|node| 64 * of * node as u64),
        ..Counts::default()
    }
}

#[test]
fn a_machines_counters_are_told_as_differences() {
    let cores = RefCell::new([Ok(counts(100)), Ok(counts(7))]);
    let online: CpuSet = "0-1".parse().unwrap();
    let mut last = vec![None; 2];
    let mut look = |online: &CpuSet| {
        advance(
            &mut last,
            online,
            |core| cores.borrow()[core],
            |cpu, counts| view(cpu, counts, true, 3),
        )
    };
    assert_eq!(look(&online), [], "there is nothing to compare with");
    cores.borrow_mut()[0] = Ok(counts(103));
    let views = look(&online);
    assert_eq!(views.len(), 2);
    let accesses = Accesses {
        l1: 30,
        l2: 60,
        l3: 90,
        peer: 120,
        local: 150,
        remote: 180,
        pool: 210,
        stall: Nanos(6),
        queued: Nanos(3),
        snoops_sent: 9,
        snoops_received: 15,
        node_bytes: vec![0, 192, 384],
    };
    assert_eq!(accesses.total(), 840);
    let first = CpuPmu {
        cpu: CpuId(0),
        elapsed: Nanos(30),
        halted: Nanos(12),
        instructions: 18,
        accesses: Some(accesses),
    };
    assert_eq!(views[0], first);
    assert_eq!((views[1].cpu, views[1].instructions), (CpuId(1), 0));
    // Who is offline isn't told of.
    let views = look(&"1".parse().unwrap());
    assert_eq!(views.len(), 1);
    assert_eq!(views[0].cpu, CpuId(1));
    // Who can't be read once isn't told of then, and over the whole time later.
    cores.borrow_mut()[1] = Err(PmuError::Restless(1));
    assert_eq!(look(&online).len(), 1);
    cores.borrow_mut()[1] = Ok(counts(9));
    assert_eq!(look(&online)[1].instructions, 12);
}

#[test]
fn without_caches_there_are_no_accesses() {
    let one = view(CpuId(0), &counts(1), false, 0);
    assert_eq!((one.instructions, one.accesses), (6, None));
}

#[test]
fn a_guest_is_told_for_all_its_vcpus() {
    let guest = |name: &str, tids: &[u32]| GuestView {
        id: GuestId::from(name),
        name: name.to_owned(),
        uuid: None,
        metadata: Vec::new(),
        source: GuestSource::Qmp,
        pid: Pid(tids[0] - 1),
        cgroup: None,
        frozen: false,
        vcpus: (0..)
            .zip(tids)
            .map(|(index, tid)| VcpuView {
                index,
                tid: Tid(*tid),
                allowed: CpuSet::EMPTY,
                usage: ThreadUsage::default(),
            })
            .collect(),
        vhost: Vec::new(),
        emulator: Vec::new(),
        taps: Vec::new(),
        vsock_cid: None,
        latency: None,
        agent: None,
        age: Nanos::ZERO,
    };
    let guests = [guest("a", &[11, 12]), guest("b", &[21])];
    let thread = |vmcb: u64| match vmcb {
        0x1000 => Some(Tid(11)),
        0x2000 => Some(Tid(12)),
        0x3000 => Some(Tid(21)),
        0x4000 => Some(Tid(99)), // nobody's that we know
        _ => None,
    };
    let last = [(0x1000, counts(10)), (0x3000, counts(50))].into();
    let now = [
        (0x1000, counts(13)),
        // Not seen before: all of it is new.
        (0x2000, counts(2)),
        // Began anew.
        (0x3000, counts(4)),
        (0x4000, counts(7)),
        (0x5000, counts(7)),
    ];
    let told = by_guest(&guests, &now, &last, 2, thread);
    let of = |at: usize| {
        (
            told[at].id.to_string(),
            told[at].executed,
            told[at].instructions,
        )
    };
    assert_eq!(told.len(), 2);
    assert_eq!(of(0), ("a".to_owned(), Nanos(50), 30));
    assert_eq!(of(1), ("b".to_owned(), Nanos(40), 24));
    assert_eq!(told[0].accesses.l1, 50);
    assert_eq!(told[0].accesses.node_bytes, [0, 320]);
}
