//! Ranges, batches and checkpoints: each row of the contract, with its meaning or the status of its
//! refusal.

use api::entries::{Coding, Format, ResultScope};
use api::{
    BatchRequest, CheckpointRequest, DecodedRequest, EntityRangeRequest, RangeContent, RequestRules,
    decode_head,
};
use bytes::Bytes;
use cluster::{Acks, CommandFailure, Cut, Key, KeyRange, ScanScope, Shortfall};
use http::Request;
use http::request::Parts;
use std::num::NonZeroU8;
use std::time::Duration;

const NDJSON: &str = "application/x-ndjson";
const BINARY: &str = "application/vnd.veche.entries";

fn rules() -> RequestRules {
    RequestRules { nodes: NonZeroU8::new(5).unwrap(), default_from: 5, value_bytes_max: 1_000 }
}

fn parts(method: &str, target: &str, headers: &[(&str, &str)]) -> Parts {
    let request = Request::builder().method(method).uri(target);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    request.body(()).expect("a request").into_parts().0
}

fn range_with(query: &str, headers: &[(&str, &str)]) -> EntityRangeRequest {
    match decode_head(&parts("GET", &format!("/v0/entities?{query}"), headers), &rules()) {
        Ok(DecodedRequest::Range(range)) => range,
        other => panic!("{query} {headers:?}: {other:?}"),
    }
}

fn range(query: &str) -> EntityRangeRequest {
    range_with(query, &[])
}

fn batch_with(query: &str, headers: &[(&str, &str)]) -> BatchRequest {
    match decode_head(&parts("POST", &format!("/v0/entities{query}"), headers), &rules()) {
        Ok(DecodedRequest::Batch(batch)) => batch,
        other => panic!("{query} {headers:?}: {other:?}"),
    }
}

fn status_with(method: &str, target: &str, headers: &[(&str, &str)]) -> u16 {
    match decode_head(&parts(method, target, headers), &rules()) {
        Ok(_) => 200,
        Err(problem) => {
            assert!(problem.detail().ends_with('.'), "{}", problem.detail());
            problem.status().as_u16()
        }
    }
}

fn range_status(query: &str) -> u16 {
    status_with("GET", &format!("/v0/entities{query}"), &[])
}

fn key(bytes: &[u8]) -> Key {
    Key::new(Bytes::copy_from_slice(bytes)).unwrap()
}

fn between(start: &[u8], end: Option<&[u8]>) -> KeyRange {
    KeyRange { from: Some(Cut::Before(key(start))), to: end.map(|end| Cut::Before(key(end))) }
}

#[test]
fn a_range_is_between_its_keys() {
    assert_eq!(range("start=a").scan.range, between(b"a", None));
    assert_eq!(range("start=a&end=b").scan.range, between(b"a", Some(b"b")));
    assert_eq!(range("end=%ff+%00&start=a%2Bb+c").scan.range, between(b"a+b c", Some(b"\xff \0")));
    for empty in ["start=a&end=", "start=a&end", "start=b&end=a", "start=b&end=b"] {
        assert!(range(empty).scan.range.is_empty(), "{empty}");
    }
    assert!(!range("start=a&end=a%00").scan.range.is_empty());
}

#[test]
fn a_range_has_a_start() {
    for query in [
        "",
        "?",
        "?start",
        "?start=",
        "?start=%",
        "?start=%4",
        "?start=%zz",
        "?end=a",
        "?Start=a",
        "?start=a&end=%g0",
    ] {
        assert_eq!(range_status(query), 400, "{query}");
    }
    for (len, expected) in [(Key::LEN_MAX, 200), (Key::LEN_MAX + 1, 414)] {
        assert_eq!(range_status(&format!("?start={}", "k".repeat(len))), expected);
        assert_eq!(range_status(&format!("?start=a&end={}", "%00".repeat(len))), expected);
    }
}

