//! Streamed responses: ranges, and the results of batches.
//!
//! **Promise.** A streamed response uses memory only for the data in transit, however long it is,
//! and yields to the other connections of its thread. If it cannot be completed, its connection
//! ends without the last chunk, or with a reset if the client does not know chunks. So no client
//! takes a truncated response for a complete one.
//!
//! **Mechanism.** hyper polls for the next frame when it can write it, so a client that stops
//! reading stops the source. The response yields after each time slice ([`time_slices`]).

pub(crate) mod batch;
mod compress;
mod encoded;
mod frame;
pub(crate) mod open_batches;
pub(crate) mod range;
pub(crate) mod range_memory;
mod results;
mod time_slices;

use crate::response_memory::ResponseReservation;
use bytes::Bytes;
use frame::ResponseFrame;
use http_body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};
use time_slices::StreamAbort;

/// The body of a response.
pub(crate) enum ResponseBody {
    /// The whole body, with its memory reservation if it is large. Empty once it was taken.
    Whole(Bytes, Option<Box<ResponseReservation>>),
    /// A range, streamed as it is read.
    Range(Box<range::RangeBody>),
    /// The results of a batch, streamed as they become available.
    Batch(Box<batch::BatchBody>),
}

impl Body for ResponseBody {
    type Data = ResponseFrame;
    type Error = StreamAbort;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<ResponseFrame>, StreamAbort>>> {
        let polled = match self.get_mut() {
            Self::Whole(bytes, _) if bytes.is_empty() => return Poll::Ready(None),
            Self::Whole(bytes, reservation) => {
                let frame = ResponseFrame::of_value(std::mem::take(bytes), reservation.take());
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
