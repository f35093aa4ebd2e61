//! The contract of ranges, point by point, on raw sockets.

mod common;

use api::entries::{BatchAction, BatchEntry, EntryDecoder, EntryEncoder, Format};
use cluster::{Key, Lifetime};
use common::http::{Connection, Response, bare, delete, put};
use common::{Node, data_dir, eventually};
use std::io::ErrorKind;

fn range(parameters: &str) -> String {
    bare("GET", &format!("/v0/entities?{parameters}"))
}

fn range_with(parameters: &str, headers: &str) -> String {
    format!("GET /v0/entities?{parameters} HTTP/1.1\r\nHost: v\r\n{headers}\r\n\r\n")
}

/// The entries of a range, each of which must be one chunk.
#[track_caller]
fn entries(connection: &mut Connection, parameters: &str) -> Vec<String> {
    connection.send(range(parameters));
    assert_head(&connection.head());
    connection.chunks().into_iter().map(|chunk| String::from_utf8(chunk).expect("text")).collect()
}

#[track_caller]
fn assert_head(head: &Response) {
    assert_eq!(head.status, 200, "{head:?}");
    assert_eq!(head.header("transfer-encoding"), Some("chunked"), "{head:?}");
    assert_eq!(head.header("content-length"), None, "{head:?}");
}

/// Stores the entries of a range by batches. Entries that a busy node refuses are sent again.
#[track_caller]
fn fill(connection: &mut Connection, entries: impl IntoIterator<Item = (String, Vec<u8>)>) {
    let mut left: Vec<_> = entries.into_iter().collect();
    eventually("all entries are stored", || {
        left = refused(connection, std::mem::take(&mut left));
        left.is_empty()
    });
}

/// Sends a batch. Returns the entries that a busy node has refused.
#[track_caller]
fn refused(connection: &mut Connection, entries: Vec<(String, Vec<u8>)>) -> Vec<(String, Vec<u8>)> {
    let (mut encoder, mut body) = (EntryEncoder::new(Format::Binary), Vec::new());
    for (key, value) in &entries {
        let action = BatchAction::Put { value: value.clone().into(), lifetime: Lifetime::Forever };
        let key = Key::new(key.clone().into_bytes().into()).expect("a short key");
        encoder.put_batch_entry(&BatchEntry { key, action }, &mut body);
    }
    let head = format!(
        "POST /v0/entities HTTP/1.1\r\nHost: v\r\nContent-Type: application/vnd.veche.entries\r\n\
         Accept: application/x-ndjson\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    connection.send([head.as_bytes(), &body].concat());
    assert_eq!(connection.head().status, 200);
    let results = String::from_utf8(connection.chunks().concat()).expect("JSON is UTF-8");
    let statuses = results.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let statuses: Vec<_> = statuses.filter_map(|result| result["status"].as_u64()).collect();
    assert_eq!(statuses.len(), entries.len());
    assert!(statuses.iter().all(|status| [201, 503].contains(status)), "{results}");
    entries.into_iter().zip(statuses).filter(|(_, status)| *status == 503).map(|(entry, _)| entry).collect()
}

fn numbered(count: usize, value_len: usize) -> impl Iterator<Item = (String, Vec<u8>)> {
    (0..count).map(move |i| (format!("k{i:06}"), vec![b'a' + (i % 26) as u8; value_len]))
}

/// Ranges and snapshots that are open.
fn open(node: &Node) -> (u64, u64) {
    let ranges = &node.status()["ranges"];
    (ranges["open"].as_u64().expect("a number"), ranges["snapshots"].as_u64().expect("a number"))
}

#[test]
fn each_entry_is_one_chunk_in_the_order_of_the_keys() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    for id in ["b", "a", "c%00", "c", "%FF", "a%0Ab", "B"] {
        assert_eq!(connection.exchange(put(id, format!("of {id}\n"))).status, 201);
    }
    connection.send(range("start=%00"));
    assert_head(&connection.head());
    let expected: [&[u8]; 7] = [
        b"B\nof B\n",
        b"a\nof a\n",
        b"a\nb\nof a%0Ab\n",
        b"b\nof b\n",
        b"c\nof c\n",
        b"c\0\nof c%00\n",
        b"\xff\nof %FF\n",
    ];
    assert_eq!(connection.chunks(), expected);
    // The same connection goes on.
    assert_eq!(connection.exchange(bare("GET", "/v0/entity?id=a")).status, 200);
}

