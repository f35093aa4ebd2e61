//! Streamed responses: ranges, and the results of batches.
//!
//! **Promise.** A streamed response uses memory only for the data in transit, however long it is,
//! and yields to the other connections of its thread. If it cannot be completed, its connection
//! ends without the last chunk, or with a reset if the client does not know chunks. So no client
//! takes a truncated response for a complete one.
//!
//! **Mechanism.** hyper polls for the next frame when it can write it, so a client that stops
//! reading stops the source. After [`SLICE_BYTES`] the response yields. While more data is
//! available it sets [`more_follows`](ConnectionActivity::more_follows), and small frames are
//! written together.

pub(crate) mod batch;
mod compress;
pub(crate) mod encoded;
mod frame;
pub(crate) mod range;
pub(crate) mod range_memory;
mod results;

use crate::connection_activity::ConnectionActivity;
use crate::response_memory::ResponseReservation;
use crate::service::InFlightGuard;
use bytes::Bytes;
use frame::ResponseFrame;
use http_body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Sleep;

/// Bytes that a response sends in one time slice.
const SLICE_BYTES: usize = 64 << 10;
/// Bytes of a stream that cost about as much as a read of one key.
const BYTES_PER_SLICE: usize = 1 << 10;

/// The body of a response.
pub(crate) enum ResponseBody {
    /// The whole body, with its memory reservation if it is large. Empty once it was taken.
    Whole(Bytes, Option<Box<ResponseReservation>>),
    /// A range, streamed as it is read.
    Range(Box<range::RangeBody>),
    /// The results of a batch, streamed as they become available.
    Batch(Box<batch::BatchBody>),
}

/// The reason why a streamed response is aborted.
#[derive(Debug, thiserror::Error)]
#[error("the response is broken off: {0}")]
pub(crate) struct StreamAbort(pub(crate) String);

impl Body for ResponseBody {
    type Data = ResponseFrame;
    type Error = StreamAbort;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<ResponseFrame>, StreamAbort>>> {
        let polled = match self.get_mut() {
            Self::Whole(bytes, _) if bytes.is_empty() => return Poll::Ready(None),
            Self::Whole(bytes, room) => {
                let frame = ResponseFrame::of_value(std::mem::take(bytes), room.take());
                return Poll::Ready(Some(Ok(Frame::data(frame))));
            }
            Self::Range(range) => range.poll_bytes(context),
            Self::Batch(batch) => batch.poll_bytes(context).map_ok(ResponseFrame::from),
        };
        polled.map_ok(Frame::data)
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(bytes, _) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes, _) => SizeHint::with_exact(bytes.len() as u64),
            Self::Range(_) | Self::Batch(_) => SizeHint::default(),
        }
    }
}

/// A short delay between two attempts to reserve memory.
#[derive(Default)]
struct Pause(Option<Pin<Box<Sleep>>>);

impl Pause {
    /// Ready when `time` has passed since the first call. The next call begins a new delay.
    fn poll(&mut self, context: &mut Context<'_>, time: Duration) -> Poll<()> {
        let sleep = self.0.get_or_insert_with(|| Box::pin(tokio::time::sleep(time)));
        ready!(sleep.as_mut().poll(context));
        self.0 = None;
        Poll::Ready(())
    }
}

/// The time slices of a streamed response, and its marks on the connection's activity.
struct TimeSlices {
    activity: Rc<ConnectionActivity>,
    left: usize,
    /// Bytes sent in total.
    bytes: usize,
    _in_flight: InFlightGuard,
}

impl TimeSlices {
    fn begin(activity: &Rc<ConnectionActivity>, in_flight: InFlightGuard) -> Self {
        activity.responding.set(true);
        Self { activity: Rc::clone(activity), left: SLICE_BYTES, bytes: 0, _in_flight: in_flight }
    }

    /// Ready while the current time slice lasts; otherwise yields and begins the next one.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.left > 0 {
            return Poll::Ready(());
        }
        self.left = SLICE_BYTES;
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Charges `bytes` to the current time slice.
    fn count(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
        self.bytes += bytes;
    }

    /// Notes whether more of the response is available.
    fn note<T>(&self, polled: &Poll<Option<Result<T, StreamAbort>>>) {
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
