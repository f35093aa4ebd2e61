//! State that the threads of a node share.

use crate::accept_failures::AcceptFailures;
use crate::checkpoint_pace::CheckpointPace;
use crate::config::Config;
use crate::connection_limit::ConnectionLimiter;
use crate::counters::EventCounters;
use crate::driver::node_machine::{CONTROL_MESSAGES_MAX, ControlMessage};
use crate::gauges::Gauges;
use crate::links::{Handshakes, PeerWarnings, Resolver};
use crate::local::Local;
use crate::memory_holders::MemoryHolders;
use crate::metrics::Metrics;
use crate::refusals::Refusals;
use crate::response_memory::ReadValues;
use crate::stages::Stages;
use crate::streaming::range_memory::OpenRanges;
use api::ServingState;
use env::{Clock, Env};
use limits::{Budget, LargestValue};
use parking_lot::Mutex;
use std::num::NonZeroU8;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use stdx::Instant;
use tokio::sync::mpsc;

/// State that the threads of a node share.
pub(crate) struct Process {
    pub(crate) config: Config,
    pub(crate) rules: api::RequestRules,
    pub(crate) env: Env,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) started: Instant,
    pub(crate) gauges: Gauges,
    pub(crate) counters: EventCounters,
    pub(crate) refusals: Arc<Refusals>,
    /// The metrics, if they are enabled.
    pub(crate) metrics: Option<Metrics>,
    /// Latency traces of requests.
    pub(crate) stages: Stages,
    pub(crate) memory: Arc<Budget>,
    /// The clients that hold memory.
    pub(crate) memory_holders: Arc<MemoryHolders>,
    pub(crate) read_values: Arc<ReadValues>,
    pub(crate) ranges: Arc<OpenRanges>,
    pub(crate) limiter: Arc<ConnectionLimiter>,
    /// A checkpoint is being created or removed.
    pub(crate) checkpointing: AtomicBool,
    /// Rate limit of checkpoint creation.
    pub(crate) checkpoint_pace: Mutex<CheckpointPace>,
    /// End of the profile that is being recorded, in nanoseconds of the monotonic clock; 0: none.
    pub(crate) profiling_until: AtomicU64,
    /// Set when the store is open.
    pub(crate) local: OnceLock<Arc<Local>>,
    /// Messages to the control thread.
    pub(crate) control: mpsc::Sender<ControlMessage>,
    pub(crate) resolver: Resolver,
    pub(crate) peer_warnings: PeerWarnings,
    /// Connections that could not be accepted.
    pub(crate) accept_failures: AcceptFailures,
    /// Permits for handshakes with nodes that dial this one.
    pub(crate) handshakes: Arc<Handshakes>,
    /// Links that this node or the peer refused because the nodes do not fit together.
    pub(crate) refused_links: AtomicU64,
    state: AtomicU8,
}

const STARTING: u8 = 0;
const SERVING: u8 = 1;
const DRAINING: u8 = 2;

impl Process {
    /// The state of a starting process, and the receiving end of its control messages.
    pub(crate) fn new(config: Config, env: Env) -> (Self, mpsc::Receiver<ControlMessage>) {
        let nodes = u8::try_from(config.membership.nodes.len().max(1)).unwrap_or(u8::MAX);
        let nodes = NonZeroU8::new(nodes).expect("at least 1");
        let rules = api::RequestRules {
            nodes,
            default_from: config.default_from,
            value_bytes_max: config.value_bytes_max,
        };
        let (control, control_messages) = mpsc::channel(CONTROL_MESSAGES_MAX);
        let refusals = Arc::new(Refusals::new(config.threads));
        let memory = Arc::new(Budget::new(
            config.limits.memory_bytes,
            config.engine.memory_bytes,
            LargestValue::of(config.value_bytes_max, usize::from(nodes.get())),
        ));
        let process = Self {
            rules,
            clock: Arc::clone(&env.clock),
            started: env.clock.now().mono,
            gauges: Gauges::new(config.threads, usize::from(nodes.get())),
            counters: EventCounters::new(usize::from(nodes.get())),
            metrics: config.metrics.then(|| Metrics::new(config.threads, usize::from(nodes.get()))),
            stages: Stages::new(config.slow_request),
            read_values: Arc::new(ReadValues::new(&memory, &refusals)),
            limiter: Arc::new(ConnectionLimiter::new(config.limits.connections_max, &memory)),
            refusals,
            memory,
            memory_holders: Arc::default(),
            ranges: Arc::default(),
            checkpointing: AtomicBool::new(false),
            checkpoint_pace: Mutex::new(CheckpointPace::new(env.clock.now().mono)),
            profiling_until: AtomicU64::new(0),
            local: OnceLock::new(),
            control,
            resolver: Resolver::default(),
            peer_warnings: PeerWarnings::default(),
            accept_failures: AcceptFailures::default(),
            handshakes: Arc::new(Handshakes::new(usize::from(nodes.get()), config.limits.handshakes_max)),
            refused_links: AtomicU64::new(0),
            state: AtomicU8::new(STARTING),
            env,
            config,
        };
        (process, control_messages)
    }

    pub(crate) fn state(&self) -> ServingState {
        match self.state.load(Ordering::Relaxed) {
            STARTING => ServingState::Starting,
            SERVING => ServingState::Serving,
            _ => ServingState::Draining,
        }
    }

    pub(crate) fn now_serves(&self) {
        self.state.store(SERVING, Ordering::Relaxed);
    }

    pub(crate) fn now_drains(&self) {
        self.state.store(DRAINING, Ordering::Relaxed);
    }
}
