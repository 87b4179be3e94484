//! The doorbell in QEMU: a region of registers in the machine's memory, and the interrupts that it causes.
//!
//! QEMU's plugins can watch memory, but not be there; so the region is made by QEMU's own functions, those that its devices use.
//! An access to it costs what any device's does, and all other accesses nothing.
#![allow(
    unsafe_code,
    reason = "QEMU's functions are called, and its callbacks come in"
)]

use std::ffi::{c_int, c_uint, c_void};

use super::symbols::{Devices, Opaque};
use super::{Target, machine};
use crate::doorbell::{ADDRESS, BYTES, Doorbell};
use crate::threads::{Role, role};

/// `MemoryRegionOps`, as it is in QEMU 10.0's headers.
#[repr(C)]
struct Operations {
    read: extern "C" fn(*mut c_void, u64, c_uint) -> u64,
    write: extern "C" fn(*mut c_void, u64, u64, c_uint),
    read_with_attributes: *const c_void,
    write_with_attributes: *const c_void,
    endianness: c_int,
    valid: Sizes,
    implemented: ImplementedSizes,
}

#[repr(C)]
struct Sizes {
    least: c_uint,
    most: c_uint,
    unaligned: bool,
    accepts: *const c_void,
}

#[repr(C)]
struct ImplementedSizes {
    least: c_uint,
    most: c_uint,
    unaligned: bool,
}

// SAFETY: its pointers are null or functions.
unsafe impl Sync for Operations {}

/// `DEVICE_LITTLE_ENDIAN`.
const LITTLE_ENDIAN: c_int = 2;

static OPERATIONS: Operations = Operations {
    read,
    write,
    read_with_attributes: std::ptr::null(),
    write_with_attributes: std::ptr::null(),
    endianness: LITTLE_ENDIAN,
    valid: Sizes {
        least: 8,
        most: 8,
        unaligned: false,
        accepts: std::ptr::null(),
    },
    implemented: ImplementedSizes {
        least: 8,
        most: 8,
        unaligned: false,
    },
};

/// The doorbell's registers; there is one machine in a process.
static DOORBELL: Doorbell = Doorbell::new();

/// Shared interrupts (SPI) of QEMU's `virt` machine.
const SHARED_INTERRUPTS: u64 = 256;

/// Room for a `MemoryRegion`, which has some 300 bytes in QEMU 10.0.
const REGION_BYTES: usize = 4096;
/// Before whatever else the machine has there.
const PRIORITY: c_int = 1000;

/// A `MemoryRegion`. All zeros is what QEMU's functions expect.
#[repr(C, align(64))]
struct Region([u8; REGION_BYTES]);

/// Puts the doorbell into the machine's memory. Once, under the big lock, before any core executes anything.
pub fn make(functions: &Devices) {
    let region = Box::leak(Box::new(Region([0; REGION_BYTES])));
    let region: Opaque = std::ptr::from_mut(region).cast();
    // SAFETY: the region is large enough, zeroed, and lives for ever, as do the operations and the name.
    unsafe {
        (functions.memory_region_init_io)(
            region,
            std::ptr::null_mut(),
            (&raw const OPERATIONS).cast(),
            std::ptr::null_mut(),
            c"ostler-doorbell".as_ptr(),
            BYTES,
        );
        (functions.memory_region_add_subregion_overlap)(
            (functions.get_system_memory)(),
            ADDRESS,
            region,
            PRIORITY,
        );
    }
}

/// Interrupts a core in the way that its machine's program has chosen, if it has. Under the big lock.
pub fn ring(functions: &Devices, target: Target, core: usize) {
    let Some((address, data)) = DOORBELL.interrupt() else {
        return;
    };
    let core = core as u64;
    match target {
        Target::X86_64 => {
            let mut data = data;
            // SAFETY: four bytes are written to a physical address, as a device does that sends a message; what it hits is the
            // program's own choice, and QEMU bears any.
            unsafe {
                (functions.cpu_physical_memory_rw)(
                    address | core << 12,
                    (&raw mut data).cast(),
                    size_of::<u32>() as u64,
                    true,
                );
            }
        }
        Target::Aarch64 => {
            let line = u64::from(data) + core;
            let Some(line) = c_int::try_from(line)
                .ok()
                .filter(|_| line < SHARED_INTERRUPTS)
            else {
                return;
            };
            // SAFETY: the names are those of QEMU's two interrupt controllers, and the line is one that both have. A pulse
            // is an edge to the controller.
            unsafe {
                for name in [c"arm-gicv3-common", c"arm_gic_common"] {
                    let controller = (functions.object_resolve_path_type)(
                        c"".as_ptr(),
                        name.as_ptr(),
                        std::ptr::null_mut(),
                    );
                    if !controller.is_null() {
                        let line = (functions.qdev_get_gpio_in)(controller, line);
                        (functions.qemu_set_irq)(line, 1);
                        (functions.qemu_set_irq)(line, 0);
                        return;
                    }
                }
            }
        }
    }
}

extern "C" fn read(_: *mut c_void, offset: u64, _: c_uint) -> u64 {
    let fused = machine().fused.as_ref();
    fused.map_or(0, |fused| DOORBELL.read(fused, offset))
}

extern "C" fn write(_: *mut c_void, offset: u64, value: u64, _: c_uint) {
    let machine = machine();
    // A device's write, or the monitor's, is at the machine's time.
    let time = match role() {
        Role::Core(core) => machine.local(core),
        Role::Ours | Role::Other => machine.lockstep.now(),
    };
    if let Some(fused) = &machine.fused {
        DOORBELL.write(fused, offset, value, time);
    }
}
