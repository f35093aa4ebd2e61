//! Tests of situations that are set up step by step, so that they do not depend on the draws of a
//! seed.

use crate::host::EndCause;
use crate::trace::Trace;
use crate::world::World;
use crate::{FaultKind, Scale, Scenario};
use cluster::{
    Key, NodeIndex, ProposalOutcome, ReplicaRequest, ReplicaResponse, Requester, StoreRequest, StoreResponse,
};
use env::Fs;
use std::path::PathBuf;
use std::time::Duration;
use stdx::{Cell, Hlc, Version};

const SECOND: Duration = Duration::from_secs(1);
const FIRST: NodeIndex = NodeIndex(0);

/// Creates a cluster of two nodes that has served a few small writes and keeps them in tables.
fn two_nodes_with_tables() -> World {
    nodes_with_tables(2)
}

/// Creates a cluster that has served a few small writes and keeps them in tables.
fn nodes_with_tables(nodes: u8) -> World {
    prepared_nodes_with_tables(nodes, |_| ())
}

/// As [`nodes_with_tables`]. `prepare` changes the hosts before they start.
fn prepared_nodes_with_tables(nodes: u8, prepare: impl FnOnce(&mut World)) -> World {
    let mut scenario = Scenario::draw(7, Scale::SMALL, None);
    scenario.nodes = nodes;
    scenario.default_from = 2;
    scenario.scans = 0;
    scenario.faults = 0;
    scenario.fault_kinds = vec![FaultKind::DamageTable];
    scenario.keys = 2;
    scenario.value_bytes_max = 16;
    scenario.memtable_bytes = 1 << 10;
    scenario.read_share = 0.0;
    scenario.scrub_period = None;
    let mut world = World::new(scenario, Trace::new(false));
    prepare(&mut world);
    world
        .wait_until("all nodes serve", 10 * SECOND, World::are_all_serving)
        .expect("a run without faults has no violation");
    let ends = world.now + 2 * SECOND;
    world.begin_workload(60, ends);
    world.run_for(4 * SECOND).expect("a run without faults has no violation");
    world
}

fn tables(world: &mut World) -> Vec<PathBuf> {
    let names = world.host(FIRST).disk.file_names();
    names.into_iter().filter(|path| path.extension().is_some_and(|name| name == "sst")).collect()
}

#[test]
fn damage_ends_when_the_disk_is_replaced() {
    let mut world = two_nodes_with_tables();
    let path = tables(&mut world).pop().expect("there are tables");
    world.flip_bit(FIRST, path.clone(), 1_000);
    assert!(world.has_damage());
    world.replace_disk(FIRST);
    world.host(FIRST).disk.write_file(&path, b"another table of this name").expect("an empty disk has room");
    assert!(!world.has_damage(), "the file on the new disk is a different one");
}

/// When a bit flips.
#[derive(Clone, Copy, Debug)]
enum Flip {
    WhileRunning,
    WhileDown,
}

/// Reads of keys that a node does not hold, after it has healed a flipped bit.
fn reads_when_healed(flip: Flip, table: usize, byte: usize) -> Vec<StoreResponse> {
    let mut world = two_nodes_with_tables();
    if let Flip::WhileDown = flip {
        world.end_process(FIRST, EndCause::Kill, Some(SECOND));
    }
    let path = tables(&mut world).swap_remove(table);
    world.flip_bit(FIRST, path, byte as u64 * 8);
    world.wait_until("all nodes serve", 40 * SECOND, World::are_all_serving).expect("the node starts");
    world.wait_until("all are settled", 60 * SECOND, World::is_settled).expect("the node is rebuilt");
    world.wait_until("all are healed", 60 * SECOND, World::is_healed).expect("the node heals");
    let process = world.host(FIRST).process.as_ref().expect("the node serves");
    let missing = ["alive", "cold-1-and-more", "key-0-and-more"];
    let key = |name: &'static str| Key::new(name.into()).expect("a short key");
    missing.map(|name| process.read(&StoreRequest::Replica(ReplicaRequest::Read { key: key(name) }))).to_vec()
}

