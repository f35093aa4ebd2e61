//! The allocator: jemalloc, and huge pages for tables.
//!
//! **Promise.** Freed memory returns to the system: allocations of several MiB at once, others
//! within seconds, also on an idle node. When the resident memory approaches the limit, all of the
//! free memory returns at once. A buffer for a value that has not arrived costs nothing.
//!
//! **Mechanism.** jemalloc serves an allocation of at least 4 MiB from an arena of its own, which
//! keeps no free pages. Free pages of the other arenas return after a second. jemalloc returns them
//! only while it is called. An idle node does not call it, so a thread does
//! ([`limit_resident_memory`]).
//!
//! A large allocation aligned to cache lines is a table with random accesses: a chunk of a memtable
//! or its index. Each is a mapping of its own. Tables are filled completely, so huge pages cost
//! them no memory and save each read one or two TLB misses. Only tables ask for huge pages: a huge
//! page of small, short-lived allocations stays resident as long as the last of them.
//!
//! **Caveats.** A table costs two system calls, and a page fault for each written page. Purging all
//! free memory at once costs the next allocations page faults. Each thread has a cache of small
//! allocations, up to 32 KiB each, which is not purged. Memory that C libraries allocate comes from
//! the system's allocator.

use env::os_process;
use std::alloc::{GlobalAlloc, Layout};
use std::ffi::CStr;
use std::time::{Duration, Instant};
use std::{io, ptr};
use tikv_jemalloc_sys::mallctl;
use tikv_jemallocator::Jemalloc;

/// A multiple of the page size of every system: pages have 4 to 64 KiB.
const PAGE_BYTES: usize = 64 << 10;
/// Size of a huge page, and minimum size of a table with huge pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Minimum alignment of tables, a cache line. No other allocation is aligned to it.
const TABLE_ALIGN: usize = 64;

/// Options of jemalloc, which it reads when it starts: allocations of at least 4 MiB have an arena
/// of their own; free pages are kept for one second, and not for longer as pages that the system
/// may take.
///
/// jemalloc has the symbol as a pointer to a string that ends with zero. A reference to an array
/// has that form.
#[unsafe(export_name = "_rjem_malloc_conf")]
static OPTIONS: &[u8; 64] = b"oversize_threshold:4194304,dirty_decay_ms:1000,muzzy_decay_ms:0\0";

/// Passes allocations to jemalloc, and makes mappings with huge pages for tables.
pub(crate) struct SplitAllocator;

