//! The cells that are in memory and not yet in a table.
//!
//! **Promise.** Any number of threads insert while any number read; nobody waits for anybody. A reader at a
//! [`Sequence`](crate::Sequence) sees exactly the cells that were inserted at or below it, provided their
//! `insert` had returned before the reader learned of that sequence. Every byte a memtable takes from the
//! allocator is in [`Memtable::bytes`].
//!
//! **Mechanism.** Each key has one *node* in a skiplist ordered by key, and the node heads a list of the
//! key's cells, the superseding one first. An index by hash finds the node of a known key in one step, so an
//! overwrite does not search the skiplist, and a read of a key that is not here ends after one cache line.
//! The keys of a batch are looked for side by side, a comparison of each in turn, so that a core waits for many lines
//! of memory at once instead of for one after the other.
//! All of it is linked by compare-and-swap and never unlinked; the memory comes from an arena that is freed
//! whole. What it leaves serves the next memtable. The `unsafe` code is in `arena`, `chunk_pool` and `node`; elsewhere
//! it only names a node by its address.
//!
//! The index is an accelerator, never an authority: what decides that a key has *one* node is the lowest
//! level of the skiplist, and whoever inserts a cell sees to it before returning that the index has the node,
//! if it can have it at all. So a miss in the index is an answer, unless the index says that it had no room.
//!
//! The heights of the skiplist's towers depend on a secret seed, so that clients cannot choose keys whose towers are all
//! low: a search would then walk the whole list.
//!
//! **Caveats.** A cell costs as many steps as there are cells of its key that supersede it: a memtable full
//! of one key, written from the newest cell to the oldest, takes quadratic time. An index holds about one key
//! for each 128 bytes of the capacity; with smaller entries than that, some lookups fall back to the skiplist.

mod arena;
mod chunk_pool;
mod cursor;
mod index;
mod node;
mod skiplist;
mod sync;
mod table;

// Shuttle switches stacks, which Miri cannot follow.
#[cfg(all(test, not(miri)))]
mod schedules;
#[cfg(test)]
mod tests;

pub use chunk_pool::ChunkPool;
pub use cursor::MemtableCursor;
pub use table::Memtable;

/// The hash of a key, as the index and [`Memtable::get`] take it.
pub fn hash_key(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}
