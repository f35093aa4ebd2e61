//! The order in which a resumed process handles the events that it missed.
//!
//! When a process resumes, its timers have expired and its sockets are full, and it may handle them
//! in any order. Only events of one source keep their order. A source is a connection, the clients
//! of a state machine, or one kind of work for a state machine. Reply checks of the judge come
//! last, since the replies depend on the other events.

use super::Event;
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
pub(super) fn shuffled(missed: Vec<Event>, rng: &mut Rng) -> Vec<Event> {
    let first = [Priority::Answers, Priority::Timeouts, Priority::Any][rng.below(3) as usize];
    let (reply_checks, events): (Vec<Event>, Vec<Event>) =
        missed.into_iter().partition(|event| matches!(event, Event::ReplyDue(..)));
    let mut ranks: BTreeMap<u8, Vec<Event>> = BTreeMap::new();
    for event in events {
        ranks.entry(rank(first, &event)).or_default().push(event);
    }
    let interleaved = ranks.into_values().flat_map(|events| interleaved(events, rng));
    let mut order: Vec<Event> = interleaved.collect();
    order.extend(reply_checks);
    order
}

/// Number of the client source of a state machine. No kind of event has this number.
const CLIENTS: u64 = u64::MAX;

const fn rank(first: Priority, event: &Event) -> u8 {
    let is_timeout = matches!(event, Event::Timer(_));
    match first {
        Priority::Answers => is_timeout as u8,
        Priority::Timeouts => !is_timeout as u8,
        Priority::Any => 0,
    }
}

/// Interleaves the sources: each step takes the next event of a random source.
fn interleaved(events: Vec<Event>, rng: &mut Rng) -> Vec<Event> {
    let mut sources: BTreeMap<EventSource, VecDeque<Event>> = BTreeMap::new();
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

const fn source(event: &Event) -> EventSource {
    match event {
        Event::Command(endpoint, ..) | Event::PullPage(endpoint, _) | Event::CloseScan(endpoint, _) => {
            EventSource::Machine(*endpoint, CLIENTS)
        }
        Event::Timer(endpoint)
        | Event::ReplyDue(endpoint, _)
        | Event::Stored(endpoint, ..)
        | Event::Read(endpoint, ..)
        | Event::View(endpoint)
        | Event::Commit(endpoint)
        | Event::Durable(endpoint, _)
        | Event::Jobs(endpoint, _)
        | Event::Expire(endpoint)
        | Event::Scrub(endpoint)
        | Event::Submit(endpoint, ..)
        | Event::CheckDrained(endpoint) => EventSource::Machine(*endpoint, event.kind()),
        Event::DialArrives(connection)
        | Event::DialAnswered(connection, _)
        | Event::DialFailed(connection, _)
        | Event::EndLost(connection, _)
        | Event::Packet(connection, ..)
        | Event::Bytes(connection, ..)
        | Event::PipeHasRoom(connection, _) => EventSource::Connection(*connection),
        Event::Start(_)
        | Event::NextCommand(_)
        | Event::StartScan
        | Event::Fault
        | Event::FaultEnd(_)
        | Event::DiskSpaceDue(..) => EventSource::World,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Side;
    use crate::packet::Packet;
    use cluster::{NodeIndex, RequestId, Requester, ScanId};

    const ENDPOINT: Endpoint =
        Endpoint { node: NodeIndex(0), generation: 1, requester: Requester::Coordinator(0) };

    /// Two packets of different connections, two client events, a timer and a reply check.
    fn missed() -> Vec<Event> {
        let packet = |connection| {
            Event::Packet(ConnectionId(connection), Side::Dialer, Packet::of(stdx::Hlc::ZERO, &[]))
        };
        let lost = |connection| Event::EndLost(ConnectionId(connection), Side::Dialer);
        vec![
            Event::ReplyDue(ENDPOINT, RequestId(0)),
            packet(1),
            Event::PullPage(ENDPOINT, ScanId(1)),
            packet(2),
            Event::Timer(ENDPOINT),
            lost(1),
            Event::CloseScan(ENDPOINT, ScanId(1)),
            lost(2),
        ]
    }

    fn kinds(events: &[Event]) -> Vec<u64> {
        events.iter().map(Event::kind).collect()
    }

    #[test]
    fn each_source_keeps_its_order_and_reply_checks_come_last() {
        for seed in 0..50 {
            let order = shuffled(missed(), &mut Rng::new(seed));
            assert_eq!(order.len(), missed().len());
            assert!(matches!(order.last(), Some(Event::ReplyDue(..))), "seed {seed}");
            let at = |wanted: &dyn Fn(&Event) -> bool| order.iter().position(wanted).unwrap();
            for number in [1, 2] {
                let is_of = |connection: &ConnectionId| connection.0 == number;
                let packet = at(&|event| matches!(event, Event::Packet(c, ..) if is_of(c)));
                assert!(packet < at(&|event| matches!(event, Event::EndLost(c, _) if is_of(c))));
            }
            let pulls = at(&|event| matches!(event, Event::PullPage(..)));
            assert!(pulls < at(&|event| matches!(event, Event::CloseScan(..))), "seed {seed}");
        }
    }

    #[test]
    fn timeouts_come_first_or_last_or_between() {
        let timers: Vec<usize> = (0..50)
            .map(|seed| shuffled(missed(), &mut Rng::new(seed)))
            .map(|order| order.iter().position(|event| matches!(event, Event::Timer(_))).unwrap())
            .collect();
        for at in [0, 3, missed().len() - 2] {
            assert!(timers.contains(&at), "{at}");
        }
        let first = kinds(&shuffled(missed(), &mut Rng::new(1)));
        assert_eq!(first, kinds(&shuffled(missed(), &mut Rng::new(1))));
    }
}
