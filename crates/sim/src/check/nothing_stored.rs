//! Invariant: a write that was refused as certainly not stored is stored nowhere. Its value is
//! never read, and no replica holds it.

use super::InvariantViolation;
use crate::history::{ClientOperation, ClientOutcome};

/// Checks the write whose value was found in a read, in a scan or on a replica.
pub fn check(writer: &ClientOperation) -> Result<(), InvariantViolation> {
    match &writer.outcome {
        Some((_, ClientOutcome::Failed { is_not_stored: true, .. })) => Err(InvariantViolation::new(
            "nothing_stored",
            format!("a value is stored although its client was told that it is not: {writer:?}"),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::operation;
    use super::*;
    use crate::history::CommandKind;

    #[test]
    fn a_stored_value_of_a_refused_write_is_caught() {
        let failed = |is_not_stored| {
            let outcome = ClientOutcome::Failed { is_not_stored, reason: "why".to_owned() };
            operation(CommandKind::Put { ttl: None }, (2, 3), 0..1, outcome)
        };
        assert!(check(&failed(true)).is_err());
        assert!(check(&failed(false)).is_ok());
    }
}
