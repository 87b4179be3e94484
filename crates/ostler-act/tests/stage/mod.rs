//! Real processes with threads like QEMU's, in real cgroups, and a look at all that undo has to give back.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ostler_act::{Host, LinuxHost};
use ostler_model::{
    CpuSet, GuestId, GuestSource, GuestView, Pid, Snapshot, ThreadUsage, Tid, VcpuView, VhostView,
};

use crate::world::{Guest, Kind};

pub fn cpus() -> u32 {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").expect("sysfs");
    online.parse::<CpuSet>().expect("a list").len()
}

/// The tree's mount point, and whether it has cpusets; otherwise why the test can't run.
pub fn cgroups() -> Result<(PathBuf, bool), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("it needs root".into());
    }
    let mounts = fs::read_to_string("/proc/self/mounts").map_err(|e| e.to_string())?;
    let at = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .find(|fields| fields.get(2) == Some(&"cgroup2"))
        .map(|fields| PathBuf::from(fields[1]))
        .ok_or("no cgroup v2 tree is mounted")?;
    if at.join("ostler").exists() {
        return Err("a steward acts on this host".into());
    }
    let probe = at.join(format!("ostler-probe-{}", std::process::id()));
    fs::create_dir(&probe).map_err(|e| format!("{} isn't writable: {e}", at.display()))?;
    fs::remove_dir(&probe).map_err(|e| e.to_string())?;
    let controllers = fs::read_to_string(at.join("cgroup.controllers")).unwrap_or_default();
    Ok((at, controllers.split_whitespace().any(|c| c == "cpuset")))
}

/// Whether the tree at `at` has CPU weights.
pub fn has_weights(at: &Path) -> bool {
    let controllers = fs::read_to_string(at.join("cgroup.controllers")).unwrap_or_default();
    controllers.split_whitespace().any(|c| c == "cpu")
}

/// A process with threads like QEMU's. It ends with its standard input.
pub struct Qemu {
    pub child: Child,
    pub input: ChildStdin,
    pub output: BufReader<ChildStdout>,
}

