//! Index blocks: ordered keys, each with one or more numbers.
//!
//! ```text
//! heads u64 each | ends u32 each | columns u64 each | prefix | keys
//!     | [cells 34 each | number of cells u32]
//!     | entries u32 | columns u8 | prefix length u16
//! ```
//!
//! The highest bit of the number of columns says whether the part with cells exists (see
//! [`indexed_cell`](super::indexed_cell)).
//!
//! In memory the block is a set of arrays: the *head* of each key (the eight bytes behind the
//! prefix that all keys share, see [`head`]), the end of each key, and the columns. A search is a
//! binary search over the heads; keys are compared only where heads are equal. Numbers ascend
//! within a column, which is checked once when the block is decoded.

use super::indexed_cell::{IndexedCell, IndexedCells, IndexedCellsBuilder};
use super::malformed::Malformed;
use super::separator::{head, shared_prefix};
use std::cmp::Ordering;
use stdx::codec::Reader;

const TRAILER_BYTES: usize = 7;
/// Flag in the number of columns: the index contains cells.
const HAS_CELLS: u8 = 0x80;

/// Collects the entries of one index block.
#[derive(Default)]
pub(super) struct IndexBlockBuilder {
    keys: Vec<u8>,
    ends: Vec<usize>,
    columns: Vec<u64>,
    cells: IndexedCellsBuilder,
}

impl IndexBlockBuilder {
    /// Adds a key, greater than the previous one, with its numbers. Every entry has the same number
    /// of columns.
    pub(super) fn add(&mut self, key: &[u8], columns: &[u64]) {
        self.keys.extend_from_slice(key);
        self.ends.push(self.keys.len());
        self.columns.extend_from_slice(columns);
    }

    /// Adds the cell of the last entry, whose key is the cell's key.
    pub(super) fn add_cell(&mut self, cell: &IndexedCell) {
        let last = self.ends.len().checked_sub(1).expect("the entry of the cell was added");
        self.cells.add(last, cell);
    }

    /// Estimated size of the block, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.keys.len() + self.ends.len() * 12 + self.columns.len() * 8 + self.cells.bytes()
    }

    /// Finishes the block and starts the next one.
    pub(super) fn finish(&mut self) -> Vec<u8> {
        let entries = self.ends.len();
        assert!(entries > 0, "an index block has an entry at least");
        let columns = self.columns.len() / entries;
        let prefix = shared_prefix(self.key(0), self.key(entries - 1));
        let mut out = Vec::with_capacity(self.bytes() + prefix + TRAILER_BYTES);
        for entry in 0..entries {
            out.extend_from_slice(&head(&self.key(entry)[prefix..]).to_le_bytes());
        }
        for (entry, end) in self.ends.iter().enumerate() {
            out.extend_from_slice(&((end - (entry + 1) * prefix) as u32).to_le_bytes());
        }
        self.columns.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        out.extend_from_slice(&self.key(0)[..prefix]);
        for entry in 0..entries {
            out.extend_from_slice(&self.key(entry)[prefix..]);
        }
        let mut flags = 0;
        if !self.cells.is_empty() {
            self.cells.put(&mut out);
            flags = HAS_CELLS;
        }
        out.extend_from_slice(&(entries as u32).to_le_bytes());
        out.push(columns as u8 | flags);
        out.extend_from_slice(&(prefix as u16).to_le_bytes());
        *self = Self::default();
        out
    }

    fn key(&self, entry: usize) -> &[u8] {
        let start = if entry == 0 { 0 } else { self.ends[entry - 1] };
        &self.keys[start..self.ends[entry]]
    }
}

/// A decoded index block.
pub(crate) struct IndexBlock {
    heads: Box<[u64]>,
    /// End of each key in `keys`.
    ends: Box<[u32]>,
    numbers: Box<[u64]>,
    columns: usize,
    prefix: Box<[u8]>,
    keys: Box<[u8]>,
    cells: IndexedCells,
}

