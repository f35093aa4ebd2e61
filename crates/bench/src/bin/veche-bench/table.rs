//! The table of ratios.

use bench::machine::Machine;
use bench::stats::Rounds;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// The side of the target on which a ratio must lie.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// For reading along with the rows that have one.
    None,
}

impl Target {
    /// The number of the target.
    pub(crate) const fn number(self) -> Option<f64> {
        match self {
            Self::AtLeast(number) | Self::AtMost(number) => Some(number),
            Self::None => None,
        }
    }

    /// Whether a value lies on its right side. `None`: it has none.
    pub(crate) fn holds(self, value: f64) -> Option<bool> {
        match self {
            Self::AtLeast(least) => Some(value >= least),
            Self::AtMost(most) => Some(value <= most),
            Self::None => None,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, ">= {least}"),
            Self::AtMost(most) => write!(f, "<= {most}"),
            Self::None => Ok(()),
        }
    }
}

/// One measure.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    section: String,
    measure: String,
    target: Target,
    value: Option<Rounds>,
    note: String,
}

/// All measures of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Table {
    pub(crate) machine: Machine,
    options: String,
    section: String,
    rows: Vec<Row>,
    /// What rows are made of, by name, for whoever reads the JSON.
    details: BTreeMap<String, Value>,
}

impl Table {
    pub(crate) fn new(machine: Machine, options: String) -> Self {
        Self { machine, options, section: String::new(), rows: Vec::new(), details: BTreeMap::new() }
    }

    /// Keeps what rows are made of.
    pub(crate) fn keep(&mut self, name: &str, details: Value) {
        self.details.insert(name.to_owned(), details);
    }

    /// The rows that follow belong to this section.
    pub(crate) fn section(&mut self, title: &str) {
        title.clone_into(&mut self.section);
    }

    /// Adds a row, and prints it as it comes.
    pub(crate) fn row(&mut self, measure: &str, target: Target, value: Option<Rounds>, note: String) {
        let row = Row { section: self.section.clone(), measure: measure.to_owned(), target, value, note };
        println!("{row}");
        self.rows.push(row);
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, range, verdict) = match self.value {
            None => ("n/a".to_owned(), String::new(), ""),
            Some(Rounds { median, min, max }) => {
                let verdict =
                    self.target.holds(median).map_or("", |holds| if holds { "reached" } else { "MISSED" });
                (format!("{median:.3}"), format!("{min:.3}..{max:.3}"), verdict)
            }
        };
        let target = self.target.to_string();
        let measure = &self.measure;
        write!(f, "{measure:<52} {value:>9} {range:>18} {target:>8} {verdict:<8} {}", self.note)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut section = "";
        for row in &self.rows {
            if row.section != section {
                section = &row.section;
                writeln!(f, "\n## {section}\n")?;
                writeln!(f, "{:<52} {:>9} {:>18} {:>8}", "measure", "median", "rounds", "target")?;
            }
            writeln!(f, "{row}")?;
        }
        Ok(())
    }
}
