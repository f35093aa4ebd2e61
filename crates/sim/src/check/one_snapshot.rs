//! A scan of one node that is shorter than snapshots are kept shows one moment: there is a time between its begin and
//! its first page at which the node held just what was seen. Scans during which the node dropped a snapshot for its
//! memory are not checked: docs/consistency.md excepts them.
//!
//! What a node has made durable without saying so, for it ended before, may have been there at any time. Keys whose
//! values expire are left out: when they do is a matter of clocks.
//!
//! A directory that was restored or damaged may still hold each version that its node ever made durable. A repair may
//! write such a version again, and the node says only then that it is durable. So the version may have been there
//! before that time too.

use super::Violation;
use crate::Nanos;
use crate::history::{DurableVersions, IssuedCells, ScanRecord};
use cluster::Key;
use std::collections::{BTreeMap, BTreeSet};
use stdx::{CellKind, Version};

/// Checks a scan of one node that has ended, and took less time than snapshots are kept.
pub fn check(
    record: &ScanRecord,
    durable: &DurableVersions,
    issued_cells: &IssuedCells,
) -> Result<(), Violation> {
    let Some((first_page_at, _)) = record.page_times else { return Ok(()) };
    let seen: BTreeMap<&Key, Version> = record.seen.iter().map(|seen| (&seen.key, seen.version)).collect();
    let expires = |key| issued_cells.range(key, ..).any(|(_, issued)| issued.expires_at.is_some());
    let possibly_held = |version| durable.possibly_held(record.node, version);
    let held: Vec<_> = (durable.versions_at(record.node))
        .filter(|(key, _)| record.has_passed(key) && !expires(key))
        .map(|(key, versions)| Held {
            key,
            versions,
            seen: seen.get(key).copied(),
            possibly_held: &possibly_held,
        })
        .collect();
    // Between two of these nothing changes.
    let changes = held.iter().flat_map(|held| held.versions).map(|(since, _)| *since);
    let mut moments: BTreeSet<Nanos> =
        changes.filter(|since| (record.began..=first_page_at).contains(since)).collect();
    moments.insert(record.began);
    let shows = |at: &Nanos| held.iter().all(|held| held.may_show(*at, issued_cells));
    if moments.iter().any(shows) {
        return Ok(());
    }
    let began = record.began;
    let odd =
        held.iter().find(|held| !held.may_show(began, issued_cells)).expect("else the begin is a moment");
    let detail = format!(
        "{:?} shows no one moment from {began} to {first_page_at}; at first not that of {:?} in {:?}, which was seen in {:?}",
        record.id, odd.key, odd.versions, odd.seen
    );
    Err(Violation::new("one_snapshot", detail))
}

/// A key that a scan went past.
struct Held<'a> {
    key: &'a Key,
    /// What the node has said that it made durable.
    versions: &'a [(Nanos, Version)],
    /// What the scan saw of it.
    seen: Option<Version>,
    /// Whether the node may have held a version before it said so.
    possibly_held: &'a dyn Fn(Version) -> bool,
}

impl Held<'_> {
    /// Whether what was seen of the key may be what the node held at `at`.
    fn may_show(&self, at: Nanos, issued_cells: &IssuedCells) -> bool {
        let passed = self.versions.partition_point(|(since, _)| *since <= at);
        let newest = self.versions[..passed].last().map(|(_, version)| *version);
        let came_later = |version| {
            !(self.possibly_held)(version)
                && self.versions[passed..].iter().any(|(_, later)| *later == version)
        };
        match (self.seen, newest) {
            (Some(seen), newest) => newest <= Some(seen) && !came_later(seen),
            (None, None) => true,
            (None, Some(newest)) => {
                let mut dead = issued_cells
                    .range(self.key, newest..)
                    .filter(|(_, cell)| cell.kind == CellKind::Tombstone);
                dead.any(|(version, _)| !came_later(version))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NOW, version};
    use super::*;
    use crate::history::{ScanEnd, SeenEntry};
    use bytes::Bytes;
    use cluster::{KeyRange, NodeIndex, Scan, ScanId, ScanScope};
    use stdx::Cell;

    fn key(name: &'static str) -> Key {
        Key::new(Bytes::from_static(name.as_bytes())).unwrap()
    }

    /// From 10 to 20 a scan had its first page, in which it saw these versions.
    fn record(seen: &[(&'static str, u64)]) -> ScanRecord {
        let see = |&(name, number): &(&'static str, u64)| SeenEntry {
            key: key(name),
            version: version(number),
            value: Bytes::new(),
        };
        ScanRecord {
            id: ScanId(0),
            node: NodeIndex(0),
            scan: Scan { range: KeyRange::default(), limit: None, scope: ScanScope::Node },
            began: Nanos(10),
            least_wall: NOW,
            greatest_wall: NOW,
            seen: seen.iter().map(see).collect(),
            page_times: Some((Nanos(20), Nanos(30))),
            lost_snapshot: false,
            ended: Some((Nanos(30), ScanEnd::Complete)),
        }
    }

    /// From 10 to 20 a scan had its first page; before and after, "a" and "b" changed, and "c" was deleted.
    fn holds(seen: &[(&'static str, u64)]) -> bool {
        let mut durable = DurableVersions::default();
        let mut issued_cells = IssuedCells::default();
        for (name, at, number) in [("a", 1, 1), ("b", 2, 2), ("c", 3, 3), ("a", 12, 4), ("b", 14, 5)] {
            durable.note(NodeIndex(0), key(name), Nanos(at), version(number));
            issued_cells.note(&key(name), &Cell::value(version(number), 3, Bytes::new())).unwrap();
        }
        durable.note(NodeIndex(0), key("c"), Nanos(16), version(6));
        issued_cells.note(&key("c"), &Cell::tombstone(version(6), 3)).unwrap();
        check(&record(seen), &durable, &issued_cells).is_ok()
    }

    #[test]
    fn what_was_there_at_one_time_is_let_pass() {
        assert!(holds(&[("a", 1), ("b", 2), ("c", 3)]));
        assert!(holds(&[("a", 4), ("b", 2), ("c", 3)]));
        assert!(holds(&[("a", 4), ("b", 5), ("c", 3)]));
        assert!(holds(&[("a", 4), ("b", 5)]));
    }

    #[test]
    fn what_was_never_there_together_is_caught() {
        assert!(!holds(&[("a", 1), ("b", 5), ("c", 3)]));
        assert!(!holds(&[("a", 1), ("b", 2)]));
        assert!(!holds(&[("a", 4), ("c", 3)]));
    }

    #[test]
    fn a_directory_that_was_changed_may_hold_what_a_repair_writes_again_later() {
        let is_seen = |lose: fn(&mut DurableVersions, NodeIndex)| {
            let mut durable = DurableVersions::default();
            let mut issued_cells = IssuedCells::default();
            issued_cells.note(&key("a"), &Cell::value(version(1), 3, Bytes::new())).unwrap();
            durable.note(NodeIndex(0), key("a"), Nanos(1), version(1));
            lose(&mut durable, NodeIndex(0));
            durable.note(NodeIndex(0), key("a"), Nanos(25), version(1));
            check(&record(&[("a", 1)]), &durable, &issued_cells).is_ok()
        };
        assert!(is_seen(DurableVersions::lose_some));
        assert!(!is_seen(DurableVersions::lose_all), "an empty directory holds nothing");
        let restored_after_empty = |durable: &mut DurableVersions, node| {
            durable.lose_all(node);
            durable.lose_some(node);
        };
        assert!(is_seen(restored_after_empty), "the backup is older than the empty directory");
    }
}
