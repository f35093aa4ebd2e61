//! Clients: threads that write, read and check.

use crate::config::WriteOrder;
use crate::expected::Expected;
use crate::model::{LOCAL_KEYS_END, REGISTERS, RegisterContent, RegisterId};
use crate::verify::{CheckedSnapshot, RunFiles, check_checkpoint, permitted_since, write_floors};
use engine::{Batch, Engine, Error};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use stdx::Rng;

/// Greatest number of snapshots that a client keeps to check later.
const SNAPSHOTS_MAX: usize = 2;
/// Greatest number of registers of a part of an ingest.
const INGEST_REGISTERS_MAX: u64 = 60;
/// Number of names of ingests.
const INGEST_NAMES: u64 = 8;
/// Greatest number of registers of a batch.
const BATCH_REGISTERS_MAX: u64 = 4;

/// State that the clients of a session share.
pub struct Session<'a> {
    /// The engine under test.
    pub engine: Engine,
    /// The expected state.
    pub expected: &'a Expected,
    /// Paths of the files of the run.
    pub files: &'a RunFiles,
    /// Order of the writes of one register.
    pub order: WriteOrder,
    /// Locks of the registers, each held by the register's writer under [`WriteOrder::Serial`].
    pub writers: Vec<Mutex<()>>,
    /// Number of operations left in the session.
    pub left: AtomicU64,
    /// Number of operations after which the process kills itself.
    pub die_at: Option<u64>,
}

/// A client thread.
pub struct ClientThread<'a> {
    session: &'a Session<'a>,
    rng: Rng,
    snapshots: Vec<CheckedSnapshot>,
}

type Outcome = Result<(), String>;

impl Session<'_> {
    /// Issues the next versions of these registers. The guards are held until they are written, if
    /// writers of a register take turns.
    fn issue(&self, registers: &BTreeSet<RegisterId>) -> (Vec<(RegisterId, u64)>, Vec<MutexGuard<'_, ()>>) {
        // Lock order: ascending registers, so that two batches do not deadlock.
        let guards = match self.order {
            WriteOrder::Serial => registers.iter().map(|register| self.writers[register.0].lock()).collect(),
            WriteOrder::Concurrent => Vec::new(),
        };
        let versions = registers.iter().map(|register| (*register, self.expected.issue(*register)));
        (versions.collect(), guards)
    }

    /// Records that these versions are stored.
    fn raise_floors(&self, writes: Vec<(RegisterId, u64)>) {
        for (register, version) in writes {
            self.expected.raise_floor(register, version);
        }
    }
}

impl<'a> ClientThread<'a> {
    /// Creates a client that draws from `rng`.
    pub fn new(session: &'a Session<'a>, rng: Rng) -> Self {
        Self { session, rng, snapshots: Vec::new() }
    }

