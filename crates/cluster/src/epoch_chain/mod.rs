//! The epoch chain: agreement on the next record of a cluster, by one instance of Paxos for each
//! epoch.
//!
//! **Promise.**
//!
//! 1. At most one record is decided for an epoch.
//! 2. A decided record is a child of the decided record before it.
//! 3. A decided record is not forgotten while a majority of the voters that decided it keep their
//!    disks, or while one node holds it as decided.
//! 4. While a majority of the voters can be reached, a proposer that repeats its proposal decides
//!    a record. It need not be its own.
//!
//! A record whose voters have no ids is an exception to 1, 3 and 4: see "Voters without ids".
//!
//! **Mechanism.** Record e+1 is decided by the voters of record e, with single-decree Paxos
//! (Lamport, "Paxos Made Simple", 2001). There is no log, no leader and no election timer. The
//! voters of record e+1 are part of what the voters of record e decide. So a change of voters is
//! decided like any other change (Lamport, Malkhi and Zhou, "Reconfiguring a State Machine", 2010).
//!
//! A [`EpochAcceptor`] is the voter of a node. Its state is durable before its response leaves. A
//! [`ChainProposal`] is one attempt with one ballot:
//!
//! * It requests promises from all voters. A voter promises to ignore smaller ballots, and reports
//!   the record that it accepted last.
//! * After a majority has promised, it proposes the reported record of the greatest ballot. If no
//!   voter has reported one, it proposes its own record.
//! * After a majority has accepted, the record is decided.
//!
//! A [`ChainProposer`] repeats proposals with greater ballots, after random delays that grow. So
//! one of two duelling proposers completes a proposal before the other one begins its next. The
//! time that voters have to answer counts for each phase and grows as well, up to a bound, so
//! voters with slow disks decide a record too.
//!
//! A voter that holds a decided record of the epoch in question, or of a later one, answers with it
//! and votes no more for that epoch. A voter that lacks the parent says so, and the proposer sends
//! the parent to it. Accepted and decided records are stored apart: an accepted record is no
//! decision, and nothing may act on it.
//!
//! **Proof sketch.** Let v be a record that a majority of the voters of record e accepted with
//! ballot b, the least such ballot. Claim: every proposal with a ballot c > b proposes v. Suppose
//! that it holds for all ballots between b and c. The proposer of c has promises of a majority, of
//! which at least one voter accepted v with b. That voter accepted b before it promised c, because
//! afterwards it ignores b. So its promise reports a ballot of at least b. Let d be the greatest
//! ballot in all promises: b <= d < c, and by the supposition (or because d = b) its record is v.
//! So c proposes v. A ballot has one proposer and one record, so no other record is accepted with
//! b either. Hence promise 1. The proof needs that:
//!
//! * a promise and an accepted record survive restarts: the host stores them before it responds;
//! * a ballot is used once: it contains the incarnation of the process, which is drawn at its
//!   start, and a process does not use a round twice for one epoch;
//! * a node that has lost its disk does not vote by its old id: it has a new id, which is no voter
//!   before a record says so;
//! * all proposers of record e+1 agree on the voters: they hold the decided record e.
//!
//! Promise 2: a voter accepts only children of the record that it holds as decided. Promise 3: a
//! later proposal finds the record in the promises of any majority.
//!
//! **Voters without ids.** Epoch 1 is built from a list of addresses and names no ids. A node that
//! lost its disk votes in the slot of the lost one there, and the votes of the lost one are not
//! known. So four rules hold if the parent lacks the id of a voter
//! ([`ChainRecord::needs_all_voters`]):
//!
//! * A voter proposes a record after *all* voters have promised. It asks itself without a message.
//! * A record is decided by the votes of *all* voters.
//! * A voter that does not know all votes of its slot promises and votes after all others have
//!   heard it. From then on they handle no message of an earlier process in its slot.
//! * A proposer that hears a new process in the slot of a voter gives up its proposal
//!   ([`ChainProposer::handle_new_process`]).
//!
//! This costs little: a record that names the ids waits until all members are heard, in any case.
//! Two promises take the place of 1 and 3 then, whichever disks are lost:
//!
//! * No two nodes hold different records for the epoch.
//! * A decided record is forgotten only if all nodes that hold it lose their disks, and a voter
//!   that keeps its disk has accepted it.
//!
//! Proof sketch: call the moment at which a proposer has all promises for a ballot the barrier of
//! the ballot. By the last two rules, the disks whose votes decide a record are all in place at its
//! barrier, and none of them holds a record then. Let records be decided with ballots b and c, and
//! let the barrier of b come first. If b was decided before the barrier of c, no voter holds its
//! record at that barrier, and no message can tell of it: it is forgotten. Otherwise the proposer
//! of b keeps its disk up to the barrier of c. If c < b, it has promised b and does not vote for c.
//! So c > b, and it reports its own vote for b. A vote for a ballot above b that is reported as
//! well was given after the barrier of b, and so was its ballot's. By induction its record is that
//! of b. `crates/model` explores these rules, and what fails without each of them.
//!
//! **Two epochs 1.** Nodes that were started with different values of `default_from` build two
//! records of epoch 1, e and e'. A node that holds e' and has given no vote adopts a decided child
//! of e, and never votes for epoch 2. No child of e' can be decided then:
//!
//! * e and e' have the same voters, because the cluster id fixes the members.
//! * A voter accepts only children of the record that it holds. So all voters held e when they
//!   accepted the child of e.
//! * No node exchanges e for e', or the reverse. The node here passes from e' to epoch 2 at once.
//! * So a voter that keeps its disk accepts children of one of the two only, and every decision
//!   needs its vote.
//!
//! The argument does not use that the node has given no vote. That is a precaution: votes for a
//! child of e' show that other nodes hold e' as well, and the operator has to look at them. A
//! record of epoch 3 or later is adopted by a node in epoch 1 in any case, because it is complete
//! by itself.
//!
//! **Caveats.** A node passes requests to [`EpochAcceptor::handle_without_vote`] until it knows
//! that its directory has all of the votes that count as its own ([`VoteHistory`]). A proposer
//! should name voters that it hears: a record with a voter that has just lost its disk is decided
//! like any other. A removed voter must run until a majority of the new voters holds the record
//! that removes it: with one lost disk, the record is forgotten otherwise. A record should change
//! at most one voter, which [`ChainRecord::is_child_of`] checks. `crates/model` explores both. A
//! voter that lies is not detected.

