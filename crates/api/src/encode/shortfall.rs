//! Texts of responses when too few replicas succeeded.
//!
//! **Promise.** The text states, without an *if* or an *or else*, the reason and the effect of the
//! command. The effect is one of:
//!
//! - Nothing was sent and nothing was stored.
//! - A write may have been stored.
//! - A read that was sent has no effect, since it stores nothing that was not stored before.

use super::{FailedOperation, MAYBE_STORED};
use cluster::{Acks, Shortfall};

const NOTHING_SENT: &str = "Nothing was sent and nothing was stored.";

/// Detail of a `504`.
pub(super) fn not_enough_replicas(
    acks: Acks,
    ack: u8,
    operation: FailedOperation,
    shortfall: Shortfall,
) -> String {
    let Acks { got, from } = acks;
    let retry = match operation {
        _ if ack <= 1 => "Try again.",
        FailedOperation::Write => "Try again, or write with a smaller ack.",
        FailedOperation::Read | FailedOperation::Range => "Try again, or read with a smaller ack.",
    };
    let (of_which, replicas) = match operation {
        FailedOperation::Range => ("Of some keys of the range, ", format!("of the {from} replicas")),
        FailedOperation::Read | FailedOperation::Write if from == 1 => {
            ("", "of the key's single replica".to_owned())
        }
        FailedOperation::Read | FailedOperation::Write => ("", format!("of the key's {from} replicas")),
    };
    let sentence = |text: String| format!("{}{}", of_which, decapitalized(&text, !of_which.is_empty()));
    match shortfall {
        Shortfall::Unreachable => {
            let can = match operation {
                FailedOperation::Write => format!("can be reached now: ack asks for {ack}."),
                FailedOperation::Read | FailedOperation::Range => format!(
                    "can be read from now: ack asks for {ack}, and the others cannot be reached or are rebuilding \
                     what they lost."
                ),
            };
            sentence(format!("Too few {replicas} {can} {NOTHING_SENT} {retry}"))
        }
        Shortfall::Refused => {
            let what = match operation {
                FailedOperation::Range => "a key of the range",
                FailedOperation::Read | FailedOperation::Write => "the key",
            };
            format!(
                "The newest state of {what} is not known at this node: a peer holds a version that lies too far in the \
                 future, and this node refused it. {NOTHING_SENT} Ask other replicas, write the key anew, or clear up \
                 after the wrong clock as docs/operations.md says."
            )
        }
        Shortfall::NoVersion => format!(
            "This node's disk is too slow to begin the write in time: before it has a version, the clock's bound has to be \
             on the disk. {NOTHING_SENT} Try again, or write through another node."
        ),
        Shortfall::Unanswered => {
            let count = if got == 0 { "None".to_owned() } else { got.to_string() };
            let count = if operation == FailedOperation::Range { "Too few".to_owned() } else { count };
            let outcome = if operation == FailedOperation::Write { " Nothing was stored." } else { "" };
            sentence(format!(
                "{count} {replicas} had answered when this was decided, but ack asks for {ack}: too many others cannot \
                 be reached, failed, or were too late.{outcome} {retry}"
            ))
        }
        Shortfall::NotSpread => sentence(format!(
            "Enough {replicas} answered, but not alike, and those that lack the newest version have not stored it: \
             they cannot be reached, their disks are slow or full, or their clocks are behind. Until {ack} hold it, \
             another read might miss it. Make room there, or read with a smaller ack."
        )),
        Shortfall::NotFetched => sentence(format!(
            "Enough {replicas} said which version they hold, but none that holds the newest sent its value in time. \
             {retry}"
        )),
        Shortfall::MaybeStored => {
            format!(
                "{got} {replicas} had acknowledged the write when this was decided, but ack asks for {ack}. {MAYBE_STORED}"
            )
        }
    }
}

/// Detail of a `504` to a read, while this node is new and has not heard from the nodes `missing`.
pub(super) fn not_enough_heard(missing: &str) -> String {
    format!(
        "The data directory of this node is new, and it has not heard these nodes, which may hold what was written before: \
         {missing}. Until then its answers to reads do not count; writes do. Start them. If they never held data of this \
         cluster, or are lost for good, start a majority of the nodes with --new-cluster, once: remove the flag afterwards."
    )
}

fn decapitalized(text: &str, is_wanted: bool) -> String {
    match text.split_at_checked(1) {
        Some((first, rest)) if is_wanted => first.to_lowercase() + rest,
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_that_were_not_heard_and_the_flag_are_named() {
        let text = not_enough_heard("http://b:1, http://c:1");
        assert!(text.contains("http://b:1, http://c:1. ") && text.contains("--new-cluster"), "{text}");
    }

    const OPERATIONS: [FailedOperation; 3] =
        [FailedOperation::Read, FailedOperation::Write, FailedOperation::Range];
    const SHORTFALLS: [Shortfall; 7] = [
        Shortfall::Unreachable,
        Shortfall::Refused,
        Shortfall::NoVersion,
        Shortfall::Unanswered,
        Shortfall::NotSpread,
        Shortfall::NotFetched,
        Shortfall::MaybeStored,
    ];

    /// Each text states "nothing was sent" or "may have been stored" exactly in the cases where
    /// that is true.
    #[test]
    fn each_text_states_the_effect_of_the_command() {
        for (operation, shortfall) in
            OPERATIONS.into_iter().flat_map(|it| SHORTFALLS.map(|short| (it, short)))
        {
            for got in 0..=3 {
                let text = not_enough_replicas(Acks { got, from: 3 }, 3, operation, shortfall);
                let is_unsent =
                    matches!(shortfall, Shortfall::Unreachable | Shortfall::Refused | Shortfall::NoVersion);
                assert_eq!(text.contains(NOTHING_SENT), is_unsent, "{text}");
                let is_open = shortfall == Shortfall::MaybeStored;
                assert_eq!(text.contains("may have been stored"), is_open, "{text}");
                let says_stored =
                    is_unsent || (shortfall, operation) == (Shortfall::Unanswered, FailedOperation::Write);
                assert_eq!(text.to_lowercase().contains("nothing was stored"), says_stored, "{text}");
                assert!(text.starts_with(char::is_uppercase) || text.starts_with(char::is_numeric), "{text}");
                assert!(!text.contains("  ") && text.ends_with('.'), "{text}");
            }
        }
    }

    #[test]
    fn the_text_for_a_read_counts_the_answers() {
        let said =
            |got, shortfall| not_enough_replicas(Acks { got, from: 3 }, 3, FailedOperation::Read, shortfall);
        let texts = [
            (
                0,
                Shortfall::Unreachable,
                "Too few of the key's 3 replicas can be read from now: ack asks for 3",
            ),
            (
                0,
                Shortfall::Unanswered,
                "None of the key's 3 replicas had answered when this was decided, but ack asks for 3",
            ),
            (
                2,
                Shortfall::Unanswered,
                "2 of the key's 3 replicas had answered when this was decided, but ack asks for 3",
            ),
            (3, Shortfall::NotSpread, "Enough of the key's 3 replicas answered, but not alike"),
            (3, Shortfall::NotFetched, "none that holds the newest sent its value in time"),
        ];
        for (got, shortfall, text) in texts {
            assert!(said(got, shortfall).contains(text), "{}", said(got, shortfall));
        }
    }
}
