//! Reading a table.

use super::block::{Block, Malformed};
use super::cursor::TableCursor;
use super::data_block::DataBlock;
use super::files::{TableFile, TableFiles};
use super::filter::FilterBlock;
use super::format::{Extent, HEADER_BYTES, TAIL_BYTES, Tail, decode_meta};
use super::frame::{self, FrameKind, Place};
use super::held::{HeldBlocks, Holdable};
use super::index_block::IndexBlock;
use super::meta::{TableId, TableMeta};
use super::window::Window;
use super::{Lookup, Reading, Trash, Wait};
use crate::Error;
use crate::cache::{BlockCache, BlockKey, FilterAnswer};
use bytes::Bytes;
use env::File;
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use stdx::Cell;

/// An open table holds its top index if that takes no more than this, in bytes; a larger one goes through the
/// cache like every block. A table of 64 MiB with keys of 20 bytes needs about 1 KiB.
pub(super) const TOP_PINNED_BYTES_MAX: usize = 4 << 10;

/// So much of the end of a file is read when it is opened: mostly that has the top index too, which saves a read.
const END_BYTES: u64 = 4 << 10;

/// Columns of the top index: where filter and index of a partition begin, and where the index ends.
pub(super) const TOP_COLUMNS: usize = 3;
/// Columns of a partition's index: where a data block ends.
pub(super) const INDEX_COLUMNS: usize = 1;

/// A table that can be read, by any number of threads.
pub struct Table {
    source: Source,
    path: PathBuf,
    meta: Arc<TableMeta>,
    pub(super) cache: Arc<BlockCache>,
    trash: Trash,
    obsolete: AtomicBool,
    root: OnceLock<Root>,
}

/// Where the file comes from.
enum Source {
    /// It is opened when it is used, and may be closed again.
    OnDemand(Arc<TableFile>),
    Open(Arc<dyn File>),
}

/// What is known once the file was read for the first time.
pub(super) struct Root {
    pub(super) file: Arc<dyn File>,
    pub(super) tail: Tail,
    top: Option<Arc<IndexBlock>>,
    held: HeldBlocks,
}

/// The parts of one partition.
#[derive(Clone, Copy, Debug)]
pub(super) struct Partition {
    /// Where its first data block begins.
    pub(super) start: u64,
    pub(super) filter: Option<Extent>,
    pub(super) index: Extent,
}

impl Table {
    /// The table of `meta` in the file `path`. Does no I/O: the file is opened at the first read.
    ///
    /// `trash` is told the id when the table was marked obsolete and its last user is gone.
    pub fn open(
        files: &Arc<TableFiles>,
        path: PathBuf,
        meta: Arc<TableMeta>,
        cache: Arc<BlockCache>,
        trash: Trash,
    ) -> Self {
        Self::from_source(Source::OnDemand(files.file(&path)), path, meta, cache, trash)
    }

    /// As [`Table::open`], of a file that is open already; `path` is for errors.
    pub fn from_file(
        file: Arc<dyn File>,
        path: PathBuf,
        meta: Arc<TableMeta>,
        cache: Arc<BlockCache>,
        trash: Trash,
    ) -> Self {
        Self::from_source(Source::Open(file), path, meta, cache, trash)
    }

    fn from_source(
        source: Source,
        path: PathBuf,
        meta: Arc<TableMeta>,
        cache: Arc<BlockCache>,
        trash: Trash,
    ) -> Self {
        let (obsolete, root) = (AtomicBool::new(false), OnceLock::new());
        Self { source, path, meta, cache, trash, obsolete, root }
    }

    /// Which table.
    pub fn id(&self) -> TableId {
        self.meta.id
    }

    /// What is known of it without reading.
    pub fn meta(&self) -> &Arc<TableMeta> {
        &self.meta
    }

