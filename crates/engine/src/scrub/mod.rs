//! Scrubbing: periodic reads of all tables, so that damage is found while other replicas still have
//! the data.
//!
//! **Promise.** Each round checks every table that is live at its start and still live when its
//! position in the round is reached. A round takes no longer than
//! [`Options::scrub_period`](crate::Options), if the greatest rate ([`round`]) suffices for that. A
//! damaged table becomes *suspected* and heals as after a failed read.
//!
//! Scrubbing has the lowest priority. Over time it reads no faster than the period requires, and
//! never exceeds the greatest rate by more than one piece. It uses at most a tenth of the disk's
//! time, however slow the disk is. It pauses while writes are slowed or disk space is low. It
//! leaves the caches nearly unchanged.
//!
//! **Mechanism.** A round is a list of the live tables from the oldest to the newest, rotated to a
//! start that depends on the time. So an engine that restarts often does not check the same tables
//! again and again. Tables are read in pieces ([`Inspection`]). After each piece the next one waits
//! for the longer of two times: the time of the piece at the rate that completes the rest within
//! the period, and nine times its duration. The engine keeps the time itself: a host may call
//! [`Engine::step_scrub`] at any interval.
//!
//! **Caveats.** Tables created during a round are checked in the next. The position in a round is
//! lost when the engine is closed. A table is referenced for at most a few seconds after compaction
//! replaced it. The log is not read: its contents are flushed, and it is released. Damage on the
//! device is not found while the page cache holds an intact copy that the system does not drop on
//! request.

pub(crate) mod round;

