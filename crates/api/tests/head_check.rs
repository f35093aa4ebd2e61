//! The head check passes and refuses the right bytes, independent of how they are split.

use api::{HeadCheck, HeadLimits, HeadVerdict};
use proptest::prelude::*;

/// Result of the head check of some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Outcome {
    passed: usize,
    verdict: HeadVerdict,
}

/// Feeds `bytes` in pieces that end at `cuts`, as a socket would deliver them.
fn feed(bytes: &[u8], cuts: &[usize], limits: HeadLimits) -> Outcome {
    let mut check = HeadCheck::new(limits);
    let mut passed = 0;
    for end in cuts.iter().copied().chain([bytes.len()]) {
        loop {
            match check.check(&bytes[passed..end]) {
                HeadVerdict::Pass(len) => {
                    assert!(len > 0 && passed + len <= end);
                    passed += len;
                }
                HeadVerdict::NeedMore => break,
                verdict => return Outcome { passed, verdict },
            }
        }
    }
    Outcome { passed, verdict: HeadVerdict::NeedMore }
}

fn status_of(bytes: &[u8]) -> Option<u16> {
    match feed(bytes, &[], HeadLimits::default()).verdict {
        HeadVerdict::Refuse(problem) => Some(problem.status().as_u16()),
        _ => None,
    }
}

fn get(headers: &str) -> String {
    format!("GET /v0/entity?id=k HTTP/1.1\r\nHost: h\r\n{headers}\r\n")
}

fn put(headers: &str, body: &str) -> String {
    format!("PUT /v0/entity?id=k HTTP/1.1\r\nHost: h\r\n{headers}\r\n{body}")
}

fn chunked(body: &str) -> String {
    put("Transfer-Encoding: chunked\r\n", body)
}

#[test]
fn well_formed_requests_pass_whole() {
    let requests = [
        get(""),
        get("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"),
        get("Expect: 100-continue\r\nAccept: \t */* \r\nX-Empty:\r\nX-Text: caf\u{e9}\r\n"),
        format!("\r\n\r\n{}", get("")),
        "GET http://host:8080/v0/entity?id=k HTTP/1.1\r\nHost: host:8080\r\n\r\n".to_owned(),
        "GET /v0/entity?id=\u{e9}{}|^` HTTP/1.1\r\nHost: [::1]:80\r\n\r\n".to_owned(),
        "OPTIONS * HTTP/1.1\r\nHost:\r\n\r\n".to_owned(),
        "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".to_owned(),
        put("Content-Length: 5\r\n", "he\nlo"),
        put("Content-Length: 0\r\n", ""),
        chunked("0\r\n\r\n"),
        chunked("5\r\nhello\r\n0A;a=\"b;c\"\r\n0123456789\r\n000\r\nX-Trailer: 1\r\n\r\n"),
        chunked("1;\r\n\n\r\n0\r\n\r\n"),
    ];
    for request in &requests {
        let outcome = feed(request.as_bytes(), &[], HeadLimits::default());
        assert_eq!(outcome, Outcome { passed: request.len(), verdict: HeadVerdict::NeedMore }, "{request:?}");
    }
    let pipelined = requests.concat();
    let outcome = feed(pipelined.as_bytes(), &[], HeadLimits::default());
    assert_eq!(outcome, Outcome { passed: pipelined.len(), verdict: HeadVerdict::NeedMore });
}

