//! Versions: the order of writes within a key.
//!
//! **Promise.** Two writes never carry the same [`Version`]. A version that a node issues is
//! greater than every version that it has seen. So the greatest version wins, in any order of
//! arrival.
//!
//! **Mechanism.** A hybrid logical clock (Kulkarni et al., "Logical Physical Clocks", 2014) of 64
//! bits. The upper 52 bits count microseconds since 2020-01-01T00:00:00Z. The lower 12 bits count
//! events within one microsecond, and carry into the upper bits when they overflow. 64 random bits
//! follow, drawn once per data directory. They distinguish nodes that draw the same clock value.
//!
//! **Caveats.** 52 bits of microseconds last until the year 2162. The order of two concurrent
//! writes on different nodes is the order of their clocks, which may differ from the users' intent.

use crate::WallTime;
use std::fmt;
use std::str::FromStr;

const COUNTER_BITS: u32 = 12;

/// A value of the hybrid logical clock: 52 bits of microseconds since 2020, then a counter of 12
/// bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Hlc(u64);

impl Hlc {
    /// The least value, before every write.
    pub const ZERO: Self = Self(0);
    /// The greatest value.
    pub const MAX: Self = Self(u64::MAX);

    /// The first value of the microsecond that `wall` shows; [`Hlc::ZERO`] for times before 2020.
    pub fn at(wall: WallTime) -> Self {
        let micros =
            wall.micros_since_unix_epoch().saturating_sub(WallTime::EPOCH_2020.micros_since_unix_epoch());
        Self(micros.min(u64::MAX >> COUNTER_BITS) << COUNTER_BITS)
    }

    /// The wall time of this value, in whole microseconds.
    pub fn wall(self) -> WallTime {
        WallTime::from_micros_since_unix_epoch(
            WallTime::EPOCH_2020.micros_since_unix_epoch() + (self.0 >> COUNTER_BITS),
        )
    }

    /// The next greater value.
    ///
    /// # Panics
    /// At [`Hlc::MAX`], in the year 2162.
    pub fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("the hybrid logical clock has run out of values"))
    }

    /// The raw 64 bits, for codecs and atomics.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The inverse of [`Hlc::to_bits`].
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl fmt::Debug for Hlc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// 64 random bits, drawn once per data directory, that distinguish the versions of two nodes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NodeTag(pub u64);

impl fmt::Debug for NodeTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The version of a write: the clock value, then the node that coordinated the write.
///
/// Printed as 32 lower-case hexadecimal digits. The order of the text is the order of the versions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version {
    /// The clock value at which the write was coordinated.
    pub hlc: Hlc,
    /// The coordinating node.
    pub tag: NodeTag,
}

impl Version {
    /// Less than or equal to every version.
    pub const MIN: Self = Self { hlc: Hlc::ZERO, tag: NodeTag(0) };
    /// Greater than or equal to every version.
    pub const MAX: Self = Self { hlc: Hlc::MAX, tag: NodeTag(u64::MAX) };
    /// Length of the binary form, in bytes.
    pub const ENCODED_LEN: usize = 16;

    /// Creates the version of this clock value and node.
    pub const fn new(hlc: Hlc, tag: NodeTag) -> Self {
        Self { hlc, tag }
    }

    /// The binary form: 16 bytes, big-endian, so that the order of the bytes is the order of the
    /// versions.
    pub fn to_bytes(self) -> [u8; Self::ENCODED_LEN] {
        ((u128::from(self.hlc.0) << 64) | u128::from(self.tag.0)).to_be_bytes()
    }

    /// The inverse of [`Version::to_bytes`].
    pub fn from_bytes(bytes: [u8; Self::ENCODED_LEN]) -> Self {
        let bits = u128::from_be_bytes(bytes);
        Self { hlc: Hlc((bits >> 64) as u64), tag: NodeTag(bits as u64) }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.hlc.0, self.tag.0)
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a version, which is exactly 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionParseError;

impl fmt::Display for VersionParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a version is 32 hexadecimal digits")
    }
}

impl std::error::Error for VersionParseError {}

impl FromStr for Version {
    type Err = VersionParseError;

    fn from_str(text: &str) -> Result<Self, VersionParseError> {
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(VersionParseError);
        }
        let bits = u128::from_str_radix(text, 16).map_err(|_| VersionParseError)?;
        Ok(Self::from_bytes(bits.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn version(hlc: u64, tag: u64) -> Version {
        Version::new(Hlc::from_bits(hlc), NodeTag(tag))
    }

    proptest! {
        #[test]
        fn order_is_the_same_in_memory_in_bytes_and_in_text(a: (u64, u64), b: (u64, u64)) {
            let (a, b) = (version(a.0, a.1), version(b.0, b.1));
            prop_assert_eq!(a.cmp(&b), a.to_bytes().cmp(&b.to_bytes()));
            prop_assert_eq!(a.cmp(&b), a.to_string().cmp(&b.to_string()));
        }

        #[test]
        fn bytes_and_text_round_trip(hlc: u64, tag: u64) {
            let version = version(hlc, tag);
            prop_assert_eq!(Version::from_bytes(version.to_bytes()), version);
            prop_assert_eq!(version.to_string().parse(), Ok(version));
        }

        #[test]
        fn the_clock_shows_the_wall_time_it_was_made_of(micros in 0u64..1 << 52) {
            let wall = WallTime::from_micros_since_unix_epoch(
                WallTime::EPOCH_2020.micros_since_unix_epoch() + micros);
            prop_assert_eq!(Hlc::at(wall).wall(), wall);
        }
    }

    #[test]
    fn the_counter_carries_into_the_microseconds() {
        let wall = WallTime::from_micros_since_unix_epoch(WallTime::EPOCH_2020.micros_since_unix_epoch() + 7);
        let last_of_microsecond = Hlc::from_bits(Hlc::at(wall).to_bits() + 0xfff);
        assert_eq!(last_of_microsecond.wall(), wall);
        assert_eq!(last_of_microsecond.next().wall(), wall.saturating_add_micros(1));
    }

    #[test]
    fn text_that_is_not_32_hexadecimal_digits_is_refused() {
        for text in ["", "0", "+1111111111111111111111111111111", "gggggggggggggggggggggggggggggggg"] {
            assert_eq!(text.parse::<Version>(), Err(VersionParseError), "{text:?}");
        }
    }
}
