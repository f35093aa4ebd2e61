//! Data for searching a block, in one allocation.
//!
//! ```text
//! prefix | node tags u64 each | heads u64 each | offsets u32 each
//! ```
//!
//! One allocation instead of four, because a search in a block outside of the CPU caches pays for
//! every page that it touches: for the cache miss and for the TLB miss.

use super::POINT_BYTES;
use super::entry::Fields;
use crate::sstable::malformed::Malformed;
use crate::sstable::separator::head;
use stdx::NodeTag;

/// Prefix, node tags and search points of a block.
pub(super) struct SearchPoints {
    bytes: Box<[u8]>,
    prefix_len: usize,
    heads_at: usize,
    offsets_at: usize,
}

impl SearchPoints {
    /// Checks that `entries` are `cells` complete entries that refer to `tags`, and records the
    /// search points.
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
                return Err(Malformed("an entry refers to a node tag that the block lacks"));
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
            return Err(Malformed("the number of cells in the block does not match its trailer"));
        }
        let offsets_at = bytes.len();
        offsets.iter().for_each(|offset| bytes.extend_from_slice(&offset.to_le_bytes()));
        Ok(Self { bytes: bytes.into(), prefix_len: prefix.len(), heads_at, offsets_at })
    }

    pub(super) fn content_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The common prefix of all keys.
    #[inline]
    pub(super) fn prefix(&self) -> &[u8] {
        self.bytes.get(..self.prefix_len).unwrap_or_default()
    }

    /// The node tag with this index; an arbitrary one if it does not exist, which
    /// [`SearchPoints::of`] rules out.
    #[inline(always)]
    pub(super) fn tag(&self, index: u8) -> NodeTag {
        let at = self.prefix_len + usize::from(index) * 8;
        let bytes = self.bytes.get(at..).and_then(<[u8]>::first_chunk);
        NodeTag(bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes)))
    }

    /// Offset of the entry of the last search point whose key is at most `rest`, a key without the
    /// prefix; the first entry if all are greater. `key_at` returns the key of the entry at an
    /// offset.
    #[inline]
    pub(super) fn last_at_or_before<'a>(&self, rest: &[u8], key_at: impl Fn(usize) -> &'a [u8]) -> usize {
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
