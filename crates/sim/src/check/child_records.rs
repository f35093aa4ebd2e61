//! Invariant: a decided layout record is the child of the record whose voters decided it. It names
//! that record, keeps what no epoch may change, and replaces at most one voter. It exchanges two
//! nodes in the list of a partition only at the end of READ-NEW of their swap. It adds and removes
//! members at the end of all lists only, and removes no member that is neither leaving nor dead.

use super::InvariantViolation;
use cluster::{LayoutRecord, MemberState, NodeIndex, PairSwap, PartitionId, SwapPhase};

/// Checks a record that the voters of `parent` have decided.
pub fn check(record: &LayoutRecord, parent: &LayoutRecord) -> Result<(), InvariantViolation> {
    let is_next = record.cluster == parent.cluster && record.epoch.0 == parent.epoch.0 + 1;
    if !is_next || record.parent != parent.hash() {
        return Err(violation(record, "does not name the record whose voters decided it"));
    }
    let is_fixed = record.changed.len() == parent.changed.len()
        && record.hash_version == parent.hash_version
        && record.default_from == parent.default_from;
    if !is_fixed {
        return Err(violation(record, "changes partitions, the hash of keys, or the default `from`"));
    }
    let removed = parent.members.iter().filter(|member| record.member(member.slot).is_none());
    if !removed.into_iter().all(|member| matches!(member.state, MemberState::Leaving | MemberState::Dead)) {
        return Err(violation(record, "removes a member that is neither leaving nor dead"));
    }
    let partitions = (0..record.changed.len() as u32).map(PartitionId);
    if !partitions.into_iter().all(|partition| is_kept_or_swapped(record, parent, partition)) {
        return Err(violation(record, "changes the list of a partition without its swap"));
    }
    let missing = |of: &[NodeIndex], from: &[NodeIndex]| of.iter().filter(|it| !from.contains(it)).count();
    let (voters, before) = (&record.voters, &parent.voters);
    if missing(voters, before) > 1 || missing(before, voters) > 1 {
        return Err(violation(record, "replaces more than one voter"));
    }
    Ok(())
}

/// Whether the list of a partition is that of the parent, or the one after the swap that was in
/// READ-NEW in the parent. Members that only one of the records has are last.
fn is_kept_or_swapped(record: &LayoutRecord, parent: &LayoutRecord, partition: PartitionId) -> bool {
    let (before, after) = (parent.preference_list(partition), record.preference_list(partition));
    let kept = before.iter().filter(|slot| record.member(**slot).is_some()).count();
    let is_kept = |slot: &NodeIndex| record.member(*slot).is_some() && parent.member(*slot).is_some();
    let (before, after) = (&before[..kept], &after[..kept.min(after.len())]);
    if !before.iter().chain(after).all(is_kept) {
        return false;
    }
    if before == after {
        return true;
    }
    let is_ended =
        |swap: &&PairSwap| swap.phase == SwapPhase::ReadNew && swap.partitions.contains(&partition);
    parent.swaps().iter().find(is_ended).is_some_and(|swap| {
        let exchanged = before.iter().map(|slot| match *slot {
            slot if slot == swap.loser => swap.gainer,
            slot if slot == swap.gainer => swap.loser,
            slot => slot,
        });
        exchanged.eq(after.iter().copied())
    })
}

fn violation(record: &LayoutRecord, what: &str) -> InvariantViolation {
    InvariantViolation::new("child_records", format!("the record of epoch {} {what}", record.epoch))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{child, first_record};
    use super::*;
    use cluster::{LayoutEpoch, RecordHash};

    #[test]
    fn a_record_of_another_epoch_or_parent_is_caught() {
        let parent = first_record();
        let record = child(&parent);
        assert!(check(&record, &parent).is_ok());
        assert!(check(&LayoutRecord { epoch: LayoutEpoch(3), ..record.clone() }, &parent).is_err());
        assert!(check(&LayoutRecord { parent: RecordHash([9; 32]), ..record }, &parent).is_err());
    }

    #[test]
    fn a_change_of_the_default_number_of_replicas_is_caught() {
        let parent = first_record();
        let record = LayoutRecord { default_from: 2, ..child(&parent) };
        assert!(check(&record, &parent).is_err());
    }

    #[test]
    fn an_exchange_without_a_swap_is_caught() {
        let parent = first_record();
        let mut record = child(&parent);
        record.lists.swap(0, 1);
        assert!(check(&record, &parent).is_err());
    }

    #[test]
    fn members_that_are_not_added_and_removed_at_the_end_of_lists_are_caught() {
        let mut parent = first_record();
        let len = parent.members.len();
        let last = parent.members[len - 1].slot;
        // Moves the last member to the end of each list.
        for list in parent.lists.chunks_exact_mut(len) {
            let at = list.iter().position(|slot| *slot == last).expect("a list names every member");
            list[at..].rotate_left(1);
        }
        let without_last = |parent: &LayoutRecord| {
            let mut record = child(parent);
            record.members.retain(|member| member.slot != last);
            record.lists.retain(|slot| *slot != last);
            record.voters.retain(|slot| *slot != last);
            record
        };
        assert!(check(&without_last(&parent), &parent).is_err(), "an active member");
        parent.members[len - 1].state = MemberState::Leaving;
        assert!(check(&without_last(&parent), &parent).is_ok());
        let smaller = without_last(&parent);
        let mut larger = LayoutRecord { parent: smaller.hash(), epoch: LayoutEpoch(3), ..parent.clone() };
        larger.voters.clone_from(&smaller.voters);
        assert!(check(&larger, &smaller).is_ok());
        larger.lists[..len].rotate_right(1);
        assert!(check(&larger, &smaller).is_err(), "added in front");
        let mut in_front = parent;
        in_front.lists[..len].rotate_right(1);
        assert!(check(&without_last(&in_front), &in_front).is_err(), "removed from the front");
    }

    #[test]
    fn two_replaced_voters_are_caught() {
        let parent = first_record();
        let with = |voters: &[u8]| {
            let voters = voters.iter().copied().map(NodeIndex).collect();
            check(&LayoutRecord { voters, ..child(&parent) }, &parent)
        };
        assert!(with(&[0, 1]).is_ok() && with(&[0, 1, 3]).is_ok() && with(&[0, 1, 2, 3]).is_ok());
        assert!(with(&[0]).is_err());
        assert!(with(&[0, 3, 4]).is_err());
    }
}
