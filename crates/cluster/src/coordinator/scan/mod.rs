//! Scans: ranges of entries, page by page, of this node or of the cluster.
//!
//! **Promise.** Exactly one [`Reply`] for each command of a scan, whatever is lost, repeated or late, and whenever the scan
//! is closed. The pages' keys ascend and none comes twice; a page without entries is the last one. What was there
//! before the scan began and did not change meanwhile is in it, what was deleted before is not. A scan that cannot keep
//! this fails; it never ends early as if it were complete.
//!
//! **Mechanism.** A scan stands in a table of its own, apart from operations, since it has no deadline as a whole: only
//! what it waits for has one. The stores that it reads keep a snapshot for it, under one name everywhere; `errands`
//! knows what is under way at which store, and lets go of the snapshots in the end. Pages begin small, so that the
//! first one leaves at once, and grow. A reader that stops reading stops the scan: no more is read ahead than one page.
//! Entries of this node alone are in `local`.
//!
//! **Caveats.** A scan that is closed while a store reads for it is remembered until that answer has come: else the
//! snapshot could be taken anew by what comes last.

mod errands;
mod local;
mod sizes;

use super::Coordinator;
use super::context::Context;
use crate::{Event, Failure, PeerAnswer, Reply, RequestId, Scan, ScanId, ScanScope, SnapshotId};
use errands::Errands;
use local::LocalScan;
use std::collections::{BTreeMap, BTreeSet};
use stdx::{Instant, Now};

/// Scans of one coordinator; one more is refused.
const SCANS_MAX: usize = 1_024;

/// The scans of a coordinator. See the module.
#[derive(Debug, Default)]
pub(super) struct Scans {
    slots: Vec<Option<OpenScan>>,
    free: Vec<u16>,
    names: BTreeMap<ScanId, u16>,
    /// When which scan is to be looked at.
    due: BTreeSet<(Instant, u16)>,
    /// How many there have been.
    begun: u64,
    /// How many wait for a reply.
    waiting: usize,
}

/// A scan from its first command to the answer to its last request.
#[derive(Debug)]
struct OpenScan {
    name: ScanId,
    /// The command that waits for its reply.
    reader: Option<RequestId>,
    errands: Errands,
    work: Work,
    due: Option<Instant>,
}

/// What a scan is doing.
#[derive(Debug)]
enum Work {
    Local(Box<LocalScan>),
    /// It is over; some stores have not answered yet. They are waited for until then.
    Leaving {
        until: Instant,
    },
}

impl Coordinator {
    /// Ends a scan that nobody wants more of; nothing happens to one that is over. A command that waits for its reply
    /// gets it now.
    pub fn close_scan(&mut self, now: Now, id: ScanId) {
        let Some(&slot) = self.scans.names.get(&id) else {
            return;
        };
        self.reply_to_reader(slot, Reply::Failed(Failure::Closed));
        self.leave(now, slot);
    }

    pub(super) fn submit_scan(&mut self, now: Now, to: RequestId, name: ScanId, scan: Scan) {
        assert!(!self.scans.names.contains_key(&name), "{name:?} is open");
        if self.scans.len() == SCANS_MAX {
            self.context.tell(Event::Refused);
            let retry_after = self.context.limits.request_timeout;
            return self.context.reply(to, Reply::Failed(Failure::Overloaded { retry_after }));
        }
        if scan.range.is_empty() || scan.limit == Some(0) {
            return self.context.reply(to, Reply::Page { page: Default::default(), is_last: true });
        }
        let work = match scan.scope {
            ScanScope::Node => Work::Local(Box::new(LocalScan::new(scan.range, scan.limit))),
            ScanScope::Cluster(_) => {
                let retry_after = self.context.limits.request_timeout;
                return self.context.reply(to, Reply::Failed(Failure::Overloaded { retry_after }));
            }
        };
        let slot = self.scans.insert(&self.context, name, work);
        self.take_reader(now, slot, to);
    }

    pub(super) fn submit_next_page(&mut self, now: Now, to: RequestId, name: ScanId) {
        let slot = *self.scans.names.get(&name).expect("a page is asked for of a scan that is open");
        self.take_reader(now, slot, to);
    }

    /// Takes the answer to a request of a scan; one that is not waited for any more is ignored.
    pub(super) fn take_scan_answer(&mut self, now: Now, slot: u16, serial: u64, answer: PeerAnswer) {
        let Some(scan) = self.scans.find(slot) else {
            return;
        };
        let Some(asked) = scan.errands.take(&mut self.context, serial) else {
            return;
        };
        match &mut scan.work {
            Work::Local(local) => {
                local.take_answer(now, &mut self.context, &mut scan.errands, serial, answer);
            }
            Work::Leaving { .. } => scan.errands.answered_late(asked, &answer),
        }
        self.proceed_scan(now, slot);
    }

