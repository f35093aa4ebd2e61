//! A disk in memory that can lose power.
//!
//! **Promise.** Without crashes, [`MemFs`] behaves like the real file system: one test suite runs
//! on both. After [`MemFs::crash`] it holds exactly the data that the traits promise, and a subset
//! of the unsynced changes, selected by the seed. Each unsynced write survives completely, torn
//! into 512-byte sectors, as a length without bytes, or not at all. Each unsynced change of a
//! length or a name survives or not. The same operations and the same seed give the same disk.
//!
//! [`File::lose_unsynced`] simulates a sync that failed on the device, as Linux behaves. The bytes
//! written since the last sync are not durable, except for those that reach the device by chance.
//! Reads return them until [`MemFs::evict`]. No later sync makes them durable, except for 4 KiB
//! pages that are written again.
//!
//! **Mechanism.** A file keeps its current bytes, its last synced bytes, and the list of changes
//! between (`content`). A directory does the same with its names (`names`). The two copies share
//! their pages until one of them changes (`pages`), so that a crash copies little more than names.
//!
//! **Caveats.** One mutex protects a disk: this is for tests. Every byte of a file's length counts
//! as used space, including holes. A directory cannot replace another by a rename. Within a sector,
//! a later unsynced write may survive without an earlier one. Devices do not do that, but the
//! traits permit it.

mod content;
mod file;
mod names;
mod pages;

use crate::fs::{DirLock, File, Fs, IoCounters, OpenMode};
use content::Content;
use file::{MemFile, MemLock};
use names::{DirectoryEntry, DirectoryTree, FileId, Slot};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stdx::Rng;

/// Maximum length of a file. A wild offset is an error instead of an allocation of all memory.
const FILE_BYTES_MAX: u64 = 1 << 32;

/// A file system in memory. Clones are handles on the same disk.
#[derive(Clone)]
pub struct MemFs {
    disk: Arc<Disk>,
}

/// State shared between handles, open files and locks.
struct Disk {
    state: Mutex<State>,
    cold: AtomicBool,
    counters: IoCounters,
}

#[derive(Clone)]
struct State {
    tree: DirectoryTree,
    files: BTreeMap<FileId, Node>,
    locked: BTreeSet<FileId>,
    next_file: u64,
    capacity_bytes: u64,
    /// Sum of the lengths of the files in use.
    used_bytes: u64,
}

/// A file. It is in use while it has a name or an open handle.
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
    /// Creates an empty disk without a size limit.
    pub fn new() -> Self {
        Self::with_capacity(u64::MAX)
    }

    /// Creates an empty disk for files of `bytes` in total. A write that exceeds the limit changes
    /// nothing and fails with [`io::ErrorKind::StorageFull`].
    pub fn with_capacity(bytes: u64) -> Self {
        Self::from_state(State::new(bytes), false)
    }

    /// Changes the size limit. Existing files stay, also above the limit.
    pub fn set_capacity(&self, bytes: u64) {
        self.disk.state.lock().capacity_bytes = bytes;
    }

    /// Sets whether the page cache is empty: while cold, [`File::read_at_nowait`] returns `None`.
    pub fn set_cold(&self, cold: bool) {
        self.disk.cold.store(cold, Ordering::Relaxed);
    }

    /// Returns a new disk as it may be after power loss. No file of it is locked, open or unsynced.
    /// This disk and its open files remain usable.
    pub fn crash(&self, rng: &mut Rng) -> Self {
        Self::from_state(self.disk.state.lock().crash(rng), self.is_cold())
    }

    /// Returns a new disk as it is after the process died: all changes are present, and no file is
    /// locked or open. Unsynced changes stay unsynced: a later [`MemFs::crash`] may lose them.
    pub fn kill(&self) -> Self {
        Self::from_state(self.disk.state.lock().kill(), self.is_cold())
    }

    /// Simulates bit rot: flips bit `bit` (0 to 7) of one byte of a file, durably.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the file ends before that byte.
    ///
    /// # Panics
    /// If `bit` is above 7.
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

    /// Evicts every clean page of all files: reads return the bytes of the device.
    pub fn evict(&self) {
        self.disk.state.lock().files.values_mut().for_each(|node| node.content.evict());
    }

    /// Returns the paths of all files from the root, sorted.
    pub fn file_names(&self) -> Vec<PathBuf> {
        self.disk.state.lock().tree.files().into_iter().map(|(path, _)| path).collect()
    }

    /// Returns all bytes of a file.
    pub fn read_file(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        let state = self.disk.state.lock();
        let content = &state.node(state.file_at(path.as_ref())?).content;
        let mut bytes = vec![0; content.len() as usize];
        content.read(&mut bytes, 0);
        Ok(bytes)
    }

    /// Creates or replaces a file with these bytes, durably. It syncs all ancestor directories,
    /// including their other changes.
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
            (Some(DirectoryEntry::Dir(_)), _) => return Err(io::ErrorKind::IsADirectory.into()),
            (Some(DirectoryEntry::File(id)), OpenMode::CreateOrTruncate) => {
                state.resize(id, 0)?;
                id
            }
            (
                Some(DirectoryEntry::File(id)),
                OpenMode::Read | OpenMode::ReadRegular | OpenMode::ReadWrite,
            ) => id,
            (None, OpenMode::CreateNew | OpenMode::CreateOrTruncate) => state.create(slot),
            (None, OpenMode::Read | OpenMode::ReadRegular | OpenMode::ReadWrite) => {
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
            // The root: a directory without a name.
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
            (DirectoryEntry::Dir(_), _) if inside => return Err(io::ErrorKind::InvalidInput.into()),
            (DirectoryEntry::Dir(_), Some(DirectoryEntry::Dir(_))) => {
                return Err(io::ErrorKind::DirectoryNotEmpty.into());
            }
            (DirectoryEntry::Dir(_), Some(DirectoryEntry::File(_))) => {
                return Err(io::ErrorKind::NotADirectory.into());
            }
            (DirectoryEntry::File(_), Some(DirectoryEntry::Dir(_))) => {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            (DirectoryEntry::File(_), Some(DirectoryEntry::File(there))) => state.drop_name(there),
            (_, None) => {}
        }
        state.tree.rename(from, to, entry);
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        let id = state.file_at(path)?;
        let slot = state.tree.slot_at(path)?;
        state.tree.remove(slot, DirectoryEntry::File(id));
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
        state.tree.remove(slot, DirectoryEntry::Dir(dir));
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
            Some(DirectoryEntry::Dir(_)) => return Err(io::ErrorKind::IsADirectory.into()),
            Some(DirectoryEntry::File(id)) => id,
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
            tree: DirectoryTree::new(),
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
            Some(DirectoryEntry::File(id)) => Ok(id),
            Some(DirectoryEntry::Dir(_)) => Err(io::ErrorKind::IsADirectory.into()),
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

    /// Adjusts the used space for a file that changes its length to `len` bytes.
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

    /// Releases the space of a file that has neither names nor handles. Its bytes stay while a
    /// power loss may restore its name.
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

    /// Returns the state that a new process finds: without open files and locks, with names and
    /// space counted anew.
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
