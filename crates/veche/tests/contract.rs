//! The contract of `/v0/entity`, row by row.

mod common;

use common::http::{Connection, bare, delete, get, put};
use common::{Node, data_dir, eventually};

#[test]
fn get_head_put_and_delete_answer_as_promised() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();

    let missing = connection.exchange(get("k"));
    missing.assert_problem(404, "no such key");
    assert_eq!(missing.header("veche-acks"), Some("1/1"));

    let written = connection.exchange(put("k", "value"));
    assert_eq!((written.status, written.body.len()), (201, 0));
    assert_eq!(written.header("veche-acks"), Some("1/1"));
    let version = written.header("etag").expect("a version").to_owned();

    let found = connection.exchange(get("k"));
    assert_eq!((found.status, found.text()), (200, "value".to_owned()));
    assert_eq!(found.header("content-type"), Some("application/octet-stream"));
    assert_eq!(found.header("etag"), Some(version.as_str()));
    assert!(found.header("date").is_some());

    let head = connection.exchange(bare("HEAD", "/v0/entity?id=k"));
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.header("content-length"), Some("5"));
    assert_eq!(head.header("etag"), Some(version.as_str()));

    let deleted = connection.exchange(delete("k"));
    assert_eq!((deleted.status, deleted.body.len()), (202, 0));
    assert!(deleted.header("etag").expect("a version") > version.as_str());
    assert_eq!(connection.exchange(get("k")).status, 404);
    assert_eq!(connection.exchange(bare("HEAD", "/v0/entity?id=k")).status, 404);
    assert_eq!(connection.exchange(delete("never+written")).status, 202);
}

#[test]
fn keys_are_any_1_to_8192_bytes() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    let every_byte: String = (0..=255u8).map(|byte| format!("%{byte:02x}")).collect();
    let longest = "k".repeat(8_192);
    let longest_encoded = "%FF".repeat(8_192);
    for id in ["a", "%00", "a%2Fb%3Fc%26d", "%C3%A9", &every_byte, &longest, &longest_encoded] {
        assert_eq!(connection.exchange(put(id, id)).status, 201, "{id}");
        assert_eq!(connection.exchange(get(id)).text(), id);
    }
    assert_eq!(connection.exchange(put("a+b", "1")).status, 201);
    assert_eq!(connection.exchange(get("a%20b")).text(), "1", "a plus is a blank");
    assert_eq!(connection.exchange(get("a%2Bb")).status, 404);

    let too_long = "k".repeat(8_193);
    for target in [
        "/v0/entity",
        "/v0/entity?",
        "/v0/entity?id=",
        "/v0/entity?id=%",
        "/v0/entity?id=%zz",
        "/v0/entity?id=%4",
    ] {
        for method in ["GET", "HEAD", "DELETE"] {
            assert_eq!(connection.exchange(bare(method, target)).status, 400, "{method} {target}");
        }
    }
    connection.exchange(get(&too_long)).assert_problem(414, "8192");
    let refused = node.exchange(get(&"k".repeat(70_000)));
    refused.assert_problem(431, "head");
    assert_eq!(refused.header("connection"), Some("close"));
}

#[test]
fn values_are_0_to_16_mib() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    let largest: Vec<u8> = (0..16u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for value in [&b""[..], b"\0", &largest[..65_536], &largest[..65_537], &largest[..]] {
        assert_eq!(connection.exchange(put("k", value)).status, 201, "{} bytes", value.len());
        let found = connection.exchange(get("k"));
        assert_eq!((found.status, found.body == value), (200, true), "{} bytes", value.len());
    }

    // Said before the body is read: none of it is sent here.
    let mut connection = node.connect();
    connection.send("PUT /v0/entity?id=big HTTP/1.1\r\nHost: v\r\nContent-Length: 16777217\r\n\r\n");
    let refused = connection.response();
    refused.assert_problem(413, "16777216");
    assert_eq!(refused.header("connection"), Some("close"));
    connection.assert_closed();

    // Of unknown length: said when it is more.
    let mut connection = node.connect();
    connection.send("PUT /v0/entity?id=big HTTP/1.1\r\nHost: v\r\nTransfer-Encoding: chunked\r\n\r\n");
    let chunk = [b"100000\r\n", &largest[..1 << 20], b"\r\n"].concat();
    for _ in 0..17 {
        if connection.try_send(&chunk).is_err() {
            break;
        }
    }
    connection.response().assert_problem(413, "16777216");
    assert_eq!(node.get("big").status, 404);
}

