//! The write-ahead log, which recovery replays after a crash.
//!
//! **Promise.** Once [`Wal::append`] has returned under [`Durability::Sync`], every later
//! [`Wal::open`] replays its records until their segment is released, in spite of process crashes
//! and power loss. A record is replayed completely or not at all. Records that `append` refused
//! with [`Error::Full`] are never replayed. Damage to durable data is an error that names file and
//! offset, not a shorter log.
//!
//! **Mechanism.** The log is a chain of *segments*: files that are prepared ahead ([`Spares`]) and
//! recycled after their release. A segment holds *groups*: a header and the [`Record`]s of all
//! writers that shared one sync. Three fields of the headers ensure the promise:
//!
//! * The *epoch* of the segment and the offset of the group distinguish it from the remains of an
//!   earlier use of the file.
//! * A *digest* over the checksums of the records detects an old record under a new header, in
//!   whatever order the device wrote their sectors.
//! * The *durable offset* at the time of writing separates damage from torn writes. A bad group
//!   below the greatest durable offset of any header is damage. One at or above it is the torn tail
//!   of the last crash ([`replay`]).
//!
//! A segment header names the previous segment with its durable length. So a tail that was cut
//! stays cut, and a missing file is detected. Before the first group is written, the previous
//! segment is durable, then the header, and then the name of the segment: a segment never lacks a
//! header.
//!
//! In an idle period, a *closing record* ([`Wal::idle`]) marks all groups as durable, so that
//! damage to the last group is detected too.
//!
//! Under [`Durability::Os`], the end of a full segment and the beginning of the next become durable
//! in the background ([`DeferredSync`]). Until then a flag in the header of the full segment says
//! so.
//!
//! Two losses leave no trace in the log: truncation exactly at the end of a group, and loss of the
//! newest segment. So the host may supply a known end ([`KnownLog::known_end`], from
//! [`WalStatus::durable_end`] while the log was open). A log that ends before it is
//! [`Error::Lost`].
//!
//! **Caveats.** Under [`Durability::Os`], power loss takes all groups from the first one that did
//! not reach the disk: at most the ends of two segments. A release that does not know the flag
//! reports that as damage. Without a known end, damage to the very last group, before a later group
//! or closing record, looks like a torn tail. The loss of the newest segment file then looks like a
//! log that ended before it. `docs/storage-format/wal.md` shows the format.

mod checksum;
mod deferred_sync;
mod file_names;
mod format;
pub mod record;
mod recovery;
pub mod replay;
mod segment;
mod spares;
mod status;

pub use deferred_sync::DeferredSync;
pub use format::{Epoch, KnownLog, LogEnd, PreviousSegment, SegmentHeader, SegmentId};
pub use record::{Record, RecordBuilder, RecordCells};
pub use replay::replay_bytes;
pub use spares::Spares;
pub use status::WalStatus;

use crate::sstable::VisitCell;
use crate::{Durability, Error};
use env::{Env, File, Fs, OpenMode};
pub(crate) use file_names::segment_path;
use file_names::{SpareNumber, spare_path, unfinished_path};
use format::{GROUP_HEADER_LEN, GroupHeader};
use recovery::LastSegment;
use segment::Segment;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stdx::Instant;

/// Least size of a segment, in bytes: space for its header and a small group.
pub const SEGMENT_BYTES_MIN: u64 = 1024;

/// Length of a segment without groups, in bytes.
pub(crate) const SEGMENT_LEN_MIN: u64 = format::SEGMENT_HEADER_LEN as u64;

/// Options of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalOptions {
    /// Size up to which a segment takes groups, in bytes. A longer group has a segment of its own.
    pub segment_bytes: u64,
    /// Whether a group is synced before it is acknowledged.
    pub durability: Durability,
    /// Limit of the number of spare files.
    pub spares_max: usize,
}

