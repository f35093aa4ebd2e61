//! The rule `reference`: files and pages that prose refers to exist.
//!
//! It examines targets of relative links, code spans, and paths in plain text. A reference is
//! resolved against the root, `crates/`, each crate, `docs/` and the directories above the file. It
//! may be a glob (`tests/node_*.rs`) or a set (`tests/{crash,manifest}.rs`).
//!
//! Other text in code spans may look like a path: files that a node writes, HTTP resources, media
//! types. So the following text is a reference:
//!
//! - a name that ends in `.rs`;
//! - a path that ends in `.rs`, `.md` or `.txt`, or begins with a directory of the root;
//! - a code span that names a module below a crate (`server/stream`) or another module.
//!
//! Rustdoc checks links between items of Rust.

use super::finding::{Finding, Rule};
use super::prose::{Located, ProseToken};
use super::source::{Language, SourceFile};
use std::collections::{BTreeSet, HashMap, HashSet};

/// The directory of build output. Its files exist after a build only.
const BUILD_DIRECTORY: &str = "target";

/// The files of the repository, and the anchors of its pages.
#[derive(Debug, Default)]
pub(crate) struct FileTree {
    /// Paths of files and directories.
    paths: HashSet<String>,
    /// Names of the files, without directories.
    file_names: HashSet<String>,
    /// Directories of the root.
    top: BTreeSet<String>,
    /// Names of the directories below `crates/`.
    crates: BTreeSet<String>,
    /// Names of the directories below the `src` of any crate.
    modules: BTreeSet<String>,
    /// Anchors of headings by page.
    anchors: HashMap<String, HashSet<String>>,
}

impl FileTree {
    /// Indexes the paths of files, and the headings of `sources`.
    pub(crate) fn new<'a>(files: impl IntoIterator<Item = &'a str>, sources: &[SourceFile]) -> Self {
        let mut tree = Self::default();
        for file in files {
            let mut components = file.split('/');
            if let (Some(top), Some(second)) = (components.next(), components.next()) {
                tree.top.insert(top.to_owned());
                if top == "crates" {
                    tree.crates.insert(second.to_owned());
                }
            }
            if let ["crates", _, "src", module, _, ..] = file.split('/').collect::<Vec<_>>()[..] {
                tree.modules.insert(module.to_owned());
            }
            tree.file_names.insert(last_component(file).to_owned());
            let ends = file.match_indices('/').map(|(at, _)| at).chain([file.len()]);
            tree.paths.extend(ends.map(|end| file[..end].to_owned()));
        }
        for source in sources.iter().filter(|source| source.language == Language::Markdown) {
            tree.anchors.insert(source.path.clone(), anchors(&source.text));
        }
        tree
    }

    fn contains(&self, path: &str) -> bool {
        if path.contains('*') {
            return self.paths.iter().any(|candidate| matches_glob(path, candidate));
        }
        self.paths.contains(path)
    }

    /// Whether `reference`, without glob characters for sets, names a file when read in `path`.
    fn resolves(&self, reference: &str, path: &str) -> bool {
        let mut directory = path;
        while let Some((above, _)) = directory.rsplit_once('/') {
            directory = above;
            if self.contains(&format!("{directory}/{reference}")) {
                return true;
            }
        }
        // A module file names the files of the module below it.
        let module = path.strip_suffix(".rs").map(|module| format!("{module}/{reference}"));
        if module.is_some_and(|path| self.contains(&path)) {
            return true;
        }
        let (first, below) = reference.split_once('/').unwrap_or((reference, ""));
        let of_crate = self
            .crates
            .iter()
            .flat_map(|name| ["", "src/", "tests/"].map(|part| format!("crates/{name}/{part}{reference}")));
        let below_crate = ["src", "tests"].map(|part| format!("crates/{first}/{part}/{below}"));
        let elsewhere = ["", "crates/", "docs/"].map(|directory| format!("{directory}{reference}"));
        elsewhere.into_iter().chain(of_crate).chain(below_crate).any(|path| self.contains(&path))
    }

    /// Whether a code span such as `server/stream` names a module below a crate or another module.
    fn names_module(&self, reference: &str) -> bool {
        let is_name =
            |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        let mut components = reference.trim_end_matches('/').split('/');
        let is_known = |name: &str| self.crates.contains(name) || self.modules.contains(name);
        components.next().is_some_and(is_known) && reference.contains('/') && components.all(is_name)
    }

    /// Whether the text of a code span or a path in plain text refers to a file of the repository.
    fn is_reference(&self, text: &str, is_span: bool) -> bool {
        let is_path = |c: char| c.is_ascii_alphanumeric() || "_./*-".contains(c);
        if text.starts_with(['/', '-', '*']) || !text.chars().all(is_path) || text.contains("**") {
            return false;
        }
        let Some((first, _)) = text.split_once('/') else {
            return text.len() > ".rs".len() && text.ends_with(".rs");
        };
        // A path in a versioned package: hyper-1.12.0/src/lib.rs.
        let is_versioned = first.rsplit_once('-').is_some_and(|(_, version)| version.contains('.'));
        if is_versioned || first == ".." || first == BUILD_DIRECTORY {
            return false;
        }
        let has_extension = [".rs", ".md", ".txt"].into_iter().any(|end| text.ends_with(end));
        has_extension || self.top.contains(first) || (is_span && self.names_module(text))
    }

    /// The first part of a reference in prose that does not exist.
    fn dead_in_text(&self, text: &str, is_span: bool, path: &str) -> Option<String> {
        let text = without_line_number(text);
        expand(text).into_iter().find(|reference| {
            self.is_reference(reference, is_span) && !self.exists(reference.trim_end_matches('/'), path)
        })
    }

    fn exists(&self, reference: &str, path: &str) -> bool {
        let is_file_name = !reference.contains('/') && self.file_names.contains(reference);
        let module = format!("{reference}.rs");
        is_file_name || self.resolves(reference, path) || self.resolves(&module, path)
    }

    /// The reason why the target of a link is dead, if it is.
    fn dead_link(&self, target: &str, source: &SourceFile) -> Option<String> {
        let target = target.split_whitespace().next().unwrap_or_default();
        let (file, anchor) =
            target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
        let is_page = source.language == Language::Markdown;
        // In Rust, other targets are items.
        let is_file = is_page || [".rs", ".md"].into_iter().any(|end| file.ends_with(end));
        if target.contains(':') || !is_file {
            return None;
        }
        let path = if file.is_empty() { source.path.clone() } else { joined(&source.path, file) };
        if !self.contains(path.trim_end_matches('/')) {
            return Some(format!("the link's target {file} does not exist"));
        }
        let anchors = self.anchors.get(&path)?;
        let anchor = anchor.filter(|anchor| !anchors.contains(*anchor))?;
        Some(format!("{path} has no heading #{anchor}"))
    }
}

