//! A model of the kernel's cgroup v2, procfs and sysfs files, as far as acting uses them, with the kernel's own refusals. It
//! counts operations and can stop its user dead at any of them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard};

use ostler_act::{Host, Root, RssView};
use ostler_model::{CpuId, CpuSet, Tid};

pub const CPUS: u32 = 8;
const THREADED: [&str; 2] = ["cpu", "cpuset"];
const CONTROLLERS: [&str; 3] = ["cpu", "cpuset", "memory"];

/// What unwinds when the operation at which to stop is reached.
pub struct Killed;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    pub threaded: bool,
    pub subtree: BTreeSet<String>,
    pub cpus: CpuSet,
    pub frozen: bool,
    /// What its next weight is while it is idle.
    pub weight: u32,
    pub idle: bool,
}

impl Default for Cgroup {
    fn default() -> Cgroup {
        Cgroup {
            threaded: false,
            subtree: BTreeSet::new(),
            cpus: CpuSet::EMPTY,
            frozen: false,
            weight: 100,
            idle: false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub pid: u32,
    pub start: u64,
    pub cgroup: String,
    pub affinity: CpuSet,
    /// As `sched_getscheduler(2)` tells it.
    pub policy: i32,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct State {
    pub cgroups: BTreeMap<String, Cgroup>,
    pub tasks: BTreeMap<u32, Task>,
    /// Affinity, and whether the kernel manages it itself.
    pub irqs: BTreeMap<u32, (CpuSet, bool)>,
    /// `rx-N/rps_cpus` and `tx-N/xps_cpus` of the one NIC.
    pub masks: BTreeMap<String, CpuSet>,
    pub rss: Vec<u32>,
    pub rings: u32,
    pub no_cpuset: bool,
    pub no_cpu: bool,
    /// What the kernel tells as the weight of an idle cgroup: 0 or, since Linux 6.12, 1.
    pub idle_weighs: u32,
    /// Whether process 77 is an irqbalance.
    pub irqbalance: bool,
}

#[derive(Default)]
pub struct Inner {
    pub state: State,
    pub ops: u64,
    pub kill_at: Option<u64>,
    pub writes: u64,
}

#[derive(Clone, Default)]
pub struct Kernel(pub Arc<Mutex<Inner>>);

fn errno<T>(number: i32) -> io::Result<T> {
    Err(io::Error::from_raw_os_error(number))
}

fn parent(path: &str) -> String {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/".into(),
        Some((up, _)) => up.into(),
    }
}

impl State {
    pub fn new() -> State {
        let mut state = State {
            rings: 4,
            rss: (0..4).cycle().take(16).collect(),
            ..State::default()
        };
        state.cgroups.insert("/".into(), Cgroup::default());
        for irq in 20..24 {
            state.irqs.insert(irq, (CpuSet::range(0, CPUS), irq == 23));
        }
        for queue in 0..4 {
            state
                .masks
                .insert(format!("rx-{queue}/rps_cpus"), CpuSet::EMPTY);
            state
                .masks
                .insert(format!("tx-{queue}/xps_cpus"), CpuSet::single(CpuId(queue)));
        }
        state
    }

    pub fn mkdir(&mut self, path: &str) {
        if path != "/" && !self.cgroups.contains_key(path) {
            self.mkdir(&parent(path));
            self.cgroups.insert(path.into(), Cgroup::default());
        }
    }

    pub fn spawn(&mut self, pid: u32, tid: u32, start: u64, cgroup: &str) {
        let task = Task {
            pid,
            start,
            cgroup: cgroup.into(),
            affinity: CpuSet::range(0, CPUS),
            policy: libc::SCHED_OTHER,
        };
        self.tasks.insert(tid, task);
    }

    fn children<'a>(&'a self, path: &'a str) -> impl Iterator<Item = (&'a String, &'a Cgroup)> {
        self.cgroups
            .iter()
            .filter(move |(child, _)| *child != "/" && parent(child) == path)
    }

    fn has_tasks(&self, path: &str) -> bool {
        self.tasks.values().any(|task| task.cgroup == path)
    }

    fn populated(&self, path: &str) -> bool {
        self.has_tasks(path) || self.children(path).any(|(child, _)| self.populated(child))
    }

    fn threaded(&self, path: &str) -> bool {
        self.cgroups[path].threaded
    }

    fn thread_root(&self, path: &str) -> bool {
        let own = &self.cgroups[path];
        !own.threaded
            && (self.children(path).any(|(_, child)| child.threaded)
                || (self.has_tasks(path)
                    && own.subtree.iter().any(|c| THREADED.contains(&c.as_str()))))
    }

    fn valid_domain(&self, path: &str) -> bool {
        if self.threaded(path) {
            return false;
        }
        let mut at = path.to_owned();
        while at != "/" {
            at = parent(&at);
            if at != "/" && (self.thread_root(&at) || self.threaded(&at)) {
                return false;
            }
        }
        true
    }

    fn can_be_thread_root(&self, path: &str) -> bool {
        path == "/"
            || (!self
                .children(path)
                .any(|(child, cgroup)| !cgroup.threaded && self.populated(child))
                && self.cgroups[path]
                    .subtree
                    .iter()
                    .all(|c| THREADED.contains(&c.as_str())))
    }

    fn domain(&self, path: &str) -> String {
        let mut at = path.to_owned();
        while self.threaded(&at) {
            at = parent(&at);
        }
        at
    }

    fn has_controller(&self, path: &str, controller: &str) -> bool {
        if (self.no_cpuset && controller == "cpuset") || (self.no_cpu && controller == "cpu") {
            return false;
        }
        path == "/"
            || (self.cgroups[&parent(path)].subtree.contains(controller)
                && (!self.threaded(path) || THREADED.contains(&controller)))
    }

    /// Where a task may run, by its cpuset alone.
    pub fn effective(&self, path: &str) -> CpuSet {
        if path == "/" {
            return CpuSet::range(0, CPUS);
        }
        let above = self.effective(&parent(path));
        let own = self.cgroups[path].cpus;
        if !self.has_controller(path, "cpuset") || own.is_disjoint(&above) {
            return above;
        }
        own.intersection(&above)
    }

    fn may_enter(&self, path: &str) -> io::Result<()> {
        if !self.valid_domain(&self.domain(path)) {
            return errno(libc::EOPNOTSUPP);
        }
        if self.can_be_thread_root(path) || self.threaded(path) {
            return Ok(());
        }
        if self.cgroups[path].subtree.is_empty() {
            return Ok(());
        }
        errno(libc::EBUSY)
    }

    fn kind(&self, path: &str) -> &'static str {
        if self.threaded(path) {
            "threaded"
        } else if !self.valid_domain(path) {
            "domain invalid"
        } else if self.thread_root(path) {
            "domain threaded"
        } else {
            "domain"
        }
    }

