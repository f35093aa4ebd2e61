//! Expected contents of a key that one client writes.
//!
//! The client writes sequentially, and receives the version of each acknowledged write. The
//! greatest version wins. The key must therefore hold the acknowledged write with the greatest
//! version, or one with a still greater version whose response was lost: such a write may have been
//! executed.

use std::collections::BTreeSet;
use stdx::Version;

/// History of a key. Puts are identified by unique numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct ClientRegister {
    /// Greatest acknowledged version, and its put; `None` for a delete.
    newest: Option<(Version, Option<u64>)>,
    /// Greatest version that a majority acknowledged.
    floor: Option<Version>,
    /// Whether `floor` is the version of a put.
    is_floor_put: bool,
    /// Greatest version of a delete that any number of replicas acknowledged.
    deleted: Option<Version>,
    /// Puts with an unknown result.
    unknown: BTreeSet<u64>,
    has_unknown_delete: bool,
    /// Number of the last put.
    last: u64,
}

/// Violation found by a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadViolation {
    /// The value is older than required, or missing.
    Older,
    /// No put wrote the value, or it has another version.
    Wrong,
}

/// Version and put of the value that a read returned.
pub(super) type ReadValue = Option<(Version, u64)>;

impl ClientRegister {
    /// Number for a new put.
    pub(super) const fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Records an acknowledged write: the put with this number, or a delete.
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

    /// Records a write whose result is unknown.
    pub(super) fn unknown(&mut self, put: Option<u64>) {
        match put {
            Some(number) => {
                self.unknown.insert(number);
            }
            None => self.has_unknown_delete = true,
        }
    }

    /// Checks a read of a majority, while the client goes on writing.
    pub(super) fn check(&self, found: ReadValue) -> Result<(), ReadViolation> {
        match found {
            Some((_, number)) if number == 0 || number > self.last => Err(ReadViolation::Wrong),
            Some((version, number)) => match (self.floor, self.newest) {
                (Some(floor), _) if version < floor => Err(ReadViolation::Older),
                (_, Some((newest, put))) if version == newest && put != Some(number) => {
                    Err(ReadViolation::Wrong)
                }
                _ => Ok(()),
            },
            None if self.is_floor_put && !self.may_find_delete() => Err(ReadViolation::Older),
            None => Ok(()),
        }
    }

    /// Whether a read of a majority may return a delete above the required version, because fewer
    /// replicas acknowledged it or its result is unknown.
    fn may_find_delete(&self) -> bool {
        self.has_unknown_delete || self.deleted > self.floor
    }

    /// Checks a read of all replicas at the end.
    pub(super) fn check_final(&self, found: ReadValue) -> Result<(), ReadViolation> {
        let Some((newest, put)) = self.newest else {
            return match found {
                Some((_, number)) if !self.unknown.contains(&number) => Err(ReadViolation::Wrong),
                _ => Ok(()),
            };
        };
        match found {
            Some((version, number)) if version == newest => match put {
                Some(put) if put == number => Ok(()),
                _ => Err(ReadViolation::Wrong),
            },
            Some((version, _)) if version < newest => Err(ReadViolation::Older),
            Some((_, number)) if self.unknown.contains(&number) => Ok(()),
            Some(_) => Err(ReadViolation::Wrong),
            None if put.is_some() && !self.has_unknown_delete => Err(ReadViolation::Older),
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

    /// Three puts: acknowledged by a majority at 10, by one node at 20, and with an unknown result.
    fn written() -> ClientRegister {
        let mut register = ClientRegister::default();
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
        assert_eq!(register.check_final(Some((at(10), 1))), Err(ReadViolation::Older));
        assert_eq!(register.check_final(None), Err(ReadViolation::Older));
        assert_eq!(register.check_final(Some((at(20), 1))), Err(ReadViolation::Wrong));
        assert_eq!(register.check_final(Some((at(30), 1))), Err(ReadViolation::Wrong));
    }

    #[test]
    fn a_majority_need_not_find_a_write_that_only_one_node_acknowledged() {
        let register = written();
        for found in [(at(10), 1), (at(20), 2), (at(30), 3)] {
            assert_eq!(register.check(Some(found)), Ok(()));
        }
        assert_eq!(register.check(Some((at(5), 1))), Err(ReadViolation::Older));
        assert_eq!(register.check(None), Err(ReadViolation::Older));
        assert_eq!(register.check(Some((at(30), 4))), Err(ReadViolation::Wrong));
    }

    #[test]
    fn a_majority_may_find_a_delete_of_one_node_and_miss_a_later_write_of_another() {
        let mut register = written();
        register.acknowledged(None, at(15), false);
        assert_eq!(register.check(None), Ok(()));
        assert_eq!(register.check_final(None), Err(ReadViolation::Older));
        let mut register = written();
        register.acknowledged(None, at(5), false);
        assert_eq!(register.check(None), Err(ReadViolation::Older));
    }

    #[test]
    fn acknowledged_and_unknown_deletes_hide_older_values() {
        let mut register = written();
        register.unknown(None);
        assert_eq!((register.check(None), register.check_final(None)), (Ok(()), Ok(())));
        let mut register = written();
        register.acknowledged(None, at(40), true);
        assert_eq!((register.check(None), register.check_final(None)), (Ok(()), Ok(())));
        assert_eq!(register.check_final(Some((at(20), 2))), Err(ReadViolation::Older));
        assert_eq!(register.check(Some((at(20), 2))), Err(ReadViolation::Older));
        assert_eq!(ClientRegister::default().check_final(None), Ok(()));
        assert_eq!(ClientRegister::default().check_final(Some((at(1), 1))), Err(ReadViolation::Wrong));
    }
}
