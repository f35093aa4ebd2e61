//! A lock-free arena: small allocations that are freed all at once.
//!
//! **Promise.** An allocation does not move while the arena lives. [`Arena::bytes`] is exactly the
//! memory that the arena holds of the global allocator.
//!
//! **Mechanism.** Chunks of one size come from a [`ChunkPool`]. An allocation is one `fetch_add` on
//! the current chunk. The thread whose allocation overshoots takes a new chunk and makes it the
//! current one; a thread that loses that race returns its chunk. Keys and cells have separate
//! chunks: a search reads only keys, and dense keys need fewer cache lines and page-table entries.
//! Values too large to share a chunk are allocated alone, as [`Bytes`], so that a reader can share
//! them without a copy.
//!
//! **Caveats.** The rest of a chunk that is too small for an allocation is wasted: at most
//! [`ALLOCATION_BYTES_MAX`], and usually far less.

use super::chunk_pool::{CACHE_LINE, CHUNK_BYTES_MIN, ChunkPool};
use super::sync::{AtomicPtr, AtomicUsize, Ordering};
use bytes::Bytes;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Alignment of all allocations, in bytes.
pub(super) const ALLOCATION_ALIGN: usize = 8;
/// Greatest allocation, in bytes: any node with its key, its tower and a small value.
pub(super) const ALLOCATION_BYTES_MAX: usize = CHUNK_BYTES_MIN / 2;
/// Values longer than a chunk divided by this are allocated alone.
const LARGE_VALUE_SHARE: usize = 32;
/// Values longer than this, in bytes, are allocated alone too: an allocation must also hold the
/// cell header.
const LARGE_VALUE_BYTES: usize = ALLOCATION_BYTES_MAX / 2;

/// Allocator for one memtable.
pub(super) struct Arena {
    pool: Arc<ChunkPool>,
    keys: Lane,
    cells: Lane,
    large: AtomicPtr<LargeValue>,
    large_bytes: AtomicUsize,
}

/// The chunks for allocations of one kind.
struct Lane {
    current: AtomicPtr<Chunk>,
    bytes: AtomicUsize,
    chunk_bytes: usize,
}

/// Header of a chunk; the allocations follow it.
#[repr(C)]
struct Chunk {
    used: AtomicUsize,
    older: *mut Chunk,
}

/// Offset of the first allocation in a chunk.
const CHUNK_HEAD: usize = size_of::<Chunk>().next_multiple_of(CACHE_LINE);

/// A value with an allocation of its own.
pub(super) struct LargeValue {
    pub(super) bytes: Bytes,
    older: *mut LargeValue,
}

// SAFETY: the arena owns the memory behind the pointers. Other threads reach it only through the
// atomics, and only `drop`, with exclusive access, frees it.
unsafe impl Send for Arena {}
// SAFETY: as above; each allocation is handed out once, so no two threads receive the same memory.
unsafe impl Sync for Arena {}

impl Arena {
    /// An arena with chunks of this pool. It takes two at once.
    pub(super) fn new(pool: Arc<ChunkPool>) -> Self {
        Self {
            keys: Lane::new(&pool),
            cells: Lane::new(&pool),
            pool,
            large: AtomicPtr::new(ptr::null_mut()),
            large_bytes: AtomicUsize::new(0),
        }
    }

    /// Allocates `bytes` bytes of uninitialised memory for a key, aligned to [`ALLOCATION_ALIGN`].
    /// The caller has exclusive use of it while the arena lives.
    ///
    /// # Panics
    /// When `bytes` is greater than [`ALLOCATION_BYTES_MAX`].
    pub(super) fn allocate_key(&self, bytes: usize) -> NonNull<u8> {
        self.keys.allocate(&self.pool, bytes)
    }

    /// As [`Arena::allocate_key`], for a cell.
    pub(super) fn allocate_cell(&self, bytes: usize) -> NonNull<u8> {
        self.cells.allocate(&self.pool, bytes)
    }

    /// Whether a value of `bytes` bytes belongs in [`Arena::allocate_large`].
    pub(super) fn is_large(&self, bytes: usize) -> bool {
        bytes > (self.cells.chunk_bytes / LARGE_VALUE_SHARE).min(LARGE_VALUE_BYTES)
    }

    /// Copies `value` to an allocation of its own, which lives as long as the arena.
    pub(super) fn allocate_large(&self, value: &[u8]) -> NonNull<LargeValue> {
        let taken = value.len() + size_of::<LargeValue>();
        self.pool.release_for_large(taken);
        self.large_bytes.fetch_add(taken, Ordering::Relaxed);
        let bytes = Bytes::from(value.to_vec().into_boxed_slice());
        let kept = Box::into_raw(Box::new(LargeValue { bytes, older: ptr::null_mut() }));
        let mut newest = self.large.load(Ordering::Relaxed);
        loop {
            // SAFETY: `kept` comes from a box, and no other thread has it before the exchange
            // succeeds.
            unsafe { (*kept).older = newest };
            match self.large.compare_exchange(newest, kept, Ordering::AcqRel, Ordering::Relaxed) {
                // SAFETY: a box is never null.
                Ok(_) => return unsafe { NonNull::new_unchecked(kept) },
                Err(newer) => newest = newer,
            }
        }
    }

