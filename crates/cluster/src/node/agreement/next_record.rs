//! The rules of reconciliation: the next record that the state of the members calls for.
//!
//! A pure function of the adopted record and of the members as one node hears them. A record has
//! one change. The first of these that is called for is made:
//!
//! 1. **Ids.** While a member that is not dead has no id, or the record has the feature level of a
//!    computed one: all ids are named, and the level is raised. This needs every such member, so no
//!    other change precedes it.
//! 2. **A lost disk.** A node with another id has taken the slot of a member, and no node with the
//!    former id is linked: the new id is named. A dead member becomes active with it. The node that
//!    was declared dead does not, nor does one that was removed or replaced before. Below the
//!    feature level of plans the node is rebuilt first. From this level on it is named first,
//!    because its sources fence the epoch that names it before they are read. Running swaps take
//!    the transitions that follow from the loss.
//! 3. **The feature level.** Each member that is not dead carries out records of a greater level:
//!    the level is raised to the least one of theirs. Like the ids, this needs every such member.
//!    No later record has a lesser level, so a node of an earlier release is no member any more.
//! 4. **A moved node.** A node that is linked states another URL than the record has: the URL is
//!    replaced.
//! 5. **Voters.** The voters are active members, and members that the running plan makes active:
//!    it may replace all of the former. They are spread over the zones. One at a time is added,
//!    replaced or removed. A voter that has forgotten its votes stays only while no other member
//!    can vote.
//! 6. **The running plan.** Its swaps take the steps that the statements of the members permit: see
//!    [`plan_step`](super::plan_step).

use super::plan_step::next_plan_step;
use crate::layout::voter_count;
use crate::quorum::is_majority;
use crate::{
    FEATURE_LEVEL_NAMED, FEATURE_LEVEL_PLANS, LayoutMember, LayoutRecord, MemberState, NodeIndex, NodeSet,
    PlanStatements, VOTERS_MAX,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use stdx::NodeTag;

/// A member that is up and speaks the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeardMember {
    /// Id of the node that is heard in the slot.
    pub(super) id: NodeTag,
    /// Whether it is settled: it holds all that it has acknowledged.
    pub(super) is_settled: bool,
    /// Whether it holds the adopted record.
    pub(super) holds_adopted: bool,
    /// Whether it knows all votes by its id. Otherwise it does not vote.
    pub(super) has_votes: bool,
    /// Greatest feature level of the records that it carries out; 0 if it does not say.
    pub(super) feature_level_max: u32,
    /// Its statements about the plan of the record that it holds.
    pub(super) statements: PlanStatements,
}

/// The members as one node hears them, itself included.
#[derive(Clone, Debug, Default)]
pub(super) struct HeardCluster {
    /// The members that are up and speak the chain.
    pub(super) members: BTreeMap<NodeIndex, HeardMember>,
    /// Ids of all nodes that are linked in either direction, and of this node.
    pub(super) linked: BTreeSet<NodeTag>,
    /// The last URL that the node in a slot has stated, with its id.
    pub(super) stated_urls: BTreeMap<NodeIndex, (NodeTag, String)>,
    /// The peers that were not heard for half a minute: not for a moment only.
    pub(super) silent: NodeSet,
}

/// The child of `adopted` with the one change that is called for. `None`: there is none, or the
/// change has to wait for members that are not heard.
pub(super) fn next_record(adopted: &LayoutRecord, heard: &HeardCluster) -> Option<LayoutRecord> {
    if !is_complete(adopted) {
        return with_ids(adopted, heard).filter(|record| record.verify(adopted).is_ok());
    }
    let changes = with_new_ids(adopted, heard)
        .chain(with_next_level(adopted, heard))
        .chain(with_new_urls(adopted, heard))
        .chain(with_next_voters(adopted, heard))
        .chain(next_plan_step(adopted, heard));
    let mut possible = changes.filter(|record| record.verify(adopted).is_ok());
    possible.next()
}

/// Whether the record has the feature level of this release and names the id of each member.
fn is_complete(record: &LayoutRecord) -> bool {
    record.feature_level >= FEATURE_LEVEL_NAMED && living(record).all(|member| member.node_id.is_some())
}

