//! Hinted handoff, and the drain of a node.

mod world;

use cluster::{
    HintCount, Message, NodeIndex, NodeSet, PeerAnswer, PeerRequest, PeerState, ReplicaRequest,
    ReplicaResponse, StoreRequest, hint_bytes,
};
use std::time::Duration;
use stdx::{Cell, NodeTag, Version};
use world::{MILLISECOND, SECOND, World, key};

/// Number of writes that `from` has sent to `to`.
fn writes(world: &World, from: usize, to: usize) -> usize {
    let is_write = |message: &Message| {
        matches!(
            message,
            Message::Request { request: PeerRequest::Replica(ReplicaRequest::Write { .. }), .. }
        )
    };
    world.sent.iter().filter(|(a, b, message)| (*a, *b) == (from, to) && is_write(message)).count()
}

#[test]
fn hints_are_delivered_and_deleted() {
    let mut world = World::started(3, 1);
    world.crash(2);
    let names: Vec<String> = (0..200).map(|i| format!("k{i}")).collect();
    let versions: Vec<Version> = names.iter().map(|name| world.write(0, name, 3, &[2])).collect();
    world.run(SECOND);
    world.start(2);
    world.run_until(5 * SECOND, "host 2 is ready", |world| world.node(2).is_ready());
    for (name, version) in names.iter().zip(&versions) {
        assert_eq!(world.version_at(2, name), Some(*version), "it is ready with its hints applied");
    }
    world.run(SECOND);
    assert_eq!(world.hosts[0].store.hints_for(2), 0);
    assert_eq!(world.hosts[0].member.hints.held(NodeIndex(2)), HintCount::default());
    assert_eq!(writes(&world, 0, 2), names.len(), "each once");
}

#[test]
fn hints_survive_a_crash_of_the_node_that_holds_them() {
    let mut world = World::started(3, 2);
    world.crash(2);
    let version = world.write(0, "k", 3, &[2]);
    world.restart(0);
    world.run(SECOND);
    assert_eq!(world.hosts[0].member.hints.held(NodeIndex(2)).hints, 1, "it was counted");
    world.start(2);
    world.run(3 * SECOND);
    assert_eq!((world.version_at(2, "k"), world.hosts[0].store.hints_for(2)), (Some(version), 0));
}

#[test]
fn a_target_that_missed_an_older_version_gets_the_newest_despite_its_smaller_from() {
    let mut world = World::started(3, 3);
    world.crash(2);
    let name = world.name_where("k", 2, |replicas| !replicas.contains(&NodeIndex(2)));
    world.write(0, &name, 3, &[2]);
    // The newest write has a `from` of two.
    let version = world.write(0, &name, 2, &[]);
    world.start(2);
    world.run(3 * SECOND);
    assert_eq!(world.version_at(2, &name), Some(version));
    assert_eq!(
        world.hosts[2].store.cells[&key(&name)].meta.from,
        3,
        "it is one of three replicas from now on"
    );
    assert_eq!((world.hosts[0].store.hints_for(2), writes(&world, 0, 2)), (0, 1));
}

#[test]
fn a_newer_hint_is_not_deleted_with_the_older() {
    let mut world = World::started(2, 4);
    world.hosts[0].store.latency = 5 * MILLISECOND;
    world.net.latency = 20 * MILLISECOND;
    world.run(SECOND);
    world.write(0, "k", 2, &[1]);
    world.run_until(SECOND, "the older is on its way", |world| writes(world, 0, 1) == 1);
    let newer = world.write(0, "k", 2, &[1]);
    world.run_until(SECOND, "it has arrived", |world| world.version_at(1, "k").is_some());
    world.run(40 * MILLISECOND);
    assert_eq!(world.hosts[0].store.hints.get(&(NodeIndex(1), key("k"))), Some(&newer));
    world.run(3 * SECOND);
    assert_eq!((world.version_at(1, "k"), world.hosts[0].store.hints_for(1)), (Some(newer), 0));
    assert_eq!(world.hosts[0].member.hints.held(NodeIndex(1)), HintCount::default());
}

