//! RESP2, the protocol of Redis, for single commands on keys.
//!
//! A command is an array of bulk strings. Replies: `+OK` acknowledges a write, `:n` is the number
//! of deleted keys, `$n` is followed by a value of `n` bytes, `$-1` is a missing value, and `-...`
//! is an error, whose text is discarded.

use crate::response::{MalformedResponse, Response};
use crate::workload::Operation;

/// Maximum length of a reply's line, in bytes, including the text of errors.
const LINE_BYTES_MAX: usize = 16 * 1024;
/// Terminator of lines and of bulk strings.
const END: &[u8] = b"\r\n";
const STATUS_OF_ERRORS: u16 = 500;

/// Appends a command to `out`. For a `SET` the caller appends the value and a line end.
pub(crate) fn command(operation: Operation, key: &[u8], value_bytes: Option<usize>, out: &mut Vec<u8>) {
    let (head, name): (&[u8], &[u8]) = match operation {
        Operation::Get | Operation::GetMissing => (b"*2\r\n", b"GET"),
        Operation::Delete => (b"*2\r\n", b"DEL"),
        Operation::Put => (b"*3\r\n", b"SET"),
        Operation::Range => unreachable!("a run of RESP has no ranges"),
    };
    out.extend_from_slice(head);
    for word in [name, key] {
        bulk_head(word.len(), out);
        out.extend_from_slice(word);
        out.extend_from_slice(END);
    }
    value_bytes.into_iter().for_each(|len| bulk_head(len, out));
}

fn bulk_head(len: usize, out: &mut Vec<u8>) {
    out.push(b'$');
    std::io::Write::write_fmt(out, format_args!("{len}")).expect("writing to a Vec cannot fail");
    out.extend_from_slice(END);
}

/// State of a parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Within a line; its beginning is carried over.
    Line,
    /// Within a bulk string of `bytes` bytes. `left` bytes remain, including the line end.
    Bulk { bytes: u64, left: u64 },
}

/// Parser of the replies on one connection.
#[derive(Debug)]
pub(crate) struct ReplyParser {
    state: State,
    line: Vec<u8>,
}

impl Default for ReplyParser {
    fn default() -> Self {
        Self { state: State::Line, line: Vec::new() }
    }
}

impl ReplyParser {
    /// Parses more input. Returns the number of bytes of `input` that were consumed, and the reply
    /// if it is complete.
    pub(crate) fn advance(
        &mut self,
        input: &[u8],
        mut body: impl FnMut(&[u8]),
    ) -> Result<(usize, Option<Response>), MalformedResponse> {
        let mut at = 0;
        loop {
            let rest = &input[at..];
            match self.state {
                State::Line => {
                    let Some(used) = self.take_line(rest)? else { return Ok((input.len(), None)) };
                    at += used;
                    let line = parse_line(&self.line)?;
                    self.line.clear();
                    match line {
                        ReplyLine::Reply(status) => return Ok((at, Some(reply(status, 0)))),
                        ReplyLine::Bulk(bytes) => {
                            self.state = State::Bulk { bytes, left: bytes + END.len() as u64 };
                        }
                    }
                }
                State::Bulk { bytes, left } => {
                    let len = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
                    let of_value = left.saturating_sub(END.len() as u64);
                    body(&rest[..len.min(usize::try_from(of_value).unwrap_or(usize::MAX))]);
                    let left = left - len as u64;
                    at += len;
                    if left > 0 {
                        self.state = State::Bulk { bytes, left };
                        return Ok((at, None));
                    }
                    self.state = State::Line;
                    return Ok((at, Some(reply(Operation::Get.expected_status(), bytes))));
                }
            }
        }
    }

