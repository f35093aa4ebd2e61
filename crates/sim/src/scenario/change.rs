//! Runs with a kind of change, and the limits within which veche's promises hold for it.
//!
//! - [`FaultKind::ClockStep`]: one clock at a time is wrong, and the clocks of the other nodes
//!   agree. So there are at least three nodes, and no other fault of clocks. A node that starts
//!   while it reaches no other node uses its own clock. So not all nodes are down at once, and none
//!   is cut off.
//! - [`FaultKind::LoseTwoDisks`]: writes wait for enough replicas that one of them keeps its disk.
//!   In a cluster of five that is a majority. In a cluster of three it is all replicas, and two are
//!   emptied while the third is down.
//! - [`FaultKind::LoseFiles`], [`FaultKind::CutLog`], [`FaultKind::RestoreNode`]: as a lost disk.
//! - [`FaultKind::RollBack`]: as a lost disk. Only a peer that was linked with the later generation
//!   can detect it, so the node starts when it reaches such a peer.
//! - [`FaultKind::DuplicateMember`]: as a lost disk. A peer that does not reach the original admits
//!   the copy. So all running nodes reach each other, and the original is not paused beside its
//!   copy. The peers' knowledge of the two processes is lost if all hosts lose power, or within a
//!   second after the copy was made. So neither fault occurs then. The original starts again only
//!   when it reaches a peer that admitted the copy, and no peer starts while the address of the
//!   running original leads to the copy.
//! - [`FaultKind::FutureCell`]: as a lost disk, with clocks that agree.
//! - [`FaultKind::RestoreCluster`]: writes acknowledged after the backups may be lost.
//! - [`FaultKind::Suspend`], [`FaultKind::LongAbsence`]: tombstones are purged within the run. A
//!   node that was absent for half of the grace period does not return with its data. Otherwise the
//!   run has the limits of a short grace period.

use super::{FaultKind, GRACE_LONG, QuorumStyle, Scenario, is_fit_for_short_grace};
use std::time::Duration;
use stdx::Rng;

/// Fraction of runs with a kind of change.
const CHANGE_SHARE: f64 = 0.3;
/// Greatest number of kinds of faults beside the requested kind.
const OTHERS_MAX: usize = 3;
/// Grace period that is shorter than the absences of a run, and long compared with its other
/// outages.
const GRACE_OF_ABSENCES: Duration = Duration::from_secs(12);

impl Scenario {
    /// Draws whether this run has a kind of change, and which. Uses a generator of its own, so that
    /// other runs keep their draws.
    pub(super) fn draw_change(&mut self) {
        let mut rng = Rng::new(self.seed ^ 0x6368_616e_6765);
        if !rng.chance(CHANGE_SHARE) {
            return;
        }
        let kinds = FaultKind::CHANGES;
        self.focus_on(kinds[rng.below(kinds.len() as u64) as usize]);
    }

    /// Makes half of the faults be of this kind, and keeps the run within its limits.
    pub(super) fn focus_on(&mut self, kind: FaultKind) {
        if kind.is_between_nodes() || FaultKind::CHANGES.contains(&kind) {
            self.have_nodes(self.nodes.max(3));
        }
        if kind.loses_data() && self.quorums == QuorumStyle::Any {
            self.quorums = QuorumStyle::AtLeastMajorityWrites;
        }
        if self.has_short_grace() && !is_fit_for_short_grace(kind) {
            self.grace = GRACE_LONG;
        }
        match kind {
            FaultKind::ClockStep => self.focus_on_clock_steps(),
            FaultKind::LoseTwoDisks => self.focus_on_two_lost_disks(),
            FaultKind::RollBack
            | FaultKind::LoseFiles
            | FaultKind::CutLog
            | FaultKind::RestoreNode
            | FaultKind::RestoreCluster
            | FaultKind::DuplicateMember => {
                self.focus_on_lost_data();
            }
            FaultKind::FutureCell => self.skew_max = Duration::from_millis(100),
            FaultKind::Suspend | FaultKind::LongAbsence => self.focus_on_absences(),
            _ => {}
        }
        self.fault_kinds.retain(|other| *other != kind && is_fit_beside(*other, kind));
        self.fault_kinds.truncate(OTHERS_MAX);
        let others = self.fault_kinds.len().max(1);
        self.fault_kinds.extend(std::iter::repeat_n(kind, others));
    }

    fn have_nodes(&mut self, nodes: u8) {
        if self.nodes < nodes {
            self.nodes = nodes;
            self.default_from = self.default_from.max(nodes.min(3));
        }
    }

    /// Half of the runs purge tombstones, and half have values that live for an hour.
    fn focus_on_clock_steps(&mut self) {
        if self.seed.is_multiple_of(2) {
            self.shorten_grace();
        }
        if self.seed % 4 < 2 {
            self.ttl_max = Duration::from_secs(3_600);
        }
        self.ttl_share = self.ttl_share.max(0.2);
        self.skew_max = Duration::from_millis(100);
        self.faults = self.faults.max(8);
    }

