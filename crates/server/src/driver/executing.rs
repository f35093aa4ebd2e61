//! Those who give commands to a coordinator, and wait for the replies.
//!
//! One command ([`Execution`]), many whose replies are taken in order ([`Executions`]), or the commands of one scan
//! ([`OpenScan`]). Whoever is dropped before its replies leaves them; a scan is closed then.

use super::Driver;
use super::coordinator_machine::CoordinatorMachine;
use crate::stages::{LatencyTrace, Request, RequestEnd};
use api::RequestKind;
use cluster::{Command, Failure, Page, Reply, RequestId, Scan, ScanId};
use http::StatusCode;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use stdx::Instant;

impl Driver<CoordinatorMachine> {
    /// Carries out `command`, counted as of this kind. Submitted at once, not only when the future is polled.
    pub(crate) fn execute(self: &Rc<Self>, kind: RequestKind, command: Command) -> Execution {
        let (id, request) = self.submit(kind, command);
        Execution { driver: Rc::clone(self), waits_for: Some(id), request, trace: None, has_waited: false }
    }
}

/// Waits for the reply to a command. Dropping it gives up the reply, not the command.
pub(crate) struct Execution {
    driver: Rc<Driver<CoordinatorMachine>>,
    waits_for: Option<RequestId>,
    request: Request,
    /// Once the reply is there.
    trace: Option<Box<LatencyTrace>>,
    has_waited: bool,
}

impl Execution {
    /// The reply, if it has come already. Ends the wait.
    pub(crate) fn take_now(&mut self) -> Option<Reply> {
        let id = self.waits_for.expect("not asked after its end");
        let replied = self.driver.with_replies(|replies| replies.take(id))?;
        self.waits_for = None;
        self.trace = replied.trace;
        Some(replied.reply)
    }

    /// Its end, with an answer of this status that was made at that time.
    pub(crate) fn end(self, status: StatusCode, answered: Instant) -> RequestEnd {
        let mut ended = self;
        let Self { request, has_waited, .. } = ended;
        RequestEnd { request, trace: ended.trace.take(), has_waited, status, answered }
    }
}

impl Future for Execution {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reply> {
        let id = self.waits_for.expect("not polled after its end");
        self.has_waited = true;
        let replied = ready!(self.driver.with_replies(|replies| replies.poll(id, context.waker())));
        self.waits_for = None;
        self.trace = replied.trace;
        Poll::Ready(replied.reply)
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        if let Some(id) = self.waits_for {
            self.driver.with_replies(|replies| replies.abandon(id));
        }
    }
}

/// Commands of entries of a batch, under way, in the order in which they were given.
pub(crate) struct Executions {
    driver: Rc<Driver<CoordinatorMachine>>,
    wait_for: VecDeque<RequestId>,
}

impl Executions {
    /// None yet.
    pub(crate) fn new(driver: &Rc<Driver<CoordinatorMachine>>) -> Self {
        Self { driver: Rc::clone(driver), wait_for: VecDeque::new() }
    }

    /// How many commands more there is room for.
    pub(crate) fn free_count(&self) -> usize {
        self.driver.free_write_count()
    }

    /// How many bytes more the store of this node would take.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.driver.local.store.engine().admissible_bytes()
    }

    /// Carries out all of `commands`: in one turn, which costs a fraction of as many turns.
    pub(crate) fn add(&mut self, commands: impl Iterator<Item = Command>) {
        self.driver.submit_all(RequestKind::BatchEntry, commands, &mut self.wait_for);
    }

    /// Hands `take` the replies that have come, in the order of their commands; pending when not even the first has.
    pub(crate) fn poll_replies(
        &mut self,
        context: &mut Context<'_>,
        mut take: impl FnMut(Reply),
    ) -> Poll<()> {
        let (wait_for, process) = (&mut self.wait_for, &self.driver.process);
        self.driver.with_replies(|replies| {
            let mut came = Poll::Pending;
            while let Some(id) = wait_for.front()
                && let Poll::Ready(replied) = replies.poll(*id, context.waker())
            {
                wait_for.pop_front();
                process.stages.end_page(replied.trace, &*process.clock);
                take(replied.reply);
                came = Poll::Ready(());
            }
            came
        })
    }
}

impl Drop for Executions {
    fn drop(&mut self) {
        let wait_for = &self.wait_for;
        self.driver.with_replies(|replies| wait_for.iter().for_each(|id| replies.abandon(*id)));
    }
}

/// Some entries of a scan.
#[derive(Debug, Default)]
pub(crate) struct ScanPage {
    pub(crate) page: Page,
    /// There are no more.
    pub(crate) is_last: bool,
}

/// A scan, page by page. It is closed when this is dropped.
pub(crate) struct OpenScan {
    driver: Rc<Driver<CoordinatorMachine>>,
    id: ScanId,
    /// Until the scan is over.
    is_open: bool,
    asked: Option<Execution>,
}

impl OpenScan {
    /// Begins a scan: its first page is asked for.
    pub(crate) fn begin(driver: &Rc<Driver<CoordinatorMachine>>, scan: Scan) -> Self {
        let id = driver.next_scan();
        let asked = Some(driver.execute(RequestKind::Range, Command::Scan { id, scan }));
        Self { driver: Rc::clone(driver), id, is_open: true, asked }
    }

    /// The next page, asked for if it was not yet. Not to be called after the last, nor after a failure.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<ScanPage, Failure>> {
        assert!(self.is_open, "nothing is behind the last page");
        let (driver, id) = (&self.driver, self.id);
        let next_page = || driver.execute(RequestKind::RangePage, Command::NextPage { id });
        let asked = self.asked.get_or_insert_with(next_page);
        let reply = ready!(Pin::new(&mut *asked).poll(context));
        let process = &driver.process;
        process.stages.end_page(asked.trace.take(), &*process.clock);
        self.asked = None;
        let portion = match reply {
            Reply::Page { page, is_last } => Ok(ScanPage { page, is_last }),
            Reply::Failed(failure) => Err(failure),
            reply => unreachable!("a scan is not answered with {reply:?}"),
        };
        self.is_open = portion.as_ref().is_ok_and(|portion| !portion.is_last);
        Poll::Ready(portion)
    }
}

impl Drop for OpenScan {
    fn drop(&mut self) {
        if self.is_open {
            self.driver.close_scan(self.id);
        }
    }
}
