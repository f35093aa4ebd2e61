//! Server processes: started on given cores, monitored, and ended.
//!
//! **Promise.** A [`ServerProcess`] that is dropped is killed by its process id, and reaped.

use bench::affinity::while_pinned;
use bench::{Protocol, fetch};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
const PROBE_PAUSE: Duration = Duration::from_millis(2);
/// Time that a server has to end after `SIGTERM`.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Resident memory of a process.
#[derive(Clone, Copy, Debug)]
pub struct ResidentMemory {
    /// Current size, in bytes.
    pub now: u64,
    /// Peak size, in bytes.
    pub peak: u64,
    /// Part of `now` that is not backed by files, in bytes.
    pub anonymous: u64,
}

/// Reads the resident memory from `/proc/<pid>/status`.
///
/// # Errors
/// There is no such process.
pub fn resident_memory(pid: u32) -> io::Result<ResidentMemory> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
    };
    match (field("VmRSS:"), field("VmHWM:"), field("RssAnon:")) {
        (Some(now), Some(peak), Some(anonymous)) => Ok(ResidentMemory { now, peak, anonymous }),
        _ => Err(io::Error::new(ErrorKind::InvalidData, format!("/proc/{pid}/status has no VmRSS"))),
    }
}

/// Bytes that a process has read from the disk so far, excluding hits in the page cache.
///
/// # Errors
/// There is no such process, or it belongs to another user.
pub fn disk_read_bytes(pid: u32) -> io::Result<u64> {
    io_counter(pid, "read_bytes:")
}

/// Bytes that a process has written so far and that go to the disk, soon or late.
///
/// # Errors
/// There is no such process, or it belongs to another user.
pub fn disk_written_bytes(pid: u32) -> io::Result<u64> {
    io_counter(pid, "write_bytes:")
}

/// Reads a counter of `/proc/<pid>/io`. `name` ends with a colon.
fn io_counter(pid: u32, name: &str) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/io"))?;
    let count = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    count.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, format!("/proc/{pid}/io has no {name}")))
}

/// A server process that this process started. It is killed and reaped when it is dropped.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    address: SocketAddr,
    protocol: Protocol,
    command: String,
    ends_gracefully: bool,
}

impl ServerProcess {
    /// Starts a server on `cores` (empty: all cores). Appends its output to the file `log`.
    ///
    /// # Errors
    /// The program cannot be started, or the log cannot be opened.
    pub fn spawn(
        program: &Path,
        args: &[String],
        cores: &[usize],
        log: &Path,
        address: SocketAddr,
    ) -> io::Result<Self> {
        let out = fs::File::options().create(true).append(true).open(log)?;
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let child = while_pinned(cores, || command.spawn()).map_err(|error| {
            io::Error::new(error.kind(), format!("{} cannot be started: {error}", program.display()))
        })?;
        let words = [&[program.display().to_string()], args].concat();
        let command = words.join(" ");
        Ok(Self { child, address, protocol: Protocol::Entities, command, ends_gracefully: false })
    }

    /// Ends the server by `SIGTERM` when it is dropped, and kills it only if it does not end in
    /// time. Servers need this that have child processes to end.
    #[must_use]
    pub fn with_graceful_end(mut self) -> Self {
        self.ends_gracefully = true;
        self
    }

    /// Sets the server's protocol, if it is not veche's.
    #[must_use]
    pub fn with_protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = protocol;
        self
    }

    /// Protocol of the server.
    pub const fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Command line of the server.
    pub fn command(&self) -> &str {
        &self.command
    }

    /// Address on which the server listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Process id of the server.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `/v0/status` answers `200`. Returns the time that this took.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] after `limit`; [`ErrorKind::BrokenPipe`] if the process ended.
    pub fn wait_until_ready(&mut self, limit: Duration) -> io::Result<Duration> {
        self.wait_until(limit, |address| {
            fetch(address, "GET", "/v0/status", b"", PROBE_TIMEOUT).is_ok_and(|answer| answer.status == 200)
        })
    }

    /// Polls `is_ready` with the server's address until it returns `true`. Returns the time that
    /// this took.
    ///
    /// # Errors
    /// As [`ServerProcess::wait_until_ready`].
    pub fn wait_until(
        &mut self,
        limit: Duration,
        is_ready: impl Fn(SocketAddr) -> bool,
    ) -> io::Result<Duration> {
        let begun = Instant::now();
        loop {
            if is_ready(self.address) {
                return Ok(begun.elapsed());
            }
            if let Some(status) = self.child.try_wait()? {
                return Err(io::Error::new(ErrorKind::BrokenPipe, format!("the server ended: {status}")));
            }
            if begun.elapsed() > limit {
                return Err(io::Error::new(ErrorKind::TimedOut, "the server does not become ready"));
            }
            std::thread::sleep(PROBE_PAUSE);
        }
    }

    /// Whether the process has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Stops the process with `SIGSTOP`, until [`ServerProcess::resume`].
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn pause(&self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Continues a stopped process.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn resume(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Waits for the process to end, at most [`END_TIMEOUT`].
    fn wait_for_end(&mut self) {
        let begun = Instant::now();
        while !self.has_ended() && begun.elapsed() < END_TIMEOUT {
            std::thread::sleep(PROBE_PAUSE);
        }
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Kills the process, as `kill -9` does, and reaps it.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn kill(mut self) -> io::Result<ExitStatus> {
        self.child.kill()?;
        self.child.wait()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // A reaped process has lost its id: `has_ended` prevents a signal to another process.
        if self.ends_gracefully && !self.has_ended() && self.signal(Signal::TERM).is_ok() {
            self.wait_for_end();
        }
        // Both calls fail only for a process that was already reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_has_read_a_number_of_bytes() {
        let pid = std::process::id();
        let memory = resident_memory(pid).unwrap();
        assert!(memory.now > 0 && memory.peak >= memory.anonymous);
        assert!(disk_read_bytes(pid).unwrap() <= disk_read_bytes(pid).unwrap());
        assert!(disk_written_bytes(pid).unwrap() <= disk_written_bytes(pid).unwrap());
    }
}
