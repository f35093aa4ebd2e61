//! The fast path and hyper give the same answers to requests.

mod common;

use common::http::{Connection, Response};
use common::{Node, data_dir};
use stdx::Rng;

const SEEDS: u64 = 60;
const REQUESTS_MAX: u64 = 40;
const KEYS: u64 = 5;

/// A header without effect, which diverts a request from the fast path.
const NO_FAST_PATH: &str = "X-Innocent: 1\r\n";

/// The path of a request through the node.
#[derive(Clone, Copy)]
enum RequestPath {
    /// The fast path.
    Fast,
    /// Through hyper.
    Hyper,
    /// Either path, at random.
    Mixed,
}

/// Writes one random request, which `rng` determines, except for the key's first letter and the
/// header of the path. Returns whether it is a `HEAD`.
fn write_request(
    rng: &mut Rng,
    path_rng: &mut Rng,
    path: RequestPath,
    name: &str,
    out: &mut Vec<u8>,
) -> bool {
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
    let innocent = match path {
        RequestPath::Fast => false,
        RequestPath::Hyper => true,
        RequestPath::Mixed => path_rng.below(2) == 0,
    };
    let innocent = if innocent { NO_FAST_PATH } else { "" };
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

/// Sends the requests of this seed. Returns the answers, normalized for times and versions.
fn converse(node: &Node, seed: u64, path: RequestPath, letter: char) -> Vec<Response> {
    let (mut rng, mut path_rng) = (Rng::new(seed), Rng::new(seed + SEEDS));
    let name = format!("{letter}{seed}");
    let count = 1 + rng.below(REQUESTS_MAX);
    let mut bytes = Vec::new();
    let heads: Vec<_> =
        (0..count).map(|_| write_request(&mut rng, &mut path_rng, path, &name, &mut bytes)).collect();
    let mut connection = node.connect();
    let answers = std::thread::scope(|scope| {
        let mut sender = connection.try_clone().expect("a socket can be cloned");
        scope.spawn(move || send_in_pieces(&mut sender, &bytes, &mut path_rng));
        let answers: Vec<_> = heads.iter().map_while(|is_head| connection.try_response(*is_head)).collect();
        drop(connection);
        answers
    });
    let mut versions = Vec::new();
    answers.into_iter().map(|answer| normalized(answer, &mut versions)).collect()
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

/// Replaces each version by its index among the seen versions, and removes the date.
fn normalized(mut answer: Response, versions: &mut Vec<String>) -> Response {
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
fn the_fast_path_and_hyper_give_the_same_answers_in_the_same_order() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    for seed in 0..SEEDS {
        let expected = converse(&node, seed, RequestPath::Hyper, 'l');
        assert_eq!(converse(&node, seed, RequestPath::Fast, 'f'), expected, "seed {seed}");
        assert_eq!(converse(&node, seed, RequestPath::Mixed, 'm'), expected, "seed {seed}");
    }
}

#[test]
fn a_client_that_never_stops_sending_does_not_keep_others_waiting() {
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
    // The client does not read answers any more: the node stops reading requests, and closes at the
    // end.
    assert_eq!(node.get("k").status, 200);
    drop(greedy);
    drop(node);
    sends.join().expect("the client ends with the node");
}
