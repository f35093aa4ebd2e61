//! Hosts whose nodes join the cluster.
//!
//! As in the server, the node keeps its id and its request in its directory (`store`'s
//! `JoiningDirectory`). It asks one member by the shipped handshake, and has the directory take
//! over the decided record. Until then the host has no process of the cluster. The node may crash
//! between any two steps and at each file operation. Then an operator starts it again, and it asks
//! any member by the same id.
//!
//! A node that the cluster refuses gives up. If its id is that of a removed node, the operator
//! gives it an empty directory.

use super::members::{has_member_on, url_of};
use super::{World, WorldEvent};
use crate::Plant;
use crate::host::EndCause;
use crate::host::disk::DiskFaults;
use crate::host::handshake;
use crate::host::process::{DATA, ProcessInput};
use cluster::{
    CommandRefusal, EncodedRecord, FEATURE_LEVEL_PLANS, JoiningNode, LayoutCommand, LayoutCommandId,
    LayoutCommandOutcome, LayoutRecord, NodeIndex, Requester,
};
use env::{Env, FaultFs, MemFs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stdx::NodeTag;
use store::{JoinRequest, JoiningDirectory, StoreError};

/// Time for which a member tries to have the record decided.
const DECISION_TIME: Duration = Duration::from_secs(3);
/// Time for which a node waits for the answer of a member.
const ANSWER_TIME: Duration = Duration::from_secs(4);
/// Time between two attempts.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// Fraction of attempts that are killed after the node has asked, and the longest time until then.
const KILLED_SHARE: f64 = 0.2;
const KILLED_WITHIN: Duration = Duration::from_millis(30);
/// Fraction of attempts that end at one of their first file operations, and the number of those.
const STOPPED_SHARE: f64 = 0.2;
const FILE_OPERATIONS: u64 = 40;

/// A node that joins.
pub(crate) struct JoiningHost {
    /// Number of the attempt. Events of an earlier one have no effect.
    attempt: u64,
    /// The locked directory, while the attempt runs.
    directory: Option<JoiningDirectory>,
    /// Whether a member may still carry out a request of an earlier attempt.
    is_open: bool,
}

/// The end of an attempt to join.
#[derive(Debug)]
pub(crate) enum JoinEnd {
    /// The node is a member by this record.
    Member(Arc<LayoutRecord>),
    /// The cluster refuses the node.
    Refused(CommandRefusal),
    /// The layout cannot change now, or no member has answered.
    NotNow,
    /// The process of the joining node is killed, or its host loses power.
    Crashed(EndCause),
}

/// A command that makes a node a member, for the answer to that node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JoinCommand {
    host: NodeIndex,
    attempt: u64,
}

impl World {
    /// Begins to have the node of a host join, unless it runs or joins already.
    pub(crate) fn begin_join(&mut self, host: NodeIndex) {
        if self.host(host).process.is_some() || self.joins.contains_key(&host) {
            return;
        }
        self.host(host).joins = true;
        self.joins.insert(host, JoiningHost { attempt: 0, directory: None, is_open: false });
        self.at(self.now, WorldEvent::Join(host));
    }

    /// Whether a node is joining.
    pub(crate) fn has_joins(&self) -> bool {
        !self.joins.is_empty()
    }

    /// Whether the node of this host has to join before it can start.
    pub(crate) fn is_joining(&self, host: NodeIndex) -> bool {
        self.joins.contains_key(&host)
    }

    /// Has nodes join again that gave up although a later record has them as members.
    pub(super) fn resume_joins(&mut self) {
        let Some(record) = self.newest_record().cloned() else { return };
        for host in self.hosts_of_nodes().filter(|host| has_member_on(&record, *host)) {
            let waits = self.hosts[host.as_usize()].joins && !self.has_identity(host);
            if waits {
                self.begin_join(host);
            }
        }
    }

    /// Gives a host an empty directory for a node that is to join.
    pub(crate) fn empty_for_join(&mut self, host: NodeIndex) {
        self.host(host).disk = MemFs::new();
        self.judge.note_fresh_directory(host);
    }

    /// Whether the directory of a host has an identity, so that its node has been a member.
    pub(crate) fn has_identity(&self, host: NodeIndex) -> bool {
        let identity = Path::new(DATA).join(store::IDENTITY_FILE);
        self.hosts[host.as_usize()].disk.file_names().contains(&identity)
    }

