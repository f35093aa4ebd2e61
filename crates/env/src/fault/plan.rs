//! Fault plans: the calls that fail, and the way each of them fails.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The trait method that an operation calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is the trait method of its name")]
pub enum OperationKind {
    Open,
    CreateDir,
    ReadDir,
    Exists,
    Rename,
    Remove,
    RemoveDir,
    Link,
    LinkCount,
    SyncDir,
    Lock,
    AvailableBytes,
    /// `read_at` or `read_at_nowait`.
    Read,
    /// `write_at` or `write_vectored_at`.
    Write,
    SyncData,
    StartWriteback,
    FinishWriteback,
    SetLen,
    Len,
    Prefetch,
}

/// A call that is about to be made.
#[derive(Clone, Copy, Debug)]
pub struct FsCall<'a> {
    /// The number of calls that began earlier.
    pub number: u64,
    /// The method.
    pub kind: OperationKind,
    /// The path of the file or directory; the old name of a rename or link.
    pub path: &'a Path,
    /// The new name of a rename or link.
    pub to: Option<&'a Path>,
    /// Bytes to read or write; 0 for other calls.
    pub len: usize,
}

/// A fault to inject into a call.
#[derive(Clone)]
pub enum Fault {
    /// The call fails with this kind, for example [`io::ErrorKind::StorageFull`], without effect.
    Error(io::ErrorKind),
    /// The call fails like a broken device (`EIO`), without effect.
    DeviceError,
    /// The call fails with this error number of the system, for example `libc::EMFILE`, without
    /// effect.
    Errno(i32),
    /// The call has its full effect, and then fails with this error number. Reads and prefetches
    /// fail without effect.
    ErrnoAfterEffect(i32),
    /// A write fails with this error number after its first `bytes` bytes. Other calls fail without
    /// effect.
    ShortWrite {
        /// The maximum number of bytes written.
        bytes: usize,
        /// The error number.
        errno: i32,
    },
    /// The device fails to write the unsynced bytes of a file, and the kernel drops them
    /// ([`File::lose_unsynced`](crate::File::lose_unsynced)).
    ///
    /// A sync, or a wait for writeback, fails with this error number. A start of writeback
    /// succeeds; the next sync of that handle, or its next wait for writeback, fails. Other calls
    /// fail without effect.
    LoseUnsynced {
        /// The error number, which is reported once.
        errno: i32,
        /// Seed that selects the bytes that reached the device nevertheless.
        seed: u64,
    },
    /// The process stopped before the call. The call fails without effect;
    /// [`FaultFs::is_stop`](super::FaultFs::is_stop) recognizes the error.
    Stop,
    /// The process stopped within a write, after `bytes` bytes. Other calls stop without effect.
    Tear {
        /// The number of bytes written.
        bytes: usize,
    },
    /// A read returns its bytes with one bit flipped. Other calls proceed normally.
    FlipBit {
        /// The bit, counted from the lowest bit of the first byte, modulo the number of bits read.
        bit: u64,
    },
    /// The call proceeds normally after a call of `wait` with `duration`.
    Delay {
        /// The time that the device takes.
        duration: Duration,
        /// Passes the time: advances a manual clock, or blocks the thread at a gate.
        wait: Arc<dyn Fn(Duration) + Send + Sync>,
    },
}

