//! A steward that acts, on guests that are processes of ours: what it writes is seen in the kernel's own words, and is gone again after an orderly end, after
//! `ostler undo`, and after the next steward's start.

#[path = "../../ostler-sense/tests/common/mod.rs"]
mod guest;
mod place;

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};

use guest::FakeGuest;
use place::{Place, Steward, json, ostler, text};
use rustix::process::Signal;

/// Not a test: the process that [`FakeGuest`] starts.
#[test]
fn as_guest() {
    guest::run_as_guest();
}

/// One steward acts on a host at a time, and this is one host.
static TURN: Mutex<()> = Mutex::new(());

/// A guest with a latency objective, and a steward's place that knows it.
struct Scene {
    _turn: MutexGuard<'static, ()>,
    place: Place,
    guest: FakeGuest,
}

/// A steward that is told of the guest; the rest of the host is none of its business.
fn rules(place: &Place, more: &str) -> String {
    format!(
        "{more}\n[agent]\nenabled = false\n[discovery]\nqmp = [\"{}/*.qmp\"]\n\
         [[guest]]\nname = \"alpha\"\nclass = \"latency-critical\"\nslo = \"1ms\"\n",
        place.path("").display()
    )
}

impl Scene {
    fn new(test: &str, steward: &str) -> Option<Scene> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        if !rustix::process::geteuid().is_root() || cpus < 2 {
            println!("SKIP {test}: acting needs root and two CPUs");
            return None;
        }
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let place = Place::new("");
        place.write(&rules(&place, steward));
        let mut guest = FakeGuest::start(&place.path("a.qmp"), "alpha", "normal", 2);
        guest.start_worker();
        let scene = Scene {
            _turn: turn,
            place,
            guest,
        };
        // The worker is started by the guest in its own time.
        let due = std::time::Instant::now() + place::PATIENCE;
        while scene.seen().len() < 4 {
            assert!(
                std::time::Instant::now() < due,
                "the guest has no worker: {:?}",
                scene.seen()
            );
            std::thread::yield_now();
        }
        Some(scene)
    }

    /// Where the guest's threads may run and which cgroup they are in, by the kernel's own words: its main thread, its vCPUs and its worker. Its
    /// monitor's threads come and go with connections.
    fn seen(&self) -> BTreeMap<u32, (String, String)> {
        let tasks = format!("/proc/{}/task", self.guest.pid);
        std::fs::read_dir(&tasks)
            .expect("the guest lives")
            .filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok())
            .filter(|tid: &u32| {
                let name =
                    std::fs::read_to_string(format!("{tasks}/{tid}/comm")).unwrap_or_default();
                *tid == self.guest.pid || name.starts_with("CPU ") || name.starts_with("vhost-")
            })
            .map(|tid: u32| {
                let cgroup =
                    std::fs::read_to_string(format!("{tasks}/{tid}/cgroup")).expect("a thread");
                let ours = cgroup.lines().find(|line| line.starts_with("0::"));
                let allowed = guest::allowed(self.guest.pid, tid);
                (tid, (allowed, ours.unwrap_or_default().to_owned()))
            })
            .collect()
    }

    fn act(&self, before: &BTreeMap<u32, (String, String)>) -> Steward<'_> {
        let mut steward = self.place.start(&["--act"]);
        let status = steward.until("a plan that was carried out", |status| {
            status["guests"][0]["vcpus"] == 2
                && status["outcome"]["written"] == 0
                && self.seen() != *before
        });
        assert_eq!(status["mode"], "act");
        assert_eq!(status["violations"], serde_json::json!([]));
        steward
    }
}

const QUICK: &str = "[steward]\nperiod = \"20ms\"";

