//! Failures and faults in words.

use super::answers::of;
use cluster::{CommandFailure, ReplicaFault, Shortfall, StoreFault};

pub(super) fn failure(failure: &CommandFailure) -> String {
    match failure {
        CommandFailure::NotEnoughReplicas { acks, ack, shortfall } => {
            format!("{}, {ack} needed: {}", of(*acks), shortfall_text(*shortfall))
        }
        CommandFailure::NotEnoughHeard { missing, .. } => format!("{missing} are not heard"),
        CommandFailure::Closed => "scan closed".to_owned(),
        CommandFailure::Overloaded { retry_after } => format!("overloaded, retry after {retry_after:?}"),
        CommandFailure::NoMemory { retry_after } => format!("no memory, retry after {retry_after:?}"),
        CommandFailure::ReplicasOverloaded { acks, maybe_stored, .. } => {
            format!("{}: replicas overloaded{}", of(*acks), stored(*maybe_stored))
        }
        CommandFailure::ExpiryTooLate { .. } => "expiry too late".to_owned(),
        CommandFailure::ClockAhead { acks, maybe_stored } => {
            format!("{}: clock ahead{}", of(*acks), stored(*maybe_stored))
        }
        CommandFailure::DiskFull { acks, here, maybe_stored } => {
            let here = if *here { " here" } else { "" };
            format!("{}: disk full{here}{}", of(*acks), stored(*maybe_stored))
        }
        CommandFailure::DiskFullHere { acks, maybe_stored, .. } => {
            format!("{}: disk full here{}", of(*acks), stored(*maybe_stored))
        }
        CommandFailure::Corrupt { detail } => format!("corrupt: {detail}"),
        CommandFailure::Storage { detail } => format!("disk failed: {detail}"),
    }
}

const fn stored(maybe_stored: bool) -> &'static str {
    if maybe_stored { ", maybe stored" } else { ", nothing stored" }
}

const fn shortfall_text(shortfall: Shortfall) -> &'static str {
    match shortfall {
        Shortfall::Unreachable => "unreachable, nothing sent",
        Shortfall::Refused => "refused key, nothing sent",
        Shortfall::NoVersion => "no version, nothing stored",
        Shortfall::Unanswered => "unanswered",
        Shortfall::NotSpread => "not spread",
        Shortfall::NotFetched => "not fetched",
        Shortfall::MaybeStored => "maybe stored",
    }
}

pub(super) fn replica_fault(fault: &ReplicaFault) -> String {
    match fault {
        ReplicaFault::Store(fault) => store_fault(fault),
        ReplicaFault::NotReadEligible => "not read-eligible".to_owned(),
        ReplicaFault::ClockAhead { .. } => "version is ahead".to_owned(),
        ReplicaFault::Busy => "busy".to_owned(),
        ReplicaFault::NotServing => "not serving".to_owned(),
        ReplicaFault::StaleEpoch { epoch } => format!("partition has changed, epoch {epoch}"),
    }
}

pub(super) fn store_fault(fault: &StoreFault) -> String {
    match fault {
        StoreFault::Full => "full".to_owned(),
        StoreFault::Overloaded { .. } => "overloaded".to_owned(),
        StoreFault::NoMemory { .. } => "no memory".to_owned(),
        StoreFault::Expired => "expired".to_owned(),
        StoreFault::Corrupt { .. } => "corrupt".to_owned(),
        StoreFault::Io { .. } => "failed".to_owned(),
    }
}
