//! An open data directory.

use crate::alive_mark::AliveMark;
use crate::checkpoints::{Checkpoint, Checkpoints, Renewal};
use crate::clock_seal;
use crate::data_directory::{DataDirectory, OpenReport, StoreOptions};
use crate::error::StoreError;
use crate::group::{UNOWNED, WriteGroup, fault_of};
use crate::keyspace;
use crate::layout_file::LayoutFile;
use crate::log_mark::LogMark;
use crate::node_record::{self, RecordVersions};
use crate::open_ingests::OpenIngests;
use crate::pages::{self, FilledPage};
use crate::pause::PauseDetector;
use crate::scan;
use crate::snapshots::Snapshots;
use crate::votes_file::VotesFile;
use cluster::{
    Key, LayoutRecord, NodeRecord, Page, PageContent, PageRequest, ReplicaRequest, ReplicaResponse,
    SnapshotId, StoreFault, StoreId, StoreRequest, StoreResponse, VoterState,
};
use engine::{CommitOutcome, CommitTimes, Engine, ErrorKind, HorizonSource, ReadMemory, TryGet};
use env::{DirLock, Env};
use std::path::Path;
use std::sync::Arc;
use stdx::{Hlc, NodeTag, WallTime};

/// Result of a read that must not block on the disk.
#[derive(Debug, PartialEq, Eq)]
pub enum TryAnswer {
    /// The response, which did not need the disk.
    Done(StoreResponse),
    /// The read would block: call [`Store::answer_blocking`] on a thread that may.
    WouldWait,
}

/// An open data directory. It stays locked until the last clone is dropped.
#[derive(Clone)]
pub struct Store {
    pub(crate) engine: Engine,
    pub(crate) tag: NodeTag,
    pub(crate) record_versions: Arc<RecordVersions>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    /// Of no effect while the node is alone.
    pub(crate) alive: Arc<AliveMark>,
    pub(crate) layout: Arc<LayoutFile>,
    pub(crate) votes: Arc<VotesFile>,
    pub(crate) log_mark: Arc<LogMark>,
    pub(crate) pauses: Arc<PauseDetector>,
    pub(crate) ingests: Arc<OpenIngests>,
    pub(crate) _lock: Arc<dyn DirLock>,
}

impl Store {
    /// Locks the data directory `dir` and recovers its content. The caller starts the engine's
    /// workers.
    ///
    /// # Errors
    /// Those of [`DataDirectory::claim`] and [`DataDirectory::open`].
    pub fn open(env: Env, dir: &Path, options: StoreOptions) -> Result<(Self, OpenReport), StoreError> {
        DataDirectory::claim(env, dir, options)?.open()
    }

    /// The layout record of the cluster: the one that was adopted last.
    pub fn layout(&self) -> Arc<LayoutRecord> {
        self.layout.current()
    }

    /// Adopts a decided layout record of this cluster. When this returns, the record is durable and
    /// [`Store::layout`] returns it. Blocks on the disk.
    ///
    /// # Errors
    /// [`StoreError::LayoutRefused`] if the record does not follow the present one; otherwise the
    /// refusal of the operating system. The present record is unchanged.
    pub fn adopt_layout(&self, record: LayoutRecord) -> Result<Arc<LayoutRecord>, StoreError> {
        self.layout.adopt(Arc::new(record))
    }

    /// Makes the state of this node as a voter durable: its newest decided record, which is adopted
    /// if it is newer than the present one, and its votes on the next record. The node sends no
    /// answer that depends on the state before this returns. Blocks on the disk.
    ///
    /// # Errors
    /// [`StoreError::LayoutRefused`] if the decided record does not follow the present one;
    /// otherwise the refusal of the operating system. Part of the state may be durable then, and
    /// the call may be repeated.
    ///
    /// # Panics
    /// If the state is older than the stored one: a promise or a vote would be forgotten.
    pub fn persist_voter(&self, state: &VoterState) -> Result<(), StoreError> {
        self.votes.persist(&self.layout, state)
    }

