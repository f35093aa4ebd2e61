//! The log mark: a record beside the data of where the durable part of the log ends.
//!
//! **Promise.** A start detects a data directory that has lost data: a truncated log, even exactly
//! at the end of a group, a log without its newest segments, or an emptied shard. The position in
//! the mark was durable when the mark was written, so no crash and no loss of power makes the log
//! shorter than the mark.
//!
//! **Mechanism.** The file `log-mark` contains a segment of the log, a length of it that was
//! durable, and the tag of the node that owns the log. It is first written when a shard was
//! created, before anything in it is acknowledged. So it also shows that a shard with content
//! exists. The host rewrites it at most once a second while the durable end moves
//! ([`Store::note_log_end`](crate::Store::note_log_end)), never on the commit thread. After a clean
//! stop it is exact. A start passes the mark to the engine, which refuses a log that ends before
//! it. A mark whose tag differs from the identity's says nothing about the present shard: it
//! belongs to a shard that was renamed or lost. In a cluster it shows that the node replaces a lost
//! one, until the node record says so.
//!
//! The identity records whether there is a mark (`Identity::has_log_mark`), so that a missing mark
//! is detected like missing data (see `data_loss`). The order at a first start is: identity without
//! a mark, shard, mark, identity with a mark. Only then is anything acknowledged. An identity of
//! version 1 was written by an older release, which may have kept no mark. Such a directory is
//! opened without this check and receives both.
//!
//! An operator who accepts the loss of the end of the log writes the word `unknown` into the file.
//! That is valid for one start, which replaces the file.
//!
//! **Caveats.** A truncation that removes only bytes written after the mark, about the last second
//! under load, looks like the end that a crash leaves. Under `Durability::Os` only synced data is
//! marked.

use crate::error::StoreError;
use crate::sealed::{self, field, number};
use engine::{LogEnd, SegmentId};
use env::Fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use stdx::NodeTag;

const FILE: &str = "log-mark";
const HEADER: &str = "veche-log-mark 1";
/// Content of the file by which an operator accepts that the end of the log may be missing.
pub(crate) const UNKNOWN: &str = "unknown";

/// State of the log mark of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkState {
    /// The file does not exist.
    Absent,
    /// An operator has accepted that the end of the log may be missing.
    Unknown,
    /// A node has written a position.
    Marked(LogEndMark),
}

impl MarkState {
    /// The position that a node has written.
    pub(crate) fn mark(self) -> Option<LogEndMark> {
        match self {
            Self::Marked(marked) => Some(marked),
            Self::Absent | Self::Unknown => None,
        }
    }
}

/// A durable position of the log, with the owner of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogEndMark {
    /// Tag of the node that owns the log.
    pub(crate) tag: NodeTag,
    /// A position up to which the log was durable.
    pub(crate) end: LogEnd,
}

/// Path of the mark of the data directory `dir`.
pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

/// Reads the log mark of `dir`.
pub(crate) fn find(fs: &dyn Fs, dir: &Path) -> Result<MarkState, StoreError> {
    let path = path(dir);
    if !fs.exists(&path).map_err(StoreError::io("look for", &path))? {
        return Ok(MarkState::Absent);
    }
    let bytes = sealed::read(fs, &path)?;
    if bytes.trim_ascii() == UNKNOWN.as_bytes() {
        return Ok(MarkState::Unknown);
    }
    decode(&bytes).map(MarkState::Marked).map_err(|detail| StoreError::LogMarkCorrupt { path, detail })
}

/// Records that `dir` held the log of the node `tag`, which is lost: a node with another tag
/// replaces a lost one.
pub(crate) fn note_lost(fs: &dyn Fs, dir: &Path, tag: NodeTag) -> Result<LogEndMark, StoreError> {
    let marked = LogEndMark { tag, end: LogEnd { segment: SegmentId(0), len: 0 } };
    sealed::replace(fs, dir, FILE, &text(marked))?;
    Ok(marked)
}

