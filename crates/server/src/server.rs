//! The lifecycle of a node: listen, recover, serve, drain, close.
//!
//! **Promise.** The node binds its address before anything else. From then on every request is
//! answered, with `503` until the node serves. Peers are served as soon as the store is open.
//! Clients are served when the node knows the state of its peers and has received the hints that
//! they held for it. A node that is told to stop announces it to its peers, answers the requests in
//! flight, closes idle connections, delivers the hints that it holds, and ends within
//! [`Limits::drain_time`](crate::Limits::drain_time). A process that is told to stop while it
//! recovers ends at once, even if the disk hangs: it has acknowledged nothing, and a recovery may
//! be interrupted at any point. When the store can no longer guarantee which data is durable, the
//! node ends at once without waiting for anything. A [`Server`] that ended so releases its data
//! directory once its threads have finished their disk accesses.
//!
//! **Mechanism.** The control thread (the caller of [`run`], or a thread of [`Server`]) accepts
//! connections, drives the cluster's `Node`, and moves the process from state to state. I/O threads
//! do the rest. The resources of a node that ended early are [`HeldResources`]: [`run`] leaves them
//! to the end of the process, and a [`Server`] passes them to a thread that waits for the disk.

use crate::adopted_layout::layout_of;
use crate::config::Config;
use crate::default_from;
use crate::directory_watch;
use crate::driver::MachineDriver;
use crate::driver::node_machine::{NodeMachine, NodeStart};
use crate::error::ServerError;
use crate::io_thread::ThreadHandle;
use crate::listener;
use crate::local::Local;
use crate::messages::ControlMessage;
use crate::process::Process;
use crate::read_pool::ReadPool;
use crate::warnings;
use cluster::{HintLedger, HybridClock, Incarnation, Member, NodeLimits};
use engine::workers::{WorkerOptions, Workers};
use env::Env;
use std::future::Future;
use std::io;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use stdx::NodeTag;
use store::{DataDirectory, Membership, OpenReport, Store, StoreError, StoreOptions, VotesFound};
use tokio::net::TcpListener;
use tokio::runtime::LocalOptions;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc, oneshot};

/// Exit code of a node that a second Ctrl-C ended. A shell reports the same code for a process that
/// `SIGINT` ended.
const INTERRUPTED: i32 = 130;
/// One Ctrl-C can reach the process twice, from the terminal and from its parent process. Both
/// signals arrive within this time.
const SAME_INTERRUPT_TIME: Duration = Duration::from_millis(500);
/// Threads of the read pool for each core.
const READ_THREADS_PER_CORE: usize = 2;
const READ_THREADS_MIN: usize = 4;
const READ_THREADS_MAX: usize = 32;
/// Most I/O threads: the number of a coordinator is one byte in messages between nodes.
const THREADS_MAX: usize = 255;
/// Startup wait of a node that is not read eligible for peers that are linked and do not know yet
/// whether they are. Such a cluster may lack a node that it must hear from.
const START_TIME: Duration = Duration::from_millis(150);
/// Startup wait of a node that is read eligible, from the moment when it is. Its peers report their
/// own state as soon as they have heard what it remembers of them.
const PEERS_KNOWN_TIME: Duration = Duration::from_millis(600);
/// Startup wait for the links between the I/O threads and the peers that are up, in both
/// directions.
const LINK_TIME: Duration = Duration::from_millis(600);
/// Resident memory that is not reserved is charged to the store above an allowance: it is in the
/// allocator, or between two reservations. This is the fixed part of the allowance, in bytes.
const UNTRACKED_BYTES_FREE: u64 = 32 << 20;
/// The allowance grows by this fraction of the memory budget: 1 / 8.
const UNTRACKED_SHARE_FREE: u64 = 8;
/// The allowance is at most this fraction of the memory budget, but at least the fixed part,
/// because the program itself uses some memory: 1 / 4.
const UNTRACKED_SHARE_FREE_MAX: u64 = 4;
/// Interval of the checks whether the process was suspended.
const CHECK_PRESENCE_EVERY: Duration = Duration::from_secs(1);
/// Time for which the end of a [`Server`] waits for its threads to finish their disk accesses.
const RELEASE_TIME: Duration = Duration::from_secs(2);
/// Interval in which the memory use of the store is sampled.
const LOOK_AT_STORE_EVERY: Duration = Duration::from_millis(100);
/// Number of cores for each compaction thread.
const CORES_PER_COMPACTION: usize = 4;