/// Many clients send the whole value before they look for an answer. They must find it all the
/// same.
#[test]
fn a_value_that_is_too_large_is_refused_so_that_the_client_learns_of_it() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let body = vec![7; (16 << 20) + 1];
    let chunks = [b"1000001\r\n", &body[..], b"\r\n0\r\n\r\n"].concat();
    for (header, body) in [("Content-Length: 16777217", body), ("Transfer-Encoding: chunked", chunks)] {
        for _ in 0..5 {
            let mut connection = node.connect();
            connection.send(format!("PUT /v0/entity?id=big HTTP/1.1\r\nHost: v\r\n{header}\r\n\r\n"));
            for piece in body.chunks(64 << 10) {
                connection.send(piece);
            }
            connection.response().assert_problem(413, "16777216");
        }
    }
}

#[test]
fn the_limit_of_values_can_be_set() {
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--value-max", "10B"]);
    assert_eq!(node.put("k", "0123456789").status, 201);
    node.put("k", "0123456789a").assert_problem(413, "10 bytes");
    assert_eq!(node.get("k").text(), "0123456789");
}

#[test]
fn versions_rise_and_are_not_sent_twice() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    let mut versions: Vec<String> = (0..100)
        .map(|i| {
            let written = connection.exchange(put("k", i.to_string()));
            assert_eq!(written.header("veche-superseded"), None);
            written.header("etag").expect("a version").to_owned()
        })
        .collect();
    assert!(versions.is_sorted(), "{versions:?}");
    let newest = versions.pop().expect("there are many");
    versions.dedup();
    assert_eq!(versions.len(), 99);
    for (condition, status) in
        [(newest.as_str(), 304), ("*", 304), (versions[0].as_str(), 200), ("\"x\"", 200)]
    {
        for method in ["GET", "HEAD"] {
            let request =
                format!("{method} /v0/entity?id=k HTTP/1.1\r\nHost: v\r\nIf-None-Match: {condition}\r\n\r\n");
            let answer = connection.exchange(request);
            assert_eq!(answer.status, status, "{method} {condition}");
            assert_eq!(answer.header("etag"), Some(newest.as_str()));
        }
    }
}

#[test]
fn preconditions_that_are_not_honoured_are_refused() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    for header in [
        "If-Match: *",
        "If: ([\"x\"])",
        "If-Schedule-Tag-Match: \"x\"",
        "If-Modified-Since: Sat, 21 Nov 2026 00:00:00 GMT",
        "If-Unmodified-Since: x",
        "If-Range: \"x\"",
    ] {
        let is_ignored_by_reads = header.contains("Since") || header.contains("Range");
        let methods = if is_ignored_by_reads { &["PUT", "DELETE"][..] } else { &["GET", "PUT", "DELETE"] };
        for method in methods {
            let request = format!(
                "{method} /v0/entity?id=k HTTP/1.1\r\nHost: v\r\nContent-Length: 0\r\n{header}\r\n\r\n"
            );
            connection.exchange(request).assert_problem(501, "precondition");
        }
    }
    let conditional_put =
        "PUT /v0/entity?id=k HTTP/1.1\r\nHost: v\r\nIf-None-Match: *\r\nContent-Length: 1\r\n\r\nx";
    connection.exchange(conditional_put).assert_problem(501, "precondition");
    assert_eq!(connection.exchange(get("k")).status, 404);
}

