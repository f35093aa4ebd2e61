//! What is spoken with a server: how a request becomes bytes, and where its answer ends.
//!
//! The same generator drives servers of other kinds, so that a comparison measures them and not their generators. An
//! answer of any protocol is told in the terms of HTTP: as the status that veche would have sent.
//!
//! **Caveats.** One request in flight on a connection, whatever the protocol could do.

mod resp;

use crate::response::{MalformedResponse, Response, ResponseParser};
use crate::workload::Operation;
use resp::ReplyParser;
pub(crate) use resp::command;

/// What a server speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Entities over HTTP/1.1, `/v0/entity?id=<key>`: veche's own.
    #[default]
    Entities,
    /// Files over HTTP/1.1, `/<key>`: what a server of static files has. They can only be read.
    Files,
    /// RESP2, as Redis speaks it: `GET`, `SET`, `DEL`.
    Resp,
}

impl Protocol {
    /// Whether there is such a request.
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

/// Finds the answers in what comes over a connection.
#[derive(Debug)]
pub(crate) enum Parser {
    Http(ResponseParser),
    Resp(ReplyParser),
}

impl Parser {
    /// As [`ResponseParser::advance`].
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

    /// As [`ResponseParser::finish`]. No reply of RESP reaches to the end of its connection.
    pub(crate) fn finish(&mut self) -> Result<Option<Response>, MalformedResponse> {
        match self {
            Self::Http(parser) => parser.finish(),
            Self::Resp(_) => Ok(None),
        }
    }
}
