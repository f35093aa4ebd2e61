//! A data directory that has come back with less than it had.
//!
//! **Promise.** A node never answers from such a directory as if nothing had happened. In a cluster the node begins like
//! one that lost its disk: under a new identity, so that its peers notice, and rebuilding, so that its answers to reads
//! do not count before it was filled from them. A node on its own has no other copy: it refuses to start, and
//! says what is missing and what can be done.
//!
//! **Mechanism.** A directory has lost data when the log mark of its own identity (see `log_mark`) does not fit the shard:
//! the shard is missing or holds no data, or its log ends before the mark. The same is true when the identity says that
//! there is a mark and there is none: nothing then tells what else is missing. It also has lost data when the engine misses a file
//! that another one names: the manifest, a live table, a segment of the log ([`engine::Error::Lost`]). In a
//! cluster what is left is set aside like the data of a node that was away for too long (see `alive`): it is evidence, and
//! may hold the only copy of a key. It is not used as a head start, because nothing tells how old a delete was
//! that only the lost part of the log held, and the peers may have dropped that delete.
//!
//! **A crash on the way.** The old mark stays until the record of the new identity says "rebuilding". A start that finds
//! a mark of another identity than its own and no record therefore begins as rebuilding as well. Where the mark itself
//! is missing, one of the old identity is written after the shard was set aside.
//!
//! **Caveats.** Bytes that changed in place are damage and not a loss: tables heal, a damaged manifest or log is
//! refused with the place of the damage. A manifest that was cut exactly at the end of an edit is only noticed by
//! the segments of the log that its older floor asks for.

use crate::alive::Alive;
use crate::directory::SHARD;
use crate::error::StoreError;
use crate::identity::Identity;
use crate::log_mark::{self, Found, Marked};
use env::Fs;
use std::path::{Path, PathBuf};
use stdx::{NodeTag, WallTime};

/// What is seen to be missing before the shard is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The shard, or all data in it.
    Data,
    /// The mark of the log.
    Mark,
}

impl Missing {
    /// What a directory of this identity lacks that says `found` of its log.
    pub(crate) fn of(identity: &Identity, holds_data: bool, found: Found) -> Option<Self> {
        let has_own_mark = found.marked().is_some_and(|marked| marked.tag == identity.tag);
        match (holds_data, identity.has_log_mark) {
            (false, true) => Some(Self::Data),
            (false, false) => has_own_mark.then_some(Self::Data),
            (true, true) => (!has_own_mark && found != Found::Unknown).then_some(Self::Mark),
            (true, false) => None,
        }
    }

    /// The end of a sentence about the data directory `data`.
    pub(crate) fn sentence(self, data: &Path) -> String {
        match self {
            Self::Data => format!("{} is missing or holds no data, and it did", data.join(SHARD).display()),
            Self::Mark => format!(
                "{} is missing or belongs to another node, so that a log that was cut would not be noticed",
                stdx::shell_path(&log_mark::path(data))
            ),
        }
    }

    /// The refusal of a node on its own.
    pub(crate) fn refuse(self, data: &Path) -> StoreError {
        let way_on = match self {
            Self::Data => way_to_start_empty(data),
            Self::Mark => way_to_go_on(data),
        };
        StoreError::DataLost { path: data.to_owned(), detail: self.sentence(data), way_on }
    }
}

/// Sets the shard of `data` aside, if it is there, because of what is `missing`: it belongs to the node `tag`. Returns
/// where it is kept.
pub(crate) fn set_aside(
    (fs, data): (&dyn Fs, &Path),
    alive: &Alive,
    (tag, now): (NodeTag, WallTime),
    missing: &str,
) -> Result<Option<PathBuf>, StoreError> {
    let shard = data.join(SHARD);
    let is_there = fs.exists(&shard).map_err(StoreError::io("look for", &shard))?;
    let stale = is_there.then(|| alive.set_aside(tag, now)).transpose()?;
    let kept_as = stale.as_ref().map_or_else(|| "nothing".to_owned(), |stale| stale.display().to_string());
    tracing::error!(
        missing,
        %kept_as,
        "the data directory has less than it had: the node begins as one that lost its disk, and is filled from its \
         peers; remove what is kept when it is not needed any more"
    );
    Ok(stale)
}

/// The refusal of a node on its own in which the engine misses something. `marked`: what the engine was told of the log.
pub(crate) fn refuse(data: &Path, missing: &engine::Error, marked: Option<Marked>) -> StoreError {
    let is_by_mark = |marked: Marked| match missing {
        engine::Error::Lost { path, .. } => path.ends_with(format!("{:016x}.wal", marked.end.segment.0)),
        _ => false,
    };
    let way_on = match marked {
        Some(marked) if is_by_mark(marked) => way_to_go_on(data),
        _ => way_to_start_empty(data),
    };
    StoreError::DataLost { path: data.to_owned(), detail: missing.to_string(), way_on }
}

fn way_to_go_on(data: &Path) -> String {
    format!(
        "to go on with what is left, without acknowledged writes that are lost: echo {} > {}",
        log_mark::UNKNOWN,
        log_mark::path(data).display()
    )
}

fn way_to_start_empty(data: &Path) -> String {
    format!("to start empty, move {} away", data.display())
}
