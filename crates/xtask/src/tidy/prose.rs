//! Prose as words: comments and pages without their markup and code.
//!
//! Fenced and indented code blocks are omitted. A code span and a path in plain text are one word
//! each, and are not compared with phrases. Targets of links are kept apart from the text.

use super::source::{Line, ProseBlock};

/// An element of prose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProseToken {
    /// A word, in lower case.
    Word(String),
    /// The content of a code span, or a path in plain text.
    Code { text: String, is_span: bool },
    /// The target of a link.
    Target(String),
    /// Punctuation inside a sentence.
    Pause,
    /// The end of a sentence, of a clause before a colon or semicolon, of a list item, a table cell
    /// or a paragraph.
    Stop,
}

/// A token with its line number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Located {
    pub(crate) line: usize,
    pub(crate) token: ProseToken,
}

/// Splits a block into its tokens.
pub(crate) fn tokens(block: &ProseBlock) -> Vec<Located> {
    let mut scanner = Scanner::default();
    for paragraph in paragraphs(&block.lines) {
        scanner.scan(&paragraph);
    }
    scanner.tokens
}

/// Lines of text between blank lines and code blocks.
fn paragraphs(lines: &[Line]) -> Vec<Vec<&Line>> {
    let mut paragraphs = vec![Vec::new()];
    let mut fence: Option<&str> = None;
    let mut in_list = false;
    let mut after_blank = true;
    for line in lines {
        let text = line.text.trim_start();
        let indent = line.text.len() - text.len();
        let mark = ["```", "~~~"].into_iter().find(|mark| text.starts_with(mark));
        if fence.is_some() || mark.is_some() {
            fence = match fence {
                None => mark,
                open if open == mark => None,
                open => open,
            };
            paragraphs.push(Vec::new());
            continue;
        }
        if text.is_empty() {
            after_blank = true;
            paragraphs.push(Vec::new());
            continue;
        }
        if begins_item(text) {
            in_list = true;
        } else if indent == 0 && after_blank {
            in_list = false;
        }
        if indent >= 4 && after_blank && !in_list {
            continue;
        }
        after_blank = false;
        if begins_item(text) || text.starts_with(['#', '|', '>']) {
            paragraphs.push(Vec::new());
        }
        paragraphs.last_mut().expect("one at least").push(line);
        if text.starts_with(['#', '|']) {
            paragraphs.push(Vec::new());
        }
    }
    paragraphs.retain(|paragraph| !paragraph.is_empty());
    paragraphs
}

/// Whether `text` begins with a marker of a list item.
fn begins_item(text: &str) -> bool {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let after = &text[digits..];
    ["- ", "* ", "+ "].iter().any(|mark| text.starts_with(mark))
        || (digits > 0 && (after.starts_with(". ") || after.starts_with(") ")))
}

#[derive(Default)]
struct Scanner {
    tokens: Vec<Located>,
    chars: Vec<(char, usize)>,
    at: usize,
}

impl Scanner {
    fn scan(&mut self, paragraph: &[&Line]) {
        self.chars.clear();
        self.at = 0;
        for line in paragraph {
            self.chars.extend(line.text.chars().map(|c| (c, line.number)));
            self.chars.push(('\n', line.number));
        }
        if let Some((_, after)) = paragraph[0].text.trim_start().split_once(' ')
            && begins_item(paragraph[0].text.trim_start())
        {
            // The marker of a list item is no word.
            let indent_and_marker = paragraph[0].text.len() - after.len();
            self.at = paragraph[0].text[..indent_and_marker].chars().count();
        }
        while self.at < self.chars.len() {
            self.step();
        }
        let line = paragraph.last().map_or(0, |line| line.number);
        self.tokens.push(Located { line, token: ProseToken::Stop });
    }