#[test]
fn what_is_acted_is_seen_and_is_gone_after_an_orderly_end() {
    let Some(scene) = Scene::new(
        "what_is_acted_is_seen_and_is_gone_after_an_orderly_end",
        QUICK,
    ) else {
        return;
    };
    let before = scene.seen();
    let steward = scene.act(&before);
    // While a steward runs, nobody else takes its writes back.
    let undo = ostler(&["undo", "--config", &scene.place.shown("ostler.toml")]);
    assert_eq!(undo.status.code(), Some(1));
    assert!(
        text(&undo.stderr).contains("before you undo"),
        "{}",
        text(&undo.stderr)
    );
    steward.end();
    assert_eq!(scene.seen(), before);
    let replay = ostler(&["replay", &scene.place.shown("record.db")]);
    assert!(replay.status.success(), "{}", text(&replay.stdout));
}

#[test]
fn what_a_killed_steward_wrote_is_undone() {
    let Some(scene) = Scene::new("what_a_killed_steward_wrote_is_undone", QUICK) else {
        return;
    };
    let before = scene.seen();
    scene.act(&before).kill();
    assert_ne!(scene.seen(), before);
    let config = scene.place.shown("ostler.toml");
    let undo = ostler(&["undo", "--json", "--config", &config]);
    assert!(
        undo.status.success(),
        "{}{}",
        text(&undo.stdout),
        text(&undo.stderr)
    );
    assert!(
        json(&undo)["put_back"].as_u64() > Some(0),
        "{}",
        text(&undo.stdout)
    );
    assert_eq!(scene.seen(), before);
    // Once is enough.
    let again = ostler(&["undo", "--json", "--config", &config]);
    assert_eq!(json(&again)["put_back"], 0);
}

