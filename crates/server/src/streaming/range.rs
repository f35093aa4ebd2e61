//! A range response, from the pages of its scan to the frames of its body.
//!
//! **Promise.** In the line format each entry, or each key, is one frame, which hyper sends as one
//! chunk; the frame is a slice of its page. A count is a single frame after the last page, so a
//! range that fails midway has no count. In the other formats frame boundaries have no meaning.
//! Memory holds the page being sent, one page that the coordinator has prefetched, and the buffers
//! of hyper and the socket. All of it is reserved from the memory budget.
//!
//! **Mechanism.** Pages are usually of similar size, so their memory is reserved when the first
//! page arrives. A page with a single entry larger than a page has a reservation of its own. After
//! such a page, the next is requested only when memory for another one is reserved: ranges of large
//! values wait for each other. A frame keeps its page in memory, with the reservation, until it is
//! written.
//!
//! **Caveats.** The first large page of a range arrives without a reservation. If there is no
//! memory for it, the range is refused, or aborted if it has begun. Until then it is one of the few
//! large objects outside the budget (see [`read_pool`](crate::read_pool)).

use super::encoded::EntryStream;
use super::frame::ResponseFrame;
use super::range_memory::OpenRange;
use super::time_slices::{RetryDelay, StreamAbort, TimeSlices};
use crate::connection_activity::{ConnectionActivity, InFlightGuard};
use crate::driver::executing::{OpenScan, ScanPage};
use api::RangeContent;
use api::entries::{Coding, Format};
use bytes::Bytes;
use cluster::{CommandFailure, Page};
use limits::Reservation;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// Delay between two attempts to reserve memory for a large page.
const MEMORY_CHECK_DELAY: Duration = Duration::from_millis(20);

/// The body of a range response.
pub(crate) struct RangeBody {
    scan: OpenScan,
    page: Page,
    /// Reservation of a large page. It is released with the last frame of the page.
    page_reservation: Option<Rc<Reservation>>,
    /// Expected size of the next page beyond the reservation of every range, in bytes.
    next_weight: u64,
    /// Reservation for the next page, once it is made.
    next_reservation: Option<Reservation>,
    /// The next page waits for its reservation.
    pause: RetryDelay,
    /// Number of entries of the page that are sent.
    sent: usize,
    /// The page is the last one.
    is_last: bool,
    form: Form,
    slices: TimeSlices,
    range_memory: OpenRange,
}

/// The form of a range response.
pub(crate) enum Form {
    /// One frame for each entry: key, line feed, value.
    Lines,
    /// One frame for each key.
    Keys,
    /// An encoded stream of entries or keys.
    Stream(Box<EntryStream>),
    /// The number of entries; this is the count so far.
    Count(u64),
    /// The last frame has been returned.
    Ended,
}

impl Form {
    /// Creates the form of a range with this content, format and coding.
    ///
    /// # Errors
    /// The compressor cannot be created.
    pub(crate) fn of(content: RangeContent, format: Format, coding: Coding) -> io::Result<Self> {
        Ok(match (content, format) {
            (RangeContent::Count, _) => Self::Count(0),
            (RangeContent::Entries, Format::Lines) => Self::Lines,
            (RangeContent::Keys, Format::Lines) => Self::Keys,
            (_, Format::Ndjson | Format::Binary) => {
                Self::Stream(Box::new(EntryStream::new(content, format, coding)?))
            }
        })
    }
}

/// A range whose first page has been received.
pub(crate) struct StartedRange {
    scan: OpenScan,
    first: ScanPage,
    first_reservation: Option<Rc<Reservation>>,
    range_memory: OpenRange,
}

/// The reason why a range cannot start.
pub(crate) enum RangeStartError {
    Failed(CommandFailure),
    /// The budget has no memory for the first page.
    NoMemory,
}

impl StartedRange {
    /// Waits for the first page of `scan` and reserves its memory.
    pub(crate) async fn begin(
        mut scan: OpenScan,
        mut range_memory: OpenRange,
    ) -> Result<Self, RangeStartError> {
        let first = poll_fn(|context| scan.poll_next(context)).await.map_err(RangeStartError::Failed)?;
        if !range_memory.begin(&first.page, first.is_last).await {
            return Err(RangeStartError::NoMemory);
        }
        let first_reservation = match range_memory.weigh(&first.page) {
            0 => None,
            weight => {
                let reservation = range_memory.reserve_first(weight).await;
                Some(Rc::new(reservation.ok_or(RangeStartError::NoMemory)?))
            }
        };
        Ok(Self { scan, first, first_reservation, range_memory })
    }

