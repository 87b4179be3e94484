//! QEMU's command lines, and everything that decides the emulated host's time. Both are here and nowhere else.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::image::{Image, command_of};
use crate::scenario::{Guest, Host, Workload};
use ostler_outcome::report::Clock;

/// QEMU's path in the image's tree.
pub const QEMU: &str = "usr/bin/qemu-system-x86_64";

/// Names of what a run keeps in its folder. QEMU is started in that folder and knows them by these names: a socket's
/// path may not exceed 108 bytes, whatever the folder is called.
pub mod files {
    /// What the host's accesses to memory cost.
    pub const TOPOLOGY: &str = "topology.toml";
    /// What the host's cores did, as its PMU shows it: `ostler-abi` has the layout.
    pub const PMU: &str = "pmu";
    /// What went where, a file for each cell.
    pub const PROFILE: &str = "profile";
    /// Serial log of the host.
    pub const SERIAL: &str = "serial.log";
    /// What QEMU itself said.
    pub const QEMU: &str = "qemu.log";
    /// Events from the host, as they came.
    pub const EVENTS: &str = "events.raw.jsonl";
    /// The shell's socket.
    pub const SHELL: &str = "shell.sock";
    /// The input disk.
    pub const INPUT: &str = "input.ext4";
    /// Where the host writes a tar archive of its results.
    pub const RESULTS: &str = "results.tar";
}

/// Name of the virtio-serial port that events leave by.
pub const EVENTS_PORT: &str = "ostler.events";

/// Whose time the emulated host lives in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Time {
    /// The real machine's.
    Wall {
        /// The plugin, for its cures of QEMU alone; without it, a boot in twenty hangs.
        plugin: Option<PathBuf>,
    },
    /// Its own: instructions times cost, all cores in lockstep.
    Machine {
        /// The plugin that keeps it.
        plugin: PathBuf,
        /// When the host has nothing to do: wait as long as it would in earnest, for whoever sits at it, or skip that time.
        pace: bool,
        /// Whether it counts where instructions go.
        profile: bool,
    },
}

impl Time {
    /// Whose clock it is, for the record.
    pub fn clock(&self) -> Clock {
        match self {
            Time::Wall { .. } => Clock::Wall,
            Time::Machine { .. } => Clock::Machine,
        }
    }

    /// How many times longer than on wall time the real machine may take to get through the same work: the emulated cores
    /// wait for each other, and for every real core that somebody else has.
    pub fn slowness(&self) -> u32 {
        match self {
            Time::Wall { .. } => 1,
            Time::Machine { .. } => 3,
        }
    }

    fn plugin(&self, qemu: &mut Command, host: &Host) {
        let arguments = match self {
            Time::Wall { plugin: None } => return,
            Time::Wall {
                plugin: Some(plugin),
            } => format!("file={},clock=wall", escape(plugin)),
            Time::Machine {
                plugin,
                pace,
                profile,
            } => {
                let idle = if *pace { "pace" } else { "skip" };
                let cost = host.instruction_ns;
                // In instructions, a quantum is the same whatever they cost: what cores see of each other scales with all else.
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "500 to 1,000,000"
                )]
                let quantum = (f64::from(QUANTUM) * cost)
                    .round()
                    .clamp(1_000.0, 1_000_000.0) as u32;
                let caches = match host.caches {
                    Some(_) => format!(",timing=caches,topology={}", files::TOPOLOGY),
                    None => String::new(),
                };
                let profile = if *profile {
                    format!(",profile={}", files::PROFILE)
                } else {
                    String::new()
                };
                format!(
                    "file={},cost={cost},quantum={quantum},idle={idle}{caches}{profile},pmu={}",
                    escape(plugin),
                    files::PMU
                )
            }
        };
        qemu.arg("-plugin").arg(arguments);
    }

    /// Shows the host what its cores do, as memory of a device. Only a machine that keeps its own time counts that.
    fn pmu(&self, qemu: &mut Command) {
        if let Time::Machine { .. } = self {
            qemu.args([
                "-object",
                &format!(
                    "memory-backend-file,id=pmu,share=on,size={},mem-path={}",
                    ostler_abi::pmu::BYTES,
                    files::PMU
                ),
            ]);
            qemu.args(["-device", "ivshmem-plain,memdev=pmu"]);
        }
    }

    /// What virtio devices are to do differently. In machine time, a request must be known to the device before the
    /// instruction that made it is over, and not when QEMU's main loop gets round to it: else the idle time
    /// that is skipped meanwhile would be as long as the real machine makes it.
    fn virtio(&self) -> &'static str {
        match self {
            Time::Wall { .. } => "",
            Time::Machine { .. } => ",ioeventfd=off",
        }
    }
}

