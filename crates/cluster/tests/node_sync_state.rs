//! The sync state of new clusters, of older states of a directory, and of copies of it.

mod world;

use cluster::{
    Destination, DialFailure, Effect, Event, GenerationReport, HeartbeatPayload, Incarnation, LinkAction,
    LinkEvent, LinkId, Message, MessageId, NodeIndex, NodeRequest, NodeSet, Origin, PeerHello, PeerRequest,
    PeerState, PlanStatements, RebuildReason, Requester, StoreRequest, SyncState,
};
use std::time::Duration;
use stdx::{Hlc, Instant, NodeTag};
use world::{MILLISECOND, SECOND, World, key};

/// A world in which two of three new nodes run with the operator's declaration of a new cluster.
fn founded_without_the_third(seed: u64) -> World {
    let mut world = World::new(3, seed);
    world.limits.new_cluster = true;
    (0..2).for_each(|host| world.start(host));
    world.run(3 * SECOND);
    for host in 0..2 {
        assert_eq!(world.sync_state(host), SyncState::Settled);
        assert!((0..2).all(|peer| world.view_of(host, peer).read_eligible));
    }
    world
}

/// Whether all hosts run, are settled and are read-eligible for all others.
fn are_all_read_eligible(world: &World) -> bool {
    let hosts = || 0..world.hosts.len();
    hosts().all(|host| world.sync_state(host) == SyncState::Settled && world.node(host).is_ready())
        && hosts().all(|host| hosts().all(|peer| world.view_of(host, peer).read_eligible))
}

/// Whether host 2, which knows of the loss, considers this host read-eligible.
fn is_read_eligible_for_host_2(world: &World, host: usize) -> bool {
    world.hosts[2].node.is_some() && world.view_of(2, host).read_eligible
}

/// Whether any host considers this one read-eligible.
fn is_read_eligible(world: &World, of: usize) -> bool {
    let runs = |host: &usize| world.hosts[*host].node.is_some();
    (0..world.hosts.len()).filter(runs).any(|host| world.view_of(host, of).read_eligible)
}

#[test]
fn the_new_cluster_setting_settles_a_majority_and_the_rest_joins_later() {
    let mut world = founded_without_the_third(1);
    let name = world.name_where("k", 3, |_| true);
    let version = world.write(0, &name, 3, &[2]);
    world.start(2);
    world.run_until(2 * SECOND, "the third has joined", are_all_read_eligible);
    assert_eq!(world.version_at(2, &name), Some(version));
    world.run(SECOND);
    assert!((0..2).all(|host| world.hosts[host].store.record.unheard.is_empty()), "no peer is unheard");
}

/// The operator was wrong: the third node holds writes that the two had acknowledged. After any
/// crash in between, they rebuild and keep the writes that arrived meanwhile.
#[test]
fn a_node_that_settled_by_the_new_cluster_setting_rebuilds_when_a_peer_contradicts_it() {
    for crash_at in (0..40).step_by(3) {
        let mut world = World::started(3, 3);
        let name = world.name_where("old", 3, |_| true);
        let old = world.write(2, &name, 3, &[]);
        (0..3).for_each(|host| world.crash(host));
        (0..2).for_each(|host| world.lose_disk(host));
        world.limits.new_cluster = true;
        (0..2).for_each(|host| world.start(host));
        world.run(3 * SECOND);
        assert_eq!([world.sync_state(0), world.sync_state(1)], [SyncState::Settled; 2]);
        let name_of_new = world.name_where("new", 3, |_| true);
        let new = world.write(0, &name_of_new, 3, &[2]);
        world.start(2);
        world.run(Duration::from_micros(250 * crash_at));
        world.restart(0);
        world.run(Duration::from_micros(250 * crash_at));
        world.restart(2);
        world.run_until(20 * SECOND, "both are filled", |world| {
            let is_filled = |host| world.version_at(host, &name) == Some(old);
            assert!(
                (0..2).all(|host| is_filled(host) || !is_read_eligible_for_host_2(world, host)),
                "crash {crash_at}"
            );
            is_filled(0) && is_filled(1) && are_all_read_eligible(world)
        });
        for host in 0..3 {
            assert_eq!(world.version_at(host, &name_of_new), Some(new), "crash {crash_at}");
        }
    }
}

