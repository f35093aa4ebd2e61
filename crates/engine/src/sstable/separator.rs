//! Short keys that stand between two others.

/// How many bytes `a` and `b` share at their beginning.
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

/// The first eight bytes of `key` as a number, zeros where it ends: of two keys with different heads, the
/// one with the smaller head is the smaller.
#[inline]
pub(super) fn head(key: &[u8]) -> u64 {
    if let Some(head) = key.first_chunk::<8>() {
        return u64::from_be_bytes(*head);
    }
    let mut padded = [0; 8];
    padded[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(padded)
}

/// The length of the beginning of `next` that is not less than `last`; `None` where only `last` itself is.
///
/// `last < next` must hold; then `last <= next[..len] < next`.
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
        fn a_separator_is_between(a in "[ab]{0,20}", b in "[ab]{0,20}") {
            let (last, next) = if a < b { (a, b) } else { (b, a) };
            prop_assume!(last != next);
            let (last, next) = (last.as_bytes(), next.as_bytes());
            if let Some(len) = separator_len(last, next) {
                prop_assert!(last <= &next[..len] && &next[..len] < next && len < last.len());
            }
        }

        #[test]
        fn heads_do_not_contradict_keys(a in prop::collection::vec(0u8..3, 0..12), b in prop::collection::vec(0u8..3, 0..12)) {
            if head(&a) < head(&b) {
                prop_assert!(a < b);
            }
            let shared = shared_prefix(&a, &b);
            prop_assert_eq!(&a[..shared], &b[..shared]);
            prop_assert!(shared == a.len() || shared == b.len() || a[shared] != b[shared]);
        }
    }
}
