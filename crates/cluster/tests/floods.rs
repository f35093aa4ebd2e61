//! Overload: more is requested than stores can do. Admitted commands are answered in time; the rest
//! is refused at once and leaves no trace.

mod world;

use cluster::{
    Command, CommandFailure, CoordinatorLimits, Lifetime, ReplicaRequest, Reply, RequestId, StoreRequest,
};
use std::collections::BTreeMap;
use std::time::Duration;
use stdx::Instant;
use world::{Packet, TIMEOUT, World, key};

const MILLISECOND: Duration = Duration::from_millis(1);

/// Clients of node 0, and a limited rate of writes on the disks of the first nodes. All other work
/// takes no time.
struct Flood {
    cluster: World,
    writes_per_ms: usize,
    /// Number of nodes with slow disks.
    slow_nodes: u8,
    begun: BTreeMap<RequestId, Instant>,
    writes: u64,
}

impl Flood {
    fn new(nodes: u8, writes_per_ms: usize) -> Self {
        let cluster = World::of_coordinators(nodes, CoordinatorLimits::default(), 1);
        Self { cluster, writes_per_ms, slow_nodes: 1, begun: BTreeMap::new(), writes: 0 }
    }

    fn submit(&mut self, command: Command) -> RequestId {
        let at = self.cluster.now;
        let id = self.cluster.submit(0, command);
        self.begun.insert(id, at);
        id
    }

    fn write(&mut self) -> RequestId {
        self.writes += 1;
        let nodes = self.cluster.layout.len();
        self.submit(Command::Put {
            key: key(&format!("key-{}", self.writes)),
            value: self.writes.to_be_bytes().to_vec().into(),
            lifetime: Lifetime::Forever,
            quorum: self.cluster.quorum(nodes / 2 + 1, nodes),
        })
    }

    fn read(&mut self) -> RequestId {
        let nodes = self.cluster.layout.len();
        let quorum = self.cluster.quorum(nodes / 2 + 1, nodes);
        self.submit(Command::Get { key: key("key-1"), quorum })
    }

    /// Advances the time by a millisecond.
    fn pass(&mut self) {
        let slow_nodes = usize::from(self.slow_nodes);
        let is_slow = |packet: &Packet| matches!(packet, Packet::AtStore { node, request: StoreRequest::Replica(ReplicaRequest::Write { .. }), .. } if *node < slow_nodes);
        while self.cluster.deliver_first(|packet| !is_slow(packet)) {}
        self.cluster.pass(MILLISECOND);
        for _ in 0..self.writes_per_ms {
            self.cluster.deliver_first(is_slow);
        }
    }

    /// Time from the submission to the reply.
    fn took(&self, id: RequestId) -> Duration {
        self.cluster.waits[&id].1 - self.begun[&id]
    }

    /// The successful and the refused commands of `ids`. There is no other outcome.
    fn sort(&self, ids: &[RequestId]) -> (Vec<RequestId>, Vec<RequestId>) {
        ids.iter().partition(|id| match &self.cluster.replies[id] {
            Reply::Written { .. } | Reply::Found { .. } | Reply::Missing { .. } => true,
            Reply::Failed(CommandFailure::Overloaded { .. }) => false,
            reply => panic!("{reply:?} to {id:?}"),
        })
    }
}

#[test]
fn a_tenfold_overload_is_served_at_the_rate_of_the_disk_and_the_rest_refused_at_once() {
    const RATE: usize = 5;
    let mut flood = Flood::new(1, RATE);
    let (mut writes, mut reads) = (Vec::new(), Vec::new());
    for _ in 0..2_000 {
        writes.extend((0..10 * RATE).map(|_| flood.write()));
        reads.push(flood.read());
        flood.pass();
    }
    for _ in 0..TIMEOUT.as_millis() {
        flood.pass();
    }
    let (done, refused) = flood.sort(&writes);
    assert!(done.len() >= 2_000 * RATE * 9 / 10, "{} of {}", done.len(), writes.len());
    assert!(refused.iter().all(|id| flood.took(*id) == Duration::ZERO));
    // The burst at the start is admitted.
    let late = done.iter().filter(|id| flood.took(**id) > TIMEOUT / 5).count();
    assert!(late <= 4_096, "{late} of {} were late", done.len());
    let steady = &done[done.len() / 2..];
    assert!(steady.iter().all(|id| flood.took(*id) <= TIMEOUT / 5));
    // Refused writes were sent to no store.
    assert!(flood.cluster.issued.len() == done.len(), "{} writes were issued", flood.cluster.issued.len());
    let (read, not_read) = flood.sort(&reads);
    assert!(not_read.is_empty() && read.iter().all(|id| flood.took(*id) <= MILLISECOND));
}

