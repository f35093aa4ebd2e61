//! Refusals: not more of them than the thread can spare time for; those of writes on the plain path prepared.
//!
//! **Promise.** To refuse a write on the plain path costs no more than to copy some bytes: the value is never copied,
//! nothing is parsed twice or allocated. When clients send more to be refused than [`REFUSED_MAX`] in a tick, on whatever
//! path, their sockets are not read for a while, so that TCP holds them back: for no longer than [`PAUSE_MAX`], and in
//! turn. Sockets on which nothing was refused are read on, with status, metrics, reads and peers among them.
//!
//! **Mechanism.** The answer is encoded anew once a second, for its date, or when its `Retry-After` changes. A connection
//! that has had its refusal past the mark leaves its waker in a queue; each tick wakes some of them, first those
//! that have waited longest.
//!
//! **Caveats.** What has come already is answered: a connection that pauses holds what the library has read of it.

use api::{HttpDate, ResponseContext};
use cluster::{Failure, Reply};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::Notify;

/// How often connections are woken.
const TICK: Duration = Duration::from_millis(10);
/// Refusals in a tick before connections pause: about a tenth of a core's time.
pub(super) const REFUSED_MAX: u32 = 100;
/// The longest that a connection pauses.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// The refusals of a thread. See the module.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    prepared: RefCell<Prepared>,
    /// In this tick.
    refused: Cell<u32>,
    /// Those that pause; the one that has paused longest is first.
    pausing: RefCell<VecDeque<Rc<Pausing>>>,
    begun: Notify,
}

/// An answer that is ready.
#[derive(Debug, Default)]
struct Prepared {
    retry_after_secs: u64,
    date: Option<HttpDate>,
    bytes: Vec<u8>,
}

/// A connection that pauses.
#[derive(Debug, Default)]
struct Pausing {
    is_over: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// The pause of a connection.
#[derive(Debug)]
pub(super) struct Pause(Rc<Pausing>);

impl Refusals {
    /// Refuses what was asked: appends the answer.
    pub(super) fn append(
        &self,
        retry_after: Duration,
        asked: &ResponseContext,
        date: &HttpDate,
        out: &mut Vec<u8>,
    ) {
        let mut prepared = self.prepared.borrow_mut();
        // As `Retry-After` has it, nothing less than a second tells two times apart.
        let retry_after_secs = retry_after.as_millis().div_ceil(1_000) as u64;
        if prepared.date.as_ref() != Some(date) || prepared.retry_after_secs != retry_after_secs {
            let Prepared { bytes, .. } = &mut *prepared;
            bytes.clear();
            let retry_after = Duration::from_secs(retry_after_secs);
            let reply = Reply::Failed(Failure::Overloaded { retry_after });
            let (_, body) = api::encode_http1(reply, asked, true, date, bytes);
            bytes.extend_from_slice(&body);
            (prepared.retry_after_secs, prepared.date) = (retry_after_secs, Some(*date));
        }
        out.extend_from_slice(&prepared.bytes);
    }

    /// Something is refused; whether so much was in this tick that whoever asked for it is to pause.
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

    /// Ends pauses, tick by tick, while there are any. A task of the thread.
    pub(crate) async fn resume(self: Rc<Self>) {
        loop {
            self.begun.notified().await;
            while self.refused.replace(0) > 0 || !self.pausing.borrow().is_empty() {
                tokio::time::sleep(TICK).await;
                self.tick();
            }
        }
    }

    /// Wakes as many as may be refused in a tick, or as many as it takes for none to pause for too long.
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
    /// Waits for its end.
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
        let key = cluster::Key::new("k".into()).expect("a key");
        let nodes = std::num::NonZeroU8::MIN;
        let quorum = cluster::QuorumChoice::default().resolve(nodes, 1).expect("a quorum");
        let action = Action::Delete;
        api::EntityRequest { action, key, quorum, if_none_match: None, byte_range: None }
            .into_command(bytes::Bytes::new())
            .1
    }

    fn encoded(retry_after: Duration, date: &HttpDate) -> Vec<u8> {
        let mut bytes = Vec::new();
        let reply = Reply::Failed(Failure::Overloaded { retry_after });
        let (status, body) = api::encode_http1(reply, &asked(), true, date, &mut bytes);
        assert_eq!(status, 503);
        bytes.extend_from_slice(&body);
        bytes
    }

    #[test]
    fn what_is_prepared_is_what_would_be_encoded() {
        let refusals = Refusals::default();
        for (millis, date) in [(100, DATE), (200, DATE), (1_000, DATE), (1_001, DATE), (1_001, LATER)] {
            for _ in 0..2 {
                let (mut out, retry_after) = (Vec::new(), Duration::from_millis(millis));
                refusals.append(retry_after, &asked(), date, &mut out);
                assert_eq!(out, encoded(retry_after, date), "{millis}");
            }
        }
    }

    #[test]
    fn those_that_pause_longest_are_woken_first_and_none_pauses_for_long() {
        let refusals = Refusals::default();
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
