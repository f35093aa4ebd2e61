//! The rebuild of a lost node, and anti-entropy.

mod world;

use bytes::Bytes;
use cluster::{
    Event, Key, LostRange, Message, NodeIndex, NodeRequest, NodeResponse, PeerAnswer, PeerRequest,
    RangeAnswer, RangeRequest, ReplicaRequest, StoreRequest, SyncState, hint_bytes,
};
use std::collections::BTreeMap;
use std::time::Duration;
use stdx::{Cell, CellKind, CellMeta, Hlc, Rng, Version, WallTime};
use world::{MILLISECOND, Net, SECOND, World, key};

const KEYS: usize = 3_000;
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// Stores a value on all of its replicas.
fn place(world: &mut World, name: &str, from: u8) -> Version {
    let replicas = world.layout.replicas(&key(name), from).to_vec();
    world.now = world.now + MILLISECOND / 1_000;
    let version = world.version(0);
    for replica in replicas {
        let cell = Cell::value(version, from, Bytes::from(name.to_owned()));
        world.write_cell(replica.as_usize(), &key(name), &cell, &[]);
    }
    version
}

/// Asserts that the newest cell of each key is on all of its replicas, and on the replicas of the
/// older cells that are held.
fn assert_converged(world: &World, what: &str) {
    let mut newest: BTreeMap<Key, CellMeta> = BTreeMap::new();
    for host in &world.hosts {
        for (key, cell) in &host.store.cells {
            let entry = newest.entry(key.clone()).or_insert(cell.meta);
            if cell.meta.version > entry.version {
                *entry = cell.meta;
            }
        }
    }
    assert_eq!(world.stray_cells, [], "{what}");
    for (key, meta) in &newest {
        for host in 0..world.hosts.len() {
            let held = world.hosts[host].store.cells.get(key).map(|cell| cell.meta);
            let is_replica = |from| world.layout.is_replica(NodeIndex(host as u8), key, from);
            if is_replica(meta.from) || held.is_some_and(|held| is_replica(held.from)) {
                assert_eq!(held, Some(*meta), "{what}: {key:?} at {host}");
            }
        }
    }
}

fn repair(world: &mut World, host: usize) {
    let (now, node) = world.node_mut(host);
    node.begin_repair(now);
    world.carry_out_effects(host);
}

fn is_repairing(world: &World, host: usize) -> bool {
    world.node(host).status().repair.is_some()
}

/// Stores values, tombstones and expiring values with all replica counts, each on some of its
/// replicas only.
fn scatter(world: &mut World, keys: usize, rng: &mut Rng) {
    let hosts = world.hosts.len() as u64;
    for _ in 0..keys * 2 {
        world.now = world.now + MILLISECOND / 1_000;
        let name = format!("{:04x}", rng.below(keys as u64) * 7_919 % 65_536);
        let from = 1 + rng.below(hosts) as u8;
        let version = world.version(rng.below(hosts) as usize);
        let mut cell = match rng.below(3) {
            0 => Cell::tombstone(version, from),
            _ => Cell::value(version, from, Bytes::from(version.to_string())),
        };
        if rng.chance(0.2) && cell.meta.kind == CellKind::Value {
            cell.meta.expires_at = Some(version.hlc.wall().saturating_add(SECOND));
        }
        let replicas = world.layout.replicas(&key(&name), from).to_vec();
        let least = rng.below(u64::from(from)) as usize;
        for (i, replica) in replicas.into_iter().enumerate() {
            if i == least || rng.chance(0.6) {
                world.write_cell(replica.as_usize(), &key(&name), &cell, &[]);
            }
        }
    }
}

#[test]
fn a_lost_node_is_filled_with_its_cells_and_no_others_before_it_is_read_eligible() {
    let mut world = World::started(3, 1);
    for i in 0..KEYS {
        place(&mut world, &format!("k{i}"), 1 + (i % 3) as u8);
    }
    let lost = world.hosts[2].store.cells.clone();
    world.crash(2);
    world.lose_disk(2);
    world.run(10 * MILLISECOND);
    world.start(2);
    let acknowledged = |key: &Key, cell: &Cell| cell.meta.from > 1 && lost.contains_key(key);
    let expected: Vec<&Key> =
        lost.iter().filter(|(key, cell)| acknowledged(key, cell)).map(|(key, _)| key).collect();
    world.run_until(30 * SECOND, "it is read-eligible", |world| {
        let is_read_eligible = (0..3).any(|host| world.view_of(host, 2).read_eligible);
        let missing = expected.iter().filter(|key| !world.hosts[2].store.cells.contains_key(key)).count();
        assert!(!is_read_eligible || missing == 0, "{missing} of {} are missing", expected.len());
        is_read_eligible
    });
    assert_eq!(
        world.hosts[2].store.cells.len(),
        expected.len(),
        "it holds only cells that it is a replica of"
    );
    world.run(5 * SECOND);
    assert_eq!(world.hosts[2].store.record.sync_state, SyncState::Settled);
    assert!(world.hosts[2].store.record.repair_pending.is_empty(), "a pass of anti-entropy has followed");
}

