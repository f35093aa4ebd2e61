//! Links, the failure detector, the sync state and readiness.

mod world;

use cluster::{
    Destination, DialFailure, Effect, HybridClock, LinkAction, Message, NodeIndex, NodeLimits, NodeSet,
    Origin, PeerState, StoreRequest, SyncState,
};
use stdx::{Cell, Hlc, NodeTag};
use world::{MILLISECOND, SECOND, World, key};

fn is_record_write(request: &StoreRequest) -> bool {
    matches!(request, StoreRequest::PersistRecord { .. })
}

#[test]
fn a_new_cluster_settles_and_is_ready() {
    let mut world = World::new(3, 1);
    (0..3).for_each(|host| world.start(host));
    world.run_until(SECOND, "all are settled and ready", |world| {
        (0..3).all(|host| world.sync_state(host) == SyncState::Settled && world.node(host).is_ready())
    });
    world.run(SECOND);
    for host in 0..3 {
        for peer in 0..3 {
            let seen = world.view_of(host, peer);
            assert!(seen.read_eligible && seen.state == PeerState::Up, "{host} of {peer}: {seen:?}");
        }
        assert_eq!(world.hosts[host].store.record.peers.len(), 2);
    }
}

#[test]
fn a_majority_of_new_nodes_is_ready_and_not_read_eligible_without_the_rest() {
    let mut world = World::new(3, 2);
    world.start(0);
    world.run(3 * SECOND);
    assert_eq!(world.sync_state(0), SyncState::Unsettled);
    assert!(world.node(0).is_ready(), "there is no other node to wait for");
    assert!(!world.view_of(0, 0).read_eligible);
    assert_eq!(world.node(0).view().unheard_peers, NodeSet::from_iter([NodeIndex(1), NodeIndex(2)]));
    world.start(1);
    world.run(10 * SECOND);
    for host in 0..2 {
        assert_eq!(world.sync_state(host), SyncState::Unsettled);
        assert!(world.node(host).is_ready());
        assert_eq!(world.node(host).view().unheard_peers, NodeSet::from_iter([NodeIndex(2)]));
        for peer in 0..2 {
            let seen = world.view_of(host, peer);
            assert!(
                seen.state == PeerState::Up && !seen.read_eligible,
                "writes count, reads do not: {seen:?}"
            );
        }
    }
    world.start(2);
    world.run_until(SECOND, "all are settled", |world| {
        (0..3).all(|host| world.sync_state(host) == SyncState::Settled && world.node(host).is_ready())
    });
    world.run(SECOND);
    assert!((0..3).all(|host| world.view_of(host, host).read_eligible));
    assert!(world.node(0).view().unheard_peers.is_empty());
}

#[test]
fn a_node_that_lost_its_disk_rebuilds_before_it_is_read_eligible() {
    let mut world = World::started(3, 3);
    world.crash(2);
    world.lose_disk(2);
    world.run(SECOND);
    world.start(2);
    let mut was_read_eligible = false;
    world.run_until(SECOND, "it knows of its loss", |world| {
        was_read_eligible |= (0..3).any(|host| world.view_of(host, 2).read_eligible);
        world.sync_state(2) == SyncState::Rebuilding
    });
    assert!(!was_read_eligible);
}

/// The host crashes at one of 40 moments after its start. So any change of its record may be the
/// last durable one, and its peers may or may not have heard of the new generation.
#[test]
fn a_lost_disk_is_detected_despite_any_crash() {
    for crash_at in 0..40 {
        let mut world = World::started(3, 4);
        world.crash(2);
        world.lose_disk(2);
        world.start(2);
        let mut passed = vec![world.sync_state(2)];
        for _ in 0..crash_at {
            world.run(MILLISECOND / 4);
            passed.push(world.sync_state(2));
        }
        world.restart(2);
        world.run_until(SECOND, "it knows of its loss", |world| {
            passed.push(world.sync_state(2));
            *passed.last().expect("pushed") != SyncState::Unsettled
        });
        let first = |wanted| passed.iter().position(|sync_state| *sync_state == wanted).unwrap_or(usize::MAX);
        let (rebuilding, settled) = (first(SyncState::Rebuilding), first(SyncState::Settled));
        assert!(rebuilding < settled, "crash {crash_at}: {passed:?}");
    }
}