/// Receives the stages of a node's lifecycle, each at most once and in this order.
pub trait LifecycleObserver {
    /// The node has bound its address and locked its data directory. Recovery follows.
    fn on_listening(&self, address: SocketAddr);

    /// The node serves clients.
    fn on_serving(&self);

    /// The node was told to stop and begins to drain.
    fn on_stopping(&self);
}

/// Ignores all stages.
impl LifecycleObserver for () {
    fn on_listening(&self, _: SocketAddr) {}

    fn on_serving(&self) {}

    fn on_stopping(&self) {}
}

/// Serves until the process is told to stop (`SIGTERM`, `SIGINT`). A further `SIGINT` ends the
/// process at once with exit code 130: acknowledged writes are durable, and requests in flight are
/// not answered. If the process is told to stop while it recovers, this function returns at once.
/// The recovery may then continue on a thread that ends with the process.
///
/// # Errors
/// [`ServerError`]: the node could not start, or had to stop.
pub fn run(config: Config, env: Env, observer: &dyn LifecycleObserver) -> Result<(), ServerError> {
    let bound = BoundServer::bind(config, env)?;
    let ended = on_control_runtime(async {
        let told_to_stop = told_to_stop().map_err(start_error("the handling of signals"))?;
        bound.serve(told_to_stop, WhileRecovering::EndAtOnce, observer).await
    });
    ended.map_err(|EarlyExit { why, held }| {
        // The process ends next. On a failing disk, dropping the resources could block forever.
        std::mem::forget(held);
        why
    })
}

/// A node within this process, for tests and for programs that embed one.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<(), ServerError>>,
}

impl Server {
    /// Starts a node. When this returns, the node answers requests: with `503` until its store is
    /// open.
    ///
    /// # Errors
    /// [`ServerError`] if the address is taken or the system refuses a thread. [`Server::stop`]
    /// reports whether the store could be opened.
    pub fn start(config: Config, env: Env) -> Result<Self, ServerError> {
        let bound = BoundServer::bind(config, env)?;
        let address = bound.address;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("veche-control".to_owned())
            .spawn(move || {
                let told_to_stop = async {
                    // Dropping the handle also stops the node.
                    let _ = stopped.await;
                };
                let ended = bound.serve(told_to_stop, WhileRecovering::WaitForRecovery, &());
                on_control_runtime(ended).map_err(|EarlyExit { why, held }| {
                    if let Some(held) = held {
                        held.release();
                    }
                    why
                })
            })
            .map_err(start_error("a thread"))?;
        Ok(Self { address, stop, thread })
    }

    /// The address on which the node listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops the node as `SIGTERM` does and waits for its end. Afterwards the data directory can be
    /// opened again. If a thread of the node blocks on the disk for longer than 2 s, that is
    /// delayed until the thread continues.
    ///
    /// # Errors
    /// [`ServerError`]: the reason why the node ended, if it was not told to.
    pub fn stop(self) -> Result<(), ServerError> {
        let _ = self.stop.send(());
        self.thread.join().unwrap_or(Err(ServerError::Panicked("the control thread")))
    }
}

/// Runs `node` to completion on a runtime of the current thread, and drops its tasks afterwards. It
/// does not wait for blocking calls, which may never return on a failing disk.
fn on_control_runtime(node: impl Future<Output = Result<(), EarlyExit>>) -> Result<(), EarlyExit> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())
        .map_err(start_error("the control thread's runtime"))?;
    let ended = runtime.block_on(node);
    runtime.shutdown_background();
    ended
}

/// Resolves at the first signal that asks the process to end.
fn told_to_stop() -> io::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        if let Err(error) = exit_at_next_interrupt() {
            tracing::warn!(%error, "cannot watch for a second Ctrl-C, which would end the drain");
        }
    })
}

