//! The fence of a process: the newest epoch that all its coordinators have fenced.
//!
//! **Promise.** The epoch never decreases. When it is `e`, each coordinator of the process follows
//! a layout of `e` or later, and has ended the requests of older plans that `e` or an earlier epoch
//! invalidates.
//!
//! **Mechanism.** A coordinator fences an epoch by itself
//! ([`Coordinator::fenced`](crate::Coordinator::fenced)). The host collects these epochs here, and
//! tells the node the least of them
//! ([`Node::handle_coordinators_fenced`](crate::Node::handle_coordinators_fenced)).

use crate::LayoutEpoch;

/// The epochs that the coordinators of a process have fenced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessFence {
    /// By the number of the coordinator.
    coordinators: Vec<LayoutEpoch>,
}

impl ProcessFence {
    /// The fence of a process that has started this many coordinators with a layout whose newest
    /// change is of this epoch. There is at least one.
    pub fn new(coordinators: usize, epoch: LayoutEpoch) -> Self {
        assert!(coordinators > 0, "a process has a coordinator");
        Self { coordinators: vec![epoch; coordinators] }
    }

    /// Records that the coordinator with this number has fenced `epoch`. Returns the epoch of the
    /// process.
    ///
    /// # Panics
    /// If the process has no such coordinator.
    pub fn record(&mut self, coordinator: u8, epoch: LayoutEpoch) -> LayoutEpoch {
        let fenced = &mut self.coordinators[usize::from(coordinator)];
        *fenced = epoch.max(*fenced);
        self.epoch()
    }

    /// The newest epoch that all coordinators have fenced.
    pub fn epoch(&self) -> LayoutEpoch {
        self.coordinators.iter().copied().min().expect("a process has a coordinator")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_fenced_by_the_process_when_each_coordinator_has_fenced_it() {
        let mut fence = ProcessFence::new(3, LayoutEpoch(4));
        assert_eq!(fence.epoch(), LayoutEpoch(4));
        assert_eq!(fence.record(0, LayoutEpoch(7)), LayoutEpoch(4));
        assert_eq!(fence.record(2, LayoutEpoch(5)), LayoutEpoch(4));
        assert_eq!(fence.record(1, LayoutEpoch(6)), LayoutEpoch(5));
        assert_eq!(fence.record(2, LayoutEpoch(7)), LayoutEpoch(6));
        assert_eq!(fence.record(1, LayoutEpoch(2)), LayoutEpoch(6), "a late report is of no effect");
    }
}
