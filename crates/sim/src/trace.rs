//! Trace of a run: a hash that is equal for equal runs, and lines of text for readers.

use crate::Nanos;

/// Folds every event of a run into one number, and prints lines on request.
#[derive(Debug, Default)]
pub struct Trace {
    hash: u64,
    events: u64,
    prints: bool,
}

impl Trace {
    /// Creates a trace. With `prints`, prints the lines of events and notes.
    pub fn new(prints: bool) -> Self {
        Self { prints, ..Self::default() }
    }

    /// Adds an event. `line` is called only when lines are printed.
    pub fn event(&mut self, now: Nanos, parts: &[u64], line: impl FnOnce() -> String) {
        self.fold(now.0);
        parts.iter().for_each(|part| self.fold(*part));
        self.events += 1;
        self.note(now, line);
    }

    /// Prints a line that explains, and is not an event.
    pub fn note(&self, now: Nanos, line: impl FnOnce() -> String) {
        if self.prints {
            println!("{now} {}", shortened(&line()));
        }
    }

    /// Hash of all events. Different runs have different hashes almost surely.
    pub const fn hash(&self) -> u64 {
        self.hash
    }

    /// Number of events.
    pub const fn events(&self) -> u64 {
        self.events
    }

    fn fold(&mut self, part: u64) {
        self.hash = (self.hash ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

/// Shortens byte strings in a line to a prefix, which identifies a value.
fn shortened(line: &str) -> String {
    const KEPT: usize = 36;
    let mut short = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(begin) = rest.find("b\"") {
        let (before, quoted) = rest.split_at(begin + 2);
        let mut is_escaped = false;
        let len = quoted.find(|c| {
            let ends = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            ends
        });
        let len = len.unwrap_or(quoted.len());
        short.push_str(before);
        short.push_str(&quoted[..len.min(KEPT)]);
        rest = &quoted[len..];
    }
    short.push_str(rest);
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_that_differ_in_time_order_or_content_differ_in_hash() {
        let hash = |events: &[(u64, u64)]| {
            let mut trace = Trace::default();
            events.iter().for_each(|&(at, part)| trace.event(Nanos(at), &[part], String::new));
            trace.hash()
        };
        assert_eq!(hash(&[(1, 2), (3, 4)]), hash(&[(1, 2), (3, 4)]));
        for other in [&[(3, 4), (1, 2)][..], &[(1, 2), (3, 5)], &[(1, 2), (4, 4)], &[(1, 2)]] {
            assert_ne!(hash(&[(1, 2), (3, 4)]), hash(other));
        }
    }

    #[test]
    fn long_byte_strings_are_shortened() {
        let long = format!("value: b\"{}\\\"x\", from: 3, b\"short\"", "a".repeat(50));
        assert_eq!(shortened(&long), format!("value: b\"{}\", from: 3, b\"short\"", "a".repeat(36)));
    }
}
