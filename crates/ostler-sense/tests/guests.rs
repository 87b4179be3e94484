//! Guests are found, followed and lost; and no monitor, however it behaves, holds the loop up.

mod common;

use std::time::{Duration, Instant};

use common::{FakeGuest, allowed, named, until};
use ostler_model::{GuestId, Nanos, Snapshot};
use ostler_sense::{Bell, SenseConfig, Sensor, now};
use rustix::process::Signal;

/// Not a test: the process that [`FakeGuest`] starts.
#[test]
fn as_guest() {
    common::run_as_guest();
}

fn sensor(folder: &tempfile::TempDir, bpf: bool) -> Sensor {
    Sensor::new(config(folder, bpf)).unwrap()
}

fn config(folder: &tempfile::TempDir, bpf: bool) -> SenseConfig {
    SenseConfig {
        qmp_globs: vec![format!("{}/*.qmp", folder.path().display())],
        bpf,
        confirm: Nanos::from_millis(200),
        ..SenseConfig::default()
    }
}

#[test]
fn a_guest_is_told_of_with_its_threads_and_device() {
    for bpf in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let mut sensor = sensor(&folder, bpf);
        assert!(sensor.snapshot(now()).guests.is_empty());
        let mut guest = FakeGuest::start(&folder.path().join("a.qmp"), "alpha", "normal", 2);
        guest.start_worker();

        let snapshot = until(&mut sensor, "two vCPUs and a worker", |s| {
            named(s, "alpha").is_some_and(|g| g.vcpus.len() == 2 && g.vhost.len() == 1)
        });
        let seen = named(&snapshot, "alpha").unwrap();
        assert_eq!(seen.id, GuestId::from("alpha"), "the nil UUID is none");
        assert_eq!((seen.pid.0, seen.vsock_cid), (guest.pid, Some(77)));
        assert_eq!(
            seen.vcpus.iter().map(|v| v.index).collect::<Vec<_>>(),
            [0, 1]
        );
        for vcpu in &seen.vcpus {
            assert_eq!(vcpu.allowed.to_string(), allowed(guest.pid, vcpu.tid.0));
        }
        assert!(seen.taps.is_empty(), "it has no tap open, whatever it says");
        assert_eq!(
            seen.vhost[0].queue, None,
            "a vsock device's worker serves no queue"
        );
        assert!(!seen.emulator.is_empty());
        let cgroup = std::fs::read_to_string(format!("/proc/{}/cgroup", guest.pid)).unwrap();
        let ours = cgroup.lines().find_map(|line| line.strip_prefix("0::"));
        assert_eq!(seen.cgroup.as_deref(), ours);
        assert_eq!(snapshot.guest(&seen.id), Some(seen));
    }
}

#[test]
fn guests_and_vcpus_come_and_go() {
    let folder = tempfile::tempdir().unwrap();
    let mut sensor = sensor(&folder, true);
    let mut a = FakeGuest::start(&folder.path().join("a.qmp"), "alpha", "normal", 1);
    let b = FakeGuest::start(&folder.path().join("b.qmp"), "beta", "normal", 3);
    until(&mut sensor, "both", |s| s.guests.len() == 2);
    a.plug();
    let snapshot = until(&mut sensor, "a hot-plugged vCPU", |s| {
        named(s, "alpha").is_some_and(|g| g.vcpus.len() == 2)
    });
    let ids: Vec<&str> = snapshot.guests.iter().map(|g| g.id.as_str()).collect();
    assert_eq!(ids, ["alpha", "beta"]);
    b.kill();
    // Its process is gone, so the very next snapshot is without it, whatever the monitor's thread has noticed.
    assert!(named(&sensor.snapshot(now()), "beta").is_none());
    let again = FakeGuest::start(&folder.path().join("c.qmp"), "beta", "normal", 1);
    let snapshot = until(&mut sensor, "beta again", |s| named(s, "beta").is_some());
    assert_eq!(named(&snapshot, "beta").unwrap().pid.0, again.pid);
}

