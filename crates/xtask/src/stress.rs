//! `cargo xtask stress`: threads that write to an engine and check it, in processes that are killed at random times.

use crate::steps::{Step, run_all};
use std::process::ExitCode;

/// What runs the stress test; its arguments follow.
const STRESS: &str = "cargo run --quiet --release --locked --package stress -- run";

/// Runs it with what else was on the command line.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> ExitCode {
    let words: Vec<String> = [STRESS.to_owned()].into_iter().chain(arguments).collect();
    run_all(&[Step::new(words.join(" "))])
}

/// The part of a night: on the disk, and in memory, where operations are more and syncs take no time.
pub(crate) fn steps(seconds: u64, seed: u64) -> Vec<Step> {
    let on_disk = Step::new(format!("{STRESS} --seconds {seconds} --seed {seed}"));
    let in_memory = Step::new(format!("{STRESS} --seconds {seconds} --seed {}", seed + 1));
    vec![on_disk, in_memory.with("TMPDIR", "/dev/shm")]
}
