//! Parser of HTTP/1.1 responses on keep-alive connections.
//!
//! **Promise.** [`ResponseParser::advance`] finds the same responses regardless of how their bytes
//! are split, and consumes no byte beyond the response. It supports bodies by `Content-Length`,
//! chunked bodies, and bodies that extend to the end of the connection. Interim `1xx` responses are
//! skipped.
//!
//! **Mechanism.** A state machine. Heads and chunk lines are parsed by `httparse`: from the
//! caller's buffer if they are complete there, else from a carry-over buffer. Bodies are passed on
//! without being stored.
//!
//! **Caveats.** Trailers are read and dropped. A hostile server can neither hang the parser nor
//! make it grow: heads, chunk lines and trailers are bounded by [`HEAD_BYTES_MAX`].

use httparse::{EMPTY_HEADER, Status};
use std::fmt;

/// Maximum length of a head, chunk line or trailer section, in bytes.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;

const HEADERS_MAX: usize = 64;

/// Properties of a response, without the bytes of its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Whether the connection may carry another request.
    pub keep_alive: bool,
    /// Bytes of the body, without framing.
    pub body_bytes: u64,
    /// Number of chunks that are not empty; 0 for a body with a length.
    pub chunks: u64,
}

/// Error: the bytes are not a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedResponse(pub(crate) &'static str);

impl fmt::Display for MalformedResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed response: {}", self.0)
    }
}

impl std::error::Error for MalformedResponse {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Sized { left: u64 },
    ChunkLine,
    ChunkData { left: u64 },
    Trailers,
    UntilClose,
}

#[derive(Clone, Copy, Debug)]
enum Framing {
    Sized(u64),
    Chunked,
    UntilClose,
}

/// Parser of the responses on one connection.
#[derive(Debug)]
pub struct ResponseParser {
    state: State,
    response: Response,
    carried: Vec<u8>,
}

impl Default for ResponseParser {
    fn default() -> Self {
        let response = Response { status: 0, keep_alive: true, body_bytes: 0, chunks: 0 };
        Self { state: State::Head, response, carried: Vec::new() }
    }
}

impl ResponseParser {
    /// Parses more input. Returns the number of consumed bytes, and the response once it is
    /// complete. Without a response, all of `input` was consumed. Bytes of the body are passed to
    /// `body` as they arrive.
    ///
    /// # Errors
    /// [`MalformedResponse`]; the connection cannot be used any more.
    pub fn advance(
        &mut self,
        input: &[u8],
        mut body: impl FnMut(&[u8]),
    ) -> Result<(usize, Option<Response>), MalformedResponse> {
        let mut at = 0;
        loop {
            let rest = &input[at..];
            let (used, next) = match self.state {
                State::Head => self.head(rest)?,
                State::Sized { left } => body_piece(rest, left, &mut body, |left| State::Sized { left }),
                State::ChunkLine => self.chunk_line(rest)?,
                State::ChunkData { left } => self.chunk_data(rest, left, &mut body)?,
                State::Trailers => self.trailers(rest)?,
                State::UntilClose => {
                    body(rest);
                    self.response.body_bytes += rest.len() as u64;
                    (rest.len(), Transition::NeedInput)
                }
            };
            at += used;
            match next {
                Transition::To(state) => self.state = state,
                Transition::NeedInput => return Ok((input.len(), None)),
                Transition::Done => {
                    self.state = State::Head;
                    return Ok((at, Some(self.response)));
                }
            }
        }
    }

    /// Handles the end of the connection: completes a response that extends to it. `None`: no byte
    /// of a response had arrived.
    ///
    /// # Errors
    /// [`MalformedResponse`] if a response was cut short.
    pub fn finish(&mut self) -> Result<Option<Response>, MalformedResponse> {
        match self.state {
            State::UntilClose => {
                self.state = State::Head;
                Ok(Some(self.response))
            }
            State::Head if self.carried.is_empty() => Ok(None),
            _ => Err(MalformedResponse("the connection was closed inside it")),
        }
    }

