//! CPU time of a server with several processes.
//!
//! nginx has worker processes, and Redis forks to rewrite its log. [`ProcessTreeMeter`] measures
//! the CPU time of a process and its children between two moments, including children that started
//! or ended in between.
//!
//! **Caveats.** Only direct children are counted. The time of ended children is counted in clock
//! ticks, and only after their parent has waited for them.

use bench::cpu::{CpuMeter, clock_tick};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::time::Duration;

/// CPU time of a process and its children since a start time.
#[derive(Debug)]
pub struct ProcessTreeMeter {
    pid: u32,
    own: CpuMeter,
    reaped: Duration,
    children: BTreeMap<u32, KnownChild>,
}

/// A child that existed at the start.
#[derive(Debug)]
struct KnownChild {
    meter: CpuMeter,
    spent_before: Duration,
}

impl ProcessTreeMeter {
    /// Starts a meter.
    ///
    /// # Errors
    /// There is no such process.
    pub fn start(pid: u32) -> io::Result<Self> {
        let children = children_of(pid).into_iter().filter_map(|(child, times)| {
            // The time of a child that has just ended is part of its parent's.
            let meter = CpuMeter::start(child).ok()?;
            Some((child, KnownChild { meter, spent_before: times.own }))
        });
        let children = children.collect();
        Ok(Self { pid, own: CpuMeter::start(pid)?, reaped: reaped_by(pid)?, children })
    }

    /// User and system time since the start.
    ///
    /// # Errors
    /// The process has ended.
    pub fn spent(&self) -> io::Result<Duration> {
        let living = children_of(self.pid);
        let of_living = living.iter().map(|(child, times)| match self.children.get(child) {
            Some(known) => known.meter.spent().unwrap_or_default(),
            None => times.own,
        });
        let of_living: Duration = of_living.sum();
        let ended = self.children.iter().filter(|(child, _)| !living.contains_key(child));
        let spent_before: Duration = ended.map(|(_, child)| child.spent_before).sum();
        let of_ended = reaped_by(self.pid)?.saturating_sub(self.reaped).saturating_sub(spent_before);
        Ok(self.own.spent()? + of_living + of_ended)
    }
}

/// CPU time of the children that `pid` has waited for.
///
/// # Errors
/// There is no such process.
pub fn reaped_by(pid: u32) -> io::Result<Duration> {
    Ok(StatTimes::of(pid)?.reaped)
}

/// Times from `/proc/<pid>/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StatTimes {
    parent: u32,
    own: Duration,
    reaped: Duration,
}

impl StatTimes {
    fn of(pid: u32) -> io::Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        Self::parse(&stat, clock_tick())
            .ok_or_else(|| io::Error::new(ErrorKind::InvalidData, format!("/proc/{pid}/stat: {stat:?}")))
    }

    /// Parses fields 4 and 14 to 17. They are counted from the end of the command name, which may
    /// contain any characters.
    fn parse(stat: &str, tick: Duration) -> Option<Self> {
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<u32> =
            fields.split_ascii_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
        let time = |first: usize| Some(tick * (fields.get(first)? + fields.get(first + 1)?));
        Some(Self { parent: *fields.get(1)?, own: time(11)?, reaped: time(13)? })
    }
}

fn children_of(pid: u32) -> BTreeMap<u32, StatTimes> {
    let Ok(processes) = fs::read_dir("/proc") else { return BTreeMap::new() };
    let child = |entry: fs::DirEntry| {
        let process = entry.file_name().to_str()?.parse().ok()?;
        let times = StatTimes::of(process).ok()?;
        (times.parent == pid).then_some((process, times))
    };
    processes.flatten().filter_map(child).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn times_are_found_behind_any_command_name() {
        let stat = "7 (a b) c) S 3 7 7 0 -1 4194560 152 0 0 0 30 12 5 1 20 0 1 0 100 1 1 1";
        let tick = Duration::from_millis(10);
        let times = StatTimes { parent: 3, own: tick * 42, reaped: tick * 6 };
        assert_eq!(StatTimes::parse(stat, tick), Some(times));
        assert_eq!(StatTimes::parse("7 (a", tick), None);
    }

    /// A shell that keeps its input open, and a child that uses CPU time until the shell is told to
    /// end.
    #[test]
    fn a_child_counts_while_it_lives_and_after_it_ended() {
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let script = format!("(read go; {busy}; echo done; read end) ; echo reaped; read end");
        let mut shell = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut input, output) = (shell.stdin.take().unwrap(), shell.stdout.take().unwrap());
        let mut lines = io::BufRead::lines(io::BufReader::new(output));
        let mut tell = || io::Write::write_all(&mut input, b"\n").unwrap();
        let meter = ProcessTreeMeter::start(shell.id()).unwrap();
        tell();
        assert_eq!(lines.next().unwrap().unwrap(), "done");
        let living = meter.spent().unwrap();
        assert!(living > Duration::ZERO);
        tell();
        assert_eq!(lines.next().unwrap().unwrap(), "reaped");
        // Ended children are counted in ticks: the figure may be slightly lower, but not zero.
        let ended = meter.spent().unwrap();
        assert!(ended + Duration::from_millis(20) >= living, "{ended:?} after {living:?}");
        tell();
        shell.wait().unwrap();
    }
}
