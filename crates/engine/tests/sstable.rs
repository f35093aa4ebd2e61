//! Tables return the cells that were written, or report that they are corrupt.

mod sstable_support;

use engine::internals::cache::BlockCache;
use engine::internals::sstable::{Lookup, ReadMode, TableId, TableOptions, Wait, check_bytes};
use engine::{Compression, Cursor, ErrorKind};
use env::{FaultFs, FaultPlan, Fs, MemFs, OperationKind};
use proptest::prelude::*;
use sstable_support::{
    Cells, Fixture, get, get_meta, key_of, metas, model, options_of, small_cells, value, walk, walk_versions,
};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stdx::CellKind;

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn a_table_returns_the_written_cells(cells in model(), options in options_of(), probes in prop::collection::vec(key_of(), 8)) {
        let fixture = Fixture::new(&cells, options);
        let table = fixture.table();
        prop_assert_eq!(table.meta().cells, cells.len() as u64);
        prop_assert_eq!(table.meta().tombstones, cells.values().filter(|cell| cell.meta.kind == CellKind::Tombstone).count() as u64);
        prop_assert_eq!(table.meta().droppable_from, cells.values().filter_map(|cell| cell.meta.dead_from()).min());
        prop_assert_eq!(Some(table.meta().version_min), cells.values().map(|cell| cell.meta.version).min());
        prop_assert_eq!(Some(table.meta().version_max), cells.values().map(|cell| cell.meta.version).max());
        table.verify(&mut |_| ()).unwrap();
        for reading in [ReadMode::Scan, ReadMode::Bulk] {
            prop_assert_eq!(&walk(&table, reading), &cells);
        }
        for (key, cell) in &cells {
            prop_assert_eq!(get(&table, key), Lookup::Found(cell.clone()));
            prop_assert_eq!(get_meta(&table, key), Lookup::Found(cell.meta));
        }
        prop_assert_eq!(walk_versions(&table), metas(&cells));
        let mut cursor = table.cursor(ReadMode::Scan);
        let mut versions = table.cursor(ReadMode::Versions);
        for probe in &probes {
            let expected = cells.range(probe.clone()..).next();
            cursor.seek(probe).unwrap();
            let found = cursor.entry().map(|(key, cell)| (key.to_vec(), cell.to_cell()));
            prop_assert_eq!(found.as_ref().map(|(key, cell)| (key, cell)), expected);
            let lookup = cells.get(probe).cloned().map_or(Lookup::Absent, Lookup::Found);
            prop_assert_eq!(get(&table, probe), lookup);
            let lookup = cells.get(probe).map_or(Lookup::Absent, |cell| Lookup::Found(cell.meta));
            prop_assert_eq!(get_meta(&table, probe), lookup);
            versions.seek(probe).unwrap();
            let found = versions.key_and_meta().map(|(key, meta)| (key.to_vec(), meta));
            prop_assert_eq!(found, expected.map(|(key, cell)| (key.clone(), cell.meta)));
            versions.reload_value().unwrap();
            prop_assert_eq!(versions.entry(), expected.map(|(key, cell)| (&key[..], cell.as_ref())));
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        prop_assert!(check_bytes(&bytes).is_err());
        let mut table = Fixture::new(&small_cells(40), TableOptions::default()).bytes();
        let before = table.clone();
        for (index, byte) in edits {
            let at = index.index(table.len());
            table[at] = byte;
        }
        prop_assert_eq!(check_bytes(&table).is_ok(), table == before);
    }
}

