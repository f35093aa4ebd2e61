//! Cells whose metadata is in the index.
//!
//! A block that holds a single oversized cell is not read for the cell's version: the entry of the
//! block in the partition's index has all of the cell but the value. The key of that entry is the
//! cell's key, not a shorter separator. The checksum of the index covers both.
//!
//! ```text
//! block u32 | flags u8 | from u8 | version 16 | expiry u64 | value length u32
//! ```

use super::malformed::Malformed;
use stdx::codec::{Reader, Truncated, put_version};
use stdx::{CellKind, CellMeta, CellRef, WallTime};

/// Length of an encoded cell, in bytes.
const ENCODED_BYTES: usize = 34;
/// Flag of a tombstone.
const TOMBSTONE: u8 = 1;
/// Flag of a cell with an expiry.
const EXPIRES: u8 = 2;

/// A cell without its key and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexedCell {
    pub(super) meta: CellMeta,
    /// Length of the value, in bytes.
    pub(super) value_bytes: u32,
}

impl IndexedCell {
    pub(super) fn of(cell: &CellRef<'_>) -> Self {
        Self { meta: cell.meta, value_bytes: cell.value.len() as u32 }
    }
}

/// Collects the cells of one index.
#[derive(Default)]
pub(super) struct IndexedCellsBuilder {
    encoded: Vec<u8>,
}

impl IndexedCellsBuilder {
    pub(super) fn is_empty(&self) -> bool {
        self.encoded.is_empty()
    }

    /// Size of the section in the index, in bytes.
    pub(super) fn bytes(&self) -> usize {
        if self.is_empty() { 0 } else { self.encoded.len() + size_of::<u32>() }
    }

    /// Adds the cell of a block of the partition. Blocks are added in order.
    pub(super) fn add(&mut self, block: usize, cell: &IndexedCell) {
        let IndexedCell { meta, value_bytes } = cell;
        let out = &mut self.encoded;
        let kind = if meta.kind == CellKind::Tombstone { TOMBSTONE } else { 0 };
        let expiry = if meta.expires_at.is_some() { EXPIRES } else { 0 };
        out.extend_from_slice(&(block as u32).to_le_bytes());
        out.extend_from_slice(&[kind | expiry, meta.from]);
        put_version(out, meta.version);
        let expires_at = meta.expires_at.map_or(0, WallTime::micros_since_unix_epoch);
        out.extend_from_slice(&expires_at.to_le_bytes());
        out.extend_from_slice(&value_bytes.to_le_bytes());
    }

    /// Appends the section: the cells and their number.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.encoded);
        out.extend_from_slice(&((self.encoded.len() / ENCODED_BYTES) as u32).to_le_bytes());
    }
}

/// The cells of an index, by block.
pub(super) struct IndexedCells(Box<[(u32, IndexedCell)]>);

impl IndexedCells {
    /// No cells.
    pub(super) fn none() -> Self {
        Self(Box::default())
    }

    /// Decodes the section at the end of `body`. Returns the bytes before it, and the cells.
    pub(super) fn split_from(body: &[u8], entries: usize) -> Result<(&[u8], Self), Malformed> {
        let too_short = Malformed("the index is shorter than its cells");
        let (rest, count) = body.split_last_chunk().ok_or(too_short)?;
        let count = u32::from_le_bytes(*count) as usize;
        let at = rest.len().checked_sub(count * ENCODED_BYTES).ok_or(too_short)?;
        let (before, section) = rest.split_at(at);
        let cells = section.chunks_exact(ENCODED_BYTES).map(decode).collect::<Result<Box<[_]>, _>>()?;
        let ascends = cells.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if !ascends || cells.last().is_none_or(|(block, _)| *block as usize >= entries) {
            return Err(Malformed("a cell in the index is of no block"));
        }
        Ok((before, Self(cells)))
    }

    /// The cell of a block.
    #[inline]
    pub(super) fn get(&self, block: usize) -> Option<&IndexedCell> {
        let at = self.0.binary_search_by_key(&block, |(block, _)| *block as usize).ok()?;
        self.0.get(at).map(|(_, cell)| cell)
    }

    /// Memory of the cells, in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

fn decode(bytes: &[u8]) -> Result<(u32, IndexedCell), Malformed> {
    let malformed = Malformed("a cell in the index is malformed");
    fields(bytes).map_err(|_| malformed)?.ok_or(malformed)
}

fn fields(bytes: &[u8]) -> Result<Option<(u32, IndexedCell)>, Truncated> {
    let mut reader = Reader::new(bytes);
    let (block, flags, from) = (reader.u32()?, reader.u8()?, reader.u8()?);
    let (version, expires_at, value_bytes) = (reader.version()?, reader.u64()?, reader.u32()?);
    if flags & !(TOMBSTONE | EXPIRES) != 0 {
        return Ok(None);
    }
    let kind = if flags & TOMBSTONE == 0 { CellKind::Value } else { CellKind::Tombstone };
    let expires_at = (flags & EXPIRES != 0).then(|| WallTime::from_micros_since_unix_epoch(expires_at));
    let meta = CellMeta { version, kind, expires_at, from };
    Ok(Some((block, IndexedCell { meta, value_bytes })))
}
