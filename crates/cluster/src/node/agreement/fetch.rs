//! Records that peers hold: newer ones are read and adopted, and those that contradict the record
//! of this node are reported.
//!
//! Heartbeats carry the [`LayoutStamp`] of the sender's adopted record. At most one record is being
//! read at a time. A refused record is not read again from that peer, until the peer has another
//! one. A record is known to be refused by its own hash: the peer may have adopted another one
//! since it sent it.
//!
//! A node that was started without the `default_from` of its cluster computes another epoch 1. It
//! adopts the cluster's epoch 2 all the same: see "Two epochs 1" in `epoch_chain`.

use super::{Agreement, AgreementEffect};
use crate::node::dispatch::RequestPurpose;
use crate::{
    ChainRequest, LayoutDecodeError, LayoutEpoch, LayoutRecord, LayoutRecordError, LayoutStamp, LinkId,
    MessageId, Node, NodeIndex, NodeRequest, NodeResponse, PeerAnswer, RecordHash, ReplicaFault,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Instant, Now};

/// Time between a read of a record that was not answered with a newer one and the next read.
const RETRY_AFTER: Duration = Duration::from_millis(250);

/// A record of a peer that contradicts the one of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutConflict {
    /// The peer.
    pub node: NodeIndex,
    /// Epoch of its record, as far as it is known.
    pub epoch: Option<LayoutEpoch>,
    /// The contradiction.
    pub reason: LayoutConflictReason,
}

/// The reason why two records contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutConflictReason {
    /// The records have the same epoch and are different.
    #[error("it has another record of the same epoch")]
    AnotherRecord,
    /// The records belong to different clusters.
    #[error("its record is of another cluster")]
    AnotherCluster,
    /// The record does not follow that of this node.
    #[error("its record is refused: {0}")]
    Refused(LayoutRecordError),
    /// This release cannot read the record.
    #[error("its record cannot be read: {0}")]
    Unreadable(LayoutDecodeError),
}

/// The records of peers, as their heartbeats report them.
#[derive(Debug)]
pub(super) struct Fetch {
    /// The stamp that each peer has sent last.
    heard: BTreeMap<NodeIndex, LayoutStamp>,
    /// The last stamp of each peer that was reported because it differs from the own one in its
    /// epoch.
    reported: BTreeMap<NodeIndex, LayoutStamp>,
    /// Hash of the last record of each peer that was refused and reported.
    refused: BTreeMap<NodeIndex, RecordHash>,
    /// The peer whose record is being read.
    in_flight: Option<NodeIndex>,
    retry_at: Instant,
}

impl Fetch {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            heard: BTreeMap::new(),
            reported: BTreeMap::new(),
            refused: BTreeMap::new(),
            in_flight: None,
            retry_at: now,
        }
    }

    /// Records the stamp of a peer's heartbeat.
    pub(super) fn hear(&mut self, node: NodeIndex, stamp: LayoutStamp) {
        self.heard.insert(node, stamp);
    }

    /// Forgets a node that is a member no more.
    pub(super) fn forget(&mut self, node: NodeIndex) {
        self.heard.remove(&node);
        self.reported.remove(&node);
        self.refused.remove(&node);
    }

    /// The peers that were last heard with a record of an older epoch.
    pub(super) fn behind(&self, epoch: LayoutEpoch) -> impl Iterator<Item = NodeIndex> {
        self.heard.iter().filter(move |(_, stamp)| stamp.epoch < epoch).map(|(node, _)| *node)
    }

    /// The peers with a record newer than `epoch` that was not refused, the newest first.
    fn newer_than(&self, epoch: LayoutEpoch) -> Vec<NodeIndex> {
        let is_refused = |node: &NodeIndex, stamp: &LayoutStamp| {
            self.refused.get(node).is_some_and(|refused| LayoutStamp::new(stamp.epoch, *refused) == *stamp)
        };
        let newer = self.heard.iter().filter(|(node, stamp)| stamp.epoch > epoch && !is_refused(node, stamp));
        let mut newer: Vec<_> = newer.map(|(node, stamp)| (std::cmp::Reverse(stamp.epoch), *node)).collect();
        newer.sort_unstable();
        newer.into_iter().map(|(_, node)| node).collect()
    }
}

impl Node {
    /// Reports conflicts with the records of peers, and reads a newer record.
    pub(super) fn advance_fetch(&mut self, now: Now) {
        let Some(agreement) = &mut self.agreement else { return };
        agreement.report_other_records();
        if agreement.fetch.in_flight.is_some() || now.mono < agreement.fetch.retry_at {
            return;
        }
        let newer = agreement.fetch.newer_than(agreement.voter.decided().epoch);
        let Some(node) = newer.into_iter().find(|&node| self.speaks_chain(node)) else { return };
        if let Some(agreement) = &mut self.agreement {
            agreement.fetch.in_flight = Some(node);
            self.outbox.request_peer(now.mono, node, RequestPurpose::ReadLayout, NodeRequest::ReadLayout);
        }
    }