#[test]
fn a_range_is_from_its_start_to_before_its_end() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    fill(&mut connection, ["a", "b", "ba", "c", "d"].map(|id| (id.to_owned(), b"1".to_vec())));
    for (parameters, expected) in [
        ("start=a", "a b ba c d"),
        ("start=b&end=d", "b ba c"),
        ("start=b&end=ba", "b"),
        ("start=aa&end=bb", "b ba"),
        ("start=b%00", "ba c d"),
        ("start=b&end=b", ""),
        ("start=c&end=b", ""),
        ("start=b&end=", ""),
        ("start=e", ""),
        ("start=a&limit=2", "a b"),
        ("start=b&end=d&limit=2", "b ba"),
        ("start=a&limit=0", ""),
        ("start=a&limit=99999999999", "a b ba c d"),
        ("end=c&limit=9&cluster=0&start=b", "b ba"),
        ("start=a&cluster=1&ack=1&from=1", "a b ba c d"),
        ("start=a&cluster=1&replicas=1/1&limit=1", "a"),
    ] {
        let expected: Vec<_> =
            expected.split(' ').filter(|key| !key.is_empty()).map(|key| format!("{key}\n1")).collect();
        assert_eq!(entries(&mut connection, parameters), expected, "{parameters}");
    }
    let longest = "z".repeat(8_192);
    fill(&mut connection, [(longest.clone(), b"1".to_vec())]);
    let encoded = |last: &str| format!("{}%{last}", "%7a".repeat(8_191));
    let around = format!("start={}&end={}", encoded("79"), encoded("7b"));
    assert_eq!(entries(&mut connection, &around), [format!("{longest}\n1")]);
    // Without a single byte, but for the last chunk.
    connection.send(range("start=zzz&end=zzzz"));
    assert_head(&connection.head());
    assert_eq!(connection.chunk().expect("it is whole"), None);
}

#[test]
fn what_is_no_range_is_refused() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    for parameters in [
        "",
        "start=",
        "end=b",
        "start=a&start=b",
        "start=a&limit=-1",
        "start=a&limit=x",
        "start=a&limit=",
        "start=a&unknown=1",
        "start=%zz",
        "start=a&cluster=2",
        "start=a&ack=1",
        "start=a&from=1",
        "start=a&replicas=1/1",
        "start=a&cluster=0&ack=1",
        "start=a&cluster=1&ack=2",
        "start=a&ttl=1",
        "start=a&id=a",
    ] {
        connection.exchange(range(parameters)).assert_problem(400, "");
    }
    connection.exchange(range(&format!("start={}", "k".repeat(8_193)))).assert_problem(414, "8192");
    connection
        .exchange(range_with("start=a", "Accept: text/html"))
        .assert_problem(406, "application/x-ndjson");
    for method in ["PUT", "DELETE", "PATCH"] {
        let refused = connection.exchange(format!(
            "{method} /v0/entities?start=a HTTP/1.1\r\nHost: v\r\nContent-Length: 0\r\n\r\n"
        ));
        refused.assert_problem(405, "");
        assert_eq!(refused.header("allow"), Some("GET, POST"), "{method}");
    }
}