    fn focus_on_two_lost_disks(&mut self) {
        let is_large = self.seed.is_multiple_of(2);
        self.nodes = if is_large { 5 } else { 3 };
        self.default_from = self.nodes;
        if !is_large {
            self.quorums = QuorumStyle::EveryReplicaWrites;
        }
    }

    /// In half of the runs all replicas must have a write before it is acknowledged, so that a read
    /// from the replica that lost the write shows the loss.
    fn focus_on_lost_data(&mut self) {
        self.faults = self.faults.max(12);
        if self.seed.is_multiple_of(2) {
            self.quorums = QuorumStyle::EveryReplicaWrites;
        }
    }

    fn focus_on_absences(&mut self) {
        self.shorten_grace();
        self.grace = GRACE_OF_ABSENCES;
        self.away_max = GRACE_OF_ABSENCES / 2;
        self.hint_age_max = GRACE_OF_ABSENCES / 3;
        self.outage_max = GRACE_OF_ABSENCES / 6;
        self.faults = self.faults.max(8);
        // With this number of keys, a key deleted during the absence is often not written again
        // before the node returns.
        self.keys = 300;
        self.cold_share = 0.0;
        self.ttl_share = 0.0;
        self.delete_share = 0.4;
        self.memtable_bytes = self.memtable_bytes.min(32 << 10);
    }

    /// Makes this a run in which tombstones are purged, within the limits that the module
    /// `scenario` documents.
    fn shorten_grace(&mut self) {
        if self.has_short_grace() {
            return;
        }
        self.grace = super::GRACE_SHORT;
        self.fault_kinds.retain(|kind| is_fit_for_short_grace(*kind));
        if self.quorums == QuorumStyle::Any {
            self.quorums = QuorumStyle::AtLeastMajorityWrites;
        }
        self.value_bytes_max = 64 << 10;
        self.hint_bytes_max = 64 << 20;
        self.outage_max = self.outage_max.min(Duration::from_secs(5));
        self.skew_max = Duration::from_millis(100);
        self.jump_max = Duration::from_secs(3);
        self.operations_max = 256;
    }
}

/// Whether a run may have `other` beside the requested kind.
const fn is_fit_beside(other: FaultKind, kind: FaultKind) -> bool {
    use FaultKind::{ClockStep, DuplicateMember, FutureCell, RollBack, Suspend};
    match kind {
        ClockStep => is_fit_for_one_wrong_clock(other),
        Suspend | FutureCell | RollBack => !affects_clocks(other),
        DuplicateMember => {
            !affects_clocks(other) && !separates_nodes(other) && !matches!(other, FaultKind::PowerLossOfAll)
        }
        _ => true,
    }
}

/// Whether a node with a wrong clock always reaches other nodes when it starts.
const fn is_fit_for_one_wrong_clock(other: FaultKind) -> bool {
    !separates_nodes(other) && !affects_clocks(other) && !matches!(other, FaultKind::PowerLossOfAll)
}

/// Whether running nodes do not reach each other under this fault.
const fn separates_nodes(kind: FaultKind) -> bool {
    use FaultKind::{Clog, LossyNetwork, OneWayCut, Partition, RefuseDials, SlowNetwork};
    matches!(kind, Clog | LossyNetwork | OneWayCut | Partition | RefuseDials | SlowNetwork)
}

const fn affects_clocks(kind: FaultKind) -> bool {
    use FaultKind::{ClockFreeze, ClockJump, ClockStep, Suspend};
    matches!(kind, ClockFreeze | ClockJump | ClockStep | Suspend)
}

#[cfg(test)]
mod tests {
    use super::super::Scale;
    use super::*;

    #[test]
    fn every_run_with_a_change_is_within_the_promises() {
        for kind in FaultKind::CHANGES {
            for seed in 0..300 {
                let scenario = Scenario::draw_with_fault(seed, Scale::FULL, kind);
                let of_kind = scenario.fault_kinds.iter().filter(|drawn| **drawn == kind).count();
                assert!(of_kind * 2 >= scenario.fault_kinds.len(), "{kind:?}, seed {seed}");
                assert!(scenario.nodes >= 3 && scenario.default_from >= 2, "{kind:?}, seed {seed}");
                let overlaps = scenario.quorums != QuorumStyle::Any;
                assert!(overlaps || !scenario.loses_data(), "{kind:?}, seed {seed}");
                assert!(overlaps || !scenario.has_short_grace(), "{kind:?}, seed {seed}");
                let purges_and_loses = scenario.has_short_grace() && scenario.loses_data();
                assert!(!purges_and_loses, "{kind:?}, seed {seed}");
            }
        }
    }

    #[test]
    fn every_kind_has_a_name_of_its_own() {
        for kind in FaultKind::ALL.into_iter().chain(FaultKind::CHANGES) {
            assert_eq!(FaultKind::named(&kind.name()), Some(kind));
        }
        assert_eq!(FaultKind::ClockStep.name(), "clock-step");
        assert_eq!(FaultKind::named("clock"), None);
    }
}
