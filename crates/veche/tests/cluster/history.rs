//! Checks recorded histories of clients against the contract of last-write-wins registers with
//! quorums.
//!
//! **Promise.** All operations of a history overlap: the `ack` of any two are more than the larger
//! `from`, as with 2/3 throughout. [`check`] accepts it only if, for each key on its own:
//!
//! 1. *Nothing from nowhere*: each value that was read was written, by a write that had begun
//!    before the read ended; each version belongs to one write; a value acknowledged with
//!    a version is read with it.
//! 2. *Nothing acknowledged is missed*: a read that began after a write was acknowledged finds its
//!    version or a greater one.
//! 3. *Reads do not go back*: a read that began after another one had ended finds its version or a
//!    greater one.
//!
//! **Mechanism.** Versions order the writes of a key, and users are told them, so no order has to
//! be searched for: it is enough to hold each read against the greatest version among the
//! operations that had ended before it began (its *floor*). This is independent of how the store
//! works: it knows the users' side only.
//!
//! A read that finds no value tells no version. It found nothing at all, or a delete: then the
//! least delete that is not below the floor, and had begun before the read ended, is what it must
//! have found at least. A delete without an answer has no known version, and may be any.
//!
//! **Caveats.** A write without an answer may be read or not, at any later time: that is how the
//! contract has it. Of concurrent writes that were acknowledged all but the one with the greatest
//! version are lost: that is how last-write-wins has it. [`Losses`] counts those.

use std::collections::{BTreeMap, HashMap};
use stdx::Version;

/// An operation on one key, with the times at which its client sent it and had the answer.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) key: usize,
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) action: Action,
}

/// An operation and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Values are unique. `None`: not known whether it was stored.
    Put { value: u64, version: Option<Version> },
    /// As above.
    Delete { version: Option<Version> },
    /// A read that was answered.
    Read(Option<(Version, u64)>),
}

/// Acknowledged writes that no read will return, by design.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Losses {
    /// A concurrent write with a greater version was acknowledged before them.
    pub(crate) to_concurrent: u64,
    /// A write with a greater version had been acknowledged before they began: their coordinator's
    /// clock was behind.
    pub(crate) to_earlier: u64,
}

/// Checks that the history is one of last-write-wins registers. Returns the writes lost by design.
pub(crate) fn check(history: &[Operation]) -> Result<Losses, String> {
    let mut by_key: BTreeMap<usize, Vec<&Operation>> = BTreeMap::new();
    for operation in history {
        by_key.entry(operation.key).or_default().push(operation);
    }
    let mut losses = Losses::default();
    for (key, mut operations) in by_key {
        operations.sort_by_key(|operation| operation.end);
        let writes = Writes::of(&operations).map_err(|error| format!("key {key}: {error}"))?;
        check_reads(&operations, &writes).map_err(|error| format!("key {key}: {error}"))?;
        let lost = losses_of(&operations);
        losses.to_concurrent += lost.to_concurrent;
        losses.to_earlier += lost.to_earlier;
    }
    Ok(losses)
}

/// The writes of a key.
struct Writes<'a> {
    /// By their unique values.
    puts: HashMap<u64, &'a Operation>,
    /// Those that were acknowledged, by version.
    deletes: BTreeMap<Version, &'a Operation>,
    /// When the first delete without an answer began.
    unknown_delete_begin: Option<u64>,
}

