//! What should hold: a plan and a snapshot as settings. Pure, and without any choice: each setting is a word of the plan,
//! said in the kernel's terms.
//!
//! Within a guest's domain the threads of a kind get a cgroup (`ostler.vcpu`, `ostler.vhost`, `ostler.emulator`), and each
//! vCPU and vhost worker one of its own below that:
//!
//! ```text
//! machine.slice/web.scope          the domain: memory limits, the freezer
//!   ostler.vcpu                    cpuset.cpus: where vCPUs may run
//!     0, 1, ...                    cpuset.cpus: the vCPU's pin, or every CPU
//!   ostler.vhost
//!     <tid>, ...
//!   ostler.emulator                all other threads
//! ```
//!
//! The lower level is there even while threads float, because moving a thread between cgroups takes a lock that all
//! fork and exit on the host wait for, while a cpuset is one cheap write. So threads move once, when they are adopted; a
//! group of cores moves with one write; pins come and go with one write per thread. A thread that floats has every CPU in
//! its own cpuset, which the kernel cuts down to its group's. (Not an empty list, which would mean the same: older kernels
//! refuse one for a cgroup with threads in it.)
//!
//! A guest is weighed as a whole, in one cgroup: its domain, or the scope around that where systemd and libvirt made one. The cpu
//! controller comes down to it and no further, so that within a guest threads are weighed one by one, as everywhere.
//!
//! QEMU's threads are born into the cgroup of the thread that makes them, so new ones start in `ostler.emulator`, and are
//! adopted by the first snapshot that knows what they are.

use std::collections::BTreeMap;

use ostler_model::{
    Class, CpuSet, CpuWeight, Facts, GuestId, GuestPlan, GuestView, NicPlan, Plan, RunState,
    Snapshot, Tid,
};

use crate::boost::of_plan;
use crate::layout::{HOME, Layout, Placement};
use crate::order;
use crate::target::{join, parent};
use crate::{Target, Value};

/// The controller that threads are placed by.
pub(crate) const CPUSET: &str = "cpuset";

/// The controller that guests are weighed by.
const CPU: &str = "cpu";

/// A target with the value it should hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// What is set.
    pub target: Target,
    /// To what.
    pub value: Value,
    /// The guest that it is for; `None` for a NIC's.
    pub guest: Option<GuestId>,
}

/// Everything that should hold on the host, in the order in which it is to be written. Guests without a layout are left out.
pub fn settings(
    facts: &Facts,
    plan: &Plan,
    snapshot: &Snapshot,
    layouts: &BTreeMap<GuestId, Layout>,
) -> Vec<Setting> {
    let online = facts.topology.online();
    let mut seen = BTreeMap::new();
    let guests = plan.guests.iter().filter_map(|given| {
        let view = snapshot.guest(&given.guest)?;
        let layout = layouts.get(&given.guest)?;
        let homes = plan.vcpu_homes(given).collect();
        Some(of_guest(&online, given, &homes, view, layout))
    });
    let nics = plan.nics.iter().map(|nic| of_nic(facts, nic));
    let boost = plan.boost.iter().map(|boost| of_plan(boost, snapshot));
    for setting in guests
        .flatten()
        .chain(nics.flatten())
        .chain(boost.flatten())
    {
        seen.entry(setting.target.clone()).or_insert(setting);
    }
    let mut settings: Vec<Setting> = seen.into_values().collect();
    settings.sort_by_cached_key(|setting| order::key(&setting.target, &setting.value, None));
    settings
}

