//! Differences between two layout records of a cluster, in words for the log.

use cluster::{LayoutMember, LayoutRecord, NodeIndex};

/// Describes what `record` changes in the earlier record `former`, one phrase for each change.
pub(crate) fn describe(former: &LayoutRecord, record: &LayoutRecord) -> Vec<String> {
    let mut changes = Vec::new();
    for member in &record.members {
        match former.member(member.slot) {
            Some(before) => changes.extend(changes_of_member(before, member)),
            None => changes.push(format!("{} is a new member", member.url)),
        }
    }
    let removed = former.members.iter().filter(|member| record.member(member.slot).is_none());
    changes.extend(removed.map(|member| format!("{} is no member any more", member.url)));
    changes.extend(changes_of_voters(former, record));
    if record.feature_level != former.feature_level {
        changes.push(format!("the feature level is {}", record.feature_level));
    }
    changes.extend(changes_of_plan(former, record));
    let moved = record.changed.iter().filter(|changed| **changed > former.epoch).count();
    if moved > 0 {
        changes.push(format!("{moved} partitions have other replicas"));
    }
    changes
}

fn changes_of_member(before: &LayoutMember, member: &LayoutMember) -> Vec<String> {
    let LayoutMember { slot: _, node_id, url, zone, weight, state } = member;
    let mut changes = Vec::new();
    if before.url != *url {
        changes.push(format!("{} has moved to {url}", before.url));
    }
    if before.node_id != *node_id
        && let Some(id) = node_id
    {
        let named = if before.node_id.is_some() { "another node id" } else { "the node id" };
        changes.push(format!("{url} has {named} {:016x}", id.0));
    }
    if before.zone != *zone {
        changes.push(format!("{url} is in zone {zone:?}"));
    }
    if before.weight != *weight {
        changes.push(format!("{url} has weight {weight}"));
    }
    if before.state != *state {
        changes.push(format!("{url} is {}", state.name()));
    }
    changes
}

fn changes_of_plan(former: &LayoutRecord, record: &LayoutRecord) -> Vec<String> {
    let (before, plan) = match (&former.plan, &record.plan) {
        (None, None) => return Vec::new(),
        (None, Some(_)) => return vec!["a change of the placement begins".to_owned()],
        (Some(_), None) => return vec!["the change of the placement has ended".to_owned()],
        (Some(before), Some(plan)) => (before, plan),
    };
    let mut changes = Vec::new();
    if plan.target.is_empty() && !before.target.is_empty() {
        changes.push("the change of the placement is cancelled".to_owned());
    } else if plan.is_paused != before.is_paused {
        let state = if plan.is_paused { "is paused" } else { "goes on" };
        changes.push(format!("the change of the placement {state}"));
    }
    if plan.rate_limit != before.rate_limit {
        changes.push(match plan.rate_limit {
            Some(limit) => format!("its data moves at most at {} bytes/s", limit.bytes_per_second()),
            None => "its data moves without a limit".to_owned(),
        });
    }
    changes
}

fn changes_of_voters(former: &LayoutRecord, record: &LayoutRecord) -> Vec<String> {
    let url = |of: &LayoutRecord, slot| of.member(slot).map_or_else(String::new, |it| it.url.clone());
    let not_in = |voters: &[NodeIndex], others: &[NodeIndex]| -> Vec<NodeIndex> {
        voters.iter().copied().filter(|voter| !others.contains(voter)).collect()
    };
    let added = not_in(&record.voters, &former.voters);
    let removed = not_in(&former.voters, &record.voters);
    let added = added.into_iter().map(|slot| format!("{} is a voter", url(record, slot)));
    let removed = removed.into_iter().map(|slot| format!("{} is no voter any more", url(former, slot)));
    added.chain(removed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::{ClusterOrigin, LayoutEpoch, MemberState, RateLimit, RunningPlan};
    use stdx::NodeTag;

    fn first() -> LayoutRecord {
        let nodes = ["http://a:1", "http://b:1", "http://c:1"].map(String::from).to_vec();
        let origin =
            ClusterOrigin { nodes, partitions: 4, hash_version: 1, default_from: 3, tag: NodeTag(7) };
        LayoutRecord::first(origin).expect("three nodes are a cluster")
    }

    #[test]
    fn equal_records_have_no_changes() {
        assert_eq!(describe(&first(), &first()), Vec::<String>::new());
    }

    #[test]
    fn the_commands_on_a_plan_are_described() {
        let plan = |change: &dyn Fn(&mut RunningPlan)| {
            let mut plan = RunningPlan { target: vec![NodeIndex(0)], ..RunningPlan::new(LayoutEpoch(2)) };
            change(&mut plan);
            LayoutRecord { plan: Some(plan), ..first() }
        };
        let running = plan(&|_| {});
        let paused = plan(&|plan| plan.is_paused = true);
        let limited = plan(&|plan| plan.rate_limit = RateLimit::new(9));
        let cancelled = plan(&|plan| plan.target.clear());
        for (former, record, expected) in [
            (&first(), &running, "a change of the placement begins"),
            (&running, &paused, "the change of the placement is paused"),
            (&paused, &running, "the change of the placement goes on"),
            (&running, &limited, "its data moves at most at 9 bytes/s"),
            (&limited, &running, "its data moves without a limit"),
            (&paused, &cancelled, "the change of the placement is cancelled"),
            (&cancelled, &first(), "the change of the placement has ended"),
        ] {
            assert_eq!(describe(former, record), [expected]);
        }
    }

    #[test]
    fn each_change_of_members_and_voters_is_described() {
        let mut former = first();
        former.members[1].node_id = Some(NodeTag(0xb));
        let mut record = former.clone();
        record.epoch = LayoutEpoch(2);
        record.feature_level = 2;
        record.members[0].node_id = Some(NodeTag(0xa));
        record.members[0].zone = "west".to_owned();
        record.members[1].node_id = Some(NodeTag(0xbb));
        record.members[1].weight = 3;
        record.members[2].url = "http://c:2".to_owned();
        record.members[2].state = MemberState::Leaving;
        record.voters = vec![NodeIndex(0), NodeIndex(1)];
        record.changed[3] = LayoutEpoch(2);
        let expected = [
            "http://a:1 has the node id 000000000000000a",
            "http://a:1 is in zone \"west\"",
            "http://b:1 has another node id 00000000000000bb",
            "http://b:1 has weight 3",
            "http://c:1 has moved to http://c:2",
            "http://c:2 is leaving",
            "http://c:1 is no voter any more",
            "the feature level is 2",
            "1 partitions have other replicas",
        ];
        assert_eq!(describe(&former, &record), expected);
        former.voters = vec![NodeIndex(1)];
        former.members.remove(2);
        let described = describe(&former, &record);
        assert!(described.contains(&"http://a:1 is a voter".to_owned()), "{described:?}");
        assert!(described.contains(&"http://c:2 is a new member".to_owned()), "{described:?}");
        let described = describe(&record, &former);
        assert!(described.contains(&"http://c:2 is no member any more".to_owned()), "{described:?}");
    }
}