#[test]
fn a_stored_identity_is_kept_until_the_new_node_has_decided_its_sync_state() {
    let mut world = World::started(3, 5);
    world.crash(2);
    world.lose_disk(2);
    world.hosts[2].store.fails = is_record_write;
    world.start(2);
    world.run(3 * SECOND);
    assert_eq!(world.sync_state(2), SyncState::Unsettled);
    for host in 0..2 {
        assert_eq!(world.hosts[host].store.record.peers[&NodeIndex(2)], NodeTag(3));
        assert_eq!(world.state(host, 2), PeerState::Unreachable, "nothing is written to it");
    }
    world.hosts[2].store.fails = |_| false;
    world.run(SECOND);
    for host in 0..2 {
        assert_eq!(world.hosts[host].store.record.peers[&NodeIndex(2)], NodeTag(103));
        assert_eq!(world.state(host, 2), PeerState::Up);
    }
}

#[test]
fn no_link_is_used_before_the_identity_of_the_peer_is_durable() {
    let mut world = World::new(2, 6);
    world.hosts[0].store.fails = is_record_write;
    world.start(0);
    world.start(1);
    for _ in 0..300 {
        world.run(10 * MILLISECOND);
        assert!(!matches!(world.state(0, 1), PeerState::Up | PeerState::Suspected));
    }
    assert!(world.hosts[0].store.record.peers.is_empty());
    world.hosts[0].store.fails = |_| false;
    world.run(2 * SECOND);
    assert_eq!(world.state(0, 1), PeerState::Up);
}

#[test]
fn duplicate_answers_are_no_sign_of_life() {
    let mut world = World::started(2, 16);
    let is_answer = |message: &Message| matches!(message, Message::Answer { .. });
    let (_, _, old) =
        world.sent.iter().rfind(|(from, _, message)| *from == 1 && is_answer(message)).expect("it answers");
    let old = old.clone();
    world.stop(1);
    for _ in 0..15 {
        world.run(100 * MILLISECOND);
        let (now, node) = world.node_mut(0);
        let link = Destination::Dialed(NodeIndex(1));
        node.handle_message(now, Origin { node: NodeIndex(1), link }, old.clone());
        world.carry_out_effects(0);
    }
    assert_eq!(world.state(0, 1), PeerState::Unreachable);
}

#[test]
fn heartbeats_work_though_messages_are_lost_duplicated_and_reordered() {
    let mut world = World::started(3, 10);
    world.net.loss = 0.05;
    world.net.doubled = 0.2;
    world.net.jitter = 80 * MILLISECOND;
    world.run(20 * SECOND);
    world.restart(0);
    world.run(5 * SECOND);
    world.net = world::Net::of_a_rack();
    world.run(2 * SECOND);
    for host in 0..3 {
        assert_eq!(world.sync_state(host), SyncState::Settled);
        assert!((0..3).all(|peer| world.state(host, peer) == PeerState::Up));
    }
}

#[test]
fn a_clock_ahead_of_most_others_is_reported_and_one_wrong_peer_clock_is_not() {
    let mut world = World::started(3, 11);
    world.hosts[1].wall_offset_micros = -20_000_000;
    world.run(SECOND);
    assert!((0..3).all(|host| !world.node(host).view().clock_ahead));
    world.hosts[2].wall_offset_micros = -20_000_000;
    world.run(SECOND);
    assert!(world.node(0).view().clock_ahead);
    assert!(!world.node(1).view().clock_ahead && !world.node(2).view().clock_ahead);
}

#[test]
fn a_peer_without_progress_is_not_waited_for() {
    let mut world = World::started(3, 12);
    world.crash(0);
    let name = world.name_where("k", 3, |_| true);
    world.hosts[1].store.fails = |request| matches!(request, StoreRequest::ReadHints { .. });
    world.write(1, &name, 3, &[0]);
    world.run(SECOND);
    world.start(0);
    world.run(4 * SECOND);
    assert!(!world.node(0).is_ready(), "host 1 holds a hint for it");
    world.run(2 * SECOND);
    assert!(world.node(0).is_ready(), "host 1 does not deliver it");
}

