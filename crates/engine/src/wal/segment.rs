//! The active segment, which receives groups.
//!
//! **Promise.** Below `position` there are only whole groups, and behind it nothing that a reader
//! would take for one. A group whose [`Segment::append`] returned is durable once `durable` has
//! reached its end.
//!
//! **Mechanism.** A failed sync may have dropped the bytes that it should have made durable: the
//! kernel marks their pages clean, and the next sync succeeds without them. So a later sync counts
//! only if all bytes between `durable` and `position` were written after the failure:
//!
//! * A group that the caller waits for is cut off, and a closing record is overwritten by the next
//!   group.
//! * Groups that were acknowledged without a sync are read back, verified and written again
//!   ([`Segment::sync`]). If their pages are gone by then, no copy is left, and the log fails with
//!   [`Error::Corrupt`].
//!
//! A write to part of a page that is not in the page cache makes the kernel read the page from the
//! device first. The pages of a prepared or recycled file are cold, and the read would delay all
//! writers. So each group is written with zeros up to the end of its last page; the next group
//! overwrites them.

use super::checksum::Digest;
use super::deferred_sync::{DeferredSync, Successor};
use super::format::{
    Epoch, GROUP_HEADER_LEN, GroupHeader, LogEnd, PreviousSegment, SEGMENT_HEADER_LEN, SegmentHeader,
    SegmentId,
};
use super::record::Record;
use super::replay::{SegmentEnd, replay_bytes};
use super::status::WalStatus;
use crate::{Durability, Error};
use env::File;
use parking_lot::Mutex;
use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;

/// Page size of the file system, in bytes. A partial overwrite reads a whole page.
const PAGE_BYTES: u64 = 4096;
static ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];

/// Without syncs, the size in bytes of the parts whose writeback starts as soon as they are full.
/// Writeback of a part that is still written to could block the writers.
const WRITEBACK_BYTES: u64 = 1 << 20;

/// Whether a failed sync may have dropped written bytes of a segment. Locked during each sync of
/// its file.
pub(super) type SyncFailureFlag = Arc<Mutex<bool>>;

pub(super) struct Segment {
    pub(super) id: SegmentId,
    header: SegmentHeader,
    path: PathBuf,
    file: Arc<dyn File>,
    status: Arc<WalStatus>,
    /// Deferred sync of the previous segment, which must be durable before the durable end counts.
    deferred_sync: Arc<DeferredSync>,
    /// Length of the prepared file that is left, in bytes: less after a truncation.
    prepared: u64,
    /// Offset of the next group.
    position: u64,
    /// Everything below this offset is durable.
    durable: u64,
    /// Applies to the bytes between `durable` and `position`.
    sync_failed: SyncFailureFlag,
    /// Writeback has started for everything below this offset.
    written_back: u64,
    last_group: Option<GroupHeader>,
    /// Whether a closing record is the last group.
    closed: bool,
}

impl Segment {
    /// A segment whose header is written and that has no group. The header and the end are durable,
    /// unless the previous segment is not settled yet.
    ///
    /// # Errors
    /// When the length of the file cannot be read.
    pub(super) fn new(
        header: SegmentHeader,
        path: PathBuf,
        file: Arc<dyn File>,
        status: Arc<WalStatus>,
        deferred_sync: Arc<DeferredSync>,
    ) -> Result<Self, Error> {
        let prepared = file.len().map_err(|error| Error::io("measure", &path, error))?;
        let position = SEGMENT_HEADER_LEN as u64;
        let segment = Self {
            id: header.id,
            header,
            path,
            file,
            status,
            deferred_sync,
            prepared,
            position,
            durable: position,
            sync_failed: SyncFailureFlag::default(),
            written_back: position,
            last_group: None,
            closed: true,
        };
        segment.publish_durable_end();
        segment.status.set_active(segment.id);
        Ok(segment)
    }

    /// The handle with which [`DeferredSync`] makes this segment's header durable, with the groups
    /// written by then.
    pub(super) fn as_successor(&self) -> Successor {
        Successor {
            header: self.header,
            path: self.path.clone(),
            file: Arc::clone(&self.file),
            sync_failed: Arc::clone(&self.sync_failed),
            is_header_doubtful: false,
        }
    }