#[test]
fn a_prefix_is_the_range_of_the_keys_that_begin_with_it() {
    assert_eq!(range("prefix=ab").scan.range, between(b"ab", Some(b"ac")));
    assert_eq!(range("prefix=a%ff%ff").scan.range, between(b"a\xff\xff", Some(b"b")));
    assert_eq!(range("prefix=%ff%ff").scan.range, between(b"\xff\xff", None));
    assert_eq!(range("prefix=a&start=ab").scan.range, between(b"ab", Some(b"b")), "to go on within a prefix");
    assert_eq!(range("prefix=b&start=a&end=bc").scan.range, between(b"b", Some(b"bc")));
    assert_eq!(range("prefix=b&end=c&start=bb").scan.range, between(b"bb", Some(b"c")));
    for empty in ["prefix=a&start=b", "prefix=b&end=b", "prefix=b&end="] {
        assert!(range(empty).scan.range.is_empty(), "{empty}");
    }
    for query in ["?prefix", "?prefix=", "?prefix=%4"] {
        assert_eq!(range_status(query), 400, "{query}");
    }
    assert_eq!(range_status(&format!("?prefix={}", "k".repeat(Key::LEN_MAX + 1))), 414);
    let problem = decode_head(&parts("GET", "/v0/entities", &[]), &rules()).expect_err("no start");
    assert!(problem.detail().contains("?start=%00 lists everything"), "{}", problem.detail());
}

#[test]
fn a_range_may_be_of_keys_or_their_number() {
    let content = |query: &str| range(&format!("start=a&{query}")).content;
    assert_eq!(content("keys=0&count=0"), RangeContent::Entries);
    assert_eq!(content("keys=1"), RangeContent::Keys);
    assert_eq!(content("count=1&limit=5&cluster=1"), RangeContent::Count);
    for query in ["keys", "keys=2", "count=yes", "keys=1&count=1", "keys=1&keys=1"] {
        assert_eq!(range_status(&format!("?start=a&{query}")), 400, "{query}");
    }
    assert_eq!(range_with("start=a&keys=1", &[("accept", NDJSON)]).format, Format::Ndjson);
    assert_eq!(status_with("GET", "/v0/entities?start=a&keys=1", &[("accept", BINARY)]), 406);
    assert_eq!(range_with("start=a&count=1", &[("accept", BINARY)]).content, RangeContent::Count);
}

#[test]
fn a_limit_is_a_whole_number() {
    assert_eq!(range("start=a").scan.limit, None);
    for (query, limit) in
        [("limit=0", 0), ("limit=%31", 1), ("limit=007", 7), ("limit=18446744073709551615", u64::MAX)]
    {
        assert_eq!(range(&format!("start=a&{query}")).scan.limit, Some(limit), "{query}");
    }
    for query in
        ["limit", "limit=", "limit=-1", "limit=+1", "limit=1.0", "limit=x", "limit=18446744073709551616"]
    {
        assert_eq!(range_status(&format!("?start=a&{query}")), 400, "{query}");
    }
}

#[test]
fn a_range_is_of_the_node_or_of_the_cluster() {
    for query in ["", "&cluster=0"] {
        assert_eq!(range(&format!("start=a{query}")).scan.scope, ScanScope::Node, "{query}");
    }
    for (query, expected) in [
        ("cluster=1", (3, 5)),
        ("cluster=%31&ack=1", (1, 5)),
        ("from=3&cluster=1", (2, 3)),
        ("cluster=1&ack=2&from=2", (2, 2)),
        ("cluster=1&replicas=2/3", (2, 3)),
    ] {
        let ScanScope::Cluster(quorum) = range(&format!("start=a&{query}")).scan.scope else {
            panic!("{query} is of the cluster");
        };
        assert_eq!((quorum.ack(), quorum.from()), expected, "{query}");
    }
    for query in [
        "cluster",
        "cluster=",
        "cluster=2",
        "cluster=true",
        "cluster=01",
        "ack=1",
        "from=1",
        "replicas=1/1",
        "cluster=0&ack=1",
        "cluster=0&from=3",
        "cluster=0&replicas=1/3",
        "cluster=1&ack=0",
        "cluster=1&from=6",
        "cluster=1&ack=3&from=2",
        "cluster=1&replicas=1/3&ack=1",
        "cluster=1&ack=x",
    ] {
        assert_eq!(range_status(&format!("?start=a&{query}")), 400, "{query}");
    }
}

#[test]
fn parameters_are_known_and_given_once() {
    for query in [
        "start=a",
        "end=b&end=b",
        "limit=1&limit=1",
        "cluster=1&cluster=1",
        "cluster=1&ack=1&ack=1",
        "id=a",
        "ttl=1",
        "prefix=a&prefix=b",
        "=1",
    ] {
        assert_eq!(range_status(&format!("?start=a&{query}")), 400, "{query}");
    }
    assert_eq!(range_status("?&&start=a&"), 200);
    for query in [
        "?cluster=1",
        "?start=a",
        "?ack=1&ack=1",
        "?ttl=1",
        "?ack=0",
        "?from=6",
        "?replicas=1/2&ack=1",
        "?id=a",
        "?results=none",
        "?results=errors&results=errors",
    ] {
        assert_eq!(
            status_with("POST", &format!("/v0/entities{query}"), &[("content-type", NDJSON)]),
            400,
            "{query}"
        );
    }
}

