//! Data blocks: cells in key order.
//!
//! ```text
//! entries | heads u64 each | offsets u32 each | tags u64 each | cells u32 | restarts u32 | prefix u16 | tags u16
//! ```
//!
//! **Mechanism.** Every sixteenth entry is a *restart*: its key is whole. The others leave out what they share
//! with the key of their restart. Sharing with the restart and not with the entry before makes a seek cheap:
//! once the sought key was compared with the restart's, a number tells of most entries that they are before
//! or behind it, and no key must be put together on the way.
//!
//! The restart is found by a binary search over *heads*, an array of numbers: the eight bytes of each
//! restart's key behind the prefix that the whole block shares. Keys themselves are touched only where heads
//! are equal.
//!
//! An entry begins with fields at fixed positions, narrow or wide ([`WIDE`]) as its lengths need. The node
//! tags of versions stand once in the block; entries hold an index.
//!
//! **Caveats.** A block holds versions of at most 256 nodes; the writer cuts it before the 257th.

use super::block::Malformed;
use super::separator::{head, shared_prefix};
use std::cmp::Ordering;
use std::ops::Range;
use stdx::{CellKind, CellMeta, CellRef, Hlc, NodeTag, Version, WallTime};

/// Entries from one restart to the next.
const RESTART_INTERVAL: usize = 16;
/// Flag of an entry: the cell is a tombstone.
const TOMBSTONE: u8 = 1;
/// Flag of an entry: eight bytes of expiry follow the version.
const EXPIRES: u8 = 2;
/// Flag of an entry: lengths take 2, 2 and 4 bytes instead of 1, 1 and 2.
const WIDE: u8 = 4;
const FLAGS: u8 = TOMBSTONE | EXPIRES | WIDE;
const NARROW_BYTES: usize = 15;
const WIDE_BYTES: usize = 19;
const TRAILER_BYTES: usize = 12;
const TAGS_MAX: usize = 256;
/// A block with a single cell of this size or more is not kept in the cache.
const HUGE_BYTES: usize = 64 << 10;

/// Whether a cell is so large that it gets a block of its own, which is not kept in the cache.
pub(super) fn is_huge(cell: &CellRef<'_>) -> bool {
    cell.value.len() >= HUGE_BYTES
}

/// Collects the cells of one block.
#[derive(Default)]
pub(super) struct DataBlockBuilder {
    entries: Vec<u8>,
    offsets: Vec<u32>,
    tags: Vec<NodeTag>,
    cells: usize,
    /// Where in `entries` the key of the last restart is.
    restart_key: Range<usize>,
}

impl DataBlockBuilder {
    pub(super) fn is_empty(&self) -> bool {
        self.cells == 0
    }

    /// Whether the block has a huge cell, and so must not get another.
    pub(super) fn is_huge(&self) -> bool {
        self.entries.len() >= HUGE_BYTES && self.cells == 1
    }

    /// What the block takes, up to a few bytes of tags and trailer.
    pub(super) fn bytes(&self) -> usize {
        self.entries.len() + self.offsets.len() * 12
    }

    /// What the block would take with this cell more, at most, in bytes.
    pub(super) fn bytes_with(&self, key: &[u8], cell: &CellRef<'_>) -> usize {
        let restarts = self.offsets.len() + 1;
        let tags = self.tags.len() + 1;
        self.entries.len()
            + WIDE_BYTES
            + 8
            + key.len()
            + cell.value.len()
            + restarts * 12
            + tags * 8
            + TRAILER_BYTES
    }

    /// Whether the version's node still fits in the block.
    pub(super) fn has_room_for(&self, tag: NodeTag) -> bool {
        self.tags.len() < TAGS_MAX || self.tags.contains(&tag)
    }

    /// Adds a cell; its key is greater than the one before.
    pub(super) fn add(&mut self, key: &[u8], cell: CellRef<'_>) {
        let restarts = self.cells.is_multiple_of(RESTART_INTERVAL);
        let shared = match restarts {
            true => 0,
            false => shared_prefix(&self.entries[self.restart_key.clone()], key),
        };
        if restarts {
            self.offsets.push(self.entries.len() as u32);
        }
        let suffix = &key[shared..];
        self.put_fields(shared, suffix.len(), &cell);
        if restarts {
            self.restart_key = self.entries.len()..self.entries.len() + suffix.len();
        }
        self.entries.extend_from_slice(suffix);
        self.entries.extend_from_slice(cell.value);
        self.cells += 1;
    }

