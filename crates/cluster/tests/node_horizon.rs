//! The horizon of a node under wrong clocks of its own and of its peers.

mod world;

use std::time::Duration;
use stdx::{SteadyWall, WallTime};
use world::{MILLISECOND, SECOND, World};

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// Time by which the horizon of a host is behind the true time. Panics if it is ahead.
fn lag(world: &World, host: usize) -> Duration {
    let micros = |wall: WallTime| wall.micros_since_unix_epoch();
    let horizon = micros(world.node(host).horizon(world.now_at(host)));
    let behind = micros(world.now_at(usize::MAX).wall).checked_sub(horizon);
    Duration::from_micros(behind.expect("the horizon is not ahead of the time"))
}

fn set_ahead(world: &mut World, host: usize, ahead: Duration) {
    world.hosts[host].wall_offset_micros = ahead.as_micros() as i64;
}

fn set_behind(world: &mut World, host: usize, behind: Duration) {
    world.hosts[host].wall_offset_micros = -(behind.as_micros() as i64);
}

/// A world with rare heartbeats, in which hours pass quickly.
fn slow_world(hosts: usize, seed: u64) -> World {
    let mut world = World::new(hosts, seed);
    world.limits.heartbeat_interval = 10 * SECOND;
    world.limits.suspected_after = 25 * SECOND;
    world.limits.unreachable_after = 60 * SECOND;
    (0..hosts).for_each(|host| world.start(host));
    world.run(60 * SECOND);
    world
}

#[test]
fn clocks_that_agree_are_followed() {
    let mut world = World::started(3, 1);
    for _ in 0..10 {
        world.run(77 * MILLISECOND);
        (0..3).for_each(|host| assert!(lag(&world, host) < 10 * MILLISECOND, "{:?}", lag(&world, host)));
    }
}

#[test]
fn one_clock_that_is_ahead_moves_no_horizon() {
    for nodes in [2, 3, 5] {
        let mut world = World::started(nodes, 2);
        for ahead in [2 * HOUR, 10 * DAY] {
            set_ahead(&mut world, 0, ahead);
            for _ in 0..20 {
                world.run(77 * MILLISECOND);
                (0..nodes).for_each(|host| assert!(lag(&world, host) < SECOND, "{:?}", lag(&world, host)));
            }
        }
    }
}

#[test]
fn one_clock_that_is_behind_holds_back_no_other_node() {
    let mut world = World::started(3, 3);
    set_behind(&mut world, 2, 300 * DAY);
    world.run(2 * SECOND);
    assert!(lag(&world, 0) < SECOND && lag(&world, 1) < SECOND);
    assert!(lag(&world, 2) > 299 * DAY, "no horizon is ahead of the node's own clock");
    set_behind(&mut world, 2, Duration::ZERO);
    world.run(2 * SECOND);
    assert!(lag(&world, 2) < SECOND, "the others confirm the step");
}

#[test]
fn of_two_clocks_the_slower_counts() {
    let mut world = World::started(2, 4);
    set_behind(&mut world, 1, HOUR);
    world.run(2 * SECOND);
    for host in 0..2 {
        assert!(lag(&world, host) >= HOUR && lag(&world, host) < HOUR + SECOND);
    }
}

#[test]
fn while_too_few_clocks_are_heard_the_horizon_goes_on_with_the_monotonic_clock() {
    let mut world = slow_world(3, 5);
    world.cut_off(0, 1);
    world.cut_off(0, 2);
    world.run(120 * SECOND);
    set_ahead(&mut world, 0, 10 * DAY);
    for _ in 0..6 {
        world.run(HOUR);
        assert!(lag(&world, 0) < SECOND, "{:?}", lag(&world, 0));
    }
    set_ahead(&mut world, 0, Duration::ZERO);
    world.heal();
    world.run(120 * SECOND);
    assert!(lag(&world, 0) < SECOND);
}

#[test]
fn nothing_is_dead_before_most_clocks_are_heard() {
    let mut world = World::new(3, 6);
    world.start(0);
    world.run(10 * SECOND);
    assert_eq!(world.node(0).horizon(world.now_at(0)), WallTime::default());
    world.start(1);
    world.run(2 * SECOND);
    assert!(lag(&world, 0) < SECOND);
}

#[test]
fn a_step_of_most_clocks_counts_after_it_has_lasted() {
    let mut world = slow_world(3, 7);
    (0..3).for_each(|host| set_ahead(&mut world, host, DAY));
    for _ in 0..5 {
        world.run(SteadyWall::HOLD / 6);
        (0..3).for_each(|host| assert!(lag(&world, host) < SECOND, "{:?}", lag(&world, host)));
    }
    world.run(SteadyWall::HOLD / 6 + 60 * SECOND);
    for host in 0..3 {
        let now = world.now_at(host);
        assert!(world.node(host).horizon(now) > now.wall.saturating_sub(SECOND));
    }
}

#[test]
fn a_clock_that_is_set_back_takes_the_horizon_with_it() {
    let mut world = World::started(3, 8);
    set_behind(&mut world, 0, DAY);
    assert!(lag(&world, 0) >= DAY, "at once");
}
