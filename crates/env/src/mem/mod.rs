//! A disk in memory that can lose its power.
//!
//! **Promise.** [`MemFs`] behaves as the real file system does while all is well (one suite of tests runs on
//! both), and after [`MemFs::crash`] holds exactly what the traits promise: everything synced, and of the rest
//! whatever the seed leaves: any of the unsynced writes, each whole, torn into its 512-byte sectors, lost, or
//! as a length without bytes; any of the unsynced changes of length and of names. The same operations and the
//! same seed give the same disk.
//!
//! After [`File::lose_unsynced`], which stands for a sync that the device failed, it behaves as Linux does: what was
//! written since the last sync is not durable, save what chance lets reach the device; it is read until
//! [`MemFs::evict`]; and no later sync makes it durable, except for pages (of 4 KiB) that are written to again.
//!
//! **Mechanism.** A file keeps its bytes as read now, its bytes as synced last, and the list of changes between
//! (`content`); a directory does the same with its names (`names`). Bytes are shared page by page until
//! written (`pages`), so that a crash copies little more than names.
//!
//! **Caveats.** One mutex a disk: this is for tests. Every byte of a file's length counts as used space, holes
//! too. Directories cannot be renamed over others. Within a sector, a later unsynced write may survive without an
//! earlier one: worse than devices are, but within what the traits allow.

mod content;
mod file;
mod names;
mod pages;

use crate::fs::{DirLock, File, Fs, IoCounters, OpenMode};
use content::Content;
use file::{MemFile, MemLock};
use names::{Entry, FileId, Slot, Tree};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stdx::Rng;

/// No file grows beyond this: a wild offset is an error, not all of the memory.
const FILE_BYTES_MAX: u64 = 1 << 32;

/// A file system in memory. Clones are handles on the same disk.
#[derive(Clone)]
pub struct MemFs {
    disk: Arc<Disk>,
}

/// What handles, open files and locks share.
struct Disk {
    state: Mutex<State>,
    cold: AtomicBool,
    counters: IoCounters,
}

#[derive(Clone)]
struct State {
    tree: Tree,
    files: BTreeMap<FileId, Node>,
    locked: BTreeSet<FileId>,
    next_file: u64,
    capacity_bytes: u64,
    /// The sum of the lengths of the files in use.
    used_bytes: u64,
}

/// A file. It is in use while it has a name or is open.
#[derive(Clone, Default)]
struct Node {
    content: Content,
    names: usize,
    handles: usize,
}

impl Default for MemFs {
    fn default() -> Self {
        Self::new()
    }
}

impl MemFs {
    /// An empty disk without a limit.
    pub fn new() -> Self {
        Self::with_capacity(u64::MAX)
    }

    /// An empty disk for files of `bytes` in total. A write that would need more changes nothing and fails
    /// with [`io::ErrorKind::StorageFull`].
    pub fn with_capacity(bytes: u64) -> Self {
        Self::from_state(State::new(bytes), false)
    }

    /// Makes the disk larger or smaller. What is there stays, also above the limit.
    pub fn set_capacity(&self, bytes: u64) {
        self.disk.state.lock().capacity_bytes = bytes;
    }

    /// While cold, [`File::read_at_nowait`] finds nothing, as if no byte were in memory.
    pub fn set_cold(&self, cold: bool) {
        self.disk.cold.store(cold, Ordering::Relaxed);
    }

    /// A new disk as this one may be found after power loss. Nothing on it is locked, open or unsynced. This
    /// disk and what is open on it go on as before.
    pub fn crash(&self, rng: &mut Rng) -> Self {
        Self::from_state(self.disk.state.lock().crash(rng), self.is_cold())
    }

    /// A new disk as this one is found after the process died: all that was done is there, nothing is locked
    /// or open. What was not synced is still not: a later [`MemFs::crash`] may lose it.
    pub fn kill(&self) -> Self {
        Self::from_state(self.disk.state.lock().kill(), self.is_cold())
    }

    /// Rot: turns over bit `bit` (0 to 7) of one byte of a file, now and durably.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] when the file ends before that byte.
    ///
    /// # Panics
    /// When `bit` is above 7.
    pub fn corrupt(&self, path: impl AsRef<Path>, byte_offset: u64, bit: u8) -> io::Result<()> {
        assert!(bit < 8, "a byte has bits 0 to 7");
        let mut state = self.disk.state.lock();
        let id = state.file_at(path.as_ref())?;
        let content = &mut state.node_mut(id).content;
        if byte_offset >= content.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        content.flip(byte_offset, bit);
        Ok(())
    }

    /// Evicts every page that is not dirty, of all files: reads show what the device has.
    pub fn evict(&self) {
        self.disk.state.lock().files.values_mut().for_each(|node| node.content.evict());
    }

