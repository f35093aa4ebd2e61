//! Hosts, their addresses, and the slots of their nodes.
//!
//! A host has a number and an address for ever. All URLs that a layout record may have for its node
//! lead to it. A node dials the URL that its own layout has for a slot, so a node with an old
//! record may meet another node than it expects.

use super::World;
use cluster::{Layout, LayoutRecord, MemberState, NodeIndex};
use std::sync::Arc;

/// The URL of a host.
pub(crate) fn url_of(host: NodeIndex) -> String {
    format!("http://node-{}:8080", host.0)
}

/// Another URL that leads to a host.
pub(crate) fn other_url_of(host: NodeIndex, number: u64) -> String {
    format!("http://node-{}-{number}:8080", host.0)
}

/// The host that a URL leads to.
pub(crate) fn host_of(url: &str) -> Option<NodeIndex> {
    let digits = url.strip_prefix("http://node-")?.split(['-', ':']).next()?;
    digits.parse().ok().map(NodeIndex)
}

/// The slot of the node of a host in a layout, if it is a member.
pub(crate) fn slot_in(layout: &Layout, host: NodeIndex) -> Option<NodeIndex> {
    layout.nodes().find(|slot| host_of(&layout.names()[slot.as_usize()]) == Some(host))
}

/// Whether a record has a member on a host.
pub(crate) fn has_member_on(record: &LayoutRecord, host: NodeIndex) -> bool {
    record.members.iter().any(|member| host_of(&member.url) == Some(host))
}

impl World {
    /// All hosts but that of copies.
    pub(crate) fn hosts_of_nodes(&self) -> impl Iterator<Item = NodeIndex> + use<> {
        (0..self.scenario.hosts()).map(NodeIndex)
    }

    /// Hosts of the members that are not dead, by the newest record that a node has adopted.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeIndex> + use<> {
        let hosts: Vec<NodeIndex> = match &self.newest_record {
            Some(record) => {
                let alive = record.members.iter().filter(|member| member.state != MemberState::Dead);
                alive.filter_map(|member| host_of(&member.url)).collect()
            }
            None => (0..self.scenario.nodes).map(NodeIndex).collect(),
        };
        hosts.into_iter()
    }

    /// The newest record that a node has adopted, in a run whose members change.
    pub(crate) fn newest_record(&self) -> Option<&Arc<LayoutRecord>> {
        self.newest_record.as_ref()
    }

    /// Records that a node has adopted a record, in a run whose members change.
    pub(super) fn note_newest_record(&mut self, record: &Arc<LayoutRecord>) {
        let has_changes = self.scenario.dimensions.member_changes().is_some();
        if has_changes && self.newest_record.as_ref().is_none_or(|known| known.epoch < record.epoch) {
            self.newest_record = Some(Arc::clone(record));
            self.resume_joins();
        }
    }

    /// The layout of the newest record that a node has adopted.
    pub(crate) fn layout(&self) -> Arc<Layout> {
        let adopted = self.hosts_of_nodes().filter_map(|node| self.hosts[node.as_usize()].process.as_ref());
        let layouts = adopted.map(|process| &process.member.layout);
        Arc::clone(layouts.max_by_key(|layout| layout.epoch()).unwrap_or(&self.layout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_url_of_a_host_leads_to_it() {
        for host in [0, 3, 12].map(NodeIndex) {
            assert_eq!(host_of(&url_of(host)), Some(host));
            assert_eq!(host_of(&other_url_of(host, 7)), Some(host));
        }
        assert_eq!(host_of("http://another:8080"), None);
    }
}
