//! Messages as bytes.
//!
//! A message is a kind, the id of its request, and fields of fixed width in little-endian order; versions are
//! big-endian, as everywhere. A value, where a message has exactly one, comes last and runs to the end, and so do the
//! bytes of a page: long ones are sent from where they lie and taken over from where they were put together, without
//! a copy.

mod decode;
mod encode;
pub(crate) mod fields;
mod scan;

pub(crate) use decode::{decode, decode_owned};
pub(crate) use encode::{encode_head, len_max, tail};

/// Since this version of the protocol requests say how much time is left for them.
const TIME_LEFT_SINCE: u8 = 2;

/// Since this version of the protocol heartbeats carry lives and the default count of replicas.
const GENERATIONS_SINCE: u8 = 3;

/// The first byte of a message. Answers have the upper bit set.
mod kind {
    pub(super) const READ_CELL: u8 = 0x01;
    pub(super) const READ_META: u8 = 0x02;
    pub(super) const WRITE: u8 = 0x03;
    pub(super) const KEEP_HINTS: u8 = 0x04;
    pub(super) const HEARTBEAT: u8 = 0x05;
    pub(super) const RANGE: u8 = 0x06;
    pub(super) const SCAN: u8 = 0x07;
    pub(super) const END_SCAN: u8 = 0x08;

    /// Set in the kinds of answers.
    pub(super) const ANSWER: u8 = 0x80;

    pub(super) const CELL: u8 = 0x81;
    pub(super) const META: u8 = 0x82;
    pub(super) const WRITTEN: u8 = 0x83;
    pub(super) const HINTS_KEPT: u8 = 0x84;
    pub(super) const HEARTBEAT_ANSWER: u8 = 0x85;
    pub(super) const RANGE_SAME: u8 = 0x86;
    pub(super) const RANGE_VERSIONS: u8 = 0x87;
    pub(super) const RANGE_CELLS: u8 = 0x88;
    pub(super) const SCAN_PAGE: u8 = 0x89;
    pub(super) const SCAN_SAME: u8 = 0x8a;
    pub(super) const SCAN_ENDED: u8 = 0x8b;
    pub(super) const FAILED: u8 = 0x8f;
}

/// The first byte of a fault.
mod fault {
    pub(super) const STORE_FULL: u8 = 1;
    pub(super) const STORE_OVERLOADED: u8 = 2;
    pub(super) const STORE_CORRUPT: u8 = 3;
    pub(super) const STORE_IO: u8 = 4;
    pub(super) const NOT_BELIEVED: u8 = 5;
    pub(super) const CLOCK_AHEAD: u8 = 6;
    pub(super) const BUSY: u8 = 7;
    pub(super) const NOT_SERVING: u8 = 8;
    /// Since version 2.
    pub(super) const STORE_EXPIRED: u8 = 9;
}

/// Bits of the byte that a cell begins with.
mod cell_flag {
    pub(super) const TOMBSTONE: u8 = 1 << 0;
    pub(super) const EXPIRES: u8 = 1 << 1;
    pub(super) const ALL: u8 = TOMBSTONE | EXPIRES;
}

/// Bits of the byte that tells how a node is; the lower two are its standing.
mod heartbeat_flag {
    pub(super) const STANDING: u8 = 0b11;
    pub(super) const DRAINING: u8 = 1 << 2;
    pub(super) const DISK_FULL: u8 = 1 << 3;
    pub(super) const REMEMBERS_TAG: u8 = 1 << 4;
    pub(super) const REPAIR_OWED: u8 = 1 << 5;
    /// Since version 3.
    pub(super) const REMEMBERS_LIFE: u8 = 1 << 6;
    /// Those of versions 1 and 2.
    pub(super) const FIRST: u8 = STANDING | DRAINING | DISK_FULL | REMEMBERS_TAG | REPAIR_OWED;
    pub(super) const ALL: u8 = FIRST | REMEMBERS_LIFE;
}

/// Bits of the byte that a request for a range begins with.
mod range_flag {
    pub(super) const DIGEST: u8 = 1 << 0;
    pub(super) const CELLS: u8 = 1 << 1;
    pub(super) const ALL: u8 = DIGEST | CELLS;
}

/// The byte that a cut begins with, unless there is none.
mod cut_side {
    pub(super) const BEFORE: u8 = 1;
    pub(super) const AFTER: u8 = 2;
}

/// The byte that the part of a scan begins with.
mod scan_part {
    pub(super) const CELLS: u8 = 0;
    pub(super) const CHECK: u8 = 1;
}

/// How much of the text of a fault travels, in bytes.
const DETAIL_BYTES_MAX: usize = 1_024;

/// Stands for an absent cell or cut where one may be absent.
const ABSENT: u8 = 0;
/// Stands before a cell where one may be absent.
const PRESENT: u8 = 1;
