//! Sorted string tables (sstables): immutable files of cells in key order, one cell per key.
//!
//! **Promise.** A finished table reads back exactly the cells that were added to it, or reports
//! that the file is corrupt. A checksum covers every byte that a read uses, and also the byte's
//! location (table id and offset), so a block at a wrong location is detected. Reading never
//! panics, for any content of the file. A point read whose blocks are cached allocates only the
//! value that it returns.
//!
//! **Mechanism.** Cells are packed into *data blocks*, which are cut at a size before compression.
//! A run of data blocks forms a *partition*. Behind its data blocks a partition has a
//! [`FilterBlock`] (a Bloom filter of its keys) and an [`IndexBlock`] (the greatest key and the end
//! of each data block). The *top index* locates the partitions. A point read consults the top
//! index, the filter, the partition's index and the data block, and stops at the filter for most
//! absent keys.
//!
//! An open table keeps its top index in memory if that takes at most 4 KiB. All other blocks are
//! loaded through the [`BlockCache`](crate::cache::BlockCache), so memory does not grow with the
//! data. Filters and indexes that are requested again move from the cache into the table, where a
//! point read finds them without a cache lookup. They still count in the cache's budget (see
//! `pinned`).
//!
//! [`TableWriter`] writes a table, [`Table`] reads it, [`TableCursor`] iterates over it. The
//! format, byte by byte: `docs/storage-format/table.md`.
//!
//! An oversized value (64 KiB or more) has a block of its own, so that flush and compaction copy it
//! as rarely as possible. [`TableWriter`] writes the value from the caller's memory, or appends the
//! stored block of another table unchanged. The index has all of the cell but the value, so a read
//! of its version ([`Table::get_meta`], [`ReadMode::Versions`]) does not read the block. Such a
//! read says which version the table contains, not that the value is readable. Among the cursors of
//! a merge, only the first one holds such a value (see `crate::iter`).
//!
//! **Caveats.** Keys have at most 65,535 bytes and values at most 512 MiB. Blocks are decoded
//! whole, so a value is in memory whole, and twice while it is compressed or decompressed. A block
//! that was copied in its stored form keeps its first compression, whatever the current
//! [`TableOptions`] are. Tables of format version 1 have no cells in their indexes. A partition's
//! filter is loaded whole (80 KiB at 10 bits a key).

mod block;
mod block_reader;
mod compress;
mod cursor;
mod damage;
mod data_block;
mod files;
mod filter;
mod format;
mod frame;
mod from_bytes;
mod index_block;
mod indexed_cell;
mod inspection;
mod large_reads;
mod malformed;
mod meta;
mod pinned;
mod read_ahead;
mod read_memory;
mod separator;
mod summary;
mod table;
mod verify;
mod window;
mod writer;

pub(crate) use block::Block;
pub use cursor::TableCursor;
pub use damage::{Damage, UnreadableRange};
pub(crate) use data_block::DataBlock;
pub(crate) use files::OpenFailed;
pub use files::TableFiles;
pub(crate) use filter::FilterBlock;
pub(crate) use frame::StoredBlock;
pub use from_bytes::check_bytes;
pub(crate) use index_block::IndexBlock;
pub(crate) use inspection::{CHUNK_BYTES, Inspection, InspectionStep};
pub(crate) use large_reads::LargeReadLimit;
pub use large_reads::LargeReadPermit;
pub use meta::{TableId, TableMeta};
pub use read_memory::{HeldMemory, ReadMemory};
pub use table::Table;
pub(crate) use table::{find_in_block, find_meta_in_block, find_meta_in_index};
pub use verify::VisitCell;
pub use writer::TableWriter;

use crate::{Compression, Error};
use std::sync::Arc;
use stdx::Cell;

/// Maximum length of a key in a table, in bytes.
pub const KEY_BYTES_MAX: usize = u16::MAX as usize;
/// Maximum length of a value in a table, in bytes.
pub const VALUE_BYTES_MAX: usize = 512 << 20;

/// Parameters of a table's encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableOptions {
    /// Maximum size of a data block before compression, in bytes. A block with a single cell may
    /// exceed it.
    pub block_bytes: usize,
    /// Compression of blocks. A block that would shrink by less than an eighth is stored
    /// uncompressed.
    pub compression: Compression,
    /// Filter bits per key; 0 for no filter.
    pub filter_bits_per_key: u32,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self { block_bytes: 16 << 10, compression: Compression::Lz4, filter_bits_per_key: 10 }
    }
}

/// Whether a read may block on the disk.
#[derive(Clone, Copy, Debug)]
pub enum Wait<'a> {
    /// The read may block. It holds a permit while it reads a large block.
    Allowed,
    /// The read may block. Its large blocks are covered by this memory.
    Covered(&'a ReadMemory),
    /// The read must not block. It returns [`Lookup::WouldWait`] if a block is neither in the block
    /// cache nor in the page cache of the operating system.
    Never,
}

impl<'a> Wait<'a> {
    /// A read that may block, with this memory if there is any.
    pub(crate) fn with(memory: Option<&'a ReadMemory>) -> Self {
        memory.map_or(Self::Allowed, Self::Covered)
    }

    fn is_allowed(self) -> bool {
        !matches!(self, Self::Never)
    }

    /// Covers a large block of `bytes`, of which `left_bytes` remain in use after it was read.
    /// Returns the permit to hold meanwhile, if the memory of the read does not hold it.
    fn cover(
        self,
        reads: &Arc<LargeReadLimit>,
        bytes: u64,
        left_bytes: u64,
    ) -> Result<Option<LargeReadPermit>, Error> {
        match self {
            Self::Covered(memory) => memory.cover(reads, bytes, left_bytes).map(|()| None),
            Self::Allowed | Self::Never => Ok(Some(reads.acquire(bytes))),
        }
    }
}

/// Result of a point read in one table, of a whole cell or of its metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup<P = Cell> {
    /// The cell of the key, which may be a tombstone or expired.
    Found(P),
    /// The table does not contain the key.
    Absent,
    /// The read needs the disk and was called with [`Wait::Never`].
    WouldWait,
}

/// How a cursor reads blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMode {
    /// Uses data blocks that are cached. Blocks that are not cached are read and not inserted, so a
    /// full scan does not evict the blocks of point reads. Index blocks go through the cache. The
    /// operating system reads ahead where blocks are consecutive. Between two steps the cursor
    /// holds one data block and no other buffer.
    Scan,
    /// Same as `Scan`, but the cursor does not read an oversized value whose metadata is in the
    /// index. [`Cursor::reload_value`](crate::iter::Cursor::reload_value) reads it.
    Versions,
    /// Reads large chunks and bypasses the block cache. Oversized blocks are also available in
    /// their stored form. Used by compaction.
    Bulk,
    /// Reads each block individually and bypasses the block cache. A block that stays unreadable
    /// after several attempts is skipped and recorded in [`TableCursor::damage`].
    Salvage,
}

/// Callback that receives the id of an obsolete table when its last reader is gone. It runs inside
/// `Drop`, so it only records the id; the file is removed elsewhere.
pub type OnObsolete = Arc<dyn Fn(TableId) + Send + Sync>;

/// The id of the table in this file, parsed from its name; `None` if it is not the name of a table
/// file.
pub(crate) fn table_id_of_path(path: &std::path::Path) -> Option<TableId> {
    let name = path.file_name()?.to_str()?;
    u64::from_str_radix(name.strip_suffix(".sst")?, 16).ok().map(TableId)
}

/// File name of a table within the directory of tables.
pub fn file_name(id: TableId) -> String {
    format!("{:016x}.sst", id.0)
}
