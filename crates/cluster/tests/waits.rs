//! The wait trace of a reply names its targets, and its spans add up to the whole time. A request
//! after a wait is sent with the remaining time.

mod world;

use bytes::Bytes;
use cluster::{
    Command, CoordinatorLimits, Key, Lifetime, Message, NodeIndex, Reply, RequestId, StoreRequest, WaitSpan,
    WaitTarget,
};
use std::time::Duration;
use stdx::{Cell, Hlc, Instant, NodeTag, Version};
use world::{Packet, TIMEOUT, World, key};

const STEP: Duration = Duration::from_millis(7);

fn cluster(nodes: u8) -> World {
    let mut cluster = World::of_coordinators(
        nodes,
        CoordinatorLimits { reads_for_one_of_all: 0, ..CoordinatorLimits::default() },
        1,
    );
    // The first write raises the bound of the clock.
    put(&mut cluster, "first", 1, 1);
    cluster.settle();
    cluster
}

/// The host at index `place` of the key's preference list.
fn at(cluster: &World, key: &Key, place: usize) -> usize {
    cluster.layout.replicas(key, cluster.layout.len())[place].as_usize()
}

fn peer(host: usize) -> WaitTarget {
    WaitTarget::Peer(NodeIndex(host as u8))
}

/// Writes a key at its first replica.
fn put(cluster: &mut World, name: &str, ack: u8, from: u8) -> RequestId {
    let (key, quorum, value) = (key(name), cluster.quorum(ack, from), Bytes::from_static(b"v"));
    let host = at(cluster, &key, 0);
    cluster.submit(host, Command::Put { key, value, lifetime: Lifetime::Forever, quorum })
}

fn get(cluster: &mut World, name: &str, ack: u8, from: u8) -> RequestId {
    let (key, quorum) = (key(name), cluster.quorum(ack, from));
    let host = at(cluster, &key, 0);
    cluster.submit(host, Command::Get { key, quorum })
}

/// Handles the packets that concern a host, and those that they cause, until none is left.
fn deliver(cluster: &mut World, host: usize) {
    while let Some(index) = cluster.position(|packet| packet.concerns(host)) {
        cluster.deliver(index, None);
    }
}

/// The spans of a reply with their durations, from its submission.
#[track_caller]
fn spans(cluster: &World, id: RequestId, submitted: Instant) -> Vec<(WaitTarget, Duration)> {
    let (wait, replied) = &cluster.waits[&id];
    let last = WaitSpan { target: wait.last, until: *replied };
    let mut from = submitted;
    let mut spans = Vec::new();
    for span in wait.earlier.iter().copied().chain([last]) {
        assert!(span.until >= from, "spans lie end to end: {wait:?}");
        spans.push((span.target, span.until.saturating_since(from)));
        from = span.until;
    }
    spans
}

#[test]
fn a_write_waits_for_the_answer_that_makes_its_quorum() {
    for last in 0..3 {
        let mut cluster = cluster(3);
        let hosts = [0, 1, 2].map(|place| at(&cluster, &key("k"), place));
        let (id, submitted) = (put(&mut cluster, "k", 3, 3), cluster.now);
        for place in (0..3).filter(|place| *place != last).chain([last]) {
            cluster.pass(STEP);
            deliver(&mut cluster, hosts[place]);
        }
        let expected = if last == 0 { WaitTarget::Store } else { peer(hosts[last]) };
        assert_eq!(spans(&cluster, id, submitted), [(expected, STEP * 3)]);
    }
}

#[test]
fn a_write_waits_first_for_the_bound_of_the_clock() {
    let mut cluster = World::of_coordinators(1, CoordinatorLimits::default(), 1);
    let (id, submitted) = (put(&mut cluster, "k", 1, 1), cluster.now);
    for is_bound in [true, false] {
        cluster.pass(STEP);
        let index = cluster.position(|packet| {
            let is_raise =
                matches!(packet, Packet::AtStore { request: StoreRequest::RaiseClockBound { .. }, .. });
            is_raise == is_bound
        });
        cluster.deliver(index.expect("the packet is in flight"), None);
    }
    let expected = [(WaitTarget::ClockBound, STEP), (WaitTarget::Store, STEP)];
    assert_eq!(spans(&cluster, id, submitted), expected);
}

#[test]
fn a_write_that_waited_for_a_link_did_not_wait_for_the_clock() {
    let mut cluster = cluster(3);
    let hosts = [0, 1, 2].map(|place| at(&cluster, &key("k"), place));
    cluster.cut(hosts[0], hosts[1]);
    let (id, submitted) = (put(&mut cluster, "k", 3, 3), cluster.now);
    assert!(cluster.in_flight().next().is_none(), "nothing is sent before the link opens");
    cluster.pass(TIMEOUT / 2);
    for place in [0, 2, 1] {
        cluster.pass(STEP);
        deliver(&mut cluster, hosts[place]);
    }
    let expected = [(WaitTarget::Links, TIMEOUT / 2), (peer(hosts[1]), STEP * 3)];
    assert_eq!(spans(&cluster, id, submitted), expected);
}

