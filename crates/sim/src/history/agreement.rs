//! The layout records of a run: the votes that are durable, the votes that were told to proposers,
//! and the records that nodes adopted.
//!
//! A record counts as decided when enough voters of its parent have durably accepted it with one
//! ballot, even if no node knows that: all of them if the parent lacks ids, else a majority. The
//! judge derives this from the states of voters that stores have made durable, and not from what
//! nodes report.
//!
//! A voter without an id that lost its directory is another one. When it has told its first vote,
//! proposers count no vote of the lost one any more. A record whose parent lacks ids may be
//! forgotten with all directories that have it.

use crate::check::{
    InvariantViolation, adopted_epochs, child_records, decided_records, durable_votes, kept_votes,
    one_record, remembered_records,
};
use cluster::{
    AcceptorState, ChainNode, ChainRecord, ChainResponse, ClusterId, Incarnation, LayoutEpoch, LayoutRecord,
    NodeIndex, ProposalBallot, RecordHash, VoterState, majority,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// An epoch of a lineage.
type ChainEpoch = (ClusterId, LayoutEpoch);

/// A record that was decided.
#[derive(Clone, Debug)]
pub struct DecidedRecord {
    /// The record.
    pub record: Arc<LayoutRecord>,
    /// Its hash.
    pub hash: RecordHash,
    /// The record whose voters have decided it.
    pub parent: Arc<LayoutRecord>,
    /// The voters whose votes have decided it, each with the number of the last directory that its
    /// slot had lost when it voted.
    deciders: BTreeMap<NodeIndex, u64>,
}

/// The durable state of the voter of a host.
#[derive(Clone, Debug)]
pub struct HostVoter {
    /// Slot and identity.
    pub node: ChainNode,
    /// The state.
    pub state: VoterState,
}

/// The votes that a voter has told to proposers, for one epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToldVotes {
    /// The greatest ballot that was promised.
    pub promised: Option<ProposalBallot>,
    /// The greatest ballot with which a record was accepted.
    pub accepted: Option<ProposalBallot>,
}

/// Voters that have durably accepted one record with one ballot, each with the number of the last
/// directory that its slot had lost then.
#[derive(Clone, Debug)]
struct BallotVotes {
    hash: RecordHash,
    voters: BTreeMap<NodeIndex, u64>,
}

/// Number of votes that decide the child of a record.
pub fn votes_needed(parent: &LayoutRecord) -> usize {
    let voters = parent.voters.len();
    if parent.needs_all_voters() { voters } else { majority(voters as u32) as usize }
}

/// The layout records of a run.
#[derive(Clone, Debug, Default)]
pub struct AgreementHistory {
    /// The first records that nodes have built: one, unless their defaults differ.
    first: BTreeMap<RecordHash, Arc<LayoutRecord>>,
    decided: BTreeMap<ChainEpoch, DecidedRecord>,
    votes: BTreeMap<(ChainEpoch, ProposalBallot), BallotVotes>,
    /// What the voter in each slot has told, with the number of its last lost directory if its
    /// parent lacks ids.
    told: BTreeMap<(ChainEpoch, NodeIndex), (u64, ToldVotes)>,
    /// The last durable state of each host, until its directory is lost.
    voters: BTreeMap<NodeIndex, HostVoter>,
    /// The last epoch that the node of each host has adopted, until its directory is lost.
    adopted: BTreeMap<NodeIndex, LayoutEpoch>,
    /// Number of directories that were lost, and the number of the last one of each slot.
    lost: u64,
    lost_of_slot: BTreeMap<NodeIndex, u64>,
}

impl AgreementHistory {
    /// The durable state of the voter of a host.
    pub fn voter(&self, host: NodeIndex) -> Option<&HostVoter> {
        self.voters.get(&host)
    }

    /// Number of different first records that nodes have built.
    pub fn first_records(&self) -> usize {
        self.first.len()
    }

    /// Number of decided records.
    pub fn decided_records(&self) -> usize {
        self.decided.len()
    }

