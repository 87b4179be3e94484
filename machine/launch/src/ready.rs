//! Whether all that a world needs is there, before any of it starts.

use std::path::Path;

use crate::emulator::{self, Emulators};
use crate::error::LaunchError;
use crate::layout;
use crate::world::{Isa, Machine, World};

/// QEMU's own firmware that an x86-64 machine boots by. An AArch64 one is entered directly.
const X86_FIRMWARE: &[&str] = &[
    "bios-256k.bin",
    "kvmvapic.bin",
    "linuxboot_dma.bin",
    "pvh.bin",
];
/// What a kernel needs beside its image and its initial root.
const BESIDE: u64 = 24 << 20;

/// Looks whether all is there.
pub fn check(world: &World, emulators: &Emulators) -> Result<(), LaunchError> {
    if !emulators.plugin.is_file() {
        return Err(LaunchError::NoPlugin {
            path: emulators.plugin.clone(),
        });
    }
    for (number, machine) in world.machines.iter().enumerate() {
        let emulator = emulators.of(machine.isa);
        emulator::check(&machine.name, emulator)?;
        let files = files(machine)?;
        if machine.isa == Isa::X86_64 {
            for file in X86_FIRMWARE {
                let there = |folder: &std::path::PathBuf| folder.join(file).is_file();
                if !emulator.firmware.iter().any(there) {
                    let searched = emulator.firmware.iter();
                    let searched: Vec<_> = searched.map(|f| f.display().to_string()).collect();
                    return Err(LaunchError::Firmware {
                        machine: machine.name.clone(),
                        file,
                        searched: searched.join(", "),
                    });
                }
            }
        }
        let seen = layout::seen(&world.ranges, number, machine.isa, world.model);
        let has = layout::boot_bytes(&seen, number, machine.isa);
        let needs = files + BESIDE;
        if has < needs {
            return Err(LaunchError::MachineMemory {
                machine: machine.name.clone(),
                has_mib: has >> 20,
                needs_mib: needs.div_ceil(1 << 20),
            });
        }
    }
    let wanted: u64 = world.ranges.iter().map(|range| range.bytes).sum();
    match available() {
        Some(available) if wanted > available => Err(LaunchError::HostMemory {
            wanted_mib: wanted >> 20,
            available_mib: available >> 20,
        }),
        _ => Ok(()),
    }
}

/// Looks for a machine's files; returns the size of what it boots.
fn files(machine: &Machine) -> Result<u64, LaunchError> {
    let length = |what, path: &Path, remedy| {
        let found = std::fs::File::open(path).and_then(|file| file.metadata());
        let found = found.and_then(|found| {
            let file = !found.is_dir();
            file.then_some(found.len())
                .ok_or_else(|| std::io::ErrorKind::IsADirectory.into())
        });
        found.map_err(|error| LaunchError::Missing {
            machine: machine.name.clone(),
            what,
            path: path.to_owned(),
            error,
            remedy,
        })
    };
    let correct = "correct the path (it is relative to the description's folder)";
    let mut bytes = length("kernel", &machine.kernel, correct)?;
    if let Some(initrd) = &machine.initrd {
        bytes += length("initial root", initrd, correct)?;
    }
    if let Some(firmware) = &machine.firmware {
        length(
            "firmware",
            firmware,
            "correct the path, or leave `firmware` out for QEMU's own",
        )?;
    }
    for drive in &machine.drives {
        length("drive", &drive.file, correct)?;
    }
    if let Some(folder) = machine.serial.as_deref().and_then(Path::parent)
        && !folder.as_os_str().is_empty()
        && !folder.is_dir()
    {
        return Err(LaunchError::Missing {
            machine: machine.name.clone(),
            what: "folder for its serial log,",
            path: folder.to_owned(),
            error: std::io::ErrorKind::NotFound.into(),
            remedy: "make it, or correct `serial`",
        });
    }
    Ok(bytes)
}

/// Memory that this machine could still give, in bytes.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    available_in(&text)
}

fn available_in(meminfo: &str) -> Option<u64> {
    let kib = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    };
    Some(kib("MemAvailable:")? + kib("SwapFree:").unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_had_is_what_is_available_and_swap() {
        let text = "MemTotal:  9000 kB\nMemAvailable:    2048 kB\nSwapFree:  1024 kB\n";
        assert_eq!(available_in(text), Some(3 << 20));
        assert_eq!(available_in("MemTotal: 1 kB\n"), None);
        assert!(available().is_some_and(|bytes| bytes > 1 << 20));
    }
}
