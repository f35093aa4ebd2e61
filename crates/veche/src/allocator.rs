//! The allocator: mimalloc for small allocations, mappings for large ones, huge pages for tables.
//!
//! **Promise.** A large allocation occupies memory from the first write to it until it is freed,
//! not before and not after. A buffer for a value that has not arrived costs nothing, and a freed
//! value leaves nothing behind.
//!
//! **Mechanism.** An allocation of at least [`LARGE_BYTES`] is a mapping of its own. Freeing it
//! unmaps it. It grows by `mremap(2)`, which moves pages without copying. mimalloc keeps freed
//! memory for later allocations, which is right for small ones. For values of some MiB it kept
//! several times the memory in use.
//!
//! A large allocation aligned to cache lines is a table with random accesses: a chunk of a memtable
//! or its index. Tables are filled completely, so huge pages cost them no memory and save each read
//! one or two TLB misses. Only tables ask for huge pages: a huge page of small, short-lived
//! allocations stays resident as long as the last of them.
//!
//! mimalloc returns its freed memory to the system late, which is right while memory is plentiful.
//! When the resident memory approaches the limit, a thread makes mimalloc purge its free pages
//! ([`limit_resident_memory`]). Processes with a low limit differ in three ways. mimalloc purges
//! soon, because it would keep a third of the budget for buffers that live less than a second. Each
//! thread is asked to purge its own heap. Mappings begin at [`LARGE_BYTES_LOW_MEMORY`]: mimalloc
//! cannot return a page with a live allocation, and few buffers of some hundred KiB fit in one.
//!
//! **Caveats.** A mapping costs two system calls, and a page fault for each written page. Purging
//! all freed memory at once would cost a third of the write throughput of a node.

use env::os_process;
use libmimalloc_sys::{mi_collect, mi_is_in_heap_region, mi_option_set, mi_option_t};
use mimalloc::MiMalloc;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use std::{io, ptr};

/// Minimum size of an allocation with its own mapping, in bytes.
const LARGE_BYTES: usize = 4 << 20;
/// As [`LARGE_BYTES`], for a process with a memory limit below [`LOW_MEMORY_BYTES`].
const LARGE_BYTES_LOW_MEMORY: usize = 128 << 10;
/// Minimum alignment of a page.
const PAGE_BYTES: usize = 4 << 10;
/// Size of a huge page, and minimum size of a table with huge pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Minimum alignment of tables, a cache line. No other allocation is aligned to it.
const TABLE_ALIGN: usize = 64;

/// The current threshold: [`LARGE_BYTES`] or [`LARGE_BYTES_LOW_MEMORY`].
static LARGE_THRESHOLD: AtomicUsize = AtomicUsize::new(LARGE_BYTES);

/// Passes small allocations to mimalloc, and makes mappings for large ones.
pub(crate) struct SplitAllocator;

// SAFETY: Large allocations are mapped, unmapped and moved as a whole, with their requested size.
// The layout and mimalloc's tables identify the source of an allocation, so each one returns to its
// source. Small allocations are mimalloc's.
unsafe impl GlobalAlloc for SplitAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match Source::of_new(layout) {
            Source::Mimalloc => {
                if layout.size() >= PURGE_CHECK_BYTES {
                    purge_if_requested();
                }
                // SAFETY: the caller's promise is passed on.
                unsafe { MiMalloc.alloc(layout) }
            }
            Source::Pages => map(layout.size()),
            Source::HugePages => map_huge(layout.size()),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match Source::of_new(layout) {
            // SAFETY: the caller's promise is passed on.
            Source::Mimalloc => unsafe { MiMalloc.alloc_zeroed(layout) },
            // Fresh pages are zero.
            Source::Pages => map(layout.size()),
            Source::HugePages => map_huge(layout.size()),
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller promises that `bytes`, rounded up to the alignment, is a size.
        let new = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        match (Source::of_existing(memory, layout), Source::of_new(new)) {
            // SAFETY: the caller's promise is passed on.
            (Source::Mimalloc, Source::Mimalloc) => unsafe { MiMalloc.realloc(memory, layout, bytes) },
            // SAFETY: `memory` is a mapping of this size, which the caller uses no more.
            (Source::Pages, Source::Pages) => unsafe {
                let moved = libc::mremap(memory.cast(), layout.size(), bytes, libc::MREMAP_MAYMOVE);
                pointer(moved)
            },
            // SAFETY: Both allocations have at least the copied length and do not overlap. The
            // caller owns the old one.
            _ => unsafe {
                let moved = self.alloc(new);
                if !moved.is_null() {
                    ptr::copy_nonoverlapping(memory, moved, layout.size().min(bytes));
                    self.dealloc(memory, layout);
                }
                moved
            },
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        match Source::of_existing(memory, layout) {
            // SAFETY: the caller's promise is passed on.
            Source::Mimalloc => unsafe { MiMalloc.dealloc(memory, layout) },
            // SAFETY: `memory` is a mapping of this size, which the caller does not use any more.
            Source::Pages | Source::HugePages => unsafe { unmap(memory, layout.size()) },
        }
    }
}

/// Allocations of at least this size check for a purge request: smaller ones are too frequent,
/// larger ones too rare.
const PURGE_CHECK_BYTES: usize = 8 << 10;

/// Number of purge requests to all threads.
static PURGE_REQUESTS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The value of [`PURGE_REQUESTS`] at this thread's last purge.
    static PURGES_DONE: Cell<u32> = const { Cell::new(0) };
}

