//! The manifest under crashes, full disks and bit rot: acknowledged edits are present, refused ones
//! are not, and damage is an error that names the file.

use bytes::Bytes;
use engine::internals::manifest::{IngestCursor, Levels, Manifest, RecoveredState, VersionEdit, check_bytes};
use engine::internals::sstable::{TableId, TableMeta};
use engine::internals::wal::SegmentId;
use engine::{DisownedRange, Error, ErrorKind, HashRange};
use env::{Fault, FaultFs, FaultPlan, Fs, MemFs, OpenMode, OperationKind, OperationMatch};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stdx::{Hlc, NodeTag, Rng, Version, WallTime};

const DIR: &str = "/data";
const SEEDS: u64 = 6;

fn meta(id: u64, min: &str, max: &str) -> TableMeta {
    let version = |hlc| Version::new(Hlc::from_bits(hlc), NodeTag(9));
    TableMeta {
        id: TableId(id),
        file_bytes: 1_000 + id,
        data_bytes: 2_000 + id,
        cells: 10,
        tombstones: 3,
        expiring: 2,
        key_min: Bytes::copy_from_slice(min.as_bytes()),
        key_max: Bytes::copy_from_slice(max.as_bytes()),
        version_min: version(id),
        version_max: version(id * 2),
        droppable_from: id.is_multiple_of(2).then_some(WallTime::from_micros_since_unix_epoch(id)),
    }
}

fn long_key(id: u64) -> String {
    format!("{id:08}{}", "k".repeat(8_000))
}

/// A step of a history: tables are flushed to level 0, then moved to level 1; some are then
/// removed. With `long` keys the manifest outgrows its limit again and again.
fn step(step: u64, long: bool) -> VersionEdit {
    let key = |id: u64| if long { long_key(id) } else { format!("{id:08}") };
    let mut edit = VersionEdit { next_table_id: Some(TableId(step + 1)), ..VersionEdit::default() };
    edit.added.push((0, meta(step, &key(step), &key(step))));
    edit.wal_floor = Some(SegmentId(step / 2));
    if step >= 2 {
        edit.removed.push((0, TableId(step - 1)));
        edit.added.push((1, meta(step - 1, &key(step - 1), &key(step - 1))));
    }
    if step >= 5 {
        edit.removed.push((1, TableId(step - 3)));
    }
    edit
}

/// The live tables with their levels, and the floor of the log.
type Live = (BTreeMap<u64, u8>, u64);

fn live(recovered: &RecoveredState) -> Live {
    for (_, found) in &recovered.tables {
        let key = std::str::from_utf8(&found.key_min).unwrap();
        assert_eq!(*found, meta(found.id.0, key, key), "all of the meta comes back");
    }
    (recovered.tables.iter().map(|(level, meta)| (meta.id.0, *level)).collect(), recovered.wal_floor.0)
}

fn apply(live: &mut Live, edit: &VersionEdit) {
    for (_, id) in &edit.removed {
        live.0.remove(&id.0);
    }
    live.0.extend(edit.added.iter().map(|(level, meta)| (meta.id.0, *level)));
    live.1 = live.1.max(edit.wal_floor.map_or(0, |segment| segment.0));
}

fn table_path(id: u64) -> PathBuf {
    Path::new(DIR).join("tables").join(format!("{id:016x}.sst"))
}

