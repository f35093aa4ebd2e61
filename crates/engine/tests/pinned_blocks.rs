//! Filters and indexes that tables pin: within the budget, counted, released.

use engine::Cursor;
use engine::internals::cache::{BlockCache, CacheStats};
use engine::internals::sstable::{
    Lookup, ReadMode, Table, TableFiles, TableId, TableMeta, TableOptions, TableWriter, Wait, file_name,
};
use env::{Fs, MemFs, OpenMode};
use std::path::PathBuf;
use std::sync::Arc;
use stdx::{CellMeta, CellRef, Hlc, NodeTag, Rng, Version};
use xxhash_rust::xxh3::xxh3_64;

const CELLS: u64 = 5_000;

/// Tables on a file system. Table `t` has the keys `key(t, 0..cells)`.
struct Tables {
    fs: Arc<dyn Fs>,
    metas: Vec<Arc<TableMeta>>,
}

impl Tables {
    fn write(tables: u64, cells: u64) -> Self {
        let fs: Arc<dyn Fs> = Arc::new(MemFs::new());
        let metas = (0..tables).map(|table| Arc::new(write_table(&*fs, table, cells))).collect();
        Self { fs, metas }
    }

    fn open(&self, table: u64, cache: &Arc<BlockCache>) -> Arc<Table> {
        let meta = self.metas[table as usize].clone();
        let path = PathBuf::from(file_name(meta.id));
        Arc::new(Table::open(
            &Arc::new(TableFiles::new(self.fs.clone(), 1)),
            path,
            meta,
            cache.clone(),
            Arc::new(|_| ()),
        ))
    }

    fn open_all(&self, cache: &Arc<BlockCache>) -> Vec<Arc<Table>> {
        (0..self.metas.len() as u64).map(|table| self.open(table, cache)).collect()
    }
}

/// Small blocks, so that indexes are about as large as filters.
fn write_table(fs: &dyn Fs, table: u64, cells: u64) -> TableMeta {
    let path = PathBuf::from(file_name(TableId(table)));
    let file = fs.open(&path, OpenMode::CreateNew).unwrap();
    let options = TableOptions { block_bytes: 1 << 10, ..TableOptions::default() };
    let mut writer = TableWriter::new(file, path, TableId(table), options);
    for i in 0..cells {
        let meta = CellMeta::value(Version::new(Hlc::from_bits(1 + i), NodeTag(1)), 1);
        writer.add(&key(table, i), CellRef { meta, value: &value(table, i) }).unwrap();
    }
    writer.finish().unwrap()
}

fn key(table: u64, i: u64) -> Vec<u8> {
    format!("table{table:04}/{i:012}").into_bytes()
}

fn value(table: u64, i: u64) -> Vec<u8> {
    (table << 32 | i).to_le_bytes().repeat(12)
}

/// Reads a key of the table, or an absent one if `i` is not one of its keys.
fn get(reader: &Table, table: u64, i: u64) {
    let key = key(table, i);
    match reader.get(&key, xxh3_64(&key), Wait::Allowed).unwrap() {
        Lookup::Found(cell) => assert_eq!(cell.value, value(table, i)),
        lookup => {
            assert!(i >= reader.meta().cells && lookup == Lookup::Absent, "{lookup:?} for {i} of {table}");
        }
    }
}

fn check(cache: &BlockCache) {
    let (bytes, held) = (cache.bytes(), cache.pinned_bytes());
    assert!(bytes <= cache.budget_bytes(), "{bytes} bytes, {held} of them held");
    assert!(held <= cache.budget_bytes() / 2, "{held} bytes are held");
}

fn check_kinds(cache: &BlockCache) {
    let stats = cache.stats();
    assert_eq!(stats.data.bytes + stats.index.bytes + stats.filter.bytes, cache.bytes());
    assert!(cache.pinned_bytes() <= stats.index.bytes + stats.filter.bytes);
}

fn scan(table: &Arc<Table>) {
    let mut cursor = table.cursor(ReadMode::Scan);
    cursor.seek_to_first().unwrap();
    while cursor.entry().is_some() {
        cursor.advance().unwrap();
    }
}

