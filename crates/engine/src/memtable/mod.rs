//! The memtable: cells that are in memory and not yet in a table.
//!
//! **Promise.** Any number of threads insert and read concurrently without waiting for each other.
//! A reader at a [`Sequence`](crate::Sequence) sees exactly the cells that were inserted at or
//! below it, provided that their `insert` had returned before the reader learned of that sequence.
//! [`Memtable::bytes`] covers every byte that a memtable takes from the allocator.
//!
//! **Mechanism.** Each key has one *node* in a skiplist ordered by key. The node heads a list of
//! the key's cells, the superseding one first. A hash index finds the node of a known key in one
//! step. So an overwrite does not search the skiplist, and a read of an absent key ends after one
//! cache line. The keys of a batch are searched concurrently, one comparison of each in turn. So a
//! core waits for many cache lines at once instead of one after the other.
//!
//! All nodes are linked by compare-and-swap and never unlinked. Their memory comes from an arena
//! that is freed as a whole, and its chunks serve the next memtable. The `unsafe` code is in
//! `arena`, `chunk_pool` and `node`; elsewhere it only obtains a node from its address.
//!
//! The index is an accelerator, never an authority. The lowest level of the skiplist decides that a
//! key has *one* node. A thread that inserts a cell ensures before it returns that the index has
//! the node, if its window has a slot. So a miss in the index is definite, unless the window is
//! full.
//!
//! The heights of the towers depend on a secret seed, so that clients cannot choose keys whose
//! towers are all low: a search would then walk the whole list.
//!
//! **Caveats.** An insert takes as many steps as there are cells of its key that supersede it: a
//! memtable of one key, written from the newest cell to the oldest, takes quadratic time. The index
//! holds about one key per 128 bytes of capacity; with smaller entries, some lookups fall back to
//! the skiplist.

mod arena;
mod chunk_pool;
mod cursor;
mod index;
mod node;
mod skiplist;
mod sync;
mod table;

// Shuttle switches stacks, which Miri does not support.
#[cfg(all(test, not(miri)))]
mod schedules;
#[cfg(test)]
mod tests;

pub use chunk_pool::ChunkPool;
pub use cursor::MemtableCursor;
pub use table::Memtable;

/// The hash of a key for the index and [`Memtable::get`].
pub fn hash_key(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}
