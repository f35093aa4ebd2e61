//! Any bytes as the last segment of a log: replayed, cut or refused.
#![no_main]

use engine::wal::replay::{SegmentEnd, replay_bytes};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(contents) = replay_bytes(bytes, SegmentEnd::Torn) {
        assert!(contents.len <= bytes.len() as u64);
        let cells: usize = contents.iter().map(|record| record.count()).sum();
        assert_eq!(cells as u64, contents.cells);
    }
});
