//! The alive mark: the time up to which the node has heard of all deletes, and the handling of data
//! for which that is too long ago.
//!
//! **Promise.** A node with peers that has not heard of their deletes for longer than tombstones
//! are kept does not return with its data unconditionally. The peers may have dropped deletes that
//! it never heard of, and it would restore the deleted values. It refuses to start until an
//! operator states what happened meanwhile ([`AfterAbsence`](crate::AfterAbsence)). Absences add up
//! unless the node caught up in between.
//!
//! **Mechanism.** The file `alive` holds a time: the node has heard of all deletes before it. The
//! host advances it every few minutes ([`AliveMark::advance`]) to a time that the peers' clocks
//! support (`cluster::Node::heard_to`). Opening the directory does not advance it. It moves back
//! only if it is far past the time that the clocks of a majority support ([`AliveMark::limit`]):
//! then a wrong clock wrote it, and it would hide an absence. The node record determines whether it
//! may advance:
//!
//! * A node that is not settled lacks the data that it is being filled with. The time stays; for a
//!   copy, it is the one in the copy.
//! * An absence of at most [`RESTART_MAX`] counts as a restart. It is measured from the time in the
//!   file, not from the last stop. Hints deliver all missed writes before the node is ready. The
//!   time advances at once, even if repairs are pending. A hint that the node drops for an absent
//!   peer is a gap of that peer and not its own, so an absent peer never delays a healthy node.
//! * Any other node has a durable pending repair with its peers from its start on, and is *behind*
//!   until it has exchanged all data with them. One unreachable peer is not waited for if there are
//!   others. That peer missed the deletes, so a majority of the other replicas holds each
//!   acknowledged delete; of two such replicas out of three, the node needs one. A node that was
//!   filled after the loss of its data has that pending repair, too.
//!
//! A process that was stopped, or whose machine was suspended, was absent without a start: see
//! `pause`. After a pause of more than [`RESTART_MAX`] it is behind in the same way when it
//! continues, and has the same pending repair.
//!
//! The file is written before there is data. If it is missing beside data, an operator removed it
//! or left it out of a copy, and the length of the absence is unknown; it does not count as zero.
//! The node refuses to start until the operator decides, and if the data is kept, it has a pending
//! repair with its peers.
//!
//! So a node that starts after eight days, stops a minute later and starts again eight days later
//! was absent for sixteen days.
//!
//! If the data must not be used, the shard is renamed to `stale-...`, durably, before anything else
//! is changed. An identity without data is left. A new one replaces it, so that peers notice. As
//! long as there is a `stale-...` and no record was stored since, the node counts as rebuilding and
//! not as a node of a new cluster. Otherwise nodes that all renamed their data could agree that the
//! cluster is empty.
//!
//! **Caveats.**
//! * A renamed shard is kept until the operator removes it. It can be renamed back to `shard-000`.
//! * If the wall clock is far ahead when a node starts, the node refuses to start unnecessarily;
//!   the error asks the operator to check the clock. If it is far ahead when the directory is
//!   created, it hides absences until the node has compared itself with its peers for a few
//!   minutes.
//! * A node that runs but is cut off from all others counts as one that hears them. After a
//!   restart, hints of an unreachable peer are not waited for. The regular passes of anti-entropy
//!   deliver both, long before the grace period ends if the nodes reconnect in time.
//! * A delete of a key with five or more replicas may be known only to the one peer that was not
//!   waited for and to others that were not asked. The next passes find it.

use crate::directory::SHARD;
use crate::error::StoreError;
use crate::sealed::{self, number};
use cluster::{NodeRecord, NodeSet, SyncState};
use env::Fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use stdx::{NodeTag, WallTime};

/// Default of the absence after which a node does not return with its data: the grace period of
/// tombstones less one day, in which it hears of the deletes that it missed.
pub const AWAY_MAX_DEFAULT: Duration = Duration::from_secs(9 * 24 * 3600);

/// Maximum absence that counts as a restart: hints deliver all missed writes. Far less than the
/// retention of hints, and than the difference between the grace period of tombstones and
/// [`AWAY_MAX_DEFAULT`].
pub(crate) const RESTART_MAX: Duration = Duration::from_secs(6 * 3600);