#[test]
fn no_hint_is_deleted_before_its_target_acknowledged_it() {
    let mut world = World::started(2, 5);
    world.hosts[1].store.fails =
        |request| matches!(request, StoreRequest::Replica(ReplicaRequest::Write { .. }));
    let version = world.write(0, "k", 2, &[1]);
    world.run(5 * SECOND);
    assert!(writes(&world, 0, 1) >= 2, "it was tried again");
    assert_eq!(world.hosts[0].store.hints_for(1), 1);
    world.hosts[1].store.fails = |_| false;
    // Answers are lost.
    world.cut.insert((1, 0));
    world.run(300 * MILLISECOND);
    assert_eq!(world.hosts[0].store.hints_for(1), 1);
    world.heal();
    world.run(5 * SECOND);
    assert_eq!((world.version_at(1, "k"), world.hosts[0].store.hints_for(1)), (Some(version), 0));
}

#[test]
fn hints_arrive_though_messages_are_lost_and_stores_and_links_fail() {
    for seed in 0..10 {
        let mut world = World::started(3, 100 + seed);
        world.net.loss = 0.1;
        world.net.doubled = 0.1;
        world.net.jitter = 5 * MILLISECOND;
        let names: Vec<String> = (0..150).map(|i| format!("k{i}")).collect();
        for (i, name) in names.iter().enumerate() {
            world.write(0, name, 3, &[2]);
            if i % 50 == 0 {
                world.restart(2);
            }
            if i % 60 == 0 {
                world.restart(0);
            }
            world.hosts[0].store.fails = match i % 7 {
                0 => |request| matches!(request, StoreRequest::ForgetHints { .. }),
                1 => |request| matches!(request, StoreRequest::ReadHints { .. }),
                _ => |_| false,
            };
            world.run(20 * MILLISECOND);
        }
        world.net.loss = 0.0;
        world.hosts[0].store.fails = |_| false;
        world.run(40 * SECOND);
        for name in &names {
            assert_eq!(world.version_at(2, name), world.version_at(0, name), "seed {seed}: {name}");
        }
        assert_eq!(world.hosts[0].store.hints_for(2), 0);
        assert_eq!(world.hosts[0].member.hints.held(NodeIndex(2)), HintCount::default(), "seed {seed}");
    }
}

#[test]
fn hints_past_the_budget_are_dropped_and_a_repair_is_pending() {
    let mut world = World::new(2, 7);
    world.hint_bytes_max = 3 * hint_bytes(&key("k0"));
    (0..2).for_each(|host| world.start(host));
    world.run(SECOND);
    world.crash(1);
    (0..5).for_each(|i| {
        world.write(0, &format!("k{i}"), 2, &[1]);
    });
    world.run(SECOND);
    assert_eq!(world.hosts[0].store.hints_for(1), 3);
    assert_eq!(world.hosts[0].store.record.repair_pending, NodeSet::from_iter([NodeIndex(1)]));
}

#[test]
fn one_refused_hint_does_not_block_the_others() {
    let mut world = World::started(2, 8);
    world.hosts[1].wall_offset_micros = -30_000_000;
    let refused = world.write(0, "a", 2, &[1]);
    let older = Version::new(stdx::Hlc::from_bits(refused.hlc.to_bits() - (40_000_000 << 12)), NodeTag(1));
    for i in 0..70 {
        world.write_cell(0, &key(&format!("b{i}")), &Cell::tombstone(older, 2), &[1]);
    }
    world.run(3 * SECOND);
    assert_eq!(world.version_at(1, "a"), None);
    assert_eq!(world.version_at(1, "b69"), Some(older));
    assert_eq!(world.hosts[0].store.hints_for(1), 1);
}