    /// Memory that the arena holds of the global allocator, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.keys.bytes() + self.cells.bytes() + self.large_bytes.load(Ordering::Relaxed)
    }

    /// The part of [`Arena::bytes`] that is used or wasted: all but the free rest of the current
    /// chunks.
    pub(super) fn bytes_used(&self) -> usize {
        self.bytes().saturating_sub(self.keys.rest_bytes() + self.cells.rest_bytes())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let mut large = self.large.load(Ordering::Acquire);
        while !large.is_null() {
            // SAFETY: `allocate_large` leaked each of these from a box. It is in the list once, and
            // has no reader left.
            let value = unsafe { Box::from_raw(large) };
            large = value.older;
        }
        self.keys.empty(&self.pool);
        self.cells.empty(&self.pool);
    }
}

impl Lane {
    fn new(pool: &ChunkPool) -> Self {
        let chunk_bytes = pool.chunk_bytes();
        Self {
            current: AtomicPtr::new(Chunk::take(pool, ptr::null_mut()).as_ptr()),
            bytes: AtomicUsize::new(chunk_bytes),
            chunk_bytes,
        }
    }

    fn allocate(&self, pool: &ChunkPool, bytes: usize) -> NonNull<u8> {
        assert!(bytes <= ALLOCATION_BYTES_MAX, "an allocation of {bytes} bytes is too large for an arena");
        let bytes = bytes.next_multiple_of(ALLOCATION_ALIGN);
        loop {
            let chunk = self.current.load(Ordering::Acquire);
            // SAFETY: `current` is never null, and chunks are freed only by `drop`.
            let at = unsafe { &(*chunk).used }.fetch_add(bytes, Ordering::Relaxed);
            if at + bytes <= self.chunk_bytes {
                // SAFETY: `at + bytes` is within the chunk, and `chunk` has the provenance of the
                // whole allocation.
                return unsafe { NonNull::new_unchecked(chunk.cast::<u8>().add(at)) };
            }
            self.grow(pool, chunk);
        }
    }

    /// Replaces the chunk `full` by a new one, unless another thread has.
    #[cold]
    fn grow(&self, pool: &ChunkPool, full: *mut Chunk) {
        if self.current.load(Ordering::Acquire) != full {
            return;
        }
        let fresh = Chunk::take(pool, full);
        match self.current.compare_exchange(full, fresh.as_ptr(), Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => {
                self.bytes.fetch_add(self.chunk_bytes, Ordering::Relaxed);
            }
            // SAFETY: `fresh` was just taken, and no other thread has seen it.
            Err(_) => unsafe { Chunk::put_back(fresh, pool) },
        }
    }

    /// Returns all chunks to the pool. Nothing can be allocated any more.
    fn empty(&mut self, pool: &ChunkPool) {
        let mut chunk = self.current.swap(ptr::null_mut(), Ordering::Acquire);
        while let Some(last) = NonNull::new(chunk) {
            // SAFETY: each chunk is in the list once, came from this pool, and has no reader left.
            unsafe {
                chunk = last.as_ref().older;
                Chunk::put_back(last, pool);
            }
        }
    }

    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Free bytes of the current chunk.
    fn rest_bytes(&self) -> usize {
        let chunk = self.current.load(Ordering::Acquire);
        // SAFETY: `current` is never null, and chunks are freed only by `drop`.
        let used = unsafe { &(*chunk).used }.load(Ordering::Relaxed);
        self.chunk_bytes.saturating_sub(used)
    }
}

impl Chunk {
    fn take(pool: &ChunkPool, older: *mut Self) -> NonNull<Self> {
        let chunk = pool.take().cast::<Self>();
        // SAFETY: this thread owns the chunk, which is aligned to a cache line and longer than the
        // header.
        unsafe { chunk.write(Self { used: AtomicUsize::new(CHUNK_HEAD), older }) };
        chunk
    }

    /// Returns a chunk to the pool.
    ///
    /// # Safety
    /// `chunk` came from [`Chunk::take`] of the same pool, and nothing refers to it any more.
    unsafe fn put_back(chunk: NonNull<Self>, pool: &ChunkPool) {
        // SAFETY: guaranteed by the caller. The header is dropped for shuttle's atomics in the
        // schedule tests.
        unsafe {
            ptr::drop_in_place(chunk.as_ptr());
            pool.put_back(chunk.cast());
        }
    }
}
