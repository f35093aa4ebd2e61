//! Turns of machines: what they are given, and what becomes of what they want done.

use super::{Event, PAGE_WITHIN, World};
use crate::history::{Scans, Told};
use crate::host::Host;
use crate::host::planted::{self, Sent};
use crate::host::process::{Input, Process, REQUEST_TIMEOUT};
use crate::network::Place;
use crate::packet::Packet;
use cluster::{
    Command, Destination, DialFailure, Effect, Event as Notice, LinkAction, Message, NodeIndex, Origin,
    PeerRequest, Reply, RequestId, Requester, StoreId, StoreRequest, StoreResponse,
};
use std::collections::BTreeMap;
use std::time::Duration;
use stdx::{Instant, Now};
use store::WriteGroup;

/// A reply may be so late past its deadline.
const REPLY_SLACK: Duration = Duration::from_millis(50);
/// Between threads of a process, at most.
const HAND_OVER_MAX_NANOS: u64 = 200_000;

/// The deadline of a write that is to be done whenever.
const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// What one turn of a machine gathers.
struct Turn {
    place: Place,
    group: WriteGroup,
    /// When nobody waits for any write of the group any more.
    group_deadline: Instant,
    sent: BTreeMap<Destination, Vec<Message>>,
}

impl Turn {
    fn send(&mut self, to: Destination, message: Message) {
        self.sent.entry(to).or_default().push(message);
    }
}

impl World {
    /// Gives a machine its input and carries out what it wants done. Nothing happens when its life is over.
    pub(crate) fn turn(&mut self, place: Place, input: Input) {
        let now = self.show_clocks(place.node);
        self.trace.note(self.now, || format!("  {place:?} <- {input:?}"));
        let input = self.disguise(place, now, input);
        let Some(process) = self.process(place) else { return };
        let effects = process.handle(now, place.requester, input);
        let (group, sent) = (process.write_group(), BTreeMap::new());
        let mut turn = Turn { place, group, group_deadline: Instant::ZERO, sent };
        for effect in effects {
            self.trace.note(self.now, || format!("  {place:?} -> {effect:?}"));
            self.carry_out(&mut turn, effect);
        }
        self.submit_group(place, turn.group, turn.group_deadline);
        self.send_packets(place, turn.sent);
        self.arm(place);
    }

    /// Has a planted bug change what a machine is given.
    fn disguise(&mut self, place: Place, now: Now, mut input: Input) -> Input {
        let plant = self.scenario.plant;
        if let Input::Message(_, message, _) = &mut input
            && plant.is_some()
        {
            let Host { process: Some(process), planted, .. } = self.host(place.node) else { return input };
            planted.disguise(plant, now, &process.member.clock, message);
        }
        input
    }

    /// Has the machine woken when it wants to be.
    pub(crate) fn arm(&mut self, place: Place) {
        let host = self.host(place.node);
        let Some(process) = host.process.as_mut().filter(|process| process.life == place.life) else {
            return;
        };
        let Some(wants) = process.poll_timeout(place.requester) else { return };
        let at = host.clock.when(wants);
        if process.wakes.get(&place.requester).is_none_or(|set| at < *set) {
            process.wakes.insert(place.requester, at);
            self.at(at, Event::Wake(place));
        }
    }

    pub(super) fn wake(&mut self, place: Place) {
        let now = self.now;
        let host = self.host(place.node);
        let Some(process) = host.process.as_mut().filter(|process| process.life == place.life) else {
            return;
        };
        process.wakes.remove(&place.requester);
        let is_due = process.poll_timeout(place.requester).is_some_and(|wants| host.clock.when(wants) <= now);
        if is_due {
            self.turn(place, Input::Timeout);
        } else {
            self.arm(place);
        }
    }

    pub(crate) fn command(&mut self, place: Place, id: RequestId, command: Command) {
        if self.process(place).is_none() {
            // It was told so when the process ended.
            return;
        }
        let command = planted::command(self.scenario.plant, command, self.scenario.nodes);
        self.turn(place, Input::Submit(id, command));
        let within = if Scans::asked(id) { PAGE_WITHIN } else { REQUEST_TIMEOUT + REPLY_SLACK };
        self.after(within, Event::ReplyDue(place, id));
    }

    pub(super) fn stored(&mut self, place: Place, id: StoreId, response: StoreResponse) {
        self.turn(place, Input::Stored(id, response));
    }

    pub(super) fn view(&mut self, place: Place) {
        self.turn(place, Input::View);
    }

    fn carry_out(&mut self, turn: &mut Turn, effect: Effect) {
        let place = turn.place;
        match effect {
            Effect::Store { id, request, deadline } if request.is_read() => {
                self.ask_to_read(place, id, request, deadline);
            }
            Effect::Store { id, request, deadline } => {
                turn.group_deadline = turn.group_deadline.max(deadline.unwrap_or(NEVER));
                self.ask_to_write(turn, id, request);
            }
            Effect::Send { to, message } => self.send(turn, to, message),
            Effect::Reply { to, reply, .. } => self.reply(place, to, &reply),
            Effect::Link(action) => self.link_action(place, action),
            Effect::Publish(_) => self.publish(place),
            Effect::Event(notice) => self.notice(place, notice),
        }
    }

