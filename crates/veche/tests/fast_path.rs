//! Requests are answered alike whichever way they take through the node: past the HTTP library, or
//! through it.

mod common;

use common::http::{Connection, Response};
use common::{Node, data_dir};
use stdx::Rng;

const SEEDS: u64 = 60;
const REQUESTS_MAX: u64 = 40;
const KEYS: u64 = 5;

/// A header that says nothing, and that no plain request has.
const INNOCENT: &str = "X-Innocent: 1\r\n";

/// Which way a request is to take.
#[derive(Clone, Copy)]
enum Way {
    /// As it likes.
    Free,
    /// Through the library.
    Library,
    /// Now this, now that.
    Mixed,
}

/// Writes one request of a random conversation; the same from the same `rng`, but for the key's
/// first letter and what the way adds. Whether it is a `HEAD`.
fn write_request(rng: &mut Rng, ways: &mut Rng, way: Way, name: &str, out: &mut Vec<u8>) -> bool {
    let key = format!("{name}-{}", rng.below(KEYS));
    let method = ["GET", "GET", "HEAD", "PUT", "PUT", "DELETE"][rng.below(6) as usize];
    let extra = match rng.below(24) {
        0 => "&ack=1&from=1",
        1 => "&replicas=1/1",
        2 => "&ack=2",
        3 => "&ttl=100000",
        4 => "&unknown=1",
        5 => "%2",
        6 => "%2B+%00",
        _ => "",
    };
    let header = match rng.below(24) {
        0 => "If-None-Match: *\r\n",
        1 => "If-Match: *\r\n",
        2 => "Accept: text/plain\r\nUSER-AGENT: x\r\n",
        3 => "Connection: Keep-Alive\r\n",
        4 => "Connection: Upgrade\r\nUpgrade: h2c\r\n",
        5 => "Expect: 100-later\r\n",
        _ => "",
    };
    let innocent = match way {
        Way::Free => false,
        Way::Library => true,
        Way::Mixed => ways.below(2) == 0,
    };
    let innocent = if innocent { INNOCENT } else { "" };
    out.extend_from_slice(
        format!("{method} /v0/entity?id={key}{extra} HTTP/1.1\r\nHost: h\r\n{header}{innocent}").as_bytes(),
    );
    let has_body = method == "PUT" || rng.below(24) == 0;
    if !has_body {
        out.extend_from_slice(b"\r\n");
        return method == "HEAD";
    }
    let len = [0, 1, 100, 3_000, 20_000, 50_000][rng.below(6) as usize];
    let mut value = vec![0; len];
    rng.fill(&mut value);
    if rng.below(4) == 0 && len > 0 {
        out.extend_from_slice(format!("Transfer-Encoding: chunked\r\n\r\n{len:x}\r\n").as_bytes());
        out.extend_from_slice(&value);
        out.extend_from_slice(b"\r\n0\r\n\r\n");
    } else {
        out.extend_from_slice(format!("Content-Length: {len}\r\n\r\n").as_bytes());
        out.extend_from_slice(&value);
    }
    method == "HEAD"
}

/// Has the conversation of this seed; the answers, in a form that does not depend on times and
/// versions.
fn converse(node: &Node, seed: u64, way: Way, letter: char) -> Vec<Response> {
    let (mut rng, mut ways) = (Rng::new(seed), Rng::new(seed + SEEDS));
    let name = format!("{letter}{seed}");
    let count = 1 + rng.below(REQUESTS_MAX);
    let mut bytes = Vec::new();
    let heads: Vec<_> =
        (0..count).map(|_| write_request(&mut rng, &mut ways, way, &name, &mut bytes)).collect();
    let mut connection = node.connect();
    let answers = std::thread::scope(|scope| {
        let mut sender = connection.try_clone().expect("a socket can be cloned");
        scope.spawn(move || send_in_pieces(&mut sender, &bytes, &mut ways));
        let answers: Vec<_> = heads.iter().map_while(|is_head| connection.try_response(*is_head)).collect();
        drop(connection);
        answers
    });
    let mut versions = Vec::new();
    answers.into_iter().map(|answer| without_chance(answer, &mut versions)).collect()
}

/// The node may close the connection before it has read all.
fn send_in_pieces(connection: &mut Connection, mut bytes: &[u8], rng: &mut Rng) {
    while !bytes.is_empty() {
        let piece_max = [7, 100, 5_000, 1 << 20][rng.below(4) as usize];
        let len = (1 + rng.below(piece_max) as usize).min(bytes.len());
        if connection.try_send(&bytes[..len]).is_err() {
            return;
        }
        bytes = &bytes[len..];
    }
}

/// Each version becomes its place among those that were seen, and the date nothing.
fn without_chance(mut answer: Response, versions: &mut Vec<String>) -> Response {
    for (name, value) in &mut answer.headers {
        match name.as_str() {
            "etag" => {
                let place = versions.iter().position(|seen| seen == value).unwrap_or(versions.len());
                if place == versions.len() {
                    versions.push(value.clone());
                }
                *value = place.to_string();
            }
            "date" => {
                assert!(value.len() == 29 && value.ends_with(" GMT"), "{value}");
                value.clear();
            }
            "veche-expires-at" => {
                assert!(value.parse::<u64>().is_ok(), "{value}");
                value.clear();
            }
            _ => {}
        }
    }
    answer.headers.sort();
    answer
}

#[test]
fn both_ways_give_the_same_answers_in_the_same_order() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    for seed in 0..SEEDS {
        let expected = converse(&node, seed, Way::Library, 'l');
        assert_eq!(converse(&node, seed, Way::Free, 'f'), expected, "seed {seed}");
        assert_eq!(converse(&node, seed, Way::Mixed, 'm'), expected, "seed {seed}");
    }
}

#[test]
fn a_client_that_sends_without_end_does_not_keep_others_waiting() {
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--threads", "1"]);
    node.put("k", vec![7; 10_000]);
    let request = common::http::get("k").repeat(200);
    let mut greedy = node.connect();
    let mut sender = greedy.try_clone().expect("a socket can be cloned");
    let sends = std::thread::spawn(move || while sender.try_send(&request).is_ok() {});
    for _ in 0..100 {
        assert_eq!(node.get("k").body.len(), 10_000);
        assert_eq!(greedy.response().body.len(), 10_000);
    }
    // Nobody reads its answers any more: the node reads no more requests, and closes at the end.
    assert_eq!(node.get("k").status, 200);
    drop(greedy);
    drop(node);
    sends.join().expect("the client ends with the node");
}