#[test]
fn a_lost_node_is_not_read_eligible_while_a_needed_source_is_away() {
    let mut world = World::started(3, 2);
    (0..100).for_each(|i| {
        place(&mut world, &format!("k{i}"), 3);
    });
    world.crash(1);
    world.crash(2);
    world.lose_disk(2);
    world.start(2);
    world.run(60 * SECOND);
    assert_eq!(world.sync_state(2), SyncState::Rebuilding);
    assert_eq!(world.hosts[2].store.cells.len(), 100, "it has read all that was reachable");
    world.start(1);
    world.run_until(10 * SECOND, "it is settled", |world| world.sync_state(2) == SyncState::Settled);
}

#[test]
fn a_write_that_a_source_stores_after_the_loss_is_not_missed_by_the_rebuild() {
    let mut world = World::started(3, 26);
    // The coordinator has the acknowledgement of the disk that is now lost. Another replica
    // completes the quorum just before the deadline.
    let version = world.write(2, "k", 3, &[]);
    let cell = world.hosts[2].store.cells[&key("k")].clone();
    world.crash(2);
    world.lose_disk(2);
    world.start(2);
    world.run(world.limits.request_timeout - MILLISECOND);
    assert_eq!(world.sync_state(2), SyncState::Rebuilding);
    world.write_cell(1, &key("k"), &cell, &[]);
    world.run_until(30 * SECOND, "it is settled", |world| world.sync_state(2) == SyncState::Settled);
    assert_eq!(world.version_at(2, "k"), Some(version));
}

#[test]
fn a_rebuild_completes_despite_crashes_losses_and_faults() {
    for seed in 0..6 {
        let mut world = World::started(3, 300 + seed);
        for i in 0..KEYS {
            place(&mut world, &format!("k{i}"), 2 + (i % 2) as u8);
        }
        let lost = world.hosts[2].store.cells.clone();
        world.crash(2);
        world.lose_disk(2);
        world.net = Net { jitter: 20 * MILLISECOND, loss: 0.05, doubled: 0.1, ..Net::of_a_rack() };
        world.start(2);
        for step in 0..20 {
            world.run(100 * MILLISECOND);
            match world.rng.below(8) {
                0 => world.restart(2),
                1 => world.restart(0),
                2 => world.cut_off(1, 2),
                3 => world.heal(),
                _ => {}
            }
            world.hosts[2].store.fails = match step % 4 {
                0 => |request| matches!(request, StoreRequest::Replica(ReplicaRequest::Write { .. })),
                1 => |request| matches!(request, StoreRequest::PersistRecord { .. }),
                _ => |_| false,
            };
            world.hosts[0].store.fails = match step % 3 {
                0 => |request| matches!(request, StoreRequest::Scan { .. }),
                _ => |_| false,
            };
            let missing = lost.keys().filter(|key| !world.hosts[2].store.cells.contains_key(key)).count();
            assert!(!world.view_of(2, 2).read_eligible || missing == 0, "seed {seed}: {missing} are missing");
        }
        world.heal();
        (0..3).for_each(|host| world.hosts[host].store.fails = |_| false);
        world.net.loss = 0.0;
        world.run_until(60 * SECOND, "it is settled", |world| world.sync_state(2) == SyncState::Settled);
        assert_eq!(world.hosts[2].store.cells, lost, "seed {seed}");
    }
}

#[test]
fn a_rebuild_completes_with_a_store_that_takes_few_writes_at_once() {
    let mut world = World::started(3, 20);
    for i in 0..KEYS {
        place(&mut world, &format!("k{i}"), 3);
    }
    world.crash(2);
    world.lose_disk(2);
    world.hosts[2].store.writes_max = 20;
    world.start(2);
    world.run_until(120 * SECOND, "it is settled", |world| world.sync_state(2) == SyncState::Settled);
    assert_eq!(world.hosts[2].store.cells.len(), KEYS);
}

#[test]
fn a_lost_node_waits_for_a_slow_source_with_the_only_copy_of_an_acknowledged_write() {
    let mut world = World::new(5, 22);
    world.limits.default_from = 5;
    (0..5).for_each(|host| world.start(host));
    world.run(2 * SECOND);
    (0..KEYS).for_each(|i| {
        place(&mut world, &format!("k{i}"), 5);
    });
    // Two of three replicas acknowledged it. The lost one held the hint for the third.
    let (lost, slow) = (NodeIndex(4), NodeIndex(1));
    let name = world.name_where("z", 3, |replicas| replicas.contains(&lost) && replicas.contains(&slow));
    let version = world.version(4);
    let cell = Cell::value(version, 3, Bytes::from_static(b"acknowledged"));
    world.write_cell(1, &key(&name), &cell, &[]);
    world.crash(4);
    world.lose_disk(4);
    world.hosts[1].store.latency = SECOND / 2;
    world.start(4);
    world.run_until(120 * SECOND, "it is settled", |world| world.sync_state(4) == SyncState::Settled);
    assert_eq!(world.version_at(4, &name), Some(version));
}

