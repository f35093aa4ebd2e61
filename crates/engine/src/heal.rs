//! Healing tables that cannot be read back.
//!
//! **Promise.** A table is replaced only by all that can still be read of it, and only when the host has what cannot
//! ([`Engine::give_up`]); both in one durable edit of the manifest, so that a stop anywhere leaves the one or the
//! other. What was only out of reach for a while is not lost: it is read again, and taken along.
//!
//! **Mechanism.** A suspected table is walked from end to end, each block by itself and past the cache; filters are
//! looked at too, and so are the ends of the file, of which an open table holds what it needs. If all of it reads back, nothing has happened. Else it is set aside. One that was given up is
//! walked once more, and written anew to level 0; if more of it is lost by then, the host is asked again. Where only
//! filters or ends are lost nobody needs to be asked.
//!
//! **Caveats.** One table at a time. The blocks that are still in the cache are not taken from there.

use crate::Error;
use crate::compaction::{FlushJob, Step};
use crate::engine::Engine;
use crate::iter::Cursor;
use crate::jobs::Progress;
use crate::manifest::VersionEdit;
use crate::sstable::{Damage, LostKeys, Reading, Table, TableCursor, TableId};
use crate::view::View;
use std::sync::Arc;

/// What is done about one table.
pub(crate) struct Healing {
    table: Arc<Table>,
    work: Work,
}

enum Work {
    /// It is seen what can be read.
    Looking { cursor: Box<TableCursor>, has_begun: bool },
    /// What can be read is written anew.
    Writing(Box<FlushJob<TableCursor>>),
}

enum Outcome {
    More,
    Looked(Damage),
    Written(Damage, VersionEdit),
}

impl Healing {
    fn step(&mut self, budget_bytes: u64) -> Result<Outcome, Error> {
        match &mut self.work {
            Work::Looking { cursor, has_begun } => look(cursor, has_begun, budget_bytes),
            Work::Writing(job) => Ok(match job.step(budget_bytes)? {
                Step::More => Outcome::More,
                Step::Done(edit) => Outcome::Written(job.source().damage(), edit),
            }),
        }
    }
}

impl Engine {
    /// Goes on for about `budget_bytes` with looking at tables that could not be read, and with replacing those that
    /// the host has given up.
    ///
    /// # Errors
    /// [`Error::Full`]: the job was undone and will begin again. [`Error::Io`] when a table cannot be opened now.
    /// [`Error::Poisoned`] after any other failed write.
    pub fn step_healing(&self, budget_bytes: u64) -> Result<Progress, Error> {
        self.check_poison()?;
        let mut slot = self.shared.jobs.healing.lock();
        let Some(mut healing) = slot.take().or_else(|| self.begin_healing()) else {
            return Ok(Progress::Idle);
        };
        match healing.step(budget_bytes) {
            Ok(Outcome::More) => *slot = Some(healing),
            Ok(Outcome::Looked(mut damage)) => {
                damage.ends = healing.table.has_damaged_ends(&*self.shared.env.fs);
                self.looked_at(&healing.table, damage)?;
            }
            Ok(Outcome::Written(damage, edit)) => self.replace(&healing.table, &damage, edit)?,
            Err(error) => return Err(self.healing_failed(&healing, error)),
        }
        Ok(Progress::Worked)
    }

    fn begin_healing(&self) -> Option<Healing> {
        self.next_given_up().or_else(|| self.next_suspected())
    }

    fn next_given_up(&self) -> Option<Healing> {
        let set_aside = self.shared.jobs.damaged.set_aside.lock();
        let id = *set_aside.iter().find(|(_, table)| table.is_given_up)?.0;
        drop(set_aside);
        let (_, table) = self.live_table(id).expect("nobody else takes a table that was set aside");
        let job = FlushJob::new(table.cursor(Reading::Salvage), self.job_context());
        Some(Healing { table, work: Work::Writing(Box::new(job)) })
    }

