//! No command is without a reply past its deadline, unless the process that had it ended or stood still.

use super::Violation;
use crate::Nanos;
use crate::history::Operation;

/// Checks a command at `now`, when its reply is due.
pub fn check(operation: &Operation, now: Nanos) -> Result<(), Violation> {
    match operation.told {
        Some(_) => Ok(()),
        None => Err(Violation::new("deadlines", format!("no reply by {now}: {operation:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::missing;
    use super::*;

    #[test]
    fn a_command_without_a_reply_is_caught() {
        assert!(check(&missing((1, 1), 0..1), Nanos(2)).is_ok());
        assert!(check(&Operation { told: None, ..missing((1, 1), 0..1) }, Nanos(2)).is_err());
    }
}
