//! Layout records of a changing cluster, and the hosts that learn them.

use super::{Host, PARTITIONS, World};
use cluster::{
    ClusterOrigin, Coordinator, FEATURE_LEVEL_PLANS, Layout, LayoutEpoch, LayoutRecord, Node, NodeIndex,
    PairSwap, PartitionId, RunningPlan, SwapPhase,
};
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

    /// The state machines of a host learn the newest decided record.
    pub(crate) fn learn(&mut self, host: usize) {
        let now = self.now_at(host);
        let layout = Arc::new(Layout::of_record(&self.newest_record()).expect("each slot has a member"));
        self.hosts[host].member.layout = Arc::clone(&layout);
        if let Some(node) = &mut self.hosts[host].node {
            node.handle_layout(now, Arc::clone(&layout));
        }
        if let Some(coordinator) = &mut self.hosts[host].coordinator {
            coordinator.handle_layout(now, layout);
        }
        self.carry_out_effects(host);
    }

    /// The newest epoch that all state machines of a running host have fenced.
    pub(crate) fn fenced(&self, host: usize) -> LayoutEpoch {
        let Host { node, coordinator, .. } = &self.hosts[host];
        let of_node = node.iter().map(Node::fenced);
        let fenced = of_node.chain(coordinator.iter().map(Coordinator::fenced)).min();
        fenced.expect("the host runs")
    }
}
