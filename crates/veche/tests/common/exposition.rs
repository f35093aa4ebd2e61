//! A strict reader of the text format of Prometheus, version 0.0.4.
//!
//! It takes less than the format allows: no time stamps, no comments, `HELP` and `TYPE` before each
//! family, families in one piece, histograms complete.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::str::Chars;

type Labels = BTreeMap<String, String>;

/// Result of a scrape.
#[derive(Debug)]
pub(crate) struct Scrape {
    /// The type of each family, by name.
    pub(crate) types: BTreeMap<String, String>,
    samples: BTreeMap<(String, Labels), f64>,
}

impl Scrape {
    /// Reads a text.
    ///
    /// # Errors
    /// The line and its fault.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        if !text.ends_with('\n') {
            return Err("the last line does not end".to_owned());
        }
        let mut scrape = Self { types: BTreeMap::new(), samples: BTreeMap::new() };
        let mut lines = text.lines().peekable();
        while lines.peek().is_some() {
            scrape.read_family(&mut lines)?;
        }
        Ok(scrape)
    }

    fn read_family<'a>(&mut self, lines: &mut Peekable<impl Iterator<Item = &'a str>>) -> Result<(), String> {
        let help = lines.next().unwrap_or_default();
        let words = help.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' '));
        let (name, _) = words.filter(|(_, text)| !text.is_empty()).ok_or(format!("no HELP: {help}"))?;
        let kind_line = lines.next().unwrap_or_default();
        let kind =
            kind_line.strip_prefix(&format!("# TYPE {name} ")).ok_or(format!("no TYPE: {kind_line}"))?;
        if !is_name(name) || !["counter", "gauge", "histogram"].contains(&kind) {
            return Err(format!("no such name or type: {kind_line}"));
        }
        if self.types.insert(name.to_owned(), kind.to_owned()).is_some() {
            return Err(format!("{name} is there twice"));
        }
        let mut family = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let (of, labels, value) = read_sample(line).ok_or(format!("no sample: {line}"))?;
            let suffix = of.strip_prefix(name).ok_or(format!("not of {name}: {line}"))?;
            let belongs = match kind {
                "histogram" => ["_bucket", "_sum", "_count"].contains(&suffix),
                _ => suffix.is_empty(),
            };
            if !belongs || (kind != "gauge" && value < 0.0) {
                return Err(format!("not of the {kind} {name}: {line}"));
            }
            if self.samples.insert((of.clone(), labels.clone()), value).is_some() {
                return Err(format!("twice: {line}"));
            }
            family.push((suffix.to_owned(), labels, value));
        }
        if kind == "histogram" { check_histograms(name, &family) } else { Ok(()) }
    }

    /// The sample with exactly these labels.
    #[track_caller]
    pub(crate) fn get(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let labels = labels.iter().map(|(label, value)| ((*label).to_owned(), (*value).to_owned())).collect();
        let sample = self.samples.get(&(name.to_owned(), labels));
        *sample.unwrap_or_else(|| panic!("no {name} with these labels: {:?}", self.of(name)))
    }

    /// The sum over the samples that have these labels among theirs.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has =
            |of: &Labels| labels.iter().all(|(label, value)| of.get(*label).is_some_and(|is| is == value));
        self.of(name).into_iter().filter(|(of, _)| has(of)).map(|(_, value)| value).sum()
    }

    /// The samples of this name.
    pub(crate) fn of(&self, name: &str) -> Vec<(&Labels, f64)> {
        let of_name = self.samples.iter().filter(|((of, _), _)| of == name);
        of_name.map(|((_, labels), value)| (labels, *value)).collect()
    }

    /// Asserts that nothing went back that cannot, since `before`.
    #[track_caller]
    pub(crate) fn assert_rises_from(&self, before: &Self) {
        for ((name, labels), was) in &before.samples {
            if before.types.get(name).is_some_and(|kind| kind == "gauge") {
                continue;
            }
            let is = self.samples.get(&(name.clone(), labels.clone()));
            assert!(is.is_some_and(|is| is >= was), "{name} {labels:?} was {was} and is {is:?}");
        }
    }
}

fn is_name(text: &str) -> bool {
    let is_first = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    text.bytes().next().is_some_and(is_first)
        && text.bytes().all(|byte| is_first(byte) || byte.is_ascii_digit())
}

/// Name, labels, value.
fn read_sample(line: &str) -> Option<(String, Labels, f64)> {
    let mut rest = line.chars().peekable();
    let mut name = String::new();
    while let Some(character) = rest.next_if(|character| !matches!(character, '{' | ' ')) {
        name.push(character);
    }
    let mut labels = Labels::new();
    if rest.next_if_eq(&'{').is_some() {
        loop {
            let (label, value) = read_label(&mut rest)?;
            if labels.insert(label, value).is_some() {
                return None;
            }
            match rest.next()? {
                ',' => {}
                '}' => break,
                _ => return None,
            }
        }
    }
    rest.next_if_eq(&' ')?;
    let value = match rest.collect::<String>().as_str() {
        "+Inf" => f64::INFINITY,
        text if text.bytes().all(|byte| byte.is_ascii_digit() || b".-+e".contains(&byte)) => {
            text.parse().ok()?
        }
        _ => return None,
    };
    is_name(&name).then_some((name, labels, value))
}

fn read_label(rest: &mut Peekable<Chars<'_>>) -> Option<(String, String)> {
    let mut label = String::new();
    while let Some(character) = rest.next_if(|character| *character != '=') {
        label.push(character);
    }
    if !is_name(&label) || rest.next() != Some('=') || rest.next() != Some('"') {
        return None;
    }
    let mut value = String::new();
    loop {
        match rest.next()? {
            '"' => return Some((label, value)),
            '\\' => value.push(match rest.next()? {
                'n' => '\n',
                escaped @ ('\\' | '"') => escaped,
                _ => return None,
            }),
            other => value.push(other),
        }
    }
}

/// Each histogram has ascending bounds, cumulative counts, the last of them for all, a sum and a
/// count.
fn check_histograms(name: &str, family: &[(String, Labels, f64)]) -> Result<(), String> {
    let bare = |labels: &Labels| {
        let mut labels = labels.clone();
        labels.remove("le");
        labels
    };
    let all: BTreeSet<Labels> = family.iter().map(|(_, labels, _)| bare(labels)).collect();
    for of in all {
        let one = |suffix: &str| {
            family.iter().find(|(is, labels, _)| is == suffix && *labels == of).map(|(_, _, value)| *value)
        };
        let (sum, count) = (one("_sum"), one("_count"));
        let mut last = (f64::NEG_INFINITY, 0.0);
        for (_, labels, value) in
            family.iter().filter(|(is, labels, _)| is == "_bucket" && bare(labels) == of)
        {
            let le = match labels.get("le").map(String::as_str) {
                Some("+Inf") => f64::INFINITY,
                le => le.and_then(|le| le.parse().ok()).ok_or(format!("{name} {of:?}: no le"))?,
            };
            if le <= last.0 || *value < last.1 {
                return Err(format!("{name} {of:?}: not cumulative at {le}"));
            }
            last = (le, *value);
        }
        if sum.is_none() || last.0 != f64::INFINITY || Some(last.1) != count {
            return Err(format!("{name} {of:?}: {sum:?} {count:?} {last:?}"));
        }
    }
    Ok(())
}
