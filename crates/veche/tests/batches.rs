//! The contract of batches, point by point, on raw sockets.

mod common;

use api::entries::{BatchAction, BatchEntry, EntryEncoder, EntryResult, Format, ResultDecoder};
use bytes::Bytes;
use cluster::{Key, Lifetime};
use common::http::{Connection, Response, get};
use common::{Node, data_dir, eventually};
use serde_json::Value;

const NDJSON: &str = "application/x-ndjson";
const BINARY: &str = "application/vnd.veche.entries";

fn head(media_type: &str, rest: &str) -> String {
    format!("POST /v0/entities HTTP/1.1\r\nHost: v\r\nContent-Type: {media_type}\r\n{rest}\r\n\r\n")
}

fn batch(media_type: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    [head(media_type, &format!("Content-Length: {}", body.len())).as_bytes(), body].concat()
}

/// The results of a batch in JSON.
#[track_caller]
fn results(connection: &mut Connection) -> Vec<Value> {
    assert_head(&connection.head(), NDJSON);
    let body = String::from_utf8(connection.chunks().concat()).expect("JSON is UTF-8");
    body.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
}

/// The results of a batch in the binary format.
#[track_caller]
fn binary_results(connection: &mut Connection) -> Vec<EntryResult> {
    assert_head(&connection.head(), BINARY);
    let (results, end) = ResultDecoder::decode_all(Format::Binary, [connection.chunks().concat().into()]);
    assert_eq!(end, Ok(()));
    results
}

#[track_caller]
fn assert_head(head: &Response, media_type: &str) {
    assert_eq!(head.status, 200, "{head:?}");
    assert_eq!(head.header("content-type"), Some(media_type), "{head:?}");
    assert_eq!(head.header("transfer-encoding"), Some("chunked"), "{head:?}");
}

fn statuses(results: &[Value]) -> Vec<u64> {
    results.iter().map(|result| result["status"].as_u64().expect("a status")).collect()
}

fn key(text: String) -> Key {
    Key::new(text.into_bytes().into()).expect("a short key")
}

fn value(key_text: String, value: impl Into<Bytes>) -> BatchEntry {
    let action = BatchAction::Put { value: value.into(), lifetime: Lifetime::Forever };
    BatchEntry { key: key(key_text), action }
}

fn binary(entries: impl IntoIterator<Item = BatchEntry>) -> Vec<u8> {
    let (mut encoder, mut body) = (EntryEncoder::new(Format::Binary), Vec::new());
    entries.into_iter().for_each(|entry| encoder.put_batch_entry(&entry, &mut body));
    body
}

#[test]
fn entries_are_carried_out_in_order_with_a_result_each() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    let body = concat!(
        "{\"key\":\"a\",\"value\":\"1\"}\n",
        "{\"key\":\"b\",\"value\":\"2\"}\r\n",
        "{\"key\":\"a\",\"delete\":true}\n",
        "{\"key\":\"a\",\"value\":\"3\"}\n",
        "{\"key\":\"never\",\"delete\":true}\n",
        "{\"key\":\"c\",\"value\":\"4\",\"ttl\":3600000}\n",
        "{\"key\":\"/w==\",\"key_encoding\":\"base64\",\"value\":\"AAo=\",\"value_encoding\":\"base64\"}",
    );
    connection.send(batch(NDJSON, body));
    let results = results(&mut connection);
    assert_eq!(statuses(&results), [201, 201, 202, 201, 202, 201, 201], "{results:?}");
    let versions: Vec<_> =
        results.iter().map(|result| result["version"].as_str().expect("a version")).collect();
    assert!(versions.is_sorted_by(|a, b| a < b), "versions rise in the order of the entries: {versions:?}");
    for (id, expected) in [("a", "3"), ("b", "2"), ("c", "4"), ("%FF", "\0\n")] {
        assert_eq!(connection.exchange(get(id)).text(), expected, "{id}");
    }
    let stored = connection.exchange(get("a")).header("etag").map(str::to_owned);
    assert_eq!(stored, Some(format!("\"{}\"", versions[3])));
}