    fn read_cgroup(&self, path: &str) -> io::Result<String> {
        let (dir, file) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = if dir.is_empty() { "/" } else { dir };
        let Some(cgroup) = self.cgroups.get(dir) else {
            return errno(libc::ENOENT);
        };
        let words = |words: &mut dyn Iterator<Item = String>| words.collect::<Vec<_>>().join("\n");
        match file {
            "cgroup.controllers" => Ok(CONTROLLERS
                .into_iter()
                .filter(|c| self.has_controller(dir, c))
                .collect::<Vec<_>>()
                .join(" ")),
            "cgroup.subtree_control" => Ok(words(&mut cgroup.subtree.iter().cloned())),
            "cgroup.type" if dir != "/" => Ok(format!("{}\n", self.kind(dir))),
            "cgroup.freeze" if dir != "/" => Ok(format!("{}\n", u8::from(cgroup.frozen))),
            "cpuset.cpus" if dir != "/" && self.has_controller(dir, "cpuset") => {
                Ok(format!("{}\n", cgroup.cpus))
            }
            "cpu.weight" if dir != "/" && self.has_controller(dir, "cpu") => {
                let weight = if cgroup.idle {
                    self.idle_weighs
                } else {
                    cgroup.weight
                };
                Ok(format!("{weight}\n"))
            }
            "cpu.idle" if dir != "/" && self.has_controller(dir, "cpu") => {
                Ok(format!("{}\n", u8::from(cgroup.idle)))
            }
            "cgroup.threads" => Ok(words(
                &mut self
                    .tasks
                    .iter()
                    .filter(|(_, task)| task.cgroup == dir)
                    .map(|(tid, _)| tid.to_string()),
            )),
            "cgroup.procs" if self.threaded(dir) => errno(libc::EOPNOTSUPP),
            "cgroup.procs" => {
                let pids: BTreeSet<u32> = self
                    .tasks
                    .values()
                    .filter(|task| self.domain(&task.cgroup) == dir)
                    .map(|task| task.pid)
                    .collect();
                Ok(words(&mut pids.into_iter().map(|pid| pid.to_string())))
            }
            _ => errno(libc::ENOENT),
        }
    }