    /// Records the state with which a process of a host starts.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn note_start(
        &mut self,
        host: NodeIndex,
        node: ChainNode,
        state: &VoterState,
    ) -> Result<(), InvariantViolation> {
        let epoch = state.acceptor.decided.epoch;
        adopted_epochs::check(host, self.adopted.get(&host).copied(), epoch)?;
        self.note_durable(host, node, state)?;
        self.check_remembered()
    }

    /// Records a state that the store of a host has made durable.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn note_durable(
        &mut self,
        host: NodeIndex,
        node: ChainNode,
        state: &VoterState,
    ) -> Result<(), InvariantViolation> {
        self.voters.insert(host, HostVoter { node, state: state.clone() });
        let parent = &state.acceptor.decided;
        self.note_held(host, parent)?;
        let Some(vote) = state.acceptor.accepted.as_ref().filter(|_| parent.is_voter(node)) else {
            return Ok(());
        };
        let epoch = (parent.cluster, vote.record.epoch);
        let (hash, lost) = (vote.record.hash(), self.last_lost(node.slot));
        let of_ballot = self
            .votes
            .entry((epoch, vote.ballot))
            .or_insert_with(|| BallotVotes { hash, voters: BTreeMap::new() });
        one_record::check_ballot(vote.ballot, of_ballot.hash, hash)?;
        of_ballot.voters.insert(node.slot, lost);
        if of_ballot.voters.len() < votes_needed(parent) {
            return Ok(());
        }
        let deciders = of_ballot.voters.clone();
        self.note_decided(epoch, &vote.record, parent, deciders)
    }

    fn note_decided(
        &mut self,
        epoch: ChainEpoch,
        record: &Arc<LayoutRecord>,
        parent: &Arc<LayoutRecord>,
        deciders: BTreeMap<NodeIndex, u64>,
    ) -> Result<(), InvariantViolation> {
        let hash = record.hash();
        if let Some(known) = self.decided.get(&epoch) {
            return one_record::check(epoch.1, known.hash, hash);
        }
        child_records::check(record, parent)?;
        let (record, parent) = (Arc::clone(record), Arc::clone(parent));
        self.decided.insert(epoch, DecidedRecord { record, hash, parent, deciders });
        Ok(())
    }

    /// Checks a record that a node holds as decided.
    fn note_held(&mut self, host: NodeIndex, record: &Arc<LayoutRecord>) -> Result<(), InvariantViolation> {
        let hash = record.hash();
        if record.epoch == LayoutEpoch::FIRST {
            self.first.entry(hash).or_insert_with(|| Arc::clone(record));
            return Ok(());
        }
        let known = self.decided.get(&(record.cluster, record.epoch)).map(|known| known.hash);
        known.map_or(Ok(()), |known| one_record::check(record.epoch, known, hash))?;
        decided_records::check(host, record, known)
    }

    /// Records an answer of a host to a proposer.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn note_told<R>(
        &mut self,
        host: NodeIndex,
        response: &ChainResponse<R>,
    ) -> Result<(), InvariantViolation> {
        let (epoch, told) = match response {
            ChainResponse::Promised { epoch, ballot, accepted } => {
                let accepted = accepted.as_ref().map(|vote| vote.ballot);
                (*epoch, kept_votes::Told::Promise { ballot: *ballot, accepted })
            }
            ChainResponse::Accepted { epoch, ballot } => (*epoch, kept_votes::Told::Vote { ballot: *ballot }),
            _ => return Ok(()),
        };
        let voter = self.voters.get(&host);
        durable_votes::check(host, voter.map(|voter| &voter.state.acceptor), epoch, told)?;
        self.note_kept(host, epoch, told)
    }

    /// Records that the node of a host has learned that its state is durable. Its process counts
    /// its vote on its own ballot then. Ballots of earlier processes do not count, nor those of the
    /// process whose directory was copied.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn note_own_vote(
        &mut self,
        host: NodeIndex,
        incarnation: Incarnation,
    ) -> Result<(), InvariantViolation> {
        let Some(HostVoter { node, state }) = self.voters.get(&host) else { return Ok(()) };
        let AcceptorState { decided, promised, accepted } = &state.acceptor;
        let is_own =
            |ballot: &ProposalBallot| (ballot.proposer, ballot.incarnation) == (node.id, incarnation);
        let own = promised.filter(is_own).filter(|_| decided.is_voter(*node));
        let (Some(ballot), Some(epoch)) = (own, decided.epoch.next()) else { return Ok(()) };
        let accepted = accepted.as_ref().map(|vote| vote.ballot);
        let told = match accepted == Some(ballot) {
            true => kept_votes::Told::Vote { ballot },
            false => kept_votes::Told::Promise { ballot, accepted },
        };
        self.note_kept(host, epoch, told)
    }

    fn note_kept(
        &mut self,
        host: NodeIndex,
        epoch: LayoutEpoch,
        told: kept_votes::Told,
    ) -> Result<(), InvariantViolation> {
        let Some(voter) = self.voters.get(&host) else { return Ok(()) };
        let (slot, parent) = (voter.node.slot, Arc::clone(&voter.state.acceptor.decided));
        let lost = if parent.needs_all_voters() { self.last_lost(slot) } else { 0 };
        let of_epoch = (parent.cluster, epoch);
        let (lost_before, before) = self.told.entry((of_epoch, slot)).or_default();
        if *lost_before != lost {
            (*lost_before, *before) = (lost, ToldVotes::default());
            for votes in self.votes.iter_mut().filter(|((epoch, _), _)| *epoch == of_epoch) {
                votes.1.voters.retain(|voter, number| *voter != slot || *number == lost);
            }
        }
        kept_votes::check(host, epoch, *before, told)?;
        before.note(told);
        Ok(())
    }

    /// Records that the node of a host has adopted a record.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn note_adopted(
        &mut self,
        host: NodeIndex,
        record: &Arc<LayoutRecord>,
    ) -> Result<(), InvariantViolation> {
        let before = self.adopted.insert(host, record.epoch);
        adopted_epochs::check(host, before, record.epoch)?;
        let durable = self.voters.get(&host).map(|voter| voter.state.acceptor.decided.epoch);
        adopted_epochs::check_durable(host, durable, record.epoch)?;
        self.note_held(host, record)
    }

    /// Records that a host lost its directory or has another one.
    pub fn note_lost(&mut self, host: NodeIndex) {
        self.adopted.remove(&host);
        let slot = self.voters.remove(&host).map_or(host, |voter| voter.node.slot);
        self.lost += 1;
        self.lost_of_slot.insert(slot, self.lost);
        let voters: Vec<_> = self.voters.values().collect();
        let is_kept = |decided: &DecidedRecord| {
            // No fault but a restore of the whole cluster changes all directories.
            !decided.parent.needs_all_voters()
                || voters.is_empty()
                || voters.iter().any(|voter| decided.is_held_by(voter))
        };
        self.decided.retain(|_, decided| is_kept(decided));
    }

    /// Number of the last directory that this slot has lost; 0 for none.
    fn last_lost(&self, slot: NodeIndex) -> u64 {
        self.lost_of_slot.get(&slot).copied().unwrap_or_default()
    }

    /// Records that the directory of a host is a copy of another one, whose state is unknown.
    pub fn note_copied(&mut self, to: NodeIndex) {
        self.adopted.remove(&to);
        self.voters.remove(&to);
    }

    /// Records that all nodes were restored together, from directories with these records.
    pub fn note_cluster_restore(&mut self, restored: &[LayoutRecord]) {
        let newest = restored.iter().map(|record| record.epoch).max().unwrap_or(LayoutEpoch::FIRST);
        self.decided.retain(|(_, epoch), _| *epoch <= newest);
        self.votes.clear();
        self.told.clear();
    }

    /// Checks that the newest decided record of each lineage is remembered.
    fn check_remembered(&self) -> Result<(), InvariantViolation> {
        let lineages: BTreeSet<ClusterId> = self.decided.keys().map(|(cluster, _)| *cluster).collect();
        lineages.into_iter().filter_map(|cluster| self.newest(cluster)).try_for_each(|newest| {
            // A directory may be lost between the vote in it and the last vote of the ballot.
            let was_lost =
                |slot| newest.deciders.get(&slot).is_some_and(|at_vote| self.last_lost(slot) > *at_vote);
            remembered_records::check(newest, self.voters.values(), was_lost)
        })
    }

    /// The newest decided record of a lineage.
    pub fn newest(&self, cluster: ClusterId) -> Option<&DecidedRecord> {
        let epochs = (cluster, LayoutEpoch(0))..=(cluster, LayoutEpoch(u64::MAX));
        self.decided.range(epochs).next_back().map(|(_, decided)| decided)
    }
}

