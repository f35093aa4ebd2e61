//! Operations on an engine against a map. See `crates/fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::targets::engine::run(bytes));
