//! Decoding of requests: each row of the contract, with its meaning or the status of its refusal.

use api::{
    Action, DecodedRequest, EntityRequest, ReadyForm, RequestRules, SlowRequest, SlowRequests, SlowStage,
    decode_head, encode_slow,
};
use bytes::Bytes;
use cluster::{Command, Key, Lifetime, QuorumChoice};
use http::request::Parts;
use http::{Request, Version};
use std::num::NonZeroU8;
use std::time::Duration;

const VALUE_BYTES_MAX: usize = 1_000;

fn rules(nodes: u8) -> RequestRules {
    let nodes = NonZeroU8::new(nodes).expect("at least one node");
    RequestRules { nodes, default_from: nodes.get(), value_bytes_max: VALUE_BYTES_MAX }
}

fn parts(method: &str, target: &str, headers: &[(&str, &str)]) -> Parts {
    let request = Request::builder().method(method).uri(target);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    request.body(()).expect("a request").into_parts().0
}

fn entity(method: &str, target: &str) -> EntityRequest {
    match decode_head(&parts(method, target, &[]), &rules(5)) {
        Ok(DecodedRequest::Entity(entity)) => entity,
        other => panic!("{method} {target}: {other:?}"),
    }
}

fn status_with(method: &str, target: &str, headers: &[(&str, &str)]) -> u16 {
    match decode_head(&parts(method, target, headers), &rules(5)) {
        Ok(_) => 200,
        Err(problem) => {
            assert!(problem.detail().ends_with('.'), "{}", problem.detail());
            problem.status().as_u16()
        }
    }
}

fn status(method: &str, target: &str) -> u16 {
    status_with(method, target, &[])
}

#[test]
fn methods_are_actions() {
    assert_eq!(entity("GET", "/v0/entity?id=k").action, Action::Get);
    assert_eq!(entity("HEAD", "/v0/entity?id=k").action, Action::Head);
    assert_eq!(entity("PUT", "/v0/entity?id=k").action, Action::Put { lifetime: Lifetime::Forever });
    assert_eq!(entity("DELETE", "/v0/entity?id=k").action, Action::Delete);
    let lifetime = Lifetime::For(Duration::from_millis(1_500));
    assert_eq!(entity("PUT", "/v0/entity?id=k&ttl=1500").action, Action::Put { lifetime });
}

#[test]
fn reads_may_ask_for_the_nodes_of_the_key() {
    for (query, locate) in
        [("", false), ("&locate=0", false), ("&locate=1", true), ("&from=2&locate=%31", true)]
    {
        for method in ["GET", "HEAD"] {
            assert_eq!(entity(method, &format!("/v0/entity?id=k{query}")).locate, locate, "{method} {query}");
        }
    }
    for query in ["&locate", "&locate=2", "&locate=true", "&locate=1&locate=1"] {
        assert_eq!(status("GET", &format!("/v0/entity?id=k{query}")), 400, "{query}");
    }
    for (query, expected) in [("&locate=0", 200), ("&locate=1", 400)] {
        for method in ["PUT", "DELETE"] {
            assert_eq!(status(method, &format!("/v0/entity?id=k{query}")), expected, "{method} {query}");
        }
    }
    assert_eq!(status("GET", "/v0/entities?start=k&locate=1"), 400);
}

#[test]
fn other_methods_are_refused_with_those_allowed() {
    for (target, allow) in [
        ("/v0/entity", "GET, HEAD, PUT, DELETE"),
        ("/v0/status", "GET, HEAD"),
        ("/metrics", "GET, HEAD"),
        ("/v0/repair", "POST"),
        ("/v0/slow", "GET, HEAD"),
        ("/v0/ready", "GET, HEAD"),
        ("/", "GET, HEAD"),
    ] {
        let common = ["GET", "HEAD", "PUT", "DELETE", "POST"];
        let others = common.into_iter().filter(|method| !allow.split(", ").any(|allowed| allowed == *method));
        for method in others.chain(["PATCH", "TRACE", "BREW"]) {
            let problem = decode_head(&parts(method, target, &[]), &rules(1)).expect_err("not allowed");
            let answer = problem.to_response(false);
            assert_eq!(answer.response.status(), 405);
            assert_eq!(answer.response.headers()["allow"], allow);
            let advice = if allow == "POST" { "Use POST." } else { "Use one of: " };
            assert!(problem.detail().contains(advice), "{}", problem.detail());
        }
    }
}

