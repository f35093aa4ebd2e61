//! `cargo xtask ci`: the checks of continuous integration.

use crate::seed;
use crate::steps::{Step, run_all};
use std::process::ExitCode;

/// Seeds of a sweep. The complete run takes less than half an hour on two cores.
const SWEEP_SEEDS: u32 = 500;

pub(crate) fn lints() -> Vec<Step> {
    let clippy = "cargo clippy --workspace --all-targets --locked -- -D warnings";
    vec![Step::new("cargo fmt --all --check"), Step::new("cargo xtask tidy"), Step::new(clippy)]
}

pub(crate) fn docs() -> Vec<Step> {
    let docs = Step::new("cargo doc --workspace --no-deps --locked");
    vec![docs.with("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links")]
}

pub(crate) fn tests() -> Step {
    // Run all crates, also after the tests of one crate failed.
    Step::new("cargo test --workspace --locked --no-fail-fast")
}

pub(crate) fn sweep(seeds: u32, from: u64) -> Step {
    let simulator = "cargo run --quiet --locked --profile sim --package sim --";
    Step::new(format!("{simulator} sweep {seeds} --from {from}"))
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
    let steps = [lints(), docs(), vec![tests, sweep(SWEEP_SEEDS, first)]].concat();
    run_all(&steps)
}