fn recover(fs: &(impl Fs + Clone + 'static)) -> Result<(Manifest, RecoveredState), Error> {
    let fs: Arc<dyn Fs> = Arc::new(fs.clone());
    Manifest::recover(&fs, Path::new(DIR))
}

/// Table files as flushes leave them, for all ids that a history uses.
fn disk_with_tables(ids: std::ops::Range<u64>) -> MemFs {
    let disk = MemFs::new();
    disk.create_dir_all(Path::new(DIR)).unwrap();
    drop(recover(&disk).unwrap());
    for id in ids {
        disk.write_file(table_path(id), b"a table").unwrap();
    }
    disk
}

/// The acknowledged state when a history stopped, and the next state.
struct Stopped {
    acknowledged: Live,
    next: Live,
}

/// Recovers and appends `steps` from the state of the manifest on, until it is stopped.
fn run(fs: &FaultFs, steps: std::ops::Range<u64>, long: bool, before: &Live) -> Stopped {
    let mut acknowledged = before.clone();
    let Ok((mut manifest, recovered)) = recover(fs) else {
        return Stopped { next: acknowledged.clone(), acknowledged };
    };
    assert_eq!(live(&recovered), acknowledged);
    for number in steps {
        let edit = step(number, long);
        let mut next = acknowledged.clone();
        apply(&mut next, &edit);
        if manifest.append(&edit).is_err() {
            return Stopped { acknowledged, next };
        }
        acknowledged = next;
    }
    Stopped { next: acknowledged.clone(), acknowledged }
}

fn crash_everywhere(steps: u64, long: bool, stride: usize) {
    let disk = disk_with_tables(1..steps * 2);
    let begun = FaultFs::new(Arc::new(disk.kill()), FaultPlan::none());
    run(&begun, 1..steps, long, &Live::default());
    for stop in (0..=begun.operations()).step_by(stride) {
        for seed in 0..SEEDS {
            let disk = disk.kill();
            let plan = FaultPlan::stop_after(stop);
            let plan = if seed % 2 == 0 { plan.tear_last_write() } else { plan };
            let fs = FaultFs::new(Arc::new(disk.clone()), plan);
            let stopped = run(&fs, 1..steps, long, &Live::default());
            let mut rng = Rng::new(stop * SEEDS + seed);
            let after = if seed == 0 { disk.kill() } else { disk.crash(&mut rng) };
            let (manifest, recovered) =
                recover(&after).unwrap_or_else(|error| panic!("stop {stop} seed {seed}: {error}"));
            let found = live(&recovered);
            assert!(
                found == stopped.acknowledged || found == stopped.next,
                "stop {stop} seed {seed}: found {found:?}, acknowledged {:?}",
                stopped.acknowledged
            );
            drop(manifest);
            // A second crash, or a later write, does not undo the recovered state.
            let again = after.crash(&mut rng);
            assert_eq!(live(&recover(&again).unwrap().1), found, "stop {stop} seed {seed}: a second crash");
        }
    }
}

#[test]
fn every_acknowledged_edit_survives_a_crash_at_every_operation() {
    crash_everywhere(8, false, 1);
}

#[test]
fn a_crash_while_the_manifest_is_replaced_loses_nothing() {
    crash_everywhere(120, true, 7);
}

#[test]
fn a_manifest_that_has_outgrown_its_snapshot_is_replaced_and_the_old_one_removed() {
    let disk = disk_with_tables(1..400);
    let fs = FaultFs::new(Arc::new(disk.clone()), FaultPlan::none());
    run(&fs, 1..400, true, &Live::default());
    let manifests: Vec<_> =
        disk.file_names().into_iter().filter(|path| path.to_string_lossy().contains("manifest-")).collect();
    assert_eq!(manifests.len(), 1, "{manifests:?}");
    let bytes = disk.read_file(&manifests[0]).unwrap().len();
    assert!(bytes < 2 << 20, "{bytes} bytes for a handful of live tables");
}

/// When an operation of an append fails for lack of space, the edit is never visible, and the next
/// one works.
#[test]
fn an_edit_refused_by_a_full_disk_never_happens() {
    let kinds = [OperationKind::Write, OperationKind::SyncData];
    for (case, kind) in kinds.into_iter().enumerate() {
        for seed in 0..SEEDS * 8 {
            let disk = disk_with_tables(1..20);
            let fs = FaultFs::new(Arc::new(disk.clone()), FaultPlan::none());
            let (mut manifest, _) = recover(&fs).unwrap();
            let mut acknowledged = Live::default();
            manifest.append(&step(1, false)).unwrap();
            apply(&mut acknowledged, &step(1, false));
            let full = Fault::Error(std::io::ErrorKind::StorageFull);
            fs.set_plan(FaultPlan::fail(OperationMatch::kind(kind), full));
            let error = manifest.append(&step(2, false)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Full, "{error}");
            let crashed = disk.crash(&mut Rng::new(seed * 2 + case as u64));
            assert_eq!(live(&recover(&crashed).unwrap().1), acknowledged);

            let other = VersionEdit { added: vec![(2, meta(7, "x", "x"))], ..VersionEdit::default() };
            manifest.append(&other).expect("there is room again");
            apply(&mut acknowledged, &other);
            assert_eq!(live(&recover(&disk.crash(&mut Rng::new(seed))).unwrap().1), acknowledged);
        }
    }
}

/// Without space for a new manifest the old one grows; the switch happens once there is space.
#[test]
fn a_manifest_that_cannot_be_replaced_for_lack_of_space_is_continued() {
    for kind in [OperationKind::Open, OperationKind::Write, OperationKind::SyncDir, OperationKind::Rename] {
        let disk = disk_with_tables(1..120);
        let fs = FaultFs::new(Arc::new(disk.clone()), FaultPlan::none());
        let (mut manifest, _) = recover(&fs).unwrap();
        let full = Fault::Error(std::io::ErrorKind::StorageFull);
        let (mut acknowledged, mut refused) = (Live::default(), 0);
        for number in 1..120 {
            // Writes and syncs of an edit succeed: only those of a new file are of these kinds too.
            let only_new =
                OperationMatch::kind(kind).path(if kind == OperationKind::Write { "CURRENT" } else { "" });
            fs.set_plan(FaultPlan::fail(only_new.sticky(), full.clone()));
            let edit = step(number, true);
            while let Err(error) = manifest.append(&edit) {
                assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                refused += 1;
                fs.clear();
            }
            apply(&mut acknowledged, &edit);
        }
        let grown = disk.file_names().iter().map(|path| disk.read_file(path).unwrap().len()).max().unwrap();
        assert!(grown > 3 << 20 || refused > 0, "{kind:?}: no switch was in the way, {grown} bytes");
        assert_eq!(live(&recover(&disk.crash(&mut Rng::new(1))).unwrap().1), acknowledged, "{kind:?}");
        fs.clear();
        let edit = step(120, true);
        disk.write_file(table_path(120), b"a table").unwrap();
        manifest.append(&edit).unwrap();
        apply(&mut acknowledged, &edit);
        assert_eq!(live(&recover(&disk.crash(&mut Rng::new(2))).unwrap().1), acknowledged, "{kind:?}");
    }
}

/// Files in the first version of the format can still be read. `UPDATE=1` writes them, once.
#[test]
fn the_first_format_is_still_read() {
    let formats = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats");
    let names = [("CURRENT", "manifest-v1.current"), ("manifest-0000000000000002", "manifest-v1.manifest")];
    let disk = disk_with_tables(1..8);
    let fs = FaultFs::new(Arc::new(disk.clone()), FaultPlan::none());
    let expected = run(&fs, 1..8, false, &Live::default()).acknowledged;
    for (name, pinned) in names {
        let path = Path::new(DIR).join(name);
        if std::env::var_os("UPDATE").is_some() && !formats.join(pinned).exists() {
            std::fs::write(formats.join(pinned), disk.read_file(&path).unwrap()).unwrap();
        }
        let bytes = std::fs::read(formats.join(pinned)).unwrap();
        assert_eq!(bytes, disk.read_file(&path).unwrap(), "{pinned} is what is written today");
        disk.write_file(path, &bytes).unwrap();
    }
    assert_eq!(live(&recover(&disk).unwrap().1), expected);
}

/// Sets two cursors beside a table, moves one and removes the other.
fn with_cursors(disk: &MemFs) -> RecoveredState {
    let cursor = |name: &'static str, position: &'static str| IngestCursor {
        name: name.into(),
        position: position.into(),
    };
    let (mut manifest, _) = recover(disk).unwrap();
    let added = vec![(3, meta(1, "a", "b"))];
    let ingest_cursors = vec![cursor("x", "1"), cursor("y", "")];
    manifest.append(&VersionEdit { added, ingest_cursors, ..VersionEdit::default() }).unwrap();
    let moved = vec![cursor("x", "2"), cursor("z", "9")];
    let removed_ingest_cursors = vec!["y".into(), "z".into()];
    let edit = VersionEdit { ingest_cursors: moved, removed_ingest_cursors, ..VersionEdit::default() };
    manifest.append(&edit).unwrap();
    drop(manifest);
    Manifest::inspect(&(Arc::new(disk.clone()) as Arc<dyn Fs>), Path::new(DIR)).unwrap()
}

/// `UPDATE=1` writes the file, once.
#[test]
fn the_first_format_of_ingest_cursors_is_still_read() {
    let pinned = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats/manifest-v1-cursors.manifest");
    let disk = disk_with_tables(1..2);
    let expected = with_cursors(&disk);
    assert_eq!(expected.ingest_cursors, BTreeMap::from([("x".into(), "2".into())]));
    let path = Path::new(DIR).join("manifest-0000000000000002");
    if std::env::var_os("UPDATE").is_some() && !pinned.exists() {
        std::fs::write(&pinned, disk.read_file(&path).unwrap()).unwrap();
    }
    let bytes = std::fs::read(&pinned).unwrap();
    assert_eq!(bytes, disk.read_file(&path).unwrap(), "the file is what is written today");
    disk.write_file(path, &bytes).unwrap();
    // The snapshot of the next manifest has the cursor too.
    for _ in 0..2 {
        assert_eq!(recover(&disk).unwrap().1.ingest_cursors, expected.ingest_cursors);
    }
}

/// Disowns ranges, begins the purge of one and owns another again.
fn with_disowned_ranges(disk: &MemFs) -> RecoveredState {
    let range = |first, last| HashRange { first, last };
    let disowned = |first, last, from: Option<u64>| DisownedRange {
        range: range(first, last),
        stays_from: u8::MAX,
        purged_from: from.map(TableId),
    };
    let (mut manifest, _) = recover(disk).unwrap();
    let ranges = vec![disowned(0, 9, None), disowned(10, 10, None), disowned(1 << 63, u64::MAX, None)];
    manifest.append(&VersionEdit { disowned: ranges, ..VersionEdit::default() }).unwrap();
    let purged = vec![disowned(0, 9, Some(300)), disowned(1 << 63, u64::MAX, Some(0))];
    let owned = vec![range(10, 10)];
    manifest.append(&VersionEdit { disowned: purged, owned, ..VersionEdit::default() }).unwrap();
    drop(manifest);
    Manifest::inspect(&(Arc::new(disk.clone()) as Arc<dyn Fs>), Path::new(DIR)).unwrap()
}

/// `UPDATE=1` writes the file, once.
#[test]
fn the_first_format_of_disowned_ranges_is_still_read() {
    let pinned = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats/manifest-v1-disowned.manifest");
    let disk = disk_with_tables(1..2);
    let expected = with_disowned_ranges(&disk);
    let found: Vec<_> = expected.disowned.iter().map(|it| (it.range.last, it.purged_from)).collect();
    assert_eq!(found, [(9, Some(TableId(300))), (u64::MAX, Some(TableId(0)))]);
    let path = Path::new(DIR).join("manifest-0000000000000002");
    if std::env::var_os("UPDATE").is_some() && !pinned.exists() {
        std::fs::write(&pinned, disk.read_file(&path).unwrap()).unwrap();
    }
    let bytes = std::fs::read(&pinned).unwrap();
    assert_eq!(bytes, disk.read_file(&path).unwrap(), "the file is what is written today");
    disk.write_file(path, &bytes).unwrap();
    // The snapshot of the next manifest has the ranges too.
    for _ in 0..2 {
        assert_eq!(recover(&disk).unwrap().1.disowned, expected.disowned);
    }
}

/// Earlier releases refuse an unknown part of an edit, so a manifest must have none once no cursor
/// is set.
#[test]
fn a_manifest_without_cursors_is_as_before_there_were_any() {
    let (disk, plain) = (disk_with_tables(1..2), disk_with_tables(1..2));
    with_cursors(&disk);
    let (mut manifest, _) = recover(&plain).unwrap();
    let added = vec![(3, meta(1, "a", "b"))];
    manifest.append(&VersionEdit { added, ..VersionEdit::default() }).unwrap();
    drop((manifest, recover(&plain).unwrap()));
    let (mut manifest, _) = recover(&disk).unwrap();
    let removed_ingest_cursors = vec!["x".into()];
    manifest.append(&VersionEdit { removed_ingest_cursors, ..VersionEdit::default() }).unwrap();
    drop((manifest, recover(&disk).unwrap(), recover(&plain).unwrap()));
    let current = Path::new(DIR).join("manifest-0000000000000004");
    assert_eq!(disk.read_file(&current).unwrap(), plain.read_file(&current).unwrap());
}

#[test]
fn a_cursor_that_is_removed_and_not_set_is_a_fault() {
    let disk = disk_with_tables(1..2);
    let number: u64 = 1;
    let whole = disk.read_file(Path::new(DIR).join(format!("manifest-{number:016x}"))).unwrap();
    check_bytes(&whole).unwrap();
    // Behind the header: a frame with the removal of the cursor "q".
    let mut frame = vec![0; 4];
    frame.extend(3u32.to_le_bytes());
    frame.extend([1, 7, 1, b'q']);
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&number.to_le_bytes());
    digest.update(&24u64.to_le_bytes());
    digest.update(&frame[4..]);
    let checksum = (digest.finalize() as u32).to_le_bytes();
    frame[..4].copy_from_slice(&checksum);
    let error = check_bytes(&[&whole[..24], &frame[..]].concat()).unwrap_err();
    assert!(error.to_string().contains("cursor \"q\" is removed"), "{error}");
}

