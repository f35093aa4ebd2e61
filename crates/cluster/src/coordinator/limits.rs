//! Resource limits of a coordinator.

use crate::node::GRACE_DEFAULT;
use std::time::Duration;

/// Resource limits of a coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoordinatorLimits {
    /// Maximum number of commands without a reply; further commands are refused.
    pub operations_max: u16,
    /// Greatest number of operations that have replied and still wait for replicas; beyond it the
    /// oldest stops waiting. Together with `operations_max` less than 65,534.
    pub replied_max: u16,
    /// Time from `submit` to the reply, at most.
    pub request_timeout: Duration,
    /// Greatest number of requests in flight at one peer; beyond it the peer counts as unavailable.
    pub peer_requests_max: u32,
    /// Greatest size of keys and values in flight at one peer, in bytes.
    pub peer_bytes_max: usize,
    /// One read in this number, at random, asks all replicas, not only as many as must answer. 0:
    /// no read does.
    pub reads_for_one_of_all: u32,
    /// Minimum retention time of tombstones: scans do not compare cells that have been dead for
    /// longer.
    pub grace: Duration,
}

impl Default for CoordinatorLimits {
    fn default() -> Self {
        Self {
            operations_max: 16_384,
            replied_max: 16_384,
            request_timeout: Duration::from_secs(1),
            peer_requests_max: 16_384,
            peer_bytes_max: 64 << 20,
            reads_for_one_of_all: 10,
            grace: GRACE_DEFAULT,
        }
    }
}
