//! A lexer for the parts of Rust source that the rules examine: comments, identifiers, string
//! literals, and the punctuation that delimits items.
//!
//! It tells comments from the contents of string, character and byte literals, in all their forms,
//! and character literals from lifetimes. It expects source that compiles: an unterminated literal
//! or comment extends to the end of the file.

/// The kind of a comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comment {
    /// `///` or `/** */`: documents the next item.
    Outer,
    /// `//!` or `/*! */`: documents the enclosing item.
    Inner,
    /// `//` or `/* */`.
    Plain,
}

/// A part of the source that a rule examines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RustToken {
    Comment {
        kind: Comment,
        /// Line number of the first line, from 1.
        line: usize,
        /// The text between the delimiters; of a block comment with its line breaks.
        text: String,
        /// Whether code precedes the comment on its first line.
        is_trailing: bool,
    },
    Identifier {
        line: usize,
        name: String,
    },
    /// A string literal.
    Literal {
        /// Line number of the first line, from 1.
        line: usize,
        /// The value: without quotes, and with escapes resolved.
        text: String,
    },
    /// A brace or a semicolon.
    Delimiter(char),
}

/// Splits `source` into its tokens, in order.
pub(crate) fn tokens(source: &str) -> Vec<RustToken> {
    let mut lexer = Lexer { rest: source, line: 1, line_has_code: false, tokens: Vec::new() };
    while lexer.step() {}
    lexer.tokens
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
    line_has_code: bool,
    tokens: Vec<RustToken>,
}

impl<'a> Lexer<'a> {
    /// Consumes one token, or one character outside of tokens. False at the end of the source.
    fn step(&mut self) -> bool {
        let Some(first) = self.rest.chars().next() else { return false };
        if self.rest.starts_with("//") {
            self.line_comment();
        } else if self.rest.starts_with("/*") {
            self.block_comment();
        } else if first.is_whitespace() {
            self.take(first.len_utf8());
        } else {
            self.line_has_code = true;
            self.code(first);
        }
        true
    }

    fn code(&mut self, first: char) {
        match first {
            '"' => self.string(1),
            '\'' => self.quote(),
            '0'..='9' => {
                let end = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
                self.take(end);
            }
            _ if is_word(first) => self.word(),
            '{' | '}' | ';' => {
                self.take(1);
                self.tokens.push(RustToken::Delimiter(first));
            }
            _ => {
                self.take(first.len_utf8());
            }
        }
    }

