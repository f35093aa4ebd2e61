//! No version is issued from a clock that is far ahead, and none is stored that comes from a peer: it would hide every
//! later write of its key, for as long as the clocks of the others take to come near.

use super::Violation;
use cluster::{HybridClock, Key};
use std::time::Duration;
use stdx::{Version, WallTime};

/// What clocks may differ by, and what a start reserves past that.
pub const AHEAD_MAX: Duration = HybridClock::SKEW_MAX.saturating_add(Duration::from_secs(5));

/// Checks a version that was just issued, or is about to be stored. `latest_wall` is the greatest that any clock has shown that was not wrong.
pub fn check(key: &Key, version: Version, latest_wall: WallTime) -> Result<(), Violation> {
    let issued = version.hlc.wall();
    if issued <= latest_wall.saturating_add(AHEAD_MAX) {
        return Ok(());
    }
    let detail = format!("{version} of {key:?} is of {issued:?}, and it is {latest_wall:?}");
    Err(Violation::new("clock_bound", detail))
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
