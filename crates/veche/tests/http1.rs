//! HTTP/1 as clients speak it, well and badly.

mod common;

use common::http::{Connection, Response, bare, delete, get, put};
use common::{Node, data_dir};

/// Requests in one stream, and the statuses of their answers.
fn stream_of_requests() -> (Vec<u8>, Vec<(bool, u16)>) {
    let chunked = "PUT /v0/entity?id=c HTTP/1.1\r\nHost: v\r\nTransfer-Encoding: chunked\r\n\r\n\
                   3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: t\r\n\r\n";
    let requests = [
        (put("a", "first"), 201),
        (get("a").into_bytes(), 200),
        (chunked.into(), 201),
        (get("c").into_bytes(), 200),
        (bare("HEAD", "/v0/entity?id=c").into_bytes(), 200),
        (delete("a").into_bytes(), 202),
        (get("a").into_bytes(), 404),
        (bare("GET", "/nowhere").into_bytes(), 400),
    ];
    let bytes = requests.iter().flat_map(|(bytes, _)| bytes.iter().copied()).collect();
    let expected = requests.iter().map(|(bytes, status)| (bytes.starts_with(b"HEAD"), *status)).collect();
    (bytes, expected)
}

#[track_caller]
fn assert_answers(connection: &mut Connection, expected: &[(bool, u16)]) -> Vec<Response> {
    let answers: Vec<_> =
        expected.iter().map(|(is_head, _)| connection.try_response(*is_head).expect("a response")).collect();
    let statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, expected.iter().map(|(_, status)| *status).collect::<Vec<_>>());
    answers
}

#[test]
fn many_requests_in_one_packet_are_answered_in_order() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let (bytes, expected) = stream_of_requests();
    let mut connection = node.connect();
    for _ in 0..20 {
        connection.send(&bytes);
    }
    for _ in 0..20 {
        let answers = assert_answers(&mut connection, &expected);
        assert_eq!((answers[1].text(), answers[3].text()), ("first".to_owned(), "abcde".to_owned()));
    }
}

#[test]
fn a_stream_may_be_split_at_every_byte() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let (bytes, expected) = stream_of_requests();
    for split in 1..bytes.len() {
        let mut connection = node.connect();
        let (first, second) = bytes.split_at(split);
        connection.send(first);
        // An answer between the two shows that the node has seen the first part.
        assert_eq!(node.exchange(bare("GET", "/v0/status")).status, 200);
        connection.send(second);
        assert_answers(&mut connection, &expected);
    }
    let mut connection = node.connect();
    for byte in bytes {
        connection.send([byte]);
    }
    assert_answers(&mut connection, &expected);
}

#[test]
fn an_answer_does_not_wait_for_the_rest_of_the_next_request() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    let (request, next) = (put("k", "v"), get("k"));
    connection.send([request.as_slice(), &next.as_bytes()[..10]].concat());
    assert_eq!(connection.response().status, 201);
    connection.send(&next.as_bytes()[10..]);
    assert_eq!(connection.response().text(), "v");
}

#[test]
fn a_client_that_expects_to_be_told_is_told() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let head = |id: &str, len: u64| {
        format!(
            "PUT /v0/entity?id={id} HTTP/1.1\r\nHost: v\r\nExpect: 100-continue\r\nContent-Length: {len}\r\n\r\n"
        )
    };
    let mut connection = node.connect();
    assert_eq!(connection.exchange(head("k", 5)).status, 100);
    assert_eq!(connection.exchange("value").status, 201);
    assert_eq!(connection.exchange(get("k")).text(), "value");

    for (id, len, status) in [("", 5, 400), ("big", 17 << 20, 413)] {
        let mut connection = node.connect();
        let refused = connection.exchange(head(id, len));
        assert_eq!((refused.status, refused.header("connection")), (status, Some("close")), "without a 100");
        connection.assert_closed();
    }
    let other = "PUT /v0/entity?id=k HTTP/1.1\r\nHost: v\r\nExpect: tea\r\nContent-Length: 1\r\n\r\nx";
    assert_eq!(node.exchange(other).status, 417);
}

