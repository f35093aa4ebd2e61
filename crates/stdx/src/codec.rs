//! Integers to and from bytes: little-endian with fixed widths, and LEB128 varints.
//!
//! Writers append to a `Vec<u8>`. A [`Reader`] reads a slice of untrusted bytes, so it never
//! panics: an incomplete value is [`Truncated`].

use crate::{Hlc, NodeTag, Version};
use std::fmt;

/// The longest varint of a `u64`, in bytes.
pub const VARINT_LEN_MAX: usize = 10;

/// The input ended before the value did, or a varint was longer than any `u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncated;

impl fmt::Display for Truncated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the bytes end inside a value")
    }
}

impl std::error::Error for Truncated {}

/// Appends `value` as a varint: 7 bits per byte, least significant first. The high bit is set in
/// all bytes but the last.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The length of `value` as a varint, in bytes.
pub const fn varint_len(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Appends the length of `bytes` as a varint, then `bytes`.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a version in its binary form.
pub fn put_version(out: &mut Vec<u8>, version: Version) {
    out.extend_from_slice(&version.to_bytes());
}

/// Reads a slice of untrusted bytes from its start to its end.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Creates a reader at the start of `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The bytes that are not read yet.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether all bytes are read.
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads the next `len` bytes.
    ///
    /// # Errors
    /// [`Truncated`] if fewer bytes are left, as for all methods below.
    #[inline]
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Truncated> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    /// Reads the next `N` bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    /// Reads one byte.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, Truncated> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Reads two bytes, little-endian.
    #[inline]
    pub fn u16(&mut self) -> Result<u16, Truncated> {
        self.array().map(u16::from_le_bytes)
    }

    /// Reads four bytes, little-endian.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, Truncated> {
        self.array().map(u32::from_le_bytes)
    }

    /// Reads eight bytes, little-endian.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, Truncated> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a varint.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, Truncated> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Truncated);
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Truncated)
    }

    /// Reads a varint that is a number of bytes in memory.
    #[inline]
    pub fn varint_len(&mut self) -> Result<usize, Truncated> {
        usize::try_from(self.varint()?).map_err(|_| Truncated)
    }

    /// Reads a varint length, then that number of bytes.
    #[inline]
    pub fn length_prefixed(&mut self) -> Result<&'a [u8], Truncated> {
        let len = self.varint_len()?;
        self.bytes(len)
    }

    /// Reads a version in its binary form.
    #[inline]
    pub fn version(&mut self) -> Result<Version, Truncated> {
        let bits = u128::from_be_bytes(self.array()?);
        Ok(Version::new(Hlc::from_bits((bits >> 64) as u64), NodeTag(bits as u64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn varints_round_trip_and_know_their_length(value: u64, shift in 0u32..64) {
            let value = value >> shift;
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            prop_assert_eq!(bytes.len(), varint_len(value));
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(reader.varint(), Ok(value));
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let mut reader = Reader::new(&bytes);
            while reader.length_prefixed().is_ok() && !reader.is_empty() {}
            prop_assert!(reader.rest().len() <= bytes.len());
        }
    }

    #[test]
    fn a_varint_of_more_than_64_bits_is_refused() {
        let mut bytes = vec![0xff; 9];
        bytes.push(0x02);
        assert_eq!(Reader::new(&bytes).varint(), Err(Truncated));
        bytes[9] = 0x01;
        assert_eq!(Reader::new(&bytes).varint(), Ok(u64::MAX));
    }
}
