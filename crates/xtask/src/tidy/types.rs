//! The rule `duplicate-type`: one name of a type has one meaning in the workspace.
//!
//! It compares the types and traits of the directory `crates` that are visible outside their own
//! module, without test code. Private types are exempt: their readers see the definition in the
//! same file. So are the types of programs below `src/bin`, which nothing else can refer to.

use super::finding::{Finding, Rule};
use super::source::{SourceFile, TypeDefinition};
use std::collections::HashMap;

/// The definitions of all files by name.
#[derive(Debug, Default)]
pub(crate) struct TypeIndex {
    /// Path and line of each definition, in the order of the files.
    definitions: HashMap<String, Vec<(String, usize)>>,
}

impl TypeIndex {
    pub(crate) fn new(sources: &[SourceFile]) -> Self {
        let mut index = Self::default();
        for source in sources.iter().filter(|source| is_compared(&source.path)) {
            for definition in &source.types {
                let places = index.definitions.entry(definition.name.clone()).or_default();
                places.push((source.path.clone(), definition.line));
            }
        }
        index
    }
}

/// Whether the types of the file at `path` are compared.
fn is_compared(path: &str) -> bool {
    path.starts_with("crates/") && !path.contains("/src/bin/")
}

/// Finds the types of `source` whose name another definition of `index` has.
pub(crate) fn check(source: &SourceFile, index: &TypeIndex) -> Vec<Finding> {
    let finding = |definition: &TypeDefinition| {
        let places = index.definitions.get(&definition.name).filter(|_| is_compared(&source.path))?;
        let is_other = |(path, line): &&(String, usize)| *path != source.path || *line != definition.line;
        let others: Vec<String> =
            places.iter().filter(is_other).map(|(path, line)| format!("{path}:{line}")).collect();
        let message = format!(
            "`{}` is also defined at {}: say in the name which one it is",
            definition.name,
            others.join(", ")
        );
        let line = definition.line;
        (!others.is_empty()).then(|| Finding {
            path: source.path.clone(),
            line,
            rule: Rule::DuplicateType,
            message,
        })
    };
    source.types.iter().filter_map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let parse =
            |(path, text): &(&str, &str)| SourceFile::parse(path, (*text).to_owned()).expect("examined");
        let mut sources: Vec<SourceFile> = files.iter().map(parse).collect();
        source::omit_tests(&mut sources);
        let index = TypeIndex::new(&sources);
        sources.iter().flat_map(|source| check(source, &index)).map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn a_name_of_two_visible_types_is_found_at_both() {
        let files =
            [("crates/a/src/lib.rs", "pub struct Plan;"), ("crates/b/src/lib.rs", "\npub enum Plan {}")];
        let expected = [
            "crates/a/src/lib.rs:1: duplicate-type: `Plan` is also defined at crates/b/src/lib.rs:2: \
             say in the name which one it is",
            "crates/b/src/lib.rs:2: duplicate-type: `Plan` is also defined at crates/a/src/lib.rs:1: \
             say in the name which one it is",
        ];
        assert_eq!(found(&files), expected);
    }

    #[test]
    fn other_workspaces_and_programs_are_not_compared() {
        let files = [
            ("crates/a/src/lib.rs", "pub struct Plan;"),
            ("crates/a/src/bin/b/main.rs", "pub struct Plan;"),
            ("bench/b/src/lib.rs", "pub struct Plan;"),
        ];
        assert!(found(&files).is_empty());
    }

    #[test]
    fn private_types_and_different_names_are_not_found() {
        let files = [
            ("crates/a/src/lib.rs", "pub struct Plan;\nstruct Step;"),
            ("crates/b/src/lib.rs", "struct Plan;\npub struct Step;\npub struct PlanStep;"),
        ];
        assert!(found(&files).is_empty());
    }

    #[test]
    fn types_of_test_code_are_not_compared() {
        let files = [
            ("crates/a/src/lib.rs", "pub struct Plan;\n#[cfg(test)]\nmod testing;"),
            ("crates/a/src/testing.rs", "pub struct Plan;"),
            ("crates/a/src/testing/more.rs", "pub struct Plan;"),
            ("crates/a/tests/plan.rs", "pub struct Plan;"),
            ("crates/b/src/lib.rs", "#[cfg(test)]\nmod tests { pub struct Plan; }"),
        ];
        assert!(found(&files).is_empty());
    }
}
