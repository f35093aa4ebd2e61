//! Checkpoints are complete or not recognized, and making one does not disturb the store.

mod common;

use cluster::{Key, ReplicaRequest, StoreRequest, StoreResponse};
use common::{ALL, DATA, carry_out, copy_of, env, key, nodes, open, options, read, value, version, write};
use env::{Env, Fault, FaultFs, FaultPlan, Fs, ManualClock, MemFs, OperationMatch};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Cell, Hlc, Rng, WallTime};
use store::{
    AfterRestore, CHECKPOINTS_MAX, Checkpoint, LAYOUT_FILE, Membership, Renewal, Store, StoreError,
    StoreOptions,
};

const SEEDS: u64 = 32;

fn all(store: &Store) -> Vec<(Key, Cell)> {
    let request = StoreRequest::Scan { after: None, until: None, limit: ALL, values: true };
    match store.answer_blocking(&request) {
        StoreResponse::Scanned { entries, until: None } => entries,
        other => panic!("not all of it: {other:?}"),
    }
}

/// A store with cells in tables, memtables and the system space.
fn filled(fs: impl Fs + 'static) -> Store {
    let (store, _) = open(fs, 1).unwrap();
    for number in 0..20_u8 {
        carry_out(&store, &write(key(&[number]), value(5, b"in a table")));
    }
    store.engine().flush().unwrap();
    let hinted = StoreRequest::Replica(ReplicaRequest::Write {
        key: key(b"h"),
        cell: value(6, b"hinted"),
        hints: nodes(&[3]),
    });
    carry_out(&store, &hinted);
    carry_out(&store, &write(key(&[4]), Cell::tombstone(version(7), 1)));
    carry_out(&store, &StoreRequest::RaiseClockBound { bound: Hlc::from_bits(1 << 40) });
    store
}

fn names(disk: &MemFs) -> Vec<String> {
    disk.read_dir(&Path::new(DATA).join("checkpoints")).unwrap_or_default()
}

#[test]
fn a_copy_of_a_checkpoint_equals_the_store_at_that_moment() {
    let disk = MemFs::new();
    let store = filled(disk.clone());
    let before = all(&store);
    let checkpoint = store.checkpoint().unwrap();
    assert_eq!(checkpoint.path, Path::new(DATA).join("checkpoints").join(&checkpoint.name));
    carry_out(&store, &write(key(b"later"), value(8, b"later")));
    store.engine().flush().unwrap();
    store.engine().run_jobs().unwrap();

    let store::VerifiedDirectory { identity, data: verified, .. } =
        store::verify(&env(Arc::new(disk.clone())), &checkpoint.path, &mut |_| {}).unwrap();
    assert_eq!(identity.tag, store.tag());
    assert!(verified.tables > 0);

    let copy = copy_of(&disk, &checkpoint.path);
    let copy_env = env(Arc::new(copy.clone()));
    store::verify(&copy_env, Path::new(DATA), &mut |_| {}).unwrap();
    let prepared = store::prepare_restored(&copy_env, Path::new(DATA), AfterRestore::Keep).unwrap();
    assert_eq!(prepared, identity);
    let (restored, opened) = open(copy, 2).unwrap();
    assert_eq!((opened.identity.tag, opened.is_new), (identity.tag, false));
    assert_eq!(opened.identity.membership, identity.membership);
    assert_eq!(all(&restored), before);
    assert_eq!(common::hints_for(&restored, 3), [(key(b"h"), version(6))]);
    assert_eq!(opened.clock_start, Hlc::from_bits(1 << 40), "no version is issued again");

    assert_eq!(read(&store, &key(b"later")), Some(value(8, b"later")));
    assert_eq!(read(&restored, &key(b"later")), None);
}

