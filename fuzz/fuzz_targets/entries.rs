//! Batches of entries. See `crates/fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::targets::http::entries(bytes));
