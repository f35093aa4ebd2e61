//! hyper reads the bytes that the head check passes with the same framing. At each end of a request
//! that the check sees, hyper has served exactly as many requests, complete and without an error of
//! its own.

use api::{HeadCheck, HeadLimits, HeadVerdict};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Collected, Empty};
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use proptest::prelude::*;
use std::cell::RefCell;
use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// A socket that has received these bytes and then the end, and discards all output.
struct Socket {
    input: Bytes,
    output: Rc<RefCell<Vec<u8>>>,
}

impl Read for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let len = self.input.len().min(buf.remaining());
        buf.put_slice(&self.input.split_to(len));
        Poll::Ready(Ok(()))
    }
}

impl Write for Socket {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.output.borrow_mut().extend_from_slice(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Bodies of the requests that hyper serves when it reads `input` and then the end.
fn serve(input: &[u8]) -> Result<Vec<Bytes>, String> {
    let bodies = Rc::new(RefCell::new(Vec::new()));
    let output = Rc::new(RefCell::new(Vec::new()));
    let service = service_fn(|request: Request<Incoming>| {
        let bodies = Rc::clone(&bodies);
        async move {
            let body = request.into_body().collect().await.map(Collected::to_bytes);
            bodies.borrow_mut().push(body.map_err(|error| error.to_string()));
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    let socket = Socket { input: Bytes::copy_from_slice(input), output: Rc::clone(&output) };
    let connection =
        http1::Builder::new().header_read_timeout(None).half_close(true).serve_connection(socket, service);
    let mut connection = pin!(connection);
    let mut context = Context::from_waker(Waker::noop());
    let ended = (0..10_000).find_map(|_| match connection.as_mut().poll(&mut context) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    });
    ended.expect("the connection ends").map_err(|error| error.to_string())?;
    let refused = output.borrow().windows(12).any(|bytes| bytes.starts_with(b"HTTP/1.1 4"));
    if refused {
        return Err("hyper refused a request by itself".to_owned());
    }
    bodies.take().into_iter().collect()
}

/// Offsets at which the check sees requests end, among the bytes that it passes, and whether it
/// refuses the rest.
fn ends(bytes: &[u8]) -> (Vec<usize>, bool) {
    let mut check = HeadCheck::new(HeadLimits::default());
    let (mut ends, mut passed) = (Vec::new(), 0);
    for end in 1..=bytes.len() {
        match check.check(&bytes[passed..end]) {
            HeadVerdict::Pass(len) => {
                passed += len;
                if check.awaits_head() || check.check(&[]) == HeadVerdict::Ended {
                    ends.push(passed);
                }
            }
            HeadVerdict::NeedMore => {}
            HeadVerdict::Refuse(_) => return (ends, true),
            HeadVerdict::Ended => break,
        }
    }
    (ends, false)
}

/// Compares both readers at each end of a request.
fn compare(bytes: &[u8]) -> Result<usize, TestCaseError> {
    let (ends, _) = ends(bytes);
    for (count, &end) in ends.iter().enumerate() {
        let served = serve(&bytes[..end]).map(|bodies| bodies.len());
        prop_assert_eq!(served, Ok(count + 1), "{:?}", bytes[..end].escape_ascii().to_string());
    }
    Ok(ends.len())
}

#[test]
fn bodies_are_received_as_sent() {
    let stream = "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 7\r\n\r\nGET / H\
                  PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n\
                  0\r\nT: 1\r\n\r\n\
                  \r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n\
                  PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
                  0000000000000000000000000000000000000000000000000000000000000002\r\nab\r\n\
                  0000000000000000000000000000000000000000000000000000000000000000\r\n\r\n\
                  PUT / HTTP/1.0\r\nContent-Length: 2\r\n\r\nok";
    assert_eq!(ends(stream.as_bytes()).0.len(), 5);
    assert_eq!(compare(stream.as_bytes()).expect("the same framing"), 5);
    let bodies = serve(stream.as_bytes()).expect("hyper serves them");
    assert_eq!(bodies, ["GET / H", "abc0123456789", "", "ab", "ok"]);
}

/// hyper serves these streams, so only the check refuses them.
#[test]
fn the_check_refuses_what_hyper_does_not() {
    let chunked = "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    for rest in [
        format!("Content-Length: 5\r\n{chunked}"),
        format!("Transfer-Encoding: gzip\r\n{chunked}"),
        "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello".to_owned(),
        "Host: other\r\n\r\n".to_owned(),
        "X: a\n\n".to_owned(),
    ] {
        let stream = format!("PUT / HTTP/1.1\r\nHost: h\r\n{rest}");
        assert_eq!(serve(stream.as_bytes()).map(|bodies| bodies.len()), Ok(1), "{rest:?}");
        assert_eq!(ends(stream.as_bytes()), (vec![], true), "{rest:?}");
    }
    let with_fragment = b"PUT /?id=a#b HTTP/1.1\r\nHost: h\r\n\r\n";
    assert!(serve(with_fragment).is_ok());
    assert_eq!(ends(with_fragment), (vec![], true));
}

fn pick(choices: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::sample::select(choices).prop_map(str::to_owned)
}

fn any_request() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        8 => pick(&["GET / HTTP/1.1\r\n", "PUT /v0/entity?id=k HTTP/1.1\r\n", "HEAD /?a=%20+b HTTP/1.1\r\n"]),
        2 => pick(&[
            "GET / HTTP/1.0\r\n", "GET http://a:1/b?c HTTP/1.1\r\n", "OPTIONS * HTTP/1.1\r\n", "CONNECT a:1 HTTP/1.1\r\n",
            "BREW /\"{}|\\^` HTTP/1.1\r\n", "GET /\u{e9}?\u{e9} HTTP/1.1\r\n", "GET /? HTTP/1.1\r\n",
            "GET //a//b HTTP/1.1\r\n", "GET ?a HTTP/1.1\r\n", "GET a HTTP/1.1\r\n", "GET a/b HTTP/1.1\r\n",
            "GET http:/a HTTP/1.1\r\n", "GET /[a] HTTP/1.1\r\n", "GET http://a:99999/ HTTP/1.1\r\n",
            "GET http://[::1 HTTP/1.1\r\n", "GET http://a@b@c/ HTTP/1.1\r\n", "GET /<> HTTP/1.1\r\n",
            "GET 1:2:3 HTTP/1.1\r\n", "GET http://%/ HTTP/1.1\r\n", "\r\nGET / HTTP/1.1\r\n",
        ]),
    ];
    let header = prop_oneof![
        6 => pick(&["X: y\r\n", "Accept: */*\r\n", "Connection: keep-alive\r\n", "x-empty:\r\n"]),
        2 => pick(&[
            "Connection: close\r\n", "Upgrade: h2c\r\n", "Expect: 100-continue\r\n", "X: \t a \t \r\n", "X: \u{e9}\r\n",
            "Connection: a, close ,b\r\n", "Connection: \u{e9}, close\r\n", "Connection: clos\r\n", "!#$%&'*+-.^_`|~: a\r\n",
            "Content-Length : 1\r\n", "content_length: 5\r\n", "Trailer: Content-Length\r\n", "TE: trailers\r\n",
            "Connection: Upgrade\r\n", "Host: h\r\n", "X: :\r\n", "Content-Length: 0\r\n", " X: y\r\n",
        ]),
    ];
    let body = prop_oneof![
        Just("\r\n".to_owned()),
        "[ -~\r\n]{0,20}".prop_map(|body| format!("Content-Length: {}\r\n\r\n{body}", body.len())),
        prop::collection::vec(("[ -~\r\n]{1,17}", "(;[ -~]{0,5})?", any::<bool>()), 0..4)
            .prop_map(|chunks| {
                let mut out = "Transfer-Encoding: chunked\r\n\r\n".to_owned();
                for (data, extension, upper) in chunks {
                    let size =
                        if upper { format!("{:020X}", data.len()) } else { format!("{:x}", data.len()) };
                    out.push_str(&format!("{size}{extension}\r\n{data}\r\n"));
                }
                out + "0\r\n"
            })
            .prop_flat_map(|body| (Just(body), pick(&["\r\n", "T: 1\r\n\r\n", "T:\r\nU: \t2\r\n\r\n"])))
            .prop_map(|(body, trailers)| body + &trailers),
    ];
    (line, prop::collection::vec(header, 0..4), body)
        .prop_map(|(line, headers, body)| format!("{line}Host: h\r\n{}{body}", headers.concat()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn both_readers_see_the_same_requests(
        requests in prop::collection::vec(any_request(), 1..4),
        mutations in prop::collection::vec((any::<prop::sample::Index>(), any_mutation()), 0..3),
    ) {
        let mut bytes = requests.concat().into_bytes();
        for (at, mutation) in mutations {
            mutation.apply(&mut bytes, at);
        }
        compare(&bytes)?;
    }
}

/// A change of a stream of requests.
#[derive(Clone, Debug)]
enum Mutation {
    Remove,
    Insert(u8),
    Replace(u8),
}

fn any_mutation() -> impl Strategy<Value = Mutation> {
    let byte = prop_oneof![prop::sample::select(b"\r\n \t:;,#%05af\0\x0b\"".to_vec()), any::<u8>()];
    prop_oneof![
        Just(Mutation::Remove),
        byte.clone().prop_map(Mutation::Insert),
        byte.prop_map(Mutation::Replace),
    ]
}

impl Mutation {
    fn apply(self, bytes: &mut Vec<u8>, at: prop::sample::Index) {
        let at = at.index(bytes.len().max(1));
        match self {
            Self::Insert(byte) => bytes.insert(at, byte),
            _ if bytes.is_empty() => {}
            Self::Remove => drop(bytes.remove(at)),
            Self::Replace(byte) => bytes[at] = byte,
        }
    }
}
