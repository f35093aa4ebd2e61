//! A node finds room on its disk again by itself, without a restart and without a request.

use super::Violation;
use crate::Nanos;
use cluster::NodeIndex;
use std::time::Duration;

/// A node that ran all the while finds the room within this time.
pub const WITHIN: Duration = Duration::from_secs(5);

/// What the world knows of a node with room on its disk.
#[derive(Clone, Copy, Debug)]
pub struct DiskState {
    /// The node.
    pub node: NodeIndex,
    /// When its disk was last filled: the room of an earlier fault_end ended then.
    pub filled: Nanos,
    /// When its process last resumed after a pause.
    pub resumed: Nanos,
    /// Whether it refuses values.
    pub refuses_values: bool,
}

/// Checks a node whose disk was given room [`WITHIN`] before `now`.
///
/// Nothing is asked of a node that was paused since, or whose disk was filled again since: it has not had
/// room for [`WITHIN`], even if the second filling ended before `now`. The fault_end of that filling has a check
/// of its own.
pub fn check(disk: DiskState, now: Nanos) -> Result<(), Violation> {
    let DiskState { node, filled, resumed, refuses_values } = disk;
    let had_room = filled.max(resumed) + WITHIN < now;
    if had_room && refuses_values {
        let detail = format!("{node:?} has had room for {WITHIN:?} and refuses values");
        return Err(Violation::new("disk_recovery", detail));
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
    fn a_disk_that_was_filled_again_has_not_had_room_all_the_while() {
        assert!(check(refusing(17, 0), NOW).is_ok());
    }

    #[test]
    fn a_node_that_was_paused_has_not_run_all_the_while() {
        assert!(check(refusing(0, 17), NOW).is_ok());
    }
}
