//! Opening a data directory: checks its owner, decides whether its data may be used, and recovers
//! it.

use crate::alive_mark::{AfterAbsence, AliveMark, RESTART_MAX};
use crate::checkpoints::{self, Checkpoints};
use crate::clock_seal;
use crate::data_loss::MissingPart;
use crate::directory::{self, SHARD};
use crate::error::StoreError;
use crate::identity::{Identity, Membership};
use crate::joining;
use crate::keyspace;
use crate::layout_file::{self, FirstPeer, LayoutFile};
use crate::log_mark::{self, LogEndMark, LogMark};
use crate::pause::PauseDetector;
use crate::restored::{self, AfterRestore};
use crate::snapshots::Snapshots;
use crate::store::Store;
use crate::votes_file::{self, ReadVotes, VotesFile, VotesFound};
use crate::{data_loss, node_record};
use cluster::{
    HybridClock, LayoutEpoch, LayoutRecord, NodeRecord, NodeSet, SyncState, VoteHistory, VoterState,
};
use engine::{Engine, HorizonSource, Recovery};
use env::{DirLock, Env, Fs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use stdx::{Hlc, NodeTag, WallTime};

/// Options for opening a data directory.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Options of the engine. The store sets the range of local keys.
    pub engine: engine::Options,
    /// The cluster that the directory belongs to, or is created for. [`DirectoryCluster`] looks up
    /// the one that an existing directory belongs to.
    ///
    /// [`DirectoryCluster`]: crate::DirectoryCluster
    pub membership: Membership,
    /// 64 random bits, used if the directory holds no data.
    pub new_tag: NodeTag,
    /// Absence from which a node with peers does not return with its data unconditionally. Must be
    /// less than the grace period of tombstones, or values deleted in the meantime may reappear.
    pub away_max: Duration,
    /// Policy for its data after such an absence.
    pub after_absence: AfterAbsence,
    /// Maximum age of a snapshot between the pages of a range. See [`SNAPSHOT_AGE_DEFAULT`].
    ///
    /// [`SNAPSHOT_AGE_DEFAULT`]: crate::SNAPSHOT_AGE_DEFAULT
    pub snapshot_age: Duration,
}

/// Result of opening a data directory.
#[derive(Debug)]
pub struct OpenReport {
    /// Owner of the directory.
    pub identity: Identity,
    /// Whether the directory held no data.
    pub is_new: bool,
    /// Path of a shard that was renamed and is not used, because the node was absent for too long
    /// (see [`AfterAbsence::Rebuild`]) or because the directory has lost data. The node begins as
    /// one that lost its disk.
    pub stale_shard: Option<PathBuf>,
    /// Start of the version clock: versions up to this one must not be issued (again).
    pub clock_start: Hlc,
    /// The newest version on disk, if it is further ahead of the wall clock than permitted and the
    /// version clock does not start past it. Writes to its key are superseded until that time has
    /// come.
    pub version_ahead: Option<Hlc>,
    /// The node record. It is the default record if none is stored. It is "rebuilding" if data was
    /// renamed or lost and no record was stored since, or if the stored record cannot be read.
    pub record: NodeRecord,
    /// The layout record of the cluster.
    pub layout: Arc<LayoutRecord>,
    /// The state of the node as a voter on the next layout record.
    pub voter: VoterState,
    /// The votes in the directory. If they are lost, the host logs the sentence.
    pub votes: VotesFound,
    /// Report of the engine's recovery.
    pub recovery: Recovery,
}

/// A data directory that is locked and belongs to this node, before its recovery.
pub struct DataDirectory {
    env: Env,
    dir: PathBuf,
    engine: engine::Options,
    identity: Identity,
    layout: LayoutRecord,
    /// The votes on layout records.
    votes: ReadVotes,
    /// Whether the file of votes was written by this start, because there were none before.
    is_first_vote: bool,
    /// Tag of a new identity, if one is needed.
    new_tag: NodeTag,
    /// The log mark of the directory. If its tag differs from that of the identity, the directory
    /// once held the shard of another identity.
    marked: Option<LogEndMark>,
    is_new: bool,
    stale_shard: Option<PathBuf>,
    restored: Option<AfterRestore>,
    snapshot_age: Duration,
    /// `None`: the node has no peers.
    alive: Option<Arc<AliveMark>>,
    away_max: Duration,
    /// How long the node may have missed deletes; `None` if that is unknown or does not count.
    missed: Option<Duration>,
    /// Whether the file `alive` was removed and the operator decided to keep the data. Then the
    /// node has a pending repair with its peers.
    is_absence_unknown: bool,
    lock: Box<dyn DirLock>,
}

