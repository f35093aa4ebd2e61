//! Half the write rate that an overload reached: compaction debt stays bounded, even when the
//! processors are busy with serving. At less load, compaction leaves most of the disk to the log.

#[path = "support/half_load.rs"]
mod half_load;
mod support;

use half_load::{Load, Second};
use std::time::Duration;

const HALF: Load = Load {
    keys: 16 << 10,
    claims: true,
    left: 0.08,
    flood: Duration::from_secs(20),
    rest_rate: 0.5,
    rest: Duration::from_secs(90),
    pauses: true,
};

fn run(load: Load) -> Vec<Second> {
    // The debt of the overload itself is not examined.
    load.run().into_iter().filter(|second| !second.is_flood).skip(10).collect()
}

fn refused(seconds: &[Second]) -> u64 {
    seconds.iter().map(|second| second.refused).sum()
}

fn debt_max(seconds: &[Second]) -> u64 {
    seconds.iter().map(|second| second.debt_bytes).max().expect("some seconds")
}

#[test]
fn the_debt_of_half_a_flood_is_bounded_on_a_busy_machine() {
    let seconds = run(HALF);
    let (first, second) = seconds.split_at(seconds.len() / 2);
    let (before, after) = (debt_max(first), debt_max(second));
    println!("{before} and {after} bytes owed");
    assert_eq!(refused(&seconds), 0);
    assert!(after as f64 <= before as f64 * 1.2, "{before} and then {after} bytes owed");
    let without = run(Load { claims: false, ..HALF });
    assert!(refused(&without) > 0, "the machine is so busy that compaction needs its share");
    assert!(debt_max(&without) > after);
}

/// A sixth of the rate of the overload, on idle processors.
fn little_load(pauses: bool) -> Vec<Second> {
    run(Load { left: 1.0, rest_rate: 1.0 / 6.0, pauses, ..HALF })
}

fn busiest(seconds: &[Second]) -> f64 {
    seconds.iter().map(|second| second.busiest).fold(0.0, f64::max)
}

#[test]
fn compaction_leaves_most_of_the_disk_to_the_log_while_its_debt_is_small() {
    let (seconds, without) = (little_load(true), little_load(false));
    assert!(seconds.iter().all(|second| second.share_max == 0.0), "the debt is small");
    assert_eq!(refused(&seconds), 0);
    assert!(busiest(&seconds) < 0.4, "{} of the disk", busiest(&seconds));
    assert!(busiest(&without) > 0.9, "without pauses, {} of the disk", busiest(&without));
}

#[test]
fn compaction_takes_the_disk_as_its_debt_grows() {
    let seconds = run(Load { left: 1.0, ..HALF });
    let (first, second) = seconds.split_at(seconds.len() / 2);
    assert!(busiest(&seconds) > 0.8, "{} of the disk", busiest(&seconds));
    assert_eq!(refused(&seconds), 0);
    assert!(debt_max(second) as f64 <= debt_max(first) as f64 * 1.2);
}
