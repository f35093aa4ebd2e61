//! Invariant: a slow disk slows one replica only. No majority write fails or waits for it, unless
//! the node of the slow disk coordinates the write.

use super::InvariantViolation;
use crate::Nanos;
use crate::history::{ClientOperation, ClientOutcome, CommandKind};
use cluster::NodeIndex;
use std::time::Duration;

/// Greatest latency of a write that two fast disks can serve.
pub const WITHIN: Duration = Duration::from_millis(400);

/// A period in which a disk was slow.
#[derive(Clone, Copy, Debug)]
pub struct SlowDisk {
    /// Node of the disk.
    pub node: NodeIndex,
    /// Beginning of the period.
    pub from: Nanos,
    /// End of the period, including the operations that the disk still has to finish.
    pub until: Nanos,
}

/// Checks a write that was answered, in a run in which one disk at a time is slow and there is no
/// other fault.
pub fn check(write: &ClientOperation, slow: &[SlowDisk]) -> Result<(), InvariantViolation> {
    let Some((at, outcome)) = &write.outcome else { return Ok(()) };
    let has_slow_disk =
        |disk: &SlowDisk| disk.node == write.node && disk.from <= *at && write.began <= disk.until;
    let is_in_time = matches!(outcome, ClientOutcome::Written { .. }) && *at - write.began <= WITHIN;
    if write.kind == CommandKind::Get || is_in_time || slow.iter().any(has_slow_disk) {
        return Ok(());
    }
    Err(InvariantViolation::new(
        "slow_disk",
        format!("a slow disk of another node delayed or failed this write: {write:?}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::super::testing::write;
    use super::*;

    const LONG: u64 = 2 * WITHIN.as_nanos() as u64;

    fn slow(node: u8, when: std::ops::Range<u64>) -> SlowDisk {
        SlowDisk { node: NodeIndex(node), from: Nanos(when.start), until: Nanos(when.end) }
    }

    #[test]
    fn a_write_that_fails_or_waits_for_the_disk_of_another_is_caught() {
        let failed = ClientOutcome::Failed { is_not_stored: false, reason: "late".to_owned() };
        let failed = ClientOperation { outcome: Some((Nanos(9), failed)), ..write(1, (2, 3), 5..9) };
        let late = write(1, (2, 3), 5..5 + LONG);
        for bad in [failed, late] {
            assert!(check(&bad, &[slow(1, 0..LONG)]).is_err());
            assert!(check(&bad, &[slow(0, 0..3)]).is_err(), "that was over");
            assert!(check(&bad, &[slow(0, 0..6)]).is_ok(), "its own disk");
        }
        assert!(check(&write(1, (2, 3), 5..9), &[slow(1, 0..LONG)]).is_ok());
    }
}
