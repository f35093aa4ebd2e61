//! Nodes of the simulated cluster that take part in the agreement, with their disks.
//!
//! Each adopted record is checked: it is the only one of its epoch that is not forgotten, the child
//! of the one before, and durable.

use crate::world::{MILLISECOND, PARTITIONS, SECOND, World};
use cluster::{
    AcceptorState, AgreementEffect, ChainRequest, ChainVote, ClusterOrigin, EncodedRecord, Layout,
    LayoutCommand, LayoutCommandId, LayoutCommandOutcome, LayoutConflict, LayoutEpoch, LayoutRecord,
    LayoutRecordError, Message, Node, NodeIndex, NodeRequest, NodeResponse, PeerAnswer, PeerRequest,
    ProposalOutcome, ProposeError, VoteHistory, VoterState,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Instant, NodeTag};

/// Time after which a proposal ends.
pub(crate) const WITHIN: Duration = Duration::from_secs(5);
/// Time that a disk takes, unless a test says otherwise.
const DISK_LATENCY: Duration = Duration::from_millis(3);

/// Behavior of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disk {
    Works,
    /// Nothing becomes durable, and no outcome is reported.
    Hangs,
    /// Nothing becomes durable.
    Fails,
    /// States become durable, and that is not reported.
    KeepsSilent,
}

/// The disk of a host, for the state of its voter.
pub(crate) struct VoterDisk {
    pub(crate) state: VoterState,
    pub(crate) mode: Disk,
    /// The state that is being stored, its number, and the time at which it is durable.
    in_flight: Option<(Instant, u64, VoterState)>,
}

pub(crate) struct Cluster {
    pub(crate) world: World,
    pub(crate) disks: Vec<VoterDisk>,
    /// Time that each disk takes.
    pub(crate) disk_latency: Duration,
    /// Whether nodes propose records by themselves.
    pub(crate) reconciles: bool,
    /// Hosts that take part in the agreement.
    pub(crate) joins: Vec<bool>,
    /// Effects of each host but requests to store.
    pub(crate) effects: Vec<Vec<AgreementEffect>>,
    /// The record that a new directory begins with.
    first: LayoutRecord,
    /// The record of each epoch that was adopted anywhere and is not forgotten.
    decided: BTreeMap<LayoutEpoch, Arc<LayoutRecord>>,
}

pub(crate) fn first(hosts: usize) -> LayoutRecord {
    let nodes = (0..hosts).map(|host| format!("http://node{host:02}:8080")).collect();
    first_of(nodes, hosts.min(3) as u8)
}

pub(crate) fn first_of(nodes: Vec<String>, default_from: u8) -> LayoutRecord {
    LayoutRecord::first(ClusterOrigin {
        nodes,
        partitions: PARTITIONS,
        hash_version: 1,
        default_from,
        tag: NodeTag(1),
    })
    .expect("a small cluster")
}

pub(crate) fn new_state(record: LayoutRecord) -> VoterState {
    VoterState { history: VoteHistory::Complete, acceptor: AcceptorState::of(Arc::new(record)) }
}

/// Epoch 1 of hosts, with the ids that they begin with: a majority of voters decides on its child.
pub(crate) fn named(hosts: usize) -> LayoutRecord {
    let mut record = first(hosts);
    for (member, tag) in record.members.iter_mut().zip(1..) {
        member.node_id = Some(NodeTag(tag));
    }
    record
}

impl Cluster {
    pub(crate) fn new(hosts: usize, seed: u64) -> Self {
        Self::of(named(hosts), seed)
    }

    /// A cluster whose nodes begin with the record that is built from their list.
    pub(crate) fn without_ids(hosts: usize, seed: u64) -> Self {
        Self::of(first(hosts), seed)
    }

    /// A cluster whose nodes begin with this record.
    pub(crate) fn of(first: LayoutRecord, seed: u64) -> Self {
        let hosts = first.members.len();
        let disk = |_| VoterDisk { state: new_state(first.clone()), mode: Disk::Works, in_flight: None };
        Self {
            world: World::new(hosts, seed),
            disks: (0..hosts).map(disk).collect(),
            disk_latency: DISK_LATENCY,
            reconciles: false,
            joins: vec![true; hosts],
            effects: vec![Vec::new(); hosts],
            decided: BTreeMap::from([(first.epoch, Arc::new(first.clone()))]),
            first,
        }
    }

