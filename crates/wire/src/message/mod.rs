//! Messages as bytes.
//!
//! A message consists of its kind, the id of its request, and fields of fixed width in
//! little-endian order; versions are big-endian everywhere. If a message has exactly one value, the
//! value comes last and extends to the end of the message. The same holds for the bytes of a page.
//! So long ones are sent and received without a copy.

mod decode;
mod encode;
pub(crate) mod fields;
mod scan;

pub(crate) use decode::{decode, decode_owned};
pub(crate) use encode::{encode_head, len_max, tail};

/// First version of the protocol in which requests carry their remaining time.
const TIME_LEFT_SINCE: u8 = 2;

/// First version of the protocol in which heartbeats carry generations and the default number of
/// replicas.
const GENERATIONS_SINCE: u8 = 3;

/// The first byte of a message. The upper bit is set in answers.
mod kind {
    pub(super) const READ_CELL: u8 = 0x01;
    pub(super) const READ_META: u8 = 0x02;
    pub(super) const WRITE: u8 = 0x03;
    pub(super) const KEEP_HINTS: u8 = 0x04;
    pub(super) const HEARTBEAT: u8 = 0x05;
    pub(super) const RANGE: u8 = 0x06;
    pub(super) const SCAN: u8 = 0x07;
    pub(super) const END_SCAN: u8 = 0x08;

    /// Bit that is set in the kinds of answers.
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
    pub(super) const NOT_READ_ELIGIBLE: u8 = 5;
    pub(super) const CLOCK_AHEAD: u8 = 6;
    pub(super) const BUSY: u8 = 7;
    pub(super) const NOT_SERVING: u8 = 8;
    /// Since version 2.
    pub(super) const STORE_EXPIRED: u8 = 9;
}

/// Bits of the first byte of a cell.
mod cell_flag {
    pub(super) const TOMBSTONE: u8 = 1 << 0;
    pub(super) const EXPIRES: u8 = 1 << 1;
    pub(super) const ALL: u8 = TOMBSTONE | EXPIRES;
}

/// Bits of the flags of a heartbeat. The lower two are the sync state.
mod heartbeat_flag {
    pub(super) const SYNC_STATE: u8 = 0b11;
    pub(super) const DRAINING: u8 = 1 << 2;
    pub(super) const DISK_FULL: u8 = 1 << 3;
    pub(super) const REMEMBERS_TAG: u8 = 1 << 4;
    pub(super) const REPAIR_OWED: u8 = 1 << 5;
    /// Since version 3.
    pub(super) const REMEMBERS_GENERATION: u8 = 1 << 6;
    /// The bits of versions 1 and 2.
    pub(super) const FIRST: u8 = SYNC_STATE | DRAINING | DISK_FULL | REMEMBERS_TAG | REPAIR_OWED;
    pub(super) const ALL: u8 = FIRST | REMEMBERS_GENERATION;
}

/// Bits of the first byte of a range request.
mod range_flag {
    pub(super) const DIGEST: u8 = 1 << 0;
    pub(super) const CELLS: u8 = 1 << 1;
    pub(super) const ALL: u8 = DIGEST | CELLS;
}

/// The first byte of a cut that is present.
mod cut_side {
    pub(super) const BEFORE: u8 = 1;
    pub(super) const AFTER: u8 = 2;
}

/// The first byte of a scan's task.
mod scan_task {
    pub(super) const CELLS: u8 = 0;
    pub(super) const CHECK: u8 = 1;
}

/// Maximum number of bytes of a fault's text that are sent.
const DETAIL_BYTES_MAX: usize = 1_024;

/// Marks an absent optional cell or cut.
const ABSENT: u8 = 0;
/// Marks a present optional cell.
const PRESENT: u8 = 1;
