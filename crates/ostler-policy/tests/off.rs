//! With every layer off but partition and boost, decisions are what they were before there were others: byte for byte, reasons and what is
//! remembered included.

mod support;

use ostler_model::{BoostSettings, PartitionPolicy, QueueCount, SharedCores};
use sha2::{Digest as _, Sha256};
use support::{Fluid, intent};

/// Of everything decided over a ramp of load up and down, under every policy, with the boost and without. Taken from the revision before
/// placement, tier, sizing and hints were composed.
const BEFORE: &str = "803e160ab849eb75fce01429c2dc4e5dd2577fb0b3a3da5ab030d93528df299c";

#[test]
fn layers_that_are_off_change_no_decision() {
    let queues = QueueCount::Max;
    let policies = [
        PartitionPolicy::Performance,
        PartitionPolicy::Energy,
        PartitionPolicy::Resource,
        PartitionPolicy::CoreNap,
        PartitionPolicy::TimeSharing { queues },
        PartitionPolicy::Static { vcpu: 7, nq: 2 },
        PartitionPolicy::Demeter { queues },
    ];
    let mut hash = Sha256::new();
    for policy in policies {
        for boosted in [false, true] {
            let mut intent = intent(policy);
            if boosted {
                intent.boost = Some(BoostSettings::default());
                intent.partition.best_effort = SharedCores::Equal;
            }
            let mut host = Fluid::new(12, intent, true);
            for at in 0..120_u32 {
                let load = f64::from(60 - at.abs_diff(60)) / 60.0;
                host.step(0.3 + 6.0 * load, 0.2 + 2.5 * load, |step| {
                    (at % 7 != 0).then_some(step.vcpu)
                });
                let decided = (&host.plan, &host.reasons, &host.state);
                hash.update(serde_json::to_vec(&decided).unwrap());
            }
        }
    }
    let found = hash
        .finalize()
        .iter()
        .fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    assert_eq!(found, BEFORE);
}
