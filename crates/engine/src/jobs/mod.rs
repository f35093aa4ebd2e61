//! Background jobs, stepped by the host: flush, compaction, upkeep.
//!
//! **Promise.** Each step is bounded by a budget. A job that is interrupted anywhere (by the end of
//! the process or a full disk) leaves the live data unchanged. Its outputs become live in one
//! durable edit of the manifest, and are removed otherwise.
//!
//! **Mechanism.** A memtable is flushed when it is sealed and all of it is durable; then the log
//! segments that only it needed are released. The picker chooses compactions; the tables of a
//! running one are *busy* and are not picked again. Upkeep removes the files of tables without
//! references.
//!
//! **Caveats.** Memtables are flushed one at a time, the oldest first.

pub(crate) mod running;

pub use running::Progress;

use crate::Error;
use crate::compaction::{
    self, CompactionStep, DroppedVersions, FlushJob, Job, JobContext, PlanId, Reason, RunningPlans,
};
use crate::disk::{DiskSpace, DiskStats};
use crate::engine::{Engine, Shared};
use crate::manifest::VersionEdit;
use crate::obsolete::{PIECE_EVERY, RemovalPace};
use crate::ownership::OtherSources;
use crate::sstable::{TableId, TableOptions};
use crate::view::{LoggedMemtable, MinVersions, View};
use running::{Compaction, Flush};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use stdx::Version;

/// Budget of one step that blocks no other thread, in bytes.
const STEP_BYTES: u64 = 4 << 20;
/// Least time between two flushes of deletes while the disk is full. Each such flush makes a table
/// that is merged at once.
const DELETES_FLUSHED_EVERY: Duration = Duration::from_secs(1);

impl Engine {
    /// Runs flush, compaction and healing on this thread until none has work left.
    ///
    /// # Errors
    /// As [`Engine::step_flush`], [`Engine::step_compaction`] and [`Engine::step_healing`].
    pub fn run_jobs(&self) -> Result<(), Error> {
        loop {
            let flushed = self.step_flush(STEP_BYTES)?;
            // Tables that a compaction failed to read are scanned before the next compaction
            // begins.
            let healed = self.step_healing(STEP_BYTES)?;
            let compacted = self.step_compaction(0, STEP_BYTES)?;
            let upkept = self.step_upkeep(STEP_BYTES)?;
            if [flushed, compacted, healed, upkept] == [Progress::Idle; 4] {
                return Ok(());
            }
        }
    }

    /// Commits and flushes all batches that were submitted before the call, on this thread or
    /// together with the workers. Terminates even under continuous writes.
    ///
    /// # Errors
    /// As [`Engine::step_flush`].
    pub fn flush(&self) -> Result<(), Error> {
        let sealed = self.seal();
        let is_pending = || {
            let view = self.shared.view.load();
            view.sealed.iter().any(|logged| sealed.iter().any(|sealed| Arc::ptr_eq(sealed, logged)))
        };
        while is_pending() {
            // Only durable memtables are flushed.
            self.step_commit()?;
            self.step_flush(STEP_BYTES)?;
        }
        Ok(())
    }

    /// Seals the active memtable if sequences were assigned for it. Returns all sealed memtables.
    pub(crate) fn seal(&self) -> Vec<Arc<LoggedMemtable>> {
        let mut queue = self.shared.commit_queue.lock();
        if self.shared.view.load().active.last() > crate::Sequence::ZERO {
            self.rotate(&mut queue);
        }
        self.shared.view.load().sealed.clone()
    }

    /// Flushes up to about `budget_bytes` of the oldest sealed memtable.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Exhausted`]: the job was undone and starts over with the next
    /// step. [`Error::Poisoned`] after any other failed write.
    pub fn step_flush(&self, budget_bytes: u64) -> Result<Progress, Error> {
        self.check_poison()?;
        let mut slot = self.shared.jobs.flush.lock();
        if slot.is_none() {
            *slot = self.begin_flush();
        }
        let Some(flush) = slot.as_mut() else { return Ok(Progress::Idle) };
        let stepped = flush.job.step(budget_bytes);
        match stepped {
            Ok(CompactionStep::More) => {
                self.shared.background.set_flushed_bytes(flush.job.done_bytes());
                Ok(Progress::Worked)
            }
            Ok(CompactionStep::Done(edit)) => {
                // The slot stays locked: until the view has changed, the same memtable would be
                // chosen again.
                let flush = slot.take().expect("the job was just stepped");
                self.finish_flush(&flush, *edit)?;
                Ok(Progress::Worked)
            }
            Err(error) => {
                *slot = None;
                self.shared.background.flush_ended(None);
                Err(self.job_failed(error))
            }
        }
    }

