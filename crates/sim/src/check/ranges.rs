//! Invariant: the entries of a scan are correct and complete, as far as the scan came.
//!
//! The keys are in the requested range and ascend, and there are at most `limit` of them. Each
//! value was written under its version, and had not expired when the scan began. A scan is never
//! silently short: for each key that it passed, it returns the version established before it began
//! or a newer one. It omits a key only if that version or a newer one is dead.
//!
//! A scan that ended with its last page has passed its whole range, unless it returned `limit`
//! entries. Then, and if it failed or the client closed it, it has passed the range up to its last
//! entry.
//!
//! The established versions are in `floors`. For a scan of the cluster they are the bounds of
//! [`Facts`](super::facts::Facts). For a scan of one node they are the versions that the node has
//! made durable.

use super::InvariantViolation;
use crate::history::{IssuedCell, IssuedCells, ScanRecord, SeenEntry};
use cluster::Key;
use std::collections::BTreeMap;
use stdx::{CellKind, Version, WallTime};

/// Checks a scan that has ended. `latest_wall` is the greatest time that any wall clock has shown.
pub fn check(
    record: &ScanRecord,
    floors: &BTreeMap<Key, Version>,
    issued_cells: &IssuedCells,
    latest_wall: WallTime,
) -> Result<(), InvariantViolation> {
    check_form(record)?;
    for seen in &record.seen {
        check_entry(record, seen, issued_cells)?;
    }
    let seen: BTreeMap<&Key, Version> = record.seen.iter().map(|seen| (&seen.key, seen.version)).collect();
    for (key, floor) in floors.iter().filter(|(key, _)| record.has_passed(key)) {
        let is_respected = match seen.get(key) {
            Some(version) => version >= floor,
            None => issued_cells.range(key, floor..).any(|(_, issued)| issued.is_dead_at(latest_wall)),
        };
        if !is_respected {
            let found = seen.get(key);
            let detail =
                format!("{floor} of {key:?} was established before, and the scan returned {found:?}");
            return Err(violation(record, &detail));
        }
    }
    Ok(())
}

fn check_form(record: &ScanRecord) -> Result<(), InvariantViolation> {
    let keys: Vec<&Key> = record.seen.iter().map(|seen| &seen.key).collect();
    if let Some(pair) = keys.windows(2).find(|pair| pair[0] >= pair[1]) {
        return Err(violation(record, &format!("{:?} is followed by {:?}", pair[0], pair[1])));
    }
    if let Some(key) = keys.iter().find(|key| !record.scan.range.contains(key.as_bytes())) {
        return Err(violation(record, &format!("{key:?} is not in the range")));
    }
    if record.scan.limit.is_some_and(|limit| keys.len() as u64 > limit) {
        return Err(violation(record, "more entries than the limit"));
    }
    Ok(())
}

fn check_entry(
    record: &ScanRecord,
    seen: &SeenEntry,
    issued_cells: &IssuedCells,
) -> Result<(), InvariantViolation> {
    let SeenEntry { key, version, value } = seen;
    let is_written = |issued: &IssuedCell| issued.kind == CellKind::Value && issued.value == *value;
    let Some(issued) = issued_cells.get(key, *version).filter(|issued| is_written(issued)) else {
        return Err(violation(record, &format!("no client wrote this entry: {seen:?}")));
    };
    match issued.expires_at {
        Some(expires_at) if expires_at <= record.least_wall => {
            let wall = record.least_wall;
            Err(violation(
                record,
                &format!("{seen:?} expired at {expires_at:?}, and the least clock of the scan was {wall:?}"),
            ))
        }
        _ => Ok(()),
    }
}