fn living(record: &LayoutRecord) -> impl Iterator<Item = &LayoutMember> {
    record.members.iter().filter(|member| member.state != MemberState::Dead)
}

/// A child in which `change` was made to the member in this slot.
fn changed_member(
    parent: &LayoutRecord,
    slot: NodeIndex,
    change: impl FnOnce(&mut LayoutMember),
) -> Option<LayoutRecord> {
    let mut record = parent.next()?;
    change(record.members.iter_mut().find(|member| member.slot == slot)?);
    Some(record)
}

impl HeardCluster {
    /// The member in this slot, if it is settled and holds the adopted record.
    fn ready(&self, slot: NodeIndex) -> Option<&HeardMember> {
        self.members.get(&slot).filter(|heard| heard.is_settled && heard.holds_adopted)
    }

    /// The statements of the node that `adopted` names in this slot, if it holds that record.
    pub(super) fn statements(&self, adopted: &LayoutRecord, slot: NodeIndex) -> Option<&PlanStatements> {
        let named = adopted.member(slot)?.node_id;
        let heard = self.members.get(&slot).filter(|heard| heard.holds_adopted && named == Some(heard.id));
        heard.map(|heard| &heard.statements)
    }

    /// Whether the named node of this member is heard, is settled and holds the adopted record.
    fn is_ready(&self, member: &LayoutMember) -> bool {
        self.ready(member.slot).is_some_and(|heard| member.node_id == Some(heard.id))
    }

    /// Whether this member is ready and votes, or would vote.
    fn is_able_voter(&self, member: &LayoutMember) -> bool {
        self.is_ready(member) && !self.has_forgotten_votes(member)
    }

    /// Whether the named node of this member is heard and has forgotten votes.
    fn has_forgotten_votes(&self, member: &LayoutMember) -> bool {
        let heard = self.members.get(&member.slot);
        heard.is_some_and(|heard| member.node_id == Some(heard.id) && !heard.has_votes)
    }
}

fn with_ids(adopted: &LayoutRecord, heard: &HeardCluster) -> Option<LayoutRecord> {
    // Compared at each heartbeat, so the record is copied and hashed only once all are ready.
    if living(adopted).any(|member| heard.ready(member.slot).is_none()) {
        return None;
    }
    let mut record = adopted.next()?;
    record.feature_level = record.feature_level.max(FEATURE_LEVEL_NAMED);
    for member in record.members.iter_mut().filter(|member| member.state != MemberState::Dead) {
        member.node_id = member.node_id.or_else(|| heard.ready(member.slot).map(|heard| heard.id));
    }
    Some(record)
}

fn with_new_ids<'a>(
    adopted: &'a LayoutRecord,
    heard: &'a HeardCluster,
) -> impl Iterator<Item = LayoutRecord> + 'a {
    let is_named_first = adopted.feature_level >= FEATURE_LEVEL_PLANS;
    adopted.members.iter().filter_map(move |member| {
        let its = heard.members.get(&member.slot).filter(|its| its.holds_adopted)?;
        let (named, new) = (member.node_id, its.id);
        let is_replaced = named != Some(new)
            && named.is_none_or(|named| !heard.linked.contains(&named))
            && !adopted.is_former_id(new)
            && (its.is_settled || is_named_first);
        if !is_replaced {
            return None;
        }
        let mut record = adopted.next()?;
        record.replace_node(member.slot, new);
        Some(record)
    })
}

fn with_next_level(adopted: &LayoutRecord, heard: &HeardCluster) -> Option<LayoutRecord> {
    let level_of = |member: &LayoutMember| {
        let its = heard.ready(member.slot).filter(|its| member.node_id == Some(its.id));
        its.map_or(0, |its| its.feature_level_max)
    };
    let feature_level = living(adopted).map(level_of).min()?;
    if feature_level <= adopted.feature_level {
        return None;
    }
    Some(LayoutRecord { feature_level, ..adopted.next()? })
}

