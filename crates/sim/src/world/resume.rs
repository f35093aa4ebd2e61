//! The order in which a resumed process handles the events that it missed.
//!
//! When a process resumes, its timers have expired and its sockets are full, and it may handle them
//! in any order. Only events of one source keep their order. A source is a connection, the clients
//! of a state machine, or one kind of work for a state machine. Reply checks of the judge come
//! last, since the replies depend on the other events.

use super::WorldEvent;
use crate::network::{ConnectionId, Endpoint};
use std::collections::{BTreeMap, VecDeque};
use stdx::Rng;

/// Kind of events that come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Priority {
    /// Messages and answers of the store.
    Answers,
    /// Timers.
    Timeouts,
    /// No kind: at each step any source may be next.
    Any,
}

/// Source whose events keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EventSource {
    Connection(ConnectionId),
    /// Clients, timers, the store or its jobs of a state machine, by the kind of their events.
    Machine(Endpoint, u64),
    /// Events without a process.
    World,
}

/// Returns the missed events in an order in which the process may handle them.
pub(super) fn shuffled(missed: Vec<WorldEvent>, rng: &mut Rng) -> Vec<WorldEvent> {
    let first = [Priority::Answers, Priority::Timeouts, Priority::Any][rng.below(3) as usize];
    let (reply_checks, events): (Vec<WorldEvent>, Vec<WorldEvent>) =
        missed.into_iter().partition(|event| matches!(event, WorldEvent::ReplyDue(..)));
    let mut ranks: BTreeMap<u8, Vec<WorldEvent>> = BTreeMap::new();
    for event in events {
        ranks.entry(rank(first, &event)).or_default().push(event);
    }
    let interleaved = ranks.into_values().flat_map(|events| interleaved(events, rng));
    let mut order: Vec<WorldEvent> = interleaved.collect();
    order.extend(reply_checks);
    order
}

/// Number of the client source of a state machine. No kind of event has this number.
const CLIENTS: u64 = u64::MAX;

const fn rank(first: Priority, event: &WorldEvent) -> u8 {
    let is_timeout = matches!(event, WorldEvent::Timer(_));
    match first {
        Priority::Answers => is_timeout as u8,
        Priority::Timeouts => !is_timeout as u8,
        Priority::Any => 0,
    }
}

/// Interleaves the sources: each step takes the next event of a random source.
fn interleaved(events: Vec<WorldEvent>, rng: &mut Rng) -> Vec<WorldEvent> {
    let mut sources: BTreeMap<EventSource, VecDeque<WorldEvent>> = BTreeMap::new();
    for event in events {
        sources.entry(source(&event)).or_default().push_back(event);
    }
    let mut sources: Vec<_> = sources.into_values().collect();
    let mut order = Vec::new();
    while !sources.is_empty() {
        let chosen = rng.below(sources.len() as u64) as usize;
        order.extend(sources[chosen].pop_front());
        if sources[chosen].is_empty() {
            sources.swap_remove(chosen);
        }
    }
    order
}