impl Qemu {
    pub fn start() -> Qemu {
        let mut child = again("a_process_like_qemu")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("this very program");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Qemu {
            child,
            input,
            output,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it start a thread.
    pub fn thread(&mut self, name: &str) -> u32 {
        writeln!(self.input, "{name}").expect("it lives");
        self.input.flush().expect("it lives");
        loop {
            let mut line = String::new();
            assert!(
                self.output.read_line(&mut line).expect("a line") > 0,
                "it died"
            );
            // The test harness has words of its own on standard output.
            if let Some(tid) = line.trim().strip_prefix("thread ") {
                return tid.parse().expect("a number");
            }
        }
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This program again, running one of the tests below that are no tests.
pub fn again(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this very program"));
    command.args([
        role,
        "--exact",
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ]);
    command
}

pub fn format_guest(guest: &Guest) -> String {
    let list = |tids: &[u32]| {
        tids.iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join(",")
    };
    format!(
        "{} {} v{} w{} e{}",
        guest.id,
        guest.pid,
        list(&guest.vcpus),
        list(&guest.vhost),
        list(&guest.emulator)
    )
}

pub fn parse_guest(line: &str) -> Guest {
    let parts: Vec<&str> = line.split(' ').collect();
    let list = |text: &str| -> Vec<u32> {
        text[1..]
            .split(',')
            .filter(|part| !part.is_empty())
            .map(|tid| tid.parse().expect("a number"))
            .collect()
    };
    Guest {
        id: GuestId::from(parts[0]),
        kind: Kind::Own,
        home: String::new(),
        pid: parts[1].parse().expect("a number"),
        vcpus: list(parts[2]),
        vhost: list(parts[3]),
        emulator: list(parts[4]),
    }
}

pub fn snapshot_of(guests: &[Guest]) -> Snapshot {
    let mut views: Vec<GuestView> = guests
        .iter()
        .map(|guest| GuestView {
            id: guest.id.clone(),
            name: guest.id.to_string(),
            uuid: None,
            metadata: Vec::new(),
            source: GuestSource::Qmp,
            pid: Pid(guest.pid),
            cgroup: Some(cgroup_of(guest.pid, guest.pid)),
            frozen: false,
            vcpus: (0..)
                .zip(&guest.vcpus)
                .map(|(index, &tid)| VcpuView {
                    index,
                    tid: Tid(tid),
                    allowed: CpuSet::EMPTY,
                    usage: ThreadUsage::default(),
                })
                .collect(),
            vhost: guest
                .vhost
                .iter()
                .map(|&tid| VhostView {
                    tid: Tid(tid),
                    queue: None,
                    allowed: CpuSet::EMPTY,
                    usage: ThreadUsage::default(),
                })
                .collect(),
            emulator: guest.emulator.iter().copied().map(Tid).collect(),
            taps: Vec::new(),
            vsock_cid: None,
            latency: None,
            agent: None,
            age: ostler_model::Nanos::ZERO,
        })
        .collect();
    views.sort_by(|a, b| a.id.cmp(&b.id));
    Snapshot {
        guests: views,
        ..Snapshot::default()
    }
}

pub fn cgroup_of(pid: u32, tid: u32) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/cgroup")).expect("it lives");
    let line = text.lines().find_map(|line| line.strip_prefix("0::"));
    line.expect("a v2 path").to_owned()
}

/// A host with three guests, and how it was found.
pub struct Stage {
    pub tree: PathBuf,
    pub base: String,
    /// Killed in the end, before their cgroups go.
    pub qemus: Vec<Qemu>,
    pub shell: Qemu,
    pub guests: Vec<Guest>,
    /// Cgroups in the order in which they were made.
    pub made: Vec<String>,
    pub cpuset_by_us: Vec<String>,
}

impl Stage {
    pub fn set(tree: &Path, cpuset: bool) -> Stage {
        let base = format!("/ostler-test-{}", std::process::id());
        let mut stage = Stage {
            tree: tree.to_owned(),
            base: base.clone(),
            qemus: Vec::new(),
            shell: Qemu::start(),
            guests: Vec::new(),
            made: Vec::new(),
            cpuset_by_us: Vec::new(),
        };
        for dir in ["", "/own", "/session"] {
            stage.mkdir(&format!("{base}{dir}"));
        }
        stage.put(&format!("{base}/session/cgroup.procs"), stage.shell.pid());
        stage.guest("own", &format!("{base}/own"));
        stage.guest("shared", &format!("{base}/session"));
        if cpuset {
            stage.libvirt();
        }
        stage
    }

    pub fn libvirt(&mut self) {
        let domain = format!("{}/qemu.scope/libvirt", self.base);
        let emulator = format!("{domain}/emulator");
        self.mkdir(&format!("{}/qemu.scope", self.base));
        self.mkdir(&domain);
        for cgroup in [
            String::new(),
            self.base.clone(),
            format!("{}/qemu.scope", self.base),
        ] {
            self.hand_down(&cgroup);
        }
        self.mkdir(&emulator);
        self.put(&format!("{emulator}/cgroup.type"), "threaded");
        self.hand_down(&domain);
        let at = self.guests.len();
        self.guest("libvirt", &domain);
        let (pid, vcpus) = (self.guests[at].pid, self.guests[at].vcpus.clone());
        let mut rest = self.guests[at].vhost.clone();
        rest.extend(&self.guests[at].emulator);
        for (index, tid) in vcpus.into_iter().enumerate() {
            let path = format!("{domain}/vcpu{index}");
            self.mkdir(&path);
            self.put(&format!("{path}/cgroup.type"), "threaded");
            self.put(&format!("{path}/cgroup.threads"), tid);
            if index == 0 {
                self.put(&format!("{path}/cpuset.cpus"), 0);
            }
        }
        for tid in rest {
            self.put(&format!("{emulator}/cgroup.threads"), tid);
        }
        assert_eq!(cgroup_of(pid, pid), emulator);
    }

    pub fn hand_down(&mut self, cgroup: &str) {
        let file = format!("{cgroup}/cgroup.subtree_control");
        let on = fs::read_to_string(self.tree.join(&file[1..])).expect("a cgroup");
        if !on.split_whitespace().any(|c| c == "cpuset") {
            self.put(&file, "+cpuset");
            self.cpuset_by_us.push(cgroup.to_owned());
        }
    }

    pub fn guest(&mut self, id: &str, cgroup: &str) {
        let mut qemu = Qemu::start();
        let pid = qemu.pid();
        let vcpus: Vec<u32> = (0..2)
            .map(|n| qemu.thread(&format!("CPU {n}/KVM")))
            .collect();
        let vhost = vec![qemu.thread(&format!("vhost-{pid}"))];
        // The test harness runs a test in a thread of its own, like QEMU's others.
        let emulator = fs::read_dir(format!("/proc/{pid}/task"))
            .expect("it lives")
            .map(|entry| {
                entry
                    .expect("an entry")
                    .file_name()
                    .into_string()
                    .expect("a number")
            })
            .map(|tid| tid.parse().expect("a number"))
            .filter(|tid| !vcpus.contains(tid) && !vhost.contains(tid))
            .collect();
        self.put(&format!("{cgroup}/cgroup.procs"), pid);
        self.qemus.push(qemu);
        self.guests.push(Guest {
            id: GuestId::from(id),
            kind: Kind::Own,
            home: String::new(),
            pid,
            vcpus,
            vhost,
            emulator,
        });
    }

    pub fn mkdir(&mut self, path: &str) {
        fs::create_dir(self.tree.join(&path[1..])).expect("a cgroup");
        self.made.push(path.to_owned());
    }

    pub fn put(&self, path: &str, value: impl std::fmt::Display) {
        let file = self.tree.join(&path[1..]);
        fs::write(&file, value.to_string())
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }

    /// A file's text, without the line's end.
    pub fn get(&self, path: &str) -> String {
        let file = self.tree.join(&path[1..]);
        let text =
            fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        text.trim().to_owned()
    }

    /// All that undo has to give back: cgroups with their files, and where each thread may run.
    pub fn look(&self) -> BTreeMap<String, String> {
        let mut seen = BTreeMap::new();
        let root = fs::read_to_string(self.tree.join("cgroup.subtree_control")).expect("a tree");
        seen.insert("/".into(), root);
        let ours = self.tree.join("ostler").exists();
        seen.insert("/ostler".into(), ours.to_string());
        let mut todo = vec![self.base.clone()];
        while let Some(dir) = todo.pop() {
            for entry in fs::read_dir(self.tree.join(&dir[1..])).expect("a cgroup") {
                let entry = entry.expect("an entry");
                if entry.file_type().expect("a type").is_dir() {
                    todo.push(format!("{dir}/{}", entry.file_name().to_string_lossy()));
                }
            }
            for file in [
                "cgroup.type",
                "cgroup.subtree_control",
                "cgroup.freeze",
                "cpuset.cpus",
                "cpu.weight",
                "cpu.idle",
            ] {
                let path = format!("{dir}/{file}");
                let text = fs::read_to_string(self.tree.join(&path[1..]));
                seen.insert(path, text.unwrap_or_else(|error| error.to_string()));
            }
        }
        let host = LinuxHost::detect();
        for guest in &self.guests {
            for tid in guest
                .vcpus
                .iter()
                .chain(&guest.vhost)
                .chain(&guest.emulator)
            {
                let affinity = host.affinity(Tid(*tid)).expect("it lives");
                let place = cgroup_of(guest.pid, *tid);
                seen.insert(format!("{} {tid}", guest.id), format!("{place} {affinity}"));
            }
        }
        seen
    }

    /// Puts the guests where the steward looks for them.
    pub fn tell(&self, file: &Path) {
        let lines: Vec<String> = self.guests.iter().map(format_guest).collect();
        let next = file.with_extension("next");
        fs::write(&next, lines.join("\n")).expect("a file");
        fs::rename(next, file).expect("a file");
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for qemu in self.qemus.iter_mut().chain([&mut self.shell]) {
            let _ = qemu.child.kill();
            let _ = qemu.child.wait();
        }
        for path in self.made.iter().rev() {
            // A dead process leaves its cgroup a moment after it was waited for.
            let until = Instant::now() + Duration::from_secs(5);
            while fs::remove_dir(self.tree.join(&path[1..])).is_err() && Instant::now() < until {
                thread::yield_now();
            }
        }
        if self.cpuset_by_us.iter().any(String::is_empty) {
            let _ = fs::write(self.tree.join("cgroup.subtree_control"), "-cpuset");
        }
    }
}
