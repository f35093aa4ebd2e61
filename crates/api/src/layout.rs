//! The document of `GET /v0/layout`.

use crate::RunningPlanDocument;
use crate::status::NodeState;
use cluster::{LayoutEpoch, LayoutMember, LayoutRecord, NodeIndex};
use serde::Serialize;

/// The layout record that a node holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayoutDocument {
    /// Id of the cluster, in hexadecimal digits.
    pub cluster_id: String,
    /// Number of the record in its cluster.
    pub epoch: u64,
    /// SHA-256 of the record, in hexadecimal digits: equal on all nodes that hold this epoch.
    pub hash: String,
    /// Features that all members support.
    pub feature_level: u32,
    /// Number of partitions.
    pub partitions: u32,
    /// Number of replicas of a key if a request does not choose it.
    pub default_from: u8,
    /// The members, in the order of their slots.
    pub members: Vec<LayoutMemberDocument>,
    /// URLs of the members that decide the next record.
    pub voters: Vec<String>,
    /// URLs of the voters that the answering node cannot reach, by their ids.
    pub voters_unreachable: Vec<String>,
    /// URLs of those at which a node with another id answers.
    pub voters_replaced: Vec<String>,
    /// URLs of the members that the answering node reaches, and that hold an older record.
    pub members_behind: Vec<String>,
    /// The running change of the layout; `None`: none runs.
    pub plan: Option<RunningPlanDocument>,
}

/// A member of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayoutMemberDocument {
    /// URL at which the member is reached.
    pub url: String,
    /// Identity of its data directory, in hexadecimal digits; `None` until a record names it.
    pub node_id: Option<String>,
    /// Number of the member, which it keeps as long as it is one.
    pub slot: u8,
    /// Failure domain; `None` if its operator has not named one.
    pub zone: Option<String>,
    /// Relative share of data that it is to hold.
    pub weight: u16,
    /// Part of the member in the cluster.
    pub state: &'static str,
    /// Fraction of all replicas that it holds, if every key has the default number of replicas.
    pub share: f64,
    /// State of the member in the failure detector of the answering node.
    pub health: NodeState,
    /// Epoch of the record that the member holds, as it last told the answering node; `None` if it
    /// has not.
    pub epoch: Option<u64>,
}

/// A member, as the answering node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenMember {
    /// State of the member in the failure detector.
    pub health: NodeState,
    /// Epoch of the record that it last reported.
    pub epoch: Option<LayoutEpoch>,
    /// Whether the node that the record names is heard. Another one may answer in its place.
    pub is_named_heard: bool,
}

impl SeenMember {
    /// Whether the member answers, in time or late.
    pub fn is_reachable(&self) -> bool {
        matches!(self.health, NodeState::Up | NodeState::Suspected)
    }

    /// Whether another node than the one that the record names answers for `member`.
    pub fn is_replaced(&self, member: &LayoutMember) -> bool {
        member.node_id.is_some() && self.health == NodeState::Up && !self.is_named_heard
    }

    /// Whether the member answers and holds a record before `epoch`.
    pub fn is_behind(&self, epoch: LayoutEpoch) -> bool {
        self.is_reachable() && self.epoch.is_some_and(|its| its < epoch)
    }
}

/// A fraction, rounded to four digits.
pub(crate) fn rounded(share: f64) -> f64 {
    const SCALE: f64 = 10_000.0;
    (share * SCALE).round() / SCALE
}

