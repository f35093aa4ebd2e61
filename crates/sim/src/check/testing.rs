//! Small histories for the tests of the checkers.

use crate::Nanos;
use crate::history::{Asked, Issue, Operation, Told};
use bytes::Bytes;
use cluster::{Key, NodeIndex, Quorum, QuorumChoice, RequestId};
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

/// Values with these versions were issued, and tombstones with those.
pub(crate) fn issue(values: &[u64], tombstones: &[u64]) -> Issue {
    let mut issue = Issue::default();
    for &number in values {
        let value = Bytes::from(number.to_string());
        issue.note(&key(), &Cell::value(version(number), 3, value)).expect("a new version");
    }
    for &number in tombstones {
        issue.note(&key(), &Cell::tombstone(version(number), 3)).expect("a new version");
    }
    issue
}

pub(crate) fn operation(asked: Asked, acks: (u32, u32), when: std::ops::Range<u64>, told: Told) -> Operation {
    Operation {
        id: RequestId(0),
        node: NodeIndex(0),
        asked,
        key: key(),
        quorum: quorum(acks.0, acks.1),
        began: Nanos(when.start),
        told: Some((Nanos(when.end), told)),
    }
}

pub(crate) fn write(number: u64, acks: (u32, u32), when: std::ops::Range<u64>) -> Operation {
    operation(Asked::Put { ttl: None }, acks, when, Told::Written { version: version(number) })
}

pub(crate) fn found(number: u64, acks: (u32, u32), when: std::ops::Range<u64>) -> Operation {
    let value = Bytes::from(number.to_string());
    operation(Asked::Get, acks, when, Told::Found { version: version(number), value })
}

pub(crate) fn missing(acks: (u32, u32), when: std::ops::Range<u64>) -> Operation {
    operation(Asked::Get, acks, when, Told::Missing)
}