#[test]
fn a_disk_that_cannot_even_be_cut_poisons_the_manifest() {
    let disk = disk_with_tables(1..20);
    let fs = FaultFs::new(Arc::new(disk.clone()), FaultPlan::none());
    let (mut manifest, _) = recover(&fs).unwrap();
    let full = Fault::Error(std::io::ErrorKind::StorageFull);
    fs.set_plan(FaultPlan::fail(OperationMatch::kind(OperationKind::SyncData).sticky(), full));
    assert!(matches!(manifest.append(&step(1, false)), Err(Error::Poisoned { .. })));
    fs.clear();
    assert!(matches!(manifest.append(&step(1, false)), Err(Error::Poisoned { .. })));
}

#[test]
fn every_flipped_bit_is_found_or_does_not_matter() {
    let disk = disk_with_tables(1..20);
    let fs = FaultFs::new(Arc::new(disk.clone()), FaultPlan::none());
    let expected = run(&fs, 1..6, false, &Live::default()).acknowledged;
    let files = disk.file_names().into_iter().filter(|path| !path.starts_with("/data/tables"));
    let mut found = 0;
    for path in files {
        for offset in 0..disk.read_file(&path).unwrap().len() as u64 {
            for bit in 0..8 {
                let rotten = disk.kill();
                rotten.corrupt(&path, offset, bit).unwrap();
                match recover(&rotten) {
                    Ok((_, recovered)) => {
                        assert_eq!(live(&recovered), expected, "bit {bit} of byte {offset} of {path:?}");
                    }
                    Err(Error::Corrupt { path: named, .. }) => {
                        assert_eq!(named, path, "bit {bit} of byte {offset}");
                        found += 1;
                    }
                    Err(other) => panic!("bit {bit} of byte {offset} of {path:?}: {other}"),
                }
            }
        }
    }
    assert!(found > 1_000, "{found}");
}

