//! Steps of state machines: their inputs, and the execution of their effects.

use super::{PAGE_WITHIN, World, WorldEvent};
use crate::Plant;
use crate::history::{ClientOutcome, ScanHistory};
use crate::host::Host;
use crate::host::layout_plants;
use crate::host::plant_state::{self, SendOutcome};
use crate::host::process::{HostProcess, ProcessInput, REQUEST_TIMEOUT};
use crate::network::Endpoint;
use crate::packet::Packet;
use cluster::{
    Command, Destination, DialFailure, Effect, Event as Notice, LinkAction, Message, NodeIndex, Origin,
    PeerRequest, ReplicaRequest, Reply, RequestId, Requester, StoreId, StoreRequest, StoreResponse,
};
use limits::Deadline;
use std::collections::BTreeMap;
use std::time::Duration;
use stdx::{Instant, Now};
use store::WriteGroup;
use wire::PROTOCOL_VERSION;

/// Greatest delay of a reply after its deadline.
const REPLY_SLACK: Duration = Duration::from_millis(50);
/// Longest delay between threads of a process, in nanoseconds.
pub(super) const THREAD_DELAY_MAX_NANOS: u64 = 200_000;

/// Output of one step of a state machine.
struct StepOutput {
    endpoint: Endpoint,
    group: WriteGroup,
    /// Deadline of the last write of the group.
    group_deadline: Deadline,
    sent: BTreeMap<Destination, Vec<Message>>,
}

impl StepOutput {
    fn send(&mut self, to: Destination, message: Message) {
        self.sent.entry(to).or_default().push(message);
    }
}

impl World {
    /// Gives a state machine its input and executes its effects. Does nothing if the endpoint's
    /// generation has ended.
    pub(crate) fn step(&mut self, endpoint: Endpoint, input: ProcessInput) {
        let now = self.show_clocks(endpoint.node);
        self.trace.note(self.now, || format!("  {endpoint:?} <- {input:?}"));
        let input = self.alter_input(endpoint, now, input);
        let Some(process) = self.process(endpoint) else { return };
        let effects = process.handle(now, endpoint.requester, input);
        let (group, sent) = (process.write_group(), BTreeMap::new());
        let mut output = StepOutput { endpoint, group, group_deadline: Deadline::at(Instant::ZERO), sent };
        for effect in effects {
            self.trace.note(self.now, || format!("  {endpoint:?} -> {effect:?}"));
            self.carry_out(&mut output, effect);
        }
        self.carry_out_agreement(endpoint);
        self.submit_group(endpoint, output.group, output.group_deadline);
        self.send_packets(endpoint, output.sent);
        self.arm_timer(endpoint);
    }

    /// Lets a planted bug change the input of a state machine.
    fn alter_input(&mut self, endpoint: Endpoint, now: Now, mut input: ProcessInput) -> ProcessInput {
        let plant = self.scenario.plant;
        if let ProcessInput::Message(_, message, _) = &mut input
            && plant.is_some()
        {
            let Host { process: Some(process), plant_state, .. } = self.host(endpoint.node) else {
                return input;
            };
            plant_state.hide_future_versions(plant, now, &process.member.clock, message);
            let own = (process.member.tag, process.member.incarnation);
            layout_plants::alter_received(plant, own, &mut input);
        }
        input
    }

    /// Schedules the timer of a state machine.
    pub(crate) fn arm_timer(&mut self, endpoint: Endpoint) {
        let host = self.host(endpoint.node);
        let Some(process) = host.process.as_mut().filter(|process| process.generation == endpoint.generation)
        else {
            return;
        };
        let Some(wants) = process.poll_timeout(endpoint.requester) else { return };
        let at = host.clock.when(wants);
        if process.timers.get(&endpoint.requester).is_none_or(|set| at < *set) {
            process.timers.insert(endpoint.requester, at);
            self.at(at, WorldEvent::Timer(endpoint));
        }
    }

    pub(super) fn fire_timer(&mut self, endpoint: Endpoint) {
        let now = self.now;
        let host = self.host(endpoint.node);
        let Some(process) = host.process.as_mut().filter(|process| process.generation == endpoint.generation)
        else {
            return;
        };
        process.timers.remove(&endpoint.requester);
        let is_due =
            process.poll_timeout(endpoint.requester).is_some_and(|wants| host.clock.when(wants) <= now);
        if is_due {
            self.step(endpoint, ProcessInput::Timeout);
        } else {
            self.arm_timer(endpoint);
        }
    }