#[test]
fn a_read_that_waited_for_its_links_sends_the_remaining_time() {
    let mut cluster = cluster(3);
    let hosts = [0, 1, 2].map(|place| at(&cluster, &key("k"), place));
    hosts[1..].iter().for_each(|&host| cluster.cut(hosts[0], host));
    get(&mut cluster, "k", 3, 3);
    assert!(cluster.in_flight().next().is_none(), "nothing is sent before the links open");
    cluster.pass(TIMEOUT / 4);
    let within: Vec<Duration> = (cluster.in_flight())
        .filter_map(|packet| match packet {
            Packet::Message { message: Message::Request { within, .. }, .. } => *within,
            _ => None,
        })
        .collect();
    assert_eq!(within, [TIMEOUT - TIMEOUT / 4; 2]);
}

#[test]
fn an_operation_at_its_deadline_names_its_wait_target() {
    let mut cluster = cluster(3);
    let hosts = [0, 1, 2].map(|place| at(&cluster, &key("k"), place));
    let (id, submitted) = (put(&mut cluster, "k", 3, 3), cluster.now);
    deliver(&mut cluster, hosts[0]);
    deliver(&mut cluster, hosts[1]);
    cluster.pass(TIMEOUT);
    assert!(matches!(cluster.replies[&id], Reply::Failed(_)));
    assert_eq!(spans(&cluster, id, submitted), [(peer(hosts[2]), TIMEOUT)]);
}

#[test]
fn a_hedged_read_names_the_overdue_replica_and_then_the_one_that_answered() {
    let mut cluster = cluster(3);
    let hosts = [0, 1, 2].map(|place| at(&cluster, &key("k"), place));
    let (id, submitted) = (get(&mut cluster, "k", 2, 3), cluster.now);
    deliver(&mut cluster, hosts[0]);
    let is_asked = |cluster: &World, host: usize| {
        let concerns =
            |packet: &&Packet| matches!(packet, Packet::Message { acceptor, .. } if *acceptor == host);
        cluster.in_flight().any(|packet| concerns(&packet))
    };
    let late = if is_asked(&cluster, hosts[1]) { hosts[1] } else { hosts[2] };
    let other = if late == hosts[1] { hosts[2] } else { hosts[1] };
    let mut hedged_after = Duration::ZERO;
    while !is_asked(&cluster, other) {
        cluster.pass(Duration::from_millis(1));
        hedged_after += Duration::from_millis(1);
    }
    cluster.pass(STEP);
    deliver(&mut cluster, other);
    assert_eq!(spans(&cluster, id, submitted), [(peer(late), hedged_after), (peer(other), STEP)]);
}

#[test]
fn a_read_that_repairs_waits_for_the_answers_and_then_for_the_repair() {
    let mut cluster = cluster(3);
    let hosts = [0, 1, 2].map(|place| at(&cluster, &key("k"), place));
    let newest = Cell::value(Version::new(Hlc::from_bits(9), NodeTag(1)), 3, Bytes::from_static(b"v"));
    cluster.hosts[hosts[0]].store.cells.insert(key("k"), newest);
    let (id, submitted) = (get(&mut cluster, "k", 3, 3), cluster.now);
    deliver(&mut cluster, hosts[0]);
    cluster.pass(STEP);
    let answers = |cluster: &mut World, host: usize| {
        // Handle the request, its read and the answer, but not the packets that the answer causes.
        for _ in 0..3 {
            let index = cluster.position(|packet| packet.concerns(host));
            cluster.deliver(index.expect("the packet is in flight"), None);
        }
    };
    answers(&mut cluster, hosts[1]);
    answers(&mut cluster, hosts[2]);
    assert!(!cluster.replies.contains_key(&id), "what it found is on one replica");
    cluster.pass(STEP);
    deliver(&mut cluster, hosts[2]);
    cluster.pass(STEP);
    deliver(&mut cluster, hosts[1]);
    assert!(matches!(cluster.replies[&id], Reply::Found { .. }));
    let (wait, replied) = &cluster.waits[&id];
    assert_eq!(wait.last, peer(hosts[1]));
    assert_eq!(replied.saturating_since(submitted), STEP * 3);
    let spans = spans(&cluster, id, submitted);
    assert_eq!(spans.iter().map(|(_, took)| *took).sum::<Duration>(), STEP * 3);
    assert!(spans.len() > 1 && spans[0].1 == STEP, "the repair is a span of its own: {spans:?}");
}

#[test]
fn an_immediate_reply_has_waited_for_nothing() {
    let mut cluster = cluster(1);
    let (quorum, key) = (cluster.quorum(1, 1), key("k"));
    let lifetime = Lifetime::For(Duration::from_secs(u64::from(u32::MAX)));
    let command = Command::Put { key, value: Bytes::new(), lifetime, quorum };
    let (id, submitted) = (cluster.submit(0, command), cluster.now);
    assert!(matches!(cluster.replies[&id], Reply::Failed(_)), "it would expire too late");
    assert_eq!(spans(&cluster, id, submitted), [(WaitTarget::Nothing, Duration::ZERO)]);
}