#[test]
fn orphaned_tables_are_reported_and_their_ids_not_reused() {
    let disk = disk_with_tables(1..7);
    let fs = FaultFs::new(Arc::new(disk.clone()), FaultPlan::none());
    run(&fs, 1..4, false, &Live::default());
    disk.write_file(table_path(0x20), b"half a table").unwrap();
    disk.write_file("/data/tables/notes.txt", b"somebody's").unwrap();
    let (_, recovered) = recover(&disk).unwrap();
    assert_eq!(recovered.orphans, [4, 5, 6, 0x20].map(TableId));
    assert_eq!(recovered.next_table_id, TableId(0x21));
}

#[test]
fn a_live_table_without_a_file_is_lost() {
    let disk = disk_with_tables(1..7);
    let fs = FaultFs::new(Arc::new(disk.clone()), FaultPlan::none());
    run(&fs, 1..4, false, &Live::default());
    disk.remove_file(&table_path(2)).unwrap();
    let Err(Error::Lost { path, .. }) = recover(&disk) else { panic!("it was opened") };
    assert_eq!(path, table_path(2));
}

#[test]
fn data_without_a_manifest_is_a_loss_and_not_an_empty_store() {
    let disk = MemFs::new();
    disk.write_file("/data/wal/0000000000000001.wal", b"records").unwrap();
    let Err(Error::Lost { path, .. }) = recover(&disk) else { panic!("it was opened") };
    assert_eq!(path, Path::new("/data/CURRENT"));
}

