//! The ends of faults that last.

use cluster::NodeIndex;

/// End of a fault.
#[derive(Clone, Debug)]
pub(crate) enum FaultEnd {
    Resume(NodeIndex),
    ReconnectPaths(Vec<(NodeIndex, NodeIndex)>),
    Unclog(NodeIndex, NodeIndex),
    AcceptDials(NodeIndex),
    RestoreSpeed(NodeIndex, NodeIndex),
    EndLoss,
    RestoreDiskSpeed(NodeIndex),
    EndBadReads(NodeIndex),
    FreeDiskSpace(NodeIndex),
    ThawClock(NodeIndex),
    CorrectClock(NodeIndex),
    EndCopy(NodeIndex),
}
