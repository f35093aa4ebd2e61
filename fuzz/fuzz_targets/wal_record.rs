//! Any bytes as a record of the log.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = engine::wal::record::decode(bytes);
});