    /// Appends `rest` to the line, up to its end. Returns the number of bytes taken; `None` if the
    /// line is not complete.
    fn take_line(&mut self, rest: &[u8]) -> Result<Option<usize>, MalformedResponse> {
        let end = rest.iter().position(|byte| *byte == b'\n');
        let piece = &rest[..end.map_or(rest.len(), |at| at + 1)];
        if self.line.len() + piece.len() > LINE_BYTES_MAX {
            return Err(MalformedResponse("a line that does not end"));
        }
        self.line.extend_from_slice(piece);
        Ok(end.map(|_| piece.len()))
    }
}

const fn reply(status: u16, body_bytes: u64) -> Response {
    Response { status, keep_alive: true, body_bytes, chunks: 0 }
}

/// Meaning of a reply's first line.
enum ReplyLine {
    Reply(u16),
    Bulk(u64),
}

fn parse_line(line: &[u8]) -> Result<ReplyLine, MalformedResponse> {
    const NEITHER: MalformedResponse = MalformedResponse("its first line");
    let line = line.strip_suffix(END).ok_or(NEITHER)?;
    let (kind, text) = line.split_first().ok_or(NEITHER)?;
    Ok(match (kind, text) {
        (b'+', _) => ReplyLine::Reply(Operation::Put.expected_status()),
        (b':', _) => ReplyLine::Reply(Operation::Delete.expected_status()),
        (b'-', _) => ReplyLine::Reply(STATUS_OF_ERRORS),
        (b'$', b"-1") => ReplyLine::Reply(Operation::GetMissing.expected_status()),
        (b'$', digits) => {
            let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u32>().ok());
            ReplyLine::Bulk(number.ok_or(NEITHER)?.into())
        }
        _ => return Err(NEITHER),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Statuses and bodies of all replies in `pieces`.
    fn parse_all<'a>(
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Vec<(u16, Vec<u8>)>, MalformedResponse> {
        let (mut parser, mut body, mut all) = (ReplyParser::default(), Vec::new(), Vec::new());
        for piece in pieces {
            let mut rest = piece;
            while !rest.is_empty() {
                let (used, reply) = parser.advance(rest, |bytes| body.extend_from_slice(bytes))?;
                rest = &rest[used..];
                if let Some(reply) = reply {
                    assert_eq!(reply.body_bytes, body.len() as u64);
                    all.push((reply.status, std::mem::take(&mut body)));
                }
            }
        }
        Ok(all)
    }

    #[test]
    fn replies_are_the_same_however_they_are_split() {
        let stream = b"+OK\r\n$5\r\nva\r\ne\r\n$-1\r\n:1\r\n$0\r\n\r\n-ERR no\r\n";
        let expected = vec![
            (201, vec![]),
            (200, b"va\r\ne".to_vec()),
            (404, vec![]),
            (202, vec![]),
            (200, vec![]),
            (500, vec![]),
        ];
        for cut in 0..=stream.len() {
            let (head, tail) = stream.split_at(cut);
            assert_eq!(parse_all([head, tail]).as_ref(), Ok(&expected), "cut at {cut}");
        }
        assert_eq!(parse_all(stream.chunks(1)), Ok(expected));
    }

    #[test]
    fn malformed_replies_are_refused() {
        for bytes in [&b"HTTP/1.1 200 OK\r\n"[..], b"\n", b"$x\r\n", b"$99999999999\r\n", b"*1\r\n"] {
            assert!(parse_all([bytes]).is_err(), "{}", String::from_utf8_lossy(bytes));
        }
        assert!(parse_all([&vec![b'+'; LINE_BYTES_MAX + 1][..]]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes: Vec<u8>, cut: prop::sample::Index) {
            let (head, tail) = bytes.split_at(cut.index(bytes.len() + 1));
            let _ = parse_all([head, tail]);
        }
    }

    #[test]
    fn a_command_is_an_array_of_bulk_strings() {
        let mut out = Vec::new();
        command(Operation::Put, b"key", Some(5), &mut out);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\n");
        out.clear();
        command(Operation::Get, b"key", None, &mut out);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n");
    }
}
