//! What a reply waited for, so that whoever drives a coordinator can say where its time went.
//!
//! **Promise.** The legs of a [`WaitTrace`] lie end to end: the first begins with the command, each other where the one before
//! it ends, and the last ends with the reply. So they add up to all of its time, whatever happened meanwhile.
//!
//! **Mechanism.** Each input that the coordinator takes says what it is an answer of. The answer that makes the reply is
//! what the last leg waited for; one after which the operation asked on (a repair, a further replica, the cell itself)
//! ends a leg. Where nothing came, at the deadline or when an answer is late, a leg is of whom it was waited for.
//!
//! **Caveats.** Of what was asked at once only the answer counts that was waited for to the last. A page of a range is one
//! leg, of the last answer that it needed.

use crate::NodeIndex;
use stdx::Instant;

/// Legs that are told apart; what comes after them counts as the last one.
const SPANS_MAX: usize = 8;

/// What something waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WaitTarget {
    /// Nothing: it was decided in the call that asked.
    #[default]
    Nothing,
    /// This node's own store.
    Store,
    /// The answer of a peer.
    Peer(NodeIndex),
    /// The durable bound of the version clock.
    ClockBound,
    /// A link to a peer that lives.
    Links,
}

/// A part of a wait, from where the one before it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitSpan {
    /// What was waited for.
    pub target: WaitTarget,
    /// Up to when.
    pub until: Instant,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitTrace {
    /// What was waited for first, if there was more than one thing.
    pub earlier: Vec<WaitSpan>,
    /// What the reply waited for last.
    pub last: WaitTarget,
}

impl WaitTrace {
    /// One leg.
    pub(crate) const fn of(last: WaitTarget) -> Self {
        Self { earlier: Vec::new(), last }
    }

    /// Ends a leg; another begins.
    pub(crate) fn end_span(&mut self, target: WaitTarget, until: Instant) {
        let is_full = self.earlier.len() == SPANS_MAX;
        match self.earlier.last_mut() {
            Some(last) if last.target == target || is_full => *last = WaitSpan { target, until },
            _ => self.earlier.push(WaitSpan { target, until }),
        }
    }

    /// The whole of it, which ends with this leg.
    pub(crate) fn take(&mut self, last: WaitTarget) -> Self {
        Self { earlier: std::mem::take(&mut self.earlier), last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_of_many_legs_is_bounded_and_still_ends_where_it_ends() {
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
    fn one_thing_that_is_waited_for_again_and_again_is_one_leg() {
        let mut wait = WaitTrace::default();
        for end in 0..20 {
            wait.end_span(WaitTarget::Links, Instant::from_nanos(end));
        }
        assert_eq!(wait.earlier, [WaitSpan { target: WaitTarget::Links, until: Instant::from_nanos(19) }]);
    }
}
