//! What the node has asked of its store and of its peers, and what for.
//!
//! Each request is noted here with its purpose until its answer comes. A peer that does not answer in time, or whose
//! link ends before, has not answered, and the asking part of the node is told so: a late answer is dropped. The
//! store always answers.
//!
//! **Time for an answer.** A peer has [`ANSWER_WITHIN`], and more where the bytes of cells have to travel. A write has the
//! time in addition that all cells on their way to the peer take at [`BYTES_PER_SECOND_MIN`]. How long an answer with
//! cells or versions will be is not known beforehand: each kind of these requests has a *patience* for each peer,
//! which doubles the time whenever an answer is late, up to [`PATIENCE_MAX`] times, and is halved again after
//! [`QUICK_ANSWERS`] answers that needed no patience. A peer that is gone is noticed by its heartbeats, which are sent before
//! all else; abandoned requests do not wait for their time.

use super::purpose::{AskPurpose, StorePurpose};
use crate::{
    Destination, Effect, Event, Incarnation, LinkAction, LinkId, Message, MessageId, NodeIndex, PeerAnswer,
    PeerRequest, Requester, StoreId, StoreRequest,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use stdx::Instant;

/// Time for an answer, where no bytes of cells have to travel.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// The slowest link on which the largest value still arrives in time: 16 MiB in about a minute.
const BYTES_PER_SECOND_MIN: u64 = 256 << 10;
/// How often the time for an answer is doubled at most: 64 seconds then.
const PATIENCE_MAX: u8 = 5;
/// After so many answers in a row that came within [`ANSWER_WITHIN`], patience is taken back by one step.
const QUICK_ANSWERS: u8 = 8;

/// See the module.
#[derive(Debug)]
pub(super) struct Outbox {
    pub(super) effects: VecDeque<Effect>,
    incarnation: Incarnation,
    last_store: u64,
    stores: BTreeMap<StoreId, StorePurpose>,
    last_message: u64,
    /// Requests without an answer, by number. Each asker bounds its own.
    asked: BTreeMap<u64, Asked>,
    /// The same requests, in the order of their deadlines.
    deadlines: BTreeSet<(Instant, u64)>,
    lanes: BTreeMap<NodeIndex, Lane>,
}

#[derive(Debug)]
struct Asked {
    node: NodeIndex,
    asked_at: Instant,
    deadline: Instant,
    load: Load,
    purpose: AskPurpose,
}

/// What travels with a request or its answer.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// Next to nothing.
    Small,
    /// A cell of so many bytes goes with the request.
    Sent { bytes: u64 },
    /// The answer brings something of this kind. The request was made with this patience.
    Fetched { kind: usize, patience: u8 },
}

/// What is known of the way to a peer.
#[derive(Debug, Default)]
struct Lane {
    /// Bytes of cells on their way to it.
    bytes: u64,
    /// By kind of what is fetched: one cell, cells of a range, versions of a range.
    patience: [Patience; 3],
}

#[derive(Clone, Copy, Debug, Default)]
struct Patience {
    doublings: u8,
    quick_answers: u8,
}

impl Load {
    fn of(request: &PeerRequest) -> Self {
        match request {
            PeerRequest::Write { key, cell, .. } => {
                Self::Sent { bytes: (key.as_bytes().len() + cell.value.len()) as u64 }
            }
            PeerRequest::ReadCell { .. } => Self::Fetched { kind: 0, patience: 0 },
            PeerRequest::Range(range) => Self::Fetched { kind: 2 - usize::from(range.cells), patience: 0 },
            _ => Self::Small,
        }
    }
}

impl Lane {
    /// Notes a request. How long it may take.
    fn begin(&mut self, load: &mut Load) -> Duration {
        match load {
            Load::Small => ANSWER_WITHIN,
            Load::Sent { bytes } => {
                self.bytes += *bytes;
                ANSWER_WITHIN + Duration::from_millis(self.bytes * 1_000 / BYTES_PER_SECOND_MIN)
            }
            Load::Fetched { kind, patience } => {
                *patience = self.patience[*kind].doublings;
                ANSWER_WITHIN * (1 << *patience)
            }
        }
    }

    /// A request was answered after this time; `None`: it was not answered in time.
    fn end(&mut self, load: Load, took: Option<Duration>) {
        match load {
            Load::Small => {}
            Load::Sent { bytes } => self.bytes -= bytes,
            Load::Fetched { kind, patience } => self.patience[kind].learn(patience, took),
        }
    }
}

impl Patience {
    fn learn(&mut self, then: u8, took: Option<Duration>) {
        match took {
            None => {
                *self = Self { doublings: self.doublings.max(then + 1).min(PATIENCE_MAX), quick_answers: 0 }
            }
            Some(took) if took > ANSWER_WITHIN => self.quick_answers = 0,
            Some(_) => {
                self.quick_answers += 1;
                if self.quick_answers == QUICK_ANSWERS {
                    *self = Self { doublings: self.doublings.saturating_sub(1), quick_answers: 0 };
                }
            }
        }
    }
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
            deadlines: BTreeSet::new(),
            lanes: BTreeMap::new(),
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
        let mut load = Load::of(&request);
        let number = self.send_request(node, request);
        let deadline = now + self.lanes.entry(node).or_default().begin(&mut load);
        self.deadlines.insert((deadline, number));
        self.asked.insert(number, Asked { node, asked_at: now, deadline, load, purpose });
    }

    /// Sends a request whose answer nothing waits for; its number.
    pub(super) fn send_request(&mut self, node: NodeIndex, request: PeerRequest) -> u64 {
        self.last_message += 1;
        let number = self.last_message;
        let id = MessageId { incarnation: self.incarnation, requester: Requester::Node, number };
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
        let is_own = id.incarnation == self.incarnation && id.requester == Requester::Node;
        is_own.then_some(id.number)
    }

    /// The number that the last request was sent under.
    pub(super) const fn last_number(&self) -> u64 {
        self.last_message
    }

    /// What that peer was asked under this number, if it has not answered yet.
    pub(super) fn answered(&mut self, now: Instant, node: NodeIndex, number: u64) -> Option<AskPurpose> {
        self.asked.get(&number).filter(|asked| asked.node == node)?;
        let asked = self.asked.remove(&number)?;
        self.deadlines.remove(&(asked.deadline, number));
        self.lanes.entry(node).or_default().end(asked.load, Some(now - asked.asked_at));
        Some(asked.purpose)
    }

    /// A request whose time for an answer has passed.
    pub(super) fn pop_late(&mut self, now: Instant) -> Option<(NodeIndex, AskPurpose)> {
        let &(deadline, number) = self.deadlines.first().filter(|(deadline, _)| *deadline <= now)?;
        self.deadlines.remove(&(deadline, number));
        let asked = self.asked.remove(&number).expect("each deadline is that of a request");
        self.lanes.entry(asked.node).or_default().end(asked.load, None);
        Some((asked.node, asked.purpose))
    }

    /// All requests to a peer that will not be answered, since its link has ended. The next link is another way.
    pub(super) fn abandon(&mut self, node: NodeIndex) -> Vec<AskPurpose> {
        self.lanes.remove(&node);
        let deadlines = &mut self.deadlines;
        let abandoned = self.asked.extract_if(.., |_, asked| asked.node == node);
        let purpose = |(number, asked): (u64, Asked)| {
            deadlines.remove(&(asked.deadline, number));
            asked.purpose
        };
        abandoned.map(purpose).collect()
    }

    /// When the first answer will be late.
    pub(super) fn next_late(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }
}
