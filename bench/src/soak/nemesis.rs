//! Faults, one at a time. All nodes are healthy again before the next one begins.

use super::nodes::Nodes;
use crate::BenchResult;
use bench::StopFlag;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};
use stdx::Rng;

/// Duration of a fault, and pause between two faults, in milliseconds.
const FAULT_MS: std::ops::Range<u64> = 1_000..6_000;
const CALM_MS: std::ops::Range<u64> = 2_000..6_000;

/// Number of injected faults by kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    kills: u64,
    hangs: u64,
    full_disks: u64,
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kills, hangs, full_disks } = self;
        write!(f, "{kills} kills, {hangs} hangs, a disk filled {full_disks} times")
    }
}

/// Injects faults until `ends`, or until interrupted. An error means that a node did not survive
/// the last of `faults`.
pub(super) fn run_faults(
    nodes: &Nodes<'_>,
    seed: u64,
    ends: Instant,
    interrupted: &StopFlag,
    faults: &mut Faults,
) -> BenchResult<()> {
    let mut rng = Rng::new(!seed);
    let kinds = if nodes.has_small_disk() { 3 } else { 2 };
    for turn in 0u64.. {
        pause(&mut rng, CALM_MS);
        if interrupted.is_set() || Instant::now() + Duration::from_millis(FAULT_MS.end) > ends {
            break;
        }
        let node = rng.below(nodes.len() as u64) as usize;
        match turn % kinds {
            0 => {
                println!("  node {node} is killed");
                nodes.kill(node)?;
                pause(&mut rng, FAULT_MS);
                nodes.spawn(node)?;
                faults.kills += 1;
            }
            1 => {
                println!("  node {node} hangs");
                nodes.pause(node)?;
                pause(&mut rng, FAULT_MS);
                nodes.resume(node)?;
                faults.hangs += 1;
            }
            _ => {
                println!("  the last node's disk is full");
                nodes.fill_disk()?;
                pause(&mut rng, FAULT_MS);
                nodes.free_disk()?;
                faults.full_disks += 1;
            }
        }
        (0..nodes.len()).try_for_each(|node| nodes.wait_until_ready(node))?;
    }
    while Instant::now() < ends && !interrupted.is_set() {
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn pause(rng: &mut Rng, millis: std::ops::Range<u64>) {
    thread::sleep(Duration::from_millis(millis.start + rng.below(millis.end - millis.start)));
}