#[test]
fn arbitrary_bytes_are_refused() {
    let disk = disk_with_tables(1..2);
    let path =
        disk.file_names().into_iter().find(|path| path.to_string_lossy().contains("manifest-")).unwrap();
    let whole = disk.read_file(&path).unwrap();
    let mut rng = Rng::new(1);
    for len in 0..200 {
        let mut bytes = whole[..len.min(24)].to_vec();
        bytes.resize(len, 0);
        rng.fill(&mut bytes[len.min(24)..]);
        let file = disk.open(&path, OpenMode::CreateOrTruncate).unwrap();
        file.write_at(&bytes, 0).unwrap();
        let fresh = disk.kill();
        match recover(&fresh) {
            // A whole header without valid frames: a torn file that `CURRENT` would not name.
            Ok((_, recovered)) => assert!(len >= 24 && recovered.tables.is_empty()),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
        }
    }
}

/// A manifest cut at any byte is a shorter history or refused; so are changed bytes. Nothing
/// panics.
#[test]
fn any_bytes_are_a_manifest_or_refused() {
    let whole =
        std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats/manifest-v1.manifest"));
    let whole = whole.unwrap();
    check_bytes(&whole).unwrap();
    let mut rng = Rng::new(1);
    for len in 0..whole.len() {
        assert_eq!(check_bytes(&whole[..len]).is_ok(), len >= 24, "{len} bytes");
        let mut bytes = whole.clone();
        let from = rng.below(len as u64 + 1) as usize;
        rng.fill(&mut bytes[from..=len]);
        if let Err(error) = check_bytes(&bytes) {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        }
    }
}

