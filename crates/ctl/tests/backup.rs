//! Backups of one node: each is complete or does not exist, and a table is stored once.

mod common;

use common::{BACKUPS, DATA, Kind, back_up, entries, env, open, write};
use ctl::{BackupFile, BackupNumber, CtlError, Repository, verify_repository};
use env::{FaultFs, FaultPlan, Fs, MemFs, OpenMode};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stdx::Rng;

/// A disk with the data directory of a stopped node, which has this number of tables.
fn disk_with_tables(tables: u32) -> MemFs {
    let disk = MemFs::new();
    add_tables(&disk, 0, tables);
    disk
}

fn add_tables(disk: &MemFs, from: u32, tables: u32) {
    let store = open(disk, DATA, 7, Kind::Alone);
    for table in from..from + tables {
        write(&store, u64::from(table + 1) << 32, &entries(table * 100, 100));
    }
    store.engine().close().expect("the disk is well");
}

fn repository(disk: &MemFs) -> Repository {
    Repository::open(&env(disk.clone()), Path::new(BACKUPS)).expect("a repository")
}

/// Asserts that every existing backup is complete. Returns their numbers.
#[track_caller]
fn assert_whole(disk: &MemFs) -> Vec<BackupNumber> {
    let env = env(disk.clone());
    if !disk.exists(&Path::new(BACKUPS).join("veche-backups")).unwrap() {
        return Vec::new();
    }
    let repository = Repository::open(&env, Path::new(BACKUPS)).expect("a repository");
    let report = verify_repository(&env, &repository, &mut ()).expect("it can be read");
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    report.backups.into_iter().map(|(manifest, _)| manifest.number).collect()
}

#[test]
fn a_second_backup_copies_only_new_files() {
    let disk = disk_with_tables(3);
    let first = back_up(disk.clone()).unwrap();
    assert_eq!(first.files_copied, first.manifest.files.len());
    assert_eq!(first.bytes_copied, first.manifest.bytes());
    add_tables(&disk, 3, 1);
    let second = back_up(disk.clone()).unwrap();
    let is_table = |path: &str| path.ends_with(".sst");
    let tables =
        |taken: &ctl::AddedBackup| taken.manifest.files.iter().filter(|file| is_table(&file.path)).count();
    assert_eq!(tables(&second), tables(&first) + 1);
    let known = |file: &BackupFile| is_table(&file.path) && first.manifest.files.contains(file);
    let new: Vec<_> = second.manifest.files.iter().filter(|file| !known(file)).collect();
    assert_eq!(second.files_copied, new.len());
    assert_eq!(second.bytes_copied, new.iter().map(|file| file.bytes).sum::<u64>());
    assert_eq!(assert_whole(&disk), [BackupNumber(1), BackupNumber(2)]);
}

#[test]
fn a_table_of_another_generation_with_the_same_name_and_length_is_copied() {
    let disk = MemFs::new();
    let in_life = |hlc: u64, value: &[u8]| {
        let store = open(&disk, DATA, 7, Kind::Alone);
        write(&store, hlc, &[(b"key".to_vec(), value.to_vec())].into());
        store.engine().close().unwrap();
        back_up(disk.clone()).unwrap()
    };
    let first = in_life(1 << 32, b"one");
    // The directory is gone, and a node with the same tag starts over, as a restored one does.
    common::remove(&disk, DATA);
    let second = in_life(2 << 32, b"two");
    let table = |taken: &ctl::AddedBackup| {
        taken.manifest.files.iter().find(|file| file.path.ends_with(".sst")).cloned().unwrap()
    };
    let (first, second) = (table(&first), table(&second));
    assert_eq!((&first.path, first.bytes), (&second.path, second.bytes), "else this tests nothing");
    assert_ne!(first.object, second.object);
    assert_whole(&disk);
}