#[test]
fn two_nodes_that_rebuild_do_not_wait_for_each_other() {
    let mut world = World::started(3, 4);
    (0..500).for_each(|i| {
        place(&mut world, &format!("k{i}"), 3);
    });
    for host in 1..3 {
        world.crash(host);
        world.lose_disk(host);
    }
    world.start(1);
    world.start(2);
    world.run_until(30 * SECOND, "both are settled", |world| {
        (1..3).all(|host| world.sync_state(host) == SyncState::Settled)
    });
    assert!((1..3).all(|host| world.hosts[host].store.cells.len() == 500));
}

#[test]
fn a_lost_node_does_not_settle_as_new_by_the_report_of_another_lost_one() {
    let mut world = World::started(3, 24);
    (0..100).for_each(|i| {
        place(&mut world, &format!("k{i}"), 3);
    });
    for host in 1..3 {
        world.crash(host);
        world.lose_disk(host);
    }
    world.start(1);
    world.run_until(SECOND, "the first knows of its loss", |world| {
        world.sync_state(1) == SyncState::Rebuilding
    });
    // The second host cannot learn of its loss from the only node that remembers it.
    world.cut_off(0, 2);
    world.start(2);
    world.run(20 * SECOND);
    assert_eq!(world.sync_state(2), SyncState::Rebuilding);
    world.heal();
    world.run_until(30 * SECOND, "it is filled", |world| world.sync_state(2) == SyncState::Settled);
    assert_eq!(world.hosts[2].store.cells.len(), 100);
}

#[test]
fn emptied_nodes_are_filled_when_one_that_remembers_them_is_back() {
    let mut world = World::started(3, 25);
    (0..100).for_each(|i| {
        place(&mut world, &format!("k{i}"), 3);
    });
    (0..3).for_each(|host| world.crash(host));
    for host in 1..3 {
        world.lose_disk(host);
        world.start(host);
    }
    world.run(10 * SECOND);
    assert_eq!([1, 2].map(|host| world.sync_state(host)), [SyncState::Unsettled; 2], "no node told them");
    world.start(0);
    world.run(60 * SECOND);
    assert!((1..3).all(|host| world.hosts[host].store.cells.len() == 100));
}

#[test]
fn replicas_converge_on_unread_keys() {
    for seed in 0..8 {
        let hosts = 2 + (seed as usize % 4);
        let mut world = World::started(hosts, 500 + seed);
        let mut rng = Rng::new(seed);
        scatter(&mut world, KEYS, &mut rng);
        // Cells that one node receives are passed on by the next.
        for host in 0..hosts {
            repair(&mut world, host);
            world.run_until(120 * SECOND, "the pass has ended", |world| !is_repairing(world, host));
        }
        assert_converged(&world, &format!("seed {seed}"));
        for host in 0..hosts {
            assert!(world.hosts[host].store.record.repaired_at.is_some());
        }
    }
}

#[test]
fn one_pass_of_one_node_serves_all_its_keys_on_all_nodes() {
    let mut world = World::started(3, 6);
    // Only host 1 holds the cells; host 0 requests the repair.
    for i in 0..50 {
        let version = world.version(1);
        world.write_cell(1, &key(&format!("k{i}")), &Cell::tombstone(version, 3), &[]);
    }
    repair(&mut world, 0);
    world.run_until(10 * SECOND, "the pass has ended", |world| !is_repairing(world, 0));
    assert_converged(&world, "host 2 got the cells that host 0 received from host 1");
}

#[test]
fn replicas_converge_though_messages_are_lost_and_nodes_and_stores_fail() {
    for seed in 0..6 {
        let mut world = World::started(3, 700 + seed);
        let mut rng = Rng::new(seed);
        scatter(&mut world, 1_500, &mut rng);
        world.net = Net { jitter: 20 * MILLISECOND, loss: 0.03, doubled: 0.1, ..Net::of_a_rack() };
        for step in 0..15_usize {
            let host = rng.below(3) as usize;
            repair(&mut world, host);
            world.run(500 * MILLISECOND);
            if step % 5 == 4 {
                world.restart(host);
            }
            world.hosts[host].store.fails = match step % 4 {
                0 => |request| {
                    matches!(
                        request,
                        StoreRequest::Replica(ReplicaRequest::Write { .. }) | StoreRequest::Scan { .. }
                    )
                },
                1 => |request| {
                    matches!(
                        request,
                        StoreRequest::Replica(ReplicaRequest::Read { .. })
                            | StoreRequest::Replica(ReplicaRequest::ReadMeta { .. })
                    )
                },
                _ => |_| false,
            };
        }
        world.net.loss = 0.0;
        (0..3).for_each(|host| world.hosts[host].store.fails = |_| false);
        for host in [0, 1, 2, 0, 1, 2] {
            repair(&mut world, host);
            world.run(40 * SECOND);
        }
        assert_converged(&world, &format!("seed {seed}"));
    }
}

#[test]
fn a_dropped_hint_causes_a_repair() {
    let mut world = World::new(3, 8);
    world.hint_bytes_max = hint_bytes(&key("k0"));
    (0..3).for_each(|host| world.start(host));
    world.run(SECOND);
    // Host 2 is up, and yet misses a write.
    for i in 0..3 {
        world.write(0, &format!("k{i}"), 3, &[2]);
    }
    world.run(10 * SECOND);
    assert!((0..3).all(|i| world.version_at(2, &format!("k{i}")).is_some()));
    assert!(world.hosts[0].store.record.repair_pending.is_empty());
}