/// Distance past the time supported by a majority of clocks at which the time in the file is
/// considered wrong.
const AHEAD_MAX: Duration = Duration::from_secs(3600);

const FILE: &str = "alive";
const HEADER: &str = "veche-alive 1";
const STALE: &str = "stale-";

/// Policy for the data of a node that was absent for longer than
/// [`StoreOptions::away_max`](crate::StoreOptions::away_max).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterAbsence {
    /// Refuses to open the directory: only an operator knows whether the other nodes ran meanwhile.
    #[default]
    Refuse,
    /// Renames the shard, and fills the node from its peers: they ran, and may have dropped
    /// tombstones.
    Rebuild,
    /// Keeps the data: no node ran meanwhile, so no tombstone was dropped.
    Keep,
}

/// The file `alive` of one directory.
pub(crate) struct AliveMark {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    /// Serializes writers, which all use the same temporary name.
    state: Mutex<CatchUp>,
}

/// Whether the node has heard of all deletes that it missed.
enum CatchUp {
    Complete,
    /// Not until it has exchanged all data with these peers.
    Behind(NodeSet),
    /// Same as [`CatchUp::Behind`], but the node record does not contain the repair for the absence
    /// with this number yet.
    BehindUnrecorded(NodeSet, u64),
}

impl AliveMark {
    pub(crate) fn new(fs: Arc<dyn Fs>, dir: &Path) -> Self {
        Self { fs, dir: dir.to_owned(), state: Mutex::new(CatchUp::Complete) }
    }

    /// Marks the node as behind: it missed writes that `peers` may know.
    pub(crate) fn set_behind(&self, peers: NodeSet) {
        *self.lock() = CatchUp::Behind(peers);
    }

    /// Marks the running process as behind after the absence with this number: it missed writes
    /// that `peers` may know.
    pub(crate) fn set_behind_unrecorded(&self, peers: NodeSet, absence: u64) {
        *self.lock() = CatchUp::BehindUnrecorded(peers, absence);
    }

    /// Confirms that the node record contains the repair for this absence and all earlier ones, or
    /// that the repair is complete.
    pub(crate) fn note_repair_recorded(&self, absences: u64) {
        let mut catch_up = self.lock();
        if let CatchUp::BehindUnrecorded(peers, absence) = *catch_up
            && absence <= absences
        {
            *catch_up = CatchUp::Behind(peers);
        }
    }

    /// Whether the node has heard of everything that it ever missed.
    pub(crate) fn is_caught_up(&self) -> bool {
        matches!(*self.lock(), CatchUp::Complete)
    }

    /// Records durably that the node has heard of all deletes before `wall`, if it has according to
    /// its node record `record`.
    pub(crate) fn advance(&self, wall: WallTime, record: &NodeRecord) -> Result<(), StoreError> {
        let mut catch_up = self.lock();
        if catch_up.is_complete_for(record) {
            *catch_up = CatchUp::Complete;
            self.raise(wall)?;
        }
        Ok(())
    }

    /// Moves the time back to `supported`, which a majority of clocks supports, if it is more than
    /// [`AHEAD_MAX`] past that. An earlier time is safe: at worst, a start refuses or repairs
    /// unnecessarily.
    pub(crate) fn limit(&self, supported: WallTime) -> Result<(), StoreError> {
        let _guard = self.lock();
        match self.find()? {
            Some(alive) if alive > supported.saturating_add(AHEAD_MAX) => {
                sealed::replace(&*self.fs, &self.dir, FILE, &text(supported))
            }
            _ => Ok(()),
        }
    }

    /// Records durably that the node has heard of all deletes before `wall`.
    pub(crate) fn note(&self, wall: WallTime) -> Result<(), StoreError> {
        let _guard = self.lock();
        self.raise(wall)
    }

    /// Time up to which data captured at `now` has heard of all deletes, for a node with the record
    /// `record`.
    pub(crate) fn heard_to(&self, now: WallTime, record: &NodeRecord) -> Result<WallTime, StoreError> {
        let is_caught_up = self.lock().is_complete_for(record);
        Ok(self.find()?.filter(|alive| !is_caught_up || *alive > now).unwrap_or(now))
    }

