//! A data directory, open.

use crate::alive::Alive;
use crate::directory::{self, SHARD};
use crate::error::StoreError;
use crate::group::{WriteGroup, clock_bound_of, fault_of};
use crate::identity::{Identity, Membership};
use crate::keyspace::{self, CLOCK_BOUND};
use crate::node_record::{self, RecordVersions};
use crate::pages::{self, Filled};
use crate::scan;
use crate::snapshots::Snapshots;
use cluster::{Key, NodeRecord, PageRequest, SnapshotId, StoreFault, StoreId, StoreRequest, StoreResponse};
use engine::{Engine, Recovery, TryGet};
use env::{DirLock, Env};
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
    /// The data that was set aside here because the node was away for too long. It begins as one that lost its
    /// disk. See [`AfterAbsence::Rebuild`].
    pub set_aside: Option<PathBuf>,
    /// Where the version clock begins: no value up to this one may be issued (again).
    pub clock_start: Hlc,
    /// What the node remembers. Nothing yet where nothing is stored; but that it is to be rebuilt where data was
    /// set aside and nothing remembered since.
    pub record: NodeRecord,
    /// What the engine recovered.
    pub recovery: Recovery,
}

/// The answer to a read that must not wait for the disk.
#[derive(Debug, PartialEq, Eq)]
pub enum ReadNow {
    /// It did not have to.
    Done(StoreResponse),
    /// It would have to: ask [`Store::answer_blocking`] on a thread that may wait.
    WouldWait,
}

/// A data directory, open, and locked until the last clone is dropped.
#[derive(Clone)]
pub struct Store {
    engine: Engine,
    tag: NodeTag,
    record_versions: Arc<RecordVersions>,
    snapshots: Arc<Snapshots>,
    /// Of a node with peers.
    alive: Option<Arc<Alive>>,
    _lock: Arc<dyn DirLock>,
}

/// A data directory that is this process's and this node's, and not recovered yet.
pub struct Claimed {
    env: Env,
    dir: PathBuf,
    engine: engine::Options,
    identity: Identity,
    is_new: bool,
    set_aside: Option<PathBuf>,
    snapshot_age: Duration,
    alive: Option<Arc<Alive>>,
    lock: Box<dyn DirLock>,
}

impl Claimed {
    /// Locks the data directory `dir`, making it where it is missing, checks whose it is, and sets aside data that
    /// is too old to come back with. Takes no longer however much data there is.
    ///
    /// # Errors
    /// [`StoreError`]: in use, made for another cluster, its identity corrupt, or refused by the operating system.
    pub fn claim(env: Env, dir: &Path, options: StoreOptions) -> Result<Self, StoreError> {
        let fs = &*env.fs;
        directory::create(fs, dir)?;
        let lock = directory::lock(fs, dir)?;
        let StoreOptions { engine, membership, new_tag, away_max, after_absence, snapshot_age } = options;
        let alive = membership.has_peers().then(|| Arc::new(Alive::new(Arc::clone(&env.fs), dir)));
        let now = env.clock.now().wall;

        let shard = dir.join(SHARD);
        let holds_data = fs.exists(&shard).map_err(StoreError::io("look for", &shard))?;
        let mut kept = Identity::find(fs, dir, &membership, holds_data)?.filter(|_| holds_data);
        let mut set_aside = None;
        if let (Some(identity), Some(alive)) = (&kept, &alive)
            && let Some(away) = alive.away_for(now)?.filter(|away| *away >= away_max)
        {
            let away_days = away.as_secs() / (24 * 3600);
            match after_absence {
                AfterAbsence::Refuse => {
                    return Err(StoreError::AwayTooLong { path: dir.to_owned(), away_days });
                }
                AfterAbsence::Keep => {
                    tracing::warn!(away_days, "the node comes back with its data, as it was told");
                }
                AfterAbsence::Rebuild => {
                    let stale = alive.set_aside(identity.tag, now)?;
                    tracing::warn!(
                        away_days,
                        kept_as = %stale.display(),
                        "the data is set aside, as the node was told, and it is filled from its peers; remove what \
                         is kept when it is not needed any more"
                    );
                    (kept, set_aside) = (None, Some(stale));
                }
            }
        }

        let is_new = kept.is_none();
        let identity = kept.unwrap_or(Identity { tag: new_tag, membership });
        if is_new {
            identity.store(fs, dir)?;
            // Before there is a shard that could be taken for one that was away since the last note.
            alive.as_ref().map_or(Ok(()), |alive| alive.note(now))?;
        }
        Ok(Self { env, dir: dir.to_owned(), engine, identity, is_new, set_aside, snapshot_age, alive, lock })
    }

