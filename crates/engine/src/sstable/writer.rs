//! Writing a table.
//!
//! Cells are collected in a data block, which is written when it is full. An oversized cell has a
//! block of its own. That block is written at once, from the caller's memory or in the stored form
//! of another table, so the only copy made here is the compressed one. The index gets the cell
//! without its value.
//!
//! A table without oversized cells has format version 1, which earlier releases read. The header is
//! written first, so it is replaced at the end of a table that has an oversized cell.

use super::compress::{Codec, Compressor};
use super::data_block::{DataBlockBuilder, OversizedBlock, is_oversized};
use super::filter::FilterBlock;
use super::format::{Extent, FormatVersion, HEADER_BYTES, TAIL_BYTES, Tail, encode_meta, header};
use super::frame::{FrameKind, FrameLocation, StoredBlock, Trailer, seal};
use super::index_block::IndexBlockBuilder;
use super::indexed_cell::IndexedCell;
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

/// Size of the write buffer, in bytes. Larger writes bypass it.
const WRITE_BYTES: usize = 256 << 10;
/// Bytes after which writeback of a range is started. At most two such ranges are in writeback, so
/// the final sync has little left to write and syncs of the log do not queue behind a long backlog.
const WRITEBACK_BYTES: u64 = 128 << 10;
/// Size of a partition's index at which the partition ends, in bytes.
const PARTITION_INDEX_BYTES: usize = 8 << 10;
/// Number of keys at which a partition ends: 80 KiB of filter at 10 bits a key.
const PARTITION_KEYS: usize = 1 << 16;

/// Writes the cells of one table, in key order.
///
/// Its memory is one block, the index and key hashes of one partition, and the write buffer: less
/// than 2 MiB. While an oversized value is compressed, the value and its compressed form come on
/// top. After an error the file is unusable: the caller drops the writer and removes the file.
pub struct TableWriter {
    file: BufferedFile,
    id: TableId,
    options: TableOptions,
    compressor: Compressor,
    summary: Summary,
    block: DataBlockBuilder,
    /// A block that is written but not in the index yet. `block` is empty then.
    unindexed: Option<UnindexedBlock>,
    /// Hashes of the keys of the current partition.
    hashes: Vec<u64>,
    index: IndexBlockBuilder,
    top: IndexBlockBuilder,
    format: FormatVersion,
}

/// The block of a single cell that is not in the index yet.
struct UnindexedBlock {
    /// End of its frame.
    end: u64,
    cell: IndexedCell,
}

impl TableWriter {
    /// Returns a writer of the table `id` into `file`, which is new and empty. `path` is used in
    /// errors.
    pub fn new(file: Arc<dyn File>, path: PathBuf, id: TableId, options: TableOptions) -> Self {
        Self {
            file: BufferedFile::new(file, path, header(id, FormatVersion::V1)),
            id,
            options,
            compressor: Compressor::new(options.compression),
            summary: Summary::default(),
            block: DataBlockBuilder::default(),
            unindexed: None,
            hashes: Vec::new(),
            index: IndexBlockBuilder::default(),
            top: IndexBlockBuilder::default(),
            format: FormatVersion::V1,
        }
    }

    /// Adds a cell.
    ///
    /// # Errors
    /// [`Error::Full`] if the disk is full; other errors if the file cannot be written.
    ///
    /// # Panics
    /// If `key` is not greater than the previous key, or if the key or value exceeds the limits of
    /// a table.
    pub fn add(&mut self, key: &[u8], cell: CellRef<'_>) -> Result<(), Error> {
        self.check(key, &cell);
        if is_oversized(&cell) {
            self.end_block_before(key)?;
            let block = OversizedBlock::of(key, cell);
            let extent = self.file.put_oversized(self.id, &block, &mut self.compressor)?;
            self.unindexed = Some(UnindexedBlock { end: extent.end(), cell: IndexedCell::of(&cell) });
        } else {
            if self.must_cut_before(key, &cell) {
                self.end_block_before(key)?;
            }
            self.block.add(key, cell);
        }
        self.count(key, &cell);
        Ok(())
    }

