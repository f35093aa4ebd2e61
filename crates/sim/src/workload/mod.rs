//! Clients: their commands, the times of the commands, and the nodes that they ask.
//!
//! The load is an open loop: commands come at random times, independent of earlier replies, and
//! some come in bursts. So a stuck cluster gets no relief. Each value contains the number of the
//! command that wrote it, so no two values are equal. Clients that read ranges are in `ranges`,
//! operators that change the layout in `layouts`, and those that move data and change the members
//! in `plans` and `members`.

mod layouts;
mod members;
mod plans;
mod ranges;

pub(crate) use members::DeadMember;

use crate::history::{ClientOperation, ClientOutcome, CommandKind};
use crate::scenario::{Dimension, QuorumStyle};
use crate::world::{World, WorldEvent};
use crate::{Nanos, Scenario};
use bytes::Bytes;
use cluster::{Command, Key, Lifetime, NodeIndex, Quorum, QuorumChoice, RequestId};
use std::num::NonZeroU8;
use std::ops::Range;
use std::time::Duration;
use stdx::Rng;

/// The clients of a run.
#[derive(Debug)]
pub(crate) struct ClientWorkload {
    rng: Rng,
    /// Number of commands still to be submitted.
    left: u64,
    ends: Nanos,
    /// Bytes of large values still to be written.
    large_left: u64,
    /// Number of the current workload. Events of an earlier workload submit no more commands.
    chain: u64,
}

/// Lengths of large values, in bytes: from two fragments to more than a chunk of anti-entropy.
const LARGE: Range<u64> = 60 << 10..2 << 20;
/// Greatest total size of the large values of a run, in bytes, so that runs stay fast.
const LARGE_BYTES_MAX: u64 = 8 << 20;

impl ClientWorkload {
    pub(crate) const fn new(rng: Rng) -> Self {
        Self { rng, left: 0, ends: Nanos::ZERO, large_left: LARGE_BYTES_MAX, chain: 0 }
    }

    /// Returns true with this probability.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        self.rng.chance(probability)
    }

    fn next_gap(&mut self, now: Nanos) -> Duration {
        const BURST: f64 = 0.2;
        let mean = (self.ends - now).as_nanos() as u64 / self.left.max(1);
        if self.rng.chance(BURST) {
            return Duration::from_nanos(self.rng.below(mean / 20 + 1));
        }
        Duration::from_nanos((mean as f64 / (1.0 - BURST) * 2.0 * self.rng.unit()) as u64)
    }

    fn key(&mut self, scenario: &Scenario, id: RequestId, is_write: bool) -> Key {
        let text = if is_write && self.rng.chance(scenario.cold_share) {
            format!("cold-{}", id.0)
        } else {
            // The smaller of two draws makes some keys hotter than others.
            let number = self.rng.below(scenario.keys).min(self.rng.below(scenario.keys));
            format!("key-{number}")
        };
        Key::new(text.into()).expect("short and not empty")
    }

    fn draw_kind(&mut self, scenario: &Scenario) -> CommandKind {
        if self.rng.chance(scenario.read_share) {
            CommandKind::Get
        } else if self.rng.chance(scenario.delete_share) {
            CommandKind::Delete
        } else {
            let ttl = self.rng.chance(scenario.ttl_share);
            let millis = 1 + self.rng.below(scenario.ttl_max.as_millis() as u64);
            CommandKind::Put { ttl: ttl.then_some(Duration::from_millis(millis)) }
        }
    }

    fn quorum(&mut self, scenario: &Scenario, kind: CommandKind) -> Quorum {
        let (majority, from, nodes) = (scenario.majority(), scenario.default_from, scenario.from_max());
        let style = match scenario.quorums {
            QuorumStyle::Mixed if self.rng.chance(0.5) => QuorumStyle::Majority,
            QuorumStyle::Mixed => QuorumStyle::Any,
            style => style,
        };
        let mut between = |least: u8, most: u8| least + self.rng.below(u64::from(most - least) + 1) as u8;
        let (ack, from) = match style {
            QuorumStyle::Majority => (majority, from),
            QuorumStyle::AtLeastMajorityWrites if kind == CommandKind::Get => (between(1, from), from),
            QuorumStyle::AtLeastMajorityWrites => (between(majority, from), from),
            QuorumStyle::EveryReplicaWrites if kind == CommandKind::Get => (between(1, from), from),
            QuorumStyle::EveryReplicaWrites => (from, from),
            QuorumStyle::Any | QuorumStyle::Mixed => {
                let from = between(scenario.from_min(kind), nodes);
                (between(1, from), from)
            }
        };
        quorum(ack, from, nodes)
    }

    /// Draws the length of a large value, in bytes, if the next value is large.
    fn large_len(&mut self, scenario: &Scenario) -> Option<usize> {
        const SHARE: f64 = 0.02;
        let is_large = scenario.dimensions.has(Dimension::LargeValues) && self.rng.chance(SHARE);
        let len = is_large.then(|| LARGE.start + self.rng.below(LARGE.end - LARGE.start))?;
        self.large_left = self.large_left.checked_sub(len)?;
        Some(len as usize)
    }

    /// Chooses the quorum of a command to this node. If nodes have defaults of their own, most
    /// clients leave the quorum to the node.
    fn quorum_of(&mut self, scenario: &Scenario, node: NodeIndex, chosen: Quorum) -> Quorum {
        const DEFAULTED: f64 = 0.7;
        let has_own = scenario.dimensions.has(Dimension::MixedDefaults);
        if !has_own || !self.rng.chance(DEFAULTED) {
            return chosen;
        }
        let from = scenario.default_from_of(node.as_usize());
        quorum(cluster::majority(u32::from(from)) as u8, from, scenario.nodes)
    }

    fn value(&mut self, scenario: &Scenario, id: RequestId) -> Bytes {
        const SMALL: u64 = 64;
        if let Some(len) = self.large_len(scenario) {
            return large_value(id, len);
        }
        let most =
            if self.rng.chance(0.9) { scenario.value_bytes_max.min(SMALL) } else { scenario.value_bytes_max };
        let mut value = vec![0; 8 + self.rng.below(most) as usize];
        self.rng.fill(&mut value);
        value[..8].copy_from_slice(&id.0.to_be_bytes());
        value.into()
    }
}

