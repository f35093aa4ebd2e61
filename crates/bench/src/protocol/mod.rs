//! Protocols of servers: the encoding of requests, and the framing of responses.
//!
//! The same generator drives servers of other kinds, so that a comparison measures the servers and
//! not their generators. The result of any protocol is expressed as the HTTP status that veche
//! would have sent.
//!
//! **Caveats.** Each connection has one request in flight, even if the protocol supports more.

mod resp;

use crate::response::{MalformedResponse, Response, ResponseParser};
use crate::workload::Operation;
use resp::ReplyParser;
pub(crate) use resp::command;

/// Protocol of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Entities over HTTP/1.1 at `/v0/entity?id=<key>`: the protocol of veche.
    #[default]
    Entities,
    /// Files over HTTP/1.1 at `/<key>`, as a server of static files has them. Read-only.
    Files,
    /// RESP2, the protocol of Redis: `GET`, `SET`, `DEL`.
    Resp,
}

impl Protocol {
    /// Whether the protocol has this operation.
    pub const fn has(self, operation: Operation) -> bool {
        match self {
            Self::Entities => true,
            Self::Files => matches!(operation, Operation::Get | Operation::GetMissing),
            Self::Resp => !matches!(operation, Operation::Range),
        }
    }

    pub(crate) fn parser(self) -> Parser {
        match self {
            Self::Entities | Self::Files => Parser::Http(ResponseParser::default()),
            Self::Resp => Parser::Resp(ReplyParser::default()),
        }
    }
}

/// Parser of the responses on a connection.
#[derive(Debug)]
pub(crate) enum Parser {
    Http(ResponseParser),
    Resp(ReplyParser),
}

impl Parser {
    /// Parses more input, as [`ResponseParser::advance`] does.
    pub(crate) fn advance(
        &mut self,
        input: &[u8],
        body: impl FnMut(&[u8]),
    ) -> Result<(usize, Option<Response>), MalformedResponse> {
        match self {
            Self::Http(parser) => parser.advance(input, body),
            Self::Resp(parser) => parser.advance(input, body),
        }
    }

    /// Handles the end of the connection, as [`ResponseParser::finish`] does. A RESP reply never
    /// extends to the end of its connection.
    pub(crate) fn finish(&mut self) -> Result<Option<Response>, MalformedResponse> {
        match self {
            Self::Http(parser) => parser.finish(),
            Self::Resp(_) => Ok(None),
        }
    }
}
