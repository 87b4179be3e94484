//! A kernel in memory that behaves like the real one where the agent could be caught out: it spells settings its own way, a cpuset
//! file is there only while the controller is enabled, and virtio_net undoes steering when its queue count changes.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io;

use super::kernel::{Channels, Kernel};
use crate::cpulist;

pub const CGROUP: &str = "/sys/fs/cgroup";
pub const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];
/// The agent's process.
pub const OWN_PID: i32 = 50;

/// Everything that a restore must bring back byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct World {
    pub files: BTreeMap<String, String>,
    pub channels: BTreeMap<String, (u32, u32)>,
    pub affinities: BTreeMap<i32, Vec<u32>>,
}

#[derive(Debug)]
pub struct FakeKernel {
    pub world: RefCell<World>,
    /// Writes to these paths fail.
    pub refuse: RefCell<BTreeSet<String>>,
    pub writes: RefCell<u32>,
    /// How often each path was read.
    pub reads: RefCell<BTreeMap<String, u32>>,
    /// Interfaces' numbers; those that aren't named have 1.
    pub indices: RefCell<BTreeMap<String, u32>>,
}

impl FakeKernel {
    /// A guest with `vcpus` vCPUs, a service tree, and a virtio NIC of `queues` pairs, all in use.
    pub fn new(vcpus: u32, queues: u32, cgroup2: bool) -> Self {
        let all: Vec<u32> = (0..vcpus).collect();
        let list = format!("{}\n", cpulist::format_list(&all));
        let mut files = BTreeMap::new();
        let mut put = |path: &str, text: &str| {
            files.insert(path.to_owned(), text.to_owned());
        };
        put("/sys/devices/system/cpu/online", &list);
        put("/proc/self/cgroup", "0::/system.slice/ostler.service\n");
        if cgroup2 {
            put(
                "/proc/self/mounts",
                &format!("proc /proc proc rw 0 0\ncgroup2 {CGROUP} cgroup2 rw 0 0\n"),
            );
            put(
                &format!("{CGROUP}/cgroup.controllers"),
                "cpuset cpu memory\n",
            );
            put(&format!("{CGROUP}/cgroup.subtree_control"), "memory\n");
            put(&format!("{CGROUP}/cgroup.procs"), "2\n7\n");
            for (name, populated) in [
                ("app.slice", 1),
                ("empty.slice", 0),
                ("system.slice", 1),
                ("system.slice/ostler.service", 1),
                ("system.slice/web.service", 1),
            ] {
                put(
                    &format!("{CGROUP}/{name}/cgroup.events"),
                    &format!("populated {populated}\nfrozen 0\n"),
                );
                put(&format!("{CGROUP}/{name}/cgroup.subtree_control"), "\n");
            }
        } else {
            put("/proc/self/mounts", "proc /proc proc rw 0 0\n");
        }
        for (name, mac) in [
            ("eth0", "52:54:00:00:00:01"),
            ("br0", "52:54:00:00:00:01"),
            ("lo", "00:00:00:00:00:00"),
        ] {
            put(
                &format!("/sys/class/net/{name}/address"),
                &format!("{mac}\n"),
            );
        }
        let mut interrupts = String::from(
            "            CPU0\n  1:  9  IO-APIC  1-edge  i8042\n 24:  0  MSI  virtio0-config\n",
        );
        for queue in 0..queues {
            for (offset, direction) in [(0, "input"), (1, "output")] {
                let irq = 25 + queue * 2 + offset;
                let _ = writeln!(
                    interrupts,
                    " {irq}:  0 3  PCI-MSIX-0000:00:03.0  {irq}-edge  virtio0-{direction}.{queue}"
                );
                put(&format!("/proc/irq/{irq}/smp_affinity_list"), &list);
                put(&handler_path(irq, direction, queue), "");
            }
            put(
                &format!("/sys/class/net/eth0/queues/tx-{queue}/xps_cpus"),
                "0\n",
            );
        }
        put("/proc/interrupts", &interrupts);
        put(
            "/proc/stat",
            "cpu  3 0 0 0 0 0 0 0 0 0\ncpu0 100 1 20 900 5 3 4 7 50 0\ncpu1 1 1 1 1 1 1 1 1 1 1\nintr 5\n",
        );
        let mut affinities = BTreeMap::new();
        // 2 is a kernel thread; 7 has two threads; 9 was started by 7.
        for (pid, tids, parent, flags) in [
            (2, vec![2], 0, 0x0020_8040),
            (7, vec![7, 8], 1, 0x40_0000),
            (9, vec![9], 7, 0x40_0000),
            (OWN_PID, vec![OWN_PID], 1, 0),
        ] {
            for tid in tids {
                let stat = stat_line(pid, parent, flags, 1000);
                put(&format!("/proc/{pid}/task/{tid}/stat"), &stat);
                put(&format!("/proc/{tid}/stat"), &stat);
                affinities.insert(tid, all.clone());
            }
        }
        Self {
            world: RefCell::new(World {
                files,
                channels: BTreeMap::from([("eth0".into(), (queues, queues))]),
                affinities,
            }),
            refuse: RefCell::default(),
            writes: RefCell::default(),
            reads: RefCell::default(),
            indices: RefCell::default(),
        }
    }

