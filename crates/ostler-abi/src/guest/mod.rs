//! The wire between the steward and the agent in a guest: [`wire`] has the messages, [`frame`] what they travel in,
//! [`bits`] the bit maps that stand for sets of vCPUs.
//!
//! Neither side trusts the other with memory: whatever arrives, a decoder holds one frame at most, and nothing is allocated on
//! the strength of a claimed length.

pub mod bits;
pub mod frame;

/// The messages, generated from `proto/guest.proto`.
#[allow(clippy::pedantic, missing_docs)]
pub mod wire {
    include!(concat!(env!("OUT_DIR"), "/ostler.guest.v1.rs"));
}

/// The port agents listen on, unless told otherwise.
pub const PORT: u32 = 1077;

/// The most vCPUs either side speaks of. With [`NICS_MAX`] and [`IRQS_MAX`] it keeps the largest honest State within
/// one frame.
pub const VCPUS_MAX: u32 = 1024;

/// The most NICs in a State.
pub const NICS_MAX: usize = 16;

/// The most interrupts in a State, over all NICs.
pub const IRQS_MAX: usize = 192;

/// The longest text either side sends, in bytes.
pub const TEXT_BYTES_MAX: usize = 256;

/// `text` cut to [`TEXT_BYTES_MAX`] at a character's boundary, with what isn't printable ASCII replaced: what a guest
/// says ends up in an operator's terminal.
pub fn bounded_text(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c == ' ' || c.is_ascii_graphic() {
                c
            } else {
                '?'
            }
        })
        .take(TEXT_BYTES_MAX)
        .collect()
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::{frame, wire, *};

    #[test]
    fn the_largest_honest_state_fits_a_frame() {
        let all = bits::from_ids(0..VCPUS_MAX);
        let irq = wire::QueueIrq {
            irq: u32::MAX,
            queue: u32::MAX,
            transmit: true,
            vcpus: all.clone(),
        };
        let mut nics = vec![
            wire::Nic {
                name: "a".repeat(15),
                mac: vec![255; 6],
                combined_current: u32::MAX,
                combined_max: u32::MAX,
                irqs: Vec::new(),
            };
            NICS_MAX
        ];
        nics[0].irqs = vec![irq; IRQS_MAX];
        let state = wire::State {
            online_vcpus: all.clone(),
            applied_vcpus: all,
            confined: true,
            nics,
            vcpu_times: (0..VCPUS_MAX)
                .map(|vcpu| wire::VcpuTime {
                    vcpu,
                    busy_ns: u64::MAX,
                    steal_ns: u64::MAX,
                })
                .collect(),
            monotonic_ns: u64::MAX,
            time_resolution_ns: u64::MAX,
        };
        let reply = wire::Reply {
            body: Some(wire::reply::Body::State(state)),
        };
        assert!(reply.encoded_len() <= frame::PAYLOAD_BYTES_MAX);
    }

    #[test]
    fn text_is_bounded_and_printable() {
        let text = bounded_text(&"\u{1b}[31mé".repeat(1000));
        assert_eq!(text.len(), TEXT_BYTES_MAX);
        assert!(text.starts_with("?[31m?"));
    }
}