#[test]
fn reserved_versions_are_waited_out_and_not_shown() {
    let mut world = World::started(3, 14);
    world.crash(0);
    let reserved_until = world.now_at(1).wall.saturating_add(HybridClock::RESERVATION);
    world.clock_start = Hlc::at(reserved_until);
    world.start(0);
    world.run(HybridClock::RESERVATION / 2);
    assert!(!world.node(0).is_ready());
    assert!(world.hosts[1].member.clock.issued() < Hlc::at(reserved_until), "peers go by the wall");
    world.run(HybridClock::RESERVATION);
    assert!(world.node(0).is_ready());
}

/// Hosts that were killed and whose previous generations had reserved versions of the next second.
fn killed_with_a_reservation(seed: u64) -> World {
    let mut world = World::started(3, seed);
    (0..3).for_each(|host| world.crash(host));
    world.run(10 * MILLISECOND);
    world.clock_start = Hlc::at(world.now_at(0).wall.saturating_add(HybridClock::RESERVATION));
    world
}

#[test]
fn a_killed_node_whose_peers_refuse_the_connection_is_ready_at_once() {
    let mut world = killed_with_a_reservation(17);
    world.start(0);
    world.run(10 * MILLISECOND);
    assert!(world.node(0).is_ready() && !world.node(0).view().holds_writes);
}

#[test]
fn writes_are_held_when_peers_return_within_the_reserved_second() {
    let mut world = killed_with_a_reservation(18);
    world.start(0);
    world.run(10 * MILLISECOND);
    world.start(1);
    world.run_until(200 * MILLISECOND, "they have linked", |world| world.state(0, 1) == PeerState::Up);
    assert!(world.node(0).is_ready(), "once ready, a node stays so");
    assert!(world.node(0).view().holds_writes, "a later write through host 1 would be hidden");
    assert!(!world.node(1).is_ready(), "it could hide writes of its peer");
    let reserved_until = world.clock_start.wall();
    world.run_until(2 * SECOND, "writes are taken", |world| !world.node(0).view().holds_writes);
    assert!(world.now_at(0).wall >= reserved_until);
    world.run(200 * MILLISECOND);
    assert!((0..2).all(|host| world.node(host).is_ready() && !world.node(host).view().holds_writes));
}

#[test]
fn writes_are_not_held_for_a_wall_clock_that_was_set_back() {
    let mut world = World::started(2, 19);
    world.crash(0);
    world.clock_start = Hlc::at(world.now_at(0).wall.saturating_add(3_600 * SECOND));
    world.start(0);
    world.run(3 * SECOND);
    assert!(world.node(0).is_ready() && !world.node(0).view().holds_writes);
}

#[test]
fn a_peer_whose_link_is_open_is_waited_for_while_it_is_dialed() {
    for healed_after in 0..40 {
        let mut world = World::started(2, 20 + healed_after);
        world.cut_off(0, 1);
        world.run(3 * SECOND + healed_after as u32 * 37 * MILLISECOND);
        let is_waited_for = |world: &World, host: usize, peer: usize| {
            let seen = world.view_of(host, peer);
            seen.linking || seen.state == PeerState::Up
        };
        assert!(
            !is_waited_for(&world, 0, 1) && !is_waited_for(&world, 1, 0),
            "no heartbeat has arrived for long"
        );
        world.heal();
        for _ in 0..3_000 {
            world.run(MILLISECOND);
            for (host, peer) in [(0, 1), (1, 0)] {
                let is_open = world.state(peer, host) == PeerState::Up;
                assert!(!is_open || is_waited_for(&world, host, peer), "healed after {healed_after}");
            }
        }
        assert!((0..2).all(
            |host| world.state(host, 1 - host) == PeerState::Up && !world.view_of(host, 1 - host).linking
        ));
    }
}