    pub fn world(&self) -> World {
        self.world.borrow().clone()
    }

    pub fn get(&self, path: &str) -> String {
        self.world
            .borrow()
            .files
            .get(path)
            .cloned()
            .unwrap_or_default()
    }

    pub fn put(&self, path: &str, text: &str) {
        self.world
            .borrow_mut()
            .files
            .insert(path.into(), text.into());
    }

    /// A new process that inherits from `parent`.
    pub fn fork(&self, parent: i32, pid: i32) {
        let stat = stat_line(pid, parent, 0, 2000);
        self.put(&format!("/proc/{pid}/task/{pid}/stat"), &stat);
        self.put(&format!("/proc/{pid}/stat"), &stat);
        let mut world = self.world.borrow_mut();
        let inherited = world.affinities[&parent].clone();
        world.affinities.insert(pid, inherited);
    }
}

/// The folder in which the kernel tells whose an interrupt is.
pub fn handler_path(irq: u32, direction: &str, queue: u32) -> String {
    format!("/proc/irq/{irq}/virtio0-{direction}.{queue}")
}

fn stat_line(pid: i32, parent: i32, flags: u32, start_ticks: u64) -> String {
    format!(
        "{pid} (a (b) c) S {parent} 1 1 0 -1 {flags} 1 1 1 1 1 1 1 1 20 0 1 0 {start_ticks} 1 1\n"
    )
}

fn not_found<T>(found: Option<T>) -> io::Result<T> {
    found.ok_or_else(|| io::ErrorKind::NotFound.into())
}

impl Kernel for &FakeKernel {
    fn read(&self, path: &str) -> io::Result<String> {
        *self.reads.borrow_mut().entry(path.into()).or_default() += 1;
        not_found(self.world.borrow().files.get(path).cloned())
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        if self.refuse.borrow().contains(path) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        *self.writes.borrow_mut() += 1;
        let mut world = self.world.borrow_mut();
        not_found(world.files.get(path))?;
        if let Some(folder) = path.strip_suffix("/cgroup.subtree_control") {
            return toggle_cpuset(&mut world.files, folder, text);
        }
        let text = match path {
            _ if path.ends_with("xps_cpus") => {
                let cpus = cpulist::parse_mask(text).ok_or(io::ErrorKind::InvalidInput)?;
                format!(
                    "{:x}\n",
                    cpus.iter().fold(0_u64, |mask, cpu| mask | 1 << cpu)
                )
            }
            _ => {
                let cpus = cpulist::parse_list(text).ok_or(io::ErrorKind::InvalidInput)?;
                format!("{}\n", cpulist::format_list(&cpus))
            }
        };
        world.files.insert(path.into(), text);
        Ok(())
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let prefix = format!("{path}/");
        let names: BTreeSet<String> = self
            .world
            .borrow()
            .files
            .keys()
            .filter_map(|file| file.strip_prefix(&prefix))
            .filter_map(|rest| rest.split('/').next().map(str::to_owned))
            .collect();
        not_found((!names.is_empty()).then(|| names.into_iter().collect()))
    }