    fn write_cgroup(&mut self, path: &str, text: &str) -> io::Result<()> {
        // The file must be there to be written.
        self.read_cgroup(path)?;
        let (dir, file) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = if dir.is_empty() { "/" } else { dir };
        match file {
            "cgroup.type" => {
                if self.threaded(dir) {
                    return Ok(());
                }
                let up = self.domain(&parent(dir));
                let domains_below = self.cgroups[dir]
                    .subtree
                    .iter()
                    .any(|c| !THREADED.contains(&c.as_str()));
                if text != "threaded"
                    || self.populated(dir)
                    || domains_below
                    || !self.valid_domain(&up)
                    || !self.can_be_thread_root(&up)
                {
                    return errno(libc::EOPNOTSUPP);
                }
                self.cgroups.get_mut(dir).unwrap().threaded = true;
            }
            "cgroup.freeze" => {
                self.cgroups.get_mut(dir).unwrap().frozen = text == "1";
            }
            "cpuset.cpus" => {
                let Ok(cpus) = text.trim().parse::<CpuSet>() else {
                    return errno(libc::EINVAL);
                };
                if cpus.is_empty() && self.populated(dir) && !self.cgroups[dir].cpus.is_empty() {
                    return errno(libc::ENOSPC);
                }
                self.cgroups.get_mut(dir).unwrap().cpus = cpus;
            }
            "cpu.weight" => {
                let Ok(weight) = text.trim().parse::<u32>() else {
                    return errno(libc::EINVAL);
                };
                if !(1..=10_000).contains(&weight) {
                    return errno(libc::ERANGE);
                }
                let cgroup = self.cgroups.get_mut(dir).unwrap();
                if cgroup.idle {
                    return errno(libc::EINVAL);
                }
                cgroup.weight = weight;
            }
            "cpu.idle" => {
                let cgroup = self.cgroups.get_mut(dir).unwrap();
                // Either way it has the default weight afterwards, unless nothing changes.
                if cgroup.idle != (text == "1") {
                    cgroup.idle = text == "1";
                    cgroup.weight = 100;
                }
            }
            "cgroup.subtree_control" => return self.write_subtree(dir, text),
            "cgroup.threads" => {
                let tid: u32 = text.parse().unwrap();
                let Some(task) = self.tasks.get(&tid) else {
                    return errno(libc::ESRCH);
                };
                if self.domain(&task.cgroup) != self.domain(dir) {
                    return errno(libc::EOPNOTSUPP);
                }
                self.may_enter(dir)?;
                self.tasks.get_mut(&tid).unwrap().cgroup = dir.into();
            }
            "cgroup.procs" => {
                let pid: u32 = text.parse().unwrap();
                if !self.tasks.values().any(|task| task.pid == pid) {
                    return errno(libc::ESRCH);
                }
                self.may_enter(dir)?;
                for task in self.tasks.values_mut().filter(|task| task.pid == pid) {
                    task.cgroup = dir.into();
                }
            }
            _ => return errno(libc::EINVAL),
        }
        Ok(())
    }

    fn write_subtree(&mut self, dir: &str, text: &str) -> io::Result<()> {
        let (sign, controller) = text.split_at(1);
        if sign == "-" {
            if self
                .children(dir)
                .any(|(_, child)| child.subtree.contains(controller))
            {
                return errno(libc::EBUSY);
            }
            self.cgroups
                .get_mut(dir)
                .unwrap()
                .subtree
                .remove(controller);
            let below: Vec<String> = self.children(dir).map(|(path, _)| path.clone()).collect();
            for path in below {
                let child = self.cgroups.get_mut(&path).unwrap();
                match controller {
                    "cpuset" => child.cpus = CpuSet::EMPTY,
                    "cpu" => (child.weight, child.idle) = (100, false),
                    _ => {}
                }
            }
            return Ok(());
        }
        if !self.has_controller(dir, controller) {
            return errno(libc::ENOENT);
        }
        if self.cgroups[dir].subtree.contains(controller) {
            return Ok(());
        }
        if !self.valid_domain(&self.domain(dir)) {
            return errno(libc::EOPNOTSUPP);
        }
        if dir != "/" {
            if THREADED.contains(&controller) {
                if !self.can_be_thread_root(dir) && !self.threaded(dir) && self.has_tasks(dir) {
                    return errno(libc::EBUSY);
                }
            } else if self.thread_root(dir) || self.threaded(dir) {
                return errno(libc::EOPNOTSUPP);
            } else if self.has_tasks(dir) {
                return errno(libc::EBUSY);
            }
        }
        self.cgroups
            .get_mut(dir)
            .unwrap()
            .subtree
            .insert(controller.into());
        Ok(())
    }