impl<'a> Writes<'a> {
    fn of(operations: &[&'a Operation]) -> Result<Self, String> {
        let mut writes = Self { puts: HashMap::new(), deletes: BTreeMap::new(), unknown_delete_begin: None };
        let mut versions = HashMap::new();
        for operation in operations {
            let version = match operation.action {
                Action::Put { value, version } => {
                    writes.puts.insert(value, operation);
                    version
                }
                Action::Delete { version: None } => {
                    let begin = writes.unknown_delete_begin.unwrap_or(u64::MAX).min(operation.begin);
                    writes.unknown_delete_begin = Some(begin);
                    None
                }
                Action::Delete { version: Some(version) } => {
                    writes.deletes.insert(version, operation);
                    Some(version)
                }
                Action::Read(_) => None,
            };
            if let Some(other) = version.and_then(|version| versions.insert(version, operation)) {
                return Err(format!("one version for two writes: {other:?} and {operation:?}"));
            }
        }
        Ok(writes)
    }

    /// The least version at which a read that ended at `end` can have found a delete at or above
    /// `floor`.
    fn delete_found(&self, floor: Option<Version>, end: u64) -> Option<Option<Version>> {
        if self.unknown_delete_begin.is_some_and(|begin| begin < end) {
            return Some(floor);
        }
        let from_floor =
            (self.deletes.iter()).filter(|(version, _)| floor.is_none_or(|floor| **version >= floor));
        let mut begun = from_floor.filter(|(_, delete)| delete.begin < end);
        begun.next().map(|(version, _)| Some(*version))
    }
}

/// Holds each read against its floor. `operations` are in the order of their ends.
fn check_reads(operations: &[&Operation], writes: &Writes<'_>) -> Result<(), String> {
    let mut floors = Floors::default();
    let mut read_versions: HashMap<Version, u64> = HashMap::new();
    for operation in operations {
        let seen = match operation.action {
            Action::Put { version, .. } | Action::Delete { version } => version,
            Action::Read(found) => {
                let floor = floors.before(operation.begin);
                match found {
                    Some((version, value)) => {
                        check_origin(operation, version, value, writes)?;
                        if read_versions.insert(version, value).is_some_and(|other| other != value) {
                            return Err(format!("two values of one version: {operation:?}"));
                        }
                        if floor.is_some_and(|floor| version < floor) {
                            return Err(format!(
                                "older than {floor:?}, which was known before: {operation:?}"
                            ));
                        }
                        Some(version)
                    }
                    None if floor.is_none() => None,
                    None => writes.delete_found(floor, operation.end).ok_or_else(|| {
                        format!("nothing, though {floor:?} was known before and not deleted: {operation:?}")
                    })?,
                }
            }
        };
        floors.raise(operation.end, seen);
    }
    Ok(())
}

/// Every value that was read was written.
fn check_origin(read: &Operation, version: Version, value: u64, writes: &Writes<'_>) -> Result<(), String> {
    let Some(put) = writes.puts.get(&value).filter(|put| put.begin < read.end) else {
        return Err(format!("a value that nobody had written: {read:?}"));
    };
    match put.action {
        Action::Put { version: Some(acknowledged), .. } if acknowledged != version => {
            Err(format!("another version than {acknowledged:?} of its write: {read:?}"))
        }
        _ => Ok(()),
    }
}

/// The greatest version known at each time.
#[derive(Default)]
struct Floors {
    /// Times with the greatest version known then; both rise.
    steps: Vec<(u64, Version)>,
}

impl Floors {
    /// The greatest version among operations that ended before `time`.
    fn before(&self, time: u64) -> Option<Version> {
        let count = self.steps.partition_point(|(end, _)| *end < time);
        count.checked_sub(1).map(|last| self.steps[last].1)
    }