#[test]
fn a_checkpoint_on_a_real_disk_is_made_copied_opened_and_removed() {
    let root = tempfile::tempdir().unwrap();
    let (data, copy) = (root.path().join("data"), root.path().join("copy"));
    let (store, _) = Store::open(Env::os(), &data, options(1)).unwrap();
    carry_out(&store, &write(key(b"a"), value(1, b"before")));
    let checkpoint = store.checkpoint().unwrap();
    carry_out(&store, &write(key(b"a"), value(2, b"later")));
    store::verify(&Env::os(), &checkpoint.path, &mut |_| {}).unwrap();
    copy_all(&checkpoint.path, &copy);
    assert!(store.remove_checkpoint(&checkpoint.name).unwrap());
    assert_eq!(std::fs::read_dir(data.join("checkpoints")).unwrap().count(), 0);

    store::prepare_restored(&Env::os(), &copy, AfterRestore::Keep).unwrap();
    let (restored, opened) = Store::open(Env::os(), &copy, options(2)).unwrap();
    assert_eq!((opened.identity.tag, opened.is_new), (store.tag(), false));
    assert_eq!(read(&restored, &key(b"a")), Some(value(1, b"before")));
    assert_eq!(read(&store, &key(b"a")), Some(value(2, b"later")));
}

#[test]
fn the_targets_of_symbolic_links_among_checkpoints_are_not_touched() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let (data, others) = (at("data"), at("others"));
    for dir in [&data, &others] {
        let (store, _) = Store::open(Env::os(), dir, options(1)).unwrap();
        carry_out(&store, &write(key(b"a"), value(1, b"kept")));
        store.engine().flush().unwrap();
    }
    let is_whole = || {
        let tables = std::fs::read_dir(others.join("shard-000/tables")).map_or(0, Iterator::count);
        others.join("identity").exists() && others.join("shard-000/CURRENT").exists() && tables == 1
    };
    assert!(is_whole());
    std::fs::create_dir_all(data.join("checkpoints")).unwrap();
    let link = |name: &str| std::os::unix::fs::symlink(&others, data.join("checkpoints").join(name)).unwrap();
    link("at-start");
    let (store, _) = Store::open(Env::os(), &data, options(2)).unwrap();
    assert!(is_whole(), "the start removed another directory's files");
    std::fs::create_dir_all(data.join("checkpoints")).unwrap();
    link("by-name");
    assert!(store.remove_checkpoint("by-name").unwrap());
    assert!(is_whole(), "removing a checkpoint removed another directory's files");
    assert!(store.list_checkpoints().unwrap().is_empty());
}

fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (from, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        match from.is_dir() {
            true => copy_all(&from, &to),
            false => drop(std::fs::copy(&from, &to).unwrap()),
        }
    }
}

#[test]
fn the_number_of_checkpoints_is_limited_and_each_is_removed_by_name() {
    let disk = MemFs::new();
    let store = filled(disk.clone());
    let made: Vec<Checkpoint> = (0..CHECKPOINTS_MAX).map(|_| store.checkpoint().unwrap()).collect();
    let mut listed: Vec<_> = made.iter().map(|checkpoint| checkpoint.name.clone()).collect();
    listed.sort();
    assert_eq!(names(&disk), listed);
    let refused = store.checkpoint().unwrap_err();
    assert!(
        matches!(refused, StoreError::TooManyCheckpoints { ref held, .. } if held.len() == CHECKPOINTS_MAX),
        "{refused}"
    );

    for name in ["..", ".", "", "../shard-000", "1-1/../..", "/srv", "1767225600000000-1", "1-1\0"] {
        assert!(!store.remove_checkpoint(name).unwrap(), "{name:?}");
    }
    assert!(store.remove_checkpoint(&made[1].name).unwrap());
    assert!(!store.remove_checkpoint(&made[1].name).unwrap(), "it is gone");
    assert!(!disk.exists(&made[1].path).unwrap());
    let another = store.checkpoint().unwrap();
    assert!(!made.contains(&another));
    assert_eq!(all(&store).len(), 21);
}

