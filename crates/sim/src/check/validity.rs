//! Invariant: a read returns only values that a client wrote, under the key and the version with
//! which they were written.

use super::InvariantViolation;
use crate::history::{ClientOperation, ClientOutcome, IssuedCells};
use stdx::CellKind;

/// Checks a finished read.
pub fn check(read: &ClientOperation, issued_cells: &IssuedCells) -> Result<(), InvariantViolation> {
    let Some((_, ClientOutcome::Found { version, value })) = &read.outcome else { return Ok(()) };
    match issued_cells.get(&read.key, *version) {
        Some(issued) if issued.kind == CellKind::Value && issued.value == value => Ok(()),
        Some(issued) => {
            let issued_as = format!("{:?} of {} bytes", issued.kind, issued.value.len());
            Err(InvariantViolation::new(
                "validity",
                format!("the version was issued as {issued_as}, and read as {read:?}"),
            ))
        }
        None => Err(InvariantViolation::new(
            "validity",
            format!("the read returned a version that was never issued: {read:?}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{found, issued_cells, operation, version};
    use super::*;
    use crate::history::CommandKind;

    #[test]
    fn a_value_that_no_client_wrote_is_caught() {
        assert!(check(&found(1, (2, 3), 0..1), &issued_cells(&[1], &[])).is_ok());
        assert!(check(&found(2, (2, 3), 0..1), &issued_cells(&[1], &[])).is_err());
        assert!(check(&found(2, (2, 3), 0..1), &issued_cells(&[1], &[2])).is_err(), "a delete has no value");
        let other = ClientOutcome::Found { version: version(1), value: "other".into() };
        assert!(check(&operation(CommandKind::Get, (2, 3), 0..1, other), &issued_cells(&[1], &[])).is_err());
    }
}
