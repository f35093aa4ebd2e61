//! The targets, by the kind of input that they read.

pub mod engine;
pub mod files;
pub mod http;
pub mod layout;
pub mod wire;

/// Splits off the first bytes of an input as a number, which selects a position to split at.
fn split_number(bytes: &[u8]) -> (usize, &[u8]) {
    match bytes.split_first_chunk::<2>() {
        Some((number, rest)) => (usize::from(u16::from_le_bytes(*number)), rest),
        None => (0, bytes),
    }
}

/// Splits `bytes` in two.
fn halves(bytes: &[u8], at: usize) -> [&[u8]; 2] {
    let (head, tail) = bytes.split_at(at.min(bytes.len()));
    [head, tail]
}