#[test]
fn the_binary_format_is_answered_in_kind_unless_accept_says_otherwise() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    let entries = || (0..3_000).map(|i| value(format!("k{i}"), format!("v{i}")));
    let delete = BatchEntry { key: key("k7".to_owned()), action: BatchAction::Delete };
    let body = binary(entries().chain([delete]));
    connection.send(batch(BINARY, &body));
    let results = binary_results(&mut connection);
    assert_eq!(results.len(), 3_001);
    assert!(
        results[..3_000].iter().all(|result| matches!(result, EntryResult::Done { is_delete: false, .. }))
    );
    assert!(matches!(results[3_000], EntryResult::Done { is_delete: true, .. }));
    assert_eq!(connection.exchange(get("k2999")).text(), "v2999");
    assert_eq!(connection.exchange(get("k7")).status, 404);

    let accept = format!("Accept: {NDJSON}\r\nContent-Length: {}", body.len());
    connection.send([head(BINARY, &accept).as_bytes(), &body].concat());
    assert_eq!(statuses(&self::results(&mut connection)).len(), 3_001);
}

#[test]
fn no_entries_are_no_results() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    for request in
        [batch(NDJSON, ""), batch(NDJSON, "\n"), head(NDJSON, "Transfer-Encoding: chunked").into_bytes()]
    {
        connection.send(&request);
        if !request.windows(7).any(|bytes| bytes == b"chunked") {
            assert_eq!(results(&mut connection), Vec::<Value>::new());
        }
    }
    connection.send("0\r\n\r\n");
    assert_eq!(results(&mut connection), Vec::<Value>::new());
}

#[test]
fn what_is_no_batch_is_refused_and_nothing_is_stored() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let line = "{\"key\":\"a\",\"value\":\"1\"}\n";
    for media_type in ["text/plain", "application/octet-stream", "application/json"] {
        node.exchange(batch(media_type, line)).assert_problem(415, "application/x-ndjson");
    }
    let no_type =
        format!("POST /v0/entities HTTP/1.1\r\nHost: v\r\nContent-Length: {}\r\n\r\n{line}", line.len());
    node.exchange(no_type).assert_problem(415, "Content-Type");
    let zipped = format!("Content-Encoding: gzip\r\nContent-Length: {}", line.len());
    node.exchange([head(NDJSON, &zipped), line.to_owned()].concat()).assert_problem(415, "compressed");
    let html = format!("Accept: text/html\r\nContent-Length: {}", line.len());
    node.exchange([head(NDJSON, &html), line.to_owned()].concat()).assert_problem(406, "");
    for (first, says) in [
        ("{\"key\":1}\n", "Entry 1"),
        ("nonsense\n", "Entry 1"),
        ("{\"key\":\"\",\"value\":\"\"}", "Entry 1"),
    ] {
        let refused = node.exchange(batch(NDJSON, [first, line].concat()));
        refused.assert_problem(400, says);
        assert_eq!(refused.header("connection"), Some("close"));
    }
    node.exchange(batch(BINARY, "not binary at all")).assert_problem(400, "");
    assert_eq!(node.get("a").status, 404);
}

#[test]
fn a_malformed_entry_ends_the_batch_behind_those_before_it() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    let mut body: String = (0..50).map(|i| format!("{{\"key\":\"k{i}\",\"value\":\"v\"}}\n")).collect();
    body.push_str("{\"key\":\"bad\",\"vlue\":\"v\"}\n{\"key\":\"behind\",\"value\":\"v\"}\n");
    connection.send(batch(NDJSON, body));
    let results = results(&mut connection);
    assert_eq!(statuses(&results), [vec![201; 50], vec![400]].concat());
    assert!(
        results[50]["detail"].as_str().is_some_and(|detail| detail.contains("Entry 51")),
        "{}",
        results[50]
    );
    assert_eq!((node.get("k49").status, node.get("behind").status), (200, 404));
}

#[test]
fn a_value_that_is_too_large_is_passed_over() {
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--value-max", "1000B"]);
    for format in [NDJSON, BINARY] {
        let lens = [10, 1_000, 1_001, 5_000_000, 20];
        let body = match format {
            NDJSON => lens
                .iter()
                .enumerate()
                .map(|(i, len)| format!("{{\"key\":\"k{i}\",\"value\":\"{}\"}}\n", "x".repeat(*len)))
                .collect::<String>()
                .into_bytes(),
            _ => binary(lens.iter().enumerate().map(|(i, len)| value(format!("k{i}"), vec![b'x'; *len]))),
        };
        let mut connection = node.connect();
        let rest = format!("Accept: {NDJSON}\r\nContent-Length: {}", body.len());
        connection.send([head(format, &rest).as_bytes(), &body].concat());
        let results = results(&mut connection);
        assert_eq!(statuses(&results), [201, 201, 413, 413, 201], "{format}");
        assert!(
            results[2]["detail"].as_str().is_some_and(|detail| detail.contains("1000")),
            "{}",
            results[2]
        );
        assert_eq!(connection.exchange(get("k4")).body.len(), 20, "the connection goes on");
    }
}