    pub(crate) fn command(&mut self, endpoint: Endpoint, id: RequestId, command: Command) {
        if self.process(endpoint).is_none() {
            // The client got its outcome when the process ended.
            return;
        }
        let command = plant_state::alter_command(self.scenario.plant, command, self.scenario.nodes);
        self.step(endpoint, ProcessInput::Submit(id, command));
        let within = if ScanHistory::is_page_id(id) { PAGE_WITHIN } else { REQUEST_TIMEOUT + REPLY_SLACK };
        self.after(within, WorldEvent::ReplyDue(endpoint, id));
    }

    pub(super) fn stored(&mut self, endpoint: Endpoint, id: StoreId, response: StoreResponse) {
        self.step(endpoint, ProcessInput::Stored(id, response));
    }

    pub(super) fn view(&mut self, endpoint: Endpoint) {
        self.step(endpoint, ProcessInput::View);
    }

    fn carry_out(&mut self, output: &mut StepOutput, effect: Effect) {
        let endpoint = output.endpoint;
        match effect {
            Effect::Store { id, request, deadline } if request.is_read() => {
                self.start_read(endpoint, id, request, deadline);
            }
            Effect::Store { id, request, deadline } => {
                output.group_deadline = output.group_deadline.max(deadline);
                self.add_write(output, id, request);
            }
            Effect::Send { to, message } => self.send(output, to, message),
            Effect::Reply { to, reply, .. } => self.reply(endpoint, to, &reply),
            Effect::Link(action) => self.link_action(endpoint, action),
            Effect::Publish(_) => self.publish(endpoint),
            Effect::Event(notice) => self.notice(endpoint, notice),
        }
    }

    fn add_write(&mut self, output: &mut StepOutput, id: StoreId, mut request: StoreRequest) {
        let endpoint = output.endpoint;
        let plant = self.scenario.plant;
        self.host(endpoint.node).plant_state.restore_versions(&mut request);
        self.note_issued(endpoint, &request);
        if let StoreRequest::Replica(ReplicaRequest::Write { key, cell, .. }) = &request {
            let member = self.member_of(endpoint.node);
            self.judge.note_write_request(member, key, &cell.meta);
        }
        if let Some(early) = self.host(endpoint.node).plant_state.alter_write(plant, &mut request) {
            return self.send_to_thread(WorldEvent::Stored(endpoint, id, early));
        }
        if let StoreRequest::Replica(ReplicaRequest::Write { key, cell, .. }) = &request
            && let Some(process) = self.process(endpoint)
        {
            process.writes.insert((endpoint.requester, id), (key.clone(), cell.meta.version));
        }
        output.group.add(id, &request);
        if let Some(early) =
            self.host(endpoint.node).plant_state.early_answer(plant, (endpoint.requester, id), &request)
        {
            self.send_to_thread(WorldEvent::Stored(endpoint, id, early));
        }
    }

    /// Records a cell as issued if its version has the tag of the node that stores or sends it.
    fn note_issued(&mut self, endpoint: Endpoint, request: &StoreRequest) {
        let StoreRequest::Replica(ReplicaRequest::Write { key, cell, .. }) = request else { return };
        let tag = self.process(endpoint).map(|process| process.member.tag);
        if tag == Some(cell.meta.version.tag) && endpoint.requester != Requester::Node {
            self.judge.note_issued(endpoint.node, key, cell);
        }
    }

    /// Sends an event to another thread of the process.
    pub(crate) fn send_to_thread(&mut self, event: WorldEvent) {
        let delay = Duration::from_nanos(self.rngs.machines.below(THREAD_DELAY_MAX_NANOS));
        self.after(delay, event);
    }

