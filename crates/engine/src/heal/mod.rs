//! Healing: replacing tables that cannot be read back.
//!
//! **Promise.** A table is replaced only by everything that can still be read of it, and only after
//! the host has recovered the rest ([`Engine::allow_replacement`]). Both happen in one durable edit
//! of the manifest: a crash leaves either the old table or its replacement. Blocks that failed to
//! read temporarily are not lost: they are read again and kept.
//!
//! **Mechanism.** A suspected table is scanned from end to end, block by block and bypassing the
//! cache. The scan includes the filters, and the ends of the file, whose contents an open table
//! holds in memory. If everything reads back, the suspicion ends; otherwise the table is
//! quarantined. Once the host allows its replacement, the table is scanned again and rewritten to
//! level 0. If more ranges are lost by then, the host must confirm again. If only filters or ends
//! are damaged, no confirmation is needed.
//!
//! **Caveats.** One table at a time. Blocks that are still in the cache are not salvaged from
//! there.

pub(crate) mod job;

use crate::Error;
use crate::compaction::FlushJob;
use crate::engine::Engine;
use crate::jobs::Progress;
use crate::manifest::VersionEdit;
use crate::sstable::{Damage, ReadMode, Table, TableId, UnreadableRange};
use crate::view::View;
use job::{HealJob, HealStage, HealStep};

impl Engine {
    /// Scans suspected tables and rewrites those that the host allows to be replaced, for about
    /// `budget_bytes`.
    ///
    /// # Errors
    /// [`Error::Full`]: the job was undone and starts over. [`Error::Io`] when a table cannot be
    /// opened now. [`Error::Poisoned`] after any other failed write.
    pub fn step_healing(&self, budget_bytes: u64) -> Result<Progress, Error> {
        self.check_poison()?;
        let mut slot = self.shared.jobs.healing.lock();
        let Some(mut healing) = slot.take().or_else(|| self.begin_healing()) else {
            return Ok(Progress::Idle);
        };
        match healing.step(budget_bytes) {
            Ok(HealStep::More) => *slot = Some(healing),
            Ok(HealStep::Scanned(mut damage)) => {
                damage.header_or_footer = healing.table.has_damaged_header_or_footer(&*self.shared.env.fs);
                self.finish_scan(&healing.table, damage)?;
            }
            Ok(HealStep::Rewritten(damage, edit)) => self.replace_table(&healing.table, &damage, *edit)?,
            Err(error) => return Err(self.healing_failed(&healing, error)),
        }
        Ok(Progress::Worked)
    }

    fn begin_healing(&self) -> Option<HealJob> {
        self.begin_rewrite().or_else(|| self.begin_scan())
    }

    fn begin_rewrite(&self) -> Option<HealJob> {
        let quarantined = self.shared.jobs.damaged.quarantined.lock();
        let id = *quarantined.iter().find(|(_, table)| table.is_replaceable)?.0;
        drop(quarantined);
        let (_, table) = self.live_table(id).expect("no plan picks a quarantined table");
        let mut context = self.job_context();
        context.sources = context.sources.without_tables(std::iter::once(id));
        let job = FlushJob::new(table.cursor(ReadMode::Salvage), context);
        Some(HealJob { table, stage: HealStage::Rewrite(Box::new(job)) })
    }

    fn begin_scan(&self) -> Option<HealJob> {
        // Locked before the levels are read: while a table is live, its user is known.
        let mut busy = self.shared.jobs.busy.lock();
        let mut suspected = self.shared.jobs.damaged.suspected.lock();
        suspected.retain(|id| busy.is_excluded(*id) || self.live_table(*id).is_some());
        let id = *suspected.iter().find(|id| !busy.is_excluded(**id))?;
        busy.quarantine(id);
        let (_, table) = self.live_table(id).expect("the table is live, and no plan uses it");
        let stage = HealStage::Scan { cursor: Box::new(table.cursor(ReadMode::Salvage)), has_begun: false };
        Some(HealJob { table, stage })
    }

    /// Ends the scan of a suspected table.
    fn finish_scan(&self, table: &Table, damage: Damage) -> Result<(), Error> {
        let id = table.id();
        let path = table.path().display();
        if damage.is_none() {
            tracing::warn!(%path, "a suspected table reads back now");
            self.clear_suspicion(id);
            return Ok(());
        }
        let (level, _) = self.live_table(id).expect("no plan uses a suspected table");
        let quarantined = self.quarantine(level, table, damage.lost);
        match quarantined {
            Ok(()) => drop(self.shared.jobs.damaged.suspected.lock().remove(&id)),
            Err(_) => self.shared.jobs.busy.lock().end_quarantine(id),
        }
        quarantined
    }

    fn clear_suspicion(&self, id: TableId) {
        self.shared.jobs.damaged.suspected.lock().remove(&id);
        self.shared.jobs.busy.lock().end_quarantine(id);
    }

    /// Installs the rewritten table.
    fn replace_table(&self, table: &Table, damage: &Damage, mut edit: VersionEdit) -> Result<(), Error> {
        let id = table.id();
        if !self.confirm_replaceable(id, &damage.lost) {
            self.discard_outputs(&edit);
            return Ok(());
        }
        let (level, _) = self.live_table(id).expect("no plan picks a quarantined table");
        edit.removed = vec![(level as u8, id)];
        let installed = self.shared.install_edit(&edit, View::with_levels);
        installed.map_err(|error| self.edit_failed(&edit, error))?;
        self.shared.jobs.damaged.quarantined.lock().remove(&id);
        self.shared.jobs.busy.lock().end_quarantine(id);
        self.shared.counters.record_healed_table();
        tracing::info!(
            path = %table.path().display(),
            "a damaged table was replaced by its readable part"
        );
        Ok(())
    }

    /// Whether the host has recovered all lost ranges. If not, records the ranges that are lost by
    /// now, for the host to confirm.
    fn confirm_replaceable(&self, id: TableId, lost: &[UnreadableRange]) -> bool {
        let mut quarantined = self.shared.jobs.damaged.quarantined.lock();
        let known = quarantined.get_mut(&id).expect("a table is quarantined until it is replaced");
        let is_recovered = lost.iter().all(|lost| known.lost.iter().any(|recovered| recovered.covers(lost)));
        if !is_recovered {
            known.lost = lost.to_vec();
            known.is_replaceable = false;
        }
        is_recovered
    }

    fn healing_failed(&self, healing: &HealJob, error: Error) -> Error {
        match &healing.stage {
            HealStage::Scan { .. } => {
                self.shared.jobs.busy.lock().end_quarantine(healing.table.id());
                error
            }
            HealStage::Rewrite(_) if is_open_failure(&error) => error,
            HealStage::Rewrite(_) => self.job_failed(error),
        }
    }
}

/// Whether a table could not be opened for reading. A salvaging scan does not skip such an error,
/// and the written output is not affected.
fn is_open_failure(error: &Error) -> bool {
    matches!(error, Error::Io { operation: "open", .. } | Error::Exhausted { .. })
}
