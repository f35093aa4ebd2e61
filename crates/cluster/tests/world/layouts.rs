//! Layout records of a changing cluster, and the hosts that learn them.

use super::{Host, PARTITIONS, World};
use cluster::{
    ClusterOrigin, Coordinator, FEATURE_LEVEL_PLANS, Layout, LayoutEpoch, LayoutMember, LayoutRecord,
    MemberState, Node, NodeIndex, PairSwap, PartitionId, RunningPlan, SwapPhase,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use stdx::NodeTag;

impl World {
    /// Epoch 1, which the hosts hold from the start. It may have plans.
    fn first_record(&self) -> LayoutRecord {
        let origin = ClusterOrigin {
            nodes: self.layout.names().to_vec(),
            partitions: PARTITIONS,
            hash_version: 1,
            default_from: self.limits.default_from,
            tag: NodeTag(7),
        };
        let mut record = LayoutRecord::first(origin).expect("a small cluster");
        record.feature_level = FEATURE_LEVEL_PLANS;
        for (member, host) in record.members.iter_mut().zip(&self.hosts) {
            member.node_id = Some(host.tag);
        }
        record
    }

    /// The newest decided record.
    pub(crate) fn newest_record(&self) -> LayoutRecord {
        self.record.clone().unwrap_or_else(|| self.first_record())
    }

    /// Decides the next record with a change. Panics if it may not follow the newest one.
    pub(crate) fn decide(&mut self, change: impl FnOnce(&mut LayoutRecord)) -> LayoutEpoch {
        let parent = self.newest_record();
        let epoch = parent.epoch.next().expect("a small epoch");
        let mut record = LayoutRecord { epoch, parent: parent.hash(), ..parent.clone() };
        change(&mut record);
        record.record_former_ids(&parent);
        assert_eq!(record.verify(&parent), Ok(()), "the record follows the newest one");
        self.record = Some(record);
        epoch
    }

    /// Decides the record in which the swap of two hosts in a partition enters a phase. `None` is
    /// OLD.
    pub(crate) fn decide_phase(
        &mut self,
        partition: PartitionId,
        (loser, gainer): (usize, usize),
        phase: Option<SwapPhase>,
    ) -> LayoutEpoch {
        let [loser, gainer] = [loser, gainer].map(|host| NodeIndex(host as u8));
        self.decide(|record| {
            let epoch = record.epoch;
            let mut plan = record.plan.take().unwrap_or(RunningPlan::new(epoch));
            let former = plan.swaps.iter().position(|swap| swap.pair() == (loser, gainer));
            let former = former.map(|at| plan.swaps.remove(at));
            let attempt = former.as_ref().map_or(epoch, |swap| swap.attempt);
            plan.swaps.extend(phase.map(|phase| {
                let attempt = if phase == SwapPhase::Prepare { epoch } else { attempt };
                let partitions = vec![partition];
                PairSwap { loser, gainer, phase, attempt, since: epoch, partitions }
            }));
            plan.swaps.sort_by_key(PairSwap::pair);
            record.plan = Some(plan);
            record.changed[partition.0 as usize] = epoch;
            if phase == Some(SwapPhase::New) {
                let len = record.members.len();
                let list = &mut record.lists[partition.0 as usize * len..][..len];
                let at = [loser, gainer].map(|slot| list.iter().position(|it| *it == slot));
                let [Some(loser), Some(gainer)] = at else { panic!("both are members") };
                list.swap(loser, gainer);
            }
        })
    }

    /// Decides the record in which a host is a member, last in all preference lists. A host that
    /// does not exist yet is created, without a process.
    pub(crate) fn decide_added(&mut self, host: usize) -> LayoutEpoch {
        let slot = NodeIndex(host as u8);
        let node_id = Some(self.hosts.get(host).map_or(NodeTag(host as u64 + 1), |host| host.tag));
        let url = format!("http://node{host:02}:8080/{}", node_id.map_or(0, |id| id.0));
        let epoch = self.decide(|record| {
            let (zone, state) = (String::new(), MemberState::Joining);
            let len = record.members.len();
            record.members.push(LayoutMember { slot, node_id, url, zone, weight: 1, state });
            record.members.sort_by_key(|member| member.slot);
            let lists = record.lists.chunks_exact(len);
            record.lists = lists.flat_map(|list| list.iter().copied().chain([slot])).collect();
        });
        self.layout = Arc::new(Layout::of_record(&self.newest_record()));
        if host == self.hosts.len() {
            self.hosts.push(Host::new(&self.layout, host));
        }
        self.hosts[host].member.layout = Arc::clone(&self.layout);
        epoch
    }

    /// Decides the records that lead to the one in which a host is no member. It first becomes the
    /// last one in all preference lists, without any cells being moved.
    pub(crate) fn decide_removed(&mut self, host: usize) -> LayoutEpoch {
        self.decide_leaving(host);
        self.decide_left(host)
    }

    /// Decides the records in which a host becomes the last one in all preference lists.
    pub(crate) fn decide_leaving(&mut self, host: usize) {
        for phase in [Some(SwapPhase::Prepare), Some(SwapPhase::ReadNew), Some(SwapPhase::New), None] {
            self.decide_move_to_tail(NodeIndex(host as u8), phase);
        }
    }

    /// Decides the record in which a host is no member. It is the last one in all preference lists.
    pub(crate) fn decide_left(&mut self, host: usize) -> LayoutEpoch {
        let slot = NodeIndex(host as u8);
        let epoch = self.decide(|record| {
            record.members.retain(|member| member.slot != slot);
            record.lists.retain(|listed| *listed != slot);
            record.voters.retain(|voter| *voter != slot);
        });
        self.layout = Arc::new(Layout::of_record(&self.newest_record()));
        epoch
    }

    /// Decides the record in which the swaps of a member with the last ones of the preference lists
    /// enter a phase. `None` is OLD.
    fn decide_move_to_tail(&mut self, slot: NodeIndex, phase: Option<SwapPhase>) {
        self.decide(|record| {
            let epoch = record.epoch;
            let plan = record.plan.get_or_insert(RunningPlan::new(epoch));
            let (began, len) = (plan.began, record.members.len());
            let Some(phase) = phase else {
                record.plan = None;
                return;
            };
            if phase == SwapPhase::Prepare {
                let member = record.members.iter_mut().find(|member| member.slot == slot);
                member.expect("it is a member").state = MemberState::Leaving;
                let mut pairs: BTreeMap<NodeIndex, Vec<PartitionId>> = BTreeMap::new();
                for (partition, list) in (0..).map(PartitionId).zip(record.lists.chunks_exact(len)) {
                    if let Some(last) = list.last().filter(|last| **last != slot) {
                        pairs.entry(*last).or_default().push(partition);
                    }
                }
                let swap = |(gainer, partitions)| PairSwap {
                    loser: slot,
                    gainer,
                    phase,
                    attempt: epoch,
                    since: epoch,
                    partitions,
                };
                record.plan = Some(RunningPlan {
                    swaps: pairs.into_iter().map(swap).collect(),
                    ..RunningPlan::new(began)
                });
            } else {
                let plan = record.plan.as_mut().expect("it has begun");
                plan.swaps.iter_mut().for_each(|swap| (swap.phase, swap.since) = (phase, epoch));
            }
            for swap in record.swaps().to_vec() {
                for partition in swap.partitions {
                    record.changed[partition.0 as usize] = epoch;
                    let list = &mut record.lists[partition.0 as usize * len..][..len];
                    if phase == SwapPhase::New {
                        let at = list.iter().position(|listed| *listed == slot).expect("it is a member");
                        list.swap(at, len - 1);
                    }
                }
            }
        });
    }

    /// Creates a host, without a process, that is the next member of a record.
    pub(crate) fn add_host(&mut self, record: &LayoutRecord) {
        self.layout = Arc::new(Layout::of_record(record));
        self.hosts.push(Host::new(&self.layout, self.hosts.len()));
    }

    /// A host learns the newest decided record.
    pub(crate) fn learn(&mut self, host: usize) {
        let layout = Arc::new(Layout::of_record(&self.newest_record()));
        self.hosts[host].member.layout = Arc::clone(&layout);
        if !self.hosts[host].is_running() {
            return;
        }
        if self.hosts[host].coordinator.is_some() {
            let (now, coordinator) = self.coordinator_mut(host);
            coordinator.handle_layout(now, Arc::clone(&layout));
            self.carry_out_effects(host);
        }
        if self.hosts[host].node.is_some() {
            let (now, node) = self.node_mut(host);
            node.handle_layout(now, layout);
            self.carry_out_effects(host);
        }
        self.report_fence(host);
    }

    /// The newest epoch that all state machines of a running host have fenced.
    pub(crate) fn fenced(&mut self, host: usize) -> LayoutEpoch {
        self.report_fence(host);
        let Host { node, coordinator, .. } = &self.hosts[host];
        let of_node = node.iter().map(Node::fenced);
        let fenced = of_node.chain(coordinator.iter().map(Coordinator::fenced)).min();
        fenced.expect("the host runs")
    }

    /// Tells the node of a host the epoch that its coordinator has fenced.
    pub(crate) fn report_fence(&mut self, host: usize) {
        let Host { node, coordinator, .. } = &self.hosts[host];
        let (Some(_), Some(coordinator)) = (node, coordinator) else { return };
        let fenced = coordinator.fenced();
        let (now, node) = self.node_mut(host);
        node.handle_coordinators_fenced(now, fenced);
        self.carry_out_effects(host);
    }
}