    /// Whether no byte of a response has arrived yet.
    pub fn is_idle(&self) -> bool {
        self.state == State::Head && self.carried.is_empty()
    }

    fn head(&mut self, rest: &[u8]) -> Result<(usize, Transition), MalformedResponse> {
        let Some((used, (response, framing))) = with_carry(&mut self.carried, rest, parse_head)? else {
            return Ok((rest.len(), Transition::NeedInput));
        };
        self.response = response;
        let step = match framing {
            _ if (100..200).contains(&response.status) => Transition::To(State::Head),
            Framing::Sized(0) => Transition::Done,
            Framing::Sized(left) => Transition::To(State::Sized { left }),
            Framing::Chunked => Transition::To(State::ChunkLine),
            Framing::UntilClose => {
                self.response.keep_alive = false;
                Transition::To(State::UntilClose)
            }
        };
        Ok((used, step))
    }

    fn chunk_line(&mut self, rest: &[u8]) -> Result<(usize, Transition), MalformedResponse> {
        let parse = |bytes: &[u8]| match httparse::parse_chunk_size(bytes) {
            Ok(Status::Complete(parsed)) => Ok(Some(parsed)),
            Ok(Status::Partial) => Ok(None),
            Err(_) => Err(MalformedResponse("a chunk without a size")),
        };
        Ok(match with_carry(&mut self.carried, rest, parse)? {
            None => (rest.len(), Transition::NeedInput),
            Some((used, 0)) => (used, Transition::To(State::Trailers)),
            Some((used, left)) => {
                self.response.chunks += 1;
                self.response.body_bytes = self.response.body_bytes.saturating_add(left);
                (used, Transition::To(State::ChunkData { left }))
            }
        })
    }

    /// Parses the data of a chunk, then its line end, which is carried over if it is split.
    fn chunk_data(
        &mut self,
        rest: &[u8],
        left: u64,
        body: &mut impl FnMut(&[u8]),
    ) -> Result<(usize, Transition), MalformedResponse> {
        if left > 0 {
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
            body(&rest[..len]);
            let left = left - len as u64;
            return Ok((
                len,
                if len == 0 { Transition::NeedInput } else { Transition::To(State::ChunkData { left }) },
            ));
        }
        let parse = |bytes: &[u8]| match bytes {
            [b'\r', b'\n', ..] => Ok(Some((2, ()))),
            [] | [b'\r'] => Ok(None),
            _ => Err(MalformedResponse("a chunk longer than its size")),
        };
        Ok(match with_carry(&mut self.carried, rest, parse)? {
            Some((used, ())) => (used, Transition::To(State::ChunkLine)),
            None => (rest.len(), Transition::NeedInput),
        })
    }

    fn trailers(&mut self, rest: &[u8]) -> Result<(usize, Transition), MalformedResponse> {
        let parse = |bytes: &[u8]| {
            let mut headers = [EMPTY_HEADER; HEADERS_MAX];
            match httparse::parse_headers(bytes, &mut headers) {
                Ok(Status::Complete((len, _))) => Ok(Some((len, ()))),
                Ok(Status::Partial) => Ok(None),
                Err(_) => Err(MalformedResponse("trailers that are none")),
            }
        };
        Ok(match with_carry(&mut self.carried, rest, parse)? {
            Some((used, ())) => (used, Transition::Done),
            None => (rest.len(), Transition::NeedInput),
        })
    }
}

/// Next state of the state machine.
enum Transition {
    To(State),
    /// The input is used up, and more is needed.
    NeedInput,
    Done,
}

fn body_piece(
    rest: &[u8],
    left: u64,
    body: &mut impl FnMut(&[u8]),
    state: impl FnOnce(u64) -> State,
) -> (usize, Transition) {
    let len = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
    body(&rest[..len]);
    match left - len as u64 {
        0 => (len, Transition::Done),
        _ if len == 0 => (0, Transition::NeedInput),
        left => (len, Transition::To(state(left))),
    }
}

