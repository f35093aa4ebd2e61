//! Invariant: after the heal phase, a scan of all keys returns exactly the live cells that the
//! replicas hold.
//!
//! Each live key is returned with its newest version, and no other key is returned.

use super::InvariantViolation;
use crate::history::ScanRecord;
use cluster::Key;
use std::collections::BTreeMap;
use std::time::Duration;
use stdx::{CellMeta, Version, WallTime};

/// Greatest difference between the clocks of nodes after the heal phase.
const APART_MAX: Duration = Duration::from_millis(500);

/// Checks a complete scan of all keys against the cells that were held when it began.
///
/// `latest_wall` is the greatest time that any clock had shown when the scan ended. An entry that
/// expires about then may be returned or not.
pub fn check(
    record: &ScanRecord,
    held: &BTreeMap<Key, CellMeta>,
    latest_wall: WallTime,
) -> Result<(), InvariantViolation> {
    let earliest_wall = record.least_wall.saturating_sub(APART_MAX);
    let seen: BTreeMap<&Key, Version> = record.seen.iter().map(|seen| (&seen.key, seen.version)).collect();
    for (key, meta) in held {
        let is_right = match seen.get(key) {
            Some(version) => *version == meta.version && meta.is_live_at(earliest_wall),
            None => !meta.is_live_at(latest_wall),
        };
        if !is_right {
            return Err(violation(
                record,
                &format!("{:?} of {key:?}, although {meta:?} is held", seen.get(key)),
            ));
        }
    }
    match seen.keys().find(|key| !held.contains_key(**key)) {
        Some(key) => Err(violation(record, &format!("{key:?}, which no replica holds"))),
        None => Ok(()),
    }
}

fn violation(record: &ScanRecord, found: &str) -> InvariantViolation {
    let ScanRecord { id, node, scan, seen, .. } = record;
    let detail = format!("{found}, was returned by {id:?} of {node:?} for {scan:?}, {} entries", seen.len());
    InvariantViolation::new("complete_ranges", detail)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NOW, key, version};
    use super::*;
    use crate::Nanos;
    use crate::history::{ScanEnd, SeenEntry};
    use cluster::{KeyRange, NodeIndex, Scan, ScanId, ScanScope};

    fn holds(seen: Option<u64>, held: Option<CellMeta>) -> bool {
        let see = |number| SeenEntry { key: key(), version: version(number), value: "a value".into() };
        let record = ScanRecord {
            id: ScanId(0),
            node: NodeIndex(0),
            scan: Scan { range: KeyRange::default(), limit: None, scope: ScanScope::Node },
            began: Nanos(0),
            least_wall: NOW,
            greatest_wall: NOW,
            seen: seen.map(see).into_iter().collect(),
            page_times: None,
            lost_snapshot: false,
            ended: Some((Nanos(9), ScanEnd::Complete)),
        };
        check(&record, &held.map(|meta| (key(), meta)).into_iter().collect(), NOW).is_ok()
    }

    #[test]
    fn a_scan_that_differs_from_the_held_cells_is_caught() {
        let value = CellMeta::value(version(2), 3);
        assert!(holds(Some(2), Some(value)) && holds(None, None));
        assert!(!holds(Some(1), Some(value)));
        assert!(!holds(None, Some(value)));
        assert!(!holds(Some(2), None));
    }

    #[test]
    fn dead_cells_are_not_returned() {
        let tombstone = CellMeta::tombstone(version(2), 3);
        assert!(holds(None, Some(tombstone)));
        assert!(!holds(Some(2), Some(tombstone)));
        let expires = |at| CellMeta { expires_at: Some(at), ..CellMeta::value(version(2), 3) };
        let later = NOW.saturating_add(Duration::from_secs(9));
        let before = NOW.saturating_sub(Duration::from_secs(9));
        assert!(holds(Some(2), Some(expires(later))) && !holds(None, Some(expires(later))));
        assert!(!holds(Some(2), Some(expires(before))) && holds(None, Some(expires(before))));
        assert!(holds(Some(2), Some(expires(NOW))) && holds(None, Some(expires(NOW))));
    }
}
