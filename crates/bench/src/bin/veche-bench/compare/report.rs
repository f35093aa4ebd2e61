//! Results of a comparison, before they are rendered as text or HTML.

use super::tools::{MissingTool, Tool};
use crate::table::{REACHED, Threshold};
use bench::machine::MachineInfo;
use bench::report::Sheet;
use bench::stats::{RoundStats, ratio, rounds};
use serde::Serialize;
use std::collections::BTreeSet;

/// Results of one run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ComparisonReport {
    pub(crate) machine: MachineInfo,
    pub(crate) command: String,
    /// Rounds that count, and the seconds of each.
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) versions: Vec<Tool>,
    pub(crate) missing: Vec<MissingTool>,
    pub(crate) sections: Vec<Section>,
}

/// Contests with one CPU layout.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Section {
    pub(crate) layout: &'static str,
    pub(crate) contests: Vec<Contest>,
}

/// The same load on several sides.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Contest {
    pub(crate) title: String,
    pub(crate) about: String,
    /// Sides; the first one is veche.
    pub(crate) sides: Vec<Figures>,
    pub(crate) ratios: Vec<Ratio>,
}

/// Figures of one side.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) name: String,
    pub(crate) keeps: String,
    pub(crate) commands: Vec<String>,
    /// CPU time per response in microseconds, by round.
    #[serde(skip)]
    pub(crate) cpu_us: Vec<f64>,
    /// Responses per second, by round.
    #[serde(skip)]
    pub(crate) per_second: Vec<f64>,
    #[serde(rename = "cpu_us")]
    pub(crate) cpu: Option<RoundStats>,
    #[serde(rename = "per_second")]
    pub(crate) rate: Option<RoundStats>,
    /// Greatest fraction of its cores that the generator used. Near 1, the generator was the
    /// bottleneck, not the server.
    pub(crate) generator_busy: f64,
    /// Evidence that the side keeps its guarantee.
    pub(crate) proof: Vec<String>,
}

/// Comparison of veche with one side. Above 1, veche is better.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Ratio {
    pub(crate) against: String,
    pub(crate) measure: &'static str,
    pub(crate) target: Threshold,
    pub(crate) value: Option<RoundStats>,
}

impl Figures {
    /// Creates the figures of a side without rounds.
    pub(crate) fn new(name: &str, keeps: &str, commands: Vec<String>) -> Self {
        Self {
            name: name.to_owned(),
            keeps: keeps.to_owned(),
            commands,
            cpu_us: Vec::new(),
            per_second: Vec::new(),
            cpu: None,
            rate: None,
            generator_busy: 0.0,
            proof: Vec::new(),
        }
    }

    /// Adds a round.
    pub(crate) fn add(&mut self, cpu_us: f64, per_second: f64, generator_busy: f64) {
        self.cpu_us.push(cpu_us);
        self.per_second.push(per_second);
        self.generator_busy = self.generator_busy.max(generator_busy);
        (self.cpu, self.rate) = (rounds(&self.cpu_us), rounds(&self.per_second));
    }
}

impl Ratio {
    /// Ratio of the other side's CPU time to veche's.
    pub(crate) fn cpu(ours: &Figures, other: &Figures, target: Threshold) -> Self {
        let value = ratio(&other.cpu_us, &ours.cpu_us);
        Self { against: other.name.clone(), measure: "CPU per request: other's / ours", target, value }
    }

    /// Ratio of veche's rate to the other side's.
    pub(crate) fn rate(ours: &Figures, other: &Figures, target: Threshold) -> Self {
        let value = ratio(&ours.per_second, &other.per_second);
        Self { against: other.name.clone(), measure: "requests/s: ours / other's", target, value }
    }

    /// Verdict on the ratio; see [`Threshold::verdict`].
    pub(crate) fn verdict(&self) -> &'static str {
        self.target.verdict(self.value)
    }
}

