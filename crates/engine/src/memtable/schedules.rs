//! Schedule tests: the memtable under a scheduler that chooses the next thread at every atomic
//! operation.
//!
//! The files of the memtable are mounted here a second time, with shuttle's atomics instead of the
//! standard ones. So the tested code is the shipped code, and no build option is needed.
//! Reorderings of a weak memory model are not covered: shuttle's atomics are always sequentially
//! consistent.
//!
//! Shuttle prints a failing schedule, which `shuttle::replay` accepts.

#[allow(dead_code, unreachable_pub, clippy::duplicate_mod)]
#[path = "arena.rs"]
mod arena;
#[allow(dead_code, unreachable_pub, clippy::duplicate_mod)]
#[path = "chunk_pool.rs"]
mod chunk_pool;
#[allow(dead_code, unreachable_pub, clippy::duplicate_mod)]
#[path = "cursor.rs"]
mod cursor;
#[allow(dead_code, unreachable_pub, clippy::duplicate_mod)]
#[path = "index.rs"]
mod index;
#[allow(dead_code, unreachable_pub, clippy::duplicate_mod)]
#[path = "node.rs"]
mod node;
#[allow(dead_code, unreachable_pub, clippy::duplicate_mod)]
#[path = "skiplist.rs"]
mod skiplist;
#[allow(dead_code, unreachable_pub, clippy::duplicate_mod)]
#[path = "table.rs"]
mod table;

mod sync {
    pub(super) use shuttle::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering,
    };
}

use super::hash_key;
use crate::iter::Cursor;
use crate::sequence::Sequence;
use arena::{ALLOCATION_BYTES_MAX, Arena};
use chunk_pool::ChunkPool;
use shuttle::thread;
use std::collections::BTreeSet;
use std::sync::Arc;
use stdx::{CellMeta, CellRef, Hlc, NodeTag, Version};
use sync::{AtomicU64, Ordering};
use table::Memtable;

const SCHEDULES: usize = 3_000;
/// Number of preemptions that the adversarial scheduler inserts.
const PREEMPTIONS: usize = 3;

/// A write of a test. The value equals the version.
#[derive(Clone, Copy)]
struct Write {
    sequence: u64,
    key: &'static [u8],
    version: u64,
}

const fn write(sequence: u64, key: &'static [u8], version: u64) -> Write {
    Write { sequence, key, version }
}

fn check(scenario: fn()) {
    shuttle::check_random(scenario, SCHEDULES);
    shuttle::check_pct(scenario, SCHEDULES, PREEMPTIONS);
}

fn insert(table: &Memtable, write: Write) -> bool {
    let meta = CellMeta::value(Version::new(Hlc::from_bits(write.version), NodeTag(0)), 1);
    table.insert(Sequence(write.sequence), write.key, CellRef { meta, value: &write.version.to_be_bytes() })
}

/// Inserts writes with consecutive sequences.
fn insert_all(table: &Memtable, writes: &[Write]) {
    let values: Vec<_> = writes.iter().map(|write| write.version.to_be_bytes()).collect();
    let cells = writes.iter().zip(&values).map(|(write, value)| {
        let meta = CellMeta::value(Version::new(Hlc::from_bits(write.version), NodeTag(0)), 1);
        (write.key, CellRef { meta, value })
    });
    table.insert_all(Sequence(writes[0].sequence), cells);
}

fn get(table: &Memtable, key: &[u8], visible: u64) -> Option<u64> {
    table.get(key, hash_key(key), Sequence(visible)).map(|cell| cell.meta.version.hlc.to_bits())
}

fn scan(table: &Arc<Memtable>, visible: u64) -> Vec<(Vec<u8>, u64)> {
    let mut cursor = table.cursor(Sequence(visible));
    cursor.seek_to_first().expect("a memtable does not fail");
    let mut entries = Vec::new();
    while let Some((key, cell)) = cursor.entry() {
        assert_eq!(cell.value, cell.meta.version.hlc.to_bits().to_be_bytes());
        entries.push((key.to_vec(), cell.meta.version.hlc.to_bits()));
        cursor.advance().expect("a memtable does not fail");
    }
    assert!(entries.is_sorted_by(|a, b| a.0 < b.0), "a key out of order or twice: {entries:?}");
    entries
}

/// The greatest version of the key that was written at or before `visible`.
fn expected(writes: &[&[Write]], key: &[u8], visible: u64) -> Option<u64> {
    let seen = writes.iter().copied().flatten().filter(|write| write.key == key && write.sequence <= visible);
    seen.map(|write| write.version).max()
}

/// Runs writers that record each finished insert, and a reader at the watermark: the sequence up to
/// which all writes are inserted. The reader must see exactly the writes up to it, by key and in
/// order.
fn writers_and_a_reader(writes: &'static [&'static [Write]]) {
    let table = Arc::new(Memtable::new(0, 0));
    let inserted = Arc::new(AtomicU64::new(0));
    let all: u64 = writes.iter().map(|writes| writes.len() as u64).sum();
    let writers: Vec<_> = (writes.iter())
        .map(|writes| {
            let (table, inserted) = (Arc::clone(&table), Arc::clone(&inserted));
            thread::spawn(move || {
                for write in *writes {
                    insert(&table, *write);
                    inserted.fetch_or(1 << (write.sequence - 1), Ordering::AcqRel);
                }
            })
        })
        .collect();
    let reader = {
        let (table, inserted) = (Arc::clone(&table), Arc::clone(&inserted));
        thread::spawn(move || {
            for _ in 0..2 {
                let visible = u64::from(inserted.load(Ordering::Acquire).trailing_ones());
                see_exactly(&table, writes, visible);
            }
        })
    };
    for thread in writers.into_iter().chain([reader]) {
        thread.join().expect("a thread of the scenario failed");
    }
    for visible in 0..=all {
        see_exactly(&table, writes, visible);
    }
    assert_eq!(table.cells(), all);
}

