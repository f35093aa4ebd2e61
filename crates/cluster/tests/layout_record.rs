//! Layout records: epoch 1 is the same on all nodes, its bytes are pinned, and a record that breaks
//! a constraint is refused.

#![allow(clippy::disallowed_methods, reason = "the files are what is tested")]

use cluster::{
    ClusterOrigin, FEATURE_LEVEL, Layout, LayoutDecodeError, LayoutEpoch, LayoutMember, LayoutRecord,
    LayoutRecordError, MemberState, NODES_MAX, NodeIndex, NodeSet, PartitionId, RecordHash, URL_BYTES_MAX,
    VOTERS_MAX, ZONE_BYTES_MAX,
};
use proptest::prelude::*;
use std::path::PathBuf;
use stdx::NodeTag;

fn names(nodes: usize) -> Vec<String> {
    (0..nodes).map(|node| format!("http://node{node}.example:8080")).collect()
}

fn origin(nodes: usize, partitions: u32, default_from: u8) -> ClusterOrigin {
    ClusterOrigin { nodes: names(nodes), partitions, hash_version: 1, default_from, tag: NodeTag(7) }
}

fn first(nodes: usize, partitions: u32) -> LayoutRecord {
    let default_from = nodes.min(3) as u8;
    LayoutRecord::first(origin(nodes, partitions, default_from)).expect("a valid origin")
}

/// The child of `parent` without a change but node ids.
fn child(parent: &LayoutRecord) -> LayoutRecord {
    let mut child = parent.clone();
    child.epoch = parent.epoch.next().expect("a small epoch");
    child.parent = parent.hash();
    for member in &mut child.members {
        member.node_id.get_or_insert(NodeTag(100 + u64::from(member.slot.0)));
    }
    child
}

fn changed_child(parent: &LayoutRecord, change: impl FnOnce(&mut LayoutRecord)) -> LayoutRecord {
    let mut child = child(parent);
    change(&mut child);
    child
}

fn added(slot: u8) -> LayoutMember {
    LayoutMember {
        slot: NodeIndex(slot),
        node_id: Some(NodeTag(1_000 + u64::from(slot))),
        url: format!("http://added{slot}:1"),
        zone: "z".to_owned(),
        weight: 2,
        state: MemberState::Joining,
    }
}

/// Replaces the preference lists by those that `change` makes of them.
fn map_lists(record: &mut LayoutRecord, len: usize, change: impl Fn(&mut Vec<NodeIndex>)) {
    let lists = record.lists.chunks_exact(len).flat_map(|list| {
        let mut list = list.to_vec();
        change(&mut list);
        list
    });
    record.lists = lists.collect();
}

#[test]
fn epoch_1_is_the_same_whatever_the_order_of_the_list() {
    for nodes in [1, 2, 3, 5, 64] {
        let record = first(nodes, 64);
        let mut shuffled = origin(nodes, 64, record.default_from);
        shuffled.nodes.reverse();
        shuffled.nodes.push(shuffled.nodes[0].clone());
        assert_eq!(LayoutRecord::first(shuffled).expect("the same list").encode(), record.encode());
        assert_eq!(record.check(), Ok(()));
        assert!(record.members.iter().all(|member| member.node_id.is_none()), "a list names no ids");
    }
}

#[test]
fn epoch_1_has_the_placement_of_the_list() {
    for nodes in [1, 2, 3, 4, 5, 8, 64] {
        let record = first(nodes, 4_096);
        let layout = Layout::new(names(nodes), 4_096).expect("a list");
        assert_eq!(Layout::of_record(&record), layout, "{nodes} nodes");
    }
}

#[test]
fn a_layout_may_have_free_slots() {
    let mut record = first(4, 64);
    let removed = [NodeIndex(1), NodeIndex(3)];
    record.members.retain(|member| !removed.contains(&member.slot));
    record.lists.retain(|slot| !removed.contains(slot));
    let layout = Layout::of_record(&record);
    assert_eq!((layout.len(), layout.slot_count()), (2, 3));
    assert_eq!(layout.nodes().collect::<Vec<_>>(), [NodeIndex(0), NodeIndex(2)]);
    assert_eq!(layout.find(&record.members[1].url), Some(NodeIndex(2)));
    assert_eq!((layout.find(""), layout.names()[1].as_str()), (None, ""));
    for partition in (0..layout.partitions()).map(PartitionId) {
        assert_eq!(layout.preference_list(partition), record.preference_list(partition));
        assert_eq!(layout.replicas_of_partition(partition, 3).len(), 2, "there are no more nodes");
    }
}

