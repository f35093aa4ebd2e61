//! Process crashes and power loss at every file operation of the log, in several successive lives.
//!
//! A *life* opens the log, checks the replayed records against the promises of earlier lives, and
//! continues to append, close, release and prepare spares until its file system stops. Between two
//! lives the process was killed or power was lost.

use crate::support::{OPTIONS, new_disk, open, record, settle_spares, tolerate_full};
use engine::internals::wal::{KnownLog, LogEnd, SegmentId, Wal, WalOptions};
use engine::{Durability, Error, ErrorKind};
use env::{Fault, FaultFs, FaultPlan, MemFs, OperationKind};
use std::io;
use std::sync::{Arc, Mutex};
use stdx::Rng;

/// Greatest number of steps in a life.
const STEPS: u64 = 60;

/// More operations than a life has: a life that still ends earlier does so for lack of space.
const STOPS_MAX: u64 = 400;

/// Whether the disk is ever full.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Room {
    Plenty,
    Scarce,
}

/// The promises of the log so far.
#[derive(Default)]
struct Promises {
    /// Acknowledged records in order with their segments, without released ones.
    acknowledged: Vec<(SegmentId, u64)>,
    /// Number of these that survive the loss of power.
    durable: usize,
    /// The group of an append that did not return: it may be present completely or not at all.
    in_flight: Vec<u64>,
    floor: SegmentId,
    /// The last durable end that the log reported.
    known_end: Option<LogEnd>,
    /// Whether power was lost since the log was last opened.
    power_lost: bool,
    next_number: u64,
}

impl Promises {
    /// Compares with the replayed records, which are promised from now on.
    fn check(&mut self, replayed: Vec<(SegmentId, u64)>) {
        let kept = if self.power_lost { self.durable } else { self.acknowledged.len() };
        let numbers: Vec<_> = replayed.iter().map(|(_, number)| *number).collect();
        let acknowledged: Vec<_> = self.acknowledged.iter().map(|(_, number)| *number).collect();
        let with_in_flight = [acknowledged.clone(), self.in_flight.clone()].concat();
        let is_prefix = numbers.len() >= kept && acknowledged.starts_with(&numbers);
        assert!(
            is_prefix || numbers == with_in_flight,
            "{numbers:?} of {acknowledged:?} + {:?}",
            self.in_flight
        );
        let common = replayed.len().min(self.acknowledged.len());
        assert_eq!(replayed[..common], self.acknowledged[..common]);
        self.durable = replayed.len();
        self.acknowledged = replayed;
        self.in_flight.clear();
        self.power_lost = false;
    }

    fn known(&self) -> KnownLog {
        KnownLog { floor: self.floor, known_end: self.known_end }
    }

    fn note_end(&mut self, wal: &Wal) {
        let end = wal.status().durable_end();
        assert!(end >= self.known_end, "the durable end went back: {end:?} after {:?}", self.known_end);
        self.known_end = end;
    }

    /// Records that power loss takes nothing of the segments before `id`.
    fn is_durable_below(&mut self, id: SegmentId) {
        let below = self.acknowledged.partition_point(|(segment, _)| *segment < id);
        self.durable = self.durable.max(below);
    }

    fn release(&mut self, floor: SegmentId) {
        self.floor = self.floor.max(floor);
        let before = self.acknowledged.len();
        self.acknowledged.retain(|(id, _)| *id >= self.floor);
        self.durable = self.durable.saturating_sub(before - self.acknowledged.len());
    }
}

/// Runs until `fs` stops or all steps are done. Returns whether they are.
fn live(fs: &FaultFs, options: &WalOptions, promises: &mut Promises, rng: &mut Rng) -> bool {
    let opened = match open(fs.clone(), options, promises.known()) {
        Ok(opened) => opened,
        Err(error) => return stopped(&error),
    };
    promises.check(opened.replayed);
    let mut wal = opened.wal;
    promises.note_end(&wal);
    for _ in 0..STEPS {
        let stepped = step(&mut wal, options, promises, rng);
        promises.note_end(&wal);
        if let Err(error) = stepped {
            return stopped(&error);
        }
    }
    true
}