/// Finds references of `source` to files that are not in `tree`.
pub(crate) fn check(source: &SourceFile, prose: &[Located], tree: &FileTree) -> Vec<Finding> {
    let dead = |located: &Located| {
        let message = match &located.token {
            ProseToken::Target(target) => tree.dead_link(target, source)?,
            ProseToken::Code { text, is_span } => {
                let reference = tree.dead_in_text(text, *is_span, &source.path)?;
                format!("{reference} does not exist")
            }
            ProseToken::Word(_) | ProseToken::Pause | ProseToken::Stop => return None,
        };
        Some(Finding { path: source.path.clone(), line: located.line, rule: Rule::Reference, message })
    };
    prose.iter().filter_map(dead).collect()
}

fn last_component(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A reference such as `lib.rs:12` without its line number.
fn without_line_number(text: &str) -> &str {
    match text.split_once(':') {
        Some((path, number)) if number.chars().all(|c| c.is_ascii_digit()) => path,
        _ => text,
    }
}

/// The members of a set: `tests/{crash,scan}.rs` is `tests/crash.rs` and `tests/scan.rs`.
fn expand(text: &str) -> Vec<String> {
    let Some((before, rest)) = text.split_once('{') else { return vec![text.to_owned()] };
    let Some((choices, after)) = rest.split_once('}') else { return vec![text.to_owned()] };
    let expanded = choices.split(',').map(|choice| format!("{before}{choice}{after}"));
    expanded.flat_map(|text| expand(&text)).collect()
}

/// Whether `path` matches `glob`, in which `*` stands for any characters of one component.
fn matches_glob(glob: &str, path: &str) -> bool {
    let (globs, parts): (Vec<&str>, Vec<&str>) = (glob.split('/').collect(), path.split('/').collect());
    globs.len() == parts.len() && globs.iter().zip(parts).all(|(glob, part)| matches_component(glob, part))
}

fn matches_component(glob: &str, name: &str) -> bool {
    match glob.split_once('*') {
        None => glob == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            let ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
            ends.into_iter().any(|at| matches_component(rest, &name[at..]))
        }),
    }
}

/// The path to which `target` leads from the directory of `page`.
fn joined(page: &str, target: &str) -> String {
    let mut components: Vec<&str> = page.split('/').collect();
    components.pop();
    for component in target.split('/') {
        match component {
            "." | "" => {}
            ".." => drop(components.pop()),
            _ => components.push(component),
        }
    }
    components.join("/")
}

