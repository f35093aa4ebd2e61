//! Where the durable part of the log ended, noted beside the data.
//!
//! **Promise.** A data directory that comes back with less than it had is noticed at its next start: with a log that
//! was cut, also exactly at the end of a group, with a log that lacks its newest segments, or with a shard that was
//! emptied. What the mark names was durable when it was written: no crash and no loss of power makes the log shorter
//! than the mark.
//!
//! **Mechanism.** The file `log-mark` names a segment of the log and a length of it that was durable, and the tag of the
//! node whose log that is. It is first written when a shard was made, before anything in it is acknowledged, so it also
//! says that a shard with content exists. The host has it written at most once a second while the durable end
//! moves ([`Store::note_log_end`](crate::Store::note_log_end)), never by the thread that commits, and after a clean stop
//! it is exact. A start passes the mark to the engine, which refuses a log that ends before it. A mark of
//! another tag than that of the identity says nothing about the present shard: it is left from one that was set aside or
//! lost. In a cluster it says that the node stands for a lost one, until the record of the node says so.
//!
//! The identity says whether there is a mark (`Identity::has_log_mark`), so that a missing mark is noticed like missing
//! data (see `lost`). The order at a first start is: identity without a mark, shard, mark, identity with a mark. Only then
//! is anything acknowledged. An identity of version 1 is that of an older release, which may have kept no mark: such a
//! directory is opened without this check, and is given both.
//!
//! An operator who accepts the loss of the end of the log writes the word `unknown` into the file. That holds for one
//! start, which replaces the file.
//!
//! **Caveats.** A cut that takes no more than was written after the mark, about the last second under load, looks like
//! the end that a crash leaves. Under `Durability::Os` only what was synced is marked.

use crate::error::StoreError;
use crate::sealed::{self, field, number};
use engine::{LogEnd, SegmentId};
use env::Fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use stdx::NodeTag;

const FILE: &str = "log-mark";
const HEADER: &str = "veche-log-mark 1";
/// What an operator writes into the file who accepts that the end of the log may be missing.
pub(crate) const UNKNOWN: &str = "unknown";

/// What a directory says of the end of its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// There is no file.
    Nothing,
    /// An operator has accepted that the end of the log may be missing.
    Unknown,
    /// A node has noted it.
    Marked(Marked),
}

impl Found {
    /// What a node has noted.
    pub(crate) fn marked(self) -> Option<Marked> {
        match self {
            Self::Marked(marked) => Some(marked),
            Self::Nothing | Self::Unknown => None,
        }
    }
}

/// What a node has noted in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marked {
    /// Whose log it is.
    pub(crate) tag: NodeTag,
    /// An end that the log has had.
    pub(crate) end: LogEnd,
}

/// The path of the mark of the data directory `dir`.
pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

/// What `dir` says of the end of its log.
pub(crate) fn find(fs: &dyn Fs, dir: &Path) -> Result<Found, StoreError> {
    let path = path(dir);
    if !fs.exists(&path).map_err(StoreError::io("look for", &path))? {
        return Ok(Found::Nothing);
    }
    let bytes = sealed::read(fs, &path)?;
    if bytes.trim_ascii() == UNKNOWN.as_bytes() {
        return Ok(Found::Unknown);
    }
    decode(&bytes).map(Found::Marked).map_err(|detail| StoreError::LogMarkCorrupt { path, detail })
}

/// Notes that `dir` had the log of the node `tag`, of which nothing is left: a node with another tag stands for a lost one.
pub(crate) fn note_lost(fs: &dyn Fs, dir: &Path, tag: NodeTag) -> Result<Marked, StoreError> {
    let marked = Marked { tag, end: LogEnd { segment: SegmentId(0), len: 0 } };
    sealed::replace(fs, dir, FILE, &text(marked))?;
    Ok(marked)
}

/// Takes the mark away from `dir`, durably: nothing is known of the log any more.
pub(crate) fn remove(fs: &dyn Fs, dir: &Path) -> Result<(), StoreError> {
    let path = path(dir);
    if fs.exists(&path).map_err(StoreError::io("look for", &path))? {
        fs.remove_file(&path).map_err(StoreError::io("remove", &path))?;
        fs.sync_dir(dir).map_err(StoreError::io("sync", dir))?;
    }
    Ok(())
}

/// Keeps the mark of one directory.
pub(crate) struct LogMark {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    tag: NodeTag,
    /// What the file says, as far as this process knows. Held through the writing of the file.
    noted: Mutex<Option<LogEnd>>,
}

impl LogMark {
    /// The mark of `dir`, which belongs to the node `tag` and says `noted`.
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

    /// Whether the file says `end`. Does no I/O, but waits while the file is written.
    pub(crate) fn is_at(&self, end: LogEnd) -> bool {
        *self.noted.lock().unwrap_or_else(PoisonError::into_inner) == Some(end)
    }

    /// Whether there is a mark.
    pub(crate) fn is_noted(&self) -> bool {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Makes durable that the log was durable up to the end that `durable_end` returns.
    pub(crate) fn note(&self, durable_end: impl FnOnce() -> Option<LogEnd>) -> Result<(), StoreError> {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock, so that no older end replaces a newer one.
        let Some(end) = durable_end() else { return Ok(()) };
        if *noted != Some(end) {
            let marked = Marked { tag: self.tag, end };
            sealed::replace(&*self.fs, &self.dir, FILE, &text(marked))?;
            *noted = Some(end);
        }
        Ok(())
    }
}

fn text(marked: Marked) -> String {
    let Marked { tag, end } = marked;
    format!("{HEADER}\ntag {:016x}\nsegment {:016x}\nbytes {}\n", tag.0, end.segment.0, end.len)
}

fn decode(bytes: &[u8]) -> Result<Marked, String> {
    let mut lines = sealed::unseal(bytes, HEADER)?.lines();
    let mut hexadecimal = |name: &str| {
        let digits = field(lines.next(), name)?;
        u64::from_str_radix(digits, 16).map_err(|_| format!("{digits:?} is not a number of {name:?}"))
    };
    let (tag, segment) = (NodeTag(hexadecimal("tag")?), SegmentId(hexadecimal("segment")?));
    let len = number(lines.next(), "bytes")?;
    Ok(Marked { tag, end: LogEnd { segment, len } })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKED: Marked = Marked {
        tag: NodeTag(0x0123_4567_89ab_cdef),
        end: LogEnd { segment: SegmentId(0x2a), len: 1_234_567 },
    };

    /// Nodes of the first release that had marks wrote these bytes; every later release must read them.
    #[test]
    fn the_file_is_what_it_was() {
        let bytes = "veche-log-mark 1\ntag 0123456789abcdef\nsegment 000000000000002a\nbytes 1234567\n\
                     crc32c 32c51ba2\n";
        assert_eq!(String::from_utf8_lossy(&sealed::seal(&text(MARKED))), bytes);
        assert_eq!(decode(bytes.as_bytes()), Ok(MARKED));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        sealed::assert_finds_damage(&sealed::seal(&text(MARKED)), decode);
    }
}
