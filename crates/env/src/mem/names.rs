//! Directories: the current names, the durable names, and the changes between them.
//!
//! A change of names is atomic and affects one or two directories. It becomes durable once each of
//! them is synced after it. All earlier changes of the same names then become durable too, so that
//! a name never returns to a state before the promised one. A power loss undoes an arbitrary subset
//! of the other changes. The surviving changes of one name apply in their original order.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path, PathBuf};
use stdx::Rng;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileId(pub(super) u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DirId(u64);

const ROOT: DirId = DirId(0);

/// The target of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DirectoryEntry {
    File(FileId),
    Dir(DirId),
}

/// A name in a directory, whether it exists or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot {
    dir: DirId,
    name: String,
}

type Entries = BTreeMap<String, DirectoryEntry>;
type Dirs = BTreeMap<DirId, Dir>;

#[derive(Clone, Default)]
struct Dir {
    live: Entries,
    durable: Entries,
}

/// A change of names: `entry` leaves the slot `from`, if any, and occupies the slot `to`, if any.
#[derive(Clone)]
struct Change {
    from: Option<Slot>,
    to: Option<Slot>,
    entry: DirectoryEntry,
    /// The first of the change's two directories that was synced after it.
    synced: Option<DirId>,
}

/// All directories of a disk.
#[derive(Clone)]
pub(super) struct DirectoryTree {
    dirs: Dirs,
    unsynced: Vec<Change>,
    next_dir: u64,
}

impl DirectoryTree {
    /// Creates a tree with an empty root.
    pub(super) fn new() -> Self {
        Self { dirs: BTreeMap::from([(ROOT, Dir::default())]), unsynced: Vec::new(), next_dir: ROOT.0 + 1 }
    }

    /// Returns the directory at `path`.
    pub(super) fn dir_at(&self, path: &Path) -> io::Result<DirId> {
        names_of(path)?.into_iter().try_fold(ROOT, |dir, name| self.subdir(dir, name))
    }

    /// Returns the slot of the last name of `path`. Its directory must exist.
    pub(super) fn slot_at(&self, path: &Path) -> io::Result<Slot> {
        let mut names = names_of(path)?;
        // The root is in no directory.
        let name = names.pop().ok_or(io::ErrorKind::IsADirectory)?;
        let dir = names.into_iter().try_fold(ROOT, |dir, name| self.subdir(dir, name))?;
        Ok(Slot { dir, name: name.to_owned() })
    }

    /// Returns the current entry of this slot.
    pub(super) fn get(&self, slot: &Slot) -> Option<DirectoryEntry> {
        self.dirs[&slot.dir].live.get(&slot.name).copied()
    }

    /// Returns the current names in a directory, sorted.
    pub(super) fn names_in(&self, dir: DirId) -> Vec<String> {
        self.dirs[&dir].live.keys().cloned().collect()
    }

