//! A side of a comparison: servers, who asks them, and what an answer promises.

use super::etcd_load::{Data, EtcdLoad};
use crate::Outcome;
use crate::measure::{Load, Meters, measure_all, preload, verify};
use crate::servers::Layout;
use bench::family::FamilyMeter;
use bench::keys::KeyOrder;
use bench::process::Server;
use bench::{Operation, Pacing};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Values read back after each comparison, on every side.
pub(crate) const READ_BACK: u64 = 1_000;
const VERIFY_CONNECTIONS: usize = 8;

/// Servers are at rest when they take less than this part of a core, ...
const REST_SHARE: f64 = 0.1;
/// ... in so many looks in a row, this long each.
const QUIET_POLLS: usize = 3;
const REST_POLL: Duration = Duration::from_millis(100);
/// Longer is not waited for it.
const REST_PATIENCE: Duration = Duration::from_secs(30);

/// Who is compared.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    pub(crate) name: String,
    /// What an answer promises.
    pub(crate) keeps: String,
    pub(crate) servers: Rc<Vec<Server>>,
    asked_by: AskedBy,
    /// How many servers have synced a write before it is answered.
    pub(crate) synced_copies: u32,
}

/// The generator of this program, or etcd's load program.
#[derive(Clone, Debug)]
enum AskedBy {
    Generator,
    EtcdLoad { load: Rc<RefCell<EtcdLoad>>, read: &'static str },
}

/// The data of a comparison, and how much is asked at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking {
    pub(crate) operation: Operation,
    pub(crate) connections: usize,
    pub(crate) keys: u64,
    pub(crate) value_bytes: usize,
}

/// What a side did in a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    /// Of all processes of the side, for each answer.
    pub(crate) cpu_us: f64,
    pub(crate) per_second: f64,
    /// The part of its cores that the generator used.
    pub(crate) generator_busy: f64,
    /// With those of the warm-up.
    pub(crate) answers: u64,
}

impl Side {
    /// Servers that the generator asks: the first of them.
    pub(crate) fn new(name: &str, keeps: &str, servers: Vec<Server>) -> Self {
        Self {
            name: name.to_owned(),
            keeps: keeps.to_owned(),
            servers: Rc::new(servers),
            asked_by: AskedBy::Generator,
            synced_copies: 0,
        }
    }

    /// Servers that etcd's load program asks.
    pub(crate) fn of_etcd(name: &str, keeps: &str, servers: Vec<Server>, load: EtcdLoad) -> Self {
        let load = Rc::new(RefCell::new(load));
        let asked_by = AskedBy::EtcdLoad { load, read: "get" };
        Self { asked_by, ..Self::new(name, keeps, servers) }
    }

    /// The same servers, whose answers promise something else.
    pub(crate) fn promising(&self, name: &str, keeps: &str) -> Self {
        Self { name: name.to_owned(), keeps: keeps.to_owned(), ..self.clone() }
    }

    /// etcd, asked for what the node has that is asked, without a word with the others.
    pub(crate) fn serializable(mut self) -> Self {
        if let AskedBy::EtcdLoad { read, .. } = &mut self.asked_by {
            *read = "get-serializable";
        }
        self
    }

    /// So many servers sync a write before it is answered.
    pub(crate) fn syncing(self, copies: u32) -> Self {
        Self { synced_copies: copies, ..self }
    }

    /// Asks for so long, and measures.
    pub(crate) fn ask(&self, layout: Layout, asking: Asking, seconds: f64, seed: u64) -> Outcome<Taken> {
        match &self.asked_by {
            AskedBy::Generator => {
                let sample = measure_all(&self.servers, layout, seconds, &[asking.load(seed)])?;
                Ok(Taken {
                    cpu_us: sample.cpu_us,
                    per_second: sample.per_second,
                    generator_busy: sample.generator_busy,
                    answers: sample.answers,
                })
            }
            AskedBy::EtcdLoad { load, read } => {
                let operation = if asking.operation == Operation::Put { "put" } else { read };
                self.take_etcd(&mut load.borrow_mut(), layout, asking.data(), operation, seconds, seed)
            }
        }
    }