    /// Recovers what is in it. Whoever calls starts the engine's workers.
    ///
    /// # Errors
    /// [`StoreError`]: corrupt, or refused by the operating system.
    pub fn open(self) -> Result<(Store, Opened), StoreError> {
        let Self { env, dir, engine, identity, is_new, set_aside, snapshot_age, alive, lock } = self;
        let (fs, clock) = (Arc::clone(&env.fs), Arc::clone(&env.clock));
        let engine = engine::Options { local_keys_end: Some(keyspace::SYSTEM_END.to_vec()), ..engine };
        let (engine, recovery) = Engine::open(env, &dir.join(SHARD), engine)?;
        fs.sync_dir(&dir).map_err(StoreError::io("sync", &dir))?;
        let clock_start = durable_clock_bound(&engine)?.max(recovery.version_max.hlc);
        let (record, versions) = node_record::load(&engine, Arc::clone(&clock))?;
        let record = match (record, &alive) {
            (Some(record), _) => record,
            (None, Some(alive)) => alive.first_record()?,
            (None, None) => NodeRecord::default(),
        };
        let tag = identity.tag;
        let record_versions = Arc::new(versions);
        let snapshots = Arc::new(Snapshots::new(Arc::clone(&clock), snapshot_age));
        let store = Store { engine, tag, record_versions, snapshots, alive, _lock: Arc::from(lock) };
        if !is_new {
            store.note_alive(clock.now().wall)?;
        }
        Ok((store, Opened { identity, is_new, set_aside, clock_start, record, recovery }))
    }
}

impl Store {
    /// Claims the data directory `dir` and recovers what is in it. Whoever calls starts the engine's workers.
    ///
    /// # Errors
    /// Those of [`Claimed::claim`] and [`Claimed::open`].
    pub fn open(env: Env, dir: &Path, options: StoreOptions) -> Result<(Self, Opened), StoreError> {
        Claimed::claim(env, dir, options)?.open()
    }

    /// The answer to a read, if that is known without waiting for the disk. Scans of entities and of hints, and
    /// pages, are not tried: they may look at much.
    ///
    /// # Panics
    /// When `request` writes: see [`StoreRequest::is_read`].
    #[inline]
    pub fn try_answer(&self, request: &StoreRequest) -> ReadNow {
        match request {
            StoreRequest::Read { key } => self.try_read(key),
            StoreRequest::EndSnapshot { id } => ReadNow::Done(self.end_snapshot(*id)),
            StoreRequest::ReadHints { .. } | StoreRequest::Scan { .. } | StoreRequest::ReadPage(_) => {
                ReadNow::WouldWait
            }
            _ => panic!("{request:?} is not a read"),
        }
    }

    /// The answer to a read. May wait for the disk.
    ///
    /// # Panics
    /// When `request` writes: see [`StoreRequest::is_read`].
    pub fn answer_blocking(&self, request: &StoreRequest) -> StoreResponse {
        let answer = match request {
            StoreRequest::Read { key } => self.read(key),
            StoreRequest::ReadHints { target, after, limit, cells } => {
                scan::hints(&self.engine, *target, after.as_ref(), *limit, *cells)
            }
            StoreRequest::Scan { after, until, limit, values } => {
                let range = scan::Range { after: after.as_ref(), until: until.as_ref() };
                scan::cells(&self.engine, &range, *limit, *values)
            }
            StoreRequest::ReadPage(request) => self.read_page(request),
            StoreRequest::EndSnapshot { id } => Ok(self.end_snapshot(*id)),
            _ => panic!("{request:?} is not a read"),
        };
        answer.unwrap_or_else(StoreResponse::Failed)
    }

