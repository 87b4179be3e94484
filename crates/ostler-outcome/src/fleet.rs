//! What came of a fleet's VMs and hosts: who of those that users wait for waited too long, under each policy.

use serde::{Deserialize, Serialize};

/// What came of a VM.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VmOutcome {
    /// Its number, of its name in the trace.
    pub vm: u64,
    /// That name, where it was looked up: of those that miss the objective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The host that it was on.
    pub host: u32,
    /// Whether somebody waits for it: then it has the fleet's objective.
    pub interactive: bool,
    /// Its vCPUs.
    pub vcpus: u32,
    /// How long it was there, s.
    pub seconds: f64,
    /// Requests, or pieces of work, that came.
    pub sent: u64,
    /// And that were done.
    pub answered: u64,
    /// Response times; `None` where nothing was done. Where there is an objective, those that were never answered count with their age when the VM goes.
    pub p50_us: Option<f64>,
    /// 95th percentile.
    pub p95_us: Option<f64>,
    /// 99th percentile.
    pub p99_us: Option<f64>,
    /// Whether its P95 was above the objective, where it has one.
    pub breaks_slo: bool,
    /// What its vCPUs ran, s.
    pub ran_s: f64,
    /// How long they waited for a core, s.
    pub waited_s: f64,
}

/// What came of a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostOutcome {
    /// Which.
    pub host: u32,
    /// The most vCPUs that it had at a time, to a core.
    pub ratio_peak: f64,
    /// How busy its cores were, as a share.
    pub busy: f64,
    /// Energy of all its cores, J.
    pub energy_j: f64,
    /// Switches of threads.
    pub ctx_switches: u64,
    /// Plans that asked for something new, and that the checker refused.
    pub plan_changes: u64,
    /// See above.
    pub plans_refused: u64,
    /// How much happened in its world.
    pub events: u64,
    /// Its VMs.
    pub vms: Vec<VmOutcome>,
    /// What was wrong with its books, where they were kept twice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// A line of what is kept of a fleet's run, so that it can be gone on with: first what is run, then each host when it is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum FleetEvent {
    /// What is run. A line that says something else is of another run.
    Fleet {
        /// Revision of the sources.
        revision: String,
        /// The scenario, as the text of a file, with the policies that are run.
        scenario: String,
        /// What everything random is drawn from.
        seed: u64,
        /// Each is run at these.
        oversubscription: Vec<f64>,
        /// The VMs, as a number that is another one for others: a trace's files may have changed.
        vms: String,
        /// Whether its hosts' books are kept twice.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        audited: bool,
    },
    /// What came of a host.
    Host {
        /// Under which policy.
        policy: String,
        /// At how many vCPUs for a core.
        oversubscription: f64,
        /// It.
        outcome: HostOutcome,
    },
}

/// What came of a fleet under a policy: a line of `ostler sim --json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FleetLine {
    /// The policy.
    pub policy: String,
    /// vCPUs that may come to a host for each of its cores.
    pub oversubscription: f64,
    /// Hosts, and those of them that had a VM.
    pub hosts: u32,
    /// See above.
    pub hosts_used: u32,
    /// VMs that came to a host, and that found no room.
    pub vms: u32,
    /// See above.
    pub turned_away: u32,
    /// Of those that came, the ones with users.
    pub interactive: u32,
    /// Of these, those whose P95 was above the objective.
    pub broken: u32,
    /// The same as a share; `None` of none.
    pub broken_share: Option<f64>,
    /// Over VMs with users, the median, and the 95th percentile, of their P95s.
    pub p95_median_us: Option<f64>,
    /// See above.
    pub p95_worst_us: Option<f64>,
    /// Of the time that vCPUs of VMs with users wanted a core, the share in which they waited for one.
    pub waiting_share: Option<f64>,
    /// The same of all others.
    pub others_waiting_share: Option<f64>,
    /// How busy cores of hosts in use were, as a share.
    pub busy: f64,
    /// Energy of all cores of hosts in use, J.
    pub energy_j: f64,
    /// Plans that the checker refused.
    pub plans_refused: u64,
}

impl FleetLine {
    /// Of all hosts under a policy.
    pub fn of(
        policy: &str,
        oversubscription: f64,
        turned_away: usize,
        hosts: &[HostOutcome],
    ) -> FleetLine {
        let used = || hosts.iter().filter(|host| !host.vms.is_empty());
        let vms = || hosts.iter().flat_map(|host| &host.vms);
        let with_users = || vms().filter(|vm| vm.interactive);
        let count = |vms: usize| u32::try_from(vms).unwrap_or(u32::MAX);
        let mut p95s: Vec<f64> = with_users().filter_map(|vm| vm.p95_us).collect();
        p95s.sort_by(f64::total_cmp);
        let at = |hundredths: usize| {
            let rank = (p95s.len() * hundredths).div_ceil(100).max(1) - 1;
            p95s.get(rank).copied()
        };
        let waiting = |interactive: bool| {
            let mine = || vms().filter(|vm| vm.interactive == interactive);
            let waited: f64 = mine().map(|vm| vm.waited_s).sum();
            let ran: f64 = mine().map(|vm| vm.ran_s).sum();
            (waited + ran > 0.0).then(|| waited / (waited + ran))
        };
        let interactive = with_users().count();
        let broken = with_users().filter(|vm| vm.breaks_slo).count();
        FleetLine {
            policy: policy.to_owned(),
            oversubscription,
            hosts: count(hosts.len()),
            hosts_used: count(used().count()),
            vms: count(vms().count()),
            turned_away: count(turned_away),
            interactive: count(interactive),
            broken: count(broken),
            broken_share: (interactive > 0).then(|| broken as f64 / interactive as f64),
            p95_median_us: at(50),
            p95_worst_us: at(95),
            waiting_share: waiting(true),
            others_waiting_share: waiting(false),
            busy: used().map(|host| host.busy).sum::<f64>() / (used().count().max(1) as f64),
            energy_j: used().map(|host| host.energy_j).sum(),
            plans_refused: hosts.iter().map(|host| host.plans_refused).sum(),
        }
    }
}
