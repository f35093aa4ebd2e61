//! What happened, counted. Only what is rare is counted here: no request on its common way touches it.

use cluster::Event;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since start. Relaxed: a reader may see them a little late.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    superseded: AtomicU64,
    deadlines_passed: AtomicU64,
    refused: AtomicU64,
}

/// A reading of [`Counters`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) superseded: u64,
    pub(crate) deadlines_passed: u64,
    pub(crate) refused: u64,
}

impl Counters {
    pub(crate) fn count(&self, event: Event) {
        let counter = match event {
            Event::WriteSuperseded => &self.superseded,
            Event::DeadlinePassed => &self.deadlines_passed,
            Event::Refused => &self.refused,
            Event::ClockBehind { issued } => {
                tracing::warn!(
                    newest_version = ?issued.wall(),
                    "the wall clock is behind the newest version this node issued: it was set back"
                );
                return;
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts {
            superseded: self.superseded.load(Ordering::Relaxed),
            deadlines_passed: self.deadlines_passed.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}
