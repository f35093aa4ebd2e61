//! A data directory, open.

use crate::alive::Alive;
use crate::checkpoints::{Checkpoint, Checkpoints, Renewal};
use crate::claimed::{Claimed, Opened, StoreOptions};
use crate::clock_seal;
use crate::error::StoreError;
use crate::group::{WriteGroup, fault_of};
use crate::keyspace;
use crate::log_mark::LogMark;
use crate::node_record::{self, RecordVersions};
use crate::pages::{self, Filled};
use crate::presence::Presence;
use crate::scan;
use crate::snapshots::Snapshots;
use cluster::{
    Key, NodeRecord, Page, PageRequest, SnapshotId, StoreFault, StoreId, StoreRequest, StoreResponse,
};
use engine::{CommitOutcome, CommitTimes, Engine, HorizonSource, TryGet};
use env::{DirLock, Env};
use std::path::Path;
use std::sync::Arc;
use stdx::{Hlc, NodeTag, WallTime};

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
    pub(crate) engine: Engine,
    pub(crate) tag: NodeTag,
    pub(crate) record_versions: Arc<RecordVersions>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    /// Of a node with peers.
    pub(crate) alive: Option<Arc<Alive>>,
    pub(crate) log_mark: Arc<LogMark>,
    pub(crate) presence: Arc<Presence>,
    pub(crate) _lock: Arc<dyn DirLock>,
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
            StoreRequest::AbandonTable(damage) => ReadNow::Done(self.give_up(damage)),
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
            StoreRequest::AbandonTable(damage) => Ok(self.give_up(damage)),
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
        if request.range.is_empty() {
            return Ok(StoreResponse::Page { page: Page::default(), rest: None });
        }
        let from = request.range.from.as_ref();
        let mut borrowed = self.snapshots.borrow(&self.engine, request.snapshot, from)?;
        let sought = match borrowed.is_there {
            true => pages::go_on(&mut borrowed.cursor, from),
            false => pages::seek(&mut borrowed.cursor, from),
        };
        let begin_copy = |bytes| self.engine.begin_copy(bytes);
        let filled = sought.and_then(|()| pages::fill(&mut borrowed.cursor, request, begin_copy));
        match &filled {
            Ok(Filled { rest: Some(rest), .. }) => self.snapshots.park(borrowed, rest.clone()),
            Ok(Filled { rest: None, page }) => match request.continues_at() {
                Some(stands_at) => self.snapshots.park(borrowed, stands_at.clone()),
                None if page.is_oversized() => self.snapshots.keep(borrowed),
                None => self.snapshots.finish(borrowed),
            },
            Err(_) => self.snapshots.finish(borrowed),
        }
        let page = |Filled { page, rest }| StoreResponse::Page { page, rest };
        filled.map(page).map_err(|error| {
            self.engine.note_failed_read(&error);
            fault_of(&error)
        })
    }

    fn end_snapshot(&self, id: SnapshotId) -> StoreResponse {
        self.snapshots.end(id);
        StoreResponse::SnapshotEnded
    }

    /// Hands `group` to the engine. Each of its requests is answered in one call of `done`: at once, on this
    /// thread, when it is refused or writes nothing; otherwise on the engine's commit thread, once it is durable
    /// or failed. It is told when the group was through with what, unless it failed.
    pub fn submit(
        &self,
        group: WriteGroup,
        done: impl FnOnce(Vec<(StoreId, StoreResponse)>, Option<CommitTimes>) + Clone + Send + 'static,
    ) {
        for (batch, answers) in group.into_parts() {
            let done = done.clone();
            let told = move |result: Result<CommitOutcome, engine::Error>| {
                let times = result.as_ref().ok().map(|committed| committed.times);
                done(answers.of(&result), times);
            };
            self.engine.submit(batch, Box::new(told));
        }
    }

    /// An empty group of writes.
    pub fn write_group(&self) -> WriteGroup {
        WriteGroup::new(self.tag, Arc::clone(&self.record_versions))
    }

    /// Releases the snapshots that are too old, and the oldest ones while all hold too much memory. The host calls this
    /// about once a second: nothing else releases what a stalled reader holds.
    ///
    /// Returns the number of snapshots that were released for their memory. Their scans continue on newer data.
    pub fn expire_snapshots(&self) -> usize {
        self.snapshots.expire(&self.engine)
    }

    /// Sets the horizon: the time by which compaction may delete what has expired, or was deleted a grace period
    /// before. Called regularly for a node with peers; until the first call nothing is deleted. A node on its own
    /// judges by its own clock, and the call does nothing. No delete goes that is newer than `exchanged_to`, the time up
    /// to which the replicas have exchanged all deletes.
    pub fn set_horizon(&self, wall: WallTime, exchanged_to: WallTime) {
        if self.engine.options().horizon == HorizonSource::Host {
            self.engine.set_horizon(wall, exchanged_to);
        }
    }

    /// Snapshots that were released for their memory since the store was opened.
    pub fn snapshots_dropped_for_memory(&self) -> u64 {
        self.snapshots.dropped_for_memory()
    }

    /// How many snapshots are kept for pages to come.
    pub fn open_snapshots(&self) -> usize {
        self.snapshots.len()
    }

    /// Makes durable that the node has heard of all deletes up to `wall`, if what it remembers says so: by that it is
    /// seen at the next start what it missed. To be called every few minutes once the node is ready, that is, once the
    /// hints for it are applied; a node on its own has no need of it, and writes nothing.
    ///
    /// # Errors
    /// [`StoreError`]: the file cannot be written, or what the node remembers not be read, or as
    /// [`Store::check_presence`]. What was noted before stays.
    pub fn note_alive(&self, wall: WallTime) -> Result<(), StoreError> {
        self.check_presence()?;
        match (&self.alive, node_record::find(&self.engine)?) {
            (Some(alive), Some((record, _))) => alive.advance(wall, &record),
            _ => Ok(()),
        }
    }

    /// Corrects the time that [`Store::note_alive`] keeps, if it lies more than an hour past `supported`: the time that the
    /// clocks of a majority of the cluster support. A clock that was far ahead when the directory was made, or in an older
    /// version, left such a time; it would hide later absences. To be called as often as [`Store::note_alive`].
    ///
    /// # Errors
    /// [`StoreError`]: the file cannot be read or written. What was noted before stays.
    pub fn limit_alive(&self, supported: WallTime) -> Result<(), StoreError> {
        self.alive.as_ref().map_or(Ok(()), |alive| alive.limit(supported))
    }

    /// Whether the node has been there since the last call, to be asked about once a second. Reads the clocks; a node on its
    /// own is always there.
    ///
    /// # Errors
    /// [`StoreError::StoodStill`]: the process was stopped, or the machine suspended, for so long that the data must not be
    /// used any more before a start has judged the absence: the host ends the process, which notes nothing more.
    pub fn check_presence(&self) -> Result<(), StoreError> {
        self.alive.as_ref().map_or(Ok(()), |alive| self.presence.check(alive))
    }

    /// How often the process stood still, since the store was opened, for so long that hints may not bring all that it missed, as
    /// [`Store::check_presence`] has found. The host has the node owe its peers a repair for each.
    pub fn absences(&self) -> u64 {
        self.presence.absences()
    }

    /// It is durable that a repair is owed for so many of [`Store::absences`], or it is paid: the repair decides from now on when the
    /// node has heard of all deletes.
    pub fn note_absences_owed(&self, absences: u64) {
        if let Some(alive) = self.alive.as_ref().filter(|_| absences > 0) {
            alive.note_owed(absences);
        }
    }

    /// Whether the durable end of the log has moved since [`Store::note_log_end`]. Does no I/O.
    pub fn owes_log_mark(&self) -> bool {
        self.engine.durable_log_end().is_some_and(|end| !self.log_mark.is_at(end))
    }

    /// Makes durable, beside the data, how far the log is durable: the next start notices a log that was cut before that
    /// place. To be called about once a second, not by a thread that others wait for; it writes a small file if the
    /// durable end has moved, and nothing otherwise.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the file cannot be written. What was noted before stays.
    pub fn note_log_end(&self) -> Result<(), StoreError> {
        self.log_mark.note(|| self.engine.durable_log_end())
    }

    /// Commits what waits, closes the log, and notes its exact end. To be called before the process ends, after the
    /// workers have stopped.
    ///
    /// # Errors
    /// [`engine::Error::Poisoned`]: the log failed now or earlier. The next start recovers from it.
    pub fn close(&self) -> Result<(), engine::Error> {
        self.engine.close()?;
        if let Err(error) = self.note_log_end() {
            // The older mark stays true.
            tracing::warn!(%error, "the end of the log could not be noted");
        }
        Ok(())
    }

    /// Makes a checkpoint of all that was acknowledged before the call: a directory to be copied and then removed. One
    /// is made or removed at a time. Waits for the disk, for a flush and for one link a table; reads and writes go on.
    ///
    /// # Errors
    /// [`StoreError::TooManyCheckpoints`] when [`CHECKPOINTS_MAX`](crate::CHECKPOINTS_MAX) are kept; else what the engine
    /// or the operating system refused. Then there is no checkpoint, and the store goes on.
    pub fn checkpoint(&self) -> Result<Checkpoint, StoreError> {
        self.checkpoints.make(&self.engine, None)
    }

    /// The same, under a name that the caller has drawn, and so knows whatever becomes of the answer.
    ///
    /// # Errors
    /// As [`Store::checkpoint`]; [`StoreError::CheckpointExists`], [`StoreError::NotACheckpointName`].
    pub fn checkpoint_named(&self, name: &str) -> Result<Checkpoint, StoreError> {
        self.checkpoints.make(&self.engine, Some(name))
    }

    /// The checkpoints that are kept, by their names. Waits for one that is being made.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn list_checkpoints(&self) -> Result<Vec<Checkpoint>, StoreError> {
        self.checkpoints.list()
    }

    /// How many checkpoints are kept, for whoever looks for room: 0 also when it cannot be seen.
    pub fn checkpoints_kept(&self) -> usize {
        self.checkpoints.kept()
    }

    /// Keeps the checkpoint of this name for another hour, unless it is a day old.
    pub fn renew_checkpoint(&self, name: &str) -> Renewal {
        self.checkpoints.renew(name)
    }

    /// Removes checkpoints that were not renewed for an hour. The host calls it about once a minute. Waits for the disk.
    ///
    /// # Errors
    /// As [`Store::remove_checkpoint`].
    pub fn expire_checkpoints(&self) -> Result<(), StoreError> {
        self.checkpoints.expire(&self.engine)
    }

    /// Removes the checkpoint of this name. Returns whether there was one; any text is asked for safely. Waits for the
    /// disk.
    ///
    /// # Errors
    /// [`StoreError::Io`]: not all of it is removed. Nothing takes what is left for a checkpoint, and it may be removed
    /// again.
    pub fn remove_checkpoint(&self, name: &str) -> Result<bool, StoreError> {
        self.checkpoints.remove(&self.engine, name)
    }

    /// Makes durable what the node remembers.
    pub(crate) fn remember(&self, record: &NodeRecord) -> Result<(), StoreError> {
        let mut group = self.write_group();
        group.add(StoreId(0), &StoreRequest::PersistRecord { record: record.clone() });
        for (batch, _nobody_waits) in group.into_parts() {
            self.engine.write(batch)?;
        }
        Ok(())
    }

    /// Makes durable that no version greater than `issued` was issued, so that the next start begins with it. The last write
    /// of a process: no version may be issued any more.
    ///
    /// # Errors
    /// [`StoreError::Engine`]: the next start begins with what was reserved.
    pub fn seal_clock(&self, issued: Hlc) -> Result<(), StoreError> {
        clock_seal::seal(&self.engine, self.tag, issued)
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
