//! The progress of a running change of the layout, as this node has followed it.
//!
//! **Caveats.** A restart of the process begins to follow the change anew: times and the number of
//! moved copies count from there.

use api::{RunningPlanDocument, SeenProgress, SeenWaits};
use cluster::{AgreementStatus, LayoutEpoch, LayoutRecord, NodeIndex};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use stdx::Instant;

/// The change that this node follows.
#[derive(Debug, Default)]
pub(crate) struct LayoutProgress(Mutex<Option<FollowedPlan>>);

#[derive(Debug)]
struct FollowedPlan {
    began: LayoutEpoch,
    since: Instant,
    copies_left_first: u32,
    /// Time since which the phase of each running swap is known: by loser, gainer and epoch of the
    /// phase.
    phases: BTreeMap<(NodeIndex, NodeIndex, LayoutEpoch), Instant>,
}

impl LayoutProgress {
    /// Follows a record that was adopted, or that the node starts with.
    pub(crate) fn follow(&self, record: &LayoutRecord, now: Instant) {
        let mut followed = self.0.lock();
        let Some(plan) = &record.plan else {
            *followed = None;
            return;
        };
        let same = followed.take().filter(|followed| followed.began == plan.began);
        let mut next = same.unwrap_or_else(|| FollowedPlan {
            began: plan.began,
            since: now,
            copies_left_first: record.copies_left(),
            phases: BTreeMap::new(),
        });
        let known = |swap: &cluster::PairSwap| {
            let phase = (swap.loser, swap.gainer, swap.since);
            (phase, next.phases.get(&phase).copied().unwrap_or(now))
        };
        next.phases = plan.swaps.iter().map(known).collect();
        *followed = Some(next);
    }

    /// The document of the running change of `record`. `None`: no change runs.
    pub(crate) fn document(
        &self,
        record: &LayoutRecord,
        agreement: Option<&AgreementStatus>,
        now: Instant,
    ) -> Option<RunningPlanDocument> {
        let plan = record.plan.as_ref()?;
        let current = agreement.filter(|agreement| agreement.epoch == record.epoch);
        let known_waits = current.map_or_else(SeenWaits::default, |agreement| seen_waits(agreement, now));
        let waits = current.map_or(&[][..], |agreement| &agreement.waits);
        let followed = self.0.lock();
        let followed = followed.as_ref().filter(|followed| followed.began == plan.began);
        let known = |swap: &cluster::PairSwap| {
            let since = followed.and_then(|it| it.phases.get(&(swap.loser, swap.gainer, swap.since)));
            since.map_or(Duration::ZERO, |since| now.saturating_since(*since))
        };
        let waits =
            plan.swaps.iter().enumerate().map(|(index, swap)| (waits.get(index).copied(), known(swap)));
        let seen = SeenProgress {
            followed: followed.map_or(Duration::ZERO, |followed| now.saturating_since(followed.since)),
            copies_left_first: followed.map_or(0, |followed| followed.copies_left_first),
            waits: waits.collect(),
            known: known_waits,
        };
        RunningPlanDocument::of(record, &seen)
    }
}

fn seen_waits(agreement: &AgreementStatus, now: Instant) -> SeenWaits {
    SeenWaits {
        without_progress: without_progress(agreement, now),
        plan_wait: agreement.plan_wait,
        copies: agreement.copies.clone(),
        copying: agreement.copying.clone(),
        unheard: agreement.unheard.clone(),
        lacks_voters: !agreement.has_majority(),
    }
}

