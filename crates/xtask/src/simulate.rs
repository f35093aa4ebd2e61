//! Simulated clusters: the `sim` program, built for speed, and so that a sweep continues after a
//! run that panics.

use std::process::{Command, ExitCode};

/// The names and descriptions of this module's chores.
pub(crate) const CHORES: [(&str, &str); 3] = [
    ("sim", "one simulated cluster: --seed N [--trace] [--small] [--flood]"),
    ("sweep", "simulated clusters of many seeds: N [--from SEED] [--small]"),
    ("plants", "planted bugs, and how many of N seeds catch each: N [--small]"),
];

/// Runs the chore of this name with the remaining arguments.
pub(crate) fn run(chore: &str, arguments: impl Iterator<Item = String>) -> ExitCode {
    let subcommand = if chore == "sim" { "run" } else { chore };
    let status = Command::new("cargo")
        .args("run --quiet --locked --profile sim --package sim --".split(' '))
        .arg(subcommand)
        .args(arguments)
        .status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cannot run cargo: {error}");
            ExitCode::FAILURE
        }
    }
}