/// Results of [`Wal::open`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalRecovery {
    /// Segments that were read.
    pub segments: u64,
    /// Records that were replayed.
    pub records: u64,
    /// Cells in these records.
    pub cells: u64,
    /// Bytes of the segments, up to the end of the last whole group of each.
    pub bytes: u64,
    /// Bytes that were cut from the last segment: a torn group and later ones. Bytes that may be
    /// remains of an earlier use of the file are not counted.
    pub cut_bytes: u64,
    /// Whether the log ends with a closing record or an empty segment, as after a clean stop.
    pub is_closed: bool,
    /// End of the last whole group; `None` without a segment.
    pub end: Option<LogEnd>,
}

/// Callback for each replayed record.
pub type ReplayFn<'a> = &'a mut dyn FnMut(SegmentId, RecordCells<'_>) -> Result<(), Error>;

/// An open log.
pub struct Wal {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    options: WalOptions,
    spares: Arc<Spares>,
    status: Arc<WalStatus>,
    deferred_sync: Arc<DeferredSync>,
    /// Segments below this one are not needed.
    floor: SegmentId,
    /// Full segments that were not released, oldest first.
    sealed: VecDeque<SegmentId>,
    /// The segment that receives groups. `None` after a full disk prevented its creation.
    active: Option<Segment>,
    /// The state that the next segment continues.
    tail: Tail,
    /// Id of the next segment.
    next: SegmentId,
    /// A failure that forbids further writes.
    failure: Option<String>,
}

/// State of the previous segment for the header of the next.
#[derive(Clone, Copy, Default)]
struct Tail {
    link: Option<PreviousSegment>,
    last_group: Option<(Epoch, Option<GroupHeader>)>,
}

/// Checks everything that [`Wal::open`] would replay, without changes.
///
/// # Errors
/// As [`Wal::open`], for each segment.
pub fn verify(fs: &Arc<dyn Fs>, dir: &Path, known: KnownLog) -> Result<WalRecovery, Vec<Error>> {
    verify_showing(fs, dir, known, &mut |_, _| ())
}

/// As [`verify`]; also calls `show` with each key and the metadata of its cell.
///
/// # Errors
/// As [`verify`].
pub fn verify_showing(
    fs: &Arc<dyn Fs>,
    dir: &Path,
    known: KnownLog,
    show: VisitCell<'_>,
) -> Result<WalRecovery, Vec<Error>> {
    recovery::inspect(&**fs, dir, known, show)
}

/// Creates a log in `dir`, which is created and never had one. Returns its only segment, which is
/// empty. Its header and name are durable.
///
/// # Errors
/// Errors of the file system.
pub(crate) fn begin(fs: &Arc<dyn Fs>, dir: &Path) -> Result<SegmentId, Error> {
    make_dir(&**fs, dir)?;
    let id = SegmentId(0);
    let header = SegmentHeader { id, epoch: Epoch::of(id, None), previous: None, is_unsynced: false };
    let path = segment_path(dir, id);
    let file = write_header(&**fs, &path, OpenMode::CreateNew, &header)?;
    sync_header(&*file, &path)?;
    fs.sync_dir(dir).map_err(|error| Error::io("sync", dir, error))?;
    Ok(id)
}

impl Wal {
    /// Replays the segments in `dir` from the floor on, oldest first, and begins a new segment
    /// behind them. The directory is created if it does not exist. Segments below the floor are
    /// left to [`Spares::step`].
    ///
    /// On a full disk the log opens without a segment: appends are refused until there is space.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when durable data is damaged; [`Error::Lost`] when a segment is missing
    /// or the log is shorter than its known end; errors of the file system and of `replay`.
    pub fn open(
        env: &Env,
        dir: &Path,
        options: &WalOptions,
        known: KnownLog,
        replay: ReplayFn<'_>,
    ) -> Result<(Self, WalRecovery), Error> {
        let KnownLog { floor, known_end } = known;
        if options.segment_bytes < SEGMENT_BYTES_MIN {
            return Err(Error::Invalid(format!("a segment has at least {SEGMENT_BYTES_MIN} bytes")));
        }
        let fs = &env.fs;
        make_dir(&**fs, dir)?;
        let listing = recovery::list(&**fs, dir, floor)?;
        let (last, recovery) = recovery::recover(&**fs, dir, known, &listing, replay)?;
        // The names in the directory must be durable: groups may go into existing files.
        fs.sync_dir(dir).map_err(|error| Error::io("sync", dir, error))?;
        recovery::settle(&**fs, dir, &last.unsynced)?;

        let known = listing.live.iter().chain(&listing.released).max();
        let next = known.map_or(floor, |last| SegmentId(last.0 + 1).max(floor));
        let sizes = (options.segment_bytes, options.spares_max);
        let spares = Spares::new(fs.clone(), dir.to_owned(), sizes, listing.spares);
        spares.release(listing.released);
        let status = Arc::new(WalStatus::new(env.clock.clone()));
        if let (None, Some(end)) = (&last.segment, known_end) {
            // Power loss took all segments that were not released; nothing in them was durable.
            status.set_durable_end(end);
        }
        let deferred_sync = DeferredSync::new(fs.clone(), dir.to_owned(), status.clone());
        let mut wal = Self {
            fs: fs.clone(),
            dir: dir.to_owned(),
            options: *options,
            spares: Arc::new(spares),
            status,
            deferred_sync: Arc::new(deferred_sync),
            floor,
            sealed: last.live.into(),
            active: None,
            tail: Tail::default(),
            next,
            failure: None,
        };
        wal.continue_after(last.segment)?;
        Ok((wal, recovery))
    }

    /// Writes the records as one group, and under [`Durability::Sync`] makes it durable. Returns
    /// the segment of the group. Without records, writes nothing.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Exhausted`]: no record was or will be stored; the log remains
    /// usable. After any other error the fate of the records is unknown until the log is opened
    /// again, and every later append fails with [`Error::Poisoned`].
    pub fn append(&mut self, records: &[&Record]) -> Result<SegmentId, Error> {
        self.check_usable()?;
        if records.is_empty() {
            return Ok(self.segment());
        }
        let length: u64 = records.iter().map(|record| record.bytes().len() as u64).sum();
        let result = self.append_group(records, GROUP_HEADER_LEN as u64 + length);
        self.record_failure(result)
    }

    /// The newest segment: later groups go to this one or a later one. The result never decreases.
    pub fn segment(&self) -> SegmentId {
        let newest = self.active.as_ref().map(|segment| segment.id).or(self.sealed.back().copied());
        newest.unwrap_or(self.next)
    }

    /// Begins the next segment, and returns it. Later groups go to it or to one behind it.
    ///
    /// # Errors
    /// As [`Wal::append`].
    pub(crate) fn begin_next(&mut self) -> Result<SegmentId, Error> {
        self.check_usable()?;
        let begun = self.seal().and_then(|()| self.begin(0));
        self.record_failure(begun)?;
        Ok(self.segment())
    }

    /// Makes all groups durable and writes a closing record, if groups followed the last one. To be
    /// called in an idle period, and before the log is dropped.
    ///
    /// # Errors
    /// As [`Wal::append`]. With [`Error::Full`] there is no closing record, and no durable data is
    /// lost.
    pub fn idle(&mut self) -> Result<(), Error> {
        self.check_usable()?;
        let result = self.settle().and_then(|()| self.active.as_mut().map_or(Ok(()), Segment::close));
        self.record_failure(result)
    }

    /// Releases the segments below `floor`, which the caller has durably recorded as not needed.
    /// The active segment is kept. Does no I/O: [`Spares::step`] recycles or removes the files.
    ///
    /// A segment that is not durable yet is released once it is.
    pub fn release(&mut self, floor: SegmentId) {
        self.floor = self.floor.max(floor);
        let floor = self.deferred_sync.full().map_or(self.floor, |full| full.min(self.floor));
        let released = self.sealed.partition_point(|id| *id < floor);
        self.spares.release(self.sealed.drain(..released));
    }

    /// The spare files, for the worker that prepares them.
    pub fn spares(&self) -> Arc<Spares> {
        self.spares.clone()
    }

    /// The deferred sync of full segments, for the worker that runs it.
    pub fn deferred_sync(&self) -> Arc<DeferredSync> {
        self.deferred_sync.clone()
    }

    /// Status and statistics of the log, readable during writes.
    pub fn status(&self) -> Arc<WalStatus> {
        self.status.clone()
    }

    /// Begin and end of the last sync.
    pub(crate) fn last_sync(&self) -> Option<(Instant, Instant)> {
        self.status.last_sync()
    }

    fn append_group(&mut self, records: &[&Record], bytes: u64) -> Result<SegmentId, Error> {
        let segment_bytes = self.options.segment_bytes;
        if self.active.as_ref().is_some_and(|segment| !segment.has_room(bytes, segment_bytes)) {
            self.seal()?;
        }
        if self.active.is_none() {
            self.begin(bytes)?;
        }
        let segment = self.active.as_mut().expect("a segment was begun");
        segment.append(records, self.options.durability)?;
        Ok(segment.id)
    }

    /// Ends the active segment. It takes no group from here on, even if the next segment cannot be
    /// made: the header of that one, which may be on disk already, names the end of this one.
    fn seal(&mut self) -> Result<(), Error> {
        // At most one full segment is not durable.
        self.settle()?;
        if let (Some(segment), Durability::Sync) = (&mut self.active, self.options.durability) {
            segment.sync()?;
        }
        if let Some(segment) = self.active.take() {
            self.tail = Tail { link: Some(segment.link()), last_group: Some(segment.last_group()) };
            self.sealed.push_back(segment.id);
            self.status.clear_active();
            if self.options.durability == Durability::Os {
                self.deferred_sync.hand_over(segment);
            }
        }
        Ok(())
    }

    /// Settles the full segment if no worker has done so.
    fn settle(&mut self) -> Result<(), Error> {
        if self.deferred_sync.full().is_some() {
            self.deferred_sync.settle()?;
            self.release(self.floor);
        }
        Ok(())
    }

    /// Begins the next segment, for a first group of `bytes`. After a shortage the call can be
    /// repeated with the same id: if the name exists on disk already, it is replaced.
    fn begin(&mut self, bytes: u64) -> Result<(), Error> {
        let id = self.next;
        let header = SegmentHeader {
            id,
            epoch: Epoch::of(id, self.tail.last_group),
            previous: self.tail.link,
            is_unsynced: self.options.durability == Durability::Os,
        };
        let path = segment_path(&self.dir, id);
        let file = self.make_file(&header, &path, bytes)?;
        let follows_unsynced = self.deferred_sync.full().is_some();
        if !follows_unsynced {
            self.fs.sync_dir(&self.dir).map_err(|error| Error::io("sync", &self.dir, error))?;
        }
        let segment = Segment::new(header, path, file, self.status(), self.deferred_sync())?;
        if follows_unsynced {
            self.deferred_sync.set_successor(segment.as_successor());
        }
        self.active = Some(segment);
        self.next = SegmentId(id.0 + 1);
        Ok(())
    }

    /// Makes the file of a segment from a spare; from a new file when there is no spare or the
    /// group is too long for it. The header is durable, unless the previous segment is still
    /// unsynced.
    fn make_file(&self, header: &SegmentHeader, path: &Path, bytes: u64) -> Result<Arc<dyn File>, Error> {
        let fits_spare = format::SEGMENT_HEADER_LEN as u64 + bytes <= self.options.segment_bytes;
        let spare = if fits_spare { self.spares.take() } else { None };
        let (from, mode) = match spare {
            Some(number) => (spare_path(&self.dir, number), OpenMode::ReadWrite),
            None => (unfinished_path(path), OpenMode::CreateOrTruncate),
        };
        let file =
            write_header(&*self.fs, &from, mode, header).inspect_err(|_| self.discard(spare, &from))?;
        if self.deferred_sync.full().is_none() {
            sync_header(&*file, &from).inspect_err(|_| self.discard(spare, &from))?;
        }
        self.fs.rename(&from, path).map_err(|error| Error::io("rename", &from, error))?;
        Ok(file)
    }

    /// Undoes the beginning of a segment that has no name yet.
    fn discard(&self, spare: Option<SpareNumber>, unfinished: &Path) {
        match spare {
            Some(number) => self.spares.put_back(number),
            // If this fails, the next start removes the file.
            None => drop(self.fs.remove_file(unfinished)),
        }
    }

    /// Continues after the replayed segments: in the last one when it has no group, so that
    /// repeated restarts create no files; otherwise in a new one.
    fn continue_after(&mut self, last: Option<LastSegment>) -> Result<(), Error> {
        if let Some(last) = last {
            self.status.set_durable_end(LogEnd { segment: last.id, len: last.len });
            if last.has_no_group {
                self.sealed.pop_back();
                return self.reuse_empty(last);
            }
            self.tail = Tail { link: Some(last.link()), last_group: Some(last.last_group()) };
        }
        match self.begin(0) {
            Err(error) if error.is_shortage() => {
                tracing::warn!(%error, "the write-ahead log opened without a segment to write to");
                Ok(())
            }
            result => result,
        }
    }

    /// Reuses an empty last segment. It is truncated, because remains of a torn first group have
    /// the epoch of the groups to come.
    fn reuse_empty(&mut self, last: LastSegment) -> Result<(), Error> {
        let is_unsynced = self.options.durability == Durability::Os;
        let header = SegmentHeader { is_unsynced, ..last.header };
        let cut = last.file.set_len(last.len).and_then(|()| last.file.write_at(&header.encode(), 0));
        let begun = cut.and_then(|()| last.file.sync_data());
        begun.map_err(|error| Error::io("reuse", &last.path, error))?;
        let (status, deferred_sync) = (self.status(), self.deferred_sync());
        self.active = Some(Segment::new(header, last.path, last.file, status, deferred_sync)?);
        Ok(())
    }

    fn check_usable(&self) -> Result<(), Error> {
        match &self.failure {
            Some(reason) => Err(Error::Poisoned { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    fn record_failure<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &result
            && !error.is_shortage()
        {
            self.failure = Some(error.to_string());
        }
        result
    }
}

impl std::fmt::Debug for Wal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wal")
            .field("dir", &self.dir)
            .field("segment", &self.segment())
            .finish_non_exhaustive()
    }
}

fn write_header(
    fs: &dyn Fs,
    path: &Path,
    mode: OpenMode,
    header: &SegmentHeader,
) -> Result<Arc<dyn File>, Error> {
    let file = fs.open(path, mode).map_err(|error| Error::io("open", path, error))?;
    let prepared = file.len().map_err(|error| Error::io("measure", path, error))?;
    let bytes = [&header.encode()[..], segment::rest_of_page(SEGMENT_LEN_MIN, prepared)].concat();
    file.write_at(&bytes, 0).map_err(|error| Error::io("write", path, error))?;
    Ok(file)
}

fn sync_header(file: &dyn File, path: &Path) -> Result<(), Error> {
    file.sync_data().map_err(|error| Error::io("sync", path, error))
}

fn make_dir(fs: &dyn Fs, dir: &Path) -> Result<(), Error> {
    fs.create_dir_all(dir).map_err(|error| Error::io("create", dir, error))?;
    match dir.parent() {
        Some(parent) if parent != Path::new("") => {
            fs.sync_dir(parent).map_err(|error| Error::io("sync", parent, error))
        }
        _ => Ok(()),
    }
}
