//! Model tests of the memtable: random single-threaded histories.

use super::node::Probe;
use super::table::tower_chance;
use super::{ChunkPool, Memtable, hash_key};
use crate::iter::Cursor;
use crate::sequence::Sequence;
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use stdx::{Cell, CellKind, CellMeta, Hlc, NodeTag, Version, WallTime};

/// Capacity of the smallest memtable: histories of some hundred keys overflow its index.
const CAPACITY_BYTES: u64 = 4 << 10;
/// Capacity of a memtable that does not overflow. A sixteenth of it is touched at once, which takes
/// Miri a minute for a large one.
const LARGE_CAPACITY_BYTES: u64 = if cfg!(miri) { 64 << 10 } else { 1 << 20 };
/// Miri is about a thousand times slower: it runs the same code with fewer cases.
const CASES: u32 = if cfg!(miri) { 1 } else { 128 };
const WRITES_MAX: usize = if cfg!(miri) { 12 } else { 400 };
/// Near the greatest length of a client's key. Under Miri, hashing it would take most of the time.
const LONG_KEY_BYTES: usize = if cfg!(miri) { 300 } else { 8_299 };

/// `count`, or fewer under Miri, which still fill chunks and the index.
const fn scaled(count: u64) -> u64 {
    if cfg!(miri) { count / 25 } else { count }
}

#[derive(Default)]
struct Model {
    keys: BTreeMap<Vec<u8>, Vec<(Sequence, Cell)>>,
    aborted: Vec<Range<Sequence>>,
}

impl Model {
    fn insert(&mut self, sequence: Sequence, key: &[u8], cell: &Cell) -> bool {
        let cells = self.keys.entry(key.to_vec()).or_default();
        let superseded = cells.iter().any(|(_, other)| other.meta.version > cell.meta.version);
        cells.push((sequence, cell.clone()));
        superseded
    }

    fn insert_all(&mut self, first: Sequence, batch: &[(Vec<u8>, Cell)]) -> Vec<u32> {
        let superseded = |(at, (key, cell)): (u32, &(Vec<u8>, Cell))| {
            self.insert(first.plus(u64::from(at)), key, cell).then_some(at)
        };
        (0..).zip(batch).filter_map(superseded).collect()
    }

    fn get(&self, key: &[u8], visible: Sequence) -> Option<Cell> {
        let mut newest: Option<&Cell> = None;
        for (sequence, cell) in self.keys.get(key)? {
            let seen = *sequence <= visible && !self.aborted.iter().any(|range| range.contains(sequence));
            if seen && newest.is_none_or(|newest| cell.as_ref().supersedes(&newest.as_ref())) {
                newest = Some(cell);
            }
        }
        newest.cloned()
    }

    fn from(&self, key: &[u8], visible: Sequence) -> Vec<(Vec<u8>, Cell)> {
        let keys = self.keys.range(key.to_vec()..).map(|(key, _)| key);
        let newest = |key: &Vec<u8>| {
            let from = self.keys[key].iter().map(|(_, cell)| cell.meta.from).max()?;
            Some((key.clone(), self.get(key, visible)?.with_from_of_at_least(from)))
        };
        keys.filter_map(newest).collect()
    }
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        // Around the length of the compared prefix, including zeros as in its padding.
        4 => vec(prop::sample::select(vec![0u8, 1, b'a', 0xff]), 1..=10),
        3 => (0u16..400).prop_map(|number| format!("a/shared/prefix/{number:04}").into_bytes()),
        1 => vec(any::<u8>(), 1..=3),
        1 => (0u8..4).prop_map(|end| [vec![b'k'; LONG_KEY_BYTES], vec![end]].concat()),
    ]
}

fn cell() -> impl Strategy<Value = Cell> {
    let value = prop_oneof![
        6 => vec(any::<u8>(), 0..40),
        1 => (2_040usize..2_060).prop_map(|bytes| vec![9; bytes]),
        1 => Just(vec![7; 100_000]),
    ];
    (0u64..12, 0u64..2, any::<bool>(), prop::option::of(0u64..3), 1u8..4, value).prop_map(
        |(hlc, tag, tombstone, expiry, from, value)| {
            let version = Version::new(Hlc::from_bits(hlc), NodeTag(tag));
            let expires_at = expiry.map(WallTime::from_micros_since_unix_epoch);
            if tombstone {
                Cell::tombstone(version, from)
            } else {
                let meta = CellMeta { expires_at, ..CellMeta::value(version, from) };
                Cell { meta, value: Bytes::from(value) }
            }
        },
    )
}

fn entries_from(table: &Arc<Memtable>, key: &[u8], visible: Sequence) -> Vec<(Vec<u8>, Cell)> {
    let mut cursor = table.cursor(visible);
    cursor.seek(key).expect("a memtable does not fail");
    let mut entries = Vec::new();
    while let Some((key, cell)) = cursor.entry() {
        entries.push((key.to_vec(), cell.to_cell()));
        cursor.advance().expect("a memtable does not fail");
    }
    entries
}