#[test]
fn options_lists_the_methods_of_a_path_and_probes_the_server() {
    let options = |target: &str| decode_head(&parts("OPTIONS", target, &[]), &rules(1));
    for (target, allow) in [
        ("/v0/entity", "GET, HEAD, PUT, DELETE"),
        ("/v0/entity?id=k&nonsense", "GET, HEAD, PUT, DELETE"),
        ("/v0/entities", "GET, POST"),
        ("/v0/checkpoint", "GET, HEAD, POST, PUT, DELETE"),
        ("/v0/repair", "POST"),
        ("/v0/profile", "GET"),
        ("/v0/ready", "GET, HEAD"),
    ] {
        assert_eq!(options(target), Ok(DecodedRequest::Options { allow }), "{target}");
    }
    for target in ["/", "*"] {
        assert_eq!(options(target), Ok(DecodedRequest::Ready(ReadyForm::Options)), "{target}");
    }
    assert_eq!(status_with("OPTIONS", "/v0/entity", &[("if-match", "*")]), 501);
}

#[test]
fn unknown_paths_are_bad_requests() {
    let paths = [
        "/v0",
        "/v0/",
        "/v0/entity/",
        "/v0/repair/",
        "/v0/entities/",
        "/v0/checkpoint/",
        "//v0/entity",
        "/v0/%65ntity",
    ];
    for path in paths {
        assert_eq!(status("GET", path), 400, "{path}");
        assert_eq!(status("POST", path), 400, "{path}");
    }
    assert_eq!(status("OPTIONS", "/v0/entity/"), 400);
    assert_eq!(status("GET", "*"), 400);
    assert_eq!(status("CONNECT", "host:80"), 400);
}

#[test]
fn absolute_targets_are_understood() {
    assert_eq!(entity("GET", "http://host:8080/v0/entity?id=k").key.as_bytes(), b"k");
}

#[test]
fn keys_are_percent_decoded() {
    let cases: [(&str, &[u8]); 8] = [
        ("k", b"k"),
        ("a+b", b"a b"),
        ("a%2Bb%2b", b"a+b+"),
        ("%00%ff", b"\x00\xff"),
        ("a=b==", b"a=b=="),
        ("a/b?c", b"a/b?c"),
        ("%26ack%3D1", b"&ack=1"),
        ("caf\u{e9}", "caf\u{e9}".as_bytes()),
    ];
    for (id, key) in cases {
        assert_eq!(entity("GET", &format!("/v0/entity?id={id}")).key.as_bytes(), key, "{id}");
    }
}

#[test]
fn invalid_keys_are_refused() {
    let bad = [
        "", "?", "?id", "?id=", "?id=%", "?id=%4", "?id=a%zz", "?id=%+1", "?id=%-1", "?Id=k", "?%69d=k",
        "?ack=1",
    ];
    for query in bad {
        assert_eq!(status("GET", &format!("/v0/entity{query}")), 400, "{query}");
    }
    for (len, expected) in [(Key::LEN_MAX, 200), (Key::LEN_MAX + 1, 414)] {
        assert_eq!(status("GET", &format!("/v0/entity?id={}", "k".repeat(len))), expected);
        assert_eq!(status("PUT", &format!("/v0/entity?id={}", "%00".repeat(len))), expected);
    }
}

#[test]
fn quorums_are_resolved() {
    let cases = [
        ("", (3, 5)),
        ("&ack=1", (1, 5)),
        ("&from=3", (2, 3)),
        ("&ack=1&from=2", (1, 2)),
        ("&from=2&ack=2", (2, 2)),
        ("&replicas=2/3", (2, 3)),
        ("&replicas=2%2f3", (2, 3)),
        ("&ack=%31", (1, 5)),
        ("&&ack=1&", (1, 5)),
    ];
    for (query, expected) in cases {
        let quorum = entity("GET", &format!("/v0/entity?id=k{query}")).quorum;
        assert_eq!((quorum.ack(), quorum.from()), expected, "{query}");
    }
}

