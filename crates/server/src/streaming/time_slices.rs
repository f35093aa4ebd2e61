//! Time slices of streamed responses, between which the other connections of the thread are served.
//!
//! After [`SLICE_BYTES`] a response yields. While more data is available, it sets
//! [`more_follows`](ConnectionActivity::more_follows), and small frames are written together.

use crate::connection_activity::{ConnectionActivity, InFlightGuard};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Sleep;

/// Bytes that a response sends in one time slice.
const SLICE_BYTES: usize = 64 << 10;
/// Bytes of a stream that cost about as much as a read of one key.
const BYTES_PER_SLICE: usize = 1 << 10;

/// The reason why a streamed response is aborted.
#[derive(Debug, thiserror::Error)]
#[error("the response is broken off: {0}")]
pub(crate) struct StreamAbort(pub(crate) String);

/// A short delay between two attempts to reserve memory.
#[derive(Default)]
pub(super) struct RetryDelay(Option<Pin<Box<Sleep>>>);

impl RetryDelay {
    /// Ready when `time` has passed since the first call. The next call begins a new delay.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, time: Duration) -> Poll<()> {
        let sleep = self.0.get_or_insert_with(|| Box::pin(tokio::time::sleep(time)));
        ready!(sleep.as_mut().poll(context));
        self.0 = None;
        Poll::Ready(())
    }
}

/// The time slices of a streamed response, and its marks on the connection's activity.
pub(super) struct TimeSlices {
    activity: Rc<ConnectionActivity>,
    left: usize,
    /// Bytes sent in total.
    bytes: usize,
    _in_flight: InFlightGuard,
}

impl TimeSlices {
    pub(super) fn begin(activity: &Rc<ConnectionActivity>, in_flight: InFlightGuard) -> Self {
        activity.responding.set(true);
        Self { activity: Rc::clone(activity), left: SLICE_BYTES, bytes: 0, _in_flight: in_flight }
    }

    /// Ready while the current time slice lasts; otherwise yields and begins the next one.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.left > 0 {
            return Poll::Ready(());
        }
        self.left = SLICE_BYTES;
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Charges `bytes` to the current time slice.
    pub(super) fn count(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
        self.bytes += bytes;
    }

    /// Notes whether more of the response is available.
    pub(super) fn note<T>(&self, polled: &Poll<Option<Result<T, StreamAbort>>>) {
        self.activity.more_follows.set(matches!(polled, Poll::Ready(Some(Ok(_)))));
    }
}

impl Drop for TimeSlices {
    fn drop(&mut self) {
        self.activity.more_follows.set(false);
        self.activity.responding.set(false);
        self.activity.owe_slices(self.bytes / BYTES_PER_SLICE);
    }
}
