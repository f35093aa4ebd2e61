//! In any order of commands, answers and time at a single node, each command gets exactly one
//! reply, the reply fits the command, and no operation is left.

mod world;

use bytes::Bytes;
use cluster::{
    Command, CommandFailure, CoordinatorLimits, Lifetime, Reply, RequestId, Shortfall, StoreFault,
    StoreRequest,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use stdx::{Instant, Version, WallTime};
use world::{Packet, TIMEOUT, World, key};

const OPERATIONS_MAX: u16 = 5;

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

/// A node, and what its clients know.
struct Run {
    node: World,
    /// Commands without a reply: whether each is a read, and its deadline.
    waiting: BTreeMap<RequestId, (bool, Instant)>,
    written: BTreeSet<Version>,
}

impl Run {
    fn new() -> Self {
        let limits = CoordinatorLimits { operations_max: OPERATIONS_MAX, ..CoordinatorLimits::default() };
        let node = World::of_coordinators(1, limits, 1);
        Self { node, waiting: BTreeMap::new(), written: BTreeSet::new() }
    }

    fn step(&mut self, step: Step) {
        let (key, quorum) = (key("k"), self.node.quorum(1, 1));
        match step {
            Step::Get => self.submit(true, Command::Get { key, quorum }),
            Step::Delete => self.submit(false, Command::Delete { key, quorum }),
            Step::Put { ttl_secs } => {
                let lifetime = ttl_secs
                    .map_or(Lifetime::Forever, |secs| Lifetime::For(Duration::from_secs(u64::from(secs))));
                self.submit(false, Command::Put { key, value: Bytes::new(), lifetime, quorum });
            }
            Step::Answer { which, fault } => {
                let count = self.node.in_flight().count();
                if count > 0 {
                    self.node.deliver(which.index(count), fault);
                }
            }
            Step::Pass(duration) => self.node.pass(duration),
            Step::SetWall(secs) => self.set_wall(secs),
        }
        self.check();
    }

    fn submit(&mut self, is_read: bool, command: Command) {
        let deadline = self.node.now + TIMEOUT;
        let id = self.node.submit(0, command);
        self.waiting.insert(id, (is_read, deadline));
    }

    /// Sets the wall clock to this number of seconds since 2020.
    fn set_wall(&mut self, secs: u32) {
        let micros = |wall: WallTime| wall.micros_since_unix_epoch() as i64;
        let wanted = WallTime::EPOCH_2020.saturating_add(Duration::from_secs(u64::from(secs)));
        let true_time = self.node.now_at(usize::MAX).wall;
        self.node.hosts[0].wall_offset_micros = micros(wanted) - micros(true_time);
    }

    fn check(&mut self) {
        for (id, reply) in std::mem::take(&mut self.node.replies) {
            let (is_read, _) = self.waiting.remove(&id).expect("one reply for each command");
            check_reply(is_read, &reply);
        }
        for cell in std::mem::take(&mut self.node.issued) {
            let version = cell.meta.version;
            assert!(version.hlc <= self.node.hosts[0].store.bound, "a version past the durable bound");
            assert!(self.written.insert(version), "{version} was used before");
        }
        assert_eq!(self.node.repeated_store_ids, [], "a late answer could be taken for another one");
        let first_deadline = self.waiting.values().map(|&(_, deadline)| deadline).min();
        assert_eq!(self.state(), (self.waiting.len(), first_deadline));
        let raises = self.node.in_flight().filter(|packet| is_raise(packet)).count();
        assert!(raises <= 1, "{raises} raises of the bound at once");
    }

    /// Number of operations, and the time of the next timeout.
    fn state(&mut self) -> (usize, Option<Instant>) {
        let (_, coordinator) = self.node.coordinator_mut(0);
        (coordinator.operations(), coordinator.poll_timeout())
    }
}

fn is_raise(packet: &Packet) -> bool {
    matches!(packet, Packet::AtStore { request: StoreRequest::RaiseClockBound { .. }, .. })
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

proptest! {
    #[test]
    fn each_command_gets_exactly_one_reply(steps in prop::collection::vec(any_step(), 1..80)) {
        let mut run = Run::new();
        steps.into_iter().for_each(|step| run.step(step));
        run.step(Step::Pass(TIMEOUT));
        prop_assert!(run.waiting.is_empty(), "without a reply past the deadline: {:?}", run.waiting);
        run.node.settle();
        run.check();
        prop_assert_eq!(run.state(), (0, None));
    }
}
