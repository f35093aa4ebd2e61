//! Restores: the complete backup, or nothing that could be started.

mod common;

use common::{
    BACKUPS, Contents, DATA, Kind, RESTORED, back_up_checkpoint, contents, entries, env, open, remove, write,
};
use ctl::{BackupNumber, CtlError, Repository, restore, verify_repository};
use env::{FaultFs, FaultPlan, Fs, MemFs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stdx::Rng;
use store::AfterRestore;

/// A disk with two backups of a node, and their contents. The node's own directory is removed.
fn disk_with_backups(kind: Kind) -> (MemFs, Contents, Contents) {
    let disk = MemFs::new();
    let store = open(&disk, DATA, 7, kind);
    let first = entries(0, 40);
    write(&store, 1 << 32, &first);
    back_up_checkpoint(&disk, &store);
    let mut second = entries(20, 40);
    second.iter_mut().for_each(|(_, value)| value.push(b'!'));
    write(&store, 2 << 32, &second);
    back_up_checkpoint(&disk, &store);
    store.engine().close().unwrap();
    drop(store);
    remove(&disk, DATA);
    let second = first.clone().into_iter().chain(second).collect();
    (disk, first, second)
}

fn restore_to(fs: impl Fs + 'static, number: Option<u32>, after: AfterRestore) -> Result<(), CtlError> {
    let env = env(fs);
    let repository = Repository::open(&env, Path::new(BACKUPS))?;
    let number = repository.find(number.map(BackupNumber))?;
    let manifest = repository.manifest(number)?;
    restore(&env, &repository, &manifest, Path::new(RESTORED), after, &mut ())
}

#[test]
fn each_backup_restores_its_own_contents() {
    for kind in [Kind::Alone, Kind::OfThree] {
        let (disk, first, second) = disk_with_backups(kind);
        for (number, expected) in [(Some(1), &first), (Some(2), &second), (None, &second)] {
            restore_to(disk.clone(), number, AfterRestore::Keep).unwrap();
            assert_eq!(&contents(&disk, RESTORED, kind), expected, "{kind:?}, {number:?}");
            let error = restore_to(disk.clone(), number, AfterRestore::Keep).expect_err("it is taken");
            assert!(matches!(error, CtlError::NotEmpty { .. }), "{error}");
            remove(&disk, RESTORED);
        }
    }
}

#[test]
fn a_flipped_bit_anywhere_is_refused_and_leaves_nothing() {
    let (before, first, second) = disk_with_backups(Kind::OfThree);
    let in_repository = |path: &PathBuf| path.starts_with(BACKUPS) && !path.ends_with("LOCK");
    let (mut rng, mut unneeded, mut refused) = (Rng::new(1), 0, 0);
    for path in before.file_names().iter().filter(|path| in_repository(path)) {
        let len = before.read_file(path).unwrap().len() as u64;
        for _ in 0..20 {
            let disk = before.kill();
            disk.corrupt(path, rng.below(len), rng.below(8) as u8).unwrap();
            let env = env(disk.clone());
            let found = Repository::open(&env, Path::new(BACKUPS))
                .and_then(|repository| verify_repository(&env, &repository, &mut ()))
                .map(|report| {
                    report.damage.iter().any(|error| error.to_string().contains(path.to_str().unwrap()))
                });
            assert!(
                found.is_err() || found.is_ok_and(|found| found),
                "{} was taken for whole",
                path.display()
            );
            for (number, expected) in [(1, &first), (2, &second)] {
                let restored = restore_to(disk.clone(), Some(number), AfterRestore::Rebuild);
                let there = disk.file_names().iter().filter(|path| path.starts_with("/srv")).count();
                match restored {
                    // Only the other backup uses this object.
                    Ok(()) => {
                        unneeded += 1;
                        assert_eq!(&contents(&disk, RESTORED, Kind::OfThree), expected, "{}", path.display());
                        remove(&disk, RESTORED);
                    }
                    Err(error) => {
                        assert!(matches!(error, CtlError::Damaged { .. }), "{error}");
                        assert!(
                            error.to_string().contains(path.to_str().unwrap()),
                            "{error}, not {}",
                            path.display()
                        );
                        assert_eq!(there, 0, "{:?}", disk.file_names());
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(unneeded > 0 && refused > unneeded, "{unneeded}, {refused}");
}

#[test]
fn a_missing_object_is_damage() {
    let (disk, ..) = disk_with_backups(Kind::Alone);
    let objects = Path::new(BACKUPS).join("objects");
    let name = disk.read_dir(&objects).unwrap().into_iter().find(|name| name.contains(".sst")).unwrap();
    disk.remove_file(&objects.join(&name)).unwrap();
    let error = restore_to(disk.clone(), None, AfterRestore::Keep).expect_err("it is not whole");
    assert!(matches!(error, CtlError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains(&name) && error.to_string().contains("it is missing"), "{error}");
    let env = env(disk);
    let repository = Repository::open(&env, Path::new(BACKUPS)).unwrap();
    let report = verify_repository(&env, &repository, &mut ()).unwrap();
    assert_eq!(report.damage.len(), 1, "{:?}", report.damage);
}

/// A restore that is stopped at any file operation leaves a directory that is refused or complete.
#[test]
fn a_restore_that_is_interrupted_anywhere_leaves_nothing_that_starts() {
    for kind in [Kind::Alone, Kind::OfThree] {
        let (before, _, expected) = disk_with_backups(kind);
        let counting = FaultFs::new(Arc::new(before.kill()), FaultPlan::none());
        restore_to(counting.clone(), None, AfterRestore::Keep).unwrap();
        let mut refused = 0;
        for stop in 0..counting.operations() {
            let disk = before.kill();
            let faulty = FaultFs::new(Arc::new(disk.clone()), FaultPlan::stop_after(stop).tear_last_write());
            restore_to(faulty, None, AfterRestore::Keep).expect_err("it was stopped");
            for after in [disk.kill(), disk.crash(&mut Rng::new(stop)), disk.crash(&mut Rng::new(!stop))] {
                let is_begun = after.exists(Path::new("/srv/restored/shard-000")).unwrap();
                let files = after.file_names();
                match common::try_open(&after, RESTORED, 0, kind) {
                    Err(_) => refused += 1,
                    Ok((store, opened)) if opened.is_new => {
                        assert!(!is_begun, "operation {stop}: taken for new: {files:?}");
                        drop(store);
                    }
                    Ok((store, _)) => {
                        drop(store);
                        assert_eq!(contents(&after, RESTORED, kind), expected, "operation {stop}");
                    }
                }
            }
        }
        assert!(refused > 50, "{refused}");
    }
}

#[test]
fn a_full_disk_is_reported_before_any_file_is_created() {
    let (disk, ..) = disk_with_backups(Kind::Alone);
    let used = u64::MAX - disk.available_bytes(Path::new(BACKUPS)).unwrap();
    disk.set_capacity(used + 100);
    let error = restore_to(disk.clone(), None, AfterRestore::Keep).expect_err("there is no room");
    assert!(matches!(error, CtlError::NoRoom { .. }), "{error}");
    assert!(!disk.exists(Path::new(RESTORED)).unwrap());
}

#[test]
fn an_empty_node_can_be_backed_up_and_restored() {
    let disk = MemFs::new();
    let store = open(&disk, DATA, 7, Kind::Alone);
    back_up_checkpoint(&disk, &store);
    let env = env(disk.clone());
    let repository = Repository::open(&env, Path::new(BACKUPS)).unwrap();
    let report = verify_repository(&env, &repository, &mut ()).unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    assert_eq!(report.newest.map(|newest| newest.tables), Some(0));
    drop(repository);
    restore_to(disk.clone(), None, AfterRestore::Keep).unwrap();
    assert!(contents(&disk, RESTORED, Kind::Alone).is_empty());
}
