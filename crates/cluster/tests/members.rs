//! Members that appear and disappear while their cluster serves.

mod world;

use bytes::Bytes;
use cluster::{
    Command, CoordinatorLimits, Event, HintCount, Lifetime, NodeIndex, PeerState, RebuildReason, Reply,
    RequestId, SyncState,
};
use std::time::Duration;
use stdx::NodeTag;
use world::{MILLISECOND, Packet, SECOND, Store, World, key};

/// A cluster of processes that are settled and linked.
fn started(hosts: usize, seed: u64) -> World {
    let mut world = World::of_processes(hosts, seed);
    world.start_all();
    assert_linked(&world, &(0..hosts).collect::<Vec<_>>());
    world
}

/// Checks that these hosts see each other as up, and that all their coordinators are linked.
#[track_caller]
fn assert_linked(world: &World, hosts: &[usize]) {
    for host in hosts {
        for peer in hosts.iter().filter(|peer| *peer != host) {
            let view = world.view_of(*host, *peer);
            assert_eq!((view.state, view.read_eligible), (PeerState::Up, true), "{peer} as seen by {host}");
            assert!(world.has_link(*host, *peer), "{host} has no link to {peer}");
        }
    }
}

fn put(world: &World, name: &str, ack: u8, from: u8) -> Command {
    let (value, quorum) = (Bytes::from(name.to_owned()), world.quorum(ack, from));
    Command::Put { key: key(name), value, lifetime: Lifetime::Forever, quorum }
}

fn get(world: &World, name: &str, ack: u8, from: u8) -> Command {
    Command::Get { key: key(name), quorum: world.quorum(ack, from) }
}

/// Operations that run while a test changes the cluster.
#[derive(Default)]
struct Load {
    submitted: Vec<RequestId>,
}

impl Load {
    /// Runs the world for a while. At each millisecond, each of `hosts` gets a write and the read
    /// of an earlier one.
    fn run(&mut self, world: &mut World, hosts: &[usize], (ack, from): (u8, u8), millis: u64) {
        for _ in 0..millis {
            for host in hosts {
                let number = self.submitted.len();
                let write = put(world, &format!("load{}", number % 50), ack, from);
                self.submitted.push(world.submit(*host, write));
                let read = get(world, &format!("load{}", (number / 2) % 50), ack, from);
                self.submitted.push(world.submit(*host, read));
            }
            world.run(MILLISECOND);
        }
    }

    /// Checks that each operation had its reply, which is no failure.
    #[track_caller]
    fn check(&self, world: &mut World) {
        world.run(2 * SECOND);
        for id in &self.submitted {
            let reply = &world.replies[id];
            assert!(!matches!(reply, Reply::Failed(_)), "{id:?} of {}: {reply:?}", self.submitted.len());
        }
    }
}

/// The nodes that a host reports in its status.
fn members(world: &World, host: usize) -> Vec<NodeIndex> {
    world.node(host).status().peers.iter().map(|peer| peer.node).collect()
}

fn slots(hosts: &[usize]) -> Vec<NodeIndex> {
    hosts.iter().map(|host| NodeIndex(*host as u8)).collect()
}

#[test]
fn a_member_is_added_while_operations_run() {
    for seed in 0..4 {
        let (mut world, mut load) = (started(3, seed), Load::default());
        load.run(&mut world, &[0, 1, 2], (2, 3), 20);
        let epoch = world.decide_added(3);
        for host in [2, 0, 1] {
            world.learn(host);
            load.run(&mut world, &[0, 1, 2], (2, 3), 30);
        }
        world.start(3);
        load.run(&mut world, &[0, 1, 2], (2, 3), 500);
        world.run(2 * SECOND);
        assert_linked(&world, &[0, 1, 2, 3]);
        assert!((0..4).all(|host| members(&world, host) == slots(&[0, 1, 2, 3])));
        // Each of the four nodes takes writes, and all acknowledge them.
        let mut all = Load::default();
        all.run(&mut world, &[0, 1, 2, 3], (4, 4), 20);
        all.check(&mut world);
        load.check(&mut world);
        assert_eq!(world.newest_record().epoch, epoch);
        assert_eq!(world.sync_state(3), SyncState::Settled);
        assert!(!world.hosts[3].events.iter().any(|it| matches!(it, Event::RebuildBegan { .. })));
    }
}

#[test]
fn a_member_that_does_not_answer_delays_no_operation_when_it_is_added() {
    let (mut world, mut load) = (started(3, 5), Load::default());
    world.decide_added(3);
    world.cut.extend((0..3).map(|host| (host, 3)));
    (0..3).for_each(|host| world.learn(host));
    load.run(&mut world, &[0, 1, 2], (2, 3), 300);
    load.check(&mut world);
    let slowest = load.submitted.iter().map(|id| world.waits[id].1 - world.submission(*id).1).max();
    assert!(slowest.is_some_and(|slowest| slowest < 20 * MILLISECOND), "{slowest:?}");
}

