//! Data blocks: cells in key order.
//!
//! ```text
//! entries | node tags u64 each | prefix | cells u32 | prefix length u16 | tags u16
//! ```
//!
//! The common *prefix* of all keys is stored once. So are the node tags of versions, which entries
//! refer to by index. The rest of a key is in its entry (see [`entry`]), so each entry can be
//! decoded alone. Other redundancy between neighbours is left to compression.
//!
//! **Mechanism.** Decoding a block walks all entries once and checks them. It records a *search
//! point* about every [`POINT_BYTES`]: the offset of an entry and the *head* of its key, the eight
//! bytes behind the prefix as a number. A search is a binary search in the dense array of heads,
//! followed by one or two entries. Outside of the CPU caches, each entry costs as much as the whole
//! search in the heads. LevelDB's blocks, which step through sixteen entries from a restart point,
//! would touch eight on average.
//!
//! **Caveats.** Search points take 12 bytes of memory per 128 bytes of block; the cache counts
//! them. A block holds versions of at most 256 nodes; the writer cuts it before the 257th.

mod builder;
mod entry;
mod oversized;
mod search_points;
#[cfg(test)]
mod tests;

pub(super) use builder::DataBlockBuilder;
pub(super) use entry::Entry;
pub(super) use oversized::{OversizedBlock, is_oversized};

use super::malformed::Malformed;
use crate::prefetch::prefetch;
use entry::Fields;
use search_points::SearchPoints;
use std::cmp::Ordering;
use std::ops::Range;
use stdx::NodeTag;

/// Distance between search points, in bytes: a point is recorded at the first entry at or beyond
/// it.
const POINT_BYTES: usize = 128;
/// Length of the trailer in bytes: number of cells, length of the prefix, number of tags.
const TRAILER_BYTES: usize = 8;
/// Maximum number of node tags in a block.
const TAGS_MAX: usize = 256;
/// Minimum size of an oversized value or block, in bytes. It has a block of its own, which is not
/// cached.
const OVERSIZED_BYTES: usize = 64 << 10;
/// Minimum size of a large value, in bytes. A large value is not held or copied where that is
/// avoidable.
pub(super) const LARGE_BYTES: usize = 1 << 20;

/// A decoded data block.
pub(crate) struct DataBlock {
    bytes: Vec<u8>,
    entries_end: usize,
    points: SearchPoints,
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
        let points = SearchPoints::of(entries, cells, prefix, tags)?;
        Ok(Self { bytes, entries_end, points, cells })
    }

    /// Number of cells in the block.
    #[cfg(test)]
    fn cells(&self) -> usize {
        self.cells
    }

    /// The common prefix of all keys.
    pub(super) fn prefix(&self) -> &[u8] {
        self.points.prefix()
    }

    /// Whether the block holds a single oversized cell. Such a block is not cached.
    pub(super) fn is_oversized(&self) -> bool {
        self.cells == 1 && self.bytes.len() >= OVERSIZED_BYTES
    }

    /// Whether the block holds a single cell of at least [`LARGE_BYTES`], which is not held for
    /// long.
    pub(super) fn is_large(&self) -> bool {
        self.cells == 1 && self.bytes.len() >= LARGE_BYTES
    }

    /// Takes the bytes out of the block, which is unusable afterwards.
    pub(super) fn take_bytes(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Memory of the block's content, in bytes.
    pub(super) fn content_bytes(&self) -> usize {
        self.bytes.capacity() + self.points.content_bytes()
    }

    /// The entry at offset `at`: 0, the result of a seek, or the end of another entry. `None` past
    /// the last entry.
    #[inline(always)]
    pub(super) fn entry(&self, at: usize) -> Option<Entry> {
        let fields = Fields::read(self.entries(), at)?;
        Some(fields.entry(self.points.tag(fields.tag)))
    }

    /// Prefetches the byte at offset `at` into the CPU caches.
    #[inline(always)]
    pub(super) fn prefetch(&self, at: usize) {
        if let Some(byte) = self.bytes.get(at) {
            prefetch(byte);
        }
    }

    /// Returns the entry of `key`.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Option<Entry> {
        let (at, found) = self.search(key);
        if found { self.entry(at) } else { None }
    }

    /// Offset of the first entry whose key is not less than `key`; the end of the entries if all
    /// are less.
    pub(super) fn seek(&self, key: &[u8]) -> usize {
        self.search(key).0
    }

    /// The bytes of a range that an [`Entry`] of this block contains.
    #[inline(always)]
    pub(super) fn slice(&self, range: &Range<usize>) -> &[u8] {
        self.bytes.get(range.clone()).unwrap_or_default()
    }

    /// Offset of the first entry whose key is not less than `key`, and whether its key is equal.
    #[inline]
    fn search(&self, key: &[u8]) -> (usize, bool) {
        let prefix = self.points.prefix();
        let rest = match key.split_at_checked(prefix.len()) {
            Some((start, rest)) if start == prefix => rest,
            _ if key < prefix => return (0, false),
            _ => return (self.entries_end, false),
        };
        let entries = self.entries();
        let mut at = self.points.last_at_or_before(rest, |at| self.key_at(at));
        while let Some(fields) = Fields::read(entries, at) {
            match self.slice(&fields.key()).cmp(rest) {
                Ordering::Less => at = fields.end(),
                order => return (at, order == Ordering::Equal),
            }
        }
        (self.entries_end, false)
    }

    /// The key, without the prefix, of the entry at offset `at`.
    fn key_at(&self, at: usize) -> &[u8] {
        let fields = Fields::read(self.entries(), at);
        fields.map_or(&[], |fields| self.slice(&fields.key()))
    }

    #[inline(always)]
    fn entries(&self) -> &[u8] {
        self.bytes.get(..self.entries_end).unwrap_or_default()
    }
}

/// Appends the part of a block behind its entries: node tags, key prefix and counts.
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
