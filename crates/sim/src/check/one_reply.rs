//! Invariant: each command gets exactly one reply, of the kind that fits the command.

use super::InvariantViolation;
use crate::history::{ClientOperation, ClientOutcome, CommandKind, PageCall};
use cluster::{Reply, RequestId};

/// Checks a reply to command `to`. `operation` is that command if it had no reply before.
pub fn check(to: RequestId, operation: Option<&ClientOperation>) -> Result<(), InvariantViolation> {
    let Some(operation) = operation else {
        return Err(InvariantViolation::new(
            "one_reply",
            format!("a reply to {to:?}, which has a reply already or was never submitted"),
        ));
    };
    let fits = match (&operation.kind, operation.outcome.as_ref().map(|(_, outcome)| outcome)) {
        (CommandKind::Get, Some(outcome)) => !matches!(outcome, ClientOutcome::Written { .. }),
        (_, Some(outcome)) => !matches!(outcome, ClientOutcome::Found { .. } | ClientOutcome::Missing),
        (_, None) => false,
    };
    if fits {
        Ok(())
    } else {
        Err(InvariantViolation::new(
            "one_reply",
            format!("the reply does not fit the command: {operation:?}"),
        ))
    }
}

/// Checks a reply to page command `to`. `call` is that command if it had no reply before.
pub fn check_page(to: RequestId, call: Option<&PageCall>, reply: &Reply) -> Result<(), InvariantViolation> {
    let Some(call) = call else {
        let detail = format!("a page for {to:?}, which has a reply already or was never submitted");
        return Err(InvariantViolation::new("one_reply", detail));
    };
    match reply {
        Reply::Page { page, is_last } if page.is_empty() && !is_last => Err(InvariantViolation::new(
            "one_reply",
            format!("an empty page that is not the last one: {call:?}"),
        )),
        Reply::Page { .. } | Reply::Failed(_) => Ok(()),
        other => Err(InvariantViolation::new("one_reply", format!("{other:?} is not a page: {call:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{missing, operation, write};
    use super::*;
    use crate::Nanos;
    use crate::history::{History, ScanHistory};
    use cluster::{Acks, Page, ScanId};

    #[test]
    fn a_second_reply_is_caught() {
        let mut history = History::default();
        history.begin(ClientOperation { outcome: None, ..missing((1, 1), 0..1) });
        let id = RequestId(0);
        assert!(check(id, history.end(id, Nanos(1), ClientOutcome::Missing)).is_ok());
        assert!(check(id, history.end(id, Nanos(2), ClientOutcome::Missing)).is_err());
        assert!(check(RequestId(7), history.end(RequestId(7), Nanos(2), ClientOutcome::Missing)).is_err());
    }

    #[test]
    fn a_second_page_an_empty_page_and_another_reply_are_caught() {
        let empty = |is_last| Reply::Page { page: Page::default(), is_last };
        let mut scans = ScanHistory::default();
        let id = scans.call(ScanId(0), Nanos(0));
        assert!(check_page(id, scans.answer(id, Nanos(1)).as_ref(), &empty(true)).is_ok());
        assert!(check_page(id, scans.answer(id, Nanos(2)).as_ref(), &empty(true)).is_err());
        let id = scans.call(ScanId(0), Nanos(3));
        let call = scans.answer(id, Nanos(4));
        assert!(check_page(id, call.as_ref(), &empty(false)).is_err());
        let acks = Acks { got: 1, from: 1 };
        assert!(check_page(id, call.as_ref(), &Reply::Missing { acks }).is_err());
    }

    #[test]
    fn a_reply_of_another_kind_is_caught() {
        let id = RequestId(0);
        let written = write(1, (1, 1), 0..1).outcome.expect("an outcome").1;
        assert!(check(id, Some(&operation(CommandKind::Get, (1, 1), 0..1, written))).is_err());
        assert!(
            check(id, Some(&operation(CommandKind::Delete, (1, 1), 0..1, ClientOutcome::Missing))).is_err()
        );
    }
}
