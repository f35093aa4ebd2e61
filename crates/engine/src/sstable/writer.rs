//! Writing a table.
//!
//! Cells are collected in a block, which is written when it is full. A huge cell has a block of its own: it is written at
//! once and from where it is, or as another table has it, so that no copy of it is made here but the compressed one.

use super::compress::{Codec, Compressor};
use super::data_block::{DataBlockBuilder, HugeBlock, is_huge};
use super::filter::FilterBlock;
use super::format::{Extent, HEADER_BYTES, TAIL_BYTES, Tail, encode_meta, header};
use super::frame::{FrameKind, Place, Stored, Trailer, seal};
use super::index_block::IndexBlockBuilder;
use super::meta::{TableId, TableMeta};
use super::separator::separator_len;
use super::summary::Summary;
use super::{KEY_BYTES_MAX, TableOptions, VALUE_BYTES_MAX};
use crate::{Compression, Error};
use env::File;
use std::path::PathBuf;
use std::sync::Arc;
use stdx::CellRef;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes are collected until they are so many, and then handed to the system; what comes as so many is not collected.
const WRITE_BYTES: usize = 256 << 10;
/// After so many bytes the device is asked to begin. It has two such pieces at most to write: so the sync at the end
/// has little left to do, and those of the log do not wait behind a long queue.
const WRITEBACK_BYTES: u64 = 128 << 10;
/// A partition ends when its index is this large...
const PARTITION_INDEX_BYTES: usize = 8 << 10;
/// ... or when it has so many keys: 80 KiB of filter at 10 bits each.
const PARTITION_KEYS: usize = 1 << 16;

/// Writes the cells of one table, in key order.
///
/// What it holds in memory is one block, one partition's index and hashes, and the buffer of the file: under 2 MiB; while
/// a huge value is compressed, that value and what becomes of it besides. After an error the file is of no use: drop the
/// writer and remove it.
pub struct TableWriter {
    file: BufferedFile,
    id: TableId,
    options: TableOptions,
    compressor: Compressor,
    summary: Summary,
    block: DataBlockBuilder,
    /// Where a block ends that was written and is not in the index yet. Nothing is in `block` then.
    unindexed: Option<u64>,
    /// Hashes of the keys of the partition that is being filled.
    hashes: Vec<u64>,
    index: IndexBlockBuilder,
    top: IndexBlockBuilder,
}

impl TableWriter {
    /// A writer of the table `id` into `file`, which is new and empty; `path` is for errors.
    pub fn new(file: Arc<dyn File>, path: PathBuf, id: TableId, options: TableOptions) -> Self {
        Self {
            file: BufferedFile::new(file, path, header(id)),
            id,
            options,
            compressor: Compressor::new(options.compression),
            summary: Summary::default(),
            block: DataBlockBuilder::default(),
            unindexed: None,
            hashes: Vec::new(),
            index: IndexBlockBuilder::default(),
            top: IndexBlockBuilder::default(),
        }
    }

    /// Adds a cell.
    ///
    /// # Errors
    /// When the file cannot be written; [`Error::Full`] when the disk has no room.
    ///
    /// # Panics
    /// When `key` is not greater than the key before, or key or value are larger than a table can hold.
    pub fn add(&mut self, key: &[u8], cell: CellRef<'_>) -> Result<(), Error> {
        self.check(key, &cell);
        if is_huge(&cell) {
            self.end_block_before(key)?;
            let block = HugeBlock::of(key, cell);
            let extent = self.file.put_huge(self.id, &block, &mut self.compressor)?;
            self.unindexed = Some(extent.end());
        } else {
            if self.must_cut_before(key, &cell) {
                self.end_block_before(key)?;
            }
            self.block.add(key, cell);
        }
        self.count(key, &cell);
        Ok(())
    }

    /// Adds a cell that another table has in the block `stored`, and no other cell in it: the block is taken over as it is.
    ///
    /// # Errors
    /// As [`TableWriter::add`].
    ///
    /// # Panics
    /// As [`TableWriter::add`].
    pub(crate) fn add_stored(
        &mut self,
        key: &[u8],
        cell: CellRef<'_>,
        stored: Stored<'_>,
    ) -> Result<(), Error> {
        self.check(key, &cell);
        self.end_block_before(key)?;
        let extent = self.file.put_stored(self.id, stored)?;
        self.unindexed = Some(extent.end());
        self.count(key, &cell);
        Ok(())
    }