#[test]
fn surplus_hints_are_subtracted_from_the_ledger() {
    let mut world = World::started(2, 9);
    world.cut_off(0, 1);
    world.run(2 * SECOND);
    (0..5).for_each(|_| {
        world.write(0, "k", 2, &[1]);
    });
    assert_eq!(world.hosts[0].member.hints.held(NodeIndex(1)).hints, 5);
    world.heal();
    world.run(3 * SECOND);
    assert_eq!(world.hosts[0].store.hints_for(1), 0);
    world.restart(1);
    world.run_until(SECOND, "an unconfirmed count is not waited for", |world| world.node(1).is_ready());
    world.run(12 * SECOND);
    assert_eq!(world.hosts[0].member.hints.held(NodeIndex(1)), HintCount::default());
}

#[test]
fn a_hint_that_reaches_the_disk_late_is_still_delivered() {
    let mut world = World::started(2, 10);
    let version = world.write(0, "other", 2, &[1]);
    // The hint is counted before the store has it, as a coordinator does.
    assert!(world.hosts[0].member.hints.try_keep(NodeIndex(1), hint_bytes(&key("k"))));
    world.run(8 * SECOND);
    world.hosts[0].store.put(&key("k"), &Cell::tombstone(version, 2));
    world.hosts[0].store.keep_hints(&key("k"), version, NodeSet::from_iter([NodeIndex(1)]));
    world.run(20 * SECOND);
    assert_eq!(world.version_at(1, "k"), Some(version));
    assert_eq!(world.hosts[0].member.hints.held(NodeIndex(1)), HintCount::default());
}

#[test]
fn a_drain_delivers_the_hints_of_reachable_peers() {
    let mut world = World::started(3, 11);
    world.crash(1);
    world.cut_off(0, 2);
    world.run(2 * SECOND);
    for i in 0..100 {
        world.write(0, &format!("k{i}"), 3, &[1, 2]);
    }
    world.heal();
    world.run_until(3 * SECOND, "host 2 is back", |world| world.state(0, 2) == PeerState::Up);
    assert!(world.hosts[0].store.hints_for(2) > 0);
    let (now, node) = world.node_mut(0);
    node.begin_drain(now);
    world.carry_out_effects(0);
    assert!(world.view_of(0, 0).draining && !world.node(0).is_drained());
    world.run_until(5 * SECOND, "it is drained", |world| world.node(0).is_drained());
    assert_eq!(world.hosts[0].store.hints_for(2), 0);
    assert_eq!(world.hosts[0].store.hints_for(1), 100, "host 1 is not there");
}

#[test]
fn an_unexpected_answer_is_ignored() {
    let mut world = World::started(2, 13);
    let id = |number| cluster::MessageId {
        incarnation: world.hosts[0].member.incarnation,
        requester: cluster::Requester::Node,
        number,
    };
    let answers: Vec<Message> = (0..50)
        .map(|number| Message::Answer {
            id: id(number),
            answer: PeerAnswer::Replica(ReplicaResponse::Written { superseded: false }),
        })
        .collect();
    for answer in answers {
        let (now, node) = world.node_mut(0);
        let origin = cluster::Origin { node: NodeIndex(1), link: cluster::Destination::Dialed(NodeIndex(1)) };
        node.handle_message(now, origin, answer);
        world.carry_out_effects(0);
    }
    world.run(Duration::from_secs(1));
}

#[test]
fn hints_for_large_values_arrive_over_a_slow_link_each_once() {
    let mut world = World::started(3, 40);
    world.bytes_per_second = Some(1 << 20);
    world.crash(2);
    for name in ["a", "b", "c"] {
        let version = world.version(0);
        let cell = Cell::value(version, 3, vec![7; 6 << 20].into());
        world.write_cell(0, &key(name), &cell, &[2]);
        world.run(SECOND);
    }
    world.start(2);
    world.run_until(40 * SECOND, "all are delivered", |world| world.hosts[0].store.hints_for(2) == 0);
    assert_eq!(writes(&world, 0, 2), 3, "each once");
}
