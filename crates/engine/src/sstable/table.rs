//! Point reads and block access of one table.

use super::block::Block;
use super::cursor::TableCursor;
use super::data_block::DataBlock;
use super::files::{TableFile, TableFiles};
use super::filter::FilterBlock;
use super::format::{Extent, HEADER_BYTES, TAIL_BYTES, Tail, decode_meta};
use super::frame::{self, FrameKind, FrameLocation};
use super::index_block::IndexBlock;
use super::malformed::Malformed;
use super::meta::{TableId, TableMeta};
use super::pinned::{Pinnable, PinnedBlocks};
use super::window::Window;
use super::{Lookup, OnObsolete, ReadMode, Wait};
use crate::Error;
use crate::cache::{BlockCache, BlockKey, FilterAnswer};
use crate::cell_part::CellPart;
use bytes::Bytes;
use env::File;
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use stdx::{Cell, CellMeta};

/// Maximum heap size of a top index that an open table keeps in memory, in bytes. A larger one goes
/// through the cache like every other block. A table of 64 MiB with keys of 20 bytes needs about 1
/// KiB.
pub(super) const TOP_PINNED_BYTES_MAX: usize = 4 << 10;

/// Bytes at the end of the file that are read when it is opened. They usually include the top
/// index, which saves a second read.
const END_BYTES: u64 = 4 << 10;

/// Columns of the top index: offset of the partition's filter, offset of its index, end of its
/// index.
pub(super) const TOP_COLUMNS: usize = 3;
/// Columns of a partition's index: end of the data block.
pub(super) const INDEX_COLUMNS: usize = 1;

/// A table that any number of threads can read.
pub struct Table {
    source: FileSource,
    path: PathBuf,
    meta: Arc<TableMeta>,
    pub(super) cache: Arc<BlockCache>,
    on_obsolete: OnObsolete,
    obsolete: AtomicBool,
    root: OnceLock<Root>,
}

/// The file of a table.
enum FileSource {
    /// A file that is opened when it is used and may be closed again.
    OnDemand(Arc<TableFile>),
    Open(Arc<dyn File>),
}

/// State that is read from the file at first use: the tail and, if it is small, the top index.
pub(super) struct Root {
    pub(super) file: Arc<dyn File>,
    pub(super) tail: Tail,
    top: Option<Arc<IndexBlock>>,
    pinned: PinnedBlocks,
}

/// Locations of the blocks of one partition.
#[derive(Clone, Copy, Debug)]
pub(super) struct Partition {
    /// Offset of its first data block.
    pub(super) start: u64,
    pub(super) filter: Option<Extent>,
    pub(super) index: Extent,
}

impl Table {
    /// Returns the table of `meta` in the file `path`. Does no I/O: the file is opened at the first
    /// read.
    ///
    /// `on_obsolete` receives the id once the table was marked obsolete and its last reader is
    /// gone.
    pub fn open(
        files: &Arc<TableFiles>,
        path: PathBuf,
        meta: Arc<TableMeta>,
        cache: Arc<BlockCache>,
        on_obsolete: OnObsolete,
    ) -> Self {
        Self::from_source(FileSource::OnDemand(files.file(&path)), path, meta, cache, on_obsolete)
    }

    /// Same as [`Table::open`] for a file that is open already. `path` is used in errors.
    pub fn from_file(
        file: Arc<dyn File>,
        path: PathBuf,
        meta: Arc<TableMeta>,
        cache: Arc<BlockCache>,
        on_obsolete: OnObsolete,
    ) -> Self {
        Self::from_source(FileSource::Open(file), path, meta, cache, on_obsolete)
    }

    fn from_source(
        source: FileSource,
        path: PathBuf,
        meta: Arc<TableMeta>,
        cache: Arc<BlockCache>,
        on_obsolete: OnObsolete,
    ) -> Self {
        let (obsolete, root) = (AtomicBool::new(false), OnceLock::new());
        Self { source, path, meta, cache, on_obsolete, obsolete, root }
    }

    /// Id of the table.
    pub fn id(&self) -> TableId {
        self.meta.id
    }

