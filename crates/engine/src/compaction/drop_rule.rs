//! The rule for dropping a cell in a compaction.
//!
//! A tombstone hides the older cells of its key: those in other tables of this node, and those on
//! replicas that have not heard of the delete. It may be dropped when neither can return:
//!
//! * It has been dead for the *grace period*, in which every replica hears of it. If the last
//!   exchange of deletes between the replicas was longer ago, the period is extended to that.
//! * Nothing outside of the merge can hold a cell of its key at its version or below: no table (see
//!   [`OutsideTables`](super::outside)), no memtable, no record of the log that a recovery would
//!   replay, and no table that was ingested during the merge.
//!
//! Merging into the last level proves nothing: levels are not ordered by version, so the older cell
//! may lie *above*, written late by a hint or a repair.
//!
//! An expired value is no longer visible but still hides older cells. So it is replaced by a
//! tombstone of the same version, which keeps the expiry: the grace period counts from there. Its
//! bytes are dropped at once.
//!
//! Local keys ([`Options::local_keys_end`](crate::Options::local_keys_end)) are not replicated.
//! Their tombstones have no grace period, and only the second condition applies.

use super::Horizon;
use crate::Error;
use stdx::{CellKind, CellMeta};

/// Decision about a cell that survived a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The cell is written unchanged.
    Keep,
    /// The cell's expiry tombstone is written instead, see [`CellMeta::buried`].
    Bury,
    /// The cell is dropped.
    Drop,
}

/// Decides about the cell of `key` that superseded all others in a merge. `outside_may_hold`
/// returns whether a table outside of the merge may hold a cell of the key at this version or
/// below. It is evaluated last.
///
/// # Errors
/// Those of `outside_may_hold`.
#[inline]
pub fn judge(
    key: &[u8],
    cell: &CellMeta,
    horizon: &Horizon,
    outside_may_hold: impl FnOnce() -> Result<bool, Error>,
) -> Result<Verdict, Error> {
    let Some(dead_from) = cell.dead_from().filter(|dead_from| *dead_from <= horizon.now) else {
        return Ok(Verdict::Keep);
    };
    let (grace, version_min) = horizon.rule_for(key);
    let heard_of = dead_from.saturating_add(grace) <= horizon.now;
    if heard_of && cell.version < version_min && !outside_may_hold()? {
        return Ok(Verdict::Drop);
    }
    Ok(if cell.kind == CellKind::Value { Verdict::Bury } else { Verdict::Keep })
}

#[cfg(test)]
mod tests {
    use super::super::LocalHorizon;
    use super::*;
    use std::time::Duration;
    use stdx::{Hlc, NodeTag, Version, WallTime};

    const GRACE: Duration = Duration::from_secs(100);
    const KEY: &[u8] = b"key";
    const LOCAL: &[u8] = b"a-local-key";

    fn at(second: u64) -> WallTime {
        WallTime::EPOCH_2020.saturating_add(Duration::from_secs(second))
    }

    fn version(second: u64) -> Version {
        Version::new(Hlc::at(at(second)), NodeTag(7))
    }

    fn horizon(now: u64, version_min: Version) -> Horizon {
        let local = LocalHorizon { end: "b".into(), version_min: Version::MAX };
        Horizon { now: at(now), grace: GRACE, version_min, purged_from: None, local: Some(local) }
    }

    fn expiring(written: u64, expires: u64) -> CellMeta {
        CellMeta { expires_at: Some(at(expires)), ..CellMeta::value(version(written), 1) }
    }

    /// The verdict if no memtable and no table outside holds the key.
    fn alone(cell: &CellMeta, now: u64) -> Verdict {
        judge(KEY, cell, &horizon(now, Version::MAX), || Ok(false)).expect("no table is asked")
    }

    #[test]
    fn a_tombstone_is_dropped_after_its_grace_period() {
        let tombstone = CellMeta::tombstone(version(10), 1);
        assert_eq!(alone(&tombstone, 109), Verdict::Keep);
        assert_eq!(alone(&tombstone, 110), Verdict::Drop);
    }

    #[test]
    fn reaching_the_last_level_does_not_suffice_to_drop() {
        let tombstone = CellMeta::tombstone(version(10), 1);
        let verdict = judge(KEY, &tombstone, &horizon(1_000, Version::MAX), || Ok(true));
        assert_eq!(verdict.unwrap(), Verdict::Keep, "a table above may hold an older cell");
    }

    #[test]
    fn a_tombstone_stays_while_a_memtable_or_the_log_may_hold_older_cells() {
        let tombstone = CellMeta::tombstone(version(10), 1);
        for (least, expected) in [(9, Verdict::Keep), (10, Verdict::Keep), (11, Verdict::Drop)] {
            let verdict = judge(KEY, &tombstone, &horizon(1_000, version(least)), || Ok(false));
            assert_eq!(verdict.unwrap(), expected, "least version {least} in a memtable");
        }
    }

    #[test]
    fn the_grace_period_of_an_expired_value_counts_from_its_expiry() {
        let value = expiring(10, 500);
        assert_eq!(alone(&value, 499), Verdict::Keep);
        assert_eq!(alone(&value, 500), Verdict::Bury);
        assert_eq!(alone(&value, 600), Verdict::Drop);
        let buried = value.buried();
        assert!(!buried.is_live_at(at(0)), "also for a clock that was set back");
        assert_eq!(alone(&buried, 599), Verdict::Keep);
        assert_eq!(alone(&buried, 600), Verdict::Drop);
    }

    #[test]
    fn an_expiry_before_the_write_does_not_shorten_the_grace_period() {
        let value = expiring(500, 10);
        assert_eq!(alone(&value, 599), Verdict::Bury);
        assert_eq!(alone(&value, 600), Verdict::Drop);
    }

    #[test]
    fn a_live_value_is_kept_at_any_age() {
        assert_eq!(alone(&CellMeta::value(version(0), 1), 1_000_000), Verdict::Keep);
        assert_eq!(alone(&expiring(0, 2_000_000), 1_000_000), Verdict::Keep);
    }

    #[test]
    fn a_local_tombstone_is_dropped_at_once_if_it_hides_nothing() {
        let tombstone = CellMeta::tombstone(version(10), 1);
        let verdict = |now, least, outside| {
            let mut horizon = horizon(now, version(0));
            horizon.local.as_mut().expect("set").version_min = version(least);
            judge(LOCAL, &tombstone, &horizon, || Ok(outside)).unwrap()
        };
        assert_eq!(verdict(10, 11, false), Verdict::Drop, "the least version of other keys does not matter");
        assert_eq!(verdict(10, 11, true), Verdict::Keep, "a table may hold an older cell");
        assert_eq!(verdict(10, 10, false), Verdict::Keep, "a memtable may");
        assert_eq!(verdict(9, 11, false), Verdict::Keep, "a clock that was set back");
        assert_eq!(judge(b"b", &tombstone, &horizon(10, Version::MAX), || Ok(false)).unwrap(), Verdict::Keep);
        let expired = expiring(10, 20);
        let judged = judge(LOCAL, &expired, &horizon(20, Version::MAX), || Ok(false));
        assert_eq!(judged.unwrap(), Verdict::Drop);
    }

    #[test]
    fn outside_tables_are_read_only_if_all_other_conditions_hold() {
        let tombstone = CellMeta::tombstone(version(10), 1);
        for horizon in [horizon(109, Version::MAX), horizon(1_000, version(10))] {
            let verdict = judge(KEY, &tombstone, &horizon, || panic!("asked"));
            assert_eq!(verdict.unwrap(), Verdict::Keep);
        }
    }
}
