//! Healing: what a damaged table has lost is got from the other replicas.
//!
//! **Promise.** A table is given up only when all that its lost ranges can have held of what a majority acknowledged
//! is stored durably: among the replicas that were [pulled](super::pull) from is one of every majority, and each of
//! them is believed. Until then this node's answers for these ranges are failures, never "nothing here". No debt
//! needs to be remembered for that: as long as it is not paid, the table itself cannot be read.
//!
//! **Mechanism.** The store says what cannot be read back. When every write has ended that it may hold and that was
//! not acknowledged yet, the lost ranges are pulled, one after the other. Then everything that may have been lost of
//! the node's own is made durable anew: what it remembers, with a pass of anti-entropy owed to all, and the bound of
//! its clock; and the peers are told that hints for them may be gone. Then the store is told to give the table up. A
//! stop anywhere is a new beginning, as is a table that turns out to have lost more.
//!
//! **Caveats.** One table at a time. One with deletes, or expired values, that are older than the grace period does not
//! heal: others may have forgotten them, and what they hid in this node would come back. Then, as after too long an
//! absence, the operator has the node rebuilt. A node that keeps the only copy of what it holds by default does not
//! heal: an error says more than "nothing here". Where so many others are lost or damaged in the same range that no
//! majority can be spoken for, the range stays unreadable until they are back, or the operator has this node rebuilt.
//! Of keys that only this node held, the lost ones read as missing.

use super::pull::Pulled;
use super::purpose::StorePurpose;
use super::rebuild::SETTLE_TIMEOUTS;
use super::{Node, RepairKind};
use crate::{Damage, LostRange, RepairStatus, StoreRequest, StoreResponse, SyncState};
use stdx::{Instant, Now, WallTime};

/// By this part of the grace period others may forget deletes earlier than by this node's clock, and by then all is done.
const GRACE_MARGIN: u32 = 20;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Healing {
    /// What the store cannot read back, as it said last.
    told: Vec<Damage>,
    work: Option<Work>,
}

#[derive(Debug)]
struct Work {
    damage: Damage,
    stage: Stage,
    /// Cells that came from others.
    cells: u64,
}

#[derive(Debug)]
enum Stage {
    /// Until writes have ended that began before the damage was known.
    Settling { until: Instant },
    /// The range of this number, and those behind it, are to be pulled.
    Pulling { range: usize },
    /// What the node remembers is being stored, with this revision or a greater one.
    Remembering { revision: u64 },
    /// The store has been told.
    GivenUp,
}

impl Healing {
    /// What the store cannot read back, as it said last.
    pub(super) fn damaged_ranges(&self) -> impl Iterator<Item = &LostRange> {
        self.told.iter().flat_map(|damage| &damage.ranges)
    }
}

impl Node {
    /// Takes note of what the store cannot read back.
    pub(super) fn note_damage(&mut self, damage: Vec<Damage>) {
        self.healing.told = damage;
    }

    /// Goes on with the healing, if there is something to heal.
    pub(super) fn advance_healing(&mut self, now: Now) {
        let mut told = self.healing.told.iter().filter(|damage| self.may_heal(now, damage));
        let work = self.healing.work.as_ref().map(|work| &work.damage);
        if work.is_none_or(|work| told.clone().all(|damage| damage != work)) {
            let damage = told.next().cloned();
            self.begin_healing(now, damage);
        }
        while self.step_healing(now) {}
    }

    /// The store has taken note that a table may go.
    pub(super) fn gave_up(&mut self, response: &StoreResponse) {
        if let (StoreResponse::Failed(_), Some(work)) = (response, &mut self.healing.work)
            && matches!(work.stage, Stage::GivenUp)
        {
            // The next look finds that this is the damage still, and all is done again: it is harmless.
            self.healing.work = None;
        }
    }

    /// For operators.
    pub(super) fn healing_status(&self) -> Option<RepairStatus> {
        let Work { damage, stage, cells } = self.healing.work.as_ref()?;
        let permille = match stage {
            Stage::Settling { .. } => 0,
            Stage::Pulling { range } => (range * 1_000 / damage.ranges.len().max(1)) as u16,
            Stage::Remembering { .. } | Stage::GivenUp => 1_000,
        };
        Some(RepairStatus { kind: RepairKind::Healing, permille, cells: *cells })
    }

    fn may_heal(&self, now: Now, damage: &Damage) -> bool {
        let grace = self.limits.grace - self.limits.grace / GRACE_MARGIN;
        let is_forgotten = |dead: WallTime| dead.saturating_add(grace) <= self.latest_horizon(now);
        self.peers_count() > 0
            && !damage.dead_from.is_some_and(is_forgotten)
            && self.limits.default_from > 1
            && self.record.durable().sync_state == SyncState::Settled
            && self.drain.is_none()
    }

    fn begin_healing(&mut self, now: Now, damage: Option<Damage>) {
        self.pull.take_if(|pull| pull.what == Pulled::Range);
        let until = now.mono + self.limits.request_timeout * SETTLE_TIMEOUTS;
        self.healing.work = damage.map(|damage| Work { damage, stage: Stage::Settling { until }, cells: 0 });
    }

    /// `false`: it waits.
    fn step_healing(&mut self, now: Now) -> bool {
        let Some(Work { damage, stage, .. }) = &self.healing.work else { return false };
        let next = match *stage {
            Stage::Settling { until } if until <= now.mono => Stage::Pulling { range: 0 },
            Stage::Pulling { range } if range == damage.ranges.len() => self.remember_healing(),
            Stage::Pulling { range } => match self.pull_lost(now, range) {
                true => Stage::Pulling { range: range + 1 },
                false => return false,
            },
            Stage::Remembering { revision }
                if self.record.durable().revision >= revision && !self.clock_bound.is_to_be_renewed() =>
            {
                self.outbox.store(StorePurpose::GiveUp, StoreRequest::AbandonTable(damage.clone()));
                Stage::GivenUp
            }
            Stage::Settling { .. } | Stage::Remembering { .. } | Stage::GivenUp => return false,
        };
        if let Some(work) = &mut self.healing.work {
            work.stage = next;
        }
        true
    }

    /// Whether this range was pulled.
    fn pull_lost(&mut self, now: Now, range: usize) -> bool {
        if self.pull.is_none()
            && let Some(work) = &self.healing.work
        {
            let range = work.damage.ranges[range].clone();
            self.begin_pull(now, Pulled::Range, range);
        }
        self.advance_pull(now);
        if !self.is_pulled() {
            return false;
        }
        let cells = self.pull.take().map_or(0, |pull| pull.cells);
        if let Some(work) = &mut self.healing.work {
            work.cells += cells;
        }
        true
    }

    /// All that may be lost besides is made durable anew.
    fn remember_healing(&mut self) -> Stage {
        let is_own = self.healing.work.as_ref().is_some_and(|work| work.damage.own_cells);
        if is_own {
            self.clock_bound.renew();
            let told_before = self.outbox.last_number();
            self.peer_nodes().for_each(|node| self.peer_mut(node).untold = Some(told_before));
        }
        self.owe_repair(self.peer_nodes().collect());
        Stage::Remembering { revision: self.record.renew() }
    }
}