    /// Consumes `bytes` bytes and returns them. Counts lines.
    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        let lines = taken.matches('\n').count();
        self.line += lines;
        if lines > 0 {
            self.line_has_code = false;
        }
        self.rest = rest;
        taken
    }

    fn line_comment(&mut self) {
        let end = self.rest.find('\n').unwrap_or(self.rest.len());
        let (line, is_trailing) = (self.line, self.line_has_code);
        let text = self.take(end).trim_end_matches('\r');
        let (kind, text) = match text.as_bytes() {
            [b'/', b'/', b'/', b'/', ..] => (Comment::Plain, &text[2..]),
            [b'/', b'/', b'/', ..] => (Comment::Outer, &text[3..]),
            [b'/', b'/', b'!', ..] => (Comment::Inner, &text[3..]),
            _ => (Comment::Plain, &text[2..]),
        };
        self.tokens.push(RustToken::Comment { kind, line, text: text.to_owned(), is_trailing });
    }

    fn block_comment(&mut self) {
        let (line, is_trailing) = (self.line, self.line_has_code);
        let mut depth = 0;
        let mut end = 0;
        let bytes = self.rest.as_bytes();
        while end < bytes.len() {
            match &bytes[end..] {
                [b'/', b'*', ..] => (depth, end) = (depth + 1, end + 2),
                [b'*', b'/', ..] => (depth, end) = (depth - 1, end + 2),
                _ => end += 1,
            }
            if depth == 0 {
                break;
            }
        }
        let whole = self.take(end);
        let text = whole.strip_suffix("*/").unwrap_or(whole);
        let (kind, start) = match text.as_bytes() {
            [b'/', b'*', b'*', b'*', ..] => (Comment::Plain, 2),
            [b'/', b'*', b'*', ..] => (Comment::Outer, 3),
            [b'/', b'*', b'!', ..] => (Comment::Inner, 3),
            _ => (Comment::Plain, 2),
        };
        let text = text.get(start..).unwrap_or_default().to_owned();
        self.tokens.push(RustToken::Comment { kind, line, text, is_trailing });
    }

    /// A string literal with escapes, whose first quote ends at byte `start`.
    fn string(&mut self, start: usize) {
        let line = self.line;
        let literal = self.escaped(start, b'"');
        let text = unescaped(literal[start..].strip_suffix('"').unwrap_or_default());
        self.tokens.push(RustToken::Literal { line, text });
    }

    /// Consumes a literal from `start` through its closing `quote`, past escaped characters.
    fn escaped(&mut self, start: usize, quote: u8) -> &'a str {
        let bytes = self.rest.as_bytes();
        let mut end = start;
        while end < bytes.len() && bytes[end] != quote {
            end += if bytes[end] == b'\\' { 2 } else { 1 };
        }
        self.take((end + 1).min(bytes.len()))
    }

    /// A raw string literal whose prefix (`r`, `br` or `cr`) has `prefix` bytes; false if it is
    /// none.
    fn raw_string(&mut self, prefix: usize) -> bool {
        let after = &self.rest[prefix..];
        let hashes = after.len() - after.trim_start_matches('#').len();
        if !after[hashes..].starts_with('"') {
            return false;
        }
        let start = prefix + hashes + 1;
        let close = format!("\"{}", "#".repeat(hashes));
        let end = self.rest[start..].find(&close).map_or(self.rest.len(), |at| start + at + close.len());
        let line = self.line;
        let literal = self.take(end);
        let text = literal[start..].strip_suffix(&close).unwrap_or_default().to_owned();
        self.tokens.push(RustToken::Literal { line, text });
        true
    }

    /// A character literal or a lifetime.
    fn quote(&mut self) {
        let mut chars = self.rest[1..].chars();
        let (first, second) = (chars.next(), chars.next());
        if first == Some('\\') {
            self.escaped(1, b'\'');
        } else if second == Some('\'') {
            self.take(2 + first.map_or(0, char::len_utf8));
        } else {
            let name = self.rest[1..].find(|c| !is_word(c)).map_or(self.rest.len(), |end| 1 + end);
            self.take(name);
        }
    }

    /// An identifier, a keyword, or the prefix of a literal.
    fn word(&mut self) {
        let end = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
        let (word, after) = self.rest.split_at(end);
        match word {
            "r" | "br" | "cr" if self.raw_string(end) => return,
            "b" | "c" if after.starts_with('"') => return self.string(end + 1),
            "b" if after.starts_with('\'') => {
                self.escaped(end + 1, b'\'');
                return;
            }
            // A raw identifier such as r#type.
            "r" if after.starts_with('#') => {
                self.take(2);
                return;
            }
            _ => {}
        }
        let line = self.line;
        let name = self.take(end).to_owned();
        self.tokens.push(RustToken::Identifier { line, name });
    }
}

