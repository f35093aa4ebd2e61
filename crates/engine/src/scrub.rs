//! Scrubbing: reading all tables now and then, so that damage is found while others still have what is lost.
//!
//! **Promise.** Every table that is live when a round begins, and still is when its turn comes, is checked in that round,
//! whether anybody reads it or not, and a round takes no longer than [`Options::scrub_period`](crate::Options) where
//! [`RATE_MAX`] suffices for that. What is found damaged becomes *suspected* as after a failed read, and heals as after one. The
//! work keeps out of the way: over time it reads no faster than it has to, and never faster than [`RATE_MAX`] but for one
//! piece; it takes no more than a tenth of the time of the disk, however slow that is; while writes are slowed, or the disk
//! is short of room, it stands still. Caches are left about as they are.
//!
//! **Mechanism.** A round is a list of the live tables, oldest first but for where it begins: at one chosen by the time. So
//! whoever is restarted often does not check the same tables again and again. Tables are read in pieces
//! ([`Inspection`]); after each the next one waits, for as long as the piece takes at the rate at which what is left would fill what is
//! left of the period, and nine times as long as it took. The engine itself keeps the time: a host may call
//! [`Engine::step_scrub`] as often as it likes.
//!
//! **Caveats.** Tables that come after a round has begun have their turn in the next. How far a round is, is forgotten when
//! the engine is closed. A table is held for a few seconds after compaction has replaced it, no longer. The log is not read:
//! what it holds is flushed and goes. What is damaged on the device while the system holds it in memory, and drops it not when
//! asked, is not seen.

use crate::Error;
use crate::disk::DiskSpace;
use crate::engine::Engine;
use crate::pressure::time_at;
use crate::sstable::{Inspected, Inspection, PIECE_BYTES, Table, TableId};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stdx::{Instant, WallTime};
use xxhash_rust::xxh3::xxh3_64;

/// No round goes faster, in bytes per second, ...
const RATE_MAX: f64 = 4.0 * (1 << 20) as f64;
/// ... or slower: what is little is soon checked, also by who is restarted often.
const RATE_MIN: f64 = 64.0 * 1024.0;
/// Rounds are planned to end after this part of the period: work that has to wait needs the rest.
const PLANNED_FRACTION: f64 = 0.8;
/// For each second that a piece took, so many are left to others.
const IDLE_PER_BUSY: u32 = 9;
/// What holds it up is looked at again after this.
const PAUSED_RECHECK: Duration = Duration::from_secs(1);
/// A host need not ask more often where there is nothing to do.
const IDLE_RECHECK: Duration = Duration::from_secs(60);

/// What scrubbing has done since the engine was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubStats {
    /// Bytes of tables read.
    pub bytes: u64,
    /// Blocks that are what was written.
    pub blocks: u64,
    /// Tables in which it has found damage.
    pub tables_damaged: u64,
    /// Rounds that came to their end.
    pub rounds: u64,
    /// When the last of them did.
    pub last_round: Option<WallTime>,
}

/// The work of scrubbing, and what it has come to.
#[derive(Default)]
pub(crate) struct Scrub {
    state: Mutex<State>,
    bytes: AtomicU64,
    blocks: AtomicU64,
    tables_damaged: AtomicU64,
    rounds: AtomicU64,
    /// In microseconds since 1970; 0: none has ended.
    last_round: AtomicU64,
}

#[derive(Default)]
struct State {
    round: Option<Round>,
    /// Nothing is read before.
    next: Instant,
}

/// One round over all tables.
struct Round {
    began: Instant,
    /// Those that are still to be begun, with their sizes in bytes; the next one last.
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

    /// Bytes per second, so that the rest is done in time.
    fn rate(&self, period: Duration, now: Instant) -> f64 {
        let planned = period.mul_f64(PLANNED_FRACTION);
        let left = planned.saturating_sub(now.saturating_since(self.began)).as_secs_f64();
        // With no time left it is as fast as it may be.
        (self.left_bytes() as f64 / left.max(1e-3)).clamp(RATE_MIN, RATE_MAX)
    }
}

impl Engine {
    /// Reads and checks one more piece of the tables, if it is time to. How long there will be nothing to do; a host may
    /// come back earlier.
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

    /// What scrubbing has done.
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

    /// Goes on with a round by one piece, and says when it goes on again.
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

    /// Reads and checks a piece: how many bytes that were. `None`: all is done.
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
            Ok(Inspected { bytes, blocks, is_over }) => {
                let scrub = &self.shared.jobs.scrub;
                scrub.bytes.fetch_add(bytes, Ordering::Relaxed);
                scrub.blocks.fetch_add(blocks, Ordering::Relaxed);
                round.inspection = (!is_over).then_some(inspection);
                Some(bytes)
            }
            Err(error) => Some(self.report_damage(inspection.table(), &error)),
        }
    }

    /// A table cannot be read back: whoever heals looks at all of it. For how many bytes to wait.
    fn report_damage(&self, table: &Table, error: &Error) -> u64 {
        tracing::error!(path = %table.path().display(), %error, "scrubbing cannot read a table back");
        if let Some(path) = error.unreadable() {
            self.shared.jobs.scrub.tables_damaged.fetch_add(1, Ordering::Relaxed);
            self.suspect(path);
        }
        PIECE_BYTES as u64
    }

    /// The next table that is live and not known to be damaged.
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

    /// A table that compaction has replaced keeps its room on the disk as long as somebody reads it.
    fn drop_replaced_inspection(&self, state: &mut State) {
        if let Some(round) = &mut state.round {
            round.inspection.take_if(|inspection| self.live_table(inspection.table().id()).is_none());
        }
    }

    /// Whether the disk is for others now.
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