#[test]
fn a_part_of_a_value_is_sent_to_those_who_ask_for_it() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    let tag = connection.exchange(put("k", "0123456789")).header("etag").expect("a version").to_owned();
    let mut ask = |headers: &str| {
        let request = format!("GET /v0/entity?id=k HTTP/1.1\r\nHost: v\r\n{headers}\r\n");
        let answer = connection.exchange(request);
        let range = answer.header("content-range").map(str::to_owned);
        (answer.status, range, String::from_utf8_lossy(&answer.body).into_owned())
    };
    let whole = || (200, None, "0123456789".to_owned());
    let part = |range: &str, body: &str| (206, Some(range.to_owned()), body.to_owned());
    assert_eq!(ask("Range: bytes=2-4\r\n"), part("bytes 2-4/10", "234"));
    assert_eq!(ask("Range: bytes=7-\r\n"), part("bytes 7-9/10", "789"));
    assert_eq!(ask("Range: bytes=-1\r\n"), part("bytes 9-9/10", "9"));
    assert_eq!(ask(&format!("Range: bytes=0-0\r\nIf-Range: {tag}\r\n")), part("bytes 0-0/10", "0"));
    for other in [format!("W/{tag}"), "\"x\"".to_owned(), "Sat, 21 Nov 2026 00:00:00 GMT".to_owned()] {
        assert_eq!(ask(&format!("Range: bytes=0-0\r\nIf-Range: {other}\r\n")), whole(), "{other}");
    }
    assert_eq!(ask("If-Range: \"x\"\r\n"), whole());
    assert_eq!(ask("If-Modified-Since: Sat, 21 Nov 2026 00:00:00 GMT\r\n"), whole());
    assert_eq!(ask("If-Unmodified-Since: Sat, 21 Nov 1998 00:00:00 GMT\r\n"), whole());
    let (status, range, body) = ask("Range: bytes=10-11\r\n");
    assert_eq!((status, range.as_deref()), (416, Some("bytes */10")));
    assert!(body.contains("The value has 10 bytes"), "{body}");
    assert_eq!(ask(&format!("Range: bytes=0-0\r\nIf-None-Match: {tag}\r\n")).0, 304);
}

#[test]
fn a_range_with_whitespace_around_its_equals_sign_is_ignored() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    assert_eq!(node.put("k", "value").status, 201);
    for range in ["bytes = 0-1", "bytes =0-1", "bytes= 0-1"] {
        let answer =
            node.exchange(format!("GET /v0/entity?id=k HTTP/1.1\r\nHost: v\r\nRange: {range}\r\n\r\n"));
        assert_eq!((answer.status, answer.text().as_str()), (200, "value"), "{range}");
    }
}

#[test]
fn a_value_with_a_content_coding_is_refused() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let put = |coding: &str| {
        node.exchange(format!(
            "PUT /v0/entity?id=k HTTP/1.1\r\nHost: v\r\n{coding}Content-Length: 1\r\n\r\nv"
        ))
    };
    for coding in ["Content-Encoding: gzip\r\n", "Content-Encoding: identity\r\nContent-Encoding: br\r\n"] {
        let refused = put(coding);
        refused.assert_problem(415, "Content-Encoding");
        assert_eq!(refused.header("accept-encoding"), Some("identity"));
        assert_eq!(node.get("k").status, 404, "nothing is stored");
    }
    assert_eq!(put("Content-Encoding: Identity\r\n").status, 201);
}

#[test]
fn the_expiry_of_a_value_is_shown() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    assert_eq!(connection.exchange(put("for-an-hour&ttl=3600000", "v")).status, 201);
    assert_eq!(connection.exchange(put("forever", "v")).status, 201);
    let unix_ms = || {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.expect("after 1970").as_millis() as u64
    };
    for request in [get("for-an-hour"), get("for-an-hour").replacen("GET", "HEAD", 1)] {
        let answer = connection.exchange(request);
        let expires_at: u64 =
            answer.header("veche-expires-at").expect("it is shown").parse().expect("a number");
        assert!(expires_at > unix_ms() && expires_at <= unix_ms() + 3_600_000, "{expires_at}");
    }
    assert_eq!(connection.exchange(get("forever")).header("veche-expires-at"), None);
}

#[test]
fn one_node_is_one_of_one() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    for parameters in ["ack=1", "from=1", "ack=1&from=1", "replicas=1/1"] {
        let id = format!("k&{parameters}");
        assert_eq!(connection.exchange(put(&id, "v")).status, 201, "{parameters}");
        assert_eq!(connection.exchange(get(&id)).text(), "v", "{parameters}");
        assert_eq!(connection.exchange(delete(&id)).status, 202, "{parameters}");
    }
    for parameters in [
        "ack=0",
        "from=0",
        "ack=2",
        "from=2",
        "ack=2&from=1",
        "ack=1&from=2",
        "ack=x",
        "from=",
        "ack=-1",
        "ack=1.0",
        "replicas=2/3",
        "replicas=1",
        "replicas=0/1",
        "replicas=1/1&ack=1",
        "replicas=1/1&from=1",
        "ack=1&ack=1",
        "from=1&from=1",
        "id=k",
        "unknown=1",
        "ack=99999999999999999999",
    ] {
        let id = format!("k&{parameters}");
        for request in [put(&id, "v"), get(&id).into_bytes(), delete(&id).into_bytes()] {
            let answer = connection.exchange(&request);
            assert_eq!(answer.status, 400, "{}: {answer:?}", String::from_utf8_lossy(&request));
            answer.assert_problem(400, "");
        }
    }
    assert_eq!(connection.exchange(get("k")).status, 404, "nothing was stored");
}

