//! The table of `cargo xtask tidy --summary`: figures per crate.

use super::finding::{Finding, Rule};
use super::wording::Rate;
use std::collections::BTreeMap;
use std::fmt;

/// Figures of the files of one crate.
#[derive(Clone, Debug, Default)]
struct Row {
    files: usize,
    /// Words of prose.
    words: usize,
    /// Occurrences of the words that the rule `rate` counts.
    counted: usize,
    findings: BTreeMap<Rule, usize>,
}

impl Row {
    fn add(&mut self, other: &Self) {
        self.files += other.files;
        self.words += other.words;
        self.counted += other.counted;
        for (rule, count) in &other.findings {
            *self.findings.entry(*rule).or_default() += count;
        }
    }

    fn line(&self, name: &str) -> String {
        let rate = Rate::per_thousand(self.words, self.counted);
        let counts = Rule::FAILING.map(|rule| {
            let count = self.findings.get(&rule).copied().unwrap_or(0);
            format!(" {count:>width$}", width = rule.name().len())
        });
        let (files, words, counted) = (self.files, self.words, self.counted);
        format!("{name:<16} {files:>5} {words:>7} {counted:>7} {rate:>9.1}{}", counts.concat())
    }
}

/// Figures per crate and in total.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProseSummary {
    rows: BTreeMap<String, Row>,
}

impl ProseSummary {
    /// Adds the figures of one file.
    pub(crate) fn add(&mut self, path: &str, rate: &Rate, findings: &[Finding]) {
        let mut row = Row { files: 1, words: rate.words, counted: rate.counted.len(), ..Row::default() };
        for finding in findings {
            *row.findings.entry(finding.rule).or_default() += 1;
        }
        self.rows.entry(group(path)).or_default().add(&row);
    }

    /// The number of findings in total.
    pub(crate) fn findings(&self) -> usize {
        self.rows.values().flat_map(|row| row.findings.values()).sum()
    }
}

/// The crate of a file, or its directory below the root.
fn group(path: &str) -> String {
    let mut components = path.split('/');
    match (components.next(), components.next(), components.next()) {
        (Some("crates"), Some(name), Some(_)) => format!("crates/{name}"),
        (Some(top), Some(_), _) => top.to_owned(),
        _ => ".".to_owned(),
    }
}

impl fmt::Display for ProseSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = Rule::FAILING.map(|rule| format!(" {}", rule.name()));
        writeln!(
            f,
            "{:<16} {:>5} {:>7} {:>7} {:>9}{}",
            "crate",
            "files",
            "words",
            "counted",
            "per 1,000",
            rules.concat()
        )?;
        let mut total = Row::default();
        for (name, row) in &self.rows {
            writeln!(f, "{}", row.line(name))?;
            total.add(row);
        }
        writeln!(f, "{}", total.line("total"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_summed_per_crate_and_in_total() {
        let mut summary = ProseSummary::default();
        let rate = Rate { words: 500, counted: vec![(1, "what")] };
        let finding = Finding { path: String::new(), line: 1, rule: Rule::Wide, message: String::new() };
        summary.add("crates/engine/src/lib.rs", &rate, &[finding.clone(), finding]);
        summary.add("crates/engine/tests/crash.rs", &rate, &[]);
        summary.add("README.md", &rate, &[]);
        assert_eq!(summary.findings(), 2);
        let expected = "\
crate            files   words counted per 1,000 duplicate-type retired-name phrase fragment wide reference rate sentence
.                    1     500       1       2.0              0            0      0        0    0         0    0        0
crates/engine        2    1000       2       2.0              0            0      0        0    2         0    0        0
total                3    1500       3       2.0              0            0      0        0    2         0    0        0
";
        assert_eq!(summary.to_string(), expected);
    }
}
