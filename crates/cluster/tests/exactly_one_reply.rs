//! In any order of commands, answers and time at a coordinator, each command gets exactly one
//! reply, the reply fits the command, and no operation is left.

use bytes::Bytes;
use cluster::{
    Command, CommandFailure, Coordinator, CoordinatorLimits, Effect, HintLedger, HybridClock, Incarnation,
    Key, Layout, Lifetime, Member, NodeIndex, Quorum, QuorumChoice, ReplicaRequest, ReplicaResponse, Reply,
    RequestId, Shortfall, StoreFault, StoreId, StoreRequest, StoreResponse,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU8;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Cell, CellMeta, Hlc, Instant, NodeTag, Now, Rng, Version, WallTime};

const OPERATIONS_MAX: u16 = 5;
const TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
enum Step {
    Get,
    Put {
        ttl_secs: Option<u32>,
    },
    Delete,
    /// The store answers one of its requests.
    Answer {
        which: prop::sample::Index,
        fault: Option<StoreFault>,
    },
    Pass(Duration),
    SetWall(u32),
}

fn any_step() -> impl Strategy<Value = Step> {
    let fault = prop_oneof![
        Just(StoreFault::Full),
        Just(StoreFault::Overloaded { retry_after: TIMEOUT }),
        Just(StoreFault::Io { detail: String::new() }),
        Just(StoreFault::Corrupt { detail: String::new() }),
    ];
    prop_oneof![
        2 => Just(Step::Get),
        3 => prop::option::weighted(0.2, any::<u32>()).prop_map(|ttl_secs| Step::Put { ttl_secs }),
        1 => Just(Step::Delete),
        6 => (any::<prop::sample::Index>(), prop::option::weighted(0.1, fault))
            .prop_map(|(which, fault)| Step::Answer { which, fault }),
        2 => (0u64..2_000).prop_map(|millis| Step::Pass(Duration::from_millis(millis))),
        1 => any::<u32>().prop_map(Step::SetWall),
    ]
}

struct World {
    coordinator: Coordinator,
    now: Now,
    submitted: u64,
    /// Commands without a reply: whether each is a read, and its deadline.
    waiting: BTreeMap<RequestId, (bool, Instant)>,
    at_store: Vec<(StoreId, StoreRequest)>,
    store_ids: BTreeSet<StoreId>,
    written: BTreeSet<Version>,
    durable_bound: Hlc,
}

impl World {
    fn new() -> Self {
        let limits = CoordinatorLimits {
            operations_max: OPERATIONS_MAX,
            request_timeout: TIMEOUT,
            ..CoordinatorLimits::default()
        };
        let layout = Layout::new(vec!["http://a:1".to_owned()], 16).expect("one node");
        let member = Member {
            layout: Arc::new(layout),
            me: NodeIndex(0),
            tag: NodeTag(7),
            incarnation: Incarnation(1),
            clock: Arc::new(HybridClock::new(Hlc::ZERO)),
            hints: Arc::new(HintLedger::new(0)),
        };
        let view = member.first_view();
        Self {
            coordinator: Coordinator::new(member, 0, limits, view, Rng::new(1)),
            now: Now { mono: Instant::ZERO, wall: WallTime::EPOCH_2020 },
            submitted: 0,
            waiting: BTreeMap::new(),
            at_store: Vec::new(),
            store_ids: BTreeSet::new(),
            written: BTreeSet::new(),
            durable_bound: Hlc::ZERO,
        }
    }

    fn step(&mut self, step: Step) {
        let key = Key::new(Bytes::from_static(b"k")).expect("a key");
        let quorum = quorum();
        match step {
            Step::Get => self.submit(true, Command::Get { key, quorum }),
            Step::Delete => self.submit(false, Command::Delete { key, quorum }),
            Step::Put { ttl_secs } => {
                let lifetime = ttl_secs
                    .map_or(Lifetime::Forever, |secs| Lifetime::For(Duration::from_secs(u64::from(secs))));
                self.submit(false, Command::Put { key, value: Bytes::new(), lifetime, quorum });
            }
            Step::Answer { which, fault } if !self.at_store.is_empty() => {
                self.answer(which.index(self.at_store.len()), fault);
            }
            Step::Answer { .. } => {}
            Step::Pass(duration) => {
                self.now =
                    Now { mono: self.now.mono + duration, wall: self.now.wall.saturating_add(duration) };
                self.coordinator.handle_timeout(self.now);
            }
            Step::SetWall(secs) => {
                self.now.wall = WallTime::EPOCH_2020.saturating_add(Duration::from_secs(u64::from(secs)));
            }
        }
        self.carry_out();
        self.check();
    }

