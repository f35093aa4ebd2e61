//! Commands whose replies need memory for a value.
//!
//! **Promise.** A reply comes with the reservation of its value (`response_memory`). If there is no
//! memory because clients of another address hold more than their share, a read waits for it and is
//! executed again, at most for [`WAIT_TIME`]. Slow clients of that address are disconnected
//! meanwhile (`memory_holders`). Only then the reply is a refusal.
//!
//! **Mechanism.** Where the memory is missing depends on where the value is: in memory, on the
//! thread of the connection; on disk, on a thread of the read pool. In both cases the whole command
//! is executed again, every [`WAIT_PAUSE`]. A copy of the command is kept only while any client
//! holds memory, so an ordinary read costs one load more. Dropping the execution ends the wait.
//!
//! Only a read that fails for lack of this node's memory is executed again
//! ([`CommandFailure::NoMemory`]). Others that are refused are answered at once: they need a free
//! place in a queue or the memory of another node, for which no client of this node can be
//! disconnected.
//!
//! **Caveats.** Each attempt counts as a refused read in the metrics.

use crate::connection_activity::ConnectionActivity;
use crate::driver::MachineDriver;
use crate::driver::coordinator_machine::CoordinatorMachine;
use crate::driver::executing::Execution;
use crate::memory_holders::{Demand, MemoryHolders, WAIT_PAUSE, WAIT_TIME, WaitTicket};
use crate::response_memory::{ReadValues, ResponseReservation};
use api::ResponseContext;
use cluster::{Command, CommandFailure, Reply};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::time::{Instant, Sleep};

/// A reply, with the reservation of a large value.
pub(crate) type ReservedReply = (Reply, Option<ResponseReservation>);

/// A command in flight, or a read that waits for memory.
pub(crate) struct ReadExecution {
    execution: Execution,
    /// The command, if it may be executed again.
    again: Option<Command>,
    wait: Option<Box<MemoryWait>>,
}

/// The wait of a read for memory.
struct MemoryWait {
    demand: Demand,
    _ticket: WaitTicket,
    sleep: Pin<Box<Sleep>>,
    ends: Instant,
    /// The command is executed again, and its reply is pending.
    is_reading: bool,
    /// The reply is final.
    is_last: bool,
}

impl ReadExecution {
    /// Submits `command`, whose response is described by `asked`.
    pub(crate) fn begin(
        driver: &Rc<MachineDriver<CoordinatorMachine>>,
        memory_holders: &MemoryHolders,
        command: Command,
        asked: &ResponseContext,
    ) -> Self {
        let can_repeat = matches!(command, Command::Get { .. }) && memory_holders.are_present();
        let again = can_repeat.then(|| command.clone());
        Self { execution: driver.execute(asked.action.into(), command), again, wait: None }
    }

    /// The reply, if it is available at once. Otherwise the execution is to be polled.
    pub(crate) fn take_now(
        &mut self,
        values: &ReadValues,
        activity: &Rc<ConnectionActivity>,
        asked: &ResponseContext,
    ) -> Option<ReservedReply> {
        let reply = self.execution.take_now()?;
        self.reserve(values, activity, reply, asked)
    }

    /// Waits for the reply. Must not be called after it was returned.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        values: &ReadValues,
        activity: &Rc<ConnectionActivity>,
        asked: &ResponseContext,
    ) -> Poll<ReservedReply> {
        loop {
            if let Some(wait) = self.wait.as_mut().filter(|wait| !wait.is_reading) {
                ready!(wait.sleep.as_mut().poll(context));
                let has_hope = values.memory_holders().make_room(wait.demand);
                wait.is_last = !has_hope || Instant::now() >= wait.ends;
                wait.is_reading = true;
                let command = self.again.clone().expect("a read that waits may be executed again");
                self.execution = self.execution.repeat(asked.action.into(), command);
            }
            let reply = ready!(Pin::new(&mut self.execution).poll(context));
            if let Some(reserved) = self.reserve(values, activity, reply, asked) {
                return Poll::Ready(reserved);
            }
        }
    }

    /// The last execution, whose reply was returned.
    pub(crate) fn into_execution(self) -> Execution {
        self.execution
    }

    /// Reserves memory for the value in `reply`. `None`: the read waits for memory.
    fn reserve(
        &mut self,
        values: &ReadValues,
        activity: &Rc<ConnectionActivity>,
        reply: Reply,
        asked: &ResponseContext,
    ) -> Option<ReservedReply> {
        let (reply, reservation) = values.reserve_for(activity, reply, asked);
        if lacks_memory(&reply) && self.again.is_some() && self.wait_again(values, activity) {
            return None;
        }
        Some((reply, reservation))
    }

    /// Begins the next pause of the wait. `false`: the read does not wait any longer.
    fn wait_again(&mut self, values: &ReadValues, activity: &ConnectionActivity) -> bool {
        let now = Instant::now();
        if let Some(wait) = &mut self.wait {
            wait.is_reading = false;
            wait.sleep.as_mut().reset(now + WAIT_PAUSE);
            return !wait.is_last;
        }
        let demand = values.demand(activity.client());
        let Some(ticket) = values.memory_holders().wait(demand) else {
            return false;
        };
        let sleep = Box::pin(tokio::time::sleep_until(now + WAIT_PAUSE));
        let ends = now + WAIT_TIME;
        let wait = MemoryWait { demand, _ticket: ticket, sleep, ends, is_reading: false, is_last: false };
        self.wait = Some(Box::new(wait));
        true
    }
}

/// Whether the reply is the refusal of a read that would succeed with memory of this node.
const fn lacks_memory(reply: &Reply) -> bool {
    matches!(reply, Reply::Failed(CommandFailure::NoMemory { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::{Acks, Shortfall, StoreFault};
    use std::time::Duration;

    #[test]
    fn only_a_read_without_memory_waits_for_memory() {
        let retry_after = Duration::from_secs(1);
        let acks = Acks { got: 0, from: 1 };
        let waits = |failure| lacks_memory(&Reply::Failed(failure));
        assert!(waits(StoreFault::NoMemory { retry_after }.into()));
        for failure in [
            CommandFailure::Overloaded { retry_after },
            StoreFault::Overloaded { retry_after }.into(),
            StoreFault::Expired.into(),
            CommandFailure::NotEnoughReplicas { acks, ack: 1, shortfall: Shortfall::Unanswered },
        ] {
            assert!(!waits(failure.clone()), "{failure:?}");
        }
    }
}
