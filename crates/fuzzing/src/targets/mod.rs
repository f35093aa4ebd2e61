//! The targets, by what they read.

pub mod engine;
pub mod files;
pub mod http;
pub mod wire;

/// Takes the first bytes of an input as a number: a place to split at.
fn split_number(bytes: &[u8]) -> (usize, &[u8]) {
    match bytes.split_first_chunk::<2>() {
        Some((number, rest)) => (usize::from(u16::from_le_bytes(*number)), rest),
        None => (0, bytes),
    }
}

/// Two parts that are `bytes` together.
fn halves(bytes: &[u8], at: usize) -> [&[u8]; 2] {
    let (head, tail) = bytes.split_at(at.min(bytes.len()));
    [head, tail]
}
