//! Entries of a data block.
//!
//! ```text
//! narrow: flags u8 | from u8 | tag u8 | key length u8  | value length u16
//!         | clock u64 | [expiry u64] | key | value
//! wide:   flags u8 | from u8 | tag u8 | key length u16 | value length u32
//!         | clock u64 | [expiry u64] | key | value
//! ```
//!
//! Fields have fixed positions, so decoding is a few loads without a loop. The clock is big-endian:
//! its upper bytes rarely change and are next to the lengths, which often repeat. That gives the
//! compressor longer matches.

use std::ops::Range;
use stdx::{CellKind, CellMeta, CellRef, Hlc, NodeTag, Version, WallTime};

/// Flag of a tombstone.
const TOMBSTONE: u8 = 1;
/// Flag of a cell with an expiry, which follows the clock.
const EXPIRES: u8 = 2;
/// Flag of an entry with wide lengths.
const WIDE: u8 = 4;
const FLAGS: u8 = TOMBSTONE | EXPIRES | WIDE;
const NARROW_BYTES: usize = 14;
const WIDE_BYTES: usize = 17;
/// Maximum size of an entry without its key and value, in bytes.
pub(super) const FIELDS_BYTES_MAX: usize = WIDE_BYTES + 8;

/// An entry: the metadata of its cell, and the ranges of key and value in the block.
#[derive(Clone, Debug)]
pub(in super::super) struct Entry {
    pub(in super::super) meta: CellMeta,
    /// Range of the key without the block's prefix.
    pub(in super::super) key: Range<usize>,
    pub(in super::super) value: Range<usize>,
}

impl Entry {
    /// Offset of the next entry, unless this is the last one.
    #[inline]
    pub(in super::super) fn end(&self) -> usize {
        self.value.end
    }
}

/// The decoded fields of an entry.
#[derive(Clone, Copy)]
pub(super) struct Fields {
    pub(super) tag: u8,
    flags: u8,
    from: u8,
    clock: u64,
    expires_at: u64,
    key_at: usize,
    value_at: usize,
    end: usize,
}

impl Fields {
    /// Decodes the entry at offset `at`; `None` if there is no complete entry.
    #[inline(always)]
    pub(super) fn read(entries: &[u8], at: usize) -> Option<Self> {
        let rest = entries.get(at..)?;
        let narrow = rest.first_chunk::<NARROW_BYTES>()?;
        let [flags, from, tag, ..] = *narrow;
        let (key_len, value_len, clock, mut key_at);
        if flags & WIDE == 0 {
            let [_, _, _, key, v0, v1, c0, c1, c2, c3, c4, c5, c6, c7] = *narrow;
            key_len = usize::from(key);
            value_len = usize::from(u16::from_le_bytes([v0, v1]));
            clock = u64::from_be_bytes([c0, c1, c2, c3, c4, c5, c6, c7]);
            key_at = at + NARROW_BYTES;
        } else {
            let wide = rest.first_chunk::<WIDE_BYTES>()?;
            let [_, _, _, k0, k1, v0, v1, v2, v3, c0, c1, c2, c3, c4, c5, c6, c7] = *wide;
            key_len = usize::from(u16::from_le_bytes([k0, k1]));
            value_len = u32::from_le_bytes([v0, v1, v2, v3]) as usize;
            clock = u64::from_be_bytes([c0, c1, c2, c3, c4, c5, c6, c7]);
            key_at = at + WIDE_BYTES;
        }
        let mut expires_at = 0;
        if flags & EXPIRES != 0 {
            expires_at = u64::from_le_bytes(*entries.get(key_at..)?.first_chunk()?);
            key_at += 8;
        }
        let value_at = key_at + key_len;
        let end = value_at + value_len;
        if end > entries.len() || flags & !FLAGS != 0 {
            return None;
        }
        Some(Self { tag, flags, from, clock, expires_at, key_at, value_at, end })
    }

    /// Range of the key without the block's prefix.
    #[inline(always)]
    pub(super) fn key(&self) -> Range<usize> {
        self.key_at..self.value_at
    }

    /// Offset of the next entry, unless this is the last one.
    #[inline(always)]
    pub(super) fn end(&self) -> usize {
        self.end
    }

    /// The entry with these fields, whose version is of the node `tag`.
    #[inline(always)]
    pub(super) fn entry(&self, tag: NodeTag) -> Entry {
        let kind = if self.flags & TOMBSTONE == 0 { CellKind::Value } else { CellKind::Tombstone };
        let expires_at =
            (self.flags & EXPIRES != 0).then(|| WallTime::from_micros_since_unix_epoch(self.expires_at));
        let version = Version::new(Hlc::from_bits(self.clock), tag);
        Entry {
            meta: CellMeta { version, kind, expires_at, from: self.from },
            key: self.key(),
            value: self.value_at..self.end,
        }
    }
}

/// Appends an entry. `key` lacks the block's prefix, and `tag` is the index of the node's tag.
pub(super) fn put_entry(out: &mut Vec<u8>, key: &[u8], tag: u8, cell: CellRef<'_>) {
    put_fields(out, key.len(), cell.value.len(), tag, &cell.meta);
    out.extend_from_slice(key);
    out.extend_from_slice(cell.value);
}

/// Appends the fields of an entry before its key and value.
pub(super) fn put_fields(out: &mut Vec<u8>, key_len: usize, value_len: usize, tag: u8, meta: &CellMeta) {
    let narrow = u8::try_from(key_len).ok().zip(u16::try_from(value_len).ok());
    let mut flags = if meta.kind == CellKind::Tombstone { TOMBSTONE } else { 0 };
    flags |= if meta.expires_at.is_some() { EXPIRES } else { 0 };
    flags |= if narrow.is_none() { WIDE } else { 0 };
    out.extend_from_slice(&[flags, meta.from, tag]);
    match narrow {
        Some((key_len, value_len)) => {
            out.push(key_len);
            out.extend_from_slice(&value_len.to_le_bytes());
        }
        None => {
            out.extend_from_slice(&(key_len as u16).to_le_bytes());
            out.extend_from_slice(&(value_len as u32).to_le_bytes());
        }
    }
    out.extend_from_slice(&meta.version.hlc.to_bits().to_be_bytes());
    if let Some(expires_at) = meta.expires_at {
        out.extend_from_slice(&expires_at.micros_since_unix_epoch().to_le_bytes());
    }
}
