//! Invariant: hinted handoff brings an acknowledged write to all of its replicas, without the help
//! of anti-entropy.
//!
//! It does not hold if a hint was dropped, or if the coordinator's process ended before its hints
//! were durable. A write is also not delivered to a replica if a newer write superseded it that
//! this replica is not to hold.

use super::InvariantViolation;
use crate::history::{ClientOperation, ClientOutcome, IssuedCells};
use cluster::{Layout, NodeIndex};
use stdx::{CellMeta, WallTime};

/// Checks a write whose coordinator did not end, once no hint is left.
///
/// No replica needs to hold anything if a dead cell of this or a newer version may have been
/// purged.
pub fn check(
    layout: &Layout,
    write: &ClientOperation,
    held: &[(NodeIndex, Option<CellMeta>)],
    issued_cells: &IssuedCells,
    purged: Option<WallTime>,
) -> Result<(), InvariantViolation> {
    let Some((_, ClientOutcome::Written { version })) = write.outcome else { return Ok(()) };
    if issued_cells.may_be_purged(&write.key, version, purged) {
        return Ok(());
    }
    let is_superseded_elsewhere = |replica| {
        issued_cells
            .range(&write.key, version..)
            .any(|(_, newer)| !layout.is_replica(replica, &write.key, newer.from))
    };
    for replica in layout.replicas(&write.key, write.quorum.from()) {
        let at_replica = held.iter().find(|(node, _)| node == replica).and_then(|(_, meta)| meta.as_ref());
        if at_replica.is_none_or(|meta| meta.version < version) && !is_superseded_elsewhere(*replica) {
            let detail = format!(
                "{replica:?} has {at_replica:?}, no hint is left, and this was acknowledged: {write:?}"
            );
            return Err(InvariantViolation::new("handed_over", detail));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{issued_cells, key, version, write};
    use super::*;

    #[test]
    fn a_replica_without_its_write_is_caught() {
        let layout = Layout::new((0..3).map(|node| format!("node-{node}")).collect(), 16).unwrap();
        let issued_cells = issued_cells(&[1, 2, 3], &[]);
        let check_last = |last: Option<u64>| {
            let metas = [Some(2), Some(2), last].map(|number| number.map(|n| CellMeta::value(version(n), 3)));
            let held: Vec<_> = layout.replicas(&key(), 3).iter().copied().zip(metas).collect();
            check(&layout, &write(2, (2, 3), 0..1), &held, &issued_cells, None)
        };
        assert!(check_last(None).is_err());
        assert!(check_last(Some(1)).is_err());
        assert!(check_last(Some(2)).is_ok());
        assert!(check_last(Some(3)).is_ok());
    }
}