/// Purges this thread's heap if there was a request since its last purge.
fn purge_if_requested() {
    let requests = PURGE_REQUESTS.load(Ordering::Relaxed);
    if PURGES_DONE.replace(requests) != requests {
        purge();
    }
}

/// Source of an allocation.
enum Source {
    Mimalloc,
    Pages,
    HugePages,
}

impl Source {
    /// The source of a new allocation.
    fn of_new(layout: Layout) -> Self {
        Self::of(layout, LARGE_THRESHOLD.load(Ordering::Relaxed))
    }

    /// The source of an existing allocation. Between the two thresholds it depends on when the
    /// allocation was made.
    fn of_existing(memory: *const u8, layout: Layout) -> Self {
        match Self::of(layout, LARGE_BYTES_LOW_MEMORY) {
            Self::Pages if layout.size() < LARGE_BYTES && is_of_mimalloc(memory) => Self::Mimalloc,
            source => source,
        }
    }

    /// The source of a new allocation if mappings begin at `large_bytes`.
    const fn of(layout: Layout, large_bytes: usize) -> Self {
        let (bytes, align) = (layout.size(), layout.align());
        if bytes >= HUGE_PAGE_BYTES && align >= TABLE_ALIGN && align <= HUGE_PAGE_BYTES {
            Self::HugePages
        } else if bytes >= large_bytes && align <= PAGE_BYTES {
            Self::Pages
        } else {
            Self::Mimalloc
        }
    }
}

/// Interval between checks of the resident memory.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Longest interval, after purges that freed little memory.
const CHECK_INTERVAL_MAX: Duration = Duration::from_millis(500);
/// A purge was ineffective if it freed less than 1 / 16 of the resident memory.
const MIN_PURGED_FRACTION: u64 = 16;

/// Limits below this are low: mappings begin at a smaller size, and mimalloc purges sooner.
const LOW_MEMORY_BYTES: u64 = 256 << 20;
/// Purge delay of mimalloc for a low limit, in milliseconds.
const LOW_MEMORY_PURGE_DELAY_MS: libc::c_long = 10;

/// Purging begins when the resident memory exceeds this percentage of the limit.
const PURGE_PERCENT: u64 = 90;

/// Starts a thread that purges free memory whenever the resident memory approaches `resident_max`
/// bytes.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn limit_resident_memory(resident_max: u64) -> io::Result<()> {
    let is_low_memory = resident_max < LOW_MEMORY_BYTES;
    if is_low_memory {
        set_purge_delay(LOW_MEMORY_PURGE_DELAY_MS);
        LARGE_THRESHOLD.store(LARGE_BYTES_LOW_MEMORY, Ordering::Relaxed);
    }
    let purge_above = resident_max / 100 * PURGE_PERCENT;
    let watch = move || {
        let mut pause = CHECK_INTERVAL;
        loop {
            std::thread::sleep(pause);
            let before = os_process::resident_bytes();
            if before <= purge_above {
                pause = CHECK_INTERVAL;
                continue;
            }
            purge();
            if is_low_memory {
                PURGE_REQUESTS.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let is_ineffective =
                before.saturating_sub(os_process::resident_bytes()) < before / MIN_PURGED_FRACTION;
            pause = if is_ineffective { (2 * pause).min(CHECK_INTERVAL_MAX) } else { CHECK_INTERVAL };
        }
    };
    std::thread::Builder::new().name("veche-memory".to_owned()).spawn(watch).map(drop)
}

