//! The allocator: a library's for what is small, pages of the system for what is large, huge ones for tables.
//!
//! **Promise.** What is large is in memory from when it is written until it is freed, neither before nor after: room for a
//! value that has not come yet costs nothing, and a value that has left leaves nothing behind.
//!
//! **Mechanism.** From [`LARGE_BYTES`] on an allocation is a mapping of its own. To free it is to unmap it. It grows by
//! `mremap(2)`, which moves pages and copies nothing. The library keeps what was freed for whoever comes next, which is
//! right for what is small; of values of some MiB it kept several times what was in use.
//!
//! What is large and aligned to cache lines is no value but a table that is read at random: the pieces of memtables and
//! their indexes. Such tables are filled, so huge pages cost them no memory and spare each read a miss or two; they ask for
//! them. Nothing else does: a huge page of small things that come and go stays as long as the last of them.
//!
//! What the library keeps of the rest it gives back late, which is right while there is memory to spare. When nearly
//! as much is resident as the process is to hold, a thread has it give back what is free ([`limit_resident_memory`]). Where that is
//! little the library gives back soon whatever is free, for of buffers that come and go within a second it would keep a third
//! of the budget; and as each thread keeps what it has freed, each one is requests to let go of it. Pages in which something is
//! left it cannot give back, and of buffers of some hundred KiB there are few in each: so there they have pages of their own, too.
//!
//! **Caveats.** A mapping costs two calls, and a fault for each page that is written.
//! To give back at once whatever is free would cost a third of the writes that a node can take.

use env::os_process;
use mimalloc::MiMalloc;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use std::{io, ptr};

/// From this size on an allocation has pages of its own, ...
const LARGE_BYTES: usize = 4 << 20;
/// ... and from this one where the process is to hold little.
const LARGE_BYTES_LOW_MEMORY: usize = 128 << 10;
/// What a page is aligned to at least.
const PAGE_BYTES: usize = 4 << 10;
/// From this size on a table has huge pages: one of them.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// What tables are aligned to at least, and nothing else is: a cache line.
const TABLE_ALIGN: usize = 64;

/// Which of the two it is.
static LARGE_THRESHOLD: AtomicUsize = AtomicUsize::new(LARGE_BYTES);

/// Allocates what is small.
pub(crate) trait SmallAllocator: GlobalAlloc {
    /// Whether this is an allocation of its own.
    fn owns(&self, memory: *const u8) -> bool;
}

impl SmallAllocator for MiMalloc {
    fn owns(&self, memory: *const u8) -> bool {
        unsafe extern "C" {
            /// Of the library (`mimalloc.h`): whether a pointer is to something that it has allocated.
            fn mi_is_in_heap_region(memory: *const libc::c_void) -> bool;
        }
        // SAFETY: it looks at its own tables, whatever is asked for.
        unsafe { mi_is_in_heap_region(memory.cast()) }
    }
}

/// Allocates what is small with another, and what is large from the system. See the module.
pub(crate) struct SplitAllocator<A>(A);

impl<A> SplitAllocator<A> {
    /// One that asks `small` for what is small.
    pub(crate) const fn new(small: A) -> Self {
        Self(small)
    }
}

impl<A: SmallAllocator> SplitAllocator<A> {
    /// Where an allocation came from. Between the two sizes that depends on when it was made.
    fn source(&self, memory: *const u8, layout: Layout) -> Source {
        match Source::of(layout, LARGE_BYTES_LOW_MEMORY) {
            Source::Pages if layout.size() < LARGE_BYTES && self.0.owns(memory) => Source::Mimalloc,
            source => source,
        }
    }
}