#[test]
fn a_member_is_removed_while_operations_run() {
    for seed in 0..4 {
        let (mut world, mut load) = (started(4, seed), Load::default());
        load.run(&mut world, &[0, 1, 2, 3], (3, 4), 20);
        world.decide_removed(1);
        for host in [3, 0, 2] {
            world.learn(host);
            load.run(&mut world, &[0, 2, 3], (2, 3), 10);
        }
        let sent = world.sent.len();
        load.run(&mut world, &[0, 2, 3], (2, 3), 100);
        let is_to_removed = |(from, to, _): &&(usize, usize, cluster::Message)| *from != 1 && *to == 1;
        assert_eq!(world.sent[sent..].iter().find(is_to_removed), None, "it is sent nothing");
        load.check(&mut world);
        assert_linked(&world, &[0, 2, 3]);
        for host in [0, 2, 3] {
            assert_eq!(members(&world, host), slots(&[0, 2, 3]));
            assert_eq!(world.state(host, 1), PeerState::Unreachable);
            assert!(!world.has_link(host, 1) && !world.has_link(1, host));
            let record = &world.hosts[host].store.record;
            assert_eq!(record.peers.keys().copied().filter(|it| *it == NodeIndex(1)).count(), 0);
        }
        // The process of the removed node is refused, however often it dials.
        world.run(5 * SECOND);
        assert!([0, 2, 3].iter().all(|host| !world.has_link(1, *host)));
    }
}

#[test]
fn an_operation_that_needs_all_nodes_is_planned_anew_without_the_removed_one() {
    let mut world = World::of_coordinators(4, CoordinatorLimits::default(), 1);
    let (write, read) = (put(&world, "k", 4, 4), get(&world, "k", 4, 4));
    let written = world.submit(0, write);
    while world.deliver_first(|packet| !packet.concerns(3)) {}
    assert!(!world.replies.contains_key(&written), "node 3 has not answered");
    world.decide_removed(3);
    (0..3).for_each(|host| world.learn(host));
    world.settle();
    let Reply::Written { acks, .. } = &world.replies[&written] else { panic!("{:?}", world.replies) };
    assert_eq!((acks.got, acks.from), (3, 3));
    // The client has chosen the quorum before the change.
    let found = world.submit(1, read);
    world.settle();
    assert!(matches!(&world.replies[&found], Reply::Found { .. }), "{:?}", world.replies);
}

#[test]
fn a_node_that_was_alone_serves_while_it_gets_its_first_peer() {
    let (mut world, mut load) = (started(1, 8), Load::default());
    load.run(&mut world, &[0], (1, 1), 20);
    world.decide_added(1);
    world.learn(0);
    load.run(&mut world, &[0], (1, 1), 300);
    world.start(1);
    load.run(&mut world, &[0], (1, 1), 500);
    world.run(2 * SECOND);
    assert_linked(&world, &[0, 1]);
    load.check(&mut world);
    let generations = |world: &World, host: usize| world.hosts[host].store.record.own_generations.clone();
    assert!((0..2).all(|host| generations(&world, host).current().is_some()), "starts are counted");
    // The loss of a disk is found out from now on.
    world.crash(1);
    world.hosts[1].store = Store::default();
    world.hosts[1].tag = NodeTag(77);
    world.start(1);
    world.run(SECOND);
    let is_rebuild = |event: &Event| {
        matches!(event, Event::RebuildBegan { why: RebuildReason::LostDisk { told_by: NodeIndex(0) } })
    };
    assert!(world.hosts[1].events.iter().any(is_rebuild), "{:?}", world.hosts[1].events);
}

#[test]
fn hints_for_a_removed_member_are_deleted() {
    let mut world = started(4, 9);
    world.crash(3);
    world.run(SECOND);
    for number in 0..300 {
        world.write(0, &format!("k{number}"), 4, &[3]);
    }
    world.run(SECOND);
    assert_eq!(world.hosts[0].store.hints_for(3), 300);
    world.decide_removed(3);
    // One process learns it while it runs, and another one starts with it.
    world.write(1, "other", 4, &[3]);
    world.crash(1);
    world.decide_added(4);
    (0..3).for_each(|host| world.learn(host));
    world.start(1);
    world.run(15 * SECOND);
    for host in 0..2 {
        assert_eq!(world.hosts[host].store.hints_for(3), 0, "host {host}");
        assert_eq!(world.hosts[host].member.hints.held(NodeIndex(3)), HintCount::default());
    }
}

