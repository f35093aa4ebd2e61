//! `Range` and `If-Range` on a read of a value (RFC 9110, sections 13.1.5 and 14.2).
//!
//! **Promise.** A request for one byte range is answered with exactly these bytes, and only from
//! the version that `If-Range` names. If this module cannot honour a header, the whole value is
//! sent, as the RFC allows.
//!
//! **Caveats.** Several ranges in one header, units other than `bytes`, and malformed ranges are
//! ignored.

use http::header::{IF_RANGE, RANGE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::ops::Range;
use stdx::Version;

/// The requested part of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    bounds: Bounds,
    validator: Validator,
}

/// Byte positions in the form of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bounds {
    /// `first-last`, both inclusive, or `first-`.
    Positions { first: u64, last: u64 },
    /// `-len`: the last bytes of the value.
    Suffix { len: u64 },
}

/// Content of `If-Range`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Validator {
    /// No such header: the range applies to every version.
    Absent,
    /// A strong entity tag that is a version.
    Version(Version),
    /// A date, a weak tag, or a tag that is not a version. It matches no version.
    NoVersion,
}

/// Bytes to send for a [`ByteRange`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    /// The whole value: the client's copy is of another version.
    Whole,
    /// A part of the value.
    Bytes(Range<usize>),
    /// The value has none of the requested bytes.
    Unsatisfiable,
}

impl ByteRange {
    /// Reads the range of a request. Returns `None` if there is no range, or if it is ignored.
    pub(super) fn of(parts: &Parts) -> Option<Self> {
        let bounds = Bounds::parse(only_line(&parts.headers, &RANGE)?.to_str().ok()?)?;
        let validator = match parts.headers.contains_key(IF_RANGE) {
            false => Validator::Absent,
            true => only_line(&parts.headers, &IF_RANGE)
                .and_then(strong_version)
                .map_or(Validator::NoVersion, Validator::Version),
        };
        Some(Self { bounds, validator })
    }

    /// Selects the bytes to send of a value of this version and length.
    pub(crate) fn select(&self, version: Version, value_len: usize) -> Selection {
        match self.validator {
            Validator::Version(expected) if expected != version => return Selection::Whole,
            Validator::NoVersion => return Selection::Whole,
            Validator::Version(_) | Validator::Absent => {}
        }
        let len = value_len as u64;
        let (first, end) = match self.bounds {
            Bounds::Positions { first, last } => (first, last.saturating_add(1).min(len)),
            // An empty value has no part, so a request for its last bytes gets the whole value.
            Bounds::Suffix { len: 1.. } if len == 0 => return Selection::Whole,
            Bounds::Suffix { len: suffix } => (len - suffix.min(len), len),
        };
        if first >= end {
            return Selection::Unsatisfiable;
        }
        Selection::Bytes(first as usize..end as usize)
    }
}

impl Bounds {
    fn parse(text: &str) -> Option<Self> {
        // The grammar has no whitespace here; HTTP itself removes it around the whole value of a
        // field.
        let (unit, set) = text.split_once('=')?;
        if !unit.eq_ignore_ascii_case("bytes") {
            return None;
        }
        let (first, last) = set.split_once('-')?;
        match (first.is_empty(), last.is_empty()) {
            (true, _) => Some(Self::Suffix { len: position(last)? }),
            (false, true) => Some(Self::Positions { first: position(first)?, last: u64::MAX }),
            (false, false) => {
                let (first, last) = (position(first)?, position(last)?);
                (first <= last).then_some(Self::Positions { first, last })
            }
        }
    }
}

/// Parses a position. Positions that do not fit into 64 bits become `u64::MAX`, which is past the
/// end of every value.
fn position(digits: &str) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

fn only_line<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut lines = headers.get_all(name).iter();
    let first = lines.next()?;
    lines.next().is_none().then_some(first)
}

/// Version of a strong entity tag.
fn strong_version(line: &HeaderValue) -> Option<Version> {
    let tag = line.as_bytes().trim_ascii().strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    super::if_none_match::version_of(tag)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;
    use stdx::{Hlc, NodeTag};

    const VERSION: Version = Version::new(Hlc::from_bits(0xab), NodeTag(1));
    const TAG: &str = "\"00000000000000ab0000000000000001\"";

    fn select(headers: &[(&str, &str)], len: usize) -> Option<Selection> {
        let request =
            headers.iter().fold(Request::builder(), |request, (name, value)| request.header(*name, *value));
        let (parts, ()) = request.body(()).expect("a request").into_parts();
        ByteRange::of(&parts).map(|range| range.select(VERSION, len))
    }

    #[test]
    fn one_range_selects_its_bytes() {
        for (range, len, bytes) in [
            ("bytes=0-0", 10, 0..1),
            ("bytes=2-4", 10, 2..5),
            ("bytes=2-", 10, 2..10),
            ("bytes=2-99999999999999999999", 10, 2..10),
            ("bytes=-3", 10, 7..10),
            ("bytes=-30", 10, 0..10),
            ("Bytes=9-9", 10, 9..10),
        ] {
            assert_eq!(select(&[("range", range)], len), Some(Selection::Bytes(bytes)), "{range}");
        }
        for (range, len) in [("bytes=10-", 10), ("bytes=10-12", 10), ("bytes=-0", 10), ("bytes=0-", 0)] {
            assert_eq!(select(&[("range", range)], len), Some(Selection::Unsatisfiable), "{range} {len}");
        }
        assert_eq!(select(&[("range", "bytes=-5")], 0), Some(Selection::Whole));
    }

    #[test]
    fn a_range_that_cannot_be_honoured_is_ignored() {
        for range in [
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=a-b",
            "bytes=3-2",
            "bytes=0-1,3-4",
            "items=0-1",
            "bytes=+1-2",
            "bytes = 0-1",
            "bytes =0-1",
            "bytes= 0-1",
            "bytes=0 -1",
        ] {
            assert_eq!(select(&[("range", range)], 10), None, "{range}");
        }
        assert_eq!(select(&[("range", "bytes=0-1"), ("range", "bytes=3-4")], 10), None);
        assert_eq!(select(&[("if-range", TAG)], 10), None);
    }

    #[test]
    fn if_range_is_compared_strongly() {
        let with = |if_range: &str| select(&[("range", "bytes=1-2"), ("if-range", if_range)], 10);
        assert_eq!(with(TAG), Some(Selection::Bytes(1..3)));
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        for other in [&format!("W/{TAG}"), "\"00000000000000ab0000000000000002\"", "\"x\"", date, "", "*"] {
            assert_eq!(with(other), Some(Selection::Whole), "{other}");
        }
        let twice = [("range", "bytes=1-2"), ("if-range", TAG), ("if-range", TAG)];
        assert_eq!(select(&twice, 10), Some(Selection::Whole));
    }
}
