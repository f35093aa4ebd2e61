//! CPU per request and throughput, against the floor and against weaker durability.

use crate::measure::{Load, Sample, measure, preload};
use crate::servers::{Durability, Home, Layout};
use crate::table::{Table, Target};
use crate::{Options, Outcome};
use bench::keys::{KeyNumber, KeyOrder};
use bench::process::Server;
use bench::stats::{median, ratio};
use bench::values::{Sizes, Values};
use bench::{Operation, Pacing, fetch};
use std::time::Duration;

const VALUE_BYTES: usize = 100;
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// The servers of a round, in the order of [`SUBJECTS`].
struct Fleet {
    servers: [Server; 3],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Floor = 0,
    Sync = 1,
    Os = 2,
}

const SUBJECTS: [Subject; 3] = [Subject::Floor, Subject::Sync, Subject::Os];

/// What is asked of each subject in each round.
const LOADS: [(Operation, usize); 3] = [(Operation::Get, 64), (Operation::Put, 64), (Operation::Put, 256)];

/// Samples of one load on one subject, a round each.
#[derive(Clone, Debug, Default)]
struct Samples(Vec<Sample>);

impl Samples {
    fn cpu(&self) -> Vec<f64> {
        self.0.iter().map(|sample| sample.cpu_us).collect()
    }

    fn rate(&self) -> Vec<f64> {
        self.0.iter().map(|sample| sample.per_second).collect()
    }
}

/// Measures, and adds the rows.
pub(crate) fn rows(options: &Options, home: &Home, layout: Layout, table: &mut Table) -> Outcome<()> {
    let fleet = Fleet::start(options, home, layout)?;
    let mut samples = vec![[Samples::default(), Samples::default(), Samples::default()]; LOADS.len()];
    for round in 0..options.rounds() {
        for (l, (operation, connections)) in LOADS.into_iter().enumerate() {
            for turn in 0..SUBJECTS.len() {
                let subject = SUBJECTS[(turn + round) % SUBJECTS.len()];
                let load = Load {
                    operation,
                    connections,
                    pacing: Pacing::Closed,
                    keys: options.keys(),
                    value_bytes: VALUE_BYTES,
                    seed: round as u64,
                };
                let sample = measure(fleet.of(subject), layout, options.seconds(), &[load])?;
                print_sample(round, operation, connections, subject, &sample);
                samples[l][subject as usize].0.push(sample);
            }
        }
    }
    add_rows(table, &samples);
    Ok(())
}

fn print_sample(round: usize, operation: Operation, connections: usize, subject: Subject, sample: &Sample) {
    println!(
        "  round {round}: {:<4} x{connections:<4} {subject:<6?} {:>9.0}/s {:>7.2} us CPU/request, generator busy {:.0} %",
        operation.name(),
        sample.per_second,
        sample.cpu_us,
        sample.generator_busy * 100.0,
    );
}

fn add_rows(table: &mut Table, samples: &[[Samples; 3]]) {
    let [floor, sync, os] = SUBJECTS.map(|subject| subject as usize);
    for ((operation, connections), of) in LOADS.into_iter().zip(samples) {
        let name = format!("{} x{connections}", operation.name().to_uppercase());
        let target = match (operation, connections) {
            (Operation::Get, 64) => Target::AtLeast(0.85),
            (Operation::Put, 64) => Target::AtLeast(0.55),
            _ => Target::None,
        };
        let note = format!("us: {:.2} / {:.2}", median(&of[floor].cpu()), median(&of[sync].cpu()));
        table.row(
            &format!("{name}: CPU/request, floor / veche"),
            target,
            ratio(&of[floor].cpu(), &of[sync].cpu()),
            note,
        );
        let note = format!("1/s: {:.2} / {:.2}", median(&of[sync].rate()), median(&of[floor].rate()));
        table.row(
            &format!("{name}: requests/s, veche / floor"),
            Target::None,
            ratio(&of[sync].rate(), &of[floor].rate()),
            note,
        );
    }
    let of = &samples[LOADS.len() - 1];
    let note = format!("1/s: {:.2} / {:.2}", median(&of[sync].rate()), median(&of[os].rate()));
    let value = ratio(&of[sync].rate(), &of[os].rate());
    table.row("PUT x256: requests/s, durable / --durability os", Target::AtLeast(0.8), value, note);
    let note = format!("us: {:.2} / {:.2}", median(&of[os].cpu()), median(&of[sync].cpu()));
    let value = ratio(&of[os].cpu(), &of[sync].cpu());
    table.row("PUT x256: CPU/request, --durability os / durable", Target::None, value, note);
}

impl Fleet {
    fn start(options: &Options, home: &Home, layout: Layout) -> Outcome<Self> {
        let name = |durability: &str| format!("cost-{durability}-{}", layout.server_threads);
        let servers = [
            home.floor(layout)?,
            home.veche(&name("sync"), layout, Durability::Sync, None)?,
            home.veche(&name("os"), layout, Durability::Os, None)?,
        ];
        for server in &servers {
            preload(server, layout, KeyOrder::Sequential, options.keys(), VALUE_BYTES)?;
        }
        let fleet = Self { servers };
        compare_heads(fleet.of(Subject::Floor), fleet.of(Subject::Sync))?;
        Ok(fleet)
    }

    fn of(&self, subject: Subject) -> &Server {
        &self.servers[subject as usize]
    }
}

/// The floor is one only while it sends as many header bytes as veche does: says so when it does not.
pub(crate) fn compare_heads(floor: &Server, veche: &Server) -> Outcome<()> {
    let mut value = Vec::new();
    Values::of_all_runs(Sizes::Fixed(VALUE_BYTES)).append(KeyNumber(0), &mut value);
    let key = KeyNumber(0).stored();
    let path = format!("/v0/entity?id={}", String::from_utf8_lossy(&key));
    for (method, body) in [("GET", [].as_slice()), ("PUT", &value)] {
        let head = |server: &Server| {
            fetch(server.address(), method, &path, body, FETCH_TIMEOUT).map(|answer| answer.head)
        };
        let (floor, veche) = (head(floor)?, head(veche)?);
        if floor.len() != veche.len() {
            let (floor, veche) = (String::from_utf8_lossy(&floor), String::from_utf8_lossy(&veche));
            println!("  NOT THE SAME HEADER BYTES on {method}:\n--- floor\n{floor}--- veche\n{veche}");
        }
    }
    Ok(())
}