fn step(wal: &mut Wal, options: &WalOptions, promises: &mut Promises, rng: &mut Rng) -> Result<(), Error> {
    match rng.below(100) {
        0..70 => append(wal, options, promises, rng),
        70..78 => {
            let result = wal.idle();
            if result.is_ok() {
                promises.durable = promises.acknowledged.len();
            }
            tolerate_full(result)
        }
        78..86 => {
            let back = rng.below(3);
            let floor = SegmentId(wal.segment().0.saturating_sub(back));
            promises.release(floor);
            wal.release(floor);
            Ok(())
        }
        86..93 => {
            let result = wal.deferred_sync().step();
            if result.is_ok() {
                promises.is_durable_below(wal.segment());
            }
            tolerate_full(result.map(drop))
        }
        _ => tolerate_full(wal.spares().step(1).map(drop)),
    }
}

fn append(wal: &mut Wal, options: &WalOptions, promises: &mut Promises, rng: &mut Rng) -> Result<(), Error> {
    let count = 1 + rng.below(3);
    let numbers: Vec<_> = (promises.next_number..).take(count as usize).collect();
    promises.next_number += count;
    let bytes = if rng.chance(0.03) { 3_000 } else { rng.below(400) };
    let records: Vec<_> = numbers.iter().map(|number| record(*number, bytes as usize)).collect();
    promises.in_flight.clone_from(&numbers);
    let id = match wal.append(&records.iter().collect::<Vec<_>>()) {
        Err(error) if error.kind() == ErrorKind::Full => {
            promises.in_flight.clear();
            return Ok(());
        }
        result => result?,
    };
    promises.in_flight.clear();
    promises.acknowledged.extend(numbers.into_iter().map(|number| (id, number)));
    match options.durability {
        Durability::Sync => promises.durable = promises.acknowledged.len(),
        // Only the last full segment may not be durable.
        Durability::Os => promises.is_durable_below(SegmentId(id.0.saturating_sub(1))),
    }
    Ok(())
}

/// Whether an injected fault caused the error: the stop, or a full disk that prevents undoing or
/// opening.
fn stopped(error: &Error) -> bool {
    match error {
        Error::Io { source, .. } => {
            assert!(FaultFs::is_stop(source) || source.kind() == io::ErrorKind::StorageFull, "{error}");
        }
        Error::Full { .. } => {}
        error => panic!("{error}"),
    }
    false
}

/// Fills the disk for some operations, occasionally for many in a row.
fn full_now_and_then(rng: &mut Rng) -> FaultPlan {
    let seed = rng.next_u64();
    FaultPlan::on_operation(move |operation| {
        let is_full = |number, chance| Rng::new(seed ^ number).chance(chance);
        let takes_room = !matches!(operation.kind, OperationKind::Read | OperationKind::ReadDir);
        let now = is_full(operation.number, 0.03) || is_full(!(operation.number / 16), 0.1);
        (takes_room && now).then_some(Fault::Error(io::ErrorKind::StorageFull))
    })
}

fn die(disk: &MemFs, promises: &mut Promises, rng: &mut Rng) -> MemFs {
    let is_killed = rng.chance(0.33);
    promises.power_lost |= !is_killed;
    if is_killed { disk.kill() } else { disk.crash(rng) }
}

/// The first life stops after `stop` operations, the next two at random ones; the last must end
/// well. Returns `false` when the first completed all its steps.
fn lives(options: &WalOptions, room: Room, stop: u64, seed: u64) -> bool {
    let mut rng = Rng::new(seed);
    let mut promises = Promises::default();
    let mut disk = new_disk();
    let mut stop = Some(stop);
    let mut ended_early = false;
    for life in 0..4 {
        let plan = stop.map_or_else(FaultPlan::none, |stop| match rng.chance(0.5) {
            true => FaultPlan::stop_after(stop).tear_last_write(),
            false => FaultPlan::stop_after(stop),
        });
        let plan = if room == Room::Scarce { plan.and(full_now_and_then(&mut rng)) } else { plan };
        let fs = FaultFs::new(Arc::new(disk.clone()), plan);
        let done = live(&fs, options, &mut promises, &mut rng);
        ended_early |= life == 0 && !done;
        stop = (life < 2).then(|| rng.below(150));
        disk = die(&disk, &mut promises, &mut rng);
    }
    let last = open(disk, options, promises.known()).expect("nothing stops the last life");
    promises.check(last.replayed);
    ended_early
}