    fn read_proc(&self, path: &str) -> io::Result<String> {
        if path == "sys/kernel/random/boot_id" {
            return Ok("a-boot\n".into());
        }
        if path == "77/comm" && self.irqbalance {
            return Ok("irqbalance\n".into());
        }
        let parts: Vec<&str> = path.split('/').collect();
        let task = |tid: &str, pid: &str| {
            tid.parse()
                .ok()
                .and_then(|tid: u32| self.tasks.get(&tid))
                .filter(|task| task.pid.to_string() == pid)
        };
        let (found, file) = match parts.as_slice() {
            ["irq", irq, "smp_affinity_list"] => {
                let irq = irq.parse().ok().and_then(|irq: u32| self.irqs.get(&irq));
                return irq.map_or_else(|| errno(libc::ENOENT), |(cpus, _)| Ok(cpus.to_string()));
            }
            [pid, "task", tid, file] => (task(tid, pid), *file),
            [pid, file] => (task(pid, pid), *file),
            _ => return errno(libc::ENOENT),
        };
        let Some(found) = found else {
            return errno(libc::ENOENT);
        };
        match file {
            "cgroup" => Ok(format!("1:name=systemd:/x\n0::{}\n", found.cgroup)),
            "stat" => Ok(format!(
                "1 (CPU 0/KVM) x) S{} {} 0",
                " 0".repeat(18),
                found.start
            )),
            _ => errno(libc::ENOENT),
        }
    }
}

impl Kernel {
    pub fn new(state: State) -> Kernel {
        let kernel = Kernel::default();
        kernel.lock().state = state;
        kernel
    }

    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        // Stopping its user unwinds while the lock is held; the state is whole all the same.
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn step(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.lock();
        inner.ops += 1;
        if inner.kill_at.is_some_and(|at| inner.ops >= at) {
            drop(inner);
            resume_unwind(Box::new(Killed));
        }
        inner
    }
}

impl Kernel {
    /// Writes all that can be read of it to files, so that a real host's reader finds the same.
    pub fn write_out(&self, to: &std::path::Path) {
        let put = |path: String, text: io::Result<String>| {
            if let Ok(text) = text {
                let path = to.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
        };
        let state = &self.lock().state;
        for cgroup in state.cgroups.keys() {
            for file in [
                "cgroup.controllers",
                "cgroup.subtree_control",
                "cgroup.type",
                "cgroup.freeze",
                "cgroup.procs",
                "cpuset.cpus",
                "cpu.weight",
                "cpu.idle",
            ] {
                let path = format!("{}/{file}", cgroup.trim_end_matches('/'));
                put(format!("cgroup{path}"), state.read_cgroup(&path));
            }
        }
        let mut proc = vec!["sys/kernel/random/boot_id".to_owned()];
        for (tid, task) in &state.tasks {
            for file in ["cgroup", "stat"] {
                proc.push(format!("{}/task/{tid}/{file}", task.pid));
                proc.push(format!("{}/{file}", task.pid));
            }
        }
        proc.extend(
            state
                .irqs
                .keys()
                .map(|irq| format!("irq/{irq}/smp_affinity_list")),
        );
        for path in proc {
            put(format!("proc/{path}"), state.read_proc(&path));
        }
    }
}

impl Host for Kernel {
    fn read(&self, root: Root, path: &str) -> io::Result<String> {
        let inner = self.step();
        match root {
            Root::Cgroup => inner
                .state
                .read_cgroup(&format!("/{}", path.trim_start_matches('/'))),
            Root::Proc => inner.state.read_proc(path),
            Root::Sys => {
                let mask = path.strip_prefix("class/net/eth9/queues/");
                let mask = mask.and_then(|name| inner.state.masks.get(name));
                mask.map_or_else(
                    || errno(libc::ENOENT),
                    |cpus| {
                        let bits = cpus.iter().fold(0_u32, |bits, cpu| bits | 1 << cpu.0);
                        Ok(format!("00000000,{bits:08x}\n"))
                    },
                )
            }
        }
    }

