//! The progress of the running plan, as far as this node hears.
//!
//! **Promise.** A plan that makes no progress for [`PLAN_STALLED_AFTER`] is reported once, with the
//! first event that it waits for ([`Event::PlanStalled`]). It is reported again after it has gone
//! on.
//!
//! **Mechanism.** The node compares at each interval of heartbeats. Each of these is progress:
//!
//! - another record was adopted
//! - more members have fenced the newest change, or more copies are complete than ever by this
//!   record
//! - a gainer has copied more bytes than ever by this record; its heartbeats say how many
//! - no swap runs, and a member that is heard purges what it has lost before
//!
//! A plan that an operator has paused, and whose swaps have ended, waits for the operator alone. It
//! does not count as stalled.
//!
//! **Caveats.** The time counts from the start of the process at the earliest. A gainer that begins
//! its copy again makes no progress until it has as many bytes as before. A purge that never ends
//! is not reported here: see the metrics of purges.

use super::Node;
use super::plan_step::{PlanWait, SwapWait, plan_wait, swap_waits};
use crate::{CopyProgress, Event, LayoutEpoch, LayoutRecord, NodeIndex};
use std::collections::BTreeMap;
use std::time::Duration;
use stdx::{Instant, Now};

/// Time without progress after which a running plan counts as stalled.
pub const PLAN_STALLED_AFTER: Duration = Duration::from_secs(5 * 60);

/// The first event that a stalled plan waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StallReason {
    /// A running swap waits.
    Swap(SwapWait),
    /// No swap can begin, and the plan cannot end.
    Plan(PlanWait),
}

/// The progress of the plan of a record.
#[derive(Debug, Default)]
pub(super) struct PlanProgress {
    followed: Option<FollowedRecord>,
}

#[derive(Debug)]
struct FollowedRecord {
    began: LayoutEpoch,
    /// Time of the last progress.
    progressed_at: Instant,
    most: Reached,
    is_reported: bool,
}

/// The greatest values by one record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Reached {
    epoch: Option<LayoutEpoch>,
    fences: usize,
    copies: usize,
    bytes: BTreeMap<NodeIndex, u64>,
}

impl Reached {
    /// Takes over what is greater in `now`. Returns whether there was anything.
    fn raise(&mut self, now: Self) -> bool {
        if now.epoch != self.epoch {
            *self = now;
            return true;
        }
        let before = self.clone();
        self.fences = self.fences.max(now.fences);
        self.copies = self.copies.max(now.copies);
        for (node, bytes) in now.bytes {
            let most = self.bytes.entry(node).or_default();
            *most = (*most).max(bytes);
        }
        *self != before
    }
}

impl PlanProgress {
    /// Time of the last progress of the plan that runs.
    pub(super) fn progressed_at(&self) -> Option<Instant> {
        self.followed.as_ref().map(|followed| followed.progressed_at)
    }

    /// Records the state of the plan that began in this epoch. Returns whether it is to be reported
    /// as stalled.
    fn observe(&mut self, now: Instant, began: LayoutEpoch, reached: Reached, is_in_order: bool) -> bool {
        let followed = self.followed.take().filter(|followed| followed.began == began);
        let mut followed = followed.unwrap_or_else(|| FollowedRecord {
            began,
            progressed_at: now,
            most: Reached::default(),
            is_reported: false,
        });
        if followed.most.raise(reached) || is_in_order {
            (followed.progressed_at, followed.is_reported) = (now, false);
        }
        let is_stalled = now.saturating_since(followed.progressed_at) >= PLAN_STALLED_AFTER;
        let is_news = is_stalled && !std::mem::replace(&mut followed.is_reported, is_stalled);
        self.followed = Some(followed);
        is_news
    }
}

impl Node {
    /// Compares the state of the running plan with that of earlier calls, and reports a plan that
    /// has stalled.
    pub(in crate::node) fn follow_plan_progress(&mut self, now: Now) {
        let Some(agreement) = &mut self.agreement else { return };
        let record = std::sync::Arc::clone(&agreement.adopted.record);
        let Some(plan) = &record.plan else {
            agreement.progress.followed = None;
            return;
        };
        let heard = self.heard_cluster();
        let stated = || record.members.iter().filter_map(|member| heard.statements(&record, member.slot));
        let newest = record.changed.iter().copied().max().unwrap_or(LayoutEpoch::FIRST);
        let reached = Reached {
            epoch: Some(record.epoch),
            fences: stated().filter(|its| its.has_fenced(newest)).count(),
            copies: stated().map(|its| its.complete.len()).sum(),
            bytes: self.copying_members().into_iter().map(|(node, copying)| (node, copying.bytes)).collect(),
        };
        let is_idle = plan.swaps.is_empty();
        let is_in_order = is_idle && (plan.is_paused || stated().any(|its| its.is_purging));
        let Some(agreement) = &mut self.agreement else { return };
        if agreement.progress.observe(now.mono, plan.began, reached, is_in_order) {
            self.outbox.emit_event(Event::PlanStalled { reason: self.stall_reason(&record) });
        }
    }

