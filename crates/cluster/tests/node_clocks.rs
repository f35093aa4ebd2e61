//! Wrong wall clocks: the nodes compare them, and follow them only as far as their peers accept.

mod world;

use bytes::Bytes;
use cluster::{Event, HybridClock, LostRange, NodeIndex, RefusedKeys, SyncState, TickError, WallCeiling};
use std::time::Duration;
use stdx::{Cell, Hlc, Version};
use world::{MILLISECOND, SECOND, World, key};

const HOUR: Duration = Duration::from_secs(3_600);
const HOUR_MICROS: i64 = 3_600_000_000;

/// Issues a version, as a coordinator does whose store raises the bound at once.
fn tick(world: &World, host: usize) -> Result<Hlc, TickError> {
    let (clock, now) = (&world.hosts[host].member.clock, world.now_at(host));
    if let Some(bound) = clock.bound_wanted(now) {
        clock.raise_bound(bound);
    }
    clock.tick(now)
}

fn is_clock_ahead(world: &World, host: usize) -> bool {
    world.node(host).view().clock_ahead
}

/// Whether `host` knows that `peer` refuses its versions.
fn is_refused_by(world: &World, host: usize, peer: u8) -> bool {
    world.node(host).view().refusing.contains(NodeIndex(peer))
}

/// The greatest version that a node with a correct clock can have made durable by now.
fn right_bound_max(world: &World) -> Hlc {
    let right = world.now_at(usize::MAX).wall;
    Hlc::at(right.saturating_add(HybridClock::RESERVATION))
}

#[test]
fn a_step_forward_moves_neither_versions_nor_the_bound_and_ends_with_the_step_back() {
    for hosts in [2, 3, 5] {
        let mut world = World::started(hosts, 21);
        tick(&world, 0).expect("its clock is right");
        let issued_before = world.hosts[0].member.clock.issued();
        world.hosts[0].wall_offset_micros = HOUR_MICROS;
        assert_eq!(tick(&world, 0), Err(TickError::Ahead), "at once, before any peer is heard");
        world.run(3 * SECOND);
        assert_eq!(tick(&world, 0), Err(TickError::Ahead));
        assert!(is_clock_ahead(&world, 0), "a step of its own clock is known with any number of peers");
        assert!((1..hosts).all(|peer| !is_clock_ahead(&world, peer)));
        assert_eq!(world.hosts[0].member.clock.issued(), issued_before);
        assert!(world.hosts[0].store.bound <= right_bound_max(&world));
        world.hosts[0].wall_offset_micros = 0;
        let issued = tick(&world, 0).expect("at once after the step back");
        assert_eq!(issued.wall(), world.now_at(0).wall);
        world.run(SECOND);
        assert!(!is_clock_ahead(&world, 0));
    }
}

#[test]
fn the_time_of_heard_deletes_does_not_follow_a_wrong_clock() {
    for hosts in [2, 3, 5] {
        let mut world = World::started(hosts, 34);
        let heard_to = |world: &World| world.node(0).heard_to(world.now_at(0)).expect("it is ready");
        assert_eq!(heard_to(&world), world.now_at(0).wall);
        world.hosts[0].wall_offset_micros = 10 * 365 * 24 * HOUR_MICROS;
        let is_near = |world: &World| {
            let right = world.now_at(usize::MAX).wall;
            (right..=right.saturating_add(HybridClock::SKEW_MAX + SECOND)).contains(&heard_to(world))
        };
        assert!(is_near(&world), "at once, before any peer is heard");
        let supported = world.node(0).supported_wall(world.now_at(0));
        assert!(supported.is_some_and(|wall| wall < world.now_at(0).wall), "{supported:?}");
        (1..hosts).for_each(|peer| world.cut_off(0, peer));
        world.run(60 * SECOND);
        assert!(is_near(&world), "also while no peer is heard, and the time goes on");
        world.hosts[0].wall_offset_micros = -HOUR_MICROS;
        assert_eq!(heard_to(&world), world.now_at(0).wall, "never past its own clock");
    }
}

