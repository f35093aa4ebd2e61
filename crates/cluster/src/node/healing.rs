//! Healing: the lost ranges of a damaged table are pulled from the other replicas.
//!
//! **Promise.** A table is abandoned only when every majority-acknowledged write that its lost
//! ranges can have held is durable on this node. The replicas that were [pulled](super::pull) from
//! include one of every majority, and each of them is read-eligible. Until then reads of these
//! ranges fail on this node; they never report a missing key. Healing needs no durable state of its
//! own: while it is incomplete, the damaged table remains unreadable.
//!
//! **Mechanism.** The store reports tables that cannot be read back. For one table at a time:
//!
//! 1. The node waits until every unacknowledged write has ended that the table may hold.
//! 2. It pulls the lost ranges one after the other.
//! 3. It stores the cells of the node itself again that the table may have held: the node record,
//!    with a repair pending with every peer, and the bound of its clock. It tells the peers that
//!    hints for them may be lost.
//! 4. It tells the store to abandon the table.
//!
//! A restart at any step begins again, as does a table that turns out to have lost more.
//!
//! **Caveats.** A table with deletes or expired values older than the grace period is not healed:
//! other replicas may have purged these, so older cells that they hid on this node would reappear.
//! As after too long an outage, the operator must have the node rebuilt. A node that holds the only
//! copy of its keys by default is not healed either: an error is more useful than a false
//! "missing". If so few other replicas are readable in the range that they cover no majority, the
//! range stays unreadable. It becomes readable when they return, or when the operator has this node
//! rebuilt. Lost keys that only this node held read as missing after healing.

use super::dispatch::StorePurpose;
use super::pull::PullTarget;
use super::rebuild::IN_FLIGHT_WRITE_TIMEOUTS;
use super::{Node, RepairKind};
use crate::quorum::has_other_replicas;
use crate::{LostRange, RepairStatus, StoreRequest, StoreResponse, SyncState, TableDamage};
use stdx::{Instant, Now, WallTime};

/// Fraction of the grace period (one in this many) by which other nodes may purge deletes before
/// this node's clock says so. Healing ends within it.
const GRACE_MARGIN: u32 = 20;

/// State of the healing of damaged tables.
#[derive(Debug, Default)]
pub(super) struct Healing {
    /// Damaged tables as last reported by the store.
    damage: Vec<TableDamage>,
    job: Option<HealingJob>,
}

#[derive(Debug)]
struct HealingJob {
    damage: TableDamage,
    stage: HealingStage,
    /// Number of cells stored from other replicas.
    cells: u64,
}

#[derive(Debug)]
enum HealingStage {
    /// Waits until writes have ended that began before the damage was known.
    AwaitingWrites { until: Instant },
    /// Ranges from this index on are still to be pulled.
    Pulling { range: usize },
    /// The node record is being stored, with this revision or a greater one.
    StoringRecord { revision: u64 },
    /// The store was told to abandon the table.
    Abandoning,
}

impl Healing {
    /// Lost ranges of all damaged tables as last reported by the store.
    pub(super) fn damaged_ranges(&self) -> impl Iterator<Item = &LostRange> {
        self.damage.iter().flat_map(|damage| &damage.ranges)
    }

    /// The damaged tables with lost ranges, as last reported by the store.
    pub(super) fn damaged_tables(&self) -> impl Iterator<Item = u64> {
        self.damage.iter().filter(|damage| !damage.ranges.is_empty()).map(|damage| damage.table)
    }
}

impl Node {
    /// Sets the damaged tables that the store reports.
    pub(super) fn set_damage(&mut self, damage: Vec<TableDamage>) {
        self.healing.damage = damage;
    }

    /// Advances the healing of damaged tables.
    pub(super) fn advance_healing(&mut self, now: Now) {
        let mut healable = self.healing.damage.iter().filter(|damage| self.can_heal(now, damage));
        let job = self.healing.job.as_ref().map(|job| &job.damage);
        if job.is_none_or(|current| healable.clone().all(|damage| damage != current)) {
            let damage = healable.next().cloned();
            self.begin_healing(now, damage);
        }
        while self.step_healing(now) {}
    }

