//! The programs on packets made up for them: every kind of header that they look through, and what they must leave
//! alone.

use std::path::Path;
use std::thread;

use super::net_tests::own_network;
use crate::bpf::tap::TapBpf;

/// The loopback of a new network namespace.
const LO: u32 = 1;
const TCX_NEXT: u32 = u32::MAX;
const SYN: u8 = 0x02;
const PSH_ACK: u8 = 0x18;

/// What is around the payload.
#[derive(Clone, Copy, Debug, Default)]
struct Shape {
    vlans: usize,
    v6: bool,
    /// IPv4 options, or IPv6 extension headers, in units of 8 bytes.
    extra: usize,
    udp: bool,
    fragment: bool,
    padding: usize,
}

/// One packet of a flow between the guest's port 80 and a peer's port 40000.
fn packet(shape: Shape, inward: bool, flags: u8, seq: u32, ack: u32, payload: usize) -> Vec<u8> {
    let (guest, peer) = (80u16, 40_000u16);
    let (source, dest) = if inward { (peer, guest) } else { (guest, peer) };
    let (from, to) = if inward { (2, 1) } else { (1, 2) };

    let mut l4 = Vec::new();
    l4.extend(source.to_be_bytes());
    l4.extend(dest.to_be_bytes());
    if shape.udp {
        l4.extend(u16::try_from(8 + payload).unwrap().to_be_bytes());
        l4.extend([0; 2]);
    } else {
        l4.extend(seq.to_be_bytes());
        l4.extend(ack.to_be_bytes());
        // Twelve bytes of options, as Linux sends with timestamps.
        l4.extend([0x80, flags, 0xff, 0xff, 0, 0, 0, 0]);
        l4.extend([1; 12]);
    }
    l4.extend(vec![b'x'; payload]);

    let protocol = if shape.udp { 17 } else { 6 };
    let mut l3 = Vec::new();
    if shape.v6 {
        let length = u16::try_from(l4.len() + shape.extra * 8).unwrap();
        l3.extend([0x60, 0, 0, 0]);
        l3.extend(length.to_be_bytes());
        l3.extend([if shape.extra > 0 { 60 } else { protocol }, 64]);
        for end in [from, to] {
            l3.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, end]);
        }
        for left in (0..shape.extra).rev() {
            l3.extend([if left > 0 { 60 } else { protocol }, 0, 1, 4, 0, 0, 0, 0]);
        }
    } else {
        let header = 20 + shape.extra * 8;
        let length = u16::try_from(header + l4.len()).unwrap();
        l3.extend([0x40 | u8::try_from(header / 4).unwrap(), 0]);
        l3.extend(length.to_be_bytes());
        l3.extend([0, 0]);
        l3.extend(if shape.fragment {
            [0x20, 0xb9]
        } else {
            [0x40, 0]
        });
        l3.extend([64, protocol, 0, 0]);
        l3.extend([10, 0, 0, from]);
        l3.extend([10, 0, 0, to]);
        l3.extend(vec![1; shape.extra * 8]);
    }

    let mut frame = vec![2; 12];
    for tag in 0..shape.vlans {
        let outer: u16 = if tag + 1 < shape.vlans {
            0x88a8
        } else {
            0x8100
        };
        frame.extend(outer.to_be_bytes());
        frame.extend([0, 5]);
    }
    frame.extend(if shape.v6 { 0x86dd_u16 } else { 0x0800 }.to_be_bytes());
    frame.extend(l3);
    frame.extend(l4);
    frame.extend(vec![0; shape.padding]);
    frame
}

/// Runs `body` with the programs on the loopback of a network namespace of its own.
fn with_programs(test: &'static str, body: impl FnOnce(TapBpf) + Send + 'static) {
    thread::spawn(move || {
        if let Err(error) = own_network() {
            println!("SKIP {test}: no network namespace of its own ({error})");
            return;
        }
        match TapBpf::load(Path::new("/sys")).and_then(|mut bpf| bpf.watch(LO).map(|()| bpf)) {
            Ok(bpf) => body(bpf),
            Err(error) => println!("SKIP {test}: {error}"),
        }
    })
    .join()
    .unwrap();
}

/// Lets a packet pass, which is all that may happen to it.
fn pass(bpf: &TapBpf, inward: bool, packet: &[u8]) {
    let name = if inward { "to_guest" } else { "from_guest" };
    let verdict = bpf.run(name, LO, packet).unwrap();
    assert_eq!(verdict, TCX_NEXT, "a packet is only looked at");
}

/// A connection is opened, a request sent and answered; returns the samples that it yields.
fn exchange(bpf: &TapBpf, shape: Shape) -> u64 {
    let before = bpf.samples(LO).unwrap();
    if !shape.udp {
        pass(bpf, true, &packet(shape, true, SYN, 99, 0, 0));
    }
    pass(bpf, true, &packet(shape, true, PSH_ACK, 100, 500, 30));
    // A bare acknowledgement is no answer.
    if !shape.udp {
        pass(bpf, false, &packet(shape, false, 0x10, 500, 130, 0));
    }
    pass(bpf, false, &packet(shape, false, PSH_ACK, 500, 130, 200));
    bpf.samples(LO).unwrap() - before
}

#[test]
fn every_kind_of_header_is_looked_through() {
    with_programs("every_kind_of_header_is_looked_through", |bpf| {
        let plain = Shape::default();
        for v6 in [false, true] {
            for udp in [false, true] {
                for vlans in 0..3 {
                    for extra in 0..4 {
                        for padding in [0, 6] {
                            let shape = Shape {
                                vlans,
                                v6,
                                extra,
                                udp,
                                padding,
                                ..plain
                            };
                            assert_eq!(exchange(&bpf, shape), 1, "{shape:?}");
                        }
                    }
                }
            }
        }
    });
}

#[test]
fn what_can_not_be_told_is_left_alone() {
    with_programs("what_can_not_be_told_is_left_alone", |bpf| {
        let plain = Shape::default();
        for shape in [
            Shape {
                fragment: true,
                ..plain
            },
            Shape {
                fragment: true,
                udp: true,
                ..plain
            },
            Shape { vlans: 3, ..plain },
            Shape {
                v6: true,
                extra: 6,
                ..plain
            },
        ] {
            assert_eq!(exchange(&bpf, shape), 0, "{shape:?}");
        }
    });
}

/// Packets cut off anywhere, and with any byte changed to its opposite: nothing happens to them, and what follows is
/// sampled.
#[test]
fn broken_packets_break_nothing() {
    with_programs("broken_packets_break_nothing", |bpf| {
        for shape in [
            Shape {
                vlans: 1,
                extra: 1,
                ..Shape::default()
            },
            Shape {
                v6: true,
                extra: 2,
                ..Shape::default()
            },
            Shape {
                udp: true,
                ..Shape::default()
            },
        ] {
            for inward in [true, false] {
                let whole = packet(shape, inward, PSH_ACK, 7, 7, 40);
                for len in 14..whole.len() {
                    // The kernel refuses to make a packet of some lengths; that is its affair.
                    let name = if inward { "to_guest" } else { "from_guest" };
                    if let Ok(verdict) = bpf.run(name, LO, &whole[..len]) {
                        assert_eq!(verdict, TCX_NEXT);
                    }
                }
                for at in 12..whole.len() {
                    let mut odd = whole.clone();
                    odd[at] = !odd[at];
                    pass(&bpf, inward, &odd);
                }
            }
        }
        assert_eq!(exchange(&bpf, Shape::default()), 1);
    });
}
