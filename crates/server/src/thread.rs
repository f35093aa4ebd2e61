//! An I/O thread: a runtime, its connections and its coordinator.
//!
//! A request stays on its thread, except for its write group on the way to the log and for reads
//! that have to wait for the disk. A connection belongs to one thread for its lifetime.

use crate::connection;
use crate::connection_activity::Connections;
use crate::connection_limit::{ConnectionPermit, Eviction};
use crate::date::DateCache;
use crate::driver::MachineDriver;
use crate::driver::coordinator_machine::CoordinatorMachine;
use crate::driver::executing::Execution;
use crate::gauges::ThreadGauges;
use crate::links::accept::{self, Admitted};
use crate::local::Local;
use crate::metrics::RequestRecorder;
use crate::process::Process;
use crate::stream::refusals::ThreadRefusals;
use crate::stream::shares::Shares;
use crate::streaming::open_batches::OpenBatches;
use api::{Action, EntityRequest};
use cluster::{ClusterView, LinkId};
use http::StatusCode;
use limits::{MemoryCategory, ThreadBudget};
use std::cell::{OnceCell, RefCell};
use std::io;
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::LocalOptions;
use tokio::sync::{mpsc, oneshot};

/// The runtime polls I/O after this number of task polls, so that clients that were just answered
/// are queued again before all other tasks have run.
const EVENT_INTERVAL: u32 = 16;
/// Size of the buffer through which all connections of a thread read, in bytes.
const READ_BUFFER_BYTES: usize = 128 << 10;

/// A message to an I/O thread.
pub(crate) enum ThreadMessage {
    /// Serve this connection.
    Connection(TcpStream, ConnectionPermit),
    /// Close connections to free permits for others.
    Evict(Eviction),
    /// Run the handshake with a peer, on a connection of the listener for peers or without a
    /// client's permit.
    Peer(TcpStream),
    /// The store is open: serve requests, then confirm.
    Open(Arc<Local>, oneshot::Sender<()>),
    /// The node's new view of the cluster.
    View(Arc<ClusterView>),
    /// Take over an admitted link.
    Link(Box<Admitted>),
    /// Close an admitted link.
    CloseLink(LinkId),
    /// Confirm when a dial of each peer that is up has succeeded or failed.
    WhenLinked(oneshot::Sender<()>),
    /// Finish all connections and operations, then confirm.
    Finish(oneshot::Sender<()>),
}

/// State that the tasks of an I/O thread share.
pub(crate) struct Thread {
    pub(crate) process: Arc<Process>,
    pub(crate) connections: Rc<Connections>,
    pub(crate) batches: Rc<OpenBatches>,
    /// Buffer for bytes on their way from a socket to hyper.
    pub(crate) read_buffer: RefCell<Box<[u8]>>,
    pub(crate) recorder: Rc<RequestRecorder>,
    /// Buffer for responses that are encoded without hyper.
    pub(crate) write_buffer: RefCell<Vec<u8>>,
    pub(crate) date: DateCache,
    /// Budget for values that arrive in the same read as their requests.
    pub(crate) writes: Rc<ThreadBudget>,
    /// Budget for small responses that wait for their reader.
    pub(crate) replies: Rc<ThreadBudget>,
    pub(crate) refusals: Rc<ThreadRefusals>,
    pub(crate) shares: Shares,
    driver: OnceCell<Rc<MachineDriver<CoordinatorMachine>>>,
    load: Arc<ThreadGauges>,
    number: u8,
}

impl Thread {
    /// The driver, once the store is open.
    pub(crate) fn driver(&self) -> Option<&Rc<MachineDriver<CoordinatorMachine>>> {
        self.driver.get()
    }

    /// Ends a request that was waited for. Its response has this status.
    pub(crate) fn end(&self, execution: Execution, status: StatusCode) {
        let Process { clock, stages, .. } = &*self.process;
        stages.end(execution.end(status, clock.now().mono), &**clock);
    }