#[test]
fn a_range_may_be_of_a_prefix_of_keys_alone_or_of_their_number() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    // Far more than a page, so that keys and counts go over several.
    fill(&mut connection, numbered(3_000, 200));
    fill(&mut connection, [("a".to_owned(), vec![1]), ("k".to_owned(), vec![2]), ("l".to_owned(), vec![3])]);
    assert_eq!(connection.exchange(put("k%FF&ttl=3600000", "4")).status, 201);
    for scope in ["", "&cluster=1"] {
        let keys = entries(&mut connection, &format!("prefix=k0029&keys=1{scope}"));
        assert_eq!(keys, (2_900..3_000).map(|i| format!("k{i:06}")).collect::<Vec<_>>());
        assert_eq!(entries(&mut connection, &format!("prefix=l&limit=9{scope}")), ["l\n\u{3}"]);
        for (parameters, expected) in [
            ("start=%00", "3004"),
            ("prefix=k", "3002"),
            ("prefix=k&limit=17", "17"),
            ("prefix=k00", "3000"),
            ("start=k001000&end=k001100", "100"),
            ("prefix=none", "0"),
        ] {
            assert_eq!(
                entries(&mut connection, &format!("{parameters}&count=1{scope}")),
                [expected],
                "{parameters}"
            );
        }
    }
    connection.send(range_with("prefix=k%FF&keys=1", "Accept: application/x-ndjson"));
    assert_head(&connection.head());
    let line: serde_json::Value =
        serde_json::from_slice(&connection.chunks().concat()).expect("one line of JSON");
    assert_eq!((&line["key"], &line["key_encoding"]), (&"a/8=".into(), &"base64".into()));
    assert!(
        line["version"].is_string() && line["expires_at"].is_u64() && line.get("value").is_none(),
        "{line}"
    );
    for (parameters, scope) in
        [("start=k", "node"), ("start=k&count=1", "node"), ("start=k&keys=1&cluster=1", "cluster")]
    {
        connection.send(range(parameters));
        assert_eq!(connection.head().header("veche-scope"), Some(scope), "{parameters}");
        connection.chunks();
    }
    connection.exchange(range("")).assert_problem(400, "?start=%00 lists everything");
}

#[test]
fn what_is_deleted_or_has_expired_is_not_there() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    fill(&mut connection, numbered(200, 10));
    for i in (0..200).filter(|i| i % 3 == 0) {
        assert_eq!(connection.exchange(delete(&format!("k{i:06}"))).status, 202);
    }
    assert_eq!(connection.exchange(put("expires&ttl=1", "v")).status, 201);
    assert_eq!(connection.exchange(put("empty", "")).status, 201);
    let expected: Vec<_> = std::iter::once("empty\n".to_owned())
        .chain(
            numbered(200, 10)
                .enumerate()
                .filter(|(i, _)| i % 3 != 0)
                .map(|(_, (key, value))| format!("{key}\n{}", String::from_utf8(value).expect("text"))),
        )
        .collect();
    eventually("the value expires", || entries(&mut connection, "start=a").len() == expected.len());
    assert_eq!(entries(&mut connection, "start=a"), expected);
    assert_eq!(entries(&mut connection, "start=a&limit=100"), expected[..100]);
}

#[test]
fn values_of_all_sizes_are_one_chunk() {
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--memory", "128MiB"]);
    let mut connection = node.connect();
    let values: Vec<Vec<u8>> = [0, 1, 1 << 10, 65_535, 65_536, 1 << 20, 16 << 20, 7]
        .iter()
        .enumerate()
        .map(|(i, len)| (0..*len).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> (8 + i)) as u8).collect())
        .collect();
    fill(&mut connection, values.iter().enumerate().map(|(i, value)| (format!("k{i}"), value.clone())));
    for _ in 0..2 {
        connection.send(range("start=k"));
        assert_head(&connection.head());
        let chunks = connection.chunks();
        assert_eq!(chunks.len(), values.len());
        for (i, (chunk, value)) in chunks.iter().zip(&values).enumerate() {
            let is_same = chunk.strip_prefix(format!("k{i}\n").as_bytes()) == Some(value);
            assert!(is_same, "k{i}: {} bytes", chunk.len());
        }
    }
}

