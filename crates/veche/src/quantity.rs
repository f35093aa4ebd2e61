//! Sizes, durations and counts in settings: `512MiB`, `1s`, `3`.

use ::bench::units::{parse_bytes, parse_time};
use serde::Deserialize;
use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::time::Duration;

/// A number of bytes: `4096`, `64KiB`, `16MiB`, `2GiB`, `1TiB`, the same as `64K`, `16M`, `16Mi`,
/// `2G`, or in powers of ten `64kB`, `16MB`, `2GB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Text")]
pub(crate) struct Size(pub(crate) u64);

/// A length of time: `500ms`, `1s`, `2m`, `1h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Text")]
pub(crate) struct Span(pub(crate) Duration);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_bytes(text).map(Self)
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A number without a unit would be ambiguous in a setting.
        if text.ends_with(|last: char| last.is_ascii_digit()) {
            return Err(format!("{text:?} has no unit: ms, s, m or h"));
        }
        parse_time(text).map(Self)
    }
}

/// A count of at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Text")]
pub(crate) struct AtLeastOne(NonZeroUsize);

impl AtLeastOne {
    pub(crate) const fn get(self) -> usize {
        self.0.get()
    }
}

impl FromStr for AtLeastOne {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.trim().parse::<usize>().ok().and_then(NonZeroUsize::new);
        number.map(Self).ok_or_else(|| format!("{text:?} is not a whole number of at least 1"))
    }
}

impl TryFrom<Text> for AtLeastOne {
    type Error = String;

    fn try_from(text: Text) -> Result<Self, String> {
        text.to_string().parse()
    }
}

/// Maximum number of replicas of a key.
pub(crate) const REPLICAS_MAX: u64 = cluster::NODES_MAX as u64;

/// A number of replicas, from 1 to [`REPLICAS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Text")]
pub(crate) struct Replicas(pub(crate) u8);

impl FromStr for Replicas {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        whole(1, REPLICAS_MAX)(text).map(Self)
    }
}

impl TryFrom<Text> for Replicas {
    type Error = String;

    fn try_from(text: Text) -> Result<Self, String> {
        text.to_string().parse()
    }
}

/// A parser of whole numbers from `min` to `max`, both included. `T` holds `max`.
pub(crate) fn whole<T: TryFrom<u64>>(min: u64, max: u64) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.trim().parse().ok().filter(|number| (min..=max).contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| match (min, max) {
            (0, u64::MAX) => format!("{text:?} is not a whole number"),
            (_, u64::MAX) => format!("{text:?} is not a whole number of at least {min}"),
            _ => format!("{text:?} is not a whole number from {min} to {max}"),
        })
    }
}

/// A quantity in a TOML file: a number or a string.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a whole number, or a text in quotes such as \"512MiB\" or \"1s\"")]
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
    type Error = String;

    fn try_from(text: Text) -> Result<Self, String> {
        text.to_string().parse()
    }
}

impl TryFrom<Text> for Span {
    type Error = String;

    fn try_from(text: Text) -> Result<Self, String> {
        text.to_string().parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64KiB", 65_536),
            ("16 mib", 16 << 20),
            ("2GB", 2_000_000_000),
            ("512M", 512 << 20),
            ("512Mi", 512 << 20),
            ("1G", 1 << 30),
            ("512MB", 512_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "MiB", "-1", "1.5GiB", "1XB", "99999999999GiB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_count_of_nothing_is_refused_in_plain_words() {
        assert_eq!("3".parse::<AtLeastOne>().map(AtLeastOne::get), Ok(3));
        for text in ["0", "-1", "many", ""] {
            let expected = format!("{text:?} is not a whole number of at least 1");
            assert_eq!(text.parse::<AtLeastOne>(), Err(expected));
        }
    }

    #[test]
    fn a_number_out_of_range_is_refused_with_the_range() {
        assert_eq!("64".parse(), Ok(Replicas(64)));
        for text in ["0", "65", "300", "99999999999999999999", "x", "-1"] {
            assert_eq!(text.parse::<Replicas>(), Err(format!("{text:?} is not a whole number from 1 to 64")));
        }
        let any = whole::<u64>(0, u64::MAX);
        assert_eq!(any("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(any("x"), Err("\"x\" is not a whole number".to_owned()));
        assert_eq!(
            whole::<u64>(1, u64::MAX)("0"),
            Err("\"0\" is not a whole number of at least 1".to_owned())
        );
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
