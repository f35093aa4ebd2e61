//! A cursor over a level equals a cursor over all cells of its tables.

use bytes::Bytes;
use engine::internals::cache::BlockCache;
use engine::internals::iter::{Cursor, LevelCursor};
use engine::internals::sstable::{ReadMode, Table, TableFiles, TableId, TableOptions, TableWriter};
use env::{Fs, MemFs, OpenMode};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use stdx::{Cell, Hlc, NodeTag, Version};

type Entries = Vec<(Vec<u8>, Cell)>;

/// Small blocks, so that tables have several.
const OPTIONS: TableOptions =
    TableOptions { block_bytes: 256, compression: engine::Compression::None, filter_bits_per_key: 10 };

fn table(fs: &MemFs, id: u64, entries: &[(Vec<u8>, Cell)]) -> Arc<Table> {
    let path = PathBuf::from(format!("{id}.sst"));
    let file = fs.open(&path, OpenMode::CreateNew).expect("the file is new");
    let mut writer = TableWriter::new(file, path.clone(), TableId(id), OPTIONS);
    for (key, cell) in entries {
        writer.add(key, cell.as_ref()).expect("a disk in memory does not fail");
    }
    let meta = Arc::new(writer.finish().expect("a disk in memory does not fail"));
    let cache = Arc::new(BlockCache::new(1 << 20));
    Arc::new(Table::open(
        &Arc::new(TableFiles::new(Arc::new(fs.clone()), 1)),
        path,
        meta,
        cache,
        Arc::new(|_| ()),
    ))
}

/// One table for each run of entries between two cuts.
fn level(fs: &MemFs, entries: &[(Vec<u8>, Cell)], mut cuts: Vec<usize>) -> Vec<Arc<Table>> {
    cuts.extend([0, entries.len()]);
    cuts.sort_unstable();
    let runs = cuts.windows(2).map(|cut| &entries[cut[0]..cut[1]]).filter(|run| !run.is_empty());
    runs.enumerate().map(|(id, run)| table(fs, id as u64, run)).collect()
}

fn rest(cursor: &mut LevelCursor) -> Entries {
    let mut entries = Vec::new();
    while let Some((key, cell)) = cursor.entry() {
        entries.push((key.to_vec(), cell.to_cell()));
        cursor.advance().expect("a disk in memory does not fail");
    }
    entries
}

fn cell(version: u64) -> Cell {
    Cell::value(Version::new(Hlc::from_bits(version), NodeTag(0)), 1, Bytes::from(vec![7; 20]))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_level_cursor_equals_a_cursor_over_all_cells(
        model in btree_map(vec(0u8..6, 1..5), (0u64..9).prop_map(cell), 0..120),
        cuts in vec(any::<prop::sample::Index>(), 0..6),
        sought in vec(vec(0u8..7, 0..5), 0..12),
        bulk: bool,
    ) {
        let entries: Entries = model.clone().into_iter().collect();
        let cuts = cuts.into_iter().map(|cut| cut.index(entries.len() + 1)).collect();
        let reading = if bulk { ReadMode::Bulk } else { ReadMode::Scan };
        let fs = MemFs::new();
        let mut cursor = LevelCursor::new(level(&fs, &entries, cuts), reading);
        prop_assert_eq!(cursor.entry(), None);
        cursor.seek_to_first().expect("a disk in memory does not fail");
        prop_assert_eq!(rest(&mut cursor), entries);
        for from in sought {
            cursor.seek(&from).expect("a disk in memory does not fail");
            let first = model.range(from.clone()..).next();
            prop_assert_eq!(cursor.entry(), first.map(|(key, cell)| (key.as_slice(), cell.as_ref())));
            if from.len() % 2 == 0 {
                let model: BTreeMap<_, _> = model.range(from..).map(|(k, c)| (k.clone(), c.clone())).collect();
                prop_assert_eq!(rest(&mut cursor), model.into_iter().collect::<Entries>());
            }
        }
    }
}

#[test]
fn a_level_cursor_is_past_the_last_entry_after_a_failed_read() {
    let fs = MemFs::new();
    let entries: Entries = (0..100u8).map(|key| (vec![key], cell(1))).collect();
    let mut cursor = LevelCursor::new(level(&fs, &entries, vec![50]), ReadMode::Scan);
    let mut bytes = fs.read_file("1.sst").expect("the second table");
    bytes[100] ^= 1;
    fs.write_file("1.sst", &bytes).expect("a disk in memory does not fail");
    cursor.seek(&[49]).expect("the first table is whole");
    assert!(cursor.advance().is_err());
    assert_eq!(cursor.entry(), None);
    cursor.seek(&[3]).expect("the first table is whole");
    assert_eq!(cursor.entry().map(|(key, _)| key), Some([3].as_slice()));
}