/// The monitor would tell of it, but only once it has been asked: till then the vCPU is known by its thread's name.
#[test]
fn a_plugged_vcpu_is_known_before_its_monitor_has_answered() {
    let folder = tempfile::tempdir().unwrap();
    let mut sensor = sensor(&folder, false);
    let mut guest = FakeGuest::start(&folder.path().join("a.qmp"), "alpha", "normal", 1);
    until(&mut sensor, "one vCPU", |s| {
        named(s, "alpha").is_some_and(|g| g.vcpus.len() == 1)
    });
    guest.set_status("silent");
    guest.plug();
    let snapshot = until(&mut sensor, "two vCPUs", |s| {
        named(s, "alpha").is_some_and(|g| g.vcpus.len() == 2)
    });
    let seen = named(&snapshot, "alpha").unwrap();
    let indices: Vec<u32> = seen.vcpus.iter().map(|vcpu| vcpu.index).collect();
    assert_eq!(indices, [0, 1]);
    assert!(
        !seen.emulator.contains(&seen.vcpus[1].tid),
        "and it is that alone"
    );
}

/// A thread is there before it has named itself, and may be seen in between.
#[test]
fn a_worker_that_is_named_after_it_was_seen_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let mut sensor = sensor(&folder, false);
    let mut guest = FakeGuest::start(&folder.path().join("a.qmp"), "alpha", "normal", 1);
    let snapshot = until(&mut sensor, "a guest", |s| named(s, "alpha").is_some());
    let before = named(&snapshot, "alpha").unwrap().emulator.clone();
    guest.start_nameless();
    let is_new = |s: &Snapshot| {
        let guest = named(s, "alpha")?;
        let new = guest.emulator.iter().find(|tid| !before.contains(tid));
        new.copied()
    };
    let snapshot = until(&mut sensor, "another thread", |s| is_new(s).is_some());
    let worker = is_new(&snapshot).unwrap();
    guest.name_them();
    // Time stands still for the sensor from here on, since it looks for names for a while only.
    let stopped = snapshot.at;
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let snapshot = sensor.snapshot(stopped);
        let guest = named(&snapshot, "alpha").unwrap();
        if guest.vhost.iter().any(|vhost| vhost.tid == worker) {
            assert!(!guest.emulator.contains(&worker), "and it is that alone");
            return;
        }
        assert!(Instant::now() < deadline, "not in 20 s: {guest:#?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_bell_rings_when_a_guest_comes_changes_or_goes() {
    let folder = tempfile::tempdir().unwrap();
    let (ring, heard) = std::sync::mpsc::channel();
    let bell = Bell::new(move || {
        let _ = ring.send(());
    });
    let mut sensor = Sensor::with_bell(config(&folder, false), &bell).unwrap();
    // It is rung once what is told has changed, so the next snapshot has it, with no waiting but for the bell.
    let mut rings = |what: &str, wanted: &dyn Fn(&Snapshot) -> bool| {
        loop {
            let in_time = heard.recv_timeout(Duration::from_secs(20));
            in_time.unwrap_or_else(|_| panic!("{what}: not rung in 20 s"));
            if wanted(&sensor.snapshot(now())) {
                return;
            }
        }
    };
    let mut guest = FakeGuest::start(&folder.path().join("a.qmp"), "alpha", "normal", 1);
    rings("it came", &|s| named(s, "alpha").is_some());
    guest.plug();
    rings("it has grown", &|s| {
        named(s, "alpha").is_some_and(|guest| guest.vcpus.len() == 2)
    });
    guest.kill();
    rings("it went", &|s| s.guests.is_empty());
}

