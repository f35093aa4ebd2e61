//! `cargo xtask stress`: threads that write to an engine and check it, in processes that are killed
//! at random times.

use crate::steps::{ChoreStep, run_all};
use std::process::ExitCode;

/// The command of the stress test, without its arguments.
const STRESS: &str = "cargo run --quiet --release --locked --package stress -- run";

/// Runs the stress test with the remaining arguments.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> ExitCode {
    let words: Vec<String> = [STRESS.to_owned()].into_iter().chain(arguments).collect();
    run_all(&[ChoreStep::new(words.join(" "))])
}

/// The steps for `cargo xtask night`: on the disk, and in memory, where syncs take no time and
/// operations are more frequent.
pub(crate) fn steps(seconds: u64, seed: u64) -> Vec<ChoreStep> {
    let on_disk = ChoreStep::new(format!("{STRESS} --seconds {seconds} --seed {seed}"));
    let in_memory = ChoreStep::new(format!("{STRESS} --seconds {seconds} --seed {}", seed + 1));
    vec![on_disk, in_memory.with("TMPDIR", "/dev/shm")]
}
