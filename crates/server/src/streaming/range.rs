//! A range, from its scan to the frames of its response.
//!
//! **Promise.** In the form of the contract each entry is one frame, which hyper makes one chunk; it is a slice of its
//! page. In the others frames are as they come. In memory are the page that is being sent, one that the coordinator
//! has fetched ahead, and what hyper and the socket hold.
//!
//! **Caveats.** A slice keeps its page in memory until it was written: hyper holds a few of the last page when the
//! next one begins.

use super::encoded::EntryStream;
use super::room::OpenRange;
use super::{BrokenOff, Turns};
use crate::driver::executing::{OpenScan, Portion};
use crate::process::Process;
use crate::service::UnderWay;
use crate::vitals::Vitals;
use api::entries::{Coding, Format};
use bytes::Bytes;
use cluster::{Failure, Page};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// The frames of a range.
pub(crate) struct RangeBody {
    scan: OpenScan,
    page: Page,
    /// So many of its entries are sent.
    sent: usize,
    /// There is nothing behind the page.
    is_last: bool,
    form: Form,
    turns: Turns,
    process: Arc<Process>,
    _room: OpenRange,
}

/// How a range is written.
pub(crate) enum Form {
    /// Each entry for itself: its key, a line feed, its value.
    Lines,
    /// As a stream of entries.
    Stream(Box<EntryStream>),
    /// A stream that has ended.
    Ended,
}

impl Form {
    /// The form of a range in `format`.
    ///
    /// # Errors
    /// There is no memory for a compressor.
    pub(crate) fn of(format: Format, coding: Coding) -> io::Result<Self> {
        Ok(match format {
            Format::Lines => Self::Lines,
            Format::Ndjson | Format::Binary => Self::Stream(Box::new(EntryStream::new(format, coding)?)),
        })
    }
}

/// A range whose first page has come.
pub(crate) struct BegunRange {
    scan: OpenScan,
    first: Portion,
    room: OpenRange,
}

impl BegunRange {
    /// Waits for the first page of `scan`.
    pub(crate) async fn begin(mut scan: OpenScan, room: OpenRange) -> Result<Self, Failure> {
        let first = poll_fn(|context| scan.poll_next(context)).await?;
        Ok(Self { scan, first, room })
    }

    /// The body of its response.
    pub(crate) fn into_body(
        self,
        form: Form,
        process: &Arc<Process>,
        vitals: &Rc<Vitals>,
        under_way: UnderWay,
    ) -> RangeBody {
        let Self { scan, first, room } = self;
        RangeBody {
            scan,
            page: first.page,
            sent: 0,
            is_last: first.is_last,
            form,
            turns: Turns::begin(vitals, under_way),
            process: Arc::clone(process),
            _room: room,
        }
    }
}

impl RangeBody {
    /// The next frame; never an empty one, which would end the body.
    pub(super) fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenOff>>> {
        let polled = self.poll_frame(context);
        self.turns.note(&polled);
        polled
    }

    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenOff>>> {
        loop {
            ready!(self.turns.poll(context));
            match self.next_frame() {
                Ok(None) => {}
                frame => return Poll::Ready(frame.transpose()),
            }
            if self.is_last {
                return Poll::Ready(None);
            }
            match ready!(self.scan.poll_next(context)) {
                Ok(Portion { page, is_last }) => (self.page, self.sent, self.is_last) = (page, 0, is_last),
                Err(failure) => {
                    self.process.counters.ranges_broken.count();
                    return Poll::Ready(Some(Err(broken_off(&failure))));
                }
            }
        }
    }

    /// A frame of what is at hand; `None`: there is nothing left of it.
    fn next_frame(&mut self) -> Result<Option<Bytes>, BrokenOff> {
        match &mut self.form {
            Form::Lines if self.sent == self.page.len() => Ok(None),
            Form::Lines => {
                let line = self.page.line(self.sent);
                self.sent += 1;
                self.turns.count(line.len());
                Ok(Some(line))
            }
            Form::Stream(stream) => {
                let broken_off = |error: io::Error| BrokenOff(error.to_string());
                let (frame, taken) = stream.next(&self.page, &mut self.sent).map_err(broken_off)?;
                self.turns.count(taken);
                if frame.is_some() || !self.is_last {
                    return Ok(frame);
                }
                let Form::Stream(stream) = std::mem::replace(&mut self.form, Form::Ended) else {
                    unreachable!("it is a stream");
                };
                let frame = stream.finish().map_err(broken_off)?;
                Ok((!frame.is_empty()).then_some(frame))
            }
            Form::Ended => Ok(None),
        }
    }
}

fn broken_off(failure: &Failure) -> BrokenOff {
    tracing::warn!(?failure, "a range is broken off");
    BrokenOff(format!("{failure:?}"))
}