// SAFETY: what is large is mapped, unmapped and moved as a whole, with the size it was asked for; whether it is large is
// requests by its layout and by the library, so each allocation goes back to where it came from. The rest is the library's.
unsafe impl<A: SmallAllocator> GlobalAlloc for SplitAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match Source::of_new(layout) {
            Source::Mimalloc => {
                if layout.size() >= PURGE_CHECK_BYTES {
                    purge_if_requested();
                }
                // SAFETY: the caller's promise is passed on.
                unsafe { self.0.alloc(layout) }
            }
            Source::Pages => map(layout.size()),
            Source::HugePages => map_huge(layout.size()),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match Source::of_new(layout) {
            // SAFETY: the caller's promise is passed on.
            Source::Mimalloc => unsafe { self.0.alloc_zeroed(layout) },
            // Fresh pages are zero.
            Source::Pages => map(layout.size()),
            Source::HugePages => map_huge(layout.size()),
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller promises that `bytes`, rounded up to the alignment, is a size.
        let new = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        match (self.source(memory, layout), Source::of_new(new)) {
            // SAFETY: the caller's promise is passed on.
            (Source::Mimalloc, Source::Mimalloc) => unsafe { self.0.realloc(memory, layout, bytes) },
            // SAFETY: `memory` is a mapping of this size, which the caller uses no more.
            (Source::Pages, Source::Pages) => unsafe {
                let moved = libc::mremap(memory.cast(), layout.size(), bytes, libc::MREMAP_MAYMOVE);
                pointer(moved)
            },
            // SAFETY: both are allocations of at least so many bytes, apart from each other; the old one is the caller's to
            // give back.
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
        match self.source(memory, layout) {
            // SAFETY: the caller's promise is passed on.
            Source::Mimalloc => unsafe { self.0.dealloc(memory, layout) },
            // SAFETY: `memory` is a mapping of this size, which nobody uses any more.
            Source::Pages | Source::HugePages => unsafe { unmap(memory, layout.size()) },
        }
    }
}

/// Whoever asks for so much looks whether he is to give back what he keeps: less is asked for too often, and more by too few.
const PURGE_CHECK_BYTES: usize = 8 << 10;

/// How often all threads were requests to give back what they keep.
static PURGE_REQUESTS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// How often this thread was.
    static PURGES_DONE: Cell<u32> = const { Cell::new(0) };
}

/// Gives back what this thread keeps, if it was requests to since the last time.
fn purge_if_requested() {
    let requests = PURGE_REQUESTS.load(Ordering::Relaxed);
    if PURGES_DONE.replace(requests) != requests {
        purge();
    }
}

/// Where an allocation comes from.
enum Source {
    Mimalloc,
    Pages,
    HugePages,
}

impl Source {
    /// That of one that is made now.
    fn of_new(layout: Layout) -> Self {
        Self::of(layout, LARGE_THRESHOLD.load(Ordering::Relaxed))
    }