#[test]
fn each_setting_of_the_origin_makes_another_record_and_the_list_another_cluster() {
    let record = first(3, 64);
    let of = |change: fn(&mut ClusterOrigin)| {
        let mut origin = origin(3, 64, 3);
        change(&mut origin);
        LayoutRecord::first(origin).expect("a valid origin")
    };
    let other_from = of(|origin| origin.default_from = 2);
    assert_eq!(other_from.cluster, record.cluster);
    assert_ne!(other_from.hash(), record.hash());
    let others = [
        of(|origin| origin.nodes[1].push('0')),
        of(|origin| (origin.nodes, origin.default_from) = (names(2), 2)),
        of(|origin| origin.partitions = 32),
        of(|origin| origin.hash_version = 2),
    ];
    for other in others {
        assert_ne!(other.cluster, record.cluster);
    }
    assert_eq!(of(|origin| origin.tag = NodeTag(8)), record, "several nodes have several tags");
}

#[test]
fn two_clusters_of_one_node_differ() {
    let of = |nodes: Vec<String>, tag| {
        let origin = ClusterOrigin { nodes, tag: NodeTag(tag), ..origin(1, 64, 1) };
        LayoutRecord::first(origin).expect("a valid origin")
    };
    let alone = of(Vec::new(), 1);
    assert_eq!(alone.members[0].url, "");
    assert_ne!(alone.cluster, of(Vec::new(), 2).cluster);
    assert_eq!(alone.encode(), of(Vec::new(), 1).encode());
}

#[test]
fn at_most_5_voters_decide_and_an_odd_number_of_them_from_3_nodes_on() {
    let voters = |nodes| first(nodes, 2).voters.len();
    assert_eq!([1, 2, 3, 4, 5, 6, 64].map(voters), [1, 2, 3, 3, 5, 5, 5]);
}

#[test]
fn the_shares_of_a_balanced_layout_are_equal() {
    let shares = first(5, 4_096).shares();
    assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    assert!(shares.iter().all(|share| (share - 0.2).abs() < 0.001), "{shares:?}");
    let mut record = first(2, 4);
    record.default_from = 1;
    record.lists = [0, 1, 0, 1, 1, 0, 0, 1].map(NodeIndex).to_vec();
    assert_eq!(record.shares(), [0.75, 0.25]);
}

#[test]
fn a_record_of_64_nodes_has_at_most_300_kib() {
    let mut record = first(64, 4_096);
    record.epoch = LayoutEpoch(16_000);
    record.parent = RecordHash([1; 32]);
    record.changed.fill(LayoutEpoch(16_000));
    for (member, tag) in record.members.iter_mut().zip(1..) {
        member.node_id = Some(NodeTag(tag));
        member.url = format!("{tag:0>URL_BYTES_MAX$}");
        member.zone = "z".repeat(ZONE_BYTES_MAX);
    }
    assert_eq!(record.check(), Ok(()));
    let bytes = record.encode();
    assert!(bytes.len() <= 300 << 10, "{} bytes", bytes.len());
    assert_eq!(LayoutRecord::decode(&bytes), Ok(record));
}

/// A record with every field of the format, 3 members and 4 partitions.
fn sample() -> LayoutRecord {
    let parent = first(2, 4);
    changed_child(&parent, |record| {
        record.members[0].zone = "a".to_owned();
        record.members[1].state = MemberState::Leaving;
        record.members.push(added(5));
        record.lists = [0, 1, 5, 1, 0, 5, 0, 1, 5, 1, 0, 5].map(NodeIndex).to_vec();
        record.changed = vec![LayoutEpoch(1), LayoutEpoch(2), LayoutEpoch(1), LayoutEpoch(2)];
    })
}

fn pinned(name: &str, written: &[u8]) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/formats").join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, written).unwrap();
    }
    std::fs::read(path).unwrap()
}

