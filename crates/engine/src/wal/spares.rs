//! Files that wait to become segments.
//!
//! **Promise.** Appending never waits for a file to be filled or removed: a background worker does both, by
//! [`Spares::step`], and hands over through a list that is locked for a moment only.
//!
//! **Mechanism.** Released segments are renamed to spares while there are fewer than the bound, else removed. The
//! flush of a memtable releases all the segments that it was logged in at once: where the bound is not below that, the
//! same files take the log again and again. When no spare is ready, one is filled with zeros, piece by piece:
//! overwriting written blocks makes the sync of a group cheaper than extending a file does. What a recycled file held
//! needs no wiping: its groups have another epoch.
//!
//! **Caveats.** The page cache may not hold a spare: see `segment`. A spare's name is durable before the spare is handed out, so that a file never has two names
//! of which one is live. Spares take room on the disk: the bound times the size of a segment.

use super::file_names::{SpareNumber, segment_path, spare_path, unfinished_path};
use super::format::{SEGMENT_HEADER_LEN, SegmentHeader, SegmentId};
use crate::Error;
use env::{File, Fs, OpenMode};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Zeros are written in pieces of this size. The device has two of them at most to write, so that the log, which is
/// synced meanwhile, does not wait for long.
const PIECE_BYTES: usize = 128 << 10;
/// So many spares stay while the disk is full.
const SPARES_KEPT: usize = 1;

/// Spare segments of one log. See the module.
pub struct Spares {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    segment_bytes: u64,
    spares_max: usize,
    queues: Mutex<Queues>,
    /// Held through a step's I/O: one worker at a time.
    fill_state: Mutex<FillState>,
}

/// What the log and the worker hand each other. Never held through I/O.
#[derive(Default)]
struct Queues {
    ready: Vec<SpareNumber>,
    released: VecDeque<SegmentId>,
}

struct FillState {
    next: SpareNumber,
    filling: Option<Filling>,
}

/// A file that is being filled with zeros.
struct Filling {
    file: Arc<dyn File>,
    path: PathBuf,
    written: u64,
}

impl Spares {
    /// The spares `found` in the directory, and segments that are to be recycled or removed.
    pub(super) fn new(
        fs: Arc<dyn Fs>,
        dir: PathBuf,
        (segment_bytes, spares_max): (u64, usize),
        found: Vec<SpareNumber>,
    ) -> Self {
        let next = SpareNumber(found.iter().max().map_or(0, |last| last.0 + 1));
        Self {
            fs,
            dir,
            segment_bytes,
            spares_max,
            queues: Mutex::new(Queues { ready: found, released: VecDeque::new() }),
            fill_state: Mutex::new(FillState { next, filling: None }),
        }
    }

    /// How many files are ready.
    pub fn ready(&self) -> usize {
        self.queues.lock().ready.len()
    }

    /// Does a part of what there is to do: recycles or removes one released segment, or fills at most
    /// `budget_bytes` (at least one piece) of a spare. True when there is more to do.
    ///
    /// # Errors
    /// Those of the file system. [`Error::Full`] leaves everything as it was; call again when there is room.
    pub fn step(&self, budget_bytes: u64) -> Result<bool, Error> {
        let mut fill_state = self.fill_state.lock();
        if !self.recycle_one(&mut fill_state, self.spares_max)? {
            if !self.wants_filling() {
                return Ok(false);
            }
            self.fill(&mut fill_state, budget_bytes)?;
        }
        Ok(!self.queues.lock().released.is_empty() || self.wants_filling())
    }