fn with_new_urls<'a>(
    adopted: &'a LayoutRecord,
    heard: &'a HeardCluster,
) -> impl Iterator<Item = LayoutRecord> + 'a {
    living(adopted).filter_map(|member| {
        let (id, url) = heard.stated_urls.get(&member.slot)?;
        // The only member of a cluster may have no URL, and then it needs none.
        let can_move = !member.url.is_empty() && heard.linked.contains(id);
        let is_moved = can_move && member.node_id == Some(*id) && member.url != *url;
        is_moved.then(|| changed_member(adopted, member.slot, |member| member.url.clone_from(url)))?
    })
}

fn with_next_voters(adopted: &LayoutRecord, heard: &HeardCluster) -> Option<LayoutRecord> {
    let voters = next_voters(adopted, heard)?;
    Some(LayoutRecord { voters, ..adopted.next()? })
}

/// The voters after one step towards the wanted ones.
///
/// Only a member that is ready and votes is added. A voter that is not heard stays, unless it is
/// dead or leaves. A majority of the voters after the step is ready and votes. The number of voters
/// depends on the active members and on those that the running plan makes active, whether they are
/// heard or not. Otherwise two nodes that hear different members would add and remove the same
/// voter in turn.
fn next_voters(adopted: &LayoutRecord, heard: &HeardCluster) -> Option<Vec<NodeIndex>> {
    let is_voter = |member: &&LayoutMember| adopted.voters.contains(&member.slot);
    let target = adopted.plan.as_ref().map_or(&[][..], |plan| &plan.target);
    let holders: NodeSet = target.iter().copied().collect();
    let is_active = |member: &&LayoutMember| match member.state {
        MemberState::Active => true,
        MemberState::Joining => holders.contains(member.slot),
        MemberState::Leaving | MemberState::Dead => false,
    };
    let active = || adopted.members.iter().filter(is_active);
    let (forgetful, others): (Vec<_>, Vec<_>) =
        active().partition(|member| heard.has_forgotten_votes(member));
    let is_eligible = |member: &&LayoutMember| is_voter(member) || heard.is_able_voter(member);
    let eligible: Vec<&LayoutMember> = others.into_iter().filter(is_eligible).collect();
    let count = voter_count(active().count());
    let mut wanted = spread_over_zones(&eligible, &adopted.voters, count);
    let missing = count.saturating_sub(wanted.len());
    wanted.extend(forgetful.into_iter().filter(is_voter).map(|member| member.slot).take(missing));
    let added = wanted.iter().copied().find(|slot| !adopted.voters.contains(slot));
    let removed = removable_voter(adopted, heard, &wanted);
    let mut voters: BTreeSet<NodeIndex> = adopted.voters.iter().copied().collect();
    match (added, removed) {
        (_, Some(removed)) if voters.len() > wanted.len() => voters.remove(&removed),
        (Some(added), Some(removed)) => voters.remove(&removed) && voters.insert(added),
        (Some(added), None) if voters.len() < wanted.len() => voters.insert(added),
        _ => return None,
    };
    let is_able =
        |slot: &&NodeIndex| adopted.member(**slot).is_some_and(|member| heard.is_able_voter(member));
    let able = voters.iter().filter(is_able).count();
    is_majority(able, voters.len()).then(|| voters.into_iter().collect())
}

/// The voter to be removed first among those that are not wanted.
fn removable_voter(
    adopted: &LayoutRecord,
    heard: &HeardCluster,
    wanted: &BTreeSet<NodeIndex>,
) -> Option<NodeIndex> {
    let unwanted = adopted.voters.iter().filter(|slot| !wanted.contains(slot));
    let members = unwanted.filter_map(|slot| adopted.member(*slot));
    let is_dead = |member: &LayoutMember| member.state == MemberState::Dead;
    let removable = members.filter(|member| is_dead(member) || heard.is_ready(member));
    let rank = |member: &&LayoutMember| (is_dead(member), heard.has_forgotten_votes(member), member.slot);
    removable.max_by_key(rank).map(|member| member.slot)
}