/// Number of `mi_option_purge_delay`: milliseconds after which mimalloc purges free pages.
const PURGE_DELAY: mi_option_t = 15;

fn set_purge_delay(milliseconds: libc::c_long) {
    // SAFETY: The number is a valid option of mimalloc, and options may be changed at any time.
    unsafe { mi_option_set(PURGE_DELAY, milliseconds) }
}

/// Makes mimalloc return the free pages of this thread's heap to the system.
fn purge() {
    const AT_ONCE: bool = true;
    // SAFETY: it may be called on any thread, at any time.
    unsafe { mi_collect(AT_ONCE) }
}

/// Whether an address is in mimalloc's memory.
fn is_of_mimalloc(memory: *const u8) -> bool {
    // SAFETY: mimalloc only looks the address up in its own tables. Any address is valid.
    unsafe { mi_is_in_heap_region(memory.cast()) }
}

/// Maps `bytes` of zeroed pages. Returns null if the system has none.
fn map(bytes: usize) -> *mut u8 {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: A new mapping at an address of the system's choice overlaps no other memory.
    let mapped =
        unsafe { libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    pointer(mapped)
}

/// Maps `bytes` aligned to huge pages, and advises the system to use them. Without huge pages,
/// normal ones are used.
fn map_huge(bytes: usize) -> *mut u8 {
    let Some(more) = bytes.checked_add(HUGE_PAGE_BYTES) else { return ptr::null_mut() };
    let mapped = map(more);
    if mapped.is_null() {
        return mapped;
    }
    let before = mapped.align_offset(HUGE_PAGE_BYTES);
    let kept = bytes.next_multiple_of(PAGE_BYTES);
    // SAFETY: The kept part, and the parts before and after it, consist of whole pages of the new
    // mapping.
    unsafe {
        let memory = mapped.add(before);
        if before > 0 {
            unmap(mapped, before);
        }
        unmap(memory.add(kept), HUGE_PAGE_BYTES - before);
        libc::madvise(memory.cast(), kept, libc::MADV_HUGEPAGE);
        memory
    }
}

/// Unmaps pages.
///
/// # Safety
/// They are mapped and not used any more.
unsafe fn unmap(memory: *mut u8, bytes: usize) {
    // SAFETY: by the caller's promise.
    let result = unsafe { libc::munmap(memory.cast(), bytes) };
    debug_assert_eq!(result, 0, "a mapping can be unmapped");
}

fn pointer(mapped: *mut libc::c_void) -> *mut u8 {
    if mapped == libc::MAP_FAILED { ptr::null_mut() } else { mapped.cast() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libmimalloc_sys::mi_option_get;

    const ALLOCATOR: SplitAllocator = SplitAllocator;

    #[test]
    fn contents_survive_every_change_of_size() {
        let sizes = [
            100,
            LARGE_BYTES_LOW_MEMORY,
            LARGE_BYTES - 1,
            LARGE_BYTES,
            5 * LARGE_BYTES + 77,
            2 * LARGE_BYTES,
            4_000,
            3 * LARGE_BYTES,
        ];
        let layout = |bytes| Layout::from_size_align(bytes, 1).expect("a small alignment");
        let mut held = 10;
        // SAFETY: every access is within the size at the time, and each change of size names the
        // one before.
        unsafe {
            let mut memory = ALLOCATOR.alloc(layout(held));
            (0..held).for_each(|at| memory.add(at).write(at as u8));
            let mut written = held;
            for bytes in sizes {
                memory = ALLOCATOR.realloc(memory, layout(held), bytes);
                assert!(!memory.is_null());
                written = written.min(bytes);
                assert!((0..written).all(|at| memory.add(at).read() == at as u8), "{held} to {bytes}");
                (0..bytes).for_each(|at| memory.add(at).write(at as u8));
                (held, written) = (bytes, bytes);
            }
            ALLOCATOR.dealloc(memory, layout(held));
        }
    }

    #[test]
    fn an_allocation_returns_to_its_source_after_the_threshold_changes() {
        let layout = |bytes| Layout::from_size_align(bytes, 8).expect("a small alignment");
        let bounds = [LARGE_BYTES, LARGE_BYTES_LOW_MEMORY];
        let sizes = [LARGE_BYTES_LOW_MEMORY - 1, LARGE_BYTES_LOW_MEMORY, LARGE_BYTES - 1, LARGE_BYTES];
        let has_pages = |memory: *const u8| !is_of_mimalloc(memory);
        for (bound, then) in bounds.iter().flat_map(|bound| bounds.map(|then| (*bound, then))) {
            for (bytes, changed) in sizes.iter().flat_map(|bytes| sizes.map(|changed| (*bytes, changed))) {
                // SAFETY: every access is within the size at the time, and each change of size
                // names the one before.
                unsafe {
                    LARGE_THRESHOLD.store(bound, Ordering::Relaxed);
                    let (memory, other) = (ALLOCATOR.alloc(layout(bytes)), ALLOCATOR.alloc(layout(bytes)));
                    assert_eq!(has_pages(memory), bytes >= bound, "{bytes} with {bound}");
                    (0..bytes).for_each(|at| memory.add(at).write(at as u8));
                    LARGE_THRESHOLD.store(then, Ordering::Relaxed);
                    ALLOCATOR.dealloc(other, layout(bytes));
                    let memory = ALLOCATOR.realloc(memory, layout(bytes), changed);
                    assert_eq!(has_pages(memory), changed >= then, "{bytes} to {changed} with {then}");
                    assert!((0..bytes.min(changed)).all(|at| memory.add(at).read() == at as u8));
                    ALLOCATOR.dealloc(memory, layout(changed));
                }
            }
        }
        LARGE_THRESHOLD.store(LARGE_BYTES, Ordering::Relaxed);
    }

    #[test]
    fn zeroes_are_zeroes_and_great_alignments_are_kept() {
        for (bytes, align) in [
            (2 * LARGE_BYTES, 8),
            (2 * LARGE_BYTES, 64 << 10),
            (HUGE_PAGE_BYTES, 64),
            (HUGE_PAGE_BYTES + 4_999, 128),
            (64, 64),
        ] {
            let layout = Layout::from_size_align(bytes, align).expect("a layout");
            for _ in 0..3 {
                // SAFETY: Every access is within the allocation, which is freed once.
                unsafe {
                    let memory = ALLOCATOR.alloc_zeroed(layout);
                    assert_eq!(memory as usize % align, 0);
                    assert!((0..bytes).all(|at| memory.add(at).read() == 0));
                    (0..bytes).for_each(|at| memory.add(at).write(1));
                    ALLOCATOR.dealloc(memory, layout);
                }
            }
        }
    }

    #[test]
    fn tables_begin_with_a_huge_page() {
        let layout = Layout::from_size_align(HUGE_PAGE_BYTES, 64).expect("a layout");
        // SAFETY: The allocation is not accessed before it is freed.
        unsafe {
            let memory = ALLOCATOR.alloc(layout);
            assert_eq!(memory as usize % HUGE_PAGE_BYTES, 0);
            ALLOCATOR.dealloc(memory, layout);
        }
    }

    #[test]
    fn the_number_of_the_purge_delay_option_is_right() {
        // Only this option has this default. Option numbers may change between versions of
        // mimalloc.
        const PURGE_DELAY_MS: libc::c_long = 1_000;
        // SAFETY: The number is a valid option of mimalloc.
        let delay = || unsafe { mi_option_get(PURGE_DELAY) };
        assert_eq!(delay(), PURGE_DELAY_MS);
        set_purge_delay(LOW_MEMORY_PURGE_DELAY_MS);
        assert_eq!(delay(), LOW_MEMORY_PURGE_DELAY_MS);
        set_purge_delay(PURGE_DELAY_MS);
    }

    #[test]
    fn an_impossible_allocation_is_null() {
        for align in [8, 64] {
            let layout = Layout::from_size_align(isize::MAX as usize & !0xfff, align).expect("a layout");
            // SAFETY: nothing is done with it.
            assert!(unsafe { ALLOCATOR.alloc(layout) }.is_null());
        }
    }
}
