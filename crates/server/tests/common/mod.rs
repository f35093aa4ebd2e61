//! What the tests of servers share.

use std::time::{Duration, Instant};

/// What does not happen in so long has failed the test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until something happens.
#[track_caller]
pub(crate) fn eventually(what: &str, mut happens: impl FnMut() -> bool) {
    let started = Instant::now();
    while !happens() {
        assert!(started.elapsed() < PATIENCE, "this never came true: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