#[test]
fn many_tables_pin_at_most_half_of_a_small_budget_and_release_it() {
    let files = Tables::write(40, CELLS);
    let cache = Arc::new(BlockCache::new(1 << 20));
    let mut rng = Rng::new(1);
    for _ in 0..3 {
        let mut tables = files.open_all(&cache);
        for _ in 0..5_000 {
            let table = rng.below(40);
            get(&tables[table as usize], table, rng.below(CELLS));
            check(&cache);
        }
        check_kinds(&cache);
        let full = cache.pinned_bytes();
        assert!(full > cache.budget_bytes() * 7 / 16, "only {full} bytes are held");
        tables.truncate(20);
        check_kinds(&cache);
        assert!(cache.pinned_bytes() < full);
        drop(tables);
        check_kinds(&cache);
        assert_eq!(cache.pinned_bytes(), 0);
    }
    // Released bytes are available to other blocks.
    let tables = files.open_all(&cache);
    for table in 0..40 {
        (0..CELLS).step_by(8).for_each(|i| get(&tables[table as usize], table, i));
    }
    assert!(cache.bytes() > cache.budget_bytes() * 15 / 16, "only {} bytes are used", cache.bytes());
}

#[test]
fn a_scan_pins_nothing() {
    let files = Tables::write(2, CELLS);
    let cache = Arc::new(BlockCache::new(8 << 20));
    files.open_all(&cache).iter().for_each(scan);
    assert_eq!(cache.pinned_bytes(), 0);
}

#[test]
fn hits_of_pinned_blocks_are_counted() {
    let files = Tables::write(1, CELLS);
    let cache = Arc::new(BlockCache::new(8 << 20));
    let table = files.open(0, &cache);
    let counts =
        |stats: CacheStats| [stats.filter, stats.index, stats.data].map(|kind| (kind.hits, kind.misses));
    get(&table, 0, 7);
    assert_eq!((counts(cache.stats()), cache.pinned_bytes()), ([(0, 1); 3], 0));
    let pinned = table.overhead_bytes();
    let bytes = cache.bytes();
    for again in 1..5 {
        get(&table, 0, 7);
        assert_eq!(counts(cache.stats()), [(again, 1); 3]);
        assert_eq!(cache.pinned_bytes(), cache.stats().filter.bytes + cache.stats().index.bytes);
    }
    assert!(cache.pinned_bytes() > 0);
    assert_eq!(
        (cache.bytes(), table.overhead_bytes()),
        (bytes, pinned),
        "a block that moves is counted once"
    );
    table.cursor(ReadMode::Scan).seek(&key(0, 7)).unwrap();
    assert_eq!(counts(cache.stats()), [(4, 1), (5, 1), (4, 1)], "a scan is not counted");
}

#[test]
fn without_a_pinning_budget_all_blocks_go_through_the_cache() {
    let files = Tables::write(2, 1_000);
    // A filter fits into the first budget but not into its half; nothing fits into the second.
    for budget in [2 << 10, 0] {
        let cache = Arc::new(BlockCache::new(budget));
        let tables = files.open_all(&cache);
        for i in (0..2_000).step_by(13) {
            get(&tables[0], 0, i);
            get(&tables[1], 1, i);
            check(&cache);
        }
        tables.iter().for_each(scan);
        assert_eq!(cache.pinned_bytes(), 0);
        assert_eq!(cache.stats().filter.hits > 0, budget > 0);
    }
}

#[test]
fn the_budget_holds_under_concurrent_reads_and_table_changes() {
    let files = Tables::write(16, CELLS);
    let cache = Arc::new(BlockCache::new(512 << 10));
    let shared = files.open_all(&cache);
    std::thread::scope(|scope| {
        for reader in 0..4 {
            let (files, cache, shared) = (&files, &cache, &shared);
            scope.spawn(move || {
                let mut rng = Rng::new(reader);
                for _ in 0..100 {
                    let table = rng.below(16);
                    let own = files.open(table, cache);
                    for _ in 0..20 {
                        get(&own, table, rng.below(2 * CELLS));
                        get(&shared[table as usize], table, rng.below(2 * CELLS));
                        check(cache);
                    }
                }
            });
        }
    });
    check_kinds(&cache);
    drop(shared);
    assert_eq!(cache.pinned_bytes(), 0);
    check_kinds(&cache);
}
