//! The life cycle of segments: begun, filled, released, recycled.

use crate::support::{OPTIONS, append, dir, new_disk, open, open_mem, record, segment_path, settle_spares};
use engine::internals::wal::{SegmentId, Wal, WalOptions};
use engine::{Durability, ErrorKind};
use env::{Env, Fault, FaultFs, FaultPlan, Fs, MemFs, OpenMode, OperationKind, OperationMatch};
use std::sync::Arc;
use stdx::Rng;

fn files(disk: &MemFs, extension: &str) -> usize {
    disk.file_names().iter().filter(|path| path.extension().is_some_and(|it| it == extension)).count()
}

#[test]
fn appended_records_are_replayed_in_order_over_many_segments() {
    let disk = new_disk();
    let mut log = open_mem(&disk);
    let mut segments = Vec::new();
    for number in 0..100 {
        segments.push((append(&mut log.wal, number, 100).unwrap(), number));
    }
    assert!(log.wal.segment() > SegmentId(3), "it rolled");
    let again = open_mem(&disk.kill());
    assert_eq!(again.replayed, segments);
    assert_eq!((again.recovery.cells, again.recovery.cut_bytes), (300, 0));
}

#[test]
fn a_group_of_more_records_than_one_system_call_takes_is_one_group() {
    let directory = tempfile::tempdir().unwrap();
    let env = Env::os();
    let records: Vec<_> = (0..3_000).map(|number| record(number, 3)).collect();
    let mut replayed = 0;
    for _ in 0..2 {
        let count = &mut replayed;
        let (mut wal, recovery) =
            Wal::open(&env, directory.path(), &OPTIONS, SegmentId(0).into(), &mut |_, cells| {
                *count += cells.len();
                Ok(())
            })
            .unwrap();
        if recovery.records == 0 {
            wal.append(&records.iter().collect::<Vec<_>>()).unwrap();
        }
    }
    assert_eq!(replayed, 9_000);
}

#[test]
fn a_group_longer_than_a_segment_has_one_of_its_own() {
    let disk = new_disk();
    let mut log = open_mem(&disk);
    settle_spares(&log.wal);
    let small = append(&mut log.wal, 1, 10).unwrap();
    let long = append(&mut log.wal, 2, 50_000).unwrap();
    let after = append(&mut log.wal, 3, 10).unwrap();
    assert!(small < long && long < after);
    assert_eq!(open_mem(&disk.kill()).numbers(), [1, 2, 3]);

    log.wal.release(after);
    settle_spares(&log.wal);
    assert!(disk.read_file(segment_path(long)).is_err(), "too long to be a spare, so it was removed");
}

#[test]
fn a_group_without_records_writes_nothing() {
    let disk = new_disk();
    let mut log = open_mem(&disk);
    let before = disk.counters().counts();
    assert_eq!(log.wal.append(&[]).unwrap(), log.wal.segment());
    assert_eq!(disk.counters().counts(), before);
}

#[test]
fn starting_again_and_again_makes_no_files() {
    let disk = new_disk();
    append(&mut open_mem(&disk).wal, 1, 10).unwrap();
    open_mem(&disk);
    let names = disk.file_names();
    for _ in 0..5 {
        assert_eq!(open_mem(&disk).numbers(), [1]);
    }
    assert_eq!(disk.file_names(), names);
}

#[test]
fn released_segments_become_spares_up_to_the_bound_and_are_used_again() {
    let disk = new_disk();
    let mut log = open_mem(&disk);
    for number in 0..60 {
        append(&mut log.wal, number, 100).unwrap();
    }
    let floor = log.wal.segment();
    log.wal.release(floor);
    settle_spares(&log.wal);
    assert_eq!((files(&disk, "wal"), files(&disk, "spare")), (1, OPTIONS.spares_max));
    assert_eq!(log.wal.spares().ready(), OPTIONS.spares_max);

    while log.wal.segment() == floor {
        append(&mut log.wal, 1_000, 100).unwrap();
    }
    assert_eq!(log.wal.spares().ready(), OPTIONS.spares_max - 1);
    let again = open(disk.kill(), &OPTIONS, floor).unwrap();
    assert!(again.replayed.iter().all(|(id, _)| *id >= floor));
    assert!(again.numbers().ends_with(&[1_000]));
}

#[test]
fn a_spare_is_made_ahead_by_steps() {
    let disk = new_disk();
    let options = WalOptions { segment_bytes: 1 << 20, ..OPTIONS };
    let log = open(disk.clone(), &options, SegmentId(0)).unwrap();
    let mut steps = 1;
    while log.wal.spares().step(300_000).unwrap() {
        steps += 1;
    }
    assert_eq!((steps, log.wal.spares().ready()), (4, 1));
    let spare = disk.file_names().into_iter().find(|path| path.extension().unwrap() == "spare").unwrap();
    assert_eq!(disk.read_file(spare).unwrap(), vec![0; 1 << 20]);
}