fn lives_at_every_operation(options: &WalOptions, room: Room, seeds: u64) {
    for seed in 0..seeds {
        for stop in 0..STOPS_MAX {
            let seed = seed << 32 | stop;
            let result = std::panic::catch_unwind(|| lives(options, room, stop, seed));
            match result {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => panic!("replay with lives(&{options:?}, {room:?}, {stop}, {seed})"),
            }
        }
    }
}

#[test]
fn every_acknowledged_record_survives_a_stop_at_every_operation() {
    lives_at_every_operation(&OPTIONS, Room::Plenty, 12);
}

#[test]
fn without_syncs_power_loss_takes_the_end_only_and_a_kill_nothing() {
    lives_at_every_operation(&WalOptions { durability: Durability::Os, ..OPTIONS }, Room::Plenty, 6);
}

#[test]
fn a_disk_that_is_full_now_and_then_changes_nothing_of_that() {
    for durability in [Durability::Sync, Durability::Os] {
        lives_at_every_operation(&WalOptions { durability, ..OPTIONS }, Room::Scarce, 2);
    }
}

#[test]
fn without_spares_too() {
    lives_at_every_operation(&WalOptions { spares_max: 0, ..OPTIONS }, Room::Plenty, 3);
}

/// A killed process leaves bytes that only the kernel has; the records that the next one replays
/// are durable.
#[test]
fn replayed_records_survive_the_loss_of_power() {
    let options = WalOptions { durability: Durability::Os, segment_bytes: 1 << 16, ..OPTIONS };
    for seed in 0..50 {
        let disk = new_disk();
        let mut first = open(disk.clone(), &options, SegmentId(0)).unwrap();
        for number in 0..20 {
            first.wal.append(&[&record(number, 300)]).unwrap();
        }
        let killed = disk.kill();
        assert_eq!(open(killed.clone(), &options, SegmentId(0)).unwrap().replayed.len(), 20);
        let lost = killed.crash(&mut Rng::new(seed));
        assert_eq!(open(lost, &options, SegmentId(0)).unwrap().replayed.len(), 20, "seed {seed}");
    }
}

/// After a failed sync the kernel may mark pages clean that the device never received: a sync alone
/// would skip them.
#[test]
fn groups_that_no_header_marks_as_durable_are_written_again_before_the_sync() {
    let disk = new_disk();
    let mut first = open(disk.clone(), &OPTIONS, SegmentId(0)).unwrap();
    let groups: Vec<_> = [100, 300].map(|bytes| record(bytes, bytes as usize)).into();
    for group in &groups {
        first.wal.append(&[group]).unwrap();
    }
    let written = Arc::new(Mutex::new(Vec::new()));
    let log = written.clone();
    let plan = FaultPlan::on_operation(move |operation| {
        if operation.kind == OperationKind::Write && operation.path.ends_with("0000000000000000.wal") {
            log.lock().unwrap().push(operation.len);
        }
        None
    });
    open(FaultFs::new(Arc::new(disk), plan), &OPTIONS, SegmentId(0)).unwrap();
    assert_eq!(*written.lock().unwrap(), [48 + groups[1].bytes().len()]);
}

/// The worker that prepares spares and the log that takes them are different threads.
#[test]
fn spares_are_made_while_the_log_takes_them() {
    let disk = new_disk();
    let mut log = open(disk.clone(), &OPTIONS, SegmentId(0)).unwrap();
    let spares = log.wal.spares();
    let (more, work) = std::sync::mpsc::channel::<()>();
    let worker = std::thread::spawn(move || {
        while work.recv().is_ok() {
            while spares.step(1).expect("spares can be made") {}
        }
    });
    for number in 0..2_000 {
        log.wal.append(&[&record(number, 200)]).unwrap();
        log.wal.release(SegmentId(log.wal.segment().0.saturating_sub(2)));
        more.send(()).expect("the worker waits");
    }
    drop(more);
    worker.join().unwrap();
    settle_spares(&log.wal);
    let floor = SegmentId(log.wal.segment().0 - 2);
    let numbers = open(disk.kill(), &OPTIONS, floor).unwrap().numbers();
    assert_eq!(numbers, (2_000 - numbers.len() as u64..2_000).collect::<Vec<_>>());
    assert!(disk.file_names().len() <= 3 + OPTIONS.spares_max + 1, "{:?}", disk.file_names());
}
