//! The head check, between a socket and hyper.
//!
//! **Promise.** No byte of a head reaches hyper before the whole head is checked. Requests that two
//! readers could understand differently are refused. Examples are two lengths (even equal ones), a
//! length beside a transfer coding, bare CR or LF, folded lines, a missing or second `Host`, and
//! malformed chunks. Every head that hyper would refuse with an empty `400` is refused here with a
//! [`Problem`] that states the reason. The result does not depend on how the bytes are split.
//!
//! **Mechanism.** A state machine over the caller's buffer of bytes that have not passed yet. It
//! stores no bytes, only its position: in a head, in a body of known length, in a chunked body.
//! Heads and trailers wait until they are complete, and are then parsed with httparse, hyper's own
//! parser. The position of the search for the end of a head is kept, so that a slow sender causes
//! no second search. Bodies pass as they arrive.
//!
//! **Caveats.** The check is as strict as hyper 1.12, and stricter. `Transfer-Encoding` is
//! `chunked` or refused, lines end in CR LF, and a request target has no fragment. It has no
//! timeouts: the reader of the socket closes slow connections.

mod chunked;
mod fast_path;
mod head;
mod line_scanner;

use crate::Problem;
use chunked::Chunked;
pub use fast_path::FastPathRequest;
use head::{Body, Framing};
use http::StatusCode;
use line_scanner::LineScanner;

/// Greatest number of empty lines before a request line. Some senders end a body with one too many.
const EMPTY_LINES_MAX: usize = 4;

/// Limits of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Greatest length of a head, in bytes: request line, headers and the empty line after them.
    pub head_bytes_max: usize,
    /// Greatest number of header lines; at most [`HeadLimits::HEADERS_MAX`].
    pub headers_max: usize,
}

impl HeadLimits {
    /// Greatest number of header lines that hyper accepts.
    pub const HEADERS_MAX: usize = 100;
}

impl Default for HeadLimits {
    fn default() -> Self {
        Self { head_bytes_max: 64 << 10, headers_max: Self::HEADERS_MAX }
    }
}

/// Decision about the waiting bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeadVerdict {
    /// This number of bytes may pass, at least 1, and none behind the end of a request. The caller
    /// checks the rest again.
    Pass(usize),
    /// No byte may pass until more have arrived.
    NeedMore,
    /// No byte may pass. The caller answers with this problem and closes the connection.
    Refuse(Problem),
    /// No byte may pass, now or later: the last request has passed. For hyper the input ends here.
    Ended,
}

/// Checks the input of one connection.
#[derive(Debug)]
pub struct HeadCheck {
    limits: HeadLimits,
    state: State,
    /// Whether the current request is the last one of this connection.
    is_last: bool,
    /// Number of heads that passed.
    heads_passed: u64,
}

#[derive(Debug)]
enum State {
    /// Before or inside a head.
    Head(LineScanner),
    /// Inside a body, of which `left` bytes are missing, at least 1.
    Sized { left: u64 },
    /// Inside a chunked body.
    Chunked(Chunked),
    /// After the last request.
    Ended,
}

/// Decision of one state about the waiting bytes.
#[derive(Debug)]
enum Step {
    /// This number of bytes passes, and the state is the same or the next.
    Pass(usize),
    /// This number of bytes passes, and the request ends there.
    End(usize),
    NeedMore,
}

impl HeadCheck {
    /// Creates the check of a new connection.
    ///
    /// # Panics
    /// If `limits.headers_max` is greater than [`HeadLimits::HEADERS_MAX`].
    pub fn new(limits: HeadLimits) -> Self {
        assert!(limits.headers_max <= HeadLimits::HEADERS_MAX, "hyper accepts no more headers");
        Self { limits, state: State::Head(LineScanner::default()), is_last: false, heads_passed: 0 }
    }

    /// Checks `waiting`: all bytes that were read from the socket and have not passed yet, in
    /// order.
    #[inline]
    pub fn check(&mut self, waiting: &[u8]) -> HeadVerdict {
        let mut passed = 0;
        while passed < waiting.len() {
            match self.step(&waiting[passed..]) {
                Ok(Step::Pass(len)) => passed += len,
                Ok(Step::End(len)) => {
                    passed += len;
                    self.state =
                        if self.is_last { State::Ended } else { State::Head(LineScanner::default()) };
                    break;
                }
                Ok(Step::NeedMore) => break,
                Err(problem) if passed == 0 => return HeadVerdict::Refuse(problem),
                Err(_) => break,
            }
        }
        match self.state {
            _ if passed > 0 => HeadVerdict::Pass(passed),
            State::Ended => HeadVerdict::Ended,
            _ => HeadVerdict::NeedMore,
        }
    }

    /// Whether the next byte belongs to a head. If no byte waits, the connection is idle.
    pub const fn awaits_head(&self) -> bool {
        matches!(self.state, State::Head(_))
    }

    /// Number of bytes that the current chunk of a chunked body announces and that have not passed:
    /// the body has at least as many more. 0 in every other position.
    pub const fn announced_chunk_bytes(&self) -> u64 {
        match &self.state {
            State::Chunked(chunked) => chunked.announced_bytes(),
            _ => 0,
        }
    }

    /// Number of requests whose heads have passed.
    pub const fn heads_passed(&self) -> u64 {
        self.heads_passed
    }

    fn step(&mut self, waiting: &[u8]) -> Result<Step, Problem> {
        match &mut self.state {
            State::Head(lines) => match find_head(lines, waiting, self.limits)? {
                Some(head) => Ok(self.enter(head.len(), head::check_head(head, self.limits)?.framing)),
                None => Ok(Step::NeedMore),
            },
            State::Sized { left } => {
                let len = (waiting.len() as u64).min(*left);
                *left -= len;
                Ok(if *left == 0 { Step::End(len as usize) } else { Step::Pass(len as usize) })
            }
            State::Chunked(chunked) => chunked.step(waiting),
            State::Ended => Ok(Step::NeedMore),
        }
    }

    /// Enters the body of a head that passes.
    fn enter(&mut self, head_len: usize, Framing { body, is_last }: Framing) -> Step {
        self.heads_passed += 1;
        self.is_last = is_last;
        match body {
            Body::None => return Step::End(head_len),
            Body::Sized(left) => self.state = State::Sized { left },
            Body::Chunked => self.state = State::Chunked(Chunked::default()),
        }
        Step::Pass(head_len)
    }
}

/// The next head, with empty lines before it, once it is complete.
fn find_head<'a>(
    lines: &mut LineScanner,
    waiting: &'a [u8],
    limits: HeadLimits,
) -> Result<Option<&'a [u8]>, Problem> {
    let window = &waiting[..waiting.len().min(limits.head_bytes_max)];
    let empty_lines = window.chunks(2).take_while(|pair| pair == b"\r\n").take(EMPTY_LINES_MAX + 1).count();
    if empty_lines > EMPTY_LINES_MAX {
        return Err(Problem::bad_request("There are too many empty lines before the request. Send none."));
    }
    match lines.find_end(window, 2 * empty_lines)? {
        Some(end) => Ok(Some(&window[..end])),
        None if waiting.len() > window.len() => Err(Problem::new(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            format!(
                "The head of the request is longer than {} bytes. Send fewer or shorter headers, or a shorter key.",
                limits.head_bytes_max
            ),
        )),
        None => Ok(None),
    }
}