#[test]
fn an_unfinished_spare_is_removed_at_the_next_start() {
    let disk = new_disk();
    let options = WalOptions { segment_bytes: 1 << 20, ..OPTIONS };
    let log = open(disk.clone(), &options, SegmentId(0)).unwrap();
    assert!(log.wal.spares().step(1).unwrap());
    assert_eq!(files(&disk, "tmp"), 1);
    open_mem(&disk.kill().crash(&mut Rng::new(1)));
    open_mem(&disk);
    assert_eq!(files(&disk, "tmp"), 0);
}

/// A crash in the middle of a rename, on a file system that renames in two steps.
#[test]
fn a_spare_that_is_a_second_name_of_a_live_segment_is_never_overwritten() {
    let disk = new_disk();
    let mut log = open_mem(&disk);
    let id = append(&mut log.wal, 1, 10).unwrap();
    disk.hard_link(&segment_path(id), &dir().join("0000000000000042.spare")).unwrap();
    let mut log = open_mem(&disk);
    for number in 2..100 {
        append(&mut log.wal, number, 100).unwrap();
    }
    assert_eq!(open_mem(&disk).numbers(), (1..100).collect::<Vec<_>>());
}

#[test]
fn a_released_name_of_a_live_segment_is_removed_and_not_recycled() {
    let disk = new_disk();
    let floor = SegmentId(5);
    let mut log = open(disk.clone(), &OPTIONS, floor).unwrap();
    append(&mut log.wal, 1, 1_200).unwrap();
    disk.hard_link(&segment_path(floor), &segment_path(SegmentId(1))).unwrap();
    let mut log = open(disk.clone(), &OPTIONS, floor).unwrap();
    settle_spares(&log.wal);
    for number in 2..100 {
        append(&mut log.wal, number, 100).unwrap();
    }
    let again = open(disk.kill(), &OPTIONS, floor).unwrap();
    assert_eq!(again.numbers(), (1..100).collect::<Vec<_>>());
}

#[test]
fn a_spare_whose_name_is_not_durable_is_not_used() {
    let disk = new_disk();
    let fs = FaultFs::new(Arc::new(disk), FaultPlan::none());
    let log = open(fs.clone(), &OPTIONS, SegmentId(0)).unwrap();
    fs.set_plan(FaultPlan::fail(OperationMatch::kind(OperationKind::SyncDir), Fault::DeviceError));
    assert!(log.wal.spares().step(1).is_err());
    assert_eq!(log.wal.spares().ready(), 0);
    settle_spares(&log.wal);
    assert_eq!(log.wal.spares().ready(), 1);
}

#[test]
fn ids_are_not_used_twice_when_no_segment_is_left() {
    let disk = new_disk();
    let log = open(disk.clone(), &OPTIONS, SegmentId(17)).unwrap();
    assert_eq!(log.wal.segment(), SegmentId(17));
    let log = open(disk, &OPTIONS, SegmentId(30)).unwrap();
    assert_eq!(log.wal.segment(), SegmentId(30));
}

#[test]
fn one_sync_a_group_and_none_without_durability() {
    for (durability, syncs) in [(Durability::Sync, 10), (Durability::Os, 0)] {
        let disk = new_disk();
        let options = WalOptions { durability, segment_bytes: 1 << 20, ..OPTIONS };
        let mut log = open(disk.clone(), &options, SegmentId(0)).unwrap();
        let before = disk.counters().counts();
        for number in 0..10 {
            append(&mut log.wal, number, 100).unwrap();
        }
        let after = disk.counters().counts();
        assert_eq!((after.syncs - before.syncs, after.writes - before.writes), (syncs, 10));
        assert_eq!(open(disk.kill(), &options, SegmentId(0)).unwrap().replayed.len(), 10);
    }
}

#[test]
fn an_idle_log_writes_one_closing_record() {
    let disk = new_disk();
    let mut log = open_mem(&disk);
    log.wal.idle().unwrap();
    append(&mut log.wal, 1, 10).unwrap();
    let before = disk.counters().counts();
    log.wal.idle().unwrap();
    log.wal.idle().unwrap();
    assert_eq!(disk.counters().counts().writes - before.writes, 1);
    append(&mut log.wal, 2, 10).unwrap();
    assert_eq!(open_mem(&disk.kill()).numbers(), [1, 2]);
}