    fn write(&self, root: Root, path: &str, text: &str) -> io::Result<()> {
        let mut inner = self.step();
        inner.writes += 1;
        match root {
            Root::Cgroup => inner
                .state
                .write_cgroup(&format!("/{}", path.trim_start_matches('/')), text),
            Root::Proc => {
                let irq: u32 = path.split('/').nth(1).unwrap().parse().unwrap();
                let Some((cpus, managed)) = inner.state.irqs.get_mut(&irq) else {
                    return errno(libc::ENOENT);
                };
                if *managed {
                    return errno(libc::EIO);
                }
                *cpus = text.parse().unwrap();
                Ok(())
            }
            Root::Sys => {
                let name = path.strip_prefix("class/net/eth9/queues/").unwrap();
                let bits = u32::from_str_radix(text, 16).unwrap();
                let cpus = (0..32).filter(|bit| bits & (1 << bit) != 0).map(CpuId);
                match inner.state.masks.get_mut(name) {
                    Some(mask) => *mask = cpus.collect(),
                    None => return errno(libc::ENOENT),
                }
                Ok(())
            }
        }
    }

    fn create_dir(&self, _: Root, path: &str) -> io::Result<()> {
        let mut inner = self.step();
        inner.writes += 1;
        if inner.state.cgroups.contains_key(path) {
            return errno(libc::EEXIST);
        }
        if !inner.state.cgroups.contains_key(&parent(path)) {
            return errno(libc::ENOENT);
        }
        inner.state.mkdir(path);
        Ok(())
    }

    fn remove_dir(&self, _: Root, path: &str) -> io::Result<()> {
        let mut inner = self.step();
        inner.writes += 1;
        if !inner.state.cgroups.contains_key(path) {
            return errno(libc::ENOENT);
        }
        if inner.state.has_tasks(path) || inner.state.children(path).next().is_some() {
            return errno(libc::EBUSY);
        }
        inner.state.cgroups.remove(path);
        Ok(())
    }

    fn dirs(&self, root: Root, path: &str) -> io::Result<Vec<String>> {
        let inner = self.step();
        if root == Root::Proc && path.is_empty() {
            return Ok(vec!["1".into(), "77".into(), "sys".into()]);
        }
        if root != Root::Cgroup {
            let pid = path.strip_suffix("/task").unwrap_or_default();
            let tasks = inner.state.tasks.iter();
            return Ok(tasks
                .filter(|(_, task)| task.pid.to_string() == pid)
                .map(|(tid, _)| tid.to_string())
                .collect());
        }
        let name = |path: &String| path.rsplit('/').next().unwrap().to_owned();
        Ok(inner
            .state
            .children(path)
            .map(|(path, _)| name(path))
            .collect())
    }

    fn affinity(&self, tid: Tid) -> io::Result<CpuSet> {
        match self.step().state.tasks.get(&tid.0) {
            Some(task) => Ok(task.affinity),
            None => errno(libc::ESRCH),
        }
    }

    fn set_affinity(&self, tid: Tid, cpus: &CpuSet) -> io::Result<()> {
        let mut inner = self.step();
        inner.writes += 1;
        match inner.state.tasks.get_mut(&tid.0) {
            Some(task) => task.affinity = *cpus,
            None => return errno(libc::ESRCH),
        }
        Ok(())
    }

    fn policy(&self, tid: Tid) -> io::Result<i32> {
        match self.step().state.tasks.get(&tid.0) {
            Some(task) => Ok(task.policy),
            None => errno(libc::ESRCH),
        }
    }

    fn set_policy(&self, tid: Tid, policy: i32) -> io::Result<()> {
        let mut inner = self.step();
        inner.writes += 1;
        match inner.state.tasks.get_mut(&tid.0) {
            Some(task) => task.policy = policy,
            None => return errno(libc::ESRCH),
        }
        Ok(())
    }

    fn rss(&self, _: &str) -> io::Result<RssView> {
        let inner = self.step();
        Ok(RssView {
            table: inner.state.rss.clone(),
            rings: inner.state.rings,
        })
    }

    fn set_rss(&self, _: &str, table: Option<&[u32]>) -> io::Result<()> {
        let mut inner = self.step();
        inner.writes += 1;
        let (rings, buckets) = (inner.state.rings, inner.state.rss.len());
        let table: Vec<u32> = match table {
            Some(table) => table.to_vec(),
            None => (0..rings).cycle().take(buckets).collect(),
        };
        if table.len() != buckets || table.iter().any(|&queue| queue >= rings) {
            return errno(libc::EINVAL);
        }
        inner.state.rss = table;
        Ok(())
    }
}
