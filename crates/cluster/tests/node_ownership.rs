//! A node disowns the places that it loses by a change of the layout, after the change is fenced.
//! It owns again those that it gains, after the purge.

mod world;

use cluster::{
    Layout, LayoutEpoch, LayoutRecord, NodeIndex, OwnedPart, PairSwap, PartitionId, StoreRequest, SwapPhase,
};
use std::sync::Arc;
use world::{PARTITIONS, SECOND, World};

const PARTITION: PartitionId = PartitionId(5);
const NEW: [Option<SwapPhase>; 3] =
    [Some(SwapPhase::Prepare), Some(SwapPhase::ReadNew), Some(SwapPhase::New)];

fn started(seed: u64) -> World {
    let mut world = World::of_processes(4, seed);
    world.start_all();
    world
}

/// The hosts in the order in which they hold the partition.
fn list(world: &World) -> Vec<usize> {
    world.newest_record().preference_list(PARTITION).iter().map(|node| node.as_usize()).collect()
}

/// Decides a phase of the swap, which these hosts learn.
fn enter(world: &mut World, pair: (usize, usize), phase: Option<SwapPhase>, hosts: &[usize]) {
    world.decide_phase(PARTITION, pair, phase);
    hosts.iter().for_each(|host| world.learn(*host));
    world.run(SECOND);
}

/// Swaps the pair to its end.
fn swap(world: &mut World, pair: (usize, usize)) {
    for phase in NEW.into_iter().chain([None]) {
        enter(world, pair, phase, &[0, 1, 2, 3]);
    }
}

/// The least `from` of a cell by which a host owns a key of the partition.
fn stays_from(world: &World, host: usize) -> u8 {
    let first_hash = u64::from(PARTITION.0) << (64 - PARTITIONS.ilog2());
    let mut parts = world.hosts[host].store.disowned.iter().map(|part| part.owned);
    parts.find(|owned: &OwnedPart| owned.first_hash == first_hash).map_or(1, |owned| owned.stays_from)
}

fn requests(world: &World, host: usize) -> usize {
    let is_of_ownership = |request: &&StoreRequest| {
        matches!(request, StoreRequest::Disown(_) | StoreRequest::OwnAgain(_) | StoreRequest::ReadDisowned)
    };
    world.hosts[host].store_requests.iter().filter(is_of_ownership).count()
}

fn running_swap(record: &LayoutRecord) -> PairSwap {
    record.swaps().first().expect("a swap runs").clone()
}

#[test]
fn nothing_is_asked_while_no_partition_has_changed() {
    let mut world = started(1);
    world.run(30 * SECOND);
    assert!((0..4).all(|host| requests(&world, host) == 0));
    assert!((0..4).all(|host| world.hosts[host].store.record.disowned_to.is_none()));
}

#[test]
fn the_loser_disowns_by_its_new_place() {
    let mut world = started(2);
    let before = list(&world);
    let pair = (before[0], before[2]);
    for phase in &NEW[..2] {
        enter(&mut world, pair, *phase, &[0, 1, 2, 3]);
        assert!((0..4).all(|host| stays_from(&world, host) == 1), "{phase:?}");
    }
    enter(&mut world, pair, NEW[2], &[0, 1, 2, 3]);
    let owned: Vec<u8> = before.iter().map(|host| stays_from(&world, *host)).collect();
    assert_eq!(owned, [3, 1, 1, 1], "cells from 3 are held by the first three");
    let epoch = Some(world.newest_record().epoch);
    assert!((0..4).all(|host| world.hosts[host].store.record.disowned_to == epoch));
    enter(&mut world, pair, None, &[0, 1, 2, 3]);
    assert_eq!(stays_from(&world, before[0]), 3);
}

#[test]
fn nothing_is_disowned_before_the_process_has_fenced_the_change() {
    let mut world = started(3);
    let before = list(&world);
    let pair = (before[0], before[3]);
    enter(&mut world, pair, NEW[0], &[0, 1, 2, 3]);
    enter(&mut world, pair, NEW[1], &[0, 1, 2, 3]);
    world.decide_phase(PARTITION, pair, NEW[2]);
    let layout = Arc::new(Layout::of_record(&world.newest_record()));
    let (now, node) = world.node_mut(pair.0);
    node.handle_layout(now, layout);
    world.carry_out_effects(pair.0);
    world.run(5 * SECOND);
    assert_eq!(stays_from(&world, pair.0), 1, "its coordinator may serve requests of the older plan");
    assert!(world.hosts[pair.0].store.record.disowned_to < Some(world.newest_record().epoch));
    world.learn(pair.0);
    world.run(SECOND);
    assert_eq!(stays_from(&world, pair.0), 4);
}

#[test]
fn a_cancelled_gainer_disowns_by_its_old_place() {
    for phases in [&NEW[..1], &[NEW[0], NEW[1], Some(SwapPhase::Back)]] {
        let mut world = started(4);
        let before = list(&world);
        let pair = (before[1], before[3]);
        for phase in phases {
            enter(&mut world, pair, *phase, &[0, 1, 2, 3]);
        }
        assert_eq!(stays_from(&world, pair.1), 1);
        enter(&mut world, pair, None, &[0, 1, 2, 3]);
        assert_eq!(stays_from(&world, pair.1), 4);
        assert_eq!(stays_from(&world, pair.0), 1);
    }
}

#[test]
fn a_second_swap_disowns_more() {
    let mut world = started(5);
    let before = list(&world);
    swap(&mut world, (before[0], before[1]));
    assert_eq!(stays_from(&world, before[0]), 2);
    swap(&mut world, (before[0], before[3]));
    assert_eq!(stays_from(&world, before[0]), 4);
}

