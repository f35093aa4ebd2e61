//! A data directory that has lost data is never treated as complete.

mod common;

use cluster::{NodeRecord, StoreRequest, SyncState};
use common::{DATA, carry_out, env, key, options, read, value, version, write};
use env::{FaultFs, FaultPlan, Fs, MemFs, OpenMode};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stdx::{NodeTag, Rng};
use store::{Membership, OpenReport, Store, StoreError, StoreOptions};

const SEEDS: u64 = 16;

fn data(name: &str) -> PathBuf {
    Path::new(DATA).join(name)
}

fn alone() -> Membership {
    Membership::of(Vec::new())
}

fn peers() -> Membership {
    let nodes = ["http://a:1", "http://b:1", "http://c:1"].map(str::to_owned);
    Membership::of(nodes.to_vec()).seen_by("http://b:1")
}

fn open(fs: impl Fs + 'static, tag: u64, membership: &Membership) -> Result<(Store, OpenReport), StoreError> {
    let options = StoreOptions { membership: membership.clone(), ..options(tag) };
    Store::open(env(Arc::new(fs)), Path::new(DATA), options)
}

fn settle(store: &Store, opened: &OpenReport) {
    let revision = opened.record.revision + 1;
    let record = NodeRecord { revision, sync_state: SyncState::Settled, ..NodeRecord::default() };
    carry_out(store, &StoreRequest::PersistRecord { record });
}

/// The directory of the node of tag 1 after a clean stop, with a key `a` in a table and a key `b`
/// in the log.
fn stopped(membership: &Membership) -> MemFs {
    let disk = MemFs::new();
    let (store, opened) = open(disk.clone(), 1, membership).unwrap();
    settle(&store, &opened);
    carry_out(&store, &write(key(b"a"), value(1, b"in a table")));
    store.engine().flush().unwrap();
    carry_out(&store, &write(key(b"b"), value(2, b"in the log")));
    store.close().unwrap();
    drop(store);
    disk.kill()
}

fn names(disk: &MemFs, dir: &str) -> Vec<PathBuf> {
    let names = disk.read_dir(&data(dir)).unwrap();
    names.into_iter().map(|name| data(dir).join(name)).collect()
}

fn newest_segment(disk: &MemFs) -> PathBuf {
    let segments = names(disk, "shard-000/wal");
    segments.into_iter().rfind(|path| path.extension().is_some_and(|it| it == "wal")).expect("a segment")
}

fn cut(disk: &MemFs, path: &Path, len: u64) {
    let file = disk.open(path, OpenMode::ReadWrite).unwrap();
    file.set_len(len).and_then(|()| file.sync_data()).unwrap();
}

/// Makes all directory entries durable.
fn sync_names(disk: &MemFs) {
    for dir in ["", "shard-000", "shard-000/tables", "shard-000/wal"] {
        let _may_be_missing = disk.sync_dir(&data(dir));
    }
}

fn remove_all(disk: &MemFs, path: &Path) {
    (disk as &dyn Fs).remove_dir_all(path).unwrap();
}

/// Offset of the last group of the newest segment that is not a closing record.
fn last_group(disk: &MemFs) -> u64 {
    let bytes = disk.read_file(newest_segment(disk)).unwrap();
    let groups = places_of(&bytes, b"vGRP");
    groups[groups.len() - 2]
}

fn places_of(bytes: &[u8], needle: &[u8]) -> Vec<u64> {
    (0..bytes.len()).filter(|at| bytes[*at..].starts_with(needle)).map(|at| at as u64).collect()
}

