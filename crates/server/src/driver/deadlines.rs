//! The timer of a driver.
//!
//! While requests flow, the timer is not reset for each of them. It is moved only for a deadline
//! earlier than the current one. When it fires and its deadline has become obsolete, the machine
//! handles one superfluous timeout.

use env::Clock;
use std::cell::Cell;
use stdx::Instant;
use tokio::sync::Notify;

/// The single timer of a driver.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    waits_for: Cell<Option<Instant>>,
    came_earlier: Notify,
}

impl Deadlines {
    /// Notes the next deadline of the machine. Wakes the waiting task if it is earlier than the
    /// current one.
    pub(super) fn note(&self, deadline: Option<Instant>) {
        let Some(deadline) = deadline else { return };
        if self.waits_for.get().is_none_or(|waits_for| deadline < waits_for) {
            self.waits_for.set(Some(deadline));
            self.came_earlier.notify_one();
        }
    }

    /// Waits until `deadline` passes, or until an earlier deadline is noted. Returns `true` if
    /// `deadline` has passed.
    pub(super) async fn wait(&self, deadline: Option<Instant>, clock: &dyn Clock) -> bool {
        self.waits_for.set(deadline);
        let Some(deadline) = deadline else {
            self.came_earlier.notified().await;
            return false;
        };
        let left = deadline.saturating_since(clock.now().mono);
        tokio::select! {
            biased;
            () = tokio::time::sleep(left) => true,
            () = self.came_earlier.notified() => false,
        }
    }
}
