//! Requests of the fast path: complete requests that need no HTTP library.
//!
//! **Promise.** Each fast-path request would pass the head check to its last byte. Its headers have
//! no meaning: method, target and body define it.

use super::head::{self, Body};
use super::line_scanner::LineScanner;
use super::{HeadCheck, State, find_head};

/// A complete request of the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastPathRequest<'a> {
    /// Method, as received.
    pub method: &'a str,
    /// Target, as received.
    pub target: &'a str,
    /// Body, of a known length.
    pub body: &'a [u8],
    /// Length of the request, in bytes.
    pub len: usize,
}

impl HeadCheck {
    /// Returns the fast-path request at the beginning of `waiting`, which are the bytes for
    /// [`HeadCheck::check`].
    ///
    /// The check does not advance. The bytes may still be given to it, or skipped with
    /// [`HeadCheck::skip_fast_path_request`].
    #[inline]
    pub fn peek_fast_path<'a>(&self, waiting: &'a [u8]) -> Option<FastPathRequest<'a>> {
        if !self.awaits_head() {
            return None;
        }
        let head = find_head(&mut LineScanner::default(), waiting, self.limits).ok()??;
        let checked = head::check_head(head, self.limits).ok()?;
        let body_len = match checked.framing.body {
            Body::None => 0,
            Body::Sized(len) => usize::try_from(len).ok()?,
            Body::Chunked => return None,
        };
        let body = waiting[head.len()..].get(..body_len)?;
        let is_fast_path = checked.is_fast_path && !checked.framing.is_last;
        is_fast_path.then_some(FastPathRequest {
            method: checked.method,
            target: checked.target,
            body,
            len: head.len() + body_len,
        })
    }

    /// Skips the last fast-path request: the next waiting bytes begin after it.
    ///
    /// # Panics
    /// If the check is inside a request.
    pub fn skip_fast_path_request(&mut self) {
        assert!(self.awaits_head(), "a fast-path request begins between requests");
        self.state = State::Head(LineScanner::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HeadLimits, HeadVerdict};
    use proptest::prelude::*;

    fn peek(text: &str) -> Option<(String, String, String, usize)> {
        let check = HeadCheck::new(HeadLimits::default());
        let request = check.peek_fast_path(text.as_bytes())?;
        let body = String::from_utf8_lossy(request.body).into_owned();
        Some((request.method.to_owned(), request.target.to_owned(), body, request.len))
    }

    #[test]
    fn only_a_complete_request_is_on_the_fast_path() {
        let put = "PUT /v0/entity?id=k HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
        let seen = Some(("PUT".to_owned(), "/v0/entity?id=k".to_owned(), "abc".to_owned(), put.len()));
        assert_eq!(peek(put), seen);
        assert_eq!(peek(&format!("{put}GET /")), seen);
        for len in 0..put.len() {
            assert_eq!(peek(&put[..len]), None, "{len}");
        }
    }

    proptest! {
        #[test]
        fn fast_path_requests_would_have_passed(
            begin in "(\r\n){0,1}(GET|PUT|DELETE|CONNECT|G T) /[a-z%?=#]{0,6} HTTP/1\\.[01]\r\n",
            headers in prop::collection::vec(
                "(Host: h|Host: h|Accept: a|Content-Length: [0-3]|Transfer-Encoding: chunked|Connection: (close|keep-alive)|X: y|: )\r\n",
                0..5,
            ),
            rest in "[a-c\r\n]{0,6}",
        ) {
            let text = format!("{begin}{}\r\n{rest}", headers.concat());
            if let Some((.., len)) = peek(&text) {
                let mut check = HeadCheck::new(HeadLimits::default());
                prop_assert_eq!(check.check(&text.as_bytes()[..len]), HeadVerdict::Pass(len));
                prop_assert!(check.awaits_head() && check.heads_passed() == 1);
            }
        }
    }
}