#[test]
fn a_dropped_hint_for_the_node_itself_causes_a_repair_with_its_peers() {
    let mut world = World::started(3, 21);
    // The node's own store refused the write that it coordinated, and no hint was stored.
    world.write(2, "k", 3, &[]);
    world.hosts[0].member.hints.count_dropped(NodeIndex(0), 1);
    world.run(10 * SECOND);
    assert!(world.version_at(0, "k").is_some());
}

#[test]
fn a_repair_requested_during_a_pass_is_done_by_the_next() {
    let mut world = World::new(2, 18);
    world.hint_bytes_max = 0;
    (0..2).for_each(|host| world.start(host));
    world.run(SECOND);
    repair(&mut world, 0);
    world.run(SECOND);
    world.write(0, "k", 2, &[1]);
    world.run_until(10 * SECOND, "the pass has ended", |world| !is_repairing(world, 0));
    assert_eq!(world.version_at(1, "k"), None, "it was written after the pass had begun");
    world.run(20 * SECOND);
    assert!(world.version_at(1, "k").is_some());
}

#[test]
fn a_pending_repair_is_done_after_a_restart_and_with_peers_that_return() {
    let mut world = World::new(3, 9);
    world.hint_bytes_max = 0;
    (0..3).for_each(|host| world.start(host));
    world.run(SECOND);
    world.crash(2);
    world.write(0, "k", 3, &[2]);
    world.run(SECOND);
    world.restart(0);
    world.run(30 * SECOND);
    assert!(world.hosts[0].store.record.repair_pending.contains(NodeIndex(2)));
    world.start(2);
    world.run(30 * SECOND);
    assert!(world.version_at(2, "k").is_some());
    assert!(world.hosts[0].store.record.repair_pending.is_empty());
}

#[test]
fn a_round_begins_in_each_third_of_the_grace_period() {
    let mut world = World::new(3, 10);
    world.limits.grace = 300 * SECOND;
    (0..3).for_each(|host| world.start(host));
    world.run(10 * SECOND);
    let settled_at = world.hosts[0].store.record.repaired_at;
    assert!(settled_at.is_some());
    world.write(1, "k", 3, &[]);
    world.run(80 * SECOND);
    assert_eq!(world.version_at(0, "k"), None);
    world.run(20 * SECOND);
    assert!(world.version_at(0, "k").is_some() && world.version_at(2, "k").is_some());
    assert!(world.hosts[0].store.record.repaired_at > settled_at);
}

#[test]
fn a_delete_of_one_copy_reaches_the_others_and_a_purged_one_does_not_come_back() {
    let mut world = World::started(3, 11);
    place(&mut world, "k", 3);
    let now = world.now + SECOND;
    world.now = now;
    let version = world.version(0);
    let owner = world.layout.replicas(&key("k"), 1)[0].as_usize();
    // A delete with a `from` of 1. Older copies are on other hosts.
    world.write_cell(owner, &key("k"), &Cell::tombstone(version, 1), &[]);
    world.run(3 * SECOND);
    repair(&mut world, owner);
    world.run(10 * SECOND);
    for host in 0..3 {
        assert_eq!(world.hosts[host].store.cells[&key("k")].meta.kind, CellKind::Tombstone, "at {host}");
    }
}

#[test]
fn a_rebuilt_replica_gets_a_newer_version_for_fewer_nodes_where_it_had_held_an_older_one() {
    for (seed, lost_place) in [(27, 1), (28, 2)] {
        let mut world = World::started(3, seed);
        place(&mut world, "k", 3);
        let replicas: Vec<usize> =
            world.layout.replicas(&key("k"), 3).iter().map(|node| node.as_usize()).collect();
        let version = world.write(replicas[0], "k", 1, &[]);
        world.run(3 * SECOND);
        repair(&mut world, replicas[0]);
        world.run(10 * SECOND);
        let lost = replicas[lost_place];
        world.crash(lost);
        world.lose_disk(lost);
        world.start(lost);
        world.run_until(30 * SECOND, "it is settled", |world| world.sync_state(lost) == SyncState::Settled);
        assert_eq!(world.version_at(lost, "k"), Some(version), "place {lost_place}");
    }
}

#[test]
fn a_version_for_fewer_nodes_stays_where_it_was_written_if_no_other_node_held_an_older_one() {
    let mut world = World::started(3, 29);
    let replicas: Vec<usize> =
        world.layout.replicas(&key("k"), 3).iter().map(|node| node.as_usize()).collect();
    world.write(replicas[0], "k", 1, &[]);
    world.write(replicas[0], "k", 1, &[]);
    world.run(3 * SECOND);
    repair(&mut world, replicas[0]);
    world.run(10 * SECOND);
    world.crash(replicas[1]);
    world.lose_disk(replicas[1]);
    world.start(replicas[1]);
    world.run(30 * SECOND);
    assert_eq!(world.sync_state(replicas[1]), SyncState::Settled);
    assert!(replicas[1..].iter().all(|&host| world.version_at(host, "k").is_none()));
}