    /// Executes a read if it does not block on the disk. Scans of entities and hints, and pages,
    /// always return [`TryAnswer::WouldWait`], because they may read many cells.
    ///
    /// # Panics
    /// If `request` writes: see [`StoreRequest::is_read`].
    #[inline]
    pub fn try_answer(&self, request: &StoreRequest) -> TryAnswer {
        match request {
            StoreRequest::Replica(request) => self.try_replica_request(request),
            StoreRequest::AbandonTable(damage) => TryAnswer::Done(self.give_up(damage)),
            StoreRequest::ReadHints { .. }
            | StoreRequest::Scan { .. }
            | StoreRequest::ReadPage(_)
            | StoreRequest::Disown(_)
            | StoreRequest::OwnAgain(_)
            | StoreRequest::ReadDisowned
            | StoreRequest::Ingest(_) => TryAnswer::WouldWait,
            _ => panic!("{request:?} is not a read"),
        }
    }

    #[inline]
    fn try_replica_request(&self, request: &ReplicaRequest) -> TryAnswer {
        match request {
            ReplicaRequest::Read { key } => self.try_read(key),
            ReplicaRequest::ReadMeta { key } => self.try_read_meta(key),
            ReplicaRequest::EndSnapshot { id } => TryAnswer::Done(self.end_snapshot(*id).into()),
            _ => panic!("{request:?} is not a read"),
        }
    }

    /// Executes a request that writes nothing to the log. May block on the disk.
    ///
    /// # Panics
    /// If `request` writes to the log: see [`StoreRequest::is_read`].
    pub fn answer_blocking(&self, request: &StoreRequest) -> StoreResponse {
        self.answer_covered(request, &Arc::default())
    }

    /// As [`Store::answer_blocking`]; `memory` covers the large values that are read.
    ///
    /// # Panics
    /// As [`Store::answer_blocking`].
    pub fn answer_covered(&self, request: &StoreRequest, memory: &Arc<ReadMemory>) -> StoreResponse {
        let answer = match request {
            StoreRequest::Replica(request) => {
                self.replica_response(request, memory).map(StoreResponse::Replica)
            }
            StoreRequest::ReadHints { target, after, limit, cells } => {
                scan::hints(&self.engine, *target, after.as_ref(), *limit, *cells, memory)
            }
            StoreRequest::Scan { after, until, limit, values } => {
                let range = scan::Range { after: after.as_ref(), until: until.as_ref() };
                scan::cells(&self.engine, &range, *limit, *values, memory)
            }
            StoreRequest::ReadPage(request) => self.read_page(request, memory).map(StoreResponse::Replica),
            StoreRequest::AbandonTable(damage) => Ok(self.give_up(damage)),
            StoreRequest::Ingest(request) => self.ingest_response(request).map(StoreResponse::Ingest),
            StoreRequest::Disown(parts) => self.disown(parts),
            StoreRequest::OwnAgain(parts) => self.own_again(parts),
            StoreRequest::ReadDisowned => Ok(self.disowned()),
            _ => panic!("{request:?} is not a read"),
        };
        answer.unwrap_or_else(StoreResponse::Failed)
    }

    fn replica_response(
        &self,
        request: &ReplicaRequest,
        memory: &ReadMemory,
    ) -> Result<ReplicaResponse, StoreFault> {
        match request {
            ReplicaRequest::Read { key } => self.read(key, memory),
            ReplicaRequest::ReadMeta { key } => self.read_meta(key, memory),
            ReplicaRequest::EndSnapshot { id } => Ok(self.end_snapshot(*id)),
            _ => panic!("{request:?} is not a read"),
        }
    }

    #[inline]
    fn try_read(&self, key: &Key) -> TryAnswer {
        match keyspace::with_entity_key(key.as_bytes(), |key| self.engine.try_get(key)) {
            Ok(TryGet::Ready(cell)) => TryAnswer::Done(ReplicaResponse::Cell(cell).into()),
            Ok(TryGet::WouldWait) => TryAnswer::WouldWait,
            Err(error) => TryAnswer::Done(StoreResponse::Failed(fault_of(&error))),
        }
    }

    fn read(&self, key: &Key, memory: &ReadMemory) -> Result<ReplicaResponse, StoreFault> {
        let cell = keyspace::with_entity_key(key.as_bytes(), |key| self.engine.get_covered(key, memory));
        cell.map(ReplicaResponse::Cell).map_err(|error| fault_of(&error))
    }