    /// Whether a linked peer reports a newer record, which was not refused.
    pub(super) fn hears_newer_record(&self) -> bool {
        let Some(agreement) = &self.agreement else { return false };
        let newer = agreement.fetch.newer_than(agreement.voter.decided().epoch);
        newer.into_iter().any(|node| self.speaks_chain(node))
    }

    /// Answers a peer that reads the adopted record.
    pub(in crate::node) fn handle_layout_request(&mut self, link: LinkId, id: MessageId) {
        let answer = match &self.agreement {
            Some(agreement) => NodeResponse::Layout(agreement.adopted.encoded.clone()).into(),
            None => PeerAnswer::Failed(ReplicaFault::NotServing),
        };
        self.outbox.answer(link, id, answer);
    }

    /// Handles the record of a peer. `None`: there is no answer.
    pub(in crate::node) fn handle_layout_answer(
        &mut self,
        now: Now,
        node: NodeIndex,
        answer: Option<PeerAnswer>,
    ) {
        let is_replaced = self.peer(node).is_dialed_replaced();
        let Some(agreement) = &mut self.agreement else { return };
        agreement.fetch.in_flight = None;
        match answer.filter(|_| !is_replaced) {
            Some(PeerAnswer::Node(NodeResponse::Layout(encoded))) => match encoded.decode() {
                Ok(record) => agreement.learn_from(node, Arc::new(record)),
                Err(error) => agreement.report_unreadable(node, Some(encoded.hash()), error),
            },
            _ => agreement.fetch.retry_at = now.mono + RETRY_AFTER,
        }
    }
}

impl Agreement {
    /// Learns a decided record that a peer holds, or reports it as a conflict.
    fn learn_from(&mut self, node: NodeIndex, record: Arc<LayoutRecord>) {
        if record.epoch <= self.voter.decided().epoch {
            return;
        }
        match self.contradiction_of(&record) {
            None => self.voter.learn(record),
            Some(reason) => self.report_refused(node, Some(record.epoch), record.hash(), reason),
        }
    }

    /// Reports a decided record that a peer sends and this node does not learn.
    pub(super) fn report_unless_learnable(
        &mut self,
        node: NodeIndex,
        request: &ChainRequest<Arc<LayoutRecord>>,
    ) {
        if let ChainRequest::Learn(record) = request
            && record.epoch > self.voter.decided().epoch
            && let Some(reason) = self.contradiction_of(record)
        {
            self.report_refused(node, Some(record.epoch), record.hash(), reason);
        }
    }

    fn contradiction_of(&self, record: &Arc<LayoutRecord>) -> Option<LayoutConflictReason> {
        let decided = self.voter.decided();
        if record.cluster != decided.cluster {
            return Some(LayoutConflictReason::AnotherCluster);
        }
        if let Err(error) = self.voter.check_supported(record) {
            return Some(LayoutConflictReason::Refused(error));
        }
        let refused = record.verify_newer(decided).err();
        refused.filter(|_| !self.voter.adopts_child_of_other_first(record)).map(LayoutConflictReason::Refused)
    }

    /// Reports a record of a peer with this hash that this release cannot read.
    pub(super) fn report_unreadable(
        &mut self,
        node: NodeIndex,
        record: Option<RecordHash>,
        error: LayoutDecodeError,
    ) {
        let Some(hash) = record else { return };
        let heard = self.fetch.heard.get(&node).map(|stamp| stamp.epoch);
        let epoch = heard.filter(|epoch| LayoutStamp::new(*epoch, hash) == self.fetch.heard[&node]);
        self.report_refused(node, epoch, hash, LayoutConflictReason::Unreadable(error));
    }

    /// Reports the peers that have adopted another record for the epoch of this node's.
    fn report_other_records(&mut self) {
        let own = self.adopted.stamp;
        let is_other = |stamp: &LayoutStamp| stamp.epoch == own.epoch && *stamp != own;
        for (&node, stamp) in self.fetch.heard.iter().filter(|(_, stamp)| is_other(stamp)) {
            if self.fetch.reported.insert(node, *stamp) != Some(*stamp) {
                let reason = LayoutConflictReason::AnotherRecord;
                let conflict = LayoutConflict { node, epoch: Some(own.epoch), reason };
                self.effects.push_back(AgreementEffect::Conflict(conflict));
            }
        }
    }

