//! `cargo xtask tidy`: style of prose and names, held by a program.
//!
//! It reads every file of the repository that git does not ignore, and reports each violation as
//! `path:line: rule: message`. It fails if there is one. There is no list of exceptions: a file is
//! mended, or a rule is.
//!
//! | rule | finds |
//! |---|---|
//! | `duplicate-type` | two visible types of the workspace with one name |
//! | `retired-name` | identifiers that contain a word of the table [`words::NAMES`] |
//! | `phrase` | prose that contains a phrase of the table [`words::PHRASES`] |
//! | `fragment` | a doc comment that begins in the middle of a sentence |
//! | `wide` | a comment that extends past column 100 |
//! | `reference` | a file or page that prose refers to and that does not exist |
//! | `rate` | more than 3 of the words [`words::COUNTED`] in 1,000 words of a file's prose |
//! | `sentence` | a sentence of more than 30 words |
//!
//! Prose is comments in Rust, in shell scripts and in TOML, and pages of Markdown. The rules
//! `retired-name`, `phrase` and `sentence` also examine string literals that people read.

mod finding;
mod form;
mod items;
mod lexer;
mod literals;
mod names;
mod prose;
mod references;
mod source;
mod summary;
mod types;
mod wording;
mod words;

use finding::Finding;
use prose::Located;
use references::FileTree;
use source::SourceFile;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use summary::ProseSummary;
use types::TypeIndex;
use wording::Rate;

pub(crate) const USAGE: &str = "[--summary] [--advice] [PATH...]";

/// Options of the command line.
#[derive(Debug, Default)]
struct Options {
    /// Print a table per crate instead of the findings.
    is_summary: bool,
    /// Also print advice: long sentences, and each counted word.
    is_advice: bool,
    /// Prefixes of the paths to report; empty for all paths.
    prefixes: Vec<String>,
}

impl Options {
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self::default();
        for argument in arguments {
            match &argument[..] {
                "--summary" => options.is_summary = true,
                "--advice" => options.is_advice = true,
                flag if flag.starts_with('-') => return Err(format!("{flag} is unknown; usage: {USAGE}")),
                path => options.prefixes.push(path.trim_start_matches("./").to_owned()),
            }
        }
        Ok(options)
    }

    fn includes(&self, path: &str) -> bool {
        self.prefixes.is_empty() || self.prefixes.iter().any(|prefix| path.starts_with(prefix))
    }
}

/// Runs the chore with its arguments.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> ExitCode {
    match Options::parse(arguments).and_then(|options| report(&options)) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(findings) => {
            eprintln!("tidy: findings: {findings}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("tidy: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the report. Returns the number of findings, without advice.
fn report(options: &Options) -> Result<usize, String> {
    let root = PathBuf::from(git(&["rev-parse", "--show-toplevel"])?.trim_end());
    let files = list(&root)?;
    let mut sources = read(&root, &files);
    source::omit_tests(&mut sources);
    let tree = FileTree::new(files.iter().map(String::as_str), &sources);
    let types = TypeIndex::new(&sources);
    let mut summary = ProseSummary::default();
    for source in sources.iter().filter(|source| options.includes(&source.path)) {
        let prose: Vec<Located> = source.blocks.iter().flat_map(prose::tokens).collect();
        let rate = Rate::of(&prose);
        let findings = check(source, &prose, &rate, &tree, &types);
        if !options.is_summary {
            findings.iter().for_each(|finding| println!("{finding}"));
        }
        if options.is_advice {
            let advice = wording::advise(source, &rate);
            advice.iter().for_each(|finding| println!("{finding} (advice)"));
        }
        summary.add(&source.path, &rate, &findings);
    }
    if options.is_summary {
        print!("{summary}");
    }
    Ok(summary.findings())
}

/// The findings of one file, by line.
fn check(
    source: &SourceFile,
    prose: &[Located],
    rate: &Rate,
    tree: &FileTree,
    types: &TypeIndex,
) -> Vec<Finding> {
    let literals = source.literals.iter().flat_map(prose::tokens);
    let texts: Vec<Located> = prose.iter().cloned().chain(literals).collect();
    let mut findings = names::check(source, &texts, words::NAMES);
    findings.extend(types::check(source, types));
    findings.extend(wording::check_phrases(source, &texts, words::PHRASES));
    findings.extend(form::check_fragments(source));
    findings.extend(form::check_width(source));
    findings.extend(references::check(source, prose, tree));
    findings.extend(wording::check_rate(source, rate));
    findings.extend(wording::check_sentences(source));
    findings.sort_by_key(|finding| (finding.line, finding.rule));
    findings
}

/// Paths of the files that git tracks or would add, relative to the root.
fn list(root: &Path) -> Result<Vec<String>, String> {
    let root = root.to_str().ok_or("the path of the repository is not UTF-8")?;
    let output = git(&["-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"])?;
    let mut paths: Vec<String> =
        output.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect();
    paths.retain(|path| Path::new(root).join(path).is_file());
    paths.sort_unstable();
    paths.dedup();
    Ok(paths)
}

/// Reads the files that rules examine. A file that is not UTF-8 is none of them.
fn read(root: &Path, files: &[String]) -> Vec<SourceFile> {
    let source = |path: &String| SourceFile::parse(path, std::fs::read_to_string(root.join(path)).ok()?);
    files.iter().filter_map(source).collect()
}

fn git(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("git").args(arguments).output();
    let output = output.map_err(|error| format!("cannot run git: {error}"))?;
    if !output.status.success() {
        return Err(format!("git failed: {}", String::from_utf8_lossy(&output.stderr).trim_end()));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("git: {error}"))
}
