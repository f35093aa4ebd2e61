//! CPU time of processes.
//!
//! **Promise.** [`CpuMeter`] measures the CPU time that a process used between two moments, over
//! all threads, including those that ended in between.
//!
//! **Mechanism.** `/proc/<pid>/task/*/schedstat` counts nanoseconds of living threads.
//! `/proc/<pid>/stat` counts clock ticks, and keeps those of ended threads. If the ticks exceed the
//! time of the living threads, threads have ended (or the kernel has no `schedstat`), and the ticks
//! are used.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::time::Duration;

/// CPU time of a process since a start time.
#[derive(Debug)]
pub struct CpuMeter {
    pid: u32,
    ticks: Duration,
    threads: BTreeMap<u32, Duration>,
}

impl CpuMeter {
    /// Starts a meter.
    ///
    /// # Errors
    /// There is no such process.
    pub fn start(pid: u32) -> io::Result<Self> {
        Ok(Self { pid, ticks: cpu_ticks(pid)?, threads: cpu_by_thread(pid) })
    }

    /// User and system time since the start.
    ///
    /// # Errors
    /// The process has ended.
    pub fn spent(&self) -> io::Result<Duration> {
        let ticks = cpu_ticks(self.pid)?.saturating_sub(self.ticks);
        let since = |(thread, spent): (u32, Duration)| {
            spent.saturating_sub(self.threads.get(&thread).copied().unwrap_or_default())
        };
        let of_living: Duration = cpu_by_thread(self.pid).into_iter().map(since).sum();
        Ok(if ticks > of_living + clock_tick() * TICKS_OFF_MAX { ticks } else { of_living })
    }
}

/// User and system time of this process so far, including ended threads.
pub fn own_cpu() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

/// Maximum error of a difference, in ticks: user and system time are each rounded, so each is off
/// by less than two ticks.
const TICKS_OFF_MAX: u32 = 4;

/// Length of the kernel's clock tick, the unit of times in `/proc`.
pub fn clock_tick() -> Duration {
    Duration::from_secs(1) / u32::try_from(rustix::param::clock_ticks_per_second()).unwrap_or(1).max(1)
}

/// User and system time of all threads, including ended ones.
fn cpu_ticks(pid: u32) -> io::Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    ticks_of_stat(&stat)
        .map(|ticks| clock_tick() * ticks)
        .ok_or_else(|| io::Error::new(ErrorKind::InvalidData, format!("/proc/{pid}/stat: {stat:?}")))
}

/// Sum of fields 14 and 15. They are counted from the end of the command name, which may contain
/// any characters.
fn ticks_of_stat(stat: &str) -> Option<u32> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    Some(fields.next()?.parse::<u32>().ok()? + fields.next()?.parse::<u32>().ok()?)
}

/// CPU time by thread id; empty if the kernel does not report it.
fn cpu_by_thread(pid: u32) -> BTreeMap<u32, Duration> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return BTreeMap::new() };
    let spent = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        let nanos = text.split_ascii_whitespace().next()?.parse().ok()?;
        Some((task.file_name().to_str()?.parse().ok()?, Duration::from_nanos(nanos)))
    };
    tasks.flatten().filter_map(spent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_found_behind_any_command_name() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 152 0 0 0 30 12 0 0 20 0 1 0 100 1 1 1";
        assert_eq!(ticks_of_stat(stat), Some(42));
        assert_eq!(ticks_of_stat("7 (a"), None);
    }

    #[test]
    fn the_time_of_a_thread_that_ended_is_not_forgotten() {
        let before = own_cpu();
        let worker = move || {
            let mut sum = 0u64;
            while own_cpu() < before + Duration::from_millis(5) {
                sum = (0..10_000u64).fold(sum, |sum, i| sum.wrapping_mul(31).wrapping_add(i));
            }
            assert_ne!(sum, 1);
            own_cpu()
        };
        let spent = std::thread::spawn(worker).join().unwrap();
        assert!(own_cpu() >= spent && spent >= before + Duration::from_millis(5));
    }

    #[test]
    fn this_process_spends_time() {
        let pid = std::process::id();
        let meter = CpuMeter::start(pid).unwrap();
        let before = meter.spent().unwrap();
        let mut sum = 0u64;
        while meter.spent().unwrap() <= before + Duration::from_millis(20) {
            sum = (0..100_000u64).fold(sum, |sum, i| sum.wrapping_mul(31).wrapping_add(i));
        }
        assert_ne!(sum, 1);
    }
}