/// Whoever listens first at libvirt's socket has the monitor, and libvirt could not start the domain.
#[test]
fn libvirts_own_socket_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let domain = folder.path().join("domain-1-web");
    std::fs::create_dir(&domain).unwrap();
    let mut sensor = Sensor::new(SenseConfig {
        qmp_globs: vec![format!("{}/*/*.sock", folder.path().display())],
        bpf: false,
        ..SenseConfig::default()
    })
    .unwrap();
    let _own = FakeGuest::start(&domain.join("monitor.sock"), "libvirt's", "normal", 1);
    let mut other = FakeGuest::start(&domain.join("second.sock"), "ours", "normal", 1);
    // Several rounds with the other.
    for vcpus in 1..4 {
        until(&mut sensor, "the other", |s| {
            assert!(named(s, "libvirt's").is_none());
            named(s, "ours").is_some_and(|guest| guest.vcpus.len() == vcpus)
        });
        other.plug();
    }
}

/// Somebody still puts it together, and gives up on it if we put our hand to it meanwhile.
#[test]
fn a_guest_that_was_never_made_to_run_is_none_yet() {
    for status in ["prelaunch", "inmigrate"] {
        let folder = tempfile::tempdir().unwrap();
        let mut sensor = sensor(&folder, false);
        let socket = folder.path().join("a.qmp");
        let mut new =
            FakeGuest::start_with(&socket, "new", "normal", 1, &[("FAKE_STATUS", status)]);
        let mut other = FakeGuest::start(&folder.path().join("b.qmp"), "other", "normal", 1);
        // Several rounds with both.
        for vcpus in 1..4 {
            until(&mut sensor, "the other", |s| {
                assert!(named(s, "new").is_none(), "{status}");
                named(s, "other").is_some_and(|g| g.vcpus.len() == vcpus)
            });
            other.plug();
        }
        new.set_status("paused");
        until(&mut sensor, "the guest", |s| named(s, "new").is_some());
        // Reset while it is paused, it is as before it ran; but there is nobody who makes it any more.
        new.set_status("prelaunch");
        new.plug();
        let seen = until(&mut sensor, "a vCPU plugged in", |s| {
            named(s, "new").expect("it stays").vcpus.len() == 2
        });
        assert_eq!(named(&seen, "new").unwrap().vsock_cid, Some(77));
    }
}

#[test]
fn two_guests_of_one_name_have_two_ids() {
    let folder = tempfile::tempdir().unwrap();
    let mut sensor = sensor(&folder, false);
    let first = FakeGuest::start(&folder.path().join("z.qmp"), "same", "normal", 1);
    until(&mut sensor, "the first", |s| s.guests.len() == 1);
    let second = FakeGuest::start(&folder.path().join("a.qmp"), "same", "normal", 1);
    let snapshot = until(&mut sensor, "both", |s| s.guests.len() == 2);
    let of = |pid| snapshot.guests.iter().find(|g| g.pid.0 == pid).unwrap();
    let late = of(second.pid).id.as_str().to_owned();
    // Both may have started within one tick of the kernel's clock; then the lower process number has it.
    assert_eq!(of(first.pid).id, GuestId::from("same"), "{snapshot:?}");
    assert_eq!(late, format!("same@{}", second.pid));
}

#[test]
fn a_thread_that_is_not_the_guests_own_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let mut sensor = sensor(&folder, false);
    let _guest = FakeGuest::start(&folder.path().join("l.qmp"), "liar", "normal", 1);
    let snapshot = until(&mut sensor, "the liar", |s| named(s, "liar").is_some());
    let seen = named(&snapshot, "liar").unwrap();
    assert_eq!(seen.vcpus.len(), 1);
    assert!(seen.vcpus.iter().all(|vcpu| vcpu.tid.0 != 1));
    assert!(seen.emulator.iter().all(|tid| tid.0 != 1));
}

/// Snapshots of so long a time, each of which is as it should be.
fn throughout(sensor: &mut Sensor, time: Nanos, mut holds: impl FnMut(&Snapshot)) {
    let end = now().saturating_add(time);
    until(sensor, "time passes", |s| {
        holds(s);
        s.at > end
    });
}

