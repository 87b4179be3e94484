//! A few bytes there, the same back: what a round trip through TCP costs where the server does next to nothing (netperf's `TCP_RR`).
//!
//! The bytes are random, so that a reply can be told from another's.

use rand::Rng;

use super::{Protocol, Reply};
use crate::ledger::Outcome;

/// Length of a request, and of its reply.
const BYTES: usize = 8;

/// Requests that come back as they are.
#[derive(Debug, Clone, Copy)]
pub struct Echo;

/// How many bytes of the reply have come.
#[derive(Debug, Default)]
pub struct Parser {
    read: usize,
}

impl Protocol for Echo {
    type Request = [u8; BYTES];
    type Parser = Parser;

    fn draw(&self, rng: &mut impl Rng) -> [u8; BYTES] {
        rng.next_u64().to_be_bytes()
    }

    fn encode(&self, request: [u8; BYTES], out: &mut Vec<u8>) {
        out.extend_from_slice(&request);
    }

    fn parse(&self, parser: &mut Parser, request: [u8; BYTES], bytes: &[u8]) -> (usize, Reply) {
        let wanted = &request[parser.read..];
        let used = wanted.len().min(bytes.len());
        if bytes[..used] != wanted[..used] {
            return (used, Reply::Broken);
        }
        parser.read += used;
        if parser.read < BYTES {
            return (used, Reply::Incomplete);
        }
        parser.read = 0;
        (used, Reply::Complete(Outcome::Done))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::feed;
    use super::*;

    proptest! {
        #[test]
        fn replies_are_the_same_however_they_are_cut(
            requests in prop::collection::vec(any::<[u8; BYTES]>(), 1..20),
            cuts in prop::collection::vec(1..20_usize, 1..30),
        ) {
            let replies = feed(&Echo, &requests, &requests.concat(), &cuts);
            prop_assert_eq!(replies, vec![Reply::Complete(Outcome::Done); requests.len()]);
        }

        #[test]
        fn a_damaged_reply_breaks_the_lane(
            request: [u8; BYTES], at in 0..BYTES, flip in 1..=255_u8, cut in 1..=BYTES,
        ) {
            let mut bytes = request;
            bytes[at] ^= flip;
            prop_assert_eq!(feed(&Echo, &[request], &bytes, &[cut]), [Reply::Broken]);
        }

        #[test]
        fn a_short_reply_is_none(request: [u8; BYTES], length in 0..BYTES) {
            prop_assert!(feed(&Echo, &[request], &request[..length], &[3]).is_empty());
        }
    }
}