    /// Where its file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The cell of `key`, whose xxh3 hash is `hash`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when a block on the way is not what was written, [`Error::Io`] when the file cannot
    /// be read.
    #[inline]
    pub fn get(&self, key: &[u8], hash: u64, wait: Wait) -> Result<Lookup, Error> {
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
        match self.reach::<FilterBlock>(root, at, filter, wait)? {
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

    /// The cell of `key` in the partition `at`, past its filter.
    #[inline]
    fn find(
        &self,
        root: &Root,
        at: usize,
        partition: &Partition,
        key: &[u8],
        wait: Wait,
    ) -> Result<Lookup, Error> {
        let Some(index) = self.reach::<IndexBlock>(root, at, partition.index, wait)? else {
            return Ok(Lookup::WouldWait);
        };
        let at = index.find(key);
        if at == index.entries() {
            return Ok(Lookup::Absent);
        }
        let extent = self.data_extent(partition, &index, at)?;
        let Some(block) = self.load::<DataBlock>(root, extent, wait)? else { return Ok(Lookup::WouldWait) };
        Ok(lookup(block, key))
    }

    /// Whether the table may have `key`, whose xxh3 hash is `hash`: false is certain. Waits for the disk.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn may_contain(&self, key: &[u8], hash: u64) -> Result<bool, Error> {
        if !self.meta.covers(key) {
            return Ok(false);
        }
        let root = self.root_waiting()?;
        let top = self.top(root)?;
        let at = top.find(key);
        if at == top.entries() {
            return Ok(false);
        }
        match self.partition(root, &top, at)?.filter {
            Some(filter) => Ok(self.reach_waiting::<FilterBlock>(root, at, filter)?.may_contain(hash)),
            None => Ok(true),
        }
    }

    /// A cursor over the cells of the table.
    pub fn cursor(self: &Arc<Self>, reading: Reading) -> TableCursor {
        TableCursor::new(self.clone(), reading)
    }

    /// Notes that no live set of tables has this one any more: when its last user is gone, the trash is told.
    pub fn mark_obsolete(&self) {
        self.obsolete.store(true, Ordering::Release);
    }

    /// What the open table takes that the cache does not count, its blocks in use aside, in bytes.
    pub fn pinned_bytes(&self) -> usize {
        let root_bytes = self
            .root
            .get()
            .map_or(0, |root| root.top.as_ref().map_or(0, |top| top.heap_bytes()) + root.held.slot_bytes());
        size_of::<Self>() + self.path.as_os_str().len() + root_bytes
    }

    /// What the tail of the file says and the top index; `None` when the file must be opened first and the
    /// caller does not wait.
    #[inline]
    fn root(&self, wait: Wait) -> Result<Option<&Root>, Error> {
        match (self.root.get(), wait) {
            (Some(root), _) => Ok(Some(root)),
            (None, Wait::Never) => Ok(None),
            (None, Wait::Allowed) => self.root_waiting().map(Some),
        }
    }

    pub(super) fn root_waiting(&self) -> Result<&Root, Error> {
        if let Some(root) = self.root.get() {
            return Ok(root);
        }
        // Two readers may come here at once: both read the same, and the first to finish is kept.
        let root = self.read_root()?;
        Ok(self.root.get_or_init(|| root))
    }

    fn read_root(&self) -> Result<Root, Error> {
        self.root_of(match &self.source {
            Source::Open(file) => Arc::clone(file),
            Source::OnDemand(file) => Arc::clone(file) as Arc<dyn File>,
        })
    }

    /// What the file says that is open here.
    pub(super) fn root_of(&self, file: Arc<dyn File>) -> Result<Root, Error> {
        let (tail, end) = read_end(&*file, &self.path, self.meta.file_bytes)?;
        if tail.id != self.meta.id {
            return Err(self.corrupt(self.tail_offset(), Malformed("the tail is of another table")));
        }
        let mut root = Root { file, tail, top: None, held: HeldBlocks::default() };
        let top = match tail.top.offset.checked_sub(self.meta.file_bytes - end.len() as u64) {
            Some(at) => {
                let stored = Cow::Borrowed(&end[at as usize..][..tail.top.bytes as usize]);
                let raw = self.unframe(stored, tail.top, FrameKind::Index)?;
                IndexBlock::decode(&raw).map_err(|malformed| self.corrupt(tail.top.offset, malformed))?
            }
            None => self.read_alone(&root, tail.top)?,
        };
        if top.heap_bytes() <= TOP_PINNED_BYTES_MAX {
            root.held = HeldBlocks::of(top.entries());
            root.top = Some(Arc::new(top));
        }
        Ok(root)
    }

    /// The top index.
    pub(super) fn top(&self, root: &Root) -> Result<Arc<IndexBlock>, Error> {
        match &root.top {
            Some(top) => Ok(top.clone()),
            None => self.load_waiting(root, root.tail.top),
        }
    }

    /// The top index, without a trace in the cache.
    pub(super) fn top_uncached(&self, root: &Root) -> Result<Arc<IndexBlock>, Error> {
        match &root.top {
            Some(top) => Ok(top.clone()),
            None => self.read_alone(root, root.tail.top).map(Arc::new),
        }
    }

    /// The parts of the partition `at` of the top index.
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

    /// Where the data block `at` of a partition is.
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

    /// The filter or index of the partition `at`, which is at `extent`: held, or else as [`Table::load`].
    #[inline]
    fn reach<'a, B: Holdable>(
        &self,
        root: &'a Root,
        at: usize,
        extent: Extent,
        wait: Wait,
    ) -> Result<Option<Cow<'a, Arc<B>>>, Error> {
        if let Some(block) = root.held.get(at) {
            self.cache.count_held_hit(B::KIND);
            return Ok(Some(Cow::Borrowed(block)));
        }
        if let Some(block) = self.cached(extent) {
            root.held.fill(at, &block, &self.cache, self.block_key(extent));
            return Ok(Some(Cow::Owned(block)));
        }
        Ok(self.load_from_file(root, extent, wait)?.map(Cow::Owned))
    }

    /// As [`Table::reach`], waiting for the disk.
    pub(super) fn reach_waiting<'a, B: Holdable>(
        &self,
        root: &'a Root,
        at: usize,
        extent: Extent,
    ) -> Result<Cow<'a, Arc<B>>, Error> {
        let block = self.reach(root, at, extent, Wait::Allowed)?;
        Ok(block.expect("a read that may wait does not say that it would"))
    }

    /// A block from the cache, or else from the file and into the cache; `None` when that would wait.
    #[inline]
    fn load<B: Block>(&self, root: &Root, extent: Extent, wait: Wait) -> Result<Option<Arc<B>>, Error> {
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
        wait: Wait,
    ) -> Result<Option<Arc<B>>, Error> {
        let Some(raw) = self.read(root, extent, B::FRAME, wait)? else { return Ok(None) };
        let block = B::decode(raw).map_err(|malformed| self.corrupt(extent.offset, malformed))?;
        Ok(Some(self.keep(extent, Arc::new(block))))
    }

    /// As [`Table::load`], waiting for the disk.
    pub(super) fn load_waiting<B: Block>(&self, root: &Root, extent: Extent) -> Result<Arc<B>, Error> {
        let block = self.load(root, extent, Wait::Allowed)?;
        Ok(block.expect("a read that may wait does not say that it would"))
    }

    /// The block, if the cache has it.
    #[inline]
    fn cached<B: Block>(&self, extent: Extent) -> Option<Arc<B>> {
        self.cache.get(self.block_key(extent))
    }

    /// The block, if the cache has it, without a trace there: it is neither counted nor kept the longer for it.
    #[inline]
    pub(super) fn glimpsed<B: Block>(&self, extent: Extent) -> Option<Arc<B>> {
        self.cache.glimpse(self.block_key(extent))
    }

    /// Puts a block into the cache, if it is of a kind to keep.
    fn keep<B: Block>(&self, extent: Extent, block: Arc<B>) -> Arc<B> {
        if block.is_kept() {
            self.cache.insert(self.block_key(extent), &block);
        }
        block
    }

    fn block_key(&self, extent: Extent) -> BlockKey {
        BlockKey { table: self.meta.id, offset: extent.offset }
    }

    /// A window for reading blocks one after the other.
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
            root.held.release(&self.cache);
        }
        if self.obsolete.load(Ordering::Acquire) {
            (self.trash)(self.meta.id);
        }
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("meta", &self.meta).finish_non_exhaustive()
    }
}

