//! What a memtable says it holds of the allocator is what it holds, to the byte, and it gives all of it back.

use engine::Sequence;
use engine::memtable::Memtable;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell as LocalCell;
use stdx::{CellMeta, CellRef, Hlc, NodeTag, Version};

/// The system's allocator, with what the thread holds of it counted.
struct Counting;

thread_local! {
    static HELD_BYTES: LocalCell<isize> = const { LocalCell::new(0) };
}

// SAFETY: every call goes to the system's allocator as it came; the counter does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD_BYTES.set(HELD_BYTES.get() + layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD_BYTES.set(HELD_BYTES.get() - layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn bytes_are_what_the_allocator_gave_and_all_are_given_back() {
    for capacity_bytes in [0, 1 << 20, 8 << 20] {
        let before = HELD_BYTES.get();
        let table = Memtable::new(0, capacity_bytes);
        let value = vec![1; 300_000];
        let held_besides = value.capacity() as isize;
        let held = || (HELD_BYTES.get() - before - held_besides) as u64;
        assert_eq!(table.bytes(), held(), "an empty memtable");
        for at in 0..20_000u64 {
            let value_bytes = [300_000, 70_000, 1_000, 0, 100][(at % 1_000).min(4) as usize];
            let version = Version::new(Hlc::from_bits(at), NodeTag(0));
            let cell = CellRef { meta: CellMeta::value(version, 1), value: &value[..value_bytes] };
            table.insert(Sequence(at), &(at % 15_000).to_be_bytes(), cell);
            if at % 100 == 0 {
                assert_eq!(table.bytes(), held(), "after {at} cells");
            }
        }
        assert!(table.bytes_used() <= table.bytes());
        drop(table);
        assert_eq!(held(), 0, "after the memtable is gone");
    }
}