/// Ends the process at the next `SIGINT`. This uses a separate thread, because the control thread
/// blocks while the store is closed.
fn exit_at_next_interrupt() -> io::Result<()> {
    let watch = || -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            tokio::time::sleep(SAME_INTERRUPT_TIME).await;
            signal(SignalKind::interrupt())?.recv().await;
            tracing::warn!("interrupted again: ended without waiting for requests in flight");
            std::process::exit(INTERRUPTED)
        })
    };
    std::thread::Builder::new().name("veche-interrupt".to_owned()).spawn(watch).map(drop)
}

fn start_error(what: &'static str) -> impl FnOnce(io::Error) -> ServerError {
    move |source| ServerError::Start { what, source }
}

/// A node that has bound its address.
struct BoundServer {
    address: SocketAddr,
    listener: std::net::TcpListener,
    peer_listener: Option<std::net::TcpListener>,
    process: Arc<Process>,
    control_messages: mpsc::Receiver<ControlMessage>,
}

/// Behaviour of a node that is told to stop while it recovers.
#[derive(Clone, Copy, Debug)]
enum WhileRecovering {
    /// The node ends at once. The recovery ends with the process.
    EndAtOnce,
    /// The node waits for the recovery, so that this process can open the data directory again.
    WaitForRecovery,
}

/// The reason why a node ended without being told to, with its remaining resources.
struct EarlyExit {
    why: ServerError,
    /// `None`: the store was not open yet, or is closed.
    held: Option<Box<HeldResources>>,
}

impl From<ServerError> for EarlyExit {
    fn from(why: ServerError) -> Self {
        Self { why, held: None }
    }
}

/// Threads, files and memory of a node that ended early, including the lock of its data directory.
/// Dropping it waits for every thread, and so for the disk. Nothing more is written, because
/// another node may own the directory by now, or the disk may fail. Fields are dropped in this
/// order.
struct HeldResources {
    _threads: Vec<ThreadHandle>,
    _workers: Workers,
    _store: Store,
    _process: Arc<Process>,
}

impl HeldResources {
    /// Drops the resources on a separate thread, and waits for it for at most [`RELEASE_TIME`].
    fn release(self) {
        // If no thread can be started, the resources are leaked.
        let held = ManuallyDrop::new(self);
        let (done, is_done) = std::sync::mpsc::sync_channel(1);
        let release = move || {
            drop(ManuallyDrop::into_inner(held));
            let _ = done.send(());
        };
        let thread = std::thread::Builder::new().name("veche-release".to_owned());
        match thread.spawn(release) {
            Ok(_) => drop(is_done.recv_timeout(RELEASE_TIME)),
            Err(error) => tracing::error!(%error, "the data directory stays locked until the process ends"),
        }
    }
}

/// A node whose store is open. Fields are dropped in this order.
struct OpenNode {
    workers: Workers,
    store: Store,
    fatal_error: Arc<FatalError>,
    node: Rc<MachineDriver<NodeMachine>>,
}

/// A signal that the node must end at once: the store can no longer guarantee which data is
/// durable, the data is too old, or the node is no member of its cluster any more.
#[derive(Default)]
pub(crate) struct FatalError {
    why: parking_lot::Mutex<Option<ServerError>>,
    told: Notify,
}

impl FatalError {
    pub(crate) fn set(&self, why: ServerError) {
        *self.why.lock() = Some(why);
        self.told.notify_one();
    }

    /// Waits for the signal and returns the reason.
    async fn happened(&self) -> ServerError {
        loop {
            if let Some(why) = self.why.lock().take() {
                return why;
            }
            self.told.notified().await;
        }
    }
}

impl BoundServer {
    fn bind(mut config: Config, env: Env) -> Result<Self, ServerError> {
        config.threads = config.threads.clamp(1, THREADS_MAX);
        let requested = config.listen;
        let listener = listener::bind(requested)?;
        let address =
            listener.local_addr().map_err(|source| ServerError::Listen { address: requested, source })?;
        config.listen = address;
        let peer_listener = config.peer_listen.map(listener::bind).transpose()?;
        let (process, control_messages) = Process::new(config, env);
        Ok(Self { address, listener, peer_listener, process: Arc::new(process), control_messages })
    }

