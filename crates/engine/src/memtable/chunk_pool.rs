//! Chunks of memory that go from one memtable to the next.
//!
//! **Promise.** Memtables of one pool, together with what the pool keeps, hold no more of the allocator than those
//! memtables have held at their most, give or take a chunk. What is kept is at most what one memtable is to hold, and
//! [`ChunkPool::bytes`] says how much it is.
//!
//! **Mechanism.** A list of free chunks, all of one size. A memtable that goes leaves its chunks here, and whoever needs one
//! looks here first. So while anything is kept, nothing is asked of the allocator but large values; and as much as those
//! take, the pool gives back. So it does what nobody needed for a minute or two. The chunks themselves are never cleared:
//! what was in them is written over.
//!
//! A chunk that is new must be mapped and cleared by the system, which takes a twentieth of a small write that is not
//! synced, and more where the system is itself a guest.

use parking_lot::Mutex;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::time::Duration;
use stdx::Instant;

/// The least chunk.
pub(super) const CHUNK_BYTES_MIN: usize = 64 << 10;
const CHUNK_BYTES_MAX: usize = 2 << 20;
/// About so many chunks make up the capacity of a memtable.
const CHUNKS: usize = 32;
/// It is looked so often what was not needed meanwhile.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// What a chunk is aligned to.
pub(super) const CACHE_LINE: usize = 64;

/// Memory for memtables of one capacity. See the module.
pub struct ChunkPool {
    capacity_bytes: usize,
    layout: Layout,
    free: Mutex<FreeChunks>,
}

/// Chunks that nobody uses.
#[derive(Default)]
struct FreeChunks {
    chunks: Vec<NonNull<u8>>,
    /// The low_watermark that there were since it was last looked: so many were of no use to anybody.
    low_watermark: usize,
    /// When it was last looked.
    checked_at: Option<Instant>,
    /// What large values have taken that no chunk was given back for yet.
    pending_release_bytes: usize,
}

// SAFETY: what the pointers lead to belongs to the pool alone, and may be freed by any thread.
unsafe impl Send for FreeChunks {}

impl ChunkPool {
    /// An empty pool for memtables that are to hold about `capacity_bytes`.
    pub fn new(capacity_bytes: u64) -> Self {
        let capacity_bytes = usize::try_from(capacity_bytes).unwrap_or(usize::MAX / 2);
        let chunk_bytes =
            (capacity_bytes / CHUNKS).next_power_of_two().clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX);
        let layout =
            Layout::from_size_align(chunk_bytes, CACHE_LINE).expect("a chunk is far below the limit");
        let chunks = Vec::with_capacity(capacity_bytes / chunk_bytes);
        let free = FreeChunks { chunks, ..FreeChunks::default() };
        Self { capacity_bytes, layout, free: Mutex::new(free) }
    }

    /// What is kept for the next memtables, in bytes.
    pub fn bytes(&self) -> u64 {
        (self.free.lock().chunks.len() * self.chunk_bytes()) as u64
    }

    /// What a memtable is to hold.
    pub(super) fn capacity_bytes(&self) -> usize {
        self.capacity_bytes
    }

    /// The size of every chunk.
    pub(super) fn chunk_bytes(&self) -> usize {
        self.layout.size()
    }

    /// A chunk, aligned to a cache line, whose bytes may be anything.
    pub(super) fn take(&self) -> NonNull<u8> {
        let kept = self.free.lock().pop();
        kept.unwrap_or_else(|| {
            // SAFETY: the layout has a size.
            let fresh = unsafe { alloc(self.layout) };
            NonNull::new(fresh).unwrap_or_else(|| handle_alloc_error(self.layout))
        })
    }

    /// Takes a chunk back.
    ///
    /// # Safety
    /// It came from [`ChunkPool::take`] of the same pool, and nothing refers to it any more.
    pub(super) unsafe fn put_back(&self, chunk: NonNull<u8>) {
        let mut free = self.free.lock();
        if free.chunks.len() < self.capacity_bytes / self.chunk_bytes() {
            return free.chunks.push(chunk);
        }
        drop(free);
        // SAFETY: as the caller promises.
        unsafe { self.free_chunks([chunk]) };
    }

    /// Gives as much back to the allocator as a large value took of it.
    pub(super) fn release_for_large(&self, bytes: usize) {
        let surplus = {
            let mut free = self.free.lock();
            if free.chunks.is_empty() {
                return free.pending_release_bytes = 0;
            }
            let pending_release_bytes = free.pending_release_bytes + bytes;
            free.pending_release_bytes = pending_release_bytes % self.chunk_bytes();
            free.split_off(pending_release_bytes / self.chunk_bytes())
        };
        // SAFETY: what is free came from `take`, and the list was the only one to know it.
        unsafe { self.free_chunks(surplus) };
    }

    /// Gives back to the allocator what nobody has needed for [`CHECK_INTERVAL`]. To be called now and then; mostly it costs
    /// a short lock.
    pub fn release_unused(&self, now: Instant) {
        let unused = {
            let mut free = self.free.lock();
            let checked_at = *free.checked_at.get_or_insert(now);
            if now.saturating_since(checked_at) < CHECK_INTERVAL {
                return;
            }
            let low_watermark = free.low_watermark;
            let unused = free.split_off(low_watermark);
            (free.low_watermark, free.checked_at) = (free.chunks.len(), Some(now));
            unused
        };
        // SAFETY: what is free came from `take`, and the list was the only one to know it.
        unsafe { self.free_chunks(unused) };
    }

    /// # Safety
    /// Each came from [`ChunkPool::take`], and nothing refers to it any more.
    unsafe fn free_chunks(&self, chunks: impl IntoIterator<Item = NonNull<u8>>) {
        for chunk in chunks {
            // SAFETY: all chunks were allocated with this layout.
            unsafe { dealloc(chunk.as_ptr(), self.layout) };
        }
    }
}