    /// Adds a cell in the stored form of another table's block, which contains no other cell. The
    /// block is copied unchanged.
    ///
    /// # Errors
    /// Same as [`TableWriter::add`].
    ///
    /// # Panics
    /// Same as [`TableWriter::add`].
    pub(crate) fn add_stored(
        &mut self,
        key: &[u8],
        cell: CellRef<'_>,
        stored: StoredBlock<'_>,
    ) -> Result<(), Error> {
        self.check(key, &cell);
        self.end_block_before(key)?;
        let extent = self.file.put_stored(self.id, stored)?;
        self.unindexed = Some(UnindexedBlock { end: extent.end(), cell: IndexedCell::of(&cell) });
        self.count(key, &cell);
        Ok(())
    }

    /// Number of cells added.
    pub fn cells(&self) -> u64 {
        self.summary.cells()
    }

    /// Estimated length of the file if the table were finished now, in bytes. The current block
    /// counts uncompressed.
    pub fn file_bytes_estimate(&self) -> u64 {
        let filter_bits = self.hashes.len() as u64 * u64::from(self.options.filter_bits_per_key);
        let pending = self.block.bytes() + self.index.bytes() + self.top.bytes();
        self.file.position() + pending as u64 + filter_bits / 8 + TAIL_BYTES
    }

    /// Writes the remaining blocks and makes the file's contents durable. The caller syncs the
    /// directory.
    ///
    /// # Errors
    /// Same as [`TableWriter::add`].
    ///
    /// # Panics
    /// If no cell was added.
    pub fn finish(mut self) -> Result<TableMeta, Error> {
        assert!(self.cells() > 0, "a table holds a cell at least");
        self.finish_block(None)?;
        let top = self.top.finish();
        let top = self.put(FrameKind::Index, &top)?;
        let mut meta = std::mem::take(&mut self.summary).finish(self.id, 0);
        self.compressor = Compressor::new(Compression::None);
        let meta_extent = self.put(FrameKind::Meta, &encode_meta(&meta))?;
        let tail = Tail { top, meta: meta_extent, id: self.id, format: self.format };
        self.file.buffer.extend(tail.encode());
        meta.file_bytes = self.file.position();
        if self.format != FormatVersion::V1 {
            self.file.replace_header(&header(self.id, self.format))?;
        }
        self.file.finish()?;
        Ok(meta)
    }

    fn check(&self, key: &[u8], cell: &CellRef<'_>) {
        assert!(key.len() <= KEY_BYTES_MAX, "a key of {} bytes", key.len());
        assert!(cell.value.len() <= VALUE_BYTES_MAX, "a value of {} bytes", cell.value.len());
        assert!(self.summary.key_last().is_none_or(|last| last < key), "keys are added in ascending order");
    }

    /// Adds the key to the filter, and the cell to the table's metadata.
    fn count(&mut self, key: &[u8], cell: &CellRef<'_>) {
        self.hashes.push(xxh3_64(key));
        self.summary.add(key, cell);
    }

    /// Whether a cell that is not oversized does not fit into the current block.
    fn must_cut_before(&self, key: &[u8], cell: &CellRef<'_>) -> bool {
        self.block.is_empty()
            || self.block.bytes_with(key, cell) > self.options.block_bytes
            || !self.block.has_room_for(cell.meta.version.tag)
    }

    /// Ends the current block, if there is one, before the cell of `key` is added.
    fn end_block_before(&mut self, key: &[u8]) -> Result<(), Error> {
        match self.cells() {
            0 => Ok(()),
            _ => self.finish_block(Some(key)),
        }
    }