/// A write to part of a page that is not in the page cache waits for a read of the device.
#[test]
fn a_prepared_segment_is_written_to_the_end_of_each_page() {
    let disk = new_disk();
    disk.create_dir_all(dir()).unwrap();
    let spare = disk.open(&dir().join("0000000000000000.spare"), OpenMode::CreateNew).unwrap();
    spare.write_at(&[0xff; 4 * 4096], 0).unwrap();
    let options = WalOptions { segment_bytes: 4 * 4096, ..OPTIONS };
    let mut log = open(disk.clone(), &options, SegmentId(0)).unwrap();
    let bytes_now = || {
        let mut bytes = vec![0; 4 * 4096];
        spare.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    assert_eq!(bytes_now()[512..4096], [0; 3584], "behind the header");
    assert_eq!(bytes_now()[4096..], [0xff; 3 * 4096], "nothing else");
    append(&mut log.wal, 1, 2_500).unwrap();
    append(&mut log.wal, 2, 1_200).unwrap();
    let end = log.wal.status().durable_end().unwrap().len as usize;
    assert!((2 * 4096..3 * 4096).contains(&end));
    assert_eq!(bytes_now()[end..3 * 4096], vec![0; 3 * 4096 - end], "behind the last group");
    assert_eq!(bytes_now()[3 * 4096..], [0xff; 4096], "nothing else");
    append(&mut log.wal, 3, 2_200).unwrap();
    assert_eq!(spare.len().unwrap(), 4 * 4096, "the file does not grow");
    assert_eq!(open(disk.kill(), &options, SegmentId(0)).unwrap().numbers(), [1, 2, 3]);
}

#[test]
fn without_durability_a_writer_waits_for_no_sync() {
    let disk = new_disk();
    let options = WalOptions { durability: Durability::Os, ..OPTIONS };
    let mut log = open(disk.clone(), &options, SegmentId(0)).unwrap();
    for number in 0..200 {
        settle_spares(&log.wal);
        let before = disk.counters().counts().syncs;
        append(&mut log.wal, number, 100).unwrap();
        assert_eq!(disk.counters().counts().syncs, before, "record {number}");
        log.wal.deferred_sync().step().unwrap();
    }
    assert!(log.wal.segment() > SegmentId(5));
    let numbers = open(disk.kill(), &options, SegmentId(0)).unwrap().numbers();
    assert_eq!(numbers, (0..200).collect::<Vec<_>>());
}

/// A log of two segments without syncs, the first of which is full, and its records.
fn two_unsynced_segments(disk: &MemFs, options: &WalOptions) -> (Wal, Vec<u64>) {
    let mut log = open(disk.clone(), options, SegmentId(0)).unwrap();
    let mut numbers = Vec::new();
    while log.wal.segment() == SegmentId(0) || numbers.len() % 3 != 0 {
        numbers.push(numbers.len() as u64);
        append(&mut log.wal, numbers.len() as u64 - 1, 300).unwrap();
    }
    (log.wal, numbers)
}

#[test]
fn a_segment_that_power_loss_kept_from_beginning_is_no_damage_until_it_is_durable() {
    for durability in [Durability::Os, Durability::Sync] {
        let options = WalOptions { durability: Durability::Os, ..OPTIONS };
        let disk = new_disk();
        let (wal, numbers) = two_unsynced_segments(&disk, &options);
        let overwrite_header = |disk: &MemFs| {
            let file = disk.open(&segment_path(SegmentId(1)), OpenMode::ReadWrite).unwrap();
            file.write_at(&[0; 512], 0).unwrap();
            file.sync_data().unwrap();
        };
        let lost = disk.kill();
        overwrite_header(&lost);
        let reopened = WalOptions { durability, ..OPTIONS };
        let found = open(lost.clone(), &reopened, SegmentId(0)).unwrap().numbers();
        assert!(numbers.starts_with(&found) && found.len() < numbers.len());
        // The replayed records are durable, and the end is no longer in doubt.
        let again = lost.crash(&mut Rng::new(1));
        assert_eq!(open(again, &reopened, SegmentId(0)).unwrap().numbers(), found);

        assert!(wal.deferred_sync().step().unwrap());
        let damaged = disk.kill();
        overwrite_header(&damaged);
        let error = open(damaged, &reopened, SegmentId(0)).err().expect("a durable segment is damaged");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}

#[test]
fn a_full_segment_is_released_when_it_is_durable() {
    let options = WalOptions { durability: Durability::Os, ..OPTIONS };
    let disk = new_disk();
    let (mut wal, numbers) = two_unsynced_segments(&disk, &options);
    wal.release(SegmentId(1));
    settle_spares(&wal);
    assert_eq!(open(disk.kill(), &options, SegmentId(0)).unwrap().numbers(), numbers, "its file is its own");
    wal.idle().unwrap();
    settle_spares(&wal);
    assert!(!disk.exists(&segment_path(SegmentId(0))).unwrap());
}
