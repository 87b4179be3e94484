//! Guests in libvirt's own tree, in the shape that libvirt 11.3 makes on a host without systemd. What is special about it:
//! libvirt makes a vCPU's cgroup after QEMU has made the thread, so there are moments in which the tree is half there; and
//! it gives up on a domain whose threads someone moved out of it.

mod world;

use ostler_act::{Actuator, Origins, Placement, survey};
use ostler_model::{
    Class, CpuSet, CpuWeight, ForeignPolicy, GuestId, GuestPlan, Plan, RunState, Snapshot,
};
use world::kernel::{Kernel, State};
use world::run::{actuator, scratch, undo_all};
use world::{Guest, Kind, World, facts};

const DOMAIN: &str = "/machine/qemu-1-web.libvirt-qemu";
const PID: u32 = 278;
/// The leader, a worker, two vhost workers of queues and one of vsock, and the monitor's thread.
const EMULATOR: [u32; 6] = [278, 280, 282, 283, 284, 288];
const VHOST: [u32; 3] = [282, 283, 288];
const IOTHREAD: u32 = 281;
const VCPUS: [u32; 2] = [285, 286];
/// `kvm-nx-lpage-recovery`, which KVM makes from the thread that makes the VM's first vCPU run.
const KVM: u32 = 289;
const PLUGGED: u32 = 290;

/// A host as found, with a domain of which libvirt has made only the cgroups named here.
struct Stage {
    world: World,
    kernel: Kernel,
    _scratch: tempfile::TempDir,
    steward: Actuator,
    journal: std::path::PathBuf,
}

fn thread(state: &mut State, cgroup: &str, tids: &[u32]) {
    let path = format!("{DOMAIN}/{cgroup}");
    state.mkdir(&path);
    state.cgroups.get_mut(&path).unwrap().threaded = true;
    for &tid in tids {
        state.spawn(PID, tid, u64::from(tid), &path);
    }
}

impl Stage {
    fn new(vcpus: impl FnOnce(&mut State)) -> Stage {
        let mut state = State::new();
        state.mkdir(DOMAIN);
        for (cgroup, controllers) in [
            ("/", &["cpuset", "cpu", "memory"][..]),
            ("/machine", &["cpuset", "cpu", "memory"]),
            (DOMAIN, &["cpuset", "cpu"]),
        ] {
            let subtree = &mut state.cgroups.get_mut(cgroup).unwrap().subtree;
            subtree.extend(controllers.iter().map(|&name| name.to_owned()));
        }
        state.cgroups.get_mut("/machine").unwrap().cpus = CpuSet::range(0, 6);
        thread(&mut state, "emulator", &EMULATOR);
        thread(&mut state, "iothread1", &[IOTHREAD]);
        vcpus(&mut state);
        let rest = EMULATOR.iter().filter(|tid| !VHOST.contains(tid));
        let guest = Guest {
            id: GuestId::from("web"),
            kind: Kind::Libvirt,
            home: format!("{DOMAIN}/emulator"),
            pid: PID,
            vcpus: VCPUS.to_vec(),
            vhost: VHOST.to_vec(),
            emulator: rest.copied().chain([IOTHREAD, KVM]).collect(),
        };
        let kernel = Kernel::new(state);
        let scratch = scratch();
        let journal = scratch.path().join("journal");
        Stage {
            world: World::of(vec![guest], 8),
            steward: actuator(&kernel, &journal, ForeignPolicy::Respect),
            kernel,
            _scratch: scratch,
            journal,
        }
    }

    fn complete() -> Stage {
        Stage::new(|state| {
            thread(state, "vcpu0", &[VCPUS[0], KVM]);
            thread(state, "vcpu1", &[VCPUS[1]]);
        })
    }

    fn snapshot(&self) -> Snapshot {
        self.world.snapshot(&self.kernel)
    }

    fn period(&mut self) {
        let cpus = |list: &str| list.parse::<CpuSet>().unwrap();
        let plan = Plan {
            generation: 1,
            guests: vec![GuestPlan {
                guest: GuestId::from("web"),
                class: Class::LatencyCritical,
                run: RunState::Running,
                weight: CpuWeight::Untouched,
                vcpu_cpus: cpus("0-1"),
                vcpu_pins: Vec::new(),
                vhost_cpus: cpus("2"),
                vhost_pins: Vec::new(),
                emulator_cpus: cpus("3-5"),
                vcpus_active: None,
                queues: None,
            }],
            ..Plan::default()
        };
        let outcome = self
            .steward
            .apply(&facts(), &self.snapshot(), &plan)
            .expect("a journal");
        assert_eq!(outcome.failures, [], "nothing is refused");
        assert_eq!(outcome.foreign, [], "nobody gets in anybody's way");
    }

    fn runs_on(&self, tid: u32) -> String {
        let state = &self.kernel.lock().state;
        state.effective(&state.tasks[&tid].cgroup).to_string()
    }