    /// Duration of the absence at `now`; `None` if the file is missing. The file is written before
    /// there is data.
    pub(crate) fn absence_at(&self, now: WallTime) -> Result<Option<Duration>, StoreError> {
        let missed =
            |alive: WallTime| now.micros_since_unix_epoch().saturating_sub(alive.micros_since_unix_epoch());
        Ok(self.find()?.map(|alive| Duration::from_micros(missed(alive))))
    }

    fn find(&self) -> Result<Option<WallTime>, StoreError> {
        let path = self.dir.join(FILE);
        if !self.fs.exists(&path).map_err(StoreError::io("look for", &path))? {
            return Ok(None);
        }
        let bytes = sealed::read(&*self.fs, &path)?;
        decode(&bytes).map(Some).map_err(|detail| StoreError::AliveCorrupt { path, detail })
    }

    /// Moves the time forward only: a wall clock that was set back must not turn time in which the
    /// node heard deletes into an absence.
    fn raise(&self, wall: WallTime) -> Result<(), StoreError> {
        if self.find()?.is_some_and(|alive| alive >= wall) {
            return Ok(());
        }
        sealed::replace(&*self.fs, &self.dir, FILE, &text(wall))
    }

    fn lock(&self) -> MutexGuard<'_, CatchUp> {
        // The data under the lock is consistent after each statement, so a poisoned lock is usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renames the shard of the node with this tag, durably. Returns its new path.
    pub(crate) fn rename_shard(&self, tag: NodeTag, now: WallTime) -> Result<PathBuf, StoreError> {
        let shard = self.dir.join(SHARD);
        let name = format!("{STALE}{:016x}-{}", tag.0, now.micros_since_unix_epoch());
        let stale = self.dir.join(name);
        self.fs.rename(&shard, &stale).map_err(StoreError::io("rename", &shard))?;
        self.fs.sync_dir(&self.dir).map_err(StoreError::io("sync", &self.dir))?;
        Ok(stale)
    }

    /// The node record of a directory that has none stored. `is_successor`: the directory held a
    /// shard of another identity.
    pub(crate) fn first_record(&self, is_successor: bool) -> Result<NodeRecord, StoreError> {
        let names = self.fs.read_dir(&self.dir).map_err(StoreError::io("list", &self.dir))?;
        let was_set_aside = names.iter().any(|name| name.starts_with(STALE));
        Ok(match is_successor || was_set_aside {
            true => NodeRecord { revision: 1, sync_state: SyncState::Rebuilding, ..NodeRecord::default() },
            false => NodeRecord::default(),
        })
    }
}

impl CatchUp {
    fn is_complete_for(&self, record: &NodeRecord) -> bool {
        let has_exchanged = match self {
            Self::Complete => true,
            Self::BehindUnrecorded(..) => false,
            Self::Behind(peers) => {
                let open = record.repair_pending.intersection(*peers).len();
                open == 0 || (open == 1 && peers.len() > 1)
            }
        };
        has_exchanged && record.sync_state == SyncState::Settled
    }
}

fn text(wall: WallTime) -> String {
    format!("{HEADER}\nmicros {}\n", wall.micros_since_unix_epoch())
}

fn decode(bytes: &[u8]) -> Result<WallTime, String> {
    let body = sealed::unseal(bytes, HEADER)?;
    number(body.lines().next(), "micros").map(WallTime::from_micros_since_unix_epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first release wrote these bytes. Every later release must read them.
    #[test]
    fn the_file_format_is_stable() {
        let wall = WallTime::from_micros_since_unix_epoch(1_767_225_600_000_000);
        let bytes = "veche-alive 1\nmicros 1767225600000000\ncrc32c 1f4f6c6f\n";
        assert_eq!(String::from_utf8_lossy(&sealed::seal(&text(wall))), bytes);
        assert_eq!(decode(bytes.as_bytes()), Ok(wall));
    }

    #[test]
    fn every_flipped_bit_and_truncation_is_detected() {
        let bytes = sealed::seal(&text(WallTime::EPOCH_2020));
        sealed::assert_finds_damage(&bytes, decode);
    }
}