    fn try_read_meta(&self, key: &Key) -> TryAnswer {
        match keyspace::with_entity_key(key.as_bytes(), |key| self.engine.try_get_meta(key)) {
            Ok(TryGet::Ready(meta)) => TryAnswer::Done(ReplicaResponse::Meta(meta).into()),
            Ok(TryGet::WouldWait) => TryAnswer::WouldWait,
            Err(error) => TryAnswer::Done(StoreResponse::Failed(fault_of(&error))),
        }
    }

    fn read_meta(&self, key: &Key, memory: &ReadMemory) -> Result<ReplicaResponse, StoreFault> {
        let meta = keyspace::with_entity_key(key.as_bytes(), |key| self.engine.get_meta_covered(key, memory));
        meta.map(ReplicaResponse::Meta).map_err(|error| fault_of(&error))
    }

    fn read_page(
        &self,
        request: &PageRequest,
        memory: &Arc<ReadMemory>,
    ) -> Result<ReplicaResponse, StoreFault> {
        if request.range.is_empty() {
            return Ok(ReplicaResponse::Page { page: Page::default(), rest: None });
        }
        let from = request.range.from.as_ref();
        let versions_only = matches!(request.content, PageContent::Cells { versions_only: true, .. });
        let mut borrowed = self.snapshots.borrow(&self.engine, request.snapshot, versions_only, from)?;
        borrowed.cursor.set_memory(Some(Arc::clone(memory)));
        let sought = match borrowed.is_positioned {
            true => pages::resume(&mut borrowed.cursor, from, versions_only),
            false => pages::seek(&mut borrowed.cursor, from),
        };
        let cover_copy = |bytes| self.engine.cover_copy(bytes, memory);
        let is_next = borrowed.is_positioned;
        let filled = sought.and_then(|()| pages::fill(&mut borrowed.cursor, request, is_next, cover_copy));
        borrowed.cursor.set_memory(None);
        match &filled {
            Ok(FilledPage { rest: Some(rest), .. }) => self.snapshots.park(borrowed, rest.clone()),
            Ok(FilledPage { rest: None, page }) => match request.continues_at() {
                Some(stands_at) => self.snapshots.park(borrowed, stands_at.clone()),
                None if page.is_oversized() => self.snapshots.retain(borrowed),
                None => self.snapshots.finish(borrowed),
            },
            // The page is read again from the same moment.
            Err(error) if error.kind() == ErrorKind::Retry => self.snapshots.retain(borrowed),
            Err(_) => self.snapshots.finish(borrowed),
        }
        let page = |FilledPage { page, rest }| ReplicaResponse::Page { page, rest };
        filled.map(page).map_err(|error| {
            self.engine.note_failed_read(&error);
            fault_of(&error)
        })
    }

    fn end_snapshot(&self, id: SnapshotId) -> ReplicaResponse {
        self.snapshots.end(id);
        ReplicaResponse::SnapshotEnded
    }

    /// Submits `group` to the engine. Each of its requests is answered in exactly one call of
    /// `done`. The call happens at once, on this thread, if the batch is refused or empty, or if
    /// the write need not be logged because a newer cell is durable. Otherwise it happens on the
    /// engine's commit thread, once the batch is durable or failed. `done` also receives the
    /// timestamps of the commit stages, unless the batch failed or the write was not logged.
    pub fn submit(
        &self,
        mut group: WriteGroup,
        done: impl FnOnce(Vec<(StoreId, StoreResponse)>, Option<CommitTimes>) + Clone + Send + 'static,
    ) {
        for write in group.take_covered() {
            let done = done.clone();
            write.respond(move |response| done(vec![response], None));
        }
        let unowned = group.take_unowned();
        if !unowned.is_empty() {
            let refused = unowned.into_iter().map(|id| (id, StoreResponse::Failed(UNOWNED)));
            done.clone()(refused.collect(), None);
        }
        for (batch, answers) in group.into_batches() {
            let done = done.clone();
            let told = move |result: Result<CommitOutcome, engine::Error>| {
                let times = result.as_ref().ok().map(|committed| committed.times);
                done(answers.responses(&result), times);
            };
            self.engine.submit(batch, Box::new(told));
        }
    }