/// A way to lose a part of a directory.
type Harm = (&'static str, fn(&MemFs));

const HARMS: [Harm; 8] = [
    ("the shard is removed", |disk| remove_all(disk, &data("shard-000"))),
    ("the shard is emptied", |disk| {
        remove_all(disk, &data("shard-000"));
        disk.create_dir_all(&data("shard-000")).unwrap();
    }),
    ("the files of the shard are removed", |disk| {
        for dir in ["shard-000/tables", "shard-000/wal", "shard-000"] {
            for path in names(disk, dir) {
                let _directories_stay = disk.remove_file(&path);
            }
        }
    }),
    ("CURRENT is removed", |disk| disk.remove_file(&data("shard-000/CURRENT")).unwrap()),
    ("a table is removed", |disk| disk.remove_file(&names(disk, "shard-000/tables")[0]).unwrap()),
    ("the log is removed", |disk| remove_all(disk, &data("shard-000/wal"))),
    ("the newest segment is removed", |disk| disk.remove_file(&newest_segment(disk)).unwrap()),
    ("the log is cut at the end of a group", |disk| cut(disk, &newest_segment(disk), last_group(disk))),
];

/// Same as the other cases, with the mark lost as well, so that the directory does not record the
/// end of its log.
const HARMS_WITH_THE_MARK: [Harm; 4] = [
    ("the mark is removed", |disk| disk.remove_file(&data("log-mark")).unwrap()),
    ("the mark is removed and the log is cut", |disk| {
        disk.remove_file(&data("log-mark")).unwrap();
        cut(disk, &newest_segment(disk), last_group(disk));
    }),
    ("the mark and the shard are removed", |disk| {
        disk.remove_file(&data("log-mark")).unwrap();
        remove_all(disk, &data("shard-000"));
    }),
    ("the mark is that of another node", |disk| {
        let text = "veche-log-mark 1\ntag 00000000000000ff\nsegment 0000000000000001\nbytes 512\n";
        write_sealed(disk, "log-mark", text);
    }),
];

/// Replaces a small text file of the directory.
fn write_sealed(disk: &MemFs, name: &str, text: &str) {
    let checksum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, text.as_bytes());
    disk.write_file(data(name), format!("{text}crc32c {checksum:08x}\n").as_bytes()).unwrap();
}

/// A directory of a release that kept no mark.
fn of_a_release_before_the_mark(disk: &MemFs) {
    disk.remove_file(&data("log-mark")).unwrap();
    let identity = String::from_utf8(disk.read_file(data("identity")).unwrap()).unwrap();
    let is_kept =
        |line: &&str| !["veche-identity", "log-mark", "crc32c"].iter().any(|it| line.starts_with(it));
    let kept: Vec<&str> = identity.lines().filter(is_kept).collect();
    write_sealed(disk, "identity", &format!("veche-identity 1\n{}\n", kept.join("\n")));
}

#[test]
fn in_a_cluster_lost_data_counts_as_a_lost_disk() {
    for (harm, lose) in HARMS.into_iter().chain(HARMS_WITH_THE_MARK) {
        let disk = stopped(&peers());
        lose(&disk);
        let (store, opened) = open(disk.clone(), 2, &peers()).expect(harm);
        assert_eq!((opened.identity.tag, store.tag()), (NodeTag(2), NodeTag(2)), "{harm}");
        assert_eq!((opened.is_new, opened.record.sync_state), (true, SyncState::Rebuilding), "{harm}");
        assert!(read(&store, &key(b"a")).is_none(), "{harm}: it begins empty");
        drop(store);
        let (_, opened) = open(disk.kill(), 3, &peers()).expect(harm);
        assert_eq!(opened.identity.tag, NodeTag(2), "{harm}: once is enough");
        assert_eq!((opened.is_new, opened.record.sync_state), (false, SyncState::Rebuilding), "{harm}");
    }
}

#[test]
fn a_standalone_node_refuses_to_start_and_reports_the_loss_and_the_actions() {
    for (harm, lose) in HARMS {
        let disk = stopped(&alone());
        lose(&disk);
        for _ in 0..2 {
            let refused = open(disk.clone(), 2, &alone()).map(drop).expect_err(harm);
            assert!(matches!(refused, StoreError::DataLost { .. }), "{harm}: {refused}");
            let sentence = refused.to_string();
            assert!(sentence.contains("restore the directory from a backup"), "{harm}: {sentence}");
            assert!(sentence.contains("shard-000"), "{harm}: {sentence}");
        }
        let found = store::verify(&env(Arc::new(disk.clone())), Path::new(DATA), &mut |_| {});
        assert!(found.is_err(), "{harm}: verify finds it too");
    }
}

