//! Operators that change the layout.
//!
//! At random times, operators ask one or several nodes to propose a child of the layout record that
//! they have adopted. A child names the ids of members, changes a weight, a zone or a URL, or
//! exchanges a voter. A node may refuse, for example while its earlier proposal is running.

use crate::world::members::{host_of, other_url_of};
use crate::world::{World, WorldEvent};
use cluster::{LayoutRecord, NodeIndex, Requester};
use std::sync::Arc;
use std::time::Duration;
use stdx::{NodeTag, Rng};

/// Bounds of the time for which a change is proposed.
const WITHIN_MIN: Duration = Duration::from_millis(200);
const WITHIN_MAX: Duration = Duration::from_secs(2);
/// Greatest weight of a member. It is large, so that changes hardly ever are equal.
const WEIGHT_MAX: u64 = 10_000;

impl World {
    /// Schedules the changes of the scenario at random times within `within`.
    pub(crate) fn begin_layout_changes(&mut self, within: Duration) {
        let Some(changes) = self.scenario.dimensions.layout_changes() else { return };
        for _ in 0..changes.times {
            let delay = up_to(self.layout_rng(), within);
            self.after(delay, WorldEvent::ChangeLayout);
        }
    }

    /// Asks one or several nodes to propose a change each.
    pub(crate) fn change_layout(&mut self) {
        let Some(changes) = self.scenario.dimensions.layout_changes() else { return };
        if self.nemesis.is_over() {
            return;
        }
        let nodes = 1 + self.layout_rng().below(changes.together_max);
        for _ in 0..nodes {
            let proposer = self.draw_proposer();
            let is_paused = self.hosts[proposer.as_usize()].paused.is_some();
            let Some(endpoint) = self.endpoint(proposer, Requester::Node).filter(|_| !is_paused) else {
                continue;
            };
            let within = WITHIN_MIN + up_to(self.layout_rng(), WITHIN_MAX - WITHIN_MIN);
            if let Some(record) = self.draw_layout_change(proposer) {
                self.propose(endpoint, record, within);
            }
        }
    }

    /// Draws a node, or the copy of one if it runs.
    pub(crate) fn draw_proposer(&mut self) -> NodeIndex {
        let copies = self.hosts[self.copy().as_usize()].process.is_some().then(|| self.copy());
        let nodes: Vec<NodeIndex> = self.nodes().chain(copies).collect();
        nodes[self.layout_rng().below(nodes.len() as u64) as usize]
    }

    /// The record that the node of a host has adopted.
    pub(crate) fn adopted_layout(&self, host: NodeIndex) -> Option<Arc<LayoutRecord>> {
        let process = self.hosts[host.as_usize()].process.as_ref()?;
        process.node.adopted_layout().cloned()
    }

    /// A child of the record of this host that changes the weight of a member.
    pub(crate) fn draw_weight_change(&mut self, host: NodeIndex) -> Option<LayoutRecord> {
        let parent = self.adopted_layout(host)?;
        let rng = self.layout_rng();
        let member = rng.below(parent.members.len() as u64) as usize;
        let mut record = child(&parent)?;
        record.members[member].weight = draw_weight(rng);
        Some(record)
    }

    fn draw_layout_change(&mut self, host: NodeIndex) -> Option<LayoutRecord> {
        let parent = self.adopted_layout(host)?;
        let hosts: Vec<Option<NodeIndex>> =
            parent.members.iter().map(|member| host_of(&member.url)).collect();
        let ids: Vec<Option<NodeTag>> =
            hosts.iter().map(|host| host.and_then(|host| self.id_of(host))).collect();
        let rng = self.layout_rng();
        let mut record = child(&parent)?;
        let drawn = rng.below(record.members.len() as u64) as usize;
        let member = &mut record.members[drawn];
        match rng.below(6) {
            0 => member.weight = draw_weight(rng),
            1 => member.zone = format!("zone-{}", rng.below(3)),
            2 if member.node_id.is_some() && member.node_id == ids[drawn] => {
                let host = hosts[drawn].unwrap_or(member.slot);
                member.url = other_url_of(host, rng.below(100));
            }
            2 | 3 => member.node_id = ids[drawn].or(member.node_id),
            4 => {
                for (member, id) in record.members.iter_mut().zip(ids) {
                    member.node_id = id.or(member.node_id);
                }
            }
            _ => exchange_voter(&mut record, rng),
        }
        Some(record)
    }

    fn id_of(&self, node: NodeIndex) -> Option<NodeTag> {
        let process = self.hosts[node.as_usize()].process.as_ref()?;
        process.is_voter.then_some(process.member.tag)
    }
}

fn child(parent: &LayoutRecord) -> Option<LayoutRecord> {
    Some(LayoutRecord { epoch: parent.epoch.next()?, parent: parent.hash(), ..parent.clone() })
}

fn draw_weight(rng: &mut Rng) -> u16 {
    1 + rng.below(WEIGHT_MAX) as u16
}

fn up_to(rng: &mut Rng, most: Duration) -> Duration {
    Duration::from_nanos(1 + rng.below(most.as_nanos() as u64))
}

/// Adds a voter, removes one, or does both.
fn exchange_voter(record: &mut LayoutRecord, rng: &mut Rng) {
    let others = record.members.iter().map(|member| member.slot);
    let others: Vec<NodeIndex> = others.filter(|slot| !record.voters.contains(slot)).collect();
    let added = (!others.is_empty()).then(|| others[rng.below(others.len() as u64) as usize]);
    let added = added.filter(|_| rng.chance(0.7));
    // Two voters remain, so that one lost disk does not end the agreement at once.
    let leaves_enough = record.voters.len() + usize::from(added.is_some()) > 2;
    if leaves_enough && (added.is_none() || rng.chance(0.6)) {
        record.voters.remove(rng.below(record.voters.len() as u64) as usize);
    }
    record.voters.extend(added);
    record.voters.sort_unstable();
    record.voters.truncate(cluster::VOTERS_MAX);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::testing::first_record;

    #[test]
    fn every_exchange_of_a_voter_follows_its_parent() {
        let mut rng = Rng::new(1);
        let mut record = first_record();
        let mut sizes = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let mut next = child(&record).expect("a small epoch");
            exchange_voter(&mut next, &mut rng);
            assert_eq!(next.verify(&record), Ok(()), "{:?} after {:?}", next.voters, record.voters);
            sizes.insert(next.voters.len());
            record = next;
        }
        assert!(sizes.contains(&2) && sizes.contains(&4), "{sizes:?}");
    }
}
