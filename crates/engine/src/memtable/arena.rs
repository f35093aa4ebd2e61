//! Memory that is taken in small pieces and given back all at once.
//!
//! **Promise.** A piece stays where it is until the arena goes. [`Arena::bytes`] is what the arena holds of
//! the global allocator, to the byte.
//!
//! **Mechanism.** Chunks of one size, from a [`ChunkPool`]; a piece is one `fetch_add` on the current chunk. When that
//! overshoots, whoever notices takes a new chunk and swings the current one to it; who loses that race puts its own back.
//! Keys and cells have chunks of their own: a search reads only keys, and the denser they lie, the more of
//! them, and of the page tables that lead to them, stay in the processor's caches. Values too large to share a
//! chunk are allocated alone, as [`Bytes`], so that a reader can take them without a copy.
//!
//! **Caveats.** What is left of a chunk when a piece does not fit is lost: at most [`ALLOCATION_BYTES_MAX`],
//! and mostly nothing to speak of.

use super::chunk_pool::{CACHE_LINE, CHUNK_BYTES_MIN, ChunkPool};
use super::sync::{AtomicPtr, AtomicUsize, Ordering};
use bytes::Bytes;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Pieces begin at multiples of this.
pub(super) const ALLOCATION_ALIGN: usize = 8;
/// The greatest piece: every node with its key, its tower and a small value.
pub(super) const ALLOCATION_BYTES_MAX: usize = CHUNK_BYTES_MIN / 2;
/// Values longer than this share of a chunk are allocated alone.
const LARGE_VALUE_SHARE: usize = 32;
/// So are values longer than this, which leaves room in a piece for the rest of a cell.
const LARGE_VALUE_BYTES: usize = ALLOCATION_BYTES_MAX / 2;

/// See the module.
pub(super) struct Arena {
    pool: Arc<ChunkPool>,
    keys: Lane,
    cells: Lane,
    large: AtomicPtr<LargeValue>,
    large_bytes: AtomicUsize,
}

/// Chunks for pieces of one kind.
struct Lane {
    current: AtomicPtr<Chunk>,
    bytes: AtomicUsize,
    chunk_bytes: usize,
}

/// The head of a chunk; the pieces follow it.
#[repr(C)]
struct Chunk {
    used: AtomicUsize,
    older: *mut Chunk,
}

/// Where the first piece of a chunk begins.
const CHUNK_HEAD: usize = size_of::<Chunk>().next_multiple_of(CACHE_LINE);

/// A value with an allocation of its own.
pub(super) struct LargeValue {
    pub(super) bytes: Bytes,
    older: *mut LargeValue,
}

// SAFETY: what the pointers lead to is owned by the arena, reached by other threads only through the atomics,
// and freed only by `drop`, which has the arena to itself.
unsafe impl Send for Arena {}
// SAFETY: as above; pieces are handed out once each, so no two threads are given the same memory.
unsafe impl Sync for Arena {}

impl Arena {
    /// An arena of chunks of this pool. It holds two from the start.
    pub(super) fn new(pool: Arc<ChunkPool>) -> Self {
        Self {
            keys: Lane::new(&pool),
            cells: Lane::new(&pool),
            pool,
            large: AtomicPtr::new(ptr::null_mut()),
            large_bytes: AtomicUsize::new(0),
        }
    }

    /// Uninitialised memory of `bytes` bytes for a key, aligned to [`ALLOCATION_ALIGN`], that is nobody else's for
    /// as long as the arena lives.
    ///
    /// # Panics
    /// When `bytes` is greater than [`ALLOCATION_BYTES_MAX`].
    pub(super) fn allocate_key(&self, bytes: usize) -> NonNull<u8> {
        self.keys.allocate(&self.pool, bytes)
    }

    /// [`Arena::allocate_key`], for a cell.
    pub(super) fn allocate_cell(&self, bytes: usize) -> NonNull<u8> {
        self.cells.allocate(&self.pool, bytes)
    }

    /// Whether a value of `bytes` bytes goes to [`Arena::allocate_large`].
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
            // SAFETY: `kept` came from a box just now, and nobody else knows it before the exchange succeeds.
            unsafe { (*kept).older = newest };
            match self.large.compare_exchange(newest, kept, Ordering::AcqRel, Ordering::Relaxed) {
                // SAFETY: a box is never null.
                Ok(_) => return unsafe { NonNull::new_unchecked(kept) },
                Err(newer) => newest = newer,
            }
        }
    }

    /// What the arena holds of the global allocator, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.keys.bytes() + self.cells.bytes() + self.large_bytes.load(Ordering::Relaxed)
    }

    /// What of [`Arena::bytes`] is taken or lost: all but the rest of the current chunks.
    pub(super) fn bytes_used(&self) -> usize {
        self.bytes().saturating_sub(self.keys.rest_bytes() + self.cells.rest_bytes())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let mut large = self.large.load(Ordering::Acquire);
        while !large.is_null() {
            // SAFETY: each was leaked from a box by `allocate_large`, is in the list once, and has no reader left.
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
        assert!(bytes <= ALLOCATION_BYTES_MAX, "a piece of {bytes} bytes is too large for an arena");
        let bytes = bytes.next_multiple_of(ALLOCATION_ALIGN);
        loop {
            let chunk = self.current.load(Ordering::Acquire);
            // SAFETY: `current` is never null, and chunks are freed only by `drop`.
            let at = unsafe { &(*chunk).used }.fetch_add(bytes, Ordering::Relaxed);
            if at + bytes <= self.chunk_bytes {
                // SAFETY: `at + bytes` is within the chunk, whose allocation `chunk` has the provenance of.
                return unsafe { NonNull::new_unchecked(chunk.cast::<u8>().add(at)) };
            }
            self.grow(pool, chunk);
        }
    }

    /// Puts a new chunk in the place of `full`, unless somebody did.
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
            // SAFETY: `fresh` was taken just now, and nobody else has seen it.
            Err(_) => unsafe { Chunk::put_back(fresh, pool) },
        }
    }

    /// Puts all chunks back, which leaves nothing to allocate from.
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

    /// What is free of the current chunk.
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
        // SAFETY: the chunk is ours, aligned to a cache line and longer than the head.
        unsafe { chunk.write(Self { used: AtomicUsize::new(CHUNK_HEAD), older }) };
        chunk
    }

    /// # Safety
    /// `chunk` came from [`Chunk::take`] of the same pool, and nothing refers to it any more.
    unsafe fn put_back(chunk: NonNull<Self>, pool: &ChunkPool) {
        // SAFETY: as the caller promises. The head is dropped for the atomics of the schedule tests.
        unsafe {
            ptr::drop_in_place(chunk.as_ptr());
            pool.put_back(chunk.cast());
        }
    }
}