/// Removes the mark from `dir` durably: nothing is known about the log any more.
pub(crate) fn remove(fs: &dyn Fs, dir: &Path) -> Result<(), StoreError> {
    let path = path(dir);
    if fs.exists(&path).map_err(StoreError::io("look for", &path))? {
        fs.remove_file(&path).map_err(StoreError::io("remove", &path))?;
        fs.sync_dir(dir).map_err(StoreError::io("sync", dir))?;
    }
    Ok(())
}

/// Writer of the mark of one directory.
pub(crate) struct LogMark {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    tag: NodeTag,
    /// Content of the file as far as this process knows. The lock is held while the file is
    /// written.
    noted: Mutex<Option<LogEnd>>,
}

impl LogMark {
    /// Returns the writer of the mark of `dir`, which belongs to the node `tag` and contains
    /// `noted`.
    pub(crate) fn new(fs: Arc<dyn Fs>, dir: &Path, tag: NodeTag, noted: Option<LogEnd>) -> Self {
        Self { fs, dir: dir.to_owned(), tag, noted: Mutex::new(noted) }
    }

    /// The file system of the directory.
    pub(crate) fn fs(&self) -> &Arc<dyn Fs> {
        &self.fs
    }

    /// The data directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether the file contains `end`. Does no I/O, but waits while the file is written.
    pub(crate) fn is_at(&self, end: LogEnd) -> bool {
        *self.noted.lock().unwrap_or_else(PoisonError::into_inner) == Some(end)
    }

    /// Whether the file contains a position.
    pub(crate) fn is_noted(&self) -> bool {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Records durably that the log was durable up to the result of `durable_end`.
    pub(crate) fn note(&self, durable_end: impl FnOnce() -> Option<LogEnd>) -> Result<(), StoreError> {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        // Evaluated under the lock, so that no older end replaces a newer one.
        let Some(end) = durable_end() else { return Ok(()) };
        if *noted != Some(end) {
            let marked = LogEndMark { tag: self.tag, end };
            sealed::replace(&*self.fs, &self.dir, FILE, &text(marked))?;
            *noted = Some(end);
        }
        Ok(())
    }
}

fn text(marked: LogEndMark) -> String {
    let LogEndMark { tag, end } = marked;
    format!("{HEADER}\ntag {:016x}\nsegment {:016x}\nbytes {}\n", tag.0, end.segment.0, end.len)
}

fn decode(bytes: &[u8]) -> Result<LogEndMark, String> {
    let mut lines = sealed::unseal(bytes, HEADER)?.lines();
    let mut hexadecimal = |name: &str| {
        let digits = field(lines.next(), name)?;
        u64::from_str_radix(digits, 16).map_err(|_| format!("{digits:?} is not a number of {name:?}"))
    };
    let (tag, segment) = (NodeTag(hexadecimal("tag")?), SegmentId(hexadecimal("segment")?));
    let len = number(lines.next(), "bytes")?;
    Ok(LogEndMark { tag, end: LogEnd { segment, len } })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKED: LogEndMark = LogEndMark {
        tag: NodeTag(0x0123_4567_89ab_cdef),
        end: LogEnd { segment: SegmentId(0x2a), len: 1_234_567 },
    };

    /// The first release with marks wrote these bytes. Every later release must read them.
    #[test]
    fn the_file_format_is_stable() {
        let bytes = "veche-log-mark 1\ntag 0123456789abcdef\nsegment 000000000000002a\nbytes 1234567\n\
                     crc32c 32c51ba2\n";
        assert_eq!(String::from_utf8_lossy(&sealed::seal(&text(MARKED))), bytes);
        assert_eq!(decode(bytes.as_bytes()), Ok(MARKED));
    }

    #[test]
    fn every_flipped_bit_and_truncation_is_detected() {
        sealed::assert_finds_damage(&sealed::seal(&text(MARKED)), decode);
    }
}