    fn put_fields(&mut self, shared: usize, suffix_len: usize, cell: &CellRef<'_>) {
        let value_len = cell.value.len();
        let tag = self.tag_index(cell.meta.version.tag);
        let narrow = u8::try_from(shared).ok().zip(u8::try_from(suffix_len).ok());
        let narrow = narrow.zip(u16::try_from(value_len).ok());
        let mut flags = if cell.meta.kind == CellKind::Tombstone { TOMBSTONE } else { 0 };
        flags |= if cell.meta.expires_at.is_some() { EXPIRES } else { 0 };
        flags |= if narrow.is_none() { WIDE } else { 0 };
        let out = &mut self.entries;
        out.extend_from_slice(&[flags, cell.meta.from, tag]);
        match narrow {
            Some(((shared, suffix_len), value_len)) => {
                out.extend_from_slice(&[shared, suffix_len]);
                out.extend_from_slice(&value_len.to_le_bytes());
            }
            None => {
                out.extend_from_slice(&(shared as u16).to_le_bytes());
                out.extend_from_slice(&(suffix_len as u16).to_le_bytes());
                out.extend_from_slice(&(value_len as u32).to_le_bytes());
            }
        }
        out.extend_from_slice(&cell.meta.version.hlc.to_bits().to_be_bytes());
        if let Some(expires_at) = cell.meta.expires_at {
            out.extend_from_slice(&expires_at.micros_since_unix_epoch().to_le_bytes());
        }
    }

    fn tag_index(&mut self, tag: NodeTag) -> u8 {
        let index = self.tags.iter().rposition(|&known| known == tag).unwrap_or_else(|| {
            assert!(self.tags.len() < TAGS_MAX, "has_room_for was asked before");
            self.tags.push(tag);
            self.tags.len() - 1
        });
        index as u8
    }

    /// Ends the block whose last key is `key_last`, and begins the next. The result is good until then.
    pub(super) fn finish(&mut self, key_last: &[u8]) -> &[u8] {
        assert!(self.cells > 0, "a block has a cell at least");
        let first = self.restart_key_at(0);
        let prefix = shared_prefix(first, key_last);
        let heads: Vec<u64> =
            (0..self.offsets.len()).map(|restart| head(&self.restart_key_at(restart)[prefix..])).collect();
        let out = &mut self.entries;
        heads.iter().for_each(|head| out.extend_from_slice(&head.to_le_bytes()));
        self.offsets.iter().for_each(|offset| out.extend_from_slice(&offset.to_le_bytes()));
        self.tags.iter().for_each(|tag| out.extend_from_slice(&tag.0.to_le_bytes()));
        out.extend_from_slice(&(self.cells as u32).to_le_bytes());
        out.extend_from_slice(&(self.offsets.len() as u32).to_le_bytes());
        out.extend_from_slice(&(prefix as u16).to_le_bytes());
        out.extend_from_slice(&(self.tags.len() as u16).to_le_bytes());
        &self.entries
    }

    /// Forgets the block that was finished, keeping its buffers unless they grew large for a huge cell.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.entries.shrink_to(1 << 20);
        self.offsets.clear();
        self.tags.clear();
        self.cells = 0;
    }

    fn restart_key_at(&self, restart: usize) -> &[u8] {
        let at = self.offsets[restart] as usize;
        let fields = Fields::read(&self.entries, at).expect("the builder wrote this entry");
        &self.entries[fields.suffix()]
    }
}

/// The fields of an entry, as they stand in it.
#[derive(Clone, Copy)]
struct Fields {
    flags: u8,
    from: u8,
    tag: u8,
    shared: usize,
    hlc: u64,
    expires_at: u64,
    suffix_at: usize,
    value_at: usize,
    end: usize,
}

impl Fields {
    /// The entry at `at`; `None` where it does not fit into `entries`.
    #[inline(always)]
    fn read(entries: &[u8], at: usize) -> Option<Self> {
        let rest = entries.get(at..)?;
        let narrow = rest.first_chunk::<NARROW_BYTES>()?;
        let [flags, from, tag, ..] = *narrow;
        let (shared, suffix_len, value_len, hlc, mut suffix_at);
        if flags & WIDE == 0 {
            let [.., shared_u8, suffix_u8, v0, v1, h0, h1, h2, h3, h4, h5, h6, h7] = *narrow;
            shared = usize::from(shared_u8);
            suffix_len = usize::from(suffix_u8);
            value_len = usize::from(u16::from_le_bytes([v0, v1]));
            hlc = u64::from_be_bytes([h0, h1, h2, h3, h4, h5, h6, h7]);
            suffix_at = at + NARROW_BYTES;
        } else {
            let wide = rest.first_chunk::<WIDE_BYTES>()?;
            let [.., s0, s1, k0, k1, v0, v1, v2, v3, h0, h1, h2, h3, h4, h5, h6, h7] = *wide;
            shared = usize::from(u16::from_le_bytes([s0, s1]));
            suffix_len = usize::from(u16::from_le_bytes([k0, k1]));
            value_len = u32::from_le_bytes([v0, v1, v2, v3]) as usize;
            hlc = u64::from_be_bytes([h0, h1, h2, h3, h4, h5, h6, h7]);
            suffix_at = at + WIDE_BYTES;
        }
        let mut expires_at = 0;
        if flags & EXPIRES != 0 {
            expires_at = u64::from_le_bytes(*entries.get(suffix_at..)?.first_chunk()?);
            suffix_at += 8;
        }
        let value_at = suffix_at + suffix_len;
        let end = value_at + value_len;
        if end > entries.len() || flags & !FLAGS != 0 {
            return None;
        }
        Some(Self { flags, from, tag, shared, hlc, expires_at, suffix_at, value_at, end })
    }

