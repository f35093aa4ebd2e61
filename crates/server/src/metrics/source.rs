//! The sources of the values of a scrape.

use super::Metrics;
use crate::local::Local;
use crate::process::Process;
use engine::Stats;
use stdx::Now;

/// The sources of the values of one scrape.
pub(super) struct MetricsSource<'a> {
    pub(super) process: &'a Process,
    pub(super) metrics: &'a Metrics,
    /// `None` before the store is open.
    pub(super) local: Option<&'a Local>,
    /// Figures of the engine; all zero before the store is open.
    pub(super) stats: Stats,
    pub(super) now: Now,
}