    /// Returns an empty group of writes.
    pub fn write_group(&self) -> WriteGroup {
        WriteGroup::new(self.engine.clone(), self.tag, Arc::clone(&self.record_versions))
    }

    /// Closes the snapshots that are too old, and the oldest ones while all together pin too much
    /// memory. The host calls it about once a second; nothing else releases the resources of a
    /// stalled reader.
    pub fn expire_snapshots(&self) -> usize {
        self.snapshots.expire(&self.engine)
    }

    /// Sets the horizon: the time by which compaction judges expiry and grace periods. Compaction
    /// keeps deletes that are newer than `exchanged_to`, the time up to which the replicas have
    /// exchanged all deletes. The host calls this regularly for a node with peers; until the first
    /// call nothing is dropped. A standalone node judges by its own clock, and the call has no
    /// effect. A node that was alone when it was opened follows the calls from the layout record on
    /// that names a peer.
    pub fn set_horizon(&self, wall: WallTime, exchanged_to: WallTime) {
        if self.engine.options().horizon == HorizonSource::Host || self.has_peers() {
            self.engine.set_horizon(wall, exchanged_to);
        }
    }

    /// Whether the layout record has other nodes.
    fn has_peers(&self) -> bool {
        self.layout.current().members.len() > 1
    }

    /// Number of snapshots closed because of their memory since the store was opened.
    pub fn snapshots_dropped_for_memory(&self) -> u64 {
        self.snapshots.dropped_for_memory()
    }

    /// Number of snapshots that are open for further pages.
    pub fn snapshot_count(&self) -> usize {
        self.snapshots.len()
    }

    /// Records durably that the node has heard of all deletes up to `wall`, if its node record
    /// confirms that. The next start derives from it how much the node missed. The host calls this
    /// every few minutes once the node is ready, that is, once the hints for it are applied. A
    /// standalone node writes nothing.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be written or the node record cannot be read, or as
    /// [`Store::check_for_pause`]. The previous record stays valid.
    pub fn note_alive(&self, wall: WallTime) -> Result<(), StoreError> {
        self.check_for_pause()?;
        match node_record::find(&self.engine)?.filter(|_| self.has_peers()) {
            Some((record, _)) => self.alive.advance(wall, &record),
            None => Ok(()),
        }
    }

    /// Corrects the time of [`Store::note_alive`] if it is more than an hour past `supported`, the
    /// time that the clocks of a majority of the cluster support. A clock that was far ahead when
    /// the directory was created, or an older release, may have left such a time; it would hide
    /// later absences. The host calls this as often as [`Store::note_alive`].
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read or written. The previous record stays valid.
    pub fn limit_alive(&self, supported: WallTime) -> Result<(), StoreError> {
        if self.has_peers() { self.alive.limit(supported) } else { Ok(()) }
    }

    /// Checks whether the process was paused since the last call. The host calls this about once a
    /// second. It reads the clocks. A standalone node never counts as paused.
    ///
    /// # Errors
    /// [`StoreError::PausedTooLong`] if the process was stopped, or the machine suspended, for so
    /// long that the data must not be used before a new start has judged the absence. The host ends
    /// the process; nothing more is recorded.
    pub fn check_for_pause(&self) -> Result<(), StoreError> {
        if self.has_peers() { self.pauses.check(&self.alive) } else { Ok(()) }
    }

    /// Number of pauses since the store was opened that were too long for hints to certainly
    /// deliver all missed writes, as found by [`Store::check_for_pause`]. The host schedules a
    /// repair with all peers for each.
    pub fn absences(&self) -> u64 {
        self.pauses.absences()
    }

    /// Confirms that the first `absences` of [`Store::absences`] are covered: their pending repair
    /// is durable in the node record, or it is complete. From then on the repair determines when
    /// the node has heard of all deletes.
    pub fn note_repair_recorded(&self, absences: u64) {
        if self.has_peers() && absences > 0 {
            self.alive.note_repair_recorded(absences);
        }
    }

    /// Whether the durable end of the log has moved since [`Store::note_log_end`]. Does no I/O.
    pub fn has_stale_log_mark(&self) -> bool {
        self.engine.durable_log_end().is_some_and(|end| !self.log_mark.is_at(end))
    }

