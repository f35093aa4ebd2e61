//! Building a data block.

use super::entry::{FIELDS_BYTES_MAX, put_entry};
use super::{TAGS_MAX, TRAILER_BYTES, put_end};
use crate::sstable::separator::shared_prefix;
use stdx::{CellMeta, CellRef, NodeTag};

/// Collects the cells of one block. Entries are encoded in [`DataBlockBuilder::finish`], when the
/// prefix is known.
#[derive(Default)]
pub(in super::super) struct DataBlockBuilder {
    cells: Vec<Pending>,
    /// Keys and values of the cells, concatenated.
    bytes: Vec<u8>,
    tags: Vec<NodeTag>,
    block: Vec<u8>,
}

/// A cell whose key and value follow those of the previous cell in the buffer.
struct Pending {
    meta: CellMeta,
    tag: u8,
    key_len: usize,
    value_len: usize,
}

impl DataBlockBuilder {
    pub(in super::super) fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Upper bound of the block's size, in bytes.
    pub(in super::super) fn bytes(&self) -> usize {
        self.bytes.len() + self.cells.len() * FIELDS_BYTES_MAX + self.tags.len() * 8 + TRAILER_BYTES
    }

    /// Upper bound of the block's size with this cell added, in bytes.
    pub(in super::super) fn bytes_with(&self, key: &[u8], cell: &CellRef<'_>) -> usize {
        self.bytes() + key.len() + cell.value.len() + FIELDS_BYTES_MAX + 8
    }

    /// Whether the block can take a version of this node.
    pub(in super::super) fn has_room_for(&self, tag: NodeTag) -> bool {
        self.tags.len() < TAGS_MAX || self.tags.contains(&tag)
    }

    /// Adds a cell. Its key must be greater than the previous key.
    pub(in super::super) fn add(&mut self, key: &[u8], cell: CellRef<'_>) {
        let tag = self.tag_index(cell.meta.version.tag);
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(cell.value);
        self.cells.push(Pending { meta: cell.meta, tag, key_len: key.len(), value_len: cell.value.len() });
    }

    fn tag_index(&mut self, tag: NodeTag) -> u8 {
        let index = self.tags.iter().rposition(|&known| known == tag).unwrap_or_else(|| {
            assert!(self.tags.len() < TAGS_MAX, "the caller checks has_room_for");
            self.tags.push(tag);
            self.tags.len() - 1
        });
        index as u8
    }

    /// Encodes the block, whose last key is `key_last`, and starts the next one. The result is
    /// valid until the next call.
    pub(in super::super) fn finish(&mut self, key_last: &[u8]) -> &[u8] {
        let first = self.cells.first().expect("a block has a cell at least");
        let prefix_len = shared_prefix(&self.bytes[..first.key_len], key_last);
        let out = &mut self.block;
        out.clear();
        let mut rest = self.bytes.as_slice();
        for cell in &self.cells {
            let (key, behind) = rest.split_at(cell.key_len);
            let (value, behind) = behind.split_at(cell.value_len);
            put_entry(out, &key[prefix_len..], cell.tag, CellRef { meta: cell.meta, value });
            rest = behind;
        }
        put_end(out, &self.tags, &key_last[..prefix_len], self.cells.len());
        self.cells.clear();
        self.tags.clear();
        self.bytes.clear();
        &self.block
    }
}
