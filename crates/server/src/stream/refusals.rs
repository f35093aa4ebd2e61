//! Rate limit of refusals, and prepared refusals of writes on the fast path.
//!
//! **Promise.** Refusing a write on the fast path costs no more than copying some bytes: the value
//! is not copied, and nothing is parsed twice or allocated. If clients send more than
//! [`REFUSED_MAX`] requests to be refused in a tick, on any path, their sockets are not read for a
//! while. TCP flow control then slows these clients. A pause lasts at most [`PAUSE_MAX`], and
//! pauses end in the order in which they began. Sockets without refusals are read on, including
//! status, metrics, reads and peers.
//!
//! **Mechanism.** The refusal is encoded again once a second for its date, and when its
//! `Retry-After` changes. A connection with a refusal above the limit puts its waker into a queue.
//! Each tick wakes some of the connections, oldest first.
//!
//! **Caveats.** Requests that were received already are answered: a pausing connection holds the
//! bytes that hyper has read.

use api::{HttpDate, ResponseContext};
use cluster::{CommandFailure, Reply};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::Notify;

/// Interval in which connections are woken.
const TICK: Duration = Duration::from_millis(10);
/// Refusals in a tick before connections pause: about a tenth of a core's time.
pub(super) const REFUSED_MAX: u32 = 100;
/// Longest pause of a connection.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// The refusals of a thread.
#[derive(Debug, Default)]
pub(crate) struct ThreadRefusals {
    prepared: RefCell<Prepared>,
    /// Refusals in this tick.
    refused: Cell<u32>,
    /// Pausing connections, oldest first.
    pausing: RefCell<VecDeque<Rc<Pausing>>>,
    begun: Notify,
}

/// An encoded refusal.
#[derive(Debug, Default)]
struct Prepared {
    retry_after_secs: u64,
    date: Option<HttpDate>,
    bytes: Vec<u8>,
}

/// State of a pausing connection.
#[derive(Debug, Default)]
struct Pausing {
    is_over: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// The pause of a connection.
#[derive(Debug)]
pub(super) struct Pause(Rc<Pausing>);

impl ThreadRefusals {
    /// Appends the refusal of a request to `out`.
    pub(super) fn append(
        &self,
        retry_after: Duration,
        asked: &ResponseContext,
        date: &HttpDate,
        out: &mut Vec<u8>,
    ) {
        let mut prepared = self.prepared.borrow_mut();
        // `Retry-After` has a resolution of a second.
        let retry_after_secs = retry_after.as_millis().div_ceil(1_000) as u64;
        if prepared.date.as_ref() != Some(date) || prepared.retry_after_secs != retry_after_secs {
            let Prepared { bytes, .. } = &mut *prepared;
            bytes.clear();
            let retry_after = Duration::from_secs(retry_after_secs);
            let reply = Reply::Failed(CommandFailure::Overloaded { retry_after });
            let (_, body) = api::encode_http1(reply, asked, true, date, bytes);
            bytes.extend_from_slice(&body);
            (prepared.retry_after_secs, prepared.date) = (retry_after_secs, Some(*date));
        }
        out.extend_from_slice(&prepared.bytes);
    }

    /// Counts a refusal. Returns whether the tick is above [`REFUSED_MAX`] and the client must
    /// pause.
    pub(super) fn count(&self) -> bool {
        if self.refused.get() == 0 {
            self.begun.notify_one();
        }
        self.refused.set(self.refused.get() + 1);
        self.refused.get() > REFUSED_MAX
    }

    /// Begins a pause.
    pub(super) fn pause(&self) -> Pause {
        let pausing = Rc::<Pausing>::default();
        self.pausing.borrow_mut().push_back(Rc::clone(&pausing));
        Pause(pausing)
    }

    /// Ends pauses tick by tick, while there are any. Runs as a task of the thread.
    pub(crate) async fn resume(self: Rc<Self>) {
        loop {
            self.begun.notified().await;
            while self.refused.replace(0) > 0 || !self.pausing.borrow().is_empty() {
                tokio::time::sleep(TICK).await;
                self.tick();
            }
        }
    }

    /// Wakes as many connections as may be refused in a tick, or as many as are needed to keep
    /// pauses below [`PAUSE_MAX`].
    pub(super) fn tick(&self) {
        let mut pausing = self.pausing.borrow_mut();
        let ticks = (PAUSE_MAX.as_millis() / TICK.as_millis()) as usize;
        let count = (REFUSED_MAX as usize).max(pausing.len().div_ceil(ticks)).min(pausing.len());
        for pausing in pausing.drain(..count) {
            pausing.is_over.set(true);
            if let Some(waker) = pausing.waker.take() {
                waker.wake();
            }
        }
    }
}

impl Pause {
    /// Waits for the end of the pause.
    pub(super) fn poll(&self, context: &Context<'_>) -> Poll<()> {
        if self.0.is_over.get() {
            return Poll::Ready(());
        }
        *self.0.waker.borrow_mut() = Some(context.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::Action;

    const DATE: &HttpDate = b"Sun, 06 Nov 1994 08:49:37 GMT";
    const LATER: &HttpDate = b"Sun, 06 Nov 1994 08:49:38 GMT";

    fn asked() -> ResponseContext {
        ResponseContext::new(Action::Delete)
    }

    fn encoded(retry_after: Duration, date: &HttpDate) -> Vec<u8> {
        let mut bytes = Vec::new();
        let reply = Reply::Failed(CommandFailure::Overloaded { retry_after });
        let (status, body) = api::encode_http1(reply, &asked(), true, date, &mut bytes);
        assert_eq!(status, 503);
        bytes.extend_from_slice(&body);
        bytes
    }

    #[test]
    fn a_prepared_refusal_equals_an_encoded_one() {
        let refusals = ThreadRefusals::default();
        for (millis, date) in [(100, DATE), (200, DATE), (1_000, DATE), (1_001, DATE), (1_001, LATER)] {
            for _ in 0..2 {
                let (mut out, retry_after) = (Vec::new(), Duration::from_millis(millis));
                refusals.append(retry_after, &asked(), date, &mut out);
                assert_eq!(out, encoded(retry_after, date), "{millis}");
            }
        }
    }

    #[test]
    fn the_longest_pause_ends_first_and_no_pause_exceeds_the_limit() {
        let refusals = ThreadRefusals::default();
        let context = Context::from_waker(Waker::noop());
        assert_eq!((0..=REFUSED_MAX).filter(|_| refusals.count()).count(), 1);
        let pauses: Vec<_> = (0..60 * REFUSED_MAX).map(|_| refusals.pause()).collect();
        let over = || pauses.iter().take_while(|pause| pause.poll(&context).is_ready()).count();
        assert_eq!(over(), 0);
        let mut ticks = 0;
        while over() < pauses.len() {
            let before = over();
            refusals.tick();
            ticks += 1;
            assert!(over() - before >= REFUSED_MAX as usize || over() == pauses.len());
            assert_eq!(over(), pauses.iter().filter(|pause| pause.poll(&context).is_ready()).count());
        }
        assert!(ticks <= 60);
    }
}