    /// Whether a group of `bytes`, header included, and a closing record fit into `segment_bytes`.
    /// The first group always fits: a group that is too long has a segment of its own.
    pub(super) fn has_room(&self, bytes: u64, segment_bytes: u64) -> bool {
        let is_first = self.position == SEGMENT_HEADER_LEN as u64;
        is_first || self.position + bytes + GROUP_HEADER_LEN as u64 <= segment_bytes
    }

    /// Writes the records as one group.
    ///
    /// # Errors
    /// [`Error::Full`]: the group was removed without a trace. After any other error it may exist
    /// or not, and the segment must not be used again.
    pub(super) fn append(&mut self, records: &[&Record], durability: Durability) -> Result<(), Error> {
        let header = self.header_of(records);
        let before = self.position;
        let result = self.write(&header, records).and_then(|()| self.settle(durability));
        match result {
            Ok(()) => {
                self.last_group = Some(header);
                self.closed = false;
                Ok(())
            }
            Err(error) if error.is_shortage() => self.truncate_to(before).and(Err(error)),
            Err(error) => Err(error),
        }
    }

    /// Makes all groups durable and records that in a closing record, unless it is the last group
    /// already.
    pub(super) fn close(&mut self) -> Result<(), Error> {
        if self.closed {
            return Ok(());
        }
        self.sync()?;
        let header = self.header_of(&[]);
        let before = self.position;
        if let Err(error) = self.write(&header, &[]).and_then(|()| self.sync()) {
            // Remains of the closing record may stay on disk: its statement is true. The next group
            // overwrites it, so that no hole is left if the sync dropped it.
            self.position = before;
            *self.sync_failed.lock() = false;
            return Err(error);
        }
        self.last_group = Some(header);
        self.closed = true;
        Ok(())
    }

    /// Makes everything below `position` durable.
    ///
    /// # Errors
    /// [`Error::Full`]: nothing more is durable than before, and the call can be repeated. After
    /// any other error, nothing may be written any more.
    pub(super) fn sync(&mut self) -> Result<(), Error> {
        self.sync_by(|segment| segment.status.sync(&*segment.file))
    }

    /// As [`Segment::sync`], without recording its duration, as no writer waits for it.
    pub(super) fn sync_unmeasured(&mut self) -> Result<(), Error> {
        self.sync_by(|segment| segment.file.sync_data())
    }

    fn sync_by(&mut self, sync: impl FnOnce(&Self) -> io::Result<()>) -> Result<(), Error> {
        if self.durable == self.position {
            return Ok(());
        }
        let sync_failed = Arc::clone(&self.sync_failed);
        let mut has_failed = sync_failed.lock();
        if *has_failed {
            self.write_again()?;
        }
        // Until the sync has succeeded.
        *has_failed = true;
        sync(self).map_err(|error| Error::io("sync", &self.path, error))?;
        *has_failed = false;
        self.durable = self.position;
        self.publish_durable_end();
        Ok(())
    }

    /// Clears the unsynced flag in the header. The segment and its successor are durable.
    pub(super) fn clear_unsynced(&mut self) -> Result<(), Error> {
        self.header.is_unsynced = false;
        let written = self.file.write_at(&self.header.encode(), 0).and_then(|()| self.file.sync_data());
        written.map_err(|error| Error::io("settle", &self.path, error))
    }

    /// Writes the bytes again that a failed sync may have dropped, if reads still return them
    /// unchanged.
    fn write_again(&self) -> Result<(), Error> {
        let mut bytes = vec![0; self.position as usize];
        let read = self.file.read_exact_at(&mut bytes, 0);
        read.map_err(|error| Error::io("read", &self.path, error))?;
        let contents = replay_bytes(&bytes, SegmentEnd::Known(self.position)).map_err(|damage| {
            let detail = format!("{}: a failed sync dropped the bytes written here", damage.detail);
            Error::corrupt(&self.path, damage.offset, detail)
        })?;
        let written = self.file.write_at(contents.bytes_from(self.durable), self.durable);
        written.map_err(|error| Error::io("write", &self.path, error))
    }

