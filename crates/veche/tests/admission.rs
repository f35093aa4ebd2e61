//! More is asked than can be done: each request gets one answer all the same, and a refusal says
//! when to come again.

mod common;

use common::http::{Connection, get, put};
use common::{Node, data_dir};
use std::collections::BTreeMap;

/// Connections, each of which sends [`PIPELINED`] writes and reads their answers, [`ROUNDS`] times.
const CONNECTIONS: usize = 400;
const PIPELINED: usize = 8;
const ROUNDS: usize = 4;

/// Sends writes on all connections, then reads all answers: which keys were stored, and how many
/// answers of each status came.
fn flood(
    connections: &mut [Connection],
    round: usize,
    counts: &mut BTreeMap<u16, usize>,
) -> Vec<(String, u16)> {
    let key = |connection: usize, at: usize| format!("{round}-{connection}-{at}");
    for (number, connection) in connections.iter_mut().enumerate() {
        let requests: Vec<u8> = (0..PIPELINED).flat_map(|at| put(&key(number, at), [b'v'; 2_000])).collect();
        connection.send(requests);
    }
    let mut written = Vec::new();
    for (number, connection) in connections.iter_mut().enumerate() {
        for at in 0..PIPELINED {
            let answer = connection.response();
            *counts.entry(answer.status).or_default() += 1;
            if answer.status == 503 {
                let retry_after = answer.header("retry-after").expect("it says when to come again");
                let secs: u64 = retry_after.parse().expect("seconds");
                assert!((1..=30).contains(&secs), "{answer:?}");
                answer.assert_problem(503, "Nothing was done");
            }
            written.push((key(number, at), answer.status));
        }
    }
    written
}

#[test]
fn a_flood_of_writes_is_stored_or_refused_and_nothing_else() {
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--threads", "1"]);
    let mut connections: Vec<_> = (0..CONNECTIONS).map(|_| node.connect()).collect();
    let mut counts = BTreeMap::new();
    for round in 0..ROUNDS {
        let written = flood(&mut connections, round, &mut counts);
        assert_eq!(node.status()["state"], "serving");
        for (key, status) in written.iter().step_by(101) {
            let is_there = node.get(key).status == 200;
            assert_eq!(is_there, *status == 201, "{key}: {status}");
        }
    }
    assert!(counts.keys().all(|status| [201, 503].contains(status)), "{counts:?}");
    assert_eq!(counts.values().sum::<usize>(), CONNECTIONS * PIPELINED * ROUNDS);
    assert!(counts[&201] > 0, "something is always stored");
    assert_eq!(node.put("after", "all").status, 201);
    node.stop();
}

#[test]
fn connections_that_send_without_waiting_leave_their_turn_to_the_one_that_waits() {
    const ASKED: usize = 4_000;
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--threads", "1"]);
    assert_eq!(node.put("k", "value").status, 201);
    let mut greedy: Vec<_> = (0..8).map(|_| node.connect()).collect();
    let requests = get("k").as_bytes().repeat(ASKED);
    let mut modest = node.connect();
    std::thread::scope(|scope| {
        let floods: Vec<_> = greedy
            .iter_mut()
            .map(|connection| {
                let (mut sender, requests) = (connection.try_clone().expect("a socket"), &requests);
                scope.spawn(move || sender.send(requests));
                scope.spawn(move || (0..ASKED).all(|_| connection.response().status == 200))
            })
            .collect();
        // It is answered in the midst of the flood, each time.
        while !floods.iter().any(std::thread::ScopedJoinHandle::is_finished) {
            modest.send(get("k"));
            assert_eq!(modest.response().status, 200);
        }
        for flood in floods {
            assert!(flood.join().expect("no panic"));
        }
    });
    node.stop();
}