    async fn serve(
        self,
        told_to_stop: impl Future<Output = ()>,
        while_recovering: WhileRecovering,
        observer: &dyn LifecycleObserver,
    ) -> Result<(), EarlyExit> {
        let Self { address, listener, peer_listener, process, control_messages } = self;
        let from_std = |listener| {
            TcpListener::from_std(listener).map_err(|source| ServerError::Listen { address, source })
        };
        let (listener, peer_listener) = (from_std(listener)?, peer_listener.map(from_std).transpose()?);
        let threads = start_threads(&process)?;
        let ended = tokio::select! {
            never = listener::accept(&listener, &threads, &process.accept_state) => match never {},
            never = listener::accept_peers(peer_listener.as_ref(), &threads, &process.accept_state) => match never {},
            ended = run_until_stopped(&process, &threads, control_messages, told_to_stop, while_recovering, observer) => ended?,
        };
        let open = match ended {
            RunEnd::BeforeOpen => return Ok(()),
            RunEnd::Early(why, open) => return Err(abandon(why, threads, open, process)),
            RunEnd::Drained(open) => open,
        };
        drop(peer_listener);
        if let Err(error) = listener::accept_last(listener, &threads, &process.accept_state) {
            tracing::warn!(%error, "the last connections could not be accepted");
        }
        tokio::select! {
            () = finish(&threads, &open.node, process.config.limits.drain_time) => {}
            fatal = open.fatal_error.happened() => return Err(abandon(fatal, threads, open, process)),
        }
        Ok(close(threads, open, process)?)
    }
}

enum RunEnd {
    /// The node was told to stop before its store was open.
    BeforeOpen,
    /// The node was told to stop, and the time in which connections are still accepted is over.
    Drained(OpenNode),
    /// The data must not be read or written any more.
    Early(ServerError, OpenNode),
}

/// Runs a node from its start to the end of the drain delay.
async fn run_until_stopped(
    process: &Arc<Process>,
    threads: &[ThreadHandle],
    control_messages: mpsc::Receiver<ControlMessage>,
    told_to_stop: impl Future<Output = ()>,
    while_recovering: WhileRecovering,
    observer: &dyn LifecycleObserver,
) -> Result<RunEnd, ServerError> {
    let mut told_to_stop = std::pin::pin!(told_to_stop);
    let claimed = || observer.on_listening(process.config.listen);
    let mut opening = std::pin::pin!(open_store(process)?.wait(claimed));
    let (store, opened) = tokio::select! {
        opened = &mut opening => opened?,
        () = &mut told_to_stop => {
            observer.on_stopping();
            if let WhileRecovering::WaitForRecovery = while_recovering {
                opening.await?;
            }
            tracing::info!("told to stop before the data directory was open: stopped. No request had been acknowledged");
            return Ok(RunEnd::BeforeOpen);
        }
    };
    let open = open_for_peers(process, threads, control_messages, store, &opened).await?;
    let serving = async {
        until_ready(&open.node, threads).await;
        process.serving_state.begin_serving();
        log_serving(process, &opened);
        observer.on_serving();
        std::future::pending::<()>().await;
    };
    let drained = async {
        told_to_stop.await;
        process.serving_state.begin_draining();
        observer.on_stopping();
        let delay_ms = process.config.drain_delay.as_millis() as u64;
        tracing::info!(delay_ms, "told to stop: draining");
        open.node.begin_drain();
        tokio::time::sleep(process.config.drain_delay).await;
    };
    let fatal = tokio::select! {
        // A draining node must not begin to serve.
        biased;
        () = drained => return Ok(RunEnd::Drained(open)),
        fatal = open.fatal_error.happened() => fatal,
        lost = directory_watch::lost(process.config.data.clone(), open.store.clone()) => lost,
        () = serving => unreachable!("it serves until it is stopped"),
    };
    Ok(RunEnd::Early(fatal, open))
}

/// Waits until clients can be served: the node knows the state of its peers, and operations can
/// reach those that are up. Peers that are also starting get a moment to find out whether they are
/// read eligible. Unreachable peers are not waited for.
async fn until_ready(node: &MachineDriver<NodeMachine>, threads: &[ThreadHandle]) {
    let begun = tokio::time::Instant::now();
    node.until_ready().await;
    let patience = match node.is_read_eligible() {
        true => PEERS_KNOWN_TIME,
        false => START_TIME.saturating_sub(begun.elapsed()),
    };
    // A peer that does not know by then may not know for long.
    let _ = tokio::time::timeout(patience, node.until_peers_are_known()).await;
    let linked = async {
        all_confirm(threads, ThreadHandle::when_linked).await;
        node.until_linked_back().await;
    };
    // A link that is missing by then is treated like a slow peer.
    let _ = tokio::time::timeout(LINK_TIME, linked).await;
}

