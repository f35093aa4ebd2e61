//! The memtable under real threads: writers race, and readers at the watermark know exactly which
//! cells are visible.

use engine::Cursor;
use engine::internals::Sequence;
use engine::internals::memtable::{ChunkPool, Memtable, MemtableCursor, hash_key};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use stdx::{CellMeta, CellRef, Hlc, NodeTag, Version};

const WRITERS: usize = if cfg!(miri) { 3 } else { 4 };
const READERS: usize = if cfg!(miri) { 1 } else { 2 };
/// Miri is about a thousand times slower: it runs fewer writes under several schedules.
const WRITES: u64 = if cfg!(miri) { 60 } else { 60_000 };
/// Enough keys to fill arena and index, and few enough that cells share keys.
const KEYS: u64 = if cfg!(miri) { 10 } else { 4_000 };
const CAPACITY_BYTES: u64 = if cfg!(miri) { 4 << 10 } else { 256 << 10 };
/// A reader reads every n-th key.
const READ_EVERY: usize = if cfg!(miri) { 3 } else { 97 };

/// Sequences are assigned one by one; the watermark is the last one without a gap before it.
struct Commits {
    table: Arc<Memtable>,
    next: AtomicU64,
    watermark: AtomicU64,
    beyond: Mutex<BTreeSet<u64>>,
}

impl Commits {
    fn new() -> Self {
        Self {
            table: Arc::new(Memtable::new(0, CAPACITY_BYTES)),
            next: AtomicU64::new(1),
            watermark: AtomicU64::new(0),
            beyond: Mutex::default(),
        }
    }

    fn write_all(&self, version_of: fn(u64) -> u64) {
        loop {
            let sequence = self.next.fetch_add(1, Ordering::Relaxed);
            if sequence > WRITES {
                return;
            }
            let version = Version::new(Hlc::from_bits(version_of(sequence)), NodeTag(0));
            let cell = CellRef { meta: CellMeta::value(version, 1), value: &sequence.to_be_bytes() };
            self.table.insert(Sequence(sequence), &key_of(sequence), cell);
            let mut beyond = self.beyond.lock().expect("no writer panics");
            beyond.insert(sequence);
            let mut watermark = self.watermark.load(Ordering::Relaxed);
            while beyond.remove(&(watermark + 1)) {
                watermark += 1;
            }
            self.watermark.store(watermark, Ordering::Release);
        }
    }

    fn visible(&self) -> u64 {
        self.watermark.load(Ordering::Acquire)
    }
}

/// Maps sequences to keys in an order that is neither ascending nor descending.
fn key_of(sequence: u64) -> [u8; 8] {
    (sequence % KEYS).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn read_until_all_is_written(commits: &Commits, expected: fn(u64, u64) -> Option<u64>) {
    loop {
        let visible = commits.visible();
        for residue in (visible % 7..KEYS).step_by(READ_EVERY) {
            let key = key_of(residue);
            let seen = commits.table.get(&key, hash_key(&key), Sequence(visible));
            let seen = seen.map(|cell| u64::from_be_bytes(cell.value[..].try_into().expect("a sequence")));
            assert_eq!(seen, expected(residue, visible), "key {residue} at {visible}");
        }
        let mut cursor = commits.table.cursor(Sequence(visible));
        cursor.seek_to_first().expect("a memtable does not fail");
        let mut seen = 0;
        let mut before = None;
        while let Some((key, cell)) = cursor.entry() {
            let sequence = u64::from_be_bytes(cell.value.try_into().expect("a sequence"));
            assert_eq!(key, key_of(sequence), "a cell under another's key");
            assert_eq!(Some(sequence), expected(sequence % KEYS, visible), "scan at {visible}");
            assert!(before < Some(key.to_vec()), "a key out of order");
            before = Some(key.to_vec());
            seen += 1;
            cursor.advance().expect("a memtable does not fail");
        }
        assert_eq!(seen, visible.min(KEYS), "keys at {visible}");
        if visible == WRITES {
            return;
        }
    }
}

fn race(version_of: fn(u64) -> u64, expected: fn(u64, u64) -> Option<u64>) {
    let commits = Commits::new();
    thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| commits.write_all(version_of));
        }
        for _ in 0..READERS {
            scope.spawn(|| read_until_all_is_written(&commits, expected));
        }
    });
    assert_eq!(commits.table.cells(), WRITES);
}

/// The first sequence of a key; sequences begin at 1.
fn first_of(residue: u64) -> u64 {
    if residue == 0 { KEYS } else { residue }
}

#[test]
fn readers_see_the_newest_write_up_to_their_sequence() {
    race(
        |sequence| sequence,
        |residue, visible| (visible >= first_of(residue)).then(|| visible - (visible - residue) % KEYS),
    );
}

#[test]
fn writes_that_come_late_are_never_seen_again() {
    race(
        |sequence| u64::MAX - sequence,
        |residue, visible| (visible >= first_of(residue)).then(|| first_of(residue)),
    );
}

/// Each thread fills successive memtables from chunks that others have just returned, and a reader
/// outlives each.
#[test]
fn memtables_that_are_made_and_dropped_at_the_same_time_share_no_chunk() {
    const ROUNDS: u64 = if cfg!(miri) { 3 } else { 60 };
    const WRITES_EACH: u64 = if cfg!(miri) { 8 } else { 1_000 };
    /// Smaller than the memtables, so that some chunks are kept and others freed.
    const POOL_BYTES: u64 = 256 << 10;
    let pool = Arc::new(ChunkPool::new(POOL_BYTES));
    let fill = |thread: u64| {
        let mut outlives = None;
        for round in 0..ROUNDS {
            let table = Arc::new(Memtable::from_pool(round, &pool, thread));
            let value = [thread as u8, round as u8].repeat(200);
            for number in 0..WRITES_EACH {
                let version = Version::new(Hlc::from_bits(number), NodeTag(thread));
                let cell = CellRef { meta: CellMeta::value(version, 1), value: &value };
                table.insert(Sequence(number), &key_of(number * 7), cell);
            }
            let mut cursor = table.cursor(Sequence::MAX);
            cursor.seek_to_first().expect("a memtable does not fail");
            drop(table);
            // The previous memtable is freed here, while others take chunks.
            if let Some((mut cursor, value)) = outlives.replace((cursor, value)) {
                let seen = walk_values(&mut cursor, &value);
                assert_eq!(seen, WRITES_EACH.min(KEYS), "thread {thread}, round {round}");
            }
        }
    };
    thread::scope(|scope| {
        (0..3).for_each(|thread| drop(scope.spawn(move || fill(thread))));
    });
    assert!((1..=POOL_BYTES).contains(&pool.bytes()));
}

/// Number of keys from here on, each of which must have this value.
fn walk_values(cursor: &mut MemtableCursor, value: &[u8]) -> u64 {
    let mut seen = 0;
    while let Some((_, cell)) = cursor.entry() {
        assert!(cell.value == value, "a value of another memtable");
        seen += 1;
        cursor.advance().expect("a memtable does not fail");
    }
    seen
}
