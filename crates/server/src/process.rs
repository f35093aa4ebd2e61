//! What the threads of a node share.

use crate::budget::ByteBudget;
use crate::config::Config;
use crate::counters::Counters;
use crate::gauges::Gauges;
use crate::node::Node;
use api::ServingState;
use env::{Clock, Env};
use std::num::NonZeroU8;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use stdx::Instant;

/// What the threads of a node share.
pub(crate) struct Process {
    pub(crate) config: Config,
    pub(crate) rules: api::Rules,
    pub(crate) env: Env,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) started: Instant,
    pub(crate) gauges: Gauges,
    pub(crate) counters: Counters,
    pub(crate) body_budget: Arc<ByteBudget>,
    /// Set when the store is open.
    pub(crate) node: OnceLock<Arc<Node>>,
    state: AtomicU8,
}

const STARTING: u8 = 0;
const SERVING: u8 = 1;
const DRAINING: u8 = 2;

impl Process {
    pub(crate) fn new(config: Config, env: Env) -> Self {
        let nodes = u8::try_from(config.membership.nodes.len().max(1)).unwrap_or(u8::MAX);
        let nodes = NonZeroU8::new(nodes).expect("at least 1");
        let rules = api::Rules {
            nodes,
            default_from: config.default_from,
            value_bytes_max: config.value_bytes_max,
        };
        Self {
            rules,
            clock: Arc::clone(&env.clock),
            started: env.clock.now().mono,
            gauges: Gauges::new(config.threads),
            counters: Counters::default(),
            body_budget: Arc::new(ByteBudget::new(config.limits.body_bytes_max)),
            node: OnceLock::new(),
            state: AtomicU8::new(STARTING),
            env,
            config,
        }
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
