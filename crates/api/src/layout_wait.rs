//! The waits of a running change of the layout, in sentences for operators.
//!
//! **Promise.** Each wait is named with the member that it is about. Advice is given at once for a
//! wait that does not end by itself, such as a full disk or a member that is not heard. For other
//! waits it is given once the change has made no progress for [`PLAN_STALLED_AFTER`].
//!
//! **Caveats.** The sentences say what the answering node knows. It hears of the copies of other
//! nodes by heartbeats.

use cluster::{
    CopyObstacle, CopyProgress, CopyStatus, NodeIndex, PLAN_STALLED_AFTER, PlanWait, StallReason, SwapWait,
};
use std::time::Duration;

/// Knowledge of the answering node about the waits of a running change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenWaits {
    /// Time since the last progress of the change that the node has noticed.
    pub without_progress: Duration,
    /// The reason why no further step begins and the change does not end.
    pub plan_wait: Option<PlanWait>,
    /// The copies of the answering node.
    pub copies: Vec<CopyStatus>,
    /// The members that copy, with their progress as they have stated it.
    pub copying: Vec<(NodeIndex, CopyProgress)>,
    /// The members that the node does not hear, without dead ones.
    pub unheard: Vec<NodeIndex>,
    /// Whether the node reaches no majority of the voters.
    pub lacks_voters: bool,
}

impl SeenWaits {
    /// Whether the change counts as stalled.
    pub fn is_stalled(&self) -> bool {
        self.without_progress >= PLAN_STALLED_AFTER
    }

    fn is_unheard(&self, node: NodeIndex) -> bool {
        self.unheard.contains(&node)
    }

    fn obstacle_of(&self, gainer: NodeIndex) -> Option<CopyObstacle> {
        self.copying.iter().find(|(node, _)| *node == gainer).and_then(|(_, copying)| copying.obstacle)
    }

    /// The event that a step waits for. `copy`: its copy, if the answering node makes it.
    pub(crate) fn describe_step(
        &self,
        wait: Option<SwapWait>,
        copy: Option<&CopyStatus>,
        url: impl Fn(NodeIndex) -> String,
    ) -> String {
        let with_obstacle = |progress: String, obstacle: Option<CopyObstacle>| match obstacle {
            Some(obstacle) => format!(": {progress}, {}", describe_obstacle(obstacle, &url)),
            None => format!(": {progress}"),
        };
        let unheard = |node| if self.is_unheard(node) { ", which is not heard" } else { "" };
        match wait {
            None => "not known yet".to_owned(),
            Some(SwapWait::Copy { gainer }) => {
                let of_gainer = self.copying.iter().find(|(node, _)| *node == gainer);
                let progress = match (copy, of_gainer) {
                    (Some(copy), _) => with_obstacle(
                        format!("{}.{} %", copy.permille / 10, copy.permille % 10),
                        copy.obstacle,
                    ),
                    (None, Some((_, copying))) => {
                        with_obstacle(format!("{} bytes in all its steps", copying.bytes), copying.obstacle)
                    }
                    (None, None) => unheard(gainer).to_owned(),
                };
                format!("{} to copy the data{progress}", url(gainer))
            }
            Some(SwapWait::Driver) if self.lacks_voters => {
                "a majority of the voters, which this node does not reach".to_owned()
            }
            Some(wait @ SwapWait::Fence { node }) => format!("{}{}", describe_swap(wait, url), unheard(node)),
            Some(wait) => describe_swap(wait, url),
        }
    }

    /// Advice about a wait of a step. `None`: wait.
    pub(crate) fn advise_on_step(
        &self,
        wait: Option<SwapWait>,
        url: impl Fn(NodeIndex) -> String,
    ) -> Option<String> {
        let is_stalled = self.is_stalled();
        match wait? {
            SwapWait::Copy { gainer } | SwapWait::Fence { node: gainer } if self.is_unheard(gainer) => {
                Some(advice_on_unheard(&url(gainer)))
            }
            SwapWait::Copy { gainer } => match self.obstacle_of(gainer) {
                Some(CopyObstacle::DiskFull) => Some(format!(
                    "make room on the disk of {}: the copy goes on by itself. Or end the change: veche layout cancel",
                    url(gainer)
                )),
                _ if !is_stalled => None,
                Some(CopyObstacle::Source { node }) => {
                    Some(format!("see the log and veche status of {} and {}", url(node), url(gainer)))
                }
                Some(CopyObstacle::Stalled) => Some(format!(
                    "the disk of {} is too slow or short of room: wait, make room, or lower the rate: veche layout limit",
                    url(gainer)
                )),
                _ => Some(format!("see the log and veche status of {}", url(gainer))),
            },
            // The advice on the whole change says it.
            SwapWait::Driver if self.lacks_voters => None,
            _ if !is_stalled => None,
            SwapWait::Fence { node } => Some(format!(
                "see the log of {0}, and restart {0}: a new process has no older requests",
                url(node)
            )),
            SwapWait::FenceOfOthers { dead } => Some(format!(
                "start the members that hold the data of {}: veche status shows them",
                url(dead)
            )),
            SwapWait::Driver => Some("see the logs of the voters".to_owned()),
        }
    }