#[test]
fn a_step_that_the_peers_make_too_is_followed() {
    let mut world = World::started(3, 22);
    world.hosts[0].wall_offset_micros = HOUR_MICROS;
    world.run(MILLISECOND);
    assert_eq!(tick(&world, 0), Err(TickError::Ahead));
    (1..3).for_each(|host| world.hosts[host].wall_offset_micros = HOUR_MICROS);
    world.run(SECOND);
    assert!((0..3).all(|host| tick(&world, host).is_ok() && !is_clock_ahead(&world, host)));
}

#[test]
fn of_two_nodes_that_disagree_neither_is_taken_to_be_ahead() {
    let mut world = World::new(2, 23);
    world.hosts[0].wall_offset_micros = HOUR_MICROS;
    (0..2).for_each(|host| world.start(host));
    world.run(3 * SECOND);
    assert!((0..2).all(|host| !is_clock_ahead(&world, host)));
    assert!((0..2).all(|host| world.node(host).is_ready()));
    assert_eq!(tick(&world, 0), Err(TickError::Ahead), "the other one would refuse it");
    assert!(world.hosts[0].store.bound <= right_bound_max(&world));
    tick(&world, 1).expect("the other accepts its versions");
    world.hosts[0].wall_offset_micros = 0;
    tick(&world, 0).expect("its clock was set");
}

#[test]
fn a_node_does_not_follow_the_step_back_of_its_only_peer() {
    let mut world = World::started(2, 24);
    world.hosts[1].wall_offset_micros = -HOUR_MICROS;
    world.run(SECOND);
    assert!((0..2).all(|host| !is_clock_ahead(&world, host)));
    tick(&world, 0).expect("its own clock has made no step");
    assert!(is_refused_by(&world, 0, 1), "its writes must not rely on the other");
    assert!(!is_refused_by(&world, 1, 0));
}

#[test]
fn one_wrong_clock_stops_no_other_node() {
    for offset in [-HOUR_MICROS, HOUR_MICROS] {
        let mut world = World::started(3, 25);
        world.hosts[2].wall_offset_micros = offset;
        world.run(SECOND);
        assert!((0..2).all(|host| tick(&world, host).is_ok() && !is_clock_ahead(&world, host)));
        assert_eq!(is_refused_by(&world, 0, 2), offset < 0);
        assert_eq!(tick(&world, 2).is_ok(), offset < 0);
    }
}

#[test]
fn a_starting_node_issues_no_version_before_it_hears_its_peers() {
    let mut world = World::started(3, 26);
    world.crash(0);
    world.hosts[0].wall_offset_micros = HOUR_MICROS;
    world.start(0);
    assert_eq!(tick(&world, 0), Err(TickError::Unheard));
    world.run(SECOND);
    assert_eq!(tick(&world, 0), Err(TickError::Ahead));
    assert!(is_clock_ahead(&world, 0));
    assert!(world.hosts[0].store.bound <= right_bound_max(&world));
}

#[test]
fn a_node_that_starts_without_any_peer_goes_by_its_own_clock_until_one_answers() {
    let mut world = World::new(2, 27);
    world.hosts[0].wall_offset_micros = HOUR_MICROS;
    world.start(0);
    world.run(2 * SECOND);
    assert_eq!(world.hosts[0].member.clock.ceiling(), WallCeiling::Unlimited);
    assert_eq!(world.hosts[0].store.bound, Hlc::ZERO, "only a write makes a bound durable");
    tick(&world, 0).expect("no peer contradicts its clock");
    world.start(1);
    world.run(2 * SECOND);
    assert_eq!(tick(&world, 0), Err(TickError::Ahead));
}

#[test]
fn a_ceiling_outlasts_the_peers_that_it_came_from() {
    let mut world = World::started(3, 28);
    (1..3).for_each(|host| world.crash(host));
    world.run(HOUR / 60);
    tick(&world, 0).expect("its clock has made no step");
    world.hosts[0].wall_offset_micros = HOUR_MICROS;
    world.run(SECOND);
    assert_eq!(tick(&world, 0), Err(TickError::Ahead));
    world.hosts[0].wall_offset_micros = 0;
    tick(&world, 0).expect("it was set back");
}