    /// Begins an attempt to join: locks the directory, and asks a member.
    pub(super) fn try_to_join(&mut self, host: NodeIndex) {
        if self.scenario.plant == Some(Plant::JoiningIdForgotten) {
            self.host(host).disk = MemFs::new();
        }
        let Some(join) = self.joins.get_mut(&host).filter(|join| join.directory.is_none()) else { return };
        join.attempt += 1;
        let attempt = join.attempt;
        self.show_clocks(host);
        let members: Vec<NodeIndex> = self.nodes().filter(|member| *member != host).collect();
        let rng = &mut self.rngs.agreement;
        let member = members[rng.below(members.len().max(1) as u64) as usize];
        let (faults, new_tag) = (DiskFaults::new(rng.fork()), NodeTag(rng.next_u64()));
        let kills_after = rng.chance(KILLED_SHARE).then(|| rng.below(KILLED_WITHIN.as_nanos() as u64));
        let end_cause = if rng.chance(0.5) { EndCause::Kill } else { EndCause::PowerLoss };
        let stops_at = rng.chance(STOPPED_SHARE).then(|| rng.below(FILE_OPERATIONS));
        let state = &mut self.hosts[host.as_usize()];
        state.faults = faults;
        if let Some(operations) = stops_at {
            state.planned_stop = (end_cause, RETRY_AFTER);
            state.faults.stop_after(operations);
        }
        let fs = FaultFs::new(Arc::new(state.disk.clone()), state.faults.plan());
        let env = Env { fs: Arc::new(fs), clock: state.clock.shown() };
        let (zone, weight) = (format!("zone-{}", host.0 % 3), 1 + u16::from(host.0 % 2));
        let request = JoinRequest { member: url_of(member), own: url_of(host), zone, weight };
        let directory = match JoiningDirectory::begin(&env, Path::new(DATA), &request, new_tag) {
            Ok(directory) => directory,
            // An earlier attempt has completed the directory, and crashed after that.
            Err(StoreError::IdentityMissing { .. }) => return self.complete_join(host),
            Err(_) => return self.end_join_attempt(host, attempt, JoinEnd::NotNow),
        };
        let JoinRequest { member: member_url, own: url, zone, weight } = request;
        let node = JoiningNode {
            id: directory.tag(),
            url,
            zone,
            weight,
            feature_level_max: FEATURE_LEVEL_PLANS,
            member_url,
        };
        self.trace.note(self.now, || format!("{host:?} asks {member:?} to join: {node:?}"));
        if let Some(join) = self.joins.get_mut(&host) {
            join.directory = Some(directory);
        }
        if let Some(at) = self.network.signal(host, member, self.now) {
            self.at(at, WorldEvent::JoinAsked(host, attempt, member, Box::new(node)));
        }
        self.after(ANSWER_TIME, WorldEvent::JoinEnded(host, attempt, Box::new(JoinEnd::NotNow)));
        if let Some(after) = kills_after {
            let end = Box::new(JoinEnd::Crashed(end_cause));
            self.after(Duration::from_nanos(after), WorldEvent::JoinEnded(host, attempt, end));
        }
    }

    /// Lets a member handle the request of a node that joins.
    pub(super) fn join_asked(&mut self, host: NodeIndex, attempt: u64, member: NodeIndex, node: JoiningNode) {
        let endpoint = self.endpoint(member, Requester::Node).filter(|_| !self.network.is_refusing(member));
        let Some(endpoint) = endpoint else { return };
        let local = self.local(endpoint).expect("the process was just found");
        let (id, asked) = (node.id, handshake::ask_to_join(node, local, &mut self.rngs.agreement));
        let Ok(node) = asked else { return };
        if let Some(record) = self.record_with(member, id) {
            return self.answer_join(member, JoinCommand { host, attempt }, JoinEnd::Member(record));
        }
        let number = self.next_command_id();
        self.join_commands.insert((endpoint, number), (JoinCommand { host, attempt }, id));
        let command = LayoutCommand::Join(node);
        self.step(endpoint, ProcessInput::CommandLayout(number, command, DECISION_TIME));
    }

    /// The record of a member, if it has a node with this id as a member.
    fn record_with(&self, member: NodeIndex, id: NodeTag) -> Option<Arc<LayoutRecord>> {
        let has_id = |record: &Arc<LayoutRecord>| record.members.iter().any(|it| it.node_id == Some(id));
        self.adopted_layout(member).filter(has_id)
    }