    /// Advice about the wait of the whole change. `None`: wait.
    pub(crate) fn advise_on_plan(&self, url: impl Fn(NodeIndex) -> String) -> Option<String> {
        if self.lacks_voters {
            return Some("start the voters that are out of reach".to_owned());
        }
        let is_stalled = self.is_stalled();
        match self.plan_wait? {
            PlanWait::Paused => Some("go on: veche layout resume".to_owned()),
            PlanWait::DeadHolder { node } => Some(format!(
                "{} is dead and was to hold data: end the change (veche layout cancel), then plan another one without it",
                url(node)
            )),
            PlanWait::Unheard { node } if self.is_unheard(node) => Some(advice_on_unheard(&url(node))),
            _ if !is_stalled => None,
            PlanWait::Unheard { node } => Some(format!(
                "{} holds an older record: its log says why it does not adopt the newest one",
                url(node)
            )),
            PlanWait::Unsettled { node } => {
                Some(format!("{} is filled by the others: veche status of it shows the progress", url(node)))
            }
            PlanWait::Purge { node } => {
                Some(format!("wait for compaction on {}: veche_purge_left_bytes falls", url(node)))
            }
            PlanWait::LeavingVoter { node } => Some(format!(
                "start another member: one that has all its votes takes the vote of {}",
                url(node)
            )),
        }
    }
}

fn advice_on_unheard(url: &str) -> String {
    format!(
        "start {url}, or mend the network to it. If it does not come back: veche layout dead {url}, or veche layout \
         cancel"
    )
}

/// The reason why a copy does not go on, for operators.
pub fn describe_obstacle(obstacle: CopyObstacle, url: impl Fn(NodeIndex) -> String) -> String {
    match obstacle {
        CopyObstacle::Fence => "it does not refuse requests of older epochs yet".to_owned(),
        CopyObstacle::NotReadEligible => "it is being rebuilt".to_owned(),
        CopyObstacle::Purge => "it removes what it held of these partitions before".to_owned(),
        CopyObstacle::DiskFull => "its disk is full".to_owned(),
        CopyObstacle::Stalled => "its storage cannot keep up".to_owned(),
        CopyObstacle::Store => "its storage has refused the data".to_owned(),
        CopyObstacle::Source { node } => format!("{} does not send the data yet", url(node)),
    }
}

/// The first event that a stalled change waits for, for operators.
pub fn describe_stall(reason: StallReason, url: impl Fn(NodeIndex) -> String) -> String {
    match reason {
        StallReason::Swap(wait) => describe_swap(wait, url),
        StallReason::Plan(wait) => describe_plan(wait, url),
    }
}

fn describe_swap(wait: SwapWait, url: impl Fn(NodeIndex) -> String) -> String {
    match wait {
        SwapWait::Copy { gainer } => format!("{} to copy the data", url(gainer)),
        SwapWait::Fence { node } => format!("{} to refuse requests of older epochs", url(node)),
        SwapWait::FenceOfOthers { dead } => {
            format!("the other replicas to refuse requests of older epochs, because {} is dead", url(dead))
        }
        SwapWait::Driver => "a voter to decide the next phase".to_owned(),
    }
}