/// Its monitor says nothing meanwhile, but the host sees that its threads are those that it had.
#[test]
fn a_frozen_guest_keeps_its_view_and_its_youth() {
    for bpf in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let mut sensor = sensor(&folder, bpf);
        let guest = FakeGuest::start(&folder.path().join("a.qmp"), "alpha", "normal", 2);
        until(&mut sensor, "the guest", |s| {
            named(s, "alpha").is_some_and(|g| g.age == Nanos::ZERO)
        });
        guest.signal(Signal::STOP);
        throughout(&mut sensor, Nanos::from_millis(1500), |s| {
            let seen = named(s, "alpha").expect("it is still there");
            assert_eq!((seen.vcpus.len(), seen.age), (2, Nanos::ZERO));
        });
    }
}

#[test]
fn a_guest_grows_old_from_when_threads_came_that_its_monitor_says_nothing_of() {
    for bpf in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let mut sensor = sensor(&folder, bpf);
        let mut guest = FakeGuest::start(&folder.path().join("a.qmp"), "alpha", "normal", 2);
        until(&mut sensor, "the guest", |s| {
            named(s, "alpha").is_some_and(|g| g.age == Nanos::ZERO)
        });
        guest.set_status("silent");
        guest.start_worker();
        let came = until(&mut sensor, "the worker", |s| {
            named(s, "alpha").is_some_and(|g| g.vhost.len() == 1)
        });
        let old = until(&mut sensor, "age", |s| {
            named(s, "alpha").expect("it is still there").age > Nanos::from_millis(900)
        });
        let young = named(&came, "alpha").unwrap().age;
        assert!(young < Nanos::from_millis(500), "{young:?}");
        assert!(old.at.saturating_sub(came.at) > Nanos::from_millis(300));
        assert_eq!(named(&old, "alpha").unwrap().vcpus.len(), 2);
    }
}

/// To answer costs QEMU's threads time on its guest's cores.
#[test]
fn a_monitor_is_asked_for_threads_when_some_came_and_is_left_alone_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    let seldom = SenseConfig {
        confirm: Nanos::from_secs(3600),
        ..config(&folder, false)
    };
    let mut sensor = Sensor::new(seldom).unwrap();
    let log = folder.path().join("asked");
    let environment = [("FAKE_LOG", log.to_str().unwrap())];
    let socket = folder.path().join("a.qmp");
    let mut guest = FakeGuest::start_with(&socket, "alpha", "normal", 2, &environment);
    until(&mut sensor, "the guest", |s| {
        named(s, "alpha").is_some_and(|g| g.age == Nanos::ZERO)
    });
    let asked = || std::fs::read_to_string(&log).unwrap();
    // The question after it was met may still be on its way.
    throughout(&mut sensor, Nanos::from_millis(500), |_| {});
    let before = asked();
    throughout(&mut sensor, Nanos::from_millis(2500), |s| {
        assert_eq!(named(s, "alpha").unwrap().age, Nanos::ZERO);
    });
    assert_eq!(asked(), before, "nothing came or went");

    guest.start_worker();
    until(&mut sensor, "the worker, confirmed", |s| {
        named(s, "alpha").is_some_and(|g| g.vhost.len() == 1 && g.age == Nanos::ZERO)
    });
    let since = asked()[before.len()..].to_owned();
    let questions: Vec<&str> = since.lines().collect();
    assert!(
        !questions.is_empty() && questions.iter().all(|q| *q == "query-cpus-fast"),
        "{questions:?}"
    );
}

/// All misbehaviours at once beside a good guest: it is told of, and snapshots go on at their pace.
#[test]
fn a_misbehaving_monitor_costs_nobody_else_anything() {
    let folder = tempfile::tempdir().unwrap();
    let mut sensor = sensor(&folder, false);
    let _bad: Vec<FakeGuest> = common::BEHAVIOURS
        .iter()
        .filter(|behaviour| **behaviour != "normal")
        .map(|behaviour| {
            let socket = folder.path().join(format!("{behaviour}.qmp"));
            FakeGuest::start(&socket, behaviour, behaviour, 1)
        })
        .collect();
    until(&mut sensor, "the drip", |s| named(s, "drip").is_some());
    let _good = FakeGuest::start(&folder.path().join("good.qmp"), "good", "normal", 4);
    let snapshot = until(&mut sensor, "the good guest", |s| {
        named(s, "good").is_some()
    });
    let mut names: Vec<&str> = snapshot.guests.iter().map(|g| g.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["drip", "good"], "nothing is known of the others");
    // The slowest of many snapshots is bounded by our own work, not by any guest's patience. Generous: the machine is
    // shared.
    let slowest = (0..50)
        .map(|_| {
            let before = Instant::now();
            sensor.snapshot(now());
            before.elapsed()
        })
        .max()
        .unwrap();
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    let age = named(&sensor.snapshot(now()), "good").unwrap().age;
    assert!(
        age < Nanos::from_secs(5),
        "the good guest is asked on: {age:?}"
    );
}

