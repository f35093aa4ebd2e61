//! Measures the speed of a coordinator alone, without I/O, store and encoding.
//!
//! ```text
//! cargo run --release -p cluster --example coordination
//! ```
//!
//! One operation consists of its submission, its effects, every answer to these, and its one reply,
//! with 64 operations in flight. Keys have 16 bytes and values 100, shared as in production.

use bytes::Bytes;
use cluster::{
    ClusterView, Command, Coordinator, CoordinatorLimits, Destination, Effect, HintLedger, HybridClock,
    Incarnation, Key, Layout, Lifetime, LinkAction, LinkEvent, Member, Message, NodeIndex, Origin,
    PeerAnswer, PeerHello, PeerRequest, PeerView, QuorumChoice, ReplicaRequest, ReplicaResponse, RequestId,
    Requester, StoreRequest, StoreResponse, SyncState,
};
use std::collections::VecDeque;
use std::num::NonZeroU8;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Cell, Hlc, Instant, NodeTag, Now, Rng, Version, WallTime};

const OPERATIONS: u64 = 2_000_000;
const UNDER_WAY: u64 = 64;
const KEYS: usize = 4_096;

fn main() {
    for nodes in [1, 3] {
        for (name, is_put) in [("puts", true), ("gets", false)] {
            println!("{nodes} nodes: {:>9.0} {name}/s", measure(nodes, is_put));
        }
    }
}

/// Operations per second.
#[allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "it measures")]
fn measure(nodes: u8, is_put: bool) -> f64 {
    let mut bench = Bench::new(nodes);
    bench.run(OPERATIONS / 10, is_put);
    let begin = std::time::Instant::now();
    bench.run(OPERATIONS, is_put);
    OPERATIONS as f64 / begin.elapsed().as_secs_f64()
}

struct Bench {
    coordinator: Coordinator,
    nodes: u8,
    now: Now,
    keys: Vec<Key>,
    value: Bytes,
    cell: Cell,
    effects: VecDeque<Effect>,
    replies: u64,
}

impl Bench {
    fn new(nodes: u8) -> Self {
        let names = (0..nodes).map(|node| format!("http://node-{node}:1")).collect();
        let member = Member {
            layout: Arc::new(Layout::new(names, 4_096).expect("a layout")),
            me: NodeIndex(0),
            tag: NodeTag(1),
            incarnation: Incarnation(1),
            clock: Arc::new(HybridClock::new(Hlc::ZERO)),
            hints: Arc::new(HintLedger::new(0)),
        };
        let up = PeerView::UP;
        let view = ClusterView { peers: vec![up; usize::from(nodes)], ..ClusterView::default() };
        let now =
            Now { mono: Instant::ZERO, wall: WallTime::EPOCH_2020.saturating_add(Duration::from_secs(1)) };
        let version = Version::new(Hlc::at(now.wall), NodeTag(1));
        let value = Bytes::from(vec![7; 100]);
        let mut coordinator =
            Coordinator::new(member, 0, CoordinatorLimits::default(), Arc::new(view.clone()), Rng::new(1));
        coordinator.handle_view(now, Arc::new(view));
        Self {
            coordinator,
            nodes,
            now,
            keys: (0..KEYS).map(|i| Key::new(Bytes::from(format!("key-{i:012}"))).expect("a key")).collect(),
            cell: Cell::value(version, nodes, value.clone()),
            value,
            effects: VecDeque::new(),
            replies: 0,
        }
    }

    fn run(&mut self, operations: u64, is_put: bool) {
        let nodes = NonZeroU8::new(self.nodes).expect("there are nodes");
        let quorum = QuorumChoice::default().resolve(nodes, self.nodes).expect("a majority");
        let end = self.replies + operations;
        let mut submitted = self.replies;
        while self.replies < end {
            while submitted < end && submitted < self.replies + UNDER_WAY {
                let key = self.keys[submitted as usize % KEYS].clone();
                let value = self.value.clone();
                let command = if is_put {
                    Command::Put { key, value, lifetime: Lifetime::Forever, quorum }
                } else {
                    Command::Get { key, quorum }
                };
                self.coordinator.submit(self.now, RequestId(submitted), command);
                submitted += 1;
            }
            self.carry_out();
        }
    }

    /// Carries out the coordinator's effects, lets time pass, and answers all requests.
    fn carry_out(&mut self) {
        while let Some(effect) = self.coordinator.poll_effect() {
            self.effects.push_back(effect);
        }
        let passed = Duration::from_micros(100);
        self.now = Now { mono: self.now.mono + passed, wall: self.now.wall.saturating_add(passed) };
        while let Some(effect) = self.effects.pop_front() {
            self.answer(effect);
        }
        if self.coordinator.poll_timeout().is_some_and(|at| at <= self.now.mono) {
            self.coordinator.handle_timeout(self.now);
        }
    }

    fn answer(&mut self, effect: Effect) {
        match effect {
            Effect::Reply { .. } => self.replies += 1,
            Effect::Store { id, request, .. } => {
                let response = match request {
                    StoreRequest::Replica(ReplicaRequest::Read { .. }) => {
                        StoreResponse::Replica(ReplicaResponse::Cell(Some(self.cell.clone())))
                    }
                    StoreRequest::Replica(ReplicaRequest::ReadMeta { .. }) => {
                        StoreResponse::Replica(ReplicaResponse::Meta(Some(self.cell.meta)))
                    }
                    StoreRequest::RaiseClockBound { bound } => StoreResponse::ClockBoundRaised { bound },
                    _ => StoreResponse::Replica(ReplicaResponse::Written { superseded: false }),
                };
                self.coordinator.handle_stored(self.now, id, response);
            }
            Effect::Send { to: Destination::Dialed(node), message: Message::Request { id, request, .. } } => {
                let answer = match request {
                    PeerRequest::Replica(ReplicaRequest::Read { .. }) => {
                        PeerAnswer::Replica(ReplicaResponse::Cell(Some(self.cell.clone())))
                    }
                    PeerRequest::Replica(ReplicaRequest::ReadMeta { .. }) => {
                        PeerAnswer::Replica(ReplicaResponse::Meta(Some(self.cell.meta)))
                    }
                    _ => PeerAnswer::Replica(ReplicaResponse::Written { superseded: false }),
                };
                let origin = Origin { node, link: Destination::Dialed(node) };
                self.coordinator.handle_message(self.now, origin, Message::Answer { id, answer });
            }
            Effect::Link(LinkAction::Dial(node)) => {
                let (tag, requester, sync_state) = (NodeTag(2), Requester::Node, SyncState::Settled);
                let (incarnation, clock) = (Incarnation(2), Hlc::ZERO);
                let hello = PeerHello { node, tag, requester, incarnation, clock, sync_state };
                self.coordinator.handle_link(self.now, LinkEvent::Opened(hello));
            }
            Effect::Event(_) => {}
            effect => panic!("nothing fails here, but {effect:?}"),
        }
    }
}
