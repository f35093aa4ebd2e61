//! Failed syncs that drop the data they should have made durable, as the kernel's may; and every
//! other error.
//!
//! The next sync of the same file succeeds, and the dropped bytes are read until their pages are
//! evicted. So a log that only syncs again acknowledges records that are not on disk.

use crate::support::{OPTIONS, append, new_disk, open, open_mem, record};
use engine::internals::wal::{SegmentId, Wal, WalOptions};
use engine::{Durability, Error, ErrorKind};
use env::{Fault, FaultFs, FaultPlan, MemFs, OperationKind, OperationMatch};
use std::sync::Arc;
use stdx::Rng;

/// With these seeds a failed sync drops everything, or some part.
const SEEDS: [u64; 3] = [1, 2, 3];

fn lose(errno: i32, seed: u64) -> Fault {
    Fault::LoseUnsynced { errno, seed }
}

fn next_sync(fault: Fault) -> FaultPlan {
    FaultPlan::fail(OperationMatch::kind(OperationKind::SyncData), fault)
}

/// The disks that a stop at this moment may leave.
fn ends(disk: &MemFs, seed: u64) -> [MemFs; 3] {
    let evicted = disk.kill();
    evicted.evict();
    [disk.kill(), evicted, disk.crash(&mut Rng::new(seed))]
}

fn options(durability: Durability) -> WalOptions {
    WalOptions { durability, segment_bytes: 64 << 10, ..OPTIONS }
}

/// The closing record is dropped, and the next group is acknowledged: if they share no page, the
/// log would have a hole.
#[test]
fn a_lost_closing_record_leaves_no_hole_before_the_next_acknowledged_group() {
    for bytes in 0..2_100 {
        for seed in SEEDS {
            let disk = new_disk();
            let fs = FaultFs::new(Arc::new(disk.clone()), FaultPlan::none());
            let mut log = open(fs.clone(), &options(Durability::Sync), SegmentId(0)).unwrap();
            append(&mut log.wal, 1, bytes).unwrap();
            fs.set_plan(next_sync(lose(libc::ENOSPC, seed)));
            assert_eq!(log.wal.idle().unwrap_err().kind(), ErrorKind::Full, "{bytes} bytes");
            for number in 2..4 {
                append(&mut log.wal, number, bytes).unwrap();
                for disk in ends(&disk, seed) {
                    let expected: Vec<_> = (1..=number).collect();
                    assert_eq!(open_mem(&disk).numbers(), expected, "{bytes} bytes, seed {seed}");
                }
            }
        }
    }
}

/// Groups that are acknowledged without a sync are dropped by the sync at the end of the segment or
/// before an idle period.
#[test]
fn groups_that_a_failed_sync_dropped_are_written_again_before_they_count_as_durable() {
    for bytes in (0..2_100).step_by(7) {
        for seed in SEEDS {
            for seals in [false, true] {
                let disk = new_disk();
                let fs = FaultFs::new(Arc::new(disk.clone()), FaultPlan::none());
                let mut log = open(fs.clone(), &options(Durability::Os), SegmentId(0)).unwrap();
                for number in 1..4 {
                    append(&mut log.wal, number, bytes).unwrap();
                }
                fs.set_plan(next_sync(lose(libc::ENOSPC, seed)));
                let mut expected = vec![1, 2, 3];
                if seals {
                    append(&mut log.wal, 10, 40_000).unwrap();
                    expected.push(10);
                }
                assert_eq!(log.wal.idle().unwrap_err().kind(), ErrorKind::Full);
                if seals {
                    append(&mut log.wal, 11, 10).unwrap();
                    expected.push(11);
                }
                log.wal.idle().expect("the pages are still there to be written again");
                for disk in ends(&disk, seed) {
                    assert_eq!(open_mem(&disk).numbers(), expected, "{bytes} bytes, seed {seed}");
                }
            }
        }
    }
}