    fn begin_flush(&self) -> Option<Flush> {
        let view = self.shared.view.load();
        let source = view.sealed.last()?;
        let watermark = crate::Sequence(self.shared.watermark.load(Ordering::Acquire));
        if source.last() > watermark {
            return None;
        }
        let cursor = source.memtable.cursor(watermark);
        let mut context = self.job_context();
        context.sources = context.sources.without_memtable(source.memtable.id());
        let job = FlushJob::new(cursor, context);
        let began = self.now();
        self.shared.background.note_pending_flush(began);
        Some(Flush { job, source: Arc::clone(source), began })
    }

    fn finish_flush(&self, flush: &Flush, mut edit: VersionEdit) -> Result<(), Error> {
        let floor = self.shared.log_floor(Some(&flush.source));
        edit.wal_floor = Some(floor);
        // Before the view changes, so that a compaction finds its versions in at least one of the
        // two.
        self.shared.replayable.lock().flushed(&flush.source);
        self.note_flushed(flush.source.oldest());
        let installed =
            self.shared.install_edit(&edit, |view, levels| View::flushed(view, &flush.source, levels));
        let freed = (flush.source.memtable.bytes_used(), self.now() - flush.began);
        self.shared.background.flush_ended(installed.is_ok().then_some(freed));
        if !self.shared.view.load().sealed.is_empty() {
            self.shared.background.note_pending_flush(self.now());
        }
        if let Err(error) = installed {
            return Err(self.edit_failed(&edit, error));
        }
        self.shared.counters.record_flush(&edit);
        self.shared.pinned_memtables.flushed(&flush.source.memtable);
        self.shared.replayable.lock().released(floor);
        self.shared.lock_wal().release(floor);
        Ok(())
    }

    /// Continues the compaction of `slot` by about `budget_bytes` of keys and values, or begins
    /// one. A slot is a small index; jobs in different slots run in parallel.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Exhausted`], and [`Error::Corrupt`] or [`Error::Io`] of a table
    /// that cannot be read: the job was undone; it, or one without that table, is picked again.
    /// [`Error::Poisoned`] after any other failed write.
    pub fn step_compaction(&self, slot: usize, budget_bytes: u64) -> Result<Progress, Error> {
        self.check_poison()?;
        let slot = self.shared.jobs.slot(slot);
        let mut slot = slot.lock();
        let Some(mut compaction) = slot.take().or_else(|| self.begin_compaction()) else {
            return Ok(Progress::Idle);
        };
        let began = self.now();
        let stepped = compaction.job.step(budget_bytes);
        let (plan, done) = (compaction.plan, compaction.job.progress());
        self.shared.background.note_compaction_step(plan, done, self.now() - began);
        match stepped {
            Ok(CompactionStep::More) => {
                *slot = Some(compaction);
                Ok(Progress::Worked)
            }
            Ok(CompactionStep::Done(edit)) => {
                self.shared.counters.record_merge(compaction.job.plan(), &edit);
                *slot = self.finish_compaction(&compaction, &edit)?;
                Ok(Progress::Worked)
            }
            Err(error) => {
                drop(compaction.job);
                self.end_plan(compaction.plan, false);
                match error.unreadable() {
                    Some(path) if self.suspect(path) => Err(error),
                    _ => Err(self.job_failed(error)),
                }
            }
        }
    }

    /// Makes the outputs of a compaction live. If a late write or an ingested cell would become
    /// visible by that, returns the compaction to run instead.
    fn finish_compaction(
        &self,
        compaction: &Compaction,
        edit: &VersionEdit,
    ) -> Result<Option<Compaction>, Error> {
        // Locked until the edit is installed: no table is ingested between the check and the edit.
        let busy = self.shared.jobs.busy.lock();
        if self.has_late_write(compaction) {
            drop(busy);
            self.discard_outputs(edit);
            return Ok(self.restart_without_drops(compaction));
        }
        let installed = self.shared.install_edit(edit, View::with_levels);
        drop(busy);
        self.end_plan(compaction.plan, installed.is_ok());
        if let Err(error) = installed {
            return Err(self.edit_failed(edit, error));
        }
        self.shared.counters.record_compaction(compaction.job.plan());
        Ok(None)
    }