#[test]
fn malformed_heads_are_bad_requests() {
    let requests = [
        // Two readers, two lengths.
        put("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
        put("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n"),
        put("Content-Length: 5\r\nContent-Length: 5\r\n", "hello"),
        put("Content-Length: 5\r\ncontent-length: 6\r\n", "hello"),
        put("Content-Length: 5, 5\r\n", "hello"),
        put("Content-Length: 5,5\r\n", "hello"),
        put("Content-Length: +5\r\n", "hello"),
        put("Content-Length: -5\r\n", "hello"),
        put("Content-Length: 0x5\r\n", "hello"),
        put("Content-Length: 5 5\r\n", "hello"),
        put("Content-Length: 5;\r\n", "hello"),
        put("Content-Length: \"5\"\r\n", "hello"),
        put("Content-Length:\r\n", "hello"),
        put("Content-Length: 18446744073709551616x\r\n", "hello"),
        put("Content-Length : 5\r\n", "hello"),
        put("Content-Length\t: 5\r\n", "hello"),
        put(" Content-Length: 5\r\n", "hello"),
        put("X: a\r\n Content-Length: 5\r\n", "hello"),
        put("X: a\r\n\tb\r\n", "hello"),
        // Codings.
        put("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
        put("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n"),
        put("Transfer-Encoding: chunked,\r\n", "0\r\n\r\n"),
        put("Transfer-Encoding: \"chunked\"\r\n", "0\r\n\r\n"),
        put("Transfer-Encoding: chunked;q=1\r\n", "0\r\n\r\n"),
        put("Transfer-Encoding:\r\n", "0\r\n\r\n"),
        put("Transfer-Encoding: \u{b}chunked\r\n", "0\r\n\r\n"),
        put("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"),
        "PUT / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "PUT / HTTP/1.0\r\nTransfer-Encoding: gzip\r\n\r\n0\r\n\r\n".to_owned(),
        // Lines.
        "GET / HTTP/1.1\nHost: h\n\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: h\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: h\r\n\n".to_owned(),
        "\nGET / HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\rHost: h\r\n\r\n".to_owned(),
        get("X: a\rb\r\n"),
        get("X: a\r\r\n"),
        get("X: a\0b\r\n"),
        get("X\0: a\r\n"),
        get("X: \u{7f}\r\n"),
        get(": a\r\n"),
        get("X\r\n"),
        get("X y: a\r\n"),
        get("caf\u{e9}: a\r\n"),
        // Hosts.
        "GET / HTTP/1.1\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n".to_owned(),
        "GET / HTTP/1.0\r\nHost: a\r\nhost: b\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: a b\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: a,b\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n".to_owned(),
        // Request lines.
        "GET /\r\n\r\n".to_owned(),
        "GET / \r\nHost: h\r\n\r\n".to_owned(),
        "GET  / HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "GET /  HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "GET / HTTP/1.1 \r\nHost: h\r\n\r\n".to_owned(),
        " GET / HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "GET\t/ HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "G(T / HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "/ HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "GET k HTTP/1.1/\r\nHost: h\r\n\r\n".to_owned(),
        "GET /a b HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "GET /#f HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "GET /?id=a#b HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "GET /<a> HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "GET http:// HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "GET / HTTP/2.0\r\nHost: h\r\n\r\n".to_owned(),
        "GET / HTTP/1.2\r\nHost: h\r\n\r\n".to_owned(),
        "GET / HTTP/0.9\r\nHost: h\r\n\r\n".to_owned(),
        "GET / HTTP/11\r\nHost: h\r\n\r\n".to_owned(),
        "GET / http/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        "\r\n".repeat(5),
        // TLS on a plain port, as early as its first byte.
        "\u{16}\u{3}\u{1}".to_owned(),
    ];
    for request in requests {
        assert_eq!(status_of(request.as_bytes()), Some(400), "{request:?}");
    }
}

#[test]
fn malformed_chunks_are_bad_requests() {
    let bodies = [
        "\r\n",
        "5",
        "+5\r\n",
        "-1\r\n",
        "0x5\r\nhello\r\n",
        " 5\r\nhello\r\n",
        "5 \r\nhello\r\n",
        "5\nhello\n0\n\n",
        ";a\r\n",
        "g\r\n",
        "5\r\nhello0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "5\r\nhello\r0\r\n\r\n",
        "5\r\nhello!\r\n0\r\n\r\n",
        "5;a\nhello\r\n",
        "5;a\rhello\r\n",
        "5;\0\r\n",
        "5\r\rhello",
        "0\r\nX\r\n\r\n",
        "0\r\nX : a\r\n\r\n",
        "0\r\nX: a\n\r\n",
        "0\r\n a: b\r\n\r\n",
        "0\r\n\n",
        "0\r\n\rX",
        "0\r\nContent-Length: 5\r\n\r\n",
        "0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "0\r\nHost: h\r\n\r\n",
    ];
    for body in bodies {
        let expected = if body == "5" { None } else { Some(400) };
        assert_eq!(status_of(chunked(body).as_bytes()), expected, "{body:?}");
    }
    assert_eq!(status_of(chunked(&format!("5;{}\r\n", "a".repeat(8 << 10))).as_bytes()), None);
    assert_eq!(status_of(chunked(&format!("5;{}\r\n", "a".repeat((8 << 10) + 1))).as_bytes()), Some(400));
    assert_eq!(status_of(chunked(&format!("0\r\nX: {}", "a".repeat(8 << 10))).as_bytes()), Some(431));
    assert_eq!(status_of(chunked(&format!("0\r\n{}\r\n", "X: a\r\n".repeat(33))).as_bytes()), Some(431));
}

#[test]
fn lengths_beyond_every_limit_are_too_large() {
    for length in ["9223372036854775808", "18446744073709551615", "18446744073709551616", &"9".repeat(200)] {
        let request = put(&format!("Content-Length: {length}\r\n"), "hello");
        assert_eq!(status_of(request.as_bytes()), Some(413), "{length}");
    }
    for size in ["8000000000000000", "10000000000000000", "ffffffffffffffffffff"] {
        assert_eq!(status_of(chunked(&format!("{size}\r\n")).as_bytes()), Some(413), "{size}");
    }
    let greatest = [put("Content-Length: 9223372036854775807\r\n", ""), chunked("7fffffffffffffff\r\n")];
    assert!(greatest.iter().all(|request| status_of(request.as_bytes()).is_none()));
}

#[test]
fn a_chunk_size_may_have_a_bounded_number_of_leading_zeros() {
    let with_digits = |digits: usize| chunked(&format!("{}2\r\nab\r\n0\r\n\r\n", "0".repeat(digits - 1)));
    assert_eq!(status_of(with_digits(64).as_bytes()), None);
    assert_eq!(status_of(with_digits(65).as_bytes()), Some(400));
}

#[test]
fn the_check_knows_how_many_bytes_a_chunk_announces() {
    let mut check = HeadCheck::new(HeadLimits::default());
    let request = chunked("7fffffffffffffff\r\nabc");
    let (begin, data) = request.split_at(request.len() - 3);
    assert_eq!(check.check(begin.as_bytes()), HeadVerdict::Pass(begin.len()));
    assert_eq!(check.announced_chunk_bytes(), i64::MAX as u64);
    assert_eq!(check.check(data.as_bytes()), HeadVerdict::Pass(3));
    assert_eq!(check.announced_chunk_bytes(), i64::MAX as u64 - 3);
    let mut check = HeadCheck::new(HeadLimits::default());
    let whole = chunked("2\r\nab\r\n0\r\n\r\n");
    assert_eq!(check.check(whole.as_bytes()), HeadVerdict::Pass(whole.len()));
    assert_eq!(check.announced_chunk_bytes(), 0);
}

#[test]
fn other_codings_are_not_implemented() {
    for coding in ["gzip", "identity", "gzip, chunked", "chunked, gzip", "xchunked", "chunke"] {
        let request = put(&format!("Transfer-Encoding: {coding}\r\n"), "");
        assert_eq!(status_of(request.as_bytes()), Some(501), "{coding}");
    }
}

#[test]
fn limits_have_statuses_of_their_own() {
    let target = |len: usize| format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "a".repeat(len - 1));
    assert_eq!(status_of(target(56 << 10).as_bytes()), None);
    assert_eq!(status_of(target((56 << 10) + 1).as_bytes()), Some(414));
    let longest_key = "%61".repeat(8_192);
    for longest in [
        format!("GET /v0/entity?id={longest_key} HTTP/1.1\r\nHost: h\r\n\r\n"),
        format!("GET /v0/entities?start={longest_key}&end={longest_key} HTTP/1.1\r\nHost: h\r\n\r\n"),
    ] {
        assert_eq!(status_of(longest.as_bytes()), None);
    }

    let head = |len: usize| get(&format!("X: {}\r\n", "a".repeat(len - get("X: \r\n").len())));
    assert_eq!(status_of(head(64 << 10).as_bytes()), None);
    assert_eq!(status_of(head((64 << 10) + 1).as_bytes()), Some(431));
    assert_eq!(status_of(&vec![b'a'; 64 << 10]), None);
    assert_eq!(status_of(&vec![b'a'; (64 << 10) + 1]), Some(431));

    assert_eq!(status_of(get(&"X: a\r\n".repeat(99)).as_bytes()), None);
    assert_eq!(status_of(get(&"X: a\r\n".repeat(100)).as_bytes()), Some(431));
}

#[test]
fn nothing_of_an_incomplete_head_passes() {
    let request = get("X: a\r\n");
    for end in 0..request.len() {
        let outcome = feed(&request.as_bytes()[..end], &[], HeadLimits::default());
        assert_eq!(outcome, Outcome { passed: 0, verdict: HeadVerdict::NeedMore });
    }
}

#[test]
fn well_formed_bytes_pass_before_the_refusal() {
    let first = get("");
    let bytes = format!("{first}GET / HTTP/9.9\r\n\r\n");
    let outcome = feed(bytes.as_bytes(), &[], HeadLimits::default());
    assert_eq!(outcome.passed, first.len());
    assert!(matches!(outcome.verdict, HeadVerdict::Refuse(_)));
}

#[test]
fn nothing_passes_behind_the_last_request() {
    let requests = [
        put("Connection: close\r\nContent-Length: 2\r\n", "ab"),
        put("Connection: close\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
        get("Connection: close\r\n"),
        "GET / HTTP/1.0\r\n\r\n".to_owned(),
        "CONNECT host:80 HTTP/1.1\r\nHost: host:80\r\n\r\n".to_owned(),
    ];
    for last in requests {
        let bytes = format!("{last}anything at all");
        let outcome = feed(bytes.as_bytes(), &[], HeadLimits::default());
        assert_eq!(outcome, Outcome { passed: last.len(), verdict: HeadVerdict::Ended });
    }
}

#[test]
fn it_reports_when_the_next_byte_belongs_to_a_head() {
    let mut check = HeadCheck::new(HeadLimits::default());
    assert!(check.awaits_head());
    let request = put("Content-Length: 2\r\n", "ab");
    let (head, body) = request.split_at(request.len() - 2);
    assert_eq!(check.check(head.as_bytes()), HeadVerdict::Pass(head.len()));
    assert!(!check.awaits_head());
    assert_eq!(check.check(body.as_bytes()), HeadVerdict::Pass(body.len()));
    assert!(check.awaits_head());
}

fn any_limits() -> impl Strategy<Value = HeadLimits> {
    prop_oneof![
        Just(HeadLimits::default()),
        (1usize..200, 0usize..4)
            .prop_map(|(head_bytes_max, headers_max)| HeadLimits { head_bytes_max, headers_max }),
    ]
}

/// Fragments of requests that combine to valid and malformed streams.
fn any_stream() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        8 => prop::sample::select(vec![
            "\r\n", "\r", "\n", "GET / HTTP/1.1\r\n", "PUT /v0/entity?id=k HTTP/1.1\r\n", "GET / HTTP/1.0\r\n",
            "Host: h\r\n", "Host: h\r\n\r\n", "Content-Length: 5\r\n", "Content-Length: 5\r\n\r\nhello",
            "Transfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked\r\n\r\n", "5\r\nhello\r\n", "1;x\r\n",
            "0\r\n\r\n", "0\r\n", "X: y\r\n", "Connection: close\r\n", "\0", "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        ]).prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..4),
    ];
    prop::collection::vec(piece, 0..16).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_split_changes_nothing(
        bytes in any_stream(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        limits in any_limits(),
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let whole = feed(&bytes, &[], limits);
        prop_assert_eq!(&feed(&bytes, &cuts, limits), &whole);
        let each: Vec<usize> = (0..bytes.len()).collect();
        prop_assert_eq!(&feed(&bytes, &each, limits), &whole);
    }

    #[test]
    fn any_bytes_are_checked_without_a_panic(bytes: Vec<u8>, cut: prop::sample::Index) {
        let cut = cut.index(bytes.len() + 1);
        let whole = feed(&bytes, &[], HeadLimits::default());
        prop_assert_eq!(feed(&bytes, &[cut], HeadLimits::default()), whole);
    }
}
