//! The head check: what stands between a socket and the HTTP library.
//!
//! **Promise.** Nothing of a head reaches the library before the whole head was checked. What two readers could
//! understand differently is refused: two lengths (even equal), a length beside a transfer coding, bare CR or LF,
//! folded lines, a missing or second `Host`, malformed chunks. Every head that the library would refuse with an
//! empty `400` of its own is refused here with a [`Problem`] that says why. However the bytes are split, the same
//! bytes pass and the same verdict falls.
//!
//! **Mechanism.** A state machine over the caller's buffer of bytes that did not pass yet; it keeps no bytes, only
//! where it is: in a head, in a body of known length, in a chunked body. Heads and trailers wait until they are
//! complete and are then parsed with the library's own parser; how far a head was searched for its end is
//! remembered, so that a slow sender costs no second look. Bodies pass as they come.
//!
//! **Caveats.** It is as strict as hyper 1.12, and stricter: `Transfer-Encoding` is `chunked` or refused, lines
//! end in CR LF, a request target has no fragment. It knows no time: whoever reads the socket gives up on slow
//! senders.

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

/// Empty lines before a request line that are let pass; some senders end a body with one too many.
const EMPTY_LINES_MAX: usize = 4;

/// What a head may use up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// The longest head: request line, headers and the empty line behind them.
    pub head_bytes_max: usize,
    /// The most header lines; at most [`HeadLimits::HEADERS_MAX`].
    pub headers_max: usize,
}

impl HeadLimits {
    /// The most header lines that the HTTP library takes.
    pub const HEADERS_MAX: usize = 100;
}

impl Default for HeadLimits {
    fn default() -> Self {
        Self { head_bytes_max: 64 << 10, headers_max: Self::HEADERS_MAX }
    }
}

/// What to do with the bytes that wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// So many of them may go on, at least 1, and none behind the end of a request. Then ask again with the rest.
    Pass(usize),
    /// None of them, until more have come.
    NeedMore,
    /// None of them. EncodedResponse with this problem and end the connection.
    Refuse(Problem),
    /// None of them, and none that still come: the last request passed. To the library, the input ends here.
    Ended,
}

/// Judges what comes in on one connection. See the module.
#[derive(Debug)]
pub struct HeadCheck {
    limits: HeadLimits,
    state: State,
    /// The present request is the last on this connection.
    is_last: bool,
    /// Heads that passed.
    heads_passed: u64,
}

#[derive(Debug)]
enum State {
    /// Before or inside a head.
    Head(LineScanner),
    /// Inside a body; so many bytes are to come, at least 1.
    Sized { left: u64 },
    /// Inside a chunked body.
    Chunked(Chunked),
    /// Behind the last request.
    Ended,
}

/// What one state makes of the bytes that wait.
#[derive(Debug)]
enum Step {
    /// So many pass, and the state is the same or the next.
    Pass(usize),
    /// So many pass, and the request ends there.
    End(usize),
    NeedMore,
}

impl HeadCheck {
    /// The check at the start of a connection.
    ///
    /// # Panics
    /// When `limits.headers_max` is greater than [`HeadLimits::HEADERS_MAX`].
    pub fn new(limits: HeadLimits) -> Self {
        assert!(limits.headers_max <= HeadLimits::HEADERS_MAX, "the HTTP library takes no more headers");
        Self { limits, state: State::Head(LineScanner::default()), is_last: false, heads_passed: 0 }
    }

    /// Judges `waiting`: all bytes that were read from the socket and did not pass yet, in order.
    #[inline]
    pub fn check(&mut self, waiting: &[u8]) -> Verdict {
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
                Err(problem) if passed == 0 => return Verdict::Refuse(problem),
                Err(_) => break,
            }
        }
        match self.state {
            _ if passed > 0 => Verdict::Pass(passed),
            State::Ended => Verdict::Ended,
            _ => Verdict::NeedMore,
        }
    }

    /// Whether the next byte belongs to a head. While none waits, the connection is idle.
    pub const fn awaits_head(&self) -> bool {
        matches!(self.state, State::Head(_))
    }

    /// How many requests have passed, as far as their heads.
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

    /// Goes on to the body of the head that passes.
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
