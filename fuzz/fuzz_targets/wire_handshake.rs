//! Handshakes between nodes. See `crates/fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::targets::wire::handshake(bytes));