use crate::Error;
use crate::disk::DiskSpace;
use crate::engine::Engine;
use crate::sstable::{CHUNK_BYTES, Inspection, InspectionStep, Table};
use crate::stats::ScrubStats;
use limits::time_at;
use round::{ScrubRound, ScrubState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stdx::{Instant, WallTime};
use xxhash_rust::xxh3::xxh3_64;

/// Idle seconds after each second of reading.
const IDLE_PER_BUSY: u32 = 9;
/// Interval at which a paused scrub checks whether it may continue.
const PAUSED_RECHECK: Duration = Duration::from_secs(1);
/// Interval until the next call when there is nothing to scrub.
const IDLE_RECHECK: Duration = Duration::from_secs(60);

impl Engine {
    /// Reads and checks the next piece, if it is due. Returns the time until the next call has
    /// work; calling earlier is harmless.
    pub fn step_scrub(&self) -> Duration {
        let Some(period) = self.options().scrub_period.filter(|_| self.poison().is_none()) else {
            return IDLE_RECHECK;
        };
        let mut state = self.shared.jobs.scrub.state.lock();
        self.drop_replaced_inspection(&mut state);
        let now = self.now();
        let wait = state.next.saturating_since(now);
        if !wait.is_zero() {
            return wait;
        }
        if self.is_paused() {
            return PAUSED_RECHECK;
        }
        let Some(round) = state.round.take().or_else(|| self.begin_round(now)) else {
            return IDLE_RECHECK;
        };
        self.step_round(&mut state, round, period);
        state.next.saturating_since(self.now())
    }

    /// Results of scrubbing.
    pub(crate) fn scrub_stats(&self) -> ScrubStats {
        let scrub = &self.shared.jobs.scrub;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let last_round = Some(get(&scrub.last_round)).filter(|micros| *micros > 0);
        ScrubStats {
            bytes: get(&scrub.bytes),
            blocks: get(&scrub.blocks),
            tables_damaged: get(&scrub.tables_damaged),
            rounds: get(&scrub.rounds),
            last_round: last_round.map(WallTime::from_micros_since_unix_epoch),
        }
    }

    /// Reads one piece of a round, and sets the time of the next.
    fn step_round(&self, state: &mut ScrubState, mut round: ScrubRound, period: Duration) {
        let began = self.now();
        let rate = round.rate(period, began);
        let read = self.inspect(&mut round);
        let now = self.now();
        state.next = match read {
            Some(bytes) => {
                let idle = (now - began).saturating_mul(IDLE_PER_BUSY);
                (began + time_at(rate, bytes)).max(now + idle)
            }
            None => {
                self.end_round(&round);
                return state.next = now.max(round.began + period);
            }
        };
        state.round = Some(round);
    }

    /// Reads and checks a piece. Returns its length in bytes; `None` when the round is complete.
    fn inspect(&self, round: &mut ScrubRound) -> Option<u64> {
        let mut inspection = match round.inspection.take() {
            Some(inspection) => inspection,
            None => {
                let table = self.next_to_inspect(round)?;
                match Inspection::new(&*self.shared.env.fs, Arc::clone(&table)) {
                    Ok(inspection) => inspection,
                    Err(error) => return Some(self.report_damage(&table, &error)),
                }
            }
        };
        match inspection.step() {
            Ok(InspectionStep { bytes, blocks, is_finished }) => {
                let scrub = &self.shared.jobs.scrub;
                scrub.bytes.fetch_add(bytes, Ordering::Relaxed);
                scrub.blocks.fetch_add(blocks, Ordering::Relaxed);
                round.inspection = (!is_finished).then_some(inspection);
                Some(bytes)
            }
            Err(error) => Some(self.report_damage(inspection.table(), &error)),
        }
    }

    /// Reports a damaged table to healing, which scans all of it. Returns the bytes to charge.
    fn report_damage(&self, table: &Table, error: &Error) -> u64 {
        tracing::error!(path = %table.path().display(), %error, "scrubbing cannot read a table back");
        if let Some(path) = error.unreadable() {
            self.shared.jobs.scrub.tables_damaged.fetch_add(1, Ordering::Relaxed);
            self.suspect(path);
        }
        CHUNK_BYTES as u64
    }

    /// The next live table that is not known to be damaged.
    fn next_to_inspect(&self, round: &mut ScrubRound) -> Option<Arc<Table>> {
        loop {
            let (id, _) = round.remaining.pop()?;
            let damaged = &self.shared.jobs.damaged;
            let is_known =
                damaged.quarantined.lock().contains_key(&id) || damaged.suspected.lock().contains(&id);
            match self.live_table(id) {
                Some((_, table)) if !is_known => return Some(table),
                _ => {}
            }
        }
    }

    fn begin_round(&self, now: Instant) -> Option<ScrubRound> {
        let view = self.shared.view.load();
        let mut remaining: Vec<_> =
            view.levels.iter().map(|(_, table)| (table.id(), table.meta().file_bytes)).collect();
        remaining.sort_unstable_by_key(|(id, _)| std::cmp::Reverse(*id));
        let micros = self.shared.env.clock.now().wall.micros_since_unix_epoch();
        let first = xxh3_64(&micros.to_le_bytes()).checked_rem(remaining.len() as u64)?;
        remaining.rotate_left(first as usize);
        Some(ScrubRound { began: now, remaining, inspection: None })
    }

    fn end_round(&self, round: &ScrubRound) {
        let scrub = &self.shared.jobs.scrub;
        let now = self.shared.env.clock.now();
        scrub.rounds.fetch_add(1, Ordering::Relaxed);
        scrub.last_round.store(now.wall.micros_since_unix_epoch(), Ordering::Relaxed);
        tracing::info!(
            took_ms = now.mono.saturating_since(round.began).as_millis() as u64,
            bytes_since_start = scrub.bytes.load(Ordering::Relaxed),
            tables_damaged_since_start = scrub.tables_damaged.load(Ordering::Relaxed),
            "all tables were scrubbed"
        );
    }

    /// Drops the inspection of a table that compaction has replaced, so that its disk space can be
    /// released.
    fn drop_replaced_inspection(&self, state: &mut ScrubState) {
        if let Some(round) = &mut state.round {
            round.inspection.take_if(|inspection| self.live_table(inspection.table().id()).is_none());
        }
    }

    /// Whether scrubbing pauses: disk space is low, or writes are slowed.
    fn is_paused(&self) -> bool {
        self.shared.disk.space() != DiskSpace::Ample
            || self.shared.sustainable_rate(&self.shared.view.load()).is_some()
    }
}
