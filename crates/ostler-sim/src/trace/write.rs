//! Writing a trace in the public one's format.

use std::io::{self, Write};

use super::{GB, Reading, Vm, VmId};

/// Writes VMs as `vmtable.csv` has them.
///
/// # Errors
///
/// What the system says.
pub fn write_table<'a>(
    out: &mut impl Write,
    vms: impl IntoIterator<Item = &'a Vm>,
) -> io::Result<()> {
    for vm in vms {
        writeln!(
            out,
            "{},{},{},{},{},{},{},{},{},{},{}",
            Name(vm.id),
            Name(vm.subscription),
            Name(vm.deployment),
            vm.created,
            vm.deleted,
            vm.cpu_max,
            vm.cpu_mean,
            vm.cpu_p95,
            vm.category.name(),
            vm.cores,
            vm.memory as f64 / GB,
        )?;
    }
    Ok(())
}

/// Writes readings as files of readings have them.
///
/// # Errors
///
/// What the system says.
pub fn write_readings<'a>(
    out: &mut impl Write,
    readings: impl IntoIterator<Item = &'a Reading>,
) -> io::Result<()> {
    for reading in readings {
        writeln!(
            out,
            "{},{},{},{},{}",
            reading.at,
            Name(reading.vm),
            reading.min,
            reading.max,
            reading.mean,
        )?;
    }
    Ok(())
}

struct Name(VmId);

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "vm-{}", self.0.0)
    }
}