    fn ask_to_write(&mut self, turn: &mut Turn, id: StoreId, mut request: StoreRequest) {
        let place = turn.place;
        let plant = self.scenario.plant;
        self.host(place.node).planted.unmask(&mut request);
        self.note_issued(place, &request);
        if let StoreRequest::Write { key, cell, .. } = &request {
            let member = self.member_of(place.node);
            self.judge.stores(member, key, &cell.meta);
        }
        if let Some(early) = self.host(place.node).planted.store(plant, &mut request) {
            return self.hand_over(Event::Stored(place, id, early));
        }
        if let StoreRequest::Write { key, cell, .. } = &request
            && let Some(process) = self.process(place)
        {
            process.writes.insert((place.requester, id), (key.clone(), cell.meta.version));
        }
        turn.group.add(id, &request);
        if let Some(early) =
            self.host(place.node).planted.answer_early(plant, (place.requester, id), &request)
        {
            self.hand_over(Event::Stored(place, id, early));
        }
    }

    /// A cell that bears the versions of the node that stores or sends it was issued by it.
    fn note_issued(&mut self, place: Place, request: &StoreRequest) {
        let StoreRequest::Write { key, cell, .. } = request else { return };
        let tag = self.process(place).map(|process| process.member.tag);
        if tag == Some(cell.meta.version.tag) && place.requester != Requester::Node {
            self.judge.issues(place.node, key, cell);
        }
    }

    /// Brings something to another thread of the process.
    pub(crate) fn hand_over(&mut self, event: Event) {
        let delay = Duration::from_nanos(self.rngs.machines.below(HAND_OVER_MAX_NANOS));
        self.after(delay, event);
    }

    fn send(&mut self, turn: &mut Turn, to: Destination, mut message: Message) {
        let (place, plant) = (turn.place, self.scenario.plant);
        self.host(place.node).planted.ask_peer(plant, &mut message);
        if let Message::Request { request: PeerRequest::Write { key, cell, .. }, .. } = &message {
            let request =
                StoreRequest::Write { key: key.clone(), cell: cell.clone(), hints: cluster::NodeSet::EMPTY };
            self.note_issued(place, &request);
        }
        let Some(process) = self.process(place) else { return };
        let tag = process.member.tag;
        if let Some(answer) = self.host(place.node).planted.write_back(plant, place.requester, &message, tag)
        {
            return self.answer_instead(place, to, &message, answer);
        }
        let effect = Effect::Send { to, message };
        let sent = planted::send(plant, &effect, tag, &self.layout);
        let Effect::Send { message, .. } = effect else { unreachable!("just made") };
        match sent {
            Sent::AsItIs => turn.send(to, message),
            Sent::Answered(answer) => self.answer_instead(place, to, &message, answer),
            Sent::AlsoTo(other) => {
                turn.send(Destination::Dialed(other), message.clone());
                turn.send(to, message);
            }
        }
    }

    fn answer_instead(
        &mut self,
        place: Place,
        to: Destination,
        message: &Message,
        answer: cluster::PeerAnswer,
    ) {
        let (Destination::Dialed(node), Message::Request { id, .. }) = (to, message) else { return };
        let Some(connection) =
            self.process(place).and_then(|process| process.dialed.get(&(place.requester, node)).copied())
        else {
            return;
        };
        let packet = Packet::of(stdx::Hlc::ZERO, &[Message::Answer { id: *id, answer }]);
        self.hand_over(Event::Packet(connection, crate::network::Side::Dialer, packet));
    }

    fn reply(&mut self, place: Place, to: RequestId, reply: &Reply) {
        let plant = self.scenario.plant;
        let times = self.host(place.node).planted.replies(plant, reply);
        let wall = self.show_clocks(place.node).wall;
        for _ in 0..times {
            match Scans::asked(to) {
                true => self.page_came(place, to, reply),
                false => {
                    let reply = planted::reply(plant, reply, self.judge.history.get(to));
                    self.judge.reply(to, &reply);
                    self.judge.end(to, self.now, Told::of(&reply), Some(wall));
                }
            }
        }
    }

    fn publish(&mut self, place: Place) {
        let Some(process) = self.process(place) else { return };
        let coordinators: Vec<Requester> =
            process.requesters().filter(|requester| *requester != Requester::Node).collect();
        for requester in coordinators {
            self.hand_over(Event::View(Place { requester, ..place }));
        }
    }

    fn notice(&mut self, place: Place, notice: Notice) {
        if let Some(process) = self.process(place)
            && matches!(notice, Notice::HintDropped { .. })
        {
            process.hints_dropped += 1;
            self.judge.hints_dropped += 1;
        }
    }

    fn link_action(&mut self, place: Place, action: LinkAction) {
        match action {
            LinkAction::Dial(node) => self.dial(place, node),
            LinkAction::HangUp(node) => self.hang_up(place, node),
            LinkAction::Admit(link) => self.admit(place, link),
            LinkAction::Refuse(link) => self.refuse(place, link, DialFailure::NotAdmitted),
            LinkAction::RefuseCopy(link) => self.refuse(place, link, DialFailure::Copy),
        }
    }
}

/// Where a message of the member `node` came from, as the machine at this end of its connection sees it.
pub(super) fn origin(
    node: NodeIndex,
    connection: crate::network::Connection,
    side: crate::network::Side,
) -> Origin {
    let link = match side {
        crate::network::Side::Dialer => Destination::Dialed(node),
        crate::network::Side::Acceptor => Destination::Accepted(Process::link_of(connection)),
    };
    Origin { node, link }
}
