//! A pool of memory chunks that successive memtables reuse.
//!
//! **Promise.** The memtables of a pool and its free chunks together hold no more memory than those
//! memtables held at their peak, give or take a chunk. The free chunks never exceed the capacity of
//! one memtable, and [`ChunkPool::bytes`] reports their size.
//!
//! **Mechanism.** A list of free chunks of one size. A dropped memtable returns its chunks, and new
//! ones are taken from the list first. So while the list is not empty, only large values are
//! allocated from the global allocator, and the pool frees as much as they take. Chunks that were
//! not used for one to two minutes are freed too. Chunks are never cleared; new contents overwrite
//! the old ones.
//!
//! The system must map and clear a new chunk, which costs a twentieth of a small unsynced write,
//! and more in a virtual machine.

use parking_lot::Mutex;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::time::Duration;
use stdx::Instant;

/// Least size of a chunk, in bytes.
pub(super) const CHUNK_BYTES_MIN: usize = 64 << 10;
const CHUNK_BYTES_MAX: usize = 2 << 20;
/// Approximate number of chunks in the capacity of a memtable.
const CHUNKS: usize = 32;
/// Interval at which unused chunks are freed.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Alignment of a chunk, in bytes.
pub(super) const CACHE_LINE: usize = 64;

/// Memory for memtables of one capacity.
pub struct ChunkPool {
    capacity_bytes: usize,
    layout: Layout,
    free: Mutex<FreeChunks>,
}

/// The free chunks.
#[derive(Default)]
struct FreeChunks {
    chunks: Vec<NonNull<u8>>,
    /// The least number of free chunks since the last check: this many were not needed.
    low_watermark: usize,
    /// Time of the last check for unused chunks.
    checked_at: Option<Instant>,
    /// Bytes of large values for which no chunk was freed yet.
    pending_release_bytes: usize,
}

// SAFETY: the pool alone owns the memory behind the pointers, and any thread may free it.
unsafe impl Send for FreeChunks {}

impl ChunkPool {
    /// An empty pool for memtables of about `capacity_bytes`.
    pub fn new(capacity_bytes: u64) -> Self {
        let capacity_bytes = usize::try_from(capacity_bytes).unwrap_or(usize::MAX / 2);
        let chunk_bytes =
            (capacity_bytes / CHUNKS).next_power_of_two().clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX);
        let layout = Layout::from_size_align(chunk_bytes, CACHE_LINE)
            .expect("a chunk is far below the limit of a layout");
        let chunks = Vec::with_capacity(capacity_bytes / chunk_bytes);
        let free = FreeChunks { chunks, ..FreeChunks::default() };
        Self { capacity_bytes, layout, free: Mutex::new(free) }
    }

    /// Size of the free chunks, in bytes.
    pub fn bytes(&self) -> u64 {
        (self.free.lock().chunks.len() * self.chunk_bytes()) as u64
    }

    /// Capacity of a memtable, in bytes.
    pub(super) fn capacity_bytes(&self) -> usize {
        self.capacity_bytes
    }

    /// Size of each chunk, in bytes.
    pub(super) fn chunk_bytes(&self) -> usize {
        self.layout.size()
    }

    /// Takes a chunk, aligned to a cache line, with arbitrary contents.
    pub(super) fn take(&self) -> NonNull<u8> {
        let kept = self.free.lock().pop();
        kept.unwrap_or_else(|| {
            // SAFETY: the size of the layout is not zero.
            let fresh = unsafe { alloc(self.layout) };
            NonNull::new(fresh).unwrap_or_else(|| handle_alloc_error(self.layout))
        })
    }

    /// Returns a chunk.
    ///
    /// # Safety
    /// It came from [`ChunkPool::take`] of the same pool, and nothing refers to it any more.
    pub(super) unsafe fn put_back(&self, chunk: NonNull<u8>) {
        let mut free = self.free.lock();
        if free.chunks.len() < self.capacity_bytes / self.chunk_bytes() {
            return free.chunks.push(chunk);
        }
        drop(free);
        // SAFETY: guaranteed by the caller.
        unsafe { self.free_chunks([chunk]) };
    }

    /// Frees as much memory as a large value takes.
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
        // SAFETY: free chunks came from `take`, and only this list referred to them.
        unsafe { self.free_chunks(surplus) };
    }

    /// Frees the chunks that were not used for [`CHECK_INTERVAL`]. To be called regularly; usually
    /// costs one short lock.
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
        // SAFETY: free chunks came from `take`, and only this list referred to them.
        unsafe { self.free_chunks(unused) };
    }

    /// Frees chunks.
    ///
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

    /// Removes up to `count` chunks from the list.
    fn split_off(&mut self, count: usize) -> Vec<NonNull<u8>> {
        let off = self.chunks.split_off(self.chunks.len().saturating_sub(count));
        self.low_watermark = self.low_watermark.min(self.chunks.len());
        off
    }
}

impl Drop for ChunkPool {
    fn drop(&mut self) {
        let free = std::mem::take(self.free.get_mut());
        // SAFETY: free chunks came from `take`, and only this list referred to them.
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
            // SAFETY: each was taken from this pool, is returned once and not used any more.
            unsafe { pool.put_back(chunk) };
        }
    }

    #[test]
    fn returned_chunks_are_reused_first_and_at_most_the_capacity_is_kept() {
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
    fn large_values_displace_free_chunks() {
        let pool = ChunkPool::new(CAPACITY_BYTES);
        let chunk_bytes = pool.chunk_bytes();
        pool.release_for_large(10 * chunk_bytes);
        let chunks = take(&pool, 4);
        put_back(&pool, chunks);
        assert_eq!(pool.bytes(), CAPACITY_BYTES, "there was no free chunk at the first value");
        pool.release_for_large(chunk_bytes / 2);
        assert_eq!(pool.bytes(), CAPACITY_BYTES);
        pool.release_for_large(chunk_bytes / 2);
        assert_eq!(pool.bytes(), CAPACITY_BYTES - chunk_bytes as u64);
        pool.release_for_large(20 * chunk_bytes);
        assert_eq!(pool.bytes(), 0);
    }

    #[test]
    fn chunks_unused_between_two_checks_are_freed() {
        let pool = ChunkPool::new(CAPACITY_BYTES);
        let chunk_bytes = pool.chunk_bytes() as u64;
        let kept_after = |looks: u32| {
            pool.release_unused(Instant::ZERO + CHECK_INTERVAL * looks);
            pool.bytes() / chunk_bytes
        };
        assert_eq!(kept_after(0), 0);
        put_back(&pool, take(&pool, 4));
        assert_eq!(kept_after(1), 4, "the chunks were returned only now");
        let needed = take(&pool, 3);
        put_back(&pool, needed);
        assert_eq!(kept_after(1), 4, "too early");
        assert_eq!(kept_after(2), 3);
        pool.release_for_large(pool.chunk_bytes());
        assert_eq!(kept_after(3), 0);
    }
}
