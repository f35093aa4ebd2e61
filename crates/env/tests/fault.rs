//! Faults occur where the plan injects them, and leave the disk in the promised state.

use env::{Fault, FaultFs, FaultPlan, Fs, MemFs, OpenMode, OperationKind, OperationMatch};
use std::io::{self, ErrorKind, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use stdx::Rng;

fn path(text: &str) -> &Path {
    Path::new(text)
}

fn with(plan: FaultPlan) -> (MemFs, FaultFs) {
    let disk = MemFs::new();
    (disk.clone(), FaultFs::new(Arc::new(disk), plan))
}

/// Makes each of the 18 calls once.
fn use_everything(fs: &dyn Fs) -> io::Result<()> {
    fs.create_dir_all(path("/dir/empty"))?;
    let lock = fs.lock(path("/LOCK"))?;
    let file = fs.open(path("/dir/tmp"), OpenMode::CreateNew)?;
    file.write_at(b"0123456789", 0)?;
    file.set_len(12)?;
    file.start_writeback(0, 12)?;
    file.sync_data()?;
    file.read_at(&mut [0; 4], 0)?;
    file.len()?;
    file.prefetch(0, 12)?;
    fs.hard_link(path("/dir/tmp"), path("/dir/link"))?;
    fs.rename(path("/dir/tmp"), path("/dir/file"))?;
    fs.remove_file(path("/dir/link"))?;
    fs.sync_dir(path("/dir"))?;
    fs.read_dir(path("/dir"))?;
    fs.exists(path("/dir/file"))?;
    fs.available_bytes(path("/"))?;
    fs.remove_dir(path("/dir/empty"))?;
    drop(lock);
    Ok(())
}

fn image(disk: &MemFs) -> Vec<(PathBuf, Vec<u8>)> {
    disk.file_names().into_iter().map(|path| (path.clone(), disk.read_file(path).unwrap())).collect()
}

#[test]
fn every_call_is_numbered_and_can_be_the_last() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let (_, fs) = with(FaultPlan::on_operation(move |operation| {
        log.lock().unwrap().push((operation.number, operation.kind));
        None
    }));
    use_everything(&fs).unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(fs.operations(), 18);
    assert!(seen.iter().map(|(number, _)| *number).eq(0..18));
    for (stop, (_, kind)) in (0..18).zip(seen.iter()) {
        let (disk, fs) = with(FaultPlan::stop_after(stop));
        let error = use_everything(&fs).unwrap_err();
        assert!(FaultFs::is_stop(&error), "{kind:?}: {error}");
        assert_eq!(fs.operations(), stop + 1, "nothing after {kind:?}");
        let before = image(&disk);
        assert!(fs.open(path("/new"), OpenMode::CreateNew).is_err_and(|error| FaultFs::is_stop(&error)));
        assert_eq!(image(&disk), before);
    }
    let (_, fs) = with(FaultPlan::stop_after(18));
    use_everything(&fs).unwrap();
}

#[test]
fn a_stopped_call_has_no_effect() {
    let (disk, fs) = with(FaultPlan::none());
    disk.write_file("/file", b"old").unwrap();
    let file = fs.open(path("/file"), OpenMode::ReadWrite).unwrap();
    fs.set_plan(FaultPlan::stop_after(0));
    assert!(file.write_at(b"new", 0).is_err());
    assert!(file.write_vectored_at(&[IoSlice::new(b"new")], 0).is_err());
    assert!(file.set_len(1).is_err());
    assert!(file.sync_data().is_err());
    assert!(file.read_at(&mut [0; 3], 0).is_err());
    assert!(file.read_at_nowait(&mut [0; 3], 0).is_err());
    assert!(fs.rename(path("/file"), path("/else")).is_err());
    assert!(fs.remove_file(path("/file")).is_err());
    assert!(fs.open(path("/file"), OpenMode::CreateOrTruncate).is_err());
    assert_eq!(image(&disk), [(PathBuf::from("/file"), b"old".to_vec())]);
    fs.clear();
    file.write_at(b"new", 0).unwrap();
    assert_eq!(disk.read_file("/file").unwrap(), b"new");
}

#[test]
fn the_last_write_may_be_half_done() {
    for vectored in [false, true] {
        let (disk, fs) = with(FaultPlan::stop_after(2).tear_last_write());
        let file = fs.open(path("/file"), OpenMode::CreateNew).unwrap();
        file.write_at(b"..", 0).unwrap();
        let parts = [IoSlice::new(b"ab"), IoSlice::new(b"cdef")];
        let torn = if vectored { file.write_vectored_at(&parts, 2) } else { file.write_at(b"abcdef", 2) };
        assert!(FaultFs::is_stop(&torn.unwrap_err()));
        assert!(FaultFs::is_stop(&file.write_at(b"xxxxxxxxx", 0).unwrap_err()));
        assert_eq!(disk.read_file("/file").unwrap(), b"..abc");
    }
}

