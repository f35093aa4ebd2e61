//! Which calls fail, and how.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The call of the traits that an operation is.
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
    /// Of both kinds: waiting and not.
    Read,
    /// Of both kinds: vectored and not.
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
pub struct Operation<'a> {
    /// How many calls began before it.
    pub number: u64,
    /// Which call.
    pub kind: OperationKind,
    /// What it is made on; the old name of a rename or link.
    pub path: &'a Path,
    /// The new name of a rename or link.
    pub to: Option<&'a Path>,
    /// Bytes to read or write; 0 for other calls.
    pub len: usize,
}

/// What goes wrong with a call.
#[derive(Clone)]
pub enum Fault {
    /// It fails with this kind, for example [`io::ErrorKind::StorageFull`], and has no effect.
    Error(io::ErrorKind),
    /// It fails as a broken device does (`EIO`), and has no effect.
    DeviceError,
    /// It fails with this error number of the system, for example `libc::EMFILE`, and has no effect.
    Errno(i32),
    /// It has all of its effect, and then fails with this error number. A read and a prefetch fail at once.
    ErrnoAfterEffect(i32),
    /// A write that fails with this error number after its first `bytes` bytes; other calls fail without effect.
    ShortWrite {
        /// Bytes that are written, at most.
        bytes: usize,
        /// The error number.
        errno: i32,
    },
    /// The device does not take the unsynced bytes of a file, and the kernel drops them
    /// ([`File::lose_unsynced`](crate::File::lose_unsynced)). A sync, or a wait for writeback, fails with this error
    /// number. A start of writeback succeeds, and the next sync of that handle, or its next wait for writeback, fails.
    /// Other calls fail without effect.
    LoseUnsynced {
        /// The error number, which is told once.
        errno: i32,
        /// Decides which of the bytes reached the device all the same.
        seed: u64,
    },
    /// The process stopped before it: an error that [`FaultFs::is_stop`](super::FaultFs::is_stop) knows, no
    /// effect.
    Stop,
    /// The process stopped in the middle of a write, after so many bytes; other calls just stop.
    Tear {
        /// Bytes that are written.
        bytes: usize,
    },
    /// A read gives its bytes with one bit turned over; other calls are as asked.
    FlipBit {
        /// The bit, counted from the first byte's lowest, modulo the bits that were read.
        bit: u64,
    },
    /// `wait` is called with `duration`, then the call goes on as asked.
    Delay {
        /// How long the device takes.
        duration: Duration,
        /// Lets that time pass: on a manual clock, or by holding the thread at a gate.
        wait: Arc<dyn Fn(Duration) + Send + Sync>,
    },
}

type Hook = Box<dyn Fn(&Operation<'_>) -> Option<Fault> + Send + Sync>;

/// Decides for each call whether it fails.
pub struct FaultPlan {
    on_operation: Hook,
}

impl FaultPlan {
    /// Nothing fails.
    pub fn none() -> Self {
        Self::on_operation(|_| None)
    }

    /// `decide` is asked before each call, also by several threads at once.
    pub fn on_operation(decide: impl Fn(&Operation<'_>) -> Option<Fault> + Send + Sync + 'static) -> Self {
        Self { on_operation: Box::new(decide) }
    }

    /// The process stops after `operations` calls: from the one of that number on, all fail without effect.
    pub fn stop_after(operations: u64) -> Self {
        Self::on_operation(move |operation| (operation.number >= operations).then_some(Fault::Stop))
    }

    /// `fault` for the calls that `matching` names.
    pub fn fail(matching: OperationMatch, fault: Fault) -> Self {
        let seen = AtomicU64::new(0);
        Self::on_operation(move |operation| {
            let hit = matching.names(operation) && matching.is_due(seen.fetch_add(1, Ordering::Relaxed));
            hit.then(|| fault.clone())
        })
    }

    /// As this plan, but if the call at which the process stops is a write, half of its bytes are written.
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

    /// As this plan, and where it lets a call pass, as `other`. Each sees every call, so that both count
    /// right.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self::on_operation(move |operation| {
            let (first, second) = (self.decide(operation), other.decide(operation));
            first.or(second)
        })
    }

    pub(super) fn decide(&self, operation: &Operation<'_>) -> Option<Fault> {
        (self.on_operation)(operation)
    }
}

/// Names calls by what they are, on what, and which in turn. Begins as "the first call of any kind".
#[derive(Clone, Debug, Default)]
pub struct OperationMatch {
    kind: Option<OperationKind>,
    path_part: Option<String>,
    nth: u64,
    sticky: bool,
}

impl OperationMatch {
    /// The first call of any kind.
    pub fn any() -> Self {
        Self::default()
    }

    /// The first call of this kind.
    pub fn kind(kind: OperationKind) -> Self {
        Self { kind: Some(kind), ..Self::default() }
    }

    /// Only calls with this text in one of their paths.
    #[must_use]
    pub fn path(self, part: &str) -> Self {
        Self { path_part: Some(part.to_owned()), ..self }
    }

    /// Not the first such call since the plan was made, but the one after `earlier` others.
    #[must_use]
    pub fn after(self, earlier: u64) -> Self {
        Self { nth: earlier, ..self }
    }

    /// That call and all such calls behind it.
    #[must_use]
    pub fn sticky(self) -> Self {
        Self { sticky: true, ..self }
    }

    fn names(&self, operation: &Operation<'_>) -> bool {
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

/// What calls fail with once the process has stopped.
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
