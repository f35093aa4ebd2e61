//! Bytes that a change of the layout moves: the least possible number, and those that were moved.
//!
//! **Mechanism.** A node that becomes one of the first `default_from` holders of a partition has to
//! receive its keys and values once. The records before and after a change name the holders, and
//! the keys of the load are known. If the losing node is dead, its data is read from as many other
//! replicas as are in every majority, so each of them counts.
//!
//! The bytes that were moved are counted twice: [`CopyTracker`] follows the steps that nodes show,
//! and [`logged_bytes`] reads the copies that they have logged as complete.
//!
//! **Caveats.** A node has no metric of these bytes. The tracker misses what a copy receives after
//! the last look at it, and the log has no copy that was broken off. The greater number counts.

use super::layout::PlanView;
use bench::keys::{KEY_LEN, KeyNumber};
use bytes::Bytes;
use cluster::{Key, Layout, LayoutRecord, NodeIndex, PartitionId};
use std::collections::BTreeMap;
use stdx::NodeTag;

/// Message of a node that has completed a copy.
const COPIED: &str = "the node has copied the partitions that it gains";

/// Bytes of keys and values by partition of `record`, of the keys `0..keys` of a load.
pub(super) fn bytes_by_partition(record: &LayoutRecord, keys: u64, value_bytes: usize) -> Vec<u64> {
    let layout = Layout::of_record(record);
    let mut bytes = vec![0; layout.partitions() as usize];
    for number in (0..keys).map(KeyNumber) {
        let key = Key::new(Bytes::copy_from_slice(&number.stored_key())).expect("16 bytes are a key");
        bytes[layout.partition_of(&key).0 as usize] += (KEY_LEN + value_bytes) as u64;
    }
    bytes
}

/// Least number of bytes that have to move from the first to the second record. `dead`: URL of a
/// member of the first record whose data other members have to send.
pub(super) fn least_bytes(
    before: &LayoutRecord,
    after: &LayoutRecord,
    bytes_by_partition: &[u64],
    dead: Option<&str>,
) -> u64 {
    let from = usize::from(before.default_from);
    // One replica of each majority: `from` without a majority, and one more.
    let sources_of_dead = (from - (from / 2 + 1) + 1) as u64;
    let dead = before.members.iter().find(|member| Some(member.url.as_str()) == dead);
    let dead = dead.and_then(|member| member.node_id);
    let moved = (0..).map(PartitionId).zip(bytes_by_partition).map(|(partition, bytes)| {
        let (old, new) = (holders(before, partition), holders(after, partition));
        let gained = new.iter().filter(|node| !old.contains(node)).count() as u64;
        let is_of_dead = dead.is_some_and(|dead| old.contains(&dead) && !new.contains(&dead));
        let from_dead = u64::from(is_of_dead && gained > 0);
        bytes * (gained - from_dead + from_dead * sources_of_dead)
    });
    moved.sum()
}

/// Ids of the nodes that hold the keys of `partition` by default.
fn holders(record: &LayoutRecord, partition: PartitionId) -> Vec<NodeTag> {
    let id = |slot: &NodeIndex| record.member(*slot).and_then(|member| member.node_id);
    let list = record.preference_list(partition);
    list.iter().take(usize::from(record.default_from)).filter_map(id).collect()
}

/// Adds up the bytes of copies from what the gaining nodes show.
#[derive(Clone, Debug, Default)]
pub(super) struct CopyTracker {
    /// The copy of each pair of members, by their URLs.
    pairs: BTreeMap<(String, String), TrackedCopy>,
}

#[derive(Clone, Copy, Debug, Default)]
struct TrackedCopy {
    /// Bytes of earlier copies of the pair.
    done: u64,
    /// Bytes of the copy that was seen last.
    current: u64,
    /// Epoch of its PREPARE.
    prepared: u64,
}

impl CopyTracker {
    /// Looks at the running plan, as a node shows it.
    pub(super) fn look(&mut self, plan: &PlanView) {
        for step in &plan.steps {
            let Some(copy) = step.copy else { continue };
            let tracked = self.pairs.entry((step.from.clone(), step.to.clone())).or_default();
            let is_later = step.is_prepared() && step.since_epoch > tracked.prepared;
            // A copy that begins again reads its bytes again.
            if is_later || copy.bytes < tracked.current {
                tracked.done += tracked.current;
            }
            if step.is_prepared() {
                tracked.prepared = step.since_epoch;
            }
            tracked.current = copy.bytes;
        }
    }

    /// Bytes of all copies so far.
    pub(super) fn bytes(&self) -> u64 {
        self.pairs.values().map(|copy| copy.done + copy.current).sum()
    }
}