/// The value of a string literal. Escapes of single characters by number are omitted.
fn unescaped(literal: &str) -> String {
    let mut value = String::new();
    let mut rest = literal;
    while let Some((before, escape)) = rest.split_once('\\') {
        value.push_str(before);
        rest = match escape.chars().next() {
            Some('n') => {
                value.push('\n');
                &escape[1..]
            }
            Some('\n') => escape.trim_start(),
            Some(c @ ('"' | '\'' | '\\')) => {
                value.push(c);
                &escape[1..]
            }
            Some('u') => escape.split_once('}').map_or("", |(_, after)| after),
            Some(c) => &escape[c.len_utf8()..],
            None => "",
        };
    }
    value + rest
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identifiers(source: &str) -> Vec<String> {
        let name = |token| match token {
            RustToken::Identifier { name, .. } => Some(name),
            _ => None,
        };
        tokens(source).into_iter().filter_map(name).collect()
    }

    fn comments(source: &str) -> Vec<(Comment, usize, String)> {
        let comment = |token| match token {
            RustToken::Comment { kind, line, text, .. } => Some((kind, line, text)),
            _ => None,
        };
        tokens(source).into_iter().filter_map(comment).collect()
    }

    #[test]
    fn comments_are_classified_by_their_delimiters() {
        let source = "//! a\n/// b\n// c\n//// d\n/** e */\n/*! f */\n/* g */\n/**/";
        let kinds: Vec<Comment> = comments(source).iter().map(|(kind, _, _)| *kind).collect();
        use Comment::{Inner, Outer, Plain};
        assert_eq!(kinds, [Inner, Outer, Plain, Plain, Outer, Inner, Plain, Plain]);
    }

    #[test]
    fn literals_hold_no_comments_and_no_identifiers() {
        for literal in [
            r#""// no \" // no""#,
            r##"r"// no \""##,
            r###"r#"// " no"#"###,
            r####"br##"// "# no"##"####,
            r#"b"// no""#,
            r#"c"// no""#,
            r"'/'",
            r"'\''",
            r"b'\''",
            r#"'"'"#,
            r#"b'"'"#,
            r"'\u{1F600}'",
            "'é'",
            "0x1f_u64",
            "\"two\nlines // no\"",
        ] {
            assert_eq!(identifiers(&format!("before {literal} after")), ["before", "after"], "{literal}");
            assert_eq!(comments(&format!("{literal} // yes")).len(), 1, "{literal}");
        }
    }

    #[test]
    fn literals_have_their_values() {
        for (literal, value) in [
            (r#""a \"b\" \\ c""#, r#"a "b" \ c"#),
            (r##"r#"a "\n b"#"##, r#"a "\n b"#),
            (r#"b"a\nb\x00""#, "a\nb00"),
            ("\"a \\\n    b\"", "a b"),
            (r#""\u{1F600}a""#, "a"),
        ] {
            let found = tokens(&format!("\nx {literal}"));
            assert_eq!(found[1], RustToken::Literal { line: 2, text: value.to_owned() }, "{literal}");
        }
    }

    #[test]
    fn a_lifetime_opens_no_literal() {
        assert_eq!(
            identifiers("fn f<'a>(x: &'a str) -> &'static str // 'c'"),
            ["fn", "f", "x", "str", "str"]
        );
        assert_eq!(identifiers("'outer: loop { break 'outer; }"), ["loop", "break"]);
        assert_eq!(comments("&'a str // c").len(), 1);
    }

    #[test]
    fn block_comments_nest_and_count_their_lines() {
        let found = comments("/* a /* b\n */ c */ x // d");
        assert_eq!(found[0], (Comment::Plain, 1, " a /* b\n */ c ".to_owned()));
        assert_eq!(found[1], (Comment::Plain, 2, " d".to_owned()));
    }

    #[test]
    fn raw_identifiers_lose_their_prefix_and_field_numbers_are_none() {
        assert_eq!(identifiers("r#type.0.desk + 1..lend"), ["type", "desk", "lend"]);
    }

    #[test]
    fn a_comment_after_code_is_trailing() {
        let trailing: Vec<bool> = tokens("x; // a\n  // b\n")
            .into_iter()
            .filter_map(|token| match token {
                RustToken::Comment { is_trailing, .. } => Some(is_trailing),
                _ => None,
            })
            .collect();
        assert_eq!(trailing, [true, false]);
    }
}
