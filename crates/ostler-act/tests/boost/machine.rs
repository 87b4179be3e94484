//! Virtual machines of KVM's, as small as they can be: a vCPU in real mode, a local APIC, and a program of a few dozen bytes.
//!
//! What KVM does for them is what it does for any guest: their timers and interrupts go through its local APIC, and their `out` leaves the guest as a doorbell does.

use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_msi, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};

/// What it does each time that it wakes, besides computing for a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Habit {
    /// It touches a device last of all.
    rings: bool,
    /// It sets its timer to wake it again; else it waits for interrupts.
    counts: bool,
}

impl Habit {
    /// By the name that tests give it.
    pub fn named(name: &str) -> Option<Habit> {
        let (rings, counts) = match name {
            "vm rings" => (true, true),
            "vm counts" => (false, true),
            "vm waits" => (false, false),
            _ => return None,
        };
        Some(Habit { rings, counts })
    }
}

/// Where its program begins, and what it does at an interrupt; the stack is below the first.
const PROGRAM: u16 = 0x1000;
const HANDLER: u16 = 0x800;

/// Its timer's interrupt, and that of [`Machine::interrupt`].
const TIMER: u8 = 0x20;
const MESSAGE: u8 = 0x21;

/// The local APIC's registers are MSRs from here on, 16 bytes of its page each (<asm/apicdef.h>).
const X2APIC: u32 = 0x800;
const EOI: u32 = 0x0b;
const SPURIOUS: u32 = 0x0f;
const LVT_TIMER: u32 = 0x32;
const INITIAL_COUNT: u32 = 0x38;
const DIVIDE: u32 = 0x3e;
/// Of its base's MSR: it is on, and its registers are MSRs.
const ON: u64 = 1 << 11;
const BY_MSR: u64 = 1 << 10;

/// Between two timers, ns: KVM's APIC counts those.
const PERIOD: u32 = 9_100_000;
/// How often it goes round, each time that it wakes, two instructions each.
const ROUNDS: u32 = 20_000;

/// A page of its memory.
#[repr(align(4096))]
#[derive(Clone)]
struct Page([u8; 4096]);

/// `mov ecx, VALUE`, and so on, with the prefix that makes them of 32 bits.
fn mov_ecx(value: u32) -> Vec<u8> {
    [&[0x66, 0xb9][..], &value.to_le_bytes()].concat()
}

/// Writes a register of the local APIC.
fn apic(register: u32, value: u32) -> Vec<u8> {
    [
        &mov_ecx(X2APIC + register)[..],
        // mov eax, VALUE; xor edx, edx; wrmsr
        &[0x66, 0xb8],
        &value.to_le_bytes(),
        &[0x66, 0x31, 0xd2, 0x0f, 0x30],
    ]
    .concat()
}

fn program(habit: Habit) -> Vec<u8> {
    let mut code = [
        apic(SPURIOUS, 0x1ff),
        // By one.
        apic(DIVIDE, 0b1011),
        apic(LVT_TIMER, TIMER.into()),
    ]
    .concat();
    let again = code.len();
    code.extend(mov_ecx(ROUNDS));
    // dec ecx; jnz to it
    code.extend([0x66, 0x49, 0x75, 0xfc]);
    if habit.rings {
        // out 0x10, al
        code.extend([0xe6, 0x10]);
    }
    if habit.counts {
        code.extend(apic(INITIAL_COUNT, PERIOD));
    }
    // sti; hlt; cli
    code.extend([0xfb, 0xf4, 0xfa]);
    // jmp to where it begins again
    let back = u8::try_from(code.len() + 2 - again).expect("a short way");
    code.extend([0xeb, back.wrapping_neg()]);
    code
}

/// A machine that runs on the thread that calls [`run`](Machine::run), and is interrupted by any other.
pub struct Machine(VmFd);

impl Machine {
    /// Its vCPU, ready to run; its memory is never freed, as the process isn't for long.
    pub fn new(habit: Habit) -> (Machine, VcpuFd) {
        let kvm = Kvm::new().expect("/dev/kvm");
        let vm = kvm.create_vm().expect("a machine");
        vm.create_irq_chip().expect("a local APIC");
        let mut page = vec![Page([0; 4096]); 2];
        for vector in [TIMER, MESSAGE] {
            page[0].0[4 * usize::from(vector)..][..2].copy_from_slice(&HANDLER.to_le_bytes());
        }
        // iret after it
        let handler = [apic(EOI, 0), vec![0xcf]].concat();
        page[0].0[usize::from(HANDLER)..][..handler.len()].copy_from_slice(&handler);
        let code = program(habit);
        page[1].0[..code.len()].copy_from_slice(&code);
        let memory = page.leak();
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: size_of_val(memory) as u64,
            userspace_addr: memory.as_ptr() as u64,
        };
        // SAFETY: the memory is this process's for good, and nobody else's from here on.
        #[allow(unsafe_code)]
        unsafe { vm.set_user_memory_region(region) }.expect("memory");
        let vcpu = vm.create_vcpu(0).expect("a vCPU");
        let can = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES);
        vcpu.set_cpuid2(&can.expect("what KVM can"))
            .expect("all of it");
        let mut special = vcpu.get_sregs().expect("registers");
        (special.cs.base, special.cs.selector) = (0, 0);
        special.apic_base |= ON | BY_MSR;
        vcpu.set_sregs(&special).expect("registers");
        let mut registers = vcpu.get_regs().expect("registers");
        registers.rip = PROGRAM.into();
        registers.rsp = PROGRAM.into();
        registers.rflags = 2;
        vcpu.set_regs(&registers).expect("registers");
        (Machine(vm), vcpu)
    }

    /// Sends it an interrupt, as a device does.
    pub fn interrupt(&self) {
        let message = kvm_msi {
            address_lo: 0xfee0_0000,
            data: MESSAGE.into(),
            ..kvm_msi::default()
        };
        self.0.signal_msi(message).expect("it has a local APIC");
    }
}

/// Runs it for as long as the process is there.
pub fn run(mut vcpu: VcpuFd) -> ! {
    loop {
        match vcpu.run() {
            // Nobody is behind its port.
            Ok(VcpuExit::IoOut(..) | VcpuExit::Intr) => {}
            Ok(exit) => panic!("it was to do nothing of the kind: {exit:?}"),
            Err(error) if error.errno() == libc::EINTR => {}
            Err(error) => panic!("KVM_RUN: {error}"),
        }
    }
}
