//! State of accepting connections.

use crate::accept_failures::AcceptFailures;
use crate::connection_limit::ConnectionLimiter;
use crate::counters::Counter;
use crate::refusals::Refusals;
use env::Clock;
use std::sync::Arc;

/// Permits and counts of the connections that the control thread accepts.
pub(crate) struct AcceptState {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) limiter: Arc<ConnectionLimiter>,
    pub(crate) refusals: Arc<Refusals>,
    /// Connections that could not be accepted.
    pub(crate) failures: AcceptFailures,
    /// Client connections handed to a thread.
    pub(crate) accepted: Counter,
}
