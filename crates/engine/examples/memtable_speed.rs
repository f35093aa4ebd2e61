//! Compares the memtable with crossbeam's skiplist, and measures the cost that merging cursors adds
//! to an entry.
//!
//! `cargo run --release -p engine --example memtable_speed`. Keys are 16 random bytes, or 16 digits
//! of shuffled numbers; values have 100 bytes. There are as many as a memtable of 64 MiB holds.
//! Prints the best of five rounds, for one thread unless stated otherwise.

use crossbeam_skiplist::SkipMap;
use engine::internals::Sequence;
use engine::internals::iter::{Cursor, MergeCursor};
use engine::internals::memtable::{Memtable, hash_key};
use std::hint::black_box;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use stdx::{Cell, CellMeta, CellRef, Hlc, NodeTag, Rng, Version};

const CAPACITY_BYTES: u64 = 64 << 20;
const ENTRIES: usize = 300_000;
const ROUNDS: usize = 5;
const VALUE: [u8; 100] = [7; 100];
const SOURCES: usize = 4;
const BATCH: usize = 60;

type Key = [u8; 16];

fn main() {
    let keys = random_keys(1);
    let others = random_keys(2);
    println!("{:<44} {:>9} {:>9}", "ns per operation", "veche", "crossbeam");

    let ours = || Arc::new(Memtable::new(0, CAPACITY_BYTES));
    report(
        "insert, random",
        best(|| timed(&ours(), |table| fill(table, &keys))),
        best(|| timed(&SkipMap::new(), |map| fill_map(map, &keys))),
    );
    report(
        "insert, random, two threads at once",
        best(|| timed(&ours(), |table| in_two(&keys, |half| fill(table, half)))),
        best(|| timed(&SkipMap::new(), |map| in_two(&keys, |half| fill_map(map, half)))),
    );
    report(
        "insert, random, in batches",
        best(|| timed(&ours(), |table| fill_in_batches(table, &keys))),
        None,
    );
    let numbered = numbered_keys();
    report(
        "insert, numbered, in batches",
        best(|| timed(&ours(), |table| fill_in_batches(table, &numbered))),
        None,
    );
    let mut ascending = keys.clone();
    ascending.sort_unstable();
    report(
        "insert, ascending",
        best(|| timed(&ours(), |table| fill(table, &ascending))),
        best(|| timed(&SkipMap::new(), |map| fill_map(map, &ascending))),
    );

    let table = ours();
    fill(&table, &keys);
    let map = SkipMap::new();
    fill_map(&map, &keys);
    let mut shuffled = keys.clone();
    shuffle(&mut shuffled);
    report(
        "get, present",
        best(|| timed(&(), |()| assert_eq!(get_all(&table, &shuffled), ENTRIES))),
        best(|| timed(&(), |()| assert_eq!(get_all_map(&map, &shuffled), ENTRIES))),
    );
    report(
        "get, absent",
        best(|| timed(&(), |()| assert_eq!(get_all(&table, &others), 0))),
        best(|| timed(&(), |()| assert_eq!(get_all_map(&map, &others), 0))),
    );
    report(
        "seek",
        best(|| timed(&(), |()| seek_all(&table, &others))),
        best(|| timed(&(), |()| seek_all_map(&map, &others))),
    );
    report(
        "iterate",
        best(|| timed(&(), |()| assert_eq!(walk(&mut table.cursor(Sequence::MAX)), ENTRIES))),
        best(|| timed(&(), |()| assert_eq!(walk_map(&map), ENTRIES))),
    );
    report("overwrite", best(|| timed(&(), |()| fill(&table, &shuffled))), None);
    report("overwrite, in batches", best(|| timed(&(), |()| fill_in_batches(&table, &shuffled))), None);

    let sources: Vec<_> = (0..SOURCES)
        .map(|source| {
            let table = ours();
            fill(&table, &keys[source * ENTRIES / SOURCES..(source + 1) * ENTRIES / SOURCES]);
            table
        })
        .collect();
    let alone = best(|| {
        timed(&(), |()| {
            let cursors = sources.iter().map(|table| table.cursor(Sequence::MAX));
            assert_eq!(cursors.map(|mut cursor| walk(&mut cursor)).sum::<usize>(), ENTRIES);
        })
    });
    report("iterate, 4 memtables one after the other", alone, None);
    let merged = best(|| {
        timed(&(), |()| {
            let cursors =
                sources.iter().map(|table| Box::new(table.cursor(Sequence::MAX)) as Box<dyn Cursor>);
            assert_eq!(walk(&mut MergeCursor::new(cursors.collect())), ENTRIES);
        })
    });
    report("iterate, 4 memtables merged", merged, None);
    let start = Instant::now();
    drop(black_box(ours()));
    println!("\nan empty memtable, made and dropped: {:?}", start.elapsed());
    println!("{ENTRIES} cells take {} bytes", table_bytes(&keys));
}