#[test]
fn a_value_of_16_mib_comes_back_by_key_and_by_cursor() {
    for compression in [Compression::None, Compression::Lz4] {
        let mut cells = small_cells(50);
        let large: Vec<u8> = (0..16u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        cells.insert(b"user000000000017x".to_vec(), value(9, &large));
        let fixture = Fixture::new(&cells, TableOptions { compression, ..TableOptions::default() });
        let table = fixture.table();
        assert_eq!(get(&table, b"user000000000017x"), Lookup::Found(value(9, &large)));
        assert_eq!(walk(&table, ReadMode::Scan), cells);
        assert_eq!(walk(&table, ReadMode::Bulk), cells);
    }
}

#[test]
fn an_oversized_value_is_not_cached_and_does_not_pin_its_neighbors() {
    let mut cells = small_cells(50);
    cells.insert(b"user000000000017x".to_vec(), value(9, &[7; 100 << 10]));
    let fixture = Fixture::new(&cells, TableOptions::default());
    let table = fixture.table();
    for (key, cell) in &cells {
        assert_eq!(get(&table, key), Lookup::Found(cell.clone()));
    }
    assert!(fixture.cache.bytes() < 64 << 10, "{} bytes are cached", fixture.cache.bytes());
}

#[test]
fn a_flipped_bit_is_an_error_or_harmless_and_verify_detects_it() {
    let cells = small_cells(20);
    let options = TableOptions { block_bytes: 300, ..TableOptions::default() };
    let fixture = Fixture::new(&cells, options);
    for (at, _) in fixture.bytes().iter().enumerate() {
        for bit in 0..8 {
            let damaged = fixture.kill();
            damaged.fs.corrupt(&damaged.path, at as u64, bit).unwrap();
            let table = damaged.table();
            for (key, cell) in &cells {
                match table.get(key, sstable_support::hash(key), Wait::Allowed) {
                    Ok(lookup) => assert_eq!(lookup, Lookup::Found(cell.clone()), "byte {at} bit {bit}"),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at} bit {bit}"),
                }
            }
            let error = table.verify(&mut |_| ()).expect_err("verify misses a flipped bit");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at} bit {bit}");
        }
    }
}

#[test]
fn a_truncated_table_is_corrupt() {
    let fixture = Fixture::new(&small_cells(20), TableOptions::default());
    let bytes = fixture.bytes();
    for len in 0..bytes.len() {
        assert_eq!(check_bytes(&bytes[..len]).unwrap_err().kind(), ErrorKind::Corrupt, "{len} bytes");
    }
    assert_eq!(&check_bytes(&bytes).unwrap(), &*fixture.meta);
}