/// Instructions that a core may be ahead of the slowest one. At one nanosecond each it is less than a wake-up across cores; a
/// larger one leaks the real machine's load into those, a smaller one has cores wait for each other all the time.
const QUANTUM: u32 = 10_000;

/// How the emulated host keeps time, on its kernel's command line. Its TSC follows the real machine's clock or the
/// plugin's, and either is steady; on wall time, the kernel's watchdogs would mistake an emulated core that wasn't scheduled
/// for a broken one.
pub const CLOCK: &str = "tsc=reliable nowatchdog rcupdate.rcu_cpu_stall_suppress=1";

/// Has the emulated host's kernel start its cores one after the other. Since Linux 6.5 it starts all of them at once, to wait in a loop for their turns
/// (`cpuhp_bringup_cpus_parallel` in kernel/cpu.c); and each round of such a loop is a nanosecond for the machine, but some microseconds for QEMU,
/// which leaves its translated code for every `pause`. With eight cores that was 124 s of 140.
const ONE_BY_ONE: &str = "cpuhp.parallel=off";

/// What Debian's kernel does for itself, and nobody in the lab asks for. A thread of DAMON's looks at pages all the time, for a statistic of which of them
/// are idle. In the emulated host that took 0.4 ms some ten times a second, on whatever core the thread happened to be. And ciphers are tested as they are
/// registered, in threads that nobody waits for: 13 s of a guest's CPU time where an instruction takes 10 ns, beside what was measured first in it. Kernels
/// that don't know a word pass over it.
const NOTHING_UNASKED: &str = "damon_stat.enabled=N cryptomgr.notests";

/// The command line of a guest's kernel. Guests inherit their host's TSC, as [`CLOCK`] has it.
#[must_use]
pub fn guest_kernel() -> String {
    format!(
        "console=ttyS0 quiet panic=-1 reboot=t mitigations=off tsc=reliable nowatchdog {NOTHING_UNASKED}"
    )
}

/// The CPU model, without the features that TCG would warn about for each core.
const CPU: &str = "EPYC-v4,+svm,+npt,-fxsr-opt,-misalignsse,-osvw,-topoext,-perfctr-core,-clzero,-ibpb,-nrip-save,-xsavec,-xsaves";

/// MAC address of the host's end of the pNIC's cable; the client's end is one higher.
const PNIC_MAC: &str = "52:54:00:6f:73:01";
const CLIENT_MAC: &str = "52:54:00:6f:73:02";

