//! Up to when the node has heard of all deletes, and what becomes of its data when that is too long ago.
//!
//! **Promise.** A node of several that has not heard of its peers' deletes for longer than its tombstones are kept does
//! not simply come back with its data: the peers may have dropped deletes that it never heard of, and it would bring
//! the deleted back. It refuses to start until an operator says what happened meanwhile
//! ([`AfterAbsence`](crate::AfterAbsence)). Absences between which nothing was caught up with add up.
//!
//! **Mechanism.** The file `alive` holds a time: of all deletes before it the node has heard. The host has it moved every
//! few minutes ([`Alive::advance`]), to a time that the peers' clocks support (`cluster::Node::heard_to`); opening the
//! directory does not move it. It goes back only where it lies far past the time that the clocks of a majority support
//! ([`Alive::limit`]): it was noted by a clock that was wrong, and would hide an absence. Whether it may move is seen from what the node remembers:
//!
//! * A node that is not settled lacks what it is being filled with. The time stays: for a copy, that which came with it.
//! * A node that was away for no longer than [`RESTART_MAX`], which counts from the time in the file and not from its last
//!   stop, has what it missed from hints, which are handed over before it is ready. The time moves at once, whatever
//!   repair is owed: hints that it drops for a peer that stays down are that peer's lack and not its own, so a healthy
//!   node is never held back by one that is gone.
//! * Any other owes its peers a repair from its start on, durably, and is *behind* until it has exchanged all with them.
//!   One peer that cannot be reached is not waited for where there are others: it missed the deletes, so a majority of
//!   the other replicas holds each that was acknowledged, and of the two of three it needs to ask one. A node that was
//!   filled after the loss of its data owes that repair too.
//!
//! A process that was stopped, or whose machine was suspended, was away without a start: see `presence`. If it was away for
//! longer than [`RESTART_MAX`], it is behind in the same way once it goes on, and owes the same repair.
//!
//! So a node that starts after eight days, stops a minute later and starts again eight days later was away for sixteen.
//!
//! The file is written before there is data. Where it is missing beside data, a person removed it, or left it out of a
//! copy, and the length of the absence is unknown: it is not taken for none. The node refuses to start until the operator
//! decides, and if the data is kept, it owes its peers a repair.
//!
//! Where data is to be set aside, the shard is renamed to `stale-...`, durably, before anything else is changed. What is
//! left is an identity without data, in whose place another is drawn, so that peers notice. And as long as there is a
//! `stale-...` and nothing was remembered since, the node is one that is being rebuilt, not one of a new cluster: nodes
//! that were all told to set their data aside must not agree to be empty.
//!
//! **Caveats.** What was set aside is kept until the operator removes it; it can be renamed back to `shard-000`. A
//! wall clock that is far ahead when a node starts makes it refuse for nothing; when its directory is made, it hides what
//! the node misses until the node has been compared with its peers for a few minutes. The refusal asks the operator to look at the clock. A node that is up and cut off from all
//! others is taken for one that hears them, and of a restart's hints those are not waited for that a peer holds which
//! cannot be reached: the regular passes of anti-entropy bring both, long before the grace period has ended if the nodes
//! meet in time. A key written for five nodes or more may have been deleted where only the one peer that was not waited
//! for and others that were not asked know it; the next passes find it.

use crate::directory::SHARD;
use crate::error::StoreError;
use crate::sealed::{self, number};
use cluster::{NodeRecord, NodeSet, SyncState};
use env::Fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use stdx::{NodeTag, WallTime};

/// A node may have been away for so long and still come back with its data: the grace period of tombstones less a
/// day, in which it hears of what it missed.
pub const AWAY_MAX_DEFAULT: Duration = Duration::from_secs(9 * 24 * 3600);

/// A node that was away for no longer was restarted: hints bring what it missed. Far less than they are kept, and than
/// the grace period of tombstones is longer than [`AWAY_MAX_DEFAULT`].
pub(crate) const RESTART_MAX: Duration = Duration::from_secs(6 * 3600);

/// A time in the file is wrong if it lies further past the time that the clocks of a majority support.
const AHEAD_MAX: Duration = Duration::from_secs(3600);

const FILE: &str = "alive";
const HEADER: &str = "veche-alive 1";
const STALE: &str = "stale-";

/// Keeps the file of one directory.
pub(crate) struct Alive {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    /// One writer at a time: the name it writes under is always the same.
    state: Mutex<Hearing>,
}

/// Whether the node has heard of what it missed.
enum Hearing {
    All,
    /// Not before it has exchanged all with these peers.
    Behind(NodeSet),
    /// As [`Hearing::Behind`]; but what the node remembers does not say yet that it owes the peers a repair since the absence of this
    /// number.
    Lapsed(NodeSet, u64),
}

impl Alive {
    pub(crate) fn new(fs: Arc<dyn Fs>, dir: &Path) -> Self {
        Self { fs, dir: dir.to_owned(), state: Mutex::new(Hearing::All) }
    }

    /// The node begins without what it missed, of which `peers` may know.
    pub(crate) fn begin_behind(&self, peers: NodeSet) {
        *self.lock() = Hearing::Behind(peers);
    }

