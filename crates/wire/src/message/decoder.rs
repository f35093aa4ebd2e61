//! Decoding of the fields of a message.
//!
//! The bytes come from outside. Every length and count is checked against the available bytes
//! before memory is allocated for it. A message must end with its last field.

use super::fields::{key, meta};
use crate::WireError;
use bytes::Bytes;
use cluster::Key;
use stdx::codec::Reader;
use stdx::{Cell, CellKind, CellMeta};

/// The bytes of a message that were not decoded yet.
pub(super) struct Decoder<'a> {
    pub(super) reader: Reader<'a>,
    /// Version of the protocol.
    pub(super) version: u8,
    /// The buffer that a value or page at the end may keep as a slice.
    owner: Option<&'a Bytes>,
}

impl<'a> Decoder<'a> {
    /// A decoder that copies keys and values out of `bytes`.
    pub(super) const fn new(bytes: &'a [u8], version: u8) -> Self {
        Self { reader: Reader::new(bytes), version, owner: None }
    }

    /// A decoder that keeps a value or page at the end as a slice of `bytes`.
    pub(super) fn of_owner(bytes: &'a Bytes, version: u8) -> Self {
        Self { reader: Reader::new(bytes), version, owner: Some(bytes) }
    }

    pub(super) fn key(&mut self) -> Result<Key, WireError> {
        key(&mut self.reader)
    }

    /// Decodes a number of entries of at least `len_min` bytes each, which must fit the remaining
    /// bytes.
    pub(super) fn count_of(&mut self, len_min: usize) -> Result<usize, WireError> {
        let count = self.reader.u32()? as usize;
        match count <= self.reader.rest().len() / len_min {
            true => Ok(count),
            false => Err(WireError::Field { field: "count of entries" }),
        }
    }

    /// Decodes a cell that states the length of its value.
    pub(super) fn cell(&mut self) -> Result<Cell, WireError> {
        let meta = meta(&mut self.reader)?;
        let len = self.reader.u32()? as usize;
        cell_of(meta, Bytes::copy_from_slice(self.reader.bytes(len)?))
    }

    /// Decodes a cell whose value extends to the end of the message.
    pub(super) fn last_cell(&mut self) -> Result<Cell, WireError> {
        let meta = meta(&mut self.reader)?;
        cell_of(meta, self.tail()?)
    }

    /// Takes the rest of the message.
    pub(super) fn tail(&mut self) -> Result<Bytes, WireError> {
        let tail = self.reader.bytes(self.reader.rest().len())?;
        Ok(match self.owner {
            Some(owner) => owner.slice_ref(tail),
            None => Bytes::copy_from_slice(tail),
        })
    }
}

/// Checks that a tombstone has no value.
fn cell_of(meta: CellMeta, value: Bytes) -> Result<Cell, WireError> {
    match meta.kind == CellKind::Tombstone && !value.is_empty() {
        true => Err(WireError::Field { field: "value of a tombstone" }),
        false => Ok(Cell { meta, value }),
    }
}
