//! Answers that a request was not carried out.

use super::decoder::Decoder;
use super::fields::{put_u64, wall};
use super::{Head, TIME_LEFT_SINCE};
use crate::WireError;
use crate::plan_epoch::PLAN_EPOCHS_SINCE;
use cluster::{LayoutEpoch, ReplicaFault, StoreFault};
use std::time::Duration;
use stdx::nanos;

/// Kind of the message.
const FAILED: u8 = 0x8f;

/// Maximum number of bytes of a fault's text that are sent.
pub(super) const DETAIL_BYTES_MAX: usize = 1_024;

/// The first byte of a fault.
mod code {
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
    /// Since version 5.
    pub(super) const STALE_EPOCH: u8 = 10;
}

/// Appends an answer with a fault.
pub(super) fn put(out: &mut Vec<u8>, head: Head, fault: &ReplicaFault) {
    head.put(out, FAILED);
    match fault {
        // Earlier versions have no such fault; `Busy` is the closest one.
        ReplicaFault::Store(StoreFault::Expired) if head.version < TIME_LEFT_SINCE => out.push(code::BUSY),
        ReplicaFault::Store(StoreFault::Expired) => out.push(code::STORE_EXPIRED),
        ReplicaFault::Store(StoreFault::Full) => out.push(code::STORE_FULL),
        // A peer cannot wait for the memory of this node.
        ReplicaFault::Store(
            StoreFault::Overloaded { retry_after } | StoreFault::NoMemory { retry_after },
        ) => {
            out.push(code::STORE_OVERLOADED);
            put_u64(out, nanos(*retry_after));
        }
        ReplicaFault::Store(StoreFault::Corrupt { detail }) => put_detail(out, code::STORE_CORRUPT, detail),
        ReplicaFault::Store(StoreFault::Io { detail }) => put_detail(out, code::STORE_IO, detail),
        ReplicaFault::NotReadEligible => out.push(code::NOT_READ_ELIGIBLE),
        ReplicaFault::ClockAhead { wall } => {
            out.push(code::CLOCK_AHEAD);
            put_u64(out, wall.micros_since_unix_epoch());
        }
        ReplicaFault::Busy => out.push(code::BUSY),
        // Earlier versions have no such fault, and their coordinators know no later layout: they
        // ask other replicas, or have their clients try again.
        ReplicaFault::StaleEpoch { .. } if head.version < PLAN_EPOCHS_SINCE => out.push(code::BUSY),
        ReplicaFault::StaleEpoch { epoch } => {
            out.push(code::STALE_EPOCH);
            put_u64(out, epoch.0);
        }
        ReplicaFault::NotServing => out.push(code::NOT_SERVING),
    }
}

/// Appends a fault with its text, truncated to the limit.
fn put_detail(out: &mut Vec<u8>, code: u8, detail: &str) {
    out.push(code);
    out.extend_from_slice(&detail.as_bytes()[..detail.floor_char_boundary(DETAIL_BYTES_MAX)]);
}

/// Decodes a fault; `None`: the message is of another family.
pub(super) fn fault(kind: u8, from: &mut Decoder<'_>) -> Result<Option<ReplicaFault>, WireError> {
    if kind != FAILED {
        return Ok(None);
    }
    Ok(Some(match from.reader.u8()? {
        code::STORE_FULL => ReplicaFault::Store(StoreFault::Full),
        code::STORE_OVERLOADED => {
            let retry_after = Duration::from_nanos(from.reader.u64()?);
            ReplicaFault::Store(StoreFault::Overloaded { retry_after })
        }
        code::STORE_CORRUPT => ReplicaFault::Store(StoreFault::Corrupt { detail: detail(from)? }),
        code::STORE_IO => ReplicaFault::Store(StoreFault::Io { detail: detail(from)? }),
        code::NOT_READ_ELIGIBLE => ReplicaFault::NotReadEligible,
        code::CLOCK_AHEAD => ReplicaFault::ClockAhead { wall: wall(&mut from.reader)? },
        code::BUSY => ReplicaFault::Busy,
        code::NOT_SERVING => ReplicaFault::NotServing,
        code::STALE_EPOCH if from.version >= PLAN_EPOCHS_SINCE => {
            ReplicaFault::StaleEpoch { epoch: LayoutEpoch(from.reader.u64()?) }
        }
        code::STORE_EXPIRED if from.version >= TIME_LEFT_SINCE => ReplicaFault::Store(StoreFault::Expired),
        _ => return Err(WireError::Field { field: "fault" }),
    }))
}

fn detail(from: &mut Decoder<'_>) -> Result<String, WireError> {
    let bytes = from.reader.bytes(from.reader.rest().len())?;
    let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= DETAIL_BYTES_MAX);
    text.map(str::to_owned).ok_or(WireError::Field { field: "text of a fault" })
}
