//! Invariant: a scan of one node that takes less time than snapshots are kept shows one snapshot.
//! There is a moment between its beginning and its first page at which the node held exactly the
//! entries that the client received. Scans during which the node dropped a snapshot to free memory
//! are not checked: `docs/consistency.md` excepts them.
//!
//! A process may make a version durable and end before it reports it. Such a version may have been
//! there at any time. Keys whose values expire are left out, since the time of expiry depends on
//! clocks.
//!
//! Keys of which the node has lost or gained a place are left out: it drops their cells, or copies
//! them without a report of each.
//!
//! A directory that was restored or damaged may still hold each version that its node ever made
//! durable. A repair may write such a version again, and only then does the node report it as
//! durable. So the version may have been there before that report.

use super::InvariantViolation;
use crate::Nanos;
use crate::history::{DurableVersions, IssuedCells, ScanRecord};
use cluster::Key;
use std::collections::{BTreeMap, BTreeSet};
use stdx::{CellKind, Version};

/// Checks a scan of one node that has ended and took less time than snapshots are kept, for the
/// keys of which the node `keeps` its place.
pub fn check(
    record: &ScanRecord,
    durable: &DurableVersions,
    issued_cells: &IssuedCells,
    keeps: impl Fn(&Key) -> bool,
) -> Result<(), InvariantViolation> {
    let Some((first_page_at, _)) = record.page_times else { return Ok(()) };
    let seen: BTreeMap<&Key, Version> = record.seen.iter().map(|seen| (&seen.key, seen.version)).collect();
    let expires = |key| issued_cells.range(key, ..).any(|(_, issued)| issued.expires_at.is_some());
    let possibly_held = |version| durable.possibly_held(record.node, version);
    let held: Vec<_> = (durable.versions_at(record.node))
        .filter(|(key, _)| record.has_passed(key) && !expires(key) && keeps(key))
        .map(|(key, versions)| Held {
            key,
            versions,
            seen: seen.get(key).copied(),
            possibly_held: &possibly_held,
        })
        .collect();
    // The node's reported state is constant between two of these moments.
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
        "{:?} shows no single moment from {began} to {first_page_at}; at the beginning {:?} had {:?}, and the scan returned {:?}",
        record.id, odd.key, odd.versions, odd.seen
    );
    Err(InvariantViolation::new("one_snapshot", detail))
}

/// A key that a scan has passed.
struct Held<'a> {
    key: &'a Key,
    /// Versions that the node has reported as durable, with the time of each report.
    versions: &'a [(Nanos, Version)],
    /// Version that the client received.
    seen: Option<Version>,
    /// Whether the node may have held a version before it reported it.
    possibly_held: &'a dyn Fn(Version) -> bool,
}

impl Held<'_> {
    /// Whether the scan result for this key is possible for a snapshot taken at `at`.
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

    /// A scan whose first page took from 10 to 20 ns and had these versions.
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

    /// Checks a scan whose first page took from 10 to 20 ns. Before and during that time "a" and
    /// "b" changed, and "c" was deleted.
    fn holds(seen: &[(&'static str, u64)]) -> bool {
        let mut durable = DurableVersions::default();
        let mut issued_cells = IssuedCells::default();
        for (name, at, number) in [("a", 1, 1), ("b", 2, 2), ("c", 3, 3), ("a", 12, 4), ("b", 14, 5)] {
            durable.note(NodeIndex(0), key(name), Nanos(at), version(number));
            issued_cells.note(&key(name), &Cell::value(version(number), 3, Bytes::new())).unwrap();
        }
        durable.note(NodeIndex(0), key("c"), Nanos(16), version(6));
        issued_cells.note(&key("c"), &Cell::tombstone(version(6), 3)).unwrap();
        check(&record(seen), &durable, &issued_cells, |_| true).is_ok()
    }

    #[test]
    fn entries_of_one_moment_pass() {
        assert!(holds(&[("a", 1), ("b", 2), ("c", 3)]));
        assert!(holds(&[("a", 4), ("b", 2), ("c", 3)]));
        assert!(holds(&[("a", 4), ("b", 5), ("c", 3)]));
        assert!(holds(&[("a", 4), ("b", 5)]));
    }

    #[test]
    fn entries_of_different_moments_are_caught() {
        assert!(!holds(&[("a", 1), ("b", 5), ("c", 3)]));
        assert!(!holds(&[("a", 1), ("b", 2)]));
        assert!(!holds(&[("a", 4), ("c", 3)]));
    }

    #[test]
    fn a_changed_directory_may_hold_versions_that_a_repair_writes_again_later() {
        let is_seen = |lose: fn(&mut DurableVersions, NodeIndex)| {
            let mut durable = DurableVersions::default();
            let mut issued_cells = IssuedCells::default();
            issued_cells.note(&key("a"), &Cell::value(version(1), 3, Bytes::new())).unwrap();
            durable.note(NodeIndex(0), key("a"), Nanos(1), version(1));
            lose(&mut durable, NodeIndex(0));
            durable.note(NodeIndex(0), key("a"), Nanos(25), version(1));
            check(&record(&[("a", 1)]), &durable, &issued_cells, |_| true).is_ok()
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