#[test]
fn old_clients_and_those_that_want_the_end_get_it() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    assert_eq!(node.put("k", "v").status, 201);
    for request in [
        "GET /v0/entity?id=k HTTP/1.0\r\n\r\n",
        "GET /v0/entity?id=k HTTP/1.1\r\nHost: v\r\nConnection: close\r\n\r\n",
        "GET /v0/entity?id=k HTTP/1.1\r\nHost: v\r\nConnection: close\r\n\r\nGET /v0/entity?id=k HTTP/1.1\r\nHost: v\r\n\r\n",
    ] {
        let mut connection = node.connect();
        assert_eq!(connection.exchange(request).text(), "v", "{request}");
        connection.assert_closed();
    }
    // The bytes that follow belong to no request.
    let mut connection = node.connect();
    let refused = connection.exchange(format!("CONNECT v:80 HTTP/1.1\r\nHost: v:80\r\n\r\n{}", get("k")));
    refused.assert_problem(400, "no such path");
    assert_eq!(refused.header("connection"), Some("close"));
    connection.assert_closed();
    let mut connection = node.connect();
    let kept = "GET /v0/entity?id=k HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    for _ in 0..2 {
        assert_eq!(connection.exchange(kept).text(), "v");
    }
    // A body that ends with the connection cannot keep it open.
    let range = "GET /v0/entities?start=k HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    let mut connection = node.connect();
    connection.send(range);
    assert_eq!(connection.head().header("connection"), Some("close"));
    assert_eq!(connection.rest(), (b"k\nv".to_vec(), std::io::ErrorKind::UnexpectedEof));
    let put = "PUT /v0/entity?id=old HTTP/1.0\r\nContent-Length: 3\r\n\r\nold";
    assert_eq!(node.exchange(put).status, 201);
    assert_eq!(node.get("old").text(), "old");
    let empty = "PUT /v0/entity?id=empty HTTP/1.0\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(node.exchange(empty).status, 201);
    for connection_header in ["", "Connection: keep-alive\r\n"] {
        let mut connection = node.connect();
        connection.send(format!("PUT /v0/entity?id=no HTTP/1.0\r\n{connection_header}\r\n{}", get("old")));
        let refused = connection.response();
        refused.assert_problem(411, "Nothing was stored");
        assert_eq!(refused.header("connection"), Some("close"));
        connection.assert_closed();
    }
    assert_eq!(node.get("no").status, 404);
}

#[test]
fn a_client_that_stops_sending_is_answered() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    connection.send([put("k", "v"), get("k").into_bytes()].concat());
    connection.finish_sending();
    assert_eq!(connection.response().status, 201);
    assert_eq!(connection.response().text(), "v");
    connection.assert_closed();
}

#[test]
fn the_offer_of_http2_is_ignored() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n";
    let mut connection = node.connect();
    let put = format!("PUT /v0/entity?id=k HTTP/1.1\r\nHost: v\r\n{offer}Content-Length: 1\r\n\r\nv");
    assert_eq!(connection.exchange(put).status, 201);
    let get = format!("GET /v0/entity?id=k HTTP/1.1\r\nHost: v\r\n{offer}\r\n");
    for _ in 0..2 {
        assert_eq!(connection.exchange(&get).text(), "v");
    }
    let prior_knowledge = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    assert_eq!(node.exchange(prior_knowledge).status / 100, 4);
}

#[test]
fn a_body_cut_short_stores_nothing() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let requests = [
        "PUT /v0/entity?id=k HTTP/1.1\r\nHost: v\r\nContent-Length: 10\r\n\r\n123456789".to_owned(),
        "PUT /v0/entity?id=k HTTP/1.1\r\nHost: v\r\nContent-Length: 10\r\n\r\n".to_owned(),
        "PUT /v0/entity?id=k HTTP/1.1\r\nHost: v\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n"
            .to_owned(),
        "PUT /v0/entity?id=k HTTP/1.1\r\nHost: v\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n0\r\n"
            .to_owned(),
        format!(
            "PUT /v0/entity?id=k HTTP/1.1\r\nHost: v\r\nContent-Length: 100001\r\n\r\n{}",
            "x".repeat(100_000)
        ),
    ];
    for request in &requests {
        let mut told = node.connect();
        told.send(request);
        told.finish_sending();
        let refused = told.response();
        refused.assert_problem(400, "Nothing was stored");
        assert_eq!(refused.header("connection"), Some("close"), "{request:.80}");
        told.assert_closed();
        let mut gone = node.connect();
        gone.send(request);
        drop(gone);
    }
    assert_eq!(node.get("k").status, 404);
    assert_eq!(node.put("k", "v").status, 201);
    node.stop();
}

