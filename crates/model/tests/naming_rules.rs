//! Each rule of the naming is needed: without it, the search finds a counterexample.

mod common;

use common::needed_rules;
use model::naming::{NamingRule, without};

needed_rules! {
    NamingRule,
    all_voters_promise_before_a_record_is_proposed: AllPromise,
    a_record_is_decided_by_all_voters: AllVote,
    a_proposer_gives_up_when_it_hears_a_new_disk_of_a_voter: SuccessorEndsBallot,
    a_node_with_a_new_disk_is_heard_before_it_votes: SuccessorIsHeard,
}
