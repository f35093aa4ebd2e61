//! The manifest file: a snapshot and the edits since.
//!
//! **Promise.** An edit is durable when [`Manifest::append`] returns. An edit whose append failed
//! with [`Error::Full`] never takes effect, and the next may be tried. The next open detects damage
//! to any durable edit, also to the last.
//!
//! **Mechanism.** Edits are frames, synced one by one. After the sync a *mark* is written behind
//! the last frame, without another sync: it states that everything before it was durable. The next
//! frame overwrites it. So a bad frame at the end was torn by a crash and is cut. A bad frame with
//! a mark or another frame behind it is damage.
//!
//! A new manifest begins with a snapshot, and becomes current once `CURRENT` names it; until then
//! the old one is current. A failed rename of `CURRENT` may have taken effect: `CURRENT` is read
//! again. If that does not decide which manifest is current, both stay, nothing more is appended,
//! and the next open decides.
//!
//! **Caveats.** The mark reaches the disk when the system writes it. Until then, damage to the very
//! last edit combined with power loss is taken for a torn write.

use super::current::{
    SwitchError, current_path, header, manifest_numbers, manifest_path, read_current, read_file,
    remove_others, write_current,
};
use super::frame::{self, ManifestFrameKind};
use super::state::{ReplayedManifest, State, replay};
use super::{IngestCursor, VersionEdit};
use crate::Error;
use crate::ownership::DisownedRange;
use crate::sstable::{TableId, TableMeta, file_name};
use crate::wal::SegmentId;
use bytes::Bytes;
use env::{File, Fs, OpenMode};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Number of the first manifest of a directory.
const FIRST_NUMBER: u64 = 1;
/// A manifest is rewritten when it is longer than this, in bytes, and than twice its snapshot.
const OUTGROWN_BYTES_MIN: u64 = 1 << 20;

/// State of a data directory when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredState {
    /// The live tables with their levels, for [`Levels::apply`](super::Levels::apply).
    pub tables: Vec<(u8, TableMeta)>,
    /// Least unused id: no table file has this id or a greater one.
    pub next_table_id: TableId,
    /// The segment from which the log is replayed.
    pub wal_floor: SegmentId,
    /// Live tables that were quarantined when the checkpoint was made from which the directory
    /// began.
    pub damaged: BTreeSet<TableId>,
    /// Positions of ingests, by name.
    pub ingest_cursors: BTreeMap<Bytes, Bytes>,
    /// Ranges of key hashes that are disowned.
    pub disowned: Vec<DisownedRange>,
    /// Tables that have a file but are not live, because a job was interrupted. The files may be
    /// removed.
    pub orphans: Vec<TableId>,
    /// Bytes of an interrupted write that were cut from the end of the manifest.
    pub cut_bytes: u64,
}

/// The manifest of an open data directory.
pub struct Manifest {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    state: State,
    /// The current manifest.
    tail: Tail,
    /// Manifest numbers from this one on are unused.
    next_number: u64,
    /// Whether power loss may still make the previous manifest current.
    switch_is_unsynced: bool,
    /// Reason for which nothing can be appended any more.
    broken: Option<String>,
}

/// A manifest file with the offset of its next frame.
struct Tail {
    file: Arc<dyn File>,
    path: PathBuf,
    number: u64,
    len: u64,
    snapshot_len: u64,
}

