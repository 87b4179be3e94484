//! ICMP echo: what the way to a machine and back costs where nothing but its kernel answers.
//!
//! The kernel here picks the identifier, one for each socket, and makes the checksums. A reply is a request's if it has its sequence
//! number and brings its payload back. The sequence number's 16 bits wrap; the payload begins with 64 random ones, which nobody knows
//! before the request has reached them, so that no reply can be given in advance.

use rand::Rng;

use super::{Protocol, Reply, Wire};
use crate::ledger::Outcome;

/// RFC 792's types.
const ECHO: u8 = 8;
const ECHO_REPLY: u8 = 0;
/// Type, code, checksum, identifier, sequence number.
const HEADER_BYTES: usize = 8;
/// As much as ping(8) sends.
const BYTES: usize = HEADER_BYTES + 56;

/// Echo requests.
#[derive(Debug, Clone, Copy)]
pub struct Ping;

/// Sequence number and payload.
fn body(token: u64) -> [u8; BYTES - 6] {
    let mut body = [0; BYTES - 6];
    let token = token.to_be_bytes();
    body[..2].copy_from_slice(&token[..2]);
    body[2..10].copy_from_slice(&token);
    body
}

impl Protocol for Ping {
    type Request = u64;
    type Parser = ();

    fn wire(&self) -> Wire {
        Wire::Icmp { bytes: BYTES }
    }

    fn draw(&self, rng: &mut impl Rng) -> u64 {
        rng.next_u64()
    }

    fn encode(&self, request: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(&[ECHO, 0, 0, 0, 0, 0]);
        out.extend_from_slice(&body(request));
    }

    fn parse(&self, (): &mut (), request: u64, bytes: &[u8]) -> (usize, Reply) {
        let answers =
            bytes.len() == BYTES && bytes[..2] == [ECHO_REPLY, 0] && bytes[6..] == body(request);
        let reply = if answers {
            Reply::Complete(Outcome::Done)
        } else {
            Reply::Incomplete
        };
        (bytes.len(), reply)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reply_to(request: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        Ping.encode(request, &mut bytes);
        assert_eq!(Wire::Icmp { bytes: bytes.len() }, Ping.wire());
        bytes[0] = ECHO_REPLY;
        // Checksum and identifier are the kernel's.
        bytes[2..6].fill(0xa5);
        bytes
    }

    fn judged(request: u64, bytes: &[u8]) -> Reply {
        let (used, reply) = Ping.parse(&mut (), request, bytes);
        assert_eq!(used, bytes.len(), "a datagram is taken whole");
        reply
    }

    proptest! {
        #[test]
        fn a_reply_is_its_own_requests_alone(one: u64, other: u64) {
            prop_assume!(one != other);
            prop_assert_eq!(judged(one, &reply_to(one)), Reply::Complete(Outcome::Done));
            prop_assert_eq!(judged(other, &reply_to(one)), Reply::Incomplete);
        }

        #[test]
        fn a_damaged_reply_answers_nothing(request: u64, at in 0..BYTES, flip in 1..=255_u8) {
            prop_assume!(!(2..6).contains(&at));
            let mut bytes = reply_to(request);
            bytes[at] ^= flip;
            prop_assert_eq!(judged(request, &bytes), Reply::Incomplete);
        }

        #[test]
        fn a_reply_of_another_length_answers_nothing(request: u64, length in 0..2 * BYTES) {
            prop_assume!(length != BYTES);
            let mut bytes = reply_to(request);
            bytes.resize(length, 0);
            prop_assert_eq!(judged(request, &bytes), Reply::Incomplete);
        }

        #[test]
        fn random_bytes_answer_nothing(request: u64, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(judged(request, &bytes), Reply::Incomplete);
        }
    }
}
