//! Segments of the log. See `crates/fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::targets::files::wal_segment(bytes));