    fn suffix(&self) -> Range<usize> {
        self.suffix_at..self.value_at
    }
}

/// An entry of a block: its cell without the bytes, and where those are.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) meta: CellMeta,
    /// How many bytes of the restart's key begin this key; `suffix` is the rest.
    pub(super) shared: usize,
    pub(super) suffix: Range<usize>,
    pub(super) value: Range<usize>,
}

impl Entry {
    /// Where the next entry begins, if this is not the last.
    #[inline]
    pub(super) fn end(&self) -> usize {
        self.value.end
    }
}

/// Where a seek in a block ended.
pub(super) enum Sought {
    /// At the entry that begins here, of the restart whose key is in the first range.
    At { restart_key: Range<usize>, entry: usize },
    /// All keys of the block are less.
    Behind,
}

/// A decoded data block.
pub(crate) struct DataBlock {
    bytes: Vec<u8>,
    entries_end: usize,
    offsets_at: usize,
    tags_at: usize,
    restarts: usize,
    cells: usize,
    prefix: usize,
}

impl AsRef<[u8]> for DataBlock {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

const NO_ENTRY: Malformed = Malformed("an entry does not fit into its block");

impl DataBlock {
    pub(super) fn decode(bytes: Vec<u8>) -> Result<Self, Malformed> {
        let too_short = Malformed("the block is shorter than its trailer says");
        let (body, &[c0, c1, c2, c3, r0, r1, r2, r3, p0, p1, t0, t1]) =
            bytes.split_last_chunk::<TRAILER_BYTES>().ok_or(too_short)?;
        let cells = u32::from_le_bytes([c0, c1, c2, c3]) as usize;
        let restarts = u32::from_le_bytes([r0, r1, r2, r3]) as usize;
        let prefix = usize::from(u16::from_le_bytes([p0, p1]));
        let tags = usize::from(u16::from_le_bytes([t0, t1]));
        if cells == 0 || restarts != cells.div_ceil(RESTART_INTERVAL) {
            return Err(Malformed("the counts of cells and restarts do not match"));
        }
        let tags_at = body.len().checked_sub(tags * 8).ok_or(too_short)?;
        let offsets_at = tags_at.checked_sub(restarts * 4).ok_or(too_short)?;
        let entries_end = offsets_at.checked_sub(restarts * 8).ok_or(too_short)?;
        let block = Self { bytes, entries_end, offsets_at, tags_at, restarts, cells, prefix };
        if block.restart_key(0)?.len() < prefix {
            return Err(Malformed("the shared prefix is longer than a key"));
        }
        Ok(block)
    }

    /// How many cells the block holds.
    pub(super) fn cells(&self) -> usize {
        self.cells
    }

    /// Whether the block is of a single huge cell, and so is not kept in the cache.
    pub(super) fn is_huge(&self) -> bool {
        self.cells == 1 && self.bytes.len() >= HUGE_BYTES
    }

    /// The entry that begins at `at`, a place that a seek or the end of another entry gave; `None` behind the
    /// last.
    #[inline(always)]
    pub(super) fn entry(&self, at: usize) -> Result<Option<Entry>, Malformed> {
        if at == self.entries_end {
            return Ok(None);
        }
        let fields = self.fields(at)?;
        self.decode_fields(&fields).map(Some)
    }

    /// The cell of `key`.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Result<Option<Entry>, Malformed> {
        match self.search(key)? {
            (true, Sought::At { entry, .. }) => self.entry(entry),
            _ => Ok(None),
        }
    }

    /// The first entry whose key is not less than `key`.
    pub(super) fn seek(&self, key: &[u8]) -> Result<Sought, Malformed> {
        self.search(key).map(|(_, sought)| sought)
    }

    /// The bytes in `range`, which an [`Entry`] of this block named.
    #[inline]
    pub(super) fn slice(&self, range: &Range<usize>) -> &[u8] {
        self.bytes.get(range.clone()).unwrap_or_default()
    }