#[test]
fn a_table_under_another_name_is_corrupt() {
    let mut fixture = Fixture::new(&small_cells(20), TableOptions::default());
    let mut meta = (*fixture.meta).clone();
    meta.id = TableId(meta.id.0 + 1);
    fixture.meta = Arc::new(meta);
    let error = fixture.table().verify(&mut |_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn verify_reports_every_byte_of_the_file_once() {
    let fixture =
        Fixture::new(&small_cells(3_000), TableOptions { block_bytes: 1 << 10, ..TableOptions::default() });
    let mut bytes = 24;
    fixture.table().verify(&mut |more| bytes += more).unwrap();
    assert_eq!(bytes, fixture.meta.file_bytes);
}

#[test]
fn opening_reads_nothing_and_a_cached_get_reads_nothing() {
    let fixture = Fixture::new(&small_cells(1_000), TableOptions::default());
    let reads = || fixture.fs.counters().counts().reads;
    let before = reads();
    let table = fixture.table();
    assert_eq!(reads(), before);
    let first = get(&table, b"user000000000500");
    assert!(matches!(first, Lookup::Found(_)));
    let after = reads();
    assert_eq!(get(&table, b"user000000000500"), first);
    assert_eq!(reads(), after);
}

#[test]
fn a_read_that_must_not_wait_reports_when_it_needs_the_disk() {
    let fixture = Fixture::new(&small_cells(1_000), TableOptions::default());
    let table = fixture.table();
    let key = b"user000000000500";
    let never = || table.get(key, sstable_support::hash(key), Wait::Never).unwrap();
    assert_eq!(never(), Lookup::WouldWait, "the file is not open yet");
    assert_eq!(get(&table, b"user000000000500x"), Lookup::Absent);
    fixture.fs.set_cold(true);
    assert_eq!(never(), Lookup::WouldWait, "the data block is not in memory");
    fixture.fs.set_cold(false);
    assert!(matches!(never(), Lookup::Found(_)));
    fixture.fs.set_cold(true);
    assert!(matches!(never(), Lookup::Found(_)), "the data block is in the cache now");
}

#[test]
fn the_callback_receives_an_obsolete_table_when_its_last_reader_is_gone() {
    let fixture = Fixture::new(&small_cells(10), TableOptions::default());
    let told = Arc::new(AtomicU64::new(0));
    let trash = {
        let told = told.clone();
        Arc::new(move |id: TableId| told.store(id.0, Ordering::SeqCst))
    };
    let kept = fixture.table_with_trash(trash.clone());
    drop(kept);
    assert_eq!(told.load(Ordering::SeqCst), 0, "a live table was thrown away");
    let table = fixture.table_with_trash(trash);
    let mut cursor = table.cursor(ReadMode::Scan);
    cursor.seek_to_first().unwrap();
    table.mark_obsolete();
    drop(table);
    assert_eq!(told.load(Ordering::SeqCst), 0, "a cursor still reads it");
    cursor.advance().unwrap();
    drop(cursor);
    assert_eq!(told.load(Ordering::SeqCst), fixture.meta.id.0);
}

#[test]
fn the_file_is_written_in_large_chunks_and_synced_once() {
    let fs = MemFs::new();
    let fixture = Fixture::on(
        fs,
        &small_cells(30_000),
        TableOptions { compression: Compression::None, ..TableOptions::default() },
    );
    let counts = fixture.fs.counters().counts();
    assert_eq!(counts.syncs, 1);
    assert!(counts.writes <= fixture.meta.file_bytes / (256 << 10) + 1, "{} writes", counts.writes);
    assert_eq!(counts.written_bytes, fixture.meta.file_bytes);
}

/// Without early writeback, the final sync would write the whole table and delay syncs of the log.
#[test]
fn writeback_is_started_in_small_ranges_and_awaited() {
    const PIECE_BYTES: u64 = 128 << 10;
    let asked: Arc<[AtomicU64; 2]> = Arc::default();
    let counted = Arc::clone(&asked);
    let plan = FaultPlan::on_operation(move |operation| {
        let which = match operation.kind {
            OperationKind::StartWriteback => 0,
            OperationKind::FinishWriteback => 1,
            _ => return None,
        };
        counted[which].fetch_add(1, Ordering::SeqCst);
        None
    });
    let fs = FaultFs::new(Arc::new(MemFs::new()), plan);
    let options = TableOptions { compression: Compression::None, ..TableOptions::default() };
    let mut writer = sstable_support::writer(&fs, Path::new("t"), options);
    writer.add(b"oversized", value(1, &vec![7; 4 << 20]).as_ref()).unwrap();
    small_cells(10_000).iter().for_each(|(key, cell)| writer.add(key, cell.as_ref()).unwrap());
    let pieces = writer.finish().unwrap().file_bytes / PIECE_BYTES;
    let [begun, waited_for] = [0, 1].map(|which: usize| asked[which].load(Ordering::SeqCst));
    assert!((pieces - 4..=pieces).contains(&begun), "{begun} of {pieces} pieces");
    assert_eq!(begun, waited_for);
}

#[test]
fn the_filter_avoids_most_reads_of_absent_keys() {
    let fixture = Fixture::new(&small_cells(20_000), TableOptions::default());
    let table = fixture.table();
    let absent = (0..20_000).filter(|i| {
        let key = format!("user{i:012}x");
        !table.may_contain(key.as_bytes(), sstable_support::hash(key.as_bytes())).unwrap()
    });
    assert!(absent.count() >= 19_700);
}

#[test]
#[should_panic(expected = "ascending")]
fn keys_out_of_order_are_a_broken_invariant() {
    let mut writer = sstable_support::writer(&MemFs::new(), Path::new("t"), TableOptions::default());
    writer.add(b"b", value(1, b"").as_ref()).unwrap();
    let _ = writer.add(b"b", value(2, b"").as_ref());
}

#[test]
fn a_full_disk_is_reported_as_full() {
    let fs = MemFs::with_capacity(100 << 10);
    let mut writer = sstable_support::writer(
        &fs,
        Path::new("t"),
        TableOptions { compression: Compression::None, ..TableOptions::default() },
    );
    let error = small_cells(10_000).iter().find_map(|(key, cell)| writer.add(key, cell.as_ref()).err());
    assert_eq!(error.unwrap().kind(), ErrorKind::Full);
}

/// Reads a file of an earlier release, or of this one, and checks that it contains these cells.
/// `UPDATE=1` writes the file, once.
fn check_format(name: &str, cells: &Cells) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats").join(name);
    if std::env::var_os("UPDATE").is_some() && !path.exists() {
        let options = TableOptions { block_bytes: 512, ..TableOptions::default() };
        std::fs::write(&path, Fixture::new(cells, options).bytes()).unwrap();
    }
    let bytes = std::fs::read(path).unwrap();
    check_bytes(&bytes).unwrap();
    let table = Fixture::of_bytes(&bytes).table();
    assert_eq!(walk(&table, ReadMode::Scan), *cells);
    assert_eq!(walk_versions(&table), metas(cells));
    for (key, cell) in cells {
        assert_eq!(get(&table, key), Lookup::Found(cell.clone()));
        assert_eq!(get_meta(&table, key), Lookup::Found(cell.meta));
    }
    bytes
}

/// Format version of a table, as its header and its tail say.
fn format_version(bytes: &[u8]) -> u8 {
    assert_eq!(bytes[8..12], bytes[bytes.len() - 12..][..4], "header and tail agree");
    bytes[8]
}

/// The bytes of format version 1, as written by the first release.
#[test]
fn tables_of_format_version_1_are_still_read() {
    let bytes = check_format("table-v1.sst", &sstable_support::every_kind_of_cell());
    assert_eq!(format_version(&bytes), 1);
    let bytes = check_format("table-v1-oversized.sst", &sstable_support::with_oversized_cells());
    assert_eq!(format_version(&bytes), 1);
}

/// The bytes of format version 2, which tables with oversized cells have.
#[test]
fn tables_of_format_version_2_are_still_read() {
    let bytes = check_format("table-v2.sst", &sstable_support::with_oversized_cells());
    assert_eq!(format_version(&bytes), 2);
}

/// Earlier releases read tables without oversized cells, because nothing in them has changed.
#[test]
fn a_table_without_oversized_cells_has_the_bytes_of_format_version_1() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/table-v1.sst");
    let options = TableOptions { block_bytes: 512, ..TableOptions::default() };
    let written = Fixture::new(&sstable_support::every_kind_of_cell(), options).bytes();
    assert!(written == std::fs::read(path).unwrap());
}