    /// That of one that is made when pages of their own begin at so many bytes.
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

/// How often it is looked at what is resident, ...
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// ... at least, where there was little to give back.
const CHECK_INTERVAL_MAX: Duration = Duration::from_millis(500);
/// It was little if it was less than one in so many of what was resident.
const MIN_PURGED_FRACTION: u64 = 16;

/// A process that is to hold less than this has pages for what is smaller, and gives back what is free as soon ...
const LOW_MEMORY_BYTES: u64 = 256 << 20;
/// ... as this, in milliseconds.
const LOW_MEMORY_PURGE_DELAY_MS: libc::c_long = 10;

/// What is free is given back from so many hundredths of the bound on.
const PURGE_PERCENT: u64 = 90;

/// Has the library give back what is free when nearly so many bytes are resident, from now on.
///
/// # Errors
/// There is no thread for it.
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

unsafe extern "C" {
    /// Of the library (`mimalloc.h`): the setting of this number.
    #[cfg(test)]
    fn mi_option_get(option: libc::c_int) -> libc::c_long;
    /// Of the library (`mimalloc.h`): changes it.
    fn mi_option_set(option: libc::c_int, value: libc::c_long);
}

/// After so many milliseconds the library gives back what is free (`mi_option_purge_delay`).
const PURGE_DELAY: libc::c_int = 15;

fn set_purge_delay(milliseconds: libc::c_long) {
    // SAFETY: the number is one of the library's settings, each of which may be changed at any time.
    unsafe { mi_option_set(PURGE_DELAY, milliseconds) }
}

/// Has the library give all pages to the system that nothing is in.
fn purge() {
    unsafe extern "C" {
        /// Of the library (`mimalloc.h`): frees what is cached; with `force`, all of it and at once.
        fn mi_collect(force: bool);
    }
    // SAFETY: it may be called on any thread, at any time.
    unsafe { mi_collect(true) }
}

/// So many bytes of fresh pages; null: there are none.
fn map(bytes: usize) -> *mut u8 {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping where the system likes touches nobody's memory.
    let mapped =
        unsafe { libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    pointer(mapped)
}

/// The same, aligned to huge pages and asked for in huge pages. That there are none is no failure.
fn map_huge(bytes: usize) -> *mut u8 {
    let Some(more) = bytes.checked_add(HUGE_PAGE_BYTES) else { return ptr::null_mut() };
    let mapped = map(more);
    if mapped.is_null() {
        return mapped;
    }
    let before = mapped.align_offset(HUGE_PAGE_BYTES);
    let kept = bytes.next_multiple_of(PAGE_BYTES);
    // SAFETY: what is kept, what lies before and what lies behind are parts of the new mapping, whole pages each.
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

/// Gives pages back.
///
/// # Safety
/// They are mapped, and nobody uses them any more.
unsafe fn unmap(memory: *mut u8, bytes: usize) {
    // SAFETY: by the caller's promise.
    let result = unsafe { libc::munmap(memory.cast(), bytes) };
    debug_assert_eq!(result, 0, "what was mapped can be unmapped");
}

fn pointer(mapped: *mut libc::c_void) -> *mut u8 {
    if mapped == libc::MAP_FAILED { ptr::null_mut() } else { mapped.cast() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOCATOR: SplitAllocator<MiMalloc> = SplitAllocator::new(MiMalloc);

    #[test]
    fn what_is_written_stays_through_every_change_of_size() {
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
        // SAFETY: every access is within the size at the time, and each change of size names the one before.
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
    fn each_goes_back_to_where_it_came_from_whatever_is_large_by_then() {
        let layout = |bytes| Layout::from_size_align(bytes, 8).expect("a small alignment");
        let bounds = [LARGE_BYTES, LARGE_BYTES_LOW_MEMORY];
        let sizes = [LARGE_BYTES_LOW_MEMORY - 1, LARGE_BYTES_LOW_MEMORY, LARGE_BYTES - 1, LARGE_BYTES];
        let has_pages = |memory: *const u8| !MiMalloc.owns(memory);
        for (bound, then) in bounds.iter().flat_map(|bound| bounds.map(|then| (*bound, then))) {
            for (bytes, changed) in sizes.iter().flat_map(|bytes| sizes.map(|changed| (*bytes, changed))) {
                // SAFETY: every access is within the size at the time, and each change of size names the one before.
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
                // SAFETY: what is read and written is within the allocation, which is given back once.
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
        // SAFETY: nothing is done with it before it is given back.
        unsafe {
            let memory = ALLOCATOR.alloc(layout);
            assert_eq!(memory as usize % HUGE_PAGE_BYTES, 0);
            ALLOCATOR.dealloc(memory, layout);
        }
    }

    #[test]
    fn the_setting_is_the_one_that_is_meant() {
        // The library's own, which no other setting has: its numbers may change with its version.
        const PURGE_DELAY_MS: libc::c_long = 1_000;
        // SAFETY: the number is one of the library's settings.
        let delay = || unsafe { mi_option_get(PURGE_DELAY) };
        assert_eq!(delay(), PURGE_DELAY_MS);
        set_purge_delay(LOW_MEMORY_PURGE_DELAY_MS);
        assert_eq!(delay(), LOW_MEMORY_PURGE_DELAY_MS);
        set_purge_delay(PURGE_DELAY_MS);
    }

    #[test]
    fn what_cannot_be_had_is_null() {
        for align in [8, 64] {
            let layout = Layout::from_size_align(isize::MAX as usize & !0xfff, align).expect("a layout");
            // SAFETY: nothing is done with it.
            assert!(unsafe { ALLOCATOR.alloc(layout) }.is_null());
        }
    }
}