    /// Publishes the durable end of this segment, once the previous segment is durable.
    fn publish_durable_end(&self) {
        if self.deferred_sync.full().is_none_or(|full| full == self.id) {
            self.status.set_durable_end(LogEnd { segment: self.id, len: self.durable });
        }
    }

    /// The id and length that the next segment's header names.
    ///
    /// # Panics
    /// When not all of the segment is durable, and its header does not say so.
    pub(super) fn link(&self) -> PreviousSegment {
        let is_right = self.durable == self.position || self.header.is_unsynced;
        assert!(is_right, "a segment is linked only when all of it is durable");
        PreviousSegment { id: self.id, len: self.position }
    }

    /// The state on which the next segment's epoch depends.
    pub(super) fn last_group(&self) -> (Epoch, Option<GroupHeader>) {
        (self.header.epoch, self.last_group)
    }

    fn header_of(&self, records: &[&Record]) -> GroupHeader {
        let mut digest = Digest::new();
        for record in records {
            digest.add(record.crc());
        }
        GroupHeader {
            epoch: self.header.epoch,
            records: u32::try_from(records.len()).expect("a group has fewer than 2^32 records"),
            offset: self.position,
            length: records.iter().map(|record| record.bytes().len() as u64).sum(),
            durable: self.durable,
            digest: digest.finish(),
        }
    }

    fn write(&mut self, header: &GroupHeader, records: &[&Record]) -> Result<(), Error> {
        let header_bytes = header.encode();
        let mut parts = Vec::with_capacity(records.len() + 2);
        parts.push(IoSlice::new(&header_bytes));
        parts.extend(records.iter().map(|record| IoSlice::new(record.bytes())));
        parts.push(IoSlice::new(rest_of_page(header.end(), self.prepared)));
        (self.file.write_vectored_at(&parts, self.position))
            .map_err(|error| Error::io("write", &self.path, error))?;
        self.status.wrote(header.end() - self.position);
        self.position = header.end();
        Ok(())
    }

    fn settle(&mut self, durability: Durability) -> Result<(), Error> {
        match durability {
            Durability::Sync => self.sync()?,
            Durability::Os => self.start_writeback(),
        }
        Ok(())
    }

    /// Removes a group that the full disk did not take, so that no reader finds it, even after a
    /// crash. Prepared disk space behind it is lost.
    fn truncate_to(&mut self, position: u64) -> Result<(), Error> {
        self.position = position;
        self.prepared = self.prepared.min(position);
        let sync_failed = Arc::clone(&self.sync_failed);
        let mut has_failed = sync_failed.lock();
        let undone = self.file.set_len(position).and_then(|()| {
            if *has_failed && self.durable < position {
                self.write_again().map_err(|error| match error {
                    Error::Full { .. } => io::Error::new(io::ErrorKind::StorageFull, error),
                    error => io::Error::other(error),
                })?;
            }
            self.file.sync_data()
        });
        // A full disk is not tolerated here: it is unknown whether the group will be read again.
        undone.map_err(|error| Error::Io {
            operation: "remove an unfinished group of",
            path: self.path.clone(),
            source: error.into(),
        })?;
        *has_failed = false;
        self.durable = position;
        self.publish_durable_end();
        self.written_back = self.written_back.min(position);
        Ok(())
    }

    /// Starts writeback early, which spreads the cost of the sync at the end of the segment.
    fn start_writeback(&mut self) {
        let full_to = self.position / WRITEBACK_BYTES * WRITEBACK_BYTES;
        if full_to > self.written_back {
            self.deferred_sync.wrote(&self.file, self.written_back..full_to);
            self.written_back = full_to;
        }
    }
}

/// Zeros from `end` to the end of its page, if a file of `prepared` bytes has that page.
pub(super) fn rest_of_page(end: u64, prepared: u64) -> &'static [u8] {
    let page_end = end.next_multiple_of(PAGE_BYTES).min(prepared);
    &ZEROS[..page_end.saturating_sub(end) as usize]
}