    #[inline]
    fn try_read(&self, key: &Key) -> ReadNow {
        match keyspace::with_entity_key(key.as_bytes(), |key| self.engine.try_get(key)) {
            Ok(TryGet::Ready(cell)) => ReadNow::Done(StoreResponse::Cell(cell)),
            Ok(TryGet::WouldWait) => ReadNow::WouldWait,
            Err(error) => ReadNow::Done(StoreResponse::Failed(fault_of(&error))),
        }
    }

    fn read(&self, key: &Key) -> Result<StoreResponse, StoreFault> {
        let cell = keyspace::with_entity_key(key.as_bytes(), |key| self.engine.get(key));
        cell.map(StoreResponse::Cell).map_err(|error| fault_of(&error))
    }

    fn read_page(&self, request: &PageRequest) -> Result<StoreResponse, StoreFault> {
        let from = request.range.from.as_ref();
        let mut borrowed = self.snapshots.borrow(&self.engine, request.snapshot, from)?;
        let sought = if borrowed.is_there { Ok(()) } else { pages::seek(&mut borrowed.cursor, from) };
        let filled = sought.and_then(|()| pages::fill(&mut borrowed.cursor, request));
        match &filled {
            Ok(Filled { rest: Some(rest), .. }) => self.snapshots.park(borrowed, rest.clone()),
            Ok(Filled { rest: None, .. }) | Err(_) => self.snapshots.finish(borrowed),
        }
        let page = |Filled { page, rest }| StoreResponse::Page { page, rest };
        filled.map(page).map_err(|error| fault_of(&error))
    }

    fn end_snapshot(&self, id: SnapshotId) -> StoreResponse {
        self.snapshots.end(id);
        StoreResponse::SnapshotEnded
    }

    /// Hands `group` to the engine. Each of its requests is answered in one call of `done`: at once, on this
    /// thread, when it is refused or writes nothing; otherwise on the engine's commit thread, once it is durable
    /// or failed.
    pub fn submit(
        &self,
        group: WriteGroup,
        done: impl FnOnce(Vec<(StoreId, StoreResponse)>) + Clone + Send + 'static,
    ) {
        for (batch, answers) in group.into_parts() {
            let done = done.clone();
            self.engine.submit(batch, Box::new(move |result| done(answers.of(&result))));
        }
    }

    /// An empty group of writes.
    pub fn write_group(&self) -> WriteGroup {
        WriteGroup::new(self.tag, Arc::clone(&self.record_versions))
    }

    /// Lets go of the snapshots that have been kept for too long. To be called about once a second: what a reader that
    /// stalls holds back is given free by nothing else.
    pub fn expire_snapshots(&self) {
        self.snapshots.expire();
    }

    /// How many snapshots are kept for pages to come.
    pub fn open_snapshots(&self) -> usize {
        self.snapshots.len()
    }

    /// Makes durable that the node is alive at `wall`, by which it is seen at the next start how long it was away. To
    /// be called about hourly; a node on its own has no need of it, and writes nothing.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the file cannot be written. What was noted before stays.
    pub fn note_alive(&self, wall: WallTime) -> Result<(), StoreError> {
        self.alive.as_ref().map_or(Ok(()), |alive| alive.note(wall))
    }

    /// 64 random bits that tell this node's versions from others'.
    pub fn tag(&self) -> NodeTag {
        self.tag
    }

    /// The engine below.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}

/// Where a former life of the node may have issued versions up to.
fn durable_clock_bound(engine: &Engine) -> Result<Hlc, StoreError> {
    match engine.get(CLOCK_BOUND)? {
        None => Ok(Hlc::ZERO),
        Some(cell) => clock_bound_of(&cell).ok_or(StoreError::ClockBound { len: cell.value.len() }),
    }
}
