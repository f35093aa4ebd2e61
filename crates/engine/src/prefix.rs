//! Fixed-length prefixes of keys, comparable as numbers.

/// Length of a prefix, in bytes.
pub(crate) const PREFIX_BYTES: usize = size_of::<u128>();

/// The first bytes of a key as a number in the same order. Short keys are padded with zeros.
#[inline]
pub(crate) fn prefix(key: &[u8]) -> u128 {
    let mut bytes = [0; PREFIX_BYTES];
    match key.first_chunk() {
        Some(first) => bytes = *first,
        None => bytes[..key.len()].copy_from_slice(key),
    }
    u128::from_be_bytes(bytes)
}
