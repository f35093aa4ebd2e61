//! Results of a run: measurements and compared figures, as text and as JSON.

use crate::BenchResult;
use crate::measure::Sample;
use bench::machine::MachineInfo;
use lab::stats::{RoundStats, median};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::{fmt, fs};

/// Verdicts on a threshold.
const REACHED: &str = "reached";
const MISSED: &str = "MISSED";

/// Threshold of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Threshold {
    AtLeast(f64),
    AtMost(f64),
    /// The figure is for information.
    None,
}

impl Threshold {
    /// Verdict on the median. Empty without a threshold or a value.
    fn verdict(self, value: Option<RoundStats>) -> &'static str {
        let Some(RoundStats { median, .. }) = value else { return "" };
        let holds = match self {
            Self::AtLeast(least) => median >= least,
            Self::AtMost(most) => median <= most,
            Self::None => return "",
        };
        if holds { REACHED } else { MISSED }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, ">= {least}"),
            Self::AtMost(most) => write!(f, "<= {most}"),
            Self::None => Ok(()),
        }
    }
}

/// A load on a server: medians of its rounds.
#[derive(Clone, Debug, Serialize)]
struct Measurement {
    server: String,
    load: String,
    #[serde(flatten)]
    sample: Sample,
}

/// A figure, usually a ratio of two measurements.
#[derive(Clone, Debug, Serialize)]
struct Figure {
    title: String,
    target: Threshold,
    value: Option<RoundStats>,
    note: String,
}

/// Measurements and figures with a common title.
#[derive(Clone, Debug, Default, Serialize)]
struct Section {
    title: String,
    measurements: Vec<Measurement>,
    figures: Vec<Figure>,
    notes: Vec<String>,
}

/// All results of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ResultTable {
    scenario: String,
    machine: MachineInfo,
    command: String,
    sections: Vec<Section>,
    /// Data behind the figures by name, for readers of the JSON.
    details: BTreeMap<String, Value>,
}

impl ResultTable {
    pub(crate) fn new(scenario: &str) -> Self {
        let command = std::env::args().collect::<Vec<_>>().join(" ");
        let (sections, details) = (Vec::new(), BTreeMap::new());
        Self { scenario: scenario.to_owned(), machine: MachineInfo::here(), command, sections, details }
    }

    /// Starts a section.
    pub(crate) fn section(&mut self, title: &str) {
        println!("{title}");
        self.sections.push(Section { title: title.to_owned(), ..Section::default() });
    }

    fn last(&mut self) -> &mut Section {
        if self.sections.is_empty() {
            self.sections.push(Section::default());
        }
        self.sections.last_mut().expect("there is one")
    }

    /// Adds a measurement: the samples of its rounds.
    pub(crate) fn measured(&mut self, server: &str, load: &str, samples: &[Sample]) {
        let sample = Sample::median(samples);
        self.last().measurements.push(Measurement {
            server: server.to_owned(),
            load: load.to_owned(),
            sample,
        });
    }

    /// Adds a figure, and prints it.
    pub(crate) fn row(&mut self, title: &str, target: Threshold, value: Option<RoundStats>, note: String) {
        // A quotient of zeros is no number.
        let value = value.filter(|value| !value.median.is_nan());
        let figure = Figure { title: title.to_owned(), target, value, note };
        println!("{figure}");
        self.last().figures.push(figure);
    }

    /// Adds a sentence to the section, and prints it.
    pub(crate) fn note(&mut self, note: String) {
        println!("  {note}");
        self.last().notes.push(note);
    }

    /// Adds data behind the figures to the JSON.
    pub(crate) fn add_details(&mut self, name: &str, details: Value) {
        self.details.insert(name.to_owned(), details);
    }

    /// Titles of the figures that miss their threshold, with their section.
    pub(crate) fn missed(&self) -> Vec<String> {
        let figures = self
            .sections
            .iter()
            .flat_map(|section| section.figures.iter().map(move |figure| (section, figure)));
        let missed = figures.filter(|(_, figure)| figure.verdict() == MISSED);
        missed.map(|(section, figure)| format!("{}: {}", section.title, figure.title)).collect()
    }

    /// Prints the results, and writes them to `<scenario>.txt` and `<scenario>.json` in `dir`.
    pub(crate) fn write(&self, dir: &Path) -> BenchResult<()> {
        let (text, json) = (self.to_string(), serde_json::to_string_pretty(self)?);
        println!("\n{text}");
        fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        for (extension, content) in [("txt", text), ("json", json)] {
            let path = dir.join(format!("{}.{extension}", self.scenario));
            fs::write(&path, content).map_err(|error| format!("{}: {error}", path.display()))?;
            println!("{} is written", path.display());
        }
        Ok(())
    }
}

