//! Each rule of the chain is needed: without it, the search finds a counterexample.

mod common;

use common::needed_rules;
use model::chain::{ChainRule, without};

needed_rules! {
    ChainRule,
    a_promise_survives_a_restart: DurablePromise,
    a_vote_survives_a_restart: DurableVote,
    a_voter_accepts_no_ballot_below_its_promise: AcceptChecksPromise,
    a_driver_proposes_after_a_majority_has_promised: PromisesBeforeProposal,
    a_driver_adopts_the_greatest_vote: AdoptsGreatestVote,
    a_driver_uses_no_ballot_twice: DurableBallot,
    a_lost_disk_does_not_vote: LostDiskDoesNotVote,
    a_holder_of_the_decided_record_does_not_vote: DecidedEndsVoting,
    a_record_is_decided_by_a_majority: DecidedByMajority,
    a_record_replaces_at_most_one_voter: OneVoterAtATime,
    a_removed_voter_runs_until_the_new_voters_hold_the_record: RetiresLate,
}