#[test]
fn results_come_while_entries_are_sent() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    connection.send(head(NDJSON, "Transfer-Encoding: chunked\r\nExpect: 100-continue"));
    assert_eq!(connection.head().status, 100);
    let chunk = |i: usize| {
        let line = format!("{{\"key\":\"k{i}\",\"value\":\"v\"}}\n");
        format!("{:x}\r\n{line}\r\n", line.len())
    };
    connection.send(chunk(0));
    assert_head(&connection.head(), NDJSON);
    assert!(connection.chunk().expect("a result").is_some());
    for i in 1..100 {
        connection.send(chunk(i));
        assert!(
            connection.chunk().expect("a result").is_some(),
            "the result of {i} is there before the next entry is"
        );
    }
    connection.send("0\r\n\r\n");
    assert_eq!(connection.chunk().expect("the end"), None);
    assert_eq!(connection.exchange(get("k99")).status, 200);
}

#[test]
fn of_a_body_that_is_cut_short_what_came_whole_is_done() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    connection.send(head(NDJSON, "Content-Length: 1000"));
    connection.send("{\"key\":\"whole\",\"value\":\"v\"}\n{\"key\":\"half\",\"value\":\"v");
    connection.finish_sending();
    let results = results(&mut connection);
    assert_eq!(statuses(&results), [201, 400], "{results:?}");
    assert_eq!((node.get("whole").status, node.get("half").status), (200, 404));

    let mut connection = node.connect();
    connection.send(head(NDJSON, "Transfer-Encoding: chunked"));
    connection.send("1c\r\n{\"key\":\"left\",\"value\":\"v\"}\n\n\r\n5\r\n{\"key");
    drop(connection);
    eventually("what came is stored", || node.get("left").status == 200);
    eventually("the connection is gone", || node.status()["queues"]["connections"] == 1);
    assert_eq!(node.status()["queues"]["operations"], 0);
}

#[test]
fn large_values_and_small_ones_in_one_batch() {
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--memory", "256MiB"]);
    let mut connection = node.connect();
    let lens = [16 << 20, 0, 1, 16 << 20, 3 << 20, 100];
    let entry = |(i, len): (usize, &usize)| value(format!("k{i}"), vec![b'0' + i as u8; *len]);
    connection.send(batch(BINARY, binary(lens.iter().enumerate().map(entry))));
    let results = binary_results(&mut connection);
    assert!(results.iter().all(|result| result.status() == 201), "{results:?}");
    for (i, len) in lens.iter().enumerate() {
        assert!(connection.exchange(get(&format!("k{i}"))).body == vec![b'0' + i as u8; *len], "k{i}");
    }
}

/// Many clients send all they have before they look for an answer.
#[test]
fn a_client_may_read_only_when_it_has_sent_all() {
    const ENTRIES: usize = 100_000;
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--threads", "2", "--memory", "128MiB"]);
    let mut connection = node.connect();
    let body: String = (0..ENTRIES).map(|i| format!("{{\"key\":\"k{i}\",\"value\":\"{i}\"}}\n")).collect();
    connection.send(batch(NDJSON, body));
    // Others are served meanwhile and after.
    assert_eq!(node.put("other", "v").status, 201);
    let results = results(&mut connection);
    assert_eq!(results.len(), ENTRIES);
    assert!(results.iter().all(|result| result["status"] == 201));
    for i in [0, 1, ENTRIES / 2, ENTRIES - 1] {
        assert_eq!(node.get(&format!("k{i}")).text(), i.to_string());
    }
    assert_eq!(node.status()["queues"]["operations"], 0);
}