/// A guest's settings; `homes` are those of its vCPUs that don't float ([`Plan::vcpu_homes`]).
pub(crate) fn of_guest(
    online: &CpuSet,
    plan: &GuestPlan,
    homes: &BTreeMap<usize, CpuSet>,
    view: &GuestView,
    layout: &Layout,
) -> Vec<Setting> {
    if plan.class == Class::Unmanaged {
        return Vec::new();
    }
    let mut out = Out {
        guest: &plan.guest,
        list: Vec::new(),
    };
    // Nobody runs on no cores: a plan gives none to a suspended guest only, and what it may use doesn't matter then.
    let some = |cpus: &CpuSet| if cpus.is_empty() { *online } else { *cpus };
    let vcpus = Kind {
        name: "ostler.vcpu",
        cpus: some(&plan.vcpu_cpus),
        homes,
        float: online,
    };
    let pinned = plan.vhost_pins.iter().enumerate();
    let pinned = pinned.map(|(at, cpu)| (at, CpuSet::single(*cpu))).collect();
    let vhost = Kind {
        name: "ostler.vhost",
        cpus: some(&plan.vhost_cpus),
        homes: &pinned,
        float: online,
    };
    let emulator = some(&plan.emulator_cpus);
    let vcpu_threads = || view.vcpus.iter().map(|v| (v.index.to_string(), v.tid));
    // Named by the thread, not by its queue: that of a new worker isn't known at first, and two may say the same.
    let vhost_threads = || view.vhost.iter().map(|v| (v.tid.to_string(), v.tid));

    let cgroups = !matches!(layout.placement, Placement::Affinity { .. });
    if let (Some(domain), Some(home)) = (&layout.domain, &layout.moved_from)
        && (cgroups || plan.class == Class::BestEffort)
    {
        out.dir(HOME, false, None);
        out.dir(domain, false, Some(home));
        out.push(
            Target::Process { pid: view.pid },
            Value::Cgroup(domain.clone()),
        );
    }
    match (&layout.placement, &layout.domain) {
        (Placement::Children, Some(domain)) => {
            out.hand_down_from_root(domain, CPUSET);
            out.kind(domain, domain, &vcpus, view, vcpu_threads());
            if !view.vhost.is_empty() {
                out.kind(domain, domain, &vhost, view, vhost_threads());
            }
            let path = join(domain, "ostler.emulator");
            out.dir(&path, true, Some(domain));
            out.cpus(&path, emulator);
            for tid in &view.emulator {
                out.thread(view, *tid, &path);
            }
        }
        (
            Placement::Libvirt {
                emulator: cgroups,
                vcpus: by_index,
            },
            Some(domain),
        ) => {
            for (at, vcpu) in view.vcpus.iter().enumerate() {
                if let Some(path) = by_index.get(&vcpu.index) {
                    out.cpus(path, vcpus.cpus_of(at).unwrap_or(vcpus.cpus));
                }
            }
            for path in cgroups {
                out.cpus(path, emulator);
            }
            if !view.vhost.is_empty() {
                out.hand_down_from_root(domain, CPUSET);
                let strays = join(domain, "emulator");
                out.kind(domain, &strays, &vhost, view, vhost_threads());
            }
        }
        _ => {
            let vcpu = view.vcpus.iter().map(|v| v.tid).enumerate();
            for (at, tid) in vcpu {
                out.affinity(view, tid, vcpus.cpus_of(at).unwrap_or(vcpus.cpus));
            }
            for (at, tid) in view.vhost.iter().map(|v| v.tid).enumerate() {
                out.affinity(view, tid, vhost.cpus_of(at).unwrap_or(vhost.cpus));
            }
            for tid in &view.emulator {
                out.affinity(view, *tid, emulator);
            }
        }
    }
    if let Some(cgroup) = &layout.weighed {
        out.weigh(cgroup, plan.weight);
    }
    // Only that it is frozen is a setting. A guest that is to run is no longer to be frozen: what we froze is thawed then,
    // and what an administrator froze stays frozen.
    if plan.run == RunState::Suspended
        && let Some(domain) = &layout.domain
    {
        let cgroup = domain.clone();
        out.push(Target::Freeze { cgroup }, Value::Flag(true));
    }
    out.list
}

/// A NIC's settings.
pub(crate) fn of_nic(facts: &Facts, plan: &NicPlan) -> Vec<Setting> {
    let mut list = Vec::new();
    let mut push = |target, value| {
        list.push(Setting {
            target,
            value,
            guest: None,
        });
    };
    for irq in plan.irqs.iter().filter(|irq| !irq.cpus.is_empty()) {
        push(Target::Irq { irq: irq.irq }, Value::Cpus(irq.cpus));
    }
    for (queue, cpus) in (0..).zip(&plan.rps) {
        let nic = plan.name.clone();
        push(Target::Rps { nic, queue }, Value::Cpus(*cpus));
    }
    for (queue, cpus) in (0..).zip(&plan.xps) {
        let nic = plan.name.clone();
        push(Target::Xps { nic, queue }, Value::Cpus(*cpus));
    }
    let settable = facts
        .nics
        .iter()
        .any(|nic| nic.name == plan.name && nic.rss_settable);
    if settable && plan.queues > 0 {
        let nic = plan.name.clone();
        push(Target::Rss { nic }, Value::Spread(plan.queues));
    }
    list
}