pub(crate) fn describe_plan(wait: PlanWait, url: impl Fn(NodeIndex) -> String) -> String {
    match wait {
        PlanWait::Paused => "an operator to resume it".to_owned(),
        PlanWait::DeadHolder { node } => format!("another node in place of {}, which is dead", url(node)),
        PlanWait::Unheard { node } => format!("{} to be heard with the newest record", url(node)),
        PlanWait::Unsettled { node } => format!("{} to be filled by the others", url(node)),
        PlanWait::Purge { node } => format!("{} to remove what it has lost before", url(node)),
        PlanWait::LeavingVoter { node } => format!("another voter in place of {}", url(node)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeIndex = NodeIndex(3);

    fn url(node: NodeIndex) -> String {
        format!("n{}", node.0)
    }

    fn seen(without_progress: Duration) -> SeenWaits {
        SeenWaits { without_progress, ..SeenWaits::default() }
    }

    fn copying(obstacle: Option<CopyObstacle>) -> SeenWaits {
        SeenWaits { copying: vec![(NODE, CopyProgress { bytes: 70, obstacle })], ..SeenWaits::default() }
    }

    #[test]
    fn a_step_says_what_the_gainer_has_stated_about_its_copy() {
        let wait = Some(SwapWait::Copy { gainer: NODE });
        let told = |seen: &SeenWaits| seen.describe_step(wait, None, url);
        assert_eq!(told(&SeenWaits::default()), "n3 to copy the data");
        assert_eq!(told(&copying(None)), "n3 to copy the data: 70 bytes in all its steps");
        let full = copying(Some(CopyObstacle::DiskFull));
        assert_eq!(told(&full), "n3 to copy the data: 70 bytes in all its steps, its disk is full");
        let unheard = SeenWaits { unheard: vec![NODE], ..SeenWaits::default() };
        assert_eq!(told(&unheard), "n3 to copy the data, which is not heard");
        let fence = Some(SwapWait::Fence { node: NODE });
        let told = unheard.describe_step(fence, None, url);
        assert_eq!(told, "n3 to refuse requests of older epochs, which is not heard");
        let lacks_voters = SeenWaits { lacks_voters: true, ..SeenWaits::default() };
        assert!(
            lacks_voters.describe_step(Some(SwapWait::Driver), None, url).contains("majority of the voters")
        );
    }

    #[test]
    fn a_wait_that_does_not_end_by_itself_has_advice_at_once() {
        let wait = Some(SwapWait::Copy { gainer: NODE });
        let full = copying(Some(CopyObstacle::DiskFull)).advise_on_step(wait, url).expect("advice");
        assert!(full.contains("disk of n3") && full.contains("veche layout cancel"), "{full}");
        let unheard = SeenWaits { unheard: vec![NODE], ..SeenWaits::default() };
        for wait in [wait, Some(SwapWait::Fence { node: NODE })] {
            let told = unheard.advise_on_step(wait, url).expect("advice");
            assert!(told.starts_with("start n3") && told.contains("veche layout dead n3"), "{told}");
        }
        let voters = SeenWaits { lacks_voters: true, ..SeenWaits::default() };
        assert!(voters.advise_on_plan(url).is_some());
        for wait in [PlanWait::Paused, PlanWait::DeadHolder { node: NODE }, PlanWait::Unheard { node: NODE }]
        {
            let seen = SeenWaits { plan_wait: Some(wait), ..unheard.clone() };
            assert!(seen.advise_on_plan(url).is_some(), "{wait:?}");
        }
    }

    #[test]
    fn every_other_wait_has_advice_once_the_change_has_stalled() {
        let before = PLAN_STALLED_AFTER.saturating_sub(Duration::from_secs(1));
        let node = NODE;
        let swaps = [
            SwapWait::Copy { gainer: node },
            SwapWait::Fence { node },
            SwapWait::FenceOfOthers { dead: node },
            SwapWait::Driver,
        ];
        for wait in swaps.map(Some) {
            assert_eq!(seen(before).advise_on_step(wait, url), None, "{wait:?}");
            assert!(seen(PLAN_STALLED_AFTER).advise_on_step(wait, url).is_some(), "{wait:?}");
        }
        let plans = [
            PlanWait::Unheard { node },
            PlanWait::Unsettled { node },
            PlanWait::Purge { node },
            PlanWait::LeavingVoter { node },
        ];
        for wait in plans {
            let with = |seen: SeenWaits| SeenWaits { plan_wait: Some(wait), ..seen };
            assert_eq!(with(seen(before)).advise_on_plan(url), None, "{wait:?}");
            assert!(with(seen(PLAN_STALLED_AFTER)).advise_on_plan(url).is_some(), "{wait:?}");
        }
        for obstacle in [CopyObstacle::Stalled, CopyObstacle::Store, CopyObstacle::Source { node }] {
            let waits = SeenWaits { without_progress: PLAN_STALLED_AFTER, ..copying(Some(obstacle)) };
            assert!(waits.advise_on_step(Some(SwapWait::Copy { gainer: node }), url).is_some());
        }
    }
}