/// Creates a value of this length that contains the number of the command that wrote it. The other
/// bytes repeat: random bytes would take longer to draw than to store.
fn large_value(id: RequestId, len: usize) -> Bytes {
    let mut value = vec![id.0 as u8; len];
    value[..8].copy_from_slice(&id.0.to_be_bytes());
    value.into()
}

/// Quorum of `ack` of `from` replicas.
pub(crate) fn quorum(ack: u8, from: u8, nodes: u8) -> Quorum {
    let nodes = nodes.max(from);
    let choice = QuorumChoice { ack: Some(u32::from(ack)), from: Some(u32::from(from)) };
    choice
        .resolve(NonZeroU8::new(nodes).expect("a cluster has at least one node"), nodes)
        .expect("ack and from fit the cluster")
}

impl World {
    /// Schedules `commands` commands, and the scans of the scenario, from now until `ends`.
    pub(crate) fn begin_workload(&mut self, commands: u64, ends: Nanos) {
        self.begin_commands(commands, ends);
        self.begin_scans();
    }

    /// Schedules `commands` commands without scans. All commands of the previous workload have been
    /// submitted.
    pub(crate) fn begin_commands(&mut self, commands: u64, ends: Nanos) {
        self.workload.left = commands;
        self.workload.ends = ends;
        self.at(self.now, WorldEvent::NextCommand(self.workload.chain));
    }

    /// Stops the submission of commands.
    pub(crate) const fn end_workload(&mut self) {
        self.workload.left = 0;
        self.workload.chain += 1;
    }

    pub(crate) fn submit_next(&mut self, chain: u64) {
        if self.workload.left == 0 || self.workload.chain != chain {
            return;
        }
        let kind = self.workload.draw_kind(&self.scenario);
        let id = self.judge.history.next_id();
        let key = self.workload.key(&self.scenario, id, kind != CommandKind::Get);
        let quorum = self.workload.quorum(&self.scenario, kind);
        let node = NodeIndex(self.workload.rng.below(u64::from(self.scenario.hosts())) as u8);
        let quorum = self.workload.quorum_of(&self.scenario, node, quorum);
        let node = self.host_for_client(node);
        self.submit_command(node, kind, key, quorum);
        self.workload.left -= 1;
        let gap = self.workload.next_gap(self.now);
        self.after(gap, WorldEvent::NextCommand(chain));
    }

    /// Submits a command to a node. A node that does not serve refuses it, and nothing is stored.
    pub(crate) fn submit_command(
        &mut self,
        node: NodeIndex,
        kind: CommandKind,
        key: Key,
        quorum: Quorum,
    ) -> RequestId {
        let id = self.judge.history.next_id();
        let (command_key, began) = (key.clone(), self.now);
        self.judge.begin(ClientOperation { id, node, kind, key, quorum, began, outcome: None });
        let Some(endpoint) = self.serving_endpoint(node) else {
            let outcome = ClientOutcome::Failed { is_not_stored: true, reason: "not serving".to_owned() };
            self.judge.end(id, self.now, outcome, None);
            return id;
        };
        let command = self.command_of(id, kind, command_key, quorum);
        self.at(self.now, WorldEvent::Command(endpoint, id, command));
        id
    }

    fn command_of(&mut self, id: RequestId, kind: CommandKind, key: Key, quorum: Quorum) -> Command {
        match kind {
            CommandKind::Get => Command::Get { key, quorum },
            CommandKind::Delete => Command::Delete { key, quorum },
            CommandKind::Put { ttl } => {
                let value = self.workload.value(&self.scenario, id);
                let lifetime = ttl.map_or(Lifetime::Forever, Lifetime::For);
                Command::Put { key, value, lifetime, quorum }
            }
        }
    }
}
