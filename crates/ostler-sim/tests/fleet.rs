//! Fleets: VMs of a trace on hosts that they share.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;

use ostler_model::Nanos;
use ostler_outcome::fleet::{FleetLine, HostOutcome};
use ostler_scenario::Scenario;
use ostler_sim::fleet::{Demand, Fleet};
use ostler_sim::scenario::Simulated;

fn scenario(ratio: f64, more: &str) -> Scenario {
    let text = format!(
        r#"
name = "fleet"
summary = "VMs of a trace on four hosts."
[host]
cores = 8
memory = "64G"
pnic_queues = 2
instruction_ns = 0.3333
[fleet]
hosts = 4
oversubscription = {ratio}
placement = "worst-fit"
slo_p95 = "100ms"
generate = 60
lasts = "20s"
[[policy]]
name = "vanilla"
[[policy]]
name = "boost"
[policy.steward.partition]
policy = "time-sharing"
queues = "one"
[policy.steward.boost]
mode = "io"
{more}
"#
    );
    Scenario::parse(&text, Path::new("fleet.toml"), &Simulated).expect("a scenario")
}

fn fleet(ratio: f64, more: &str) -> Fleet {
    // A fifth busier than the trace's VMs, so that there is something to see in seconds.
    let mut demand = Demand::generated(60, Nanos::from_secs(20), 3);
    for vm in &mut demand.vms {
        for (_, busy) in &mut vm.busy {
            *busy = (*busy * 1.2).min(1.0);
        }
    }
    Fleet::new(scenario(ratio, more), demand, 1).expect("a fleet")
}

fn run(fleet: &Fleet, policy: usize, threads: usize) -> Vec<HostOutcome> {
    let policy = &fleet.scenario().policies[policy];
    let threads = NonZeroUsize::new(threads).expect("some");
    fleet.run(policy, threads, &|_| {}).expect("hosts")
}

#[test]
fn hosts_come_to_the_same_on_any_number_of_threads() {
    let fleet = fleet(4.0, "");
    assert_eq!(run(&fleet, 1, 1), run(&fleet, 1, 4));
}

#[test]
fn books_kept_twice_are_right_and_change_nothing() {
    let failing = "[[fault]]\nkind = \"host-fails\"\nhost = 0\nat = \"10s\"\n";
    for policy in [0, 1] {
        let audited = run(&fleet(4.0, failing).audited(true), policy, 2);
        let wrong: Vec<_> = audited.iter().flat_map(|host| &host.problems).collect();
        assert_eq!(wrong, Vec::<&String>::new());
        assert_eq!(audited, run(&fleet(4.0, failing), policy, 2));
    }
}

#[test]
fn some_hosts_come_to_what_they_come_to_among_all() {
    let fleet = fleet(4.0, "");
    let all = run(&fleet, 1, 2);
    let policy = &fleet.scenario().policies[1];
    let threads = NonZeroUsize::new(2).expect("some");
    let mut some = Vec::new();
    let asked = fleet.each(policy, &[3, 1, 2], threads, &|_| {}, &mut |host| {
        some.push(host);
        if some.len() < 2 {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    });
    asked.expect("hosts");
    assert_eq!(some, [all[3].clone(), all[1].clone()]);
}

#[test]
fn vms_are_as_busy_as_the_trace_says_where_there_are_cores_for_all() {
    let fleet = fleet(1.0, "");
    let hosts = run(&fleet, 0, 2);
    let vms: Vec<_> = hosts.iter().flat_map(|host| &host.vms).collect();
    assert!(vms.len() > 10, "{}", vms.len());
    let ran: f64 = vms.iter().map(|vm| vm.ran_s).sum();
    let demand = Demand::generated(60, Nanos::from_secs(20), 3);
    let placed = fleet.placed().hosts.iter().flatten();
    let wanted: f64 = placed
        .map(|at| {
            let vm = &demand.vms[*at];
            let seconds = vm.until.saturating_sub(vm.from).as_secs_f64();
            (vm.busy[0].1 * 1.2).min(1.0) * f64::from(vm.vm.cores) * seconds
        })
        .sum();
    assert!((ran / wanted - 1.0).abs() < 0.1, "{ran} for {wanted}");
    let line = FleetLine::of("vanilla", 1.0, fleet.placed().turned_away.len(), &hosts);
    assert_eq!(
        line.vms as usize + line.turned_away as usize,
        demand.vms.len()
    );
    assert!(
        line.turned_away > 0,
        "one vCPU to a core has no room for all"
    );
}

#[test]
fn who_shares_more_waits_more_and_a_host_that_fails_does_nothing_more() {
    let line = |ratio, policy: usize| {
        let fleet = fleet(ratio, "");
        let hosts = run(&fleet, policy, 2);
        let turned_away = fleet.placed().turned_away.len();
        FleetLine::of(
            &fleet.scenario().policies[policy].name,
            ratio,
            turned_away,
            &hosts,
        )
    };
    let (apart, shared) = (line(1.0, 0), line(8.0, 0));
    assert!(shared.vms > apart.vms);
    assert!(
        shared.waiting_share > apart.waiting_share,
        "{apart:?} {shared:?}"
    );
    assert_eq!(line(8.0, 1).plans_refused, 0);
    let failing = fleet(
        4.0,
        "[[fault]]\nkind = \"host-fails\"\nhost = 0\nat = \"10s\"\n",
    );
    let (well, failed) = (run(&fleet(4.0, ""), 0, 2), run(&failing, 0, 2));
    assert_eq!(well[1..], failed[1..]);
    let ran = |host: &HostOutcome| host.vms.iter().map(|vm| vm.ran_s).sum::<f64>();
    let share = ran(&failed[0]) / ran(&well[0]);
    assert!((0.4..0.6).contains(&share), "{share}");
}

/// Who is never answered any more isn't served in time, however fast those before were.
#[test]
fn whose_host_fails_misses_the_objective() {
    let failing = "[[fault]]\nkind = \"host-fails\"\nhost = 0\nat = \"5s\"\n";
    let (well, failed) = (run(&fleet(1.0, ""), 0, 2), run(&fleet(1.0, failing), 0, 2));
    let mut cut_off = 0;
    for (before, after) in well[0].vms.iter().zip(&failed[0].vms) {
        let unanswered = after.sent - after.answered;
        if after.interactive && unanswered * 10 > after.sent && after.sent > 100 {
            cut_off += 1;
            assert!(
                !before.breaks_slo && after.breaks_slo,
                "{before:?} {after:?}"
            );
            // What is told of it is no less than for how long it has had no answer.
            assert!(after.p95_us > Some(10e6), "{after:?}");
        }
    }
    assert!(cut_off > 0, "{failed:?}");
    // A request that was on its way when its VM went, or the time was over, is none that waited in vain.
    let vms = well.iter().flat_map(|host| &host.vms);
    let calm = vms.filter(|vm| vm.interactive && vm.sent > vm.answered && !vm.breaks_slo);
    assert!(calm.count() > 0);
}
