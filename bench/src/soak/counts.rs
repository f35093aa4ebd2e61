//! Counts of the soak test's clients.

use crate::table::{ResultTable, Threshold};
use lab::stats::rounds;

/// Counts of one client, or of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SoakCounts {
    pub(super) acknowledged: u64,
    pub(super) reads: u64,
    pub(super) ranges: u64,
    pub(super) refused: u64,
    pub(super) unanswered: u64,
    pub(super) read_back: u64,
    pub(super) expiring: u64,
    pub(super) lost: u64,
    pub(super) unreadable: u64,
    pub(super) older: u64,
    pub(super) wrong: u64,
    pub(super) outlived: u64,
    pub(super) unexpected: u64,
    /// First response with an unexpected status.
    pub(super) first_unexpected: Option<String>,
}

impl SoakCounts {
    /// Counts a response with an unexpected status.
    pub(super) fn note_unexpected(&mut self, said: impl FnOnce() -> String) {
        self.unexpected += 1;
        self.first_unexpected.get_or_insert_with(said);
    }

    pub(super) fn and(mut self, other: Self) -> Self {
        for (mine, theirs) in [
            (&mut self.acknowledged, other.acknowledged),
            (&mut self.reads, other.reads),
            (&mut self.ranges, other.ranges),
            (&mut self.refused, other.refused),
            (&mut self.unanswered, other.unanswered),
            (&mut self.read_back, other.read_back),
            (&mut self.expiring, other.expiring),
            (&mut self.lost, other.lost),
            (&mut self.unreadable, other.unreadable),
            (&mut self.older, other.older),
            (&mut self.wrong, other.wrong),
            (&mut self.outlived, other.outlived),
            (&mut self.unexpected, other.unexpected),
        ] {
            *mine += theirs;
        }
        self.first_unexpected = self.first_unexpected.or(other.first_unexpected);
        self
    }

    /// Adds a row for each promise.
    pub(super) fn rows(&self, table: &mut ResultTable) {
        let done = format!(
            "{} writes acknowledged, {} reads, {} ranges; {} refused, {} without a useful response",
            self.acknowledged, self.reads, self.ranges, self.refused, self.unanswered
        );
        let read_back = format!("{} keys read back from all replicas", self.read_back);
        let first_unexpected = self.first_unexpected.clone().unwrap_or_default();
        for (measure, count, note) in [
            ("acknowledged writes lost", self.lost, read_back),
            ("keys that could not be read back", self.unreadable, String::new()),
            ("stale reads: older than a write of a majority", self.older, done),
            ("values that were never written, or changed", self.wrong, String::new()),
            ("keys still present after their ttl", self.outlived, format!("{} keys read", self.expiring)),
            ("responses with an unexpected status", self.unexpected, first_unexpected),
        ] {
            table.row(measure, Threshold::AtMost(0.0), rounds(&[count as f64]), note);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_unexpected_response_is_kept() {
        let mut one = SoakCounts { reads: 3, ..SoakCounts::default() };
        one.note_unexpected(|| "first".to_owned());
        one.note_unexpected(|| "second".to_owned());
        let mut other = SoakCounts { reads: 4, ..SoakCounts::default() };
        other.note_unexpected(|| "third".to_owned());
        let both = SoakCounts::default().and(one).and(other);
        assert_eq!((both.reads, both.unexpected), (7, 3));
        assert_eq!(both.first_unexpected.as_deref(), Some("first"));
    }
}
