//! The document of `GET /v0/layout`.

use cluster::{LayoutMember, LayoutRecord};
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
    /// The running change of the layout. This release runs none.
    pub plan: (),
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
}

impl LayoutDocument {
    /// Fractions are rounded to 1 / `SHARE_SCALE`.
    const SHARE_SCALE: f64 = 10_000.0;

    /// The document of `record`, as the node at `own_url` shows it.
    pub fn of(record: &LayoutRecord, own_url: &str) -> Self {
        // A record of a node on its own does not name an address.
        let url = |member: &LayoutMember| match member.url.is_empty() {
            true => own_url.to_owned(),
            false => member.url.clone(),
        };
        let members =
            record.members.iter().zip(record.shares()).map(|(member, share)| LayoutMemberDocument {
                url: url(member),
                node_id: member.node_id.map(|node_id| format!("{:016x}", node_id.0)),
                slot: member.slot.0,
                zone: Some(member.zone.clone()).filter(|zone| !zone.is_empty()),
                weight: member.weight,
                state: member.state.name(),
                share: (share * Self::SHARE_SCALE).round() / Self::SHARE_SCALE,
            });
        Self {
            cluster_id: record.cluster.to_string(),
            epoch: record.epoch.0,
            hash: record.hash().to_string(),
            feature_level: record.feature_level,
            partitions: record.partitions(),
            default_from: record.default_from,
            members: members.collect(),
            voters: record.voters.iter().filter_map(|voter| record.member(*voter)).map(url).collect(),
            plan: (),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::{ClusterOrigin, NodeIndex};
    use stdx::NodeTag;

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
        let document = serde_json::to_value(LayoutDocument::of(&record, "http://x:1")).unwrap();
        let member = |url, node_id: Option<&str>, slot, zone: Option<&str>, share| {
            serde_json::json!({
                "url": url, "node_id": node_id, "slot": slot, "zone": zone, "weight": 1, "state": "active",
                "share": share,
            })
        };
        let expected = serde_json::json!({
            "cluster_id": record.cluster.to_string(), "epoch": 1, "hash": record.hash().to_string(),
            "feature_level": 1, "partitions": 4, "default_from": 1,
            "members": [
                member("http://a:1", None, 0, None, 0.75),
                member("http://b:1", Some("00000000000000ab"), 1, None, 0.25),
                member("http://c:1", None, 2, Some("z"), 0.0),
            ],
            "voters": ["http://b:1"], "plan": null,
        });
        assert_eq!(document, expected);
    }

    #[test]
    fn a_node_on_its_own_is_shown_at_its_own_address() {
        let document = LayoutDocument::of(&record(&[]), "http://127.0.0.1:8080");
        assert_eq!(document.members[0].url, "http://127.0.0.1:8080");
        assert_eq!(document.voters, ["http://127.0.0.1:8080"]);
        assert!((document.members[0].share - 1.0).abs() < f64::EPSILON);
    }
}
