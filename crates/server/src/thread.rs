//! State that the tasks of an I/O thread share.

use crate::connection_activity::Connections;
use crate::connection_limit::Eviction;
use crate::counters::EventCounters;
use crate::date::DateCache;
use crate::driver::MachineDriver;
use crate::driver::coordinator_machine::CoordinatorMachine;
use crate::driver::executing::Execution;
use crate::gauges::ThreadGauges;
use crate::links::accept::{self, Accepted};
use crate::local::Local;
use crate::memory_holders::MemoryHolders;
use crate::messages::ControlMessage;
use crate::metrics::RequestRecorder;
use crate::process::Process;
use crate::refusals::Refusals;
use crate::response_memory::ReadValues;
use crate::serving_state::SharedServingState;
use crate::stages::Stages;
use crate::stream::refusals::ThreadRefusals;
use crate::stream::shares::Shares;
use crate::streaming::open_batches::OpenBatches;
use crate::streaming::range_memory::OpenRanges;
use api::{Action, EntityRequest, RequestRules};
use cluster::Layout;
use env::Clock;
use http::StatusCode;
use limits::{MemoryCategory, ThreadBudget};
use std::cell::{Cell, OnceCell, RefCell};
use std::net::TcpStream;
use std::num::NonZeroU8;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Size of the buffer through which all connections of a thread read, in bytes.
const READ_BUFFER_BYTES: usize = 128 << 10;

/// State that the tasks of an I/O thread share.
pub(crate) struct Thread {
    /// The whole process, for requests about the node itself.
    pub(crate) process: Arc<Process>,
    pub(crate) clock: Arc<dyn Clock>,
    rules: Cell<RequestRules>,
    pub(crate) serving_state: Arc<SharedServingState>,
    pub(crate) stages: Arc<Stages>,
    pub(crate) counters: Arc<EventCounters>,
    pub(crate) capacity_refusals: Arc<Refusals>,
    pub(crate) memory_holders: Arc<MemoryHolders>,
    pub(crate) read_values: Arc<ReadValues>,
    pub(crate) connections: Rc<Connections>,
    pub(crate) ranges: Arc<OpenRanges>,
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
    /// A thread with this number, without work.
    pub(crate) fn new(number: u8, process: Arc<Process>, load: Arc<ThreadGauges>) -> Self {
        let budget = |part| ThreadBudget::new(&process.memory, part, process.config.threads);
        Self {
            writes: budget(MemoryCategory::Writes),
            replies: budget(MemoryCategory::Replies),
            connections: Rc::default(),
            ranges: Arc::clone(&process.ranges),
            batches: Rc::new(OpenBatches::new(
                &process.config,
                process.read_values.memory_holders(),
                &process.refusals,
            )),
            read_buffer: RefCell::new(vec![0; READ_BUFFER_BYTES].into_boxed_slice()),
            recorder: Rc::new(RequestRecorder::new(
                process.metrics.as_ref().map(|metrics| metrics.of_thread(number)),
            )),
            write_buffer: RefCell::default(),
            date: DateCache::default(),
            refusals: Rc::default(),
            shares: Shares::default(),
            driver: OnceCell::new(),
            clock: Arc::clone(&process.env.clock),
            rules: Cell::new(process.rules),
            serving_state: Arc::clone(&process.serving_state),
            stages: Arc::clone(&process.stages),
            counters: Arc::clone(&process.counters),
            capacity_refusals: Arc::clone(&process.refusals),
            memory_holders: Arc::clone(process.read_values.memory_holders()),
            read_values: Arc::clone(&process.read_values),
            load,
            number,
            process,
        }
    }

    /// Starts the coordinator's driver: the store is open.
    pub(crate) fn open(&self, local: &Arc<Local>) {
        let context = self.process.driver_context();
        let start = || MachineDriver::of_thread(context, local, self.number, &self.load, &self.recorder);
        self.driver.get_or_init(start);
    }

    /// Limits and defaults that requests are checked against.
    pub(crate) fn rules(&self) -> RequestRules {
        self.rules.get()
    }

    /// Has the thread follow a newer layout of the cluster.
    pub(crate) fn follow(&self, layout: Arc<Layout>) {
        let nodes = NonZeroU8::new(layout.len()).expect("a layout has nodes");
        self.rules.set(RequestRules { nodes, ..self.rules.get() });
        self.open_driver().handle_layout(layout);
    }

    /// Closes connections to free permits for others.
    pub(crate) fn evict(&self, eviction: Eviction) {
        self.load.is_evicting.store(false, Ordering::Relaxed);
        self.connections.evict(eviction, Instant::now());
    }

    /// Runs the handshake with a peer on a connection of the listener for peers, or of one without
    /// a client's permit.
    pub(crate) async fn accept_peer(self: Rc<Self>, stream: TcpStream) {
        let Process { peer_links, local, .. } = &*self.process;
        self.submit(accept::serve(stream, peer_links, local).await);
    }

    /// Runs the handshake with a peer over whose connection the bytes `received` have arrived.
    pub(crate) async fn accept_peer_of_client(&self, socket: tokio::net::TcpStream, received: Vec<u8>) {
        let Process { peer_links, local, .. } = &*self.process;
        self.submit(accept::run_handshake(socket, received, peer_links, local).await);
    }

    /// Submits an authenticated peer to the control thread, and answers a node that asks to join.
    fn submit(&self, accepted: Option<Accepted>) {
        let arrival = match accepted {
            Some(Accepted::Peer(arrival)) => arrival,
            Some(Accepted::Joining(joining)) => {
                let process = Arc::clone(&self.process);
                tokio::task::spawn_local(async move {
                    let Process { peer_links, local, control, .. } = &*process;
                    if let Some(local) = local.get() {
                        joining.answer(peer_links, local, control).await;
                    }
                });
                return;
            }
            None => return,
        };
        if self.process.control.try_send(ControlMessage::Arrived(arrival)).is_err() {
            tracing::debug!("the control thread does not accept the link of a peer: it is dropped");
        }
    }

    /// Confirms when no connections are left, and none of their operations.
    pub(crate) async fn notify_when_finished(self: Rc<Self>, done: oneshot::Sender<()>) {
        self.connections.wait_until_empty().await;
        if let Some(driver) = self.driver() {
            driver.until_idle().await;
        }
        let _ = done.send(());
    }

    /// The driver, once the store is open.
    pub(crate) fn driver(&self) -> Option<&Rc<MachineDriver<CoordinatorMachine>>> {
        self.driver.get()
    }

    /// The driver.
    ///
    /// # Panics
    /// If the store is not open yet.
    pub(crate) fn open_driver(&self) -> &Rc<MachineDriver<CoordinatorMachine>> {
        self.driver().expect("peers are known only after the store is open")
    }

    /// Ends a request that was waited for. Its response has this status.
    pub(crate) fn end(&self, execution: Execution, status: StatusCode) {
        self.stages.end(execution.end(status, self.clock.now().mono));
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
        self.capacity_refusals.count_operation(self.number);
    }

    /// Counts a connection that ended.
    pub(crate) fn connection_ended(&self) {
        self.load.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