impl FreeChunks {
    fn pop(&mut self) -> Option<NonNull<u8>> {
        let chunk = self.chunks.pop();
        self.low_watermark = self.low_watermark.min(self.chunks.len());
        chunk
    }

    /// So many of them, or all there are.
    fn split_off(&mut self, count: usize) -> Vec<NonNull<u8>> {
        let off = self.chunks.split_off(self.chunks.len().saturating_sub(count));
        self.low_watermark = self.low_watermark.min(self.chunks.len());
        off
    }
}

impl Drop for ChunkPool {
    fn drop(&mut self) {
        let free = std::mem::take(self.free.get_mut());
        // SAFETY: what is free came from `take`, and the list was the only one to know it.
        unsafe { self.free_chunks(free.chunks) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY_BYTES: u64 = 4 * CHUNK_BYTES_MIN as u64;

    fn take(pool: &ChunkPool, count: usize) -> Vec<NonNull<u8>> {
        (0..count).map(|_| pool.take()).collect()
    }

    fn put_back(pool: &ChunkPool, chunks: Vec<NonNull<u8>>) {
        for chunk in chunks {
            // SAFETY: each was taken from this pool, is put back once and used no more.
            unsafe { pool.put_back(chunk) };
        }
    }

    #[test]
    fn what_was_put_back_is_taken_first_and_no_more_than_the_capacity_is_kept() {
        let pool = ChunkPool::new(CAPACITY_BYTES);
        assert_eq!(pool.bytes(), 0);
        let first = take(&pool, 3);
        put_back(&pool, first.clone());
        assert_eq!(pool.bytes(), 3 * pool.chunk_bytes() as u64);
        let mut second = take(&pool, 6);
        assert!(first.iter().all(|chunk| second[..3].contains(chunk)));
        second.sort_unstable();
        second.dedup();
        assert_eq!(second.len(), 6, "none is handed out twice");
        put_back(&pool, second);
        assert_eq!(pool.bytes(), CAPACITY_BYTES);
    }

    #[test]
    fn large_values_take_the_place_of_what_is_kept() {
        let pool = ChunkPool::new(CAPACITY_BYTES);
        let chunk_bytes = pool.chunk_bytes();
        pool.release_for_large(10 * chunk_bytes);
        let chunks = take(&pool, 4);
        put_back(&pool, chunks);
        assert_eq!(pool.bytes(), CAPACITY_BYTES, "nothing was kept when the first value came");
        pool.release_for_large(chunk_bytes / 2);
        assert_eq!(pool.bytes(), CAPACITY_BYTES);
        pool.release_for_large(chunk_bytes / 2);
        assert_eq!(pool.bytes(), CAPACITY_BYTES - chunk_bytes as u64);
        pool.release_for_large(20 * chunk_bytes);
        assert_eq!(pool.bytes(), 0);
    }

    #[test]
    fn what_nobody_needed_from_one_look_to_the_next_is_given_back() {
        let pool = ChunkPool::new(CAPACITY_BYTES);
        let chunk_bytes = pool.chunk_bytes() as u64;
        let kept_after = |looks: u32| {
            pool.release_unused(Instant::ZERO + CHECK_INTERVAL * looks);
            pool.bytes() / chunk_bytes
        };
        assert_eq!(kept_after(0), 0);
        put_back(&pool, take(&pool, 4));
        assert_eq!(kept_after(1), 4, "it came only now");
        let needed = take(&pool, 3);
        put_back(&pool, needed);
        assert_eq!(kept_after(1), 4, "too early");
        assert_eq!(kept_after(2), 3);
        pool.release_for_large(pool.chunk_bytes());
        assert_eq!(kept_after(3), 0);
    }
}
