//! Safety phases whose commands and faults come in a fixed order.
//!
//! Some planted bugs show only when several faults and commands meet within a second or two. Faults
//! at random times do so in hardly any run. Here only the delays and the roles of the nodes are
//! drawn. Each of these phases also passes without its bug.

use super::fault_end::FaultEnd;
use crate::check::InvariantViolation;
use crate::history::{ClientOutcome, CommandKind};
use crate::host::EndCause;
use crate::host::process::REQUEST_TIMEOUT;
use crate::run::PENDING_NOTED_WITHIN;
use crate::scenario::FixedFaults;
use crate::workload::quorum;
use crate::world::World;
use cluster::{Key, NodeIndex, RequestId, Requester};
use std::time::Duration;

/// Time in which the first commands are submitted, before any fault.
const LOAD_LASTS: Duration = Duration::from_secs(3);
/// Number of writes in that time.
const LOAD: u64 = 60;
/// Time for which all nodes are down.
const DOWN: Duration = Duration::from_secs(1);

/// Time in which two voters decide a record.
const DECISION_WITHIN: Duration = Duration::from_secs(2);
/// Time in which a node that was started, or is no longer cut off, is linked and heard.
const LINKED_WITHIN: Duration = Duration::from_secs(7);

/// Number of writes in flight when a disk is lost.
const LATE_WRITES: usize = 40;
/// Delay of those writes to one replica: less than their deadline, and more than a rebuild that
/// does not wait.
const LATE_BY: Duration = Duration::from_millis(700);
/// Time within which the replica that loses its disk has acknowledged the writes.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_millis(40);
/// Number of reads of the keys of those writes, and the time between them.
const READS: u32 = 12;
const READ_EVERY: Duration = Duration::from_millis(100);

impl World {
    /// Runs a safety phase of this kind. Faults that remain at its end are ended by the heal phase.
    pub(crate) fn run_fixed_faults(&mut self, fixed: FixedFaults) -> Result<(), InvariantViolation> {
        match fixed {
            FixedFaults::StopWithPendingRepairs => self.stop_with_pending_repairs(),
            FixedFaults::LoseDiskDuringWrites => self.lose_disk_during_writes(),
            FixedFaults::LoseVotesOfVoter => self.lose_votes_of_voter(),
            FixedFaults::RestartProposer => self.restart_proposer(),
        }
    }

    /// A node is cut off, so that the others drop hints for it and note a pending repair of it.
    /// Then all nodes stop, and the cut ends before they start again. Only their records still hold
    /// the pending repair.
    ///
    /// No command is submitted after the cut. A hint dropped after the start would cause a new
    /// pending repair, and the repair that settles it compares all keys.
    fn stop_with_pending_repairs(&mut self) -> Result<(), InvariantViolation> {
        let away = self.nemesis.node(self.scenario.nodes);
        let others = self.nodes().filter(|node| *node != away);
        let cuts: Vec<_> = others.flat_map(|node| [(node, away), (away, node)]).collect();
        let writes_last = LOAD_LASTS + REQUEST_TIMEOUT;
        let until_stop = writes_last + PENDING_NOTED_WITHIN + self.nemesis.up_to(REQUEST_TIMEOUT);
        self.nemesis.faults += 2;
        self.cut(until_stop, cuts);
        self.begin_commands(LOAD, self.now + LOAD_LASTS);
        self.run_for(until_stop)?;
        let end_cause = self.nemesis.draw_end_cause();
        for node in self.nodes() {
            self.end_process(node, end_cause, Some(DOWN));
        }
        self.run_for(DOWN * 2)
    }

    /// Writes are in flight that one replica has acknowledged and no other has received. That
    /// replica loses its disk and is started again at once. Then the writes arrive at a second
    /// replica, and so are acknowledged. Reads through the node that lost its disk must find them.
    ///
    /// Two other defenses must not help. First, a coordinator that is a replica stores the write at
    /// once. Or its slow disk delays the rebuild too, since it must record the new identity first.
    /// So the coordinator is no replica. Second, a coordinator that reaches the new process cancels
    /// the acknowledgements of the old one. So the node with the lost disk refuses connections.
    fn lose_disk_during_writes(&mut self) -> Result<(), InvariantViolation> {
        self.begin_commands(LOAD, self.now + LOAD_LASTS);
        self.run_for(LOAD_LASTS + REQUEST_TIMEOUT)?;
        let (nodes, from) = (self.scenario.nodes, self.scenario.default_from);
        let majority = quorum(self.scenario.majority(), from, nodes);
        let (coordinator, lost) = self.nemesis.two_nodes(nodes);
        let rest: Vec<_> = self.nodes().filter(|node| *node != coordinator && *node != lost).collect();
        let is_first_late = self.nemesis.rng.chance(0.5);
        let (late, cut_off) = if is_first_late { (rest[0], rest[1]) } else { (rest[1], rest[0]) };
        self.nemesis.faults += 3;
        self.network.slow(coordinator, late, LATE_BY);
        self.network.cut(coordinator, cut_off, true);
        let keys = self.keys_without_replica_at(coordinator).into_iter();
        let ask = |key: Key| {
            (key.clone(), self.submit_command(coordinator, CommandKind::Put { ttl: None }, key, majority))
        };
        let writes: Vec<(Key, RequestId)> = keys.map(ask).collect();
        self.run_for(ACKNOWLEDGED_WITHIN)?;
        self.network.refuse(lost, true);
        let down = self.nemesis.up_to(Duration::from_millis(10));
        self.lose_disk(lost, down);
        self.run_for(LATE_BY - ACKNOWLEDGED_WITHIN)?;
        for _ in 0..READS {
            for (key, id) in &writes {
                if self.is_acknowledged(*id) {
                    self.submit_command(lost, CommandKind::Get, key.clone(), majority);
                }
            }
            self.run_for(READ_EVERY)?;
        }
        self.run_for(REQUEST_TIMEOUT)
    }

