//! Queue of batch results, between the pump that encodes them and the response that sends them.
//!
//! Both are tasks of one thread; each wakes the other when there is work for it. The pump bounds
//! the size of the queue.

use crate::metrics::RequestRecorder;
use api::entries::{EntryResult, Format, ResultEncoder, ResultScope};
use api::{Problem, RequestKind};
use bytes::Bytes;
use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Maximum size of a frame of results, in bytes.
const FRAME_BYTES_MAX: usize = 64 << 10;

/// Encoded results that wait to be sent.
pub(super) struct Results {
    state: RefCell<ResultsState>,
    recorder: Rc<RequestRecorder>,
}

struct ResultsState {
    encoder: ResultEncoder,
    bytes: Vec<u8>,
    /// Bytes of `bytes` that were sent.
    sent: usize,
    end: Option<Result<(), Problem>>,
    /// The response, when it waits for results.
    reader: Option<Waker>,
    /// The pump, when it waits for the queue to shrink.
    writer: Option<Waker>,
}

impl Results {
    /// Creates an empty queue.
    pub(super) fn new(format: Format, scope: ResultScope, recorder: &Rc<RequestRecorder>) -> Self {
        let state = ResultsState {
            encoder: ResultEncoder::new(format, scope),
            bytes: Vec::new(),
            sent: 0,
            end: None,
            reader: None,
            writer: None,
        };
        Self { state: RefCell::new(state), recorder: Rc::clone(recorder) }
    }

    /// Encodes a result.
    pub(super) fn put(&self, result: &EntryResult) {
        self.recorder.record_status(RequestKind::BatchEntry, result.status());
        let state = &mut *self.state.borrow_mut();
        state.encoder.put(result, &mut state.bytes);
    }

    /// Whether the last result was written.
    pub(super) fn is_ended(&self) -> bool {
        self.state.borrow().end.is_some()
    }

    /// Ends the results: `Err` is a problem with the first entry, `Ok` means that all results were
    /// written.
    pub(super) fn end(&self, how: Result<(), Problem>) {
        let state = &mut *self.state.borrow_mut();
        if how.is_ok() {
            state.encoder.end(&mut state.bytes);
        }
        state.end = Some(how);
    }

    /// Wakes the response if results are waiting or have ended.
    pub(super) fn wake_reader(&self) {
        let mut state = self.state.borrow_mut();
        if (state.waiting() > 0 || state.end.is_some())
            && let Some(reader) = state.reader.take()
        {
            reader.wake();
        }
    }

    /// Returns the number of bytes that wait to be sent. The pump is woken when it becomes smaller.
    pub(super) fn poll_waiting(&self, context: &mut Context<'_>) -> usize {
        let mut state = self.state.borrow_mut();
        let waiting = state.waiting();
        if waiting > 0 {
            state.writer = Some(context.waker().clone());
        }
        waiting
    }

    /// Waits for the first result, or for the end without results.
    pub(super) fn poll_begun(&self, context: &mut Context<'_>) -> Poll<Result<(), Problem>> {
        let mut state = self.state.borrow_mut();
        if state.waiting() > 0 {
            return Poll::Ready(Ok(()));
        }
        match &state.end {
            Some(end) => Poll::Ready(end.clone()),
            None => {
                state.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Polls for the next frame of the response; `None` at the end.
    pub(super) fn poll_frame(&self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut state = self.state.borrow_mut();
        if state.waiting() == 0 {
            if state.end.is_some() {
                return Poll::Ready(None);
            }
            state.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let frame = state.take(FRAME_BYTES_MAX);
        if let Some(writer) = state.writer.take() {
            writer.wake();
        }
        Poll::Ready(Some(frame))
    }
}

impl ResultsState {
    fn waiting(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Removes at most `bytes_max` bytes from the queue.
    fn take(&mut self, bytes_max: usize) -> Bytes {
        if self.sent == 0 && self.bytes.len() <= bytes_max {
            return Bytes::from(std::mem::take(&mut self.bytes));
        }
        let end = self.bytes.len().min(self.sent + bytes_max);
        let frame = Bytes::copy_from_slice(&self.bytes[self.sent..end]);
        self.sent = end;
        if self.sent == self.bytes.len() {
            (self.bytes, self.sent) = (Vec::new(), 0);
        }
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn no_room() -> EntryResult {
        Problem::value_too_large(1).into()
    }

    #[test]
    fn results_are_sent_in_frames_and_each_side_wakes_the_other() {
        let results = Results::new(Format::Ndjson, ResultScope::All, &Rc::new(RequestRecorder::new(None)));
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut context = Context::from_waker(&waker);
        assert!(results.poll_begun(&mut context).is_pending());
        results.wake_reader();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0, "no result is waiting");
        (0..2_000).for_each(|_| results.put(&no_room()));
        results.wake_reader();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert_eq!(results.poll_begun(&mut context), Poll::Ready(Ok(())));
        let written = results.poll_waiting(&mut context);
        results.end(Ok(()));
        let mut sent = Vec::new();
        while let Poll::Ready(Some(frame)) = results.poll_frame(&mut context) {
            assert!((1..=FRAME_BYTES_MAX).contains(&frame.len()));
            sent.extend_from_slice(&frame);
        }
        assert_eq!(wakes.0.load(Ordering::Relaxed), 2, "the writer is woken once");
        assert_eq!((sent.len(), results.poll_waiting(&mut context)), (written, 0));
        assert_eq!(sent.iter().filter(|byte| **byte == b'\n').count(), 2_000);
    }

    #[test]
    fn a_problem_with_the_first_entry_replaces_the_results() {
        let results = Results::new(Format::Binary, ResultScope::All, &Rc::new(RequestRecorder::new(None)));
        let problem = Problem::bad_request("no");
        results.end(Err(problem.clone()));
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(results.poll_begun(&mut context), Poll::Ready(Err(problem)));
    }
}