    fn step(&mut self) {
        let c = self.char(0);
        match c {
            '`' => self.code_span(),
            ']' if self.char(1) == '(' => self.target(),
            '<' if self.is_url(1) => self.skip_through('>'),
            '.' | '!' | '?' => {
                let token = if self.ends_sentence() { ProseToken::Stop } else { ProseToken::Pause };
                self.push(token);
                self.at += 1;
            }
            '|' | ';' | ':' => self.push_and_advance(ProseToken::Stop),
            ',' | '(' | ')' | '—' | '–' | '/' | '…' | '=' | '+' | '→' => {
                self.push_and_advance(ProseToken::Pause);
            }
            _ if self.is_url(0) => self.skip_url(),
            _ if c.is_alphanumeric() || c == '_' => self.word(),
            _ => self.at += 1,
        }
    }

    fn char(&self, ahead: usize) -> char {
        self.chars.get(self.at + ahead).map_or('\n', |(c, _)| *c)
    }

    fn line(&self) -> usize {
        self.chars.get(self.at).map_or(0, |(_, line)| *line)
    }

    fn push(&mut self, token: ProseToken) {
        let line = self.line();
        self.tokens.push(Located { line, token });
    }

    fn push_and_advance(&mut self, token: ProseToken) {
        self.push(token);
        self.at += 1;
    }

    fn text(&self, from: usize, to: usize) -> String {
        self.chars[from..to].iter().map(|(c, _)| *c).collect()
    }

    /// A code span: it ends at as many backticks as open it.
    fn code_span(&mut self) {
        let ticks_at = |at: usize| self.chars[at..].iter().take_while(|(c, _)| *c == '`').count();
        let ticks = ticks_at(self.at);
        let start = self.at + ticks;
        let mut end = start;
        while end < self.chars.len() {
            match ticks_at(end) {
                0 => end += 1,
                found if found == ticks => break,
                found => end += found,
            }
        }
        if end >= self.chars.len() {
            self.push(ProseToken::Pause);
            self.at = start;
            return;
        }
        let text = self.text(start, end);
        self.push(ProseToken::Code { text, is_span: true });
        self.at = end + ticks;
    }

    /// The target of a link, from the bracket that closes its text.
    fn target(&mut self) {
        let start = self.at + 2;
        let length = self.chars[start..].iter().take_while(|(c, _)| *c != ')').count();
        let target = self.text(start, start + length);
        self.push(ProseToken::Target(target));
        self.at = (start + length + 1).min(self.chars.len());
    }

    fn is_url(&self, ahead: usize) -> bool {
        let from = (self.at + ahead).min(self.chars.len());
        let begins_with =
            |scheme: &str| scheme.chars().enumerate().all(|(index, c)| self.char(ahead + index) == c);
        from < self.chars.len() && (begins_with("http://") || begins_with("https://"))
    }

    fn skip_through(&mut self, last: char) {
        while self.at < self.chars.len() && self.char(0) != last {
            self.at += 1;
        }
    }

    fn skip_url(&mut self) {
        while !self.char(0).is_whitespace() && !matches!(self.char(0), ')' | '>' | '|' | '`') {
            self.at += 1;
        }
    }

    /// A word, or a path in plain text.
    fn word(&mut self) {
        let path_end = self.path_end();
        let path = self.text(self.at, path_end);
        if is_path(&path) {
            self.push(ProseToken::Code { text: path, is_span: false });
            self.at = path_end;
            return;
        }
        let start = self.at;
        let mut end = start;
        while end < self.chars.len() && self.continues_word(end) {
            end += 1;
        }
        let word = self.text(start, end).to_lowercase();
        // A possessive counts as its noun.
        let word = word.split(['\'', '’']).next().unwrap_or_default().to_owned();
        if !word.is_empty() {
            self.push(ProseToken::Word(word));
        }
        self.at = end.max(start + 1);
    }

    /// Whether the character at `at` belongs to a word that began before it, or begins one.
    fn continues_word(&self, at: usize) -> bool {
        let is_word = |at: usize| self.chars.get(at).is_some_and(|(c, _)| c.is_alphanumeric() || *c == '_');
        let joins = matches!(self.chars[at].0, '\'' | '’' | '-' | '.' | ',');
        let is_joined = joins && at > 0 && is_word(at - 1) && is_word(at + 1);
        // A comma joins digits only: 1,024.
        let is_number = self.chars.get(at + 1).is_some_and(|(c, _)| c.is_ascii_digit());
        is_word(at) || (is_joined && (self.chars[at].0 != ',' || is_number))
    }

