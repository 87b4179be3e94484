//! The price of a context switch: two threads on one CPU that hand a byte to and fro.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_setaffinity};

/// The mean time of a switch over so many rounds of two.
pub fn ns_per_switch(rounds: u32) -> f64 {
    let (mut here, mut there) = UnixStream::pair().expect("a pair of sockets");
    let other = thread::spawn(move || {
        pin();
        let mut byte = [0];
        while there.read_exact(&mut byte).is_ok() {
            there.write_all(&byte).expect("the other side reads");
        }
    });
    let elapsed = thread::spawn(move || {
        pin();
        let mut byte = [0];
        let start = Instant::now();
        for _ in 0..rounds {
            here.write_all(&byte).expect("the other side reads");
            here.read_exact(&mut byte).expect("the other side answers");
        }
        start.elapsed()
    })
    .join()
    .expect("it ran through");
    other.join().expect("it ended with its socket");
    elapsed.as_nanos() as f64 / f64::from(rounds) / 2.0
}

fn pin() {
    let mut cpus = CpuSet::new();
    cpus.set(0);
    // Where CPU 0 is not ours, both threads share whatever there is, and the figure is noisier.
    let _ = sched_setaffinity(None, &cpus);
}
