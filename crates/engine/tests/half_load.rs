//! Half the write rate that an overload reached: compaction debt stays bounded, even when the
//! processors are busy with serving.

#[path = "support/half_load.rs"]
mod half_load;
mod support;

use half_load::{Load, Second};
use std::time::Duration;

fn load(claims: bool) -> Vec<Second> {
    let (flood, half) = (Duration::from_secs(20), Duration::from_secs(90));
    let seconds = Load { keys: 16 << 10, claims, left: 0.08, flood, half }.run();
    // The debt of the overload itself is not examined.
    seconds.into_iter().filter(|second| !second.is_flood).skip(10).collect()
}

fn refused(seconds: &[Second]) -> u64 {
    seconds.iter().map(|second| second.refused).sum()
}

fn debt_max(seconds: &[Second]) -> u64 {
    seconds.iter().map(|second| second.debt_bytes).max().expect("some seconds")
}

#[test]
fn the_debt_of_half_a_flood_is_bounded_on_a_busy_machine() {
    let seconds = load(true);
    let (first, second) = seconds.split_at(seconds.len() / 2);
    let (before, after) = (debt_max(first), debt_max(second));
    println!("{before} and {after} bytes owed");
    assert_eq!(refused(&seconds), 0);
    assert!(after as f64 <= before as f64 * 1.2, "{before} and then {after} bytes owed");
    let without = load(false);
    assert!(refused(&without) > 0, "the machine is so busy that compaction needs its share");
    assert!(debt_max(&without) > after);
}
