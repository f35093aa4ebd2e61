//! The agreement on layout records in the liveness phase.

use crate::check::InvariantViolation;
use crate::check::layout_convergence::{self, CONVERGED_WITHIN, DECIDED_WITHIN};
use crate::history::votes_needed;
use crate::host::EndCause;
use crate::run::SETTLED_WITHIN;
use crate::scenario::FaultKind;
use crate::world::members::host_of;
use crate::world::{World, WorldEvent};
use cluster::{ChainRecord, LayoutRecord, NodeIndex, ProposalOutcome, Requester};
use std::sync::Arc;
use std::time::Duration;

/// Interval at which a proposal is looked at, and after which a refused one is repeated.
const POLL_EVERY: Duration = Duration::from_millis(20);
/// Time between two directories that are emptied.
const EMPTIED_EVERY: Duration = Duration::from_secs(2);
/// Time in which a plan ends once there is no fault, and interval at which it is looked at.
const PLAN_ENDS_WITHIN: Duration = Duration::from_secs(60);
const PLAN_POLL_EVERY: Duration = Duration::from_millis(200);
/// Time until nodes that join are members.
const JOINED_WITHIN: Duration = Duration::from_secs(30);
/// Time in which a cluster of settled nodes that are linked names their ids.
const NAMED_WITHIN: Duration = Duration::from_secs(10);

impl World {
    /// Nodes lose their directories before all nodes were up once, so before a record names ids.
    /// The cluster names them nevertheless.
    pub(crate) fn empty_before_naming(&mut self) -> Result<(), InvariantViolation> {
        let late = self.scenario.dimensions.late_node();
        let others: Vec<_> = self.nodes().filter(|node| Some(node.0) != late).collect();
        let emptied = 1 + self.layout_rng().below(others.len() as u64) as usize;
        for node in others.into_iter().take(emptied) {
            self.run_for(EMPTIED_EVERY)?;
            self.end_process(node, EndCause::PowerLoss, Some(EMPTIED_EVERY / 4));
            self.replace_disk(node);
        }
        self.run_for(EMPTIED_EVERY)?;
        let late = late.map(NodeIndex).expect("the dimension names a node");
        self.after(Duration::ZERO, WorldEvent::Start(late));
        self.wait_until("an emptied node is not settled", SETTLED_WITHIN, Self::is_settled)?;
        self.wait_until_named()
    }

    /// Waits until a record names the ids of all members.
    pub(crate) fn wait_until_named(&mut self) -> Result<(), InvariantViolation> {
        self.wait_until("the ids of settled nodes are not named", NAMED_WITHIN, |world| {
            let mut adopted = world.adopted_layouts().into_iter();
            adopted.all(|(_, record)| record.is_some_and(|record| !record.needs_all_voters()))
        })
    }

    /// All nodes adopt the newest record, decide a change of it, and adopt that too.
    pub(crate) fn check_agreement(&mut self) -> Result<(), InvariantViolation> {
        if self.judge.agreement.first_records() > 1 {
            // Nodes with different first records do not agree.
            return Ok(());
        }
        self.wait_until_layouts_converged()?;
        if !self.can_decide() {
            return match self.may_lack_voters() {
                true => Ok(()),
                false => Err(InvariantViolation::new(
                    "layout_convergence",
                    format!("no majority may vote although every directory was kept: {}", self.voters()),
                )),
            };
        }
        self.decide_a_change()?;
        self.wait_until_layouts_converged()
    }

    /// Nodes that join become members.
    pub(crate) fn wait_until_joined(&mut self) -> Result<(), InvariantViolation> {
        let otherwise = "a node does not join although there is no fault";
        self.wait_until(otherwise, JOINED_WITHIN, |world| {
            !world.has_joins() || !world.can_decide() && world.may_lack_voters()
        })
    }

    /// The running plan goes on, and ends.
    pub(crate) fn wait_until_plans_end(&mut self) -> Result<(), InvariantViolation> {
        if self.judge.agreement.first_records() > 1 || (!self.can_decide() && self.may_lack_voters()) {
            return Ok(());
        }
        let end = self.now + PLAN_ENDS_WITHIN;
        let is_left = |world: &mut Self| {
            let has_dead = !world.remove_dead_members();
            world.newest_adopted().filter(|record| record.plan.is_some() || has_dead)
        };
        while let Some(record) = is_left(self) {
            if self.now >= end {
                let detail = format!(
                    "a plan does not end within {PLAN_ENDS_WITHIN:?}: {:?} with {:?}",
                    record.plan, record.members
                );
                return Err(InvariantViolation::new("plans_end", detail));
            }
            if record.plan.as_ref().is_some_and(|plan| plan.is_paused) {
                let node = self.draw_proposer();
                self.resume_plan(node);
            }
            self.run_for(PLAN_POLL_EVERY)?;
        }
        self.wait_until_layouts_converged()
    }