    /// The first event that the running plan of the adopted record waits for.
    fn stall_reason(&self, record: &LayoutRecord) -> StallReason {
        let heard = self.heard_cluster();
        let waits = swap_waits(record, &heard);
        let swap = waits.iter().find(|wait| **wait != SwapWait::Driver).or(waits.first());
        match (swap, plan_wait(record, &heard)) {
            (Some(swap), _) => StallReason::Swap(*swap),
            (None, Some(plan)) => StallReason::Plan(plan),
            (None, None) => StallReason::Swap(SwapWait::Driver),
        }
    }

    /// The members that copy, with their progress as they state it.
    pub(super) fn copying_members(&self) -> Vec<(NodeIndex, CopyProgress)> {
        let Some(record) = self.adopted_layout() else { return Vec::new() };
        let heard = self.heard_cluster();
        let stated = |slot| heard.statements(record, slot).and_then(|its| Some((slot, its.copying?)));
        record.members.iter().filter_map(|member| stated(member.slot)).collect()
    }

    /// The members, without this node, that are not heard now and are not dead.
    pub(super) fn unheard_members(&self) -> Vec<NodeIndex> {
        let dead = self.dead_peers();
        self.peer_nodes().filter(|node| !dead.contains(*node) && self.heard_peer(*node).is_none()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Instant {
        Instant::from_nanos(second * 1_000_000_000)
    }

    fn reached(epoch: u64, fences: usize, copies: usize, bytes: u64) -> Reached {
        let bytes = [(NodeIndex(3), bytes)].into();
        Reached { epoch: Some(LayoutEpoch(epoch)), fences, copies, bytes }
    }

    #[test]
    fn a_plan_is_reported_once_after_five_minutes_without_progress() {
        let mut progress = PlanProgress::default();
        let began = LayoutEpoch(4);
        let mut observe = |second, epoch, fences, copies, bytes| {
            progress.observe(at(second), began, reached(epoch, fences, copies, bytes), false)
        };
        assert!(!observe(100, 5, 0, 0, 0));
        assert!(!observe(399, 5, 0, 0, 0));
        assert!(observe(400, 5, 0, 0, 0));
        assert!(!observe(9_000, 5, 0, 0, 0), "once");
        let mut second = 10_000;
        for (epoch, fences, copies, bytes) in [(5, 1, 0, 0), (5, 1, 1, 0), (5, 1, 1, 7), (6, 0, 0, 0)] {
            assert!(!observe(second, epoch, fences, copies, bytes), "progress");
            assert!(!observe(second + 299, epoch, fences, copies, bytes));
            assert!(observe(second + 300, epoch, fences, copies, bytes), "reported again");
            second += 1_000;
        }
    }

    #[test]
    fn a_copy_that_begins_again_and_a_fence_that_is_forgotten_are_no_progress() {
        let mut progress = PlanProgress::default();
        let mut observe = |second, fences, bytes| {
            progress.observe(at(second), LayoutEpoch(4), reached(5, fences, 0, bytes), false)
        };
        assert!(!observe(0, 2, 1_000));
        assert!(!observe(100, 1, 0));
        assert!(!observe(200, 2, 999));
        assert!(observe(300, 2, 1_000));
        assert!(!observe(301, 2, 1_001));
    }

    #[test]
    fn a_plan_that_waits_for_its_operator_or_a_purge_is_not_stalled() {
        let mut progress = PlanProgress::default();
        for second in [0, 1_000, 2_000] {
            assert!(!progress.observe(at(second), LayoutEpoch(4), reached(5, 0, 0, 0), true));
        }
        assert_eq!(progress.progressed_at(), Some(at(2_000)));
        assert!(!progress.observe(at(9_000), LayoutEpoch(7), reached(5, 0, 0, 0), false), "another plan");
    }
}