/// Sends a request to all threads and waits until each has confirmed it.
async fn all_confirm(threads: &[ThreadHandle], request: fn(&ThreadHandle) -> oneshot::Receiver<()>) {
    let waits: Vec<_> = threads.iter().map(request).collect();
    for wait in waits {
        // An error means that the thread panicked. Stopping the thread reports it.
        let _ = wait.await;
    }
}

fn start_threads(process: &Arc<Process>) -> Result<Vec<ThreadHandle>, ServerError> {
    (0..process.config.threads as u8)
        .map(|number| ThreadHandle::start(number, Arc::clone(process)).map_err(start_error("an I/O thread")))
        .collect()
}

/// The progress of the recovery thread.
struct StoreOpening {
    /// Resolves when the data directory is locked. Dropped if it cannot be.
    claimed: oneshot::Receiver<()>,
    opened: oneshot::Receiver<Result<(Store, OpenReport), ServerError>>,
}

impl StoreOpening {
    /// Waits for the store. Calls `claimed` once the data directory is locked.
    async fn wait(self, claimed: impl FnOnce()) -> Result<(Store, OpenReport), ServerError> {
        if self.claimed.await.is_ok() {
            claimed();
        }
        self.opened.await.unwrap_or(Err(ServerError::Panicked("the recovery")))
    }
}

/// Opens the store on a separate thread, because recovery can take long.
fn open_store(process: &Arc<Process>) -> Result<StoreOpening, ServerError> {
    let process = Arc::clone(process);
    let (say_claimed, claimed) = oneshot::channel();
    let (say_opened, opened) = oneshot::channel();
    let open = move || {
        let config = &process.config;
        let claimed = DataDirectory::claim(process.env.clone(), &config.data, store_options(config));
        let result = claimed.and_then(|directory| {
            let _ = say_claimed.send(());
            directory.open()
        });
        // The receiver is gone if the node ended meanwhile.
        let _ = say_opened.send(result.map_err(ServerError::from));
    };
    let thread = std::thread::Builder::new().name("veche-recovery".to_owned());
    thread.spawn(open).map_err(start_error("a thread"))?;
    Ok(StoreOpening { claimed, opened })
}

pub(crate) fn store_options(config: &Config) -> StoreOptions {
    StoreOptions {
        engine: engine::Options { tower_seed: env::os_process::entropy_u64(), ..config.engine.clone() },
        membership: Membership {
            default_from: Some(config.default_from),
            ..config.membership.clone().seen_by(&config.self_name)
        },
        new_tag: NodeTag(env::os_process::entropy_u64()),
        away_max: store::AWAY_MAX_DEFAULT,
        after_absence: config.after_absence,
        snapshot_age: config.snapshot_age,
    }
}

