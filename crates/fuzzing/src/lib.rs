//! What the fuzz targets run.
//!
//! **Promise.** Each [`Target`] is a function of bytes that returns, whatever the bytes are. It panics when the code that
//! it runs does, or breaks a property that the target checks.
//!
//! **Mechanism.** libFuzzer calls the targets from `fuzz/`, with nightly Rust and `cargo-fuzz`. `cargo test` calls
//! them with their seeds, with mutations of the seeds and with random bytes ([`mutate`]), so that no target rots where
//! there is no fuzzer. Seeds are made by the product: valid inputs of every format.
//!
//! A format with checksums is fuzzed twice: as the bytes are, and after [`repair`] has made the checksums match. Without
//! the repair a mutation ends at the first checksum, and what is behind it is never reached.

pub mod mutate;
pub mod repair;
pub mod targets;

/// A fuzz target.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, also of its file in `fuzz/fuzz_targets`.
    pub name: &'static str,
    /// Runs one input.
    pub run: fn(&[u8]),
    /// Inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: [Target; 11] = [
    Target { name: "decode", run: targets::http::decode, seeds: targets::http::decode_seeds },
    Target { name: "engine", run: targets::engine::run, seeds: targets::engine::seeds },
    Target { name: "entries", run: targets::http::entries, seeds: targets::http::entries_seeds },
    Target { name: "head_check", run: targets::http::head_check, seeds: targets::http::head_check_seeds },
    Target { name: "manifest", run: targets::files::manifest, seeds: targets::files::manifest_seeds },
    Target { name: "results", run: targets::http::results, seeds: targets::http::results_seeds },
    Target { name: "table", run: targets::files::table, seeds: targets::files::table_seeds },
    Target { name: "wal_record", run: targets::files::wal_record, seeds: targets::files::wal_record_seeds },
    Target {
        name: "wal_segment",
        run: targets::files::wal_segment,
        seeds: targets::files::wal_segment_seeds,
    },
    Target { name: "wire_handshake", run: targets::wire::handshake, seeds: targets::wire::handshake_seeds },
    Target { name: "wire_inbox", run: targets::wire::inbox, seeds: targets::wire::inbox_seeds },
];
