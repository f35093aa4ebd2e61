//! When a driver's machine is to be told that time has passed.
//!
//! While requests flow, the timer is not touched for each: it is moved only for a deadline that comes earlier
//! than the one it waits for, and what it waited for in vain costs one look at the next.

use env::Clock;
use std::cell::Cell;
use stdx::Instant;
use tokio::sync::Notify;

/// The one timer of a driver.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    waits_for: Cell<Option<Instant>>,
    came_earlier: Notify,
}

impl Deadlines {
    /// The machine wants to be called at `deadline`.
    pub(super) fn note(&self, deadline: Option<Instant>) {
        let Some(deadline) = deadline else { return };
        if self.waits_for.get().is_none_or(|waits_for| deadline < waits_for) {
            self.waits_for.set(Some(deadline));
            self.came_earlier.notify_one();
        }
    }

    /// Waits for `deadline`, the present one, to pass, or for an earlier one. `true`: it passed.
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