#[test]
fn a_standalone_node_without_its_log_mark_refuses_to_start() {
    for (harm, lose) in HARMS_WITH_THE_MARK {
        let disk = stopped(&alone());
        lose(&disk);
        for _ in 0..2 {
            let refused = open(disk.clone(), 2, &alone()).map(drop).expect_err(harm);
            assert!(matches!(refused, StoreError::DataLost { .. }), "{harm}: {refused}");
            let sentence = refused.to_string();
            let missing = if harm.contains("shard") { "shard-000" } else { "log-mark is missing" };
            assert!(sentence.contains(missing), "{harm}: {sentence}");
        }
        let found = store::verify(&env(Arc::new(disk.clone())), Path::new(DATA), &mut |_| {});
        assert!(found.is_err(), "{harm}: verify finds it too");
    }
}

#[test]
fn the_advice_in_the_refusal_works() {
    let disk = stopped(&alone());
    remove_all(&disk, &data("shard-000"));
    disk.create_dir_all(&data("shard-000")).unwrap();
    let refused = open(disk.clone(), 2, &alone()).map(drop).unwrap_err().to_string();
    assert!(refused.contains(&format!("to start empty, move {DATA} away")), "{refused}");
    remove_all(&disk, Path::new(DATA));
    let (_, opened) = open(disk, 2, &alone()).unwrap();
    assert_eq!((opened.identity.tag, opened.is_new), (NodeTag(2), true));

    let disk = stopped(&alone());
    let (segment, left) = (newest_segment(&disk), last_group(&disk));
    let whole = disk.read_file(&segment).unwrap().len() as u64;
    cut(&disk, &segment, left);
    let refused = open(disk.clone(), 2, &alone()).map(drop).unwrap_err().to_string();
    for part in [
        segment.display().to_string(),
        format!("{whole} bytes of the log were durable there, and {left} are left"),
        format!("echo unknown > {}", data("log-mark").display()),
    ] {
        assert!(refused.contains(&part), "{part}: {refused}");
    }
    for _ in 0..2 {
        disk.write_file(data("log-mark"), b"unknown\n").unwrap();
        store::verify(&env(Arc::new(disk.clone())), Path::new(DATA), &mut |_| {})
            .expect("nothing to compare with");
        let (store, opened) = open(disk.clone(), 2, &alone()).unwrap();
        assert_eq!(opened.identity.tag, NodeTag(1));
        assert!(read(&store, &key(b"a")).is_some() && read(&store, &key(b"b")).is_none());
        store.close().unwrap();
        drop(store);
        // The acceptance is valid for one start only.
        disk.remove_file(&data("log-mark")).unwrap();
        let refused = open(disk.clone(), 2, &alone()).map(drop).unwrap_err().to_string();
        assert!(refused.contains(&format!("echo unknown > {}", data("log-mark").display())), "{refused}");
    }
    disk.write_file(data("log-mark"), b"unknown").unwrap();
    remove_all(&disk, &data("shard-000"));
    let refused = open(disk, 2, &alone()).map(drop).expect_err("the word is about the log alone").to_string();
    assert!(refused.contains("is missing or holds no data"), "{refused}");
}

#[test]
fn the_remaining_data_is_renamed_and_kept() {
    let disk = stopped(&peers());
    let segment = newest_segment(&disk);
    cut(&disk, &segment, last_group(&disk));
    let (store, opened) = open(disk.clone(), 2, &peers()).unwrap();
    drop(store);
    let stale = opened.stale_shard.expect("it says where");
    let (engine, _) = engine::Engine::open(env(Arc::new(disk)), &stale, options(1).engine).unwrap();
    assert!(engine.get(b"\x01a").unwrap().is_some(), "what was not lost");
}

#[test]
fn a_directory_of_a_release_before_the_mark_opens_and_gets_one() {
    for membership in [alone(), peers()] {
        let disk = stopped(&membership);
        of_a_release_before_the_mark(&disk);
        let (store, opened) = open(disk.clone(), 2, &membership).unwrap();
        assert_eq!((opened.identity.tag, opened.is_new), (NodeTag(1), false));
        assert!(read(&store, &key(b"b")).is_some());
        drop(store);
        let disk = disk.kill();
        disk.remove_file(&data("log-mark")).expect("the start has made one");
        match open(disk, 3, &membership) {
            Ok((_, opened)) => assert_eq!(opened.record.sync_state, SyncState::Rebuilding),
            Err(refused) => assert!(!membership.has_peers(), "{refused}"),
        }
    }
}

