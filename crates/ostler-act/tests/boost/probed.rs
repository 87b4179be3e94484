//! Threads in whose context BPF programs run, as those of anybody's sensors do: for so long the kernel doesn't let them migrate, and keeps them in an RCU section.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use libbpf_rs::libbpf_sys as bpf;

/// `r0 = 0; exit`.
fn nothing() -> [bpf::bpf_insn; 2] {
    [0xb7, 0x95].map(|code| bpf::bpf_insn {
        code,
        ..Default::default()
    })
}

/// How often the program is run in one go: a millisecond's worth on a slow host.
const REPEAT: i32 = 1000;

#[allow(unsafe_code)]
fn load() -> io::Result<OwnedFd> {
    let nothing = nothing();
    // SAFETY: the instructions are there for as long as the call is, and as many as it says; no options are told.
    let fd = unsafe {
        bpf::bpf_prog_load(
            bpf::BPF_PROG_TYPE_SOCKET_FILTER,
            c"nothing".as_ptr(),
            c"GPL".as_ptr(),
            nothing.as_ptr(),
            nothing.len() as u64,
            std::ptr::null_mut(),
        )
    };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: it is new, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[allow(unsafe_code)]
fn test(program: &OwnedFd) -> io::Result<()> {
    let packet = [0u8; 64];
    let mut options = bpf::bpf_test_run_opts {
        sz: size_of::<bpf::bpf_test_run_opts>() as u64,
        data_in: packet.as_ptr().cast(),
        data_size_in: u32::try_from(packet.len()).expect("a few bytes"),
        repeat: REPEAT,
        ..Default::default()
    };
    // SAFETY: the packet and the options are there for as long as the call is.
    let code = unsafe { bpf::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    if code < 0 {
        return Err(io::Error::from_raw_os_error(-code));
    }
    Ok(())
}

/// Runs the program half of the time, for as long as the process is there.
pub fn run() -> ! {
    let program = load().expect("a program of two instructions");
    loop {
        let began = Instant::now();
        test(&program).expect("it is run");
        let took = began.elapsed().min(Duration::from_millis(5));
        let began = Instant::now();
        while began.elapsed() < took {
            std::hint::spin_loop();
        }
    }
}