    /// Operates until the session has no operations left.
    ///
    /// # Errors
    /// A sentence: the engine has broken a promise.
    pub fn run(mut self) -> Outcome {
        let left = &self.session.left;
        while left.try_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            self.operate()?;
            let operations = self.session.expected.count_operation();
            if self.session.die_at == Some(operations) {
                kill_this_process();
            }
        }
        while let Some(snapshot) = self.snapshots.pop() {
            snapshot.check()?;
        }
        Ok(())
    }

    fn operate(&mut self) -> Outcome {
        match self.rng.below(1_000) {
            0..530 => self.write(),
            530..550 => self.ingest(),
            550..600 => self.write_old_version(),
            600..880 => self.read(),
            880..930 => self.scan(),
            930..960 => self.scan_range(),
            960..980 => self.keep_snapshot(),
            980..985 => self.session.engine.flush().or_else(ignore_exhaustion).map_err(failed("flush")),
            985..990 => self.session.engine.step_idle().map_err(failed("step_idle")),
            990..994 => self.checkpoint(),
            _ => {
                self.note_log_end();
                Ok(())
            }
        }
    }

    fn register(&mut self) -> RegisterId {
        // Half of the operations use a few registers, so that versions of one register meet.
        let count = if self.rng.chance(0.5) { REGISTERS } else { REGISTERS / 20 };
        RegisterId(self.rng.below(count as u64) as usize)
    }

    fn note_log_end(&self) {
        if let Some(end) = self.session.engine.durable_log_end() {
            self.session.expected.set_log_end(end);
        }
    }

    /// Writes the next version of one or several registers in one batch.
    fn write(&mut self) -> Outcome {
        let count = if self.rng.chance(0.7) { 1 } else { 1 + self.rng.below(BATCH_REGISTERS_MAX) };
        let registers: BTreeSet<RegisterId> = (0..count).map(|_| self.register()).collect();
        let (writes, guards) = self.session.issue(&registers);
        if self.commit(batch_of(&writes))? {
            self.session.raise_floors(writes);
        }
        drop(guards);
        Ok(())
    }

    /// Ingests the next versions of many registers in one part. Cells of local keys are not
    /// ingested.
    fn ingest(&mut self) -> Outcome {
        let is_local =
            |register: RegisterId| (0..register.keys()).any(|index| register.key(index)[0] < LOCAL_KEYS_END);
        let count = 1 + self.rng.below(INGEST_REGISTERS_MAX);
        let registers: BTreeSet<RegisterId> =
            (0..count).map(|_| self.register()).filter(|register| !is_local(*register)).collect();
        let name = [self.rng.below(INGEST_NAMES) as u8];
        let mut ingest = match self.session.engine.ingest(&name, 0) {
            Ok(ingest) => ingest,
            // Another client uses the name.
            Err(Error::Invalid(_)) => return Ok(()),
            Err(error) => return Err(format!("an ingest does not open: {error}")),
        };
        let (writes, guards) = self.session.issue(&registers);
        let cells: BTreeMap<_, _> = writes
            .iter()
            .flat_map(|&(register, version)| {
                (0..register.keys()).map(move |index| (register.key(index), register.cell(index, version)))
            })
            .collect();
        let pushed = cells.iter().try_for_each(|(key, cell)| ingest.push(key, cell.as_ref()));
        match pushed.and_then(|()| ingest.commit(&count.to_be_bytes())) {
            Ok(()) => self.session.raise_floors(writes),
            Err(error) => return ignore_exhaustion(error).map_err(failed("an ingest")),
        }
        drop(guards);
        if self.rng.chance(0.5) {
            return ingest.finish().or_else(ignore_exhaustion).map_err(failed("the end of an ingest"));
        }
        Ok(())
    }

    /// Writes an old version again, as repairs between replicas do. No reader may see it.
    fn write_old_version(&mut self) -> Outcome {
        let register = self.register();
        let floor = self.session.expected.floor_of(register);
        // A tombstone may already be dropped, and then hides no older version.
        let is_hidden = floor > 1 && register.content(floor) == RegisterContent::Value;
        if self.session.order == WriteOrder::Serial || !is_hidden {
            return Ok(());
        }
        let version = 1 + self.rng.below(floor - 1);
        self.commit(batch_of(&[(register, version)])).map(drop)
    }

    /// Commits a batch, either blocking or with a completion. Returns whether it was stored.
    fn commit(&mut self, batch: Batch) -> Result<bool, String> {
        let engine = &self.session.engine;
        let committed = if self.rng.chance(0.5) {
            engine.write(batch)
        } else {
            let (tell, told) = mpsc::channel();
            engine.submit(batch, Box::new(move |result| drop(tell.send(result))));
            told.recv().map_err(|_| "a completion was dropped without being called".to_owned())?
        };
        match committed {
            Ok(_) => Ok(true),
            Err(Error::Overloaded { .. } | Error::Full { .. } | Error::Exhausted { .. }) => Ok(false),
            Err(error) => Err(format!("a write failed: {error}")),
        }
    }

    fn read(&mut self) -> Outcome {
        let register = self.register();
        let index = self.rng.below(register.keys() as u64) as usize;
        let floor = self.session.expected.floor_of(register);
        let seen = self.session.engine.get(&register.key(index)).map_err(failed("get"))?;
        let permitted = self.session.expected.permitted(register, floor);
        if let Some(version) = permitted.check(register, index, seen.as_ref())? {
            self.session.expected.raise_floor(register, version);
        }
        Ok(())
    }

    fn scan(&mut self) -> Outcome {
        let versions = CheckedSnapshot::take(&self.session.engine, self.session.expected).check()?;
        for (register, version) in RegisterId::all().zip(versions) {
            if let Some(version) = version {
                self.session.expected.raise_floor(register, version);
            }
        }
        Ok(())
    }

    fn scan_range(&mut self) -> Outcome {
        let register = self.register();
        let start = register.key(self.rng.below(register.keys() as u64) as usize);
        let count = 1 + self.rng.below(30) as usize;
        CheckedSnapshot::take(&self.session.engine, self.session.expected).check_range(&start, count)
    }

    /// Keeps a snapshot, and checks the oldest one, which was kept during writes and compactions.
    fn keep_snapshot(&mut self) -> Outcome {
        self.snapshots.push(CheckedSnapshot::take(&self.session.engine, self.session.expected));
        if self.snapshots.len() <= SNAPSHOTS_MAX {
            return Ok(());
        }
        self.snapshots.remove(0).check().map(drop)
    }

    /// Makes a checkpoint. Some are kept for the check at the beginning of the next round.
    fn checkpoint(&mut self) -> Outcome {
        let Session { engine, expected, files, .. } = self.session;
        let number = expected.next_number();
        let dir = files.checkpoint(number);
        let floors = expected.floors();
        write_floors(&floors, &files.floors_of(number))?;
        match engine.checkpoint(&dir) {
            Ok(_) => {}
            Err(error) => return ignore_exhaustion(error).map_err(failed("checkpoint")),
        }
        let permitted = permitted_since(expected, &floors);
        if self.rng.chance(0.3) {
            return Ok(());
        }
        check_checkpoint(&dir, &permitted)?;
        let is_reclaimed = self.rng.chance(0.5);
        files.remove_checkpoint(number, |dir| {
            if is_reclaimed {
                engine.reclaim_checkpoint(dir);
            }
        })
    }
}

fn batch_of(writes: &[(RegisterId, u64)]) -> Batch {
    let mut batch = Batch::new();
    for &(register, version) in writes {
        for index in 0..register.keys() {
            batch.put(&register.key(index), register.cell(index, version).as_ref());
        }
    }
    batch
}

/// Ignores errors for lack of disk space or file descriptors, which are not faults of the engine.
fn ignore_exhaustion(error: Error) -> Result<(), Error> {
    match error {
        Error::Full { .. } | Error::Exhausted { .. } => Ok(()),
        error => Err(error),
    }
}

fn failed(operation: &'static str) -> impl Fn(Error) -> String {
    move |error| format!("{operation} failed: {error}")
}

/// Ends this process as `kill -9` does.
fn kill_this_process() -> ! {
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, rustix::process::Signal::KILL).expect("a process may kill itself");
    unreachable!("nothing runs after SIGKILL")
}
