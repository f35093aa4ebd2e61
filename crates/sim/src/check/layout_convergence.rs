//! Invariant: after the heal phase all nodes have adopted the same layout record, and a change that
//! is proposed then is decided soon.

use super::InvariantViolation;
use cluster::{LayoutRecord, NodeIndex};
use std::sync::Arc;
use std::time::Duration;

/// Time in which all nodes adopt the newest record.
pub const CONVERGED_WITHIN: Duration = Duration::from_secs(5);
/// Time in which a proposed change is decided and adopted by its proposer.
pub const DECIDED_WITHIN: Duration = Duration::from_secs(2);

/// Checks the records that the nodes have adopted. `None`: the node does not run, or takes no part.
pub fn check(adopted: &[(NodeIndex, Option<Arc<LayoutRecord>>)]) -> Result<(), InvariantViolation> {
    let newest = adopted.iter().filter_map(|(_, record)| record.as_ref()).max_by_key(|record| record.epoch);
    if adopted.iter().all(|(_, record)| record.is_some() && record.as_ref() == newest) {
        return Ok(());
    }
    let epoch = |record: &Option<Arc<LayoutRecord>>| {
        record.as_ref().map(|record| format!("epoch {} ({})", record.epoch, record.hash()))
    };
    let epochs: Vec<_> = adopted.iter().map(|(node, record)| (*node, epoch(record))).collect();
    Err(InvariantViolation::new("layout_convergence", format!("the nodes have adopted {epochs:?}")))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{child, first_record};
    use super::*;

    #[test]
    fn a_node_with_an_older_or_another_record_is_caught() {
        let first = Arc::new(first_record());
        let second = Arc::new(child(&first));
        let other = Arc::new(LayoutRecord { default_from: 1, ..(*second).clone() });
        let check = |records: [Option<&Arc<LayoutRecord>>; 2]| {
            let nodes = (0..).map(NodeIndex).zip(records.map(Option::<&_>::cloned));
            check(&nodes.collect::<Vec<_>>())
        };
        assert!(check([Some(&second), Some(&second)]).is_ok());
        assert!(check([Some(&second), Some(&first)]).is_err());
        assert!(check([Some(&second), Some(&other)]).is_err());
        assert!(check([Some(&second), None]).is_err());
    }
}