/// The events of a host about a rebuild, or about settling with a new directory.
fn rebuild_events(world: &World, host: usize) -> Vec<Event> {
    let is_read_eligible_for_host_2 = |event: &&Event| {
        matches!(event, Event::RebuildBegan { .. } | Event::RebuildEnded { .. } | Event::SettledAsNew { .. })
    };
    world.hosts[host].events.iter().filter(is_read_eligible_for_host_2).copied().collect()
}

#[test]
fn a_rebuild_is_reported_with_its_reason_its_cells_and_its_sources() {
    let mut world = World::started(3, 11);
    let everywhere = NodeSet::EMPTY;
    for host in 0..3 {
        assert_eq!(rebuild_events(&world, host), [Event::SettledAsNew { unheard: everywhere }]);
    }
    let name = world.name_where("k", 3, |_| true);
    world.write(0, &name, 3, &[]);
    world.crash(2);
    world.lose_disk(2);
    world.run(10 * MILLISECOND);
    let before = rebuild_events(&world, 2).len();
    world.start(2);
    world.run_until(20 * SECOND, "it is filled", are_all_read_eligible);
    match rebuild_events(&world, 2)[before..] {
        [
            Event::RebuildBegan { why: RebuildReason::LostDisk { told_by } },
            Event::RebuildEnded { cells, took, from },
        ] => {
            assert!(told_by != NodeIndex(2) && cells >= 1 && took > Duration::ZERO);
            assert_eq!(from, [NodeIndex(0), NodeIndex(1)].into_iter().collect());
        }
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn a_rebuild_without_a_node_that_kept_its_data_is_reported_as_such() {
    let mut world = World::started(3, 12);
    (0..3).for_each(|host| world.crash(host));
    for host in 0..3 {
        // As after a loss that the directory shows.
        world.lose_disk(host);
        world.hosts[host].store.record.sync_state = SyncState::Rebuilding;
        world.hosts[host].events.clear();
    }
    (0..3).for_each(|host| world.start(host));
    world.run_until(30 * SECOND, "all are settled", are_all_read_eligible);
    for host in 0..3 {
        let told = rebuild_events(&world, host);
        assert_eq!(told[0], Event::RebuildBegan { why: RebuildReason::Directory });
        let ends: Vec<_> = told.iter().filter(|event| matches!(event, Event::RebuildEnded { .. })).collect();
        assert_eq!(ends.len(), 1, "{told:?}");
    }
    let is_alone = |event: &Event| matches!(event, Event::RebuildEnded { from, .. } if from.is_empty());
    assert!(
        (0..3).any(|host| rebuild_events(&world, host).iter().any(is_alone)),
        "one of them was the first"
    );
}

#[test]
fn nodes_that_all_lost_their_disks_are_a_new_cluster() {
    let mut world = World::started(3, 5);
    (0..3).for_each(|host| world.crash(host));
    (0..3).for_each(|host| world.lose_disk(host));
    (0..3).for_each(|host| world.start(host));
    world.run_until(SECOND, "all are settled", are_all_read_eligible);
}

/// A cluster in which host 2 was rolled back to an older state of its directory. The returned key
/// was written later.
fn rolled_back(seed: u64, restarts_before: usize, restarts_after: usize) -> (World, String) {
    let mut world = World::started(3, seed);
    for _ in 0..restarts_before {
        world.restart(2);
        world.run(2 * SECOND);
    }
    world.run(2 * SECOND);
    let older = world.hosts[2].store.clone();
    for _ in 0..restarts_after {
        world.restart(2);
        world.run(2 * SECOND);
    }
    world.run(3 * SECOND);
    let name = world.name_where("k", 3, |_| true);
    let version = world.write(2, &name, 3, &[]);
    world.write_cell(0, &key(&name), &world.hosts[2].store.cells[&key(&name)].clone(), &[]);
    observe(&world, version.hlc);
    world.run(2 * SECOND);
    world.crash(2);
    world.roll_back(2, &older);
    world.run(10 * MILLISECOND);
    (world, name)
}

/// Passes a clock to each host, as each host does with the clock of a frame.
fn observe(world: &World, hlc: Hlc) {
    for (number, host) in world.hosts.iter().enumerate() {
        host.member.clock.observe(hlc, world.now_at(number));
    }
}

fn rebuilds_before_it_is_read_eligible(mut world: World, name: &str) {
    world.start(2);
    world.run_until(2 * SECOND, "it knows of its loss", |world| {
        assert!(!is_read_eligible(world, 2));
        world.sync_state(2) == SyncState::Rebuilding
    });
    world.run_until(20 * SECOND, "it is filled", are_all_read_eligible);
    assert!(world.version_at(2, name).is_some());
    let mut rebuilds_again = false;
    for host in [2, 0, 1, 2] {
        world.restart(host);
        world.run_until(20 * SECOND, "all are settled", |world| {
            rebuilds_again |= (0..3).any(|host| world.sync_state(host) == SyncState::Rebuilding);
            are_all_read_eligible(world)
        });
        world.run(SECOND);
    }
    assert!(!rebuilds_again, "it has been filled");
}

#[test]
fn a_directory_rolled_back_behind_restarts_is_rebuilt() {
    for restarts_after in 1..=3 {
        let (world, name) = rolled_back(6, 2, restarts_after);
        rebuilds_before_it_is_read_eligible(world, &name);
    }
}

#[test]
fn a_directory_rolled_back_within_one_generation_is_rebuilt() {
    let (world, name) = rolled_back(7, 1, 0);
    rebuilds_before_it_is_read_eligible(world, &name);
}

#[test]
fn a_heard_generation_survives_restarts_of_the_peers() {
    let (mut world, name) = rolled_back(8, 1, 0);
    world.run(2 * SECOND);
    (0..2).for_each(|host| world.restart(host));
    world.run(2 * SECOND);
    rebuilds_before_it_is_read_eligible(world, &name);
}

/// The node learns of its rollback after any number of restarts before a peer tells it, and after
/// contact with a peer that remembers nothing.
#[test]
fn a_rolled_back_directory_is_detected_despite_any_crash() {
    for crash_at in (0..60).step_by(2) {
        let (mut world, name) = rolled_back(9, 1, 1);
        let check = |world: &World| {
            let is_filled = world.version_at(2, &name).is_some();
            assert!(is_filled || !is_read_eligible(world, 2), "crash {crash_at}");
            is_filled
        };
        for _ in 0..4 {
            world.start(2);
            for _ in 0..crash_at {
                world.run(MILLISECOND / 4);
                check(&world);
            }
            world.crash(2);
            world.run(10 * MILLISECOND);
        }
        world.start(2);
        world.run_until(20 * SECOND, "it is filled", |world| check(world) && are_all_read_eligible(world));
    }
}

#[test]
fn a_rolled_back_node_rebuilds_also_when_the_peer_that_knows_it_comes_later() {
    let (mut world, name) = rolled_back(10, 1, 1);
    (0..2).for_each(|host| world.crash(host));
    world.start(2);
    world.run(10 * SECOND);
    assert_eq!(world.sync_state(2), SyncState::Settled, "no peer is there to contradict it");
    (0..2).for_each(|host| world.start(host));
    world.run_until(2 * SECOND, "it knows of its loss", |world| world.sync_state(2) == SyncState::Rebuilding);
    world.run_until(20 * SECOND, "it is filled", are_all_read_eligible);
    assert!(world.version_at(2, &name).is_some());
}

#[test]
fn restarts_of_any_kind_are_no_reason_to_rebuild() {
    let mut world = World::started(3, 11);
    world.net.loss = 0.02;
    world.net.jitter = 30 * MILLISECOND;
    for round in 0..60_u64 {
        let host = world.rng.below(3) as usize;
        if round % 7 == 0 {
            let (now, node) = world.node_mut(host);
            node.begin_drain(now);
            world.carry_out_effects(host);
            world.run(100 * MILLISECOND);
        }
        let name = format!("k{round}");
        let version = world.write(host, &name, 3, &[]);
        observe(&world, version.hlc);
        let before = Duration::from_millis(world.rng.below(700));
        world.run(before);
        world.restart(host);
        let after = Duration::from_millis(world.rng.below(400));
        world.run(after);
        assert!((0..3).all(|host| world.sync_state(host) == SyncState::Settled), "round {round}");
    }
    world.net.loss = 0.0;
    world.run(10 * SECOND);
    assert!(are_all_read_eligible(&world));
}

#[test]
fn records_without_generations_are_accepted() {
    let mut world = World::started(3, 12);
    (0..3).for_each(|host| world.crash(host));
    for host in 0..3 {
        let record = &mut world.hosts[host].store.record;
        record.own_generations = cluster::GenerationHistory::default();
        record.peer_generations.clear();
    }
    (0..3).for_each(|host| world.start(host));
    world.run_until(SECOND, "all are settled", are_all_read_eligible);
    world.run(SECOND);
    assert!((0..3).all(|host| world.hosts[host].store.record.peer_generations.len() == 2));
}

/// Dials host 0 from a process on a copy of host 1's directory, which is not at the address of host
/// 1.
fn dial_from_copy(world: &mut World, link: LinkId) -> Vec<Effect> {
    let hello = PeerHello {
        node: NodeIndex(1),
        tag: NodeTag(2),
        requester: Requester::Node,
        incarnation: Incarnation(0xc0b1),
        clock: Hlc::ZERO,
        sync_state: SyncState::Unsettled,
    };
    let (now, node) = world.node_mut(0);
    while node.poll_effect().is_some() {}
    node.handle_link(now, LinkEvent::AdmissionRequested { link, hello });
    std::iter::from_fn(|| node.poll_effect()).collect()
}

#[test]
fn a_copy_beside_the_original_is_refused_as_a_copy() {
    let mut world = World::started(2, 13);
    let link = LinkId(77);
    let refuses = |world: &mut World, action| dial_from_copy(world, link).contains(&Effect::Link(action));
    assert!(refuses(&mut world, LinkAction::Refuse(link)), "the original may have just ended");
    world.run(2 * SECOND);
    assert!(refuses(&mut world, LinkAction::RefuseCopy(link)), "the original still answers");
    world.run(SECOND);
    assert!(are_all_read_eligible(&world), "nothing has changed for the original");
    assert_eq!(world.state(0, 1), PeerState::Up);
}

/// Three nodes that were settled, of which the first starts again from a copy of its disk: no peer
/// dials it, and its own dials fail for `reason`.
fn copy_whose_dials_fail(reason: DialFailure) -> World {
    let mut world = World::started(3, 18);
    world.crash(0);
    world.fail_dials(0, DialFailure::Refused);
    (1..3).for_each(|peer| world.fail_dials(peer, reason));
    world.start(0);
    world.run(10 * SECOND);
    world
}

/// With `ack=1` the copy would answer from its own disk. A restart or a failure of its peers proves
/// nothing.
#[test]
fn a_settled_node_that_its_peers_did_not_admit_is_ready_and_not_read_eligible() {
    let mut world = copy_whose_dials_fail(DialFailure::NotAdmitted);
    assert!(world.node(0).is_ready() && !world.view_of(0, 0).read_eligible);
    (1..3).for_each(|peer| world.fail_dials(peer, DialFailure::Refused));
    world.run(30 * SECOND);
    assert!(!world.view_of(0, 0).read_eligible, "they ended without a report");
}

/// The peers report the original only while they run. The copy remembers the refusal for longer.
#[test]
fn a_copy_that_is_refused_as_a_copy_rebuilds_even_after_a_restart() {
    let mut world = World::started(3, 18);
    let name = world.name_where("k", 3, |_| true);
    world.crash(1);
    world.dial_failures.insert((0, 1), DialFailure::Copy);
    world.run(2 * SECOND);
    world.dial_failures.clear();
    assert_eq!(world.sync_state(0), SyncState::Rebuilding);
    let missed = world.write(2, &name, 3, &[]);
    world.restart(0);
    world.run(SECOND);
    assert!(world.sync_state(0) == SyncState::Rebuilding && !world.view_of(0, 0).read_eligible);
    world.start(1);
    world.run_until(20 * SECOND, "it is filled", are_all_read_eligible);
    assert_eq!(world.version_at(0, &name), Some(missed));
}

/// This allows an operator to change the secret node by node.
#[test]
fn a_settled_node_whose_peers_disagree_about_the_cluster_is_read_eligible() {
    let world = copy_whose_dials_fail(DialFailure::Rejected);
    assert!(world.node(0).is_ready() && world.view_of(0, 0).read_eligible);
}

/// The address of the original was given to a copy: a peer that restarts links with the copy.
#[test]
fn an_original_that_a_peer_refuses_is_not_read_eligible_until_that_peer_reports() {
    let mut world = World::started(3, 18);
    world.run_until(5 * SECOND, "all are up", are_all_read_eligible);
    world.crash(1);
    world.dial_failures.insert((0, 1), DialFailure::NotAdmitted);
    world.run(2 * SECOND);
    world.dial_failures.clear();
    assert!(!world.view_of(0, 0).read_eligible);
    world.start(1);
    world.run_until(5 * SECOND, "it is admitted and heard", |world| world.view_of(0, 0).read_eligible);
}

/// The copy ran while the original was down. The original lacks the writes that counted the copy.
#[test]
fn an_original_beside_which_a_copy_ran_is_rebuilt() {
    let mut world = World::started(3, 14);
    world.crash(1);
    let original = world.hosts[1].store.clone();
    world.start(1);
    world.run_until(SECOND, "the copy is a node", are_all_read_eligible);
    world.run(SECOND);
    world.crash(1);
    world.roll_back(1, &original);
    world.run(10 * MILLISECOND);
    world.start(1);
    world.run_until(SECOND, "the original knows of the copy", |world| {
        assert!(!is_read_eligible(world, 1));
        world.sync_state(1) == SyncState::Rebuilding
    });
    world.run_until(20 * SECOND, "it is filled", are_all_read_eligible);
}

/// Host 0, which was just started, links with a copy of host 1 that the others refuse. The copy
/// never decides its sync state, and its link ends. Writes through host 0 may have counted it.
fn admit_undecided_copy(world: &mut World) {
    world.restart(0);
    let (known, link) = (world.hosts[0].store.record.peer_generations[&NodeIndex(1)], LinkId(77));
    assert!(dial_from_copy(world, link).contains(&Effect::Link(LinkAction::Admit(link))));
    let heartbeat = HeartbeatPayload {
        sent: Instant::from_nanos(1),
        wall: world.now_at(0).wall,
        sync_state: SyncState::Unsettled,
        draining: false,
        disk_full: false,
        hints_for_you: 0,
        repair_pending: false,
        remembered_tag_of_you: None,
        remembered_generation_of_you: None,
        generation: Some(GenerationReport { number: known.number + 1, clock: known.clock }),
        default_from: None,
        layout: None,
        votes_forgotten: false,
        feature_level_max: 0,
        plan: PlanStatements::default(),
    };
    let id = MessageId { incarnation: Incarnation(0xc0b1), requester: Requester::Node, number: 1 };
    let message = Message::Request {
        id,
        request: PeerRequest::Node(NodeRequest::Heartbeat(heartbeat)),
        within: None,
        epoch: cluster::LayoutEpoch::FIRST,
    };
    let origin = Origin { node: NodeIndex(1), link: Destination::Accepted(link) };
    let (now, node) = world.node_mut(0);
    node.handle_message(now, origin, message);
    node.handle_link(now, LinkEvent::AcceptedClosed { link });
    // No link leads to the copy, so its answers go nowhere.
    while node.poll_effect().is_some() {}
    world.hosts[0].view = (**world.node(0).view()).clone();
}

fn is_rebuilt_because_of_copy(world: &mut World) {
    world.run_until(5 * SECOND, "the original knows of the copy", |world| {
        world.sync_state(1) == SyncState::Rebuilding
    });
    world.run_until(20 * SECOND, "it is filled", are_all_read_eligible);
    // The peer reports the copy again, which proves nothing after the rebuild.
    world.restart(1);
    world.run_until(5 * SECOND, "it counts again", |world| is_read_eligible(world, 1));
    let began = |event: &&Event| matches!(event, Event::RebuildBegan { .. });
    assert_eq!(rebuild_events(world, 1).iter().filter(began).count(), 1);
}

#[test]
fn an_original_whose_peer_admitted_an_undecided_copy_is_rebuilt() {
    let mut world = World::started(3, 19);
    world.run_until(5 * SECOND, "all are up", are_all_read_eligible);
    admit_undecided_copy(&mut world);
    is_rebuilt_because_of_copy(&mut world);
}

/// The restarted original is undecided itself when the peer links with it.
#[test]
fn an_original_that_restarts_after_a_peer_admitted_an_undecided_copy_is_rebuilt() {
    for restarts in 1..=3 {
        let mut world = World::started(3, 19);
        world.run_until(5 * SECOND, "all are up", are_all_read_eligible);
        admit_undecided_copy(&mut world);
        (0..restarts).for_each(|_| world.restart(1));
        is_rebuilt_because_of_copy(&mut world);
    }
}

#[test]
fn a_contradicted_node_is_not_read_eligible_even_if_its_record_cannot_be_stored() {
    let (mut world, _) = rolled_back(15, 1, 1);
    world.hosts[2].store.fails = |request| matches!(request, StoreRequest::PersistRecord { .. });
    world.start(2);
    for _ in 0..300 {
        world.run(10 * MILLISECOND);
        assert!(!is_read_eligible(&world, 2));
    }
}

/// Five nodes of which host 0 loses its disk while host 4 is down. A key with a `from` of 3 that
/// these two acknowledged is on host 4 alone.
fn one_lost_and_one_down(mut world: World) -> (World, String) {
    let has = |host: u8| move |replicas: &[NodeIndex]| replicas.contains(&NodeIndex(host));
    let name = world.name_where("k", 3, |replicas| has(0)(replicas) && has(4)(replicas) && !has(1)(replicas));
    world.write(4, &name, 3, &[]);
    world.crash(0);
    world.crash(4);
    world.lose_disk(0);
    (world, name)
}

fn is_filled_only_with_host_4(mut world: World, name: &str) {
    world.limits.default_from = 5;
    world.start(0);
    world.run(30 * SECOND);
    assert_eq!(
        world.sync_state(0),
        SyncState::Rebuilding,
        "what was written for three may be on host 4 alone"
    );
    assert_eq!(world.version_at(0, name), None);
    world.start(4);
    world.run_until(30 * SECOND, "it is filled", |world| world.sync_state(0) == SyncState::Settled);
    assert!(world.version_at(0, name).is_some());
}

#[test]
fn a_rebuild_needs_the_sources_for_the_default_of_each_peer() {
    let (world, name) = one_lost_and_one_down(World::started(5, 16));
    is_filled_only_with_host_4(world, &name);
}

#[test]
fn a_rebuild_needs_the_sources_for_each_from_that_it_meets() {
    let mut world = World::new(5, 17);
    world.limits.default_from = 5;
    (0..5).for_each(|host| world.start(host));
    world.run(2 * SECOND);
    let other = world
        .name_where("o", 3, |replicas| replicas.contains(&NodeIndex(0)) && replicas.contains(&NodeIndex(1)));
    world.write(1, &other, 3, &[]);
    let (world, name) = one_lost_and_one_down(world);
    is_filled_only_with_host_4(world, &name);
}