    /// Metadata that is known without reading the file.
    pub fn meta(&self) -> &Arc<TableMeta> {
        &self.meta
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the cell of `key`, whose xxh3 hash is `hash`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a block on the path to the key fails its checks, [`Error::Io`] if the
    /// file cannot be read.
    #[inline]
    pub fn get(&self, key: &[u8], hash: u64, wait: Wait<'_>) -> Result<Lookup, Error> {
        self.get_part(key, hash, wait)
    }

    /// Returns the metadata of the cell of `key`, whose xxh3 hash is `hash`. Does not read an
    /// oversized value whose metadata is in the index.
    ///
    /// # Errors
    /// Same as [`Table::get`]. Damage to a block that is not read is not detected.
    pub fn get_meta(&self, key: &[u8], hash: u64, wait: Wait<'_>) -> Result<Lookup<CellMeta>, Error> {
        self.get_part(key, hash, wait)
    }

    #[inline]
    pub(crate) fn get_part<P: CellPart>(
        &self,
        key: &[u8],
        hash: u64,
        wait: Wait<'_>,
    ) -> Result<Lookup<P>, Error> {
        if !self.meta.covers(key) {
            return Ok(Lookup::Absent);
        }
        let Some(root) = self.root(wait)? else { return Ok(Lookup::WouldWait) };
        let loaded;
        let top: &IndexBlock = match &root.top {
            Some(top) => top,
            None => match self.load(root, root.tail.top, wait)? {
                Some(top) => {
                    loaded = top;
                    &loaded
                }
                None => return Ok(Lookup::WouldWait),
            },
        };
        let at = top.find(key);
        if at == top.entries() {
            return Ok(Lookup::Absent);
        }
        let partition = self.partition(root, top, at)?;
        let Some(filter) = partition.filter else { return self.find(root, at, &partition, key, wait) };
        match self.load_pinned::<FilterBlock>(root, at, filter, wait)? {
            Some(filter) if filter.may_contain(hash) => {}
            Some(_) => {
                self.cache.count_filter_answer(FilterAnswer::Negative);
                return Ok(Lookup::Absent);
            }
            None => return Ok(Lookup::WouldWait),
        }
        let lookup = self.find(root, at, &partition, key, wait)?;
        match lookup {
            Lookup::Found(_) => self.cache.count_filter_answer(FilterAnswer::Positive),
            Lookup::Absent => self.cache.count_filter_answer(FilterAnswer::FalsePositive),
            Lookup::WouldWait => {}
        }
        Ok(lookup)
    }

    /// Looks `key` up in partition `at`, without consulting the filter.
    #[inline]
    fn find<P: CellPart>(
        &self,
        root: &Root,
        at: usize,
        partition: &Partition,
        key: &[u8],
        wait: Wait<'_>,
    ) -> Result<Lookup<P>, Error> {
        let Some(index) = self.load_pinned::<IndexBlock>(root, at, partition.index, wait)? else {
            return Ok(Lookup::WouldWait);
        };
        let at = index.find(key);
        if at == index.entries() {
            return Ok(Lookup::Absent);
        }
        if let Some(found) = P::of_index(&index, at, key) {
            return Ok(found);
        }
        let extent = self.data_extent(partition, &index, at)?;
        let Some(block) = self.load::<DataBlock>(root, extent, wait)? else { return Ok(Lookup::WouldWait) };
        Ok(P::of_block(block, key))
    }

    /// Returns whether the table may contain `key`, whose xxh3 hash is `hash`. `false` is certain.
    /// May block on the disk.
    ///
    /// # Errors
    /// Same as [`Table::get`].
    pub fn may_contain(&self, key: &[u8], hash: u64) -> Result<bool, Error> {
        if !self.meta.covers(key) {
            return Ok(false);
        }
        let root = self.root_blocking(Wait::Allowed)?;
        let top = self.top(root, Wait::Allowed)?;
        let at = top.find(key);
        if at == top.entries() {
            return Ok(false);
        }
        match self.partition(root, &top, at)?.filter {
            Some(filter) => {
                let filter = self.load_pinned_blocking::<FilterBlock>(root, at, filter, Wait::Allowed)?;
                Ok(filter.may_contain(hash))
            }
            None => Ok(true),
        }
    }

    /// Returns a cursor over the cells of the table.
    pub fn cursor(self: &Arc<Self>, mode: ReadMode) -> TableCursor {
        TableCursor::new(self.clone(), mode)
    }

    /// Marks the table as obsolete: no live version of the levels contains it. When its last reader
    /// is gone, the callback receives its id.
    pub fn mark_obsolete(&self) {
        self.obsolete.store(true, Ordering::Release);
    }

    /// Memory of the open table that the block cache does not count, without blocks in use, in
    /// bytes.
    pub fn overhead_bytes(&self) -> usize {
        let root_bytes = self
            .root
            .get()
            .map_or(0, |root| root.top.as_ref().map_or(0, |top| top.heap_bytes()) + root.pinned.slot_bytes());
        size_of::<Self>() + self.path.as_os_str().len() + root_bytes
    }

    /// Returns the tail and the top index; `None` if the file was not read yet and the caller must
    /// not wait.
    #[inline]
    fn root(&self, wait: Wait<'_>) -> Result<Option<&Root>, Error> {
        match (self.root.get(), wait) {
            (Some(root), _) => Ok(Some(root)),
            (None, Wait::Never) => Ok(None),
            (None, _) => self.root_blocking(wait).map(Some),
        }
    }

    /// Same as [`Table::root`] for a read that may wait.
    pub(super) fn root_blocking(&self, wait: Wait<'_>) -> Result<&Root, Error> {
        if let Some(root) = self.root.get() {
            return Ok(root);
        }
        // Two readers may get here at once. Both read the same bytes, and the first result is kept.
        let root = self.read_root(wait)?;
        Ok(self.root.get_or_init(|| root))
    }

    fn read_root(&self, wait: Wait<'_>) -> Result<Root, Error> {
        let file = match &self.source {
            FileSource::Open(file) => Arc::clone(file),
            FileSource::OnDemand(file) => Arc::clone(file) as Arc<dyn File>,
        };
        self.root_of(file, wait)
    }

    /// Reads the tail and the top index from `file`.
    pub(super) fn root_of(&self, file: Arc<dyn File>, wait: Wait<'_>) -> Result<Root, Error> {
        let (tail, end) = read_end(&*file, &self.path, self.meta.file_bytes)?;
        if tail.id != self.meta.id {
            return Err(self.corrupt(self.tail_offset(), Malformed("the tail belongs to another table")));
        }
        let mut root = Root { file, tail, top: None, pinned: PinnedBlocks::default() };
        let top = match tail.top.offset.checked_sub(self.meta.file_bytes - end.len() as u64) {
            Some(at) => {
                let stored = Cow::Borrowed(&end[at as usize..][..tail.top.bytes as usize]);
                let raw = self.unframe(stored, tail.top, FrameKind::Index)?;
                IndexBlock::decode(&raw).map_err(|malformed| self.corrupt(tail.top.offset, malformed))?
            }
            None => self.read_block(&root, tail.top, wait)?,
        };
        if top.heap_bytes() <= TOP_PINNED_BYTES_MAX {
            root.pinned = PinnedBlocks::of(top.entries());
            root.top = Some(Arc::new(top));
        }
        Ok(root)
    }

    /// Returns the top index, through the cache if it is large.
    pub(super) fn top(&self, root: &Root, wait: Wait<'_>) -> Result<Arc<IndexBlock>, Error> {
        match &root.top {
            Some(top) => Ok(top.clone()),
            None => self.load_blocking(root, root.tail.top, wait),
        }
    }

    /// Returns the top index without touching the cache.
    pub(super) fn top_uncached(&self, root: &Root) -> Result<Arc<IndexBlock>, Error> {
        match &root.top {
            Some(top) => Ok(top.clone()),
            None => self.read_block(root, root.tail.top, Wait::Allowed).map(Arc::new),
        }
    }

    /// Locations of the blocks of partition `at` of the top index.
    #[inline]
    pub(super) fn partition(&self, root: &Root, top: &IndexBlock, at: usize) -> Result<Partition, Error> {
        let start = if at == 0 { HEADER_BYTES } else { top.number(at - 1, 2) };
        let [filter_at, index_at, end] = [top.number(at, 0), top.number(at, 1), top.number(at, 2)];
        let limit = root.tail.top.offset;
        let parts = Extent::between(index_at, end, limit).and_then(|index| {
            let filter = match filter_at == index_at {
                true => None,
                false => Some(Extent::between(filter_at, index_at, limit)?),
            };
            Extent::between(start, filter_at, limit)?;
            Ok(Partition { start, filter, index })
        });
        parts.map_err(|malformed| self.corrupt(root.tail.top.offset, malformed))
    }

    /// Location of data block `at` of a partition.
    #[inline]
    pub(super) fn data_extent(
        &self,
        partition: &Partition,
        index: &IndexBlock,
        at: usize,
    ) -> Result<Extent, Error> {
        let start = if at == 0 { partition.start } else { index.number(at - 1, 0) };
        let limit = partition.filter.unwrap_or(partition.index).offset;
        Extent::between(start, index.number(at, 0), limit)
            .map_err(|malformed| self.corrupt(partition.index.offset, malformed))
    }

    /// Returns the filter or index of partition `at` at `extent`, from its slot if it is pinned
    /// there, or else as [`Table::load`] does.
    #[inline]
    fn load_pinned<'a, B: Pinnable>(
        &self,
        root: &'a Root,
        at: usize,
        extent: Extent,
        wait: Wait<'_>,
    ) -> Result<Option<Cow<'a, Arc<B>>>, Error> {
        if let Some(block) = root.pinned.get(at) {
            self.cache.count_pinned_hit(B::KIND);
            return Ok(Some(Cow::Borrowed(block)));
        }
        if let Some(block) = self.cached(extent) {
            root.pinned.fill(at, &block, &self.cache, self.block_key(extent));
            return Ok(Some(Cow::Owned(block)));
        }
        Ok(self.load_from_file(root, extent, wait)?.map(Cow::Owned))
    }

    /// Same as [`Table::load_pinned`], blocking on the disk.
    pub(super) fn load_pinned_blocking<'a, B: Pinnable>(
        &self,
        root: &'a Root,
        at: usize,
        extent: Extent,
        wait: Wait<'_>,
    ) -> Result<Cow<'a, Arc<B>>, Error> {
        let block = self.load_pinned(root, at, extent, wait)?;
        Ok(block.expect("a read that may block returns a block"))
    }

    /// Returns a block from the cache, or reads it and inserts it; `None` if that would block.
    #[inline]
    fn load<B: Block>(&self, root: &Root, extent: Extent, wait: Wait<'_>) -> Result<Option<Arc<B>>, Error> {
        match self.cached(extent) {
            Some(block) => Ok(Some(block)),
            None => self.load_from_file(root, extent, wait),
        }
    }

    #[cold]
    fn load_from_file<B: Block>(
        &self,
        root: &Root,
        extent: Extent,
        wait: Wait<'_>,
    ) -> Result<Option<Arc<B>>, Error> {
        let Some(raw) = self.read(root, extent, B::FRAME, wait)? else { return Ok(None) };
        let block = B::decode(raw).map_err(|malformed| self.corrupt(extent.offset, malformed))?;
        Ok(Some(self.insert_into_cache(extent, Arc::new(block))))
    }

    /// Same as [`Table::load`], blocking on the disk.
    fn load_blocking<B: Block>(&self, root: &Root, extent: Extent, wait: Wait<'_>) -> Result<Arc<B>, Error> {
        let block = self.load(root, extent, wait)?;
        Ok(block.expect("a read that may block returns a block"))
    }

    /// Returns the block if the cache has it.
    #[inline]
    fn cached<B: Block>(&self, extent: Extent) -> Option<Arc<B>> {
        self.cache.get(self.block_key(extent))
    }

    /// Returns the block if the cache has it, without counting the lookup and without affecting
    /// eviction.
    #[inline]
    pub(super) fn peek_cached<B: Block>(&self, extent: Extent) -> Option<Arc<B>> {
        self.cache.peek(self.block_key(extent))
    }

    /// Inserts a block into the cache if blocks of its kind and size are cached.
    fn insert_into_cache<B: Block>(&self, extent: Extent, block: Arc<B>) -> Arc<B> {
        if block.is_cacheable() {
            self.cache.insert(self.block_key(extent), &block);
        }
        block
    }

    fn block_key(&self, extent: Extent) -> BlockKey {
        BlockKey { table: self.meta.id, offset: extent.offset }
    }

    /// Returns a window for reading consecutive blocks.
    pub(super) fn window(&self, root: &Root) -> Window {
        Window::new(root.file.clone(), self.path.clone(), root.tail.top.offset)
    }

    fn tail_offset(&self) -> u64 {
        self.meta.file_bytes.saturating_sub(TAIL_BYTES)
    }

    pub(super) fn corrupt(&self, offset: u64, malformed: Malformed) -> Error {
        Error::corrupt(&self.path, offset, malformed.0)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if let Some(root) = self.root.take() {
            root.pinned.release(&self.cache);
        }
        if self.obsolete.load(Ordering::Acquire) {
            (self.on_obsolete)(self.meta.id);
        }
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("meta", &self.meta).finish_non_exhaustive()
    }
}