    /// Records the durable end of the log beside the data, so that the next start detects a log
    /// that was truncated before it. The host calls this about once a second, on a thread on which
    /// no request waits. It writes a small file if the durable end has moved, and nothing
    /// otherwise.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the file cannot be written. The previous record stays valid.
    pub fn note_log_end(&self) -> Result<(), StoreError> {
        self.log_mark.note(|| self.engine.durable_log_end())
    }

    /// Commits pending batches, closes the log and records its exact end. The host calls this
    /// before the process ends, after the workers have stopped.
    ///
    /// # Errors
    /// [`engine::Error::Poisoned`] if the log failed now or earlier. The next start recovers from
    /// it.
    pub fn close(&self) -> Result<(), engine::Error> {
        self.engine.close()?;
        if let Err(error) = self.note_log_end() {
            // The previous mark stays valid.
            tracing::warn!(%error, "the end of the log could not be noted");
        }
        Ok(())
    }

    /// Makes a checkpoint of all writes that were acknowledged before the call: a directory to be
    /// copied and then removed. Only one checkpoint is made or removed at a time. Blocks on the
    /// disk, a flush and one link per table; reads and writes continue meanwhile.
    ///
    /// # Errors
    /// [`StoreError::TooManyCheckpoints`] if [`CHECKPOINTS_MAX`](crate::CHECKPOINTS_MAX) exist;
    /// otherwise the error of the engine or the operating system. No checkpoint is left then, and
    /// the store continues.
    pub fn checkpoint(&self) -> Result<Checkpoint, StoreError> {
        self.checkpoints.make(&self.engine, None)
    }

    /// Same as [`Store::checkpoint`] with a name that the caller chose, so that it can find the
    /// checkpoint even if the response is lost.
    ///
    /// # Errors
    /// Same as [`Store::checkpoint`]; [`StoreError::CheckpointExists`],
    /// [`StoreError::NotACheckpointName`].
    pub fn checkpoint_named(&self, name: &str) -> Result<Checkpoint, StoreError> {
        self.checkpoints.make(&self.engine, Some(name))
    }

    /// Lists the checkpoints by name. Waits for one that is being made.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn list_checkpoints(&self) -> Result<Vec<Checkpoint>, StoreError> {
        self.checkpoints.list()
    }

    /// Number of checkpoints, for reports on disk space; 0 if it cannot be determined.
    pub fn checkpoint_count(&self) -> usize {
        self.checkpoints.count()
    }

    /// Extends the lease of a checkpoint to one hour from now, unless the checkpoint is a day old.
    pub fn renew_checkpoint(&self, name: &str) -> Renewal {
        self.checkpoints.renew(name)
    }

    /// Removes checkpoints whose lease has expired. The host calls it about once a minute. Blocks
    /// on the disk.
    ///
    /// # Errors
    /// Same as [`Store::remove_checkpoint`].
    pub fn expire_checkpoints(&self) -> Result<(), StoreError> {
        self.checkpoints.expire(&self.engine)
    }

    /// Removes a checkpoint. Returns whether it existed; any text is a safe argument. Blocks on the
    /// disk.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the checkpoint is removed only partly. The rest is never taken for a
    /// checkpoint, and the call can be repeated.
    pub fn remove_checkpoint(&self, name: &str) -> Result<bool, StoreError> {
        self.checkpoints.remove(&self.engine, name)
    }

    /// Makes the node record durable.
    pub(crate) fn remember(&self, record: &NodeRecord) -> Result<(), StoreError> {
        let mut group = self.write_group();
        group.add(StoreId(0), &StoreRequest::PersistRecord { record: record.clone() });
        for (batch, _nobody_waits) in group.into_batches() {
            self.engine.write(batch)?;
        }
        Ok(())
    }

    /// Records durably that no version greater than `issued` was issued, so that the next start
    /// begins with it. This must be the last write of a process: no version may be issued
    /// afterwards.
    ///
    /// # Errors
    /// [`StoreError::Engine`]: the next start begins with the reserved bound.
    pub fn seal_clock(&self, issued: Hlc) -> Result<(), StoreError> {
        clock_seal::seal(&self.engine, self.tag, issued)
    }

    /// The 64 random bits that distinguish this node's versions from those of other nodes.
    pub fn tag(&self) -> NodeTag {
        self.tag
    }

    /// The storage engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}