#[test]
fn an_unreadable_log_mark_is_reported() {
    let disk = stopped(&alone());
    disk.corrupt(data("log-mark"), 20, 3).unwrap();
    let refused = open(disk, 2, &alone()).map(drop).expect_err("a bit is wrong");
    assert!(matches!(refused, StoreError::LogMarkCorrupt { .. }), "{refused}");
}

#[test]
fn the_mark_is_written_only_when_the_durable_end_has_moved() {
    let disk = MemFs::new();
    let (store, _) = open(disk.clone(), 1, &alone()).unwrap();
    let syncs = || disk.counters().counts().syncs;
    let before = syncs();
    assert!(!store.has_stale_log_mark(), "the start has written it");
    store.note_log_end().unwrap();
    assert_eq!(syncs(), before, "an idle node writes nothing");
    carry_out(&store, &write(key(b"a"), value(1, b"a")));
    assert_eq!(syncs(), before + 1, "the group alone");
    assert!(store.has_stale_log_mark());
    store.note_log_end().unwrap();
    assert_eq!(syncs(), before + 3, "one small file, and its name");
    assert!(!store.has_stale_log_mark());
}

#[test]
fn without_syncs_only_synced_data_is_marked() {
    let disk = MemFs::new();
    let mut unsynced = options(1);
    unsynced.engine.durability = engine::Durability::Os;
    let (store, _) = Store::open(env(Arc::new(disk.clone())), Path::new(DATA), unsynced.clone()).unwrap();
    let mark = || disk.read_file(data("log-mark")).unwrap();
    let at_start = mark();
    carry_out(&store, &write(key(b"a"), value(1, b"a")));
    store.note_log_end().unwrap();
    assert_eq!(mark(), at_start, "nothing of the group is durable");
    for seed in 0..SEEDS {
        let crashed = disk.crash(&mut Rng::new(seed));
        Store::open(env(Arc::new(crashed)), Path::new(DATA), unsynced.clone()).expect("no loss");
    }
    store.close().unwrap();
    assert_ne!(mark(), at_start, "a clean stop has synced it");
}

/// Opens, writes, marks and closes until the file system stops. Returns the number of the last
/// acknowledged write.
fn life(fs: FaultFs, tag: u64, membership: &Membership) -> Option<u64> {
    let (store, opened) = open(fs, tag, membership).ok()?;
    settle(&store, &opened);
    let mut acknowledged = None;
    for number in 0..6_u64 {
        let answer = carry_out(&store, &write(key(&[number as u8]), value(number + 1, b"v")));
        if !common::is_stored(&answer) {
            return acknowledged;
        }
        acknowledged = Some(number);
        if number == 2 {
            let _may_be_stopped = store.engine().flush();
        }
        if number % 2 == 1 {
            let _may_be_stopped = store.note_log_end();
        }
    }
    let _may_be_stopped = store.close();
    acknowledged
}

#[test]
fn a_crash_is_never_mistaken_for_a_loss() {
    for membership in [alone(), peers()] {
        let operations = {
            let faults = FaultFs::new(Arc::new(MemFs::new()), FaultPlan::none());
            assert_eq!(life(faults.clone(), 1, &membership), Some(5));
            faults.operations()
        };
        for stop in 0..=operations {
            for seed in 0..SEEDS {
                let place = format!("{} nodes, stop {stop}, seed {seed}", membership.nodes.len());
                let disk = MemFs::new();
                let mut rng = Rng::new(seed << 32 | stop);
                let plan = FaultPlan::stop_after(stop).tear_last_write();
                let acknowledged = life(FaultFs::new(Arc::new(disk.clone()), plan), 1, &membership);
                let disk = if seed == 0 { disk.kill() } else { disk.crash(&mut rng) };
                // A second process, which is also stopped while it opens or later.
                let plan = FaultPlan::stop_after(rng.below(60)).tear_last_write();
                let again = life(FaultFs::new(Arc::new(disk.clone()), plan), 2, &membership);
                let disk = if seed == 0 { disk.kill() } else { disk.crash(&mut rng) };
                let (store, opened) = open(disk, 3, &membership).expect(&place);
                assert_eq!(opened.stale_shard, None, "{place}");
                assert_ne!(opened.record.sync_state, SyncState::Rebuilding, "{place}");
                if acknowledged.is_some() {
                    assert_eq!(opened.identity.tag, NodeTag(1), "{place}");
                }
                for number in 0..acknowledged.max(again).map_or(0, |last| last + 1) {
                    assert!(read(&store, &key(&[number as u8])).is_some(), "{place}: {number}");
                }
            }
        }
    }
}