/// Every release must read these bytes and build epoch 1 with them.
#[test]
fn the_bytes_of_records_are_pinned() {
    for (name, record) in [("layout-v1.bin", sample()), ("layout-v1-first.bin", first(3, 16))] {
        let pinned = pinned(name, &record.encode());
        assert_eq!(LayoutRecord::decode(&pinned).as_ref(), Ok(&record), "{name}");
        assert_eq!(record.encode(), pinned, "{name}");
    }
}

#[test]
fn every_flipped_bit_truncation_and_extension_is_refused() {
    let bytes = sample().encode();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(LayoutRecord::decode(&flipped).is_err(), "bit {bit}");
    }
    for len in 0..bytes.len() {
        assert!(LayoutRecord::decode(&bytes[..len]).is_err(), "{len} bytes");
    }
    assert!(LayoutRecord::decode(&[&bytes[..], &[0]].concat()).is_err());
}

/// The bytes with a correct checksum after `change`.
fn resealed(record: &LayoutRecord, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = record.encode();
    bytes.truncate(bytes.len() - 4);
    change(&mut bytes);
    let checksum = crc_fast::crc32_iscsi(&bytes);
    bytes.extend(checksum.to_le_bytes());
    bytes
}

#[test]
fn a_record_of_a_later_release_is_refused_with_the_reason() {
    let of = |change: fn(&mut Vec<u8>)| LayoutRecord::decode(&resealed(&sample(), change));
    assert_eq!(of(|_| ()), Ok(sample()));
    assert_eq!(of(|bytes| bytes[8] = 3), Err(LayoutDecodeError::Format { format: 3 }));
    let level =
        Err(LayoutDecodeError::Record(LayoutRecordError::FeatureLevel { level: 9, max: FEATURE_LEVEL }));
    assert_eq!(of(|bytes| bytes[68] = 9), level);
    let plan = of(|bytes| {
        let len = bytes.len();
        bytes[len - 4] = 1;
        bytes.push(0);
    });
    assert_eq!(plan, Err(LayoutDecodeError::Plan));
    let members = of(|bytes| bytes[77] = 65);
    assert_eq!(members, Err(LayoutRecordError::MemberCount { members: 65 }.into()));
    let long_form = of(|bytes| {
        let epochs = bytes.len() - 4 - 4;
        bytes[epochs] = 0x81;
        bytes.insert(epochs + 1, 0);
    });
    assert!(matches!(long_form, Err(LayoutDecodeError::Field { .. })), "equal records have equal bytes");
}