    fn link_name(&self, path: &str) -> io::Result<String> {
        not_found((path == "/sys/class/net/eth0/device").then(|| "virtio0".into()))
    }

    fn exists(&self, path: &str) -> bool {
        self.world.borrow().files.contains_key(path)
    }

    fn interface_index(&self, name: &str) -> io::Result<u32> {
        Ok(self.indices.borrow().get(name).copied().unwrap_or(1))
    }

    fn channels(&self, nic: &str) -> io::Result<Channels> {
        let (combined, combined_max) = not_found(self.world.borrow().channels.get(nic).copied())?;
        Ok(Channels {
            combined,
            combined_max,
        })
    }

    fn set_channels(&self, nic: &str, combined: u32) -> io::Result<()> {
        *self.writes.borrow_mut() += 1;
        let mut world = self.world.borrow_mut();
        let entry = not_found(world.channels.get_mut(nic))?;
        entry.0 = combined;
        // As virtnet_set_affinity() does, queues in use are spread anew. Others have no transmit choice, nor a file for it.
        let queues = entry.1;
        for queue in 0..queues {
            let xps = format!("/sys/class/net/eth0/queues/tx-{queue}/xps_cpus");
            if queue >= combined {
                world.files.remove(&xps);
                continue;
            }
            world.files.insert(xps, "f\n".into());
            for irq in [25 + queue * 2, 26 + queue * 2] {
                let path = format!("/proc/irq/{irq}/smp_affinity_list");
                world.files.insert(path, "0\n".into());
            }
        }
        Ok(())
    }

    fn affinity(&self, tid: i32) -> io::Result<Vec<u32>> {
        not_found(self.world.borrow().affinities.get(&tid).cloned())
    }

    fn set_affinity(&self, tid: i32, cpus: &[u32]) -> io::Result<()> {
        *self.writes.borrow_mut() += 1;
        self.world
            .borrow_mut()
            .affinities
            .insert(tid, cpus.to_vec());
        Ok(())
    }

    fn monotonic_ns(&self) -> u64 {
        12_345
    }

    fn own_pid(&self) -> i32 {
        OWN_PID
    }
}

fn toggle_cpuset(files: &mut BTreeMap<String, String>, folder: &str, text: &str) -> io::Result<()> {
    let control = format!("{folder}/cgroup.subtree_control");
    let mut words: BTreeSet<String> = files[&control]
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    let children: Vec<String> = files
        .keys()
        .filter_map(|file| file.strip_suffix("/cgroup.events"))
        .filter(|child| {
            child
                .rsplit_once('/')
                .is_some_and(|(parent, _)| parent == folder)
        })
        .map(str::to_owned)
        .collect();
    match text {
        "+cpuset" => {
            words.insert("cpuset".into());
            for child in children {
                files.insert(format!("{child}/cpuset.cpus"), "\n".into());
            }
        }
        "-cpuset" => {
            let busy = |child: &String| {
                files[&format!("{child}/cgroup.subtree_control")].contains("cpuset")
            };
            if children.iter().any(busy) {
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            words.remove("cpuset");
            for child in children {
                files.remove(&format!("{child}/cpuset.cpus"));
            }
        }
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    }
    let words: Vec<String> = words.into_iter().collect();
    files.insert(control, format!("{}\n", words.join(" ")));
    Ok(())
}
