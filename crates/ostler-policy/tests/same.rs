//! What is decided is a function of what goes in, to the bit, and whatever is done for speed leaves it as it is.

use ostler_model::State;
use ostler_model::testing::{World, layered};
use ostler_policy::Decider;
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Worlds that are drawn, and periods in each.
const WORLDS: usize = 400;
const PERIODS: usize = 5;
/// What came of them when this was written. A change of what is decided changes it, and is to say why; so does a change of what worlds are drawn, by
/// `ostler_model::testing` or by another version of proptest.
const DECIDED: u64 = 9_086_546_542_164_906_244;

/// FNV-1a.
fn hash(hash: u64, bytes: &[u8]) -> u64 {
    let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(hash, add)
}

/// All that is decided in a world, one period after the other.
fn decided(world: &World, mut sum: u64) -> u64 {
    let mut state = State::default();
    let mut decider = Decider::default();
    let mut drawn = 0;
    let mut random = || {
        drawn += 1;
        drawn
    };
    for snapshot in &world.snapshots {
        let (facts, intent, now) = (&world.facts, &world.intent, snapshot.at);
        let decision = decider.decide(facts, snapshot, intent, &state, now, &mut random);
        state = decision.state.clone();
        let all = (&decision.plan, &decision.reasons, &decision.state);
        sum = hash(sum, &serde_json::to_vec(&all).expect("values of the model"));
    }
    sum
}

#[test]
fn the_same_is_decided_everywhere() {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut sum = 0xcbf2_9ce4_8422_2325;
    for _ in 0..WORLDS {
        let world = layered(PERIODS).new_tree(&mut runner);
        sum = decided(&world.expect("a world").current(), sum);
    }
    assert_eq!(sum, DECIDED, "something else is decided than before");
}