    /// The same plan with every tombstone kept: it completes under any writes. A rewrite within one
    /// level is abandoned, as its only purpose was to drop tombstones, unless it is for a purge.
    fn restart_without_drops(&self, compaction: &Compaction) -> Option<Compaction> {
        let plan = compaction.job.plan().clone();
        let is_in_place = plan.inputs.iter().all(|input| input.level == plan.output_level);
        if is_in_place && plan.reason != Reason::Purge {
            self.end_plan(compaction.plan, false);
            return None;
        }
        let context = JobContext {
            memtable_version_min: Some(Version::MIN),
            memtable_local_version_min: Some(Version::MIN),
            ..self.job_context()
        };
        Some(Compaction { job: Job::new(plan, context), plan: compaction.plan })
    }

    fn begin_compaction(&self) -> Option<Compaction> {
        // Locked before the levels are read: a plan that ends meanwhile is seen in one of the two.
        let mut busy = self.shared.jobs.busy.lock();
        let context = self.job_context();
        let plan = self.pick(&context, &busy)?;
        let id = busy.begin(&plan);
        // Before another ingest can install a table that the plan does not see.
        self.shared.jobs.added_since.lock().insert(id, MinVersions::default());
        drop(busy);
        self.shared.background.compaction_began(id, &plan, self.now());
        Some(Compaction { job: Job::new(plan, context), plan: id })
    }

    /// The next compaction that fits on the disk beside the running ones. While disk space is low,
    /// one table in level 0 is enough to start: compacting deletes with the cells that they shadow
    /// frees space.
    fn pick(&self, context: &JobContext, busy: &RunningPlans) -> Option<compaction::Plan> {
        let mut options = Cow::Borrowed(&self.shared.options);
        if self.shared.disk.space() != DiskSpace::Ample {
            options.to_mut().level0_tables = 1;
        }
        // A flush needs space meanwhile, and releases more than that, in the log.
        let kept_bytes = self.shared.memtable_bytes.saturating_add(busy.bytes());
        let bytes_max = self.shared.disk.remaining_bytes().saturating_sub(kept_bytes);
        compaction::pick_within(&context.levels, busy, &options, &context.horizon(), bytes_max)
    }

    fn end_plan(&self, plan: PlanId, is_live: bool) {
        self.shared.background.compaction_ended(plan, is_live, self.now());
        self.shared.jobs.busy.lock().end(plan);
        self.shared.jobs.added_since.lock().remove(&plan);
        self.shared.signals.debt.notify();
    }

    fn note_flushed(&self, flushed: MinVersions) {
        for oldest in self.shared.jobs.added_since.lock().values_mut() {
            *oldest = oldest.with(flushed);
        }
    }

    pub(crate) fn job_context(&self) -> JobContext {
        let view = self.shared.view.load_full();
        let unflushed = self.unflushed(&view);
        JobContext {
            env: self.shared.env.clone(),
            tables_dir: self.shared.paths.tables(),
            next_table_id: Arc::clone(&self.shared.next_table_id),
            table_options: TableOptions {
                block_bytes: self.shared.options.block_bytes,
                compression: self.shared.options.compression,
                filter_bits_per_key: self.shared.options.filter_bits_per_key,
            },
            options: self.shared.options.clone(),
            memtable_version_min: unflushed.version_min,
            memtable_local_version_min: unflushed.local_version_min,
            levels: Arc::clone(&view.levels),
            wall: self.shared.horizon.wall(&*self.shared.env.clock),
            exchanged_to: self.shared.horizon.exchanged_to(),
            filter: self.shared.ownership.jobs.clone(),
            sources: OtherSources::of(&self.shared.view),
        }
    }

    /// Ids of the memtables of the view, and of those whose records recovery would replay.
    pub(crate) fn unreleased_memtables(&self) -> BTreeSet<u64> {
        // Loaded first: a memtable that leaves the view is among the replayable ones before.
        let view = self.shared.view.load();
        let mut ids: BTreeSet<u64> = view.memtables().map(|logged| logged.memtable.id()).collect();
        ids.extend(self.shared.replayable.lock().ids());
        ids
    }

