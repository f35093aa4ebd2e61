//! A node with peers that was paused for too long does not continue with its data.

mod common;

use cluster::{NodeIndex, NodeRecord, StoreRequest, SyncState};
use common::{DATA, carry_out, options};
use env::{Clock, Env, ManualClock, MemFs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Now, WallTime};
use store::{AWAY_MAX_DEFAULT, AfterAbsence, Membership, Store, StoreError, StoreOptions};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A running node and the clock of its machine.
struct Running {
    disk: MemFs,
    clock: Arc<ManualClock>,
    store: Store,
}

fn peers() -> Membership {
    let nodes = ["http://a:1", "http://b:1", "http://c:1"].map(str::to_owned);
    Membership::of(nodes.to_vec()).seen_by("http://b:1")
}

fn open(disk: &MemFs, clock: Arc<dyn Clock>, membership: Membership) -> Result<Store, StoreError> {
    let options = StoreOptions { membership, after_absence: AfterAbsence::Refuse, ..options(1) };
    Store::open(Env { fs: Arc::new(disk.clone()), clock }, Path::new(DATA), options).map(|(store, _)| store)
}

fn settle(store: &Store) {
    let record = NodeRecord { revision: 9, sync_state: SyncState::Settled, ..NodeRecord::default() };
    carry_out(store, &StoreRequest::PersistRecord { record });
}

impl Running {
    fn start(membership: Membership) -> Self {
        let (disk, clock) = (MemFs::new(), Arc::new(ManualClock::new(WallTime::EPOCH_2020)));
        let store = open(&disk, Arc::clone(&clock) as _, membership).unwrap();
        settle(&store);
        Self { disk, clock, store }
    }

    fn note_alive(&self) -> Result<(), StoreError> {
        self.store.note_alive(self.clock.now().wall)
    }

    /// Makes the host's periodic calls for this number of hours.
    fn run(&self, hours: u32) {
        for _ in 0..hours {
            self.clock.advance(HOUR);
            self.store.check_for_pause().expect("it is there");
            self.note_alive().expect("it is there");
        }
    }

    #[track_caller]
    fn assert_is_away(self) {
        let refused = self.store.check_for_pause().expect_err("it stood still");
        assert!(matches!(refused, StoreError::PausedTooLong { missed_days: 9.., .. }), "{refused}");
        self.clock.advance(HOUR);
        assert!(self.store.check_for_pause().is_err() && self.note_alive().is_err(), "it stays so");
        drop(self.store);
        let refused = open(&self.disk, self.clock, peers()).map(drop).expect_err("the start judges it");
        assert!(matches!(refused, StoreError::AwayTooLong { .. }), "{refused}");
    }
}

#[test]
fn a_machine_suspended_for_too_long_counts_as_absent() {
    let node = Running::start(peers());
    node.run(100 * 24);
    node.clock.suspend(DAY * 11);
    node.assert_is_away();
}

#[test]
fn the_first_alive_mark_after_a_long_suspension_is_refused() {
    let node = Running::start(peers());
    node.run(24);
    node.clock.suspend(DAY * 11);
    assert!(node.note_alive().is_err());
    node.assert_is_away();
}

#[test]
fn a_process_stopped_for_too_long_counts_as_absent() {
    let node = Running::start(peers());
    node.run(24);
    node.clock.advance(AWAY_MAX_DEFAULT);
    node.assert_is_away();
}

#[test]
fn a_step_of_the_wall_clock_is_no_absence() {
    let node = Running::start(peers());
    node.run(24);
    let now = node.clock.now().wall;
    for wall in [now.saturating_add(DAY * 365), now] {
        node.clock.set_wall(wall);
        node.store.check_for_pause().expect("it was there");
    }
    node.run(24);
}

#[test]
fn a_suspension_within_the_grace_period_is_no_absence() {
    let node = Running::start(peers());
    node.run(24);
    node.clock.suspend(DAY * 8);
    node.store.check_for_pause().expect("hints and repair bring what it missed");
}

#[test]
fn a_suspension_adds_to_the_earlier_gap() {
    let node = Running::start(peers());
    let record = NodeRecord { revision: 10, sync_state: SyncState::Rebuilding, ..NodeRecord::default() };
    carry_out(&node.store, &StoreRequest::PersistRecord { record });
    node.run(4 * 24);
    node.clock.suspend(DAY * 6);
    node.assert_is_away();
}

#[test]
fn a_standalone_node_misses_no_deletes() {
    let node = Running::start(Membership::of(Vec::new()));
    node.clock.suspend(DAY * 1_000);
    node.store.check_for_pause().unwrap();
}

/// A machine that does not report the time since boot.
struct WithoutBootTime(Arc<ManualClock>);

impl Clock for WithoutBootTime {
    fn now(&self) -> Now {
        self.0.now()
    }
}

#[test]
fn a_step_indistinguishable_from_a_suspension_counts_as_one() {
    let (disk, clock) = (MemFs::new(), Arc::new(ManualClock::new(WallTime::EPOCH_2020)));
    let store = open(&disk, Arc::new(WithoutBootTime(Arc::clone(&clock))), peers()).unwrap();
    settle(&store);
    clock.set_wall(WallTime::EPOCH_2020.saturating_add(DAY));
    store.check_for_pause().expect("a day is no absence");
    clock.set_wall(WallTime::EPOCH_2020.saturating_add(DAY * 12));
    assert!(matches!(store.check_for_pause(), Err(StoreError::PausedTooLong { .. })));
}

fn remember(node: &Running, revision: u64, repair_pending: &[u8]) {
    let repair_pending = repair_pending.iter().map(|&peer| NodeIndex(peer)).collect();
    let record =
        NodeRecord { revision, sync_state: SyncState::Settled, repair_pending, ..NodeRecord::default() };
    carry_out(&node.store, &StoreRequest::PersistRecord { record });
}

#[test]
fn suspensions_add_up_until_the_node_has_caught_up() {
    let node = Running::start(peers());
    node.run(24);
    node.clock.suspend(DAY * 8);
    node.run(1);
    assert_eq!(node.store.absences(), 1);
    node.clock.suspend(DAY * 2);
    node.assert_is_away();
}

#[test]
fn a_suspension_beyond_hints_counts_until_its_repair_is_complete() {
    let node = Running::start(peers());
    node.run(24);
    node.clock.suspend(DAY * 4);
    // The record does not contain the pending repair yet, so its old state does not prove that the
    // repair is complete.
    node.run(1);
    remember(&node, 10, &[0, 2]);
    node.store.note_repair_recorded(1);
    node.run(1);
    node.clock.suspend(DAY);
    node.run(1);
    assert_eq!(node.store.absences(), 2);
    remember(&node, 11, &[]);
    node.store.note_repair_recorded(2);
    node.run(1);
    node.clock.suspend(DAY * 8);
    node.store.check_for_pause().expect("it has heard of all deletes before");
}

#[test]
fn a_suspension_covered_by_hints_needs_no_repair() {
    let node = Running::start(peers());
    for _ in 0..10 {
        node.run(24);
        node.clock.suspend(HOUR * 4);
    }
    node.run(1);
    assert_eq!(node.store.absences(), 0);
}