    /// Writes the current block unless it is written already, and adds it to the index. `next` is
    /// the first key after it.
    fn finish_block(&mut self, next: Option<&[u8]>) -> Result<(), Error> {
        let last = self.summary.key_last().expect("a block that is not empty has a last key");
        let short = || next.and_then(|next| Some(&next[..separator_len(last, next)?]));
        let separator = match self.unindexed.take() {
            Some(UnindexedBlock { end, cell }) => {
                self.index.add(last, &[end]);
                self.index.add_cell(&cell);
                self.format = FormatVersion::V2;
                last
            }
            None => {
                let raw = self.block.finish(last);
                let extent = self.file.put(FrameKind::Data, self.id, raw, &mut self.compressor)?;
                let separator = short().unwrap_or(last);
                self.index.add(separator, &[extent.end()]);
                separator
            }
        };
        let full = self.index.bytes() >= PARTITION_INDEX_BYTES || self.hashes.len() >= PARTITION_KEYS;
        if full || next.is_none() {
            let separator = separator.to_vec();
            self.finish_partition(&separator)?;
        }
        Ok(())
    }

    /// Writes the filter and the index of the data blocks since the last partition.
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

/// Appends to a file through a buffer.
struct BufferedFile {
    file: Arc<dyn File>,
    path: PathBuf,
    buffer: Vec<u8>,
    /// Bytes written to the file so far.
    written: u64,
    /// Offset up to which writeback was started.
    started: u64,
    /// Offset up to which writeback was awaited.
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

    /// Appends a block with its frame.
    fn put(
        &mut self,
        kind: FrameKind,
        table: TableId,
        raw: &[u8],
        compressor: &mut Compressor,
    ) -> Result<Extent, Error> {
        let offset = self.position();
        seal(&mut self.buffer, kind, FrameLocation { table, offset }, raw, compressor)
            .map_err(|error| Error::io("compress", &self.path, error))?;
        let extent = Extent { offset, bytes: self.position() - offset };
        if self.buffer.len() >= WRITE_BYTES {
            self.flush()?;
        }
        Ok(extent)
    }

    /// Appends the block of an oversized cell with its frame.
    fn put_oversized(
        &mut self,
        table: TableId,
        block: &OversizedBlock<'_>,
        compressor: &mut Compressor,
    ) -> Result<Extent, Error> {
        let compressed =
            compressor.compress_oversized(block).map_err(|error| Error::io("compress", &self.path, error))?;
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

    /// Appends a block in the stored form of another table.
    fn put_stored(&mut self, table: TableId, stored: StoredBlock<'_>) -> Result<Extent, Error> {
        self.put_parts(table, &[stored.payload], stored.trailer)
    }

    /// Appends a frame whose payload is given in slices.
    fn put_parts(&mut self, table: TableId, payload: &[&[u8]], trailer: Trailer) -> Result<Extent, Error> {
        let offset = self.position();
        payload.iter().try_for_each(|part| self.append(part))?;
        self.append(&trailer.encode(FrameLocation { table, offset }))?;
        Ok(Extent { offset, bytes: self.position() - offset })
    }

    /// Appends bytes. Short slices are buffered, long ones are written directly.
    fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() < WRITE_BYTES {
            self.buffer.extend_from_slice(bytes);
            return if self.buffer.len() < WRITE_BYTES { Ok(()) } else { self.flush() };
        }
        self.flush()?;
        bytes.chunks(WRITE_BYTES).try_for_each(|piece| self.write(piece))
    }

    /// Writes the buffer to the file.
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

    /// Replaces the header, which may be in the file already.
    fn replace_header(&mut self, header: &[u8]) -> Result<(), Error> {
        match self.written {
            0 => {
                self.buffer[..header.len()].copy_from_slice(header);
                Ok(())
            }
            _ => {
                let written = self.file.write_at(header, 0);
                written.map_err(|error| Error::io("write", &self.path, error))
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_at(bytes, self.written).map_err(|error| Error::io("write", &self.path, error))?;
        self.written += bytes.len() as u64;
        self.write_back().map_err(|error| Error::io("write back", &self.path, error))
    }

    /// Starts writeback of each complete range, after the writeback of the range before the last
    /// has finished.
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