#[test]
fn each_constraint_of_a_record_is_checked() {
    type Change = fn(&mut LayoutRecord);
    let partition = PartitionId(2);
    let slot = NodeIndex(1);
    let cases: [(Change, LayoutRecordError); 24] = [
        (|it| it.feature_level = 4, LayoutRecordError::FeatureLevel { level: 4, max: FEATURE_LEVEL }),
        (|it| it.members.clear(), LayoutRecordError::MemberCount { members: 0 }),
        (|it| it.epoch = LayoutEpoch(0), LayoutRecordError::EpochWithoutParent),
        (|it| it.epoch = LayoutEpoch(1), LayoutRecordError::EpochWithoutParent),
        (|it| it.parent = RecordHash::NONE, LayoutRecordError::EpochWithoutParent),
        (|it| it.members.swap(0, 1), LayoutRecordError::SlotOrder { slot: NodeIndex(0) }),
        (|it| it.members[1].slot = NodeIndex(0), LayoutRecordError::SlotOrder { slot: NodeIndex(0) }),
        (|it| it.members[2].slot = NodeIndex(64), LayoutRecordError::SlotOrder { slot: NodeIndex(64) }),
        (|it| it.members[1].url.clear(), LayoutRecordError::MemberBounds { slot }),
        (|it| it.members[1].url = "u".repeat(URL_BYTES_MAX + 1), LayoutRecordError::MemberBounds { slot }),
        (|it| it.members[1].zone = "z".repeat(ZONE_BYTES_MAX + 1), LayoutRecordError::MemberBounds { slot }),
        (|it| it.members[1].weight = 0, LayoutRecordError::MemberBounds { slot }),
        (|it| it.members[1].node_id = Some(NodeTag(0)), LayoutRecordError::MemberBounds { slot }),
        (|it| it.members[1].url = it.members[0].url.clone(), LayoutRecordError::DuplicateMember { slot }),
        (|it| it.members[1].node_id = it.members[0].node_id, LayoutRecordError::DuplicateMember { slot }),
        (|it| it.default_from = 0, LayoutRecordError::DefaultFrom { from: 0, members: 4 }),
        (|it| it.default_from = 5, LayoutRecordError::DefaultFrom { from: 5, members: 4 }),
        (|it| it.voters.clear(), LayoutRecordError::Voters),
        (|it| it.voters.swap(0, 1), LayoutRecordError::Voters),
        (|it| it.voters[2] = NodeIndex(9), LayoutRecordError::Voters),
        (|it| it.lists[9] = it.lists[8], LayoutRecordError::NotAPermutation { partition }),
        (|it| it.lists[8] = NodeIndex(200), LayoutRecordError::NotAPermutation { partition }),
        (|it| it.changed[2] = LayoutEpoch(3), LayoutRecordError::ChangedEpoch { partition }),
        (|it| it.changed[2] = LayoutEpoch(0), LayoutRecordError::ChangedEpoch { partition }),
    ];
    let valid = child(&first(4, 4));
    assert_eq!(valid.check(), Ok(()));
    for (number, (change, error)) in cases.into_iter().enumerate() {
        let mut record = valid.clone();
        change(&mut record);
        assert_eq!(record.check(), Err(error), "case {number}");
    }
    let mut odd = valid.clone();
    odd.changed.pop();
    assert_eq!(odd.check(), Err(LayoutRecordError::Partitions { partitions: 3 }));
    let mut many = child(&first(6, 2));
    many.voters = (0..=VOTERS_MAX as u8).map(NodeIndex).collect();
    assert_eq!(many.check(), Err(LayoutRecordError::Voters));
    let too_many = LayoutRecord::first(origin(NODES_MAX + 1, 2, 3));
    assert_eq!(too_many, Err(LayoutRecordError::MemberCount { members: NODES_MAX + 1 }));
    assert_eq!(LayoutRecord::first(origin(3, 3, 3)), Err(LayoutRecordError::Partitions { partitions: 3 }));
}

#[test]
fn each_constraint_of_a_child_is_verified() {
    type Change = fn(&mut LayoutRecord);
    let slot = NodeIndex(1);
    let cases: [(Change, LayoutRecordError); 14] = [
        (|it| it.cluster.0[0] ^= 1, LayoutRecordError::NotTheChild),
        (|it| it.epoch = LayoutEpoch(4), LayoutRecordError::NotTheChild),
        (|it| it.parent.0[31] ^= 1, LayoutRecordError::NotTheChild),
        (|it| it.hash_version = 2, LayoutRecordError::FixedProperty),
        (|it| it.default_from = 2, LayoutRecordError::FixedProperty),
        (|it| it.feature_level = 0, LayoutRecordError::FixedProperty),
        (
            |it| (it.members[1].url, it.members[1].node_id) = ("http://x:1".to_owned(), Some(NodeTag(1))),
            LayoutRecordError::SlotReused { slot },
        ),
        (|it| it.members[1].node_id = None, LayoutRecordError::NodeIdRemoved { slot }),
        (
            |it| it.members[0].state = MemberState::Active,
            LayoutRecordError::StateChange { slot: NodeIndex(0), state: MemberState::Active },
        ),
        (
            |it| it.members[1].state = MemberState::Joining,
            LayoutRecordError::StateChange { slot, state: MemberState::Joining },
        ),
        (|it| it.voters = [0, 3, 4].map(NodeIndex).to_vec(), LayoutRecordError::SeveralVoters),
        (|it| it.lists[..5].rotate_left(1), LayoutRecordError::ListChange { partition: PartitionId(0) }),
        (|it| it.lists.swap(5, 6), LayoutRecordError::ChangedEpoch { partition: PartitionId(1) }),
        (|it| it.changed[1] = LayoutEpoch(1), LayoutRecordError::ChangedEpoch { partition: PartitionId(1) }),
    ];
    let mut parent = child(&first(5, 2));
    parent.members[0].state = MemberState::Dead;
    parent.voters = [0, 1, 2].map(NodeIndex).to_vec();
    parent.changed = vec![LayoutEpoch(1), LayoutEpoch(2)];
    assert_eq!(child(&parent).verify(&parent), Ok(()));
    for (number, (change, error)) in cases.into_iter().enumerate() {
        assert_eq!(changed_child(&parent, change).verify(&parent), Err(error), "case {number}");
    }
    let repartitioned = changed_child(&parent, |it| {
        it.lists.truncate(5);
        it.changed.truncate(1);
    });
    assert_eq!(repartitioned.verify(&parent), Err(LayoutRecordError::FixedProperty));
}