#[test]
fn a_crash_while_restarting_empty_never_makes_an_empty_node_read_eligible() {
    for (harm, lose) in HARMS.into_iter().chain(HARMS_WITH_THE_MARK) {
        let lossy = stopped(&peers());
        lose(&lossy);
        sync_names(&lossy);
        let operations = {
            let faults = FaultFs::new(Arc::new(lossy.kill()), FaultPlan::none());
            open(faults.clone(), 2, &peers()).map(drop).expect(harm);
            faults.operations()
        };
        for stop in 0..=operations {
            for seed in 0..SEEDS {
                let place = format!("{harm}, stop {stop}, seed {seed}");
                let disk = lossy.kill();
                let plan = FaultPlan::stop_after(stop).tear_last_write();
                drop(open(FaultFs::new(Arc::new(disk.clone()), plan), 2, &peers()));
                let disk = if seed == 0 { disk.kill() } else { disk.crash(&mut Rng::new(seed)) };
                let (_, opened) = open(disk.clone(), 3, &peers()).expect(&place);
                assert_ne!(opened.identity.tag, NodeTag(1), "{place}");
                assert_eq!(opened.record.sync_state, SyncState::Rebuilding, "{place}");
                let (_, again) = open(disk.crash(&mut Rng::new(seed)), 4, &peers()).expect(&place);
                assert_eq!(again.identity.tag, opened.identity.tag, "{place}: once is enough");
                assert_eq!(again.record.sync_state, SyncState::Rebuilding, "{place}");
            }
        }
    }
}

#[test]
fn the_mark_of_a_lost_shard_does_not_apply_to_a_copy_in_its_place() {
    let disk = stopped(&alone());
    let (store, _) = open(disk.clone(), 2, &alone()).unwrap();
    let checkpoint = store.checkpoint().unwrap();
    for number in 0..50 {
        carry_out(&store, &write(key(b"b"), value(10 + number, b"later")));
    }
    store.close().unwrap();
    drop(store);
    let mark = disk.read_file(data("log-mark")).unwrap();
    let copy = common::copy_of(&disk, &checkpoint.path);
    copy.write_file(data("log-mark"), &mark).unwrap();
    copy.write_file(data("identity"), &disk.read_file(data("identity")).unwrap()).unwrap();
    store::prepare_restored(&env(Arc::new(copy.clone())), Path::new(DATA), store::AfterRestore::Keep)
        .unwrap();
    let (store, _) = open(copy, 3, &alone()).expect("what was restored is taken as it is");
    assert_eq!(read(&store, &key(b"b")).unwrap().meta.version, version(2));
}

#[test]
fn a_running_store_detects_lost_names_and_no_others() {
    let named = |disk: &MemFs, dir: &str, part: &str| {
        let found = names(disk, dir).into_iter().rfind(|path| path.to_string_lossy().contains(part));
        found.expect("there is one")
    };
    let disk = MemFs::new();
    let (store, _) = open(disk.clone(), 1, &alone()).unwrap();
    let watched = store.watch_names().unwrap();
    for number in 0..2_000_u64 {
        carry_out(&store, &write(key(&number.to_be_bytes()), value(number + 1, &[7; 200])));
        if number % 100 == 0 {
            // Segments are released and created, tables are added, and the manifest grows.
            store.engine().flush().unwrap();
            store.engine().run_jobs().unwrap();
            store.note_log_end().unwrap();
            assert_eq!(watched.lost(), None);
        }
    }
    for path in [
        data("identity"),
        data("log-mark"),
        data("shard-000/CURRENT"),
        named(&disk, "shard-000", "manifest-"),
        newest_segment(&disk),
    ] {
        let elsewhere = data("elsewhere");
        disk.rename(&path, &elsewhere).unwrap();
        assert_eq!(watched.lost(), Some(path.clone()));
        disk.rename(&elsewhere, &path).unwrap();
        assert_eq!(watched.lost(), None, "{}", path.display());
    }
}
