//! A read returns only what a client wrote, under the key and the version it was written with.

use super::Violation;
use crate::history::{Issue, Operation, Told};
use stdx::CellKind;

/// Checks a read that has ended.
pub fn check(read: &Operation, issue: &Issue) -> Result<(), Violation> {
    let Some((_, Told::Found { version, value })) = &read.told else { return Ok(()) };
    match issue.get(&read.key, *version) {
        Some(issued) if issued.kind == CellKind::Value && issued.value == value => Ok(()),
        Some(issued) => {
            let issued_as = format!("{:?} of {} bytes", issued.kind, issued.value.len());
            Err(Violation::new("validity", format!("was issued as {issued_as}, and read as {read:?}")))
        }
        None => Err(Violation::new("validity", format!("nobody issued what this read found: {read:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{found, issue, operation, version};
    use super::*;
    use crate::history::Asked;

    #[test]
    fn what_nobody_wrote_is_caught() {
        assert!(check(&found(1, (2, 3), 0..1), &issue(&[1], &[])).is_ok());
        assert!(check(&found(2, (2, 3), 0..1), &issue(&[1], &[])).is_err());
        assert!(check(&found(2, (2, 3), 0..1), &issue(&[1], &[2])).is_err(), "a delete has no value");
        let other = Told::Found { version: version(1), value: "other".into() };
        assert!(check(&operation(Asked::Get, (2, 3), 0..1, other), &issue(&[1], &[])).is_err());
    }
}