fn report(what: &str, ours: Option<Duration>, theirs: Option<Duration>) {
    let nanos = |time: Option<Duration>| {
        time.map_or_else(String::new, |time| format!("{:.0}", time.as_nanos() as f64 / ENTRIES as f64))
    };
    println!("{what:<44} {:>9} {:>9}", nanos(ours), nanos(theirs));
}

fn best(mut round: impl FnMut() -> Duration) -> Option<Duration> {
    (0..ROUNDS).map(|_| round()).min()
}

/// The time of `work` alone, without creating and dropping its subject.
fn timed<T>(subject: &T, work: impl FnOnce(&T)) -> Duration {
    let start = Instant::now();
    work(subject);
    start.elapsed()
}

fn fill(table: &Memtable, keys: &[Key]) {
    for (sequence, key) in keys.iter().enumerate() {
        table.insert(Sequence(sequence as u64), key, cell(sequence));
    }
}

fn fill_in_batches(table: &Memtable, keys: &[Key]) {
    for (at, batch) in keys.chunks(BATCH).enumerate() {
        let first = at * BATCH;
        table.insert_all(
            Sequence(first as u64),
            batch.iter().enumerate().map(|(position, key)| (&key[..], cell(first + position))),
        );
    }
}

fn fill_map(map: &SkipMap<Key, Cell>, keys: &[Key]) {
    for (sequence, key) in keys.iter().enumerate() {
        map.insert(*key, cell(sequence).to_cell());
    }
}

fn in_two(keys: &[Key], fill: impl Fn(&[Key]) + Sync) {
    let (left, right) = keys.split_at(keys.len() / 2);
    thread::scope(|scope| {
        scope.spawn(|| fill(left));
        fill(right);
    });
}

fn cell(sequence: usize) -> CellRef<'static> {
    let version = Version::new(Hlc::from_bits(sequence as u64 + 1), NodeTag(1));
    CellRef { meta: CellMeta::value(version, 3), value: &VALUE }
}

fn get_all(table: &Memtable, keys: &[Key]) -> usize {
    keys.iter().filter(|key| black_box(table.get(*key, hash_key(*key), Sequence::MAX)).is_some()).count()
}

fn get_all_map(map: &SkipMap<Key, Cell>, keys: &[Key]) -> usize {
    keys.iter()
        .filter(|key| black_box(map.get(*key).map(|entry| entry.value().as_ref().to_cell())).is_some())
        .count()
}

fn seek_all(table: &Arc<Memtable>, keys: &[Key]) {
    let mut cursor = table.cursor(Sequence::MAX);
    for key in keys {
        cursor.seek(key).expect("a memtable does not fail");
        black_box(cursor.entry());
    }
}

fn seek_all_map(map: &SkipMap<Key, Cell>, keys: &[Key]) {
    for key in keys {
        black_box(map.lower_bound(std::ops::Bound::Included(key)));
    }
}

fn walk(cursor: &mut impl Cursor) -> usize {
    let mut entries = 0;
    cursor.seek_to_first().expect("a memtable does not fail");
    while let Some((key, cell)) = cursor.entry() {
        black_box((key[0], cell.value.first()));
        entries += 1;
        cursor.advance().expect("a memtable does not fail");
    }
    entries
}

fn walk_map(map: &SkipMap<Key, Cell>) -> usize {
    let mut entries = 0;
    for entry in map {
        black_box((entry.key()[0], entry.value().value.first()));
        entries += 1;
    }
    entries
}

fn table_bytes(keys: &[Key]) -> u64 {
    let table = Memtable::new(0, CAPACITY_BYTES);
    fill(&table, keys);
    table.bytes_used()
}

/// Keys with common prefixes.
fn numbered_keys() -> Vec<Key> {
    let digits = |number| format!("{number:016}").into_bytes();
    let mut keys: Vec<Key> =
        (0..ENTRIES).map(|number| digits(number).try_into().expect("as many digits")).collect();
    shuffle(&mut keys);
    keys
}

fn random_keys(seed: u64) -> Vec<Key> {
    let mut rng = Rng::new(seed);
    (0..ENTRIES)
        .map(|_| {
            let mut key = [0; 16];
            key[..8].copy_from_slice(&rng.next_u64().to_be_bytes());
            key[8..].copy_from_slice(&rng.next_u64().to_be_bytes());
            key
        })
        .collect()
}

fn shuffle(keys: &mut [Key]) {
    let mut rng = Rng::new(3);
    for at in (1..keys.len()).rev() {
        keys.swap(at, rng.below(at as u64 + 1) as usize);
    }
}
