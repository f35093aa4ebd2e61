//! Former node ids of layout records: a record remembers them, and never names them again.

use cluster::{
    ClusterOrigin, FEATURE_LEVEL_NAMED, FEATURE_LEVEL_PLANS, FORMER_IDS_MAX, LayoutRecord, LayoutRecordError,
    MemberState, NodeIndex,
};
use stdx::NodeTag;

fn id(slot: u8) -> NodeTag {
    NodeTag(100 + u64::from(slot))
}

/// A record of four members with ids, in epoch 2.
fn record(level: u32) -> LayoutRecord {
    let origin = ClusterOrigin {
        nodes: (0..4).map(|node| format!("http://n{node}:1")).collect(),
        partitions: 4,
        hash_version: 1,
        default_from: 3,
        tag: NodeTag(7),
    };
    let first = LayoutRecord::first(origin).expect("a valid origin");
    let mut record = child(&first);
    record.feature_level = level;
    for member in &mut record.members {
        member.node_id = Some(id(member.slot.0));
    }
    record.voters = [0, 1, 2].map(NodeIndex).to_vec();
    record.lists = [0, 1, 2, 3].map(NodeIndex).repeat(4);
    record
}

fn child(parent: &LayoutRecord) -> LayoutRecord {
    let epoch = parent.epoch.next().expect("a small epoch");
    LayoutRecord { epoch, parent: parent.hash(), ..parent.clone() }
}

fn with_new_node(parent: &LayoutRecord, slot: u8, id: NodeTag) -> LayoutRecord {
    let mut record = child(parent);
    record.replace_node(NodeIndex(slot), id);
    record
}

/// The record after member 3 has left, which is last in every list.
fn without_last(parent: &LayoutRecord) -> LayoutRecord {
    let mut record = child(parent);
    record.members.pop();
    record.lists.retain(|slot| *slot != NodeIndex(3));
    record.record_former_ids(parent);
    record
}

#[test]
fn replaced_and_removed_nodes_are_former_ones() {
    let first = record(FEATURE_LEVEL_PLANS);
    let second = with_new_node(&first, 1, NodeTag(900));
    assert_eq!((second.verify(&first), second.former_ids.as_slice()), (Ok(()), [id(1)].as_slice()));
    let mut leaving = child(&second);
    leaving.members[3].state = MemberState::Leaving;
    let third = without_last(&leaving);
    assert_eq!((third.verify(&leaving), third.former_ids.as_slice()), (Ok(()), [id(1), id(3)].as_slice()));
    assert!(third.is_former_id(id(1)) && third.is_former_id(id(3)));
    assert!(!third.is_former_id(id(0)) && !third.is_former_id(NodeTag(900)));
    assert_eq!(LayoutRecord::decode(&third.encode()), Ok(third.clone()));
}

#[test]
fn only_a_leaving_or_dead_member_is_removed() {
    let first = record(FEATURE_LEVEL_PLANS);
    let refused = Err(LayoutRecordError::MemberRemoved { slot: NodeIndex(3) });
    assert_eq!(without_last(&first).verify(&first), refused);
    let mut dead = child(&first);
    dead.declare_dead([NodeIndex(3)].into_iter().collect());
    assert_eq!(without_last(&dead).verify(&dead), Ok(()));
    let before = record(FEATURE_LEVEL_NAMED);
    assert_eq!(without_last(&before).verify(&before), Ok(()), "earlier levels do not ask for it");
}

#[test]
fn a_list_of_former_ids_that_says_anything_else_is_refused() {
    let first = with_new_node(&record(FEATURE_LEVEL_PLANS), 0, NodeTag(900));
    let second = with_new_node(&first, 1, NodeTag(901));
    assert_eq!(second.former_ids, [id(0), id(1)]);
    let refused = |ids: &[NodeTag]| {
        let forged = LayoutRecord { former_ids: ids.to_vec(), ..second.clone() };
        assert_eq!(forged.verify(&first), Err(LayoutRecordError::FormerIds), "{ids:?}");
    };
    refused(&[id(0)]);
    refused(&[id(1)]);
    refused(&[]);
    refused(&[id(1), id(0)]);
    refused(&[id(0), id(1), NodeTag(5)]);
    let unchanged = child(&second);
    let emptied = LayoutRecord { former_ids: Vec::new(), ..unchanged.clone() };
    assert_eq!(unchanged.verify(&second), Ok(()));
    assert_eq!(emptied.verify(&second), Err(LayoutRecordError::FormerIds));
}

#[test]
fn a_former_id_is_never_a_member_again() {
    let first = with_new_node(&record(FEATURE_LEVEL_PLANS), 1, NodeTag(900));
    let back = with_new_node(&first, 1, id(1));
    assert_eq!(back.verify(&first), Err(LayoutRecordError::FormerMember { slot: NodeIndex(1) }));
    let elsewhere = with_new_node(&first, 2, id(1));
    assert_eq!(elsewhere.verify(&first), Err(LayoutRecordError::FormerMember { slot: NodeIndex(2) }));
    let mut moved = child(&first);
    moved.replace_node(NodeIndex(2), id(0));
    moved.replace_node(NodeIndex(0), NodeTag(901));
    assert_eq!(moved.verify(&first), Err(LayoutRecordError::FormerMember { slot: NodeIndex(2) }));
    let bytes = back.encode();
    assert!(LayoutRecord::decode(&bytes).is_err(), "it is no record at all");
}

#[test]
fn records_without_plans_have_no_former_ids() {
    let first = record(FEATURE_LEVEL_NAMED);
    let second = with_new_node(&first, 3, NodeTag(900));
    assert_eq!((second.verify(&first), second.former_ids.is_empty()), (Ok(()), true));
    let mut raised = child(&second);
    raised.feature_level = FEATURE_LEVEL_PLANS;
    assert_eq!(raised.verify(&second), Ok(()));
    let forged = LayoutRecord { former_ids: vec![NodeTag(5)], ..second };
    assert_eq!(forged.check(), Err(LayoutRecordError::FormerIds));
}

/// The bound is reached: the oldest id is forgotten, and could be named again.
#[test]
fn a_record_has_the_newest_former_ids() {
    let mut newest = record(FEATURE_LEVEL_PLANS);
    for tag in 0..FORMER_IDS_MAX as u64 {
        let next = with_new_node(&newest, 3, NodeTag(1_000 + tag));
        assert_eq!(next.verify(&newest), Ok(()));
        newest = next;
    }
    assert_eq!(newest.former_ids.len(), FORMER_IDS_MAX);
    assert!(newest.is_former_id(id(3)), "the first one");
    let next = with_new_node(&newest, 3, NodeTag(9_000));
    assert_eq!((next.verify(&newest), next.former_ids.len()), (Ok(()), FORMER_IDS_MAX));
    assert!(!next.is_former_id(id(3)) && next.is_former_id(NodeTag(1_000)));
    assert_eq!(LayoutRecord::decode(&next.encode()).as_ref(), Ok(&next));
    let mut surplus = next;
    surplus.former_ids.push(NodeTag(5));
    assert_eq!(surplus.check(), Err(LayoutRecordError::FormerIds));
    assert!(LayoutRecord::decode(&surplus.encode()).is_err());
}