#[test]
fn a_node_with_an_older_copy_gets_a_delete_by_its_own_pass() {
    let mut world = World::started(3, 11);
    place(&mut world, "k", 3);
    let now = world.now + SECOND;
    world.now = now;
    let version = world.version(0);
    let replicas: Vec<usize> =
        world.layout.replicas(&key("k"), 3).iter().map(|node| node.as_usize()).collect();
    world.write_cell(replicas[0], &key("k"), &Cell::tombstone(version, 1), &[]);
    world.run(3 * SECOND);
    repair(&mut world, replicas[2]);
    world.run(10 * SECOND);
    assert_eq!(world.version_at(replicas[2], "k"), Some(version));
}

#[test]
fn purged_cells_do_not_reappear() {
    let mut world = World::new(3, 17);
    world.limits.grace = 30 * SECOND;
    (0..3).for_each(|host| world.start(host));
    world.run(SECOND);
    let version = world.version(0);
    let deleted = Cell::tombstone(version, 3);
    (0..3).for_each(|host| world.write_cell(host, &key("deleted"), &deleted, &[]));
    world.run(12 * SECOND);
    world.hosts[0].store.cells.clear();
    world.run(13 * SECOND);
    assert_eq!(world.hosts[0].store.cells.len(), 1, "its grace period has not ended");
    world.run(20 * SECOND);
    world.hosts[0].store.cells.clear();
    for host in 0..3 {
        repair(&mut world, host);
        world.run(20 * SECOND);
    }
    assert!(world.hosts[0].store.cells.is_empty());
}

#[test]
fn a_dead_cell_past_its_grace_still_wins_over_an_older_value() {
    let mut world = World::new(2, 12);
    world.limits.grace = 20 * SECOND;
    (0..2).for_each(|host| world.start(host));
    world.run(SECOND);
    let older = place(&mut world, "k", 2);
    world.run(SECOND);
    let version = world.version(0);
    assert!(version > older);
    world.write_cell(0, &key("k"), &Cell::tombstone(version, 2), &[]);
    world.cut_off(0, 1);
    world.run(30 * SECOND);
    world.heal();
    world.run(20 * SECOND);
    assert_eq!(world.version_at(0, "k"), Some(version), "the older value did not come back");
    assert_eq!(world.version_at(1, "k"), Some(version));
}

#[test]
fn a_range_answer_is_bounded_and_states_its_end() {
    let mut world = World::started(2, 13);
    let version = world.version(1);
    for i in 0..5_000 {
        world.write_cell(1, &key(&format!("k{i:04}")), &Cell::tombstone(version, 2), &[]);
    }
    repair(&mut world, 0);
    world.run_until(60 * SECOND, "the pass has ended", |world| !is_repairing(world, 0));
    assert_eq!(world.hosts[0].store.cells.len(), 5_000);
    let sizes = world.sent.iter().filter_map(|(_, _, message)| match message {
        Message::Answer {
            answer: PeerAnswer::Node(NodeResponse::Range(RangeAnswer::Versions { entries, .. })),
            ..
        } => Some(entries.len()),
        _ => None,
    });
    assert!(sizes.max().expect("ranges were answered") <= 1_024);
}

#[test]
fn the_cells_that_wait_for_their_exchange_are_bounded() {
    let mut world = World::started(2, 23);
    let version = world.version(1);
    for i in 0..20_000 {
        world.write_cell(1, &key(&format!("k{i:05}")), &Cell::tombstone(version, 2), &[]);
    }
    repair(&mut world, 0);
    let (mut seen, mut listed) = (world.sent.len(), 0);
    world.run_until(300 * SECOND, "the pass has ended", |world| {
        for (_, _, message) in &world.sent[seen..] {
            if let Message::Answer {
                answer: PeerAnswer::Node(NodeResponse::Range(RangeAnswer::Versions { entries, .. })),
                ..
            } = message
            {
                listed += entries.len();
            }
        }
        seen = world.sent.len();
        let waiting = listed - world.hosts[0].store.cells.len().min(listed);
        assert!(waiting <= 4 * 1_024, "{waiting} cells wait to be exchanged");
        !is_repairing(world, 0)
    });
    assert_eq!(world.hosts[0].store.cells.len(), 20_000);
}

#[test]
fn nodes_with_equal_shared_cells_answer_same() {
    let mut world = World::started(3, 19);
    for i in 0..900 {
        place(&mut world, &format!("k{i:04}"), 1 + (i % 3) as u8);
    }
    repair(&mut world, 0);
    world.run_until(60 * SECOND, "the pass has ended", |world| !is_repairing(world, 0));
    let answers: Vec<&RangeAnswer> = (world.sent.iter())
        .filter_map(|(_, _, message)| match message {
            Message::Answer { answer: PeerAnswer::Node(NodeResponse::Range(answer)), .. } => Some(answer),
            _ => None,
        })
        .collect();
    assert_eq!(answers, [&RangeAnswer::Same; 2]);
}