    fn send(&mut self, output: &mut StepOutput, to: Destination, mut message: Message) {
        let (endpoint, plant) = (output.endpoint, self.scenario.plant);
        self.host(endpoint.node).plant_state.alter_peer_request(plant, &mut message);
        if plant.is_some()
            && let Some(process) = self.process(endpoint)
        {
            layout_plants::alter_sent(plant, process.member.tag, &mut message);
        }
        if plant == Some(Plant::EarlierCopyStated) {
            let record = self.adopted_layout(endpoint.node);
            let host = self.host(endpoint.node);
            if let Some(record) = record {
                let (me, stated) = (host.member, &mut host.stated_copies);
                layout_plants::state_earlier_copies(&mut message, me, &record, stated);
            }
        }
        self.note_vote(endpoint, &message);
        if let Message::Request {
            request: PeerRequest::Replica(ReplicaRequest::Write { key, cell, .. }),
            ..
        } = &message
        {
            let request = StoreRequest::Replica(ReplicaRequest::Write {
                key: key.clone(),
                cell: cell.clone(),
                hints: cluster::NodeSet::EMPTY,
            });
            self.note_issued(endpoint, &request);
        }
        let Some(process) = self.process(endpoint) else { return };
        let tag = process.member.tag;
        if let Some(answer) =
            self.host(endpoint.node).plant_state.answer_write_back(plant, endpoint.requester, &message, tag)
        {
            return self.answer_instead(endpoint, to, &message, answer);
        }
        let effect = Effect::Send { to, message };
        let sent = plant_state::alter_send(plant, &effect, tag, &self.layout);
        let Effect::Send { message, .. } = effect else { unreachable!("the effect is a message") };
        match sent {
            SendOutcome::Unchanged => output.send(to, message),
            SendOutcome::Answered(answer) => self.answer_instead(endpoint, to, &message, *answer),
            SendOutcome::Duplicated(other) => {
                output.send(Destination::Dialed(other), message.clone());
                output.send(to, message);
            }
        }
    }

    fn answer_instead(
        &mut self,
        endpoint: Endpoint,
        to: Destination,
        message: &Message,
        answer: cluster::PeerAnswer,
    ) {
        let (Destination::Dialed(node), Message::Request { id, .. }) = (to, message) else { return };
        let Some(connection) = self
            .process(endpoint)
            .and_then(|process| process.dialed.get(&(endpoint.requester, node)).copied())
        else {
            return;
        };
        let packet = Packet::of(PROTOCOL_VERSION, stdx::Hlc::ZERO, &[Message::Answer { id: *id, answer }]);
        self.send_to_thread(WorldEvent::Packet(connection, crate::network::ConnectionSide::Dialer, packet));
    }

    fn reply(&mut self, endpoint: Endpoint, to: RequestId, reply: &Reply) {
        let plant = self.scenario.plant;
        let times = self.host(endpoint.node).plant_state.reply_count(plant, reply);
        let wall = self.show_clocks(endpoint.node).wall;
        self.judge.check_replier(endpoint);
        for _ in 0..times {
            match ScanHistory::is_page_id(to) {
                true => self.receive_page(endpoint, to, reply),
                false => {
                    let reply = plant_state::alter_reply(plant, reply, self.judge.history.get(to));
                    self.judge.reply(to, &reply);
                    self.judge.end(to, self.now, ClientOutcome::of(&reply), Some(wall));
                }
            }
        }
    }

    fn publish(&mut self, endpoint: Endpoint) {
        let Some(process) = self.process(endpoint) else { return };
        let coordinators: Vec<Requester> =
            process.requesters().filter(|requester| *requester != Requester::Node).collect();
        for requester in coordinators {
            self.send_to_thread(WorldEvent::View(Endpoint { requester, ..endpoint }));
        }
    }

    fn notice(&mut self, endpoint: Endpoint, notice: Notice) {
        if let Some(process) = self.process(endpoint)
            && matches!(notice, Notice::HintDropped { .. })
        {
            process.hints_dropped += 1;
            self.judge.hints_dropped += 1;
        }
    }

    fn link_action(&mut self, endpoint: Endpoint, action: LinkAction) {
        match action {
            LinkAction::Dial(node) => self.dial(endpoint, node),
            LinkAction::HangUp(node) => self.hang_up(endpoint, node),
            LinkAction::Dismiss(node) => self.dismiss(endpoint, node),
            LinkAction::Admit(link) => self.admit(endpoint, link),
            LinkAction::Refuse(link) => self.refuse(endpoint, link, DialFailure::NotAdmitted),
            LinkAction::RefuseCopy(link) => self.refuse(endpoint, link, DialFailure::Copy),
        }
    }
}

/// Origin of a message of the member `node`, as the state machine at this end of its connection
/// sees it.
pub(super) fn origin(
    node: NodeIndex,
    connection: crate::network::ConnectionId,
    side: crate::network::ConnectionSide,
) -> Origin {
    let link = match side {
        crate::network::ConnectionSide::Dialer => Destination::Dialed(node),
        crate::network::ConnectionSide::Acceptor => Destination::Accepted(HostProcess::link_of(connection)),
    };
    Origin { node, link }
}
