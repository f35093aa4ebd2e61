//! A full disk: the write is refused and never replayed, and the log continues.

use crate::support::{
    OPTIONS, append, new_disk, open, open_mem, record, segment_path, settle_spares, tolerate_full,
};
use engine::internals::wal::{SegmentId, Wal};
use engine::{Error, ErrorKind};
use env::{Fault, FaultFs, FaultPlan, Fs, MemFs, OperationKind, OperationMatch};
use std::io;
use std::sync::Arc;
use stdx::Rng;

const FULL: Fault = Fault::Error(io::ErrorKind::StorageFull);

fn used_bytes(disk: &MemFs) -> u64 {
    disk.file_names().iter().map(|path| disk.read_file(path).unwrap().len() as u64).sum()
}

#[test]
fn a_full_disk_refuses_writes_and_admits_them_again_once_there_is_space() {
    let disk = new_disk();
    let mut log = open_mem(&disk);
    append(&mut log.wal, 1, 10).unwrap();
    disk.set_capacity(used_bytes(&disk) + 200);
    let error = append(&mut log.wal, 2, 500).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    append(&mut log.wal, 3, 10).expect("a small group has room");
    disk.set_capacity(u64::MAX);
    append(&mut log.wal, 4, 500).unwrap();
    assert_eq!(open_mem(&disk.kill()).numbers(), [1, 3, 4]);
}

#[test]
fn a_full_disk_that_keeps_the_next_segment_from_being_made_can_be_tried_again() {
    let disk = new_disk();
    let mut log = open_mem(&disk);
    let mut expected = Vec::new();
    for number in 0..12 {
        append(&mut log.wal, number, 100).unwrap();
        expected.push(number);
    }
    disk.set_capacity(used_bytes(&disk));
    for number in 20..30 {
        assert_eq!(append(&mut log.wal, number, 3_000).unwrap_err().kind(), ErrorKind::Full);
    }
    assert_eq!(open_mem(&disk.kill()).numbers(), expected, "and a full disk can be read");
    disk.set_capacity(u64::MAX);
    append(&mut log.wal, 40, 3_000).unwrap();
    expected.push(40);
    assert_eq!(open_mem(&disk.kill()).numbers(), expected);
}

#[test]
fn the_log_opens_on_a_full_disk_and_takes_writes_once_there_is_space() {
    let disk = new_disk();
    append(&mut open_mem(&disk).wal, 1, 10).unwrap();
    disk.set_capacity(used_bytes(&disk));
    let mut log = open_mem(&disk);
    assert_eq!(log.numbers(), [1]);
    assert_eq!(append(&mut log.wal, 2, 10).unwrap_err().kind(), ErrorKind::Full);
    log.wal.idle().unwrap();
    let newest = log.wal.segment();
    disk.set_capacity(u64::MAX);
    assert!(append(&mut log.wal, 3, 10).unwrap() >= newest);
    assert_eq!(open_mem(&disk.kill()).numbers(), [1, 3]);
}

#[test]
fn released_segments_free_their_space_while_the_disk_is_full() {
    let disk = new_disk();
    let mut log = open_mem(&disk);
    for number in 0..40 {
        append(&mut log.wal, number, 1_000).unwrap();
    }
    let full_bytes = used_bytes(&disk);
    disk.set_capacity(full_bytes);
    log.wal.release(log.wal.segment());
    while log.wal.spares().step_releasing().unwrap() {}
    assert!(used_bytes(&disk) < full_bytes / 2, "{} of {full_bytes} bytes are left", used_bytes(&disk));
}

