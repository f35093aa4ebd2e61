//! Healing of damaged tables.

mod world;

use cluster::{Key, LostRange, NodeIndex, NodeSet, RepairKind, ReplicaRequest, StoreRequest};
use std::time::Duration;
use stdx::{Version, WallTime};
use world::{SECOND, World, key};

const KEYS: usize = 3_000;

/// All names in key order.
fn names() -> impl Iterator<Item = String> {
    (0..KEYS).map(|i| format!("k{i:04}"))
}

fn range(after: &str, until: &str) -> LostRange {
    LostRange { after: Some(key(after)), until: Some(key(until)) }
}

/// Whether the first host holds every placed key behind `after` up to `until`.
fn holds_all(world: &World, placed: &[(String, Version)], after: &str, until: &str) -> bool {
    let mut lost = placed.iter().filter(|(name, _)| after < name.as_str() && name.as_str() <= until);
    lost.all(|(name, version)| world.version_at(0, name) == Some(*version))
}

/// Writes each key to two of three hosts. The first host is one of them for most keys.
fn place_all(world: &mut World) -> Vec<(String, Version)> {
    let place = |(i, name): (usize, String)| {
        let version = world.write(i % 3, &name, 3, &[]);
        let cell = world.hosts[i % 3].store.cells[&key(&name)].clone();
        world.write_cell((i + 1) % 3, &key(&name), &cell, &[]);
        (name, version)
    };
    names().enumerate().map(place).collect()
}

/// Damages a table of the first host, which loses every cell in the range.
fn damage(world: &mut World, range: LostRange) {
    world.hosts[0].store.damage(7, range, |_: &Key| true);
}

fn is_healed(world: &World) -> bool {
    world.hosts[0].store.damage.is_empty()
}

fn is_abandoned(world: &World) -> bool {
    world.hosts[0].store_requests.iter().any(|request| matches!(request, StoreRequest::AbandonTable(_)))
}

#[test]
fn lost_cells_are_restored_before_the_table_is_abandoned() {
    let mut world = World::started(3, 1);
    let placed = place_all(&mut world);
    damage(&mut world, range("k0999", "k2500"));
    world.run_until(30 * SECOND, "the damage is reported", |world| {
        world.node(0).status().repair.is_some_and(|repair| repair.kind == RepairKind::Healing)
    });
    world.run_until(30 * SECOND, "the table is abandoned", is_abandoned);
    assert!(holds_all(&world, &placed, "k0999", "k2500"));
    let others = NodeSet::from_iter([NodeIndex(1), NodeIndex(2)]);
    assert_eq!(world.hosts[0].store.record.repair_pending, others, "a pass is durably pending");
    world.run_until(30 * SECOND, "it is healed", is_healed);
    world.run_until(90 * SECOND, "the pass has ended", |world| {
        world.hosts[0].store.record.repair_pending.is_empty()
    });
    assert_eq!(world.stray_cells, []);
}

#[test]
fn only_the_lost_range_is_fetched() {
    let mut world = World::started(3, 2);
    place_all(&mut world);
    world.hosts[0].store_requests.clear();
    damage(&mut world, range("k0999", "k1010"));
    world.run_until(30 * SECOND, "the table is abandoned", is_abandoned);
    let written = world.hosts[0].store_requests.iter().filter_map(|request| match request {
        StoreRequest::Replica(ReplicaRequest::Write { key, .. }) => Some(key.clone()),
        _ => None,
    });
    let mut written: Vec<Key> = written.collect();
    written.sort();
    written.dedup();
    let lost: Vec<Key> = (1_000..=1_010).map(|i| key(&format!("k{i:04}"))).collect();
    assert_eq!(written, lost);
}

#[test]
fn no_table_is_abandoned_while_a_needed_source_is_away() {
    let mut world = World::started(3, 3);
    let placed = place_all(&mut world);
    world.crash(2);
    damage(&mut world, range("k0999", "k1500"));
    world.run(60 * SECOND);
    assert!(!is_abandoned(&world), "the other host may hold the lost cells");
    world.start(2);
    world.run_until(30 * SECOND, "it is healed", is_healed);
    assert!(holds_all(&world, &placed, "k0999", "k1500"));
}

#[test]
fn no_table_is_abandoned_while_a_source_cannot_read_the_same_range() {
    let mut world = World::started(3, 4);
    place_all(&mut world);
    damage(&mut world, range("k0999", "k1500"));
    world.hosts[1].store.damage(8, range("k1400", "k1600"), |_| false);
    world.run(60 * SECOND);
    assert!(!is_abandoned(&world));
    // The damaged ranges of the other hosts become readable again.
    world.hosts[1].store.damage.clear();
    world.run_until(30 * SECOND, "it is healed", is_healed);
}

