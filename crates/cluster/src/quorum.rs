//! Quorum arithmetic: how many replicas hold a key, and how many of them must answer.
//!
//! `from` replicas hold the key, `ack` of them must answer. A read and a write of the same key meet in at
//! least one replica when `ack(read) + ack(write) > from`.

use std::num::NonZeroU8;

/// What a user chose; what was not chosen takes its default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuorumChoice {
    /// How many must answer.
    pub ack: Option<u32>,
    /// How many hold the key.
    pub from: Option<u32>,
}

/// A quorum that a cluster can form: `1 <= ack <= from <= nodes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorum {
    ack: u8,
    from: u8,
}

/// Why a choice is not a quorum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("1 <= ack <= from <= {nodes} must hold, here ack is {ack} and from is {from}")]
pub struct QuorumError {
    /// `ack`, chosen or default.
    pub ack: u32,
    /// `from`, chosen or default.
    pub from: u32,
    /// How many nodes there are.
    pub nodes: u8,
}
