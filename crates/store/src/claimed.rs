//! Opening a data directory: whose it is, whether its data may come back, and what is in it.

use crate::alive::{Alive, RESTART_MAX};
use crate::checkpoints::{self, Checkpoints};
use crate::clock_seal;
use crate::directory::{self, SHARD};
use crate::error::StoreError;
use crate::identity::{Identity, Membership};
use crate::keyspace;
use crate::log_mark::{self, LogMark, Marked};
use crate::lost::Missing;
use crate::presence::Presence;
use crate::restored::{self, AfterRestore};
use crate::snapshots::Snapshots;
use crate::store::Store;
use crate::{lost, node_record};
use cluster::{HybridClock, NodeRecord, NodeSet, SyncState};
use engine::{Engine, HorizonSource, Recovery};
use env::{DirLock, Env, Fs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use stdx::{Hlc, NodeTag, WallTime};

/// How to open a data directory.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Of the engine. Which keys are local the store says.
    pub engine: engine::Options,
    /// The cluster that the directory must have been made for, or is made for.
    pub membership: Membership,
    /// 64 random bits, used when the directory holds no data.
    pub new_tag: NodeTag,
    /// A node with peers that was away for longer does not simply come back with its data.
    /// Less than the grace period of tombstones, or what was deleted meanwhile may come back.
    pub away_max: Duration,
    /// What then becomes of its data.
    pub after_absence: AfterAbsence,
    /// For so long a snapshot is kept between the pages of a range. See [`SNAPSHOT_AGE_DEFAULT`].
    ///
    /// [`SNAPSHOT_AGE_DEFAULT`]: crate::SNAPSHOT_AGE_DEFAULT
    pub snapshot_age: Duration,
}

/// What becomes of the data of a node that was away for longer than [`StoreOptions::away_max`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterAbsence {
    /// The directory is not opened: only an operator knows whether the other nodes ran meanwhile.
    #[default]
    Refuse,
    /// It is set aside, and the node is filled from its peers: they ran, and may have forgotten deletes.
    Rebuild,
    /// It is kept: no node ran meanwhile, so no delete was forgotten.
    Keep,
}

/// What was found when the directory was opened.
#[derive(Debug)]
pub struct Opened {
    /// Whose directory it is.
    pub identity: Identity,
    /// It held no data.
    pub is_new: bool,
    /// The data that was set aside here because the node was away for too long (see [`AfterAbsence::Rebuild`]) or because
    /// the directory had less than it had before. The node begins as one that lost its disk.
    pub set_aside: Option<PathBuf>,
    /// Where the version clock begins: no value up to this one may be issued (again).
    pub clock_start: Hlc,
    /// The newest version on disk, where it is further ahead of the wall clock than any node's clock may be and the
    /// version clock does not begin past it. Writes to its key are superseded until the time has come.
    pub version_ahead: Option<Hlc>,
    /// What the node remembers. Nothing yet where nothing is stored; but that it is to be rebuilt where data was
    /// set aside or lost, and nothing remembered since.
    pub record: NodeRecord,
    /// What the engine recovered.
    pub recovery: Recovery,
}

/// A data directory that is this process's and this node's, and not recovered yet.
pub struct Claimed {
    env: Env,
    dir: PathBuf,
    engine: engine::Options,
    identity: Identity,
    /// The tag of another identity, should one be needed.
    new_tag: NodeTag,
    /// What the directory says of its log. Of another tag than that of the identity: the shard of another identity was here.
    marked: Option<Marked>,
    is_new: bool,
    set_aside: Option<PathBuf>,
    restored: Option<AfterRestore>,
    snapshot_age: Duration,
    alive: Option<Arc<Alive>>,
    away_max: Duration,
    /// For how long it may have missed deletes; `None`: for no time that is known of, or that counts.
    missed: Option<Duration>,
    /// The file `alive` was removed, and the operator decided to keep the data: the node owes its peers a repair.
    is_absence_unknown: bool,
    lock: Box<dyn DirLock>,
}

