//! A range, from its scan to the frames of its response.
//!
//! **Promise.** In the form of the contract each entry, or each key, is one frame, which hyper makes one chunk; it is a
//! slice of its page. A count is one frame behind the last page, so a range that fails midway has none. In the others frames are as they come. In memory are the page that is being sent, one that the coordinator
//! has fetched ahead, and what hyper and the socket hold. All of it is taken of the memory budget.
//!
//! **Mechanism.** Pages are alike as a rule, and what they take is taken when the first one has come. A page with an entry
//! that alone is larger has room of its own, and where there was one, the next is not asked for before there is room for
//! another: ranges of large values wait for each other. A slice keeps its page in memory until it was written, and the
//! room with it.
//!
//! **Caveats.** The first large page of a range comes without having been expected. When there is no room for it the
//! range is refused, or broken off if it has begun. Until then it is one of the few large things that are in no account
//! (see `read_pool`).

use super::encoded::EntryStream;
use super::frame::ResponseFrame;
use super::range_memory::OpenRange;
use super::{Pause, StreamAbort, TimeSlices};
use crate::budget::{MemoryCategory, Reservation};
use crate::connection_activity::{ConnectionActivity, HoldsMemory};
use crate::counters::Refusal;
use crate::driver::executing::{OpenScan, ScanPage};
use crate::process::Process;
use crate::service::InFlightGuard;
use api::RangeContent;
use api::entries::{Coding, Format};
use bytes::Bytes;
use cluster::{Failure, Page};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// How long a range waits before it looks again whether there is room for a large page.
const ROOM_PAUSE: Duration = Duration::from_millis(20);

/// The frames of a range.
pub(crate) struct RangeBody {
    scan: OpenScan,
    page: Page,
    /// The room of a page that is larger than others. It goes back with the last frame of the page.
    page_reservation: Option<Rc<Reservation>>,
    /// What the next page is expected to take beyond what is taken for every range, ...
    next_weight: u64,
    /// ... taken for it, ...
    next_reservation: Option<Reservation>,
    /// ... or waited for.
    pause: Pause,
    /// So many of its entries are sent.
    sent: usize,
    /// There is nothing behind the page.
    is_last: bool,
    form: Form,
    slices: TimeSlices,
    process: Arc<Process>,
    range_memory: OpenRange,
    _holding: HoldsMemory,
}

/// How a range is written.
pub(crate) enum Form {
    /// Each entry for itself: its key, a line feed, its value.
    Lines,
    /// Each key for itself.
    Keys,
    /// As a stream of entries or keys.
    Stream(Box<EntryStream>),
    /// The number of entries, counted so far.
    Count(u64),
    /// A stream that has ended.
    Ended,
}

impl Form {
    /// The form of a range with this content in `format`.
    ///
    /// # Errors
    /// There is no memory for a compressor.
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

/// A range whose first page has come.
pub(crate) struct StartedRange {
    scan: OpenScan,
    first: ScanPage,
    first_room: Option<Rc<Reservation>>,
    range_memory: OpenRange,
}

/// Why a range does not begin.
pub(crate) enum RangeStartError {
    Failed(Failure),
    /// There is no room for its first page.
    NoRoom,
}

impl StartedRange {
    /// Waits for the first page of `scan`.
    pub(crate) async fn begin(
        mut scan: OpenScan,
        mut range_memory: OpenRange,
    ) -> Result<Self, RangeStartError> {
        let first = poll_fn(|context| scan.poll_next(context)).await.map_err(RangeStartError::Failed)?;
        if !range_memory.begin(&first.page, first.is_last) {
            return Err(RangeStartError::NoRoom);
        }
        let first_room = match range_memory.weigh(&first.page) {
            0 => None,
            weight => Some(Rc::new(range_memory.reserve(weight).ok_or(RangeStartError::NoRoom)?)),
        };
        Ok(Self { scan, first, first_room, range_memory })
    }

    /// The body of its response.
    pub(crate) fn into_body(
        self,
        form: Form,
        process: &Arc<Process>,
        activity: &Rc<ConnectionActivity>,
        in_flight: InFlightGuard,
    ) -> RangeBody {
        let Self { scan, first, first_room, range_memory } = self;
        RangeBody {
            scan,
            page: first.page,
            page_reservation: first_room,
            next_weight: 0,
            next_reservation: None,
            pause: Pause::default(),
            sent: 0,
            is_last: first.is_last,
            form,
            slices: TimeSlices::begin(activity, in_flight),
            process: Arc::clone(process),
            range_memory,
            _holding: HoldsMemory::begin(activity, MemoryCategory::Ranges),
        }
    }
}

impl RangeBody {
    /// The next frame; never an empty one, which would end the body.
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
            let turned = match ready!(self.scan.poll_next(context)) {
                Ok(portion) => self.start_page(portion),
                Err(failure) => Err(stream_abort(&failure)),
            };
            if let Err(error) = turned {
                self.process.counters.ranges_broken.count();
                return Poll::Ready(Some(Err(error)));
            }
        }
    }

    /// Waits until there is room for a page like the last, which is let go.
    fn poll_memory(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(range_memory) = self.page_reservation.take() {
            self.next_weight = range_memory.bytes();
        }
        (self.page, self.sent) = (Page::default(), 0);
        while self.next_reservation.is_none() && self.next_weight > 0 {
            self.next_reservation = self.range_memory.reserve(self.next_weight);
            if self.next_reservation.is_none() {
                ready!(self.pause.poll(context, ROOM_PAUSE));
            }
        }
        Poll::Ready(())
    }

    /// Goes on with the next page.
    fn start_page(&mut self, portion: ScanPage) -> Result<(), StreamAbort> {
        let ScanPage { page, is_last } = portion;
        let weight = self.range_memory.weigh(&page);
        let range_memory = self.next_reservation.take();
        if weight > 0 {
            let mut range_memory =
                range_memory.or_else(|| self.range_memory.reserve(0)).expect("nothing is always to be had");
            if !range_memory.resize(weight) {
                self.process.admission.count(Refusal::Ranges);
                return Err(StreamAbort("there is no room for a large value".to_owned()));
            }
            self.page_reservation = Some(Rc::new(range_memory));
        }
        (self.page, self.next_weight, self.is_last) = (page, 0, is_last);
        Ok(())
    }

    /// A frame of what is at hand; `None`: there is nothing left of it.
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

fn stream_abort(failure: &Failure) -> StreamAbort {
    let reason = api::describe_range_failure(failure);
    tracing::warn!(reason, "a range is broken off");
    StreamAbort(reason)
}
