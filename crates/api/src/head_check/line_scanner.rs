//! Scanner of blocks of lines that end with an empty line: heads and trailers.
//!
//! Every line ends with CR LF, and neither byte occurs elsewhere. Of the control characters only
//! the tab is allowed. No byte is scanned twice, except those around the previous end of the input.

use crate::Problem;
use memchr::memmem::Finder;
use std::sync::LazyLock;

const END: &[u8] = b"\r\n\r\n";

static END_FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(END));

/// Progress of the scan of a block of lines.
#[derive(Debug, Default)]
pub(super) struct LineScanner {
    scanned: usize,
}

impl LineScanner {
    /// Finds the end of the block, behind its empty line. Returns `None` if the empty line has not
    /// arrived yet.
    ///
    /// The lines begin at `start`, after empty lines. `window` begins with the same bytes on each
    /// call.
    pub(super) fn find_end(&mut self, window: &[u8], start: usize) -> Result<Option<usize>, Problem> {
        let search_from = self.scanned.saturating_sub(END.len() - 1).max(start).min(window.len());
        let end = END_FINDER.find(&window[search_from..]).map(|at| search_from + at + END.len());
        let fresh_from = self.scanned.saturating_sub(1);
        check_bytes(&window[fresh_from..end.unwrap_or(window.len())], fresh_from == 0)?;
        if end.is_none() {
            self.scanned = window.len();
        }
        Ok(end)
    }
}

/// Refuses bytes that no line may contain. The first byte is only the context of the second, unless
/// `is_start` is true.
fn check_bytes(bytes: &[u8], is_start: bool) -> Result<(), Problem> {
    let Some((&first, rest)) = bytes.split_first() else {
        return Ok(());
    };
    let first_is_bad = is_start && (is_control(first) || first == b'\n');
    // Without an early exit this compiles to vector instructions.
    let has_bad = bytes.iter().zip(rest).fold(false, |bad, (&before, &byte)| bad | is_bad(before, byte));
    if first_is_bad || has_bad {
        return Err(describe_first_bad(bytes, first_is_bad));
    }
    Ok(())
}

const fn is_control(byte: u8) -> bool {
    (byte < b' ' && byte != b'\t' && byte != b'\r' && byte != b'\n') || byte == 0x7f
}

const fn is_bad(before: u8, byte: u8) -> bool {
    is_control(byte) | ((before == b'\r') != (byte == b'\n'))
}

fn describe_first_bad(bytes: &[u8], first_is_bad: bool) -> Problem {
    let first = if first_is_bad { bytes.first().copied() } else { None };
    let mut pairs = bytes.iter().zip(&bytes[1..]);
    let bad = first.or_else(|| pairs.find(|(before, byte)| is_bad(**before, **byte)).map(|(_, byte)| *byte));
    match bad {
        Some(byte) if is_control(byte) => Problem::bad_request(format!(
            "The request has the control character {byte:#04x} outside of its body. Send HTTP/1.1; \
             TLS is not spoken on this port."
        )),
        _ => Problem::bad_request("A line of the request does not end in CR LF. End every line in both."),
    }
}