fn violation(record: &ScanRecord, detail: &str) -> InvariantViolation {
    let ScanRecord { id, node, scan, began, seen, ended, .. } = record;
    let detail = format!(
        "{detail}: {id:?} of {node:?} for {scan:?}, begun at {began}, {} entries, ended {ended:?}",
        seen.len()
    );
    InvariantViolation::new("ranges", detail)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NOW, version};
    use super::*;
    use crate::Nanos;
    use crate::history::ScanEnd;
    use bytes::Bytes;
    use cluster::{Cut, KeyRange, NodeIndex, Scan, ScanId, ScanScope};
    use stdx::{Cell, CellMeta};

    fn key(name: &'static str) -> Key {
        Key::new(Bytes::from_static(name.as_bytes())).unwrap()
    }

    /// Keys and the versions of their entries.
    type Entries<'a> = &'a [(&'static str, u64)];

    /// Cells that clients wrote: values and tombstones.
    fn issued_cells(values: Entries<'_>, tombstones: Entries<'_>) -> IssuedCells {
        let mut issued_cells = IssuedCells::default();
        for (name, number) in values {
            let value = Cell::value(version(*number), 3, Bytes::from(number.to_string()));
            issued_cells.note(&key(name), &value).unwrap();
        }
        for (name, number) in tombstones {
            issued_cells.note(&key(name), &Cell::tombstone(version(*number), 3)).unwrap();
        }
        issued_cells
    }

    /// A scan of the keys before "x" that received `seen`.
    fn record(seen: Entries<'_>, ended: ScanEnd) -> ScanRecord {
        let range = KeyRange { from: None, to: Some(Cut::Before(key("x"))) };
        let see = |&(name, number): &(&'static str, u64)| SeenEntry {
            key: key(name),
            version: version(number),
            value: Bytes::from(number.to_string()),
        };
        ScanRecord {
            id: ScanId(0),
            node: NodeIndex(0),
            scan: Scan { range, limit: None, scope: ScanScope::Node },
            began: Nanos(0),
            least_wall: NOW,
            greatest_wall: NOW,
            seen: seen.iter().map(see).collect(),
            page_times: None,
            lost_snapshot: false,
            ended: Some((Nanos(9), ended)),
        }
    }

    fn floors(entries: Entries<'_>) -> BTreeMap<Key, Version> {
        entries.iter().map(|(name, number)| (key(name), version(*number))).collect()
    }

    fn closed() -> ScanEnd {
        ScanEnd::ClosedByClient
    }

    const WRITTEN: Entries<'_> = &[("a", 1), ("b", 2), ("b", 6), ("c", 3), ("z", 4)];

    fn holds(record: &ScanRecord, established: Entries<'_>, deleted: Entries<'_>) -> bool {
        check(record, &floors(established), &issued_cells(WRITTEN, deleted), NOW).is_ok()
    }

    #[test]
    fn keys_out_of_order_duplicated_or_outside_of_the_range_are_caught() {
        let holds = |seen| holds(&record(seen, ScanEnd::Complete), &[], &[]);
        assert!(holds(&[("a", 1), ("b", 2), ("c", 3)]));
        assert!(!holds(&[("b", 2), ("a", 1)]));
        assert!(!holds(&[("b", 2), ("b", 6)]));
        assert!(!holds(&[("a", 1), ("z", 4)]));
    }

    #[test]
    fn more_entries_than_the_limit_are_caught() {
        let mut record = record(&[("a", 1), ("b", 2)], ScanEnd::Complete);
        record.scan.limit = Some(2);
        assert!(holds(&record, &[], &[]));
        record.scan.limit = Some(1);
        assert!(!holds(&record, &[], &[]));
    }

    #[test]
    fn an_entry_that_no_client_wrote_is_caught() {
        let holds = |seen, deleted| holds(&record(seen, ScanEnd::Complete), &[], deleted);
        assert!(!holds(&[("a", 8)], &[]));
        assert!(!holds(&[("a", 2)], &[]), "that is the version of another key");
        assert!(!holds(&[("a", 8)], &[("a", 8)]), "a delete is not an entry");
    }

    #[test]
    fn an_expired_entry_is_caught() {
        let expires = CellMeta { expires_at: Some(NOW), ..CellMeta::value(version(1), 3) };
        let mut issued_cells = IssuedCells::default();
        issued_cells.note(&key("a"), &Cell { meta: expires, value: Bytes::from_static(b"1") }).unwrap();
        let mut record = record(&[("a", 1)], ScanEnd::Complete);
        assert!(check(&record, &floors(&[]), &issued_cells, NOW).is_err());
        record.least_wall = NOW.saturating_sub(std::time::Duration::from_micros(1));
        assert!(check(&record, &floors(&[]), &issued_cells, NOW).is_ok());
    }

    #[test]
    fn an_omitted_key_and_an_older_entry_are_caught() {
        let holds = |seen| holds(&record(seen, ScanEnd::Complete), &[("a", 1), ("b", 6), ("z", 4)], &[]);
        assert!(holds(&[("a", 1), ("b", 6)]));
        assert!(!holds(&[("a", 1), ("b", 2)]));
        assert!(!holds(&[("a", 1)]));
        assert!(!holds(&[("b", 6)]));
    }

    #[test]
    fn a_delete_explains_an_omitted_key_and_hides_older_entries() {
        let complete = |seen| record(seen, ScanEnd::Complete);
        assert!(holds(&complete(&[]), &[("a", 1)], &[("a", 7)]));
        assert!(!holds(&complete(&[]), &[("b", 6)], &[("b", 5)]), "the delete is older");
        assert!(!holds(&complete(&[("b", 2)]), &[("b", 5)], &[("b", 5)]), "it was deleted");
        assert!(holds(&complete(&[("b", 6)]), &[("b", 5)], &[("b", 5)]), "and written again");
    }

    #[test]
    fn an_unfinished_scan_is_checked_up_to_its_last_entry() {
        let established: Entries<'_> = &[("a", 1), ("b", 2), ("c", 3)];
        assert!(holds(&record(&[], closed()), established, &[]));
        assert!(holds(&record(&[("a", 1)], closed()), established, &[]));
        assert!(!holds(&record(&[("b", 2)], closed()), established, &[]));
        assert!(!holds(&record(&[("c", 3)], ScanEnd::ProcessEnded), established, &[]));
    }

    #[test]
    fn a_scan_that_reached_its_limit_is_checked_up_to_its_last_entry() {
        let established: Entries<'_> = &[("a", 1), ("b", 2), ("c", 3)];
        let limited = |seen| {
            let mut record = record(seen, ScanEnd::Complete);
            record.scan.limit = Some(2);
            record
        };
        assert!(holds(&limited(&[("a", 1), ("b", 2)]), established, &[]));
        assert!(!holds(&limited(&[("a", 1), ("c", 3)]), established, &[]));
        assert!(!holds(&limited(&[("a", 1)]), established, &[]), "one is missing, though there are more");
    }
}