/// Ten times what all memtables hold comes as fast as the socket takes it.
#[test]
fn a_batch_goes_as_fast_as_the_store_and_few_entries_are_refused() {
    const ENTRIES: usize = 50_000;
    const BATCHES_MAX: usize = 20;
    let (_dir, data) = data_dir();
    // The store may wait for a busy disk for longer than the default deadline of a write.
    let options = ["--threads", "1", "--memory", "16MiB", "--request-timeout", "1m"];
    let node = Node::start_with(&data, &options);
    let mut connection = node.connect();
    let text = "v".repeat(1_024);
    let mut refused_at_first = None;
    let mut left: Vec<usize> = (0..ENTRIES).map(|i| i * 7_919 % ENTRIES).collect();
    let mut batches = 0;
    while !left.is_empty() {
        batches += 1;
        assert!(batches <= BATCHES_MAX, "{} entries are refused again and again", left.len());
        let body = binary(left.iter().map(|i| value(format!("k{i}"), text.clone())));
        let rest = format!("Accept: {NDJSON}\r\nContent-Length: {}", body.len());
        connection.send([head(BINARY, &rest).as_bytes(), &body].concat());
        let results = results(&mut connection);
        assert_eq!(results.len(), left.len());
        assert!(results.iter().all(|result| result["status"] == 201 || result["status"] == 503));
        let stored = |at: &usize| results[*at]["status"] == 201;
        left = (0..left.len()).filter(|at| !stored(at)).map(|at| left[at]).collect();
        refused_at_first.get_or_insert(left.len());
    }
    // A busy machine may give the flush no processor for so long that a group is refused although
    // there was space when it was submitted.
    let refused = refused_at_first.expect("a batch was sent");
    assert!(refused * 500 <= ENTRIES, "{refused} refused");
}

#[test]
fn many_batches_leave_room_for_single_requests() {
    const BATCHES: usize = 40;
    let (_dir, data) = data_dir();
    // A busy disk may let the store wait for longer than the default deadline of a write admits.
    let options = ["--threads", "1", "--memory", "128MiB", "--request-timeout", "20s"];
    let node = Node::start_with(&data, &options);
    let writers: Vec<_> = (0..BATCHES)
        .map(|writer| {
            let address = node.address;
            std::thread::spawn(move || {
                let mut connection = Connection::open(address);
                let body = binary((0..2_000).map(|i| value(format!("b{writer}-{i}"), "v")));
                let rest = format!("Accept: {NDJSON}\r\nContent-Length: {}", body.len());
                connection.send([head(BINARY, &rest).as_bytes(), &body].concat());
                statuses(&results(&mut connection))
            })
        })
        .collect();
    let mut connection = node.connect();
    for i in 0..300 {
        assert_eq!(connection.exchange(common::http::put(&format!("s{i}"), "v")).status, 201);
    }
    for writer in writers {
        assert_eq!(writer.join().expect("results"), vec![201; 2_000]);
    }
}

#[test]
fn a_stalled_batch_is_not_in_the_way_of_a_stop() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    connection.send(head(NDJSON, "Transfer-Encoding: chunked"));
    connection.send("1c\r\n{\"key\":\"k\",\"value\":\"value\"}\n\r\n");
    assert_head(&connection.head(), NDJSON);
    node.stop();
    // The result of the entry that came may be there.
    while let Ok(chunk) = connection.chunk() {
        assert!(chunk.is_some(), "a batch that was cut off lacks its last chunk");
    }
}

#[test]
fn a_client_that_sends_everything_before_it_reads_asks_for_failures_alone() {
    const ENTRIES: usize = 400_000;
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    // More results than the node keeps for a client that does not read, would each entry have one.
    let too_long = value("k".to_owned(), vec![0; (16 << 20) + 1]);
    let entries = (0..ENTRIES).map(|i| value(format!("k{i}"), "v"));
    let body = binary(entries.chain([too_long, value("last".to_owned(), "v")]));
    let head = format!(
        "POST /v0/entities?results=errors HTTP/1.1\r\nHost: v\r\nContent-Type: {BINARY}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    connection.send(head);
    connection.send(&body);
    let results = results(&mut connection);
    let (summary, failures) = results.split_last().expect("a summary");
    assert_eq!(*summary, serde_json::json!({"entries": ENTRIES + 2, "failed": failures.len()}));
    // A busy node may refuse entries.
    let (refused, others): (Vec<_>, Vec<_>) = failures.iter().partition(|result| result["status"] == 503);
    let too_long: Vec<_> = others.iter().map(|result| (&result["entry"], &result["status"])).collect();
    assert_eq!(too_long, [(&(ENTRIES + 1).into(), &413.into())]);
    if refused.iter().any(|result| result["entry"] == ENTRIES + 2) {
        return;
    }
    assert_eq!(connection.exchange(get("last")).text(), "v");
}
