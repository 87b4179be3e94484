//! QEMU's command lines.

use std::fmt::Write as _;
use std::os::fd::RawFd;
use std::path::Path;
use std::process::Command;

use crate::emulator::Emulators;
use crate::layout::{self, Owner, Range};
use crate::world::{Isa, Machine, World};

/// Files without a name that QEMU is given: their descriptors, which it inherits.
#[derive(Clone, Copy, Debug)]
pub struct Inherited {
    /// All memory that several machines see, each range at its physical address.
    pub memory: RawFd,
    /// The page by which they are in step.
    pub page: RawFd,
    /// What memory costs, if it costs anything.
    pub costs: Option<Costs>,
}

/// What memory costs.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// The description of all cores and all memory.
    pub topology: RawFd,
    /// The block that the model of it is in, where several machines' emulators share it.
    pub block: Option<RawFd>,
}

/// The command that runs one machine of a world. Its serial line is its standard output.
pub fn command(
    world: &World,
    number: usize,
    emulators: &Emulators,
    inherited: &Inherited,
) -> Command {
    let machine = &world.machines[number];
    let emulator = emulators.of(machine.isa);
    let mut qemu = emulator.command();
    for folder in &emulator.firmware {
        qemu.arg("-L").arg(folder);
    }
    qemu.args(["-nodefaults", "-no-user-config", "-no-reboot"]);
    qemu.args(["-display", "none", "-rtc", "clock=vm"]);
    qemu.args(["-name", &format!("{},debug-threads=on", machine.name)]);
    let (cores, most) = (machine.cores, world.width(number));
    qemu.args(["-accel", "tcg,thread=multi"]);
    qemu.args(["-smp", &format!("{cores},maxcpus={most}")]);
    let mut kind = match machine.isa {
        Isa::X86_64 => "q35".to_owned(),
        Isa::Aarch64 => "virt,gic-version=3".to_owned(),
    };
    memory(&mut qemu, &mut kind, world, number, inherited, most);
    qemu.args(["-M", &kind, "-cpu", "max"]);
    qemu.args(["-plugin", &plugin(world, number, emulators, inherited)]);
    qemu.args(["-chardev", "file,id=serial0,path=/proc/self/fd/1"]);
    qemu.args(["-serial", "chardev:serial0"]);
    boots(&mut qemu, machine);
    qemu
}

fn boots(qemu: &mut Command, machine: &Machine) {
    if let Some(firmware) = &machine.firmware {
        qemu.arg("-bios").arg(firmware);
    }
    qemu.arg("-kernel").arg(&machine.kernel);
    if let Some(initrd) = &machine.initrd {
        qemu.arg("-initrd").arg(initrd);
    }
    if !machine.append.is_empty() {
        qemu.args(["-append", &machine.append]);
    }
    for (number, drive) in machine.drives.iter().enumerate() {
        let keeps = if drive.keep { "" } else { ",snapshot=on" };
        qemu.args([
            "-drive",
            &format!(
                "if=none,format=raw,id=drive{number},file={}{keeps}",
                escape(&drive.file)
            ),
        ]);
        // On machine time a request must be known to the device before the instruction that made it is over.
        qemu.args([
            "-device",
            &format!("virtio-blk-pci,drive=drive{number},ioeventfd=off"),
        ]);
    }
}

fn plugin(world: &World, number: usize, emulators: &Emulators, inherited: &Inherited) -> String {
    let machine = &world.machines[number];
    let mut arguments = format!(
        "file={},quantum={},cost={}.{:03}",
        escape(&emulators.plugin),
        world.time.quantum_ns,
        machine.instruction_ps / 1000,
        machine.instruction_ps % 1000
    );
    // A String takes everything.
    if world.is_fused() {
        let _ = write!(
            arguments,
            ",page={},machine={number},latency={}",
            path_of(inherited.page),
            world.time.interrupt_ns
        );
    }
    if let Some(costs) = inherited.costs {
        let topology = path_of(costs.topology);
        let _ = write!(arguments, ",timing=caches,topology={topology}");
        if let Some(block) = costs.block {
            let first = world.first_core(number);
            let _ = write!(arguments, ",block={},first={first}", path_of(block));
        }
    }
    arguments
}

/// By which a process finds a file without a name that it has inherited.
fn path_of(descriptor: RawFd) -> String {
    format!("/proc/self/fd/{descriptor}")
}

fn memory(
    qemu: &mut Command,
    kind: &mut String,
    world: &World,
    number: usize,
    inherited: &Inherited,
    cores: u32,
) {
    let isa = world.machines[number].isa;
    let seen = layout::seen(&world.ranges, number, isa, world.model);
    let total: u64 = seen.iter().map(|range| range.bytes).sum();
    qemu.args(["-m", &format!("{}M", total >> 20)]);
    if isa == Isa::X86_64 {
        let low = seen.iter().filter(|range| range.start < layout::X86_HIGH);
        let low: u64 = low.map(|range| range.bytes).sum();
        let _ = write!(kind, ",max-ram-below-4g={low}");
    }
    if !world.is_fused() {
        return;
    }
    for (node, range) in seen.iter().enumerate() {
        qemu.args(["-object", &backend(node, range, number, world, inherited)]);
    }
    if seen.len() == 1 {
        kind.push_str(",memory-backend=memory0");
        return;
    }
    for node in 0..seen.len() {
        let mut numa = format!("node,nodeid={node},memdev=memory{node}");
        if node == 0 {
            let _ = write!(numa, ",cpus=0-{}", cores - 1);
        }
        qemu.args(["-numa", &numa]);
    }
}

/// A range of memory: at its physical address in the file that all share, or this process's own if no other machine sees it.
fn backend(
    node: usize,
    range: &Range,
    number: usize,
    world: &World,
    inherited: &Inherited,
) -> String {
    let others = world.machines.iter().enumerate();
    let mut others = others.filter(|(other, _)| *other != number);
    let shared = range.owner == Owner::Pool
        || others.any(|(other, machine)| layout::sees(range, other, machine.isa, world.model))
        || range.owner != Owner::Machine(number);
    if shared {
        format!(
            "memory-backend-file,id=memory{node},size={},offset={},share=on,mem-path={}",
            range.bytes,
            range.start,
            path_of(inherited.memory)
        )
    } else {
        format!("memory-backend-ram,id=memory{node},size={}", range.bytes)
    }
}

/// QEMU's option syntax wants commas doubled.
fn escape(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

#[cfg(test)]
#[path = "qemu_tests.rs"]
mod tests;
