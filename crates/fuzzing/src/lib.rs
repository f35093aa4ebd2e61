//! The fuzz targets, their seeds, and the repair of checksums.
//!
//! **Promise.** Each [`FuzzTarget`] is a function that returns for any input. It panics if the code
//! under test panics or violates a property that the target checks.
//!
//! **Mechanism.** libFuzzer calls the targets from `fuzz/`, with nightly Rust and `cargo-fuzz`.
//! `cargo test` calls them with their seeds, with mutations of the seeds and with random bytes
//! ([`mutate`]), so that targets stay correct without a fuzzer. The product's own encoders make the
//! seeds: valid inputs of every format.
//!
//! A format with checksums is fuzzed twice: with the bytes as they are, and after [`repair`] has
//! corrected the checksums. Without the repair, a mutation fails at the first checksum and never
//! reaches the code behind it.

pub mod mutate;
pub mod repair;
pub mod targets;

/// A fuzz target.
#[derive(Clone, Copy)]
pub struct FuzzTarget {
    /// Name of the target and of its file in `fuzz/fuzz_targets`.
    pub name: &'static str,
    /// Runs one input.
    pub run: fn(&[u8]),
    /// The initial corpus.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: [FuzzTarget; 13] = [
    FuzzTarget { name: "decode", run: targets::http::decode, seeds: targets::http::decode_seeds },
    FuzzTarget { name: "engine", run: targets::engine::run, seeds: targets::engine::seeds },
    FuzzTarget { name: "entries", run: targets::http::entries, seeds: targets::http::entries_seeds },
    FuzzTarget { name: "head_check", run: targets::http::head_check, seeds: targets::http::head_check_seeds },
    FuzzTarget { name: "layout_record", run: targets::layout::record, seeds: targets::layout::record_seeds },
    FuzzTarget { name: "manifest", run: targets::files::manifest, seeds: targets::files::manifest_seeds },
    FuzzTarget { name: "results", run: targets::http::results, seeds: targets::http::results_seeds },
    FuzzTarget { name: "table", run: targets::files::table, seeds: targets::files::table_seeds },
    FuzzTarget { name: "votes", run: targets::layout::votes, seeds: targets::layout::votes_seeds },
    FuzzTarget {
        name: "wal_record",
        run: targets::files::wal_record,
        seeds: targets::files::wal_record_seeds,
    },
    FuzzTarget {
        name: "wal_segment",
        run: targets::files::wal_segment,
        seeds: targets::files::wal_segment_seeds,
    },
    FuzzTarget {
        name: "wire_handshake",
        run: targets::wire::handshake,
        seeds: targets::wire::handshake_seeds,
    },
    FuzzTarget { name: "wire_inbox", run: targets::wire::inbox, seeds: targets::wire::inbox_seeds },
];