impl Claimed {
    /// Locks the data directory `dir`, making it where it is missing, checks whose it is, and sets aside data that
    /// is too old to come back with. Takes no longer however much data there is.
    ///
    /// # Errors
    /// [`StoreError`]: in use, made for another cluster, its identity corrupt, a copy that nothing was decided for, emptied
    /// or without its log mark while it belongs to a node on its own, or refused by the operating system.
    pub fn claim(env: Env, dir: &Path, options: StoreOptions) -> Result<Self, StoreError> {
        let fs = &*env.fs;
        directory::create(fs, dir)?;
        let lock = directory::lock(fs, dir)?;
        directory::warn_if_shared(fs, dir);
        let StoreOptions { engine, membership, new_tag, away_max, after_absence, snapshot_age } = options;
        let alive = membership.has_peers().then(|| Arc::new(Alive::new(Arc::clone(&env.fs), dir)));
        let now = env.clock.now().wall;

        let shard = dir.join(SHARD);
        let holds_data = engine::holds_data(&env.fs, &shard)?;
        // A new directory has its identity before its shard; a restore makes the shard first and the identity last.
        let has_shard = fs.exists(&shard).map_err(StoreError::io("look for", &shard))?;
        let found = Identity::find(fs, dir, &membership, has_shard)?;
        let restored = restored::find(fs, dir)?;
        let log_mark = log_mark::find(fs, dir)?;
        let mut marked = log_mark.marked();
        let (mut set_aside, mut missed) = (None, None);
        let mut is_absence_unknown = false;
        let missing = found.as_ref().and_then(|identity| Missing::of(identity, holds_data, log_mark));
        if let (Some(identity), Some(missing)) = (&found, missing) {
            let alive = alive.as_ref().ok_or_else(|| missing.refuse(dir))?;
            set_aside = lost::set_aside((fs, dir), alive, (identity.tag, now), &missing.sentence(dir))?;
            if marked.is_none() {
                marked = Some(log_mark::note_lost(fs, dir, identity.tag)?);
            }
        }
        let mut kept = found.filter(|_| holds_data && missing.is_none());
        if let (Some(identity), Some(alive)) = (&kept, &alive) {
            let absence = Absence { dir, now, away_max, after_absence, restored };
            match absence.end(alive, identity.tag)? {
                Back::After(absence) => missed = absence,
                Back::AfterUnknown => is_absence_unknown = true,
                Back::Without(stale) => set_aside = Some(stale),
            }
            kept = kept.filter(|_| set_aside.is_none());
        }
        if let (Some(identity), Some(AfterRestore::Rebuild)) = (&mut kept, restored) {
            *identity = Identity::without_log_mark(new_tag, identity.membership.clone());
            identity.store(fs, dir)?;
        }

        let is_new = kept.is_none();
        let identity = kept.unwrap_or_else(|| Identity::without_log_mark(new_tag, membership));
        if is_new {
            identity.store(fs, dir)?;
            // Before there is a shard that could be taken for one that was away since the last note.
            alive.as_ref().map_or(Ok(()), |alive| alive.note(now))?;
        }
        let dir = dir.to_owned();
        Ok(Self {
            env,
            dir,
            engine,
            identity,
            new_tag,
            marked,
            is_new,
            set_aside,
            restored,
            snapshot_age,
            alive,
            away_max,
            missed,
            is_absence_unknown,
            lock,
        })
    }

