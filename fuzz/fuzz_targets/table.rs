//! Any bytes as a table: read whole, or refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = engine::sstable::check_bytes(bytes);
});
