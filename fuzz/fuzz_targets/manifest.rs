//! Any bytes as a manifest: read whole, cut or refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = engine::manifest::check_bytes(bytes);
});
