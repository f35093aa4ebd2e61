//! Outgoing requests of the node to its store and its peers, with their purposes and deadlines.
//!
//! Each request is tracked with its purpose until its answer arrives. If a peer does not answer in
//! time, or its link ends first, the requesting part of the node is told that there is no answer; a
//! late answer is dropped. The store always answers.
//!
//! **Timeouts.** A peer has [`ANSWER_TIMEOUT`] to answer, and longer if cells or layout records
//! travel with the request or its answer. A write and a proposed layout record also get the time
//! that all of these in flight to the peer take at [`BYTES_PER_SECOND_MIN`]. The size of an answer
//! with cells or versions is not known beforehand. So each kind of these requests has an adaptive
//! timeout for each peer: it doubles whenever an answer is late, up to [`DOUBLINGS_MAX`] times.
//! After [`QUICK_ANSWERS`] answers within [`ANSWER_TIMEOUT`] it is halved again. These timeouts do
//! not delay the detection of a failed peer: heartbeats are sent before all other messages, and the
//! requests of an ended link are abandoned at once.

use super::dispatch::{RequestPurpose, StorePurpose};
use crate::{
    Destination, Effect, Event, Incarnation, LayoutEpoch, LinkAction, LinkId, Message, MessageId, NodeIndex,
    NodeRequest, PeerAnswer, PeerRequest, ReplicaRequest, Requester, StoreId, StoreRequest,
};
use limits::Deadline;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use stdx::Instant;

/// Timeout of a request if no cells travel with it or its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Bandwidth of the slowest link on which the largest value arrives in time: 16 MiB in about a
/// minute.
const BYTES_PER_SECOND_MIN: u64 = 256 << 10;
/// Maximum number of doublings of the timeout, which is then 64 seconds.
const DOUBLINGS_MAX: u8 = 5;
/// Number of consecutive answers within [`ANSWER_TIMEOUT`] after which the timeout is halved.
const QUICK_ANSWERS: u8 = 8;

/// Effects of the node, and its requests that are in flight.
#[derive(Debug)]
pub(super) struct NodeEffects {
    pub(super) effects: VecDeque<Effect>,
    incarnation: Incarnation,
    /// Epoch of the newest change in the node's layout.
    epoch: LayoutEpoch,
    last_store: u64,
    stores: BTreeMap<StoreId, StorePurpose>,
    last_message: u64,
    /// Peer requests without an answer, by number. Each requesting part of the node bounds the
    /// number of its own.
    in_flight: BTreeMap<u64, InFlightRequest>,
    /// The same requests in the order of their deadlines.
    deadlines: BTreeSet<(Instant, u64)>,
    timeouts: BTreeMap<NodeIndex, PeerTimeouts>,
}

#[derive(Debug)]
struct InFlightRequest {
    node: NodeIndex,
    sent_at: Instant,
    deadline: Instant,
    payload: Payload,
    purpose: RequestPurpose,
}

/// The cells or layout records that travel with a request or its answer.
#[derive(Clone, Copy, Debug)]
enum Payload {
    /// No cells.
    None,
    /// The request carries a cell or a layout record of this many bytes.
    InRequest { bytes: u64 },
    /// The answer carries cells, versions or a layout record. The request was sent with this number
    /// of doublings.
    InAnswer { kind: usize, doublings: u8 },
}

/// State of the timeouts of one peer.
#[derive(Debug, Default)]
struct PeerTimeouts {
    /// Bytes of cells and layout records in flight to the peer.
    bytes_in_flight: u64,
    /// Adaptive timeouts by the kind of the answer: one cell, cells of a range, versions of a
    /// range, a decided layout record, an accepted layout record, cells of a copy.
    answer_timeouts: [AdaptiveTimeout; 6],
}

#[derive(Clone, Copy, Debug, Default)]
struct AdaptiveTimeout {
    doublings: u8,
    quick_answers: u8,
}