#[test]
fn a_ttl_ends_a_value() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    assert_eq!(connection.exchange(put("short&ttl=1", "v")).status, 201);
    assert_eq!(connection.exchange(put("long&ttl=3600000", "v")).status, 201);
    eventually("the value expires", || connection.exchange(get("short")).status == 404);
    assert_eq!(connection.exchange(get("long")).text(), "v");
    assert_eq!(connection.exchange(put("long", "w")).status, 201);
    for id in [
        "k&ttl=0",
        "k&ttl=-1",
        "k&ttl=x",
        "k&ttl=",
        "k&ttl=1&ttl=1",
        "k&ttl=9999999999999",
        "k&ttl=99999999999999999999",
    ] {
        connection.exchange(put(id, "v")).assert_problem(400, "");
    }
    for request in [get("k&ttl=1"), bare("HEAD", "/v0/entity?id=k&ttl=1"), delete("k&ttl=1")] {
        assert_eq!(connection.exchange(&request).status, 400, "{request}");
    }
    assert_eq!(connection.exchange(get("k")).status, 404);
}

#[test]
fn a_read_names_the_nodes_of_a_key_if_it_asks_for_them() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    assert_eq!(connection.exchange(put("k", "v")).status, 201);
    let url = node.status()["nodes"][0]["url"].as_str().expect("an address").to_owned();
    for (id, status) in [("k", 200), ("absent", 404)] {
        for (locate, nodes) in [("", None), ("&locate=0", None), ("&locate=1", Some(url.as_str()))] {
            for request in
                [get(&format!("{id}{locate}")), bare("HEAD", &format!("/v0/entity?id={id}{locate}"))]
            {
                let answer = connection.exchange(request);
                assert_eq!((answer.status, answer.header("veche-nodes")), (status, nodes), "{id}{locate}");
            }
        }
    }
    for answer in [connection.exchange(put("k&locate=1", "w")), connection.exchange(delete("k&locate=1"))] {
        answer.assert_problem(400, "Only GET and HEAD take locate");
    }
    assert_eq!(connection.exchange(get("k&locate=1")).text(), "v");
}

#[test]
fn other_paths_and_methods_are_refused() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    for target in [
        "/v0",
        "/v0/",
        "/v0/entity/",
        "/v0/entitys?id=k",
        "/v1/entity?id=k",
        "/V0/entity?id=k",
        "/favicon.ico",
    ] {
        for method in ["GET", "PUT", "DELETE", "POST", "OPTIONS"] {
            let request = format!("{method} {target} HTTP/1.1\r\nHost: v\r\nContent-Length: 0\r\n\r\n");
            connection.exchange(request).assert_problem(400, "no such path");
        }
    }
    for method in ["POST", "PATCH", "TRACE", "BREW"] {
        let request = format!("{method} /v0/entity?id=k HTTP/1.1\r\nHost: v\r\nContent-Length: 1\r\n\r\nx");
        let refused = connection.exchange(request);
        refused.assert_problem(405, "GET, HEAD, PUT, DELETE");
        assert_eq!(refused.header("allow"), Some("GET, HEAD, PUT, DELETE"));
    }
    let refused = connection.exchange("PUT /v0/status HTTP/1.1\r\nHost: v\r\nContent-Length: 0\r\n\r\n");
    assert_eq!((refused.status, refused.header("allow")), (405, Some("GET, HEAD")));
    let absolute = connection.exchange("GET http://v/v0/status HTTP/1.1\r\nHost: v\r\n\r\n");
    assert_eq!(absolute.status, 200, "a target in absolute form is a target");
}