    /// Two of three voters decide a record, and the third is cut off. One of the two loses its
    /// votes before it learns of the decision, and the other one, which knows it, is cut off in
    /// place of the third. Then the third proposes another record.
    fn lose_votes_of_voter(&mut self) -> Result<(), InvariantViolation> {
        let (lost, proposer) = self.nemesis.two_nodes(self.scenario.nodes);
        let third = self.other_than(lost, proposer);
        self.wait_until_named()?;
        self.nemesis.faults += 3;
        let cut_off = self.cut_off(third);
        let before = self.judge.agreement.decided_records();
        self.propose_weight(proposer);
        self.run_until_holds(|world| world.judge.agreement.decided_records() > before)?;
        let down = self.nemesis.up_to(Duration::from_millis(10));
        self.lose_votes(lost, down);
        self.end_fault(FaultEnd::ReconnectPaths(cut_off));
        let cut_off = self.cut_off(proposer);
        self.run_for(LINKED_WITHIN)?;
        self.propose_weight(third);
        self.run_for(REQUEST_TIMEOUT)?;
        self.end_fault(FaultEnd::ReconnectPaths(cut_off));
        Ok(())
    }

    /// A node proposes a record and reaches one other voter only. When that voter has accepted the
    /// record, the proposer restarts, before its own vote is durable. Then it proposes another
    /// record and reaches the third voter only.
    fn restart_proposer(&mut self) -> Result<(), InvariantViolation> {
        let (proposer, voter) = self.nemesis.two_nodes(self.scenario.nodes);
        let third = self.other_than(proposer, voter);
        self.wait_until_named()?;
        self.nemesis.faults += 3;
        self.network.cut(proposer, third, true);
        self.propose_weight(proposer);
        let promised = |world: &Self, node| {
            world.judge.agreement.voter(node).is_some_and(|it| it.state.acceptor.promised.is_some())
        };
        self.run_until_holds(|world| promised(world, proposer) && promised(world, voter))?;
        let sync_max = std::mem::replace(&mut self.host(proposer).sync_max, REQUEST_TIMEOUT);
        self.run_until_holds(|world| {
            let voter = world.judge.agreement.voter(voter);
            voter.is_some_and(|it| it.state.acceptor.accepted.is_some())
        })?;
        self.end_process(proposer, EndCause::PowerLoss, Some(Duration::from_millis(10)));
        self.host(proposer).sync_max = sync_max;
        self.end_fault(FaultEnd::ReconnectPaths(vec![(proposer, third)]));
        let cut_off = self.cut_off(voter);
        self.run_for(LINKED_WITHIN)?;
        self.propose_weight(proposer);
        self.run_for(REQUEST_TIMEOUT)?;
        self.end_fault(FaultEnd::ReconnectPaths(cut_off));
        Ok(())
    }

    /// Runs until a condition holds that lasts for a moment only.
    fn run_until_holds(&mut self, holds: impl Fn(&Self) -> bool) -> Result<(), InvariantViolation> {
        const STEP: Duration = Duration::from_micros(100);
        let end = self.now + DECISION_WITHIN;
        while !holds(self) && self.now < end {
            self.run_for(STEP)?;
        }
        Ok(())
    }

    /// Cuts off a node. Returns the paths.
    fn cut_off(&mut self, node: NodeIndex) -> Vec<(NodeIndex, NodeIndex)> {
        let others = self.nodes().filter(|other| *other != node);
        let cuts: Vec<_> = others.flat_map(|other| [(other, node), (node, other)]).collect();
        cuts.iter().for_each(|(from, to)| self.network.cut(*from, *to, true));
        cuts
    }

    fn other_than(&self, first: NodeIndex, second: NodeIndex) -> NodeIndex {
        self.nodes().find(|node| *node != first && *node != second).expect("there are three nodes")
    }

    fn propose_weight(&mut self, proposer: NodeIndex) {
        if let Some(endpoint) = self.endpoint(proposer, Requester::Node)
            && let Some(record) = self.draw_weight_change(proposer)
        {
            self.propose(endpoint, record, REQUEST_TIMEOUT);
        }
    }

    fn is_acknowledged(&self, id: RequestId) -> bool {
        let outcome = self.judge.history.get(id).and_then(|operation| operation.outcome.as_ref());
        outcome.is_some_and(|(_, outcome)| matches!(outcome, ClientOutcome::Written { .. }))
    }

    /// Keys of which this node is no replica by default.
    fn keys_without_replica_at(&self, node: NodeIndex) -> Vec<Key> {
        let from = self.scenario.default_from;
        (0..)
            .map(|number: u64| Key::new(format!("late-{number}").into()).expect("short and not empty"))
            .filter(|key| !self.layout().is_replica(node, key, from))
            .take(LATE_WRITES)
            .collect()
    }
}