impl Manifest {
    /// Recovers the manifest of `dir`, an existing directory, or creates one if there was none. To
    /// be called before there is data in the directory: tables are in `tables/` below it, the log
    /// in `wal/`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when the manifest is damaged; [`Error::Lost`] when it or a live table is
    /// missing, or when there is data without a manifest; [`Error::Full`] and [`Error::Io`].
    pub fn recover(fs: &Arc<dyn Fs>, dir: &Path) -> Result<(Self, RecoveredState), Error> {
        let current = read_current(fs, dir)?;
        let replayed = match current {
            Some(number) => read_manifest(fs, dir, number)?,
            None => begun(fs, dir)?,
        };
        let ReplayedManifest { mut state, len, cut_bytes } = replayed;
        let orphans = find_orphans(fs, dir, &mut state)?;
        let numbers = manifest_numbers(fs, dir)?;
        let number = numbers.into_iter().max().map_or(FIRST_NUMBER, |last| last + 1);
        let tail = match (Tail::renew(fs, dir, number, &state), current) {
            (Ok(tail), _) => tail,
            (Err(SwitchError { error, is_undone: true }), Some(current)) if error.is_shortage() => {
                Tail::resume(fs, dir, current, len)?
            }
            (Err(SwitchError { error, .. }), _) => return Err(error),
        };
        fs.sync_dir(dir).map_err(|error| Error::io("sync", dir, error))?;
        remove_others(fs, dir, tail.number);
        let recovered = state.recovered(orphans, cut_bytes);
        let manifest = Self {
            fs: Arc::clone(fs),
            dir: dir.to_owned(),
            state,
            tail,
            next_number: number + 1,
            switch_is_unsynced: false,
            broken: None,
        };
        Ok((manifest, recovered))
    }

    /// Creates the first manifest of `dir`, an existing directory. It names the tables that `live`
    /// adds, whose contents and names are durable already. The manifest is durably current when
    /// this returns.
    ///
    /// # Errors
    /// [`Error::Full`] and [`Error::Io`]: there is no manifest, or one that may not be durable.
    pub(crate) fn begin(fs: &Arc<dyn Fs>, dir: &Path, live: &VersionEdit) -> Result<(), Error> {
        let mut state = State::empty();
        state.apply(live);
        Tail::renew(fs, dir, FIRST_NUMBER, &state).map_err(|not| not.error)?;
        fs.sync_dir(dir).map_err(|error| Error::io("sync", dir, error))
    }

    /// Reads the manifest of `dir` without changes.
    ///
    /// # Errors
    /// As [`Manifest::recover`]; also when there is no manifest.
    pub fn inspect(fs: &Arc<dyn Fs>, dir: &Path) -> Result<RecoveredState, Error> {
        let Some(number) = read_current(fs, dir)? else {
            return Err(Error::lost(&current_path(dir), "is missing: without it this is no data directory"));
        };
        let ReplayedManifest { mut state, cut_bytes, .. } = read_manifest(fs, dir, number)?;
        let orphans = find_orphans(fs, dir, &mut state)?;
        Ok(state.recovered(orphans, cut_bytes))
    }

    /// Makes an edit durable. The contents and names of the tables that it adds must be durable
    /// already.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Exhausted`]: the edit did not happen and never will; another may
    /// be tried. After any other error it is unknown whether it happened, and nothing can be
    /// appended any more.
    ///
    /// # Panics
    /// When the edit contradicts earlier ones.
    pub fn append(&mut self, edit: &VersionEdit) -> Result<(), Error> {
        if let Some(reason) = &self.broken {
            return Err(Error::Poisoned { reason: reason.clone() });
        }
        self.prepare()?;
        self.state.check_edit(edit).unwrap_or_else(|broken| panic!("an edit breaks the manifest: {broken}"));
        if let Err(error) = self.tail.append(edit) {
            return Err(self.undo(error));
        }
        self.state.apply(edit);
        self.tail.mark();
        Ok(())
    }

    /// The durable position of an ingest.
    pub(crate) fn ingest_position(&self, name: &[u8]) -> Option<Bytes> {
        self.state.ingest_cursors.get(name).cloned()
    }

    /// The durable positions of all ingests, by name.
    pub(crate) fn ingest_cursors(&self) -> Vec<IngestCursor> {
        self.state.cursors().collect()
    }