#[test]
fn a_batch_may_ask_for_failures_alone() {
    let batch = |query: &str, headers: &[(&str, &str)]| {
        let content_type = [("content-type", BINARY)];
        batch_with(query, &[&content_type[..], headers].concat())
    };
    assert_eq!((batch("", &[]).scope, batch("", &[]).results), (ResultScope::All, Format::Binary));
    assert_eq!(batch("?results=all", &[]).scope, ResultScope::All);
    for headers in [&[][..], &[("accept", NDJSON)], &[("accept", "*/*")]] {
        let asked = batch("?results=errors&ack=1", headers);
        assert_eq!((asked.scope, asked.results), (ResultScope::Errors, Format::Ndjson));
    }
    let only_binary = [("content-type", BINARY), ("accept", BINARY)];
    assert_eq!(status_with("POST", "/v0/entities?results=errors", &only_binary), 406);
}

#[test]
fn other_methods_are_refused_with_those_allowed() {
    for (target, allow, others) in [
        ("/v0/entities?start=a", "GET, POST", ["HEAD", "PUT", "DELETE", "PATCH", "TRACE"]),
        ("/v0/checkpoint", "GET, HEAD, POST, PUT, DELETE", ["PATCH", "TRACE", "BREW", "LOCK", "COPY"]),
    ] {
        for method in others {
            let problem = decode_head(&parts(method, target, &[]), &rules()).expect_err("not allowed");
            let answer = problem.to_response(method == "HEAD");
            assert_eq!(answer.response.status(), 405, "{method} {target}");
            assert_eq!(answer.response.headers()["allow"], allow);
        }
    }
}

#[test]
fn preconditions_are_refused_and_range_headers_are_ignored() {
    for name in ["if-none-match", "if-match", "if-modified-since", "if-unmodified-since", "if-range"] {
        assert_eq!(status_with("GET", "/v0/entities?start=a", &[(name, "\"0\"")]), 501, "{name}");
        let headers = [(name, "\"0\""), ("content-type", NDJSON)];
        assert_eq!(status_with("POST", "/v0/entities", &headers), 501, "{name}");
        assert_eq!(status_with("POST", "/v0/checkpoint", &headers), 501, "{name}");
    }
    assert_eq!(range_with("start=a", &[("range", "bytes=0-1")]), range("start=a"));
    assert_eq!(status_with("GET", "/v0/entities?start=a", &[("expect", "200-ok")]), 417);
}

fn format_for(accept: &str) -> Option<Format> {
    match decode_head(&parts("GET", "/v0/entities?start=a", &[("accept", accept)]), &rules()) {
        Ok(DecodedRequest::Range(range)) => Some(range.format),
        Err(problem) if problem.status() == 406 => None,
        other => panic!("{accept}: {other:?}"),
    }
}

#[test]
fn the_format_is_what_is_accepted_most() {
    assert_eq!(range("start=a").format, Format::Lines);
    for (accept, format) in [
        ("", Some(Format::Lines)),
        ("*/*", Some(Format::Lines)),
        ("*", Some(Format::Lines)),
        ("application/*", Some(Format::Lines)),
        ("application/octet-stream", Some(Format::Lines)),
        (NDJSON, Some(Format::Ndjson)),
        ("Application/X-NDJSON; charset=utf-8", Some(Format::Ndjson)),
        (BINARY, Some(Format::Binary)),
        ("application/x-ndjson, application/vnd.veche.entries", Some(Format::Ndjson)),
        ("application/x-ndjson;q=0.5, application/vnd.veche.entries;q=0.6", Some(Format::Binary)),
        ("application/x-ndjson, */*", Some(Format::Lines)),
        ("application/x-ndjson, */*;q=0.1", Some(Format::Ndjson)),
        ("application/x-ndjson, */*; Q = .2", Some(Format::Ndjson)),
        ("*/*;q=1, application/octet-stream;q=0.1", Some(Format::Ndjson)),
        ("application/octet-stream;q=0, */*;q=0.001", Some(Format::Ndjson)),
        ("application/*;q=0.2, application/vnd.veche.entries;q=0.3, */*", Some(Format::Binary)),
        ("application/octet-stream;q=0, application/*;q=0, */*", None),
        ("text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2", Some(Format::Lines)),
        ("text/html", None),
        ("text/*", None),
        ("*/*;q=0", None),
        ("application/x-ndjson;q=0.000", None),
        ("application/x-ndjson;q=nonsense, application/vnd.veche.entries;q=0.1", Some(Format::Binary)),
    ] {
        assert_eq!(format_for(accept), format, "{accept}");
    }
    let in_two_lines = [("accept", "application/octet-stream;q=0.1"), ("accept", NDJSON)];
    assert_eq!(range_with("start=a", &in_two_lines).format, Format::Ndjson);
}