#[test]
fn nothing_is_done_for_a_request_whose_body_is_cut_short() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    assert_eq!(node.put("k", "v").status, 201);
    let body_max: u64 = 16 << 20;
    let bodies = [
        "Content-Length: 4\r\n\r\nabc".to_owned(),
        "Content-Length: 65537\r\n\r\nabc".to_owned(),
        format!("Content-Length: {body_max}\r\n\r\nabc"),
        "Content-Length: 10\r\nExpect: 100-continue\r\n\r\n".to_owned(),
        "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n".to_owned(),
    ];
    let targets = [
        ("DELETE", "/v0/entity?id=k"),
        ("GET", "/v0/entity?id=k"),
        ("GET", "/v0/entities?start=k"),
        ("POST", "/v0/checkpoint"),
        ("POST", "/v0/repair"),
        ("GET", "/v0/status"),
    ];
    let response_to = |request: String| {
        let mut connection = node.connect();
        connection.send(&request);
        connection.finish_sending();
        let mut response = connection.response();
        if response.status == 100 {
            response = connection.response();
        }
        connection.assert_closed();
        response
    };
    for (method, target) in targets {
        for body in &bodies {
            response_to(format!("{method} {target} HTTP/1.1\r\nHost: v\r\n{body}"))
                .assert_problem(400, "Nothing was stored");
        }
        for len in [body_max + 1, 1 << 40] {
            let head = format!("{method} {target} HTTP/1.1\r\nHost: v\r\nContent-Length: {len}\r\n\r\n");
            response_to(format!("{head}abc")).assert_problem(413, "Nothing was done");
        }
    }
    assert_eq!(node.get("k").text(), "v");
    assert_eq!(node.exchange(bare("GET", "/v0/checkpoint")).text(), "{\"checkpoints\":[]}");
}

#[test]
fn a_body_that_means_nothing_is_read_over() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    assert_eq!(node.put("k", "v").status, 201);
    let mut connection = node.connect();
    let head = |method: &str, framing: &str| {
        format!("{method} /v0/entity?id=k HTTP/1.1\r\nHost: v\r\n{framing}\r\n\r\n")
    };
    for len in [1, 100_000] {
        let body = "x".repeat(len);
        let sized = head("GET", &format!("Content-Length: {len}"));
        assert_eq!(connection.exchange(sized + &body).text(), "v");
        let chunked = head("GET", "Transfer-Encoding: chunked");
        assert_eq!(connection.exchange(format!("{chunked}{len:x}\r\n{body}\r\n0\r\n\r\n")).text(), "v");
    }
    let held_back = head("DELETE", "Content-Length: 3\r\nExpect: 100-continue");
    assert_eq!(connection.exchange(held_back).status, 100);
    assert_eq!(connection.exchange("abc").status, 202);
    assert_eq!(connection.exchange(get("k")).status, 404);
}

