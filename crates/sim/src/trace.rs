//! What happened, as a hash that two runs of a seed share, and as text for whoever replays one.

use crate::Nanos;

/// Folds every event of a run into one number; keeps lines only when asked to.
#[derive(Debug, Default)]
pub struct Trace {
    hash: u64,
    events: u64,
    prints: bool,
}

impl Trace {
    /// A trace that prints its lines as they come, or none.
    pub fn new(prints: bool) -> Self {
        Self { prints, ..Self::default() }
    }

    /// Takes note of an event. `line` is made only when lines are printed.
    pub fn event(&mut self, now: Nanos, parts: &[u64], line: impl FnOnce() -> String) {
        self.fold(now.0);
        parts.iter().for_each(|part| self.fold(*part));
        self.events += 1;
        self.note(now, line);
    }

    /// Prints a line that explains, and is no event.
    pub fn note(&self, now: Nanos, line: impl FnOnce() -> String) {
        if self.prints {
            println!("{now} {}", line());
        }
    }

    /// Equal for equal runs, and almost surely not for others.
    pub const fn hash(&self) -> u64 {
        self.hash
    }

    /// How many events there were.
    pub const fn events(&self) -> u64 {
        self.events
    }

    fn fold(&mut self, part: u64) {
        self.hash = (self.hash ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_in_time_order_or_content_differs_in_hash() {
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
}
