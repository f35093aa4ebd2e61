//! What a key that one client writes must hold.
//!
//! The client writes one thing after the other, and is told the version of what was acknowledged. The greatest version wins,
//! so a key must hold the acknowledged write with the greatest version, or one that has a greater version still and got no good
//! answer: such a write may have happened.

use std::collections::BTreeSet;
use stdx::Version;

/// What was written to a key. Puts are told apart by numbers that are used once.
#[derive(Clone, Debug, Default)]
pub(super) struct Register {
    /// The greatest version that was acknowledged, and what it stands for; `None`: a delete.
    newest: Option<(Version, Option<u64>)>,
    /// The same, of writes that a majority acknowledged.
    floor: Option<Version>,
    /// Whether that was a put.
    is_floor_put: bool,
    /// The greatest version of a delete that was acknowledged, by however few.
    deleted: Option<Version>,
    /// Puts without a good answer.
    unknown: BTreeSet<u64>,
    has_unknown_delete: bool,
    /// The number of the last put.
    last: u64,
}

/// What is wrong with a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Violation {
    /// Older than what it must be at the least, or nothing.
    Older,
    /// No put wrote it, or not with this version.
    Wrong,
}

/// What a read found.
pub(super) type ReadValue = Option<(Version, u64)>;

impl Register {
    /// The number of a put that begins now.
    pub(super) const fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A write was acknowledged: of a put with this number, or a delete.
    pub(super) fn acknowledged(&mut self, put: Option<u64>, version: Version, by_majority: bool) {
        if self.newest.is_none_or(|(newest, _)| newest < version) {
            self.newest = Some((version, put));
        }
        if put.is_none() {
            self.deleted = self.deleted.max(Some(version));
        }
        if by_majority && self.floor.is_none_or(|floor| floor < version) {
            (self.floor, self.is_floor_put) = (Some(version), put.is_some());
        }
    }

    /// A write got no answer, or none that says whether it was done.
    pub(super) fn unknown(&mut self, put: Option<u64>) {
        match put {
            Some(number) => {
                self.unknown.insert(number);
            }
            None => self.has_unknown_delete = true,
        }
    }

    /// Judges a read of a majority while the client goes on writing.
    pub(super) fn check(&self, found: ReadValue) -> Result<(), Violation> {
        match found {
            Some((_, number)) if number == 0 || number > self.last => Err(Violation::Wrong),
            Some((version, number)) => match (self.floor, self.newest) {
                (Some(floor), _) if version < floor => Err(Violation::Older),
                (_, Some((newest, put))) if version == newest && put != Some(number) => Err(Violation::Wrong),
                _ => Ok(()),
            },
            None if self.is_floor_put && !self.may_find_delete() => Err(Violation::Older),
            None => Ok(()),
        }
    }

    /// Whether a read of a majority may find a delete above what it must find at the least, which fewer have acknowledged.
    fn may_find_delete(&self) -> bool {
        self.has_unknown_delete || self.deleted > self.floor
    }

    /// Judges what all replicas together hold in the end.
    pub(super) fn check_final(&self, found: ReadValue) -> Result<(), Violation> {
        let Some((newest, put)) = self.newest else {
            return match found {
                Some((_, number)) if !self.unknown.contains(&number) => Err(Violation::Wrong),
                _ => Ok(()),
            };
        };
        match found {
            Some((version, number)) if version == newest => match put {
                Some(put) if put == number => Ok(()),
                _ => Err(Violation::Wrong),
            },
            Some((version, _)) if version < newest => Err(Violation::Older),
            Some((_, number)) if self.unknown.contains(&number) => Ok(()),
            Some(_) => Err(Violation::Wrong),
            None if put.is_some() && !self.has_unknown_delete => Err(Violation::Older),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::{Hlc, NodeTag};

    fn at(hlc: u64) -> Version {
        Version::new(Hlc::from_bits(hlc), NodeTag(1))
    }

    /// Three puts: acknowledged by a majority at 10, by one node at 20, and not at all.
    fn written() -> Register {
        let mut register = Register::default();
        (0..3).for_each(|_| {
            register.next();
        });
        register.acknowledged(Some(1), at(10), true);
        register.acknowledged(Some(2), at(20), false);
        register.unknown(Some(3));
        register
    }

    #[test]
    fn in_the_end_the_greatest_acknowledged_version_is_there_or_an_unknown_one_above_it() {
        let register = written();
        assert_eq!(register.check_final(Some((at(20), 2))), Ok(()));
        assert_eq!(register.check_final(Some((at(30), 3))), Ok(()));
        assert_eq!(register.check_final(Some((at(10), 1))), Err(Violation::Older));
        assert_eq!(register.check_final(None), Err(Violation::Older));
        assert_eq!(register.check_final(Some((at(20), 1))), Err(Violation::Wrong));
        assert_eq!(register.check_final(Some((at(30), 1))), Err(Violation::Wrong));
    }

    #[test]
    fn a_majority_need_not_find_what_only_one_node_acknowledged() {
        let register = written();
        for found in [(at(10), 1), (at(20), 2), (at(30), 3)] {
            assert_eq!(register.check(Some(found)), Ok(()));
        }
        assert_eq!(register.check(Some((at(5), 1))), Err(Violation::Older));
        assert_eq!(register.check(None), Err(Violation::Older));
        assert_eq!(register.check(Some((at(30), 4))), Err(Violation::Wrong));
    }

    #[test]
    fn a_majority_may_find_a_delete_of_one_node_and_miss_what_another_acknowledged_after_it() {
        let mut register = written();
        register.acknowledged(None, at(15), false);
        assert_eq!(register.check(None), Ok(()));
        assert_eq!(register.check_final(None), Err(Violation::Older));
        let mut register = written();
        register.acknowledged(None, at(5), false);
        assert_eq!(register.check(None), Err(Violation::Older));
    }

    #[test]
    fn deletes_hide_what_is_older_also_when_nobody_knows_of_them() {
        let mut register = written();
        register.unknown(None);
        assert_eq!((register.check(None), register.check_final(None)), (Ok(()), Ok(())));
        let mut register = written();
        register.acknowledged(None, at(40), true);
        assert_eq!((register.check(None), register.check_final(None)), (Ok(()), Ok(())));
        assert_eq!(register.check_final(Some((at(20), 2))), Err(Violation::Older));
        assert_eq!(register.check(Some((at(20), 2))), Err(Violation::Older));
        assert_eq!(Register::default().check_final(None), Ok(()));
        assert_eq!(Register::default().check_final(Some((at(1), 1))), Err(Violation::Wrong));
    }
}
