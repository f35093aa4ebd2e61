//! Source files as the rules examine them: identifiers, and prose in blocks.

use super::lexer::{self, Comment, Token};

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
pub(crate) enum Origin {
    /// A doc comment in Rust.
    Doc,
    /// Any other comment.
    Comment,
    /// A Markdown page.
    Page,
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
pub(crate) struct Block {
    pub(crate) origin: Origin,
    pub(crate) lines: Vec<Line>,
}

/// A use of an identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identifier {
    pub(crate) line: usize,
    pub(crate) name: String,
}

/// A file to examine.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Path relative to the root of the repository.
    pub(crate) path: String,
    pub(crate) language: Language,
    pub(crate) text: String,
    pub(crate) blocks: Vec<Block>,
    /// Empty unless the language is Rust.
    pub(crate) identifiers: Vec<Identifier>,
}

impl Source {
    /// Splits `text` into blocks and identifiers; `None` if no rule examines files like `path`.
    pub(crate) fn parse(path: &str, text: String) -> Option<Self> {
        let language = Language::of(path, &text)?;
        let (blocks, identifiers) = match language {
            Language::Rust => rust(&text),
            Language::Markdown => (vec![page(&text)], Vec::new()),
            Language::Hash => (hash_comments(&text), Vec::new()),
        };
        Some(Self { path: path.to_owned(), language, text, blocks, identifiers })
    }
}

fn rust(text: &str) -> (Vec<Block>, Vec<Identifier>) {
    let mut blocks = Blocks::default();
    let mut identifiers = Vec::new();
    for token in lexer::tokens(text) {
        match token {
            Token::Identifier { line, name } => identifiers.push(Identifier { line, name }),
            Token::Comment { kind, line, text, is_trailing } => blocks.add(kind, line, &text, is_trailing),
        }
    }
    (blocks.done, identifiers)
}

/// Joins comments of one kind on consecutive lines.
#[derive(Default)]
struct Blocks {
    done: Vec<Block>,
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
                let origin = if kind == Comment::Plain { Origin::Comment } else { Origin::Doc };
                self.done.push(Block { origin, lines: lines.collect() });
            }
        }
        self.last = (!is_trailing).then_some(kind);
    }
}

impl Block {
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

fn page(text: &str) -> Block {
    let line = |(index, text): (usize, &str)| Line { number: index + 1, text: text.trim_end().to_owned() };
    Block { origin: Origin::Page, lines: text.lines().enumerate().map(line).collect() }
}

/// Comments that fill whole lines. Comments after code are omitted: finding them would take a
/// parser of each language.
fn hash_comments(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some(comment) = line.trim_start().strip_prefix('#') else { continue };
        if index == 0 && comment.starts_with('!') {
            continue;
        }
        let line = Line { number: index + 1, text: content(comment) };
        match blocks.last_mut().filter(|block| block.last_line() == index) {
            Some(block) => block.lines.push(line),
            None => blocks.push(Block { origin: Origin::Comment, lines: vec![line] }),
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(path: &str, text: &str) -> Vec<(Origin, Vec<usize>)> {
        let source = Source::parse(path, text.to_owned()).expect("examined");
        let lines = |block: &Block| block.lines.iter().map(|line| line.number).collect();
        source.blocks.iter().map(|block| (block.origin, lines(block))).collect()
    }

    #[test]
    fn consecutive_comments_of_one_kind_are_one_block() {
        let text = "//! a\n//!\n//! b\n/// c\n// d\n// e\nx // f\ny // g\n// h\n";
        let found = blocks("a.rs", text);
        let expected = [
            (Origin::Doc, vec![1, 2, 3]),
            (Origin::Doc, vec![4]),
            (Origin::Comment, vec![5, 6]),
            (Origin::Comment, vec![7]),
            (Origin::Comment, vec![8]),
            (Origin::Comment, vec![9]),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn stars_of_block_comments_are_no_text() {
        let source = Source::parse("a.rs", "/** a\n * b\n */".to_owned()).expect("examined");
        let texts: Vec<&str> = source.blocks[0].lines.iter().map(|line| &line.text[..]).collect();
        assert_eq!(texts, ["a", "b", ""]);
    }

    #[test]
    fn hash_comments_fill_whole_lines() {
        assert_eq!(blocks("run", "#!/bin/sh\n# a\n# b\necho '#c' # d\n"), [(Origin::Comment, vec![2, 3])]);
    }

    #[test]
    fn other_files_are_not_examined() {
        for path in ["a.bin", "a.css", "LICENSE"] {
            assert!(Source::parse(path, "text".to_owned()).is_none(), "{path}");
        }
    }
}