#[test]
fn unrenewed_checkpoints_are_reclaimed_and_expire() {
    let (disk, clock) = (MemFs::new(), Arc::new(ManualClock::new(WallTime::EPOCH_2020)));
    let env = Env { fs: Arc::new(disk.clone()), clock: Arc::clone(&clock) as _ };
    let (store, _) = Store::open(env, Path::new(DATA), options(1)).unwrap();
    let minutes = |minutes: u64| clock.advance(Duration::from_secs(60 * minutes));
    let names_of = ["a", "b", "c", "d"];
    for name in names_of {
        store.checkpoint_named(name).unwrap();
        minutes(1);
    }
    minutes(5);
    let refused = store.checkpoint_named("e").unwrap_err();
    assert!(matches!(refused, StoreError::TooManyCheckpoints { .. }), "{refused}");
    assert_eq!(["a", "z"].map(|name| store.renew_checkpoint(name)), [Renewal::Renewed, Renewal::Missing]);
    minutes(3);
    store.checkpoint_named("e").expect("one was not renewed for ten minutes");
    assert_eq!(names(&disk), ["a", "c", "d", "e"], "the one that was renewed longest ago, and no other");
    minutes(50);
    assert_eq!(store.renew_checkpoint("a"), Renewal::Renewed);
    minutes(10);
    store.expire_checkpoints().unwrap();
    assert_eq!(names(&disk), ["a"]);
}

#[test]
fn renewals_do_not_hold_all_places_for_ever() {
    let (disk, clock) = (MemFs::new(), Arc::new(ManualClock::new(WallTime::EPOCH_2020)));
    let env = Env { fs: Arc::new(disk.clone()), clock: Arc::clone(&clock) as _ };
    let (store, _) = Store::open(env, Path::new(DATA), options(1)).unwrap();
    let names_of = ["a", "b", "c", "d"];
    for name in names_of {
        store.checkpoint_named(name).unwrap();
    }
    let renew_all = || names_of.map(|name| store.renew_checkpoint(name));
    for minutes in (5..24 * 60).step_by(5) {
        clock.advance(Duration::from_secs(300));
        assert_eq!(renew_all(), [Renewal::Renewed; 4], "after {minutes} minutes");
    }
    let StoreError::TooManyCheckpoints { held, .. } = store.checkpoint_named("e").unwrap_err() else {
        panic!("all places are held");
    };
    let day = Duration::from_secs(24 * 3_600 - 300);
    assert!(held.iter().map(|held| held.name.as_str()).eq(names_of));
    assert!(held.iter().all(|held| held.ages == Some((day, Duration::ZERO))), "{held:?}");
    clock.advance(Duration::from_secs(300));
    assert_eq!(renew_all(), [Renewal::TooOld; 4]);
    clock.advance(Duration::from_secs(300));
    store.checkpoint_named("e").expect("one was not renewed for ten minutes");
    assert_eq!(names(&disk).len(), CHECKPOINTS_MAX);
    clock.advance(Duration::from_secs(3_000));
    store.expire_checkpoints().unwrap();
    assert_eq!(names(&disk), ["e"]);
}

#[test]
fn a_client_may_name_a_checkpoint_and_all_are_listed() {
    let disk = MemFs::new();
    let store = filled(disk.clone());
    assert_eq!(store.list_checkpoints().unwrap(), []);
    let named = store.checkpoint_named("mine").unwrap();
    assert_eq!(named.path, Path::new(DATA).join("checkpoints/mine"));
    let drawn = store.checkpoint().unwrap();
    assert_eq!(store.list_checkpoints().unwrap(), [drawn, named]);
    let refused = store.checkpoint_named("mine").unwrap_err();
    assert!(matches!(refused, StoreError::CheckpointExists { .. }), "{refused}");
    for name in ["", "..", "../mine", ".mine"] {
        let refused = store.checkpoint_named(name).unwrap_err();
        assert!(matches!(refused, StoreError::NotACheckpointName { .. }), "{refused}");
    }
    assert_eq!(names(&disk).len(), 2);
    assert!(store.remove_checkpoint("mine").unwrap());
    store.checkpoint_named("mine").unwrap();
}

#[test]
fn checkpoints_end_with_the_process_that_made_them() {
    let disk = MemFs::new();
    let store = filled(disk.clone());
    store.checkpoint().unwrap();
    let before = all(&store);
    let disk = disk.kill();
    assert_eq!(names(&disk).len(), 1);
    let (store, _) = open(disk.clone(), 2).unwrap();
    assert!(!disk.exists(&Path::new(DATA).join("checkpoints")).unwrap());
    assert_eq!(all(&store), before);
    store.checkpoint().unwrap();
}