#[test]
fn a_long_range_is_whole_whatever_else_the_connection_does() {
    const ENTRIES: usize = 3_000;
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    fill(&mut connection, numbered(ENTRIES, 500));
    // Pipelined, with requests before and behind.
    connection
        .send([bare("GET", "/v0/entity?id=k000007"), range("start=k"), bare("HEAD", "/v0/status")].concat());
    assert_eq!(connection.response().body.len(), 500);
    assert_head(&connection.head());
    let expected: Vec<_> =
        numbered(ENTRIES, 500).map(|(key, value)| [key.as_bytes(), b"\n", &value].concat()).collect();
    let chunks = connection.chunks();
    assert!(chunks == expected, "{} chunks", chunks.len());
    assert_eq!(connection.head_response().status, 200);
    // A client that says at once that it sends no more still gets all.
    let mut connection = node.connect();
    connection.send(range_with("start=k", "Connection: close"));
    connection.finish_sending();
    assert_head(&connection.head());
    assert!(connection.chunks() == expected);
    connection.assert_closed();
    assert_eq!(open(&node), (0, 0));
}

#[test]
fn http_1_0_gets_the_range_up_to_the_end_of_the_connection() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    fill(&mut connection, numbered(500, 100));
    connection.send("GET /v0/entities?start=k HTTP/1.0\r\n\r\n");
    let (answer, end) = connection.rest();
    assert_eq!(end, ErrorKind::UnexpectedEof, "a whole range ends without a reset");
    let body_at = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head") + 4;
    let head = String::from_utf8_lossy(&answer[..body_at]).to_ascii_lowercase();
    assert!(head.starts_with("http/1.0 200") && !head.contains("chunked"), "{head}");
    let expected: Vec<u8> =
        numbered(500, 100).flat_map(|(key, value)| [key.as_bytes(), b"\n", &value].concat()).collect();
    assert!(answer[body_at..] == expected);
}

#[test]
fn formats_are_chosen_by_accept() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    fill(&mut connection, numbered(2_000, 300));
    assert_eq!(connection.exchange(put("%FF%0A", b"\xfe\n\0")).status, 201);
    for (accept, media_type) in [
        ("*/*", "application/octet-stream"),
        ("application/octet-stream", "application/octet-stream"),
        ("application/x-ndjson", "application/x-ndjson"),
        ("application/vnd.veche.entries", "application/vnd.veche.entries"),
        ("text/html, application/x-ndjson;q=0.5", "application/x-ndjson"),
    ] {
        for (coding, expected) in
            [("identity", None), ("gzip", Some("gzip")), ("zstd", Some("zstd")), ("gzip, zstd", Some("zstd"))]
        {
            connection
                .send(range_with("start=k000100", &format!("Accept: {accept}\r\nAccept-Encoding: {coding}")));
            let head = connection.head();
            assert_head(&head);
            assert_eq!(head.header("content-type"), Some(media_type), "{accept}");
            let is_lines = media_type == "application/octet-stream";
            assert_eq!(head.header("content-encoding"), expected.filter(|_| !is_lines), "{accept}, {coding}");
            assert!(head.header("vary").is_some_and(|vary| vary.contains("accept-encoding")), "{head:?}");
            let body = decompress(head.header("content-encoding"), &connection.chunks().concat());
            match media_type {
                "application/x-ndjson" => assert_json_lines(&body),
                "application/vnd.veche.entries" => assert_binary(&body),
                _ => assert!(body.starts_with(b"k000100\n") && body.ends_with(b"\xff\n\n\xfe\n\0")),
            }
        }
    }
}

fn decompress(coding: Option<&str>, bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    match coding {
        Some("zstd") => plain = zstd::stream::decode_all(bytes).expect("zstd"),
        Some("gzip") => {
            std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(bytes), &mut plain).expect("gzip");
        }
        _ => plain.extend_from_slice(bytes),
    }
    plain
}

