//! What the node has asked of its store and of its peers, and what for.
//!
//! Each request is noted here with its purpose until its answer comes. A peer that does not answer within
//! [`ANSWER_WITHIN`], or whose link ends before, has not answered, and whoever asked is told so: then a late
//! answer is nobody's. The store always answers.

use super::purpose::{AskPurpose, StorePurpose};
use crate::{
    Asker, Destination, Effect, Event, Incarnation, LinkAction, LinkId, Message, MessageId, NodeIndex,
    PeerAnswer, PeerRequest, StoreId, StoreRequest,
};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use stdx::Instant;

/// A peer that has not answered a request for so long will not.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Debug)]
pub(super) struct Outbox {
    pub(super) effects: VecDeque<Effect>,
    incarnation: Incarnation,
    last_store: u64,
    stores: BTreeMap<StoreId, StorePurpose>,
    last_message: u64,
    /// In the order of their deadlines too, since all wait equally long. Each asker bounds its own.
    asked: BTreeMap<u64, Asked>,
}

#[derive(Debug)]
struct Asked {
    node: NodeIndex,
    deadline: Instant,
    purpose: AskPurpose,
}

impl Outbox {
    pub(super) const fn new(incarnation: Incarnation) -> Self {
        Self {
            effects: VecDeque::new(),
            incarnation,
            last_store: 0,
            stores: BTreeMap::new(),
            last_message: 0,
            asked: BTreeMap::new(),
        }
    }

    pub(super) fn store(&mut self, purpose: StorePurpose, request: StoreRequest) {
        self.last_store += 1;
        let id = StoreId(self.last_store);
        self.stores.insert(id, purpose);
        self.effects.push_back(Effect::Store { id, request, deadline: None });
    }

    /// What the store was asked for under this id; each is answered once.
    ///
    /// # Panics
    /// When it was not asked, or has answered.
    pub(super) fn stored(&mut self, id: StoreId) -> StorePurpose {
        self.stores.remove(&id).unwrap_or_else(|| panic!("the store answered {id:?}, which it was not asked"))
    }

    /// Asks a peer over what was dialed to it, and waits for the answer.
    pub(super) fn ask(&mut self, now: Instant, node: NodeIndex, purpose: AskPurpose, request: PeerRequest) {
        let number = self.send_request(node, request);
        self.asked.insert(number, Asked { node, deadline: now + ANSWER_WITHIN, purpose });
    }

    /// Sends a request whose answer nothing waits for; its number.
    pub(super) fn send_request(&mut self, node: NodeIndex, request: PeerRequest) -> u64 {
        self.last_message += 1;
        let number = self.last_message;
        let id = MessageId { incarnation: self.incarnation, asker: Asker::Node, number };
        let message = Message::Request { id, request, within: None };
        self.effects.push_back(Effect::Send { to: Destination::Dialed(node), message });
        number
    }

    pub(super) fn answer(&mut self, link: LinkId, id: MessageId, answer: PeerAnswer) {
        let message = Message::Answer { id, answer };
        self.effects.push_back(Effect::Send { to: Destination::Accepted(link), message });
    }

    pub(super) fn link(&mut self, action: LinkAction) {
        self.effects.push_back(Effect::Link(action));
    }

    pub(super) fn event(&mut self, event: Event) {
        self.effects.push_back(Effect::Event(event));
    }

    /// The number of the request that this process's node made under this id, if it did.
    pub(super) fn number_of(&self, id: MessageId) -> Option<u64> {
        let is_own = id.incarnation == self.incarnation && id.asker == Asker::Node;
        is_own.then_some(id.number)
    }

    /// The number that the last request was sent under.
    pub(super) const fn last_number(&self) -> u64 {
        self.last_message
    }

    /// What that peer was asked under this number, if it has not answered yet.
    pub(super) fn answered(&mut self, node: NodeIndex, number: u64) -> Option<AskPurpose> {
        let is_waited_for = self.asked.get(&number).is_some_and(|asked| asked.node == node);
        is_waited_for.then(|| self.asked.remove(&number).expect("it was just seen").purpose)
    }

    /// A request whose time for an answer has passed.
    pub(super) fn pop_late(&mut self, now: Instant) -> Option<(NodeIndex, AskPurpose)> {
        let first = self.asked.first_entry().filter(|first| first.get().deadline <= now)?;
        let asked = first.remove();
        Some((asked.node, asked.purpose))
    }

    /// All requests to a peer that will not be answered, since its link has ended.
    pub(super) fn abandon(&mut self, node: NodeIndex) -> Vec<AskPurpose> {
        self.asked.extract_if(.., |_, asked| asked.node == node).map(|(_, asked)| asked.purpose).collect()
    }

    /// When the first answer will be late.
    pub(super) fn next_late(&self) -> Option<Instant> {
        self.asked.first_key_value().map(|(_, asked)| asked.deadline)
    }
}