#[test]
fn a_peer_that_links_and_cannot_be_dialed_is_unreachable() {
    let mut world = World::started(2, 21);
    world.fail_dials(1, DialFailure::Refused);
    world.break_dialed(0, 1);
    world.run(SECOND);
    assert_eq!(world.state(1, 0), PeerState::Up);
    let seen = world.view_of(0, 1);
    assert!(seen.state == PeerState::Unreachable && !seen.linking, "{seen:?}");
}

#[test]
fn a_rebuilding_peer_is_distinguished_from_an_unsettled_one() {
    let mut world = World::started(3, 22);
    world.crash(1);
    world.crash(2);
    world.lose_disk(2);
    world.start(2);
    world.run_until(SECOND, "it rebuilds", |world| world.sync_state(2) == SyncState::Rebuilding);
    world.run(200 * MILLISECOND);
    let (by_peer, by_itself) = (world.view_of(0, 2), world.view_of(2, 2));
    assert!(by_peer.rebuilding && !by_peer.read_eligible && by_itself.rebuilding && !by_itself.read_eligible);
    assert!(!world.view_of(2, 0).rebuilding && !world.view_of(0, 0).rebuilding);
}

#[test]
fn of_two_links_of_a_peer_the_newer_is_kept() {
    let mut world = World::started(2, 14);
    let hello = cluster::PeerHello {
        node: NodeIndex(1),
        tag: NodeTag(2),
        requester: cluster::Requester::Node,
        incarnation: world.hosts[1].member.incarnation,
        clock: Hlc::ZERO,
        sync_state: SyncState::Settled,
    };
    let link = cluster::LinkId(77);
    let (now, node) = world.node_mut(0);
    while node.poll_effect().is_some() {}
    node.handle_link(now, cluster::LinkEvent::AdmissionRequested { link, hello });
    let actions: Vec<Effect> = std::iter::from_fn(|| node.poll_effect()).collect();
    assert!(
        matches!(actions[..], [Effect::Link(LinkAction::Refuse(_)), Effect::Link(LinkAction::Admit(l))] if l == link)
    );
    let unknown =
        cluster::PeerHello { tag: NodeTag(9), requester: cluster::Requester::Coordinator(0), ..hello };
    node.handle_link(now, cluster::LinkEvent::AdmissionRequested { link, hello: unknown });
    assert_eq!(node.poll_effect(), Some(Effect::Link(LinkAction::Refuse(link))));
}

#[test]
fn a_second_process_of_a_peers_name_is_admitted_only_once_the_first_is_gone() {
    let mut world = World::started(2, 16);
    let hello = cluster::PeerHello {
        node: NodeIndex(1),
        tag: NodeTag(99),
        requester: cluster::Requester::Node,
        incarnation: cluster::Incarnation(9),
        clock: Hlc::ZERO,
        sync_state: SyncState::Unsettled,
    };
    let link = cluster::LinkId(77);
    let arrive = |world: &mut World| {
        let (now, node) = world.node_mut(0);
        while node.poll_effect().is_some() {}
        node.handle_link(now, cluster::LinkEvent::AdmissionRequested { link, hello });
        let actions: Vec<Effect> = std::iter::from_fn(|| node.poll_effect()).collect();
        actions.contains(&Effect::Link(LinkAction::Admit(link)))
    };
    assert!(!arrive(&mut world));
    world.run(SECOND);
    assert_eq!(world.state(0, 1), PeerState::Up, "nothing has changed for the first");
    world.crash(1);
    world.run(SECOND);
    assert!(arrive(&mut world));
}

#[test]
fn an_idle_node_leaves_its_disk_alone() {
    let mut world = World::started(2, 15);
    let limits = NodeLimits::default();
    assert!(limits.heartbeat_interval < SECOND);
    world.run(70 * SECOND);
    let asked_before = world.hosts[0].store_requests.len();
    world.run(30 * SECOND);
    assert_eq!(world.hosts[0].store_requests.len(), asked_before);
    let version = world.version(1);
    let (now, _) = world.node_mut(0);
    assert!(world.hosts[0].member.clock.observe(version.hlc, now));
    world.run(SECOND);
    assert!(world.hosts[0].member.clock.bound() > version.hlc);
    world.write_cell(0, &key("k"), &Cell::tombstone(version, 1), &[]);
}