impl Payload {
    fn of(request: &PeerRequest) -> Self {
        match request {
            PeerRequest::Replica(ReplicaRequest::Write { key, cell, .. }) => {
                Self::InRequest { bytes: (key.as_bytes().len() + cell.value.len()) as u64 }
            }
            PeerRequest::Replica(ReplicaRequest::Read { .. }) => Self::InAnswer { kind: 0, doublings: 0 },
            PeerRequest::Node(NodeRequest::Range(range)) => {
                Self::InAnswer { kind: 2 - usize::from(range.cells), doublings: 0 }
            }
            PeerRequest::Node(NodeRequest::ReadLayout) => Self::InAnswer { kind: 3, doublings: 0 },
            PeerRequest::Node(NodeRequest::Copy(_)) => Self::InAnswer { kind: 5, doublings: 0 },
            PeerRequest::Node(NodeRequest::Chain(request)) => match request.record() {
                Some(record) => Self::InRequest { bytes: record.0.len() as u64 },
                // A promise carries the record that the voter has accepted.
                None => Self::InAnswer { kind: 4, doublings: 0 },
            },
            _ => Self::None,
        }
    }
}

impl PeerTimeouts {
    /// Records a request, and returns its timeout.
    fn begin(&mut self, payload: &mut Payload) -> Duration {
        match payload {
            Payload::None => ANSWER_TIMEOUT,
            Payload::InRequest { bytes } => {
                self.bytes_in_flight += *bytes;
                ANSWER_TIMEOUT + Duration::from_millis(self.bytes_in_flight * 1_000 / BYTES_PER_SECOND_MIN)
            }
            Payload::InAnswer { kind, doublings } => {
                *doublings = self.answer_timeouts[*kind].doublings;
                ANSWER_TIMEOUT * (1 << *doublings)
            }
        }
    }

    /// Records that a request was answered after the time `took`. `None`: it was not answered in
    /// time.
    fn end(&mut self, payload: Payload, took: Option<Duration>) {
        match payload {
            Payload::None => {}
            Payload::InRequest { bytes } => self.bytes_in_flight -= bytes,
            Payload::InAnswer { kind, doublings } => self.answer_timeouts[kind].record(doublings, took),
        }
    }
}

impl AdaptiveTimeout {
    fn record(&mut self, doublings: u8, took: Option<Duration>) {
        match took {
            None => {
                *self =
                    Self { doublings: self.doublings.max(doublings + 1).min(DOUBLINGS_MAX), quick_answers: 0 }
            }
            Some(took) if took > ANSWER_TIMEOUT => self.quick_answers = 0,
            Some(_) => {
                self.quick_answers += 1;
                if self.quick_answers == QUICK_ANSWERS {
                    *self = Self { doublings: self.doublings.saturating_sub(1), quick_answers: 0 };
                }
            }
        }
    }
}

impl NodeEffects {
    pub(super) const fn new(incarnation: Incarnation, epoch: LayoutEpoch) -> Self {
        Self {
            effects: VecDeque::new(),
            incarnation,
            epoch,
            last_store: 0,
            stores: BTreeMap::new(),
            last_message: 0,
            in_flight: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            timeouts: BTreeMap::new(),
        }
    }

    /// Has later requests name this epoch.
    pub(super) const fn follow(&mut self, epoch: LayoutEpoch) {
        self.epoch = epoch;
    }

    pub(super) fn request_store(&mut self, purpose: StorePurpose, request: impl Into<StoreRequest>) {
        let request = request.into();
        self.last_store += 1;
        let id = StoreId(self.last_store);
        self.stores.insert(id, purpose);
        self.effects.push_back(Effect::Store { id, request, deadline: Deadline::NEVER });
    }

    /// Removes the request `id` to the store, and returns its purpose.
    ///
    /// # Panics
    /// If the store was not sent that request, or has answered it already.
    pub(super) fn complete_store(&mut self, id: StoreId) -> StorePurpose {
        self.stores.remove(&id).unwrap_or_else(|| panic!("the store answered {id:?}, which is not in flight"))
    }

    /// Sends a request over the dialed link to a peer, and tracks it until its answer.
    pub(super) fn request_peer(
        &mut self,
        now: Instant,
        node: NodeIndex,
        purpose: RequestPurpose,
        request: impl Into<PeerRequest>,
    ) {
        let request = request.into();
        let mut payload = Payload::of(&request);
        let number = self.send_untracked_request(node, request);
        let deadline = now + self.timeouts.entry(node).or_default().begin(&mut payload);
        self.deadlines.insert((deadline, number));
        self.in_flight.insert(number, InFlightRequest { node, sent_at: now, deadline, payload, purpose });
    }

