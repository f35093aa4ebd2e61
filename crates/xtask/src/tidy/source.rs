//! Source files as the rules examine them: identifiers, definitions of types, and prose in blocks.

use super::items;
use super::lexer::{self, Comment, RustToken};
use super::literals;

/// The language of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    Rust,
    Markdown,
    /// A language whose comments begin with `#`: shell scripts and TOML.
    Hash,
}

impl Language {
    /// The language of the file at `path`, or `None` if no rule examines it.
    pub(crate) fn of(path: &str, text: &str) -> Option<Self> {
        let name = path.rsplit('/').next().unwrap_or(path);
        match name.rsplit_once('.').map(|(_, extension)| extension) {
            Some("rs") => Some(Self::Rust),
            Some("md") => Some(Self::Markdown),
            Some("toml" | "sh") => Some(Self::Hash),
            None if text.starts_with("#!") => Some(Self::Hash),
            _ => None,
        }
    }
}

/// The origin of a block of prose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProseOrigin {
    /// A doc comment in Rust.
    Doc,
    /// Any other comment.
    Comment,
    /// A Markdown page.
    Page,
    /// A string literal in Rust that people read.
    Literal,
}

/// One line of prose without its comment delimiter and without the space that follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Line number in the file, from 1.
    pub(crate) number: usize,
    pub(crate) text: String,
}

/// Consecutive lines of prose: a whole comment or a whole page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProseBlock {
    pub(crate) origin: ProseOrigin,
    pub(crate) lines: Vec<Line>,
}

/// A use of an identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identifier {
    pub(crate) line: usize,
    pub(crate) name: String,
}

/// The definition of a type or trait that is visible outside its own module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TypeDefinition {
    pub(crate) line: usize,
    pub(crate) name: String,
}

/// A file to examine.
#[derive(Clone, Debug)]
pub(crate) struct SourceFile {
    /// Path relative to the root of the repository.
    pub(crate) path: String,
    pub(crate) language: Language,
    pub(crate) text: String,
    pub(crate) blocks: Vec<ProseBlock>,
    /// String literals that people read, outside of test code. Empty unless the language is Rust.
    pub(crate) literals: Vec<ProseBlock>,
    /// Empty unless the language is Rust.
    pub(crate) identifiers: Vec<Identifier>,
    /// Outside of test code. Empty unless the language is Rust.
    pub(crate) types: Vec<TypeDefinition>,
    /// Names of the modules in other files that only tests compile.
    pub(crate) test_modules: Vec<String>,
}

impl SourceFile {
    /// Splits `text` into blocks and identifiers; `None` if no rule examines files like `path`.
    pub(crate) fn parse(path: &str, text: String) -> Option<Self> {
        let language = Language::of(path, &text)?;
        let mut source = Self {
            path: path.to_owned(),
            language,
            text: String::new(),
            blocks: Vec::new(),
            literals: Vec::new(),
            identifiers: Vec::new(),
            types: Vec::new(),
            test_modules: Vec::new(),
        };
        match language {
            Language::Rust => source.add_rust(&text),
            Language::Markdown => source.blocks.push(page(&text)),
            Language::Hash => source.blocks = hash_comments(&text),
        }
        source.text = text;
        Some(source)
    }

    fn add_rust(&mut self, text: &str) {
        let tokens = lexer::tokens(text);
        let mut blocks = Blocks::default();
        for token in &tokens {
            match token {
                RustToken::Identifier { line, name } => {
                    self.identifiers.push(Identifier { line: *line, name: name.clone() });
                }
                RustToken::Comment { kind, line, text, is_trailing } => {
                    blocks.add(*kind, *line, text, *is_trailing);
                }
                RustToken::Literal { .. } | RustToken::Delimiter(_) => {}
            }
        }
        self.blocks = blocks.done;
        let (rest, test_modules) = items::without_tests(&tokens);
        self.test_modules = test_modules;
        self.types = items::visible_types(&rest);
        self.literals = rest.iter().filter_map(|token| literals::block(token)).collect();
    }
}

/// Removes the literals and the definitions of files that are test code: by their directory, or
/// because another file of `sources` declares them as modules of tests.
pub(crate) fn omit_tests(sources: &mut [SourceFile]) {
    let modules = sources.iter().flat_map(|source| {
        source.test_modules.iter().flat_map(|name| items::module_paths(&source.path, name))
    });
    let modules: Vec<String> = modules.collect();
    let is_test =
        |path: &str| items::is_test_path(path) || modules.iter().any(|prefix| path.starts_with(&prefix[..]));
    for source in sources.iter_mut().filter(|source| is_test(&source.path)) {
        source.literals.clear();
        source.types.clear();
    }
}