#[test]
fn a_healed_node_can_read_missing_keys_after_any_byte_of_a_table_flips() {
    let lens: Vec<usize> = {
        let mut world = two_nodes_with_tables();
        let paths = tables(&mut world);
        paths
            .iter()
            .map(|path| world.host(FIRST).disk.read_file(path).expect("the table exists").len())
            .collect()
    };
    assert!(!lens.is_empty());
    for (table, len) in lens.into_iter().enumerate() {
        for flip in [Flip::WhileRunning, Flip::WhileDown] {
            for byte in (0..len).step_by(16) {
                for read in reads_when_healed(flip, table, byte) {
                    assert!(
                        matches!(read, StoreResponse::Replica(ReplicaResponse::Cell(_))),
                        "table {table}, byte {byte}, {flip:?}: {read:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn stale_data_is_lost_at_whichever_operation_its_start_is_stopped() {
    let mut stopped = 0;
    for operations in 1..40 {
        let mut world = two_nodes_with_tables();
        world.scenario.away_max = 3 * SECOND;
        world.run_for(3 * SECOND).expect("a run without faults has no violation");
        world.end_process(FIRST, EndCause::Kill, Some(4 * SECOND));
        let host = world.host(FIRST);
        (host.stop_next_start, host.planned_stop) = (Some(operations), (EndCause::Kill, SECOND));
        world.run_for(20 * SECOND).expect("a run without faults has no violation");
        let host = world.host(FIRST);
        stopped += u64::from(host.generation > 2);
        assert_eq!(host.stale_shards, 1, "a start that is stopped after {operations} operations");
        world.begin_workload(20, world.now + SECOND);
        world.run_for(2 * SECOND).expect("the stale data is not missed");
    }
    assert!(stopped > 10, "{stopped} starts were stopped");
}

#[test]
fn a_table_of_a_stale_shard_is_not_damaged() {
    let mut world = two_nodes_with_tables();
    let tables = tables(&mut world);
    let stale = PathBuf::from("/data/stale-0000000000000001-1/tables/0000000000000001.sst");
    for table in &tables {
        world.host(FIRST).disk.remove_file(table).expect("the table exists");
    }
    world.host(FIRST).disk.write_file(&stale, b"a table").expect("there is room");
    world.nemesis.faults = 1;
    world.damage_table(FIRST);
    assert!(!world.has_damage(), "no node reads or heals a stale shard");
    world.host(FIRST).disk.write_file(&tables[0], b"a table").expect("there is room");
    world.damage_table(FIRST);
    assert!(world.has_damage());
}

#[test]
fn a_node_keeps_its_data_when_its_operator_corrects_a_clock_that_is_ahead() {
    let mut world = two_nodes_with_tables();
    let tag = |world: &mut World| world.host(FIRST).process.as_ref().map(|process| process.member.tag);
    let before = tag(&mut world).expect("the node serves");
    world.host(FIRST).clock.step(365 * 24 * 3_600 * 1_000_000);
    world.end_process(FIRST, EndCause::Kill, Some(SECOND));
    world
        .wait_until("all nodes serve", 10 * SECOND, World::are_all_serving)
        .expect("the node starts with a correct clock");
    assert_eq!(tag(&mut world), Some(before), "its data did not become stale");
    assert!(!world.host(FIRST).clock.is_wrong());
}

#[test]
fn the_only_replica_of_a_write_sends_it_to_a_replica_of_the_older_write() {
    let mut world = two_nodes_with_tables();
    let names = (0..100).map(|number| format!("overwritten-{number}"));
    let mut keys = names.map(|name| Key::new(name.into()).expect("a short key"));
    let key = keys.find(|key| world.layout().replicas(key, 1)[..] == [FIRST]).expect("one of a hundred");
    let tag = world.host(FIRST).process.as_ref().expect("the node serves").member.tag;
    let wall = world.judge.latest_wall;
    let cell = |micros, from| {
        let version = Version::new(Hlc::at(wall.saturating_add(Duration::from_micros(micros))), tag);
        Cell::value(version, from, vec![from].into())
    };
    for cell in [cell(1, 2), cell(2, 1)] {
        let id = world.judge.history.next_id();
        world.note_write(id, FIRST, &key, &cell);
        world.put_into_store(FIRST, &key, &cell);
    }
    world.run_for(SECOND).expect("a run without faults has no violation");
    let second = NodeIndex(1);
    world.end_process(second, EndCause::Kill, Some(SECOND));
    world.replace_disk(second);
    world.wait_until("all nodes serve", 40 * SECOND, World::are_all_serving).expect("the node starts");
    world.wait_until("all are settled", 60 * SECOND, World::is_settled).expect("the node is rebuilt");
    let process = world.host(second).process.as_ref().expect("the node serves");
    let read = process.read(&StoreRequest::Replica(ReplicaRequest::Read { key }));
    let StoreResponse::Replica(ReplicaResponse::Cell(Some(read))) = read else {
        panic!("the replica did not get the write: {read:?}")
    };
    assert_eq!(read.meta.version, cell(2, 1).meta.version);
}

#[test]
fn a_node_with_an_admitted_copy_starts_when_it_reaches_a_peer_that_knows() {
    let mut world = nodes_with_tables(3);
    let (peer, other) = (NodeIndex(1), NodeIndex(2));
    world.end_process(FIRST, EndCause::Kill, None);
    world.run_for(2 * SECOND).expect("the peers detect the end of the process");
    let disk = world.host(FIRST).disk.kill();
    world.start_copy(FIRST, disk, false);
    world.run_for(2 * SECOND).expect("the peers admit the copy");
    world.end_process(other, EndCause::Kill, None);
    assert!(world.may_start(FIRST), "one peer that admitted the copy runs");
    world.end_process(peer, EndCause::Kill, Some(SECOND));
    world.end_copy();
    assert!(!world.may_start(FIRST), "nothing tells the node that it lacks writes");
    world.wait_until("it may start", 2 * SECOND, |world| world.may_start(FIRST)).expect("the peer is back");
}

/// Proposes a change at the first node, and returns how that ends within two seconds.
fn propose(world: &mut World) -> Option<ProposalOutcome> {
    let endpoint = world.endpoint(FIRST, Requester::Node).expect("the node serves");
    let record = world.draw_weight_change(FIRST).expect("the node takes part");
    world.propose(endpoint, record, 2 * SECOND);
    world.run_for(2 * SECOND + SECOND / 10).expect("a run without faults has no violation");
    world.process(endpoint).expect("the node serves").proposal_end.take()
}

#[test]
fn nothing_is_decided_that_needs_the_vote_of_an_old_node() {
    let mut world = prepared_nodes_with_tables(2, |world| world.host(NodeIndex(1)).is_old = true);
    assert_eq!(propose(&mut world), None, "it is refused, because not all members can be asked");
    assert_eq!(world.judge.agreement.decided_records(), 0);
    world.heal();
    world.wait_until("all nodes serve", 40 * SECOND, World::are_all_serving).expect("it is upgraded");
    world.check_agreement().expect("the upgraded node votes");
    let decided = world.judge.agreement.decided_records();
    assert_eq!(decided, 3, "the nodes are named, the feature level is raised, and a change is made");
}

#[test]
fn votes_that_cannot_be_stored_do_not_count_and_are_stored_later() {
    let mut world = two_nodes_with_tables();
    let second = NodeIndex(1);
    let disk = world.host(second).disk.clone();
    let available = disk.available_bytes("/".as_ref()).expect("it is a file system");
    disk.set_capacity(u64::MAX - available);
    assert_eq!(propose(&mut world), Some(ProposalOutcome::TimedOut));
    disk.set_capacity(u64::MAX);
    assert!(matches!(propose(&mut world), Some(ProposalOutcome::Decided(_))));
}

#[test]
fn a_vote_in_flight_to_the_disk_is_lost_with_power() {
    let mut world = two_nodes_with_tables();
    let has_promised = |world: &World| {
        let voter = world.judge.agreement.voter(NodeIndex(1));
        voter.is_some_and(|voter| voter.state.acceptor.promised.is_some())
    };
    let second = NodeIndex(1);
    // Both votes are needed. So nothing is decided while one disk is slow.
    for (slow, is_kept) in [(second, false), (FIRST, true)] {
        let sync_max = std::mem::replace(&mut world.host(slow).sync_max, 60 * SECOND);
        propose(&mut world);
        assert_eq!(has_promised(&world), is_kept);
        world.end_process(second, EndCause::PowerLoss, Some(SECOND));
        world.host(slow).sync_max = sync_max;
        world.run_for(2 * SECOND).expect("the node starts");
        assert_eq!(has_promised(&world), is_kept, "{slow:?} has a slow disk");
    }
}
