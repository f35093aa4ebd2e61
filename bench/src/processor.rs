//! A limit of the processor time of a server, so that a generator on the same machine can send a
//! multiple of what the server can answer.
//!
//! As root, a control group limits the server. Otherwise the server is stopped and continued by
//! signals, which needs no rights but is less exact. [`ProcessorLimit::name`] tells them apart.

use crate::BenchResult;
use bench::StopFlag;
use lab::cgroup::ControlGroup;
use rustix::process::{Pid, Signal, kill_process};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Time for which the server runs in each period. It is the least that the kernel accepts.
const QUOTA: Duration = Duration::from_millis(1);

/// Limit of a server's processor time. It ends when this is dropped, which must be after the server
/// has ended.
#[derive(Debug)]
pub(crate) struct ProcessorLimit {
    kind: LimitKind,
    period: Duration,
}

#[derive(Debug)]
enum LimitKind {
    Group { _group: ControlGroup },
    Signals { stop: StopFlag, thread: Option<JoinHandle<()>> },
}

impl ProcessorLimit {
    /// Limits the process `pid` to the fraction `share` of a core.
    pub(crate) fn of(pid: u32, share: f64) -> BenchResult<Self> {
        let period = QUOTA.div_f64(share);
        let group = ControlGroup::with_processor_time("bench-processor", QUOTA, period);
        match group.and_then(|group| group.add(pid).map(|()| group)) {
            Ok(group) => Ok(Self { kind: LimitKind::Group { _group: group }, period }),
            Err(error) => {
                println!("  no control group ({error}): the server is stopped and continued by signals");
                let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or("no process")?;
                let stop = StopFlag::default();
                let stopped = stop.clone();
                let thread = thread::spawn(move || alternate(pid, period, &stopped));
                Ok(Self { kind: LimitKind::Signals { stop, thread: Some(thread) }, period })
            }
        }
    }

    /// Description for the results.
    pub(crate) fn name(&self) -> String {
        let means = match self.kind {
            LimitKind::Group { .. } => "a control group",
            LimitKind::Signals { .. } => "signals",
        };
        let [quota, period] = [QUOTA, self.period].map(|time| time.as_secs_f64() * 1e3);
        format!("{quota:.0} ms of processor time in each {period:.0} ms, by {means}")
    }
}

/// Continues the process for the quota of each period, until `stop` is set or the process ends.
fn alternate(pid: Pid, period: Duration, stop: &StopFlag) {
    while !stop.is_set() {
        if kill_process(pid, Signal::CONT).is_err() {
            return;
        }
        thread::sleep(QUOTA);
        if kill_process(pid, Signal::STOP).is_err() {
            return;
        }
        thread::sleep(period.saturating_sub(QUOTA));
    }
    // An error means that the process has ended.
    let _ = kill_process(pid, Signal::CONT);
}

impl Drop for ProcessorLimit {
    fn drop(&mut self) {
        if let LimitKind::Signals { stop, thread } = &mut self.kind {
            stop.set();
            // The thread does not panic.
            let _ = thread.take().map(JoinHandle::join);
        }
    }
}
