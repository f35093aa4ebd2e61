//! Sorted tables: immutable files of cells in key order, each key once.
//!
//! **Promise.** A table that was finished reads back exactly the cells that were added to it, or says that
//! the file is corrupt: every byte that is believed was covered by a checksum that also covers *where* it
//! belongs (table and offset), so a block that is at the wrong place is found too. Reading never panics,
//! whatever the bytes are. A point read that finds its blocks in the cache allocates only the value it
//! returns.
//!
//! **Mechanism.** Cells are packed into *data blocks*, cut at a size before compression. Runs of data blocks
//! form a *partition*, with a [`FilterBlock`] (a Bloom filter of its keys) and an [`IndexBlock`] (the greatest
//! key of each data block, and where it is) behind them; the *top index* says where partitions are. A get goes
//! top index, filter, index, data block, and stops at the filter for most keys that are not there. Of an open
//! table the top index is held, if it is small (4 KiB); everything else is loaded through the
//! [`BlockCache`](crate::cache::BlockCache), so memory does not grow with the data. Filters and indexes that are
//! asked for again move from there into the table, where a get reaches them without a lookup; they still
//! count in the cache's budget (see `held`).
//!
//! [`TableWriter`] writes a table, [`Table`] reads it, [`TableCursor`] walks it. The format, byte by byte:
//! `docs/storage-format/table.md`.
//!
//! A huge value, of 64 KiB or more, has a block of its own, and goes from a memtable to a table, and from table to table,
//! in as few copies as there can be: [`TableWriter`] writes it from where it lies, or takes its block over as another
//! table has it, and of the cursors of a merge only that at the head of the line holds one (see `crate::iter`).
//!
//! **Caveats.** Keys are at most 65,535 bytes and values 512 MiB; blocks are decoded whole, so a value is in
//! memory whole, twice while it is compressed or decompressed. A block that was taken over stays compressed as it was
//! first written, whatever [`TableOptions`] say by then. A partition's filter is loaded whole (80 KiB at 10 bits a key).

mod block;
mod block_reads;
mod compress;
pub(crate) mod consent;
mod cursor;
mod damage;
mod data_block;
mod files;
mod filter;
mod format;
mod frame;
mod from_bytes;
mod held;
mod index_block;
mod inspection;
mod large_reads;
mod meta;
mod read_ahead;
mod separator;
mod summary;
mod table;
mod verify;
mod window;
mod writer;

pub(crate) use block::Block;
pub use consent::read_with_consent;
pub use cursor::TableCursor;
pub use damage::{Damage, LostKeys};
pub(crate) use data_block::DataBlock;
pub(crate) use files::NotOpened;
pub use files::TableFiles;
pub(crate) use filter::FilterBlock;
pub(crate) use frame::Stored;
pub use from_bytes::check_bytes;
pub(crate) use index_block::IndexBlock;
pub(crate) use inspection::{Inspected, Inspection, PIECE_BYTES};
pub use large_reads::LargeRead;
pub(crate) use large_reads::LargeReads;
pub use meta::{TableId, TableMeta};
pub use table::Table;
pub use verify::Show;
pub use writer::TableWriter;

use crate::Compression;
use std::sync::Arc;
use stdx::Cell;

/// The longest key a table can hold, in bytes.
pub const KEY_BYTES_MAX: usize = u16::MAX as usize;
/// The longest value a table can hold, in bytes.
pub const VALUE_BYTES_MAX: usize = 512 << 20;

/// How a table is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableOptions {
    /// Data blocks are cut at this size before compression, in bytes. A block has one cell at least.
    pub block_bytes: usize,
    /// How blocks are compressed; a block that would not shrink by an eighth is left as it is.
    pub compression: Compression,
    /// Bits of filter for each key. 0: no filter.
    pub filter_bits_per_key: u32,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self { block_bytes: 16 << 10, compression: Compression::Lz4, filter_bits_per_key: 10 }
    }
}

/// Whether a read may wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It may.
    Allowed,
    /// It may not: what is neither in the block cache nor in the system's is [`Lookup::WouldWait`].
    Never,
}

/// What a point read found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The cell of the key. It may be a tombstone or expired.
    Found(Cell),
    /// The table does not have the key.
    Absent,
    /// The disk must be asked, and the caller said [`Wait::Never`].
    WouldWait,
}

/// How a cursor reads its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Data blocks that the block cache has are used, those that it lacks are read and not kept: a scan of
    /// everything leaves what point reads need where it is. Indexes go through the cache. The system reads ahead
    /// where blocks follow each other; between two steps the cursor holds one data block and no other buffer.
    Scan,
    /// In large pieces, past the block cache; a huge block also as it is stored: for compaction.
    Bulk,
    /// Each block by itself, past the block cache; what cannot be read, tried several times, is passed over and noted
    /// ([`TableCursor::damage`]).
    Salvage,
}

/// Is told the id of an obsolete table when nobody reads it any more. It runs inside `Drop`, so it only
/// notes the id; the file is removed elsewhere.
pub type Trash = Arc<dyn Fn(TableId) + Send + Sync>;

/// The table of this file, by its name; `None`: it is not the file of a table.
pub(crate) fn table_of_file(path: &std::path::Path) -> Option<TableId> {
    let name = path.file_name()?.to_str()?;
    u64::from_str_radix(name.strip_suffix(".sst")?, 16).ok().map(TableId)
}

/// The name of a table's file in the directory of tables.
pub fn file_name(id: TableId) -> String {
    format!("{:016x}.sst", id.0)
}