    /// Cells that were added.
    pub fn cells(&self) -> u64 {
        self.summary.cells()
    }

    /// About what the file would take if the table were finished now, in bytes; the block being filled counts
    /// uncompressed.
    pub fn file_bytes_estimate(&self) -> u64 {
        let filter_bits = self.hashes.len() as u64 * u64::from(self.options.filter_bits_per_key);
        let pending = self.block.bytes() + self.index.bytes() + self.top.bytes();
        self.file.position() + pending as u64 + filter_bits / 8 + TAIL_BYTES
    }

    /// Writes what is left and makes the contents durable; the name is the caller's to sync.
    ///
    /// # Errors
    /// As [`TableWriter::add`].
    ///
    /// # Panics
    /// When no cell was added.
    pub fn finish(mut self) -> Result<TableMeta, Error> {
        assert!(self.cells() > 0, "a table holds a cell at least");
        self.finish_block(None)?;
        let top = self.top.finish();
        let top = self.put(FrameKind::Index, &top)?;
        let mut meta = std::mem::take(&mut self.summary).finish(self.id, 0);
        self.compressor = Compressor::new(Compression::None);
        let meta_extent = self.put(FrameKind::Meta, &encode_meta(&meta))?;
        self.file.buffer.extend(Tail { top, meta: meta_extent, id: self.id }.encode());
        meta.file_bytes = self.file.position();
        self.file.finish()?;
        Ok(meta)
    }

    fn check(&self, key: &[u8], cell: &CellRef<'_>) {
        assert!(key.len() <= KEY_BYTES_MAX, "a key of {} bytes", key.len());
        assert!(cell.value.len() <= VALUE_BYTES_MAX, "a value of {} bytes", cell.value.len());
        assert!(self.summary.key_last().is_none_or(|last| last < key), "keys are added in ascending order");
    }

    /// Takes note of a cell that is in a block.
    fn count(&mut self, key: &[u8], cell: &CellRef<'_>) {
        self.hashes.push(xxh3_64(key));
        self.summary.add(key, cell);
    }

    /// Whether a cell that is not huge does not fit into the present block.
    fn must_cut_before(&self, key: &[u8], cell: &CellRef<'_>) -> bool {
        self.block.is_empty()
            || self.block.bytes_with(key, cell) > self.options.block_bytes
            || !self.block.has_room_for(cell.meta.version.tag)
    }

    /// Ends the present block, if there is one, before the cell of `key` is added.
    fn end_block_before(&mut self, key: &[u8]) -> Result<(), Error> {
        match self.cells() {
            0 => Ok(()),
            _ => self.finish_block(Some(key)),
        }
    }

    /// Writes the block that was filled, unless it was written, and takes it into the index; `next` is the first key
    /// behind it.
    fn finish_block(&mut self, next: Option<&[u8]>) -> Result<(), Error> {
        let last = self.summary.key_last().expect("a block that is not empty has a last key");
        let separator = match next.and_then(|next| Some(&next[..separator_len(last, next)?])) {
            Some(short) => short,
            None => last,
        };
        let end = match self.unindexed.take() {
            Some(end) => end,
            None => {
                let raw = self.block.finish(last);
                self.file.put(FrameKind::Data, self.id, raw, &mut self.compressor)?.end()
            }
        };
        self.index.add(separator, &[end]);
        let full = self.index.bytes() >= PARTITION_INDEX_BYTES || self.hashes.len() >= PARTITION_KEYS;
        if full || next.is_none() {
            let separator = separator.to_vec();
            self.finish_partition(&separator)?;
        }
        Ok(())
    }

    /// Writes filter and index of the data blocks since the last partition.
    fn finish_partition(&mut self, separator: &[u8]) -> Result<(), Error> {
        let filter_at = self.file.position();
        if self.options.filter_bits_per_key > 0 {
            let mut filter = Vec::new();
            FilterBlock::build(&self.hashes, self.options.filter_bits_per_key).encode(&mut filter);
            self.file.put(FrameKind::Filter, self.id, &filter, &mut Compressor::new(Compression::None))?;
        }
        self.hashes.clear();
        let index = self.index.finish();
        let index = self.put(FrameKind::Index, &index)?;
        self.top.add(separator, &[filter_at, index.offset, index.end()]);
        Ok(())
    }

