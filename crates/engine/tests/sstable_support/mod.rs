//! Tables on an in-memory file system, and cells to fill them with.

use bytes::Bytes;
use engine::Compression;
use engine::Cursor;
use engine::internals::cache::BlockCache;
use engine::internals::sstable::{
    Lookup, OnObsolete, ReadMode, Table, TableFiles, TableId, TableMeta, TableOptions, TableWriter, Wait,
    check_bytes,
};
use env::{Fs, MemFs, OpenMode};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stdx::{Cell, CellKind, CellMeta, Hlc, NodeTag, Version, WallTime};
use xxhash_rust::xxh3::xxh3_64;

pub(crate) type Cells = BTreeMap<Vec<u8>, Cell>;

const ID: TableId = TableId(7);

/// A finished table with its file system and its cache.
pub(crate) struct Fixture {
    pub(crate) fs: Arc<MemFs>,
    pub(crate) path: PathBuf,
    pub(crate) meta: Arc<TableMeta>,
    pub(crate) cache: Arc<BlockCache>,
}

impl Fixture {
    pub(crate) fn new(cells: &Cells, options: TableOptions) -> Self {
        Self::on(MemFs::new(), cells, options)
    }

    pub(crate) fn on(fs: MemFs, cells: &Cells, options: TableOptions) -> Self {
        let path = PathBuf::from("table.sst");
        let mut writer = writer(&fs, &path, options);
        cells.iter().for_each(|(key, cell)| writer.add(key, cell.as_ref()).unwrap());
        let meta = Arc::new(writer.finish().unwrap());
        Self { fs: Arc::new(fs), path, meta, cache: Arc::new(BlockCache::new(64 << 20)) }
    }

    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        let fs = MemFs::new();
        fs.write_file("table.sst", bytes).unwrap();
        let meta = Arc::new(check_bytes(bytes).unwrap());
        let cache = Arc::new(BlockCache::new(64 << 20));
        Self { fs: Arc::new(fs), path: PathBuf::from("table.sst"), meta, cache }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.fs.read_file(&self.path).unwrap()
    }

    /// The same table on a copied file system, with a new cache.
    pub(crate) fn kill(&self) -> Self {
        Self {
            fs: Arc::new(self.fs.kill()),
            path: self.path.clone(),
            meta: self.meta.clone(),
            cache: Arc::new(BlockCache::new(64 << 20)),
        }
    }

    pub(crate) fn table(&self) -> Arc<Table> {
        self.table_with_trash(Arc::new(|_| ()))
    }

    pub(crate) fn table_with_trash(&self, trash: OnObsolete) -> Arc<Table> {
        let fs: Arc<dyn Fs> = self.fs.clone();
        Arc::new(Table::open(
            &Arc::new(TableFiles::new(fs, 1)),
            self.path.clone(),
            self.meta.clone(),
            self.cache.clone(),
            trash,
        ))
    }
}

pub(crate) fn writer(fs: &dyn Fs, path: &Path, options: TableOptions) -> TableWriter {
    let file = fs.open(path, OpenMode::CreateNew).unwrap();
    TableWriter::new(file, path.to_owned(), ID, options)
}

pub(crate) fn hash(key: &[u8]) -> u64 {
    xxh3_64(key)
}

pub(crate) fn get(table: &Table, key: &[u8]) -> Lookup {
    table.get(key, hash(key), Wait::Allowed).unwrap()
}

/// The metadata of a key's cell, by a read that does not need the value.
pub(crate) fn get_meta(table: &Table, key: &[u8]) -> Lookup<CellMeta> {
    table.get_meta(key, hash(key), Wait::Allowed).unwrap()
}

/// The metadata of these cells.
pub(crate) fn metas(cells: &Cells) -> BTreeMap<Vec<u8>, CellMeta> {
    cells.iter().map(|(key, cell)| (key.clone(), cell.meta)).collect()
}

/// The metadata of all cells, by a cursor for versions.
pub(crate) fn walk_versions(table: &Arc<Table>) -> BTreeMap<Vec<u8>, CellMeta> {
    let mut metas = BTreeMap::new();
    let mut cursor = table.cursor(ReadMode::Versions);
    cursor.seek_to_first().unwrap();
    while let Some((key, meta)) = cursor.key_and_meta() {
        assert!(metas.last_key_value().is_none_or(|(last, _): (&Vec<u8>, _)| last.as_slice() < key));
        metas.insert(key.to_vec(), meta);
        cursor.advance().unwrap();
    }
    metas
}

pub(crate) fn walk(table: &Arc<Table>, mode: ReadMode) -> Cells {
    let mut cells = Cells::new();
    let mut cursor = table.cursor(mode);
    cursor.seek_to_first().unwrap();
    while let Some((key, cell)) = cursor.entry() {
        assert!(cells.last_key_value().is_none_or(|(last, _)| last.as_slice() < key));
        cells.insert(key.to_vec(), cell.to_cell());
        cursor.advance().unwrap();
    }
    cells
}