fn levels(tables: &[(u8, TableMeta)]) -> Result<Levels<TableMeta>, String> {
    let edit = VersionEdit { added: tables.to_vec(), ..VersionEdit::default() };
    Levels::default().apply(&edit, &mut |meta| Arc::new(meta.clone()))
}

#[test]
fn tables_of_a_level_below_0_may_not_overlap() {
    assert!(levels(&[(0, meta(1, "a", "m")), (0, meta(2, "c", "z"))]).is_ok());
    assert!(levels(&[(1, meta(1, "a", "m")), (1, meta(2, "n", "z"))]).is_ok());
    assert!(levels(&[(1, meta(1, "a", "m")), (1, meta(2, "m", "z"))]).unwrap_err().contains("overlap"));
    assert!(levels(&[(1, meta(1, "b", "a"))]).is_err());
    assert!(levels(&[(7, meta(1, "a", "b"))]).is_err());
    assert!(levels(&[(0, meta(1, "a", "b")), (0, meta(1, "a", "b"))]).is_err());
}

#[test]
fn an_edit_must_fit_and_a_moved_table_is_not_opened_again() {
    let before = levels(&[(0, meta(1, "a", "b")), (1, meta(2, "c", "d"))]).unwrap();
    let moved = VersionEdit {
        removed: vec![(0, TableId(1))],
        added: vec![(1, meta(1, "a", "b"))],
        ..VersionEdit::default()
    };
    let after = before.apply(&moved, &mut |_| panic!("it is open already")).unwrap();
    assert!(Arc::ptr_eq(&before.level(0)[0], &after.level(1)[0]));
    assert_eq!(moved.dropped().count(), 0);
    let wrong_level = VersionEdit { removed: vec![(1, TableId(1))], ..VersionEdit::default() };
    assert!(before.apply(&wrong_level, &mut |_| panic!("nothing is added")).is_err());
    let gone = VersionEdit { removed: vec![(0, TableId(1)), (1, TableId(2))], ..VersionEdit::default() };
    assert_eq!(before.apply(&gone, &mut |_| panic!("nothing is added")).unwrap().depth(), 0);
    assert_eq!(gone.dropped().collect::<Vec<_>>(), [TableId(1), TableId(2)]);
}

