//! The effects of a coordinator: requests, replies and events, in the order in which the driver
//! carries them out.

use crate::{
    Destination, Effect, Event, Incarnation, LayoutEpoch, Member, Message, MessageId, NodeIndex, PeerRequest,
    ReplicaRequest, Reply, RequestId, Requester, StoreId, StoreRequest, WaitTrace,
};
use limits::Deadline;
use std::collections::VecDeque;
use stdx::Instant;

/// The effects that the driver has not taken yet.
#[derive(Debug)]
pub(super) struct CoordinatorEffects {
    pub(super) effects: VecDeque<Effect>,
    me: NodeIndex,
    incarnation: Incarnation,
    requester: Requester,
}

/// The time and the deadline of a request, and the epoch of its plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestTerms {
    pub(super) now: Instant,
    pub(super) deadline: Deadline,
    pub(super) epoch: LayoutEpoch,
}

impl CoordinatorEffects {
    /// Creates the empty outbox of the coordinator with this number.
    pub(super) const fn new(member: &Member, number: u8) -> Self {
        let requester = Requester::Coordinator(number);
        Self { effects: VecDeque::new(), me: member.me, incarnation: member.incarnation, requester }
    }

    /// The state machine as the source of requests.
    pub(super) const fn requester(&self) -> Requester {
        self.requester
    }

    /// Whether an answer belongs to a request of this state machine, in this process.
    pub(super) fn is_own_request(&self, id: MessageId) -> bool {
        id.incarnation == self.incarnation && id.requester == self.requester
    }

    /// Sends a request to a replica, which may be this node. The caller counts it as in flight, if
    /// at all.
    #[inline]
    pub(super) fn send(
        &mut self,
        node: NodeIndex,
        number: u64,
        request: ReplicaRequest,
        terms: RequestTerms,
    ) {
        if node == self.me {
            self.store(StoreId(number), request.into(), terms.deadline);
        } else {
            self.send_to_peer(node, number, request.into(), terms);
        }
    }

    /// Sends a request to a peer. The caller counts it as in flight, if at all.
    #[inline]
    pub(super) fn send_to_peer(
        &mut self,
        node: NodeIndex,
        number: u64,
        request: PeerRequest,
        terms: RequestTerms,
    ) {
        let id = MessageId { incarnation: self.incarnation, requester: self.requester, number };
        let within = terms.deadline.remaining(terms.now);
        let message = Message::Request { id, request, within, epoch: terms.epoch };
        self.effects.push_back(Effect::Send { to: Destination::Dialed(node), message });
    }

    /// Sends a request to the local store; its answer is not needed after the deadline.
    pub(super) fn store(&mut self, id: StoreId, request: StoreRequest, deadline: Deadline) {
        self.effects.push_back(Effect::Store { id, request, deadline });
    }

    /// Replies to a client after this wait.
    pub(super) fn reply(&mut self, wait: WaitTrace, to: RequestId, reply: Reply) {
        self.effects.push_back(Effect::Reply { to, reply, wait });
    }

    pub(super) fn emit(&mut self, event: Event) {
        self.effects.push_back(Effect::Event(event));
    }
}