    /// Sends a request without tracking its answer; returns its number.
    pub(super) fn send_untracked_request(&mut self, node: NodeIndex, request: impl Into<PeerRequest>) -> u64 {
        let request = request.into();
        self.last_message += 1;
        let number = self.last_message;
        let id = MessageId { incarnation: self.incarnation, requester: Requester::Node, number };
        let epoch = if request.is_planned() { self.epoch } else { LayoutEpoch::FIRST };
        let message = Message::Request { id, request, within: None, epoch };
        self.effects.push_back(Effect::Send { to: Destination::Dialed(node), message });
        number
    }

    pub(super) fn answer(&mut self, link: LinkId, id: MessageId, answer: impl Into<PeerAnswer>) {
        let answer = answer.into();
        let message = Message::Answer { id, answer };
        self.effects.push_back(Effect::Send { to: Destination::Accepted(link), message });
    }

    pub(super) fn emit_link_action(&mut self, action: LinkAction) {
        self.effects.push_back(Effect::Link(action));
    }

    pub(super) fn emit_event(&mut self, event: Event) {
        self.effects.push_back(Effect::Event(event));
    }

    /// The number of the request `id` if this process's node sent it.
    pub(super) fn own_request_number(&self, id: MessageId) -> Option<u64> {
        let is_own = id.incarnation == self.incarnation && id.requester == Requester::Node;
        is_own.then_some(id.number)
    }

    /// The number of the last request that was sent.
    pub(super) const fn last_request_number(&self) -> u64 {
        self.last_message
    }

    /// Removes a request to a peer that has answered it, and returns its purpose. `None`: no such
    /// request is in flight.
    pub(super) fn complete_request(
        &mut self,
        now: Instant,
        node: NodeIndex,
        number: u64,
    ) -> Option<RequestPurpose> {
        self.in_flight.get(&number).filter(|request| request.node == node)?;
        let request = self.in_flight.remove(&number)?;
        self.deadlines.remove(&(request.deadline, number));
        self.timeouts.entry(node).or_default().end(request.payload, Some(now - request.sent_at));
        Some(request.purpose)
    }

    /// Removes a request whose deadline has passed.
    pub(super) fn pop_expired(&mut self, now: Instant) -> Option<(NodeIndex, RequestPurpose)> {
        let &(deadline, number) = self.deadlines.first().filter(|(deadline, _)| *deadline <= now)?;
        self.deadlines.remove(&(deadline, number));
        let request = self.in_flight.remove(&number).expect("each deadline is that of a request");
        self.timeouts.entry(request.node).or_default().end(request.payload, None);
        Some((request.node, request.purpose))
    }

    /// Removes all requests to a peer whose link has ended. The timeouts of its next link start
    /// afresh.
    pub(super) fn abandon(&mut self, node: NodeIndex) -> Vec<RequestPurpose> {
        self.timeouts.remove(&node);
        let deadlines = &mut self.deadlines;
        let abandoned = self.in_flight.extract_if(.., |_, request| request.node == node);
        let purpose = |(number, request): (u64, InFlightRequest)| {
            deadlines.remove(&(request.deadline, number));
            request.purpose
        };
        abandoned.map(purpose).collect()
    }

    /// The earliest deadline of the requests in flight.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChainRequest, ChainVote, EncodedRecord, ProposalBallot};
    use stdx::NodeTag;

    #[test]
    fn a_large_layout_record_has_time_to_arrive() {
        let incarnation = Incarnation(1);
        let ballot = ProposalBallot { round: 1, proposer: NodeTag(1), incarnation };
        let record = EncodedRecord(vec![0; 4 * BYTES_PER_SECOND_MIN as usize].into());
        for request in [
            ChainRequest::Accept(ChainVote { ballot, record: record.clone() }),
            ChainRequest::Learn(record.clone()),
        ] {
            let mut outbox = NodeEffects::new(incarnation, LayoutEpoch::FIRST);
            let request = NodeRequest::Chain(request);
            outbox.request_peer(Instant::ZERO, NodeIndex(1), RequestPurpose::Chain, request);
            let arrives = ANSWER_TIMEOUT + Duration::from_secs(4);
            assert_eq!(outbox.next_deadline(), Some(Instant::ZERO + arrives));
        }
    }
}
