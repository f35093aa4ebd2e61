//! Short runs of real processes: the unchanged engine passes, and planted faults are found.

use std::path::Path;
use stress::driver::{Run, RunLimit, RunSummary};
use stress::plant::PlantedFault;

/// Seed of the first run: `SEED` of the environment, or 1.
fn seed() -> u64 {
    let given = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or(1)
}

fn run(rounds: u64, plant: Option<PlantedFault>) -> Result<RunSummary, String> {
    let dir = tempfile::tempdir().expect("a directory");
    let run = Run {
        binary: Path::new(env!("CARGO_BIN_EXE_stress")).to_owned(),
        dir: dir.path().to_owned(),
        seed: seed(),
        limit: RunLimit::Rounds(rounds),
        plant,
    };
    println!("seed {}", run.seed);
    run.run()
}

#[test]
fn killed_processes_lose_nothing_that_was_acknowledged() {
    let summary = run(6, None).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(summary.rounds, 6);
}

#[test]
fn a_log_that_silently_loses_its_last_record_is_found() {
    let error = run(20, Some(PlantedFault::LaggingLog)).expect_err("acknowledged writes are lost");
    let is_of_check = error.contains("is older than") || error.contains("the cell is missing");
    assert!(is_of_check, "the engine cannot know: {error}");
}

#[test]
fn a_manifest_that_forgets_edits_is_found() {
    let error = run(12, Some(PlantedFault::ForgottenEdits)).expect_err("tables are lost");
    println!("{error}");
}