#[test]
fn the_range_requests_of_a_peer_in_flight_are_bounded() {
    let mut world = World::started(2, 14);
    world.hosts[0].store.latency = SECOND;
    for number in 0..5 {
        let range = RangeRequest { after: None, until: None, cutoff: Hlc::MAX, digest: None, cells: true };
        let id = cluster::MessageId {
            incarnation: cluster::Incarnation(99),
            requester: cluster::Requester::Node,
            number,
        };
        world.inject(
            1,
            0,
            &Message::Request {
                id,
                request: PeerRequest::Node(NodeRequest::Range(range)),
                within: None,
                epoch: cluster::LayoutEpoch::FIRST,
            },
        );
    }
    world.run(100 * MILLISECOND);
    let scans =
        world.hosts[0].store_requests.iter().filter(|request| matches!(request, StoreRequest::Scan { .. }));
    assert_eq!(scans.count(), 2);
    world.run(3 * SECOND);
}

/// Measures activity and pauses by the scans of the store.
#[test]
fn a_background_pass_is_active_a_tenth_of_the_time_and_a_requested_one_half() {
    let scan_times = |world: &mut World| {
        let begin = world.now;
        let asked = world.hosts[0].store_requests.len();
        world.run_until(600 * SECOND, "it is repaired", |world| {
            let scans = world.hosts[0].store_requests[asked..].iter();
            let is_own = |request: &&StoreRequest| matches!(request, StoreRequest::Scan { until: None, .. });
            scans.filter(is_own).count() >= 11
        });
        world.now - begin
    };
    let mut world = World::new(2, 15);
    world.limits.grace = 3_000 * SECOND;
    (0..2).for_each(|host| world.start(host));
    world.run(2 * SECOND);
    for i in 0..20_000 {
        place(&mut world, &format!("k{i:05}"), 2);
    }
    world.hosts[0].store.latency = 100 * MILLISECOND;
    repair(&mut world, 0);
    let asked_for = scan_times(&mut world);
    world.run(100 * SECOND);
    world.run_until(1_000 * SECOND, "a round has begun", |world| is_repairing(world, 0));
    let background = scan_times(&mut world);
    assert!(background > asked_for * 3, "{background:?} in the background, {asked_for:?} when asked for");
}

#[test]
fn a_pass_reports_its_progress() {
    let mut world = World::started(2, 16);
    for i in 0..4_000 {
        place(&mut world, &format!("{:02x}{i}", 0x21 + i % 80), 2);
    }
    world.hosts[0].store.latency = 100 * MILLISECOND;
    repair(&mut world, 0);
    let mut seen = Vec::new();
    world.run_until(60 * SECOND, "the pass has ended", |world| {
        let status = world.node(0).status().repair;
        seen.extend(status.map(|status| status.permille));
        status.is_none()
    });
    seen.dedup();
    assert!(seen.len() > 3 && seen.is_sorted(), "{seen:?}");
    assert!(
        !world.hosts[0].events.iter().any(|event| matches!(event, Event::Repaired { .. })),
        "all was equal"
    );
}

/// Damages a range in the middle of the keys of two hosts, which `host` can never read again.
fn with_damage_that_stays(world: &mut World, host: usize) -> Vec<(String, Version)> {
    let range = LostRange { after: Some(key("k1300")), until: Some(key("k1310")) };
    world.hosts[host].store.damage(7, range, |_| false);
    // The damage is older than the grace period, so it waits for the operator.
    world.hosts[host].store.damage[0].dead_from = Some(WallTime::EPOCH_2020);
    let write = |i| {
        let name = format!("k{i:04}");
        let version = world.write(i % 2, &name, 2, &[]);
        (name, version)
    };
    (0..KEYS).map(write).collect()
}

#[test]
fn unreadable_ranges_are_skipped_and_all_other_keys_converge() {
    for host in [0, 1] {
        let mut world = World::started(2, 30);
        let placed = with_damage_that_stays(&mut world, host);
        world.run(3 * SECOND);
        repair(&mut world, 0);
        world.run_until(300 * SECOND, "the pass has ended", |world| !is_repairing(world, 0));
        let is_missing = |name: &String| (0..2).any(|host| world.version_at(host, name).is_none());
        let left: Vec<&String> =
            placed.iter().map(|(name, _)| name).filter(|name| is_missing(name)).collect();
        let is_near = |name: &&String| *name.as_str() > *"k1290" && *name.as_str() < *"k1320";
        assert!(left.iter().all(is_near), "damage at {host}: {left:?}");
        let passed_over = |event: &&Event| **event == Event::RangeSkipped { node: NodeIndex(1) };
        assert!(
            world.hosts[0].events.iter().any(|event| passed_over(&event)),
            "damage at {host}: it is told"
        );
        let repaired_at = world.hosts[0].store.record.repaired_at;
        assert!(repaired_at.is_none_or(|at| at < placed[0].1.hlc.wall()), "a range was not repaired");

        world.hosts[host].store.damage.clear();
        world.run_until(900 * SECOND, "it was tried again", |world| {
            let is_at =
                |host, (name, version): &(String, Version)| world.version_at(host, name) == Some(*version);
            placed.iter().all(|placed| is_at(0, placed) && is_at(1, placed))
        });
    }
}

