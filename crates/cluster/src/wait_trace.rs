//! Traces of the events that a reply waited for, so that the driver can report where its time went.
//!
//! **Promise.** The spans of a [`WaitTrace`] are contiguous: the first begins with the command,
//! each further one where its predecessor ends, and the last ends with the reply. They therefore
//! add up to the whole time.
//!
//! **Mechanism.** Each input of the coordinator names its source. The answer that causes the reply
//! is the target of the last span. An answer after which the operation sends further requests (a
//! repair, a further replica, the cell itself) ends a span. Where no answer came, at the deadline
//! or when an answer is overdue, the span's target is the replica that was waited for.
//!
//! **Caveats.** Of requests sent at once, only the answer that was waited for last is recorded. A
//! page of a scan is one span, whose target is the last answer that it needed.

use crate::NodeIndex;
use stdx::Instant;

/// Greatest number of separate spans; later ones are merged into the last.
const SPANS_MAX: usize = 8;

/// The target of a wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WaitTarget {
    /// Nothing: the outcome was decided within the call.
    #[default]
    Nothing,
    /// This node's own store.
    Store,
    /// The answer of a peer.
    Peer(NodeIndex),
    /// The durable bound of the version clock.
    ClockBound,
    /// An open link to a live peer.
    Links,
}

/// A span of a wait, from the end of its predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitSpan {
    /// The target that was waited for.
    pub target: WaitTarget,
    /// End of the span.
    pub until: Instant,
}

/// The targets that a reply waited for, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitTrace {
    /// All spans but the last.
    pub earlier: Vec<WaitSpan>,
    /// Target of the last span.
    pub last: WaitTarget,
}

impl WaitTrace {
    /// A trace of one span.
    pub(crate) const fn of(last: WaitTarget) -> Self {
        Self { earlier: Vec::new(), last }
    }

    /// Ends a span; another begins.
    pub(crate) fn end_span(&mut self, target: WaitTarget, until: Instant) {
        let is_full = self.earlier.len() == SPANS_MAX;
        match self.earlier.last_mut() {
            Some(last) if last.target == target || is_full => *last = WaitSpan { target, until },
            _ => self.earlier.push(WaitSpan { target, until }),
        }
    }

    /// Takes the whole trace, which ends with a span of this target.
    pub(crate) fn take(&mut self, last: WaitTarget) -> Self {
        Self { earlier: std::mem::take(&mut self.earlier), last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_of_many_spans_is_bounded_and_keeps_its_end() {
        let mut wait = WaitTrace::default();
        for end in 0..20 {
            wait.end_span(WaitTarget::Peer(NodeIndex(end as u8 % 2)), Instant::from_nanos(end));
        }
        let whole = wait.take(WaitTarget::Store);
        assert_eq!(whole.earlier.len(), SPANS_MAX);
        assert_eq!(whole.earlier.last().map(|leg| leg.until), Some(Instant::from_nanos(19)));
        assert!(whole.earlier.is_sorted_by_key(|leg| leg.until));
        assert_eq!(wait, WaitTrace::default());
    }

    #[test]
    fn successive_waits_for_one_target_are_one_span() {
        let mut wait = WaitTrace::default();
        for end in 0..20 {
            wait.end_span(WaitTarget::Links, Instant::from_nanos(end));
        }
        assert_eq!(wait.earlier, [WaitSpan { target: WaitTarget::Links, until: Instant::from_nanos(19) }]);
    }
}