#[test]
fn a_place_is_gained_again_after_the_purge_only() {
    let mut world = started(6);
    let before = list(&world);
    let x = before[0];
    world.hosts[x].store.holds_up_purges = true;
    swap(&mut world, (x, before[2]));
    assert!(world.node(x).status().purge.partitions == 1 && world.node(x).status().purge.bytes_left > 0);
    enter(&mut world, (before[2], x), NEW[0], &[0, 1, 2, 3]);
    let swap = running_swap(&world.newest_record());
    world.run(20 * SECOND);
    assert!(!world.node(x).owns_gained(&swap));
    assert_eq!(stays_from(&world, x), 3);
    world.hosts[x].store.holds_up_purges = false;
    world.run(5 * SECOND);
    assert!(world.node(x).owns_gained(&swap));
    assert_eq!(stays_from(&world, x), 1);
    assert!(!world.node(before[1]).owns_gained(&swap), "it is not the gainer");
    assert_eq!(world.node(x).status().purge.partitions, 0);
}

#[test]
fn a_gainer_that_has_lost_nothing_owns_its_place_at_once() {
    let mut world = started(7);
    let before = list(&world);
    enter(&mut world, (before[0], before[3]), NEW[0], &[0, 1, 2, 3]);
    let swap = running_swap(&world.newest_record());
    assert!(world.node(before[3]).owns_gained(&swap));
    assert!(world.hosts[before[3]].store.record.disowned_to >= Some(swap.attempt), "and it is durable");
    let disowned = |request: &StoreRequest| matches!(request, StoreRequest::Disown(_));
    assert!(!world.hosts[before[3]].store_requests.iter().any(disowned));
}

#[test]
fn a_gainer_that_has_missed_the_end_of_its_last_swap_purges_first() {
    let mut world = started(8);
    let before = list(&world);
    let (x, g) = (before[0], before[2]);
    let others: Vec<usize> = (0..4).filter(|host| *host != g).collect();
    enter(&mut world, (x, g), NEW[0], &[0, 1, 2, 3]);
    enter(&mut world, (x, g), None, &others);
    world.hosts[g].store.holds_up_purges = true;
    enter(&mut world, (x, g), NEW[0], &[0, 1, 2, 3]);
    let swap = running_swap(&world.newest_record());
    assert_eq!(stays_from(&world, g), 3, "it may hold what was deleted in between");
    assert!(!world.node(g).owns_gained(&swap));
    world.hosts[g].store.holds_up_purges = false;
    world.run(5 * SECOND);
    assert!(world.node(g).owns_gained(&swap));
    // The next phase of the same swap loses nothing.
    enter(&mut world, (x, g), NEW[1], &[0, 1, 2, 3]);
    assert_eq!(stays_from(&world, g), 1);
}

#[test]
fn a_copy_that_begins_anew_keeps_what_the_gainer_has() {
    let mut world = started(9);
    let before = list(&world);
    let pair = (before[0], before[2]);
    enter(&mut world, pair, NEW[0], &[0, 1, 2, 3]);
    enter(&mut world, pair, NEW[0], &[0, 1, 2, 3]);
    assert_eq!(stays_from(&world, pair.1), 1);
    assert!(world.node(pair.1).owns_gained(&running_swap(&world.newest_record())));
}

#[test]
fn what_was_not_disowned_before_a_crash_is_disowned_after_it() {
    let mut world = started(10);
    let before = list(&world);
    let pair = (before[0], before[3]);
    enter(&mut world, pair, NEW[0], &[0, 1, 2, 3]);
    enter(&mut world, pair, NEW[1], &[0, 1, 2, 3]);
    world.hosts[pair.0].store.fails = |request| matches!(request, StoreRequest::Disown(_));
    enter(&mut world, pair, NEW[2], &[0, 1, 2, 3]);
    assert_eq!(stays_from(&world, pair.0), 1);
    for host in 0..4 {
        world.crash(host);
    }
    world.hosts[pair.0].store.fails = |_| false;
    for host in 0..4 {
        world.start(host);
    }
    world.run(5 * SECOND);
    let owned: Vec<u8> = before.iter().map(|host| stays_from(&world, *host)).collect();
    assert_eq!(owned, [4, 1, 1, 1]);
    assert_eq!(world.hosts[pair.0].store.record.disowned_to, Some(world.newest_record().epoch));
}

#[test]
fn a_gainer_keeps_its_copy_through_a_restart() {
    let mut world = started(11);
    let before = list(&world);
    let pair = (before[0], before[3]);
    for phase in NEW {
        enter(&mut world, pair, phase, &[0, 1, 2, 3]);
        world.crash(pair.1);
        world.start(pair.1);
        world.run(3 * SECOND);
        assert_eq!(stays_from(&world, pair.1), 1, "{phase:?}");
    }
}

#[test]
fn a_gainer_that_ended_before_it_had_looked_for_old_cells_purges_after_its_start() {
    let mut world = started(12);
    let before = list(&world);
    let pair = (before[0], before[3]);
    world.decide_phase(PARTITION, pair, NEW[0]);
    world.crash(pair.1);
    (0..4).for_each(|host| world.learn(host));
    world.start(pair.1);
    world.run(5 * SECOND);
    let disowned = |request: &StoreRequest| matches!(request, StoreRequest::Disown(_));
    assert!(world.hosts[pair.1].store_requests.iter().any(disowned));
    assert!(world.node(pair.1).owns_gained(&running_swap(&world.newest_record())));
    assert!(world.hosts[pair.1].store.record.disowned_to > Some(LayoutEpoch::FIRST));
    assert_eq!(NodeIndex(pair.1 as u8), running_swap(&world.newest_record()).gainer);
}
