//! Table of results with their thresholds.

use crate::BenchResult;
use bench::machine::MachineInfo;
use bench::report::{Sheet, escape, plain_page};
use bench::stats::RoundStats;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::{fmt, fs};

/// Verdicts on a threshold.
pub(crate) const REACHED: &str = "reached";
pub(crate) const MISSED: &str = "MISSED";

/// Threshold of a result, with the side on which the result must lie.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Threshold {
    AtLeast(f64),
    AtMost(f64),
    /// No threshold; the row is for information.
    None,
}

impl Threshold {
    /// Number of the threshold.
    pub(crate) const fn number(self) -> Option<f64> {
        match self {
            Self::AtLeast(number) | Self::AtMost(number) => Some(number),
            Self::None => None,
        }
    }

    /// Verdict on the median. Empty without a threshold or a value.
    pub(crate) fn verdict(self, value: Option<RoundStats>) -> &'static str {
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

/// One result.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TableRow {
    section: String,
    measure: String,
    target: Threshold,
    value: Option<RoundStats>,
    note: String,
}

/// All results of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ResultTable {
    pub(crate) machine: MachineInfo,
    command: String,
    section: String,
    rows: Vec<TableRow>,
    /// Data behind the rows by name, for readers of the JSON.
    details: BTreeMap<String, Value>,
}

impl ResultTable {
    pub(crate) fn new(machine: MachineInfo, command: String) -> Self {
        Self { machine, command, section: String::new(), rows: Vec::new(), details: BTreeMap::new() }
    }

    /// Adds data behind the rows to the JSON.
    pub(crate) fn add_details(&mut self, name: &str, details: Value) {
        self.details.insert(name.to_owned(), details);
    }

    /// Starts a section of rows.
    pub(crate) fn section(&mut self, title: &str) {
        title.clone_into(&mut self.section);
    }

    /// Adds a row, and prints it.
    pub(crate) fn row(&mut self, measure: &str, target: Threshold, value: Option<RoundStats>, note: String) {
        let row =
            TableRow { section: self.section.clone(), measure: measure.to_owned(), target, value, note };
        println!("{row}");
        self.rows.push(row);
    }

    /// Results that miss their threshold, with their section.
    pub(crate) fn missed(&self) -> Vec<String> {
        let missed = self.rows.iter().filter(|row| row.verdict() == MISSED);
        missed.map(|row| format!("{}: {}", row.section, row.measure)).collect()
    }

    /// Writes the table to `<name>.md`, `<name>.html` and `<name>.json` in `dir`.
    pub(crate) fn write(&self, dir: &Path, name: &str, title: &str) -> BenchResult<()> {
        let json = serde_json::to_string_pretty(self)?;
        write_report(dir, name, &self.markdown(title), &self.html(title), &json)
    }

    fn markdown(&self, title: &str) -> String {
        let mut out = format!("# {title}\n\n{}\n\n`{}`\n", self.machine, self.command);
        for (section, sheet) in self.sheets() {
            out += &format!("\n## {section}\n\n{}", sheet.markdown());
        }
        out
    }

    fn html(&self, title: &str) -> String {
        let (machine, command) = (escape(&self.machine.to_string()), escape(&self.command));
        let missed = self.missed().len();
        let judged = self.rows.iter().filter(|row| !row.verdict().is_empty()).count();
        let mut body = format!(
            "<header><h1>{}</h1>\n<p>{machine}</p>\n<p><b>{} of {judged} targets reached.</b> Run by \
             <code>{command}</code></p></header>\n",
            escape(title),
            judged - missed
        );
        for (section, sheet) in self.sheets() {
            body += &format!(
                "<section><h2>{}</h2>\n<div class=\"scroll\">{}</div></section>\n",
                escape(section),
                sheet.html()
            );
        }
        plain_page(title, "", &body)
    }

    /// Rows by section.
    fn sheets(&self) -> Vec<(&str, Sheet)> {
        let sections = self.rows.chunk_by(|a, b| a.section == b.section);
        let sheet = |rows: &[TableRow]| {
            let mut sheet = Sheet::new(&["measure"], &["value", "range", "target"], &["verdict", "note"]);
            for row in rows {
                let [value, range] = row.figures();
                let (target, verdict) = (row.target.to_string(), row.verdict().to_owned());
                sheet.row(vec![row.measure.clone(), value, range, target, verdict, row.note.clone()]);
            }
            sheet
        };
        sections.map(|rows| (rows[0].section.as_str(), sheet(rows))).collect()
    }
}

impl TableRow {
    fn verdict(&self) -> &'static str {
        self.target.verdict(self.value)
    }

    /// Median, and the range of the rounds if there are several.
    fn figures(&self) -> [String; 2] {
        match self.value {
            None => ["n/a".to_owned(), String::new()],
            Some(RoundStats { median, min, max }) if min == max => [format!("{median:.3}"), String::new()],
            Some(RoundStats { median, min, max }) => [format!("{median:.3}"), format!("{min:.3}..{max:.3}")],
        }
    }
}

impl fmt::Display for TableRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [value, range] = self.figures();
        let (target, verdict) = (self.target.to_string(), self.verdict());
        let measure = &self.measure;
        write!(f, "{measure:<52} {value:>9} {range:>18} {target:>8} {verdict:<8} {}", self.note)
    }
}

impl fmt::Display for ResultTable {
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

/// Writes a report in three formats: `<name>.md`, `<name>.html` and `<name>.json` in `dir`.
pub(crate) fn write_report(
    dir: &Path,
    name: &str,
    markdown: &str,
    html: &str,
    json: &str,
) -> BenchResult<()> {
    fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    for (ending, content) in [("md", markdown), ("html", html), ("json", json)] {
        let path = dir.join(format!("{name}.{ending}"));
        fs::write(&path, content).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("{} is written", path.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench::stats::rounds;

    #[test]
    fn a_row_says_whether_its_target_is_reached() {
        let mut table = ResultTable::new(MachineInfo::here(), "command".to_owned());
        table.section("one");
        table.row("goodput", Threshold::AtLeast(0.9), rounds(&[0.89]), String::new());
        table.row("wait", Threshold::AtMost(2.0), rounds(&[1.0, 2.0, 9.0]), "of <three>".to_owned());
        table.section("two");
        table.row("wait", Threshold::AtMost(2.0), rounds(&[2.1]), String::new());
        table.row("wait", Threshold::AtMost(2.0), None, "there is no disk".to_owned());
        table.row("knee", Threshold::None, rounds(&[5.0]), String::new());
        assert_eq!(table.missed(), ["one: goodput", "two: wait"]);
        let markdown = table.markdown("Title");
        assert!(markdown.contains("| goodput | 0.890 |  | >= 0.9 | MISSED |  |"), "{markdown}");
        assert!(
            markdown.contains("| wait | 2.000 | 1.000..9.000 | <= 2 | reached | of <three> |"),
            "{markdown}"
        );
        assert!(markdown.contains("| wait | n/a |  | <= 2 |  | there is no disk |"), "{markdown}");
        let html = table.html("Title");
        assert!(html.contains("1 of 3 targets reached") && html.contains("of &lt;three&gt;"), "{html}");
    }
}
