//! A memtable and its pool report exactly the memory that they hold, and return all of it.

use engine::internals::Sequence;
use engine::internals::memtable::{ChunkPool, Memtable};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell as LocalCell;
use std::sync::Arc;
use stdx::{CellMeta, CellRef, Hlc, NodeTag, Version};

/// The system allocator with a count of the bytes that the thread holds.
struct Counting;

thread_local! {
    static HELD_BYTES: LocalCell<isize> = const { LocalCell::new(0) };
}

// SAFETY: every call is forwarded to the system allocator unchanged; the counter does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD_BYTES.set(HELD_BYTES.get() + layout.size() as isize);
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD_BYTES.set(HELD_BYTES.get() - layout.size() as isize);
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Greatest size of a memtable's chunk, in bytes.
const CHUNK_BYTES_MAX: u64 = 2 << 20;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn reported_bytes_match_the_allocator_and_all_are_returned() {
    let value = vec![1; 300_000];
    let started = HELD_BYTES.get();
    for capacity_bytes in [0, 1 << 20, 8 << 20] {
        let pool = Arc::new(ChunkPool::new(capacity_bytes));
        let before = HELD_BYTES.get();
        let held = || (HELD_BYTES.get() - before) as u64;
        let mut most = 0;
        for id in 0..3 {
            let table = Memtable::from_pool(id, &pool, 0);
            let sum = || table.bytes() + pool.bytes();
            assert_eq!(sum(), held(), "an empty memtable");
            for at in 0..20_000u64 {
                let value_bytes = [300_000, 70_000, 1_000, 0, 100][(at % 1_000).min(4) as usize];
                let version = Version::new(Hlc::from_bits(at), NodeTag(0));
                let cell = CellRef { meta: CellMeta::value(version, 1), value: &value[..value_bytes] };
                table.insert(Sequence(at), &(at % 15_000).to_be_bytes(), cell);
                if at % 100 == 0 {
                    assert_eq!(sum(), held(), "after {at} cells");
                }
            }
            assert!(table.bytes_used() <= table.bytes());
            if id == 0 {
                most = held();
            }
            assert!(held() <= most + CHUNK_BYTES_MAX, "memtable {id}: {} bytes, {most} of the first", held());
            drop(table);
            assert_eq!(pool.bytes(), held(), "after memtable {id} is gone");
            assert!(pool.bytes() <= capacity_bytes);
            assert_eq!(pool.bytes() > 0, capacity_bytes > 0);
        }
        drop(pool);
    }
    assert_eq!(HELD_BYTES.get(), started, "after the pools are gone");
}
