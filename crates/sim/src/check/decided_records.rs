//! Invariant: a node holds a layout record as decided only if enough voters of its parent have
//! durably accepted it with one ballot.

use super::InvariantViolation;
use cluster::{LayoutRecord, NodeIndex, RecordHash};

/// Checks a record later than the first one that a host holds as decided. `known` is the record of
/// its epoch that enough voters have accepted.
pub fn check(
    host: NodeIndex,
    record: &LayoutRecord,
    known: Option<RecordHash>,
) -> Result<(), InvariantViolation> {
    if known.is_some() {
        return Ok(());
    }
    let detail = format!(
        "{host:?} holds a record of epoch {} that too few voters have accepted: {record:?}",
        record.epoch
    );
    Err(InvariantViolation::new("decided_records", detail))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{child, first_record};
    use super::*;

    #[test]
    fn a_record_that_was_not_decided_is_caught() {
        let record = child(&first_record());
        assert!(check(NodeIndex(0), &record, Some(record.hash())).is_ok());
        assert!(check(NodeIndex(0), &record, None).is_err());
    }
}