#[test]
fn only_the_call_at_the_stop_is_torn() {
    let (disk, fs) = with(FaultPlan::stop_after(1).tear_last_write());
    let file = fs.open(path("/file"), OpenMode::CreateNew).unwrap();
    assert!(file.sync_data().is_err());
    assert!(file.write_at(b"abcdef", 0).is_err());
    assert_eq!(disk.read_file("/file").unwrap(), b"");
}

#[test]
fn an_error_strikes_once_or_for_good() {
    let writes = OperationMatch::kind(OperationKind::Write).path(".wal").after(1);
    let full = Fault::Error(ErrorKind::StorageFull);
    for (matching, outcomes) in
        [(writes.clone(), [true, false, true, true]), (writes.sticky(), [true, false, false, false])]
    {
        let (_, fs) = with(FaultPlan::fail(matching, full.clone()));
        let other = fs.open(path("/1.table"), OpenMode::CreateNew).unwrap();
        let wal = fs.open(path("/1.wal"), OpenMode::CreateNew).unwrap();
        for went_well in outcomes {
            other.write_at(b"x", 0).unwrap();
            let result = wal.write_at(b"x", 0);
            assert_eq!(result.is_ok(), went_well);
        }
    }
}

#[test]
fn an_error_is_of_the_kind_asked_for() {
    let plan = FaultPlan::fail(OperationMatch::any(), Fault::Error(ErrorKind::StorageFull))
        .and(FaultPlan::fail(OperationMatch::any().after(1), Fault::DeviceError));
    let (_, fs) = with(plan);
    let next = || fs.exists(path("/")).map_err(|error| (error.kind(), error.raw_os_error()));
    assert_eq!(next(), Err((ErrorKind::StorageFull, None)));
    assert_eq!(next().unwrap_err().1, Some(5));
    assert_eq!(next(), Ok(true));
}

#[test]
fn a_rename_is_found_by_either_name() {
    let plan = FaultPlan::fail(OperationMatch::any().path("CURRENT"), Fault::DeviceError);
    let (disk, fs) = with(plan);
    disk.write_file("/tmp", b"").unwrap();
    assert!(fs.rename(path("/tmp"), path("/CURRENT")).is_err());
    fs.rename(path("/tmp"), path("/CURRENT")).unwrap();
}

#[test]
fn a_bit_flips_in_the_returned_bytes_and_not_on_the_disk() {
    let plan = FaultPlan::fail(OperationMatch::kind(OperationKind::Read).sticky(), Fault::FlipBit { bit: 9 });
    let (disk, fs) = with(plan);
    disk.write_file("/file", &[0; 3]).unwrap();
    let file = fs.open(path("/file"), OpenMode::Read).unwrap();
    let mut buf = [0; 3];
    file.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(buf, [0, 2, 0]);
    assert_eq!(file.read_at_nowait(&mut buf, 2).unwrap(), Some(1));
    assert_eq!(buf[0], 2, "counted around");
    assert_eq!(file.read_at(&mut buf, 3).unwrap(), 0);
    assert_eq!(disk.read_file("/file").unwrap(), [0; 3]);
}

#[test]
fn a_delay_lets_the_test_wait_and_then_goes_on() {
    let waited = Arc::new(AtomicU64::new(0));
    let total = Arc::clone(&waited);
    let wait = Arc::new(move |duration: Duration| {
        total.fetch_add(duration.as_millis() as u64, Ordering::Relaxed);
    });
    let slow = Fault::Delay { duration: Duration::from_millis(30), wait };
    let (disk, fs) = with(FaultPlan::fail(OperationMatch::kind(OperationKind::SyncData).sticky(), slow));
    let file = fs.open(path("/file"), OpenMode::CreateNew).unwrap();
    file.sync_data().unwrap();
    file.sync_data().unwrap();
    assert_eq!((waited.load(Ordering::Relaxed), disk.counters().counts().syncs), (60, 2));
}

#[test]
fn a_plan_may_be_replaced_from_within() {
    let (_, fs) = with(FaultPlan::none());
    let handle = fs.clone();
    fs.set_plan(FaultPlan::on_operation(move |_| {
        handle.clear();
        Some(Fault::DeviceError)
    }));
    assert!(fs.exists(path("/")).is_err());
    assert!(fs.exists(path("/")).unwrap());
}

fn lose(kind: OperationKind, seed: u64) -> FaultPlan {
    FaultPlan::fail(OperationMatch::kind(kind), Fault::LoseUnsynced { errno: libc::ENOSPC, seed })
}

