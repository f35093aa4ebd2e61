//! The horizon: the time by which this node may delete what is dead.
//!
//! **Promise.** The horizon is never ahead of this node's own clock, nor ahead of the clocks of most of the nodes that
//! this one hears, its own among them. So one wrong clock deletes nothing that lives by the others. Of three and more clocks
//! that are heard, one that is behind does not hold the horizon back either. A step forward of most clocks counts
//! after they have kept it for an hour ([`SteadyWall`]). The horizon may go back: a clock that was found to be wrong
//! is not relied upon any longer.
//!
//! **Mechanism.** With each heartbeat interval the clocks of the peers that answer are looked at, each as the peer's last
//! answer told it, moved on by the monotonic time since then. If they are clocks of most of all nodes, this
//! node's own included, their lower median is the time that they *support*. While fewer are heard, the supported
//! time goes on from where it was with the monotonic clock; before most were heard for the first time it is the
//! beginning of time, by which nothing is dead. The horizon is the lesser of the supported time and this node's own clock. The node's driver
//! sets it as the horizon of the store; within the node it decides which hints are too old, and which cells are past
//! their grace period when replicas are compared.
//!
//! **Caveats.** In a cluster of two nodes, and while only two clocks are heard, the horizon follows the one that is behind,
//! however far that is: dead cells keep their room on the disk until that clock is set. What a majority of wrong clocks
//! show when a node starts is believed at once. A peer's clock is known late by what its answer was on its way.

use super::Node;
use stdx::{Now, SteadyWall, WallTime};

/// The clocks of the cluster, as far as they are believed.
#[derive(Debug, Default)]
pub(super) struct Horizon {
    /// The supported time; `None` until the clocks of most nodes were heard.
    supported: Option<SteadyWall>,
}

impl Node {
    /// The time by which cells that expired, or whose grace period ended, may be deleted, and hints are too old. The
    /// beginning of time while too few clocks have been heard since the start.
    pub fn horizon(&self, now: Now) -> WallTime {
        let supported = self.horizon.supported.as_ref();
        supported.map_or(WallTime::default(), |supported| supported.expected(now).min(now.wall))
    }

    /// A time that the horizon of no other node has passed, unless most clocks are wrong: what is past its grace period
    /// by then may be forgotten elsewhere.
    pub(super) fn latest_horizon(&self, now: Now) -> WallTime {
        match self.clocks_of_most(now) {
            Some(clocks) => clocks[clocks.len() / 2],
            None => {
                let supported = self.horizon.supported.as_ref();
                supported.map_or(now.wall, |supported| supported.expected(now).max(now.wall))
            }
        }
    }

    /// Takes a reading of the clocks that are heard.
    pub(super) fn observe_clocks(&mut self, now: Now) {
        let Some(clocks) = self.clocks_of_most(now) else { return };
        let reading = Now { wall: clocks[(clocks.len() - 1) / 2], ..now };
        self.horizon.supported.get_or_insert_with(|| SteadyWall::new(reading)).observe(reading);
    }

    /// The clocks of the peers that answer, and this node's own, in ascending order; `None` when they are not those of
    /// most nodes.
    fn clocks_of_most(&self, now: Now) -> Option<Vec<WallTime>> {
        let mut clocks: Vec<_> = self.heard(now).map(|(_, wall)| wall).chain([now.wall]).collect();
        clocks.sort_unstable();
        (clocks.len() * 2 > usize::from(self.member.layout.len())).then_some(clocks)
    }
}
