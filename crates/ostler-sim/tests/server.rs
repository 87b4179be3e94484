//! A server on which VMs come and go: all policies have the same VMs, none conjures memory up, and the tier layer leaves no more unused than they leave.

use ostler_sim::memory::server::{By, Outcome, Server};

const ALL: [By; 5] = [
    By::Split(2.0 / 3.0),
    By::Pages {
        demote: 0.02,
        promote: 0.0,
    },
    By::Balloons,
    By::Fifo,
    By::Tier,
];

/// Two hours of a server that is smaller than the thesis', so that it fills up.
fn server(seed: u64) -> Server {
    let mut server = Server::thesis(40, 7200, seed);
    server.nodes[0].bytes = 128 << 30;
    server.nodes[1].bytes = 64 << 30;
    server
}

#[test]
fn all_policies_have_the_same_vms_and_none_has_less_unused_than_they_leave() {
    for seed in 1..=4 {
        let server = server(seed);
        let told: Vec<Outcome> = ALL.iter().map(|by| server.run(*by)).collect();
        let first = &told[0];
        assert!(first.came > 0 && first.seconds > 7199.0);
        assert_eq!(first.moved, 0, "a fixed split stays");
        for (by, told) in ALL.iter().zip(&told) {
            assert_eq!(
                (told.came, told.refused),
                (first.came, first.refused),
                "{by:?}"
            );
            assert!((told.load - first.load).abs() < 1e-9, "{by:?}");
            assert!(told.unused >= told.least_unused - 1e-9, "{by:?}");
            let most = told.seconds * server.tier.bytes_per_s.0 as f64;
            assert!(told.moved as f64 <= most, "{by:?}");
        }
    }
}

#[test]
fn the_tier_layer_leaves_what_the_vms_leave_and_keeps_the_rules() {
    for seed in 1..=4 {
        let server = server(seed);
        let told = server.run(By::Tier);
        assert_eq!((told.violations, told.dropped), (0, 0));
        // What stays free: the host's reserve, a step, and crumbs; and for a while what is on its way.
        let kept = server.tier.reserve.0 + 4 * server.tier.step.0;
        let kept = kept as f64 / server.nodes[0].bytes as f64;
        assert!(
            told.unused <= told.least_unused + kept + 0.01,
            "{} {}",
            told.unused,
            told.least_unused
        );
        assert_eq!(
            told,
            server.run(By::Tier),
            "the same arguments give the same"
        );
    }
}