#[test]
fn invalid_quorums_are_refused() {
    let bad = [
        "ack=0",
        "from=0",
        "ack=6",
        "from=6",
        "ack=3&from=2",
        "ack=",
        "ack",
        "ack=x",
        "ack=-1",
        "ack=+1",
        "ack=1.0",
        "ack=99999999999999999999",
        "from=4294967297",
        "ack=1&ack=1",
        "from=3&from=3",
        "replicas=2/3&ack=2",
        "replicas=2/3&from=3",
        "replicas=2",
        "replicas=2/",
        "replicas=/3",
        "replicas=2/3/3",
        "replicas=3/2",
        "replicas=0/1",
        "replicas=1/6",
        "replicas=1/2&replicas=1/2",
        "id=k",
        "quorum=1",
        "=1",
    ];
    for query in bad {
        for method in ["GET", "HEAD", "PUT", "DELETE"] {
            assert_eq!(status(method, &format!("/v0/entity?id=k&{query}")), 400, "{method} {query}");
        }
    }
}

#[test]
fn one_node_accepts_only_the_quorum_1_of_1() {
    let accepts =
        |query: &str| decode_head(&parts("GET", &format!("/v0/entity?id=k{query}"), &[]), &rules(1)).is_ok();
    for query in ["", "&ack=1", "&from=1", "&ack=1&from=1", "&replicas=1/1"] {
        assert!(accepts(query), "{query}");
    }
    for query in ["&ack=2", "&from=2", "&ack=1&from=2", "&replicas=2/2"] {
        assert!(!accepts(query), "{query}");
    }
}

#[test]
fn lifetimes_are_milliseconds_of_a_write() {
    for query in ["ttl=0", "ttl=", "ttl=-1", "ttl=1.5", "ttl=1s", "ttl=99999999999999999999", "ttl=1&ttl=1"] {
        assert_eq!(status("PUT", &format!("/v0/entity?id=k&{query}")), 400, "{query}");
    }
    for method in ["GET", "HEAD", "DELETE"] {
        assert_eq!(status(method, "/v0/entity?id=k&ttl=1"), 400, "{method}");
    }
}

#[test]
fn preconditions_are_honoured_or_refused() {
    let tag = "\"0\"";
    for method in ["GET", "HEAD"] {
        assert_eq!(status_with(method, "/v0/entity?id=k", &[("if-none-match", tag)]), 200);
        assert_eq!(status_with(method, "/v0/entity?id=k", &[("if-none-match", "unquoted")]), 400);
    }
    for method in ["PUT", "DELETE"] {
        assert_eq!(status_with(method, "/v0/entity?id=k", &[("if-none-match", "*")]), 501);
    }
    let ignored_by_reads = ["if-range", "if-modified-since", "if-unmodified-since"];
    for name in ignored_by_reads.into_iter().chain(["if-match", "if", "if-schedule-tag-match"]) {
        let of_read = if ignored_by_reads.contains(&name) { 200 } else { 501 };
        for (method, expected) in [("GET", of_read), ("HEAD", of_read), ("PUT", 501), ("DELETE", 501)] {
            assert_eq!(status_with(method, "/v0/entity?id=k", &[(name, tag)]), expected, "{method} {name}");
        }
        assert_eq!(status_with("GET", "/v0/status", &[(name, tag)]), 501);
    }
}

#[test]
fn only_a_get_may_request_a_part_of_the_value() {
    let asks = |method: &str, range: &str| match decode_head(
        &parts(method, "/v0/entity?id=k", &[("range", range)]),
        &rules(1),
    ) {
        Ok(DecodedRequest::Entity(entity)) => entity.byte_range.is_some(),
        other => panic!("{other:?}"),
    };
    assert!(asks("GET", "bytes=0-1"));
    assert!(!asks("GET", "bytes=0-1,3-4"));
    assert!(!asks("HEAD", "bytes=0-1"), "RFC 9110 defines it for GET alone");
    assert_eq!(status_with("GET", "/v0/entities?start=a", &[("range", "bytes=0-1")]), 200);
}