    /// Takes the operation that ended at `end`, no earlier than those before.
    fn raise(&mut self, end: u64, version: Option<Version>) {
        let last = self.steps.last().map(|(_, version)| *version);
        if let Some(version) = version.filter(|version| last.is_none_or(|last| *version > last)) {
            self.steps.push((end, version));
        }
    }
}

/// Counts acknowledged writes that were already lost when they were acknowledged.
fn losses_of(operations: &[&Operation]) -> Losses {
    let mut losses = Losses::default();
    let mut acknowledged = Floors::default();
    for operation in operations {
        let (Action::Put { version: Some(version), .. } | Action::Delete { version: Some(version) }) =
            operation.action
        else {
            continue;
        };
        let is_lost = |floor: Option<Version>| floor.is_some_and(|floor| floor > version);
        if is_lost(acknowledged.before(operation.begin)) {
            losses.to_earlier += 1;
        } else if is_lost(acknowledged.before(operation.end)) {
            losses.to_concurrent += 1;
        }
        acknowledged.raise(operation.end, Some(version));
    }
    losses
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::{Hlc, NodeTag};

    fn version(number: u64) -> Version {
        Version::new(Hlc::from_bits(number), NodeTag(7))
    }

    fn operation(begin: u64, end: u64, action: Action) -> Operation {
        Operation { key: 0, begin, end, action }
    }

    /// A put whose value is its version.
    fn put(begin: u64, end: u64, number: u64) -> Operation {
        operation(begin, end, Action::Put { value: number, version: Some(version(number)) })
    }

    fn unanswered_put(begin: u64, end: u64, value: u64) -> Operation {
        operation(begin, end, Action::Put { value, version: None })
    }

    fn delete(begin: u64, end: u64, number: u64) -> Operation {
        operation(begin, end, Action::Delete { version: Some(version(number)) })
    }

    fn read(begin: u64, end: u64, number: u64) -> Operation {
        operation(begin, end, Action::Read(Some((version(number), number))))
    }

    fn nothing(begin: u64, end: u64) -> Operation {
        operation(begin, end, Action::Read(None))
    }

    #[track_caller]
    fn assert_good(history: &[Operation]) -> Losses {
        check(history).unwrap_or_else(|error| panic!("{error}"))
    }

    #[track_caller]
    fn assert_bad(says: &str, history: &[Operation]) {
        let error = check(history).expect_err(says);
        assert!(error.contains(says), "{error}");
    }

    #[test]
    fn what_registers_do_is_accepted() {
        assert_good(&[nothing(1, 2), put(3, 4, 10), read(5, 6, 10), delete(7, 8, 20), nothing(9, 10)]);
        // While a write is under way its value may be read or not.
        assert_good(&[put(1, 2, 10), put(3, 20, 30), read(4, 5, 10), read(6, 7, 30), read(8, 9, 30)]);
        // Concurrent reads see it in any order.
        assert_good(&[put(1, 2, 10), put(3, 20, 30), read(4, 10, 30), read(5, 9, 10)]);
        // Keys are their own.
        let other = Operation { key: 1, ..nothing(5, 6) };
        assert_good(&[put(1, 2, 10), other, read(5, 6, 10)]);
    }

    #[test]
    fn a_write_without_an_answer_may_be_found_at_any_time() {
        let found = |begin, end| read(begin, end, 30);
        assert_good(&[put(1, 2, 10), unanswered_put(3, 4, 30), read(5, 6, 10), found(7, 8), found(9, 10)]);
        assert_bad("older than", &[put(1, 2, 10), unanswered_put(3, 4, 30), found(5, 6), read(7, 8, 10)]);
        assert_bad("nobody had written", &[read(1, 2, 30), unanswered_put(3, 4, 30)]);
    }

    #[test]
    fn a_value_from_nowhere_is_found() {
        assert_bad("nobody had written", &[put(1, 2, 10), read(3, 4, 11)]);
        assert_bad("nobody had written", &[read(1, 2, 10), put(3, 4, 10)]);
    }

    #[test]
    fn another_version_of_a_write_is_found() {
        let wrong = operation(3, 4, Action::Read(Some((version(11), 10))));
        assert_bad("another version", &[put(1, 2, 10), wrong]);
    }

    #[test]
    fn one_version_for_two_values_is_found() {
        assert_bad("one version for two writes", &[put(1, 2, 10), delete(3, 4, 10)]);
        let of = |value| operation(5, 6, Action::Read(Some((version(9), value))));
        assert_bad(
            "two values of one version",
            &[unanswered_put(1, 2, 1), unanswered_put(1, 2, 2), of(1), of(2)],
        );
    }

    #[test]
    fn a_missed_write_is_found() {
        assert_bad("older than", &[put(1, 2, 10), put(3, 4, 20), read(5, 6, 10)]);
        assert_bad("not deleted", &[put(1, 2, 10), nothing(3, 4)]);
        assert_bad("older than", &[put(1, 2, 10), delete(3, 4, 20), read(5, 6, 10)]);
        assert_bad("not deleted", &[delete(1, 2, 10), put(3, 4, 20), nothing(5, 6)]);
    }

    #[test]
    fn a_read_that_goes_back_is_found() {
        let under_way = put(3, 20, 30);
        assert_bad("older than", &[put(1, 2, 10), under_way.clone(), read(4, 5, 30), read(6, 7, 10)]);
        assert_bad("not deleted", &[under_way, read(4, 5, 30), nothing(6, 7)]);
    }

    #[test]
    fn a_delete_that_was_seen_is_not_undone() {
        let under_way = delete(3, 20, 30);
        assert_good(&[put(1, 2, 10), under_way.clone(), read(4, 5, 10), nothing(6, 7), nothing(8, 9)]);
        assert_bad("older than", &[put(1, 2, 10), under_way.clone(), nothing(4, 5), read(6, 7, 10)]);
        // A delete without an answer may have been found or not. Only earlier operations remain
        // certain.
        let unknown = operation(3, 4, Action::Delete { version: None });
        assert_good(&[put(1, 2, 10), unknown.clone(), nothing(5, 6), put(7, 8, 20), read(9, 10, 20)]);
        assert_bad("older than", &[put(1, 2, 10), put(3, 4, 20), unknown, nothing(5, 6), read(7, 8, 10)]);
        // A delete that had not begun was not found.
        assert_bad("not deleted", &[put(1, 2, 10), nothing(3, 4), delete(5, 6, 20)]);
    }

    #[test]
    fn what_is_lost_by_design_is_counted() {
        let none = Losses::default();
        assert_eq!(assert_good(&[put(1, 2, 10), put(3, 4, 20)]), none);
        assert_eq!(assert_good(&[put(1, 4, 10), put(2, 3, 20)]), Losses { to_concurrent: 1, ..none });
        assert_eq!(assert_good(&[put(1, 2, 20), put(3, 4, 10)]), Losses { to_earlier: 1, ..none });
    }
}