#[test]
fn a_lost_disk_is_a_new_id_and_a_moved_node_a_new_url() {
    let parent = child(&first(3, 2));
    let lost = changed_child(&parent, |it| it.members[1].node_id = Some(NodeTag(9)));
    assert_eq!(lost.verify(&parent), Ok(()));
    let moved = changed_child(&parent, |it| it.members[1].url = "http://elsewhere:1".to_owned());
    assert_eq!(moved.verify(&parent), Ok(()));
    let epoch_1 = first(3, 2);
    assert_eq!(child(&epoch_1).verify(&epoch_1), Ok(()), "epoch 2 names the ids");
    let replaced = changed_child(&epoch_1, |it| it.members[1].url = "http://elsewhere:1".to_owned());
    assert_eq!(replaced.verify(&epoch_1), Err(LayoutRecordError::SlotReused { slot: NodeIndex(1) }));
}

#[test]
fn only_the_default_of_another_first_record_may_differ() {
    let held = first(3, 4);
    let other = LayoutRecord { default_from: held.default_from - 1, ..held.clone() };
    let next = child(&other);
    assert_eq!(next.verify_newer(&held), Err(LayoutRecordError::NotTheChild));
    assert!(next.follows_other_first(&held));
    assert!(!child(&held).follows_other_first(&held), "it is the child itself");
    assert!(!child(&next).follows_other_first(&held), "epoch 3 is none's child here");
    assert!(!child(&child(&other)).follows_other_first(&child(&held)), "only epoch 1 is computed");
    let changed = LayoutRecord { voters: vec![NodeIndex(0)], ..other };
    assert!(!child(&changed).follows_other_first(&held), "the voters differ as well");
    let mut broken = next;
    broken.voters.clear();
    assert!(!broken.follows_other_first(&held));
}

#[test]
fn a_later_record_of_the_cluster_is_newer_also_where_records_between_are_unknown() {
    let epoch_1 = first(3, 4);
    let epoch_2 = child(&epoch_1);
    let epoch_3 = changed_child(&epoch_2, |it| it.members[1].weight = 2);
    assert_eq!(epoch_3.verify_newer(&epoch_2), Ok(()));
    assert_eq!(epoch_3.verify_newer(&epoch_1), Ok(()));
    for (record, current) in [(&epoch_1, &epoch_1), (&epoch_1, &epoch_2), (&child(&first(2, 4)), &epoch_1)] {
        assert_eq!(record.verify_newer(current), Err(LayoutRecordError::NotNewer));
    }
    let fork = changed_child(&epoch_1, |it| it.members[1].weight = 2);
    assert_eq!(child(&fork).verify_newer(&epoch_2), Err(LayoutRecordError::NotTheChild));
    let broken = LayoutRecord { voters: Vec::new(), ..epoch_3.clone() };
    assert_eq!(broken.verify_newer(&epoch_1), Err(LayoutRecordError::Voters));
    let mut repartitioned = epoch_3;
    repartitioned.lists.truncate(6);
    repartitioned.changed.truncate(2);
    assert_eq!(repartitioned.verify_newer(&epoch_1), Err(LayoutRecordError::FixedProperty));
}

