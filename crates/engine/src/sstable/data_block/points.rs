//! What a search in a data block needs beside the entries, in one piece of memory.
//!
//! ```text
//! prefix | node tags u64 each | heads u64 each | offsets u32 each
//! ```
//!
//! One piece and not four, because a search in a block that is not in the processor's caches pays for every
//! page it touches: in the cache itself, and again in the translation of its address.

use super::POINT_BYTES;
use super::entry::Fields;
use crate::sstable::block::Malformed;
use crate::sstable::separator::head;
use stdx::NodeTag;

/// Prefix, tags and points of a block.
pub(super) struct Points {
    bytes: Box<[u8]>,
    prefix_len: usize,
    heads_at: usize,
    offsets_at: usize,
}

impl Points {
    /// Checks that `entries` are `cells` whole entries with tags out of `tags`, and notes points.
    pub(super) fn of(entries: &[u8], cells: usize, prefix: &[u8], tags: &[u8]) -> Result<Self, Malformed> {
        let points_max = (entries.len() / POINT_BYTES + 1).min(cells);
        let heads_at = prefix.len() + tags.len();
        let mut bytes = Vec::with_capacity(heads_at + points_max * 12);
        bytes.extend_from_slice(prefix);
        bytes.extend_from_slice(tags);
        let mut offsets = Vec::with_capacity(points_max);
        let (mut at, mut counted, mut point_at) = (0, 0, 0);
        while at < entries.len() {
            let fields =
                Fields::read(entries, at).ok_or(Malformed("an entry does not fit into its block"))?;
            if usize::from(fields.tag) * 8 >= tags.len() {
                return Err(Malformed("an entry names a node that the block does not"));
            }
            if at >= point_at {
                bytes.extend_from_slice(&head(&entries[fields.key()]).to_le_bytes());
                offsets.push(at as u32);
                point_at = at + POINT_BYTES;
            }
            counted += 1;
            at = fields.end();
        }
        if counted != cells || cells == 0 {
            return Err(Malformed("the block has another number of cells than it says"));
        }
        let offsets_at = bytes.len();
        offsets.iter().for_each(|offset| bytes.extend_from_slice(&offset.to_le_bytes()));
        Ok(Self { bytes: bytes.into(), prefix_len: prefix.len(), heads_at, offsets_at })
    }

    pub(super) fn content_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// What every key of the block begins with.
    #[inline]
    pub(super) fn prefix(&self) -> &[u8] {
        self.bytes.get(..self.prefix_len).unwrap_or_default()
    }

    /// The node tag of this index; any, if there is none, which [`Points::of`] excludes.
    #[inline(always)]
    pub(super) fn tag(&self, index: u8) -> NodeTag {
        let at = self.prefix_len + usize::from(index) * 8;
        let bytes = self.bytes.get(at..).and_then(<[u8]>::first_chunk);
        NodeTag(bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes)))
    }

    /// Where the entry of the last point begins whose key is less than `rest`, a key without the prefix, or
    /// equal to it; the first entry if all are greater. `key_at` gives the key of the entry at an offset.
    #[inline]
    pub(super) fn not_after<'a>(&self, rest: &[u8], key_at: impl Fn(usize) -> &'a [u8]) -> usize {
        let sought = head(rest);
        let heads = self.heads();
        let mut after = heads.partition_point(|head| u64::from_le_bytes(*head) < sought);
        let equal = heads[after..].iter().take_while(|head| u64::from_le_bytes(**head) == sought).count();
        let mut end = after + equal;
        while after < end {
            let middle = after.midpoint(end);
            match key_at(self.offset(middle)) <= rest {
                true => after = middle + 1,
                false => end = middle,
            }
        }
        self.offset(after.saturating_sub(1))
    }

    #[inline]
    fn heads(&self) -> &[[u8; 8]] {
        self.bytes.get(self.heads_at..self.offsets_at).unwrap_or_default().as_chunks().0
    }

    #[inline]
    fn offset(&self, point: usize) -> usize {
        let bytes = self.bytes.get(self.offsets_at + point * 4..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes) as usize)
    }
}