mod acceptor;
mod layout_record;
mod message;
mod proposal;
mod proposer;
mod voter_state;

pub use acceptor::{AcceptorState, EpochAcceptor};
pub use message::{ChainNode, ChainRequest, ChainResponse, ChainVote, ProposalBallot};
pub use proposal::ChainProposal;
pub use proposer::{ChainOutcome, ChainProposer, ProposerPace};
pub use voter_state::{VoteHistory, VoterState};

use crate::{LayoutEpoch, NodeIndex};
use std::fmt::Debug;

/// A record that a cluster agrees on, one for each epoch.
pub trait ChainRecord: Clone + Eq + Debug {
    /// The number of this record.
    fn epoch(&self) -> LayoutEpoch;

    /// The slots of the nodes that decide the next record, each once.
    fn voters(&self) -> &[NodeIndex];

    /// Whether this node decides the next record: its slot is that of a voter, and its id is the
    /// one that the record names in this slot, if it names one.
    fn is_voter(&self, node: ChainNode) -> bool;

    /// Whether the next record needs the promises and the votes of all voters, and not of a
    /// majority: the id of a voter is not named.
    fn needs_all_voters(&self) -> bool;

    /// Whether this record may follow `parent`: its epoch is the next one, it names the parent, and
    /// all constraints hold.
    fn is_child_of(&self, parent: &Self) -> bool;

    /// Whether this record is of the same cluster and lineage as `earlier`, with a greater epoch.
    fn is_later_than(&self, earlier: &Self) -> bool;

    /// Whether a node that holds `held` and has given no vote may adopt this decided record,
    /// although it is the child of another record of the same epoch: see "Two epochs 1".
    fn follows_other_first(&self, _held: &Self) -> bool {
        false
    }
}