#[test]
fn members_are_added_and_removed_at_the_end_of_every_list() {
    let parent = child(&first(3, 8));
    let append = |it: &mut LayoutRecord| {
        it.members.push(added(3));
        map_lists(it, 3, |list| list.push(NodeIndex(3)));
    };
    let joined = changed_child(&parent, append);
    assert_eq!(joined.verify(&parent), Ok(()));
    let mut anonymous = joined.clone();
    anonymous.members[3].node_id = None;
    assert!(matches!(anonymous.verify(&parent), Err(LayoutRecordError::StateChange { .. })));
    let mut at_once = joined.clone();
    at_once.members[3].state = MemberState::Active;
    assert!(matches!(at_once.verify(&parent), Err(LayoutRecordError::StateChange { .. })));
    let mut twice = joined.clone();
    (twice.members[3].node_id, twice.members[2].node_id) = (twice.members[2].node_id, Some(NodeTag(5)));
    assert_eq!(twice.verify(&parent), Err(LayoutRecordError::SlotReused { slot: NodeIndex(3) }));
    let mut in_front = joined.clone();
    map_lists(&mut in_front, 4, |list| list.rotate_right(1));
    in_front.changed.fill(in_front.epoch);
    assert_eq!(in_front.verify(&parent), Err(LayoutRecordError::ListChange { partition: PartitionId(0) }));

    let remove = |it: &mut LayoutRecord, slot| {
        it.members.retain(|member| member.slot != slot);
        map_lists(it, 4, |list| list.retain(|other| *other != slot));
    };
    let left = changed_child(&joined, |it| remove(it, NodeIndex(3)));
    assert_eq!(left.verify(&joined), Ok(()));
    let torn_out = changed_child(&joined, |it| {
        it.voters.pop();
        remove(it, NodeIndex(2));
    });
    assert!(matches!(torn_out.verify(&joined), Err(LayoutRecordError::ListChange { .. })));
}

/// Every permutation of a list of 4 members: the ones that exchange two are accepted, and no other.
#[test]
fn one_exchange_of_a_list_is_accepted_and_no_other_permutation() {
    let parent = child(&first(4, 1));
    let before = parent.lists.clone();
    let mut accepted = 0;
    for code in 0..256_u32 {
        let list: Vec<NodeIndex> = (0..4).map(|at| NodeIndex((code >> (2 * at) & 3) as u8)).collect();
        let record = changed_child(&parent, |it| {
            it.lists = list.clone();
            it.changed = vec![it.epoch];
        });
        let mut sorted = list.clone();
        sorted.sort_unstable();
        sorted.dedup();
        let differing = list.iter().zip(&before).filter(|(a, b)| a != b).count();
        let is_legal = sorted.len() == 4 && matches!(differing, 0 | 2);
        assert_eq!(record.verify(&parent).is_ok(), is_legal, "{list:?} after {before:?}");
        accepted += usize::from(is_legal);
    }
    assert_eq!(accepted, 1 + 6, "none, or one of six pairs");
}

/// Every set of voters after every other one, in a cluster of 4.
#[test]
fn at_most_one_voter_is_replaced() {
    let base = child(&first(4, 1));
    let set = |bits: u8| (0..4).filter(|slot| bits >> slot & 1 == 1).map(NodeIndex).collect::<Vec<_>>();
    for before in 1..16_u8 {
        let parent = LayoutRecord { voters: set(before), ..base.clone() };
        for after in 1..16_u8 {
            let record = changed_child(&parent, |it| it.voters = set(after));
            let (added, removed) = ((after & !before).count_ones(), (before & !after).count_ones());
            assert_eq!(record.verify(&parent).is_ok(), added <= 1 && removed <= 1, "{before:b} to {after:b}");
        }
    }
}

/// One legal step after a record, drawn from numbers.
fn step(parent: &LayoutRecord, (kind, partition, i, j): (u8, u32, usize, usize)) -> LayoutRecord {
    changed_child(parent, |it| {
        let len = it.members.len();
        let (partition, i, j) = (partition as usize % it.changed.len(), i % len, j % len);
        match kind % 5 {
            0 => {
                it.lists[partition * len..][..len].swap(i, j);
                it.changed[partition] = it.epoch;
            }
            1 if len < 8 => {
                let slot = it.members[len - 1].slot.0 + 1;
                it.members.push(LayoutMember { node_id: Some(NodeTag(it.epoch.0 << 8)), ..added(slot) });
                it.members[len].url = format!("http://{}:1", it.epoch);
                map_lists(it, len, |list| list.push(NodeIndex(slot)));
            }
            2 => it.members[i].node_id = Some(NodeTag(it.epoch.0 << 9 | 1)),
            3 => it.members[i].weight = 1 + j as u16,
            _ => it.changed[partition] = it.epoch,
        }
    })
}

