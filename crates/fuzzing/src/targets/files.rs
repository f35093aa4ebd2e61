//! Files of the engine: any bytes are read completely, read up to a cut, or refused.

use crate::repair;
use engine::internals::sstable::{TableId, TableOptions, TableWriter};
use engine::internals::wal::record::RecordBuilder;
use engine::internals::wal::replay::{SegmentEnd, replay_bytes};
use engine::{Batch, Compression, Engine, HashRange, Options, OwnedRange};
use env::{Env, Fs, ManualClock, MemFs, OpenMode};
use std::path::Path;
use std::sync::Arc;
use stdx::{Cell, CellMeta, Hlc, NodeTag, Version, WallTime};

/// Reads any bytes as a table.
pub fn table(bytes: &[u8]) {
    for bytes in [bytes, &repair::table(bytes)] {
        let _ = engine::internals::sstable::check_bytes(bytes);
    }
}

/// Reads any bytes as a manifest.
pub fn manifest(bytes: &[u8]) {
    for bytes in [bytes, &repair::manifest(bytes)] {
        let _ = engine::internals::manifest::check_bytes(bytes);
    }
}

/// Reads any bytes as a record of the log. An accepted record can be iterated.
pub fn wal_record(bytes: &[u8]) {
    for bytes in [bytes, &repair::wal_record(bytes)] {
        if let Ok(record) = engine::internals::wal::record::decode(bytes) {
            assert!(record.len <= bytes.len());
            assert_eq!(record.cells.len(), record.cells.count());
        }
    }
}

/// Reads any bytes as a segment of a log: as the last one, and as one whose end the next segment
/// names.
pub fn wal_segment(bytes: &[u8]) {
    for bytes in [bytes, &repair::wal_segment(bytes)] {
        for end in [SegmentEnd::Torn, SegmentEnd::Known(bytes.len() as u64)] {
            if let Ok(contents) = replay_bytes(bytes, end) {
                assert!(contents.len <= bytes.len() as u64);
                let cells: usize = contents.iter().map(Iterator::count).sum();
                assert_eq!(cells as u64, contents.cells);
            }
        }
    }
}

fn version(number: u64) -> Version {
    Version::new(Hlc::from_bits(number << 20), NodeTag(number % 3))
}

fn value(number: u64) -> Cell {
    let value = vec![number as u8; (number % 40) as usize];
    Cell::value(version(number), 1 + (number % 3) as u8, value.into())
}

fn cell(number: u64) -> Cell {
    let (version, value) = (version(number), value(number));
    match number % 7 {
        0 => Cell::tombstone(version, 1),
        1 => {
            let expires_at = Some(WallTime::from_micros_since_unix_epoch(number << 30));
            Cell { meta: CellMeta { expires_at, ..CellMeta::value(version, 1) }, ..value }
        }
        _ => value,
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("shared/prefix/{number:05}").into_bytes()
}

/// Tables of one block, of small blocks for several partitions, and compressed tables.
pub fn table_seeds() -> Vec<Vec<u8>> {
    let none = TableOptions { block_bytes: 256, compression: Compression::None, filter_bits_per_key: 10 };
    let all = [
        (3, none),
        (60, none),
        (60, TableOptions { filter_bits_per_key: 0, ..none }),
        (60, TableOptions { compression: Compression::Lz4, ..none }),
        (60, TableOptions { compression: Compression::Zstd(1), ..none }),
    ];
    let of_small_cells = all.into_iter().map(|(cells, options)| table_of((0..cells).map(entry), options));
    // Values that compress well, so that the seeds are short.
    let lz4 = TableOptions { compression: Compression::Lz4, ..none };
    let oversized = [1, 8, 30].map(|every| {
        let entries = (0..30).map(|number| match number % every {
            0 => (key(number), Cell { value: vec![number as u8; 64 << 10].into(), ..value(number) }),
            _ => entry(number),
        });
        table_of(entries, lz4)
    });
    of_small_cells.chain(oversized).collect()
}

fn entry(number: u64) -> (Vec<u8>, Cell) {
    (key(number), cell(number))
}

fn table_of(entries: impl Iterator<Item = (Vec<u8>, Cell)>, options: TableOptions) -> Vec<u8> {
    let (fs, path) = (MemFs::new(), Path::new("table.sst"));
    let file = fs.open(path, OpenMode::CreateNew).expect("memory does not fail");
    let mut writer = TableWriter::new(file, path.to_owned(), TableId(7), options);
    for (key, cell) in entries {
        writer.add(&key, cell.as_ref()).expect("memory does not fail");
    }
    writer.finish().expect("memory does not fail");
    fs.read_file(path).expect("it was written")
}

/// Records with cells.
pub fn wal_record_seeds() -> Vec<Vec<u8>> {
    let record = |cells: u64| {
        let mut record = RecordBuilder::default();
        (0..cells).for_each(|number| record.push(&key(number), cell(number).as_ref()));
        record.seal().bytes().to_vec()
    };
    [0, 1, 5, 20].map(record).to_vec()
}

/// Writes to an engine. The files of its file system are seeds.
fn written() -> MemFs {
    let fs = MemFs::new();
    let clock = Arc::new(ManualClock::new(WallTime::from_micros_since_unix_epoch(1 << 50)));
    let env = Env { fs: Arc::new(fs.clone()), clock };
    let options =
        Options { memtable_bytes: Some(64 << 10), wal_segment_bytes: 64 << 10, ..Options::default() };
    let (engine, _) = Engine::open(env, Path::new("/e"), options).expect("memory does not fail");
    for number in 0..30 {
        let mut batch = Batch::new();
        (0..1 + number % 4).for_each(|nth| batch.put(&key(number + nth), cell(number).as_ref()));
        engine.write(batch).expect("memory does not fail");
        if number % 10 == 9 {
            engine.flush().expect("memory does not fail");
        }
    }
    for name in [b"one", b"two"] {
        let mut ingest = engine.ingest(name, 0).expect("memory does not fail");
        ingest.push(b"ingested", cell(1).as_ref()).expect("memory does not fail");
        ingest.commit(b"a position").expect("memory does not fail");
    }
    engine.remove_ingest_cursor(b"one").expect("memory does not fail");
    let ranges = [HashRange { first: 0, last: 9 }, HashRange { first: 1 << 60, last: 1 << 61 }];
    let parts = [OwnedRange { range: ranges[0], stays_from: 3 }, OwnedRange::nothing_of(ranges[1])];
    engine.disown(&parts).expect("memory does not fail");
    fs
}

fn files_named(fs: &MemFs, is_named: impl Fn(&str) -> bool) -> Vec<Vec<u8>> {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let paths = fs.file_names().into_iter().filter(|path| is_named(&name(path)));
    paths.map(|path| fs.read_file(path).expect("it is there")).collect()
}

/// Manifests of an engine.
pub fn manifest_seeds() -> Vec<Vec<u8>> {
    files_named(&written(), |name| name.starts_with("manifest-"))
}

/// Segments of an engine, without the zeros at their end.
pub fn wal_segment_seeds() -> Vec<Vec<u8>> {
    let mut seeds = files_named(&written(), |name| name.ends_with(".wal"));
    for seed in &mut seeds {
        let len = seed.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        seed.truncate(len);
    }
    seeds
}
