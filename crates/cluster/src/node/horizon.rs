//! The horizon: the time up to which this node may purge dead cells.
//!
//! **Promise.** The horizon is never ahead of this node's own clock, nor ahead of the clocks of a
//! majority of the nodes that this node hears, itself included. So a single wrong clock cannot
//! purge cells that are live by the other clocks. If three or more clocks are heard, a single slow
//! clock does not hold the horizon back either. A forward step of a majority of the clocks takes
//! effect after it has lasted for an hour ([`SteadyWall`]). The horizon may move backward: a clock
//! that was found to be wrong is no longer relied upon.
//!
//! **Mechanism.** At each heartbeat interval the node reads the clocks of the peers that answer.
//! The reading of a peer is the wall time of its last answer plus the monotonic time since then. If
//! these clocks and this node's own are those of a majority of all nodes, their lower median is the
//! *supported time*. While fewer clocks are heard, the supported time advances with the monotonic
//! clock. Before a majority was first heard it is the beginning of time, at which nothing is dead.
//!
//! The horizon is the lesser of the supported time and this node's own clock. The driver passes it
//! to the store. In the node it decides which hints are too old, and which cells are past their
//! grace period when replicas are compared.
//!
//! **Caveats.** In a cluster of two nodes, and while only two clocks are heard, the horizon follows
//! the slower clock, however slow it is. Dead cells then occupy the disk until that clock is set.
//! At the start of a node the clocks of a majority are trusted at once, even if they are wrong. The
//! reading of a peer's clock is late by the network delay of its answer.

use super::Node;
use crate::quorum::is_majority;
use stdx::{Now, SteadyWall, WallTime};

/// The clocks of the cluster as far as a majority supports them.
#[derive(Debug, Default)]
pub(super) struct ClusterHorizon {
    /// The supported time. `None` until a majority of the clocks was heard.
    supported: Option<SteadyWall>,
}

impl Node {
    /// The horizon: cells that expired by this time, or whose grace period ended by it, may be
    /// purged, and hints are judged too old by it. It is the beginning of time until enough clocks
    /// were heard since the start.
    pub fn horizon(&self, now: Now) -> WallTime {
        let supported = self.horizon.supported.as_ref();
        supported.map_or(WallTime::default(), |supported| supported.expected(now).min(now.wall))
    }

    /// A time that the horizon of no other node has passed, unless a majority of the clocks is
    /// wrong. Other nodes may have purged cells whose grace period ended by this time.
    pub(super) fn latest_horizon(&self, now: Now) -> WallTime {
        match self.majority_clocks(now) {
            Some(clocks) => clocks[clocks.len() / 2],
            None => {
                let supported = self.horizon.supported.as_ref();
                supported.map_or(now.wall, |supported| supported.expected(now).max(now.wall))
            }
        }
    }

    /// Takes a reading of the clocks that are heard.
    pub(super) fn observe_clocks(&mut self, now: Now) {
        let Some(clocks) = self.majority_clocks(now) else { return };
        let reading = Now { wall: clocks[(clocks.len() - 1) / 2], ..now };
        self.horizon.supported.get_or_insert_with(|| SteadyWall::new(reading)).observe(reading);
    }

    /// The clocks of this node and of the peers that answer, in ascending order. `None` if they are
    /// fewer than a majority of all nodes.
    fn majority_clocks(&self, now: Now) -> Option<Vec<WallTime>> {
        let mut clocks: Vec<_> = self.peer_wall_clocks(now).map(|(_, wall)| wall).chain([now.wall]).collect();
        clocks.sort_unstable();
        is_majority(clocks.len(), usize::from(self.member.layout.len())).then_some(clocks)
    }
}
