//! The beginning of a key as a number.

/// So many bytes of a key are in its prefix.
pub(crate) const PREFIX_BYTES: usize = size_of::<u128>();

/// The first bytes of a key as a number that orders like them; short keys are filled up with zeros.
#[inline]
pub(crate) fn prefix(key: &[u8]) -> u128 {
    let mut bytes = [0; PREFIX_BYTES];
    match key.first_chunk() {
        Some(first) => bytes = *first,
        None => bytes[..key.len()].copy_from_slice(key),
    }
    u128::from_be_bytes(bytes)
}