const fn source(event: &WorldEvent) -> EventSource {
    match event {
        WorldEvent::Command(endpoint, ..)
        | WorldEvent::PullPage(endpoint, _)
        | WorldEvent::CloseScan(endpoint, _) => EventSource::Machine(*endpoint, CLIENTS),
        WorldEvent::Timer(endpoint)
        | WorldEvent::ReplyDue(endpoint, _)
        | WorldEvent::Stored(endpoint, ..)
        | WorldEvent::Read(endpoint, ..)
        | WorldEvent::View(endpoint)
        | WorldEvent::Commit(endpoint)
        | WorldEvent::Durable(endpoint, _)
        | WorldEvent::Jobs(endpoint, _)
        | WorldEvent::Expire(endpoint)
        | WorldEvent::Scrub(endpoint)
        | WorldEvent::Submit(endpoint, ..)
        | WorldEvent::PersistVoter(endpoint, ..)
        | WorldEvent::VoterPersisted(endpoint, ..)
        | WorldEvent::CheckDrained(endpoint) => EventSource::Machine(*endpoint, event.kind()),
        WorldEvent::DialArrives(connection)
        | WorldEvent::DialAnswered(connection, _)
        | WorldEvent::DialFailed(connection, _)
        | WorldEvent::EndLost(connection, _)
        | WorldEvent::Packet(connection, ..)
        | WorldEvent::Bytes(connection, ..)
        | WorldEvent::PipeHasRoom(connection, _) => EventSource::Connection(*connection),
        WorldEvent::Start(_)
        | WorldEvent::NextCommand(_)
        | WorldEvent::StartScan
        | WorldEvent::Fault
        | WorldEvent::FaultEnd(_)
        | WorldEvent::ChangeLayout
        | WorldEvent::CommandLayout
        | WorldEvent::Join(_)
        | WorldEvent::BeginJoin(_)
        | WorldEvent::JoinAsked(..)
        | WorldEvent::JoinEnded(..)
        | WorldEvent::Return(_)
        | WorldEvent::DiskSpaceDue(..) => EventSource::World,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::ConnectionSide;
    use crate::packet::Packet;
    use cluster::{NodeIndex, RequestId, Requester, ScanId};
    use wire::PROTOCOL_VERSION;

    const ENDPOINT: Endpoint =
        Endpoint { node: NodeIndex(0), generation: 1, requester: Requester::Coordinator(0) };

    /// Two packets of different connections, two client events, a timer and a reply check.
    fn missed() -> Vec<WorldEvent> {
        let packet = |connection| {
            WorldEvent::Packet(
                ConnectionId(connection),
                ConnectionSide::Dialer,
                Packet::of(PROTOCOL_VERSION, stdx::Hlc::ZERO, &[]),
            )
        };
        let lost = |connection| WorldEvent::EndLost(ConnectionId(connection), ConnectionSide::Dialer);
        vec![
            WorldEvent::ReplyDue(ENDPOINT, RequestId(0)),
            packet(1),
            WorldEvent::PullPage(ENDPOINT, ScanId(1)),
            packet(2),
            WorldEvent::Timer(ENDPOINT),
            lost(1),
            WorldEvent::CloseScan(ENDPOINT, ScanId(1)),
            lost(2),
        ]
    }

    fn kinds(events: &[WorldEvent]) -> Vec<u64> {
        events.iter().map(WorldEvent::kind).collect()
    }

    #[test]
    fn each_source_keeps_its_order_and_reply_checks_come_last() {
        for seed in 0..50 {
            let order = shuffled(missed(), &mut Rng::new(seed));
            assert_eq!(order.len(), missed().len());
            assert!(matches!(order.last(), Some(WorldEvent::ReplyDue(..))), "seed {seed}");
            let at = |wanted: &dyn Fn(&WorldEvent) -> bool| order.iter().position(wanted).unwrap();
            for number in [1, 2] {
                let is_of = |connection: &ConnectionId| connection.0 == number;
                let packet = at(&|event| matches!(event, WorldEvent::Packet(c, ..) if is_of(c)));
                assert!(packet < at(&|event| matches!(event, WorldEvent::EndLost(c, _) if is_of(c))));
            }
            let pulls = at(&|event| matches!(event, WorldEvent::PullPage(..)));
            assert!(pulls < at(&|event| matches!(event, WorldEvent::CloseScan(..))), "seed {seed}");
        }
    }

    #[test]
    fn timeouts_come_first_or_last_or_between() {
        let timers: Vec<usize> = (0..50)
            .map(|seed| shuffled(missed(), &mut Rng::new(seed)))
            .map(|order| order.iter().position(|event| matches!(event, WorldEvent::Timer(_))).unwrap())
            .collect();
        for at in [0, 3, missed().len() - 2] {
            assert!(timers.contains(&at), "{at}");
        }
        let first = kinds(&shuffled(missed(), &mut Rng::new(1)));
        assert_eq!(first, kinds(&shuffled(missed(), &mut Rng::new(1))));
    }
}
