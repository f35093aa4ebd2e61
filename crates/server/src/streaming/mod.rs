//! Responses that are streamed: ranges, and the results of batches.
//!
//! **Promise.** A streamed response takes memory for what is on its way, however long it is. It leaves room for the
//! other connections of its thread. If it cannot be finished its connection ends without the last chunk, or with a
//! reset where chunks are not known, so that nobody takes a part for the whole.
//!
//! **Mechanism.** hyper asks for the next frame when it can write it, so a reader that stops stops the source. After
//! [`TURN_BYTES`] the response lets others have their turn. While more is at hand it says so
//! ([`ConnectionActivity::more_follows`](crate::vitals::Vitals)), and small frames leave together.

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

/// What a response gives away in one turn.
const TURN_BYTES: usize = 64 << 10;
/// So much of a stream costs about as much as a read of one key.
const BYTES_PER_TURN: usize = 1 << 10;

/// The body of a response.
pub(crate) enum ResponseBody {
    /// All of it, and its room if it is large. Empty when it was taken.
    Whole(Bytes, Option<Box<ResponseReservation>>),
    /// A range, as it is read.
    Range(Box<range::RangeBody>),
    /// Results of a batch, as they come.
    Batch(Box<batch::BatchBody>),
}

/// Why a response is not finished.
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

/// A short wait before it is looked for room again.
#[derive(Default)]
struct Pause(Option<Pin<Box<Sleep>>>);

impl Pause {
    /// Ready when so much time has passed since the first call; the next begins another.
    fn poll(&mut self, context: &mut Context<'_>, time: Duration) -> Poll<()> {
        let sleep = self.0.get_or_insert_with(|| Box::pin(tokio::time::sleep(time)));
        ready!(sleep.as_mut().poll(context));
        self.0 = None;
        Poll::Ready(())
    }
}

/// A response that is being streamed, as its connection sees it.
struct TimeSlices {
    activity: Rc<ConnectionActivity>,
    left: usize,
    /// What was sent in all.
    bytes: usize,
    _under_way: InFlightGuard,
}

impl TimeSlices {
    fn begin(activity: &Rc<ConnectionActivity>, in_flight: InFlightGuard) -> Self {
        activity.responding.set(true);
        Self { activity: Rc::clone(activity), left: TURN_BYTES, bytes: 0, _under_way: in_flight }
    }

    /// Whether there is something left of this turn. If not, the next one comes when others have had theirs.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.left > 0 {
            return Poll::Ready(());
        }
        self.left = TURN_BYTES;
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// So much work was done.
    fn count(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
        self.bytes += bytes;
    }

    /// Tells the connection whether more of the response is at hand.
    fn note<T>(&self, polled: &Poll<Option<Result<T, StreamAbort>>>) {
        self.activity.more_follows.set(matches!(polled, Poll::Ready(Some(Ok(_)))));
    }
}

impl Drop for TimeSlices {
    fn drop(&mut self) {
        self.activity.more_follows.set(false);
        self.activity.responding.set(false);
        self.activity.owe_slices(self.bytes / BYTES_PER_TURN);
    }
}