// SAFETY: A table is mapped and unmapped as a whole, with its requested size. The layout alone
// tells tables from other allocations, so each allocation returns to its source. The others are
// jemalloc's.
unsafe impl GlobalAlloc for SplitAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_table(layout) {
            return map_huge(layout.size());
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { Jemalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_table(layout) {
            // Fresh pages are zero.
            return map_huge(layout.size());
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { Jemalloc.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller promises that `bytes`, rounded up to the alignment, is a size.
        let new = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        if !is_table(layout) && !is_table(new) {
            // SAFETY: the caller's promise is passed on.
            return unsafe { Jemalloc.realloc(memory, layout, bytes) };
        }
        // SAFETY: Both allocations have at least the copied length and do not overlap. The caller
        // owns the old one.
        unsafe {
            let moved = self.alloc(new);
            if !moved.is_null() {
                ptr::copy_nonoverlapping(memory, moved, layout.size().min(bytes));
                self.dealloc(memory, layout);
            }
            moved
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if is_table(layout) {
            // SAFETY: `memory` is a mapping of this size, which the caller does not use any more.
            return unsafe { unmap(memory, mapped_bytes(layout.size())) };
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { Jemalloc.dealloc(memory, layout) }
    }
}

/// Whether an allocation is a table.
const fn is_table(layout: Layout) -> bool {
    let (bytes, align) = (layout.size(), layout.align());
    bytes >= HUGE_PAGE_BYTES && align >= TABLE_ALIGN && align <= HUGE_PAGE_BYTES
}

/// Length of the mapping of a table.
const fn mapped_bytes(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE_BYTES)
}

/// Interval between checks of the resident memory.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Longest interval, after purges that freed little memory.
const CHECK_INTERVAL_MAX: Duration = Duration::from_millis(500);
/// A purge was ineffective if it freed less than 1 / 16 of the resident memory.
const MIN_PURGED_FRACTION: u64 = 16;
/// Time after which jemalloc is asked to look at its free pages.
const DECAY_INTERVAL: Duration = Duration::from_secs(1);
/// Purging begins when the resident memory exceeds this percentage of the limit.
const PURGE_PERCENT: u64 = 90;

/// Returns the pages of all arenas to the system that are free for longer than the options say.
/// 4096 is `MALLCTL_ARENAS_ALL`.
const DECAY: &CStr = c"arena.4096.decay";
/// Returns all free pages of all arenas to the system.
const PURGE: &CStr = c"arena.4096.purge";

/// Starts a thread that returns free memory to the system: pages that were free for a second, and
/// all free pages whenever the resident memory approaches `resident_max` bytes.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn limit_resident_memory(resident_max: u64) -> io::Result<()> {
    let purge_above = resident_max / 100 * PURGE_PERCENT;
    let watch = move || {
        let (mut pause, mut decayed) = (CHECK_INTERVAL, Instant::now());
        loop {
            std::thread::sleep(pause);
            if decayed.elapsed() >= DECAY_INTERVAL {
                control(DECAY);
                decayed = Instant::now();
            }
            let before = os_process::resident_bytes();
            if before <= purge_above {
                pause = CHECK_INTERVAL;
                continue;
            }
            control(PURGE);
            let is_ineffective =
                before.saturating_sub(os_process::resident_bytes()) < before / MIN_PURGED_FRACTION;
            pause = if is_ineffective { (2 * pause).min(CHECK_INTERVAL_MAX) } else { CHECK_INTERVAL };
        }
    };
    std::thread::Builder::new().name("veche-memory".to_owned()).spawn(watch).map(drop)
}

/// Has jemalloc do one of the actions that have neither an argument nor a result.
fn control(action: &CStr) {
    // SAFETY: The name ends with zero. Null pointers say that there are no argument and no result.
    let result = unsafe { mallctl(action.as_ptr(), ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), 0) };
    debug_assert_eq!(result, 0, "jemalloc has {action:?}");
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
    let Some(kept) = bytes.checked_next_multiple_of(PAGE_BYTES) else { return ptr::null_mut() };
    let Some(more) = kept.checked_add(HUGE_PAGE_BYTES) else { return ptr::null_mut() };
    let mapped = map(more);
    if mapped.is_null() {
        return mapped;
    }
    let before = mapped.align_offset(HUGE_PAGE_BYTES);
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
    use std::ffi::CString;
    use tikv_jemalloc_sys::{MALLOCX_ARENA, MALLOCX_TCACHE_NONE, dallocx, mallocx};

    const ALLOCATOR: SplitAllocator = SplitAllocator;
    /// Size from which jemalloc has an arena of its own.
    const LARGE_BYTES: usize = 4 << 20;

    #[test]
    fn contents_survive_every_change_of_size() {
        for align in [1, TABLE_ALIGN] {
            contents_survive(align);
        }
    }

    /// Changes the size of an allocation many times.
    fn contents_survive(align: usize) {
        let sizes = [
            100,
            HUGE_PAGE_BYTES - 1,
            HUGE_PAGE_BYTES,
            LARGE_BYTES - 1,
            LARGE_BYTES,
            5 * LARGE_BYTES + 77,
            2 * LARGE_BYTES,
            4_000,
            3 * LARGE_BYTES,
        ];
        let layout = |bytes| Layout::from_size_align(bytes, align).expect("a small alignment");
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

    /// The value of an option of jemalloc.
    fn option<T: Default>(name: &CStr) -> T {
        let (mut value, mut len) = (T::default(), size_of::<T>());
        // SAFETY: The name ends with zero, and the result has the stated length.
        let result =
            unsafe { mallctl(name.as_ptr(), (&raw mut value).cast(), &raw mut len, ptr::null_mut(), 0) };
        assert_eq!((result, len), (0, size_of::<T>()), "{name:?}");
        value
    }

    #[test]
    fn jemalloc_has_read_the_options() {
        assert_eq!(option::<usize>(c"opt.oversize_threshold"), 4 << 20);
        assert_eq!(option::<isize>(c"opt.dirty_decay_ms"), 1_000);
        assert_eq!(option::<isize>(c"opt.muzzy_decay_ms"), 0);
    }

    /// Number of free pages that an arena keeps.
    fn free_pages(arena: u32) -> usize {
        // The statistics are those of the last epoch.
        let epoch = 1_u64;
        // SAFETY: The name ends with zero, and the argument has the stated length.
        let result = unsafe {
            let argument = (&raw const epoch).cast_mut().cast();
            mallctl(c"epoch".as_ptr(), ptr::null_mut(), ptr::null_mut(), argument, size_of::<u64>())
        };
        assert_eq!(result, 0);
        let name = CString::new(format!("stats.arenas.{arena}.pdirty")).expect("a name without zeroes");
        option(&name)
    }

    #[test]
    fn pages_of_an_arena_that_nobody_uses_return_to_the_system() {
        const BYTES: usize = 1 << 20;
        let arena: u32 = option(c"arenas.create");
        let flags = MALLOCX_ARENA(arena as usize) | MALLOCX_TCACHE_NONE;
        // SAFETY: The allocation has the written length, and is freed once.
        unsafe {
            let memory = mallocx(BYTES, flags).cast::<u8>();
            memory.write_bytes(1, BYTES);
            dallocx(memory.cast(), flags);
        }
        assert!(free_pages(arena) > 0, "jemalloc keeps them at first");
        limit_resident_memory(u64::MAX).expect("a thread");
        let patience = Instant::now() + Duration::from_secs(20);
        while free_pages(arena) > 0 {
            assert!(Instant::now() < patience, "they stay");
            std::thread::sleep(CHECK_INTERVAL);
        }
    }

    #[test]
    fn the_actions_are_known() {
        for action in [DECAY, PURGE] {
            // It panics otherwise.
            control(action);
        }
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
