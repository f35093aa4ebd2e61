//! Measures tables on one core: writes, point reads from the cache, reads that the filter answers,
//! scans.
//!
//! `cargo run --release -p engine --example table_speed [cells] [value bytes]`. Prints nanoseconds
//! per operation. Where there are rounds, prints those of the round at the lower quartile, to
//! exclude other load on the machine. Nothing asserts on them.

use engine::Compression;
use engine::Cursor;
use engine::internals::cache::BlockCache;
use engine::internals::sstable::{
    Lookup, ReadMode, Table, TableFiles, TableId, TableMeta, TableOptions, TableWriter, Wait,
};
use env::{Fs, OpenMode, OsFs};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use stdx::{CellMeta, CellRef, Hlc, NodeTag, Rng, Version};
use xxhash_rust::xxh3::xxh3_64;

/// Number of keys to read or seek.
const LOOKUPS: u64 = 1 << 18;
/// Operations in a round: few, so that some rounds are not interrupted.
const ROUND: usize = 256;

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
    let mut writer = TableWriter::new(file, path.clone(), TableId(1), options);
    let mut rng = Rng::new(1);
    let mut value = vec![0; value_bytes];
    let mut rounds = Rounds::default();
    for first in (0..cells).step_by(4 * ROUND) {
        rounds.time(4 * ROUND, || {
            for i in first..cells.min(first + 4 * ROUND as u64) {
                // Half of each value is random, so that it compresses about as texts do.
                rng.fill(&mut value[..value_bytes / 2]);
                writer.add(&key(i * 2), cell(i, &value)).expect("a cell is added");
            }
        });
    }
    let meta = Arc::new(writer.finish().expect("a table"));
    rounds.report("write");
    println!(
        "  {:?}: {} bytes a cell on disk, {} before",
        options.compression,
        meta.file_bytes / cells,
        meta.data_bytes / cells
    );

    let cache = Arc::new(BlockCache::new(4 << 30));
    let table = Arc::new(open(&fs, &path, &meta, &cache));
    scan("scan, nothing cached", &table, ReadMode::Scan);
    (0..cells).for_each(|i| load(&table, i));
    scan("scan, all cached", &table, ReadMode::Scan);
    scan("scan, bulk", &table, ReadMode::Bulk);
    println!("  cache: {} bytes a cell, pinned {} bytes", cache.bytes() / cells, table.overhead_bytes());

    get("get, key there", &table, cells, true);
    get("get, key not there", &table, cells, false);
    seek(&table, cells);

    table.verify(&mut |_| ()).expect("the table is whole");
}

fn open(fs: &Arc<dyn Fs>, path: &Path, meta: &Arc<TableMeta>, cache: &Arc<BlockCache>) -> Table {
    Table::open(
        &Arc::new(TableFiles::new(fs.clone(), 1)),
        path.to_owned(),
        meta.clone(),
        cache.clone(),
        Arc::new(|_| ()),
    )
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

fn scan(name: &str, table: &Arc<Table>, mode: ReadMode) {
    let mut cursor = table.cursor(mode);
    cursor.seek_to_first().expect("a first entry");
    let mut bytes = 0;
    let mut rounds = Rounds::default();
    while cursor.entry().is_some() {
        // A few blocks at a time.
        rounds.time(4 * ROUND, || {
            for _ in 0..4 * ROUND {
                let Some((key, cell)) = cursor.entry() else { return };
                bytes += key.len() + cell.value.len();
                cursor.advance().expect("a next entry");
            }
        });
    }
    rounds.report(name);
    assert_eq!(bytes as u64, table.meta().data_bytes);
}

/// Loads the block of a cell into the cache: scans leave none there.
fn load(table: &Table, i: u64) {
    let key = key(i * 2);
    let lookup = table.get(&key, xxh3_64(&key), Wait::Allowed).expect("an answer");
    assert!(matches!(lookup, Lookup::Found(_)));
}

fn get(name: &str, table: &Table, cells: u64, there: bool) {
    let mut rng = Rng::new(2);
    let keys: Vec<_> = (0..LOOKUPS).map(|_| key(rng.below(cells) * 2 + u64::from(!there))).collect();
    let keys: Vec<_> = keys.into_iter().map(|key| (key, xxh3_64(&key))).collect();
    let mut rounds = Rounds::default();
    for keys in keys.chunks_exact(ROUND) {
        rounds.time(keys.len(), || {
            for (key, hash) in keys {
                let lookup = table.get(key, *hash, Wait::Allowed).expect("an answer");
                assert_eq!(matches!(lookup, Lookup::Found(_)), there);
            }
        });
    }
    rounds.report(name);
}

fn seek(table: &Arc<Table>, cells: u64) {
    let mut rng = Rng::new(3);
    let mut cursor = table.cursor(ReadMode::Scan);
    let keys: Vec<_> = (0..LOOKUPS).map(|_| key(rng.below(cells * 2 - 1))).collect();
    let mut rounds = Rounds::default();
    for keys in keys.chunks_exact(ROUND) {
        rounds.time(keys.len(), || {
            for key in keys {
                cursor.seek(key).expect("a seek");
                assert!(cursor.entry().is_some());
            }
        });
    }
    rounds.report("seek");
}

/// Nanoseconds per operation of each round.
#[derive(Default)]
struct Rounds(Vec<f64>);

impl Rounds {
    fn time(&mut self, operations: usize, round: impl FnOnce()) {
        let started = Instant::now();
        round();
        self.0.push(started.elapsed().as_nanos() as f64 / operations as f64);
    }

    fn report(mut self, name: &str) {
        self.0.sort_by(f64::total_cmp);
        println!("  {name:<24} {:8.1} ns", self.0[self.0.len() / 4]);
    }
}