#[test]
fn a_guests_taps_are_those_that_it_has_open() {
    let name = "a_guests_taps_are_those_that_it_has_open";
    if std::fs::File::open("/dev/net/tun").is_err() || !rustix::process::geteuid().is_root() {
        println!("SKIP {name}: no root, or no /dev/net/tun");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut sensor = sensor(&folder, false);
    let socket = folder.path().join("a.qmp");
    let queues = [("FAKE_TAP_QUEUES", "2")];
    let mut guest = FakeGuest::start_with(&socket, "alpha", "normal", 1, &queues);
    for _ in 0..3 {
        guest.start_worker();
    }
    let snapshot = until(&mut sensor, "a tap and three workers", |s| {
        named(s, "alpha").is_some_and(|g| g.taps.len() == 1 && g.vhost.len() == 3)
    });
    let seen = named(&snapshot, "alpha").unwrap();
    let tap = &seen.taps[0];
    assert_eq!(
        (tap.name.as_str(), tap.queues),
        (common::TAP, 2),
        "and not the stolen one"
    );
    assert_eq!(tap.guest_mac.as_deref(), Some("52:54:00:12:34:56"));
    let served: Vec<_> = seen.vhost.iter().map(|v| v.queue).collect();
    assert_eq!(
        served,
        [Some(0), Some(1), None],
        "the last one is the vsock device's"
    );
}

/// A cgroup of our own in the unified hierarchy; gone with the value.
struct Cgroup(std::path::PathBuf);

impl Cgroup {
    fn new(name: &str) -> std::io::Result<Cgroup> {
        let path = ostler_sense::Roots::default().cgroup.join(name);
        std::fs::create_dir(&path)?;
        Ok(Cgroup(path))
    }

    fn set(&self, file: &str, value: &str) {
        std::fs::write(self.0.join(file), value).unwrap();
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Its last process may take a moment to be gone, even after it was waited for.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_guest_is_followed_to_another_cgroup_and_seen_to_freeze() {
    for bpf in [true, false] {
        let cgroup = match Cgroup::new(&format!("ostler-sense-test-{}", std::process::id())) {
            Ok(cgroup) => cgroup,
            Err(error) => {
                println!(
                    "SKIP a_guest_is_followed_to_another_cgroup_and_seen_to_freeze: no cgroup of our own ({error})"
                );
                return;
            }
        };
        let folder = tempfile::tempdir().unwrap();
        let mut sensor = sensor(&folder, bpf);
        let guest = FakeGuest::start(&folder.path().join("a.qmp"), "alpha", "normal", 1);
        until(&mut sensor, "the guest", |s| named(s, "alpha").is_some());

        cgroup.set("cgroup.procs", &guest.pid.to_string());
        let path = format!("/{}", cgroup.0.file_name().unwrap().to_str().unwrap());
        let seen = until(&mut sensor, "its new cgroup", |s| {
            named(s, "alpha").unwrap().cgroup.as_deref() == Some(&path)
        });
        assert!(!named(&seen, "alpha").unwrap().frozen);
        cgroup.set("cgroup.freeze", "1");
        until(&mut sensor, "ice", |s| named(s, "alpha").unwrap().frozen);
        cgroup.set("cgroup.freeze", "0");
        until(&mut sensor, "water", |s| !named(s, "alpha").unwrap().frozen);
        guest.kill();
    }
}