impl DataDirectory {
    /// Locks the data directory `dir`, creates it if it is missing, and checks its owner. Gives it
    /// a layout record if it has none, and renames a shard that is too old to be used. Its duration
    /// does not depend on the amount of data.
    ///
    /// # Errors
    /// [`StoreError`] if the directory is in use, was created for another cluster, has a corrupt
    /// identity, or is an undecided copy. Also if a standalone node has lost its data or log mark,
    /// or if the operating system refuses an operation.
    pub fn claim(env: Env, dir: &Path, options: StoreOptions) -> Result<Self, StoreError> {
        let fs = &*env.fs;
        directory::create(fs, dir)?;
        let lock = directory::lock(fs, dir)?;
        directory::warn_if_shared(fs, dir);
        let StoreOptions { engine, membership, new_tag, away_max, after_absence, snapshot_age } = options;
        let alive = membership.has_peers().then(|| Arc::new(AliveMark::new(Arc::clone(&env.fs), dir)));
        let now = env.clock.now().wall;

        let shard = dir.join(SHARD);
        let holds_data = engine::holds_data(&env.fs, &shard)?;
        // A new directory gets its identity before its shard. A restore creates the shard first and
        // the identity last.
        let has_shard = fs.exists(&shard).map_err(StoreError::io("look for", &shard))?;
        let (found, layout) = Identity::find(fs, dir, &membership, has_shard)?.unzip();
        let new_tag = joining::kept_tag(fs, dir, found.as_ref())?.unwrap_or(new_tag);
        let mut votes = votes_file::read(fs, dir)?;
        let mut is_first_vote = false;
        let layout = match layout.flatten() {
            Some(record) => record,
            // A new directory gets the record before its identity: without one, it does not count.
            None => {
                let tag = found.as_ref().map_or(new_tag, |identity| identity.tag);
                // No release voted without storing a record. Written first, because a directory
                // with a record and without votes has lost them.
                if found.is_some() && votes == ReadVotes::Missing {
                    votes = ReadVotes::Stored(votes_file::create(fs, dir, tag, VoteHistory::Complete)?);
                    is_first_vote = true;
                }
                layout_file::create(fs, dir, &membership, found.is_some(), tag)?
            }
        };
        let restored = restored::find(fs, dir)?;
        let log_mark = log_mark::find(fs, dir)?;
        let mut marked = log_mark.mark();
        let (mut stale_shard, mut missed) = (None, None);
        let mut is_absence_unknown = false;
        let missing = found.as_ref().and_then(|identity| MissingPart::of(identity, holds_data, log_mark));
        if let (Some(identity), Some(missing)) = (&found, missing) {
            let alive = alive.as_ref().ok_or_else(|| missing.refusal(dir))?;
            stale_shard =
                data_loss::set_shard_aside((fs, dir), alive, (identity.tag, now), &missing.sentence(dir))?;
            if marked.is_none() {
                marked = Some(log_mark::note_lost(fs, dir, identity.tag)?);
            }
        }
        let is_missing = missing.is_some();
        let mut kept = found.filter(|_| holds_data && missing.is_none());
        if let (Some(identity), Some(alive)) = (&kept, &alive) {
            let absence = AbsenceCheck { dir, now, away_max, after_absence, restored };
            match absence.judge(alive, identity.tag)? {
                Return::After(absence) => missed = absence,
                Return::AfterUnknown => is_absence_unknown = true,
                Return::Without(stale) => stale_shard = Some(stale),
            }
            kept = kept.filter(|_| stale_shard.is_none());
        }
        if let (Some(identity), Some(AfterRestore::Rebuild)) = (&mut kept, restored) {
            // The node may have moved since the directory was made.
            *identity = Identity::without_log_mark(new_tag, membership.clone());
            identity.store(fs, dir)?;
        }

        let is_new = kept.is_none();
        let has_lost_data = is_missing || stale_shard.is_some();
        let identity = kept.unwrap_or_else(|| Identity::without_log_mark(new_tag, membership));
        // Neither a directory that never held data nor one that is restored with its whole cluster
        // has votes to forget. A copy that becomes another node follows one that may have voted.
        let votes_begin = match restored {
            Some(AfterRestore::Keep) => Some(VoteHistory::Complete),
            Some(AfterRestore::Rebuild) => Some(VoteHistory::OfThisId),
            None if is_new && !has_lost_data => Some(VoteHistory::Complete),
            // The new id has not voted. The votes of the former one are lost with the data.
            None if is_new && !matches!(votes, ReadVotes::Stored(_)) => Some(VoteHistory::OfThisId),
            None => None,
        };
        if let Some(history) = votes_begin {
            votes = ReadVotes::Stored(votes_file::create(fs, dir, identity.tag, history)?);
            is_first_vote = true;
        }
        if is_new {
            identity.store(fs, dir)?;
            // Recorded before a shard exists, which could otherwise be taken for one of an absent
            // node.
            alive.as_ref().map_or(Ok(()), |alive| alive.note(now))?;
        }
        let dir = dir.to_owned();
        Ok(Self {
            env,
            dir,
            engine,
            identity,
            layout,
            votes,
            is_first_vote,
            new_tag,
            marked,
            is_new,
            stale_shard,
            restored,
            snapshot_age,
            alive,
            away_max,
            missed,
            is_absence_unknown,
            lock,
        })
    }

