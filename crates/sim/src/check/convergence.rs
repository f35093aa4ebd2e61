//! Invariant: after the heal phase, all replicas of a key hold its newest cell, including keys that
//! no client reads.
//!
//! After the grace period, a dead cell may be missing from any replica.

use super::InvariantViolation;
use cluster::{Key, Layout, NodeIndex};
use std::time::Duration;
use stdx::{CellMeta, WallTime};

/// Checks the cells that the nodes hold of `key`. `wall` is the greatest time that any wall clock
/// has shown.
pub fn check(
    layout: &Layout,
    key: &Key,
    held: &[(NodeIndex, Option<CellMeta>)],
    grace: Duration,
    wall: WallTime,
) -> Result<(), InvariantViolation> {
    let Some(newest) = held.iter().filter_map(|(_, meta)| *meta).max_by_key(|meta| meta.version) else {
        return Ok(());
    };
    let may_be_purged = newest.dead_from().is_some_and(|dead| dead.saturating_add(grace) <= wall);
    for replica in layout.replicas(key, newest.from) {
        let at_replica = held.iter().find(|(node, _)| node == replica).and_then(|(_, meta)| meta.as_ref());
        let is_newest = at_replica.map_or(may_be_purged, |meta| meta.version == newest.version);
        if !is_newest {
            let detail = format!("the newest of {key:?} is {newest:?}, and {replica:?} has {at_replica:?}");
            return Err(InvariantViolation::new("convergence", detail));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NOW, key, version};
    use super::*;

    const GRACE: Duration = Duration::from_secs(10);

    fn check_held(held: [Option<CellMeta>; 3], wall: WallTime) -> Result<(), InvariantViolation> {
        let layout = Layout::new((0..3).map(|node| format!("node-{node}")).collect(), 16).unwrap();
        let replicas = layout.replicas(&key(), 3).iter().copied();
        let held: Vec<_> = replicas.zip(held).collect();
        check(&layout, &key(), &held, GRACE, wall)
    }

    #[test]
    fn a_replica_with_an_older_cell_is_caught() {
        let value = |number| Some(CellMeta::value(version(number), 3));
        assert!(check_held([value(2), value(2), value(2)], NOW).is_ok());
        assert!(check_held([value(2), value(1), value(2)], NOW).is_err());
        assert!(check_held([value(2), value(2), None], NOW).is_err());
    }

    #[test]
    fn a_cell_with_a_smaller_from_needs_fewer_replicas() {
        let value = |number, from| Some(CellMeta::value(version(number), from));
        assert!(check_held([value(2, 1), value(1, 3), None], NOW).is_ok());
        assert!(check_held([None, value(2, 1), None], NOW).is_err());
    }

    #[test]
    fn a_tombstone_may_be_missing_only_after_its_grace_period() {
        let tombstone = Some(CellMeta::tombstone(version(2), 3));
        assert!(check_held([tombstone, None, None], NOW).is_err());
        assert!(check_held([tombstone, None, None], NOW.saturating_add(GRACE * 2)).is_ok());
        let older = Some(CellMeta::value(version(1), 3));
        assert!(check_held([tombstone, older, None], NOW.saturating_add(GRACE * 2)).is_err());
    }
}