/// Chooses `count` members, from each zone in turn. Members that vote already come first, and so
/// do zones with more of them: so few voters change, and the choice stays as it is once it is made.
fn spread_over_zones(eligible: &[&LayoutMember], voters: &[NodeIndex], count: usize) -> BTreeSet<NodeIndex> {
    let mut zones: BTreeMap<&str, Vec<NodeIndex>> = BTreeMap::new();
    for member in eligible {
        zones.entry(&member.zone).or_default().push(member.slot);
    }
    let is_new = |slot: &NodeIndex| !voters.contains(slot);
    let mut zones: Vec<Vec<NodeIndex>> = zones.into_values().collect();
    zones.iter_mut().for_each(|slots| slots.sort_by_key(|slot| (is_new(slot), *slot)));
    let voters_in = |slots: &[NodeIndex]| slots.iter().filter(|slot| !is_new(slot)).count();
    zones.sort_by_key(|slots| (Reverse(voters_in(slots)), slots.first().copied()));
    let in_turn = (0..VOTERS_MAX).flat_map(|turn| zones.iter().filter_map(move |slots| slots.get(turn)));
    in_turn.take(count).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClusterOrigin, PartitionId, RunningPlan, SwapPhase};
    use stdx::Rng;

    fn first(nodes: usize) -> LayoutRecord {
        let nodes: Vec<_> = (0..nodes).map(|node| format!("http://n{node:02}:1")).collect();
        let default_from = nodes.len().min(3) as u8;
        let origin = ClusterOrigin { nodes, partitions: 4, hash_version: 1, default_from, tag: NodeTag(7) };
        LayoutRecord::first(origin).expect("a small cluster")
    }

    fn id(slot: NodeIndex) -> NodeTag {
        NodeTag(100 + u64::from(slot.0))
    }

    /// A member that is ready and can vote.
    fn heard_as(id: NodeTag) -> HeardMember {
        HeardMember {
            id,
            is_settled: true,
            holds_adopted: true,
            has_votes: true,
            feature_level_max: FEATURE_LEVEL_NAMED,
            statements: PlanStatements::default(),
        }
    }

    /// All members are heard and ready.
    fn all_heard(record: &LayoutRecord) -> HeardCluster {
        let heard = |slot| heard_as(id(slot));
        let slots: Vec<_> = record.members.iter().map(|member| member.slot).collect();
        HeardCluster {
            members: slots.iter().map(|slot| (*slot, heard(*slot))).collect(),
            linked: slots.iter().map(|slot| id(*slot)).collect(),
            ..HeardCluster::default()
        }
    }

    /// Epoch 2 of a cluster, with all ids.
    fn named(nodes: usize) -> LayoutRecord {
        let first = first(nodes);
        next_record(&first, &all_heard(&first)).expect("all members are heard")
    }

    fn hear_other_node(heard: &mut HeardCluster, slot: NodeIndex, new: NodeTag) {
        heard.linked.remove(&id(slot));
        heard.linked.insert(new);
        heard.members.insert(slot, heard_as(new));
    }

    #[test]
    fn all_ids_and_the_feature_level_are_decided_at_once() {
        for nodes in [1, 2, 3, 7] {
            let (first, record) = (first(nodes), named(nodes));
            assert!(first.feature_level < FEATURE_LEVEL_NAMED && record.feature_level == FEATURE_LEVEL_NAMED);
            assert!(record.members.iter().all(|member| member.node_id == Some(id(member.slot))));
            assert_eq!((record.voters.clone(), record.lists.clone()), (first.voters, first.lists));
            assert_eq!(next_record(&record, &all_heard(&record)), None, "nothing is left to change");
        }
    }

    #[test]
    fn ids_wait_for_every_member_that_is_not_dead() {
        type Change = fn(&mut HeardCluster);
        let slot = NodeIndex(2);
        let changes: [Change; 3] = [
            |heard| heard.members.retain(|slot, _| *slot != NodeIndex(2)),
            |heard| heard.members.get_mut(&NodeIndex(2)).expect("it is heard").is_settled = false,
            |heard| heard.members.get_mut(&NodeIndex(2)).expect("it is heard").holds_adopted = false,
        ];
        for change in changes {
            let mut record = first(3);
            let mut heard = all_heard(&record);
            change(&mut heard);
            heard.stated_urls.insert(NodeIndex(0), (id(NodeIndex(0)), "http://moved:1".to_owned()));
            assert_eq!(next_record(&record, &heard), None, "no other change precedes the ids");
            record.members[2].state = MemberState::Dead;
            let next = next_record(&record, &heard).expect("the dead member is not waited for");
            assert_eq!(next.member(slot).and_then(|member| member.node_id), None);
        }
    }

    #[test]
    fn the_id_of_a_node_that_lost_its_disk_is_replaced_once_it_is_rebuilt() {
        let (record, slot, new) = (named(3), NodeIndex(1), NodeTag(9));
        let mut heard = all_heard(&record);
        hear_other_node(&mut heard, slot, new);
        let next = next_record(&record, &heard).expect("a new id");
        let mut expected = record.next().expect("a small epoch");
        expected.members[1].node_id = Some(new);
        assert_eq!(next, expected);
        let mut both = heard.clone();
        both.linked.insert(id(slot));
        assert_eq!(next_record(&record, &both), None, "the former node lives");
        heard.members.get_mut(&slot).expect("it is heard").is_settled = false;
        assert_eq!(next_record(&record, &heard), None, "it is not rebuilt");
    }

    /// A record of the level of plans, with a swap of the members 1 and 2.
    fn with_swap() -> LayoutRecord {
        let mut record = named(3);
        record.feature_level = FEATURE_LEVEL_PLANS;
        record.lists = [0, 1, 2].map(NodeIndex).repeat(4);
        let mut record = record.next().expect("a small epoch");
        let others = [0, 1, 2].map(NodeIndex).repeat(3);
        let target = [[0, 2, 1].map(NodeIndex).to_vec(), others].concat();
        record.plan = Some(RunningPlan { target, ..RunningPlan::new(record.epoch) });
        record.begin_swap((NodeIndex(1), NodeIndex(2)), vec![PartitionId(0)]);
        assert_eq!(record.check(), Ok(()));
        record
    }

    #[test]
    fn a_new_id_of_the_gainer_begins_its_copy_anew() {
        let (record, slot) = (with_swap(), NodeIndex(2));
        let mut heard = all_heard(&record);
        hear_other_node(&mut heard, slot, NodeTag(9));
        let next = next_record(&record, &heard).expect("a new id");
        assert_eq!(next.verify(&record), Ok(()));
        let swap = &next.swaps()[0];
        assert_eq!((swap.phase, swap.attempt), (SwapPhase::Prepare, next.epoch));
        assert_eq!(next.changed, [next.epoch; 4]);
    }

    #[test]
    fn a_node_is_named_before_it_is_rebuilt_once_records_have_plans() {
        let (record, slot) = (with_swap(), NodeIndex(0));
        let mut heard = all_heard(&record);
        hear_other_node(&mut heard, slot, NodeTag(9));
        heard.members.get_mut(&slot).expect("it is heard").is_settled = false;
        let next = next_record(&record, &heard).expect("a new id");
        assert_eq!(next.member(slot).and_then(|member| member.node_id), Some(NodeTag(9)));
        heard.members.get_mut(&slot).expect("it is heard").holds_adopted = false;
        assert_eq!(next_record(&record, &heard), None);
    }

    #[test]
    fn a_former_id_is_never_named_again() {
        let (record, slot) = (with_swap(), NodeIndex(0));
        let mut heard = all_heard(&record);
        hear_other_node(&mut heard, slot, NodeTag(9));
        let next = next_record(&record, &heard).expect("a new id");
        assert_eq!(next.former_ids, [id(slot)]);
        let mut heard = all_heard(&next);
        heard.linked.remove(&NodeTag(9));
        assert_eq!(next_record(&next, &heard), None, "the former disk is back");
        hear_other_node(&mut heard, slot, NodeTag(10));
        let last = next_record(&next, &heard).expect("a third disk");
        assert_eq!(last.former_ids, [id(slot), NodeTag(9)]);
    }

    /// All members are heard and carry out records with plans.
    fn all_heard_with_plans(record: &LayoutRecord) -> HeardCluster {
        let mut heard = all_heard(record);
        heard.members.values_mut().for_each(|its| its.feature_level_max = FEATURE_LEVEL_PLANS);
        heard
    }

    #[test]
    fn the_feature_level_is_raised_once_every_member_carries_it_out() {
        for nodes in [1, 2, 3, 7] {
            let record = named(nodes);
            let heard = all_heard_with_plans(&record);
            let next = next_record(&record, &heard).expect("a greater level");
            let expected =
                LayoutRecord { feature_level: FEATURE_LEVEL_PLANS, ..record.next().expect("a small epoch") };
            assert_eq!(next, expected, "nothing else changes");
            assert_eq!(next_record(&next, &heard), None, "there is no greater level");
            assert_eq!(next_record(&next, &all_heard(&next)), None, "it is never lowered");
        }
        let first = first(3);
        let next = next_record(&first, &all_heard_with_plans(&first)).expect("all are heard");
        assert_eq!(next.feature_level, FEATURE_LEVEL_NAMED, "the ids are named before");
    }

    #[test]
    fn the_feature_level_waits_for_every_member_that_is_not_dead() {
        type Change = fn(&mut HeardMember);
        let record = named(4);
        let changes: [Change; 4] = [
            |its| its.feature_level_max = FEATURE_LEVEL_NAMED,
            |its| its.feature_level_max = 0,
            |its| its.holds_adopted = false,
            |its| its.is_settled = false,
        ];
        for change in changes {
            let mut heard = all_heard_with_plans(&record);
            change(heard.members.get_mut(&NodeIndex(3)).expect("it is heard"));
            assert_eq!(next_record(&record, &heard), None);
        }
        let mut heard = all_heard_with_plans(&record);
        hear_other_node(&mut heard, NodeIndex(3), NodeTag(9));
        let its = heard.members.get_mut(&NodeIndex(3)).expect("it is heard");
        (its.feature_level_max, its.is_settled) = (FEATURE_LEVEL_PLANS, false);
        assert_eq!(next_record(&record, &heard), None, "the named node is not heard");
        heard.members.remove(&NodeIndex(3));
        assert_eq!(next_record(&record, &heard), None, "it is down");
        let mut record = record;
        record.members[3].state = MemberState::Dead;
        record.voters = [0, 1, 2].map(NodeIndex).to_vec();
        let next = next_record(&record, &heard).expect("a dead member is not waited for");
        assert_eq!(next.feature_level, FEATURE_LEVEL_PLANS);
    }

    #[test]
    fn one_id_is_replaced_at_a_time() {
        let record = named(5);
        let mut heard = all_heard(&record);
        hear_other_node(&mut heard, NodeIndex(1), NodeTag(9));
        hear_other_node(&mut heard, NodeIndex(3), NodeTag(10));
        let next = next_record(&record, &heard).expect("a new id");
        let changed = next.members.iter().filter(|it| it.node_id != Some(id(it.slot))).count();
        assert_eq!(changed, 1);
        let last = next_record(&next, &heard).expect("the other id");
        assert_eq!(last.members[3].node_id, Some(NodeTag(10)));
        assert_eq!(next_record(&last, &heard), None);
        let mut two = record.clone();
        (two.epoch, two.parent) = (next.epoch, record.hash());
        two.members[1].node_id = Some(NodeTag(9));
        two.members[3].node_id = Some(NodeTag(10));
        assert_eq!(two.verify(&record), Err(crate::LayoutRecordError::SeveralVoters));
    }

    #[test]
    fn a_stated_url_is_decided_unless_another_member_has_it() {
        let (record, slot) = (named(3), NodeIndex(1));
        let mut heard = all_heard(&record);
        heard.members.remove(&NodeIndex(2));
        let mut state = |id, url: &str| {
            heard.stated_urls.insert(slot, (id, url.to_owned()));
            next_record(&record, &heard)
        };
        let next = state(id(slot), "http://moved:1").expect("a new URL");
        let mut expected = record.next().expect("a small epoch");
        expected.members[1].url = "http://moved:1".to_owned();
        assert_eq!(next, expected);
        assert_eq!(state(id(slot), "http://n02:1"), None, "that of another member");
        assert_eq!(state(id(slot), "http://n01:1"), None, "as the record has it");
        assert_eq!(state(NodeTag(9), "http://moved:1"), None, "another node than the named one");
    }

    #[test]
    fn only_the_url_of_a_linked_node_is_decided() {
        let (record, slot) = (named(3), NodeIndex(1));
        let mut heard = all_heard(&record);
        heard.stated_urls.insert(slot, (id(slot), "http://moved:1".to_owned()));
        heard.linked.remove(&id(slot));
        assert_eq!(next_record(&record, &heard), None);
        heard.linked.insert(id(slot));
        assert!(next_record(&record, &heard).is_some());
    }

    #[test]
    fn a_member_without_a_url_keeps_none() {
        let mut record = named(1);
        record.members[0].url = String::new();
        let mut heard = all_heard(&record);
        heard.stated_urls.insert(NodeIndex(0), (id(NodeIndex(0)), "http://moved:1".to_owned()));
        assert_eq!(next_record(&record, &heard), None);
    }

    #[test]
    fn a_dead_member_is_replaced_by_another_node_and_not_revived() {
        let slot = NodeIndex(1);
        for named_id in [Some(id(slot)), None] {
            let mut record = named(4);
            (record.members[1].state, record.members[1].node_id) = (MemberState::Dead, named_id);
            record.voters = [0, 2, 3].map(NodeIndex).to_vec();
            let mut heard = all_heard(&record);
            if named_id.is_some() {
                assert_eq!(next_record(&record, &heard), None, "the node that was declared dead");
            }
            hear_other_node(&mut heard, slot, NodeTag(9));
            let next = next_record(&record, &heard).expect("another node");
            let mut expected = record.next().expect("a small epoch");
            (expected.members[1].state, expected.members[1].node_id) =
                (MemberState::Active, Some(NodeTag(9)));
            assert_eq!(next, expected);
            assert_eq!(next_record(&next, &heard), None);
            heard.members.get_mut(&slot).expect("it is heard").is_settled = false;
            assert_eq!(next_record(&record, &heard), None, "it is not rebuilt");
        }
    }

    fn in_zones(zones: &[&str], voters: &[u8]) -> LayoutRecord {
        let mut record = named(zones.len());
        for (member, zone) in record.members.iter_mut().zip(zones) {
            member.zone = (*zone).to_owned();
        }
        record.voters = voters.iter().copied().map(NodeIndex).collect();
        record
    }

    fn voters_after(record: &LayoutRecord, heard: &HeardCluster) -> Option<Vec<u8>> {
        let next = next_record(record, heard)?;
        assert_eq!(next, LayoutRecord { voters: next.voters.clone(), ..record.next()? });
        Some(next.voters.iter().map(|voter| voter.0).collect())
    }

    #[test]
    fn voters_are_spread_over_zones_one_at_a_time() {
        let record = in_zones(&["a", "a", "a", "b", "c", "c"], &[0, 1, 2, 4, 5]);
        assert_eq!(voters_after(&record, &all_heard(&record)), Some(vec![0, 1, 3, 4, 5]));
        let record = in_zones(&["a", "a", "a", "b", "c"], &[0, 1, 2]);
        assert_eq!(voters_after(&record, &all_heard(&record)), Some(vec![0, 1, 2, 3]));
        let record = in_zones(&["", "", "", ""], &[1, 2, 3]);
        assert_eq!(voters_after(&record, &all_heard(&record)), None, "they are as good as others");
    }

    #[test]
    fn only_a_dead_voter_is_replaced_without_being_heard() {
        let mut record = in_zones(&["", "", "", ""], &[0, 1, 2]);
        let mut heard = all_heard(&record);
        heard.members.remove(&NodeIndex(1));
        assert_eq!(voters_after(&record, &heard), None, "it may return");
        record.members[1].state = MemberState::Dead;
        assert_eq!(voters_after(&record, &heard), Some(vec![0, 2, 3]));
        heard.members.remove(&NodeIndex(2));
        assert_eq!(voters_after(&record, &heard), Some(vec![0, 2, 3]), "two of the new voters are heard");
        heard.members.remove(&NodeIndex(0));
        assert_eq!(voters_after(&record, &heard), None, "one of the new voters would be heard");
    }

    fn forget_votes(heard: &mut HeardCluster, slot: u8) {
        heard.members.get_mut(&NodeIndex(slot)).expect("it is heard").has_votes = false;
    }

    #[test]
    fn a_member_that_has_forgotten_votes_is_not_made_a_voter() {
        let record = in_zones(&["", "", ""], &[0, 2]);
        let mut heard = all_heard(&record);
        assert_eq!(voters_after(&record, &heard), Some(vec![0, 1, 2]));
        forget_votes(&mut heard, 1);
        assert_eq!(voters_after(&record, &heard), None);
    }

    #[test]
    fn a_voter_that_has_forgotten_votes_is_replaced_where_another_member_can_vote() {
        let record = in_zones(&["a", "b", "c"], &[0, 1, 2]);
        let mut heard = all_heard(&record);
        forget_votes(&mut heard, 1);
        assert_eq!(voters_after(&record, &heard), None, "no other member can vote");
        let record = in_zones(&["a", "b", "c", "a"], &[0, 1, 2]);
        let mut heard = all_heard(&record);
        forget_votes(&mut heard, 1);
        assert_eq!(voters_after(&record, &heard), Some(vec![0, 2, 3]));
        forget_votes(&mut heard, 3);
        assert_eq!(voters_after(&record, &heard), None);
    }

    #[test]
    fn a_voter_that_has_forgotten_votes_does_not_count_as_ready() {
        let mut record = in_zones(&["", "", ""], &[0, 1, 2]);
        record.members[2].state = MemberState::Dead;
        let mut heard = all_heard(&record);
        heard.members.remove(&NodeIndex(2));
        assert_eq!(voters_after(&record, &heard), Some(vec![0, 1]));
        forget_votes(&mut heard, 1);
        assert_eq!(voters_after(&record, &heard), None, "one of two voters would vote");
    }

    #[test]
    fn a_voter_beyond_the_wanted_number_is_removed() {
        let mut record = in_zones(&["", "", "", "", ""], &[0, 1, 2, 3, 4]);
        record.members[3].state = MemberState::Dead;
        let heard = all_heard(&record);
        assert_eq!(voters_after(&record, &heard), Some(vec![0, 1, 2, 4]));
        record.voters.remove(3);
        assert_eq!(voters_after(&record, &heard), Some(vec![0, 1, 2]));
    }

    #[test]
    fn nodes_that_hear_different_members_do_not_add_and_remove_a_voter_in_turn() {
        let mut record = in_zones(&["a"; 5], &[0, 1, 2]);
        let all = all_heard(&record);
        let mut without_one = all.clone();
        without_one.members.remove(&NodeIndex(4));
        let mut changes = Vec::new();
        for step in 0..40 {
            let heard = if step % 2 == 0 { &all } else { &without_one };
            if let Some(next) = next_record(&record, heard) {
                changes.push(next.voters.clone());
                record = next;
            }
        }
        assert_eq!(record.voters.len(), 5, "{changes:?}");
        assert_eq!(changes.len(), 2, "{changes:?}");
    }

    /// From any voters, a few steps reach voters that stay, in as many zones as possible.
    #[test]
    fn steps_end_with_voters_that_are_spread() {
        let mut rng = Rng::new(1);
        for case in 0..500 {
            let nodes = 1 + rng.below(9) as usize;
            let zones: Vec<_> = (0..nodes).map(|_| ["a", "b", "c", "d"][rng.below(4) as usize]).collect();
            let mut voters: Vec<u8> = (0..nodes as u8).filter(|_| rng.chance(0.5)).take(VOTERS_MAX).collect();
            if voters.is_empty() {
                voters.push(0);
            }
            let mut record = in_zones(&zones, &voters);
            let heard = all_heard(&record);
            let mut steps = 0;
            while let Some(next) = next_record(&record, &heard) {
                assert_eq!(next.verify(&record), Ok(()), "case {case}");
                record = next;
                steps += 1;
                assert!(steps <= 2 * VOTERS_MAX, "case {case}: {zones:?} {voters:?}");
            }
            assert_eq!(record.voters.len(), voter_count(nodes), "case {case}");
            let voting = |zone: &str| {
                record.voters.iter().filter(|voter| record.members[voter.as_usize()].zone == zone).count()
            };
            for zone in &zones {
                let spare = zones.iter().filter(|it| *it == zone).count() - voting(zone);
                let is_fair = |other: &&str| spare == 0 || voting(other) <= voting(zone) + 1;
                assert!(zones.iter().all(is_fair), "case {case}: {zones:?} {:?}", record.voters);
            }
        }
    }
}