    /// As [`Side::ask`], until the servers are at rest: what answers leave to be done is a part of what they cost, and must
    /// not take the core from the side whose turn is next.
    pub(crate) fn take(&self, layout: Layout, asking: Asking, seconds: f64, seed: u64) -> Outcome<Taken> {
        let taken = self.ask(layout, asking, seconds, seed)?;
        let behind_us = self.wait_for_rest()?.as_secs_f64() * 1e6;
        Ok(Taken { cpu_us: taken.cpu_us + behind_us / taken.answers.max(1) as f64, ..taken })
    }

    /// Waits until the servers, and what they forked, do next to nothing. The CPU time that they took until then.
    fn wait_for_rest(&self) -> Outcome<Duration> {
        let begun = Instant::now();
        let meters = self.servers.iter().map(|server| FamilyMeter::start(server.pid()));
        let meters = meters.collect::<Result<Vec<_>, _>>()?;
        let (mut spent, mut quiet) = (Duration::ZERO, 0);
        while quiet < QUIET_POLLS {
            if begun.elapsed() > REST_PATIENCE {
                println!("  {} is not at rest after {} s", self.name, REST_PATIENCE.as_secs());
                break;
            }
            std::thread::sleep(REST_POLL);
            let before =
                std::mem::replace(&mut spent, meters.iter().map(FamilyMeter::spent).sum::<Result<_, _>>()?);
            quiet = if spent.saturating_sub(before) < REST_POLL.mul_f64(REST_SHARE) { quiet + 1 } else { 0 };
        }
        Ok(spent)
    }

    fn take_etcd(
        &self,
        load: &mut EtcdLoad,
        layout: Layout,
        data: Data,
        operation: &str,
        seconds: f64,
        seed: u64,
    ) -> Outcome<Taken> {
        let meters = Meters::start(&self.servers, load.pid(), layout)?;
        let done = load.run(operation, data, seconds, seed)?;
        let spent = meters.spent()?;
        Ok(Taken {
            cpu_us: spent.by_servers.as_secs_f64() * 1e6 / done.requests.max(1) as f64,
            per_second: done.measured as f64 / done.seconds,
            generator_busy: spent.generator_busy,
            answers: done.requests,
        })
    }

    /// Stores every key once, and waits until the servers are at rest.
    pub(crate) fn preload(&self, layout: Layout, asking: Asking) -> Outcome<()> {
        let Asking { keys, value_bytes, .. } = asking;
        match &self.asked_by {
            AskedBy::Generator => preload(&self.servers[0], layout, KeyOrder::Sequential, keys, value_bytes)?,
            AskedBy::EtcdLoad { load, .. } => load.borrow_mut().preload(asking.data())?,
        }
        self.wait_for_rest()?;
        Ok(())
    }

    /// Reads keys, and fails unless every one has the value that was stored.
    pub(crate) fn read_back(&self, layout: Layout, asking: Asking) -> Outcome<()> {
        let read = Asking { operation: Operation::Get, connections: VERIFY_CONNECTIONS, ..asking };
        match &self.asked_by {
            AskedBy::Generator => verify(&self.servers[0], layout, read.load(0), READ_BACK),
            AskedBy::EtcdLoad { load, .. } => load.borrow_mut().verify(asking.data(), READ_BACK),
        }
    }
}

impl Asking {
    fn load(self, seed: u64) -> Load {
        let Self { operation, connections, keys, value_bytes } = self;
        Load { operation, connections, pacing: Pacing::Closed, keys, value_bytes, seed }
    }

    const fn data(self) -> Data {
        Data { keys: self.keys, value_bytes: self.value_bytes }
    }
}