/// A parsed element and its length in bytes; `None` if it is not complete.
type Parsed<T> = Result<Option<(usize, T)>, MalformedResponse>;

/// Parses an element at the start of the carry-over followed by `rest`. If it is complete, returns
/// the number of bytes of `rest` that belong to it. If not, carries over all of `rest`.
fn with_carry<T>(carried: &mut Vec<u8>, rest: &[u8], parse: impl Fn(&[u8]) -> Parsed<T>) -> Parsed<T> {
    if carried.is_empty() {
        if let Some(parsed) = parse(rest)? {
            return Ok(Some(parsed));
        }
        carried.extend_from_slice(&rest[..rest.len().min(HEAD_BYTES_MAX + 1)]);
    } else {
        let before = carried.len();
        carried.extend_from_slice(&rest[..rest.len().min(HEAD_BYTES_MAX + 1)]);
        if let Some((len, parsed)) = parse(carried)? {
            carried.clear();
            return Ok(Some((len - before, parsed)));
        }
    }
    if carried.len() > HEAD_BYTES_MAX {
        return Err(MalformedResponse("a head, chunk line or trailer that does not end"));
    }
    Ok(None)
}

fn parse_head(bytes: &[u8]) -> Parsed<(Response, Framing)> {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut headers);
    let len = match head.parse(bytes) {
        Ok(Status::Complete(len)) => len,
        Ok(Status::Partial) => return Ok(None),
        Err(_) => return Err(MalformedResponse("its head")),
    };
    let status = head.code.ok_or(MalformedResponse("no status"))?;
    let mut response = Response { status, keep_alive: head.version == Some(1), body_bytes: 0, chunks: 0 };
    let mut framing = Framing::UntilClose;
    for header in head.headers.iter() {
        if header.name.eq_ignore_ascii_case("content-length") && !matches!(framing, Framing::Chunked) {
            framing = Framing::Sized(number(header.value)?);
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            framing = Framing::Chunked;
        } else if header.name.eq_ignore_ascii_case("connection") {
            response.keep_alive = !header.value.eq_ignore_ascii_case(b"close");
        }
    }
    if status == 204 || status == 304 {
        framing = Framing::Sized(0);
    }
    if let Framing::Sized(len) = framing {
        response.body_bytes = len;
    }
    Ok(Some((len, (response, framing))))
}