/// Joins comments of one kind on consecutive lines.
#[derive(Default)]
struct Blocks {
    done: Vec<ProseBlock>,
    /// The kind of the last comment, unless it shares its line with code.
    last: Option<Comment>,
}

impl Blocks {
    fn add(&mut self, kind: Comment, number: usize, text: &str, is_trailing: bool) {
        let lines = text.split('\n').enumerate().map(|(index, text)| Line {
            number: number + index,
            text: if index == 0 { content(text) } else { content(without_star(text)) },
        });
        let continues = !is_trailing && self.last == Some(kind);
        match self.done.last_mut().filter(|block| continues && block.last_line() + 1 == number) {
            Some(block) => block.lines.extend(lines),
            None => {
                let origin = if kind == Comment::Plain { ProseOrigin::Comment } else { ProseOrigin::Doc };
                self.done.push(ProseBlock { origin, lines: lines.collect() });
            }
        }
        self.last = (!is_trailing).then_some(kind);
    }
}

impl ProseBlock {
    /// The block with a blank line for each row of a table.
    pub(crate) fn without_tables(&self) -> Self {
        let mut block = self.clone();
        for line in block.lines.iter_mut().filter(|line| line.text.trim_start().starts_with('|')) {
            line.text.clear();
        }
        block
    }

    fn last_line(&self) -> usize {
        self.lines.last().map_or(0, |line| line.number)
    }
}

/// The text of a line without one leading space and without trailing space.
fn content(text: &str) -> String {
    text.strip_prefix(' ').unwrap_or(text).trim_end().to_owned()
}

/// A line of a block comment without the star that may begin it.
fn without_star(text: &str) -> &str {
    let trimmed = text.trim_start();
    trimmed.strip_prefix('*').unwrap_or(trimmed)
}

fn page(text: &str) -> ProseBlock {
    let line = |(index, text): (usize, &str)| Line { number: index + 1, text: text.trim_end().to_owned() };
    ProseBlock { origin: ProseOrigin::Page, lines: text.lines().enumerate().map(line).collect() }
}

/// Comments that fill whole lines. Comments after code are omitted: finding them would take a
/// parser of each language.
fn hash_comments(text: &str) -> Vec<ProseBlock> {
    let mut blocks: Vec<ProseBlock> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some(comment) = line.trim_start().strip_prefix('#') else { continue };
        if index == 0 && comment.starts_with('!') {
            continue;
        }
        let line = Line { number: index + 1, text: content(comment) };
        match blocks.last_mut().filter(|block| block.last_line() == index) {
            Some(block) => block.lines.push(line),
            None => blocks.push(ProseBlock { origin: ProseOrigin::Comment, lines: vec![line] }),
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(path: &str, text: &str) -> Vec<(ProseOrigin, Vec<usize>)> {
        let source = SourceFile::parse(path, text.to_owned()).expect("examined");
        let lines = |block: &ProseBlock| block.lines.iter().map(|line| line.number).collect();
        source.blocks.iter().map(|block| (block.origin, lines(block))).collect()
    }

    #[test]
    fn consecutive_comments_of_one_kind_are_one_block() {
        let text = "//! a\n//!\n//! b\n/// c\n// d\n// e\nx // f\ny // g\n// h\n";
        let found = blocks("a.rs", text);
        let expected = [
            (ProseOrigin::Doc, vec![1, 2, 3]),
            (ProseOrigin::Doc, vec![4]),
            (ProseOrigin::Comment, vec![5, 6]),
            (ProseOrigin::Comment, vec![7]),
            (ProseOrigin::Comment, vec![8]),
            (ProseOrigin::Comment, vec![9]),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn stars_of_block_comments_are_no_text() {
        let source = SourceFile::parse("a.rs", "/** a\n * b\n */".to_owned()).expect("examined");
        let texts: Vec<&str> = source.blocks[0].lines.iter().map(|line| &line.text[..]).collect();
        assert_eq!(texts, ["a", "b", ""]);
    }

    #[test]
    fn hash_comments_fill_whole_lines() {
        assert_eq!(
            blocks("run", "#!/bin/sh\n# a\n# b\necho '#c' # d\n"),
            [(ProseOrigin::Comment, vec![2, 3])]
        );
    }

    #[test]
    fn other_files_are_not_examined() {
        for path in ["a.bin", "a.css", "LICENSE"] {
            assert!(SourceFile::parse(path, "text".to_owned()).is_none(), "{path}");
        }
    }
}