#[test]
fn the_cache_never_exceeds_its_budget() {
    let cells = small_cells(40_000);
    let fixture = Fixture::new(&cells, TableOptions::default());
    for budget in [100 << 10, 1 << 20, 9 << 20] {
        let fixture = Fixture { cache: Arc::new(BlockCache::new(budget)), ..fixture.kill() };
        let table = fixture.table();
        for key in cells.keys().step_by(37) {
            get(&table, key);
            assert!(fixture.cache.bytes() <= budget);
        }
        let stats = fixture.cache.stats();
        assert_eq!(stats.data.bytes + stats.index.bytes + stats.filter.bytes, fixture.cache.bytes());
    }
}

#[test]
fn readers_on_many_threads_get_right_answers_and_leave_exact_counts() {
    let cells = small_cells(20_000);
    let fixture = Fixture {
        cache: Arc::new(BlockCache::new(1 << 20)),
        ..Fixture::new(&cells, TableOptions::default())
    };
    let table = fixture.table();
    std::thread::scope(|scope| {
        for reader in 0..4 {
            let (table, cells, cache) = (&table, &cells, &fixture.cache);
            scope.spawn(move || {
                for (key, cell) in cells.iter().skip(reader * 7).step_by(23) {
                    assert_eq!(get(table, key), Lookup::Found(cell.clone()));
                    assert!(cache.bytes() <= cache.budget_bytes());
                }
            });
        }
    });
    let stats = fixture.cache.stats();
    assert_eq!(stats.data.bytes + stats.index.bytes + stats.filter.bytes, fixture.cache.bytes());
}

#[test]
fn a_scan_does_not_evict_index_and_filter_blocks() {
    let cells: Cells = small_cells(40_000);
    let budget = 1 << 20;
    let fixture =
        Fixture { cache: Arc::new(BlockCache::new(budget)), ..Fixture::new(&cells, TableOptions::default()) };
    let table = fixture.table();
    assert!(fixture.meta.data_bytes > 4 * budget);
    let absent = |i: u64| format!("user{:012}x", i % 40_000);
    let ask = |i: u64| get(&table, absent(i).as_bytes());
    (0..2_000).for_each(|i| assert_eq!(ask(i * 17), Lookup::Absent));
    let before = fixture.cache.stats().filter.misses;
    let mut cursor = table.cursor(ReadMode::Scan);
    cursor.seek_to_first().unwrap();
    let mut seen = 0;
    while cursor.entry().is_some() {
        if seen % 50 == 0 {
            ask(seen * 31);
        }
        seen += 1;
        cursor.advance().unwrap();
    }
    let missed = fixture.cache.stats().filter.misses - before;
    assert!(missed <= 2, "{missed} filter blocks were read again during the scan");
}