    /// Recovers the content of the directory. The caller starts the engine's workers.
    ///
    /// # Errors
    /// [`StoreError`] if the data is corrupt, if data of a standalone node is missing, or if the
    /// operating system refuses an operation.
    pub fn open(mut self) -> Result<(Store, OpenReport), StoreError> {
        checkpoints::remove_left(&*self.env.fs, &self.dir)?;
        let (engine, recovery) = match self.open_engine() {
            Err(StoreError::Engine(missing @ engine::Error::Lost { .. })) => {
                self.restart_empty(&missing)?;
                self.open_engine()?
            }
            opened => opened?,
        };
        let Self {
            env,
            dir,
            mut identity,
            layout,
            votes,
            is_first_vote,
            marked,
            is_new,
            stale_shard,
            restored,
            snapshot_age,
            alive,
            away_max,
            missed,
            is_absence_unknown,
            lock,
            ..
        } = self;
        let fs = &*env.fs;
        fs.sync_dir(&dir).map_err(StoreError::io("sync", &dir))?;
        let (bound, wall) = (clock_seal::begin(&engine, identity.tag)?, env.clock.now().wall);
        // The node record carries the time of a wall clock that may have been wrong. Versions of
        // other nodes that it hides are not past that time. So the version clock passes them
        // without this value, unless the wall clock was set back since.
        let newest = recovery.version_max.hlc;
        let loaded = node_record::load(&engine, identity.tag, Arc::clone(&env.clock))?;
        let recorded = loaded.version.map(|version| version.hlc);
        let newest = if recorded == Some(newest) { bound } else { newest };
        // A standalone node refuses no version. Starting past all of them keeps every key writable.
        let clock_start = match alive.is_some() {
            true => HybridClock::start_of(bound, newest, wall),
            false => bound.max(recovery.version_max.hlc),
        };
        let is_successor = marked.is_some_and(|marked| marked.tag != identity.tag);
        let peers = restored::peers_of(&layout, &identity);
        let found_or_none = loaded.record.clone().unwrap_or_default();
        let mut record = match (loaded.record, &alive) {
            (found, _) if loaded.is_unread => record_in_place_of_unread(found, peers),
            (Some(record), _) => record,
            (None, Some(alive)) => alive.first_record(is_successor)?,
            (None, None) => NodeRecord::default(),
        };
        // An empty shard has nothing to disown, and the node may own what it gains at once.
        let newest_change = newest_change(&layout);
        if recovery.tables == 0 && recovery.cells == 0 && record.disowned_to < newest_change {
            record.disowned_to = newest_change;
        }
        let noted = marked.filter(|_| !is_successor).map(|marked| marked.end);
        let mark = alive.clone().unwrap_or_else(|| Arc::new(AliveMark::new(Arc::clone(&env.fs), &dir)));
        let pauses = Arc::new(PauseDetector::new(Arc::clone(&env.clock), &dir, away_max, peers));
        let (clock, pauses_of_layout) = (Arc::clone(&env.clock), Arc::clone(&pauses));
        let first_peer =
            FirstPeer { tag: identity.tag, clock, alive: Arc::clone(&mark), pauses: pauses_of_layout };
        let layout = LayoutFile::new(Arc::clone(&env.fs), &dir, layout, first_peer);
        // What another directory of the same slot has voted is lost with its disk.
        let at_best = match record.sync_state {
            SyncState::Rebuilding if alive.is_some() => VoteHistory::OfThisId,
            _ => VoteHistory::Complete,
        };
        let known = (layout.current(), at_best);
        let (votes, voter, found_votes) =
            VotesFile::open(Arc::clone(&env.fs), &dir, identity.tag, votes, known)?;
        let store = Store {
            engine,
            tag: identity.tag,
            record_versions: Arc::new(loaded.versions),
            snapshots: Arc::new(Snapshots::new(Arc::clone(&env.clock), snapshot_age)),
            checkpoints: Arc::new(Checkpoints::new(env.clone(), &dir, identity.clone(), Arc::clone(&mark))),
            layout: Arc::new(layout),
            votes: Arc::new(votes),
            log_mark: Arc::new(LogMark::new(Arc::clone(&env.fs), &dir, identity.tag, noted)),
            ingests: Arc::default(),
            pauses,
            alive: Arc::clone(&mark),
            _lock: Arc::from(lock),
        };
        let is_late = is_absence_unknown || missed.is_some_and(|missed| missed > RESTART_MAX);
        if let Some(after) = restored {
            record = after.record(record, peers);
        }
        if is_late && record.sync_state == SyncState::Settled {
            record = with_repair_owed(record, peers);
        }
        if record != found_or_none {
            store.remember(&record)?;
        }
        // Written before any acknowledgement, and after the record has taken over the statement of
        // an older mark.
        match note_first(&store, &mut identity, (fs, &dir)) {
            // The previous mark stays valid, and the host records the end again.
            Err(error) if error.is_out_of_space() => {
                tracing::warn!(%error, "it could not be noted how far the log is durable");
            }
            noted => noted?,
        }
        if identity.has_log_mark {
            joining::forget(fs, &dir)?;
        }
        if let Some(alive) = &alive {
            if missed.is_none() {
                alive.note(env.clock.now().wall)?;
            }
            if is_late || record.sync_state != SyncState::Settled {
                alive.set_behind(peers);
            }
        }
        if let Some(after) = restored {
            restored::forget(fs, &dir)?;
            let decision = match after {
                AfterRestore::Rebuild => "rebuild",
                AfterRestore::Keep => "keep",
            };
            tracing::info!(decision, "the copy is a node's data now, as it was decided");
        }
        let version_ahead = (newest > clock_start).then_some(newest);
        let layout = store.layout();
        Ok((
            store,
            OpenReport {
                identity,
                is_new,
                stale_shard,
                clock_start,
                version_ahead,
                record,
                layout,
                voter,
                votes: if is_first_vote { VotesFound::NeverWritten } else { found_votes },
                recovery,
            },
        ))
    }