    /// Converts the range into the body of its response.
    pub(crate) fn into_body(
        self,
        form: Form,
        activity: &Rc<ConnectionActivity>,
        in_flight: InFlightGuard,
    ) -> RangeBody {
        let Self { scan, first, first_reservation, range_memory } = self;
        RangeBody {
            scan,
            page: first.page,
            page_reservation: first_reservation,
            next_weight: 0,
            next_reservation: None,
            pause: RetryDelay::default(),
            sent: 0,
            is_last: first.is_last,
            form,
            slices: TimeSlices::begin(activity, in_flight),
            range_memory,
        }
    }
}

impl RangeBody {
    /// Polls for the next frame, which is never empty: an empty frame would end the body.
    pub(super) fn poll_bytes(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<ResponseFrame, StreamAbort>>> {
        let polled = self.poll_frame(context);
        self.slices.note(&polled);
        polled
    }

    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<ResponseFrame, StreamAbort>>> {
        loop {
            ready!(self.slices.poll(context));
            match self.next_frame() {
                Ok(None) => {}
                Ok(Some(frame)) => {
                    return Poll::Ready(Some(Ok(ResponseFrame::of_page(
                        frame,
                        self.page_reservation.clone(),
                    ))));
                }
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
            if self.is_last {
                return Poll::Ready(None);
            }
            ready!(self.poll_memory(context));
            let started = match ready!(self.scan.poll_next(context)) {
                Ok(scanned) => self.start_page(scanned),
                Err(failure) => Err(stream_abort(&failure)),
            };
            if let Err(error) = started {
                self.range_memory.count_broken();
                return Poll::Ready(Some(Err(error)));
            }
        }
    }

    /// Waits for a reservation for another page of the size of the last one, after the last one is
    /// released.
    fn poll_memory(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(reservation) = self.page_reservation.take() {
            self.next_weight = reservation.bytes();
            self.range_memory.note_page(0);
        }
        (self.page, self.sent) = (Page::default(), 0);
        while self.next_reservation.is_none() && self.next_weight > 0 {
            self.next_reservation = self.range_memory.reserve(self.next_weight);
            if self.next_reservation.is_none() {
                ready!(self.pause.poll(context, MEMORY_CHECK_DELAY));
            }
        }
        Poll::Ready(())
    }

    /// Starts sending the next page.
    fn start_page(&mut self, scanned: ScanPage) -> Result<(), StreamAbort> {
        let ScanPage { page, is_last } = scanned;
        let weight = self.range_memory.weigh(&page);
        let reservation = self.next_reservation.take();
        if weight > 0 {
            let mut reservation = reservation.unwrap_or_else(|| self.range_memory.empty_page_reservation());
            if !reservation.resize(weight) {
                self.range_memory.count_refusal();
                return Err(StreamAbort("there is no room for a large value".to_owned()));
            }
            self.range_memory.note_page(weight);
            self.page_reservation = Some(Rc::new(reservation));
        }
        (self.page, self.next_weight, self.is_last) = (page, 0, is_last);
        Ok(())
    }

    /// Returns the next frame of the current page; `None` if the page is exhausted.
    fn next_frame(&mut self) -> Result<Option<Bytes>, StreamAbort> {
        match &mut self.form {
            Form::Lines if self.sent == self.page.len() => Ok(None),
            Form::Lines => {
                let line = self.page.line(self.sent);
                self.sent += 1;
                self.slices.count(line.len());
                Ok(Some(line))
            }
            Form::Keys if self.sent == self.page.len() => Ok(None),
            Form::Keys => {
                let key_len = self.page.entry(self.sent).key.len();
                let line = self.page.line(self.sent);
                self.sent += 1;
                self.slices.count(line.len());
                Ok(Some(line.slice(..key_len)))
            }
            Form::Count(count) => {
                let left = self.page.len() - std::mem::replace(&mut self.sent, self.page.len());
                *count += left as u64;
                self.slices.count(self.page.bytes().len());
                if !self.is_last {
                    return Ok(None);
                }
                let frame = Bytes::from(count.to_string());
                self.form = Form::Ended;
                Ok(Some(frame))
            }
            Form::Stream(stream) => {
                let stream_abort = |error: io::Error| StreamAbort(error.to_string());
                let (frame, taken) = stream.next(&self.page, &mut self.sent).map_err(stream_abort)?;
                self.slices.count(taken);
                if frame.is_some() || !self.is_last {
                    return Ok(frame);
                }
                let Form::Stream(stream) = std::mem::replace(&mut self.form, Form::Ended) else {
                    unreachable!("it is a stream");
                };
                let frame = stream.finish().map_err(stream_abort)?;
                Ok((!frame.is_empty()).then_some(frame))
            }
            Form::Ended => Ok(None),
        }
    }
}

fn stream_abort(failure: &CommandFailure) -> StreamAbort {
    let reason = api::describe_range_failure(failure);
    tracing::warn!(reason, "a range is broken off");
    StreamAbort(reason)
}