/// The cell of `key` in its block: copied out, or borrowing the block if the value is most of it.
#[inline]
fn lookup(block: Arc<DataBlock>, key: &[u8]) -> Lookup {
    let Some(entry) = block.find(key) else { return Lookup::Absent };
    let value = match block.is_huge() && entry.value.len() * 4 >= block.heap_bytes() {
        true => Bytes::from_owner(SharedBlock(block)).slice(entry.value),
        false => Bytes::copy_from_slice(block.slice(&entry.value)),
    };
    Lookup::Found(Cell { meta: entry.meta, value })
}

/// A block that a value borrows from.
struct SharedBlock(Arc<DataBlock>);

impl AsRef<[u8]> for SharedBlock {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

/// What the footer of the table in `file` says of it.
pub(super) fn read_meta(file: &dyn File, path: &Path) -> Result<TableMeta, Error> {
    let file_bytes = file.len().map_err(|error| Error::io("stat", path, error))?;
    let (tail, _) = read_end(file, path, file_bytes)?;
    let mut stored = vec![0; tail.meta.bytes as usize];
    read_exact(file, path, &mut stored, tail.meta.offset)?;
    let place = Place { table: tail.id, offset: tail.meta.offset };
    frame::open(Cow::Owned(stored), FrameKind::Meta, place)
        .and_then(|raw| decode_meta(&raw, tail.id, file_bytes))
        .map_err(|malformed| Error::corrupt(path, tail.meta.offset, malformed.0))
}

/// The tail of the table in `file`, and the last bytes of the file.
fn read_end(file: &dyn File, path: &Path, file_bytes: u64) -> Result<(Tail, Vec<u8>), Error> {
    let bytes = file_bytes.min(END_BYTES);
    let mut end = vec![0; bytes as usize];
    read_exact(file, path, &mut end, file_bytes - bytes)?;
    let Some(tail) = end.last_chunk() else { return Err(cut_short(path, file_bytes)) };
    let tail = Tail::decode(tail, file_bytes);
    let tail = tail.map_err(|malformed| Error::corrupt(path, file_bytes - TAIL_BYTES, malformed.0))?;
    Ok((tail, end))
}

/// Fills `buf`; a file that ends before is corrupt, for its length was known.
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