    /// Reports a refused record of a peer once, by its hash.
    fn report_refused(
        &mut self,
        node: NodeIndex,
        epoch: Option<LayoutEpoch>,
        hash: RecordHash,
        reason: LayoutConflictReason,
    ) {
        if self.fetch.refused.insert(node, hash) != Some(hash) {
            self.effects.push_back(AgreementEffect::Conflict(LayoutConflict { node, epoch, reason }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        AdoptedRecord, ChainRequester, DurableVoter, OwnStatements, PlanProgress, Proposals, Reconciliation,
    };
    use super::*;
    use crate::{
        AcceptorState, ChainNode, ClusterOrigin, FEATURE_LEVEL_MAX_DEFAULT, Incarnation, ProposalBallot,
        VoteHistory, VoterState,
    };
    use std::collections::VecDeque;
    use stdx::NodeTag;

    const PEER: NodeIndex = NodeIndex(1);

    fn first() -> LayoutRecord {
        let nodes = ["http://a:1", "http://b:1", "http://c:1"].map(String::from).to_vec();
        let origin =
            ClusterOrigin { nodes, partitions: 4, hash_version: 1, default_from: 3, tag: NodeTag(7) };
        LayoutRecord::first(origin).expect("three nodes are a cluster")
    }

    fn agreement() -> Agreement {
        let (me, record) = (ChainNode { slot: NodeIndex(0), id: NodeTag(7) }, Arc::new(first()));
        let acceptor = AcceptorState::of(Arc::clone(&record));
        let state = VoterState { history: VoteHistory::Complete, acceptor };
        Agreement {
            me,
            voter: DurableVoter::new(me, state, FEATURE_LEVEL_MAX_DEFAULT, Instant::ZERO),
            adopted: AdoptedRecord::new(record),
            proposals: Proposals::default(),
            commands: super::super::Commands::default(),
            fetch: Fetch::new(Instant::ZERO),
            reconciliation: Reconciliation::default(),
            statements: OwnStatements::default(),
            progress: PlanProgress::default(),
            effects: VecDeque::new(),
        }
    }

    /// Epoch 1 with other voters, which no node builds from the list of [`first`].
    fn other_first() -> LayoutRecord {
        LayoutRecord { voters: vec![PEER], ..first() }
    }

    /// A record of this epoch after some parent.
    fn record(epoch: u64, parent: &LayoutRecord) -> Arc<LayoutRecord> {
        Arc::new(LayoutRecord { epoch: LayoutEpoch(epoch), parent: parent.hash(), ..parent.clone() })
    }

    fn stamp(record: &LayoutRecord) -> LayoutStamp {
        LayoutStamp::new(record.epoch, record.hash())
    }

    #[test]
    fn a_record_is_read_although_an_earlier_one_was_refused_after_it_was_heard_of() {
        let mut agreement = agreement();
        let refused = record(2, &other_first());
        let next = record(2, &first());
        agreement.fetch.hear(PEER, stamp(&refused));
        assert_eq!(agreement.fetch.newer_than(LayoutEpoch(1)), [PEER]);
        agreement.fetch.hear(PEER, stamp(&next));
        agreement.learn_from(PEER, refused);
        assert_eq!(agreement.effects.len(), 1, "the refused record is reported");
        assert_eq!(agreement.fetch.newer_than(LayoutEpoch(1)), [PEER]);
    }

    #[test]
    fn the_child_of_a_first_record_with_another_default_is_adopted_before_any_vote() {
        let next = record(2, &LayoutRecord { default_from: 2, ..first() });
        let mut promised = agreement();
        let ballot = ProposalBallot { round: 1, proposer: NodeTag(8), incarnation: Incarnation(9) };
        let request = ChainRequest::Prepare { epoch: LayoutEpoch(2), ballot };
        promised.voter.handle(ChainRequester::Own, request, true).expect("few wait");
        promised.learn_from(PEER, Arc::clone(&next));
        assert_eq!(*promised.voter.decided().as_ref(), first(), "it has promised");
        assert_eq!(promised.effects.len(), 1, "the refused record is reported");
        let mut agreement = agreement();
        agreement.learn_from(PEER, record(2, &other_first()));
        assert_eq!((agreement.voter.decided().epoch, agreement.effects.len()), (LayoutEpoch(1), 1));
        agreement.learn_from(PEER, Arc::clone(&next));
        assert_eq!((agreement.voter.decided(), agreement.effects.len()), (&next, 1));
        let of_first = record(2, &first());
        agreement.learn_from(PEER, of_first);
        assert_eq!(agreement.voter.decided(), &next, "another record of the epoch is none to adopt");
    }

    #[test]
    fn a_refused_record_is_reported_once_and_not_read_again() {
        let mut agreement = agreement();
        let refused = record(2, &other_first());
        // The peer was not heard since it has adopted the record, and then it is.
        agreement.fetch.hear(PEER, stamp(&other_first()));
        agreement.report_other_records();
        agreement.learn_from(PEER, Arc::clone(&refused));
        agreement.report_other_records();
        agreement.fetch.hear(PEER, stamp(&refused));
        assert_eq!(agreement.fetch.newer_than(LayoutEpoch(1)), []);
        agreement.learn_from(PEER, refused);
        let reasons = agreement.effects.iter().map(|effect| match effect {
            AgreementEffect::Conflict(conflict) => conflict.reason,
            effect => panic!("{effect:?}"),
        });
        let refusal = LayoutConflictReason::Refused(LayoutRecordError::NotTheChild);
        assert_eq!(reasons.collect::<Vec<_>>(), [LayoutConflictReason::AnotherRecord, refusal]);
    }
}
