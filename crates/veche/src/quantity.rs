//! Sizes and times as people write them: `512MiB`, `1s`.

use serde::Deserialize;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A number of bytes: `4096`, `64KiB`, `16MiB`, `2GiB`, `1TiB`, or in powers of ten `64kB`, `16MB`, `2GB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Text")]
pub(crate) struct Size(pub(crate) u64);

/// A length of time: `500ms`, `1s`, `2m`, `1h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Text")]
pub(crate) struct Span(pub(crate) Duration);

/// What is not a size or a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QuantityError {
    text: String,
    expected: &'static str,
}

impl fmt::Display for QuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not {}", self.text, self.expected)
    }
}

impl std::error::Error for QuantityError {}

const SIZE_UNITS: [(&str, u64); 9] = [
    ("", 1),
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

/// In milliseconds.
const TIME_UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

impl FromStr for Size {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        parse(text, &SIZE_UNITS, "a size such as 4096, 64KiB, 512MiB or 2GiB").map(Self)
    }
}

impl FromStr for Span {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        parse(text, &TIME_UNITS, "a time such as 500ms, 1s or 2m").map(Duration::from_millis).map(Self)
    }
}

fn parse(text: &str, units: &[(&str, u64)], expected: &'static str) -> Result<u64, QuantityError> {
    let error = || QuantityError { text: text.to_owned(), expected };
    let digits_len = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, unit) = text.split_at(digits_len);
    let unit = unit.trim_start();
    let (_, factor) = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(error)?;
    let number: u64 = digits.parse().map_err(|_| error())?;
    number.checked_mul(*factor).ok_or_else(error)
}

/// How a quantity may stand in a TOML file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    Number(u64),
    Text(String),
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

impl TryFrom<Text> for Size {
    type Error = QuantityError;

    fn try_from(text: Text) -> Result<Self, QuantityError> {
        text.to_string().parse()
    }
}

impl TryFrom<Text> for Span {
    type Error = QuantityError;

    fn try_from(text: Text) -> Result<Self, QuantityError> {
        text.to_string().parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_understood() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("64KiB", 65_536), ("16 mib", 16 << 20), ("2GB", 2_000_000_000)]
        {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "MiB", "-1", "1.5GiB", "1XB", "99999999999GiB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn times_have_units() {
        for (text, millis) in [("0s", 0), ("500ms", 500), ("1s", 1_000), ("2m", 120_000)] {
            assert_eq!(text.parse(), Ok(Span(Duration::from_millis(millis))), "{text}");
        }
        for text in ["", "1", "s", "-1s"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