    fn cgroup(&self, tid: u32) -> String {
        self.kernel.lock().state.tasks[&tid].cgroup.clone()
    }
}

#[test]
fn a_domain_is_placed_in_libvirts_own_tree_and_undone() {
    let mut stage = Stage::complete();
    let found = stage.kernel.lock().state.clone();
    stage.period();
    for (tid, cpus) in [
        (VCPUS[0], "0-1"),
        (VCPUS[1], "0-1"),
        (VHOST[2], "2"),
        (PID, "3-5"),
        (IOTHREAD, "3-5"),
    ] {
        assert_eq!(stage.runs_on(tid), cpus, "thread {tid}");
    }
    assert_eq!(stage.cgroup(VCPUS[1]), format!("{DOMAIN}/vcpu1"));
    assert!(
        stage
            .cgroup(VHOST[0])
            .starts_with(&format!("{DOMAIN}/ostler.vhost/"))
    );
    drop(stage.steward);
    let report = undo_all(&stage.kernel, &stage.journal);
    assert_eq!(report.left, []);
    assert!(stage.kernel.lock().state == found, "all is as it was found");
}

/// A domain that starts: its threads are there, and libvirt is about to make cgroups for its vCPUs.
#[test]
fn a_domain_that_starts_stays_in_libvirts_tree() {
    let mut stage = Stage::new(|state| {
        let path = format!("{DOMAIN}/emulator");
        for tid in VCPUS.into_iter().chain([KVM]) {
            state.spawn(PID, tid, u64::from(tid), &path);
        }
    });
    let guest = &stage.snapshot().guests[0];
    let layout = survey(&stage.kernel, guest, &Origins::new());
    assert!(
        matches!(&layout.placement, Placement::Libvirt { vcpus, .. } if vcpus.is_empty()),
        "{layout:?}"
    );
    stage.period();
    assert_eq!(stage.cgroup(PID), format!("{DOMAIN}/emulator"));
    assert!(!stage.kernel.lock().state.cgroups.contains_key("/ostler"));
    // libvirt goes on; nothing that a snapshot shows tells of it.
    {
        let mut kernel = stage.kernel.lock();
        thread(&mut kernel.state, "vcpu0", &VCPUS[..1]);
        thread(&mut kernel.state, "vcpu1", &VCPUS[1..]);
    }
    stage.period();
    assert_eq!(stage.runs_on(VCPUS[0]), "0-1");
    assert_eq!(stage.runs_on(VCPUS[1]), "0-1");
}

#[test]
fn a_vcpu_that_is_plugged_in_gets_its_cores_when_libvirt_has_placed_it() {
    let mut stage = Stage::complete();
    stage.period();
    // QEMU's thread is there first, born among the emulator's...
    stage.world.guests[0].vcpus.push(PLUGGED);
    let put = |stage: &Stage, cgroup: &str| {
        thread(&mut stage.kernel.lock().state, cgroup, &[PLUGGED]);
    };
    put(&stage, "emulator");
    stage.period();
    // ... and then libvirt gives it its own, some periods later.
    for _ in 0..200 {
        stage.period();
    }
    put(&stage, "vcpu2");
    stage.period();
    assert_eq!(stage.runs_on(PLUGGED), "0-1");
    // Unplugged, thread first.
    stage.world.guests[0].vcpus.pop();
    stage.kernel.lock().state.tasks.remove(&PLUGGED);
    stage.period();
    stage
        .kernel
        .lock()
        .state
        .cgroups
        .remove(&format!("{DOMAIN}/vcpu2"));
    stage.period();
    stage.period();
}

/// libvirt makes a cgroup, gives it the CPUs of the domain's description, and then puts the thread there. One that is seen in
/// between is not ours to set yet: libvirt would overwrite it, and we would take that for somebody's wish and leave it.
#[test]
fn a_cgroup_that_libvirt_is_still_making_is_left_alone() {
    const PLUGGED_IO: u32 = 291;
    let mut stage = Stage::complete();
    stage.period();
    stage.world.guests[0].vcpus.push(PLUGGED);
    stage.world.guests[0].emulator.push(PLUGGED_IO);
    let plugged = [(PLUGGED, "vcpu2", "0-1"), (PLUGGED_IO, "iothread2", "3-5")];
    {
        let mut kernel = stage.kernel.lock();
        thread(&mut kernel.state, "emulator", &[PLUGGED, PLUGGED_IO]);
        for (_, cgroup, _) in plugged {
            thread(&mut kernel.state, cgroup, &[]);
        }
    }
    stage.period();
    {
        let mut kernel = stage.kernel.lock();
        for (tid, cgroup, _) in plugged {
            let path = format!("{DOMAIN}/{cgroup}");
            kernel.state.cgroups.get_mut(&path).unwrap().cpus = CpuSet::range(0, 5);
            thread(&mut kernel.state, cgroup, &[tid]);
        }
    }
    stage.period();
    for (tid, _, cpus) in plugged {
        assert_eq!(stage.runs_on(tid), cpus, "thread {tid}");
    }
}
