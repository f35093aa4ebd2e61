//! Data blocks: cells in key order.
//!
//! ```text
//! entries | node tags u64 each | prefix | cells u32 | prefix length u16 | tags u16
//! ```
//!
//! What all keys of the block share at their beginning stands once, as the *prefix*, and so do the node tags
//! of versions, of which entries hold an index. Everything else of a key is in its entry (see [`entry`]), so
//! that each entry can be understood alone; what neighbours have in common is left to compression.
//!
//! **Mechanism.** When a block is decoded, all its entries are walked once and checked. On the way a *point*
//! is noted every [`POINT_BYTES`] or so: where an entry begins, and the *head* of its key, the eight bytes
//! behind the prefix as a number. A search is a binary search in the dense array of heads, and then touches
//! one or two entries. Out of the processor's caches each entry touched costs as much as the whole search in
//! heads, and stepping through sixteen of them from a restart point, as LevelDB's blocks do, would touch eight.
//!
//! **Caveats.** Points take 12 bytes of memory for every 128 of a block; the cache counts them. A block holds
//! versions of at most 256 nodes; the writer cuts it before the 257th.

mod builder;
mod entry;
mod huge;
mod points;
#[cfg(test)]
mod tests;

pub(super) use builder::DataBlockBuilder;
pub(super) use entry::Entry;
pub(super) use huge::{HugeBlock, is_huge};

use super::block::Malformed;
use crate::prefetch::prefetch;
use entry::Fields;
use points::Points;
use std::cmp::Ordering;
use std::ops::Range;
use stdx::NodeTag;

/// A point is noted at the first entry that begins so many bytes behind the last point.
const POINT_BYTES: usize = 128;
/// Cells, length of the prefix, number of tags.
const TRAILER_BYTES: usize = 8;
/// Node tags of a block at most.
const TAGS_MAX: usize = 256;
/// A block with a single cell of this size or more is not kept in the cache.
const HUGE_BYTES: usize = 64 << 10;
/// From this size on, a value is not kept in memory or copied where it need not be.
pub(super) const LARGE_BYTES: usize = 1 << 20;

/// A decoded data block.
pub(crate) struct DataBlock {
    bytes: Vec<u8>,
    entries_end: usize,
    points: Points,
    cells: usize,
}

impl DataBlock {
    pub(super) fn decode(bytes: Vec<u8>) -> Result<Self, Malformed> {
        let too_short = Malformed("the block is shorter than its trailer says");
        let (body, &[c0, c1, c2, c3, p0, p1, t0, t1]) =
            bytes.split_last_chunk::<TRAILER_BYTES>().ok_or(too_short)?;
        let cells = u32::from_le_bytes([c0, c1, c2, c3]) as usize;
        let prefix_len = usize::from(u16::from_le_bytes([p0, p1]));
        let tags_len = usize::from(u16::from_le_bytes([t0, t1]));
        let prefix_at = body.len().checked_sub(prefix_len).ok_or(too_short)?;
        let entries_end = prefix_at.checked_sub(tags_len * 8).ok_or(too_short)?;
        let (entries, rest) = body.split_at(entries_end);
        let (tags, prefix) = rest.split_at(tags_len * 8);
        let points = Points::of(entries, cells, prefix, tags)?;
        Ok(Self { bytes, entries_end, points, cells })
    }

    /// How many cells the block holds.
    #[cfg(test)]
    fn cells(&self) -> usize {
        self.cells
    }

    /// What every key of the block begins with.
    pub(super) fn prefix(&self) -> &[u8] {
        self.points.prefix()
    }

    /// Whether the block is of a single huge cell, and so is not kept in the cache.
    pub(super) fn is_huge(&self) -> bool {
        self.cells == 1 && self.bytes.len() >= HUGE_BYTES
    }

    /// Whether it is, and of a value that is not to be held for long.
    pub(super) fn is_large(&self) -> bool {
        self.cells == 1 && self.bytes.len() >= LARGE_BYTES
    }

    /// Its bytes, without which it is of no use any more.
    pub(super) fn take_bytes(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// What the block takes on the heap, in bytes.
    pub(super) fn content_bytes(&self) -> usize {
        self.bytes.capacity() + self.points.content_bytes()
    }

    /// The entry that begins at `at`: 0, what a seek gave, or the end of another entry. `None` behind the last.
    #[inline(always)]
    pub(super) fn entry(&self, at: usize) -> Option<Entry> {
        let fields = Fields::read(self.entries(), at)?;
        Some(fields.entry(self.points.tag(fields.tag)))
    }

    /// Lets the processor fetch what lies at `at`, where an entry may begin.
    #[inline(always)]
    pub(super) fn prefetch(&self, at: usize) {
        if let Some(byte) = self.bytes.get(at) {
            prefetch(byte);
        }
    }

    /// The entry of `key`.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Option<Entry> {
        let (at, found) = self.search(key);
        if found { self.entry(at) } else { None }
    }

    /// Where the first entry begins whose key is not less than `key`; behind the last entry if all are less.
    pub(super) fn seek(&self, key: &[u8]) -> usize {
        self.search(key).0
    }

    /// The bytes in `range`, which an [`Entry`] of this block named.
    #[inline(always)]
    pub(super) fn slice(&self, range: &Range<usize>) -> &[u8] {
        self.bytes.get(range.clone()).unwrap_or_default()
    }

    /// Where the first entry begins whose key is not less than `key`, and whether it is equal.
    #[inline]
    fn search(&self, key: &[u8]) -> (usize, bool) {
        let prefix = self.points.prefix();
        let rest = match key.split_at_checked(prefix.len()) {
            Some((start, rest)) if start == prefix => rest,
            _ if key < prefix => return (0, false),
            _ => return (self.entries_end, false),
        };
        let entries = self.entries();
        let mut at = self.points.not_after(rest, |at| self.key_at(at));
        while let Some(fields) = Fields::read(entries, at) {
            match self.slice(&fields.key()).cmp(rest) {
                Ordering::Less => at = fields.end(),
                order => return (at, order == Ordering::Equal),
            }
        }
        (self.entries_end, false)
    }

    /// The key, without the prefix, of the entry that begins at `at`.
    fn key_at(&self, at: usize) -> &[u8] {
        let fields = Fields::read(self.entries(), at);
        fields.map_or(&[], |fields| self.slice(&fields.key()))
    }

    #[inline(always)]
    fn entries(&self) -> &[u8] {
        self.bytes.get(..self.entries_end).unwrap_or_default()
    }
}

/// Appends what stands behind the entries of a block: the tags that they name, the prefix of their keys, the counts.
fn put_end(out: &mut Vec<u8>, tags: &[NodeTag], prefix: &[u8], cells: usize) {
    tags.iter().for_each(|tag| out.extend_from_slice(&tag.0.to_le_bytes()));
    out.extend_from_slice(prefix);
    out.extend_from_slice(&(cells as u32).to_le_bytes());
    out.extend_from_slice(&(prefix.len() as u16).to_le_bytes());
    out.extend_from_slice(&(tags.len() as u16).to_le_bytes());
}

impl AsRef<[u8]> for DataBlock {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl std::fmt::Debug for DataBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataBlock").field("cells", &self.cells).finish_non_exhaustive()
    }
}
