//! What a hostile guest can do to the host by its agent's connection, and anyone to a frame decoder.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ostler_abi::guest::frame::{self, FrameDecoder};
use ostler_abi::guest::wire;

fuzz_target!(|data: &[u8]| {
    // The state machine that talks to an agent, by a script of bytes, time and lost connections.
    ostler_guest::host::fuzz_entry(data);

    // A stream, whole.
    let mut decoder = FrameDecoder::new();
    let mut input = data;
    while !input.is_empty() {
        match decoder.push(&mut input) {
            Ok(Some(frame)) => {
                let _ = frame::decode_payload::<wire::Request>(&frame.payload);
                let _ = frame::decode_payload::<wire::Reply>(&frame.payload);
            }
            Ok(None) => {}
            Err(_) => break,
        }
    }
});
