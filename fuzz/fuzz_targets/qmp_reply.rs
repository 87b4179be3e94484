//! What a hostile guest's owner can do to the host by a QMP socket.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ostler_sense::qmp::fuzz_entry(data));