    /// Number of the next command of an operator or of a joining node.
    pub(super) const fn next_command_id(&mut self) -> LayoutCommandId {
        self.layout_commands += 1;
        LayoutCommandId(self.layout_commands)
    }

    /// Answers the node that a command was to make a member, if it was such a command.
    pub(super) fn layout_command_ended(
        &mut self,
        endpoint: crate::network::Endpoint,
        number: LayoutCommandId,
        outcome: LayoutCommandOutcome,
    ) {
        let Some((command, id)) = self.join_commands.remove(&(endpoint, number)) else { return };
        let end = match outcome {
            LayoutCommandOutcome::Done { record, .. } => JoinEnd::Member(record),
            // It may have joined by another member meanwhile.
            LayoutCommandOutcome::Refused(refusal) => match self.record_with(endpoint.node, id) {
                Some(record) => JoinEnd::Member(record),
                None => JoinEnd::Refused(refusal),
            },
            LayoutCommandOutcome::NotDecided(_) | LayoutCommandOutcome::Unknown => JoinEnd::NotNow,
        };
        self.answer_join(endpoint.node, command, end);
    }

    fn answer_join(&mut self, member: NodeIndex, to: JoinCommand, end: JoinEnd) {
        if let Some(at) = self.network.signal(member, to.host, self.now) {
            self.at(at, WorldEvent::JoinEnded(to.host, to.attempt, Box::new(end)));
        }
    }

    /// Ends an attempt to join, and begins the next one unless the node is a member or gives up.
    pub(super) fn end_join_attempt(&mut self, host: NodeIndex, attempt: u64, end: JoinEnd) {
        let Some(join) = self.joins.get_mut(&host).filter(|join| join.attempt == attempt) else { return };
        self.trace.note(self.now, || format!("{host:?} joins: {end:?}"));
        join.attempt += 1;
        let Some(directory) = join.directory.take() else { return self.crash_if_stopped(host) };
        match end {
            JoinEnd::Member(record) => {
                let record = EncodedRecord::of(&record).decode().expect("a record of this release");
                match directory.complete(&record) {
                    Ok(()) => return self.complete_join(host),
                    // The node was removed before it had the record.
                    Err(StoreError::LayoutRefused { .. }) => {
                        self.joins.remove(&host);
                        return self.empty_for_join(host);
                    }
                    Err(_) => {}
                }
            }
            // The operator tries again, since the cluster has not named its first members yet.
            JoinEnd::Refused(CommandRefusal::NoPlans { .. }) if !self.nemesis.is_over() => {}
            JoinEnd::Refused(refusal) => {
                let is_open = join.is_open;
                // A failure keeps the request, and with it the id.
                let _ = if is_open { Ok(()) } else { directory.withdraw() };
                self.joins.remove(&host);
                if refusal == CommandRefusal::FormerNode {
                    self.empty_for_join(host);
                }
                return self.resume_joins();
            }
            JoinEnd::NotNow => join.is_open = true,
            JoinEnd::Crashed(end_cause) => {
                join.is_open = true;
                drop(directory);
                return self.crash_joiner(host, end_cause);
            }
        }
        self.crash_if_stopped(host);
    }

    /// Lets the node of a host that joins crash. Its next attempt begins later.
    pub(super) fn crash_joiner(&mut self, host: NodeIndex, end_cause: EndCause) {
        let Some(join) = self.joins.get_mut(&host) else { return };
        join.attempt += 1;
        join.directory = None;
        join.is_open = true;
        let state = &mut self.hosts[host.as_usize()];
        state.disk = super::processes::disk_after(&state.disk, end_cause, &mut self.rngs.agreement);
        self.after(RETRY_AFTER, WorldEvent::Join(host));
    }

    fn crash_if_stopped(&mut self, host: NodeIndex) {
        if self.host(host).faults.has_stopped() {
            let end_cause = self.host(host).planned_stop.0;
            return self.crash_joiner(host, end_cause);
        }
        self.after(RETRY_AFTER, WorldEvent::Join(host));
    }

    /// Starts the node of a host whose directory belongs to the cluster.
    fn complete_join(&mut self, host: NodeIndex) {
        self.joins.remove(&host);
        self.at(self.now, WorldEvent::Start(host));
    }
}