/// The anchors that GitHub gives to the headings of a page.
fn anchors(text: &str) -> HashSet<String> {
    let mut anchors = HashSet::new();
    let mut in_fence = false;
    for line in text.lines() {
        if line.starts_with("```") {
            in_fence = !in_fence;
        }
        let title = line.trim_start_matches('#');
        if in_fence || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let anchor: String = title.trim().to_lowercase().chars().filter(kept).collect();
        let anchor = anchor.replace(' ', "-");
        let repeated = (1..).map(|number| format!("{anchor}-{number}"));
        let mut candidates = [anchor.clone()].into_iter().chain(repeated);
        anchors.extend(candidates.find(|candidate| !anchors.contains(candidate)));
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::prose;

    const FILES: [&str; 10] = [
        "README.md",
        "docs/testing.md",
        "docs/format/wal.md",
        "crates/engine/src/read.rs",
        "crates/engine/src/wal/mod.rs",
        "crates/engine/tests/crash.rs",
        "crates/engine/tests/scripts/a.txt",
        "crates/engine/tests/scripts/b.txt",
        "crates/server/src/stream/fast_path.rs",
        "bench/run",
    ];

    fn found(path: &str, text: &str) -> Vec<String> {
        let testing =
            SourceFile::parse("docs/testing.md", "# How it is tested\n## Rules\n## Rules\n".to_owned());
        let source = SourceFile::parse(path, text.to_owned()).expect("examined");
        let tree = FileTree::new(FILES, &[testing.expect("a page"), source.clone()]);
        let prose: Vec<Located> = source.blocks.iter().flat_map(prose::tokens).collect();
        check(&source, &prose, &tree).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn references_to_files_that_exist_are_not_found() {
        for text in [
            "`docs/testing.md`, docs/testing.md and `format/wal.md`",
            "`crates/engine/src/read.rs`, `engine/read.rs`, `read.rs:12` and `wal/mod.rs`",
            "`crates/engine/tests/{crash}.rs`, `engine/crash.rs`, `tests/crash.rs`, `tests/c*.rs`",
            "`server/stream/fast_path`, `server/stream/`, `crates/engine/src/{wal,read.rs}`",
            "`bench/run` and `crates/engine`, `stream/fast_path`, `scripts/{a,b}.txt`",
        ] {
            assert!(found("docs/format/wal.md", text).is_empty(), "{text}");
        }
    }

    #[test]
    fn references_to_files_that_do_not_exist_are_found() {
        for (text, dead) in [
            ("`docs/gone.md`", "docs/gone.md"),
            ("see docs/gone.md.", "docs/gone.md"),
            ("`gone.rs`", "gone.rs"),
            ("`a-gone.rs`", "a-gone.rs"),
            ("`engine/gone.rs:3`", "engine/gone.rs"),
            ("`crates/engine/tests/{crash,gone}.rs`", "crates/engine/tests/gone.rs"),
            ("`tests/gone_*.rs`", "tests/gone_*.rs"),
            ("`server/stream/gone`", "server/stream/gone"),
            ("`bench/gone`", "bench/gone"),
            ("`stream/gone`", "stream/gone"),
            ("`scripts/{a,gone}.txt`", "scripts/gone.txt"),
        ] {
            assert_eq!(found("crates/engine/src/lib.md", text), [format!("{dead} does not exist")], "{text}");
        }
    }

    #[test]
    fn other_text_with_separators_is_no_reference() {
        for text in [
            "`shard-000/manifest`, `/v0/status`, `text/plain`, `*/*`, `got/from`, `a::b`",
            "`/proc/self/stat`, `target/soak/soak.md`, `soak.md`, `hyper-1.12.0/src/conn.rs`, `NAME.rs/…`",
            "<https://example.com/docs/gone.md> and https://example.com/docs/gone.md",
        ] {
            assert!(found("crates/engine/src/lib.rs", &format!("// {text}")).is_empty(), "{text}");
        }
    }

    #[test]
    fn links_lead_to_pages_and_headings_that_exist() {
        let page = "docs/format/wal.md";
        for link in
            ["../testing.md", "../testing.md#rules-1", "../../README.md", "..", "https://a.b/c.md", "#here"]
        {
            assert!(found(page, &format!("# Here\n[a]({link})")).is_empty(), "{link}");
        }
        assert_eq!(found(page, "[a](testing.md)"), ["the link's target testing.md does not exist"]);
        assert_eq!(found(page, "[a](../testing.md#gone)"), ["docs/testing.md has no heading #gone"]);
    }

    #[test]
    fn links_to_items_are_left_to_rustdoc() {
        assert!(found("crates/engine/src/read.rs", "/// [a](crate::Gone) [b](Self::gone)").is_empty());
        assert_eq!(found("crates/engine/src/read.rs", "/// [a](../gone.md)").len(), 1);
    }
}