    fn next_suspected(&self) -> Option<Healing> {
        // Locked before the levels are looked at: who has a table is known as long as it is live.
        let mut busy = self.shared.jobs.busy.lock();
        let mut suspected = self.shared.jobs.damaged.suspected.lock();
        suspected.retain(|id| busy.has(*id) || self.live_table(*id).is_some());
        let id = *suspected.iter().find(|id| !busy.has(**id))?;
        busy.set_aside(id);
        let (_, table) = self.live_table(id).expect("it was there a moment ago, and no plan has it");
        let work = Work::Looking { cursor: Box::new(table.cursor(Reading::Salvage)), has_begun: false };
        Some(Healing { table, work })
    }

    /// It is known what can be read of a suspected table.
    fn looked_at(&self, table: &Table, damage: Damage) -> Result<(), Error> {
        let id = table.id();
        let path = table.path().display();
        if damage.is_none() {
            tracing::warn!(%path, "a table that could not be read reads back now");
            self.end_suspicion(id);
            return Ok(());
        }
        let (level, _) = self.live_table(id).expect("no plan has taken it");
        let set_aside = self.set_aside(level, table, damage.lost);
        match set_aside {
            Ok(()) => drop(self.shared.jobs.damaged.suspected.lock().remove(&id)),
            Err(_) => self.shared.jobs.busy.lock().release(id),
        }
        set_aside
    }

    fn end_suspicion(&self, id: TableId) {
        self.shared.jobs.damaged.suspected.lock().remove(&id);
        self.shared.jobs.busy.lock().release(id);
    }

    /// What can be read of a table was written anew.
    fn replace(&self, table: &Table, damage: &Damage, mut edit: VersionEdit) -> Result<(), Error> {
        let id = table.id();
        if !self.is_given_up(id, &damage.lost) {
            self.discard_outputs(&edit);
            return Ok(());
        }
        let (level, _) = self.live_table(id).expect("nobody else takes it");
        edit.removed = vec![(level as u8, id)];
        let installed = self.shared.install_edit(&edit, View::with_levels);
        installed.map_err(|error| self.edit_failed(&edit, error))?;
        self.shared.jobs.damaged.set_aside.lock().remove(&id);
        self.shared.jobs.busy.lock().release(id);
        self.shared.counters.healed();
        tracing::info!(
            path = %table.path().display(),
            "a table that could not be read back is replaced by what could be read of it"
        );
        Ok(())
    }

    /// Whether the host has all of what is lost. If not, it is told what that is by now.
    fn is_given_up(&self, id: TableId, lost: &[LostKeys]) -> bool {
        let mut set_aside = self.shared.jobs.damaged.set_aside.lock();
        let known = set_aside.get_mut(&id).expect("it is set aside until it is replaced");
        let is_had = lost.iter().all(|lost| known.lost.iter().any(|had| had.covers(lost)));
        if !is_had {
            known.lost = lost.to_vec();
            known.is_given_up = false;
        }
        is_had
    }

    fn healing_failed(&self, healing: &Healing, error: Error) -> Error {
        match &healing.work {
            Work::Looking { .. } => {
                self.shared.jobs.busy.lock().release(healing.table.id());
                error
            }
            Work::Writing(_) if is_of_reading(&error) => error,
            Work::Writing(_) => self.job_failed(error),
        }
    }
}

/// What is not passed over, and says nothing of what was written.
fn is_of_reading(error: &Error) -> bool {
    matches!(error, Error::Io { operation: "open", .. } | Error::Exhausted { .. })
}

fn look(cursor: &mut TableCursor, has_begun: &mut bool, budget_bytes: u64) -> Result<Outcome, Error> {
    if !*has_begun {
        cursor.seek_to_first()?;
        *has_begun = true;
    }
    let mut spent_bytes = 0;
    while let Some((key, cell)) = cursor.entry() {
        if spent_bytes >= budget_bytes {
            return Ok(Outcome::More);
        }
        spent_bytes += (key.len() + cell.value.len()) as u64;
        cursor.advance()?;
    }
    Ok(Outcome::Looked(cursor.damage()))
}
