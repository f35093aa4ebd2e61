//! How fast tables are, on one core: writing, point reads from the cache, reads the filter answers, scans.
//!
//! `cargo run --release -p engine --example table_speed [cells] [value bytes]`. Prints nanoseconds per
//! operation; of gets and seeks, those of the best of many rounds, so that other load disturbs less. Nothing
//! asserts on them.

use engine::Compression;
use engine::cache::BlockCache;
use engine::iter::Cursor;
use engine::sstable::{Lookup, Reading, Table, TableId, TableMeta, TableOptions, TableWriter, Wait};
use env::{Fs, OpenMode, OsFs};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stdx::{CellMeta, CellRef, Hlc, NodeTag, Rng, Version};
use xxhash_rust::xxh3::xxh3_64;

/// Rounds of gets and seeks; the best counts.
const ROUNDS: usize = 40;
/// Operations in a round.
const LOOKUPS: u64 = 1 << 15;
/// Rounds of scans.
const SCANS: usize = 5;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("a number"));
    let cells = arguments.next().unwrap_or(500_000);
    let value_bytes = arguments.next().unwrap_or(100) as usize;
    let directory = tempfile::tempdir().expect("a temporary directory");
    println!("{cells} cells, keys of 16 bytes, values of {value_bytes}");
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd(3)] {
        let options = TableOptions { compression, ..TableOptions::default() };
        measure(directory.path(), cells, value_bytes, options);
    }
}

fn measure(directory: &Path, cells: u64, value_bytes: usize, options: TableOptions) {
    let fs: Arc<dyn Fs> = Arc::new(OsFs::new());
    let path = directory.join("speed.sst");
    let file = fs.open(&path, OpenMode::CreateOrTruncate).expect("a new file");
    let started = Instant::now();
    let mut writer = TableWriter::new(file, path.clone(), TableId(1), options);
    let mut rng = Rng::new(1);
    let mut value = vec![0; value_bytes];
    for i in 0..cells {
        // Half of each value is random, so that it compresses about as texts do.
        rng.fill(&mut value[..value_bytes / 2]);
        writer.add(&key(i * 2), cell(i, &value)).expect("a cell is added");
    }
    let meta = Arc::new(writer.finish().expect("a table"));
    report("write", started.elapsed(), cells);
    println!(
        "  {:?}: {} bytes a cell on disk, {} before",
        options.compression,
        meta.file_bytes / cells,
        meta.data_bytes / cells
    );

    let cache = Arc::new(BlockCache::new(4 << 30));
    let table = Arc::new(open(&fs, &path, &meta, &cache));
    scan("scan, nothing cached", 1, &table, Reading::Cached);
    scan("scan, all cached", SCANS, &table, Reading::Cached);
    scan("scan, bulk", SCANS, &table, Reading::Bulk);
    println!("  cache: {} bytes a cell, pinned {} bytes", cache.bytes() / cells, table.pinned_bytes());

    get("get, key there", &table, cells, true);
    get("get, key not there", &table, cells, false);
    seek(&table, cells);

    let started = Instant::now();
    table.verify(&mut |_| ()).expect("the table is whole");
    report("verify", started.elapsed(), cells);
}

fn open(fs: &Arc<dyn Fs>, path: &Path, meta: &Arc<TableMeta>, cache: &Arc<BlockCache>) -> Table {
    Table::open(fs.clone(), path.to_owned(), meta.clone(), cache.clone(), Arc::new(|_| ()))
}

fn key(i: u64) -> [u8; 16] {
    let mut key = *b"user000000000000";
    let digits = format!("{i:012}");
    key[4..].copy_from_slice(digits.as_bytes());
    key
}

fn cell(i: u64, value: &[u8]) -> CellRef<'_> {
    let version =
        Version::new(Hlc::from_bits(0x0123_4567_89ab_0000 + i * 7919), NodeTag(0xfeed_beef_dead_cafe));
    CellRef { meta: CellMeta::value(version, 3), value }
}

fn scan(name: &str, rounds: usize, table: &Arc<Table>, reading: Reading) {
    best_of(name, rounds, table.meta().cells, || {
        let mut cursor = table.cursor(reading);
        cursor.seek_to_first().expect("a first entry");
        let mut bytes = 0;
        while let Some((key, cell)) = cursor.entry() {
            bytes += key.len() + cell.value.len();
            cursor.advance().expect("a next entry");
        }
        assert_eq!(bytes as u64, table.meta().data_bytes);
    });
}

fn get(name: &str, table: &Table, cells: u64, there: bool) {
    let mut rng = Rng::new(2);
    let keys: Vec<_> = (0..LOOKUPS).map(|_| key(rng.below(cells) * 2 + u64::from(!there))).collect();
    let keys: Vec<_> = keys.into_iter().map(|key| (key, xxh3_64(&key))).collect();
    best_of(name, ROUNDS, LOOKUPS, || {
        for (key, hash) in &keys {
            let lookup = table.get(key, *hash, Wait::Allowed).expect("an answer");
            assert_eq!(matches!(lookup, Lookup::Found(_)), there);
        }
    });
}

fn seek(table: &Arc<Table>, cells: u64) {
    let mut rng = Rng::new(3);
    let mut cursor = table.cursor(Reading::Cached);
    let keys: Vec<_> = (0..LOOKUPS).map(|_| key(rng.below(cells * 2 - 1))).collect();
    best_of("seek", ROUNDS, LOOKUPS, || {
        for key in &keys {
            cursor.seek(key).expect("a seek");
            assert!(cursor.entry().is_some());
        }
    });
}

fn best_of(name: &str, rounds: usize, operations: u64, mut round: impl FnMut()) {
    let best = (0..rounds).map(|_| {
        let started = Instant::now();
        round();
        started.elapsed()
    });
    report(name, best.min().expect("a round"), operations);
}

fn report(name: &str, elapsed: Duration, operations: u64) {
    println!("  {name:<24} {:8.1} ns", elapsed.as_nanos() as f64 / operations as f64);
}