#[test]
fn what_two_readers_could_read_differently_is_refused() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let smuggled = "GET /v0/status HTTP/1.1\r\nHost: v\r\n\r\n";
    let put = "PUT /v0/entity?id=k HTTP/1.1\r\n";
    let heads = [
        format!("{put}Host: v\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
        format!("{put}Host: v\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n"),
        format!("{put}Host: v\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n"),
        format!("{put}Host: v\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"),
        format!("{put}Host: v\r\nContent-Length: 1, 1\r\n\r\n"),
        format!("{put}Host: v\r\nContent-Length: +1\r\n\r\n"),
        format!("{put}Host: v\r\nContent-Length: 0x1\r\n\r\n"),
        format!("{put}Host: v\r\nContent-Length: -1\r\n\r\n"),
        format!("{put}Host: v\r\nContent-Length: 99999999999999999999\r\n\r\n"),
        format!("{put}Host: v\r\nContent-Length : 1\r\n\r\n"),
        format!("{put}Host: v\r\nTransfer-Encoding : chunked\r\n\r\n"),
        format!("{put}Host: v\r\nTransfer-Encoding: chunked, identity\r\n\r\n"),
        format!("{put}Host: v\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"),
        format!("{put}Host: v\r\nTransfer-Encoding: \x0bchunked\r\n\r\n"),
        format!("{put}Host: v\r\nX: a\r\n Transfer-Encoding: chunked\r\n\r\n"),
        format!("{put}Host: v\r\nX: a\nContent-Length: 1\r\n\r\n"),
        format!("{put}Host: v\rContent-Length: 1\r\n\r\n"),
        format!("{put}Host: v\r\n: x\r\n\r\n"),
        format!("{put}Host: v\r\nno colon\r\n\r\n"),
        format!("{put}Host: v\r\nHost: w\r\n\r\n"),
        format!("{put}\r\n"),
        "PUT /v0/entity?id=k\r\n\r\n".to_owned(),
        "PUT /v0/entity?id=k HTTP/1.2\r\nHost: v\r\n\r\n".to_owned(),
        "PUT  /v0/entity?id=k HTTP/1.1\r\nHost: v\r\n\r\n".to_owned(),
        "PUT /v0/entity?id=k b HTTP/1.1\r\nHost: v\r\n\r\n".to_owned(),
        "PUT /v0/entity?id=k\x01 HTTP/1.1\r\nHost: v\r\n\r\n".to_owned(),
        "P(T /v0/entity?id=k HTTP/1.1\r\nHost: v\r\n\r\n".to_owned(),
        "\x16\x03\x01\x02\r\n\r\n".to_owned(),
    ];
    for head in &heads {
        for before in ["", &get("before")] {
            let mut connection = node.connect();
            connection.send(format!("{before}{head}x{smuggled}"));
            if !before.is_empty() {
                assert_eq!(connection.response().status, 404, "what came before is answered: {head:?}");
            }
            let refused = connection.response();
            // A transfer coding that is well-formed and not known has a status of its own (RFC
            // 9112, 6.1).
            let status = match head {
                head if head.contains("chunked, identity") => 501,
                head if head.contains("Content-Length: 99999999999999999999") => 413,
                _ => 400,
            };
            refused.assert_problem(status, "");
            assert!(refused.header("date").is_some_and(|date| date.ends_with(" GMT")), "{refused:?}");
            assert_eq!(refused.header("connection"), Some("close"), "{head:?}");
            connection.assert_closed();
        }
    }
    let bodies = [
        "x\r\n",
        "1 \r\na\r\n0\r\n\r\n",
        "1\na\n0\n\n",
        "1\r\nab\r\n0\r\n\r\n",
        "-1\r\na\r\n",
        "0x1\r\na\r\n",
        "\r\n",
        "fffffffffffffffff\r\n",
        "1\r\na\r\n0\r\nbad trailer\r\n\r\n",
        "1\r\na\rX0\r\n\r\n",
    ];
    for body in bodies {
        let mut connection = node.connect();
        connection.send(format!("{put}Host: v\r\nTransfer-Encoding: chunked\r\n\r\n{body}{smuggled}"));
        let refused = connection.response();
        refused.assert_problem(if body.starts_with("ffff") { 413 } else { 400 }, "");
        assert_eq!(refused.header("connection"), Some("close"), "{body:?}");
        connection.assert_closed();
    }
    assert_eq!(node.get("k").status, 404, "nothing was stored");
}

#[test]
fn heads_have_bounds() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let many = "X: y\r\n".repeat(101);
    let long = format!("X: {}\r\n", "y".repeat(70_000));
    for headers in [many, long] {
        let mut connection = node.connect();
        connection.send(format!("GET /v0/entity?id=k HTTP/1.1\r\nHost: v\r\n{headers}\r\n"));
        connection.response().assert_problem(431, "");
        connection.assert_closed();
    }
    // Without an end there is no need to wait for one.
    let mut connection = node.connect();
    connection.send("GET /".to_owned() + &"x".repeat(100_000));
    connection.response().assert_problem(431, "");
}

#[test]
fn a_length_that_is_too_large_is_refused_before_the_body_arrives() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let chunked = "Transfer-Encoding: chunked\r\n\r\n";
    let sizes = ["1000001", "7fffffffffffffff", "8000000000000000", "1\r\na\r\n1000000"];
    let mut bodies = sizes.map(|size| format!("{chunked}{size}\r\n")).to_vec();
    bodies.push("Content-Length: 18446744073709551615\r\n\r\n".to_owned());
    for method in ["PUT", "DELETE", "GET"] {
        for body in &bodies {
            let mut connection = node.connect();
            connection.send(format!("{method} /v0/entity?id=k HTTP/1.1\r\nHost: v\r\n{body}"));
            connection.response().assert_problem(413, "larger than");
            connection.assert_closed();
        }
    }
    assert_eq!(node.get("k").status, 404);
}

#[test]
fn a_chunk_size_may_have_leading_zeros() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let mut connection = node.connect();
    let put = "PUT /v0/entity?id=k HTTP/1.1\r\nHost: v\r\nTransfer-Encoding: chunked\r\n\r\n\
               0000000000000000000000002\r\nab\r\n0\r\n\r\n";
    assert_eq!(connection.exchange(put).status, 201);
    assert_eq!(connection.exchange(get("k")).text(), "ab");
}