/// Once the pages are evicted, no copy is left to write again: the log fails instead of continuing
/// behind a hole.
#[test]
fn groups_that_were_dropped_and_evicted_end_the_log() {
    let disk = new_disk();
    let fs = FaultFs::new(Arc::new(disk.clone()), FaultPlan::none());
    let mut log = open(fs.clone(), &options(Durability::Os), SegmentId(0)).unwrap();
    append(&mut log.wal, 1, 5_000).unwrap();
    let seed = (0..).find(|seed| Rng::new(*seed).below(4) == 0).unwrap();
    fs.set_plan(next_sync(lose(libc::ENOSPC, seed)));
    assert_eq!(log.wal.idle().unwrap_err().kind(), ErrorKind::Full);
    disk.evict();
    let error = log.wal.idle().unwrap_err();
    assert!(error.to_string().contains("is corrupt at byte 512"), "{error}");
    assert!(matches!(append(&mut log.wal, 2, 10), Err(Error::Poisoned { .. })));
}

const ERRNOS: [i32; 6] = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EIO, libc::ENOSPC, libc::EDQUOT];

/// The ways in which a call of this number can fail.
fn faults(seed: u64) -> impl Iterator<Item = Fault> {
    ERRNOS.into_iter().flat_map(move |errno| {
        let short = Fault::ShortWrite { bytes: Rng::new(seed).below(300) as usize, errno };
        [Fault::Errno(errno), Fault::ErrnoAfterEffect(errno), short, lose(errno, seed)]
    })
}

/// Tolerates a refusal, which is a valid result.
fn tolerate(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(error) if matches!(error.kind(), ErrorKind::Full | ErrorKind::Retry) => Ok(()),
        result => result,
    }
}

/// The promises of a life of the log.
#[derive(Default)]
struct Life {
    acknowledged: Vec<u64>,
    /// Neither acknowledged nor refused.
    in_doubt: Option<u64>,
}

impl Life {
    fn live(&mut self, wal: &mut Wal, rng: &mut Rng) -> Result<(), Error> {
        for number in 0..16 {
            self.in_doubt = Some(number);
            let bytes = if rng.chance(0.1) { 3_500 } else { rng.below(600) } as usize;
            match wal.append(&[&record(number, bytes)]) {
                Ok(_) => self.acknowledged.push(number),
                refused => tolerate(refused.map(drop))?,
            }
            self.in_doubt = None;
            if rng.chance(0.3) {
                tolerate(wal.idle())?;
            }
            if rng.chance(0.3) {
                wal.release(SegmentId(0));
                let _by_upkeep = wal.spares().step(1);
            }
        }
        Ok(())
    }
}

/// No acknowledged record is lost, and no refused one reappears, whichever call fails in whichever
/// way.
#[test]
fn no_error_of_any_operation_loses_an_acknowledged_write() {
    for seed in 0..3 {
        for at in 0.. {
            let mut ended = true;
            for fault in faults(seed << 32 | at) {
                let how = format!("seed {seed}, {fault:?} at operation {at}");
                let disk = new_disk();
                let fs = FaultFs::new(Arc::new(disk.clone()), FaultPlan::none());
                let mut log = open(fs.clone(), &OPTIONS, SegmentId(0)).unwrap();
                let begin = fs.operations();
                fs.set_plan(FaultPlan::fail(OperationMatch::any().after(at), fault));
                let mut life = Life::default();
                let lived = life.live(&mut log.wal, &mut Rng::new(seed));
                ended &= fs.operations() - begin <= at;
                if let Err(error) = &lived {
                    assert_eq!(error.kind(), ErrorKind::Internal, "{how}: {error}");
                }
                for disk in ends(&disk, at) {
                    let mut expected = life.acknowledged.clone();
                    let replayed = open_mem(&disk).numbers();
                    if lived.is_err() && replayed.last() == life.in_doubt.as_ref() {
                        expected.extend(life.in_doubt);
                    }
                    assert_eq!(replayed, expected, "{how}");
                }
            }
            if ended {
                break;
            }
        }
    }
}