    /// Creates the missing directories of `path`.
    pub(super) fn create_dirs(&mut self, path: &Path) -> io::Result<()> {
        let mut dir = ROOT;
        for name in names_of(path)? {
            dir = match self.subdir(dir, name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.create_dir(Slot { dir, name: name.to_owned() })
                }
                found => found?,
            };
        }
        Ok(())
    }

    /// Assigns a file to a slot.
    pub(super) fn put(&mut self, slot: Slot, file: FileId) {
        self.change(None, Some(slot), DirectoryEntry::File(file));
    }

    /// Frees the slot of `entry`. A directory must be empty. The tree keeps it, because a power
    /// loss may restore it.
    pub(super) fn remove(&mut self, slot: Slot, entry: DirectoryEntry) {
        self.change(Some(slot), None, entry);
    }

    /// Moves `entry` from the slot `from` to the slot `to`.
    pub(super) fn rename(&mut self, from: Slot, to: Slot, entry: DirectoryEntry) {
        self.change(Some(from), Some(to), entry);
    }

    /// Makes the changes of `dir` durable, except those that still need a sync of another
    /// directory.
    pub(super) fn sync(&mut self, dir: DirId) {
        let mut settled_slots = BTreeSet::new();
        let mut settled = Vec::new();
        let mut waiting = Vec::new();
        for mut change in std::mem::take(&mut self.unsynced).into_iter().rev() {
            if change.settles_with(dir) || change.slots().any(|slot| settled_slots.contains(slot)) {
                settled_slots.extend(change.slots().cloned());
                settled.push(change);
            } else {
                waiting.push(change);
            }
        }
        waiting.reverse();
        self.unsynced = waiting;
        for change in settled.iter().rev() {
            change.apply(&mut self.dirs, |dir| &mut dir.durable);
        }
    }

    /// Returns the directories after power loss.
    pub(super) fn crash(&self, rng: &mut Rng) -> Self {
        let mut after = Self { unsynced: Vec::new(), ..self.clone() };
        let kept = [0.0, 0.5, 0.5, 1.0][rng.below(4) as usize];
        let mut undone_moves = BTreeMap::new();
        for change in &self.unsynced {
            if rng.chance(kept) {
                after.apply_durably(change, &mut undone_moves);
            } else if let (Some(from), Some(to)) = (&change.from, &change.to) {
                undone_moves.insert(to.clone(), from.clone());
            }
        }
        for dir in after.dirs.values_mut() {
            dir.live.clone_from(&dir.durable);
        }
        after.drop_lost_dirs();
        after
    }

    /// Returns the path and id of each file, once per name, sorted.
    pub(super) fn files(&self) -> Vec<(PathBuf, FileId)> {
        let mut files = Vec::new();
        self.visit(ROOT, Path::new("/"), &mut |path, entry| {
            if let DirectoryEntry::File(id) = entry {
                files.push((path, id));
            }
        });
        files.sort_unstable();
        files
    }

    /// Returns the files that have a name now, or may have one after a power loss.
    pub(super) fn referenced_files(&self) -> BTreeSet<FileId> {
        let named = self.dirs.values().flat_map(|dir| dir.live.values().chain(dir.durable.values()));
        let changed = self.unsynced.iter().map(|change| &change.entry);
        let files = named.chain(changed).filter_map(|entry| match entry {
            DirectoryEntry::File(id) => Some(*id),
            DirectoryEntry::Dir(_) => None,
        });
        files.collect()
    }

    fn subdir(&self, dir: DirId, name: &str) -> io::Result<DirId> {
        match self.dirs[&dir].live.get(name) {
            Some(DirectoryEntry::Dir(id)) => Ok(*id),
            Some(DirectoryEntry::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn create_dir(&mut self, slot: Slot) -> DirId {
        let id = DirId(self.next_dir);
        self.next_dir += 1;
        self.dirs.insert(id, Dir::default());
        self.change(None, Some(slot), DirectoryEntry::Dir(id));
        id
    }

    fn change(&mut self, from: Option<Slot>, to: Option<Slot>, entry: DirectoryEntry) {
        let change = Change { from, to, entry, synced: None };
        change.apply(&mut self.dirs, |dir| &mut dir.live);
        self.unsynced.push(change);
    }

    /// Applies a change that survived the power loss. A file has one name, however often it was
    /// moved: if earlier moves were undone, the move takes the file from its older slot.
    fn apply_durably(&mut self, change: &Change, undone_moves: &mut BTreeMap<Slot, Slot>) {
        change.apply(&mut self.dirs, |dir| &mut dir.durable);
        if change.to.is_none() {
            return;
        }
        let mut place = change.from.clone();
        while let Some(earlier) = place.and_then(|slot| undone_moves.remove(&slot)) {
            let entries = &mut at_mut(&mut self.dirs, &earlier).durable;
            if entries.get(&earlier.name) == Some(&change.entry) {
                entries.remove(&earlier.name);
            }
            place = Some(earlier);
        }
    }

    /// Removes directories whose own names did not survive.
    fn drop_lost_dirs(&mut self) {
        let mut reachable = BTreeSet::from([ROOT]);
        self.visit(ROOT, Path::new("/"), &mut |_, entry| {
            if let DirectoryEntry::Dir(id) = entry {
                reachable.insert(id);
            }
        });
        self.dirs.retain(|id, _| reachable.contains(id));
    }

    fn visit(&self, dir: DirId, path: &Path, visitor: &mut impl FnMut(PathBuf, DirectoryEntry)) {
        for (name, entry) in &self.dirs[&dir].live {
            let path = path.join(name);
            if let DirectoryEntry::Dir(id) = entry {
                self.visit(*id, &path, visitor);
            }
            visitor(path, *entry);
        }
    }
}

impl Change {
    fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.from.iter().chain(&self.to)
    }

    fn apply(&self, dirs: &mut Dirs, side: fn(&mut Dir) -> &mut Entries) {
        if let Some(from) = &self.from {
            side(at_mut(dirs, from)).remove(&from.name);
        }
        if let Some(to) = &self.to {
            side(at_mut(dirs, to)).insert(to.name.clone(), self.entry);
        }
    }

    /// Records a sync of `dir`. Returns whether it completed the syncs that the change needs.
    fn settles_with(&mut self, dir: DirId) -> bool {
        if self.slots().all(|slot| slot.dir != dir) {
            return false;
        }
        let synced = *self.synced.get_or_insert(dir);
        self.slots().all(|slot| slot.dir == dir || slot.dir == synced)
    }
}

fn at_mut<'a>(dirs: &'a mut Dirs, slot: &Slot) -> &'a mut Dir {
    dirs.get_mut(&slot.dir).expect("directories stay in the tree when they are removed")
}

/// Returns the names from the root to `path`. Relative paths begin at the root too.
fn names_of(path: &Path) -> io::Result<Vec<&str>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => names.push(name.to_str().ok_or(io::ErrorKind::InvalidInput)?),
            Component::ParentDir => {
                names.pop();
            }
            Component::Prefix(_) => return Err(io::ErrorKind::InvalidInput.into()),
        }
    }
    Ok(names)
}