    /// As [`Spares::step`], for a disk that is full: gives room back instead of taking any. Removes one released
    /// segment, or what is more than [`SPARES_KEPT`]; those are what deletes are logged in. False when there was
    /// nothing to remove.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn step_releasing(&self) -> Result<bool, Error> {
        let mut fill_state = self.fill_state.lock();
        if let Some(filling) = fill_state.filling.take() {
            remove(&*self.fs, &filling.path)?;
            return Ok(true);
        }
        if self.recycle_one(&mut fill_state, self.spares_max.min(SPARES_KEPT))? {
            return Ok(true);
        }
        let mut queues = self.queues.lock();
        let surplus = if queues.ready.len() > SPARES_KEPT { queues.ready.pop() } else { None };
        drop(queues);
        let Some(number) = surplus else { return Ok(false) };
        remove(&*self.fs, &spare_path(&self.dir, number)).inspect_err(|_| self.put_back(number))?;
        Ok(true)
    }

    /// Segments that nobody needs any more.
    pub(super) fn release(&self, ids: impl IntoIterator<Item = SegmentId>) {
        self.queues.lock().released.extend(ids);
    }

    /// A file to make a segment of.
    pub(super) fn take(&self) -> Option<SpareNumber> {
        self.queues.lock().ready.pop()
    }

    /// A file that was taken and is still a spare.
    pub(super) fn put_back(&self, spare: SpareNumber) {
        self.queues.lock().ready.push(spare);
    }

    fn wants_filling(&self) -> bool {
        self.spares_max > 0 && self.ready() == 0
    }

    fn recycle_one(&self, fill_state: &mut FillState, spares_max: usize) -> Result<bool, Error> {
        let Some(id) = self.queues.lock().released.front().copied() else { return Ok(false) };
        self.recycle(id, fill_state, spares_max)?;
        self.queues.lock().released.pop_front();
        Ok(true)
    }

    fn recycle(&self, id: SegmentId, fill_state: &mut FillState, spares_max: usize) -> Result<(), Error> {
        let path = segment_path(&self.dir, id);
        // A step that failed half way is done again: then the file may be gone already.
        if !self.fs.exists(&path).map_err(|error| Error::io("look for", &path, error))? {
            return Ok(());
        }
        if self.ready() < spares_max && self.is_recyclable(id, &path)? {
            return self.make_ready(&path, fill_state);
        }
        remove(&*self.fs, &path)
    }

    /// Whether the file has the size of a spare and the name of its contents. A crash in the middle of a
    /// rename can leave two names for one file, and the other may be live: then only this name must go.
    fn is_recyclable(&self, id: SegmentId, path: &Path) -> Result<bool, Error> {
        let file = self.fs.open(path, OpenMode::Read).map_err(|error| Error::io("open", path, error))?;
        let len = file.len().map_err(|error| Error::io("measure", path, error))?;
        if len < self.segment_bytes / 2 || len > self.segment_bytes.saturating_mul(2) {
            return Ok(false);
        }
        let header = read_header(&*file).map_err(|error| Error::io("read", path, error))?;
        Ok(header.is_some_and(|header| header.id == id))
    }

    fn make_ready(&self, path: &Path, fill_state: &mut FillState) -> Result<(), Error> {
        let number = fill_state.next;
        fill_state.next = SpareNumber(number.0 + 1);
        let spare = spare_path(&self.dir, number);
        self.fs.rename(path, &spare).map_err(|error| Error::io("rename", path, error))?;
        self.fs.sync_dir(&self.dir).map_err(|error| Error::io("sync", &self.dir, error))?;
        self.queues.lock().ready.push(number);
        Ok(())
    }

    fn fill(&self, fill_state: &mut FillState, budget_bytes: u64) -> Result<(), Error> {
        let mut filling = match fill_state.filling.take() {
            Some(filling) => filling,
            None => self.begin_filling(fill_state.next)?,
        };
        let result = self.write_zeros(&mut filling, budget_bytes);
        if let Err(error) = result {
            // The room it took is more use to others; should this fail, the next start removes it.
            let _ = self.fs.remove_file(&filling.path);
            return Err(Error::io("fill", &filling.path, error));
        }
        if filling.written < self.segment_bytes {
            fill_state.filling = Some(filling);
            return Ok(());
        }
        filling.file.sync_data().map_err(|error| Error::io("sync", &filling.path, error))?;
        self.make_ready(&filling.path, fill_state)
    }

    fn begin_filling(&self, number: SpareNumber) -> Result<Filling, Error> {
        let path = unfinished_path(&spare_path(&self.dir, number));
        let file = self.fs.open(&path, OpenMode::CreateOrTruncate);
        Ok(Filling { file: file.map_err(|error| Error::io("create", &path, error))?, path, written: 0 })
    }

    fn write_zeros(&self, filling: &mut Filling, budget_bytes: u64) -> std::io::Result<()> {
        static ZEROS: [u8; PIECE_BYTES] = [0; PIECE_BYTES];
        let end =
            filling.written.saturating_add(budget_bytes.max(PIECE_BYTES as u64)).min(self.segment_bytes);
        while filling.written < end {
            let (begin, len) = (filling.written, (end - filling.written).min(PIECE_BYTES as u64));
            filling.file.write_at(&ZEROS[..len as usize], begin)?;
            filling.file.start_writeback(begin, len)?;
            filling.file.finish_writeback(0, begin)?;
            filling.written += len;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Spares {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spares").field("dir", &self.dir).field("ready", &self.ready()).finish_non_exhaustive()
    }
}

fn remove(fs: &dyn Fs, path: &Path) -> Result<(), Error> {
    fs.remove_file(path).map_err(|error| Error::io("remove", path, error))
}

/// The header at the start of a file; `None` when there is none that is whole.
pub(super) fn read_header(file: &dyn File) -> std::io::Result<Option<SegmentHeader>> {
    let mut bytes = [0; SEGMENT_HEADER_LEN];
    let len = file.read_at(&mut bytes, 0)?;
    Ok(SegmentHeader::decode(&bytes[..len]).ok())
}
