//! A data directory, open.

use crate::directory::{self, SHARD};
use crate::error::StoreError;
use crate::group::{WriteGroup, clock_bound_of, fault_of};
use crate::identity::{Identity, Membership};
use crate::keyspace::{self, CLOCK_BOUND};
use crate::node_record::{self, RecordVersions};
use crate::scan;
use cluster::{Key, NodeRecord, StoreFault, StoreId, StoreRequest, StoreResponse};
use engine::{Engine, Recovery, TryGet};
use env::{DirLock, Env};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stdx::{Hlc, NodeTag};

/// How to open a data directory.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Of the engine.
    pub engine: engine::Options,
    /// The cluster that the directory must have been made for, or is made for.
    pub membership: Membership,
    /// 64 random bits, used when the directory is new.
    pub new_tag: NodeTag,
}

/// What was found when the directory was opened.
#[derive(Debug)]
pub struct Opened {
    /// Whose directory it is.
    pub identity: Identity,
    /// It was made by this open.
    pub is_new: bool,
    /// Where the version clock begins: no value up to this one may be issued (again).
    pub clock_start: Hlc,
    /// What the node remembers; nothing yet where nothing is stored.
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
    _lock: Arc<dyn DirLock>,
}

/// A data directory that is this process's and this node's, and not recovered yet.
pub struct Claimed {
    env: Env,
    dir: PathBuf,
    engine: engine::Options,
    identity: Identity,
    is_new: bool,
    lock: Box<dyn DirLock>,
}

impl Claimed {
    /// Locks the data directory `dir`, making it where it is missing, and checks whose it is. Takes no longer
    /// however much data there is.
    ///
    /// # Errors
    /// [`StoreError`]: in use, made for another cluster, its identity corrupt, or refused by the operating system.
    pub fn claim(env: Env, dir: &Path, options: StoreOptions) -> Result<Self, StoreError> {
        let fs = &*env.fs;
        directory::create(fs, dir)?;
        let lock = directory::lock(fs, dir)?;
        let shard = dir.join(SHARD);
        let holds_data = fs.exists(&shard).map_err(StoreError::io("look for", &shard))?;
        let StoreOptions { engine, membership, new_tag } = options;
        let (identity, is_new) = Identity::load_or_create(fs, dir, &membership, new_tag, holds_data)?;
        Ok(Self { env, dir: dir.to_owned(), engine, identity, is_new, lock })
    }

    /// Recovers what is in it. Whoever calls starts the engine's workers.
    ///
    /// # Errors
    /// [`StoreError`]: corrupt, or refused by the operating system.
    pub fn open(self) -> Result<(Store, Opened), StoreError> {
        let Self { env, dir, engine, identity, is_new, lock } = self;
        let (fs, clock) = (Arc::clone(&env.fs), Arc::clone(&env.clock));
        let (engine, recovery) = Engine::open(env, &dir.join(SHARD), engine)?;
        fs.sync_dir(&dir).map_err(StoreError::io("sync", &dir))?;
        let clock_start = durable_clock_bound(&engine)?.max(recovery.version_max.hlc);
        let (record, versions) = node_record::load(&engine, clock)?;
        let record = record.unwrap_or_default();
        let tag = identity.tag;
        let store = Store { engine, tag, record_versions: Arc::new(versions), _lock: Arc::from(lock) };
        Ok((store, Opened { identity, is_new, clock_start, record, recovery }))
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

    /// The answer to a read, if that is known without waiting for the disk. Scans of entities and of hints are
    /// not tried: they may look at much.
    ///
    /// # Panics
    /// When `request` writes: see [`StoreRequest::is_read`].
    #[inline]
    pub fn try_answer(&self, request: &StoreRequest) -> ReadNow {
        match request {
            StoreRequest::Read { key } => self.try_read(key),
            StoreRequest::ReadHints { .. } | StoreRequest::Scan { .. } => ReadNow::WouldWait,
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