fn see_exactly(table: &Arc<Memtable>, writes: &[&[Write]], visible: u64) {
    let keys: BTreeSet<_> = writes.iter().copied().flatten().map(|write| write.key).collect();
    let seen: Vec<_> = (keys.iter())
        .filter_map(|key| expected(writes, key, visible).map(|version| (key.to_vec(), version)))
        .collect();
    assert_eq!(scan(table, visible), seen, "scan at {visible}");
    for key in keys {
        assert_eq!(get(table, key, visible), expected(writes, key, visible), "get {key:?} at {visible}");
    }
}

#[test]
fn a_new_key_inserted_by_three_threads_has_one_node_and_all_cells() {
    check(|| {
        writers_and_a_reader(
            const { &[&[write(1, b"key", 20)], &[write(2, b"key", 30)], &[write(3, b"key", 10)]] },
        );
    });
}

#[test]
fn neighbours_inserted_concurrently_are_all_linked() {
    check(|| {
        writers_and_a_reader(
            const {
                &[
                    &[write(1, b"a", 10), write(4, b"c", 10)],
                    &[write(2, b"b", 10), write(5, b"a", 9)],
                    &[write(3, b"c", 11), write(6, b"bb", 10)],
                ]
            },
        );
    });
}

#[test]
fn concurrent_batches_with_the_same_keys_are_linked_completely() {
    const BATCHES: &[&[Write]] = &[
        &[write(1, b"c", 10), write(2, b"a", 10), write(3, b"c", 12), write(4, b"b", 10)],
        &[write(5, b"b", 11), write(6, b"c", 11), write(7, b"aa", 10)],
    ];
    check(|| {
        let table = Arc::new(Memtable::new(0, 0));
        let writers: Vec<_> = (BATCHES.iter())
            .map(|batch| {
                let table = Arc::clone(&table);
                thread::spawn(move || insert_all(&table, batch))
            })
            .collect();
        for writer in writers {
            writer.join().expect("a writer failed");
        }
        for visible in 0..=7 {
            see_exactly(&table, BATCHES, visible);
        }
    });
}

#[test]
fn concurrent_cells_of_one_key_are_linked_in_order() {
    check(|| {
        let table = Arc::new(Memtable::new(0, 0));
        insert(&table, write(1, b"key", 50));
        let threads: Vec<_> = [[20, 70], [30, 60], [40, 80]]
            .into_iter()
            .enumerate()
            .map(|(thread, versions)| {
                let table = Arc::clone(&table);
                thread::spawn(move || {
                    for (nth, version) in versions.into_iter().enumerate() {
                        let superseded =
                            insert(&table, write(2 + 2 * thread as u64 + nth as u64, b"key", version));
                        assert!(superseded || version > 50, "{version} is superseded by 50");
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("a writer failed");
        }
        let by_sequence = [50, 20, 70, 30, 60, 40, 80];
        for visible in 1..=by_sequence.len() {
            let newest = by_sequence[..visible].iter().copied().max();
            assert_eq!(get(&table, b"key", visible as u64), newest, "at {visible}");
        }
    });
}

#[test]
fn an_abort_is_visible_to_readers_at_later_sequences() {
    check(|| {
        let table = Arc::new(Memtable::new(0, 0));
        let watermark = Arc::new(AtomicU64::new(0));
        let committer = {
            let (table, watermark) = (Arc::clone(&table), Arc::clone(&watermark));
            thread::spawn(move || {
                insert(&table, write(1, b"key", 10));
                watermark.store(1, Ordering::Release);
                insert(&table, write(2, b"key", 20));
                table.abort(Sequence(2)..Sequence(3));
                insert(&table, write(3, b"key", 15));
                watermark.store(3, Ordering::Release);
            })
        };
        let visible = watermark.load(Ordering::Acquire);
        let newest = [None, Some(10), Some(10), Some(15)][visible as usize];
        assert_eq!(get(&table, b"key", visible), newest);
        committer.join().expect("the committer failed");
    });
}

#[test]
fn allocations_while_the_arena_grows_do_not_overlap_and_all_chunks_are_counted() {
    check(|| {
        let arena = Arc::new(Arena::new(Arc::new(ChunkPool::new(0))));
        let empty = arena.bytes();
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let arena = Arc::clone(&arena);
                thread::spawn(move || {
                    [(); 2].map(|()| arena.allocate_cell(ALLOCATION_BYTES_MAX).addr().get())
                })
            })
            .collect();
        let mut pieces: Vec<_> =
            threads.into_iter().flat_map(|thread| thread.join().expect("a thread failed")).collect();
        pieces.sort_unstable();
        assert!(pieces.windows(2).all(|pair| pair[0] + ALLOCATION_BYTES_MAX <= pair[1]), "{pieces:?}");
        // A chunk fits one such allocation besides its header: five more chunks of the first one's
        // size.
        assert_eq!(arena.bytes(), empty + 5 * empty / 2);
    });
}