/// Finds the cell of `key` in its block. The value is copied, or borrows the block if it is most of
/// the block.
#[inline]
pub(crate) fn find_in_block(block: Arc<DataBlock>, key: &[u8]) -> Lookup {
    let Some(entry) = block.find(key) else { return Lookup::Absent };
    let value = match block.is_oversized() && entry.value.len() * 4 >= block.heap_bytes() {
        true => Bytes::from_owner(SharedBlock(block)).slice(entry.value),
        false => Bytes::copy_from_slice(block.slice(&entry.value)),
    };
    Lookup::Found(Cell { meta: entry.meta, value })
}

/// Finds the metadata of the cell of `key` in its block.
pub(crate) fn find_meta_in_block(block: &DataBlock, key: &[u8]) -> Lookup<CellMeta> {
    block.find(key).map_or(Lookup::Absent, |entry| Lookup::Found(entry.meta))
}

/// Finds the metadata of the cell of `key` in the entry `at` of the index that covers the key;
/// `None` if only the block tells.
pub(crate) fn find_meta_in_index(index: &IndexBlock, at: usize, key: &[u8]) -> Option<Lookup<CellMeta>> {
    let cell = index.cell(at)?;
    Some(if index.is_key(at, key) { Lookup::Found(cell.meta) } else { Lookup::Absent })
}