fn assert_json_lines(body: &[u8]) {
    let text = std::str::from_utf8(body).expect("JSON is UTF-8");
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect();
    assert_eq!(lines.len(), 1_901);
    assert_eq!(lines[0]["key"], "k000100");
    assert_eq!(lines[0]["value"].as_str().map(str::len), Some(300));
    assert_eq!(lines[0]["version"].as_str().map(str::len), Some(32));
    let last = &lines[1_900];
    assert_eq!(
        (&last["key_encoding"], &last["value_encoding"]),
        (&"base64".into(), &"base64".into()),
        "{last}"
    );
}

fn assert_binary(body: &[u8]) {
    assert!(body.starts_with(b"VECHEEN1"));
    let mut decoder = EntryDecoder::of_export(Format::Binary, 1 << 20);
    decoder.feed(bytes::Bytes::copy_from_slice(body));
    let mut entries = 0;
    while decoder.next().expect("entries").is_some() {
        entries += 1;
    }
    decoder.end().expect("the end record is there");
    assert_eq!(entries, 1_901);
}

#[test]
fn a_reader_that_stops_stops_nobody_else_and_one_that_leaves_ends_the_work() {
    const READERS: usize = 20;
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--threads", "2", "--memory", "128MiB"]);
    let mut connection = node.connect();
    fill(&mut connection, numbered(300, 100_000));
    let mut readers: Vec<_> = (0..READERS).map(|_| node.connect()).collect();
    for reader in &mut readers {
        reader.send(range("start=k"));
        assert_head(&reader.head());
        assert!(reader.chunk().expect("an entry").is_some());
    }
    assert_eq!(open(&node), (READERS as u64, READERS as u64));
    for i in 0..200 {
        assert_eq!(connection.exchange(put(&format!("other{i}"), "v")).status, 201);
    }
    assert_eq!(entries(&mut connection, "start=k").len(), 300 + 200);
    // The node ends the connection of a reader that stops for 120 s, and the work above may take
    // longer on a busy machine. So the reader that reads again begins here.
    let mut late = node.connect();
    late.send(range("start=k"));
    assert_head(&late.head());
    assert!(late.chunk().expect("an entry").is_some());
    assert_eq!(connection.exchange(put("other-late", "v")).status, 201);
    drop(readers);
    eventually("the ranges that nobody reads are over", || open(&node) == (1, 1));
    assert_eq!(late.chunks().len(), 300 + 200 - 1, "whoever reads again gets the rest, as it was");
    eventually("the last range is over", || open(&node) == (0, 0));
}

/// A hundred stopped readers: each holds a page being sent, one that is ready, and buffers of hyper
/// and of the scan. The bound allows for free memory of the allocator.
#[test]
fn readers_that_stop_take_bounded_memory() {
    const READERS: usize = 100;
    for (value_len, entries, each_max) in [(1 << 10, 20_000, 1 << 20), (1 << 20, 24, 6 << 20)] {
        let (_dir, data) = data_dir();
        let node = Node::start_with(&data, &["--threads", "2", "--memory", "2GiB"]);
        let mut connection = node.connect();
        fill(&mut connection, numbered(entries, value_len));
        // Memory that one whole range leaves allocated is not counted against the readers.
        connection.send(range("start=k"));
        assert_head(&connection.head());
        assert_eq!(connection.chunks().len(), entries);
        let before = node.resident_bytes();
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                let mut reader = node.connect();
                reader.send(range("start=k"));
                assert_head(&reader.head());
                reader
            })
            .collect();
        let grown = node.resident_bytes().saturating_sub(before);
        assert!(grown < READERS as u64 * each_max, "{grown} bytes for values of {value_len}");
        assert_eq!(open(&node).0, READERS as u64);
        drop(readers);
        eventually("the ranges are over", || open(&node) == (0, 0));
    }
}