    fn put(&mut self, kind: FrameKind, raw: &[u8]) -> Result<Extent, Error> {
        self.file.put(kind, self.id, raw, &mut self.compressor)
    }
}

/// Appends to a file in large pieces.
struct BufferedFile {
    file: Arc<dyn File>,
    path: PathBuf,
    buffer: Vec<u8>,
    /// What was handed to the system.
    written: u64,
    /// Up to where the device was asked to begin, ...
    started: u64,
    /// ... and up to where it was waited for.
    finished: u64,
}

impl BufferedFile {
    fn new(file: Arc<dyn File>, path: PathBuf, header: Vec<u8>) -> Self {
        debug_assert_eq!(header.len() as u64, HEADER_BYTES);
        Self { file, path, buffer: header, written: 0, started: 0, finished: 0 }
    }

    fn position(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Appends a framed block.
    fn put(
        &mut self,
        kind: FrameKind,
        table: TableId,
        raw: &[u8],
        compressor: &mut Compressor,
    ) -> Result<Extent, Error> {
        let offset = self.position();
        seal(&mut self.buffer, kind, Place { table, offset }, raw, compressor)
            .map_err(|error| Error::io("compress", &self.path, error))?;
        let extent = Extent { offset, bytes: self.position() - offset };
        if self.buffer.len() >= WRITE_BYTES {
            self.flush()?;
        }
        Ok(extent)
    }

    /// Appends the framed block of a huge cell.
    fn put_huge(
        &mut self,
        table: TableId,
        block: &HugeBlock<'_>,
        compressor: &mut Compressor,
    ) -> Result<Extent, Error> {
        let compressed =
            compressor.compress_huge(block).map_err(|error| Error::io("compress", &self.path, error))?;
        let parts = block.parts();
        let raw_len = parts.map(<[u8]>::len).iter().sum();
        match &compressed {
            Some((codec, payload)) => {
                let trailer = Trailer::of(FrameKind::Data, *codec, raw_len, &[payload]);
                self.put_parts(table, &[payload], trailer)
            }
            None => self.put_parts(table, &parts, Trailer::of(FrameKind::Data, Codec::None, raw_len, &parts)),
        }
    }

    /// Appends a block that is stored elsewhere.
    fn put_stored(&mut self, table: TableId, stored: Stored<'_>) -> Result<Extent, Error> {
        self.put_parts(table, &[stored.payload], stored.trailer)
    }

    /// Appends a frame whose payload is there in parts.
    fn put_parts(&mut self, table: TableId, payload: &[&[u8]], trailer: Trailer) -> Result<Extent, Error> {
        let offset = self.position();
        payload.iter().try_for_each(|part| self.append(part))?;
        self.append(&trailer.encode(Place { table, offset }))?;
        Ok(Extent { offset, bytes: self.position() - offset })
    }

    /// Appends bytes: what is little is collected, what is much goes to the system from where it is.
    fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() < WRITE_BYTES {
            self.buffer.extend_from_slice(bytes);
            return if self.buffer.len() < WRITE_BYTES { Ok(()) } else { self.flush() };
        }
        self.flush()?;
        bytes.chunks(WRITE_BYTES).try_for_each(|piece| self.write(piece))
    }

    /// Hands what was collected to the system.
    fn flush(&mut self) -> Result<(), Error> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let written = self.write(&buffer);
        buffer.clear();
        self.buffer = buffer;
        written
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_at(bytes, self.written).map_err(|error| Error::io("write", &self.path, error))?;
        self.written += bytes.len() as u64;
        self.write_back().map_err(|error| Error::io("write back", &self.path, error))
    }

    /// Lets the device begin with each whole piece, when it is through with the one before the last.
    fn write_back(&mut self) -> std::io::Result<()> {
        while self.written - self.started >= WRITEBACK_BYTES {
            self.file.start_writeback(self.started, WRITEBACK_BYTES)?;
            self.file.finish_writeback(self.finished, self.started - self.finished)?;
            (self.finished, self.started) = (self.started, self.started + WRITEBACK_BYTES);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.flush()?;
        self.file.sync_data().map_err(|error| Error::io("sync", &self.path, error))
    }
}

impl std::fmt::Debug for TableWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableWriter")
            .field("id", &self.id)
            .field("cells", &self.cells())
            .finish_non_exhaustive()
    }
}