/// A kind of threads, each in a cgroup of its own.
struct Kind<'a> {
    name: &'a str,
    cpus: CpuSet,
    homes: &'a BTreeMap<usize, CpuSet>,
    float: &'a CpuSet,
}

impl Kind<'_> {
    /// Where the thread at this place is to stay.
    fn cpus_of(&self, at: usize) -> Option<CpuSet> {
        self.homes.get(&at).copied()
    }
}

struct Out<'a> {
    guest: &'a GuestId,
    list: Vec<Setting>,
}

impl Out<'_> {
    fn push(&mut self, target: Target, value: Value) {
        let guest = Some(self.guest.clone());
        self.list.push(Setting {
            target,
            value,
            guest,
        });
    }

    fn dir(&mut self, cgroup: &str, threaded: bool, strays: Option<&str>) {
        let target = Target::Dir {
            cgroup: cgroup.to_owned(),
        };
        let strays = strays.map(str::to_owned);
        self.push(target, Value::Dir { threaded, strays });
    }

    fn cpus(&mut self, cgroup: &str, cpus: CpuSet) {
        let cgroup = cgroup.to_owned();
        self.push(Target::Cpus { cgroup }, Value::Cpus(cpus));
    }

    fn thread(&mut self, view: &GuestView, tid: Tid, cgroup: &str) {
        let pid = view.pid;
        self.push(
            Target::Thread { pid, tid },
            Value::Cgroup(cgroup.to_owned()),
        );
    }

    fn affinity(&mut self, view: &GuestView, tid: Tid, cpus: CpuSet) {
        let pid = view.pid;
        self.push(Target::Affinity { pid, tid }, Value::Cpus(cpus));
    }

    fn hand_down(&mut self, cgroup: &str, controller: &str) {
        let target = Target::Subtree {
            cgroup: cgroup.to_owned(),
            controller: controller.to_owned(),
        };
        self.push(target, Value::Flag(true));
    }

    /// A controller is there only where every cgroup on the way from the root hands it down.
    fn hand_down_from_root(&mut self, last: &str, controller: &str) {
        let mut at = Some(last);
        while let Some(cgroup) = at {
            self.hand_down(cgroup, controller);
            at = parent(cgroup);
        }
    }

    /// A guest that has its own weight has no setting for it, like one that runs: what we set is taken back then.
    fn weigh(&mut self, cgroup: &str, weight: CpuWeight) {
        let Some(up) = parent(cgroup).filter(|_| weight != CpuWeight::Untouched) else {
            return;
        };
        self.hand_down_from_root(up, CPU);
        let of = || cgroup.to_owned();
        match weight {
            CpuWeight::Untouched | CpuWeight::AsFound => {}
            CpuWeight::Weight(weight) => {
                self.push(Target::Weight { cgroup: of() }, Value::Weight(weight));
            }
            CpuWeight::Idle => {
                // The kernel forgets the weight of a cgroup that is made idle, and gives it the default afterwards. So the one it had is
                // journaled first, as that of any value is, by setting it to what it will be.
                let default = Value::Weight(CpuWeight::DEFAULT);
                self.push(Target::Weight { cgroup: of() }, default);
                self.push(Target::Idle { cgroup: of() }, Value::Flag(true));
            }
        }
    }

    fn kind(
        &mut self,
        domain: &str,
        strays: &str,
        kind: &Kind<'_>,
        view: &GuestView,
        threads: impl Iterator<Item = (String, Tid)>,
    ) {
        let group = join(domain, kind.name);
        self.dir(&group, true, Some(strays));
        self.hand_down(&group, CPUSET);
        self.cpus(&group, kind.cpus);
        for (at, (name, tid)) in threads.enumerate() {
            let path = join(&group, &name);
            self.dir(&path, true, Some(strays));
            self.cpus(&path, kind.cpus_of(at).unwrap_or(*kind.float));
            self.thread(view, tid, &path);
        }
    }
}