#[test]
fn a_pause_of_the_process_is_not_a_clock_step() {
    let mut world = World::started(3, 29);
    world.stop(0);
    world.run(30 * SECOND);
    world.resume(0);
    tick(&world, 0).expect("both clocks have advanced alike");
    world.run(50 * MILLISECOND);
    tick(&world, 0).expect("an answer that waited shows the time at which it was sent");
    assert!(!is_clock_ahead(&world, 0));
}

/// Stores a value for `name` on these hosts with a version that is `ahead` of the true time.
fn place_ahead(world: &mut World, name: &str, hosts: &[usize], ahead: Duration) -> Version {
    let right = world.version(hosts[0]);
    let version = Version::new(Hlc::at(right.hlc.wall().saturating_add(ahead)), right.tag);
    let cell = Cell::value(version, 3, Bytes::from_static(b"from a wrong clock"));
    hosts.iter().for_each(|&host| world.write_cell(host, &key(name), &cell, &[]));
    version
}

fn refused_cells(world: &World, host: usize) -> usize {
    let is_refusal = |event: &&Event| matches!(event, Event::CellRefused { .. });
    world.hosts[host].events.iter().filter(is_refusal).count()
}

/// Whether `host` fails reads of this key, and its coordinators know.
fn is_refused(world: &World, host: usize, name: &str) -> bool {
    let is_refused = world.node(host).view().refused.contains(&key(name));
    assert_eq!(world.node(host).status().refused_keys > 0, !world.node(host).view().refused.is_empty());
    is_refused
}

/// A world of three hosts with many keys. The second and the third hold cells with versions in the
/// future; the first has lost its disk.
fn begin_rebuild_beside_future_cells(seed: u64, names: &[&str], ahead: Duration) -> (World, Vec<Version>) {
    let mut world = World::started(3, seed);
    for i in 0..3_000 {
        let name = format!("k{i:04}");
        world.write(1, &name, 3, &[]);
        let cell = world.hosts[1].store.cells[&key(&name)].clone();
        world.write_cell(2, &key(&name), &cell, &[]);
    }
    let versions = names.iter().map(|name| place_ahead(&mut world, name, &[1, 2], ahead)).collect();
    world.crash(0);
    world.lose_disk(0);
    world.start(0);
    (world, versions)
}

#[test]
fn a_rebuild_completes_despite_a_future_cell_and_only_its_key_fails() {
    let (mut world, versions) = begin_rebuild_beside_future_cells(30, &["k0100x"], 60 * SECOND);
    world.run(20 * SECOND);
    assert_eq!(world.sync_state(0), SyncState::Settled);
    assert!((0..3_000).all(|i| world.version_at(0, &format!("k{i:04}")).is_some()));
    assert_eq!(world.version_at(0, "k0100x"), None, "it would hide later writes");
    assert!(is_refused(&world, 0, "k0100x") && !is_refused(&world, 0, "k0100"));
    assert!(refused_cells(&world, 0) > 0);
    world.restart(0);
    world.run(3 * SECOND);
    assert!(is_refused(&world, 0, "k0100x"), "the refusal survives a restart");
    let asked = world.hosts[0].store_requests.len();
    world.run(20 * SECOND);
    assert!(world.hosts[0].store_requests.len() - asked < 50, "a refused key costs little");
    world.run(30 * SECOND);
    assert_eq!(world.version_at(0, "k0100x"), Some(versions[0]), "its time has come");
    assert!(!is_refused(&world, 0, "k0100x"));
    world.restart(0);
    assert!(!is_refused(&world, 0, "k0100x"));
}

#[test]
fn a_key_is_not_refused_any_more_once_no_peer_holds_the_cell() {
    let (mut world, _) = begin_rebuild_beside_future_cells(33, &["k0100x"], HOUR * 8_760);
    world.run(20 * SECOND);
    assert!(is_refused(&world, 0, "k0100x"));
    world.hosts[1].store.cells.remove(&key("k0100x"));
    world.run(20 * SECOND);
    assert!(is_refused(&world, 0, "k0100x"), "another peer holds it");
    world.hosts[2].store.cells.remove(&key("k0100x"));
    world.cut_off(0, 2);
    world.run(20 * SECOND);
    assert!(is_refused(&world, 0, "k0100x"), "the unreachable holder may still have it");
    world.heal();
    world.run(30 * SECOND);
    assert!(!is_refused(&world, 0, "k0100x"));
}

