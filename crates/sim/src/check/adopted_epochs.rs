//! Invariant: the epoch that a node has adopted never decreases while its directory is kept, and an
//! adopted record is durable.

use super::InvariantViolation;
use cluster::{LayoutEpoch, NodeIndex};

/// Checks the epoch of the record that a host adopts or starts with, after the one `before`.
pub fn check(
    host: NodeIndex,
    before: Option<LayoutEpoch>,
    epoch: LayoutEpoch,
) -> Result<(), InvariantViolation> {
    match before.filter(|before| *before > epoch) {
        None => Ok(()),
        Some(before) => {
            let detail = format!("{host:?} had adopted epoch {before}, and has epoch {epoch}");
            Err(InvariantViolation::new("adopted_epochs", detail))
        }
    }
}

/// Checks an adopted epoch against the one that is durable on the host.
pub fn check_durable(
    host: NodeIndex,
    durable: Option<LayoutEpoch>,
    epoch: LayoutEpoch,
) -> Result<(), InvariantViolation> {
    if durable >= Some(epoch) {
        return Ok(());
    }
    let detail = format!("{host:?} adopts epoch {epoch}, and epoch {durable:?} is durable");
    Err(InvariantViolation::new("adopted_epochs", detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_epoch_is_caught() {
        let host = NodeIndex(0);
        assert!(check(host, None, LayoutEpoch(1)).is_ok());
        assert!(check(host, Some(LayoutEpoch(2)), LayoutEpoch(2)).is_ok());
        assert!(check(host, Some(LayoutEpoch(3)), LayoutEpoch(2)).is_err());
    }

    #[test]
    fn an_adopted_record_that_is_not_durable_is_caught() {
        let host = NodeIndex(0);
        assert!(check_durable(host, Some(LayoutEpoch(2)), LayoutEpoch(2)).is_ok());
        assert!(check_durable(host, Some(LayoutEpoch(1)), LayoutEpoch(2)).is_err());
        assert!(check_durable(host, None, LayoutEpoch(2)).is_err());
    }
}
