//! Separators: short keys between two others, for indexes.

/// Length of the common prefix of `a` and `b`.
#[inline]
pub(super) fn shared_prefix(a: &[u8], b: &[u8]) -> usize {
    let words = a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0);
    let mut shared = 0;
    for (a, b) in words {
        let difference = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if difference != 0 {
            return shared + (difference.trailing_zeros() / 8) as usize;
        }
        shared += 8;
    }
    shared + a[shared..].iter().zip(&b[shared..]).take_while(|(a, b)| a == b).count()
}

/// The first eight bytes of `key` as a big-endian number, padded with zeros. If two keys have
/// different heads, their order is that of the heads.
#[inline]
pub(super) fn head(key: &[u8]) -> u64 {
    if let Some(head) = key.first_chunk::<8>() {
        return u64::from_be_bytes(*head);
    }
    let mut padded = [0; 8];
    padded[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(padded)
}

/// Length of the shortest prefix of `next` that is not less than `last`; `None` if no prefix
/// shorter than both keys exists.
///
/// Requires `last < next`; then `last <= next[..len] < next`.
pub(super) fn separator_len(last: &[u8], next: &[u8]) -> Option<usize> {
    debug_assert!(last < next);
    let len = shared_prefix(last, next) + 1;
    (len < next.len() && len < last.len()).then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_separator_is_between_its_keys(a in "[ab]{0,20}", b in "[ab]{0,20}") {
            let (last, next) = if a < b { (a, b) } else { (b, a) };
            prop_assume!(last != next);
            let (last, next) = (last.as_bytes(), next.as_bytes());
            if let Some(len) = separator_len(last, next) {
                prop_assert!(last <= &next[..len] && &next[..len] < next && len < last.len());
            }
        }

        #[test]
        fn the_order_of_heads_agrees_with_the_order_of_keys(a in prop::collection::vec(0u8..3, 0..12), b in prop::collection::vec(0u8..3, 0..12)) {
            if head(&a) < head(&b) {
                prop_assert!(a < b);
            }
            let shared = shared_prefix(&a, &b);
            prop_assert_eq!(&a[..shared], &b[..shared]);
            prop_assert!(shared == a.len() || shared == b.len() || a[shared] != b[shared]);
        }
    }
}
