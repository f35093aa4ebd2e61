//! The key space of an engine: the first byte of a key selects its space.
//!
//! | first byte | space | the rest of the key |
//! |---|---|---|
//! | `0x00` | system | a name, see [`CLOCK_BOUND`], [`CLOCK_SEAL`], [`NODE_RECORD`] and [`HINTS`] |
//! | `0x01` | entities | the user's key, unchanged |
//!
//! Users' keys keep their relative order, and no user's key can denote a cell of the system space.
//! The system space is local to this node: it is not replicated.

use cluster::NodeIndex;

/// First byte of keys in the system space.
pub const SYSTEM: u8 = 0x00;
/// First byte of keys of entities.
pub const ENTITIES: u8 = 0x01;
/// Exclusive upper bound of the system space.
pub const SYSTEM_END: &[u8] = &[ENTITIES];
/// Key of the version clock's bound. The value is the bound's 64 bits, big-endian.
pub const CLOCK_BOUND: &[u8] = b"\0clock-bound";
/// Key of the clock seal, see `clock_seal`.
pub const CLOCK_SEAL: &[u8] = b"\0clock-seal";
/// Key of the node record, see `node_record`.
pub const NODE_RECORD: &[u8] = b"\0node-record";
/// Prefix of the keys of hints. It is followed by the index of the node that lacks a cell (one
/// byte) and the user's key. The value is empty. The version is the one that the node lacks, so the
/// newest of several hints for one key and node is the one that is found.
pub const HINTS: &[u8] = b"\0h";

/// Maximum length of a key that is assembled on the stack, in bytes.
const STACK_KEY_BYTES: usize = 256;

/// Calls `with` with the engine key of an entity.
#[inline]
pub fn with_entity_key<T>(key: &[u8], with: impl FnOnce(&[u8]) -> T) -> T {
    with_prefixed([ENTITIES], key, with)
}

/// Calls `with` with the engine key of the hint that `target` lacks a cell of an entity.
#[inline]
pub fn with_hint_key<T>(target: NodeIndex, key: &[u8], with: impl FnOnce(&[u8]) -> T) -> T {
    with_prefixed(hints_of(target), key, with)
}

/// Prefix of the keys of all hints for `target`.
pub const fn hints_of(target: NodeIndex) -> [u8; 3] {
    [HINTS[0], HINTS[1], target.0]
}

#[inline]
fn with_prefixed<const N: usize, T>(prefix: [u8; N], key: &[u8], with: impl FnOnce(&[u8]) -> T) -> T {
    let len = N + key.len();
    if len <= STACK_KEY_BYTES {
        let mut buffer = [0; STACK_KEY_BYTES];
        buffer[..N].copy_from_slice(&prefix);
        buffer[N..len].copy_from_slice(key);
        with(&buffer[..len])
    } else {
        with(&[&prefix, key].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Vec<Vec<u8>> {
        [0usize, 1, 2, 252, 253, 254, 255, 256, 257, 8_192]
            .into_iter()
            .flat_map(|len| [vec![0; len], vec![7; len], vec![255; len]])
            .collect()
    }

    #[test]
    fn entity_keys_keep_their_order_and_stay_out_of_the_system_space() {
        for a in &keys() {
            let stored_a = with_entity_key(a, <[u8]>::to_vec);
            assert_eq!(stored_a[1..], a[..]);
            assert!(stored_a.as_slice() >= SYSTEM_END);
            for b in &keys() {
                assert_eq!(stored_a.cmp(&with_entity_key(b, <[u8]>::to_vec)), a.cmp(b));
            }
        }
    }

    #[test]
    fn hint_keys_are_in_the_system_space_ordered_by_node_and_key() {
        assert!([CLOCK_BOUND, NODE_RECORD, HINTS].iter().all(|key| key[0] == SYSTEM && *key < SYSTEM_END));
        assert!(!CLOCK_BOUND.starts_with(HINTS) && !NODE_RECORD.starts_with(HINTS));
        let of = |target, key: &[u8]| with_hint_key(NodeIndex(target), key, <[u8]>::to_vec);
        for a in &keys() {
            assert_eq!(of(63, a), [&hints_of(NodeIndex(63)), a.as_slice()].concat());
            assert!(of(63, a).as_slice() < SYSTEM_END && of(63, a).starts_with(HINTS));
            for b in &keys() {
                assert_eq!(of(3, a).cmp(&of(3, b)), a.cmp(b));
                assert!(of(3, a) < of(4, b));
            }
        }
    }
}