/// Starts the store's workers and all state machines.
async fn open_for_peers(
    process: &Arc<Process>,
    threads: &[ThreadHandle],
    control_messages: mpsc::Receiver<ControlMessage>,
    store: Store,
    opened: &OpenReport,
) -> Result<OpenNode, ServerError> {
    let cores = env::os_process::available_cores();
    let fatal_error = Arc::new(FatalError::default());
    let hook = Arc::clone(&fatal_error);
    let options = WorkerOptions {
        compaction_threads: (cores / CORES_PER_COMPACTION).max(1),
        on_poison: Box::new(move |reason| hook.set(ServerError::Poisoned { reason: reason.to_owned() })),
    };
    let workers =
        engine::workers::start(store.engine(), options).map_err(start_error("the store's workers"))?;
    let read_threads = (cores * READ_THREADS_PER_CORE).clamp(READ_THREADS_MIN, READ_THREADS_MAX);
    let local = local_of(process, &store, opened, read_threads)?;
    let local = process.local.get_or_init(|| Arc::new(local));
    for thread in threads {
        thread.open(Arc::clone(local)).await.map_err(|_| ServerError::Panicked("an I/O thread"))?;
    }
    if process.config.new_cluster && opened.record.sync_state == cluster::SyncState::Settled {
        tracing::warn!(
            "--new-cluster is for the first start of a cluster: remove it. With it, a directory that is emptied one day \
             counts as new, though other nodes hold its data"
        );
    }
    let node = NodeStart {
        record: opened.record.clone(),
        voter: opened.voter.clone(),
        limits: NodeLimits {
            default_from: process.config.default_from,
            request_timeout: process.config.request_timeout,
            new_cluster: process.config.new_cluster,
            feature_level_max: process.config.feature_level_max,
            ..NodeLimits::default()
        },
        threads: threads.iter().map(ThreadHandle::mailbox).collect(),
        control_messages,
        link_counters: process.gauges.control_links(),
        metrics: process.metrics.clone(),
        fatal_error: Arc::clone(&fatal_error),
    };
    let node = MachineDriver::of_node(process.driver_context(), local, node);
    tokio::task::spawn_local(watch_store(Arc::clone(process), Arc::clone(local)));
    tokio::task::spawn_local(watch_presence(store.clone(), Arc::clone(&fatal_error)));
    if let Some(stated) = process.config.moved_to.clone() {
        tokio::task::spawn_local(watch_own_address(stated, Arc::clone(local)));
    }
    Ok(OpenNode { workers, store, fatal_error, node })
}

/// Builds the state that the threads share once the store is open.
pub(crate) fn local_of(
    process: &Process,
    store: &Store,
    opened: &OpenReport,
    read_threads: usize,
) -> Result<Local, ServerError> {
    let waits = process.metrics.as_ref().map(|metrics| metrics.read_waits());
    let request_timeout = process.config.request_timeout;
    let reads = ReadPool::start(
        store,
        read_threads,
        request_timeout,
        &process.env.clock,
        waits,
        &process.read_values,
    );
    let reads = reads.map_err(start_error("threads that read from disk"))?;
    let member = member(&process.config, opened)?;
    Ok(Local::new(store.clone(), member, reads, opened, &process.config)?)
}

/// Updates the memory use of the store in the budget periodically.
async fn watch_store(process: Arc<Process>, local: Arc<Local>) {
    let memory_bytes = process.config.memory_bytes();
    let untracked_free = (UNTRACKED_BYTES_FREE + memory_bytes / UNTRACKED_SHARE_FREE)
        .min((memory_bytes / UNTRACKED_SHARE_FREE_MAX).max(UNTRACKED_BYTES_FREE));
    loop {
        let store_bytes = local.store.engine().memory_stats().used_bytes();
        let tracked_bytes = store_bytes + process.memory.reserved_bytes_total();
        let untracked_bytes = env::os_process::resident_bytes().saturating_sub(tracked_bytes);
        process.memory.note_store(store_bytes + untracked_bytes.saturating_sub(untracked_free));
        tokio::time::sleep(LOOK_AT_STORE_EVERY).await;
    }
}

/// Ends the node if it was suspended for so long that its data is too old.
async fn watch_presence(store: Store, fatal_error: Arc<FatalError>) {
    loop {
        match store.check_for_pause() {
            Err(error @ StoreError::PausedTooLong { .. }) => return fatal_error.set(error.into()),
            Err(error) => tracing::warn!(%error, "cannot check whether the process was suspended"),
            Ok(()) => {}
        }
        tokio::time::sleep(CHECK_PRESENCE_EVERY).await;
    }
}

/// Logs a warning if the layout record does not take the address that this node states.
async fn watch_own_address(stated: String, local: Arc<Local>) {
    tokio::time::sleep(warnings::STARTUP_TIME).await;
    if let Some(warning) = warnings::of_own_address(&stated, &local) {
        tracing::warn!("{warning}");
    }
}

/// This node as a member of its cluster.
fn member(config: &Config, opened: &OpenReport) -> Result<Member, ServerError> {
    let own_name = config.own_name();
    let layout = layout_of(&opened.layout, &own_name);
    let me = layout.find(&own_name).ok_or(ServerError::NotListed { name: own_name })?;
    Ok(Member {
        layout: Arc::new(layout),
        me,
        tag: opened.identity.tag,
        incarnation: Incarnation(env::os_process::entropy_u64()),
        clock: Arc::new(HybridClock::new(opened.clock_start)),
        hints: Arc::new(HintLedger::new(config.limits.hint_bytes_max)),
    })
}