/// A backup that is stopped at any file operation, by the end of the process or a power failure,
/// leaves only complete backups, and the next one succeeds.
#[test]
fn a_backup_that_is_interrupted_anywhere_leaves_only_whole_ones() {
    let disk = disk_with_tables(2);
    back_up(disk.clone()).unwrap();
    add_tables(&disk, 2, 2);
    let before = disk;
    let counting = FaultFs::new(Arc::new(before.kill()), FaultPlan::none());
    back_up(counting.clone()).unwrap();
    let operations = counting.operations();
    assert!(operations > 50, "{operations}");
    let mut finished = 0;
    for stop in 0..operations {
        let disk = before.kill();
        let faulty = FaultFs::new(Arc::new(disk.clone()), FaultPlan::stop_after(stop).tear_last_write());
        let error = back_up(faulty).expect_err("it was stopped");
        assert!(matches!(error, CtlError::Io { .. } | CtlError::Store(_)), "{error}");
        for after in [disk.kill(), disk.crash(&mut Rng::new(stop)), disk.crash(&mut Rng::new(!stop))] {
            let there = assert_whole(&after);
            assert!(there.starts_with(&[BackupNumber(1)]), "operation {stop}: the first is gone");
            finished += usize::from(there.len() > 1);
            back_up(after.clone()).unwrap_or_else(|error| panic!("operation {stop}: {error}"));
            assert_eq!(assert_whole(&after).len(), there.len() + 1);
        }
    }
    assert!(finished > 0, "the last operations come behind the manifest");
}

#[test]
fn a_first_backup_that_is_interrupted_anywhere_can_be_done_again() {
    let before = disk_with_tables(1);
    let counting = FaultFs::new(Arc::new(before.kill()), FaultPlan::none());
    back_up(counting.clone()).unwrap();
    for stop in 0..counting.operations() {
        let disk = before.kill();
        let faulty = FaultFs::new(Arc::new(disk.clone()), FaultPlan::stop_after(stop).tear_last_write());
        back_up(faulty).expect_err("it was stopped");
        for after in [disk.kill(), disk.crash(&mut Rng::new(stop))] {
            assert_whole(&after);
            back_up(after.clone()).unwrap_or_else(|error| panic!("operation {stop}: {error}"));
            assert_whole(&after);
        }
    }
}

#[test]
fn tables_that_an_interrupted_backup_copied_are_not_copied_again() {
    let disk = disk_with_tables(4);
    let whole = FaultFs::new(Arc::new(disk.kill()), FaultPlan::none());
    let files = back_up(whole.clone()).unwrap().files_copied;
    let late = FaultFs::new(Arc::new(disk.clone()), FaultPlan::stop_after(whole.operations() - 8));
    back_up(late).expect_err("it was stopped");
    let again = back_up(disk.clone()).unwrap();
    assert_eq!(again.files_copied, files - 4, "four tables are there already");
    let unneeded = repository(&disk).keep_newest(usize::MAX).unwrap();
    assert_eq!((unneeded.backups, unneeded.objects), (0, 0), "all that was left is needed now");
    assert_whole(&disk);
}

#[test]
fn a_full_disk_is_reported_and_harms_nothing() {
    let disk = disk_with_tables(2);
    back_up(disk.clone()).unwrap();
    add_tables(&disk, 2, 3);
    let used = u64::MAX - disk.available_bytes(Path::new(DATA)).unwrap();
    disk.set_capacity(used + 10_000);
    let error = back_up(disk.clone()).expect_err("there is no room");
    assert!(matches!(error, CtlError::NoRoom { .. }), "{error}");
    // Another process uses up the free space meanwhile.
    let full = env::Fault::Error(std::io::ErrorKind::StorageFull);
    let writes = env::OperationMatch::kind(env::OperationKind::Write).after(3);
    disk.set_capacity(u64::MAX);
    let error =
        back_up(FaultFs::new(Arc::new(disk.clone()), FaultPlan::fail(writes, full))).expect_err("it is full");
    assert!(matches!(error, CtlError::Full { .. }), "{error}");
    assert_eq!(assert_whole(&disk), [BackupNumber(1)]);
    back_up(disk.clone()).unwrap();
    assert_eq!(assert_whole(&disk), [BackupNumber(1), BackupNumber(2)]);
}