pub(crate) fn value(hlc: u64, bytes: &[u8]) -> Cell {
    Cell::value(Version::new(Hlc::from_bits(hlc), NodeTag(11)), 1, Bytes::copy_from_slice(bytes))
}

/// `count` cells with keys `user000000000000`, `user000000000001`, ... and values of at least 100
/// bytes.
pub(crate) fn small_cells(count: u64) -> Cells {
    let cell = |i: u64| {
        let mut bytes: Vec<u8> =
            (0..100 + i % 30).map(|j| (i * 31 + j * 17) as u8 ^ (i >> 3) as u8).collect();
        bytes.extend_from_slice(&hash(&bytes).to_le_bytes());
        value(1_000 + i, &bytes)
    };
    (0..count).map(|i| (format!("user{i:012}").into_bytes(), cell(i))).collect()
}

/// Values with and without expiry, tombstones, empty values, long and short keys, and many nodes.
pub(crate) fn every_kind_of_cell() -> Cells {
    let cell = |i: u64| {
        let meta = CellMeta {
            version: Version::new(Hlc::from_bits(i << 40 | i), NodeTag(i % 300)),
            kind: if i.is_multiple_of(7) { CellKind::Tombstone } else { CellKind::Value },
            expires_at: i.is_multiple_of(5).then(|| WallTime::from_micros_since_unix_epoch(i << 30)),
            from: (i % 250) as u8 + 1,
        };
        let len = if i.is_multiple_of(7) { 0 } else { (i * i % 97) as usize };
        Cell { meta, value: Bytes::from(vec![i as u8; len]) }
    };
    let key = |i: u64| {
        let len = if i % 50 == 49 { 1_000 } else { 1 + (i % 13) as usize };
        [&i.to_be_bytes()[6..], &vec![b'k'; len][..]].concat()
    };
    (0..400).map(|i| (key(i), cell(i))).collect()
}

/// As [`every_kind_of_cell`], with oversized values between them that compress well.
pub(crate) fn with_oversized_cells() -> Cells {
    let mut cells = every_kind_of_cell();
    for (number, len) in [(0u64, 64 << 10), (7, 100 << 10), (8, 300 << 10), (399, 70 << 10)] {
        let meta = CellMeta {
            expires_at: (number > 7).then(|| WallTime::from_micros_since_unix_epoch(number << 40)),
            ..CellMeta::value(Version::new(Hlc::from_bits(number << 50 | 1), NodeTag(number << 40)), 3)
        };
        let key = [&number.to_be_bytes()[6..], b"k/oversized"].concat();
        cells.insert(key, Cell { meta, value: Bytes::from(vec![number as u8; len]) });
    }
    cells
}

/// Keys of few letters, so that many share prefixes; occasionally a long one.
pub(crate) fn key_of() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => prop::collection::vec(b'a'..=b'd', 1..10),
        3 => prop::collection::vec(any::<u8>(), 1..20),
        2 => (0u64..500).prop_map(|i| format!("some/long/shared/prefix/{i:06}").into_bytes()),
        1 => (200usize..8_300, any::<u8>()).prop_map(|(len, last)| [vec![b'z'; len - 1], vec![last]].concat()),
    ]
}

pub(crate) fn model() -> impl Strategy<Value = Cells> {
    let cells = prop_oneof![
        9 => prop::collection::btree_map(key_of(), cell_of(200), 1..300),
        1 => prop::collection::btree_map(key_of(), cell_of(1 << 20), 1..4),
    ];
    cells.boxed()
}

fn cell_of(value_bytes_max: usize) -> impl Strategy<Value = Cell> {
    let value = (0..=value_bytes_max, any::<u8>(), any::<bool>()).prop_map(|(len, seed, noisy)| {
        let noise = |i: usize| (xxh3_64(&(i / 8).to_le_bytes()) >> (i % 8 * 8)) as u8;
        (0..len).map(|i| if noisy { noise(i) ^ seed } else { seed }).collect::<Vec<u8>>()
    });
    let expiry = prop::option::of(0u64..1 << 52);
    (any::<u64>(), any::<u16>(), 0u8..5, expiry, 1u8..=255, value).prop_map(
        |(hlc, tag, kind, expiry, from, value)| {
            let kind = if kind == 0 { CellKind::Tombstone } else { CellKind::Value };
            let expires_at = expiry.map(WallTime::from_micros_since_unix_epoch);
            let version = Version::new(Hlc::from_bits(hlc), NodeTag(u64::from(tag)));
            let value = if kind == CellKind::Tombstone { Bytes::new() } else { Bytes::from(value) };
            Cell { meta: CellMeta { version, kind, expires_at, from }, value }
        },
    )
}

pub(crate) fn options_of() -> impl Strategy<Value = TableOptions> {
    let compression =
        prop_oneof![Just(Compression::None), Just(Compression::Lz4), Just(Compression::Zstd(1))];
    (1usize..20_000, compression, 0u32..20).prop_map(|(block_bytes, compression, filter_bits_per_key)| {
        TableOptions { block_bytes, compression, filter_bits_per_key }
    })
}