impl LayoutDocument {
    /// The document of `record`, as the node at `own_url` shows it. `seen` returns how it sees the
    /// member in a slot. The running change, which only a node that follows it knows, is left out.
    pub fn of(record: &LayoutRecord, own_url: &str, seen: impl Fn(NodeIndex) -> SeenMember) -> Self {
        // A record of a node on its own does not name an address.
        let url = |member: &LayoutMember| match member.url.is_empty() {
            true => own_url.to_owned(),
            false => member.url.clone(),
        };
        let urls = |is_meant: &dyn Fn(&LayoutMember) -> bool| -> Vec<String> {
            record.members.iter().filter(|member| is_meant(member)).map(url).collect()
        };
        let is_voter = |member: &LayoutMember| record.voters.contains(&member.slot);
        let members = record.members.iter().zip(record.shares()).map(|(member, share)| {
            let SeenMember { health, epoch, is_named_heard: _ } = seen(member.slot);
            LayoutMemberDocument {
                url: url(member),
                node_id: member.node_id.map(|node_id| format!("{:016x}", node_id.0)),
                slot: member.slot.0,
                zone: Some(member.zone.clone()).filter(|zone| !zone.is_empty()),
                weight: member.weight,
                state: member.state.name(),
                share: rounded(share),
                health,
                epoch: epoch.map(|epoch| epoch.0),
            }
        });
        Self {
            cluster_id: record.cluster.to_string(),
            epoch: record.epoch.0,
            hash: record.hash().to_string(),
            feature_level: record.feature_level,
            partitions: record.partitions(),
            default_from: record.default_from,
            members: members.collect(),
            voters: urls(&is_voter),
            voters_unreachable: urls(&|member| is_voter(member) && !seen(member.slot).is_named_heard),
            voters_replaced: urls(&|member| is_voter(member) && seen(member.slot).is_replaced(member)),
            members_behind: urls(&|member| seen(member.slot).is_behind(record.epoch)),
            plan: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::{ClusterOrigin, NodeIndex};
    use stdx::NodeTag;

    const UP: SeenMember =
        SeenMember { health: NodeState::Up, epoch: Some(LayoutEpoch::FIRST), is_named_heard: true };

    fn record(nodes: &[&str]) -> LayoutRecord {
        let nodes = nodes.iter().map(ToString::to_string).collect();
        let origin =
            ClusterOrigin { nodes, partitions: 4, hash_version: 1, default_from: 1, tag: NodeTag(1) };
        LayoutRecord::first(origin).expect("a valid origin")
    }

    #[test]
    fn the_document_names_each_member_and_voter_by_its_url() {
        let mut record = record(&["http://a:1", "http://b:1", "http://c:1"]);
        record.members[1].node_id = Some(NodeTag(0xab));
        record.members[2].zone = "z".to_owned();
        record.lists = [0, 1, 2, 0, 2, 1, 0, 1, 2, 1, 0, 2].map(NodeIndex).to_vec();
        record.voters = vec![NodeIndex(1)];
        record.epoch = LayoutEpoch(2);
        let seen = |slot| match slot {
            NodeIndex(0) => UP,
            NodeIndex(1) => SeenMember { is_named_heard: false, ..UP },
            _ => SeenMember { health: NodeState::Unknown, epoch: None, is_named_heard: false },
        };
        let document = serde_json::to_value(LayoutDocument::of(&record, "http://x:1", seen)).unwrap();
        let member = |url,
                      node_id: Option<&str>,
                      slot,
                      zone: Option<&str>,
                      share,
                      seen: (&str, Option<u64>)| {
            serde_json::json!({
                "url": url, "node_id": node_id, "slot": slot, "zone": zone, "weight": 1, "state": "active",
                "share": share, "health": seen.0, "epoch": seen.1,
            })
        };
        let expected = serde_json::json!({
            "cluster_id": record.cluster.to_string(), "epoch": 2, "hash": record.hash().to_string(),
            "feature_level": 1, "partitions": 4, "default_from": 1,
            "members": [
                member("http://a:1", None, 0, None, 0.75, ("up", Some(1))),
                member("http://b:1", Some("00000000000000ab"), 1, None, 0.25, ("up", Some(1))),
                member("http://c:1", None, 2, Some("z"), 0.0, ("unknown", None)),
            ],
            "voters": ["http://b:1"], "voters_unreachable": ["http://b:1"], "voters_replaced": ["http://b:1"],
            "members_behind": ["http://a:1", "http://b:1"], "plan": null,
        });
        assert_eq!(document, expected);
    }

    #[test]
    fn a_node_on_its_own_is_shown_at_its_own_address() {
        let document = LayoutDocument::of(&record(&[]), "http://127.0.0.1:8080", |_| UP);
        assert_eq!(document.members[0].url, "http://127.0.0.1:8080");
        assert_eq!(document.voters, ["http://127.0.0.1:8080"]);
        assert!((document.members[0].share - 1.0).abs() < f64::EPSILON);
    }
}
