//! Messages between proposers and acceptors.

use crate::{Incarnation, LayoutEpoch, NodeIndex};
use stdx::NodeTag;

/// A ballot of one proposer for one epoch. Ballots are ordered by round first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProposalBallot {
    /// The round, from 1 to [`ROUND_MAX`](Self::ROUND_MAX). A proposer uses each round once.
    pub round: u64,
    /// The id of the proposer.
    pub proposer: NodeTag,
    /// The incarnation of the proposer's process: no process uses the ballot of another one, not
    /// even of an earlier one on the same data directory.
    pub incarnation: Incarnation,
}

impl ProposalBallot {
    /// Greatest round of a ballot that is decoded: with a greater one from a damaged message or
    /// file, no proposer could find another round.
    pub const ROUND_MAX: u64 = 1 << 48;
}

/// A node as a voter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChainNode {
    /// Its slot.
    pub slot: NodeIndex,
    /// Its id. A node that has lost its disk has another one.
    pub id: NodeTag,
}

/// A record that a voter has accepted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChainVote<R> {
    /// The ballot with which it was proposed.
    pub ballot: ProposalBallot,
    /// The record.
    pub record: R,
}

/// A request to an acceptor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ChainRequest<R> {
    /// Promise to ignore smaller ballots (phase 1a of Paxos).
    Prepare {
        /// The epoch to be decided.
        epoch: LayoutEpoch,
        /// The ballot.
        ballot: ProposalBallot,
    },
    /// Accept a record (phase 2a). Its epoch is the one to be decided.
    Accept(ChainVote<R>),
    /// Adopt a decided record.
    Learn(R),
}

/// The response to a [`ChainRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ChainResponse<R> {
    /// The acceptor ignores smaller ballots (phase 1b).
    Promised {
        /// The epoch to be decided.
        epoch: LayoutEpoch,
        /// The ballot of the request.
        ballot: ProposalBallot,
        /// The last record that the acceptor accepted for this epoch.
        accepted: Option<ChainVote<R>>,
    },
    /// The acceptor has accepted the record (phase 2b).
    Accepted {
        /// The epoch to be decided.
        epoch: LayoutEpoch,
        /// The ballot of the request.
        ballot: ProposalBallot,
    },
    /// The acceptor has promised a greater ballot.
    Rejected {
        /// The epoch to be decided.
        epoch: LayoutEpoch,
        /// The ballot of the request.
        ballot: ProposalBallot,
        /// The ballot that the acceptor has promised.
        promised: ProposalBallot,
    },
    /// The acceptor holds this decided record, which makes the request obsolete or fulfils it.
    Holds(R),
    /// The newest decided record that the acceptor holds is too old for the request.
    IsBehind {
        /// The epoch of its record.
        epoch: LayoutEpoch,
    },
    /// The acceptor takes no part: it is no voter, or the proposed record is no child of its
    /// record.
    Refused {
        /// The epoch of its record.
        epoch: LayoutEpoch,
    },
}

impl<R> ChainRequest<R> {
    /// The record in the request.
    pub const fn record(&self) -> Option<&R> {
        match self {
            Self::Prepare { .. } => None,
            Self::Accept(ChainVote { record, .. }) | Self::Learn(record) => Some(record),
        }
    }

    /// The same request with its record converted.
    ///
    /// # Errors
    /// The error of `convert`.
    pub fn try_map<S, E>(self, convert: impl FnOnce(R) -> Result<S, E>) -> Result<ChainRequest<S>, E> {
        Ok(match self {
            Self::Prepare { epoch, ballot } => ChainRequest::Prepare { epoch, ballot },
            Self::Accept(vote) => ChainRequest::Accept(vote.try_map(convert)?),
            Self::Learn(record) => ChainRequest::Learn(convert(record)?),
        })
    }
}

impl<R> ChainResponse<R> {
    /// The record in the response.
    pub const fn record(&self) -> Option<&R> {
        match self {
            Self::Promised { accepted: Some(ChainVote { record, .. }), .. } | Self::Holds(record) => {
                Some(record)
            }
            Self::Promised { accepted: None, .. }
            | Self::Accepted { .. }
            | Self::Rejected { .. }
            | Self::IsBehind { .. }
            | Self::Refused { .. } => None,
        }
    }

    /// The same response with its record converted.
    ///
    /// # Errors
    /// The error of `convert`.
    pub fn try_map<S, E>(self, convert: impl FnOnce(R) -> Result<S, E>) -> Result<ChainResponse<S>, E> {
        Ok(match self {
            Self::Promised { epoch, ballot, accepted } => {
                let accepted = accepted.map(|vote| vote.try_map(convert)).transpose()?;
                ChainResponse::Promised { epoch, ballot, accepted }
            }
            Self::Accepted { epoch, ballot } => ChainResponse::Accepted { epoch, ballot },
            Self::Rejected { epoch, ballot, promised } => ChainResponse::Rejected { epoch, ballot, promised },
            Self::Holds(record) => ChainResponse::Holds(convert(record)?),
            Self::IsBehind { epoch } => ChainResponse::IsBehind { epoch },
            Self::Refused { epoch } => ChainResponse::Refused { epoch },
        })
    }
}

impl<R> ChainVote<R> {
    fn try_map<S, E>(self, convert: impl FnOnce(R) -> Result<S, E>) -> Result<ChainVote<S>, E> {
        Ok(ChainVote { ballot: self.ballot, record: convert(self.record)? })
    }
}
