//! The rules `fragment` and `wide`: the form of comments in Rust.

use super::finding::{Finding, Rule};
use super::source::{Language, Line, ProseBlock, ProseOrigin, SourceFile};
use super::words::LOWER_CASE_NAMES;

/// The last column of a comment.
const COLUMNS_MAX: usize = 100;

/// Finds doc comments that begin in the middle of a sentence.
pub(crate) fn check_fragments(source: &SourceFile) -> Vec<Finding> {
    let docs = source.blocks.iter().filter(|block| block.origin == ProseOrigin::Doc);
    let first_lines = docs.filter_map(|block| block.lines.iter().find(|line| !line.text.is_empty()));
    let finding = |line: &Line| Finding {
        path: source.path.clone(),
        line: line.number,
        rule: Rule::Fragment,
        message: format!("a doc comment begins with \"{}\": write a sentence of its own", first_word(line)),
    };
    first_lines.filter(|line| is_fragment(first_word(line))).map(finding).collect()
}

fn first_word(line: &Line) -> &str {
    line.text.split_whitespace().next().unwrap_or_default()
}

fn is_fragment(word: &str) -> bool {
    let name = word.split(['\'', '’', ',', ':', '.']).next().unwrap_or_default();
    let begins_lower = word.chars().next().is_some_and(char::is_lowercase);
    word.starts_with('…') || word.starts_with("...") || (begins_lower && !LOWER_CASE_NAMES.contains(&name))
}

/// Finds lines of comments that extend past [`COLUMNS_MAX`]. Lines that cannot be wrapped are
/// exempt: rows of tables, and one long word such as a URL.
pub(crate) fn check_width(source: &SourceFile) -> Vec<Finding> {
    if source.language != Language::Rust {
        return Vec::new();
    }
    let rows: Vec<&str> = source.text.lines().collect();
    let columns = |line: &Line| rows.get(line.number - 1).map_or(0, |row| row.chars().count());
    let lines = source.blocks.iter().flat_map(|block: &ProseBlock| &block.lines);
    let wide = lines.filter(|line| columns(line) > COLUMNS_MAX && can_wrap(&line.text));
    let finding = |line: &Line| Finding {
        path: source.path.clone(),
        line: line.number,
        rule: Rule::Wide,
        message: format!("{} columns; wrap comments at {COLUMNS_MAX}", columns(line)),
    };
    wide.map(finding).collect()
}

fn can_wrap(text: &str) -> bool {
    let text = text.trim();
    text.contains(' ') && !text.starts_with('|')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rust(text: &str) -> SourceFile {
        SourceFile::parse("a.rs", text.to_owned()).expect("examined")
    }

    fn fragments(text: &str) -> Vec<usize> {
        check_fragments(&rust(text)).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_doc_comment_that_continues_a_sentence_is_a_fragment() {
        assert_eq!(fragments("/// … and those of the link.\nx"), [1]);
        assert_eq!(fragments("/// ... and those.\nx"), [1]);
        assert_eq!(fragments("x\n//!\n//! of the link."), [3]);
    }

    #[test]
    fn sentences_code_and_names_are_no_fragments() {
        for text in ["/// The link.", "/// `link` of", "/// hyper's reader.", "// of the link", "/// 3 bytes"]
        {
            assert!(fragments(text).is_empty(), "{text}");
        }
        assert!(fragments("/// The link\n/// of a peer.").is_empty());
    }

    fn wide(text: &str) -> Vec<usize> {
        check_width(&rust(text)).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn comments_end_at_column_100() {
        let words = |columns: usize| "ab ".repeat(columns / 3 + 1)[..columns].to_owned();
        assert!(wide(&format!("// {}", words(97))).is_empty());
        assert_eq!(wide(&format!("x\n// {}", words(98))), [2]);
        assert_eq!(wide(&format!("{}// {}", " ".repeat(50), words(50))), [1]);
        assert_eq!(wide(&format!("/* a\n {} */", words(120))), [2]);
        assert!(wide(&format!("// {}", "é ".repeat(48))).is_empty());
    }

    #[test]
    fn code_tables_and_long_words_may_be_wider() {
        let long = "x".repeat(120);
        assert!(wide(&format!("let x = \"{long}\";")).is_empty());
        assert!(wide(&format!("/// | {long} | b |")).is_empty());
        assert!(wide(&format!("// https://{long}")).is_empty());
    }
}