/// Path of the object of a table.
fn table_object(disk: &MemFs) -> PathBuf {
    let objects = Path::new(BACKUPS).join("objects");
    let name = disk.read_dir(&objects).unwrap().into_iter().find(|name| name.contains(".sst"));
    objects.join(name.expect("there is a table"))
}

fn cut(disk: &MemFs, path: &Path, len: u64) {
    disk.open(path, OpenMode::ReadWrite).and_then(|file| file.set_len(len)).unwrap();
}

#[test]
fn an_object_with_another_length_or_end_is_copied_again() {
    let harms: [fn(&MemFs, &Path); 3] = [
        |disk, object| cut(disk, object, 1_000),
        |disk, object| {
            let bytes = disk.read_file(object).unwrap();
            disk.write_file(object, &[&bytes[..], b"more"].concat()).unwrap();
        },
        |disk, object| {
            let bytes = disk.read_file(object).unwrap().len() as u64;
            disk.corrupt(object, bytes - 9, 3).unwrap();
        },
    ];
    for harm in harms {
        let disk = disk_with_tables(3);
        back_up(disk.clone()).unwrap();
        let second = back_up(disk.clone()).unwrap();
        assert_eq!(second.objects_replaced, 0);
        harm(&disk, &table_object(&disk));
        let third = back_up(disk.clone()).unwrap();
        assert_eq!((third.objects_replaced, third.files_copied), (1, second.files_copied + 1));
        assert_eq!(assert_whole(&disk), [BackupNumber(1), BackupNumber(2), BackupNumber(3)]);
    }
}

#[test]
fn a_backup_goes_on_after_one_with_a_damaged_manifest() {
    let disk = disk_with_tables(2);
    back_up(disk.clone()).unwrap();
    back_up(disk.clone()).unwrap();
    let manifest = Path::new(BACKUPS).join("backups/000002");
    disk.corrupt(&manifest, 40, 3).unwrap();
    let third = back_up(disk.clone()).unwrap();
    assert_eq!(third.manifest.number, BackupNumber(3));
    assert!(matches!(&third.unreadable[..], [CtlError::Damaged { path, .. }] if *path == manifest));
    assert_eq!(
        third.files_copied,
        back_up(disk.clone()).unwrap().files_copied,
        "tables are found all the same"
    );
    let objects = disk.read_dir(&Path::new(BACKUPS).join("objects")).unwrap();
    for keep in [3, 2, 1] {
        repository(&disk).keep_newest(keep).expect_err("a manifest is damaged");
        assert_eq!(disk.read_dir(&Path::new(BACKUPS).join("objects")).unwrap(), objects, "keep {keep}");
        assert_eq!(repository(&disk).backups().unwrap().len(), 4, "keep {keep}: no manifest is removed");
    }
    disk.remove_file(&manifest).unwrap();
    repository(&disk).keep_newest(2).expect("all manifests can be read");
    assert_eq!(assert_whole(&disk), [BackupNumber(3), BackupNumber(4)]);
    // The names of the objects then identify the node.
    for number in [3, 4] {
        disk.corrupt(Path::new(BACKUPS).join(format!("backups/00000{number}")), 40, 3).unwrap();
    }
    assert_eq!(back_up(disk.clone()).unwrap().unreadable.len(), 2);
    common::remove(&disk, DATA);
    open(&disk, DATA, 8, Kind::Alone).engine().close().unwrap();
    disk.corrupt(Path::new(BACKUPS).join("backups/000005"), 40, 3).unwrap();
    let error = back_up(disk).expect_err("another node");
    assert!(matches!(error, CtlError::OtherNode { .. }), "{error}");
}