#[test]
fn a_later_write_ends_the_refusal_and_an_earlier_one_does_not() {
    let (mut world, _) = begin_rebuild_beside_future_cells(34, &["k0100x", "k0200x"], HOUR * 8_760);
    let earlier = Cell::value(world.version(1), 3, Bytes::from_static(b"on its way for long"));
    world.run(20 * SECOND);
    world.write_cell(0, &key("k0100x"), &earlier, &[]);
    let later = world.write(0, "k0200x", 3, &[]);
    world.run(20 * SECOND);
    assert!(is_refused(&world, 0, "k0100x"), "the refused cell may be of a write after this one");
    assert!(!is_refused(&world, 0, "k0200x"));
    assert_eq!(world.version_at(0, "k0200x"), Some(later));
}

#[test]
fn a_rebuild_stays_incomplete_with_more_refused_keys_than_are_recorded() {
    let names: Vec<String> = (0..RefusedKeys::COUNT_MAX + 10).map(|i| format!("x{i:04}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (mut world, _) = begin_rebuild_beside_future_cells(35, &names, 60 * SECOND);
    world.run(30 * SECOND);
    assert_eq!(world.sync_state(0), SyncState::Rebuilding);
    assert!(
        (0..3_000).all(|i| world.version_at(0, &format!("k{i:04}")).is_some()),
        "it goes on with the others"
    );
    assert_eq!(world.node(0).status().refused_keys, RefusedKeys::COUNT_MAX);
    world.run(HOUR / 20);
    assert_eq!(world.sync_state(0), SyncState::Settled);
    assert_eq!(world.node(0).status().refused_keys, 0);
    assert!(names.iter().all(|name| world.version_at(0, name).is_some()));
}

#[test]
fn healing_completes_despite_a_future_cell_and_its_key_still_fails() {
    let mut world = World::started(3, 31);
    let version = place_ahead(&mut world, "k", &[1, 2], 90 * SECOND);
    let range = LostRange { after: Some(key("a")), until: Some(key("z")) };
    world.hosts[0].store.damage(1, range, |_| true);
    world.run(30 * SECOND);
    assert!(!world.hosts[0].store.is_unreadable(&key("k")), "the table was abandoned");
    assert_eq!(world.version_at(0, "k"), None);
    assert!(is_refused(&world, 0, "k"), "a read fails instead of missing");
    assert!(world.hosts[0].store.record.refused.contains(&key("k")), "nor after a crash");
    world.run(90 * SECOND);
    assert_eq!(world.version_at(0, "k"), Some(version));
    assert!(!is_refused(&world, 0, "k"));
}

#[test]
fn anti_entropy_compares_the_stored_cells_of_refused_keys() {
    let (mut world, _) = begin_rebuild_beside_future_cells(36, &["k0100x"], HOUR);
    world.run(20 * SECOND);
    let name = "k0100x";
    assert!(is_refused(&world, 0, name));
    // A peer with an older version would keep exchanging it.
    world.hosts[1].store.cells.remove(&key(name));
    let earlier = Version::new(Hlc::at(world.now_at(1).wall.saturating_sub(HOUR)), world.hosts[1].tag);
    world.write_cell(1, &key(name), &Cell::value(earlier, 3, Bytes::from_static(b"older")), &[]);
    for host in [0, 1] {
        let (now, node) = world.node_mut(host);
        node.begin_repair(now);
        world.carry_out_effects(host);
        world.run(60 * SECOND);
        assert!(world.node(host).status().repair.is_none(), "a pass ends");
        assert!(world.hosts[host].store.record.repaired_at.is_some());
    }
    assert_eq!(world.version_at(0, name), Some(earlier));
    assert!(is_refused(&world, 0, name));
}

#[test]
fn anti_entropy_does_not_fetch_a_cell_of_the_future() {
    let mut world = World::started(3, 32);
    let older = world.write(0, "k", 3, &[]);
    place_ahead(&mut world, "k", &[1], HOUR);
    let (now, node) = world.node_mut(0);
    node.begin_repair(now);
    world.carry_out_effects(0);
    world.run(30 * SECOND);
    assert_eq!(world.version_at(0, "k"), Some(older));
    assert!(refused_cells(&world, 0) > 0);
}