    /// The process that runs missed what `peers` may know, in an absence of this number.
    pub(crate) fn fall_behind(&self, peers: NodeSet, absence: u64) {
        *self.lock() = Hearing::Lapsed(peers, absence);
    }

    /// What the node remembers says that it owes a repair since this absence and all before, or owed and paid it.
    pub(crate) fn note_owed(&self, absences: u64) {
        let mut hearing = self.lock();
        if let Hearing::Lapsed(peers, absence) = *hearing
            && absence <= absences
        {
            *hearing = Hearing::Behind(peers);
        }
    }

    /// Whether the node has caught up with all that it ever missed.
    pub(crate) fn hears_all(&self) -> bool {
        matches!(*self.lock(), Hearing::All)
    }

    /// Makes durable that the node has heard of all deletes before `wall`, if it has, being one that remembers `record`.
    pub(crate) fn advance(&self, wall: WallTime, record: &NodeRecord) -> Result<(), StoreError> {
        let mut hearing = self.lock();
        if hearing.is_of_all(record) {
            *hearing = Hearing::All;
            self.raise(wall)?;
        }
        Ok(())
    }

    /// Moves the time back to `supported`, which the clocks of a majority support, if it lies more than [`AHEAD_MAX`] past
    /// it. To be earlier is the safe side: at worst, a start refuses or repairs for nothing.
    pub(crate) fn limit(&self, supported: WallTime) -> Result<(), StoreError> {
        let _turn = self.lock();
        match self.find()? {
            Some(alive) if alive > supported.saturating_add(AHEAD_MAX) => {
                sealed::replace(&*self.fs, &self.dir, FILE, &text(supported))
            }
            _ => Ok(()),
        }
    }

    /// Makes durable that there is no delete before `wall` that the node should hear of.
    pub(crate) fn note(&self, wall: WallTime) -> Result<(), StoreError> {
        let _turn = self.lock();
        self.raise(wall)
    }

    /// Up to when the data has heard of all deletes that is taken at `now` from a node that remembers `record`.
    pub(crate) fn heard_to(&self, now: WallTime, record: &NodeRecord) -> Result<WallTime, StoreError> {
        let hears_all = self.lock().is_of_all(record);
        Ok(self.find()?.filter(|alive| !hears_all || *alive > now).unwrap_or(now))
    }

    /// How long the node was away at `now`; `None` if the file is missing. It is written before there is data.
    pub(crate) fn away_for(&self, now: WallTime) -> Result<Option<Duration>, StoreError> {
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

    /// A wall clock that was set back must not make an absence of what was heard since.
    fn raise(&self, wall: WallTime) -> Result<(), StoreError> {
        if self.find()?.is_some_and(|alive| alive >= wall) {
            return Ok(());
        }
        sealed::replace(&*self.fs, &self.dir, FILE, &text(wall))
    }

    fn lock(&self) -> MutexGuard<'_, Hearing> {
        // What is under the lock is whole after each statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renames the shard of the node of this tag, durably. Returns where it is kept.
    pub(crate) fn set_aside(&self, tag: NodeTag, now: WallTime) -> Result<PathBuf, StoreError> {
        let shard = self.dir.join(SHARD);
        let name = format!("{STALE}{:016x}-{}", tag.0, now.micros_since_unix_epoch());
        let stale = self.dir.join(name);
        self.fs.rename(&shard, &stale).map_err(StoreError::io("rename", &shard))?;
        self.fs.sync_dir(&self.dir).map_err(StoreError::io("sync", &self.dir))?;
        Ok(stale)
    }

    /// What a node remembers that has stored nothing of it yet. `is_successor`: the directory had a shard of another
    /// identity.
    pub(crate) fn first_record(&self, is_successor: bool) -> Result<NodeRecord, StoreError> {
        let names = self.fs.read_dir(&self.dir).map_err(StoreError::io("list", &self.dir))?;
        let was_set_aside = names.iter().any(|name| name.starts_with(STALE));
        Ok(match is_successor || was_set_aside {
            true => NodeRecord { revision: 1, sync_state: SyncState::Rebuilding, ..NodeRecord::default() },
            false => NodeRecord::default(),
        })
    }
}

impl Hearing {
    fn is_of_all(&self, record: &NodeRecord) -> bool {
        let has_exchanged = match self {
            Self::All => true,
            Self::Lapsed(..) => false,
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

    /// Nodes of the first release wrote these bytes; they must be read for ever.
    #[test]
    fn the_file_is_what_it_was() {
        let wall = WallTime::from_micros_since_unix_epoch(1_767_225_600_000_000);
        let bytes = "veche-alive 1\nmicros 1767225600000000\ncrc32c 1f4f6c6f\n";
        assert_eq!(String::from_utf8_lossy(&sealed::seal(&text(wall))), bytes);
        assert_eq!(decode(bytes.as_bytes()), Ok(wall));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let bytes = sealed::seal(&text(WallTime::EPOCH_2020));
        sealed::assert_finds_damage(&bytes, decode);
    }
}
