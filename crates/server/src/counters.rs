//! What happened, counted. Only what is rare is counted here: no request on its common way touches it.

use api::RequestStatus;
use cluster::{Event, Failure};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since start. Relaxed: a reader may see them a little late.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    superseded: AtomicU64,
    deadlines_passed: AtomicU64,
    not_enough_replicas: AtomicU64,
    refused: AtomicU64,
    clock_ahead: AtomicU64,
    hedged: AtomicU64,
    repaired_before_reply: AtomicU64,
    repaired_after_reply: AtomicU64,
    hints_dropped: AtomicU64,
    hints_delivered: AtomicU64,
    repaired: AtomicU64,
}

impl Counters {
    pub(crate) fn count(&self, event: Event) {
        let counter = match event {
            Event::WriteSuperseded => &self.superseded,
            Event::DeadlinePassed => &self.deadlines_passed,
            Event::ClockAhead { .. } => &self.clock_ahead,
            Event::Hedged => &self.hedged,
            Event::ReadRepaired { blocking: true } => &self.repaired_before_reply,
            Event::ReadRepaired { blocking: false } => &self.repaired_after_reply,
            Event::HintDropped { .. } => &self.hints_dropped,
            Event::HintDelivered { .. } => &self.hints_delivered,
            Event::Repaired { .. } => &self.repaired,
            // Counted by its reply.
            Event::Refused => return,
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

    /// A command has failed.
    pub(crate) fn count_failure(&self, failure: &Failure) {
        match failure {
            Failure::Overloaded { .. } => self.count_refused(),
            Failure::NotEnoughReplicas { .. } => {
                self.not_enough_replicas.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// There was no room for a request or a connection.
    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> RequestStatus {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RequestStatus {
            superseded: read(&self.superseded),
            deadlines_passed: read(&self.deadlines_passed),
            not_enough_replicas: read(&self.not_enough_replicas),
            refused: read(&self.refused),
            clock_ahead: read(&self.clock_ahead),
            hedged: read(&self.hedged),
            repaired_before_reply: read(&self.repaired_before_reply),
            repaired_after_reply: read(&self.repaired_after_reply),
            hints_delivered: read(&self.hints_delivered),
        }
    }
}
