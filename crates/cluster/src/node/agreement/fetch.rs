//! Records that peers hold: newer ones are read and adopted, and those that contradict the record
//! of this node are reported.
//!
//! Heartbeats carry the [`LayoutStamp`] of the sender's adopted record. At most one record is being
//! read at a time. A refused record is not read again from that peer, until the peer has another
//! one.

use super::{Agreement, AgreementEffect};
use crate::node::dispatch::RequestPurpose;
use crate::{
    ChainRequest, LayoutDecodeError, LayoutEpoch, LayoutRecord, LayoutRecordError, LayoutStamp, LinkId,
    MessageId, Node, NodeIndex, NodeRequest, NodeResponse, PeerAnswer, ReplicaFault,
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
    heard: BTreeMap<NodeIndex, LayoutStamp>,
    /// The records that were reported as conflicts.
    reported: BTreeMap<NodeIndex, Option<LayoutStamp>>,
    /// The peer whose record is being read.
    in_flight: Option<NodeIndex>,
    retry_at: Instant,
}

impl Fetch {
    pub(super) const fn new(now: Instant) -> Self {
        Self { heard: BTreeMap::new(), reported: BTreeMap::new(), in_flight: None, retry_at: now }
    }

    /// Records the stamp of a peer's heartbeat.
    pub(super) fn hear(&mut self, node: NodeIndex, stamp: LayoutStamp) {
        self.heard.insert(node, stamp);
    }

    /// The peers with a record newer than `epoch` that was not refused, the newest first.
    fn newer_than(&self, epoch: LayoutEpoch) -> Vec<NodeIndex> {
        let is_refused = |node: &NodeIndex, stamp| self.reported.get(node) == Some(&Some(stamp));
        let newer =
            self.heard.iter().filter(|(node, stamp)| stamp.epoch > epoch && !is_refused(node, **stamp));
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
        let Some(agreement) = &mut self.agreement else { return };
        agreement.fetch.in_flight = None;
        match answer {
            Some(PeerAnswer::Node(NodeResponse::Layout(encoded))) => match encoded.decode() {
                Ok(record) => agreement.learn_from(node, Arc::new(record)),
                Err(error) => agreement.report_unreadable(node, error),
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
            Some(reason) => self.report(node, Some(record.epoch), reason),
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
            self.report(node, Some(record.epoch), reason);
        }
    }

    fn contradiction_of(&self, record: &LayoutRecord) -> Option<LayoutConflictReason> {
        let decided = self.voter.decided();
        if record.cluster != decided.cluster {
            return Some(LayoutConflictReason::AnotherCluster);
        }
        record.verify_newer(decided).err().map(LayoutConflictReason::Refused)
    }

    pub(super) fn report_unreadable(&mut self, node: NodeIndex, error: LayoutDecodeError) {
        let epoch = self.fetch.heard.get(&node).map(|stamp| stamp.epoch);
        self.report(node, epoch, LayoutConflictReason::Unreadable(error));
    }

    /// Reports the peers that have adopted another record for the epoch of this node's.
    fn report_other_records(&mut self) {
        let own = self.adopted.stamp;
        let is_other = |stamp: &LayoutStamp| stamp.epoch == own.epoch && *stamp != own;
        let others = self.fetch.heard.iter().filter(|(_, stamp)| is_other(stamp));
        let others: Vec<NodeIndex> = others.map(|(node, _)| *node).collect();
        for node in others {
            self.report(node, Some(own.epoch), LayoutConflictReason::AnotherRecord);
        }
    }

    /// Reports a conflict once for each record of a peer.
    fn report(&mut self, node: NodeIndex, epoch: Option<LayoutEpoch>, reason: LayoutConflictReason) {
        let stamp = self.fetch.heard.get(&node).copied();
        if self.fetch.reported.insert(node, stamp) != Some(stamp) {
            self.effects.push_back(AgreementEffect::Conflict(LayoutConflict { node, epoch, reason }));
        }
    }
}
