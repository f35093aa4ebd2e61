//! Small histories for the tests of the invariants.

use crate::Nanos;
use crate::history::{ClientOperation, ClientOutcome, CommandKind, IssuedCells};
use bytes::Bytes;
use cluster::{
    ClusterOrigin, Incarnation, Key, LayoutRecord, NodeIndex, ProposalBallot, Quorum, QuorumChoice, RequestId,
};
use std::num::NonZeroU8;
use stdx::{Cell, Hlc, NodeTag, Version, WallTime};

pub(crate) const NOW: WallTime = WallTime::EPOCH_2020;

pub(crate) fn key() -> Key {
    Key::new(Bytes::from_static(b"key")).expect("a key")
}

pub(crate) fn version(number: u64) -> Version {
    Version::new(Hlc::from_bits(number), NodeTag(1))
}

pub(crate) fn quorum(ack: u32, from: u32) -> Quorum {
    let choice = QuorumChoice { ack: Some(ack), from: Some(from) };
    choice.resolve(NonZeroU8::new(5).expect("5"), 3).expect("a quorum")
}

/// Issued values and tombstones of [`key`] with these versions.
pub(crate) fn issued_cells(values: &[u64], tombstones: &[u64]) -> IssuedCells {
    let mut issued_cells = IssuedCells::default();
    for &number in values {
        let value = Bytes::from(number.to_string());
        issued_cells.note(&key(), &Cell::value(version(number), 3, value)).expect("a new version");
    }
    for &number in tombstones {
        issued_cells.note(&key(), &Cell::tombstone(version(number), 3)).expect("a new version");
    }
    issued_cells
}

pub(crate) fn operation(
    kind: CommandKind,
    acks: (u32, u32),
    when: std::ops::Range<u64>,
    outcome: ClientOutcome,
) -> ClientOperation {
    ClientOperation {
        id: RequestId(0),
        node: NodeIndex(0),
        kind,
        key: key(),
        quorum: quorum(acks.0, acks.1),
        began: Nanos(when.start),
        outcome: Some((Nanos(when.end), outcome)),
    }
}

pub(crate) fn write(number: u64, acks: (u32, u32), when: std::ops::Range<u64>) -> ClientOperation {
    operation(CommandKind::Put { ttl: None }, acks, when, ClientOutcome::Written { version: version(number) })
}

pub(crate) fn found(number: u64, acks: (u32, u32), when: std::ops::Range<u64>) -> ClientOperation {
    let value = Bytes::from(number.to_string());
    operation(CommandKind::Get, acks, when, ClientOutcome::Found { version: version(number), value })
}

pub(crate) fn missing(acks: (u32, u32), when: std::ops::Range<u64>) -> ClientOperation {
    operation(CommandKind::Get, acks, when, ClientOutcome::Missing)
}

/// The first layout record of a cluster of five nodes, in which the first three vote.
pub(crate) fn first_record() -> LayoutRecord {
    let nodes = (0..5).map(|node| format!("http://node-{node}:8080")).collect();
    let origin = ClusterOrigin { nodes, partitions: 4, hash_version: 1, default_from: 3, tag: NodeTag(1) };
    let record = LayoutRecord::first(origin).expect("five nodes are a cluster");
    LayoutRecord { voters: (0..3).map(NodeIndex).collect(), ..record }
}

/// A child of this record.
pub(crate) fn child(parent: &LayoutRecord) -> LayoutRecord {
    let epoch = parent.epoch.next().expect("a small epoch");
    LayoutRecord { epoch, parent: parent.hash(), ..parent.clone() }
}

pub(crate) fn ballot(round: u64) -> ProposalBallot {
    ProposalBallot { round, proposer: NodeTag(1), incarnation: Incarnation(1) }
}