    /// The paths of all files from the root, sorted.
    pub fn file_names(&self) -> Vec<PathBuf> {
        self.disk.state.lock().tree.files().into_iter().map(|(path, _)| path).collect()
    }

    /// All bytes of a file.
    pub fn read_file(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        let state = self.disk.state.lock();
        let content = &state.node(state.file_at(path.as_ref())?).content;
        let mut bytes = vec![0; content.len() as usize];
        content.read(&mut bytes, 0);
        Ok(bytes)
    }

    /// Makes a file of these bytes, in place of any other by this name, and all on the way to it durable:
    /// its directories are synced, with whatever else changed in them.
    pub fn write_file(&self, path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<()> {
        let path = path.as_ref();
        let parents = || path.ancestors().skip(1);
        parents().next().map_or(Ok(()), |parent| self.create_dir_all(parent))?;
        let file = self.open(path, OpenMode::CreateOrTruncate)?;
        file.write_at(bytes, 0)?;
        file.sync_data()?;
        parents().try_for_each(|parent| self.sync_dir(parent))
    }

    fn from_state(state: State, cold: bool) -> Self {
        let (state, cold) = (Mutex::new(state), AtomicBool::new(cold));
        Self { disk: Arc::new(Disk { state, cold, counters: IoCounters::default() }) }
    }

    fn is_cold(&self) -> bool {
        self.disk.cold.load(Ordering::Relaxed)
    }
}

impl Fs for MemFs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let mut state = self.disk.state.lock();
        let slot = state.tree.slot_at(path)?;
        let id = match (state.tree.get(&slot), mode) {
            (Some(_), OpenMode::CreateNew) => return Err(io::ErrorKind::AlreadyExists.into()),
            (Some(Entry::Dir(_)), _) => return Err(io::ErrorKind::IsADirectory.into()),
            (Some(Entry::File(id)), OpenMode::CreateOrTruncate) => {
                state.resize(id, 0)?;
                id
            }
            (Some(Entry::File(id)), OpenMode::Read | OpenMode::ReadPlain | OpenMode::ReadWrite) => id,
            (None, OpenMode::CreateNew | OpenMode::CreateOrTruncate) => state.create(slot),
            (None, OpenMode::Read | OpenMode::ReadPlain | OpenMode::ReadWrite) => {
                return Err(io::ErrorKind::NotFound.into());
            }
        };
        state.node_mut(id).handles += 1;
        Ok(Arc::new(MemFile::new(Arc::clone(&self.disk), id, !mode.is_read_only())))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.disk.state.lock().tree.create_dirs(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        let state = self.disk.state.lock();
        Ok(state.tree.names_in(state.tree.dir_at(path)?))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let state = self.disk.state.lock();
        match state.tree.slot_at(path) {
            Ok(slot) => Ok(state.tree.get(&slot).is_some()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            // The root: a directory that has no name.
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        let inside = to != from && to.starts_with(from);
        let (from, to) = (state.tree.slot_at(from)?, state.tree.slot_at(to)?);
        let entry = state.tree.get(&from).ok_or(io::ErrorKind::NotFound)?;
        match (entry, state.tree.get(&to)) {
            // Two names of one file, or the same name twice: POSIX leaves both.
            (entry, Some(there)) if there == entry => return Ok(()),
            (Entry::Dir(_), _) if inside => return Err(io::ErrorKind::InvalidInput.into()),
            (Entry::Dir(_), Some(Entry::Dir(_))) => return Err(io::ErrorKind::DirectoryNotEmpty.into()),
            (Entry::Dir(_), Some(Entry::File(_))) => return Err(io::ErrorKind::NotADirectory.into()),
            (Entry::File(_), Some(Entry::Dir(_))) => return Err(io::ErrorKind::IsADirectory.into()),
            (Entry::File(_), Some(Entry::File(there))) => state.drop_name(there),
            (_, None) => {}
        }
        state.tree.rename(from, to, entry);
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        let id = state.file_at(path)?;
        let slot = state.tree.slot_at(path)?;
        state.tree.remove(slot, Entry::File(id));
        state.drop_name(id);
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        let dir = state.tree.dir_at(path)?;
        let slot = state.tree.slot_at(path)?;
        if !state.tree.names_in(dir).is_empty() {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        state.tree.remove(slot, Entry::Dir(dir));
        Ok(())
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        let id = state.file_at(from)?;
        let slot = state.tree.slot_at(to)?;
        if state.tree.get(&slot).is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.tree.put(slot, id);
        state.node_mut(id).names += 1;
        Ok(())
    }

    fn link_count(&self, path: &Path) -> io::Result<u64> {
        let mut state = self.disk.state.lock();
        let id = state.file_at(path)?;
        Ok(state.node_mut(id).names as u64)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        let dir = state.tree.dir_at(path)?;
        state.tree.sync(dir);
        state.drop_unreferenced();
        self.disk.counters.count_sync();
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>> {
        let mut state = self.disk.state.lock();
        let slot = state.tree.slot_at(path)?;
        let id = match state.tree.get(&slot) {
            Some(Entry::Dir(_)) => return Err(io::ErrorKind::IsADirectory.into()),
            Some(Entry::File(id)) => id,
            None => state.create(slot),
        };
        if !state.locked.insert(id) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        state.node_mut(id).handles += 1;
        Ok(Box::new(MemLock::new(Arc::clone(&self.disk), id)))
    }

    fn available_bytes(&self, path: &Path) -> io::Result<u64> {
        if !self.exists(path)? {
            return Err(io::ErrorKind::NotFound.into());
        }
        let state = self.disk.state.lock();
        Ok(state.capacity_bytes.saturating_sub(state.used_bytes))
    }

    fn counters(&self) -> &IoCounters {
        &self.disk.counters
    }
}

impl State {
    fn new(capacity_bytes: u64) -> Self {
        Self {
            tree: Tree::new(),
            files: BTreeMap::new(),
            locked: BTreeSet::new(),
            next_file: 0,
            capacity_bytes,
            used_bytes: 0,
        }
    }

    fn node(&self, id: FileId) -> &Node {
        self.files.get(&id).expect("a file with a name or a handle is there")
    }

    fn node_mut(&mut self, id: FileId) -> &mut Node {
        self.files.get_mut(&id).expect("a file with a name or a handle is there")
    }

    fn file_at(&self, path: &Path) -> io::Result<FileId> {
        match self.tree.get(&self.tree.slot_at(path)?) {
            Some(Entry::File(id)) => Ok(id),
            Some(Entry::Dir(_)) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn create(&mut self, slot: Slot) -> FileId {
        let id = FileId(self.next_file);
        self.next_file += 1;
        self.files.insert(id, Node { names: 1, ..Node::default() });
        self.tree.put(slot, id);
        id
    }

    fn write(&mut self, id: FileId, bytes: &[u8], offset: u64) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let end = offset.saturating_add(bytes.len() as u64);
        self.reserve(id, end.max(self.node(id).content.len()))?;
        self.node_mut(id).content.write(bytes, offset);
        Ok(())
    }

    fn resize(&mut self, id: FileId, len: u64) -> io::Result<()> {
        self.reserve(id, len)?;
        self.node_mut(id).content.set_len(len);
        Ok(())
    }

    /// Takes or gives back the space that the file needs to have `len` bytes.
    fn reserve(&mut self, id: FileId, len: u64) -> io::Result<()> {
        let now = self.node(id).content.len();
        let used_bytes = self.used_bytes - now + len.min(FILE_BYTES_MAX);
        if len > FILE_BYTES_MAX {
            Err(io::ErrorKind::FileTooLarge.into())
        } else if len > now && used_bytes > self.capacity_bytes {
            Err(io::ErrorKind::StorageFull.into())
        } else {
            self.used_bytes = used_bytes;
            Ok(())
        }
    }

    fn drop_name(&mut self, id: FileId) {
        self.node_mut(id).names -= 1;
        self.free_if_unused(id);
    }

    fn drop_handle(&mut self, id: FileId) {
        self.node_mut(id).handles -= 1;
        self.free_if_unused(id);
    }

    /// Gives back the space of a file that nobody can reach. Its bytes stay while a power loss may bring back
    /// its name.
    fn free_if_unused(&mut self, id: FileId) {
        let node = self.node(id);
        if !node.is_in_use() {
            self.used_bytes -= node.content.len();
        }
    }

    fn drop_unreferenced(&mut self) {
        let referenced = self.tree.referenced_files();
        self.files.retain(|id, node| node.handles > 0 || referenced.contains(id));
    }

    fn crash(&self, rng: &mut Rng) -> Self {
        let tree = self.tree.crash(&mut rng.fork());
        let mut files = BTreeMap::new();
        let mut content_rng = rng.fork();
        for id in tree.referenced_files() {
            let content = self.node(id).content.crash(&mut content_rng);
            files.insert(id, Node { content, ..Node::default() });
        }
        let locked = BTreeSet::new();
        Self { tree, files, locked, ..*self }.reopened()
    }

    fn kill(&self) -> Self {
        self.clone().reopened()
    }

    /// As found by a new process: nothing open, nothing locked, names and space counted anew.
    fn reopened(mut self) -> Self {
        for node in self.files.values_mut() {
            (node.names, node.handles) = (0, 0);
        }
        for (_, id) in self.tree.files() {
            self.node_mut(id).names += 1;
        }
        self.drop_unreferenced();
        self.locked.clear();
        self.used_bytes =
            self.files.values().filter(|node| node.is_in_use()).map(|node| node.content.len()).sum();
        self
    }
}

impl Node {
    fn is_in_use(&self) -> bool {
        self.names > 0 || self.handles > 0
    }
}