    /// Flushes all memtables, and releases the log of everything that was written before the call.
    /// Writes during the call may keep a part of it.
    pub(crate) fn release_log(&self) -> Result<(), Error> {
        self.flush()?;
        {
            let mut wal = self.shared.lock_wal();
            // The new segment is durable before the manifest names it as the floor.
            let begun = wal.begin_next().and_then(|segment| wal.idle().map(|()| segment));
            let segment = begun.map_err(|error| self.job_failed(error))?;
            self.shared.log_segment.store(segment.0, Ordering::Release);
        }
        let floor = self.shared.log_floor(None);
        let edit = VersionEdit { wal_floor: Some(floor), ..VersionEdit::default() };
        let installed = self.shared.install_edit(&edit, View::with_levels);
        installed.map_err(|error| self.job_failed(error))?;
        self.shared.replayable.lock().released(floor);
        self.shared.lock_wal().release(floor);
        Ok(())
    }

    /// The least versions of cells that are, or can be replayed into, a memtable. `view` was loaded
    /// before the call: a memtable that left it since is among the replayable ones.
    fn unflushed(&self, view: &View) -> MinVersions {
        let replayable = self.shared.replayable.lock().oldest();
        view.memtables().fold(replayable, |oldest, logged| oldest.with(logged.oldest()))
    }

    /// Whether a cell arrived during the compaction that is older than a tombstone that it dropped,
    /// and would become visible. Only an ingested cell, a write older than the grace period, or a
    /// late write of a local key can be.
    fn has_late_write(&self, compaction: &Compaction) -> bool {
        let dropped = compaction.job.dropped();
        if dropped == DroppedVersions::default() {
            return false;
        }
        let view = self.shared.view.load_full();
        let unflushed = self.unflushed(&view);
        // Read after the view: versions of a memtable that left the view were recorded before it
        // left.
        let flushed = self.shared.jobs.added_since.lock().get(&compaction.plan).copied();
        let oldest = unflushed.with(flushed.unwrap_or_default());
        let reaches = |oldest: Option<Version>, dropped: Option<Version>| {
            oldest.zip(dropped).is_some_and(|(oldest, dropped)| oldest <= dropped)
        };
        reaches(oldest.version_min, dropped.version_max)
            || reaches(oldest.local_version_min, dropped.local_version_max)
    }

    /// Makes full log segments durable, releases unused files and memory, keeps the next memtable
    /// and spare log segments ready, and measures the free disk space.
    ///
    /// # Errors
    /// [`Error::Full`] when there is no space for a log segment; [`Error::Poisoned`] when the log
    /// failed; [`Error::Io`] when a file cannot be removed.
    pub fn step_upkeep(&self, budget_bytes: u64) -> Result<Progress, Error> {
        self.check_poison()?;
        let settled = self.shared.deferred_sync.step().map_err(|error| self.job_failed(error))?;
        let removed = self.remove_obsolete_files()?;
        let purges = self.retry_purge()?;
        self.shared.keep_spare_memtable();
        self.shared.chunk_pool.release_unused(self.now());
        self.check_disk_space();
        let more = match self.shared.disk.is_full() {
            true => {
                self.flush_deletes();
                self.shared.spares.step_releasing()?
            }
            false => self.shared.spares.step(budget_bytes)?,
        };
        Ok(if settled || removed || purges || more { Progress::Worked } else { Progress::Idle })
    }

    /// Removes obsolete files as far as is due. Returns whether there were any.
    fn remove_obsolete_files(&self) -> Result<bool, Error> {
        let Shared { obsolete, env, paths, disk, signals, .. } = &*self.shared;
        let pace = match disk.space() {
            DiskSpace::Low | DiskSpace::Full => RemovalPace::WholeFiles,
            DiskSpace::Ample if signals.has_workers() => RemovalPace::Paced(self.now()),
            DiskSpace::Ample => RemovalPace::Unpaced,
        };
        obsolete.step(&*env.fs, paths, pace)
    }

    /// The time until [`Engine::step_upkeep`] has work, if that is known.
    pub(crate) fn upkeep_due(&self) -> Option<Duration> {
        self.shared.obsolete.has_pending().then_some(PIECE_EVERY)
    }