fn log_serving(process: &Process, opened: &OpenReport) {
    if let Some(version) = opened.version_ahead {
        tracing::warn!(
            newest_unix_ms = version.wall().millis_since_unix_epoch(),
            "the disk holds versions further ahead than any clock may be: writes to their keys are superseded until \
             then; docs/operations.md says what to do"
        );
    }
    let config = &process.config;
    let recovery = &opened.recovery;
    tracing::info!(
        listen = %config.listen,
        data = %config.data.display(),
        nodes = config.membership.nodes.len().max(1),
        default_from = config.default_from,
        layout_epoch = opened.layout.epoch.0,
        cluster_id = %opened.layout.cluster,
        durability = match config.engine.durability {
            engine::Durability::Sync => "sync",
            engine::Durability::Os => "os",
        },
        memory_bytes = config.memory_bytes(),
        store_memory_bytes = config.engine.memory_bytes,
        threads = config.threads,
        tag = format!("{:016x}", opened.identity.tag.0),
        recovered_tables = recovery.tables,
        recovered_records = recovery.records,
        recovered_cells = recovery.cells,
        recovered_log_bytes = recovery.wal_bytes,
        cut_log_bytes = recovery.cut_bytes,
        removed_files = recovery.orphans,
        "serving"
    );
    if let Some(url) = &config.moved_to {
        tracing::info!(
            url,
            recorded = config.self_name,
            "the node is reached at another address than the layout record has: it keeps its identity, and tells its peers"
        );
    }
    if let VotesFound::Lost { sentence } = &opened.votes {
        tracing::error!("{sentence}");
    }
    let overruled = warnings::of_overruled_settings(config, &opened.layout);
    let many = default_from::of_many(config.default_from);
    let sentences = config.warnings.iter().chain(&overruled).chain(&many);
    sentences.for_each(|sentence| tracing::warn!("{sentence}"));
    if config.engine.durability == engine::Durability::Os {
        tracing::warn!("--durability os: the loss of power may undo acknowledged writes");
    }
}

/// Lets the threads answer the requests in flight, and the node deliver its hints. Waits for at
/// most `time`.
async fn finish(threads: &[ThreadHandle], node: &MachineDriver<NodeMachine>, time: Duration) {
    let finished = async {
        all_confirm(threads, ThreadHandle::finish).await;
        node.until_drained().await;
    };
    if tokio::time::timeout(time, finished).await.is_err() {
        tracing::warn!(
            after_ms = time.as_millis() as u64,
            "some requests or hints did not finish in time and are cut off"
        );
    }
}

fn close(threads: Vec<ThreadHandle>, open: OpenNode, process: Arc<Process>) -> Result<(), ServerError> {
    let mut whole = true;
    for thread in threads {
        whole &= thread.stop();
    }
    let OpenNode { workers, store, .. } = open;
    seal_clock(&process, &store);
    workers.stop();
    store.close().map_err(ServerError::Close)?;
    drop(process);
    if !whole {
        return Err(ServerError::Panicked("an I/O thread"));
    }
    tracing::info!("stopped");
    Ok(())
}

/// Records the last issued version, so that the next start need not wait for versions that were
/// reserved and never issued. The threads that issue versions have ended.
fn seal_clock(process: &Process, store: &Store) {
    let issued = process.local.get().map(|local| local.member.clock.issued());
    if let Some(Err(error)) = issued.map(|issued| store.seal_clock(issued)) {
        tracing::warn!(%error, "cannot record the last issued version: the next start waits for reserved versions");
    }
}

/// Ends the node without closing the store or waiting for anything.
fn abandon(why: ServerError, threads: Vec<ThreadHandle>, open: OpenNode, process: Arc<Process>) -> EarlyExit {
    let OpenNode { workers, store, fatal_error: _, node: _ } = open;
    let held = HeldResources { _threads: threads, _workers: workers, _store: store, _process: process };
    EarlyExit { why, held: Some(Box::new(held)) }
}
