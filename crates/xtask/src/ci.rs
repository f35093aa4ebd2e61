//! `cargo xtask ci`: the checks of continuous integration.

use crate::seed;
use crate::steps::{ChoreStep, run_all};
use std::process::ExitCode;

/// Seeds of a sweep. The complete run takes less than half an hour on two cores.
const SWEEP_SEEDS: u32 = 500;

/// The lints of the binary as it is shipped. A build of the whole workspace enables
/// `engine/internals`, which tests need; here a use of it outside of tests is an error.
const OF_PRODUCT: &str = "cargo clippy --package veche --locked -- -D warnings";

pub(crate) fn lints() -> Vec<ChoreStep> {
    let clippy = "cargo clippy --workspace --all-targets --locked -- -D warnings";
    let of_benchmarks = "cargo clippy --manifest-path bench/Cargo.toml --all-targets --locked -- -D warnings";
    vec![
        ChoreStep::new("cargo fmt --all --check"),
        ChoreStep::new("cargo fmt --manifest-path bench/Cargo.toml --check"),
        ChoreStep::new("cargo fmt --manifest-path bench/compare/Cargo.toml --check"),
        ChoreStep::new("cargo xtask tidy"),
        ChoreStep::new(clippy),
        ChoreStep::new(OF_PRODUCT),
        in_shared_target(ChoreStep::new(of_benchmarks)),
    ]
}

/// A step of another workspace. It uses the target directory of the main one, so that dependencies
/// are built once.
fn in_shared_target(step: ChoreStep) -> ChoreStep {
    const VARIABLE: &str = "CARGO_TARGET_DIR";
    step.with(VARIABLE, std::env::var(VARIABLE).unwrap_or_else(|_| "target".to_owned()))
}

pub(crate) fn docs() -> Vec<ChoreStep> {
    let docs = ChoreStep::new("cargo doc --workspace --no-deps --locked");
    vec![docs.with("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links")]
}

pub(crate) fn tests() -> ChoreStep {
    // Run all crates, also after the tests of one crate failed.
    ChoreStep::new("cargo test --workspace --locked --no-fail-fast")
}

/// The tests of the benchmarks, which are a workspace of their own.
pub(crate) fn benchmark_tests() -> ChoreStep {
    in_shared_target(ChoreStep::new("cargo test --manifest-path bench/Cargo.toml --locked"))
}

pub(crate) fn sweep(seeds: u32, from: u64) -> ChoreStep {
    let simulator = "cargo run --quiet --locked --profile sim --package sim --";
    ChoreStep::new(format!("{simulator} sweep {seeds} --from {from}"))
}

/// Runs all checks with the seeds of this commit, or with the first seed in the environment.
pub(crate) fn run() -> ExitCode {
    let given = std::env::var(seed::VARIABLE).ok().and_then(|seed| seed.parse().ok());
    let first = given.or_else(seed::of_commit).unwrap_or(0);
    eprintln!(
        "the first seed is {first}; to repeat this run: {}={first} cargo xtask ci\n\
         to repeat a part of it: cargo xtask sweep {SWEEP_SEEDS} --from {first}, or \
         {}={first} cargo test -p engine --test crash",
        seed::VARIABLE,
        seed::VARIABLE
    );
    let tests = tests().with(seed::VARIABLE, first.to_string());
    let steps = [lints(), docs(), vec![tests, benchmark_tests(), sweep(SWEEP_SEEDS, first)]].concat();
    run_all(&steps)
}
