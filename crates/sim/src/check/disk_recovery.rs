//! Invariant: a node whose disk was full accepts values again soon after space was freed, without a
//! restart and without a request.

use super::InvariantViolation;
use crate::Nanos;
use cluster::NodeIndex;
use std::time::Duration;

/// Time within which a running node notices the free space.
pub const WITHIN: Duration = Duration::from_secs(5);

/// Disk state of a node at the time of the check.
#[derive(Clone, Copy, Debug)]
pub struct DiskState {
    /// The node.
    pub node: NodeIndex,
    /// Time at which its disk was last filled.
    pub filled: Nanos,
    /// Time at which its process last resumed after a pause.
    pub resumed: Nanos,
    /// Whether the node refuses values.
    pub refuses_values: bool,
}

/// Checks a node whose disk was given space [`WITHIN`] before `now`.
///
/// The check passes if the node was paused since, or if its disk was filled again since. Then it
/// has not had space for the whole of [`WITHIN`], even if the second filling ended before `now`.
/// The end of that filling has a check of its own.
pub fn check(disk: DiskState, now: Nanos) -> Result<(), InvariantViolation> {
    let DiskState { node, filled, resumed, refuses_values } = disk;
    let has_had_space = filled.max(resumed) + WITHIN < now;
    if has_had_space && refuses_values {
        let detail = format!("{node:?} has had disk space for {WITHIN:?} and refuses values");
        return Err(InvariantViolation::new("disk_recovery", detail));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const NOW: Nanos = Nanos(20 * SECOND);

    fn refusing(filled: u64, resumed: u64) -> DiskState {
        let (filled, resumed) = (Nanos(filled * SECOND), Nanos(resumed * SECOND));
        DiskState { node: NodeIndex(0), filled, resumed, refuses_values: true }
    }

    #[test]
    fn a_node_that_stays_full_is_caught() {
        let disk = refusing(14, 0);
        assert!(check(disk, NOW).is_err());
        assert!(check(DiskState { refuses_values: false, ..disk }, NOW).is_ok());
    }

    #[test]
    fn a_disk_that_was_filled_again_is_not_checked() {
        assert!(check(refusing(17, 0), NOW).is_ok());
    }

    #[test]
    fn a_node_that_was_paused_is_not_checked() {
        assert!(check(refusing(0, 17), NOW).is_ok());
    }
}
