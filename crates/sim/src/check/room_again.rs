//! A disk that has room again is found to have it, by a node that nobody restarts or tells.

use super::Violation;
use cluster::NodeIndex;
use std::time::Duration;

/// Within so long.
pub const WITHIN: Duration = Duration::from_secs(5);

/// Checks a node that has had room for [`WITHIN`], and ran all the while.
pub fn check(node: NodeIndex, refuses_values: bool) -> Result<(), Violation> {
    if refuses_values {
        let detail = format!("{node:?} has had room for {WITHIN:?} and refuses values");
        return Err(Violation::new("room_again", detail));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_stays_full_is_caught() {
        assert!(check(NodeIndex(0), false).is_ok());
        assert!(check(NodeIndex(0), true).is_err());
    }
}