impl IndexBlock {
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let too_short = Malformed("the index is shorter than its trailer says");
        let (body, &[e0, e1, e2, e3, columns, p0, p1]) =
            bytes.split_last_chunk::<TRAILER_BYTES>().ok_or(too_short)?;
        let entries = u32::from_le_bytes([e0, e1, e2, e3]) as usize;
        let has_cells = columns & HAS_CELLS != 0;
        let columns = usize::from(columns & !HAS_CELLS);
        let prefix_len = usize::from(u16::from_le_bytes([p0, p1]));
        if entries == 0 || columns == 0 {
            return Err(Malformed("the index has no entries"));
        }
        let (body, cells) = match has_cells {
            true => IndexedCells::split_from(body, entries)?,
            false => (body, IndexedCells::none()),
        };
        let mut reader = Reader::new(body);
        let mut words = |count: usize| reader.bytes(count * 8).map(numbers).map_err(|_| too_short);
        let heads = words(entries)?;
        let ends = reader.bytes(entries * 4).map_err(|_| too_short)?;
        let ends: Box<[u32]> = ends.as_chunks().0.iter().map(|end| u32::from_le_bytes(*end)).collect();
        let numbers = reader.bytes(entries * columns * 8).map(numbers).map_err(|_| too_short)?;
        let prefix = reader.bytes(prefix_len).map_err(|_| too_short)?.into();
        let keys: Box<[u8]> = reader.rest().into();
        if !ends.is_sorted() || ends.last().is_none_or(|&end| end as usize != keys.len()) {
            return Err(Malformed("the key lengths of the index do not match its size"));
        }
        let block = Self { heads, ends, numbers, columns, prefix, keys, cells };
        match (1..entries)
            .all(|entry| (0..columns).all(|c| block.number(entry - 1, c) <= block.number(entry, c)))
        {
            true => Ok(block),
            false => Err(Malformed("the offsets in the index do not ascend")),
        }
    }

    pub(super) fn entries(&self) -> usize {
        self.heads.len()
    }

    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// The number of an entry in a column; 0 out of bounds, which no caller requests.
    #[inline]
    pub(super) fn number(&self, entry: usize, column: usize) -> u64 {
        self.numbers.get(entry * self.columns + column).copied().unwrap_or_default()
    }

    /// Index of the first entry whose key is not less than `key`; the number of entries if all are
    /// less.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> usize {
        let rest = match key.split_at_checked(self.prefix.len()) {
            Some((start, rest)) if start == &*self.prefix => rest,
            _ if key < &*self.prefix => return 0,
            _ => return self.entries(),
        };
        let sought = head(rest);
        let mut start = self.heads.partition_point(|&head| head < sought);
        let mut end = start + self.heads[start..].partition_point(|&head| head == sought);
        while start < end {
            let middle = start.midpoint(end);
            match self.suffix(middle).cmp(rest) {
                Ordering::Less => start = middle + 1,
                _ => end = middle,
            }
        }
        start
    }

    /// The cell of an entry, if the index has it. The entry's key is the key of the cell.
    #[inline]
    pub(super) fn cell(&self, entry: usize) -> Option<&IndexedCell> {
        self.cells.get(entry)
    }

    /// Whether this is the key of an entry.
    pub(super) fn is_key(&self, entry: usize, key: &[u8]) -> bool {
        key.strip_prefix(&*self.prefix) == Some(self.suffix(entry))
    }

    /// The key of an entry.
    pub(super) fn key(&self, entry: usize) -> Vec<u8> {
        [&self.prefix, self.suffix(entry)].concat()
    }

    fn suffix(&self, entry: usize) -> &[u8] {
        let start = if entry == 0 { 0 } else { self.ends[entry - 1] as usize };
        self.keys.get(start..self.ends[entry] as usize).unwrap_or_default()
    }

    pub(super) fn content_bytes(&self) -> usize {
        self.heads.len() * 8
            + self.ends.len() * 4
            + self.numbers.len() * 8
            + self.prefix.len()
            + self.keys.len()
            + self.cells.bytes()
    }
}

fn numbers(bytes: &[u8]) -> Box<[u64]> {
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

impl std::fmt::Debug for IndexBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IndexBlock").field("entries", &self.entries()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn build(keys: &[Vec<u8>]) -> Vec<u8> {
        let mut builder = IndexBlockBuilder::default();
        keys.iter().zip(1..).for_each(|(key, i)| builder.add(key, &[i * 10, i * 10 + 1]));
        builder.finish()
    }

    fn keys() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let key = prop::collection::vec(b'a'..=b'b', 0..14);
        prop::collection::btree_set(key, 1..80).prop_map(|keys| keys.into_iter().collect())
    }

    proptest! {
        #[test]
        fn a_search_finds_the_first_key_not_less(keys in keys(), probes in prop::collection::vec("[a-c]{0,14}", 20)) {
            let block = IndexBlock::decode(&build(&keys)).unwrap();
            prop_assert_eq!((block.entries(), block.columns()), (keys.len(), 2));
            for probe in probes.iter().map(String::as_bytes).chain(keys.iter().map(Vec::as_slice)) {
                prop_assert_eq!(block.find(probe), keys.partition_point(|key| key.as_slice() < probe));
            }
            for (entry, key) in keys.iter().enumerate() {
                prop_assert_eq!(&block.key(entry), key);
                prop_assert_eq!(block.number(entry, 1), (entry as u64 + 1) * 10 + 1);
            }
        }

        /// Fabricated content behind a valid checksum is refused or read, without a panic.
        #[test]
        fn damaged_indexes_are_refused_or_read(
            keys in keys(),
            edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            tail in prop::collection::vec(any::<u8>(), 0..8),
            probe in "[a-c]{0,14}",
        ) {
            let mut bytes = build(&keys);
            for (index, byte) in edits {
                let at = index.index(bytes.len());
                bytes[at] = byte;
            }
            let keep = bytes.len() - tail.len();
            bytes[keep..].copy_from_slice(&tail);
            let Ok(block) = IndexBlock::decode(&bytes) else { return Ok(()) };
            prop_assert!(block.find(probe.as_bytes()) <= block.entries());
            for entry in 0..block.entries() {
                block.key(entry);
                block.number(entry, 0);
            }
        }
    }
}