    fn submit(&mut self, is_read: bool, command: Command) {
        let id = RequestId(self.submitted);
        self.submitted += 1;
        self.waiting.insert(id, (is_read, self.now.mono + TIMEOUT));
        self.coordinator.submit(self.now, id, command);
    }

    fn answer(&mut self, which: usize, fault: Option<StoreFault>) {
        let (id, request) = self.at_store.swap_remove(which);
        let response = self.respond(request, fault);
        self.coordinator.handle_stored(self.now, id, response);
    }

    fn respond(&mut self, request: StoreRequest, fault: Option<StoreFault>) -> StoreResponse {
        if let Some(fault) = fault {
            return StoreResponse::Failed(fault);
        }
        match request {
            StoreRequest::Replica(ReplicaRequest::Read { .. }) => {
                StoreResponse::Replica(ReplicaResponse::Cell(
                    self.written.last().map(|version| Cell::value(*version, 1, Bytes::new())),
                ))
            }
            StoreRequest::Replica(ReplicaRequest::ReadMeta { .. }) => StoreResponse::Replica(
                ReplicaResponse::Meta(self.written.last().map(|version| CellMeta::value(*version, 1))),
            ),
            StoreRequest::Replica(ReplicaRequest::Write { cell, .. }) => {
                StoreResponse::Replica(ReplicaResponse::Written {
                    superseded: self.written.last().is_some_and(|newest| *newest > cell.meta.version),
                })
            }
            StoreRequest::RaiseClockBound { bound } => {
                self.durable_bound = self.durable_bound.max(bound);
                StoreResponse::ClockBoundRaised { bound }
            }
            request => panic!("a coordinator alone asks for {request:?}"),
        }
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.coordinator.poll_effect() {
            match effect {
                Effect::Store { id, request, .. } => {
                    assert!(self.store_ids.insert(id), "{id:?} was used before");
                    if let StoreRequest::Replica(ReplicaRequest::Write { cell, .. }) = &request {
                        let version = cell.meta.version;
                        assert!(version.hlc <= self.durable_bound, "a version past the durable bound");
                        assert!(self.written.insert(version), "{version} was used before");
                    }
                    self.at_store.push((id, request));
                }
                Effect::Reply { to, reply, .. } => {
                    let (is_read, _) = self.waiting.remove(&to).expect("one reply for each command");
                    check_reply(is_read, &reply);
                }
                Effect::Event(_) => {}
                effect => panic!("a coordinator alone wants {effect:?}"),
            }
        }
    }

    fn check(&self) {
        assert_eq!(self.coordinator.operations(), self.waiting.len());
        let first_deadline = self.waiting.values().map(|&(_, deadline)| deadline).min();
        assert_eq!(self.coordinator.poll_timeout(), first_deadline);
        let raises = self.at_store.iter().filter(|(_, request)| is_raise(request)).count();
        assert!(raises <= 1, "{raises} raises of the bound at once");
    }
}

fn is_raise(request: &StoreRequest) -> bool {
    matches!(request, StoreRequest::RaiseClockBound { .. })
}

fn check_reply(is_read: bool, reply: &Reply) {
    match reply {
        Reply::Found { acks, .. } | Reply::Missing { acks } => assert!(is_read && acks.got == acks.from),
        Reply::Written { acks, .. } => assert!(!is_read && acks.got == acks.from),
        Reply::Failed(CommandFailure::NotEnoughReplicas { shortfall, .. }) => {
            assert!(!(is_read && *shortfall == Shortfall::MaybeStored), "a read stores nothing");
        }
        Reply::Page { .. } => panic!("a page answers scans"),
        Reply::Failed(CommandFailure::ExpiryTooLate { .. }) => assert!(!is_read),
        Reply::Failed(_) => {}
    }
}

fn quorum() -> Quorum {
    QuorumChoice::default().resolve(NonZeroU8::MIN, 1).expect("1/1 is a quorum")
}

proptest! {
    #[test]
    fn each_command_gets_exactly_one_reply(steps in prop::collection::vec(any_step(), 1..80)) {
        let mut world = World::new();
        steps.into_iter().for_each(|step| world.step(step));
        world.step(Step::Pass(TIMEOUT));
        prop_assert!(world.waiting.is_empty(), "without a reply past the deadline: {:?}", world.waiting);
        while !world.at_store.is_empty() {
            world.answer(0, None);
            world.carry_out();
        }
        prop_assert_eq!(world.coordinator.operations(), 0);
        prop_assert_eq!(world.coordinator.poll_timeout(), None);
    }
}