    /// Handles the store's answer to the request to abandon a table.
    pub(super) fn handle_table_abandoned(&mut self, response: &StoreResponse) {
        if let (StoreResponse::Failed(_), Some(job)) = (response, &mut self.healing.job)
            && matches!(job.stage, HealingStage::Abandoning)
        {
            // The store still reports the table, so the job starts again. Repeating it is harmless.
            self.healing.job = None;
        }
    }

    /// Status of the healing job for operators.
    pub(super) fn healing_status(&self) -> Option<RepairStatus> {
        let HealingJob { damage, stage, cells } = self.healing.job.as_ref()?;
        let permille = match stage {
            HealingStage::AwaitingWrites { .. } => 0,
            HealingStage::Pulling { range } => (range * 1_000 / damage.ranges.len().max(1)) as u16,
            HealingStage::StoringRecord { .. } | HealingStage::Abandoning => 1_000,
        };
        Some(RepairStatus { kind: RepairKind::Healing, permille, cells: *cells })
    }

    fn can_heal(&self, now: Now, damage: &TableDamage) -> bool {
        let grace = self.limits.grace - self.limits.grace / GRACE_MARGIN;
        let is_forgotten = |dead: WallTime| dead.saturating_add(grace) <= self.latest_horizon(now);
        self.peers_count() > 0
            && !damage.dead_from.is_some_and(is_forgotten)
            && has_other_replicas(self.limits.default_from)
            && self.record.durable().sync_state == SyncState::Settled
            && self.drain.is_none()
    }

    fn begin_healing(&mut self, now: Now, damage: Option<TableDamage>) {
        self.pull.take_if(|pull| pull.target == PullTarget::Range);
        let until = now.mono + self.limits.request_timeout * IN_FLIGHT_WRITE_TIMEOUTS;
        self.healing.job = damage.map(|damage| HealingJob {
            damage,
            stage: HealingStage::AwaitingWrites { until },
            cells: 0,
        });
    }

    /// Advances the job by one step. `false`: the job waits.
    fn step_healing(&mut self, now: Now) -> bool {
        let Some(HealingJob { damage, stage, .. }) = &self.healing.job else { return false };
        let next = match *stage {
            HealingStage::AwaitingWrites { until } if until <= now.mono => HealingStage::Pulling { range: 0 },
            HealingStage::Pulling { range } if range == damage.ranges.len() => self.renew_own_cells(),
            HealingStage::Pulling { range } => match self.pull_lost_range(now, range) {
                true => HealingStage::Pulling { range: range + 1 },
                false => return false,
            },
            HealingStage::StoringRecord { revision }
                if self.record.durable().revision >= revision && !self.clock_bound.is_renewal_pending() =>
            {
                self.outbox
                    .request_store(StorePurpose::AbandonTable, StoreRequest::AbandonTable(damage.clone()));
                HealingStage::Abandoning
            }
            HealingStage::AwaitingWrites { .. }
            | HealingStage::StoringRecord { .. }
            | HealingStage::Abandoning => return false,
        };
        if let Some(job) = &mut self.healing.job {
            job.stage = next;
        }
        true
    }

    /// Pulls one lost range; returns whether it is complete.
    fn pull_lost_range(&mut self, now: Now, range: usize) -> bool {
        if self.pull.is_none()
            && let Some(job) = &self.healing.job
        {
            let range = job.damage.ranges[range].clone();
            self.begin_pull(now, PullTarget::Range, range);
        }
        self.advance_pull(now);
        if !self.is_pull_complete() {
            return false;
        }
        let cells = self.pull.take().map_or(0, |pull| pull.cells);
        if let Some(job) = &mut self.healing.job {
            job.cells += cells;
        }
        true
    }

    /// Has the node's own cells stored again that may be lost with the table.
    fn renew_own_cells(&mut self) -> HealingStage {
        let is_own = self.healing.job.as_ref().is_some_and(|job| job.damage.own_cells);
        if is_own {
            self.clock_bound.renew();
            let last_request = self.outbox.last_request_number();
            self.peer_nodes().for_each(|node| self.peer_mut(node).unacked_repair_notice = Some(last_request));
        }
        self.mark_repair_pending(self.peer_nodes().collect());
        HealingStage::StoringRecord { revision: self.record.force_store() }
    }
}
