//! What a user can read: `Accept` and `Accept-Encoding` (RFC 9110, sections 12.4 and 12.5).
//!
//! **Promise.** The most specific entry of a header counts for what it names, a weight of 0 forbids it, and of what is
//! allowed the greatest weight wins.
//!
//! **Caveats.** What is not understood in these headers is passed over: programs send `*` for `*/*` and `.2` for `0.2`,
//! which are taken as they are meant. Parameters of media types are passed over.

use crate::entries::{Coding, Format};
use http::{HeaderMap, HeaderName, HeaderValue, header};

/// A weight in thousandths.
type Weight = u16;
const WEIGHT_MAX: Weight = 1_000;

/// The format that a user wants most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcceptedFormat {
    /// He does not say.
    Any,
    /// This one.
    Format(Format),
    /// None of those that there are.
    None,
}

impl AcceptedFormat {
    /// The format, or this one if he does not say; `None` if there is none for him.
    pub(super) const fn or(self, default: Format) -> Option<Format> {
        match self {
            Self::Any => Some(default),
            Self::Format(format) => Some(format),
            Self::None => None,
        }
    }
}

/// The format of these that `Accept` wants most; of several, the first.
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

/// How much a format is wanted: as its most specific range says.
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

/// The coding that `Accept-Encoding` wants most; of several, the first of zstd, gzip, identity. `None`: it forbids all
/// that there are.
///
/// What compresses is used only where it is named, or identity is forbidden: `*` alone says little.
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

/// The format that a `Content-Type` names.
pub(super) fn media_type_of(value: &HeaderValue) -> Option<Format> {
    let text = value.to_str().ok()?;
    let name = text.split(';').next()?.trim();
    [Format::Lines, Format::Ndjson, Format::Binary]
        .into_iter()
        .find(|format| format.media_type().eq_ignore_ascii_case(name))
}

/// What a header says of something.
#[derive(Clone, Copy, Debug)]
struct Element<'a> {
    name: &'a str,
    weight: Weight,
}

/// The elements of a header's lines that are understood.
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

/// A weight from 0 to 1; digits behind the third do not count.
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