    pub(crate) fn started(hosts: usize, seed: u64) -> Self {
        let mut cluster = Self::new(hosts, seed);
        cluster.start_all();
        cluster
    }

    pub(crate) fn start_all(&mut self) {
        (0..self.disks.len()).for_each(|host| self.start(host));
        self.run(2 * SECOND);
    }

    /// Adds a host for the last member of a record, which its directory holds. It is not started.
    pub(crate) fn add_host(&mut self, record: &LayoutRecord) {
        self.world.add_host(record);
        let state = new_state(record.clone());
        self.disks.push(VoterDisk { state, mode: Disk::Works, in_flight: None });
        self.joins.push(true);
        self.effects.push(Vec::new());
    }

    pub(crate) fn start(&mut self, host: usize) {
        self.world.start(host);
        self.disks[host].in_flight = None;
        if self.joins[host] {
            let (now, state) = (self.world.now_at(host), self.disks[host].state.clone());
            self.node_mut(host).join_agreement(now, state);
            if !self.reconciles {
                self.node_mut(host).pause_reconciliation();
            }
            self.world.carry_out_effects(host);
            self.carry_out(host);
        }
    }

    pub(crate) fn crash(&mut self, host: usize) {
        self.world.crash(host);
        self.disks[host].in_flight = None;
    }

    /// Kills the process of a host and deletes its directory. The next start has a new identity. A
    /// record that no other directory has is forgotten.
    pub(crate) fn lose_disk(&mut self, host: usize) {
        self.crash(host);
        self.world.lose_disk(host);
        self.disks[host].state = new_state(self.first.clone());
        let epochs = self.disks.iter().map(|disk| disk.state.acceptor.decided.epoch);
        let newest = epochs.max().expect("there are hosts");
        self.decided.retain(|epoch, _| *epoch <= newest);
    }

    /// Puts the directory of a host back to its present state, after two later starts, and runs it
    /// until it has found that out and is rebuilt.
    pub(crate) fn roll_back(&mut self, host: usize) {
        let (older, votes) = (self.world.hosts[host].store.clone(), self.disks[host].state.clone());
        for _ in 0..2 {
            self.crash(host);
            self.start(host);
            self.run(3 * SECOND);
        }
        self.crash(host);
        self.world.roll_back(host, &older);
        self.disks[host].state = votes;
        self.start(host);
        self.run(20 * SECOND);
    }

    /// Tells a host that the node in a slot states this URL.
    pub(crate) fn state_url(&mut self, host: usize, slot: usize, url: &str) -> Result<(), LayoutRecordError> {
        let now = self.world.now_at(host);
        let id = self.world.hosts.get(slot).map_or(NodeTag(0), |host| host.tag);
        let stated = self.node_mut(host).record_stated_url(now, NodeIndex(slot as u8), id, url.to_owned());
        self.world.carry_out_effects(host);
        self.carry_out(host);
        stated
    }

    /// A host follows the record that it has adopted. Its coordinators have not fenced it yet.
    pub(crate) fn follow(&mut self, host: usize) {
        let (now, layout) = (self.world.now_at(host), Layout::of_record(&self.adopted(host)));
        self.node_mut(host).handle_layout(now, Arc::new(layout));
        self.world.carry_out_effects(host);
        self.carry_out(host);
    }

    /// A host follows the record that it has adopted, and reports that its coordinators have fenced
    /// an epoch.
    pub(crate) fn state_fenced(&mut self, host: usize, epoch: LayoutEpoch) {
        let (now, layout) = (self.world.now_at(host), Layout::of_record(&self.adopted(host)));
        let node = self.node_mut(host);
        node.handle_layout(now, Arc::new(layout));
        node.handle_coordinators_fenced(now, epoch);
        self.world.carry_out_effects(host);
        self.carry_out(host);
    }

    /// Tells a host whether its disk has space for values.
    pub(crate) fn set_disk_full(&mut self, host: usize, is_full: bool) {
        let now = self.world.now_at(host);
        self.node_mut(host).handle_disk_full(now, is_full);
        self.world.carry_out_effects(host);
        self.carry_out(host);
    }

    pub(crate) fn is_running(&self, host: usize) -> bool {
        self.world.hosts[host].node.is_some()
    }