#[test]
fn candidates_are_the_tables_whose_range_holds_the_key() {
    let levels = levels(&[
        (0, meta(1, "a", "m")),
        (0, meta(5, "c", "z")),
        (0, meta(3, "d", "e")),
        (2, meta(2, "a", "c")),
        (2, meta(4, "e", "f")),
    ])
    .unwrap();
    let ids = |level, key: &str| -> Vec<_> {
        levels.candidates(level, key.as_bytes()).map(|table| table.id.0).collect()
    };
    assert_eq!(ids(0, "d"), [5, 3, 1], "the greatest versions first");
    assert_eq!(ids(0, "z"), [5]);
    assert_eq!((ids(1, "d"), ids(2, "d"), ids(2, "e"), ids(2, "c")), (vec![], vec![], vec![4], vec![2]));
    assert_eq!(levels.depth(), 3);
    let greatest = |id: u64| Version::new(Hlc::from_bits(id * 2), NodeTag(9));
    assert_eq!(
        (0..4).map(|level| levels.version_max_from(level)).collect::<Vec<_>>(),
        [greatest(5), greatest(4), greatest(4), Version::MIN]
    );
}

/// A manifest opens on a full disk: the old one is continued, even after a torn append.
#[test]
fn a_manifest_opens_on_a_full_disk() {
    for seed in 0..SEEDS * 8 {
        let disk = disk_with_tables(1..20);
        let (mut manifest, _) = recover(&disk).unwrap();
        let mut acknowledged = Live::default();
        manifest.append(&step(1, false)).unwrap();
        apply(&mut acknowledged, &step(1, false));
        let faults = FaultFs::new(Arc::new(disk.crash(&mut Rng::new(seed))), FaultPlan::none());
        let full = Fault::Error(std::io::ErrorKind::StorageFull);
        let places = [
            (OperationKind::Write, "manifest"),
            (OperationKind::SyncData, "manifest"),
            (OperationKind::Open, "CURRENT.tmp"),
            (OperationKind::Write, "CURRENT.tmp"),
            (OperationKind::SyncData, "CURRENT.tmp"),
        ];
        for (kind, path) in places {
            faults.set_plan(FaultPlan::fail(OperationMatch::kind(kind).path(path), full.clone()));
            let opened = recover(&faults);
            let (mut manifest, recovered) = match opened {
                Ok(opened) => opened,
                Err(error) => panic!("{kind:?} without room: {error}"),
            };
            assert_eq!(live(&recovered), acknowledged, "{kind:?}");
            faults.clear();
            let edit = VersionEdit::default();
            manifest.append(&edit).expect("there is room again");
        }
    }
}

const ERRNOS: [i32; 6] = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EIO, libc::ENOSPC, libc::EDQUOT];

/// The disks that a stop at this moment may leave.
fn ends(disk: &MemFs, seed: u64) -> [MemFs; 3] {
    let evicted = disk.kill();
    evicted.evict();
    [disk.kill(), evicted, disk.crash(&mut Rng::new(seed))]
}

