//! Invariant: a value is not returned at or after its expiry, by the wall clock of the node that
//! answers.

use super::InvariantViolation;
use crate::history::{ClientOperation, ClientOutcome, IssuedCells};
use stdx::WallTime;

/// Checks a read that was answered when the wall clock of the answering node showed `wall`.
pub fn check(
    read: &ClientOperation,
    issued_cells: &IssuedCells,
    wall: WallTime,
) -> Result<(), InvariantViolation> {
    let Some((_, ClientOutcome::Found { version, .. })) = &read.outcome else { return Ok(()) };
    match issued_cells.get(&read.key, *version).and_then(|issued| issued.expires_at) {
        Some(expires_at) if expires_at <= wall => {
            let detail = format!("it expired at {expires_at:?}, and was returned at {wall:?}: {read:?}");
            Err(InvariantViolation::new("expiry", detail))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NOW, found, key, version};
    use super::*;
    use stdx::{Cell, CellMeta};

    #[test]
    fn an_expired_value_is_caught() {
        let mut issued_cells = IssuedCells::default();
        let meta = CellMeta { expires_at: Some(NOW), ..CellMeta::value(version(1), 3) };
        issued_cells.note(&key(), &Cell { meta, value: "1".into() }).unwrap();
        assert!(check(&found(1, (2, 3), 0..1), &issued_cells, NOW).is_err());
        assert!(
            check(
                &found(1, (2, 3), 0..1),
                &issued_cells,
                NOW.saturating_sub(std::time::Duration::from_micros(1))
            )
            .is_ok()
        );
    }
}
