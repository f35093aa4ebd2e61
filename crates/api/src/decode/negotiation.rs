//! Content negotiation: `Accept` and `Accept-Encoding` (RFC 9110, sections 12.4 and 12.5).
//!
//! **Promise.** The most specific element of a header determines the weight of a format, a weight
//! of 0 forbids it, and the greatest weight wins.
//!
//! **Caveats.** Malformed elements of these headers are ignored. Programs send `*` for `*/*` and
//! `.2` for `0.2`, which are accepted. Parameters of media types are ignored.

use crate::entries::{Coding, Format};
use http::{HeaderMap, HeaderName, HeaderValue, header};

/// Weight in thousandths.
type Weight = u16;
const WEIGHT_MAX: Weight = 1_000;

/// Format that a client prefers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcceptedFormat {
    /// The client has no preference.
    Any,
    /// The client prefers this format.
    Format(Format),
    /// The client accepts none of the available formats.
    None,
}

impl AcceptedFormat {
    /// Returns the preferred format, or `default` if there is no preference. Returns `None` if no
    /// format is accepted.
    pub(super) const fn or(self, default: Format) -> Option<Format> {
        match self {
            Self::Any => Some(default),
            Self::Format(format) => Some(format),
            Self::None => None,
        }
    }
}

/// Format among `formats` with the greatest weight in `Accept`; the first one of equal weights.
pub(super) fn accepted_format(headers: &HeaderMap, formats: &[Format]) -> AcceptedFormat {
    let elements: Vec<_> = elements(headers, &header::ACCEPT).collect();
    if elements.is_empty() {
        return AcceptedFormat::Any;
    }
    let mut best = (0, AcceptedFormat::None);
    for format in formats {
        let weight = weight_of_format(&elements, *format);
        if weight > best.0 {
            best = (weight, AcceptedFormat::Format(*format));
        }
    }
    best.1
}

/// Weight of a format, by its most specific media range.
fn weight_of_format(elements: &[Element<'_>], format: Format) -> Weight {
    let media_type = format.media_type();
    let specificity = |name: &str| match name {
        "*/*" | "*" => Some(0),
        name if name.eq_ignore_ascii_case(media_type) => Some(2),
        name => {
            let family = name.strip_suffix("/*")?;
            let (own, _) = media_type.split_once('/')?;
            family.eq_ignore_ascii_case(own).then_some(1)
        }
    };
    let ranges = elements.iter().filter_map(|element| Some((specificity(element.name)?, element.weight)));
    ranges.max().map_or(0, |(_, weight)| weight)
}

/// Coding with the greatest weight in `Accept-Encoding`; of equal weights, the first of zstd, gzip,
/// identity. `None` if the header forbids all of them.
///
/// A compressing coding is used only if the header names it or forbids identity: clients send `*`
/// alone without a preference.
pub(super) fn accepted_coding(headers: &HeaderMap) -> Option<Coding> {
    let elements: Vec<_> = elements(headers, &header::ACCEPT_ENCODING).collect();
    let named = |name: &str| {
        let of_name = elements.iter().filter(|element| element.name.eq_ignore_ascii_case(name));
        of_name.map(|element| element.weight).max()
    };
    let (any, identity) = (named("*"), named("identity"));
    let needs_coding = identity.or(any) == Some(0);
    let mut best = (identity.unwrap_or(1).max(1), Coding::Identity);
    for (coding, name) in [(Coding::Gzip, "gzip"), (Coding::Zstd, "zstd")] {
        let weight = named(name).or(any.filter(|_| needs_coding)).unwrap_or(0);
        if weight >= best.0 {
            best = (weight, coding);
        }
    }
    if best.1 == Coding::Identity && needs_coding { None } else { Some(best.1) }
}

/// Format that a `Content-Type` names.
pub(super) fn media_type_of(value: &HeaderValue) -> Option<Format> {
    let text = value.to_str().ok()?;
    let name = text.split(';').next()?.trim();
    [Format::Lines, Format::Ndjson, Format::Binary]
        .into_iter()
        .find(|format| format.media_type().eq_ignore_ascii_case(name))
}

/// An element of a header: a name and its weight.
#[derive(Clone, Copy, Debug)]
struct Element<'a> {
    name: &'a str,
    weight: Weight,
}

/// Well-formed elements of all lines of a header.
fn elements<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = Element<'a>> {
    let lines = headers.get_all(name).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).filter_map(element)
}

fn element(text: &str) -> Option<Element<'_>> {
    let mut parts = text.split(';').map(str::trim);
    let name = parts.next().filter(|name| !name.is_empty())?;
    let weight = parts.find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("q").then_some(value.trim())
    });
    match weight {
        None => Some(Element { name, weight: WEIGHT_MAX }),
        Some(weight) => Some(Element { name, weight: weight_of(weight)? }),
    }
}

/// Parses a weight from 0 to 1. Digits after the third are ignored.
fn weight_of(text: &str) -> Option<Weight> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_weight = matches!(whole, "" | "0" | "1")
        && fraction.bytes().all(|byte| byte.is_ascii_digit())
        && !(whole.is_empty() && fraction.is_empty());
    if !is_weight {
        return None;
    }
    let digits = fraction.bytes().chain([b'0'; 3]).take(3);
    let thousandths = digits.fold(0, |sum, digit| sum * 10 + Weight::from(digit - b'0'));
    Some(if whole == "1" { WEIGHT_MAX } else { thousandths })
}