    pub(crate) fn node(&self, host: usize) -> &Node {
        self.world.hosts[host].node.as_ref().expect("the host runs")
    }

    fn node_mut(&mut self, host: usize) -> &mut Node {
        self.world.hosts[host].node.as_mut().expect("the host runs")
    }

    pub(crate) fn run(&mut self, duration: Duration) {
        let end = self.world.now + duration;
        while self.world.now < end {
            self.world.run(MILLISECOND);
            for host in 0..self.disks.len() {
                if self.is_running(host) {
                    self.report_stored(host);
                    self.carry_out(host);
                }
            }
        }
    }

    fn report_stored(&mut self, host: usize) {
        let now = self.world.now_at(host);
        let disk = &mut self.disks[host];
        let is_due = |stored: &mut (Instant, u64, VoterState)| stored.0 <= now.mono;
        if disk.mode == Disk::Hangs {
            return;
        }
        let Some((_, revision, state)) = disk.in_flight.take_if(is_due) else { return };
        let is_durable = disk.mode != Disk::Fails;
        if is_durable {
            assert!(state.history >= disk.state.history, "a history never becomes complete again");
            assert!(state.acceptor.decided.epoch >= disk.state.acceptor.decided.epoch);
            disk.state = state;
        }
        if disk.mode != Disk::KeepsSilent {
            self.node_mut(host).handle_voter_persisted(now, revision, is_durable);
            self.world.carry_out_effects(host);
        }
    }

    /// Carries out the effects of a host's agreement.
    fn carry_out(&mut self, host: usize) {
        while let Some(effect) = self.node_mut(host).poll_agreement_effect() {
            match effect {
                AgreementEffect::Persist { revision, state } => {
                    let disk = &mut self.disks[host];
                    let is_alone = disk.in_flight.is_none() || disk.mode == Disk::KeepsSilent;
                    assert!(is_alone, "one state is stored at a time");
                    disk.in_flight = Some((self.world.now + self.disk_latency, revision, state));
                }
                AgreementEffect::Adopted(record) => {
                    assert_eq!(self.disks[host].state.acceptor.decided, record, "it is durable");
                    self.check(&record);
                    self.effects[host].push(AgreementEffect::Adopted(record));
                }
                effect => self.effects[host].push(effect),
            }
        }
    }

    fn check(&mut self, record: &Arc<LayoutRecord>) {
        let known = self.decided.entry(record.epoch).or_insert_with(|| Arc::clone(record));
        assert_eq!(known, record, "two records of epoch {}", record.epoch);
        if let Some(parent) = self.decided.get(&LayoutEpoch(record.epoch.0 - 1)) {
            assert_eq!(record.verify(parent), Ok(()));
        }
    }

    /// A child of the record that a host has adopted.
    pub(crate) fn child(&self, host: usize, change: impl FnOnce(&mut LayoutRecord)) -> LayoutRecord {
        let parent = &self.disks[host].state.acceptor.decided;
        let mut child = LayoutRecord {
            epoch: parent.epoch.next().expect("small"),
            parent: parent.hash(),
            ..(**parent).clone()
        };
        change(&mut child);
        child
    }

    pub(crate) fn propose_record(&mut self, host: usize, record: LayoutRecord) -> Result<(), ProposeError> {
        self.propose_record_within(host, record, WITHIN)
    }

    fn propose_record_within(
        &mut self,
        host: usize,
        record: LayoutRecord,
        within: Duration,
    ) -> Result<(), ProposeError> {
        let now = self.world.now_at(host);
        let proposed = self.node_mut(host).propose_layout(now, record, within);
        self.world.carry_out_effects(host);
        self.carry_out(host);
        proposed
    }

    /// Proposes a child of a host's record that names the zone of its first member.
    pub(crate) fn propose(&mut self, host: usize, zone: &str) -> Result<Arc<LayoutRecord>, ProposeError> {
        self.propose_within(host, zone, WITHIN)
    }

    pub(crate) fn propose_within(
        &mut self,
        host: usize,
        zone: &str,
        within: Duration,
    ) -> Result<Arc<LayoutRecord>, ProposeError> {
        let record = self.child(host, |record| record.members[0].zone = zone.to_owned());
        self.propose_record_within(host, record.clone(), within).map(|()| Arc::new(record))
    }

