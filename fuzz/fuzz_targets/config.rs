//! What an operator's file can do to the steward that reads it.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ostler_model::config::fuzz_entry(data));