    /// `Retry-After` of a write that the admission limits refuse; `None`: the request is admitted.
    pub(crate) fn refuses(&self, entity: &EntityRequest, value_len: usize) -> Option<Duration> {
        match entity.action {
            Action::Get | Action::Head => None,
            Action::Put { .. } => self.driver()?.refuses_write(entity, Some(value_len)),
            Action::Delete => self.driver()?.refuses_write(entity, None),
        }
    }

    /// Counts a refused operation.
    pub(crate) fn count_refused(&self) {
        self.process.refusals.count_operation(self.number);
    }

    /// Counts a connection that ended.
    pub(crate) fn connection_ended(&self) {
        self.load.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A sender of messages to an I/O thread that does not keep it alive.
pub(crate) struct Mailbox {
    messages: mpsc::WeakUnboundedSender<ThreadMessage>,
    load: Arc<ThreadGauges>,
}

impl Mailbox {
    /// Sends a message, if the thread still runs.
    pub(crate) fn send(&self, message: ThreadMessage) {
        if let Some(messages) = self.messages.upgrade() {
            let _ = messages.send(message);
        }
    }

    /// Sends an eviction, unless the thread has not begun an earlier one. A flood of new
    /// connections therefore does not queue more evictions than the thread can execute.
    pub(crate) fn evict(&self, eviction: Eviction) {
        if !self.load.is_evicting.swap(true, Ordering::Relaxed) {
            self.send(ThreadMessage::Evict(eviction));
        }
    }

    /// Hands a connection to the thread.
    pub(crate) fn serve(&self, stream: TcpStream, permit: ConnectionPermit) {
        self.load.connections.fetch_add(1, Ordering::Relaxed);
        self.send(ThreadMessage::Connection(stream, permit));
    }
}

/// The handle of an I/O thread. Dropping it ends the thread and cuts its remaining connections.
pub(crate) struct ThreadHandle {
    messages: Option<mpsc::UnboundedSender<ThreadMessage>>,
    load: Arc<ThreadGauges>,
    thread: Option<JoinHandle<()>>,
}

impl ThreadHandle {
    pub(crate) fn start(number: u8, process: Arc<Process>) -> io::Result<Self> {
        let load = process.gauges.of_thread(number);
        // The channel is unbounded, but holds at most `connections_max` connections and a few
        // messages.
        let (messages, inbox) = mpsc::unbounded_channel();
        let runtime_load = Arc::clone(&load);
        let (started, starts) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name(format!("veche-io-{number}")).spawn(move || {
            match tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .event_interval(EVENT_INTERVAL)
                .build_local(LocalOptions::default())
            {
                Err(error) => started.send(Err(error)).expect("the starting thread waits"),
                Ok(runtime) => {
                    started.send(Ok(())).expect("the starting thread waits");
                    if let Err(error) = env::os_process::prefer_short_time_slices() {
                        tracing::debug!(%error, "an I/O thread has time slices of the default length");
                    }
                    runtime.block_on(run(number, process, runtime_load, inbox));
                }
            }
        })?;
        starts.recv().expect("the thread reports its start")?;
        Ok(Self { messages: Some(messages), load, thread: Some(thread) })
    }

    /// Number of connections of the thread.
    pub(crate) fn load(&self) -> usize {
        self.load.connections.load(Ordering::Relaxed)
    }

    /// Makes the thread serve requests. Resolves when it does.
    pub(crate) fn open(&self, local: Arc<Local>) -> oneshot::Receiver<()> {
        let (done, is_done) = oneshot::channel();
        self.send(ThreadMessage::Open(local, done));
        is_done
    }

    /// Resolves when the thread has tried to link with each peer that is up.
    pub(crate) fn when_linked(&self) -> oneshot::Receiver<()> {
        let (done, is_done) = oneshot::channel();
        self.send(ThreadMessage::WhenLinked(done));
        is_done
    }

    /// A sender of messages that does not keep the thread alive.
    pub(crate) fn mailbox(&self) -> Mailbox {
        let messages = self.messages.as_ref().expect("present until the thread is stopped").downgrade();
        Mailbox { messages, load: Arc::clone(&self.load) }
    }

    /// A closed channel means that the thread panicked. `stop` reports it.
    pub(crate) fn finish(&self) -> oneshot::Receiver<()> {
        let (done, is_done) = oneshot::channel();
        self.send(ThreadMessage::Finish(done));
        is_done
    }

    fn send(&self, message: ThreadMessage) {
        // Makes the thread finish its connections and operations. Resolves when none are left.
        let _ = self.messages.as_ref().expect("present until the thread is stopped").send(message);
    }

    /// Ends the thread. `false`: it panicked.
    pub(crate) fn stop(mut self) -> bool {
        self.messages = None;
        self.thread.take().is_none_or(|thread| thread.join().is_ok())
    }
}

impl Drop for ThreadHandle {
    fn drop(&mut self) {
        self.messages = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("an I/O thread panicked");
        }
    }
}

async fn run(
    number: u8,
    process: Arc<Process>,
    load: Arc<ThreadGauges>,
    mut inbox: mpsc::UnboundedReceiver<ThreadMessage>,
) {
    let thread = Rc::new(Thread::new(number, process, load));
    tokio::task::spawn_local(Rc::clone(&thread.refusals).resume());
    tokio::task::spawn_local(Rc::clone(&thread.connections).sweep(Arc::clone(&thread.process)));
    while let Some(message) = inbox.recv().await {
        thread.take(message);
    }
}

impl Thread {
    /// A thread with this number, without work.
    pub(crate) fn new(number: u8, process: Arc<Process>, load: Arc<ThreadGauges>) -> Self {
        let budget = |part| ThreadBudget::new(&process.memory, part, process.config.threads);
        Self {
            writes: budget(MemoryCategory::Writes),
            replies: budget(MemoryCategory::Replies),
            connections: Rc::default(),
            batches: Rc::default(),
            read_buffer: RefCell::new(vec![0; READ_BUFFER_BYTES].into_boxed_slice()),
            recorder: Rc::new(RequestRecorder::new(
                process.metrics.as_ref().map(|metrics| metrics.of_thread(number)),
            )),
            write_buffer: RefCell::default(),
            date: DateCache::default(),
            refusals: Rc::default(),
            shares: Shares::default(),
            driver: OnceCell::new(),
            load,
            number,
            process,
        }
    }

