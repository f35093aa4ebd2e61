//! Scrubbing: periodic reads of all tables, so that damage is found while other replicas still have
//! the data.
//!
//! **Promise.** Each round checks every table that is live at its start and still live when its
//! position in the round is reached. A round takes no longer than
//! [`Options::scrub_period`](crate::Options), if [`RATE_MAX`] suffices for that. A damaged table
//! becomes *suspected* and heals as after a failed read.
//!
//! Scrubbing has the lowest priority. Over time it reads no faster than the period requires, and
//! never exceeds [`RATE_MAX`] by more than one piece. It uses at most a tenth of the disk's time,
//! however slow the disk is. It pauses while writes are slowed or disk space is low. It leaves the
//! caches nearly unchanged.
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

use crate::Error;
use crate::disk::DiskSpace;
use crate::engine::Engine;
use crate::pressure::time_at;
use crate::sstable::{CHUNK_BYTES, Inspection, InspectionStep, Table, TableId};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stdx::{Instant, WallTime};
use xxhash_rust::xxh3::xxh3_64;

/// Upper bound of the scrub rate, in bytes per second.
const RATE_MAX: f64 = 4.0 * (1 << 20) as f64;
/// Lower bound of the scrub rate, in bytes per second: a small engine is checked completely even if
/// it restarts often.
const RATE_MIN: f64 = 64.0 * 1024.0;
/// Fraction of the period after which a round is planned to end. The rest compensates for pauses.
const PLANNED_FRACTION: f64 = 0.8;
/// Idle seconds after each second of reading.
const IDLE_PER_BUSY: u32 = 9;
/// Interval at which a paused scrub checks whether it may continue.
const PAUSED_RECHECK: Duration = Duration::from_secs(1);
/// Interval until the next call when there is nothing to scrub.
const IDLE_RECHECK: Duration = Duration::from_secs(60);

/// Results of scrubbing since the engine was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubStats {
    /// Bytes of tables read.
    pub bytes: u64,
    /// Blocks that were intact.
    pub blocks: u64,
    /// Tables in which scrubbing found damage.
    pub tables_damaged: u64,
    /// Completed rounds.
    pub rounds: u64,
    /// Time at which the last round was completed.
    pub last_round: Option<WallTime>,
}

/// State and results of scrubbing.
#[derive(Default)]
pub(crate) struct Scrub {
    state: Mutex<State>,
    bytes: AtomicU64,
    blocks: AtomicU64,
    tables_damaged: AtomicU64,
    rounds: AtomicU64,
    /// In microseconds since the Unix epoch; 0 while no round is complete.
    last_round: AtomicU64,
}

#[derive(Default)]
struct State {
    round: Option<Round>,
    /// Earliest time of the next read.
    next: Instant,
}

/// One round over all tables.
struct Round {
    began: Instant,
    /// Tables that are still to be read, with their sizes in bytes; the next one is last.
    remaining: Vec<(TableId, u64)>,
    inspection: Option<Inspection>,
}

impl Round {
    fn left_bytes(&self) -> u64 {
        let of_this = self.inspection.as_ref().map_or(0, |inspection| {
            inspection.table().meta().file_bytes.saturating_sub(inspection.done_bytes())
        });
        self.remaining.iter().map(|(_, bytes)| bytes).sum::<u64>() + of_this
    }

    /// The rate that completes the round in time, in bytes per second.
    fn rate(&self, period: Duration, now: Instant) -> f64 {
        let planned = period.mul_f64(PLANNED_FRACTION);
        let left = planned.saturating_sub(now.saturating_since(self.began)).as_secs_f64();
        // Without time left, the rate is `RATE_MAX`.
        (self.left_bytes() as f64 / left.max(1e-3)).clamp(RATE_MIN, RATE_MAX)
    }
}

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
    fn step_round(&self, state: &mut State, mut round: Round, period: Duration) {
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
    fn inspect(&self, round: &mut Round) -> Option<u64> {
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
    fn next_to_inspect(&self, round: &mut Round) -> Option<Arc<Table>> {
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

    fn begin_round(&self, now: Instant) -> Option<Round> {
        let view = self.shared.view.load();
        let mut remaining: Vec<_> =
            view.levels.iter().map(|(_, table)| (table.id(), table.meta().file_bytes)).collect();
        remaining.sort_unstable_by_key(|(id, _)| std::cmp::Reverse(*id));
        let micros = self.shared.env.clock.now().wall.micros_since_unix_epoch();
        let first = xxh3_64(&micros.to_le_bytes()).checked_rem(remaining.len() as u64)?;
        remaining.rotate_left(first as usize);
        Some(Round { began: now, remaining, inspection: None })
    }

    fn end_round(&self, round: &Round) {
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
    fn drop_replaced_inspection(&self, state: &mut State) {
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

impl std::fmt::Debug for Scrub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scrub").field("rounds", &self.rounds).finish_non_exhaustive()
    }
}