#[test]
fn the_status_is_json_and_counts_what_was_asked() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    for i in 0..50 {
        assert_eq!(node.put(&format!("k{i}"), "v").status, 201);
    }
    let status = node.exchange(bare("GET", "/v0/status"));
    assert_eq!(status.header("content-type"), Some("application/json"));
    let json: serde_json::Value = serde_json::from_slice(&status.body).expect("JSON");
    assert_eq!(json["state"], "serving");
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(json["storage"]["durability"], "fdatasync");
    assert_eq!(json["nodes"][0]["state"], "up");
    assert_eq!(json["nodes"].as_array().map(Vec::len), Some(1));
    // Connections that were closed by us a moment ago may still be counted.
    eventually("the connection that asks is the only one", || {
        let status = node.exchange(bare("GET", "/v0/status"));
        let json: serde_json::Value = serde_json::from_slice(&status.body).expect("JSON");
        json["queues"]["connections"] == 1
    });
    assert_eq!(json["storage"]["memory"]["budget_bytes"], 64 << 20);
    let io = &json["storage"]["io"];
    assert!(io["reads"].is_u64() && io["syncs"].as_u64() >= Some(50), "{io}");
    assert!(json["storage"]["wal_bytes"].as_u64() > Some(50), "{json}");
    assert_eq!(json["warnings"], serde_json::json!([]));
    let head = node.exchange(bare("HEAD", "/v0/status"));
    assert_eq!((head.status, head.body.len()), (200, 0));
}

#[test]
fn bodies_of_requests_that_take_none_are_read_over() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = Connection::open(node.address);
    assert_eq!(connection.exchange(put("k", "v")).status, 201);
    for method in ["GET", "DELETE"] {
        let request = format!(
            "{method} /v0/entity?id=k HTTP/1.1\r\nHost: v\r\nContent-Length: 34\r\n\r\nGET /v0/entity?id=x HTTP/1.1\r\n\r\nxx"
        );
        assert!(connection.exchange(request).status < 300);
    }
    assert_eq!(connection.exchange(get("k")).status, 404, "the connection goes on");
}

#[test]
fn a_load_balancer_and_a_browser_are_answered() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    let mut ask = |method: &str, target: &str| connection.exchange(bare(method, target));
    let ready = ask("GET", "/v0/ready");
    assert_eq!((ready.status, ready.text()), (200, r#"{"ready":true}"#.to_owned()));
    assert_eq!(ask("HEAD", "/v0/ready").status, 200);
    for target in ["/", "*"] {
        let probe = ask("OPTIONS", target);
        assert_eq!((probe.status, probe.header("content-length"), probe.body.len()), (200, Some("0"), 0));
    }
    let options = ask("OPTIONS", "/v0/entity?id=k");
    assert_eq!((options.status, options.header("allow")), (204, Some("GET, HEAD, PUT, DELETE")));
    assert_eq!((options.header("content-length"), options.body.len()), (None, 0));
    ask("OPTIONS", "/v0/entity/").assert_problem(400, "no such path");
    let page = ask("GET", "/");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(page.text().contains("href=\"/v0/status\""), "{}", page.text());
    let old = node.exchange("OPTIONS / HTTP/1.0\r\n\r\n");
    assert_eq!((old.status, old.body.len()), (200, 0), "the default check of HAProxy");
}

#[test]
fn numbers_that_are_too_large_are_called_so() {
    const LARGE: &str = "99999999999999999999";
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    for target in [
        format!("/v0/entity?id=k&ack={LARGE}"),
        format!("/v0/entity?id=k&from={LARGE}"),
        "/v0/entity?id=k&ack=4294967296".to_owned(),
        format!("/v0/entity?id=k&replicas={LARGE}/1"),
        format!("/v0/entity?id=k&replicas=1/{LARGE}"),
        format!("/v0/entities?start=a&limit={LARGE}"),
    ] {
        node.exchange(bare("GET", &target)).assert_problem(400, "too large");
    }
    node.put(&format!("k&ttl={LARGE}"), "v").assert_problem(400, "too large");
    node.get("k").assert_problem(404, "no such key");
    for field in ["ttl", "expires_at"] {
        let entry = format!("{{\"key\":\"k\",\"value\":\"v\",\"{field}\":{LARGE}}}\n");
        let head = "POST /v0/entities HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n";
        let batch = format!("{head}Content-Length: {}\r\n\r\n{entry}", entry.len());
        node.exchange(batch).assert_problem(400, "too large");
    }
}