/// A block that a value borrows from.
struct SharedBlock(Arc<DataBlock>);

impl AsRef<[u8]> for SharedBlock {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

/// Reads the metadata in the footer of the table in `file`.
pub(super) fn read_meta(file: &dyn File, path: &Path) -> Result<TableMeta, Error> {
    let file_bytes = file.len().map_err(|error| Error::io("stat", path, error))?;
    let (tail, _) = read_end(file, path, file_bytes)?;
    let mut stored = vec![0; tail.meta.bytes as usize];
    read_exact(file, path, &mut stored, tail.meta.offset)?;
    let location = FrameLocation { table: tail.id, offset: tail.meta.offset };
    frame::open(Cow::Owned(stored), FrameKind::Meta, location)
        .and_then(|raw| decode_meta(&raw, tail.id, file_bytes))
        .map_err(|malformed| Error::corrupt(path, tail.meta.offset, malformed.0))
}

/// Reads the tail of the table in `file`, and returns it with the last bytes of the file.
fn read_end(file: &dyn File, path: &Path, file_bytes: u64) -> Result<(Tail, Vec<u8>), Error> {
    let bytes = file_bytes.min(END_BYTES);
    let mut end = vec![0; bytes as usize];
    read_exact(file, path, &mut end, file_bytes - bytes)?;
    let Some(tail) = end.last_chunk() else { return Err(cut_short(path, file_bytes)) };
    let tail = Tail::decode(tail, file_bytes);
    let tail = tail.map_err(|malformed| Error::corrupt(path, file_bytes - TAIL_BYTES, malformed.0))?;
    Ok((tail, end))
}

/// Fills `buf`. A shorter file is corrupt, because its length was known.
pub(super) fn read_exact(file: &dyn File, path: &Path, buf: &mut [u8], offset: u64) -> Result<(), Error> {
    match file.read_at(buf, offset) {
        Ok(read) if read == buf.len() => Ok(()),
        Ok(_) => Err(cut_short(path, offset)),
        Err(error) => Err(Error::io("read", path, error)),
    }
}

pub(super) fn cut_short(path: &Path, offset: u64) -> Error {
    Error::corrupt(path, offset, "the file ends before the block does")
}
