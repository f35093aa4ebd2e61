//! Spare files that can become segments.
//!
//! **Promise.** Appending never waits for a file to be filled or removed: a background worker does
//! both ([`Spares::step`]), and shares only a briefly locked list with the log.
//!
//! **Mechanism.** Released segments are renamed to spares up to a limit; others are removed. The
//! flush of a memtable releases all segments of its records at once. If the limit covers them, the
//! same files are recycled again and again. When no spare is ready, one is filled with zeros piece
//! by piece: syncing overwritten blocks is cheaper than syncing a file that grows. The contents of
//! a recycled file need no wiping: its groups have another epoch.
//!
//! **Caveats.** The pages of a spare may not be in the page cache, which `segment` accounts for.
//! The name of a spare is durable before the spare is used, so that a file never has two names of
//! which one is live. Spares take disk space: the limit times the segment size.

use super::file_names::{SpareNumber, segment_path, spare_path, unfinished_path};
use super::format::{SEGMENT_HEADER_LEN, SegmentHeader, SegmentId};
use crate::Error;
use env::{File, Fs, OpenMode};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Size of the pieces in which zeros are written. The device has at most two of them in flight, so
/// that concurrent syncs of the log do not wait long.
const PIECE_BYTES: usize = 128 << 10;
/// Number of spares that are kept while the disk is full.
const SPARES_KEPT: usize = 1;

/// Spare segments of one log.
pub struct Spares {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    segment_bytes: u64,
    spares_max: usize,
    queues: Mutex<Queues>,
    /// Locked through the I/O of a step: one worker at a time.
    fill_state: Mutex<FillState>,
}

/// State shared by the log and the worker. Never locked through I/O.
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
    /// The spares that recovery found in the directory.
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

    /// Number of ready files.
    pub fn ready(&self) -> usize {
        self.queues.lock().ready.len()
    }

    /// Recycles or removes one released segment, or fills up to `budget_bytes` (at least one piece)
    /// of a spare. Returns whether more work is left.
    ///
    /// # Errors
    /// Those of the file system. [`Error::Full`] changes nothing; repeat the call when there is
    /// space.
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

    /// As [`Spares::step`], for a full disk: releases disk space instead of using it. Removes one
    /// released segment, or one spare beyond [`SPARES_KEPT`]; the kept ones serve to log deletes.
    /// Returns whether there was anything to remove.
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

    /// Adds released segments, to be recycled or removed.
    pub(super) fn release(&self, ids: impl IntoIterator<Item = SegmentId>) {
        self.queues.lock().released.extend(ids);
    }

    /// Takes a spare to make a segment of it.
    pub(super) fn take(&self) -> Option<SpareNumber> {
        self.queues.lock().ready.pop()
    }

    /// Returns a spare that was taken and not used.
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
        // A step that failed half-way is repeated: the file may be gone already.
        if !self.fs.exists(&path).map_err(|error| Error::io("look for", &path, error))? {
            return Ok(());
        }
        if self.ready() < spares_max && self.is_recyclable(id, &path)? {
            return self.make_ready(&path, fill_state);
        }
        remove(&*self.fs, &path)
    }

    /// Whether the file has the size of a spare, and the name that its header says. A crash during
    /// a rename can leave two names for one file, and the other may be live: then only this name
    /// must be removed.
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
            // Other files need the space more. If this fails, the next start removes the file.
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

/// The header at the start of a file; `None` when there is no whole one.
pub(super) fn read_header(file: &dyn File) -> std::io::Result<Option<SegmentHeader>> {
    let mut bytes = [0; SEGMENT_HEADER_LEN];
    let len = file.read_at(&mut bytes, 0)?;
    Ok(SegmentHeader::decode(&bytes[..len]).ok())
}
