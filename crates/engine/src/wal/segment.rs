//! The segment that takes groups.
//!
//! **Promise.** Below `position` lie whole groups, and nothing else that a reader would take for one lies
//! behind it. What [`Segment::append`] returned for is durable when `durable` has reached its end.
//!
//! **Mechanism.** A sync that fails may have dropped the bytes that it should have made durable: the kernel takes their
//! pages for clean, and the next sync succeeds without them. So a later sync is believed only when all bytes between
//! `durable` and `position` were written after the failure:
//!
//! * a group that the caller waits for is cut off, and a closing record is written over by the next group;
//! * groups that were acknowledged without a sync are read back and checked, and written again ([`Segment::sync`]).
//!   Where their pages are gone by then, no copy is left, and the log ends with [`Error::Corrupt`].
//!
//! A write into a part of a page that is not in the page cache makes the kernel read the page from the device first. The
//! pages of a prepared or reused file are cold, and the read would hold up all writers. So each group is written with zeros
//! behind it up to the end of its last page; the next group is written over them.

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

/// Size of the pages in which a file system reads what is overwritten in part, in bytes.
const PAGE_BYTES: u64 = 4096;
static ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];

/// Without syncs, the device is asked to begin writing each part of the file of this size, in bytes, once it is full. A
/// part that is written to meanwhile could keep the writers waiting.
const WRITEBACK_BYTES: u64 = 1 << 20;

/// Whether a failed sync may have dropped bytes of a segment that count as written. Locked through each sync of its file.
pub(super) type SyncFailureFlag = Arc<Mutex<bool>>;

pub(super) struct Segment {
    pub(super) id: SegmentId,
    header: SegmentHeader,
    path: PathBuf,
    file: Arc<dyn File>,
    status: Arc<WalStatus>,
    /// What settles the segment before this one, which this one's durable end says nothing of.
    deferred_sync: Arc<DeferredSync>,
    /// Length of the file when it became this segment, or of what was left of it since, in bytes.
    prepared: u64,
    /// Where the next group goes.
    position: u64,
    /// Everything below is durable.
    durable: u64,
    /// Of the bytes between `durable` and `position`.
    sync_failed: SyncFailureFlag,
    /// Writing of everything below was asked for.
    written_back: u64,
    last_group: Option<GroupHeader>,
    /// Whether nothing came since the last closing record.
    closed: bool,
}

impl Segment {
    /// A segment whose header is written and behind which no group lies. Both are durable unless the segment before it is
    /// still to be settled.
    ///
    /// # Errors
    /// When the file cannot be measured.
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

    /// What makes the header of this segment durable, and what is written behind it by then.
    pub(super) fn as_successor(&self) -> Successor {
        Successor {
            header: self.header,
            path: self.path.clone(),
            file: Arc::clone(&self.file),
            sync_failed: Arc::clone(&self.sync_failed),
            is_header_doubtful: false,
        }
    }

    /// Whether a group of `bytes`, header included, and a closing record behind it stay within
    /// `segment_bytes`. The first group always fits: one that is too long has a segment of its own.
    pub(super) fn has_room(&self, bytes: u64, segment_bytes: u64) -> bool {
        let is_first = self.position == SEGMENT_HEADER_LEN as u64;
        is_first || self.position + bytes + GROUP_HEADER_LEN as u64 <= segment_bytes
    }

    /// Writes the records as one group.
    ///
    /// # Errors
    /// [`Error::Full`]: the group is gone, as if it had never come. After any other error it may be there or
    /// not, and the segment must not be used again.
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

    /// Makes all groups durable and says so in a closing record, unless one is there already.
    pub(super) fn close(&mut self) -> Result<(), Error> {
        if self.closed {
            return Ok(());
        }
        self.sync()?;
        let header = self.header_of(&[]);
        let before = self.position;
        if let Err(error) = self.write(&header, &[]).and_then(|()| self.sync()) {
            // What is on the disk of the closing record may stay: it says what is true. The next group is written over
            // it, so that no hole is left where the sync dropped it.
            self.position = before;
            *self.sync_failed.lock() = false;
            return Err(error);
        }
        self.last_group = Some(header);
        self.closed = true;
        Ok(())
    }