    pub(crate) fn adopted(&self, host: usize) -> Arc<LayoutRecord> {
        Arc::clone(self.node(host).adopted_layout().expect("it takes part"))
    }

    /// The adopted epoch of each host, by its disk.
    pub(crate) fn epochs(&self) -> Vec<u64> {
        self.disks.iter().map(|disk| disk.state.acceptor.decided.epoch.0).collect()
    }

    /// The epochs that a host has adopted.
    pub(crate) fn adopted_by(&self, host: usize) -> Vec<LayoutEpoch> {
        let epoch = |effect: &AgreementEffect| match effect {
            AgreementEffect::Adopted(record) => Some(record.epoch),
            _ => None,
        };
        self.effects[host].iter().filter_map(epoch).collect()
    }

    pub(crate) fn outcomes(&self, host: usize) -> Vec<ProposalOutcome> {
        let outcome = |effect: &AgreementEffect| match effect {
            AgreementEffect::ProposalEnded(outcome) => Some(outcome.clone()),
            _ => None,
        };
        self.effects[host].iter().filter_map(outcome).collect()
    }

    /// Has a host begin a command.
    pub(crate) fn command(
        &mut self,
        host: usize,
        id: u64,
        command: LayoutCommand,
        within: Duration,
    ) -> Result<(), ProposeError> {
        let now = self.world.now_at(host);
        let begun = self.node_mut(host).begin_layout_command(now, LayoutCommandId(id), command, within);
        self.world.carry_out_effects(host);
        self.carry_out(host);
        begun
    }

    /// The commands of a host that have ended.
    pub(crate) fn command_outcomes(&self, host: usize) -> Vec<(u64, LayoutCommandOutcome)> {
        let outcome = |effect: &AgreementEffect| match effect {
            AgreementEffect::CommandEnded { id, outcome } => Some((id.0, outcome.clone())),
            _ => None,
        };
        self.effects[host].iter().filter_map(outcome).collect()
    }

    pub(crate) fn conflicts(&self, host: usize) -> Vec<LayoutConflict> {
        let conflict = |effect: &AgreementEffect| match effect {
            AgreementEffect::Conflict(conflict) => Some(*conflict),
            _ => None,
        };
        self.effects[host].iter().filter_map(conflict).collect()
    }

    /// The epochs in the heartbeats that a host has sent, without repetitions.
    pub(crate) fn stamps_sent_by(&self, host: usize) -> Vec<u64> {
        let stamp = |message: &Message| match message {
            Message::Request { request: PeerRequest::Node(NodeRequest::Heartbeat(payload)), .. }
            | Message::Answer { answer: PeerAnswer::Node(NodeResponse::Heartbeat(payload)), .. } => {
                payload.layout
            }
            _ => None,
        };
        let sent = self.world.sent.iter().filter(|(from, ..)| *from == host);
        let mut epochs: Vec<u64> =
            sent.filter_map(|(.., message)| stamp(message)).map(|stamp| stamp.epoch.0).collect();
        epochs.dedup();
        epochs
    }

    /// The records that a host has asked its peers to accept, with their ballots.
    pub(crate) fn proposed_by(&self, host: usize) -> Vec<ChainVote<EncodedRecord>> {
        let proposed = |message: &Message| match message {
            Message::Request {
                request: PeerRequest::Node(NodeRequest::Chain(ChainRequest::Accept(vote))),
                ..
            } => Some(vote.clone()),
            _ => None,
        };
        let sent = self.world.sent.iter().filter(|(from, ..)| *from == host);
        sent.filter_map(|(.., message)| proposed(message)).collect()
    }

    /// Sender and receiver of each message of the agreement but heartbeats.
    pub(crate) fn chain_messages(&self) -> impl Iterator<Item = (usize, usize)> {
        let is_chain = |message: &Message| match message {
            Message::Request { request, .. } => {
                matches!(request, PeerRequest::Node(NodeRequest::Chain(_) | NodeRequest::ReadLayout))
            }
            Message::Answer { answer, .. } => {
                matches!(answer, PeerAnswer::Node(NodeResponse::Chain(_) | NodeResponse::Layout(_)))
            }
        };
        let messages = self.world.sent.iter().filter(move |(.., message)| is_chain(message));
        messages.map(|(from, to, _)| (*from, *to))
    }
}