    /// The newest record that a running member has adopted.
    fn newest_adopted(&mut self) -> Option<Arc<LayoutRecord>> {
        let adopted = self.adopted_layouts().into_iter().filter_map(|(_, record)| record);
        adopted.max_by_key(|record| record.epoch)
    }

    fn wait_until_layouts_converged(&mut self) -> Result<(), InvariantViolation> {
        let end = self.now + CONVERGED_WITHIN;
        while let Err(violation) = layout_convergence::check(&self.adopted_layouts()) {
            if self.now >= end {
                return Err(violation);
            }
            self.run_for(POLL_EVERY)?;
        }
        Ok(())
    }

    fn adopted_layouts(&mut self) -> Vec<(NodeIndex, Option<Arc<LayoutRecord>>)> {
        self.nodes().map(|node| (node, self.adopted_layout(node))).collect()
    }

    /// Whether enough voters of the newest record have the ids that it names, and may vote by their
    /// histories.
    fn can_decide(&mut self) -> bool {
        let Some(record) = self.newest_adopted() else { return false };
        let may_vote = |slot: &&NodeIndex| {
            let host = record.member(**slot).and_then(|member| host_of(&member.url));
            let voter = host.and_then(|host| self.judge.agreement.voter(host));
            voter.is_some_and(|voter| {
                record.is_voter(voter.node) && voter.state.history.permits_votes(voter.node, &record)
            })
        };
        let voting = record.voters.iter().filter(may_vote).count();
        voting >= votes_needed(&record)
    }

    /// Whether a node may have lost votes in this run: it lost data, or began to rebuild because it
    /// could not read what it knew.
    fn may_lack_voters(&self) -> bool {
        let is_reading = |kind: &FaultKind| matches!(kind, FaultKind::BadReads | FaultKind::DamageTable);
        self.nemesis.disks_lost > 0
            || self.nemesis.tables_damaged > 0
            || self.scenario.has_short_absences()
            || self.scenario.fault_kinds.iter().any(is_reading)
    }

    /// Has a node propose a change until it is decided. Another node may decide one of its own
    /// meanwhile. While a plan runs, its steps may do so again and again.
    fn decide_a_change(&mut self) -> Result<(), InvariantViolation> {
        let proposer = self.draw_proposer();
        let plan_ends = self.now + PLAN_ENDS_WITHIN;
        let mut end = self.now + DECIDED_WITHIN;
        let mut last = String::from("it is running");
        while self.now < end {
            let Some(endpoint) = self.endpoint(proposer, Requester::Node) else { break };
            let Some(record) = self.draw_weight_change(proposer) else { break };
            // The outcome of an earlier proposal is none of this one.
            if let Some(process) = self.process(endpoint) {
                process.proposal_end = None;
            }
            self.propose(endpoint, record, end - self.now);
            let refused = self.process(endpoint).and_then(|process| process.proposed.err());
            if let Some(error) = refused {
                last = error.to_string();
                self.run_for(POLL_EVERY)?;
                continue;
            }
            while self.now <= end {
                let outcome = self.process(endpoint).and_then(|process| process.proposal_end.take());
                match outcome {
                    Some(ProposalOutcome::Decided(_)) => return Ok(()),
                    Some(outcome) => {
                        if self.newest_adopted().is_some_and(|record| record.plan.is_some()) {
                            end = plan_ends.min(self.now + DECIDED_WITHIN);
                        }
                        last = format!("{outcome:?}");
                        break;
                    }
                    None => self.run_for(POLL_EVERY)?,
                }
            }
        }
        // A record that was chosen and known to nobody may have changed the voters meanwhile.
        if !self.can_decide() && self.may_lack_voters() {
            return Ok(());
        }
        let detail = format!(
            "{proposer:?} proposes a change, and it is not decided within {DECIDED_WITHIN:?}: {last}; {}",
            self.voters()
        );
        Err(InvariantViolation::new("layout_convergence", detail))
    }

    /// The durable states of all voters, for messages of violations.
    fn voters(&self) -> String {
        let voters: Vec<_> = self.hosts_of_nodes().map(|node| self.judge.agreement.voter(node)).collect();
        format!("{voters:?}")
    }
}
