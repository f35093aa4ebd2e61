//! Invariant: no version comes from a clock that is far ahead. None is issued, and none is stored
//! that a peer sent. Such a version would hide every later write of its key until the clocks of the
//! other nodes come near it.

use super::InvariantViolation;
use cluster::{HybridClock, Key};
use std::time::Duration;
use stdx::{Version, WallTime};

/// Greatest distance of a version from the greatest correct wall clock: the accepted clock skew,
/// and the versions that a node reserves at its start.
pub const AHEAD_MAX: Duration = HybridClock::SKEW_MAX.saturating_add(Duration::from_secs(5));

/// Checks a version that was just issued or is about to be stored. `latest_wall` is the greatest
/// time that a correct wall clock has shown.
pub fn check(key: &Key, version: Version, latest_wall: WallTime) -> Result<(), InvariantViolation> {
    let issued = version.hlc.wall();
    if issued <= latest_wall.saturating_add(AHEAD_MAX) {
        return Ok(());
    }
    let detail = format!(
        "{version} of {key:?} has the time {issued:?}, and the greatest correct clock shows {latest_wall:?}"
    );
    Err(InvariantViolation::new("clock_bound", detail))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NOW, key};
    use super::*;
    use stdx::{Hlc, NodeTag};

    #[test]
    fn a_version_from_a_clock_that_is_ahead_is_caught() {
        let version = |ahead| Version::new(Hlc::at(NOW.saturating_add(ahead)), NodeTag(1));
        assert!(check(&key(), version(Duration::ZERO), NOW).is_ok());
        assert!(check(&key(), version(AHEAD_MAX), NOW).is_ok());
        assert!(check(&key(), version(AHEAD_MAX * 2), NOW).is_err());
    }
}