    /// Measures the free disk space, and reports a change of state.
    pub(crate) fn check_disk_space(&self) {
        let Some([available, held, unwritten]) = self.disk_figures() else { return };
        if let Some(room) = self.shared.disk.observe(available, held, unwritten) {
            self.report_disk_space(room);
        }
    }

    /// Records that the file system refused space: values are refused from now on. Also measures
    /// the free space.
    pub(crate) fn note_disk_full(&self) {
        self.shared.disk.mark_full();
        if let Some([available, held, unwritten]) = self.disk_figures() {
            self.shared.disk.update(available, held, unwritten);
        }
    }

    /// Free space, bytes that the engine uses, and bytes that are admitted but not written.
    fn disk_figures(&self) -> Option<[u64; 3]> {
        let root = self.shared.paths.root();
        let available = match self.shared.env.fs.available_bytes(root) {
            Ok(available) => available,
            Err(error) => {
                // The last measurement remains in force. A write that finds no space reports that
                // itself.
                tracing::debug!(%error, "cannot read the free disk space");
                return None;
            }
        };
        let unwritten = self.shared.commit_queue.lock().waiting_bytes() as u64;
        let held = self.shared.view.load().levels.file_bytes();
        Some([available, held, unwritten])
    }

    fn report_disk_space(&self, room: DiskSpace) {
        let DiskStats { available_bytes, reserve_bytes, soft_bytes, reopen_bytes, .. } =
            self.shared.disk.stats();
        match room {
            DiskSpace::Ample => tracing::info!(available_bytes, "the disk has space again"),
            DiskSpace::Low => tracing::warn!(
                available_bytes,
                slowed_below_bytes = soft_bytes,
                refused_below_bytes = reserve_bytes,
                "disk space is low: writes are slowed"
            ),
            DiskSpace::Full => tracing::warn!(
                available_bytes,
                refused_below_bytes = reserve_bytes,
                taken_again_from_bytes = reopen_bytes,
                "the disk is full: values are refused until there is space, reads and deletes continue"
            ),
        }
        match room {
            DiskSpace::Ample => {}
            DiskSpace::Low => self.shared.signals.compact.notify(),
            // The memtable is flushed so that its part of the log can be released.
            DiskSpace::Full => self.flush_for_space(),
        }
        self.shared.signals.capacity.notify();
    }

    /// Flushes deletes while the disk is full: they free no space before they are merged with the
    /// cells that they shadow.
    fn flush_deletes(&self) {
        let now = self.now();
        let mut next = self.shared.jobs.deletes_flushed_next.lock();
        // Deletes behind a running flush are handled after it.
        if *next <= now
            && self.shared.view.load().sealed.is_empty()
            && self.shared.disk.take_unflushed_deletes()
        {
            *next = now + DELETES_FLUSHED_EVERY;
            drop(next);
            self.flush_for_space();
        }
    }

    /// Seals the active memtable, unless a flush is running.
    fn flush_for_space(&self) {
        let mut queue = self.shared.commit_queue.lock();
        let view = self.shared.view.load();
        if view.sealed.is_empty() && !view.active.memtable.is_empty() {
            drop(view);
            self.rotate(&mut queue);
        }
    }

    pub(crate) fn job_failed(&self, error: Error) -> Error {
        match error {
            Error::Full { .. } => {
                self.note_disk_full();
                error
            }
            Error::Corrupt { .. } | Error::Exhausted { .. } => error,
            other => self.poison_with(&other),
        }
    }

    /// Handles a failed edit: removes its outputs, unless the edit may be durable all the same.
    /// Then the next open needs the files, or removes them.
    pub(crate) fn edit_failed(&self, edit: &VersionEdit, error: Error) -> Error {
        if error.is_shortage() {
            self.discard_outputs(edit);
        }
        self.job_failed(error)
    }

    pub(crate) fn discard_outputs(&self, edit: &VersionEdit) {
        let moved: BTreeSet<TableId> = edit.removed.iter().map(|(_, id)| *id).collect();
        let outputs = edit.added.iter().map(|(_, meta)| meta.id).filter(|id| !moved.contains(id));
        outputs.for_each(|id| self.shared.obsolete.add(id));
    }
}

impl Shared {
    fn keep_spare_memtable(&self) {
        if self.spare_memtable.lock().is_none() {
            let spare = self.new_memtable();
            *self.spare_memtable.lock() = Some(spare);
        }
    }
}