#[test]
fn a_rebuilding_source_is_not_enough() {
    let mut world = World::started(3, 5);
    place_all(&mut world);
    damage(&mut world, range("k0999", "k1500"));
    world.crash(1);
    world.lose_disk(1);
    world.start(1);
    world.run(60 * SECOND);
    assert!(!is_abandoned(&world), "two of three have lost cells, and the third alone is no majority");
}

#[test]
fn a_write_that_reaches_a_source_late_is_not_missed() {
    let mut world = World::started(3, 6);
    place_all(&mut world);
    let version = world.write(0, "k1000x", 3, &[]);
    let cell = world.hosts[0].store.cells[&key("k1000x")].clone();
    damage(&mut world, range("k0999", "k1500"));
    // Together with the answer of the first host, this acknowledges the write.
    world.run(world.limits.request_timeout - Duration::from_millis(1));
    world.write_cell(1, &key("k1000x"), &cell, &[]);
    world.run_until(30 * SECOND, "it is healed", is_healed);
    assert_eq!(world.version_at(0, "k1000x"), Some(version));
}

#[test]
fn a_restart_starts_healing_again() {
    let mut world = World::started(3, 7);
    let placed = place_all(&mut world);
    damage(&mut world, range("k0999", "k2500"));
    for _ in 0..20 {
        let pause = world.rng.below(2_500);
        world.run(Duration::from_millis(pause));
        world.restart(0);
    }
    world.run_until(30 * SECOND, "it is healed", is_healed);
    assert!(holds_all(&world, &placed, "k0999", "k2500"));
}

#[test]
fn own_cells_are_stored_again_and_peers_are_told_that_hints_may_be_lost() {
    let mut world = World::started(3, 8);
    world.run(120 * SECOND);
    let (revision, bound) = (world.hosts[0].store.record.revision, world.hosts[0].store.bound);
    damage(&mut world, range("k", "l"));
    world.hosts[0].store_requests.clear();
    world.run_until(30 * SECOND, "the table is abandoned", is_abandoned);
    assert!(world.hosts[0].store.record.revision > revision);
    let raised = world.hosts[0]
        .store_requests
        .iter()
        .any(|request| matches!(request, StoreRequest::RaiseClockBound { bound: again } if *again >= bound));
    assert!(raised, "the bound of the clock is stored again");
    world.run_until(30 * SECOND, "both peers have a pass pending", |world| {
        [1, 2].iter().all(|&host| !world.hosts[host].store.record.repair_pending.is_empty())
    });
}

#[test]
fn a_node_with_the_only_copies_keeps_the_error() {
    let mut world = World::new(3, 9);
    world.limits.default_from = 1;
    (0..3).for_each(|host| world.start(host));
    world.run(2 * SECOND);
    damage(&mut world, range("k", "l"));
    world.run(60 * SECOND);
    assert!(!is_abandoned(&world));
}

#[test]
fn a_table_with_deletes_that_others_may_have_purged_is_not_abandoned() {
    let mut world = World::started(3, 10);
    let wall = world.now_at(0).wall;
    for (ago, heals) in [(20, false), (19, false), (18, true)] {
        world.hosts[0].store.damage.clear();
        damage(&mut world, range("k", "l"));
        let dead_from = wall.saturating_sub(world.limits.grace * ago / 20);
        world.hosts[0].store.damage[0].dead_from = Some(dead_from);
        world.run(60 * SECOND);
        assert_eq!(is_healed(&world), heals, "{ago} of 20 parts of the grace period");
    }
}

#[test]
fn a_table_that_cannot_heal_does_not_block_others() {
    let mut world = World::started(3, 11);
    damage(&mut world, range("a", "b"));
    world.hosts[0].store.damage[0].dead_from = Some(WallTime::EPOCH_2020);
    damage(&mut world, range("k", "l"));
    damage(&mut world, range("m", "n"));
    world.run_until(30 * SECOND, "the others are healed", |world| world.hosts[0].store.damage.len() == 1);
    assert_eq!(world.hosts[0].store.damage[0].ranges, [range("a", "b")]);
}

#[test]
fn the_age_of_deletes_is_not_judged_by_a_wrong_clock() {
    let day = Duration::from_secs(24 * 3_600);
    let grace = World::new(3, 12).limits.grace;
    for (dead_ago, offset_days, heals) in
        [(grace / 2, 30, true), (grace / 2, -30, true), (grace, 3, false), (grace, -3, false)]
    {
        let mut world = World::started(3, 12);
        let dead_from = world.now_at(0).wall.saturating_sub(dead_ago);
        world.hosts[0].wall_offset_micros = i64::from(offset_days) * day.as_micros() as i64;
        world.run(SECOND);
        damage(&mut world, range("k", "l"));
        world.hosts[0].store.damage[0].dead_from = Some(dead_from);
        world.run(60 * SECOND);
        assert_eq!(is_healed(&world), heals, "dead for {dead_ago:?}, the clock is {offset_days} days ahead");
    }
}
