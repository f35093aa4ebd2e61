//! The rule `retired-name`: identifiers do not contain retired words.
//!
//! It examines identifiers in Rust code, identifiers in code spans, and the names of files. Each
//! identifier is reported once per file, with the number of its uses.
//!
//! Code spans also hold names of the interface, such as metrics and fields of JSON, which a rename
//! in the code does not change. So names of metrics are exempt. On pages, only code spans with a
//! path of Rust (`Queue::new`) or of a Rust file are examined; in `ARCHITECTURE.md`, all are.

use super::finding::{Finding, Rule};
use super::prose::{Located, ProseToken};
use super::source::{Identifier, Language, SourceFile};
use super::words::{Match, Name};
use std::collections::BTreeMap;

/// The prefix of the names of all metrics.
const METRIC_PREFIX: &str = "veche_";

/// Finds identifiers of `source` that match an entry of `table`.
pub(crate) fn check(source: &SourceFile, prose: &[Located], table: &[Name]) -> Vec<Finding> {
    let table: Vec<&Name> = table.iter().filter(|name| name.scope.includes(&source.path)).collect();
    let in_path = path_identifiers(&source.path);
    let names_code = |located: &&Located| may_name_code(source, &located.token);
    let in_prose = prose.iter().filter(names_code).flat_map(code_identifiers);
    let mut uses: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for Identifier { line, name } in in_path.chain(source.identifiers.iter().cloned()).chain(in_prose) {
        let (first, count) = uses.entry(name).or_insert((line, 0));
        *first = line.min(*first);
        *count += 1;
    }
    let finding = |(identifier, (line, count)): (String, (usize, usize))| {
        let segments = segments(&identifier);
        let entry = table.iter().find(|entry| matches(entry, &identifier, &segments))?;
        let times = if count == 1 { String::new() } else { format!(" ({count} times in this file)") };
        let message = format!("`{identifier}`{times}: use {}", entry.suggestion);
        Some(Finding { path: source.path.clone(), line, rule: Rule::RetiredName, message })
    };
    let mut findings: Vec<Finding> = uses.into_iter().filter_map(finding).collect();
    findings.sort_by_key(|finding| finding.line);
    findings
}

/// The components of a path without extension, as identifiers on line 1.
fn path_identifiers(path: &str) -> impl Iterator<Item = Identifier> {
    let stem = |component: &str| component.split('.').next().unwrap_or_default().to_owned();
    path.split('/').map(move |component| Identifier { line: 1, name: stem(component) })
}

/// Whether the code span `token` may name an item or a file of the code.
fn may_name_code(source: &SourceFile, token: &ProseToken) -> bool {
    let ProseToken::Code { text, .. } = token else { return false };
    let is_rust_path = text.contains("::") || text.ends_with(".rs");
    source.language == Language::Rust || source.path == "ARCHITECTURE.md" || is_rust_path
}

/// The identifiers in a code span, without names of metrics.
fn code_identifiers(located: &Located) -> Vec<Identifier> {
    let ProseToken::Code { text, .. } = &located.token else { return Vec::new() };
    let names = text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|name| !name.is_empty());
    let in_code = names.filter(|name| !name.starts_with(METRIC_PREFIX));
    in_code.map(|name| Identifier { line: located.line, name: name.to_owned() }).collect()
}

/// Whether an entry matches an identifier, which consists of `segments`.
fn matches(entry: &Name, identifier: &str, segments: &[String]) -> bool {
    let mut alternatives = entry.old.split('|');
    match entry.kind {
        Match::Exact => alternatives.any(|old| old == identifier),
        Match::Segment => alternatives.any(|old| segments.iter().any(|segment| segment == old)),
    }
}

/// The words of a snake-case or camel-case identifier, in lower case.
fn segments(identifier: &str) -> Vec<String> {
    let mut segments: Vec<String> = Vec::new();
    for part in identifier.split(['_', '-']) {
        let chars: Vec<char> = part.chars().collect();
        for (index, c) in chars.iter().enumerate() {
            let follows_lower = index > 0 && !chars[index - 1].is_uppercase();
            let precedes_lower = chars.get(index + 1).is_some_and(|next| next.is_lowercase());
            if index == 0 || (c.is_uppercase() && (follows_lower || precedes_lower)) {
                segments.push(String::new());
            }
            segments.last_mut().expect("pushed at the first character").extend(c.to_lowercase());
        }
    }
    segments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::prose;
    use crate::tidy::words::{exact, segment};

    const TABLE: [Name; 3] = [
        segment("purse|purses", "Budget"),
        exact("Taken", "Reservation"),
        segment("course", "trace").under("server/|api/"),
    ];

    fn found(path: &str, text: &str) -> Vec<String> {
        let source = SourceFile::parse(path, text.to_owned()).expect("examined");
        let prose: Vec<Located> = source.blocks.iter().flat_map(prose::tokens).collect();
        check(&source, &prose, &TABLE).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn identifiers_are_split_into_segments() {
        assert_eq!(segments("purse_of"), ["purse", "of"]);
        assert_eq!(segments("SharedPurse2"), ["shared", "purse2"]);
        assert_eq!(segments("HTTPServer"), ["http", "server"]);
        assert_eq!(segments("PURSE_MAX"), ["purse", "max"]);
    }

    #[test]
    fn a_segment_is_found_in_every_case() {
        for name in ["purse", "SharedPurse", "PURSES_MAX", "a_purse_lends"] {
            assert_eq!(found("a.rs", name), [format!("a.rs:1: retired-name: `{name}`: use Budget")]);
        }
        assert!(found("a.rs", "pursed dispursement \"purse\"").is_empty());
    }

    #[test]
    fn an_exact_entry_matches_whole_identifiers() {
        assert_eq!(found("a.rs", "Taken").len(), 1);
        assert!(found("a.rs", "taken TakenValue").is_empty());
    }

    #[test]
    fn a_prefix_limits_an_entry() {
        assert_eq!(found("server/a.rs", "course").len(), 1);
        assert_eq!(found("api/a.rs", "course").len(), 1);
        assert!(found("sim/a.rs", "course").is_empty());
    }

    #[test]
    fn uses_are_counted_and_the_first_line_is_named() {
        let text = "\npurse\npurse // `purse`";
        assert_eq!(found("a.rs", text), ["a.rs:2: retired-name: `purse` (3 times in this file): use Budget"]);
    }

    #[test]
    fn names_of_files_and_code_spans_are_examined() {
        assert_eq!(found("memory/purse.rs", "").len(), 1);
        assert_eq!(found("a.rs", "// the `purse` of").len(), 1);
        assert_eq!(found("a.md", "the `Purse::new` of").len(), 1);
        assert_eq!(found("ARCHITECTURE.md", "the `purse` of").len(), 1);
    }

    #[test]
    fn prose_and_names_of_the_interface_are_not_examined() {
        assert!(found("a.rs", "// the purse of `veche_purse_bytes`").is_empty());
        assert!(found("a.md", "the purse: `purse` in JSON").is_empty());
    }
}