    fn open_engine(&self) -> Result<(Engine, Recovery), StoreError> {
        let horizon = match self.alive.is_some() {
            true => HorizonSource::Host,
            false => HorizonSource::Clock,
        };
        let options = engine::Options {
            local_keys_end: Some(keyspace::SYSTEM_END.to_vec()),
            horizon,
            known_log_end: self.own_mark().map(|marked| marked.end),
            ..self.engine.clone()
        };
        Ok(Engine::open(self.env.clone(), &self.dir.join(SHARD), options)?)
    }

    /// The log mark, if it belongs to the present shard.
    fn own_mark(&self) -> Option<LogEndMark> {
        self.marked.filter(|marked| marked.tag == self.identity.tag)
    }

    /// Continues without the data if the engine misses a file. See [`data_loss`].
    fn restart_empty(&mut self, missing: &engine::Error) -> Result<(), StoreError> {
        let Some(alive) = &self.alive else {
            return Err(data_loss::refusal(&self.dir, missing, self.own_mark()));
        };
        let (fs, now) = (&*self.env.fs, self.env.clock.now().wall);
        let old = (self.identity.tag, now);
        self.stale_shard = data_loss::set_shard_aside((fs, &self.dir), alive, old, &missing.to_string())?;
        self.identity = Identity::without_log_mark(self.new_tag, self.identity.membership.clone());
        self.identity.store(fs, &self.dir)?;
        alive.note(now)?;
        (self.is_new, self.missed, self.is_absence_unknown) = (true, None, false);
        Ok(())
    }
}

/// Records the durable end of the log, and then in `identity` of the directory `at` that a log mark
/// exists.
fn note_first(store: &Store, identity: &mut Identity, at: (&dyn Fs, &Path)) -> Result<(), StoreError> {
    store.note_log_end()?;
    if store.log_mark.is_noted() && !identity.has_log_mark {
        let marked = Identity { has_log_mark: true, ..identity.clone() };
        marked.store(at.0, at.1)?;
        *identity = marked;
    }
    Ok(())
}

