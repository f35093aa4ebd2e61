//! Invariant: a promise or a vote leaves a node only after it is durable.

use super::InvariantViolation;
use super::kept_votes::Told;
use cluster::{AcceptorState, LayoutEpoch, LayoutRecord, NodeIndex};
use std::sync::Arc;

/// Checks an answer of the voter on a host, whose durable state is `durable`. Votes for an epoch of
/// which a record is durable as decided are obsolete.
pub fn check(
    host: NodeIndex,
    durable: Option<&AcceptorState<Arc<LayoutRecord>>>,
    epoch: LayoutEpoch,
    told: Told,
) -> Result<(), InvariantViolation> {
    let is_durable = durable.is_some_and(|durable| {
        let is_decided = durable.decided.epoch >= epoch;
        let accepted = durable.accepted.as_ref().map(|vote| vote.ballot);
        let has_vote = match told {
            Told::Promise { ballot, accepted: reported } => {
                durable.promised >= Some(ballot) && accepted >= reported
            }
            Told::Vote { ballot } => durable.promised >= Some(ballot) && accepted >= Some(ballot),
        };
        is_decided || (durable.decided.epoch.next() == Some(epoch) && has_vote)
    });
    if is_durable {
        return Ok(());
    }
    let detail =
        format!("the voter at {host:?} tells {told:?} for epoch {epoch}, and has durable: {durable:?}");
    Err(InvariantViolation::new("durable_votes", detail))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{ballot, child, first_record};
    use super::*;
    use cluster::ChainVote;

    fn state(promised: u64, accepted: Option<u64>) -> AcceptorState<Arc<LayoutRecord>> {
        let record = Arc::new(child(&first_record()));
        let vote = |round| ChainVote { ballot: ballot(round), record: Arc::clone(&record) };
        AcceptorState {
            decided: Arc::new(first_record()),
            promised: Some(ballot(promised)),
            accepted: accepted.map(vote),
        }
    }

    #[test]
    fn a_promise_that_is_not_durable_is_caught() {
        let told = Told::Promise { ballot: ballot(2), accepted: None };
        let check = |durable: Option<&_>, epoch| check(NodeIndex(0), durable, LayoutEpoch(epoch), told);
        assert!(check(Some(&state(2, None)), 2).is_ok() && check(Some(&state(3, None)), 2).is_ok());
        assert!(check(Some(&state(1, None)), 2).is_err());
        assert!(check(None, 2).is_err());
        assert!(check(Some(&state(2, None)), 3).is_err(), "of another epoch");
        assert!(check(Some(&AcceptorState::of(Arc::new(child(&first_record())))), 2).is_ok(), "obsolete");
    }

    #[test]
    fn a_vote_that_is_not_durable_is_caught() {
        let vote = Told::Vote { ballot: ballot(2) };
        let check = |accepted| check(NodeIndex(0), Some(&state(2, accepted)), LayoutEpoch(2), vote);
        assert!(check(Some(2)).is_ok());
        assert!(check(Some(1)).is_err());
        assert!(check(None).is_err());
    }
}
