//! A data directory, open.

use crate::directory::{self, SHARD};
use crate::error::StoreError;
use crate::group::{WriteGroup, clock_bound_of, fault_of};
use crate::identity::{Identity, Membership};
use crate::keyspace::{self, CLOCK_BOUND};
use cluster::{Key, StoreId, StoreResponse};
use engine::{Engine, Recovery, TryGet};
use env::{DirLock, Env};
use std::path::Path;
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
    /// What the engine recovered.
    pub recovery: Recovery,
}

/// The answer to a read that must not wait for the disk.
#[derive(Debug, PartialEq, Eq)]
pub enum ReadNow {
    /// It did not have to.
    Done(StoreResponse),
    /// It would have to: ask [`Store::read_blocking`] on a thread that may wait.
    WouldWait,
}

/// A data directory, open, and locked until the last clone is dropped.
#[derive(Clone)]
pub struct Store {
    engine: Engine,
    tag: NodeTag,
    _lock: Arc<dyn DirLock>,
}

impl Store {
    /// Opens the data directory `dir`, making it where it is missing. Whoever calls starts the engine's workers.
    ///
    /// # Errors
    /// [`StoreError`]: in use, made for another cluster, corrupt, or refused by the operating system.
    pub fn open(env: Env, dir: &Path, options: StoreOptions) -> Result<(Self, Opened), StoreError> {
        let fs = Arc::clone(&env.fs);
        directory::create(&*fs, dir)?;
        let lock = directory::lock(&*fs, dir)?;
        let shard = dir.join(SHARD);
        let holds_data = fs.exists(&shard).map_err(StoreError::io("look for", &shard))?;
        let StoreOptions { engine, membership, new_tag } = options;
        let (identity, is_new) = Identity::load_or_create(&*fs, dir, &membership, new_tag, holds_data)?;
        let (engine, recovery) = Engine::open(env, &shard, engine)?;
        fs.sync_dir(dir).map_err(StoreError::io("sync", dir))?;
        let clock_start = durable_clock_bound(&engine)?.max(recovery.version_max.hlc);
        let store = Self { engine, tag: identity.tag, _lock: Arc::from(lock) };
        Ok((store, Opened { identity, is_new, clock_start, recovery }))
    }

    /// The newest durable cell of `key`, if that is known without waiting for the disk.
    #[inline]
    pub fn try_read(&self, key: &Key) -> ReadNow {
        match keyspace::with_entity_key(key.as_bytes(), |key| self.engine.try_get(key)) {
            Ok(TryGet::Ready(cell)) => ReadNow::Done(StoreResponse::Cell(cell)),
            Ok(TryGet::WouldWait) => ReadNow::WouldWait,
            Err(error) => ReadNow::Done(StoreResponse::Failed(fault_of(&error))),
        }
    }

    /// The newest durable cell of `key`. May wait for the disk.
    pub fn read_blocking(&self, key: &Key) -> StoreResponse {
        match keyspace::with_entity_key(key.as_bytes(), |key| self.engine.get(key)) {
            Ok(cell) => StoreResponse::Cell(cell),
            Err(error) => StoreResponse::Failed(fault_of(&error)),
        }
    }

    /// Hands `group` to the engine. Each of its writes is answered in one call of `done`: at once, on this
    /// thread, when it is refused; otherwise on the engine's commit thread, once it is durable or failed.
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
        WriteGroup::new(self.tag)
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
