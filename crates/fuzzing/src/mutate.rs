//! Mutations of inputs, for runs without a fuzzer.

use stdx::Rng;

/// Upper bound of the length of a random input, in bytes; exclusive.
const RANDOM_BYTES_MAX: u64 = 300;
/// Boundary values of bytes.
const EDGES: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];

/// Returns fewer than 300 random bytes.
pub fn random(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = vec![0; rng.below(RANDOM_BYTES_MAX) as usize];
    rng.fill(&mut bytes);
    bytes
}

/// Returns `seed` with random changes.
pub fn mutated(rng: &mut Rng, seed: &[u8]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..1 + rng.below(6) {
        change(rng, &mut bytes);
    }
    bytes
}

fn change(rng: &mut Rng, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return bytes.push(rng.next_u64() as u8);
    }
    // Half of the changes are near the end, where the formats of files have their lengths.
    let from = if rng.chance(0.5) { bytes.len().saturating_sub(200) } else { 0 };
    let at = from + rng.below((bytes.len() - from) as u64) as usize;
    let len = (1 + rng.below(16) as usize).min(bytes.len() - at);
    match rng.below(8) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => bytes[at] = rng.next_u64() as u8,
        2 => bytes[at] = EDGES[rng.below(EDGES.len() as u64) as usize],
        3 => bytes[at] = bytes[at].wrapping_add(1 + rng.below(4) as u8),
        4 => bytes[at..at + len].fill(EDGES[rng.below(EDGES.len() as u64) as usize]),
        5 => drop(bytes.drain(at..at + len)),
        6 => {
            let copy = bytes[at..at + len].to_vec();
            bytes.splice(at..at, copy);
        }
        _ => bytes.truncate(at),
    }
}