    /// Begins a new manifest if this one is too long, and makes the last switch durable.
    fn prepare(&mut self) -> Result<(), Error> {
        if self.tail.is_outgrown() {
            match self.switch() {
                Ok(()) => {}
                // The old manifest remains current; the next edit tries again.
                Err(SwitchError { error, is_undone: true }) if error.is_shortage() => {}
                Err(SwitchError { error, .. }) => return Err(self.break_with(error)),
            }
        }
        if self.switch_is_unsynced {
            match self.fs.sync_dir(&self.dir).map_err(|error| Error::io("sync", &self.dir, error)) {
                Ok(()) => self.switch_is_unsynced = false,
                Err(error) if error.is_shortage() => return Err(error),
                Err(error) => return Err(self.break_with(error)),
            }
            remove_others(&self.fs, &self.dir, self.tail.number);
        }
        Ok(())
    }

    fn switch(&mut self) -> Result<(), SwitchError> {
        let number = self.next_number;
        self.next_number += 1;
        self.tail = Tail::renew(&self.fs, &self.dir, number, &self.state)?;
        self.switch_is_unsynced = true;
        Ok(())
    }

    /// Removes the remains of a failed append, so that they are never taken for an edit.
    fn undo(&mut self, error: Error) -> Error {
        if !error.is_shortage() {
            return self.break_with(error);
        }
        match self.tail.cut() {
            Ok(()) => {
                self.tail.mark();
                error
            }
            Err(failed) => {
                let reason = format!("{error}; then: {failed}");
                self.broken = Some(reason.clone());
                Error::Poisoned { reason }
            }
        }
    }

    fn break_with(&mut self, error: Error) -> Error {
        self.broken = Some(error.to_string());
        error
    }
}

impl Tail {
    /// Creates a file that holds `state`, and makes it current.
    fn renew(fs: &Arc<dyn Fs>, dir: &Path, number: u64, state: &State) -> Result<Self, SwitchError> {
        let tail = Self::begin(fs, dir, number, state)?;
        write_current(fs, dir, number).inspect_err(|not| {
            if not.is_undone {
                let _named_by_nothing = fs.remove_file(&tail.path);
            }
        })?;
        Ok(tail)
    }

    /// Creates a file that holds `state`. The file and its name are durable.
    fn begin(fs: &Arc<dyn Fs>, dir: &Path, number: u64, state: &State) -> Result<Self, Error> {
        let path = manifest_path(dir, number);
        let mut bytes = header(number).to_vec();
        for edit in state.snapshot() {
            let offset = bytes.len() as u64;
            frame::put(&mut bytes, number, offset, ManifestFrameKind::Edit, |out| edit.encode(out));
        }
        let len = bytes.len() as u64;
        frame::put(&mut bytes, number, len, ManifestFrameKind::Mark, |_| {});
        let file = fs.open(&path, OpenMode::CreateNew).map_err(|error| Error::io("create", &path, error))?;
        let written =
            file.write_at(&bytes, 0).and_then(|()| file.sync_data()).and_then(|()| fs.sync_dir(dir));
        match written {
            Ok(()) => Ok(Self { file, path, number, len, snapshot_len: len }),
            Err(error) => {
                let _named_by_nothing = fs.remove_file(&path);
                Err(Error::io("write", &path, error))
            }
        }
    }

    /// Reopens a manifest that was read up to `len`, to append to it. Everything behind `len` is
    /// removed.
    fn resume(fs: &Arc<dyn Fs>, dir: &Path, number: u64, len: u64) -> Result<Self, Error> {
        let path = manifest_path(dir, number);
        let file = fs.open(&path, OpenMode::ReadWrite).map_err(|error| Error::io("open", &path, error))?;
        let tail = Self { file, path, number, len, snapshot_len: len };
        tail.cut()?;
        tail.mark();
        Ok(tail)
    }