proptest! {
    #[test]
    fn records_of_a_chain_are_verified_and_round_trip(
        nodes in 1usize..6,
        steps in proptest::collection::vec((any::<u8>(), any::<u32>(), any::<usize>(), any::<usize>()), 0..12),
    ) {
        let mut record = first(nodes, 8);
        for drawn in steps {
            let next = step(&record, drawn);
            prop_assert_eq!(next.verify(&record), Ok(()));
            prop_assert!(next.verify(&next).is_err() && record.verify(&next).is_err());
            record = next;
        }
        let bytes = record.encode();
        let decoded = LayoutRecord::decode(&bytes);
        prop_assert_eq!(decoded.as_ref(), Ok(&record));
        prop_assert_eq!(decoded.expect("decoded").hash(), record.hash());
    }

    #[test]
    fn any_bytes_are_refused(bytes: Vec<u8>) {
        prop_assert!(LayoutRecord::decode(&bytes).is_err());
    }

    #[test]
    fn an_accepted_record_is_encoded_as_it_was_read(at in 0usize..400, byte: u8) {
        let bytes = resealed(&sample(), |bytes| {
            let len = bytes.len();
            bytes[at % len] = byte;
        });
        if let Ok(record) = LayoutRecord::decode(&bytes) {
            prop_assert_eq!(record.check(), Ok(()));
            prop_assert_eq!(record.encode(), bytes);
        }
    }
}

fn slots(slots: &[u8]) -> NodeSet {
    slots.iter().copied().map(NodeIndex).collect()
}

#[test]
fn a_recovered_record_is_the_same_on_all_remaining_nodes_and_of_another_cluster() {
    let before = child(&first(5, 2));
    let recovered = before.recovered(slots(&[1, 2, 4])).expect("most voters are lost");
    assert_eq!(recovered, before.clone().recovered(slots(&[4, 2, 1])).expect("in any order"));
    assert_eq!((recovered.epoch, recovered.parent), (LayoutEpoch(3), before.hash()));
    assert_eq!(recovered.voters, [NodeIndex(0), NodeIndex(3)]);
    let dead = recovered.members.iter().filter(|member| member.state == MemberState::Dead);
    assert_eq!(dead.map(|member| member.slot).collect::<NodeSet>(), slots(&[1, 2, 4]));
    assert_eq!(recovered.lists, before.lists, "no data moves");
    assert_eq!(LayoutRecord::decode(&recovered.encode()).as_ref(), Ok(&recovered));
    let other = before.recovered(slots(&[0, 1, 2])).expect("most voters are lost");
    for lineage in [&before, &other] {
        assert_ne!(recovered.cluster, lineage.cluster);
        assert_eq!(recovered.verify_newer(lineage), Err(LayoutRecordError::NotNewer));
        assert_eq!(child(lineage).verify_newer(&recovered), Err(LayoutRecordError::NotNewer));
    }
    let next = child(&recovered);
    assert_eq!(next.verify(&recovered), Ok(()), "the new lineage goes on");
}

#[test]
fn a_record_is_recovered_only_where_most_voters_are_lost_and_a_member_remains() {
    let before = first(7, 2);
    for (lost, error) in [
        (&[5, 6][..], LayoutRecordError::MajorityRemains { remaining: 5, voters: 5 }),
        (&[0, 1, 5, 6], LayoutRecordError::MajorityRemains { remaining: 3, voters: 5 }),
        (&[0, 1, 9], LayoutRecordError::NoSuchMember { slot: NodeIndex(9) }),
        (&[0, 1, 2, 3, 4, 5, 6], LayoutRecordError::NoMemberRemains),
    ] {
        assert_eq!(before.recovered(slots(lost)), Err(error), "{lost:?}");
    }
    let voters = |lost: &[u8]| before.recovered(slots(lost)).expect("most voters are lost").voters;
    assert_eq!(voters(&[0, 1, 2]), [3, 4, 5].map(NodeIndex), "of four members three vote");
    assert_eq!(voters(&[0, 1, 2, 3, 4, 5]), [NodeIndex(6)]);
}