    fn path_end(&self) -> usize {
        let is_path = |c: char| c.is_ascii_alphanumeric() || "_./{},*-".contains(c);
        let length = self.chars[self.at..].iter().take_while(|(c, _)| is_path(*c)).count();
        let trailing = |(c, _): &&(char, usize)| ".,".contains(*c);
        let run = &self.chars[self.at..self.at + length];
        self.at + length - run.iter().rev().take_while(trailing).count()
    }

    /// Whether the punctuation here is followed by a space or the end, and not by lower case.
    fn ends_sentence(&self) -> bool {
        let rest = self.chars[self.at + 1..].iter().map(|(c, _)| *c);
        let mut rest = rest.skip_while(|c| matches!(c, ')' | '"' | '\'' | '*' | '_' | '.'));
        match rest.next() {
            None => true,
            Some(c) if c.is_whitespace() => {
                rest.find(|c| !c.is_whitespace()).is_none_or(|c| !c.is_lowercase())
            }
            Some(_) => false,
        }
    }
}

/// Whether plain text names a file: it has a separator and ends in an extension of source or text.
fn is_path(text: &str) -> bool {
    let extension = text.rsplit_once('.').map(|(_, extension)| extension);
    text.contains('/') && matches!(extension, Some("rs" | "md" | "toml" | "sh" | "txt"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source::ProseOrigin;

    fn block(text: &str) -> ProseBlock {
        let line = |(index, text): (usize, &str)| Line { number: index + 1, text: text.to_owned() };
        ProseBlock { origin: ProseOrigin::Page, lines: text.lines().enumerate().map(line).collect() }
    }

    /// The tokens as text: words as they are, code in backticks, `,` and `.` for pauses and stops.
    fn shown(text: &str) -> String {
        let shown = tokens(&block(text)).into_iter().map(|located| match located.token {
            ProseToken::Word(word) => word,
            ProseToken::Code { text, .. } => format!("`{text}`"),
            ProseToken::Target(target) => format!("({target})"),
            ProseToken::Pause => ",".to_owned(),
            ProseToken::Stop => ".".to_owned(),
        });
        shown.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn words_are_lower_case_and_keep_their_joints() {
        assert_eq!(shown("The node's read-only 1,024 files"), "the node read-only 1,024 files .");
        assert_eq!(shown("what/whoever, e.g. this"), "what , whoever , e.g , this .");
    }

    #[test]
    fn code_is_one_token_and_may_span_lines() {
        assert_eq!(shown("a `b c` d"), "a `b c` d .");
        assert_eq!(shown("a `b\nc` d"), "a `b\nc` d .");
        assert_eq!(shown("a ``b ` c`` d"), "a `b ` c` d .");
        assert_eq!(shown("an ` alone"), "an , alone .");
    }

    #[test]
    fn code_blocks_are_omitted() {
        assert_eq!(shown("a\n```rust\nwhat\n```\nb"), "a . b .");
        assert_eq!(shown("a\n\n    what\n\nb"), "a . b .");
        assert_eq!(shown("- a\n\n    b"), "a . b .");
    }

    #[test]
    fn links_are_their_text_and_a_target() {
        assert_eq!(shown("see [the page](docs/x.md#part) now"), "see the page (docs/x.md#part) now .");
        assert_eq!(shown("see <https://a.b/c.md> and https://a.b/c.md now"), "see and now .");
    }

    #[test]
    fn paths_in_plain_text_are_code() {
        assert_eq!(shown("see docs/x.md. And/or this"), "see `docs/x.md` . and , or this .");
    }

    #[test]
    fn sentences_end_at_punctuation_items_and_cells() {
        assert_eq!(shown("It does so. Many keys"), "it does so . many keys .");
        assert_eq!(shown("- a\n- b\n  c\n1. d"), "a . b c . d .");
        assert_eq!(shown("| a | b |\n| c |"), ". a . b . . . c . .");
    }
}
