//! Where things stand inside an engine: the first byte of a key names its space.
//!
//! | first byte | space | the rest of the key |
//! |---|---|---|
//! | `0x00` | system | a name, see [`CLOCK_BOUND`] |
//! | `0x01` | entities | the user's key, as it is |
//!
//! The user's keys keep their order among themselves, and no user's key can name a cell of the system.

/// The first byte of the system's own keys.
pub const SYSTEM: u8 = 0x00;
/// The first byte of the keys of entities.
pub const ENTITIES: u8 = 0x01;
/// The bound of the version clock: its value is the bound's 64 bits, big-endian.
pub const CLOCK_BOUND: &[u8] = b"\0clock-bound";

/// Keys up to this length are put together on the stack.
const STACK_KEY_BYTES: usize = 256;

/// Calls `with` with the engine's key of an entity.
#[inline]
pub fn with_entity_key<T>(key: &[u8], with: impl FnOnce(&[u8]) -> T) -> T {
    let len = key.len() + 1;
    if len <= STACK_KEY_BYTES {
        let mut buffer = [ENTITIES; STACK_KEY_BYTES];
        buffer[1..len].copy_from_slice(key);
        with(&buffer[..len])
    } else {
        let mut buffer = Vec::with_capacity(len);
        buffer.push(ENTITIES);
        buffer.extend_from_slice(key);
        with(&buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entities_keep_their_order_and_never_meet_the_system() {
        let keys: Vec<Vec<u8>> = [0usize, 1, 2, 254, 255, 256, 257, 8_192]
            .into_iter()
            .flat_map(|len| [vec![0; len], vec![7; len], vec![255; len]])
            .collect();
        for a in &keys {
            let stored_a = with_entity_key(a, <[u8]>::to_vec);
            assert_eq!(stored_a[1..], a[..]);
            assert!(stored_a.as_slice() > CLOCK_BOUND);
            for b in &keys {
                assert_eq!(stored_a.cmp(&with_entity_key(b, <[u8]>::to_vec)), a.cmp(b));
            }
        }
        assert_eq!(CLOCK_BOUND[0], SYSTEM);
    }
}