/// A world of three hosts that all hold large values, with the cells removed from the last one or
/// not.
fn with_large_values(seed: u64) -> World {
    let mut world = World::started(3, seed);
    for name in ["a", "b", "c"] {
        let version = world.version(0);
        let cell = Cell::value(version, 3, vec![7; 6 << 20].into());
        (0..3).for_each(|host| world.write_cell(host, &key(name), &cell, &[]));
        world.run(SECOND);
    }
    world.bytes_per_second = Some(1 << 20);
    world
}

#[test]
fn a_node_with_large_values_is_rebuilt_over_slow_links() {
    let mut world = with_large_values(41);
    world.crash(2);
    world.lose_disk(2);
    world.start(2);
    world.run_until(300 * SECOND, "it is settled", |world| world.sync_state(2) == SyncState::Settled);
    assert_eq!(world.hosts[2].store.cells.len(), 3);
}

#[test]
fn large_values_are_exchanged_over_slow_links() {
    let mut world = with_large_values(42);
    world.hosts[2].store.cells.remove(&key("b"));
    world.hosts[0].store.cells.remove(&key("c"));
    world.run(3 * SECOND);
    repair(&mut world, 0);
    world.run_until(300 * SECOND, "all hosts hold all cells", |world| {
        world.hosts.iter().all(|host| host.store.cells.len() == 3)
    });
}

/// A world whose recorded time of the last round is `ahead` of the true time.
fn with_round_ahead(seed: u64, ahead: Duration) -> World {
    let mut world = World::started(3, seed);
    world.write(1, "k", 3, &[]);
    let wall = world.now_at(0).wall;
    world.hosts[0].store.record.repaired_at = Some(wall.saturating_add(ahead));
    world.restart(0);
    world.run(30 * SECOND);
    world
}

fn rounds_in_future(world: &World, host: usize) -> usize {
    world.hosts[host].events.iter().filter(|event| matches!(event, Event::RoundInFuture { .. })).count()
}

#[test]
fn a_time_of_the_last_round_in_the_future_is_reported_and_ignored() {
    let world = with_round_ahead(31, 365 * DAY);
    assert!(world.version_at(0, "k").is_some(), "a round has begun at once");
    assert_eq!(rounds_in_future(&world, 0), 1, "it is reported once");
    assert!(world.hosts[0].store.record.repaired_at <= Some(world.now_at(0).wall));

    let world = with_round_ahead(31, SECOND);
    assert_eq!(
        (world.version_at(0, "k"), rounds_in_future(&world, 0)),
        (None, 0),
        "clocks differ by so much"
    );
}

#[test]
fn a_forward_step_that_was_taken_back_does_not_stop_rounds() {
    let mut world = World::new(3, 32);
    world.limits.grace = 300 * SECOND;
    (0..3).for_each(|host| world.start(host));
    world.run(10 * SECOND);
    world.hosts[0].wall_offset_micros = (365 * DAY).as_micros() as i64;
    world.run(60 * SECOND);
    assert!(
        world.hosts[0].store.record.repaired_at > Some(world.now_at(1).wall),
        "a round was recorded meanwhile"
    );
    world.hosts[0].wall_offset_micros = 0;
    world.write(1, "k", 3, &[]);
    world.run(110 * SECOND);
    assert!(world.version_at(0, "k").is_some(), "a round began in a third of the grace period");
    assert!(world.hosts[0].store.record.repaired_at <= Some(world.now_at(0).wall));
}

#[test]
fn a_clock_that_is_ahead_leaves_no_delete_out_of_a_pass() {
    let mut world = World::started(3, 33);
    let delete = Cell::tombstone(world.version(0), 3);
    world.write_cell(0, &key("k"), &delete, &[]);
    world.hosts[0].wall_offset_micros = (20 * DAY).as_micros() as i64;
    world.run(3 * SECOND);
    repair(&mut world, 0);
    world.run(10 * SECOND);
    for host in 0..3 {
        assert_eq!(world.version_at(host, "k"), Some(delete.meta.version), "at {host}");
    }
}

#[test]
fn deletes_are_kept_until_a_pass_with_each_peer_that_is_heard_has_ended() {
    let mut world = World::new(2, 50);
    world.limits.grace = 300 * SECOND;
    (0..2).for_each(|host| world.start(host));
    world.run(2 * SECOND);
    let placed = with_damage_that_stays(&mut world, 1);
    let written_at = placed[0].1.hlc.wall();
    world.run(4 * world.limits.grace);
    let exchanged_to = |world: &World, host| world.node(host).deletes_exchanged_to(world.now_at(host));
    assert!(exchanged_to(&world, 0) < written_at, "host 1 has not compared all of its keys");
    world.hosts[1].store.damage.clear();
    world.run(world.limits.grace);
    let since = |world: &World, wall: WallTime| {
        world.now_at(0).wall.micros_since_unix_epoch() - wall.micros_since_unix_epoch()
    };
    let grace = world.limits.grace.as_micros() as u64;
    assert!(since(&world, exchanged_to(&world, 0)) < grace, "rounds are complete again");
    assert!(since(&world, exchanged_to(&world, 1)) < grace);
}