#[test]
fn a_spare_that_is_not_used_is_returned() {
    let disk = new_disk();
    let log = open_mem(&disk);
    disk.set_capacity(used_bytes(&disk) + 100);
    assert_eq!(log.wal.spares().step(1).unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(disk.file_names(), [segment_path(SegmentId(0))]);
    disk.set_capacity(u64::MAX);
    settle_spares(&log.wal);
    assert_eq!(log.wal.spares().ready(), 1);
}

/// Appends, closes, rolls and prepares spares; continues on a full disk.
fn life(wal: &mut Wal, acknowledged: &mut Vec<u64>, rng: &mut Rng) -> Result<(), Error> {
    let first = acknowledged.last().map_or(0, |last| last + 1);
    for number in first..first + 30 {
        let bytes = rng.below(600) as usize;
        tolerate_full(wal.append(&[&record(number, bytes)]).map(|_| acknowledged.push(number)))?;
        if rng.chance(0.2) {
            tolerate_full(wal.idle())?;
        }
        tolerate_full(wal.spares().step(1).map(drop))?;
    }
    Ok(())
}

/// Each operation finds the disk full once. No refused record is replayed, and no other is lost.
#[test]
fn a_full_disk_at_every_operation_loses_nothing_and_brings_nothing_back() {
    for seed in 0..8 {
        for at in 0.. {
            let mut rng = Rng::new(seed);
            let disk = new_disk();
            let fs = FaultFs::new(Arc::new(disk.clone()), FaultPlan::none());
            let mut log = open(fs.clone(), &OPTIONS, SegmentId(0)).unwrap();
            fs.set_plan(FaultPlan::fail(OperationMatch::any().after(at), FULL));
            let begin = fs.operations();
            let mut acknowledged = Vec::new();
            let result = life(&mut log.wal, &mut acknowledged, &mut rng);
            let ended = fs.operations() - begin <= at;
            for disk in [disk.kill(), disk.crash(&mut rng)] {
                let replayed = open_mem(&disk).numbers();
                assert_eq!(replayed, acknowledged, "seed {seed}, full at operation {at}");
            }
            result.unwrap();
            if ended {
                break;
            }
        }
    }
}

/// The disk is full, then the process stops at any later operation.
#[test]
fn a_crash_after_a_refused_group_does_not_bring_it_back() {
    for seed in 0..40 {
        for stop in 0..12 {
            let mut rng = Rng::new(seed);
            let disk = new_disk();
            let fs = FaultFs::new(Arc::new(disk.clone()), FaultPlan::none());
            let mut log = open(fs.clone(), &OPTIONS, SegmentId(0)).unwrap();
            append(&mut log.wal, 1, 10).unwrap();
            fs.set_plan(FaultPlan::fail(OperationMatch::kind(OperationKind::SyncData), FULL));
            let error = append(&mut log.wal, 2, rng.below(1_500) as usize).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Full);
            fs.set_plan(FaultPlan::stop_after(fs.operations() + stop).tear_last_write());
            let mut expected = vec![1];
            for number in 3..6 {
                if append(&mut log.wal, number, rng.below(1_500) as usize).is_ok() {
                    expected.push(number);
                }
            }
            let torn = expected.last().map_or(3, |last| (last + 1).max(3));
            for disk in [disk.kill(), disk.crash(&mut rng)] {
                let mut replayed = open_mem(&disk).numbers();
                replayed.retain(|number| *number != torn);
                assert_eq!(replayed, expected, "seed {seed}, stop {stop}");
            }
        }
    }
}

/// If a refused group cannot be removed, its fate is unknown: the error is not [`Error::Full`].
#[test]
fn a_group_that_can_neither_be_stored_nor_removed_ends_the_log() {
    let disk = new_disk();
    let fs = FaultFs::new(Arc::new(disk.clone()), FaultPlan::none());
    let mut log = open(fs.clone(), &OPTIONS, SegmentId(0)).unwrap();
    fs.set_plan(FaultPlan::fail(OperationMatch::kind(OperationKind::SyncData).sticky(), FULL));
    assert_eq!(append(&mut log.wal, 1, 10).unwrap_err().kind(), ErrorKind::Internal);
    fs.clear();
    assert!(matches!(append(&mut log.wal, 2, 10), Err(Error::Poisoned { .. })));
}

#[test]
fn after_a_failed_write_or_sync_nothing_is_written_any_more() {
    for kind in [OperationKind::Write, OperationKind::SyncData] {
        let disk = new_disk();
        let fs = FaultFs::new(Arc::new(disk.clone()), FaultPlan::none());
        let mut log = open(fs.clone(), &OPTIONS, SegmentId(0)).unwrap();
        append(&mut log.wal, 1, 10).unwrap();
        fs.set_plan(FaultPlan::fail(OperationMatch::kind(kind), Fault::DeviceError));
        assert_eq!(append(&mut log.wal, 2, 10).unwrap_err().kind(), ErrorKind::Internal);
        let writes = disk.counters().counts().writes;
        assert!(matches!(append(&mut log.wal, 3, 10), Err(Error::Poisoned { .. })));
        assert!(matches!(log.wal.idle(), Err(Error::Poisoned { .. })));
        assert_eq!(disk.counters().counts().writes, writes);
        let replayed = open_mem(&disk.kill()).numbers();
        assert!(replayed == [1] || replayed == [1, 2]);
    }
}