#[test]
fn what_a_killed_steward_wrote_is_taken_back_by_the_next_that_observes() {
    let Some(scene) = Scene::new(
        "what_a_killed_steward_wrote_is_taken_back_by_the_next_that_observes",
        QUICK,
    ) else {
        return;
    };
    let before = scene.seen();
    scene.act(&before).kill();
    assert_ne!(scene.seen(), before);
    let run = ostler(&[
        "run",
        "--once",
        "--config",
        &scene.place.shown("ostler.toml"),
    ]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    assert!(
        text(&run.stderr).contains("the steward before did not end in order"),
        "{}",
        text(&run.stderr)
    );
    assert_eq!(scene.seen(), before);
}

#[test]
fn a_steward_that_acts_goes_on_where_a_killed_one_ended() {
    let Some(scene) = Scene::new(
        "a_steward_that_acts_goes_on_where_a_killed_one_ended",
        QUICK,
    ) else {
        return;
    };
    let before = scene.seen();
    scene.act(&before).kill();
    let steward = scene.act(&before);
    steward.end();
    assert_eq!(scene.seen(), before);
}

#[test]
fn a_reload_to_observing_takes_back_what_was_written() {
    let Some(scene) = Scene::new(
        "a_reload_to_observing_takes_back_what_was_written",
        "[steward]\nperiod = \"20ms\"\nmode = \"act\"",
    ) else {
        return;
    };
    let before = scene.seen();
    let mut steward = scene.place.start(&[]);
    steward.until("a plan that was carried out", |status| {
        status["guests"][0]["vcpus"] == 2
            && status["outcome"]["written"] == 0
            && scene.seen() != before
    });
    scene.place.write(&rules(&scene.place, QUICK));
    steward.signal(Signal::HUP);
    steward.until("observing", |status| status["mode"] == "observe");
    assert_eq!(scene.seen(), before);
    steward.end();
}

#[test]
fn what_is_to_be_kept_stays_until_undo() {
    let Some(scene) = Scene::new(
        "what_is_to_be_kept_stays_until_undo",
        "[steward]\nperiod = \"20ms\"\non_exit = \"keep\"",
    ) else {
        return;
    };
    let before = scene.seen();
    scene.act(&before).end();
    assert_ne!(scene.seen(), before);
    let undo = ostler(&["undo", "--config", &scene.place.shown("ostler.toml")]);
    assert!(undo.status.success(), "{}", text(&undo.stdout));
    assert_eq!(scene.seen(), before);
}

/// Who has its periods told, and then reads none of them, keeps nothing from being put back.
#[test]
fn what_is_acted_is_gone_though_nobody_reads_the_periods() {
    let test = "what_is_acted_is_gone_though_nobody_reads_the_periods";
    let Some(scene) = Scene::new(test, QUICK) else {
        return;
    };
    let before = scene.seen();
    let (reads, writes) = std::io::pipe().expect("a pipe");
    let mut steward = scene.place.start_into(&["--act", "--json"], writes);
    // A line is a kilobyte and more, so the pipe is full by then.
    steward.until("periods enough", |status| {
        status["seq"].as_u64() > Some(100) && scene.seen() != before
    });
    assert!(steward.ends(), "it waits for its reader");
    assert_eq!(scene.seen(), before);
    drop(reads);
}

/// Whose log has lost its reader goes on, and puts all back at its end.
#[test]
fn a_steward_whose_log_nobody_reads_goes_on() {
    let Some(scene) = Scene::new("a_steward_whose_log_nobody_reads_goes_on", QUICK) else {
        return;
    };
    let before = scene.seen();
    let mut steward = scene.act(&before);
    steward.lose_log();
    // Each is told in the log.
    for policy in ["performance", "energy"] {
        let more = format!("{QUICK}\nmode = \"act\"\n[partition]\npolicy = \"{policy}\"");
        scene.place.write(&rules(&scene.place, &more));
        steward.signal(Signal::HUP);
        steward.until("the new policy", |status| status["policy"] == policy);
    }
    assert!(steward.ends(), "it waits for its reader");
    assert_eq!(scene.seen(), before);
}

/// Whose log isn't read any more, by a reader that stays, acts and puts all back at its end.
#[test]
fn a_steward_whose_log_has_a_reader_that_takes_nothing_goes_on() {
    let test = "a_steward_whose_log_has_a_reader_that_takes_nothing_goes_on";
    let Some(scene) = Scene::new(test, QUICK) else {
        return;
    };
    let before = scene.seen();
    let (reads, writes) = std::io::pipe().expect("a pipe");
    // Full from the start: the first line waits for ever.
    rustix::io::ioctl_fionbio(&writes, true).expect("a pipe that says when it is full");
    while rustix::io::write(&writes, &[b'x'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&writes, false).expect("a pipe that waits");
    let mut steward = scene.place.start_between(&["--act"], Stdio::null(), writes);
    steward.until("a plan that is carried out", |_| scene.seen() != before);
    assert!(steward.ends(), "it waits for its reader");
    assert_eq!(scene.seen(), before);
    drop(reads);
}

/// A journal of its own doesn't make a second one welcome, neither at its start nor by a later word of its configuration.
#[test]
fn a_second_steward_with_another_journal_does_not_act() {
    let Some(scene) = Scene::new("a_second_steward_with_another_journal_does_not_act", QUICK)
    else {
        return;
    };
    let before = scene.seen();
    let first = scene.act(&before);
    let place = Place::new("");
    let observing = rules(&place, QUICK);
    place.write(&observing);
    let second = ostler(&["run", "--act", "--config", &place.shown("ostler.toml")]);
    assert_eq!(second.status.code(), Some(1));
    let said = text(&second.stderr);
    assert!(said.contains("another steward acts on this host"), "{said}");

    let mut second = place.start(&[]);
    second.until("a period", |status| {
        status["period"].is_object() || status["mode"] == "observe"
    });
    place.write(&rules(
        &place,
        "[steward]\nperiod = \"20ms\"\nmode = \"act\"",
    ));
    second.signal(Signal::HUP);
    let status = second.until("the refusal", |status| {
        !status["config"]["refused"].is_null()
    });
    assert_eq!(status["mode"], "observe");
    let said = status["config"]["refused"].to_string();
    assert!(said.contains("another steward acts on this host"), "{said}");
    second.end();
    first.end();
    assert_eq!(scene.seen(), before);
}