#[test]
fn the_coding_is_what_is_accepted_most_and_the_default_form_has_none() {
    let coding_for = |accept: &str, coding: &str| {
        let headers = [("accept", accept), ("accept-encoding", coding)];
        match decode_head(&parts("GET", "/v0/entities?start=a", &headers), &rules()) {
            Ok(DecodedRequest::Range(range)) => Some(range.coding),
            Err(problem) if problem.status() == 406 => None,
            other => panic!("{coding}: {other:?}"),
        }
    };
    for (coding, expected) in [
        ("", Some(Coding::Identity)),
        ("identity", Some(Coding::Identity)),
        ("br, deflate", Some(Coding::Identity)),
        ("*", Some(Coding::Identity)),
        ("gzip", Some(Coding::Gzip)),
        ("deflate, gzip, br, ZSTD", Some(Coding::Zstd)),
        ("zstd;q=0.5, gzip;q=0.8", Some(Coding::Gzip)),
        ("zstd;q=0, gzip", Some(Coding::Gzip)),
        ("zstd;q=0", Some(Coding::Identity)),
        ("identity, zstd;q=0.5", Some(Coding::Identity)),
        ("identity;q=0.5, zstd;q=0.5", Some(Coding::Zstd)),
        ("identity;q=0, gzip;q=0.001", Some(Coding::Gzip)),
        ("identity;q=0, *", Some(Coding::Zstd)),
        ("identity;q=0, zstd;q=0, *", Some(Coding::Gzip)),
        ("identity;q=0", None),
        ("*;q=0", None),
        ("br, *;q=0", None),
    ] {
        assert_eq!(coding_for(NDJSON, coding), expected, "{coding}");
        assert_eq!(coding_for(BINARY, coding), expected, "{coding}");
        assert_eq!(coding_for("*/*", coding), Some(Coding::Identity), "{coding}");
    }
}

#[test]
fn a_batch_states_its_format() {
    for (content_type, format) in [
        (NDJSON, Format::Ndjson),
        ("Application/X-Ndjson ; charset=utf-8", Format::Ndjson),
        (BINARY, Format::Binary),
    ] {
        let batch = batch_with("?ack=1&from=2", &[("content-type", content_type)]);
        assert_eq!((batch.entries, batch.results), (format, format), "{content_type}");
        assert_eq!((batch.quorum.ack(), batch.quorum.from()), (1, 2));
    }
    let status = |headers: &[(&str, &str)]| status_with("POST", "/v0/entities", headers);
    assert_eq!(status(&[]), 415);
    for content_type in [
        "",
        "application/octet-stream",
        "application/json",
        "text/plain",
        "application/x-www-form-urlencoded",
    ] {
        assert_eq!(status(&[("content-type", content_type)]), 415, "{content_type}");
    }
    assert_eq!(status(&[("content-type", NDJSON), ("content-type", BINARY)]), 415);
    for (coding, expected) in [("identity", 200), ("gzip", 415), ("zstd", 415)] {
        assert_eq!(status(&[("content-type", NDJSON), ("content-encoding", coding)]), expected, "{coding}");
    }
    assert_eq!(
        status(&[("content-type", NDJSON), ("content-length", "99999999999")]),
        200,
        "a batch has no end"
    );
}

#[test]
fn results_are_written_like_the_batch_unless_something_else_is_accepted_more() {
    let results =
        |content_type, accept| batch_with("", &[("content-type", content_type), ("accept", accept)]).results;
    for content_type in [NDJSON, BINARY] {
        let like = batch_with("", &[("content-type", content_type)]).results;
        assert_eq!(results(content_type, "*/*"), like);
        assert_eq!(results(content_type, "application/*;q=0.5, text/html"), like);
        assert_eq!(results(content_type, NDJSON), Format::Ndjson);
        assert_eq!(results(content_type, BINARY), Format::Binary);
        let headers = [("content-type", content_type), ("accept", "application/octet-stream")];
        assert_eq!(status_with("POST", "/v0/entities", &headers), 406);
    }
}