#[test]
fn a_range_is_one_snapshot_while_it_is_young() {
    const ENTRIES: usize = 20_000;
    let (_dir, data) = data_dir();
    // Snapshots may pin a quarter of it: more than all entries, should none be in a table yet.
    let node = Node::start_with(&data, &["--memory", "256MiB"]);
    let mut connection = node.connect();
    fill(&mut connection, numbered(ENTRIES, 1_000));
    let mut reader = node.connect();
    reader.send(range("start=k"));
    assert_head(&reader.head());
    let first = reader.chunk().expect("an entry").expect("an entry");
    change_end(&mut connection, ENTRIES);
    let mut chunks = vec![first];
    chunks.extend(reader.chunks());
    let expected: Vec<_> =
        numbered(ENTRIES, 1_000).map(|(key, value)| [key.as_bytes(), b"\n", &value].concat()).collect();
    assert!(chunks == expected, "the range is as it was when it began: {} chunks", chunks.len());
}

/// Changes some of the last entries: one is deleted, one overwritten, one new.
fn change_end(connection: &mut Connection, entries: usize) {
    assert_eq!(connection.exchange(delete(&format!("k{:06}", entries - 2))).status, 202);
    assert_eq!(connection.exchange(put(&format!("k{:06}", entries - 3), "new")).status, 201);
    assert_eq!(connection.exchange(put("kz", "new")).status, 201);
}

#[test]
fn past_the_age_of_its_snapshot_a_range_goes_on_behind_its_last_key() {
    const ENTRIES: usize = 20_000;
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--snapshot-age", "1s"]);
    let mut connection = node.connect();
    fill(&mut connection, numbered(ENTRIES, 1_000));
    let mut reader = node.connect();
    reader.send(range("start=k"));
    assert_head(&reader.head());
    let first = reader.chunk().expect("an entry").expect("an entry");
    change_end(&mut connection, ENTRIES);
    eventually("the stalled reader's snapshot is let go of", || open(&node) == (1, 0));
    let mut chunks = vec![first];
    chunks.extend(reader.chunks());
    let keys: Vec<_> =
        chunks.iter().map(|chunk| chunk.split(|byte| *byte == b'\n').next().expect("a key")).collect();
    assert!(keys.is_sorted_by(|a, b| a < b), "no key is there twice");
    let unchanged = numbered(ENTRIES - 3, 1_000).map(|(key, value)| [key.as_bytes(), b"\n", &value].concat());
    assert!(chunks.iter().take(ENTRIES - 3).cloned().eq(unchanged), "what did not change is there once");
    let changed: Vec<_> = chunks[ENTRIES - 3..].iter().map(Vec::len).collect();
    // Overwritten, the deleted one left out, the last as it was, the new one.
    assert_eq!(changed, ["k000000\nnew".len(), 1_008, "kz\nnew".len()], "the rest is as it is by now");
    assert_eq!(open(&node), (0, 0));
}

#[test]
fn a_node_that_stops_ends_a_range_that_is_read_and_cuts_one_that_is_not() {
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--memory", "128MiB"]);
    let mut connection = node.connect();
    fill(&mut connection, numbered(300, 100_000));
    let mut read = node.connect();
    let (mut stalled, mut stalled_1_0) = (node.connect(), node.connect());
    read.send(range("start=k"));
    stalled.send(range("start=k"));
    stalled_1_0.send("GET /v0/entities?start=k HTTP/1.0\r\n\r\n");
    for reader in [&mut read, &mut stalled, &mut stalled_1_0] {
        assert_eq!(reader.head().status, 200);
    }
    node.terminate();
    assert_eq!(read.chunks().len(), 300, "a range under way is finished");
    let (status, log) = node.wait();
    assert!(status.success(), "{log}");
    let cut = std::iter::from_fn(|| Some(stalled.chunk())).find_map(|chunk| match chunk {
        Ok(Some(_)) => None,
        Ok(None) => Some("whole"),
        Err(_) => Some("cut"),
    });
    assert_eq!(cut, Some("cut"), "a range that was cut off lacks its last chunk");
    assert_eq!(stalled_1_0.rest().1, ErrorKind::ConnectionReset, "without chunks, a reset tells");
}