impl DecidedRecord {
    /// A record that the voters of `parent` have decided.
    pub fn new(record: LayoutRecord, parent: LayoutRecord) -> Self {
        let hash = record.hash();
        Self { record: Arc::new(record), hash, parent: Arc::new(parent), deciders: BTreeMap::new() }
    }

    /// Whether a voter has the record, accepted or as decided, or a later one.
    pub fn is_held_by(&self, voter: &HostVoter) -> bool {
        let acceptor = &voter.state.acceptor;
        let is_accepted = acceptor.accepted.as_ref().is_some_and(|vote| vote.record == self.record);
        let is_adopted = acceptor.decided.epoch >= self.record.epoch;
        acceptor.decided.cluster == self.record.cluster && (is_accepted || is_adopted)
    }
}

impl ToldVotes {
    fn note(&mut self, told: kept_votes::Told) {
        match told {
            kept_votes::Told::Promise { ballot, .. } => self.promised = self.promised.max(Some(ballot)),
            kept_votes::Told::Vote { ballot } => {
                self.promised = self.promised.max(Some(ballot));
                self.accepted = self.accepted.max(Some(ballot));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::testing::{ballot, child, first_record};
    use cluster::{ChainVote, VoteHistory};
    use stdx::NodeTag;

    fn node(slot: u8, id: u64) -> ChainNode {
        ChainNode { slot: NodeIndex(slot), id: NodeTag(id) }
    }

    /// The first record, with the id of slot `n` being `n + 1`.
    fn named_record() -> LayoutRecord {
        let mut record = first_record();
        for member in &mut record.members {
            member.node_id = Some(NodeTag(u64::from(member.slot.0) + 1));
        }
        record
    }

    /// The state of a voter that has voted for the child of the first record, or for nothing.
    fn state(has_voted: bool) -> VoterState {
        let decided = Arc::new(named_record());
        let record = Arc::new(child(&decided));
        let vote = has_voted.then(|| ChainVote { ballot: ballot(1), record });
        let acceptor = AcceptorState { decided, promised: Some(ballot(1)), accepted: vote };
        VoterState { history: VoteHistory::Complete, acceptor }
    }

    #[test]
    fn a_voter_whose_directory_was_lost_before_the_last_vote_has_forgotten_nothing() {
        let mut history = AgreementHistory::default();
        history.note_durable(NodeIndex(0), node(0, 1), &state(true)).expect("a vote");
        history.note_lost(NodeIndex(0));
        history.note_durable(NodeIndex(1), node(1, 2), &state(true)).expect("the vote that decides");
        assert_eq!(history.decided_records(), 1);
        history.note_start(NodeIndex(0), node(0, 9), &state(false)).expect("its directory was lost");
        history.note_start(NodeIndex(1), node(1, 2), &state(false)).expect_err("it has forgotten its vote");
    }

    #[test]
    fn a_lost_directory_without_a_vote_excuses_nobody() {
        let mut history = AgreementHistory::default();
        history.note_durable(NodeIndex(0), node(0, 1), &state(true)).expect("a vote");
        history.note_durable(NodeIndex(1), node(1, 2), &state(true)).expect("the vote that decides");
        history.note_durable(NodeIndex(2), node(2, 3), &state(false)).expect("no vote");
        history.note_lost(NodeIndex(2));
        history.note_start(NodeIndex(1), node(1, 2), &state(false)).expect_err("it has forgotten its vote");
    }
}