    /// Makes everything below the position durable.
    ///
    /// # Errors
    /// [`Error::Full`]: nothing more is durable than before, and it can be tried again. After any other error, nothing may
    /// be written any more.
    pub(super) fn sync(&mut self) -> Result<(), Error> {
        self.sync_by(|segment| segment.status.sync(&*segment.file))
    }

    /// As [`Segment::sync`], away from the writers: the time of it is nobody's.
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
        // Until it has succeeded.
        *has_failed = true;
        sync(self).map_err(|error| Error::io("sync", &self.path, error))?;
        *has_failed = false;
        self.durable = self.position;
        self.publish_durable_end();
        Ok(())
    }

    /// The segment and its successor are durable: recovery takes nothing for lost any more.
    pub(super) fn clear_unsynced(&mut self) -> Result<(), Error> {
        self.header.is_unsynced = false;
        let written = self.file.write_at(&self.header.encode(), 0).and_then(|()| self.file.sync_data());
        written.map_err(|error| Error::io("settle", &self.path, error))
    }

    /// Writes the bytes that may have been dropped again, as reads show them, if they still are what was written.
    fn write_again(&self) -> Result<(), Error> {
        let mut bytes = vec![0; self.position as usize];
        let read = self.file.read_exact_at(&mut bytes, 0);
        read.map_err(|error| Error::io("read", &self.path, error))?;
        let contents = replay_bytes(&bytes, SegmentEnd::Known(self.position)).map_err(|damage| {
            let detail = format!("{}: a failed sync dropped what was written here", damage.detail);
            Error::corrupt(&self.path, damage.offset, detail)
        })?;
        let written = self.file.write_at(contents.bytes_from(self.durable), self.durable);
        written.map_err(|error| Error::io("write", &self.path, error))
    }

    /// What is durable of a segment counts once all before it is durable.
    fn publish_durable_end(&self) {
        if self.deferred_sync.full().is_none_or(|full| full == self.id) {
            self.status.set_durable_end(LogEnd { segment: self.id, len: self.durable });
        }
    }

    /// What a next segment has to say of this one.
    ///
    /// # Panics
    /// When not all of it is durable, and the header does not say that.
    pub(super) fn link(&self) -> PreviousSegment {
        let is_right = self.durable == self.position || self.header.is_unsynced;
        assert!(is_right, "a segment is linked to when all of it is durable");
        PreviousSegment { id: self.id, len: self.position }
    }

    /// What the next segment's epoch depends on.
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

    /// Makes sure that no reader finds the group that a full disk did not take, also after a crash. What is
    /// cut off needs no room; the room that was prepared there is lost.
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
        // Here a full disk is no excuse: whether the group will be read again is unknown.
        undone.map_err(|error| Error::Io {
            operation: "take back an unfinished group of",
            path: self.path.clone(),
            source: error.into(),
        })?;
        *has_failed = false;
        self.durable = position;
        self.publish_durable_end();
        self.written_back = self.written_back.min(position);
        Ok(())
    }

    /// Spreads the cost of the sync at the end of the segment.
    fn start_writeback(&mut self) {
        let full_to = self.position / WRITEBACK_BYTES * WRITEBACK_BYTES;
        if full_to > self.written_back {
            self.deferred_sync.wrote(&self.file, self.written_back..full_to);
            self.written_back = full_to;
        }
    }
}

/// Zeros from `end` to the end of its page, as far as a file of `prepared` bytes has that page.
pub(super) fn rest_of_page(end: u64, prepared: u64) -> &'static [u8] {
    let page_end = end.next_multiple_of(PAGE_BYTES).min(prepared);
    &ZEROS[..page_end.saturating_sub(end) as usize]
}