/// The newest change of a partition by a layout record. `None` if none has changed.
fn newest_change(layout: &LayoutRecord) -> Option<LayoutEpoch> {
    layout.changed.iter().copied().max().filter(|epoch| *epoch > LayoutEpoch::FIRST)
}

/// The record of a node whose stored record is in a table that cannot be read. What the node knew
/// is lost with it, also whether its reads counted. So a node with peers is rebuilt from them, as
/// after a lost disk, but keeps its data and its identity. `earlier` is an earlier record.
fn record_in_place_of_unread(earlier: Option<NodeRecord>, peers: NodeSet) -> NodeRecord {
    let revision = earlier.map_or(0, |earlier| earlier.revision) + 1;
    let sync_state = if peers.is_empty() { SyncState::Unsettled } else { SyncState::Rebuilding };
    NodeRecord { revision, sync_state, repair_pending: peers, ..NodeRecord::default() }
}

/// Adds `peers` to the pending repairs of `record`.
fn with_repair_owed(record: NodeRecord, peers: NodeSet) -> NodeRecord {
    let repair_pending = record.repair_pending.union(peers);
    let is_new = repair_pending != record.repair_pending;
    NodeRecord { revision: record.revision + u64::from(is_new), repair_pending, ..record }
}

/// How a node returns after an absence.
enum Return {
    /// With its data, after an absence of this length in which it missed deletes. `None` if the
    /// operator declared that there were no deletes.
    After(Option<Duration>),
    /// With its data by decision of the operator, after an absence of unknown length.
    AfterUnknown,
    /// Without its data, which was renamed to this path.
    Without(PathBuf),
}

/// The return of a node with peers, with its data or a copy of it.
struct AbsenceCheck<'a> {
    dir: &'a Path,
    now: WallTime,
    away_max: Duration,
    after_absence: AfterAbsence,
    restored: Option<AfterRestore>,
}

impl AbsenceCheck<'_> {
    /// Applies the policy for an absence of this length to the data.
    fn judge(&self, alive: &AliveMark, tag: NodeTag) -> Result<Return, StoreError> {
        let away_max = self.restored.map_or(self.away_max, |after| after.age_max(self.away_max));
        let decision = self.restored.map_or(self.after_absence, AfterRestore::after_absence);
        let Some(away) = alive.absence_at(self.now)? else { return self.judge_unknown(alive, tag, decision) };
        if away < away_max {
            return Ok(Return::After(Some(away)));
        }
        let away_days = away.as_secs() / (24 * 3600);
        match decision {
            AfterAbsence::Refuse => Err(StoreError::AwayTooLong { path: self.dir.to_owned(), away_days }),
            AfterAbsence::Keep => {
                tracing::warn!(away_days, "the node comes back with its data, as it was told");
                Ok(Return::After(None))
            }
            AfterAbsence::Rebuild => {
                let stale = alive.rename_shard(tag, self.now)?;
                tracing::warn!(
                    away_days,
                    kept_as = %stale.display(),
                    "the data is set aside, as the node was told, and it is filled from its peers; remove what \
                     is kept when it is not needed any more"
                );
                Ok(Return::Without(stale))
            }
        }
    }

    /// Applies the policy if the file `alive` is missing. The file is written before there is data,
    /// so it was removed or left out of a copy, and the absence can have any length.
    fn judge_unknown(
        &self,
        alive: &AliveMark,
        tag: NodeTag,
        decision: AfterAbsence,
    ) -> Result<Return, StoreError> {
        match decision {
            AfterAbsence::Refuse => Err(StoreError::AbsenceUnknown { path: self.dir.to_owned() }),
            AfterAbsence::Keep => {
                tracing::warn!(
                    "the file alive is missing, so the length of the node's absence is unknown; the node keeps its data, as \
                     decided, and compares all keys with its peers"
                );
                Ok(Return::AfterUnknown)
            }
            AfterAbsence::Rebuild => {
                let stale = alive.rename_shard(tag, self.now)?;
                tracing::warn!(
                    kept_as = %stale.display(),
                    "the file alive is missing, so the length of the node's absence is unknown; its data is set aside, as \
                     decided, and it is filled from its peers; remove the directory when it is not needed any more"
                );
                Ok(Return::Without(stale))
            }
        }
    }
}