#[test]
fn a_failed_checkpoint_leaves_nothing_and_the_store_continues() {
    let faults = |nth| FaultPlan::fail(OperationMatch::any().after(nth), Fault::Error(io::ErrorKind::Other));
    let mut failed = 0;
    for nth in 0.. {
        let disk = MemFs::new();
        let fs = FaultFs::new(Arc::new(disk.clone()), FaultPlan::none());
        let store = filled(fs.clone());
        let before = all(&store);
        fs.set_plan(faults(nth));
        let begun = fs.operations();
        let result = store.checkpoint();
        let is_done = fs.operations() - begun <= nth;
        fs.clear();
        if is_done {
            assert!(result.is_ok());
            break;
        }
        // Some failures are of the log and end the engine; others are of optional operations.
        if store.engine().poison().is_none() {
            assert_eq!(names(&disk).len(), usize::from(result.is_ok()), "operation {nth}");
            carry_out(&store, &write(key(b"goes on"), value(9, b"")));
            assert_eq!(all(&store).len(), before.len() + 1, "operation {nth}");
            assert!(store.checkpoint().is_ok(), "operation {nth}");
        }
        failed += u64::from(result.is_err());
    }
    assert!(failed > 20, "{failed}");
}

/// Stops at each file operation of `act`, on a store with one checkpoint, and examines the result
/// with several kinds of loss. `is_right` receives whether `act` completed, and the number of
/// complete checkpoints.
fn stop_anywhere(act: impl Fn(&Store, &Checkpoint) -> bool, is_right: impl Fn(bool, usize) -> bool) {
    let before = all(&filled(MemFs::new()));
    for stop in 0.. {
        let disk = MemFs::new();
        let fs = FaultFs::new(Arc::new(disk.clone()), FaultPlan::none());
        let store = filled(fs.clone());
        let first = store.checkpoint().unwrap();
        let last = fs.operations() + stop;
        fs.set_plan(FaultPlan::stop_after(last).tear_last_write());
        let is_done = act(&store, &first);
        for seed in 0..SEEDS {
            let place = format!("stop {stop}, seed {seed}");
            let disk = if seed == 0 { disk.kill() } else { disk.crash(&mut Rng::new(seed)) };
            let found = names(&disk);
            let whole = found.iter().filter(|name| is_whole(&disk, name, &before, &place)).count();
            assert!(is_right(is_done, whole), "{place}: {whole} of {found:?}");
            let (store, _) = open(disk.clone(), 2).expect(&place);
            assert_eq!(all(&store), before, "{place}");
            assert!(names(&disk).is_empty(), "{place}");
            store.checkpoint().expect(&place);
        }
        if fs.operations() <= last {
            return;
        }
    }
}

/// Whether a checkpoint can be restored. Its content is checked then.
fn is_whole(disk: &MemFs, name: &str, before: &[(Key, Cell)], place: &str) -> bool {
    let copy = copy_of(disk, &Path::new(DATA).join("checkpoints").join(name));
    let copy_env = env(Arc::new(copy.clone()));
    match store::prepare_restored(&copy_env, Path::new(DATA), AfterRestore::Keep) {
        Ok(_) => {
            store::verify(&copy_env, Path::new(DATA), &mut |_| {}).expect(place);
            assert_eq!(all(&open(copy, 2).expect(place).0), before, "{place}");
            true
        }
        Err(StoreError::CopyIncomplete { .. }) => false,
        Err(error) => panic!("{place}: {error}"),
    }
}

#[test]
fn a_crash_while_making_a_checkpoint_leaves_the_store_unchanged() {
    let is_right = |is_done: bool, whole| whole == 2 || (whole == 1 && !is_done);
    stop_anywhere(|store, _| store.checkpoint().is_ok(), is_right);
}

#[test]
fn a_crash_while_removing_a_checkpoint_leaves_the_store_unchanged() {
    let is_right = |is_done: bool, whole| whole == 0 || (whole == 1 && !is_done);
    stop_anywhere(|store, first| store.remove_checkpoint(&first.name).is_ok(), is_right);
}

