//! A few seeds of the whole cluster. Continuous integration sweeps hundreds.

use sim::{Dimension, Plant, Scale, Scenario, run};

/// Seeds that failed once. 334: a scan ended because a replica was overloaded during one repair.
const FAILED_ONCE: [u64; 1] = [334];

fn holds(seed: u64, scale: Scale) {
    let report = run(Scenario::draw(seed, scale, None), false);
    if let Some(violation) = report.violation {
        let flag = if scale == Scale::SMALL { " --small" } else { "" };
        panic!("{violation}\nreplay: cargo xtask sim --seed {seed}{flag}");
    }
}

#[test]
fn short_runs_keep_the_promises() {
    (0..100).for_each(|seed| holds(seed, Scale::SMALL));
}

#[test]
fn full_runs_keep_the_promises() {
    (0..10).chain(FAILED_ONCE).for_each(|seed| holds(seed, Scale::FULL));
}

#[test]
fn no_write_notices_the_slow_disk_of_another_node() {
    for seed in 0..20 {
        let report = run(Scenario::draw_slow_disks(seed, Scale::SMALL), false);
        assert_eq!(report.violation, None, "seed {seed} with one slow disk at a time");
    }
}

#[test]
fn a_flood_is_refused_early_and_over_soon() {
    for seed in 0..10 {
        let report = run(Scenario::draw_flood(seed, Scale::SMALL), false);
        assert_eq!(report.violation, None, "seed {seed} with a flood");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let hash = |seed| {
        let report = run(Scenario::draw(seed, Scale::SMALL, None), false);
        (report.hash, report.events, report.operations)
    };
    for seed in 0..4 {
        assert_eq!(hash(seed), hash(seed), "seed {seed}");
    }
    assert_ne!(hash(0), hash(1));
}

#[test]
fn commands_succeed_during_faults() {
    let (mut succeeded, mut submitted, mut faults) = (0, 0, 0);
    for seed in 100..106 {
        let report = run(Scenario::draw(seed, Scale::SMALL, None), false);
        succeeded += report.operations.0;
        submitted += report.operations.1;
        faults += report.faults;
    }
    assert!(
        succeeded * 2 > submitted,
        "{succeeded} of {submitted} succeeded: the nemesis leaves nothing to check"
    );
    assert!(faults >= 6 * 5, "{faults} faults in 6 runs");
}

#[test]
fn layout_records_are_decided_during_faults() {
    let with_changes =
        |seed| Scenario::draw(seed, Scale::SMALL, None).with_dimension(Dimension::LayoutChanges);
    let decided: Vec<usize> = (200..206).map(|seed| run(with_changes(seed), false).layouts).collect();
    assert!(decided.iter().sum::<usize>() >= 30, "{decided:?}: operators change nothing");
}

/// Whether at least one of `seeds` seeds catches the bug.
fn is_caught(plant: Plant, seeds: u64) -> bool {
    (0..seeds).any(|seed| run(Scenario::draw(seed, Scale::SMALL, Some(plant)), false).violation.is_some())
}

#[test]
fn planted_bugs_are_caught() {
    const SEEDS: u64 = 60;
    for plant in Plant::ALL {
        assert!(is_caught(plant, SEEDS), "{plant:?} is not caught by {SEEDS} seeds");
    }
}

#[test]
fn scenarios_of_planted_bugs_pass_without_the_bug() {
    for plant in Plant::ALL {
        for seed in 0..3 {
            let scenario = Scenario { plant: None, ..Scenario::draw(seed, Scale::SMALL, Some(plant)) };
            let violation = run(scenario, false).violation;
            assert_eq!(violation, None, "seed {seed} as it is run for {plant:?}");
        }
    }
}