fn number(text: &[u8]) -> Result<u64, MalformedResponse> {
    let text = std::str::from_utf8(text).map_err(|_| MalformedResponse("its Content-Length"))?;
    text.trim().parse().map_err(|_| MalformedResponse("its Content-Length"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Body {
        Sized(Vec<u8>),
        Chunked(Vec<Vec<u8>>),
    }

    impl Body {
        fn bytes(&self) -> Vec<u8> {
            match self {
                Self::Sized(bytes) => bytes.clone(),
                Self::Chunked(chunks) => chunks.concat(),
            }
        }

        fn chunks(&self) -> u64 {
            match self {
                Self::Sized(_) => 0,
                Self::Chunked(chunks) => chunks.iter().filter(|chunk| !chunk.is_empty()).count() as u64,
            }
        }

        fn encode(&self, status: u16) -> Vec<u8> {
            let mut out = format!("HTTP/1.1 {status} Some Reason\r\nDate: today\r\n").into_bytes();
            match self {
                Self::Sized(bytes) => {
                    out.extend(format!("content-length: {}\r\n\r\n", bytes.len()).bytes());
                    out.extend(bytes);
                }
                Self::Chunked(chunks) => {
                    out.extend(b"Transfer-Encoding: chunked\r\n\r\n");
                    for chunk in chunks.iter().filter(|chunk| !chunk.is_empty()) {
                        out.extend(format!("{:x};name=value\r\n", chunk.len()).bytes());
                        out.extend(chunk);
                        out.extend(b"\r\n");
                    }
                    out.extend(b"0\r\nTrailer: one\r\n\r\n");
                }
            }
            out
        }
    }

    fn bodies() -> impl Strategy<Value = Body> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..60);
        prop_oneof![
            bytes().prop_map(Body::Sized),
            proptest::collection::vec(bytes(), 0..4).prop_map(Body::Chunked),
        ]
    }

    /// All responses in `pieces`, with their bodies.
    fn parse_all<'a>(
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Vec<(u16, Vec<u8>, u64)>, MalformedResponse> {
        let (mut parser, mut body, mut all) = (ResponseParser::default(), Vec::new(), Vec::new());
        for piece in pieces {
            let mut rest = piece;
            while !rest.is_empty() {
                let (used, response) = parser.advance(rest, |bytes| body.extend_from_slice(bytes))?;
                rest = &rest[used..];
                if let Some(response) = response {
                    assert_eq!(response.body_bytes, body.len() as u64);
                    all.push((response.status, std::mem::take(&mut body), response.chunks));
                }
            }
        }
        assert!(parser.is_idle(), "the last response is not complete");
        Ok(all)
    }

    proptest! {
        #[test]
        fn responses_are_the_same_however_they_are_split(
            sent in proptest::collection::vec((200u16..300, bodies()), 1..4),
        ) {
            let sent: Vec<(u16, Body)> =
                sent.into_iter().filter(|(status, _)| *status != 204).collect();
            let expected: Vec<_> = sent.iter().map(|(status, body)| (*status, body.bytes(), body.chunks())).collect();
            let mut stream = b"HTTP/1.1 100 Continue\r\n\r\n".to_vec();
            stream.extend(sent.iter().flat_map(|(status, body)| body.encode(*status)));
            if sent.is_empty() {
                return Ok(());
            }
            for cut in 0..=stream.len() {
                let (head, tail) = stream.split_at(cut);
                prop_assert_eq!(parse_all([head, tail])?, expected.clone(), "cut at {}", cut);
            }
            prop_assert_eq!(parse_all(stream.chunks(1))?, expected);
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes: Vec<u8>, cut: prop::sample::Index) {
            let (head, tail) = bytes.split_at(cut.index(bytes.len() + 1));
            let mut parser = ResponseParser::default();
            for piece in [head, tail] {
                match parser.advance(piece, |_| {}) {
                    Ok((used, response)) => prop_assert!(used <= piece.len() && (response.is_some() || used == piece.len())),
                    Err(_) => return Ok(()),
                }
            }
        }
    }

    #[test]
    fn a_body_without_a_length_ends_with_the_connection() {
        let mut parser = ResponseParser::default();
        let mut body = Vec::new();
        let read = parser.advance(b"HTTP/1.0 200 OK\r\n\r\nabc", |bytes| body.extend_from_slice(bytes));
        assert_eq!(read, Ok((22, None)));
        assert_eq!(
            parser.finish(),
            Ok(Some(Response { status: 200, keep_alive: false, body_bytes: 3, chunks: 0 }))
        );
        assert_eq!(body, b"abc");
    }

    #[test]
    fn a_response_cut_short_is_an_error_and_an_idle_connection_none() {
        let mut parser = ResponseParser::default();
        assert_eq!(parser.finish(), Ok(None));
        parser.advance(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nab", |_| {}).unwrap();
        assert!(parser.finish().is_err());
    }

    #[test]
    fn connection_close_ends_keep_alive() {
        let mut parser = ResponseParser::default();
        let bytes = b"HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        let (_, response) = parser.advance(bytes, |_| {}).unwrap();
        assert_eq!(response, Some(Response { status: 503, keep_alive: false, body_bytes: 0, chunks: 0 }));
    }

    #[test]
    fn a_head_without_an_end_is_refused() {
        let mut parser = ResponseParser::default();
        let endless = [b"HTTP/1.1 200 OK\r\nname: ".as_slice(), &[b'x'; 2 * HEAD_BYTES_MAX]].concat();
        assert!(endless.chunks(1_000).any(|piece| parser.advance(piece, |_| {}).is_err()));
    }
}
