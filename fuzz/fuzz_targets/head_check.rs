//! Bytes of a connection. See `crates/fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::targets::http::head_check(bytes));