#[test]
fn heads_describe_their_bodies() {
    let head = api::encode_range_head(&range("start=a"));
    assert_eq!(head.status(), 200);
    assert_eq!(head.headers()["content-type"], "application/octet-stream");
    assert_eq!(head.headers()["vary"], "accept, accept-encoding");
    assert!(
        !head.headers().contains_key("content-encoding") && !head.headers().contains_key("content-length")
    );
    assert_eq!(head.headers().get("veche-acks"), None, "one node answers for itself");
    let of_cluster = api::encode_range_head(&range("start=a&cluster=1&ack=2&from=3"));
    assert_eq!(of_cluster.headers()["veche-acks"], "2/3");
    let zstd = range_with("start=a", &[("accept", NDJSON), ("accept-encoding", "zstd")]);
    let head = api::encode_range_head(&zstd);
    assert_eq!(head.headers()["content-type"], NDJSON);
    assert_eq!(head.headers()["content-encoding"], "zstd");
    let head = api::encode_batch_head(&batch_with("", &[("content-type", BINARY)]));
    assert_eq!((head.status().as_u16(), head.headers()["content-type"].as_bytes()), (200, BINARY.as_bytes()));
}

#[test]
fn a_range_that_fails_before_its_first_page_is_a_problem() {
    let acks = Acks { got: 1, from: 3 };
    let shortfall = Shortfall::Unreachable;
    let answer = api::encode_range_failure(CommandFailure::NotEnoughReplicas { acks, ack: 2, shortfall });
    assert_eq!(answer.response.status(), 504);
    assert_eq!(answer.reason, Some("Not Enough Replicas"));
    assert_eq!(answer.response.headers()["veche-acks"], "1/3");
    let detail = std::str::from_utf8(answer.response.body()).expect("JSON").to_owned();
    assert!(detail.contains("Nothing was sent and nothing was stored."), "{detail}");
    let answer =
        api::encode_range_failure(CommandFailure::Overloaded { retry_after: Duration::from_secs(2) });
    assert_eq!(answer.response.status(), 503);
    assert_eq!(answer.response.headers()["retry-after"], "2");
}

#[test]
fn checkpoints_are_made_and_removed() {
    let decoded = |method, target| match decode_head(&parts(method, target, &[]), &rules()) {
        Ok(DecodedRequest::Checkpoint(checkpoint)) => checkpoint,
        other => panic!("{method} {target}: {other:?}"),
    };
    assert_eq!(decoded("POST", "/v0/checkpoint"), CheckpointRequest::Make { name: None });
    let make = CheckpointRequest::Make { name: Some("backup-1".to_owned()) };
    assert_eq!(decoded("POST", "/v0/checkpoint?name=backup-1"), make);
    assert_eq!(decoded("GET", "/v0/checkpoint"), CheckpointRequest::List { is_head: false });
    assert_eq!(decoded("HEAD", "/v0/checkpoint"), CheckpointRequest::List { is_head: true });
    assert_eq!(status_with("GET", "/v0/checkpoint?name=a", &[]), 400);
    let remove = CheckpointRequest::Remove { name: "2026-11-21_a.1".to_owned() };
    assert_eq!(decoded("DELETE", "/v0/checkpoint?name=2026%2D11-21_a.1"), remove);
    assert_eq!(status_with("DELETE", "/v0/checkpoint", &[]), 400);
    for query in [
        "?name",
        "?name=",
        "?name=..",
        "?name=.a",
        "?name=a/b",
        "?name=a%2fb",
        "?name=a%00",
        "?name=%ff",
        "?id=a",
        "?name=a&name=a",
    ] {
        assert_eq!(status_with("DELETE", &format!("/v0/checkpoint{query}"), &[]), 400, "{query}");
    }
    assert_eq!(status_with("DELETE", &format!("/v0/checkpoint?name={}", "a".repeat(256)), &[]), 400);
    let made = api::encode_checkpoint("a", "/data/\"x\"/checkpoints/a", &[]).response;
    assert_eq!(made.status(), 201);
    assert_eq!(made.body(), r#"{"name":"a","path":"/data/\"x\"/checkpoints/a"}"#);
    let damaged = api::encode_checkpoint("a", "/a", &["/data/1.sst".to_owned()]).response;
    assert_eq!(damaged.body(), r#"{"name":"a","path":"/a","damaged_tables":["/data/1.sst"]}"#);
    assert_eq!(api::encode_checkpoint_removed(true).response.status(), 202);
    assert_eq!(api::encode_checkpoint_removed(false).response.status(), 404);
}
