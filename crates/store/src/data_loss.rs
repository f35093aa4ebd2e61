//! Detection and handling of a data directory that has lost data.
//!
//! **Promise.** A node never answers from such a directory as if nothing had happened. In a cluster
//! it begins like a node that lost its disk. It has a new identity, so that its peers notice, and
//! it is rebuilding, so that its answers to reads do not count before it is filled from them. A
//! standalone node has no other copy: it refuses to start, and reports the missing part and the
//! possible actions.
//!
//! **Mechanism.** A directory has lost data if the log mark of its own identity (see `log_mark`)
//! does not match the shard: the shard is missing or holds no data, or its log ends before the
//! mark. The same holds if the identity says that there is a mark and there is none, because
//! nothing then shows what else is missing. It also has lost data if the engine misses a file that
//! another file refers to: the manifest, a live table, a segment of the log
//! ([`engine::Error::Lost`]). In a cluster the rest is renamed like the data of a node that was
//! absent for too long (see `alive_mark`): it is evidence, and may hold the only copy of a key. It
//! is not reused, because nothing shows the age of deletes that only the lost part of the log held,
//! and the peers may have dropped those.
//!
//! **Crashes.** The old mark stays until the record of the new identity says "rebuilding". So a
//! start that finds a mark of another identity and no record also begins as rebuilding. If the mark
//! itself is missing, one of the old identity is written after the shard was renamed.
//!
//! **Caveats.** Bytes that changed in place are damage, not loss: tables heal, and a damaged
//! manifest or log is refused with the location of the damage. A manifest that was truncated
//! exactly at the end of an edit is detected only through the segments of the log that its older
//! floor requires.

use crate::alive_mark::AliveMark;
use crate::directory::SHARD;
use crate::error::StoreError;
use crate::identity::Identity;
use crate::log_mark::{self, LogEndMark, MarkState};
use env::Fs;
use std::path::{Path, PathBuf};
use stdx::{NodeTag, WallTime};

/// Part of a directory that is known to be missing before the shard is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissingPart {
    /// The shard, or all data in it.
    Data,
    /// The log mark.
    Mark,
}

impl MissingPart {
    /// The missing part of a directory with this identity, if any. `found` is the state of its log
    /// mark.
    pub(crate) fn of(identity: &Identity, holds_data: bool, found: MarkState) -> Option<Self> {
        let has_own_mark = found.mark().is_some_and(|marked| marked.tag == identity.tag);
        match (holds_data, identity.has_log_mark) {
            (false, true) => Some(Self::Data),
            (false, false) => has_own_mark.then_some(Self::Data),
            (true, true) => (!has_own_mark && found != MarkState::Unknown).then_some(Self::Mark),
            (true, false) => None,
        }
    }

    /// Description of the missing part, as the end of a sentence about the data directory `data`.
    pub(crate) fn sentence(self, data: &Path) -> String {
        match self {
            Self::Data => format!("{} is missing or holds no data, and it did", data.join(SHARD).display()),
            Self::Mark => format!(
                "{} is missing or belongs to another node, so that a log that was cut would not be noticed",
                stdx::shell_path(&log_mark::path(data))
            ),
        }
    }

    /// The error with which a standalone node refuses to start.
    pub(crate) fn refusal(self, data: &Path) -> StoreError {
        let advice = match self {
            Self::Data => advice_to_start_empty(data),
            Self::Mark => advice_to_accept_loss(data),
        };
        StoreError::DataLost { path: data.to_owned(), detail: self.sentence(data), advice }
    }
}

/// Renames the shard of `data`, if it exists, because of the `missing` part. The shard belongs to
/// the node `tag`. Returns its new path.
pub(crate) fn set_shard_aside(
    (fs, data): (&dyn Fs, &Path),
    alive: &AliveMark,
    (tag, now): (NodeTag, WallTime),
    missing: &str,
) -> Result<Option<PathBuf>, StoreError> {
    let shard = data.join(SHARD);
    let is_there = fs.exists(&shard).map_err(StoreError::io("look for", &shard))?;
    let stale = is_there.then(|| alive.rename_shard(tag, now)).transpose()?;
    let kept_as = stale.as_ref().map_or_else(|| "nothing".to_owned(), |stale| stale.display().to_string());
    tracing::error!(
        missing,
        %kept_as,
        "the data directory has less than it had: the node begins as one that lost its disk, and is filled from its \
         peers; remove what is kept when it is not needed any more"
    );
    Ok(stale)
}

/// The error with which a standalone node refuses to start if the engine misses a file. `marked` is
/// the log mark that the engine received.
pub(crate) fn refusal(data: &Path, missing: &engine::Error, marked: Option<LogEndMark>) -> StoreError {
    let is_by_mark = |marked: LogEndMark| match missing {
        engine::Error::Lost { path, .. } => path.ends_with(format!("{:016x}.wal", marked.end.segment.0)),
        _ => false,
    };
    let advice = match marked {
        Some(marked) if is_by_mark(marked) => advice_to_accept_loss(data),
        _ => advice_to_start_empty(data),
    };
    StoreError::DataLost { path: data.to_owned(), detail: missing.to_string(), advice }
}

fn advice_to_accept_loss(data: &Path) -> String {
    format!(
        "to go on with what is left, without acknowledged writes that are lost: echo {} > {}",
        log_mark::UNKNOWN,
        log_mark::path(data).display()
    )
}

fn advice_to_start_empty(data: &Path) -> String {
    format!("to start empty, move {} away", data.display())
}