/// A manifest of the greatest length before its replacement, and its contents.
fn outgrown(fs: &FaultFs) -> (Manifest, Live, u64) {
    let (mut manifest, _) = recover(fs).unwrap();
    let (mut acknowledged, mut number) = (Live::default(), 1);
    let switches = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let seen = Arc::clone(&switches);
    fs.set_plan(FaultPlan::on_operation(move |operation| {
        let is_new = operation.kind == OperationKind::Open && operation.path.ends_with("CURRENT.tmp");
        is_new.then(|| {
            seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Fault::Errno(libc::ENOSPC)
        })
    }));
    while switches.load(std::sync::atomic::Ordering::Relaxed) == 0 {
        manifest.append(&step(number, true)).unwrap();
        apply(&mut acknowledged, &step(number, true));
        number += 1;
    }
    fs.clear();
    (manifest, acknowledged, number)
}

/// Whatever fails while the manifest is replaced, even a rename that took effect, every
/// acknowledged edit is present.
#[test]
fn no_error_while_the_manifest_is_replaced_loses_an_edit() {
    for after in 0..40 {
        // Two of them for each operation: the same calls recur with the next edit.
        for (nth, errno) in ERRNOS.into_iter().enumerate().skip(after as usize % 3).step_by(3) {
            let seed = after * 6 + nth as u64;
            let faults = [
                Fault::Errno(errno),
                Fault::ErrnoAfterEffect(errno),
                Fault::ShortWrite { bytes: 20, errno },
                Fault::LoseUnsynced { errno, seed },
            ];
            for fault in faults {
                let disk = disk_with_tables(1..200);
                let fs = FaultFs::new(Arc::new(disk.clone()), FaultPlan::none());
                let (mut manifest, mut acknowledged, number) = outgrown(&fs);
                let how = format!("{fault:?} at operation {after}");
                fs.set_plan(FaultPlan::fail(OperationMatch::any().after(after), fault));
                let mut next = acknowledged.clone();
                for number in number..number + 4 {
                    let edit = step(number, true);
                    apply(&mut next, &edit);
                    match manifest.append(&edit) {
                        Ok(()) => acknowledged = next.clone(),
                        // Refused; the next edit names another table, and depends on the one
                        // before.
                        Err(error) if matches!(error.kind(), ErrorKind::Full | ErrorKind::Retry) => {
                            manifest.append(&edit).unwrap_or_else(|error| panic!("{how}: {error}"));
                            acknowledged = next.clone();
                        }
                        Err(_) => break,
                    }
                }
                for disk in ends(&disk, seed) {
                    let (_, recovered) = recover(&disk).unwrap_or_else(|error| panic!("{how}: {error}"));
                    let found = live(&recovered);
                    assert!(found == acknowledged || found == next, "{how}");
                }
            }
        }
    }
}

/// At the start too, the file that `CURRENT` names is not removed because its rename reported an
/// error.
#[test]
fn no_error_of_recovery_loses_an_edit() {
    for after in 0..30 {
        for (nth, errno) in ERRNOS.into_iter().enumerate() {
            let seed = after * 6 + nth as u64;
            for fault in
                [Fault::Errno(errno), Fault::ErrnoAfterEffect(errno), Fault::LoseUnsynced { errno, seed }]
            {
                let disk = disk_with_tables(1..7);
                let fs = FaultFs::new(Arc::new(disk.clone()), FaultPlan::none());
                let expected = run(&fs, 1..7, false, &Live::default()).acknowledged;
                let how = format!("{fault:?} at operation {after}");
                fs.set_plan(FaultPlan::fail(OperationMatch::any().after(after), fault));
                if let Ok((_, recovered)) = recover(&fs) {
                    assert_eq!(live(&recovered), expected, "{how}");
                }
                for disk in ends(&disk, seed) {
                    let (_, recovered) = recover(&disk).unwrap_or_else(|error| panic!("{how}: {error}"));
                    assert_eq!(live(&recovered), expected, "{how}");
                }
            }
        }
    }
}
