//! String literals that people read: messages of errors and logs, and texts of help.
//!
//! A literal is such a text if it contains at least four words in a row that single spaces
//! separate. Literals of test code are omitted.

use super::lexer::RustToken;
use super::source::{Line, ProseBlock, ProseOrigin};

/// Words in a row from which a literal counts as a text.
const WORDS_MIN: usize = 4;

/// The text of a token as a block of prose; `None` if the token is no literal that people read.
///
/// All lines have the number of the first one, because escapes hide the others.
pub(crate) fn block(token: &RustToken) -> Option<ProseBlock> {
    let RustToken::Literal { line, text } = token else { return None };
    let text = without_arguments(text);
    if !is_text(&text) {
        return None;
    }
    let lines = text.lines().map(|text| Line { number: *line, text: text.trim_end().to_owned() });
    Some(ProseBlock { origin: ProseOrigin::Literal, lines: lines.collect() })
}

/// The text with an ellipsis for each argument in braces.
fn without_arguments(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        shown.push_str(before);
        let argument = after.split_once('}').filter(|(name, _)| is_argument(name));
        let (mark, after) = argument.map_or(("{", after), |(_, after)| ("…", after));
        shown.push_str(mark);
        rest = after;
    }
    shown + rest
}

/// Whether `name` is the inside of an argument such as `{}`, `{path:?}` or `{:>8.1}`.
fn is_argument(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || "_:?#.<>^+$*".contains(c))
}

fn is_text(text: &str) -> bool {
    let mut run = 0;
    for word in text.split([' ', '\n']) {
        let word = word.trim_matches(|c: char| ".,;:!?()…\"'`".contains(c));
        let is_word = !word.is_empty() && word.chars().all(|c| c.is_alphabetic() || "'’-".contains(c));
        run = if is_word { run + 1 } else { 0 };
        if run >= WORDS_MIN {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(literal: &str) -> Option<String> {
        let token = RustToken::Literal { line: 3, text: literal.to_owned() };
        let lines = block(&token)?.lines;
        assert!(lines.iter().all(|line| line.number == 3));
        Some(lines.into_iter().map(|line| line.text).collect::<Vec<_>>().join("|"))
    }

    #[test]
    fn sentences_are_texts() {
        for literal in ["the disk is full", "Number of keys, by node.", "no such file; create it first"] {
            assert_eq!(text(literal).as_deref(), Some(literal));
        }
        assert_eq!(text("the node does not\nanswer").as_deref(), Some("the node does not|answer"));
    }

    #[test]
    fn arguments_are_no_words() {
        assert_eq!(text("cannot open the file {path:?}: {}").as_deref(), Some("cannot open the file …: …"));
        assert_eq!(text("{a} and {b} and {c}"), None);
    }

    #[test]
    fn short_texts_and_data_are_omitted() {
        for literal in
            ["not a number", "GET /v0/status HTTP/1.1", "{\"a\": 1, \"b\": [2, 3]}", "a=1 b=2 c=3 d=4"]
        {
            assert_eq!(text(literal), None, "{literal}");
        }
    }
}