    /// Looks at the scans for which it is time.
    pub(super) fn tend_scans(&mut self, now: Now) {
        while let Some(slot) = self.scans.take_due(now.mono) {
            let scan = self.scans.find(slot).expect("what is due is there");
            match &mut scan.work {
                Work::Local(local) => local.handle_due(now, &mut self.context, &mut scan.errands),
                Work::Leaving { .. } => scan.errands.give_up(&mut self.context),
            }
            self.proceed_scan(now, slot);
        }
    }

    fn take_reader(&mut self, now: Now, slot: u16, to: RequestId) {
        let scan = self.scans.find(slot).expect("it is open");
        assert!(scan.reader.is_none(), "a scan has one reader");
        scan.reader = Some(to);
        self.scans.waiting += 1;
        self.proceed_scan(now, slot);
    }

    /// Replies if it is time to, and does what is to be done after.
    fn proceed_scan(&mut self, now: Now, slot: u16) {
        loop {
            let scan = self.scans.find(slot).expect("it is there");
            let waits = scan.reader.is_some();
            let reply = match &mut scan.work {
                Work::Local(local) => local.advance(now, &mut self.context, &mut scan.errands, waits),
                Work::Leaving { .. } => None,
            };
            let Some(reply) = reply else {
                break;
            };
            let is_over = matches!(reply, Reply::Failed(_) | Reply::Page { is_last: true, .. });
            self.reply_to_reader(slot, reply);
            if is_over {
                return self.leave(now, slot);
            }
        }
        self.settle_scan(slot);
    }

    fn reply_to_reader(&mut self, slot: u16, reply: Reply) {
        let scan = self.scans.find(slot).expect("it is there");
        if let Some(to) = scan.reader.take() {
            self.scans.waiting -= 1;
            self.context.reply(to, reply);
        }
    }

    /// A scan is over but for what is under way.
    fn leave(&mut self, now: Now, slot: u16) {
        let scan = self.scans.find(slot).expect("it is there");
        scan.work = Work::Leaving { until: now.mono + self.context.limits.request_timeout };
        let name = scan.name;
        self.scans.names.remove(&name);
        self.settle_scan(slot);
    }

    /// Forgets a scan of which nothing is left, and sees to when it is looked at again.
    fn settle_scan(&mut self, slot: u16) {
        let scan = self.scans.find(slot).expect("it is there");
        let is_done = matches!(scan.work, Work::Leaving { .. }) && scan.errands.end(&mut self.context);
        let due = match &scan.work {
            _ if is_done => None,
            Work::Local(local) => local.due(),
            Work::Leaving { until } => Some(*until),
        };
        self.scans.set_due(slot, due);
        if is_done {
            self.scans.remove(slot);
        }
    }
}

impl Scans {
    /// When the next scan is to be looked at.
    #[inline]
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|&(at, _)| at)
    }

    /// How many commands wait for their reply.
    pub(super) const fn waiting(&self) -> usize {
        self.waiting
    }

    fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn insert(&mut self, context: &Context, name: ScanId, work: Work) -> u16 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u16
        });
        let incarnation = context.member.incarnation;
        let snapshot = SnapshotId { incarnation, asker: context.asker, number: self.begun };
        self.begun += 1;
        let errands = Errands::new(slot, snapshot);
        self.slots[usize::from(slot)] = Some(OpenScan { name, reader: None, errands, work, due: None });
        self.names.insert(name, slot);
        slot
    }

    fn remove(&mut self, slot: u16) {
        self.slots[usize::from(slot)] = None;
        self.free.push(slot);
    }

    fn find(&mut self, slot: u16) -> Option<&mut OpenScan> {
        self.slots.get_mut(usize::from(slot))?.as_mut()
    }

    fn take_due(&mut self, now: Instant) -> Option<u16> {
        let &(at, slot) = self.due.first().filter(|(at, _)| *at <= now)?;
        self.due.remove(&(at, slot));
        self.find(slot).expect("what is due is there").due = None;
        Some(slot)
    }

    fn set_due(&mut self, slot: u16, due: Option<Instant>) {
        let scan = self.slots[usize::from(slot)].as_mut().expect("it is there");
        if scan.due != due {
            let before = std::mem::replace(&mut scan.due, due);
            before.map(|at| self.due.remove(&(at, slot)));
            due.map(|at| self.due.insert((at, slot)));
        }
    }
}
