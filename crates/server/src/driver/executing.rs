//! Tasks that submit commands to a coordinator and wait for the replies.
//!
//! [`Execution`] is one command, [`Executions`] are the commands of a batch whose replies are taken
//! in order, and [`OpenScan`] is the sequence of commands of one scan. Dropping one of them
//! abandons its outstanding replies; dropping a scan also closes it.

use super::MachineDriver;
use super::coordinator_machine::CoordinatorMachine;
use crate::stages::{LatencyTrace, RequestEnd, TracedRequest};
use api::RequestKind;
use cluster::{Command, CommandFailure, Page, Reply, RequestId, Scan, ScanId};
use http::StatusCode;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use stdx::Instant;

impl MachineDriver<CoordinatorMachine> {
    /// Submits `command`, counted as `kind`. It is submitted at once, not when the future is first
    /// polled.
    pub(crate) fn execute(self: &Rc<Self>, kind: RequestKind, command: Command) -> Execution {
        let (id, request) = self.submit(kind, command);
        Execution { driver: Rc::clone(self), pending: Some(id), request, trace: None, has_waited: false }
    }
}

/// Future of the reply to a command. Dropping it abandons the reply; the command is still executed.
pub(crate) struct Execution {
    driver: Rc<MachineDriver<CoordinatorMachine>>,
    pending: Option<RequestId>,
    request: TracedRequest,
    /// The latency trace of a traced command; set when its reply is taken.
    trace: Option<Box<LatencyTrace>>,
    has_waited: bool,
}

impl Execution {
    /// Submits `command` to the same coordinator.
    pub(crate) fn repeat(&self, kind: RequestKind, command: Command) -> Self {
        self.driver.execute(kind, command)
    }

    /// Returns the reply if it is available, which completes this execution.
    pub(crate) fn take_now(&mut self) -> Option<Reply> {
        let id = self.pending.expect("the reply has been taken already");
        let replied = self.driver.with_replies(|replies| replies.take(id))?;
        self.pending = None;
        self.trace = replied.trace;
        Some(replied.reply)
    }

    /// Completes the request with the status of its response and the time at which the response was
    /// encoded.
    pub(crate) fn end(self, status: StatusCode, encoded_at: Instant) -> RequestEnd {
        let mut ended = self;
        let Self { request, has_waited, .. } = ended;
        RequestEnd { request, trace: ended.trace.take(), has_waited, status, encoded_at }
    }
}

impl Future for Execution {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reply> {
        let id = self.pending.expect("a completed execution is not polled");
        self.has_waited = true;
        let replied = ready!(self.driver.with_replies(|replies| replies.poll(id, context.waker())));
        self.pending = None;
        self.trace = replied.trace;
        Poll::Ready(replied.reply)
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        if let Some(id) = self.pending {
            self.driver.with_replies(|replies| replies.abandon(id));
        }
    }
}

/// The in-flight commands of a batch, in the order of their submission.
pub(crate) struct Executions {
    driver: Rc<MachineDriver<CoordinatorMachine>>,
    pending: VecDeque<RequestId>,
}

impl Executions {
    /// Creates an empty sequence.
    pub(crate) fn new(driver: &Rc<MachineDriver<CoordinatorMachine>>) -> Self {
        Self { driver: Rc::clone(driver), pending: VecDeque::new() }
    }

    /// Number of further commands that the coordinator has capacity for.
    pub(crate) fn free_count(&self) -> usize {
        self.driver.free_write_count()
    }

    /// Number of further bytes that the local store admits.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.driver.local.store.engine().admissible_bytes()
    }

    /// Submits all of `commands` at once, which costs a fraction of submitting each on its own.
    pub(crate) fn add(&mut self, commands: impl Iterator<Item = Command>) {
        self.driver.submit_all(RequestKind::BatchEntry, commands, &mut self.pending);
    }

    /// Passes the available replies to `take`, in the order of their commands. Pending if the reply
    /// to the first command is not available.
    pub(crate) fn poll_replies(
        &mut self,
        context: &mut Context<'_>,
        mut take: impl FnMut(Reply),
    ) -> Poll<()> {
        let (pending, stages) = (&mut self.pending, &self.driver.context.stages);
        self.driver.with_replies(|replies| {
            let mut progress = Poll::Pending;
            while let Some(id) = pending.front()
                && let Poll::Ready(replied) = replies.poll(*id, context.waker())
            {
                pending.pop_front();
                stages.end_page(replied.trace);
                take(replied.reply);
                progress = Poll::Ready(());
            }
            progress
        })
    }
}

impl Drop for Executions {
    fn drop(&mut self) {
        let pending = &self.pending;
        self.driver.with_replies(|replies| pending.iter().for_each(|id| replies.abandon(*id)));
    }
}

/// A page of a scan.
#[derive(Debug, Default)]
pub(crate) struct ScanPage {
    pub(crate) page: Page,
    /// The scan has no further pages.
    pub(crate) is_last: bool,
}

/// A scan, read page by page. Dropping it closes the scan.
pub(crate) struct OpenScan {
    driver: Rc<MachineDriver<CoordinatorMachine>>,
    id: ScanId,
    /// The last page has not been received, and no failure has.
    is_open: bool,
    next_page: Option<Execution>,
}

impl OpenScan {
    /// Opens a scan and requests its first page.
    pub(crate) fn begin(driver: &Rc<MachineDriver<CoordinatorMachine>>, scan: Scan) -> Self {
        let id = driver.next_scan();
        let next_page = Some(driver.execute(RequestKind::Range, Command::Scan { id, scan }));
        Self { driver: Rc::clone(driver), id, is_open: true, next_page }
    }

    /// Polls for the next page and requests it if necessary. Must not be called after the last page
    /// or a failure.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<ScanPage, CommandFailure>> {
        assert!(self.is_open, "a closed scan is not polled");
        let (driver, id) = (&self.driver, self.id);
        let request_page = || driver.execute(RequestKind::RangePage, Command::NextPage { id });
        let next_page = self.next_page.get_or_insert_with(request_page);
        let reply = ready!(Pin::new(&mut *next_page).poll(context));
        driver.context.stages.end_page(next_page.trace.take());
        self.next_page = None;
        let scanned = match reply {
            Reply::Page { page, is_last } => Ok(ScanPage { page, is_last }),
            Reply::Failed(failure) => Err(failure),
            reply => unreachable!("a scan command is not answered with {reply:?}"),
        };
        self.is_open = scanned.as_ref().is_ok_and(|scanned| !scanned.is_last);
        Poll::Ready(scanned)
    }
}

impl Drop for OpenScan {
    fn drop(&mut self) {
        if self.is_open {
            self.driver.close_scan(self.id);
        }
    }
}