    /// Recovers what is in it. Whoever calls starts the engine's workers.
    ///
    /// # Errors
    /// [`StoreError`]: corrupt, with less than it had while it belongs to a node on its own, or refused by the operating
    /// system.
    pub fn open(mut self) -> Result<(Store, Opened), StoreError> {
        checkpoints::remove_left(&*self.env.fs, &self.dir)?;
        let (engine, recovery) = match self.open_engine() {
            Err(StoreError::Engine(missing @ engine::Error::Lost { .. })) => {
                self.begin_without(&missing)?;
                self.open_engine()?
            }
            opened => opened?,
        };
        let Self {
            env,
            dir,
            mut identity,
            marked,
            is_new,
            set_aside,
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
        // The record of what the node remembers has the time of a wall clock that may have been wrong. Versions of other
        // nodes that it hides are not past that time: the clock passes them without this, unless the wall clock was set
        // back since.
        let newest = recovery.version_max.hlc;
        let recorded = node_record::find(&engine)?.map(|(_, version)| version.hlc);
        let newest = if recorded == Some(newest) { bound } else { newest };
        // Without peers no version is refused, and passing every one keeps all keys writable.
        let clock_start = match identity.membership.has_peers() {
            true => HybridClock::start_of(bound, newest, wall),
            false => bound.max(recovery.version_max.hlc),
        };
        let (found, versions) = node_record::load(&engine, identity.tag, Arc::clone(&env.clock))?;
        let is_successor = marked.is_some_and(|marked| marked.tag != identity.tag);
        let found_or_none = found.clone().unwrap_or_default();
        let mut record = match (found, &alive) {
            (Some(record), _) => record,
            (None, Some(alive)) => alive.first_record(is_successor)?,
            (None, None) => NodeRecord::default(),
        };
        let noted = marked.filter(|_| !is_successor).map(|marked| marked.end);
        let peers = restored::peers_of(&identity.membership);
        let store = Store {
            engine,
            tag: identity.tag,
            record_versions: Arc::new(versions),
            snapshots: Arc::new(Snapshots::new(Arc::clone(&env.clock), snapshot_age)),
            checkpoints: Arc::new(Checkpoints::new(env.clone(), &dir, identity.clone(), alive.clone())),
            log_mark: Arc::new(LogMark::new(Arc::clone(&env.fs), &dir, identity.tag, noted)),
            presence: Arc::new(Presence::new(Arc::clone(&env.clock), &dir, away_max, peers)),
            alive,
            _lock: Arc::from(lock),
        };
        let is_late = is_absence_unknown || missed.is_some_and(|missed| missed > RESTART_MAX);
        if let Some(after) = restored {
            record = after.record(record, &identity.membership);
        }
        if is_late && record.sync_state == SyncState::Settled {
            record = owing(record, peers);
        }
        if record != found_or_none {
            store.remember(&record)?;
        }
        // Before anything is acknowledged, and not before the record says what an older mark said.
        match note_first(&store, &mut identity, (fs, &dir)) {
            // The former mark still holds, and the host notes the end again.
            Err(error) if error.is_out_of_space() => {
                tracing::warn!(%error, "it could not be noted how far the log is durable");
            }
            noted => noted?,
        }
        if let Some(alive) = &store.alive {
            if missed.is_none() {
                alive.note(env.clock.now().wall)?;
            }
            if is_late || record.sync_state != SyncState::Settled {
                alive.begin_behind(peers);
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
        Ok((store, Opened { identity, is_new, set_aside, clock_start, version_ahead, record, recovery }))
    }

    fn open_engine(&self) -> Result<(Engine, Recovery), StoreError> {
        let horizon = match self.identity.membership.has_peers() {
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

    /// What the mark says of the shard that is there.
    fn own_mark(&self) -> Option<Marked> {
        self.marked.filter(|marked| marked.tag == self.identity.tag)
    }

    /// Goes on without the data, in which the engine misses something. See [`lost`].
    fn begin_without(&mut self, missing: &engine::Error) -> Result<(), StoreError> {
        let Some(alive) = &self.alive else {
            return Err(lost::refuse(&self.dir, missing, self.own_mark()));
        };
        let (fs, now) = (&*self.env.fs, self.env.clock.now().wall);
        let old = (self.identity.tag, now);
        self.set_aside = lost::set_aside((fs, &self.dir), alive, old, &missing.to_string())?;
        self.identity = Identity::without_log_mark(self.new_tag, self.identity.membership.clone());
        self.identity.store(fs, &self.dir)?;
        alive.note(now)?;
        (self.is_new, self.missed, self.is_absence_unknown) = (true, None, false);
        Ok(())
    }
}

/// Notes how far the log is durable, and then in `identity`, of the directory `at`, that this is noted.
fn note_first(store: &Store, identity: &mut Identity, at: (&dyn Fs, &Path)) -> Result<(), StoreError> {
    store.note_log_end()?;
    if store.log_mark.is_noted() && !identity.has_log_mark {
        let marked = Identity { has_log_mark: true, ..identity.clone() };
        marked.store(at.0, at.1)?;
        *identity = marked;
    }
    Ok(())
}

/// `record` of a node that owes these peers a repair.
fn owing(record: NodeRecord, peers: NodeSet) -> NodeRecord {
    let repair_pending = record.repair_pending.union(peers);
    let is_new = repair_pending != record.repair_pending;
    NodeRecord { revision: record.revision + u64::from(is_new), repair_pending, ..record }
}

/// How a node comes back.
enum Back {
    /// With its data, after an absence of this length in which it missed deletes. `None`: the operator said that there
    /// were none.
    After(Option<Duration>),
    /// With its data, as the operator decided, after an absence of unknown length.
    AfterUnknown,
    /// Without its data, which is kept here.
    Without(PathBuf),
}

/// A node with peers comes back with data, or with a copy of it.
struct Absence<'a> {
    dir: &'a Path,
    now: WallTime,
    away_max: Duration,
    after_absence: AfterAbsence,
    restored: Option<AfterRestore>,
}

impl Absence<'_> {
    /// Does with the data what is to be done with it after so long.
    fn end(&self, alive: &Alive, tag: NodeTag) -> Result<Back, StoreError> {
        let away_max = self.restored.map_or(self.away_max, |after| after.age_max(self.away_max));
        let decision = self.restored.map_or(self.after_absence, AfterRestore::after_absence);
        let Some(away) = alive.away_for(self.now)? else { return self.end_unknown(alive, tag, decision) };
        if away < away_max {
            return Ok(Back::After(Some(away)));
        }
        let away_days = away.as_secs() / (24 * 3600);
        match decision {
            AfterAbsence::Refuse => Err(StoreError::AwayTooLong { path: self.dir.to_owned(), away_days }),
            AfterAbsence::Keep => {
                tracing::warn!(away_days, "the node comes back with its data, as it was told");
                Ok(Back::After(None))
            }
            AfterAbsence::Rebuild => {
                let stale = alive.set_aside(tag, self.now)?;
                tracing::warn!(
                    away_days,
                    kept_as = %stale.display(),
                    "the data is set aside, as the node was told, and it is filled from its peers; remove what \
                     is kept when it is not needed any more"
                );
                Ok(Back::Without(stale))
            }
        }
    }

    /// Applies the decision where the file `alive` is missing. It is written before there is data, so a person removed it,
    /// or left it out of a copy, and the absence can have any length.
    fn end_unknown(&self, alive: &Alive, tag: NodeTag, decision: AfterAbsence) -> Result<Back, StoreError> {
        match decision {
            AfterAbsence::Refuse => Err(StoreError::AbsenceUnknown { path: self.dir.to_owned() }),
            AfterAbsence::Keep => {
                tracing::warn!(
                    "the file alive is missing, so the length of the node's absence is unknown; the node keeps its data, as \
                     decided, and compares all keys with its peers"
                );
                Ok(Back::AfterUnknown)
            }
            AfterAbsence::Rebuild => {
                let stale = alive.set_aside(tag, self.now)?;
                tracing::warn!(
                    kept_as = %stale.display(),
                    "the file alive is missing, so the length of the node's absence is unknown; its data is set aside, as \
                     decided, and it is filled from its peers; remove the directory when it is not needed any more"
                );
                Ok(Back::Without(stale))
            }
        }
    }
}