/// The emulated host: run by the image's own QEMU, in the run's folder.
pub fn host(image: &Image, host: &Host, run: &Path, time: &Time) -> Command {
    let root = image.tree();
    let mut qemu = command_of(&root, QEMU);
    qemu.current_dir(run);
    for firmware in ["usr/share/qemu", "usr/share/seabios"] {
        qemu.arg("-L").arg(root.join(firmware));
    }
    // Several emulated cores run at once; nested SVM lets the host run guests at nearly its own speed.
    qemu.args([
        "-accel",
        "tcg,thread=multi",
        "-cpu",
        CPU,
        "-rtc",
        "clock=vm",
    ]);
    time.plugin(&mut qemu, host);
    let virtio = time.virtio();
    qemu.args([
        "-nodefaults",
        "-display",
        "none",
        "-no-reboot",
        "-no-user-config",
    ]);
    topology(&mut qemu, host);
    qemu.arg("-kernel")
        .arg(image.kernel())
        .arg("-initrd")
        .arg(image.host_initramfs());
    qemu.args([
        "-append",
        &format!(
            "console=ttyS0 quiet panic=-1 mitigations=off {CLOCK} {ONE_BY_ONE} {NOTHING_UNASKED}"
        ),
    ]);

    qemu.args(["-serial", &format!("file:{}", files::SERIAL)]);
    qemu.args(["-device", &format!("virtio-serial-pci{virtio}")]);
    qemu.args([
        "-chardev",
        &format!("file,id=events,path={}", files::EVENTS),
    ]);
    qemu.args([
        "-device",
        &format!("virtserialport,chardev=events,name={EVENTS_PORT}"),
    ]);
    qemu.args([
        "-chardev",
        &format!("socket,id=shell,path={},server=on,wait=off", files::SHELL),
    ]);
    qemu.args(["-device", "virtconsole,chardev=shell"]);

    // The order decides their names: vda, vdb, vdc.
    for (id, file, options) in [
        ("root", image.disk(), ",snapshot=on"),
        ("input", PathBuf::from(files::INPUT), ",readonly=on"),
        ("results", PathBuf::from(files::RESULTS), ""),
    ] {
        qemu.args([
            "-drive",
            &format!("if=none,format=raw,id={id},file={}{options}", escape(&file)),
        ]);
        qemu.args([
            "-device",
            &format!("virtio-blk-pci,drive={id},serial={id}{virtio}"),
        ]);
    }

    // The pNIC and the client's NIC, cabled by a hub inside QEMU: all traffic stays on the machine's own time.
    for (id, slot, mac) in [("pnic", 1, PNIC_MAC), ("client", 2, CLIENT_MAC)] {
        qemu.args([
            "-device",
            &format!("pcie-root-port,id=port{slot},chassis={slot},slot={slot}"),
        ]);
        qemu.args(["-netdev", &format!("hubport,id={id},hubid=0")]);
        qemu.args([
            "-device",
            &format!("igb,netdev={id},bus=port{slot},mac={mac},romfile="),
        ]);
    }
    time.pmu(&mut qemu);
    qemu
}