#[test]
fn an_incomplete_copy_is_refused() {
    let disk = MemFs::new();
    let store = filled(disk.clone());
    let checkpoint = store.checkpoint().unwrap();
    let prepare = |spoil: &dyn Fn(&MemFs)| {
        let copy = copy_of(&disk, &checkpoint.path);
        spoil(&copy);
        let copy_env = env(Arc::new(copy));
        store::prepare_restored(&copy_env, Path::new(DATA), AfterRestore::Keep).map(|_| ())
    };
    let data = Path::new(DATA);
    let table = |copy: &MemFs| {
        let is_table = |path: &&std::path::PathBuf| path.parent().unwrap().ends_with("tables");
        copy.file_names().iter().find(is_table).cloned().expect("there is a table")
    };
    prepare(&|_| {}).unwrap();
    let cut = |copy: &MemFs| {
        let table = table(copy);
        let bytes = copy.read_file(&table).unwrap();
        copy.write_file(&table, &bytes[..bytes.len() - 1]).unwrap();
    };
    for spoil in [&cut as &dyn Fn(&MemFs), &|copy| copy.remove_file(&data.join("identity")).unwrap()] {
        let refused = prepare(spoil).unwrap_err();
        assert!(matches!(refused, StoreError::CopyIncomplete { .. }), "{refused}");
    }
    let current = data.join("shard-000").join("CURRENT");
    for spoil in [&(|copy: &MemFs| copy.remove_file(&current).unwrap()) as &dyn Fn(&MemFs), &|copy| {
        copy.remove_file(&table(copy)).unwrap();
    }] {
        let refused = prepare(spoil).unwrap_err();
        assert!(matches!(refused, StoreError::Engine(engine::Error::Lost { .. })), "{refused}");
    }
    let refused = prepare(&|copy| copy.corrupt(data.join("identity"), 20, 1).unwrap()).unwrap_err();
    assert!(matches!(refused, StoreError::IdentityCorrupt { .. }), "{refused}");

    let open_copy = copy_of(&disk, &checkpoint.path);
    let _opened = open(open_copy.clone(), 3).unwrap();
    let refused = store::prepare_restored(&env(Arc::new(open_copy)), data, AfterRestore::Keep).unwrap_err();
    assert!(matches!(refused, StoreError::Locked { .. }), "{refused}");
}

#[test]
fn a_flipped_bit_in_a_copy_is_reported() {
    let disk = MemFs::new();
    let store = filled(disk.clone());
    let checkpoint = store.checkpoint().unwrap();
    // The layout record has a generator of its own, so that other files keep their bits.
    let (mut rng, mut rng_of_layout) = (Rng::new(1), Rng::new(1));
    for path in copy_of(&disk, &checkpoint.path).file_names() {
        let copy = copy_of(&disk, &checkpoint.path);
        let bytes = copy.read_file(&path).unwrap().len() as u64;
        let is_data = bytes > 0 && !path.parent().unwrap().ends_with("wal");
        if is_data {
            let rng = if path.ends_with(LAYOUT_FILE) { &mut rng_of_layout } else { &mut rng };
            copy.corrupt(&path, rng.below(bytes), rng.below(8) as u8).unwrap();
            let found = store::verify(&env(Arc::new(copy)), Path::new(DATA), &mut |_| {});
            assert!(found.is_err(), "a bit of {} is wrong", path.display());
        }
    }
}

#[test]
fn the_checkpoint_of_a_node_with_peers_records_its_time() {
    let disk = MemFs::new();
    let membership = Membership::of(vec!["http://a:1".to_owned(), "http://b:1".to_owned()]);
    let options = || StoreOptions { membership: membership.clone(), ..options(1) };
    let (store, _) = Store::open(env(Arc::new(disk.clone())), Path::new(DATA), options()).unwrap();
    let checkpoint = store.checkpoint().unwrap();
    let names = disk.read_dir(&checkpoint.path).unwrap();
    assert_eq!(names, ["alive", "copied", "identity", "layout", "shard-000"]);
    let copy = copy_of(&disk, &checkpoint.path);
    copy.remove_file(&Path::new(DATA).join("alive")).unwrap();
    let refused =
        store::prepare_restored(&env(Arc::new(copy)), Path::new(DATA), AfterRestore::Rebuild).unwrap_err();
    assert!(matches!(refused, StoreError::CopyIncomplete { .. }), "{refused}");
}