impl Figure {
    fn verdict(&self) -> &'static str {
        self.target.verdict(self.value)
    }

    /// Median, and the range of the rounds if there are several.
    fn value_and_range(&self) -> [String; 2] {
        match self.value {
            None => ["n/a".to_owned(), String::new()],
            Some(RoundStats { median, min, max }) if min == max => [format!("{median:.3}"), String::new()],
            Some(RoundStats { median, min, max }) => [format!("{median:.3}"), format!("{min:.3}..{max:.3}")],
        }
    }
}

impl Measurement {
    const HEADINGS: [&str; 11] = [
        "server",
        "load",
        "requested/s",
        "sent/s",
        "answered/s",
        "refused",
        "CPU us",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "generator",
    ];

    fn cells(&self) -> [String; 11] {
        let Sample { cpu_us, p50_us, p99_us, p999_us, .. } = self.sample;
        let number = |value: f64, digits: usize| {
            if value.is_finite() { format!("{value:.digits$}") } else { "-".to_owned() }
        };
        let percent =
            |part: f64| if part.is_finite() { format!("{:.0} %", part * 100.0) } else { "-".to_owned() };
        [
            self.server.clone(),
            self.load.clone(),
            self.sample.requested_per_second.map_or("-".to_owned(), |rate| number(rate, 0)),
            number(self.sample.sent_per_second, 0),
            number(self.sample.per_second, 0),
            percent(self.sample.refused),
            number(cpu_us, 2),
            number(p50_us, 0),
            number(p99_us, 0),
            number(p999_us, 0),
            percent(self.sample.generator_busy),
        ]
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [value, range] = self.value_and_range();
        let (target, verdict) = (self.target.to_string(), self.verdict());
        let line =
            format!("{:<60} {value:>9} {range:>18} {target:>8} {verdict:<8} {}", self.title, self.note);
        f.write_str(line.trim_end())
    }
}

impl fmt::Display for ResultTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n{}\n{}", self.scenario, self.machine, self.command)?;
        for section in &self.sections {
            writeln!(f, "\n## {}", section.title)?;
            if !section.measurements.is_empty() {
                let rows = section.measurements.iter().map(Measurement::cells);
                let headings = Measurement::HEADINGS.map(str::to_owned);
                writeln!(f, "\n{}", aligned(&[headings].into_iter().chain(rows).collect::<Vec<_>>()))?;
            }
            if !section.figures.is_empty() {
                writeln!(f, "{:<60} {:>9} {:>18} {:>8}", "figure", "median", "range", "target")?;
            }
            section.figures.iter().try_for_each(|figure| writeln!(f, "{figure}"))?;
            section.notes.iter().try_for_each(|note| writeln!(f, "- {note}"))?;
        }
        Ok(())
    }
}

/// Lines of cells, padded to the width of their columns. The first two columns are text.
fn aligned(rows: &[[String; 11]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let line = |row: &[String; 11]| {
        let cell = |(column, text): (usize, &String)| {
            let width = width(column);
            if column < 2 { format!("{text:<width$}") } else { format!("{text:>width$}") }
        };
        let cells: Vec<String> = row.iter().enumerate().map(cell).collect();
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// Note of a ratio: the medians of both sides in their unit.
pub(crate) fn both(unit: &str, over: &[f64], under: &[f64]) -> String {
    format!("{unit}: {:.2} / {:.2}", median(over), median(under))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab::stats::rounds;

    #[test]
    fn a_figure_states_whether_its_target_is_reached() {
        let mut table = ResultTable::new("scenario");
        table.section("one");
        table.row("goodput", Threshold::AtLeast(0.9), rounds(&[0.89]), String::new());
        table.row("wait", Threshold::AtMost(2.0), rounds(&[1.0, 2.0, 9.0]), "of three".to_owned());
        table.section("two");
        table.row("wait", Threshold::AtMost(2.0), rounds(&[2.1]), String::new());
        table.row("wait", Threshold::AtMost(2.0), None, "there is no disk".to_owned());
        table.row("knee", Threshold::None, rounds(&[5.0]), String::new());
        table.row("quotient of zeros", Threshold::AtMost(2.0), rounds(&[f64::NAN]), String::new());
        assert_eq!(table.missed(), ["one: goodput", "two: wait"]);
        let text = table.to_string();
        let words = |title: &str| {
            let line = text.lines().find(|line| line.starts_with(title)).expect("there is such a line");
            line.split_whitespace().skip(title.split(' ').count()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(words("goodput"), "0.890 >= 0.9 MISSED");
        assert_eq!(words("wait"), "2.000 1.000..9.000 <= 2 reached of three");
        assert_eq!(words("quotient of zeros"), "n/a <= 2");
    }

    #[test]
    fn a_measurement_has_the_requested_and_the_sent_rate() {
        let mut table = ResultTable::new("scenario");
        let sample = Sample {
            requested_per_second: Some(100.0),
            sent_per_second: 90.0,
            per_second: 80.0,
            ..Sample::default()
        };
        table.measured("veche", "GET", &[sample, sample]);
        let text = table.to_string();
        let line = text.lines().find(|line| line.starts_with("veche")).expect("there is such a line");
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[..5], ["veche", "GET", "100", "90", "80"]);
    }
}