/// QEMU's option syntax wants commas doubled.
fn escape(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// CPUs and memory nodes. Far nodes are described by an HMAT, so that the host's kernel sorts them into tiers.
fn topology(qemu: &mut Command, host: &Host) {
    let cpus = host.cpus;
    qemu.args([
        "-smp",
        &format!(
            "{},sockets={},cores={},threads={}",
            cpus.count(),
            cpus.sockets,
            cpus.cores,
            cpus.threads
        ),
    ]);
    let total: u64 = host.nodes.iter().map(|node| node.memory_mib).sum();
    qemu.args(["-m", &format!("{total}M")]);
    if host.nodes.len() == 1 {
        qemu.args(["-M", "q35"]);
        return;
    }
    qemu.args(["-M", "q35,hmat=on"]);
    for (id, node) in host.nodes.iter().enumerate() {
        qemu.args([
            "-object",
            &format!("memory-backend-ram,id=mem{id},size={}M", node.memory_mib),
        ]);
        let mut numa = format!("node,nodeid={id},memdev=mem{id}");
        for cpu in &node.cpus {
            let _ = write!(numa, ",cpus={cpu}"); // a String takes everything
        }
        // A far node is reached through the nearest node that has CPUs; the first one stands for it.
        let initiator = if node.cpus.is_empty() { 0 } else { id };
        let _ = write!(numa, ",initiator={initiator}");
        qemu.args(["-numa", &numa]);
    }
    for (from, initiator) in host.nodes.iter().enumerate() {
        if initiator.cpus.is_empty() {
            continue;
        }
        for (to, target) in host.nodes.iter().enumerate() {
            let local = from == to;
            // Seen from another socket, a near node costs about 1.75 times its own latency.
            let near_remote = !local && !target.cpus.is_empty();
            let latency_ns = if near_remote {
                target.latency_ns * 7 / 4
            } else {
                target.latency_ns
            };
            let bandwidth = if near_remote {
                target.bandwidth_mib_per_s / 2
            } else {
                target.bandwidth_mib_per_s
            };
            let lb = |kind: &str| {
                format!(
                    "hmat-lb,initiator={from},target={to},hierarchy=memory,data-type=access-{kind}"
                )
            };
            qemu.args(["-numa", &format!("{},latency={latency_ns}", lb("latency"))]);
            qemu.args([
                "-numa",
                &format!("{},bandwidth={bandwidth}M", lb("bandwidth")),
            ]);
        }
    }
}

/// Where a guest's QEMU finds and leaves things, inside the emulated host.
#[derive(Clone, Debug)]
pub struct GuestPaths {
    /// Kernel image.
    pub kernel: PathBuf,
    /// Initial root.
    pub initrd: PathBuf,
    /// Serial log.
    pub serial: PathBuf,
    /// QMP socket.
    pub qmp: PathBuf,
    /// Its disk's file, if it has a disk.
    pub disk: Option<PathBuf>,
}

/// Where guests' QMP sockets are, inside the emulated host.
pub const QMP_FOLDER: &str = "/run/ostler-lab/qmp";

/// Name of a guest's tap in the emulated host.
pub fn tap(guest: &Guest) -> String {
    format!("tap-{}", guest.name)
}

/// Address of guest number `index` on the bridge.
pub fn guest_address(index: usize) -> String {
    format!("10.77.0.{}", 11 + index)
}

/// vsock context of guest number `index`. 0 to 2 are taken by the protocol.
pub fn guest_cid(index: usize) -> u32 {
    16 + u32::try_from(index).unwrap_or(0)
}

/// A guest: run by the host's own QEMU, inside the emulated host. `rests`: the work that it does by itself waits for a turn.
pub fn guest(guest: &Guest, index: usize, rests: bool, paths: &GuestPaths) -> Command {
    let mut qemu = Command::new("qemu-system-x86_64");
    // microvm boots in a third of the time a full PC takes; pcie=on for vhost with several queues. Its timer of 1981 would have QEMU's main loop
    // wake 36 times a second for as long as the guest, which has no use for it, lives: before all vCPUs, for 1.3 % of a core of this speed.
    qemu.args([
        "-M",
        "microvm,rtc=on,pcie=on,pit=off",
        "-accel",
        "kvm",
        "-cpu",
        "host",
    ]);
    qemu.args([
        "-nodefaults",
        "-display",
        "none",
        "-no-reboot",
        "-no-user-config",
    ]);
    qemu.args(["-name", &format!("{},debug-threads=on", guest.name)]);
    qemu.args([
        "-smp",
        &guest.vcpus.to_string(),
        "-m",
        &format!("{}M", guest.memory_mib),
    ]);
    qemu.arg("-kernel")
        .arg(&paths.kernel)
        .arg("-initrd")
        .arg(&paths.initrd);
    let workload: Workload = guest.workload;
    qemu.args([
        "-append",
        &format!(
            "{} lab.name={} lab.ip={}/24 lab.workload={workload} lab.memory_mb={}{}",
            guest_kernel(),
            guest.name,
            guest_address(index),
            guest.memory_mib,
            if rests { " lab.rests" } else { "" }
        ),
    ]);
    qemu.args(["-serial", &format!("file:{}", paths.serial.display())]);
    qemu.args([
        "-qmp",
        &format!("unix:{},server=on,wait=off", paths.qmp.display()),
    ]);
    let queues = guest.queues;
    let several = if queues > 1 {
        format!(",queues={queues}")
    } else {
        String::new()
    };
    qemu.args([
        "-netdev",
        &format!(
            "tap,id=net0,ifname={},script=no,downscript=no,vhost=on{several}",
            tap(guest)
        ),
    ]);
    // One vector per queue and direction, one for configuration changes, one for the control queue.
    let vectors = if queues > 1 {
        format!(",mq=on,vectors={}", 2 * queues + 2)
    } else {
        String::new()
    };
    qemu.args([
        "-device",
        &format!(
            "virtio-net-pci,netdev=net0,mac=52:54:00:77:00:{:02x},romfile={vectors}",
            11 + index
        ),
    ]);
    qemu.args([
        "-device",
        &format!("vhost-vsock-pci,guest-cid={}", guest_cid(index)),
    ]);
    if let Some(disk) = &paths.disk {
        qemu.args([
            "-drive",
            &format!("if=none,format=raw,id=disk,file={}", escape(disk)),
        ]);
        qemu.args(["-device", "virtio-blk-pci,drive=disk"]);
    }
    qemu
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
