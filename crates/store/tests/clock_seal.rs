//! After a clean stop the version clock begins where it ended, and after any other end past all
//! versions that it may have issued.

mod common;

use cluster::{StoreRequest, StoreResponse};
use common::{DISK_BYTES, carry_out, fill, open};
use env::{FaultFs, FaultPlan, MemFs};
use std::sync::Arc;
use std::time::Duration;
use stdx::{Hlc, Rng, WallTime};
use store::Store;

fn at(second: f64) -> Hlc {
    Hlc::at(WallTime::EPOCH_2020.saturating_add(Duration::from_secs_f64(second)))
}

fn raise(store: &Store, bound: Hlc) {
    assert_eq!(
        carry_out(store, &StoreRequest::RaiseClockBound { bound }),
        StoreResponse::ClockBoundRaised { bound }
    );
}

/// A disk on which a process reserved versions up to 50 s, issued some up to 49.3 s, and stopped.
fn stopped() -> MemFs {
    let disk = MemFs::new();
    let (store, _) = open(disk.clone(), 1).unwrap();
    raise(&store, at(50.0));
    store.seal_clock(at(49.3)).unwrap();
    store.engine().close().unwrap();
    disk
}

#[test]
fn a_start_after_a_clean_stop_begins_with_the_last_issued_version() {
    let (_, opened) = open(stopped(), 1).unwrap();
    assert_eq!(opened.clock_start, at(49.3));
}

#[test]
fn a_start_after_a_kill_begins_with_the_reserved_bound() {
    let disk = stopped();
    drop(open(disk.clone(), 1).unwrap());
    let (store, opened) = open(disk.clone(), 1).unwrap();
    assert_eq!(opened.clock_start, at(50.0), "the seal was broken by the first start");
    raise(&store, at(60.0));
    drop(store);
    assert_eq!(open(disk, 1).unwrap().1.clock_start, at(60.0));
}

/// The wall clock was set back meanwhile, so the second process reserves less than the first one.
#[test]
fn a_smaller_bound_of_a_later_process_is_not_sealed_by_the_previous_one() {
    let disk = stopped();
    let (store, _) = open(disk.clone(), 1).unwrap();
    raise(&store, at(49.5));
    drop(store);
    assert!(open(disk, 1).unwrap().1.clock_start >= at(49.5));
}

#[test]
fn an_unbreakable_seal_is_ignored() {
    let disk = MemFs::new();
    disk.set_capacity(DISK_BYTES);
    let (store, _) = open(disk.clone(), 1).unwrap();
    raise(&store, at(50.0));
    store.seal_clock(at(49.3)).unwrap();
    fill(&disk, &store);
    store.engine().close().unwrap();
    drop(store);
    let full = Arc::new(disk.clone());
    let plan = FaultPlan::on_operation(|call| {
        let writes = matches!(call.kind, env::OperationKind::Write | env::OperationKind::SetLen);
        writes.then_some(env::Fault::Error(std::io::ErrorKind::StorageFull))
    });
    if let Ok((_, opened)) = open(FaultFs::new(full, plan), 1) {
        assert_eq!(opened.clock_start, at(50.0));
    }
    let start = open(disk, 1).unwrap().1.clock_start;
    assert!(start == at(50.0) || start == at(49.3), "{start:?}");
}

/// Processes that reserve, issue and stop cleanly, stopped at each file operation.
#[test]
fn no_version_is_issued_twice_whenever_the_process_ends() {
    let mut ended_early = true;
    for operation in 0.. {
        if !ended_early {
            break;
        }
        let disk = MemFs::new();
        let faults = FaultFs::new(Arc::new(disk.clone()), FaultPlan::stop_after(operation));
        let mut issued = Hlc::ZERO;
        ended_early = (0..3).any(|life| live(&faults, life, &mut issued).is_none());
        for disk in [disk.kill(), disk.crash(&mut Rng::new(operation))] {
            let start = open(disk, 1).unwrap().1.clock_start;
            assert!(start >= issued, "stopped at operation {operation}: {start:?} is not past {issued:?}");
        }
    }
}

/// One process. Stores the last issued version in `issued`. `None` if it was stopped.
fn live(fs: &FaultFs, life: u64, issued: &mut Hlc) -> Option<()> {
    let (store, opened) = open(fs.clone(), 1).ok()?;
    assert!(opened.clock_start >= *issued);
    let bound = at((10 * life + 10) as f64);
    match carry_out(&store, &StoreRequest::RaiseClockBound { bound }) {
        StoreResponse::ClockBoundRaised { .. } => {}
        _ => return None,
    }
    *issued = at((10 * life + 10) as f64 - 0.7).max(*issued);
    store.seal_clock(*issued).ok()?;
    store.engine().close().ok()
}