/// Splits `writes` into batches of these sizes, repeated cyclically.
fn in_batches<'a, T>(mut writes: &'a [T], sizes: &[usize]) -> Vec<&'a [T]> {
    let mut sizes = sizes.iter().cycle();
    let mut batches = Vec::new();
    while !writes.is_empty() {
        let size = *sizes.next().expect("there is a size");
        let (batch, rest) = writes.split_at(size.min(writes.len()));
        batches.push(batch);
        writes = rest;
    }
    batches
}

/// Inserts a batch; a batch of one cell by `insert`.
fn insert_all(table: &Memtable, first: Sequence, batch: &[(Vec<u8>, Cell)]) -> Vec<u32> {
    match batch {
        [(key, cell)] if table.insert(first, key, cell.as_ref()) => vec![0],
        [_] => Vec::new(),
        batch => table.insert_all(first, batch.iter().map(|(key, cell)| (&key[..], cell.as_ref()))),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn it_agrees_with_a_map_of_all_cells(
        writes in vec((key(), cell()), 1..WRITES_MAX),
        batch_cells in vec(1usize..50, 1..20),
        aborted in vec((1u64..400, 0u64..5), 0..3),
        sights in vec((0u64..400, key()), 1..8),
    ) {
        let table = Arc::new(Memtable::new(7, CAPACITY_BYTES));
        let mut model = Model::default();
        let mut first = Sequence(1);
        for batch in in_batches(&writes, &batch_cells) {
            let expected = model.insert_all(first, batch);
            prop_assert_eq!(insert_all(&table, first, batch), expected);
            first = first.plus(batch.len() as u64);
        }
        for (start, count) in aborted {
            let range = Sequence(start)..Sequence(start + count);
            table.abort(range.clone());
            model.aborted.push(range);
        }
        for (visible, from) in sights.into_iter().chain([(u64::MAX, vec![0])]) {
            let visible = Sequence(visible);
            prop_assert_eq!(entries_from(&table, &from, visible), model.from(&from, visible));
            for key in model.keys.keys().chain([&from]) {
                prop_assert_eq!(table.get(key, hash_key(key), visible), model.get(key, visible));
            }
        }
        prop_assert_eq!(table.cells(), writes.len() as u64);
        prop_assert!(model.keys.keys().all(|key| table.may_contain(hash_key(key))));
        for (_, cell) in &writes {
            prop_assert!((table.version_min()..=table.version_max()).contains(&cell.meta.version));
        }
    }
}

fn value(version: u64, bytes: usize) -> Cell {
    Cell::value(Version::new(Hlc::from_bits(version), NodeTag(0)), 1, Bytes::from(vec![1; bytes]))
}

#[test]
fn an_empty_memtable_bounds_no_version_and_contains_no_key() {
    let table = Arc::new(Memtable::new(3, CAPACITY_BYTES));
    assert_eq!(table.id(), 3);
    assert!(table.is_empty());
    assert!(table.version_min() > table.version_max());
    assert!(!table.may_contain(hash_key(b"key")));
    assert_eq!(table.get(b"key", hash_key(b"key"), Sequence::MAX), None);
    assert_eq!(entries_from(&table, b"", Sequence::MAX), []);
}

#[test]
fn keys_that_do_not_fit_into_the_index_are_found() {
    let table = Memtable::new(0, CAPACITY_BYTES);
    let count = scaled(5_000) as u32;
    let keys: Vec<_> = (0..count).map(u32::to_be_bytes).collect();
    for (at, key) in keys.iter().enumerate() {
        table.insert(Sequence(at as u64), key, value(1, 3).as_ref());
    }
    assert!(keys.iter().all(|key| table.get(key, hash_key(key), Sequence::MAX).is_some()));
    let absent = (count..2 * count).map(u32::to_be_bytes);
    assert!(absent.into_iter().all(|key| table.get(&key, hash_key(&key), Sequence::MAX).is_none()));
}

#[test]
#[cfg_attr(miri, ignore = "statistics of many keys")]
fn an_index_with_room_seldom_takes_an_absent_key_for_a_present_one() {
    let table = Memtable::new(0, 1 << 20);
    for key in (0..4_000u32).map(u32::to_be_bytes) {
        table.insert(Sequence(1), &key, value(1, 3).as_ref());
    }
    let absent = (4_000..24_000u32).map(|key| hash_key(&key.to_be_bytes()));
    let mistaken = absent.filter(|hash| table.may_contain(*hash)).count();
    assert!(mistaken < 20, "{mistaken} of 20,000");
}

#[test]
fn bytes_used_grow_with_each_insert_and_stay_within_bytes() {
    let table = Memtable::new(0, LARGE_CAPACITY_BYTES);
    let mut before = table.bytes_used();
    for at in 0..scaled(2_000) {
        let cell = value(at, if at % 100 == 0 { 50_000 } else { 100 });
        table.insert(Sequence(at), &at.to_be_bytes(), cell.as_ref());
        let used = table.bytes_used();
        assert!(used >= before + cell.value.len() as u64 && used <= table.bytes());
        before = used;
    }
}

/// Number of comparisons in a search for `key`.
fn search_steps(table: &Memtable, key: &[u8]) -> usize {
    let mut search = table.skiplist().search(Probe::new(key));
    let mut steps = 0;
    while search.step() {
        steps += 1;
    }
    steps
}

/// Number of steps of a search beyond all keys, in a memtable with `seed`, of 4,000 keys that would
/// all have the lowest towers if the seed were `guessed`.
fn steps_behind_chosen_keys(seed: u64, guessed: u64) -> usize {
    let table = Memtable::from_pool(0, &Arc::new(ChunkPool::new(CAPACITY_BYTES)), seed);
    let mut key = 0u64;
    for sequence in (1..=4_000).map(Sequence) {
        let is_low = |key: u64| tower_chance(guessed, sequence, hash_key(&key.to_be_bytes())) & 0b11 != 0;
        key = (key + 1..).find(|key| is_low(*key)).expect("most are low");
        table.insert(sequence, &key.to_be_bytes(), value(1, 3).as_ref());
    }
    search_steps(&table, &u64::MAX.to_be_bytes())
}

#[test]
#[cfg_attr(miri, ignore = "statistics of many keys")]
fn without_the_seed_no_choice_of_keys_makes_searches_long() {
    assert!(steps_behind_chosen_keys(7, 7) > 3_000, "with the seed it is easy");
    for seed in 8..16 {
        let steps = steps_behind_chosen_keys(seed, 7);
        assert!(steps < 200, "{steps} steps with seed {seed}");
    }
}

/// Hashes that cancel the sequence out would give all nodes one height if both were only combined
/// by `xor`.
#[test]
fn hashes_that_follow_the_sequence_have_towers_of_all_heights() {
    for seed in 0..8 {
        let lowest = |hash: &u64| tower_chance(seed, Sequence(*hash), *hash ^ 77) & 0b11 != 0;
        let lowest = (0..1_000).filter(lowest).count();
        assert!((650..850).contains(&lowest), "{lowest} of 1,000 with seed {seed}");
    }
}

#[test]
fn a_large_value_is_shared_with_its_readers_and_outlives_the_memtable() {
    let table = Memtable::new(0, CAPACITY_BYTES);
    table.insert(Sequence(1), b"key", value(1, 1 << 20).as_ref());
    let read = || table.get(b"key", hash_key(b"key"), Sequence::MAX).expect("it was inserted");
    let (one, two) = (read(), read());
    assert_eq!(one.value.as_ptr(), two.value.as_ptr());
    drop(table);
    assert_eq!(one, value(1, 1 << 20));
}

#[test]
fn a_cursor_outlives_every_other_owner_of_its_memtable() {
    let table = Arc::new(Memtable::new(0, CAPACITY_BYTES));
    for key in [b"a", b"b", b"c"] {
        table.insert(Sequence(1), key, value(1, 10).as_ref());
    }
    let mut cursor = table.cursor(Sequence::MAX);
    cursor.seek(b"b").expect("a memtable does not fail");
    drop(table);
    cursor.advance().expect("a memtable does not fail");
    let (key, cell) = cursor.entry().expect("the third key");
    assert_eq!((key, cell.meta.kind), (b"c".as_slice(), CellKind::Value));
}

#[test]
fn a_memtable_of_reused_chunks_shows_no_earlier_cells() {
    let pool = Arc::new(ChunkPool::new(LARGE_CAPACITY_BYTES));
    for round in 0..4u64 {
        let kept = pool.bytes();
        let table = Arc::new(Memtable::from_pool(round, &pool, 0));
        assert_eq!(pool.bytes() < kept, round > 0, "round {round}");
        assert_eq!(entries_from(&table, b"", Sequence::MAX), []);
        let keys: Vec<_> =
            (0..scaled(1_000)).map(|at| (at * (round + 3) % 1_009).to_string().into_bytes()).collect();
        for (at, key) in keys.iter().enumerate() {
            assert_eq!(table.get(key, hash_key(key), Sequence::MAX), None);
            table.insert(Sequence(at as u64), key, value(round, 100).as_ref());
        }
        let mut expected: Vec<_> = keys.into_iter().map(|key| (key, value(round, 100))).collect();
        expected.sort_by(|one, other| one.0.cmp(&other.0));
        assert_eq!(entries_from(&table, b"", Sequence::MAX), expected);
    }
}
