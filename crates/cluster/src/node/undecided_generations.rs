//! Generations of a peer that were linked before they had decided their sync state.
//!
//! **Promise.** Of the processes of a peer that this node does not record, it remembers the newest
//! [`UndecidedGenerations::COUNT_MAX`]. The process whose generation is recorded is told of all the
//! others, one in each heartbeat. So it learns of a copy although other processes were linked
//! since, among them restarts of its own.
//!
//! **Caveats.** They are kept in memory only. If more processes were linked without a decision, the
//! oldest are forgotten.

use crate::{Generation, Incarnation};
use std::collections::VecDeque;

/// Undecided generations of a peer.
#[derive(Debug, Default)]
pub(super) struct UndecidedGenerations {
    /// Oldest first.
    generations: VecDeque<Generation>,
    /// Number of times that one was told.
    told: usize,
}

impl UndecidedGenerations {
    /// Most generations that are kept for a peer.
    pub(super) const COUNT_MAX: usize = 4;

    /// Adds a generation. It replaces the former one of its process.
    pub(super) fn insert(&mut self, generation: Generation) {
        match self.generations.iter_mut().find(|known| known.incarnation == generation.incarnation) {
            Some(known) => *known = generation,
            None => {
                if self.generations.len() == Self::COUNT_MAX {
                    self.generations.pop_front();
                }
                self.generations.push_back(generation);
            }
        }
    }

    /// Removes the generation of a process that has decided its sync state.
    pub(super) fn remove(&mut self, incarnation: Incarnation) {
        self.generations.retain(|generation| generation.incarnation != incarnation);
    }

    /// The next generation to tell the peer of. Each is returned in turn.
    pub(super) fn next_to_tell(&mut self) -> Option<Generation> {
        let at = self.told.checked_rem(self.generations.len())?;
        self.told = self.told.wrapping_add(1);
        self.generations.get(at).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use stdx::Hlc;

    fn generation(incarnation: u64) -> Generation {
        Generation { number: 7, incarnation: Incarnation(incarnation), clock: Hlc::ZERO }
    }

    /// The processes that are told in as many heartbeats as generations can be kept.
    fn told(undecided: &mut UndecidedGenerations) -> BTreeSet<u64> {
        let next = |_| undecided.next_to_tell().map(|generation| generation.incarnation.0);
        (0..UndecidedGenerations::COUNT_MAX).filter_map(next).collect()
    }

    #[test]
    fn each_of_the_newest_generations_is_told_in_turn() {
        let mut undecided = UndecidedGenerations::default();
        assert_eq!(told(&mut undecided), BTreeSet::new());
        for newest in 1..10 {
            // A process reports its generation in each heartbeat.
            (0..3).for_each(|_| undecided.insert(generation(newest)));
            let oldest = (newest + 1).saturating_sub(UndecidedGenerations::COUNT_MAX as u64).max(1);
            assert_eq!(told(&mut undecided), (oldest..=newest).collect());
        }
        undecided.remove(Incarnation(8));
        assert_eq!(told(&mut undecided), [6, 7, 9].into());
    }
}