#[test]
fn a_backup_of_a_table_that_was_damaged_before_is_not_called_whole() {
    let disk = disk_with_tables(2);
    back_up(disk.clone()).unwrap();
    add_tables(&disk, 2, 1);
    let tables = Path::new(DATA).join("shard-000/tables");
    let newest = disk.read_dir(&tables).unwrap().pop().unwrap();
    disk.corrupt(tables.join(newest), 200, 3).unwrap();
    back_up(disk.clone()).unwrap();
    let env = env(disk.clone());
    let report = verify_repository(&env, &repository(&disk), &mut ()).unwrap();
    assert_eq!(report.damage.len(), 1, "{:?}", report.damage);
    let wholes: Vec<_> =
        report.backups.iter().map(|(manifest, is_whole)| (manifest.number.0, *is_whole)).collect();
    assert_eq!(wholes, [(1, true), (2, false)]);
}

#[test]
fn old_backups_are_removed_with_the_objects_that_only_they_use() {
    let disk = disk_with_tables(2);
    back_up(disk.clone()).unwrap();
    for round in 0..3 {
        add_tables(&disk, 2 + round, 1);
        back_up(disk.clone()).unwrap();
    }
    let before = disk.kill();
    let objects = |disk: &MemFs| disk.read_dir(&Path::new(BACKUPS).join("objects")).unwrap().len();
    let count = objects(&disk);
    let removed = repository(&disk).keep_newest(2).unwrap();
    assert_eq!(removed.backups, 2);
    assert!(removed.objects > 0);
    assert_eq!(objects(&disk), count - removed.objects);
    assert_eq!(assert_whole(&disk), [BackupNumber(3), BackupNumber(4)]);
    assert_eq!(repository(&disk).keep_newest(2).unwrap(), ctl::RetentionReport::default());

    for stop in 0.. {
        let disk = before.kill();
        let faulty = FaultFs::new(Arc::new(disk.clone()), FaultPlan::stop_after(stop));
        let removing =
            Repository::open(&env(faulty), Path::new(BACKUPS)).and_then(|faulty| faulty.keep_newest(2));
        let is_done = removing.is_ok();
        for after in [disk.kill(), disk.crash(&mut Rng::new(stop)), disk.crash(&mut Rng::new(!stop))] {
            assert!(assert_whole(&after).ends_with(&[BackupNumber(3), BackupNumber(4)]), "operation {stop}");
            repository(&after).keep_newest(2).unwrap();
            assert_eq!(objects(&after), count - removed.objects, "operation {stop}");
        }
        if is_done {
            break;
        }
    }
}

#[test]
fn a_repository_is_of_one_node_and_one_process() {
    let disk = disk_with_tables(1);
    back_up(disk.clone()).unwrap();
    let held = repository(&disk);
    assert!(matches!(back_up(disk.clone()), Err(CtlError::Locked { .. })));
    drop(held);
    common::remove(&disk, DATA);
    open(&disk, DATA, 8, Kind::Alone).engine().close().unwrap();
    let error = back_up(disk.clone()).expect_err("another node");
    assert!(
        error.to_string().contains("backups of node 0000000000000007, and this is node 0000000000000008"),
        "{error}"
    );

    disk.write_file("/other/precious", b"x").unwrap();
    let error =
        Repository::open_or_create(&env(disk.clone()), Path::new("/other")).err().expect("not a repository");
    assert!(matches!(error, CtlError::RepositoryNotEmpty { .. }), "{error}");
    let error = repository(&disk).find(Some(BackupNumber(9))).expect_err("no such backup");
    assert_eq!(error.to_string(), "the backup repository /backups holds no backup 000009; it holds 000001");
}

#[test]
fn an_observer_can_cancel_a_backup() {
    struct Impatient(u32);
    impl ctl::ProgressObserver for Impatient {
        fn on_progress(&mut self, _: ctl::OperationProgress) {
            self.0 = self.0.saturating_sub(1);
        }
        fn is_cancelled(&self) -> bool {
            self.0 == 0
        }
    }
    let disk = disk_with_tables(2);
    let repository = Repository::open_or_create(&env(disk.clone()), Path::new(BACKUPS)).unwrap();
    let ended = repository.add_backup(Path::new(DATA), common::taken_at(), &mut Impatient(4));
    assert!(matches!(ended, Err(CtlError::Cancelled)), "{ended:?}");
    drop(repository);
    assert!(assert_whole(&disk).is_empty());
    back_up(disk).unwrap();
}