impl ComparisonReport {
    /// Number of thresholds that are met, and of all thresholds.
    pub(crate) fn reached(&self) -> (usize, usize) {
        let contests = self.sections.iter().flat_map(|section| &section.contests);
        let verdicts = contests.flat_map(|contest| &contest.ratios).map(Ratio::verdict);
        let verdicts: Vec<_> = verdicts.filter(|verdict| !verdict.is_empty()).collect();
        (verdicts.iter().filter(|verdict| **verdict == REACHED).count(), verdicts.len())
    }

    /// The report in Markdown.
    pub(crate) fn markdown(&self) -> String {
        let mut out = format!(
            "# veche beside others\n\n{}\n\n`{}`: medians of {} rounds of {} s in turns, and their range, after one \
             round that does not count.\n",
            self.machine, self.command, self.rounds, self.seconds
        );
        for section in &self.sections {
            out += &format!("\n## {}\n", section.layout);
            for contest in &section.contests {
                out += &format!("\n### {}\n\n{}\n\n", contest.title, contest.about);
                out += &contest.sides_sheet().markdown();
                out += "\n";
                out += &contest.ratios_sheet().markdown();
            }
        }
        for (title, facts) in self.facts() {
            out += &format!("\n## {title}\n\n");
            facts.iter().for_each(|fact| out += &format!("- {fact}\n"));
        }
        out
    }

    /// Facts by heading: evidence for the guarantees, versions of the programs and missing ones,
    /// and command lines.
    pub(crate) fn facts(&self) -> Vec<(&'static str, Vec<String>)> {
        let versions = self.versions.iter().map(|tool| format!("{}: {}", tool.name, tool.version));
        let missing = self.missing.iter().map(|missing| {
            format!("NOT COMPARED: {}; {} is not installed: {}", missing.rows, missing.name, missing.remedy)
        });
        let (mut proofs, mut commands) = (Vec::new(), Vec::new());
        for section in &self.sections {
            let layout = section.layout.split(':').next().unwrap_or_default();
            for contest in &section.contests {
                for side in &contest.sides {
                    if !side.proof.is_empty() {
                        let proof = side.proof.join("; ");
                        proofs.push(format!("{layout}, {}, {}: {proof}", contest.title, side.name));
                    }
                    commands.extend(&side.commands);
                }
            }
        }
        let mut seen = BTreeSet::new();
        let commands = commands.into_iter().filter(|command| seen.insert(*command));
        vec![
            ("Proof", proofs),
            ("Versions", versions.chain(missing).collect()),
            ("Commands", commands.map(|command| format!("`{command}`")).collect()),
        ]
    }
}

impl Contest {
    /// Table of each side's figures.
    pub(crate) fn sides_sheet(&self) -> Sheet {
        let numbers = ["CPU us/request", "range", "requests/s", "range", "generator busy"];
        let mut sheet = Sheet::new(&["side", "an answer promises"], &numbers, &[]);
        for side in &self.sides {
            let number = |rounds: Option<RoundStats>, show: fn(f64) -> String| match rounds {
                Some(RoundStats { median, min, max }) => {
                    [show(median), format!("{}..{}", show(min), show(max))]
                }
                None => ["".to_owned(), "".to_owned()],
            };
            let [cpu, cpu_range] = number(side.cpu, |us| format!("{us:.2}"));
            let [rate, rate_range] = number(side.rate, |rate| format!("{rate:.0}"));
            let busy = format!("{:.0} %", side.generator_busy * 100.0);
            sheet.row(vec![side.name.clone(), side.keeps.clone(), cpu, cpu_range, rate, rate_range, busy]);
        }
        sheet
    }

    /// Table of the ratios.
    pub(crate) fn ratios_sheet(&self) -> Sheet {
        let mut sheet = Sheet::new(&["against", "measure"], &["median", "range", "target"], &["verdict"]);
        for ratio in &self.ratios {
            let (median, range) = match ratio.value {
                Some(RoundStats { median, min, max }) => {
                    (format!("{median:.3}"), format!("{min:.3}..{max:.3}"))
                }
                None => ("n/a".to_owned(), String::new()),
            };
            let (against, measure) = (ratio.against.clone(), ratio.measure.to_owned());
            let target = ratio.target.to_string();
            sheet.row(vec![against, measure, median, range, target, ratio.verdict().to_owned()]);
        }
        sheet
    }
}