#[test]
fn a_peer_that_is_silent_for_the_grace_period_keeps_no_deletes() {
    let mut world = World::new(3, 51);
    world.limits.grace = 300 * SECOND;
    (0..3).for_each(|host| world.start(host));
    world.run(10 * SECOND);
    world.crash(2);
    let crashed_at = world.now_at(0).wall;
    world.run(world.limits.grace * 9 / 10);
    assert!(
        world.node(0).deletes_exchanged_to(world.now_at(0)) < crashed_at,
        "it may come back with its data"
    );
    world.run(world.limits.grace / 5);
    assert!(world.node(0).deletes_exchanged_to(world.now_at(0)) > crashed_at);
}

#[test]
fn a_cell_whose_transfer_breaks_the_link_does_not_block_other_cells() {
    let mut world = World::started(2, 52);
    world.net.latency = 20 * MILLISECOND;
    world.run(SECOND);
    for name in ["a", "b", "c", "d"] {
        world.write(0, name, 2, &[]);
    }
    // These keys are in the next chunk.
    let behind: Vec<String> = (0..KEYS).map(|i| format!("e{i:04}")).collect();
    for name in &behind {
        world.write(0, name, 2, &[]);
    }
    world.run(3 * SECOND);
    repair(&mut world, 0);
    let breaks = |message: &Message| match message {
        Message::Request {
            request: PeerRequest::Replica(ReplicaRequest::Write { key: sent, .. }), ..
        } => *sent == key("b"),
        _ => false,
    };
    let mut broken = 0;
    for _ in 0..300_000 {
        world.run(10 * MILLISECOND);
        let sent = std::mem::take(&mut world.sent);
        if sent.iter().any(|(from, _, message)| *from == 0 && breaks(message)) {
            world.break_dialed(0, 1);
            broken += 1;
        }
        if behind.iter().all(|name| world.version_at(1, name).is_some()) {
            assert!(broken > 0 && world.version_at(1, "b").is_none());
            assert!(["a", "c", "d"].iter().all(|name| world.version_at(1, name).is_some()));
            return;
        }
    }
    let left = behind.iter().filter(|name| world.version_at(1, name).is_none()).count();
    panic!("after {broken} broken links {left} cells are not exchanged");
}

#[test]
fn a_lost_node_is_filled_with_deletes_of_any_age_that_a_peer_lacks() {
    let mut world = World::new(3, 53);
    world.limits.grace = 300 * SECOND;
    (0..3).for_each(|host| world.start(host));
    world.run(10 * SECOND);
    place(&mut world, "k", 3);
    world.run(SECOND);
    // A node without disk space takes part in no pass, but can be read.
    let (now, node) = world.node_mut(1);
    node.handle_disk_full(now, true);
    let tombstone = Cell::tombstone(world.version(0), 3);
    [0, 2].into_iter().for_each(|host| world.write_cell(host, &key("k"), &tombstone, &[]));
    world.run(2 * world.limits.grace);
    assert!(world.node(0).deletes_exchanged_to(world.now_at(0)) < tombstone.meta.version.hlc.wall());
    world.crash(2);
    world.lose_disk(2);
    world.start(2);
    world.run_until(300 * SECOND, "it is settled", |world| world.sync_state(2) == SyncState::Settled);
    assert_eq!(
        world.version_at(2, "k"),
        Some(tombstone.meta.version),
        "its majority had acknowledged the delete"
    );
}

#[test]
fn a_long_pause_makes_a_repair_pending_on_the_node_and_on_its_peers() {
    let mut world = World::started(3, 54);
    // Neither node knows of the other's missing cell: the hints were too old.
    world.write(0, "missed", 3, &[]);
    world.write(1, "known to it alone", 3, &[]);
    world.crash(2);
    let (now, node) = world.node_mut(1);
    node.handle_absences(now, 1);
    assert_eq!(world.node(1).absences_recorded(), None, "it is not durable");
    world.carry_out_effects(1);
    world.run(SECOND);
    assert!(world.node(1).absences_recorded() == Some(1));
    for (host, peers) in [(1, [0, 2]), (0, [1, 2])] {
        let owed = world.hosts[host].store.record.repair_pending;
        assert!(peers.iter().all(|&peer| owed.contains(NodeIndex(peer))), "at {host}: {owed:?}");
    }
    world.run(10 * SECOND);
    assert!(world.version_at(1, "missed").is_some() && world.version_at(0, "known to it alone").is_some());
    world.start(2);
    world.run(30 * SECOND);
    assert!(world.version_at(2, "missed").is_some() && world.version_at(2, "known to it alone").is_some());
    assert!((0..3).all(|host| world.hosts[host].store.record.repair_pending.is_empty()));
    let (now, node) = world.node_mut(1);
    node.handle_absences(now, 1);
    world.carry_out_effects(1);
    assert!(
        world.hosts[1].store.record.repair_pending.is_empty(),
        "the same absence makes nothing owed again"
    );
}