    fn append(&mut self, edit: &VersionEdit) -> Result<(), Error> {
        let mut bytes = Vec::new();
        frame::put(&mut bytes, self.number, self.len, ManifestFrameKind::Edit, |out| edit.encode(out));
        self.file.write_at(&bytes, self.len).map_err(|error| Error::io("write", &self.path, error))?;
        self.file.sync_data().map_err(|error| Error::io("sync", &self.path, error))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Marks everything before as durable. Without the mark an edit is equally durable; only damage
    /// to it may be taken for a torn write. So a failure to write the mark is ignored.
    fn mark(&self) {
        let mut bytes = Vec::new();
        frame::put(&mut bytes, self.number, self.len, ManifestFrameKind::Mark, |_| {});
        let _only_a_help = self.file.write_at(&bytes, self.len);
    }

    /// Removes everything behind the last edit, durably.
    fn cut(&self) -> Result<(), Error> {
        let cut = self.file.set_len(self.len).and_then(|()| self.file.sync_data());
        cut.map_err(|error| Error::io("cut", &self.path, error))
    }

    fn is_outgrown(&self) -> bool {
        self.len > OUTGROWN_BYTES_MIN.max(self.snapshot_len * 2)
    }
}

fn read_manifest(fs: &Arc<dyn Fs>, dir: &Path, number: u64) -> Result<ReplayedManifest, Error> {
    let path = manifest_path(dir, number);
    match read_file(fs, &path)? {
        Some(bytes) => replay(&bytes, number, &path),
        None => Err(Error::lost(&path, "is missing: CURRENT names it")),
    }
}

/// Whether `dir`, which need not exist, is the directory of an engine with data: it has a manifest,
/// tables or a log.
///
/// # Errors
/// [`Error::Io`].
pub fn holds_data(fs: &Arc<dyn Fs>, dir: &Path) -> Result<bool, Error> {
    let current = current_path(dir);
    let is_begun = fs.exists(&current).map_err(|error| Error::io("look for", &current, error))?;
    Ok(is_begun || data_in(fs, dir)?.is_some())
}

/// The state of a directory without `CURRENT`, which must not hold data.
fn begun(fs: &Arc<dyn Fs>, dir: &Path) -> Result<ReplayedManifest, Error> {
    match data_in(fs, dir)? {
        Some(data) => Err(Error::lost(&current_path(dir), format!("is missing, but {data}/ holds data"))),
        None => Ok(ReplayedManifest { state: State::empty(), len: 0, cut_bytes: 0 }),
    }
}

/// The first data directory below `dir` that is not empty.
fn data_in(fs: &Arc<dyn Fs>, dir: &Path) -> Result<Option<&'static str>, Error> {
    for data in ["tables", "wal"] {
        if !names_in(fs, &dir.join(data))?.is_empty() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// Table files that are not live. Ensures that their ids are not assigned again.
fn find_orphans(fs: &Arc<dyn Fs>, dir: &Path, state: &mut State) -> Result<Vec<TableId>, Error> {
    let tables_dir = dir.join("tables");
    let mut missing: BTreeSet<TableId> = state.tables.keys().copied().collect();
    let mut orphans = Vec::new();
    for name in names_in(fs, &tables_dir)? {
        let Some(id) = table_id(&name) else { continue };
        state.next_table_id = state.next_table_id.max(TableId(id.0.saturating_add(1)));
        if !missing.remove(&id) {
            orphans.push(id);
        }
    }
    match missing.first() {
        Some(id) => Err(Error::lost(&tables_dir.join(file_name(*id)), "is missing: it is a live table")),
        None => Ok(orphans),
    }
}

fn table_id(name: &str) -> Option<TableId> {
    let id = TableId(u64::from_str_radix(name.strip_suffix(".sst")?, 16).ok()?);
    (file_name(id) == name).then_some(id)
}

fn names_in(fs: &Arc<dyn Fs>, dir: &Path) -> Result<Vec<String>, Error> {
    match fs.read_dir(dir) {
        Ok(names) => Ok(names),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Error::io("list", dir, error)),
    }
}