/// Bytes of the copies that are complete by the log of their gaining node.
pub(super) fn logged_bytes(log: &str) -> u64 {
    let bytes = |line: &str| {
        let (_, rest) = line.split_once(" bytes=")?;
        rest.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    log.lines().filter(|line| line.contains(COPIED)).filter_map(bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::super::layout::{CopyView, StepView};
    use super::*;
    use cluster::ClusterOrigin;

    /// Four nodes of which the first two hold all four partitions, with `default_from` 2.
    fn record(default_from: u8) -> LayoutRecord {
        let nodes = ["http://a:1", "http://b:1", "http://c:1", "http://d:1"].map(String::from).to_vec();
        let origin = ClusterOrigin { nodes, partitions: 4, hash_version: 1, default_from, tag: NodeTag(1) };
        let mut record = LayoutRecord::first(origin).unwrap();
        (10..).zip(&mut record.members).for_each(|(id, member)| member.node_id = Some(NodeTag(id)));
        record.lists = [0, 1, 2, 3].repeat(4).into_iter().map(NodeIndex).collect();
        record
    }

    fn with_list(record: &LayoutRecord, partition: usize, list: [u8; 4]) -> LayoutRecord {
        let mut record = record.clone();
        record.lists[partition * 4..][..4].copy_from_slice(&list.map(NodeIndex));
        record
    }

    #[test]
    fn only_new_holders_have_to_receive_a_partition() {
        let (before, bytes) = (record(2), [1, 10, 100, 1_000]);
        assert_eq!(least_bytes(&before, &before, &bytes, None), 0);
        let order = with_list(&before, 0, [1, 0, 3, 2]);
        assert_eq!(least_bytes(&before, &order, &bytes, None), 0, "the holders are the same");
        let one = with_list(&order, 1, [0, 2, 1, 3]);
        assert_eq!(least_bytes(&before, &one, &bytes, None), 10);
        let both = with_list(&one, 3, [2, 3, 0, 1]);
        assert_eq!(least_bytes(&before, &both, &bytes, None), 2_010);
    }

    #[test]
    fn a_node_with_a_new_id_is_another_holder() {
        let (before, mut after) = (record(2), record(2));
        after.members[0].node_id = Some(NodeTag(99));
        assert_eq!(least_bytes(&before, &after, &[1, 1, 1, 1], None), 4);
    }

    #[test]
    fn the_data_of_a_dead_node_is_read_from_a_replica_of_each_majority() {
        let (before, bytes) = (record(3), [1, 10, 100, 1_000]);
        let after = with_list(&before, 2, [0, 1, 3, 2]);
        assert_eq!(least_bytes(&before, &after, &bytes, None), 100);
        assert_eq!(least_bytes(&before, &after, &bytes, Some("http://c:1")), 200, "two of three");
        assert_eq!(least_bytes(&before, &after, &bytes, Some("http://a:1")), 100, "it loses nothing");
    }

    #[test]
    fn each_key_counts_in_its_partition() {
        let bytes = bytes_by_partition(&record(2), 1_000, 84);
        assert_eq!(bytes.iter().sum::<u64>(), 100_000);
        assert!(bytes.iter().all(|bytes| (15_000..35_000).contains(bytes)), "{bytes:?}");
    }

    fn plan(steps: &[(&str, &str, u64, Option<u64>)]) -> PlanView {
        let step = |&(from, phase, since_epoch, bytes): &(&str, &str, u64, Option<u64>)| StepView {
            from: from.to_owned(),
            to: "d".to_owned(),
            phase: phase.to_owned(),
            since_epoch,
            copy: bytes.map(|bytes| CopyView { bytes }),
        };
        let (state, copies_left) = ("running".to_owned(), None);
        PlanView { state, copies_left, steps: steps.iter().map(step).collect() }
    }

    #[test]
    fn copies_are_added_up_over_steps_and_attempts() {
        let mut tracker = CopyTracker::default();
        tracker.look(&plan(&[("a", "prepare", 5, Some(100)), ("b", "prepare", 5, None)]));
        tracker.look(&plan(&[("a", "prepare", 5, Some(300)), ("b", "prepare", 5, Some(20))]));
        assert_eq!(tracker.bytes(), 320);
        tracker.look(&plan(&[("a", "read-new", 6, Some(310))]));
        assert_eq!(tracker.bytes(), 330, "the copy of b is over");
        tracker.look(&plan(&[("a", "prepare", 9, Some(400))]));
        assert_eq!(tracker.bytes(), 730, "another copy of the pair");
        tracker.look(&plan(&[("a", "prepare", 9, Some(50))]));
        assert_eq!(tracker.bytes(), 780, "it has begun again");
    }

    #[test]
    fn the_log_of_a_node_has_its_complete_copies() {
        let log = "2026-01-01T00:00:00Z INFO server: the node copies partitions that it gains loser=\"http://a:1\"\n\
                   2026-01-01T00:00:01Z INFO server: the node has copied the partitions that it gains \
                   loser=\"http://a:1\" cells=3 bytes=312 took_ms=1000\n\
                   2026-01-01T00:00:02Z INFO server: something else bytes=7\n\
                   2026-01-01T00:00:03Z INFO server: the node has copied the partitions that it gains \
                   loser=\"http://b:1\" cells=1 bytes=104 took_ms=10\n";
        assert_eq!(logged_bytes(log), 416);
        assert_eq!(logged_bytes(""), 0);
    }
}