    /// Handles a message.
    pub(crate) fn take(self: &Rc<Self>, message: ThreadMessage) {
        match message {
            ThreadMessage::Connection(stream, permit) => {
                tokio::task::spawn_local(connection::serve(stream, permit, Rc::clone(self)));
            }
            ThreadMessage::Evict(eviction) => {
                self.load.is_evicting.store(false, Ordering::Relaxed);
                self.connections.evict(eviction, Instant::now());
            }
            ThreadMessage::Peer(stream) => {
                tokio::task::spawn_local(accept::serve(stream, Arc::clone(&self.process)));
            }
            ThreadMessage::Open(local, done) => {
                let start = || {
                    MachineDriver::of_thread(&self.process, &local, self.number, &self.load, &self.recorder)
                };
                self.driver.get_or_init(start);
                let _ = done.send(());
            }
            ThreadMessage::Finish(done) => {
                self.connections.finish();
                tokio::task::spawn_local(Rc::clone(self).notify_when_finished(done));
            }
            ThreadMessage::View(view) => self.opened().handle_view(view),
            ThreadMessage::Link(admitted) => self.opened().add_link(*admitted),
            ThreadMessage::CloseLink(link) => self.opened().close_link(link),
            ThreadMessage::WhenLinked(done) => self.opened().notify_when_linked(done),
        }
    }

    /// Confirms when no connections are left, and none of their operations.
    async fn notify_when_finished(self: Rc<Self>, done: oneshot::Sender<()>) {
        self.connections.wait_until_empty().await;
        if let Some(driver) = self.driver() {
            driver.until_idle().await;
        }
        let _ = done.send(());
    }

    fn opened(&self) -> &Rc<MachineDriver<CoordinatorMachine>> {
        self.driver.get().expect("peers are known only after the store is open")
    }
}
