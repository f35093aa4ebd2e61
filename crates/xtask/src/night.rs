//! `cargo xtask night`: the checks that take hours.
//!
//! It includes tests that `cargo test` ignores. Tests of memory need more files and permission to
//! create control groups. The cluster whose cables are cut needs root. A failed step does not end
//! the run: all failed steps are listed at the end, with the lines that repeat them.

use crate::ci;
use crate::nightly;
use crate::seed;
use crate::steps::{ChoreStep, run_all};
use crate::stress;
use std::process::ExitCode;

/// Arguments, for the list of chores.
pub(crate) const USAGE: &str = "[--sweeps SEEDS] [--plants SEEDS] [--crashes ROUNDS] [--states OF-A-MODEL] [--minutes OF-SOAK] [--seed N]";

/// The extent of each check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    sweeps: u32,
    plants: u32,
    crashes: u32,
    /// Number of states after which the search of a model stops.
    states: u32,
    minutes: u32,
    seed: u64,
}

impl Plan {
    /// Parses the command line.
    ///
    /// # Errors
    /// A message, if an argument is not in [`USAGE`] or its value is not a number.
    fn parse(arguments: impl Iterator<Item = String>, seed: u64) -> Result<Self, String> {
        let mut plan =
            Self { sweeps: 5_000, plants: 200, crashes: 50, states: 80_000_000, minutes: 60, seed };
        let mut arguments = arguments;
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} needs a number"))?;
            let number: u64 = value.parse().map_err(|_| format!("{name}: {value} is not a number"))?;
            let count = u32::try_from(number).map_err(|_| format!("{name}: {value} is too large"));
            match name.as_str() {
                "--sweeps" => plan.sweeps = count?,
                "--plants" => plan.plants = count?,
                "--crashes" => plan.crashes = count?,
                "--states" => plan.states = count?,
                "--minutes" => plan.minutes = count?,
                "--seed" => plan.seed = number,
                _ => return Err(format!("{name} is unknown")),
            }
        }
        Ok(plan)
    }

    fn steps(self) -> Vec<ChoreStep> {
        /// Seeds of one round of crash tests, counted from its first seed.
        const SEEDS_OF_ROUND: u64 = 100;
        /// Seconds of the stress test on the disk, and again in memory.
        const STRESS_SECONDS: u64 = 1_800;
        let Self { sweeps, plants, crashes, states, minutes, seed } = self;
        let mut steps = vec![ci::tests().with(seed::VARIABLE, seed.to_string()), ci::sweep(sweeps, seed)];
        steps.push(ChoreStep::new(format!(
            "cargo run --quiet --locked --profile sim --package sim -- plants {plants}"
        )));
        for round in 1..=u64::from(crashes) {
            let from = seed + round * SEEDS_OF_ROUND;
            let crash = ChoreStep::new("cargo test --release --locked --package engine --test crash");
            steps.push(crash.with(seed::VARIABLE, from.to_string()));
            let clients = "cargo test --locked --package veche --test cluster linearizability";
            steps.push(ChoreStep::new(clients).with(seed::VARIABLE, from.to_string()));
        }
        let explore = "cargo run --quiet --locked --release --package model --example explore";
        steps.push(ChoreStep::new(format!("{explore} -- --states {states}")));
        let disk = ChoreStep::new("cargo test --locked --package veche --test full_disk");
        steps.push(disk.with("VECHE_FULL_DISK_CYCLES", "100"));
        steps.push(ChoreStep::new("cargo test --workspace --locked --no-fail-fast -- --ignored"));
        steps.extend(stress::steps(STRESS_SECONDS, seed));
        steps.push(ChoreStep::new("cargo xtask netns"));
        steps.push(ChoreStep::new(format!("bench/run soak --minutes {minutes} --seed {seed}")));
        steps
    }
}

pub(crate) fn run(arguments: impl Iterator<Item = String>) -> ExitCode {
    match Plan::parse(arguments, seed::of_time()) {
        Ok(plan) => {
            let Plan { sweeps, plants, crashes, states, minutes, seed } = plan;
            eprintln!(
                "the first seed is {seed}; to repeat this run: cargo xtask night --sweeps {sweeps} \
                 --plants {plants} --crashes {crashes} --states {states} --minutes {minutes} --seed {seed}"
            );
            let (nightly, missing) = nightly::night();
            missing.iter().for_each(|missing| eprintln!("left out: {missing}"));
            run_all(&[plan.steps(), nightly].concat())
        }
        Err(error) => {
            eprintln!("{error}\ncargo xtask night {USAGE}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Plan, String> {
        Plan::parse(line.split_whitespace().map(str::to_owned), 7)
    }

    #[test]
    fn numbers_are_taken_by_their_names_and_anything_else_is_refused() {
        let plan = parse("--sweeps 10 --seed 3 --minutes 1 --states 1000").expect("all are known");
        assert_eq!((plan.sweeps, plan.seed, plan.minutes, plan.states), (10, 3, 1, 1000));
        assert_eq!(parse("").expect("none is needed").seed, 7);
        for line in ["--sweeps", "--sweeps many", "--plants -1", "--sweeps 4294967296", "ten"] {
            assert!(parse(line).is_err(), "{line:?} is taken");
        }
    }

    #[test]
    fn every_step_with_a_seed_is_repeated_by_the_same_seed() {
        let steps = |seed| parse(&format!("--crashes 2 --seed {seed}")).expect("known").steps();
        let text = |seed| format!("{:?}", steps(seed));
        assert_eq!(text(11), text(11));
        assert_ne!(text(11), text(12));
    }
}