#[test]
fn declared_lengths_are_held_to_the_limit_before_the_body() {
    for (len, expected) in
        [("0", 200), ("1000", 200), ("1001", 413), ("99999999999999999999", 413), ("x", 400)]
    {
        assert_eq!(status_with("PUT", "/v0/entity?id=k", &[("content-length", len)]), expected, "{len}");
        assert_eq!(status_with("GET", "/v0/entity?id=k", &[("content-length", len)]), 200, "{len}");
    }
    assert_eq!(status_with("PUT", "/v0/entity?id=k", &[("content-range", "bytes 0-1/2")]), 400);
}

#[test]
fn bodies_of_http_10_have_a_length() {
    let status = |method, target, headers: &[(&str, &str)]| {
        let mut parts = parts(method, target, headers);
        parts.version = Version::HTTP_10;
        decode_head(&parts, &rules(1)).map_or_else(|problem| problem.status().as_u16(), |_| 200)
    };
    assert_eq!(status("PUT", "/v0/entity?id=k", &[]), 411);
    assert_eq!(status("PUT", "/v0/entity?id=k", &[("content-length", "0")]), 200);
    let ndjson = ("content-type", "application/x-ndjson");
    assert_eq!(status("POST", "/v0/entities", &[ndjson]), 411);
    assert_eq!(status("POST", "/v0/entities", &[ndjson, ("content-length", "0")]), 200);
    for (method, target) in
        [("GET", "/v0/entity?id=k"), ("DELETE", "/v0/entity?id=k"), ("POST", "/v0/repair")]
    {
        assert_eq!(status(method, target, &[]), 200, "{method} {target}");
    }
    assert_eq!(status_with("PUT", "/v0/entity?id=k", &[]), 200, "in HTTP/1.1 there is no body then");
}

#[test]
fn only_one_expectation_can_be_met() {
    for (value, expected) in [("100-continue", 200), ("100-Continue", 200), ("200-ok", 417)] {
        assert_eq!(status_with("PUT", "/v0/entity?id=k", &[("expect", value)]), expected, "{value}");
    }
    let mut parts = parts("GET", "/v0/entity?id=k", &[("expect", "200-ok")]);
    parts.version = Version::HTTP_10;
    assert!(decode_head(&parts, &rules(1)).is_ok(), "HTTP/1.0 knows no expectations");
}

#[test]
fn status_and_metrics_take_no_parameters() {
    let decoded = |method, target| decode_head(&parts(method, target, &[]), &rules(1)).ok();
    assert_eq!(decoded("GET", "/v0/status"), Some(DecodedRequest::Status { is_head: false }));
    assert_eq!(decoded("GET", "/v0/layout"), Some(DecodedRequest::Layout { is_head: false }));
    assert_eq!(decoded("HEAD", "/v0/layout"), Some(DecodedRequest::Layout { is_head: true }));
    assert_eq!(decoded("HEAD", "/v0/status?"), Some(DecodedRequest::Status { is_head: true }));
    assert_eq!(decoded("GET", "/v0/status?verbose=1"), None);
    assert_eq!(decoded("GET", "/metrics"), Some(DecodedRequest::Metrics { is_head: false }));
    assert_eq!(decoded("HEAD", "/metrics?"), Some(DecodedRequest::Metrics { is_head: true }));
    assert_eq!(decoded("GET", "/metrics?name[]=veche_info"), None);
}

#[test]
fn a_command_on_the_layout_is_a_post_without_parameters_and_codings() {
    let decoded = |method, target, headers: &[(&'static str, &'static str)]| {
        decode_head(&parts(method, target, headers), &rules(1))
    };
    assert_eq!(decoded("POST", "/v0/layout", &[]), Ok(DecodedRequest::LayoutCommand));
    let status = |method, target, headers: &[(&'static str, &'static str)]| {
        decoded(method, target, headers).expect_err("a refusal").status().as_u16()
    };
    assert_eq!(status("POST", "/v0/layout?x=1", &[]), 400);
    assert_eq!(status("POST", "/v0/layout", &[("content-encoding", "gzip")]), 415);
    assert_eq!(status("POST", "/v0/layout", &[("if-match", "\"1\"")]), 501);
    assert_eq!(status("PUT", "/v0/layout", &[]), 405);
}

