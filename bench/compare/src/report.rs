//! Results: medians, and veche compared with the better of the other stores.

use crate::store::Kind;
use crate::workload::JobReport;
use bench::machine::MachineInfo;
use lab::stats::{ratio, rounds};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Rates of one phase by store, one value per round.
type Phase = BTreeMap<Kind, Vec<f64>>;

/// All results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    machine: MachineInfo,
    options: String,
    stores: BTreeMap<String, BTreeMap<Kind, String>>,
    /// Phases by scenario, in the order in which they were run.
    rates: BTreeMap<String, Vec<(String, Phase)>>,
}

impl Results {
    pub fn new(machine: MachineInfo, options: String) -> Self {
        Self { machine, options, stores: BTreeMap::new(), rates: BTreeMap::new() }
    }

    /// Description of the machine and the options.
    pub fn heading(&self) -> String {
        format!("{}\n{}\n", self.machine, self.options)
    }

    /// Adds the rates of one store in one round.
    pub fn add(&mut self, scenario: &str, kind: Kind, round: u64, report: JobReport) {
        if round == 0 {
            self.stores.entry(scenario.to_owned()).or_default().insert(kind, report.description);
        }
        let phases = self.rates.entry(scenario.to_owned()).or_default();
        for (name, rate) in report.rates {
            let at = phases.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
                phases.push((name, Phase::new()));
                phases.len() - 1
            });
            phases[at].1.entry(kind).or_default().push(rate);
        }
    }

    /// A scenario as a table, with the options of all stores.
    pub fn table(&self, scenario: &str) -> String {
        let mut out = String::new();
        for (kind, description) in self.stores.get(scenario).into_iter().flatten() {
            writeln!(out, "  {}: {description}", kind.name()).expect("writing to a String cannot fail");
        }
        let titles = ["phase (operations/s)", "veche", "rocksdb", "fjall", "veche / better of the others"];
        let [phase, veche, rocksdb, fjall, ratio] = titles;
        writeln!(out, "\n{phase:<30} {veche:>12} {rocksdb:>12} {fjall:>12}   {ratio}")
            .expect("writing to a String cannot fail");
        for (name, phase) in self.rates.get(scenario).into_iter().flatten() {
            writeln!(out, "{}", row(name, phase)).expect("writing to a String cannot fail");
        }
        out
    }
}

fn row(name: &str, phase: &Phase) -> String {
    let [veche, rocksdb, fjall] = [Kind::Veche, Kind::Rocksdb, Kind::Fjall].map(|kind| {
        let rates = phase.get(&kind).map_or(&[][..], Vec::as_slice);
        rounds(rates).map_or_else(|| "-".to_owned(), |rounds| format!("{:.0}", rounds.median))
    });
    let against = phase.get(&Kind::Veche).and_then(|veche| ratio(veche, &better_of_others(phase)));
    let against = against.map_or_else(String::new, |ratio| {
        let verdict = if ratio.median >= 1.0 { "" } else { "  BEHIND" };
        format!("{:.2} ({:.2}..{:.2}){verdict}", ratio.median, ratio.min, ratio.max)
    });
    format!("{name:<30} {veche:>12} {rocksdb:>12} {fjall:>12}   {against}")
}

/// The best rate of a store other than veche, round by round.
fn better_of_others(phase: &Phase) -> Vec<f64> {
    let others: Vec<&Vec<f64>> =
        phase.iter().filter(|(kind, _)| **kind != Kind::Veche).map(|(_, rates)| rates).collect();
    let count = others.iter().map(|rates| rates.len()).min().unwrap_or(0);
    (0..count).map(|round| others.iter().map(|rates| rates[round]).fold(0.0, f64::max)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn veche_is_held_against_the_better_one_of_each_round() {
        let phase = Phase::from([
            (Kind::Veche, vec![10.0, 10.0]),
            (Kind::Rocksdb, vec![20.0, 5.0]),
            (Kind::Fjall, vec![10.0, 10.0]),
        ]);
        assert_eq!(better_of_others(&phase), [20.0, 10.0]);
        assert!(row("put", &phase).contains("0.75 (0.50..1.00)  BEHIND"));
    }
}
