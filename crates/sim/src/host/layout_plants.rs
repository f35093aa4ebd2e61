//! Planted bugs in the agreement on layout records, implemented between the node and the world.

use super::process::ProcessInput;
use crate::Plant;
use cluster::{
    ChainRequest, ChainResponse, EncodedRecord, Incarnation, LayoutRecord, Message, NodeIndex, NodeRecord,
    NodeRequest, NodeResponse, PeerAnswer, PeerRequest, ProposalBallot, SWAPS_MAX, SyncState, VoteHistory,
    VoterState,
};
use std::collections::BTreeSet;
use stdx::NodeTag;

/// Incarnation in all ballots of a node that uses ballots again after a restart.
const EVERY_INCARNATION: Incarnation = Incarnation(0);

/// Lets a planted bug change the state with which a process starts.
pub(crate) fn alter_start(plant: Option<Plant>, record: &mut NodeRecord, voter: &mut VoterState) {
    if plant == Some(Plant::EmptyReplicaServesReads) {
        record.sync_state = SyncState::Settled;
    }
    if plant == Some(Plant::LostVotesIgnored) {
        voter.history = VoteHistory::Complete;
    }
}

/// Whether a state of the voter is reported as durable and not stored.
pub(crate) fn skips_persist(plant: Option<Plant>, state: &VoterState) -> bool {
    let is_promise = state.acceptor.promised.is_some() && state.acceptor.accepted.is_none();
    plant == Some(Plant::PromiseNotDurable) && is_promise
}

/// Lets a planted bug change a state of the voter of the node with this tag that is to be stored:
/// stored ballots are the ones that peers know.
pub(crate) fn alter_stored(plant: Option<Plant>, tag: NodeTag, state: &mut VoterState) {
    if plant == Some(Plant::BallotReused) {
        let promised = state.acceptor.promised.as_mut();
        let accepted = state.acceptor.accepted.as_mut().map(|vote| &mut vote.ballot);
        for ballot in promised.into_iter().chain(accepted) {
            replace_incarnation(ballot, tag, EVERY_INCARNATION);
        }
    }
}

/// Lets a planted bug change a message that the node with this tag sends.
pub(crate) fn alter_sent(plant: Option<Plant>, tag: NodeTag, message: &mut Message) {
    match (plant, message) {
        (
            Some(Plant::BallotReused),
            Message::Request { request: PeerRequest::Node(NodeRequest::Chain(request)), .. },
        ) => {
            if let ChainRequest::Prepare { ballot, .. } = request {
                replace_incarnation(ballot, tag, EVERY_INCARNATION);
            } else if let ChainRequest::Accept(vote) = request {
                replace_incarnation(&mut vote.ballot, tag, EVERY_INCARNATION);
            }
        }
        (
            Some(Plant::AcceptsBelowPromise),
            Message::Answer { answer: PeerAnswer::Node(NodeResponse::Chain(response)), .. },
        ) => {
            if let ChainResponse::Rejected { epoch, ballot, .. } = *response {
                *response = ChainResponse::Accepted { epoch, ballot };
            }
        }
        (
            Some(Plant::TwoVotersReplaced),
            Message::Answer { answer: PeerAnswer::Node(NodeResponse::Layout(encoded)), .. },
        ) => {
            if let Some(other) = without_two_voters(encoded) {
                *encoded = other;
            }
        }
        (
            Some(Plant::CopyStatedEarly),
            Message::Request { request: PeerRequest::Node(NodeRequest::Heartbeat(payload)), .. }
            | Message::Answer { answer: PeerAnswer::Node(NodeResponse::Heartbeat(payload)), .. },
        ) => {
            // Only those of which the node is the gainer count.
            (0..SWAPS_MAX).for_each(|index| payload.plan.complete.insert(index));
        }
        _ => {}
    }
}

/// Lets a planted bug state copies in a message of the node in slot `me`, which has adopted
/// `record`. `stated`: the pairs whose copies the host has stated before.
pub(crate) fn state_earlier_copies(
    message: &mut Message,
    me: NodeIndex,
    record: &LayoutRecord,
    stated: &mut BTreeSet<(NodeIndex, NodeIndex)>,
) {
    let (Message::Request { request: PeerRequest::Node(NodeRequest::Heartbeat(payload)), .. }
    | Message::Answer { answer: PeerAnswer::Node(NodeResponse::Heartbeat(payload)), .. }) = message
    else {
        return;
    };
    let gained = record.swaps().iter().enumerate().filter(|(_, swap)| swap.gainer == me);
    for (index, swap) in gained {
        if payload.plan.complete.contains(index) {
            stated.insert(swap.pair());
        } else if stated.contains(&swap.pair()) {
            payload.plan.complete.insert(index);
        }
    }
}

/// Lets a planted bug change an answer to the node with this tag: the node knows its ballots by its
/// own incarnation.
pub(crate) fn alter_received(
    plant: Option<Plant>,
    (tag, own): (NodeTag, Incarnation),
    input: &mut ProcessInput,
) {
    if plant == Some(Plant::CopyLeftOut)
        && let ProcessInput::Message(
            _,
            Message::Answer { answer: PeerAnswer::Node(NodeResponse::Copied(answer)), .. },
            _,
        ) = input
    {
        answer.entries.clear();
    }
    let (
        Some(Plant::BallotReused),
        ProcessInput::Message(
            _,
            Message::Answer { answer: PeerAnswer::Node(NodeResponse::Chain(response)), .. },
            _,
        ),
    ) = (plant, input)
    else {
        return;
    };
    if let ChainResponse::Promised { ballot, .. }
    | ChainResponse::Accepted { ballot, .. }
    | ChainResponse::Rejected { ballot, .. } = response
    {
        replace_incarnation(ballot, tag, own);
    }
}

const fn replace_incarnation(ballot: &mut ProposalBallot, proposer: NodeTag, incarnation: Incarnation) {
    if ballot.proposer.0 == proposer.0 {
        ballot.incarnation = incarnation;
    }
}

/// The record after an adopted one, without two of its voters. A node that lacks both takes it,
/// since it cannot compare it with its parent.
fn without_two_voters(encoded: &EncodedRecord) -> Option<EncodedRecord> {
    let mut record = encoded.decode().ok()?;
    record.parent = record.hash();
    record.epoch = record.epoch.next()?;
    let kept: Vec<NodeIndex> = record.voters.split_off(record.voters.len().min(2));
    record.voters = kept;
    (!record.voters.is_empty()).then(|| EncodedRecord::of(&record))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::testing::{child, first_record};

    #[test]
    fn a_record_without_two_voters_does_not_follow_its_parent() {
        let parent = child(&first_record());
        let other = without_two_voters(&EncodedRecord::of(&parent)).expect("a voter is left");
        let other = other.decode().expect("it keeps the constraints of every record");
        assert!(other.verify(&parent).is_err());
        assert_eq!(other.verify_newer(&first_record()), Ok(()), "the parent is not known");
    }
}