    /// The first entry whose key is not less than `key`, and whether it is equal.
    #[inline]
    fn search(&self, key: &[u8]) -> Result<(bool, Sought), Malformed> {
        let Some(restart) = self.restart_not_after(key)? else {
            return Ok((false, Sought::At { restart_key: self.restart_key(0)?, entry: 0 }));
        };
        let mut at = self.offset(restart)?;
        let first = self.fields(at)?;
        let restart_key = first.suffix();
        let shared = shared_prefix(self.slice(&restart_key), key);
        if shared == key.len() && shared == restart_key.len() {
            return Ok((true, Sought::At { restart_key, entry: at }));
        }
        let (end, next) = match restart + 1 < self.restarts {
            true => (self.offset(restart + 1)?, Some(restart + 1)),
            false => (self.entries_end, None),
        };
        at = first.end;
        while at < end {
            let fields = self.fields(at)?;
            // The restart's key is less than `key` and agrees with it for `shared` bytes. An entry that shares
            // more with the restart is less than `key` too; one that shares less is greater.
            let order = match fields.shared.cmp(&shared) {
                Ordering::Greater => Ordering::Less,
                Ordering::Less => Ordering::Greater,
                Ordering::Equal => self.slice(&fields.suffix()).cmp(&key[shared..]),
            };
            if order != Ordering::Less {
                return Ok((order == Ordering::Equal, Sought::At { restart_key, entry: at }));
            }
            at = fields.end;
        }
        match next {
            Some(next) => Ok((false, Sought::At { restart_key: self.restart_key(next)?, entry: end })),
            None => Ok((false, Sought::Behind)),
        }
    }

    /// The last restart whose key is not greater than `key`; `None` when all are.
    #[inline]
    fn restart_not_after(&self, key: &[u8]) -> Result<Option<usize>, Malformed> {
        let first = self.restart_key(0)?;
        let prefix = self.slice(&(first.start..first.start + self.prefix));
        let rest = match key.split_at_checked(self.prefix) {
            Some((start, rest)) if start == prefix => rest,
            _ if key < prefix => return Ok(None),
            _ => return Ok(Some(self.restarts - 1)),
        };
        let heads = self.heads();
        let sought = head(rest);
        let less = heads.partition_point(|head| u64::from_le_bytes(*head) < sought);
        let mut after = less;
        let mut end = less + heads[less..].partition_point(|head| u64::from_le_bytes(*head) == sought);
        while after < end {
            let middle = after.midpoint(end);
            match self.slice(&self.restart_key(middle)?) <= key {
                true => after = middle + 1,
                false => end = middle,
            }
        }
        Ok(after.checked_sub(1))
    }

    #[inline]
    fn heads(&self) -> &[[u8; 8]] {
        self.slice(&(self.entries_end..self.offsets_at)).as_chunks().0
    }

    #[inline]
    fn offset(&self, restart: usize) -> Result<usize, Malformed> {
        let bytes = self.bytes.get(self.offsets_at + restart * 4..).and_then(<[u8]>::first_chunk);
        bytes.map(|bytes| u32::from_le_bytes(*bytes) as usize).ok_or(NO_ENTRY)
    }

    #[inline]
    fn restart_key(&self, restart: usize) -> Result<Range<usize>, Malformed> {
        Ok(self.fields(self.offset(restart)?)?.suffix())
    }

    #[inline(always)]
    fn fields(&self, at: usize) -> Result<Fields, Malformed> {
        self.bytes.get(..self.entries_end).and_then(|entries| Fields::read(entries, at)).ok_or(NO_ENTRY)
    }

    #[inline(always)]
    fn decode_fields(&self, fields: &Fields) -> Result<Entry, Malformed> {
        let tag_at = self.tags_at + usize::from(fields.tag) * 8;
        let tags = self.bytes.get(..self.bytes.len() - TRAILER_BYTES).and_then(|bytes| bytes.get(tag_at..));
        let tag =
            tags.and_then(<[u8]>::first_chunk).ok_or(Malformed("an entry names a node out of bounds"))?;
        let version = Version::new(Hlc::from_bits(fields.hlc), NodeTag(u64::from_le_bytes(*tag)));
        let kind = if fields.flags & TOMBSTONE == 0 { CellKind::Value } else { CellKind::Tombstone };
        let expires_at =
            (fields.flags & EXPIRES != 0).then(|| WallTime::from_micros_since_unix_epoch(fields.expires_at));
        Ok(Entry {
            meta: CellMeta { version, kind, expires_at, from: fields.from },
            shared: fields.shared,
            suffix: fields.suffix(),
            value: fields.value_at..fields.end,
        })
    }
}

impl std::fmt::Debug for DataBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataBlock").field("cells", &self.cells).finish_non_exhaustive()
    }
}