#[test]
fn a_repair_request_takes_no_parameters_and_preconditions() {
    let decoded = |target| decode_head(&parts("POST", target, &[("content-length", "0")]), &rules(3)).ok();
    assert_eq!(decoded("/v0/repair"), Some(DecodedRequest::Repair));
    assert_eq!(decoded("/v0/repair?now=1"), None);
    assert_eq!(status_with("POST", "/v0/repair", &[("if-match", "*")]), 501);
}

#[test]
fn a_request_for_slow_requests_takes_no_parameters_and_preconditions() {
    let decoded = |method, target| decode_head(&parts(method, target, &[]), &rules(3)).ok();
    assert_eq!(decoded("GET", "/v0/slow"), Some(DecodedRequest::Slow { is_head: false }));
    assert_eq!(decoded("HEAD", "/v0/slow?"), Some(DecodedRequest::Slow { is_head: true }));
    assert_eq!(decoded("GET", "/v0/slow?limit=1"), None);
    assert_eq!(status_with("GET", "/v0/slow", &[("if-none-match", "*")]), 501);
}

#[test]
fn slow_requests_are_encoded_in_json() {
    let stage = SlowStage { stage: "sync".into(), took_us: 119_000 };
    let request = SlowRequest {
        ended_unix_ms: 1_767_225_600_000,
        operation: "put".into(),
        key: "k\x00\"".to_owned(),
        key_bytes: 3,
        status: 201,
        took_us: 120_000,
        stages: vec![stage],
    };
    let slow = SlowRequests { threshold_ms: 100, left_out: 7, requests: vec![request] };
    let expected = r#"{"threshold_ms":100,"left_out":7,"requests":[{"ended_unix_ms":1767225600000,"operation":"put","key":"k\u0000\"","key_bytes":3,"status":201,"took_us":120000,"stages":[{"stage":"sync","took_us":119000}]}]}"#;
    let answer = encode_slow(&slow, false).response;
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["content-type"]),
        (200, &"application/json".parse().unwrap())
    );
    assert_eq!(std::str::from_utf8(answer.body()), Ok(expected));
    let head = encode_slow(&slow, true).response;
    assert!(head.body().is_empty() && head.headers()["content-length"] == expected.len().to_string());
}

/// Defaults of a node that was started with `--default-from 3`, in clusters of three and more
/// nodes.
#[test]
fn the_default_of_an_operator_is_the_default_of_users() {
    for nodes in 3..=7 {
        let rules = RequestRules { default_from: 3, ..rules(nodes) };
        let resolved =
            |query: &str| match decode_head(&parts("PUT", &format!("/v0/entity?id=k{query}"), &[]), &rules) {
                Ok(DecodedRequest::Entity(entity)) => Some((entity.quorum.ack(), entity.quorum.from())),
                _ => None,
            };
        assert_eq!(resolved(""), Some((2, 3)));
        assert_eq!(resolved("&ack=3"), Some((3, 3)));
        assert_eq!(resolved("&ack=4"), None, "more than the default of from");
        assert_eq!(resolved(&format!("&from={nodes}")), Some((nodes / 2 + 1, nodes)));
        assert_eq!(resolved(&format!("&from={}", nodes + 1)), None);
    }
}

#[test]
fn an_entity_becomes_a_command() {
    let key = Key::new(Bytes::from_static(b"k")).expect("a key");
    let quorum = QuorumChoice::default().resolve(rules(5).nodes, 5).expect("a quorum");
    let value = Bytes::from_static(b"v");
    let command = |method| entity(method, "/v0/entity?id=k").into_command(value.clone()).0;
    assert_eq!(command("GET"), Command::Get { key: key.clone(), quorum });
    assert_eq!(command("HEAD"), Command::Get { key: key.clone(), quorum });
    assert_eq!(command("DELETE"), Command::Delete { key: key.clone(), quorum });
    let lifetime = Lifetime::Forever;
    assert_eq!(command("PUT"), Command::Put { key, value: value.clone(), lifetime, quorum });
}