#[test]
fn a_node_in_the_slot_of_a_removed_one_is_a_new_member() {
    for takes_both_at_once in [false, true] {
        let (mut world, mut load) = (started(4, 10), Load::default());
        // The hosts hold a record that names the ids.
        world.decide(|_| ());
        (0..4).for_each(|host| world.learn(host));
        world.decide_removed(3);
        if !takes_both_at_once {
            (0..3).for_each(|host| world.learn(host));
            world.run(SECOND);
        }
        world.crash(3);
        world.hosts[3].store = Store::default();
        world.hosts[3].tag = NodeTag(88);
        world.decide_added(3);
        (0..3).for_each(|host| world.learn(host));
        world.start(3);
        load.run(&mut world, &[0, 1, 2], (3, 4), 500);
        world.run(2 * SECOND);
        assert_linked(&world, &[0, 1, 2, 3]);
        load.check(&mut world);
        let rebuilds = |event: &Event| matches!(event, Event::RebuildBegan { .. });
        assert!(!world.hosts[3].events.iter().any(rebuilds), "it has lost nothing");
    }
}

#[test]
fn a_process_starts_with_a_layout_that_has_a_free_slot() {
    let (mut world, mut load) = (started(4, 11), Load::default());
    load.run(&mut world, &[0], (2, 3), 20);
    load.check(&mut world);
    world.decide_removed(0);
    world.crash(2);
    (1..4).for_each(|host| world.learn(host));
    world.start(2);
    world.run(3 * SECOND);
    assert_linked(&world, &[1, 2, 3]);
    assert_eq!(world.hosts[2].store.record.peers.len(), 2, "it remembers the members");
    let mut rest = Load::default();
    rest.run(&mut world, &[1, 2, 3], (2, 3), 50);
    rest.check(&mut world);
}

#[test]
fn a_round_of_anti_entropy_ends_without_a_removed_member() {
    let mut world = started(4, 12);
    world.crash(3);
    world.run(2 * SECOND);
    let (now, node) = world.node_mut(0);
    node.begin_repair(now);
    world.carry_out_effects(0);
    let before = world.node(0).status().repaired_at;
    world.run(60 * SECOND);
    assert_eq!(world.node(0).status().repaired_at, before, "host 3 was not compared with");
    world.decide_removed(3);
    (0..3).for_each(|host| world.learn(host));
    world.run(SECOND);
    assert!(world.node(0).status().repaired_at > before, "the round has ended");
    let pending = world.hosts[0].store.record.repair_pending;
    assert!(!pending.contains(NodeIndex(3)), "{pending:?}");
}

#[test]
fn a_process_has_fenced_an_epoch_once_all_its_state_machines_have() {
    let mut world = started(4, 13);
    let before = world.node(0).fenced();
    let name =
        world.name_where("k", 2, |replicas| [0, 1].iter().all(|it| replicas.contains(&NodeIndex(*it))));
    world.hosts[0].store.latency = Duration::from_secs(5);
    let write = put(&world, &name, 2, 2);
    world.decide_removed(3);
    world.submit(1, write);
    world.run(10 * MILLISECOND);
    let is_at_store = |packet: &Packet| packet.concerns(0) && packet.is_write_at_store();
    assert!(world.in_flight().any(is_at_store), "a write of an older plan is being carried out");
    world.learn(0);
    assert_eq!(world.node(0).fenced(), before);
    world.run(6 * SECOND);
    world.report_fence(0);
    let newest = world.hosts[0].member.layout.newest_change();
    assert!(newest > before);
    assert_eq!((world.node(0).fenced(), world.node(0).status().fenced), (newest, newest));
}

/// The last record of a removal changes no partition, so the layout of the request is not stale.
#[test]
fn a_range_that_is_read_for_a_removed_member_is_not_answered() {
    let mut world = started(4, 16);
    let write = put(&world, "k", 4, 4);
    world.submit(0, write);
    world.decide_leaving(3);
    (0..4).for_each(|host| world.learn(host));
    world.run(2 * SECOND);
    world.hosts[0].store.latency = Duration::from_millis(500);
    let (now, node) = world.node_mut(3);
    node.begin_repair(now);
    world.carry_out_effects(3);
    let is_range = |packet: &Packet| packet.concerns(0) && packet.is_range_at_store();
    world.run_until(60 * SECOND, "host 0 reads a range for host 3", |world| world.in_flight().any(is_range));
    world.decide_left(3);
    world.learn(0);
    world.run(2 * SECOND);
    assert_eq!(members(&world, 0), slots(&[0, 1, 2]));
}

#[test]
fn an_older_layout_is_of_no_effect() {
    let mut world = started(3, 14);
    let former = std::sync::Arc::clone(&world.hosts[0].member.layout);
    world.decide_added(3);
    world.learn(0);
    let (now, coordinator) = world.coordinator_mut(0);
    coordinator.handle_layout(now, std::sync::Arc::clone(&former));
    let (now, node) = world.node_mut(0);
    node.handle_layout(now, former);
    world.carry_out_effects(0);
    assert_eq!(members(&world, 0), slots(&[0, 1, 2, 3]));
}