type Hook = Box<dyn Fn(&FsCall<'_>) -> Option<Fault> + Send + Sync>;

/// A function that selects a fault, or none, for each call.
pub struct FaultPlan {
    on_operation: Hook,
}

impl FaultPlan {
    /// A plan without faults.
    pub fn none() -> Self {
        Self::on_operation(|_| None)
    }

    /// A plan that calls `decide` before each call. Several threads may call it concurrently.
    pub fn on_operation(decide: impl Fn(&FsCall<'_>) -> Option<Fault> + Send + Sync + 'static) -> Self {
        Self { on_operation: Box::new(decide) }
    }

    /// A plan that stops the process after `operations` calls: all calls from that number on fail
    /// without effect.
    pub fn stop_after(operations: u64) -> Self {
        Self::on_operation(move |operation| (operation.number >= operations).then_some(Fault::Stop))
    }

    /// A plan that injects `fault` into the calls that `matching` selects.
    pub fn fail(matching: OperationMatch, fault: Fault) -> Self {
        let seen = AtomicU64::new(0);
        Self::on_operation(move |operation| {
            let hit = matching.names(operation) && matching.is_due(seen.fetch_add(1, Ordering::Relaxed));
            hit.then(|| fault.clone())
        })
    }

    /// Returns this plan with one change: if the call at which the process stops is a write, half
    /// of its bytes are written.
    #[must_use]
    pub fn tear_last_write(self) -> Self {
        let stopped = AtomicBool::new(false);
        Self::on_operation(move |operation| match self.decide(operation) {
            Some(Fault::Stop)
                if !stopped.swap(true, Ordering::Relaxed) && operation.kind == OperationKind::Write =>
            {
                Some(Fault::Tear { bytes: operation.len / 2 })
            }
            decided => decided,
        })
    }

    /// Returns a plan that injects the faults of this plan, and those of `other` into the remaining
    /// calls. Both see every call, so that both count correctly.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self::on_operation(move |operation| {
            let (first, second) = (self.decide(operation), other.decide(operation));
            first.or(second)
        })
    }

    pub(super) fn decide(&self, operation: &FsCall<'_>) -> Option<Fault> {
        (self.on_operation)(operation)
    }
}

/// Selects calls by method, path and ordinal number. The default selects the first call of any
/// method.
#[derive(Clone, Debug, Default)]
pub struct OperationMatch {
    kind: Option<OperationKind>,
    path_part: Option<String>,
    nth: u64,
    sticky: bool,
}

impl OperationMatch {
    /// Selects the first call of any method.
    pub fn any() -> Self {
        Self::default()
    }

    /// Selects the first call of this method.
    pub fn kind(kind: OperationKind) -> Self {
        Self { kind: Some(kind), ..Self::default() }
    }

    /// Restricts the selection to calls with this text in one of their paths.
    #[must_use]
    pub fn path(self, part: &str) -> Self {
        Self { path_part: Some(part.to_owned()), ..self }
    }

    /// Skips the first `earlier` matching calls since the plan was made.
    #[must_use]
    pub fn after(self, earlier: u64) -> Self {
        Self { nth: earlier, ..self }
    }

    /// Selects all matching calls that follow, too.
    #[must_use]
    pub fn sticky(self) -> Self {
        Self { sticky: true, ..self }
    }

    fn names(&self, operation: &FsCall<'_>) -> bool {
        let in_path = |part: &String| {
            let mut paths = std::iter::once(operation.path).chain(operation.to);
            paths.any(|path| path.to_string_lossy().contains(part.as_str()))
        };
        self.kind.is_none_or(|kind| kind == operation.kind) && self.path_part.as_ref().is_none_or(in_path)
    }

    fn is_due(&self, earlier: u64) -> bool {
        earlier == self.nth || (self.sticky && earlier > self.nth)
    }
}

/// The error of all calls after the process has stopped.
#[derive(Debug)]
pub(super) struct Stopped;

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the process has stopped (injected)")
    }
}

impl std::error::Error for Stopped {}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(kind) => write!(f, "Error({kind:?})"),
            Self::DeviceError => f.write_str("DeviceError"),
            Self::Errno(errno) => write!(f, "Errno({errno})"),
            Self::ErrnoAfterEffect(errno) => write!(f, "ErrnoAfterEffect({errno})"),
            Self::ShortWrite { bytes, errno } => write!(f, "ShortWrite({bytes}, {errno})"),
            Self::LoseUnsynced { errno, seed } => write!(f, "LoseUnsynced({errno}, {seed})"),
            Self::Stop => f.write_str("Stop"),
            Self::Tear { bytes } => write!(f, "Tear({bytes})"),
            Self::FlipBit { bit } => write!(f, "FlipBit({bit})"),
            Self::Delay { duration, .. } => write!(f, "Delay({duration:?})"),
        }
    }
}