/// Time since the last progress of the running change that this node has noticed; 0 if none runs.
pub(crate) fn without_progress(agreement: &AgreementStatus, now: Instant) -> Duration {
    agreement.progressed_at.map_or(Duration::ZERO, |at| now.saturating_since(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::{
        ClusterOrigin, CopyObstacle, CopyProgress, CopyStatus, FEATURE_LEVEL_PLANS, PairSwap, PartitionId,
        PlacementChange, PlacementPlan, RateLimit, RecordHash, SwapPhase, SwapWait,
    };
    use stdx::NodeTag;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    /// A record of four nodes in which the weight of one begins to change.
    fn begun() -> LayoutRecord {
        let nodes = ["http://a:1", "http://b:1", "http://c:1", "http://d:1"].map(String::from).to_vec();
        let origin =
            ClusterOrigin { nodes, partitions: 16, hash_version: 1, default_from: 2, tag: NodeTag(7) };
        let mut record = LayoutRecord::first(origin).expect("four nodes are a cluster");
        record.feature_level = FEATURE_LEVEL_PLANS;
        (0..).zip(&mut record.members).for_each(|(id, member)| member.node_id = Some(NodeTag(10 + id)));
        let changes = [PlacementChange::Weight { url: "http://a:1".to_owned(), weight: 2 }];
        let plan = PlacementPlan::new(&record, &changes).expect("a possible change");
        record.with_plan(&plan).expect("it begins")
    }

    #[test]
    fn the_running_change_is_shown_with_its_steps_its_progress_and_the_time_left() {
        let (progress, mut record) = (LayoutProgress::default(), begun());
        progress.follow(&record, at(100));
        let document = progress.document(&record, None, at(110)).expect("it runs");
        let left = record.copies_left();
        assert!(left > 1);
        assert_eq!(
            (document.state, document.copies_left, document.copies_moved),
            ("running", Some(left), Some(0))
        );
        assert_eq!((document.seconds, document.seconds_left), (10, None), "nothing has moved yet");

        let plan = record.plan.as_mut().expect("it runs");
        plan.rate_limit = RateLimit::new(1_000);
        plan.swaps = vec![PairSwap {
            loser: NodeIndex(1),
            gainer: NodeIndex(0),
            phase: SwapPhase::Prepare,
            attempt: LayoutEpoch(2),
            since: LayoutEpoch(2),
            partitions: vec![PartitionId(3), PartitionId(5)],
        }];
        // One copy has moved: a list has its holders.
        let (from, target) = (2, plan.target.clone());
        let moved = (0..16).find(|partition| {
            let list = &record.lists[partition * 4..][..from];
            target[partition * from..][..from].iter().filter(|slot| !list.contains(slot)).count() == 1
        });
        let moved = moved.expect("a copy moves") * 4;
        let gained = target[moved / 2..][..from].to_vec();
        let rest: Vec<_> =
            record.lists[moved..][..4].iter().copied().filter(|slot| !gained.contains(slot)).collect();
        record.lists[moved..][..4].copy_from_slice(&[gained, rest].concat());
        progress.follow(&record, at(120));
        let agreement = AgreementStatus {
            epoch: record.epoch,
            hash: RecordHash::NONE,
            voters: Vec::new(),
            behind: Vec::new(),
            history: cluster::VoteHistory::Complete,
            can_vote: true,
            waits: vec![SwapWait::Copy { gainer: NodeIndex(0) }],
            copies: vec![CopyStatus {
                loser: NodeIndex(1),
                gainer: NodeIndex(0),
                permille: 412,
                cells: 7,
                bytes: 900,
                obstacle: Some(CopyObstacle::DiskFull),
            }],
            plan_wait: None,
            progressed_at: Some(at(125)),
            copying: vec![(
                NodeIndex(0),
                CopyProgress { bytes: 900, obstacle: Some(CopyObstacle::DiskFull) },
            )],
            unheard: vec![NodeIndex(2)],
        };
        let document = progress.document(&record, Some(&agreement), at(130)).expect("it runs");
        let expected = serde_json::json!({
            "began": 2, "state": "running", "bytes_per_second": 1_000, "copies_left": left - 1, "copies_moved": 1,
            "seconds": 30, "seconds_left": 30 * (left - 1), "seconds_without_progress": 5, "waits_for": null,
            "advice": [
                "make room on the disk of http://a:1: the copy goes on by itself. Or end the change: veche layout cancel",
                "start the voters that are out of reach",
            ],
            "steps": [{
                "from": "http://b:1", "to": "http://a:1", "phase": "prepare", "partitions": 2, "since_epoch": 2,
                "seconds": 10, "waits_for": "http://a:1 to copy the data: 41.2 %, its disk is full",
                "copy": { "permille": 412, "cells": 7, "bytes": 900 },
            }],
        });
        assert_eq!(serde_json::to_value(&document).expect("JSON"), expected);

        let older = AgreementStatus { epoch: LayoutEpoch(1), ..agreement };
        let document = progress.document(&record, Some(&older), at(130)).expect("it runs");
        assert_eq!(document.steps[0].copy, None);
        assert_eq!(document.steps[0].waits_for, "not known yet", "the status is of another record");
    }

    #[test]
    fn a_cancelled_change_has_no_copies_to_move_and_an_ended_one_is_not_shown() {
        let progress = LayoutProgress::default();
        let cancelled = begun().with_plan_cancelled().expect("it runs");
        progress.follow(&cancelled, at(1));
        let document = progress.document(&cancelled, None, at(2)).expect("its steps are taken back");
        assert_eq!((document.state, document.copies_left, document.seconds_left), ("cancelled", None, None));
        let paused = begun().with_plan_paused().expect("it runs");
        assert_eq!(progress.document(&paused, None, at(2)).map(|it| it.state), Some("paused"));
        let ended = LayoutRecord { plan: None, ..cancelled };
        progress.follow(&ended, at(3));
        assert_eq!(progress.document(&ended, None, at(4)), None);
    }
}