/// Loses the bytes of a first sync, then succeeds with a second sync. Returns the file's content
/// after a power loss, and the content that a new process reads after an eviction.
fn after_a_lost_sync(seed: u64, again: impl Fn(&dyn env::File)) -> (Vec<u8>, Vec<u8>) {
    let (disk, fs) = with(FaultPlan::none());
    disk.write_file("/file", &[0; 8192]).unwrap();
    let file = fs.open(path("/file"), OpenMode::ReadWrite).unwrap();
    file.write_at(&[1; 8192], 0).unwrap();
    fs.set_plan(lose(OperationKind::SyncData, seed));
    assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(disk.read_file("/file").unwrap(), [1; 8192], "the page cache shows it");
    again(&*file);
    file.sync_data().expect("the error is told once");
    let crashed = disk.crash(&mut Rng::new(seed)).read_file("/file").unwrap();
    disk.evict();
    assert_eq!(disk.read_file("/file").unwrap(), crashed, "evicted, it shows what the device has");
    (crashed, disk.kill().read_file("/file").unwrap())
}

#[test]
fn bytes_of_a_failed_sync_are_lost_although_the_next_sync_succeeds() {
    let crashed: Vec<_> = (0..64).map(|seed| after_a_lost_sync(seed, |_| {}).0).collect();
    assert!(crashed.contains(&vec![0; 8192]), "all of it lost");
    assert!(crashed.contains(&vec![1; 8192]), "all of it on the device");
    assert!(crashed.iter().any(|bytes| bytes.contains(&0) && bytes.contains(&1)), "a part");
}

#[test]
fn bytes_of_a_failed_sync_are_durable_once_their_page_is_written_again() {
    for seed in 0..64 {
        let (crashed, _) = after_a_lost_sync(seed, |file| file.write_at(&[2], 5000).unwrap());
        assert_eq!((crashed[4096], crashed[5000], crashed[8191]), (1, 2, 1), "the page is dirty as a whole");
        let (crashed, killed) = after_a_lost_sync(seed, |file| file.write_at(&[1; 8192], 0).unwrap());
        assert_eq!((&crashed[..], &killed[..]), (&[1; 8192][..], &[1; 8192][..]));
    }
}

#[test]
fn a_length_is_not_lost_with_the_bytes() {
    for seed in 0..64 {
        let (crashed, _) = after_a_lost_sync(seed, |file| file.set_len(100).unwrap());
        assert_eq!(crashed.len(), 100);
    }
}

#[test]
fn the_next_sync_reports_a_failed_writeback_once() {
    let (disk, fs) = with(FaultPlan::none());
    disk.write_file("/file", &[0; 3]).unwrap();
    let file = fs.open(path("/file"), OpenMode::ReadWrite).unwrap();
    file.write_at(&[1; 3], 0).unwrap();
    // This seed loses all unsynced bytes.
    let seed = (0..).find(|seed| after_a_lost_sync(*seed, |_| {}).0 == [0; 8192]).unwrap();
    fs.set_plan(lose(OperationKind::StartWriteback, seed));
    file.start_writeback(0, 3).unwrap();
    assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    file.sync_data().unwrap();
    disk.evict();
    assert_eq!(disk.read_file("/file").unwrap(), [0; 3]);
}

#[test]
fn a_short_write_leaves_its_beginning() {
    let short = Fault::ShortWrite { bytes: 2, errno: libc::ENOSPC };
    let (disk, fs) = with(FaultPlan::fail(OperationMatch::kind(OperationKind::Write).sticky(), short));
    let file = fs.open(path("/file"), OpenMode::CreateNew).unwrap();
    assert_eq!(file.write_at(b"abcd", 0).unwrap_err().kind(), ErrorKind::StorageFull);
    let parts = [IoSlice::new(b"X"), IoSlice::new(b"YZ")];
    assert_eq!(file.write_vectored_at(&parts, 1).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(disk.read_file("/file").unwrap(), b"aXY");
}

#[test]
fn a_call_can_fail_after_it_took_effect() {
    let (disk, fs) = with(FaultPlan::none());
    disk.write_file("/file", b"abc").unwrap();
    let plan = |kind| FaultPlan::fail(OperationMatch::kind(kind), Fault::ErrnoAfterEffect(libc::EIO));
    fs.set_plan(plan(OperationKind::Rename));
    let renamed = fs.rename(path("/file"), path("/other"));
    assert_eq!(renamed.unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(disk.read_file("/other").unwrap(), b"abc");
    fs.set_plan(plan(OperationKind::Open));
    assert!(fs.open(path("/new"), OpenMode::CreateNew).is_err());
    assert_eq!(disk.read_file("/new").unwrap(), b"");
}

#[test]
fn an_error_has_the_number_that_was_asked_for() {
    for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EIO, libc::ENOSPC, libc::EDQUOT] {
        let (disk, fs) =
            with(FaultPlan::fail(OperationMatch::kind(OperationKind::Open), Fault::Errno(errno)));
        let opened = fs.open(path("/file"), OpenMode::CreateNew);
        assert_eq!(opened.map(drop).unwrap_err().raw_os_error(), Some(errno));
        assert!(disk.file_names().is_empty());
    }
}
