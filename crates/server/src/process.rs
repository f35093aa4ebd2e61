//! The parts that make up the process of a node.

use crate::accept_failures::AcceptFailures;
use crate::accept_state::AcceptState;
use crate::checkpoint::CheckpointState;
use crate::config::Config;
use crate::connection_limit::ConnectionLimiter;
use crate::counters::{Counter, EventCounters};
use crate::driver::DriverContext;
use crate::gauges::Gauges;
use crate::layout_command::LayoutPlans;
use crate::links::PeerLinks;
use crate::local::Local;
use crate::memory_holders::MemoryHolders;
use crate::messages::{CONTROL_MESSAGES_MAX, ControlMessage};
use crate::metrics::Metrics;
use crate::profile::ProfileState;
use crate::refusals::Refusals;
use crate::response_memory::ReadValues;
use crate::serving_state::SharedServingState;
use crate::stages::Stages;
use crate::streaming::range_memory::OpenRanges;
use api::RequestRules;
use env::Env;
use limits::{Budget, LargestValue};
use std::num::NonZeroU8;
use std::sync::{Arc, OnceLock};
use stdx::Instant;
use tokio::sync::mpsc;

/// The parts that make up the process of a node. Only code that starts threads, routes requests or
/// reports on the whole process knows this type. Other modules get the parts that they use.
pub(crate) struct Process {
    pub(crate) config: Config,
    pub(crate) rules: RequestRules,
    pub(crate) env: Env,
    pub(crate) started: Instant,
    pub(crate) serving_state: Arc<SharedServingState>,
    pub(crate) accept_state: Arc<AcceptState>,
    pub(crate) memory: Arc<Budget>,
    pub(crate) read_values: Arc<ReadValues>,
    pub(crate) ranges: Arc<OpenRanges>,
    pub(crate) checkpoint_state: Arc<CheckpointState>,
    /// The plan of a change of the layout that this node keeps.
    pub(crate) layout_plans: Arc<LayoutPlans>,
    pub(crate) profile_state: Arc<ProfileState>,
    pub(crate) peer_links: Arc<PeerLinks>,
    /// Set when the store is open.
    pub(crate) local: OnceLock<Arc<Local>>,
    /// Messages to the control thread.
    pub(crate) control: mpsc::Sender<ControlMessage>,
    pub(crate) gauges: Gauges,
    pub(crate) counters: Arc<EventCounters>,
    pub(crate) refusals: Arc<Refusals>,
    /// Latency traces of requests.
    pub(crate) stages: Arc<Stages>,
    /// The metrics, if they are enabled.
    pub(crate) metrics: Option<Arc<Metrics>>,
}

impl Process {
    /// A starting process, and the receiving end of its control messages.
    pub(crate) fn new(config: Config, env: Env) -> (Self, mpsc::Receiver<ControlMessage>) {
        let nodes = u8::try_from(config.membership.nodes.len().max(1)).unwrap_or(u8::MAX);
        let nodes = NonZeroU8::new(nodes).expect("at least 1");
        let rules = RequestRules {
            nodes,
            default_from: config.default_from,
            value_bytes_max: config.value_bytes_max,
        };
        let node_count = usize::from(nodes.get());
        let (control, control_messages) = mpsc::channel(CONTROL_MESSAGES_MAX);
        let refusals = Arc::new(Refusals::new(config.threads));
        let memory = Arc::new(Budget::new(
            config.limits.memory_bytes,
            config.engine.memory_bytes,
            LargestValue::of(config.value_bytes_max, node_count),
        ));
        let memory_holders = Arc::new(MemoryHolders::new(Arc::clone(&memory)));
        let started = env.clock.now().mono;
        let accept_state = AcceptState {
            clock: Arc::clone(&env.clock),
            limiter: Arc::new(ConnectionLimiter::new(config.limits.connections_max, &memory)),
            refusals: Arc::clone(&refusals),
            failures: AcceptFailures::default(),
            accepted: Counter::default(),
        };
        let process = Self {
            rules,
            started,
            serving_state: Arc::default(),
            accept_state: Arc::new(accept_state),
            read_values: Arc::new(ReadValues::new(&memory_holders, &refusals)),
            ranges: Arc::new(OpenRanges::new(&memory_holders, &refusals)),
            memory,
            checkpoint_state: Arc::new(CheckpointState::new(started)),
            layout_plans: Arc::default(),
            profile_state: Arc::default(),
            peer_links: Arc::new(PeerLinks::new(&env.clock, config.limits.handshakes_max)),
            local: OnceLock::new(),
            control,
            gauges: Gauges::new(config.threads),
            counters: Arc::new(EventCounters::new()),
            refusals,
            stages: Arc::new(Stages::new(&env.clock, config.slow_request)),
            metrics: config.metrics.then(|| Arc::new(Metrics::new(config.threads))),
            env,
            config,
        };
        (process, control_messages)
    }

    /// The parts that the driver of a thread uses.
    pub(crate) fn driver_context(&self) -> DriverContext {
        DriverContext {
            clock: Arc::clone(&self.env.clock),
            memory: Arc::clone(&self.memory),
            peer_links: Arc::clone(&self.peer_links),
            counters: Arc::clone(&self.counters),
            refusals: Arc::clone(&self.refusals),
            stages: Arc::clone(&self.stages),
            control: self.control.clone(),
            request_timeout: self.config.request_timeout,
            value_bytes_max: self.config.value_bytes_max,
        }
    }
}
