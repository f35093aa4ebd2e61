//! Invariant: every command has a reply by its deadline, unless its process ended or was paused.
//!
//! A command for a page has a deadline too, because each request that it depends on has one.

use super::InvariantViolation;
use crate::Nanos;
use crate::history::{ClientOperation, PageCall};

/// Checks a command at `now`, the time by which it must have a reply.
pub fn check(operation: &ClientOperation, now: Nanos) -> Result<(), InvariantViolation> {
    match operation.outcome {
        Some(_) => Ok(()),
        None => Err(InvariantViolation::new("deadlines", format!("no reply by {now}: {operation:?}"))),
    }
}

/// Checks a command for a page at `now`, the time by which it must have a reply.
pub fn check_page(call: &PageCall, now: Nanos) -> Result<(), InvariantViolation> {
    match call.answered {
        Some(_) => Ok(()),
        None => Err(InvariantViolation::new("deadlines", format!("no page by {now}: {call:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::missing;
    use super::*;
    use cluster::ScanId;

    #[test]
    fn a_command_without_a_reply_is_caught() {
        assert!(check(&missing((1, 1), 0..1), Nanos(2)).is_ok());
        assert!(check(&ClientOperation { outcome: None, ..missing((1, 1), 0..1) }, Nanos(2)).is_err());
    }

    #[test]
    fn a_page_command_without_a_reply_is_caught() {
        let call = PageCall { scan: ScanId(0), began: Nanos(0), answered: Some(Nanos(1)) };
        assert!(check_page(&call, Nanos(2)).is_ok());
        assert!(check_page(&PageCall { answered: None, ..call }, Nanos(2)).is_err());
    }
}