#[test]
fn after_a_flood_latency_recovers_within_two_seconds() {
    let mut flood = Flood::new(1, 5);
    for _ in 0..1_000 {
        for _ in 0..50 {
            flood.write();
        }
        flood.pass();
    }
    let mut later = Vec::new();
    for millis in 0..3_000 {
        let id = flood.write();
        flood.pass();
        if millis > 2_000 {
            later.push(id);
        }
    }
    (0..10).for_each(|_| flood.pass());
    let (done, refused) = flood.sort(&later);
    assert!(refused.is_empty(), "{} are refused still", refused.len());
    assert!(done.iter().all(|id| flood.took(*id) <= 2 * MILLISECOND));
}

#[test]
fn a_slow_disk_slows_its_node_but_not_the_operations() {
    let mut flood = Flood::new(3, 1);
    let mut writes = Vec::new();
    for _ in 0..1_500 {
        writes.extend((0..20).map(|_| flood.write()));
        flood.pass();
    }
    (0..TIMEOUT.as_millis()).for_each(|_| flood.pass());
    let (done, refused) = flood.sort(&writes);
    assert!(refused.is_empty(), "{} of {} were refused", refused.len(), writes.len());
    assert!(done.iter().all(|id| flood.took(*id) <= 2 * MILLISECOND));
    // The other nodes keep hints for the cells that the slow node lacks.
    let missing = done.len() - flood.cluster.hosts[0].store.cells.len();
    let hinted = flood.cluster.hosts.iter().map(|host| host.store.hints.len()).sum::<usize>();
    assert!(missing > done.len() / 2 && hinted >= missing, "{hinted} hints for {missing} cells");
}

#[test]
fn a_query_beforehand_predicts_the_refusal() {
    let mut flood = Flood::new(1, 1);
    let mut refusals = 0;
    for number in 0..20_000 {
        let quorum = flood.cluster.quorum(1, 1);
        let told = flood.cluster.coordinator_mut(0).1.write_refusal(&key("key-0"), Some(8), quorum);
        let id = flood.write();
        let refused = match flood.cluster.replies.get(&id) {
            Some(Reply::Failed(CommandFailure::Overloaded { retry_after })) => Some(*retry_after),
            _ => None,
        };
        assert_eq!(told, refused, "write {number}");
        refusals += usize::from(told.is_some());
        if number % 10 == 0 {
            flood.pass();
        }
    }
    assert!(refusals > 10_000);
}

#[test]
fn a_query_for_a_delete_ignores_that_a_busy_replica_is_full() {
    let mut flood = Flood::new(3, 1);
    flood.slow_nodes = 2;
    flood.cluster.hosts[0].view.peers[1].disk_full = true;
    flood.cluster.publish(0);
    let mut refusals = 0;
    for number in 0..20_000 {
        let (key, quorum) = (key(&format!("key-{number}")), flood.cluster.quorum(2, 3));
        let told = flood.cluster.coordinator_mut(0).1.write_refusal(&key, None, quorum);
        let id = flood.submit(Command::Delete { key, quorum });
        let refused = match flood.cluster.replies.get(&id) {
            Some(Reply::Failed(CommandFailure::Overloaded { retry_after })) => Some(*retry_after),
            _ => None,
        };
        assert_eq!(told, refused, "delete {number}");
        refusals += usize::from(told.is_some());
        if number % 10 == 0 {
            flood.pass();
        }
    }
    assert!(refusals > 0);
}
