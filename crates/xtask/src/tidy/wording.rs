//! The rules `phrase`, `rate` and `sentence`, and advice: how prose is worded.

use super::finding::{Finding, Rule};
use super::prose::{self, Located, ProseToken};
use super::source::SourceFile;
use super::words::{COUNTED, Phrase};
use std::collections::BTreeSet;

/// Occurrences of counted words that a short file may have.
const COUNT_FREE: usize = 2;
/// Occurrences of counted words per 1,000 words that a longer file may have.
const RATE_MAX: usize = 3;
/// Words that a sentence may have, without code spans.
const SENTENCE_WORDS_MAX: usize = 30;
/// Words that a sentence may have without advice.
const SENTENCE_WORDS_ADVISED: usize = 25;

/// Finds phrases of `table` in the prose of `source`.
pub(crate) fn check_phrases(source: &SourceFile, prose: &[Located], table: &[Phrase]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for phrase in table.iter().filter(|phrase| phrase.scope.includes(&source.path)) {
        for old in phrase.old.split('|') {
            let message = format!("\"{old}\": {}", phrase.suggestion);
            findings.extend(occurrences(prose, old).into_iter().map(|line| Finding {
                path: source.path.clone(),
                line,
                rule: Rule::Phrase,
                message: message.clone(),
            }));
        }
    }
    findings.sort_by_key(|finding| finding.line);
    findings
}

/// Line numbers at which `phrase` begins. No punctuation separates its words.
fn occurrences(prose: &[Located], phrase: &str) -> Vec<usize> {
    let words: Vec<&str> = phrase.split(' ').collect();
    let is_match = |window: &&[Located]| {
        let mut pairs = window.iter().zip(&words);
        pairs.all(|(located, word)| matches!(&located.token, ProseToken::Word(found) if found == word))
    };
    prose.windows(words.len()).filter(is_match).map(|window| window[0].line).collect()
}

/// Occurrences of the counted words in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rate {
    /// Words of prose; a code span is one word.
    pub(crate) words: usize,
    /// Line number and word of each occurrence, in order.
    pub(crate) counted: Vec<(usize, &'static str)>,
}

impl Rate {
    pub(crate) fn of(prose: &[Located]) -> Self {
        let is_word =
            |located: &&Located| matches!(located.token, ProseToken::Word(_) | ProseToken::Code { .. });
        let words = prose.iter().filter(is_word).count();
        let lines = |word: &'static str| occurrences(prose, word).into_iter().map(move |line| (line, word));
        let mut counted: Vec<_> = COUNTED.iter().copied().flat_map(lines).collect();
        counted.sort_unstable();
        Self { words, counted }
    }

    /// Occurrences per 1,000 words.
    pub(crate) fn per_thousand(words: usize, counted: usize) -> f64 {
        if words == 0 { 0.0 } else { 1000.0 * counted as f64 / words as f64 }
    }

    fn counted_max(&self) -> usize {
        (self.words * RATE_MAX / 1000).max(COUNT_FREE)
    }
}

/// Compares the rate of counted words with its limit.
pub(crate) fn check_rate(source: &SourceFile, rate: &Rate) -> Option<Finding> {
    let (count, max) = (rate.counted.len(), rate.counted_max());
    if count <= max {
        return None;
    }
    let places: Vec<String> = rate.counted.iter().map(|(line, word)| format!("{line} ({word})")).collect();
    let message = format!(
        "{count} of {} words, {:.1} per 1,000; at most {max} are allowed here: lines {}",
        rate.words,
        Rate::per_thousand(rate.words, count),
        places.join(", ")
    );
    let line = rate.counted.first().map_or(1, |(line, _)| *line);
    Some(Finding { path: source.path.clone(), line, rule: Rule::Rate, message })
}

/// Finds sentences of more than [`SENTENCE_WORDS_MAX`] words. Code spans are no words, and rows of
/// tables are no sentences. A semicolon and a colon end a sentence, so that the items of a list
/// count one by one.
pub(crate) fn check_sentences(source: &SourceFile) -> Vec<Finding> {
    let long = long_sentences(source, SENTENCE_WORDS_MAX);
    let finding = |(line, words): (usize, usize)| Finding {
        path: source.path.clone(),
        line,
        rule: Rule::Sentence,
        message: format!("{words} words; a sentence has {SENTENCE_WORDS_MAX} at most"),
    };
    long.into_iter().map(finding).collect()
}

/// Line number and length of each sentence of more than `words_max` words.
fn long_sentences(source: &SourceFile, words_max: usize) -> Vec<(usize, usize)> {
    let mut long = Vec::new();
    for block in source.blocks.iter().chain(&source.literals) {
        let prose = prose::tokens(&block.without_tables());
        for sentence in prose.split(|located| located.token == ProseToken::Stop) {
            let is_word = |located: &&Located| matches!(located.token, ProseToken::Word(_));
            let words = sentence.iter().filter(is_word).count();
            if words > words_max {
                long.push((sentence[0].line, words));
            }
        }
    }
    long
}

/// Advice: long sentences, and each line with a counted word.
pub(crate) fn advise(source: &SourceFile, rate: &Rate) -> Vec<Finding> {
    let finding = |line, rule, message| Finding { path: source.path.clone(), line, rule, message };
    let mut advice = Vec::new();
    for (line, words) in long_sentences(source, SENTENCE_WORDS_ADVISED) {
        let message = format!("{words} words; at most {SENTENCE_WORDS_ADVISED} as a rule");
        advice.push(finding(line, Rule::Sentence, message));
    }
    let lines: BTreeSet<_> = rate.counted.iter().collect();
    let counted = lines.into_iter().map(|(line, word)| finding(*line, Rule::Rate, format!("\"{word}\"")));
    advice.extend(counted);
    advice.sort_by_key(|finding| finding.line);
    advice
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::words::phrase;

    fn prose_of(text: &str) -> (SourceFile, Vec<Located>) {
        let source = SourceFile::parse("docs/a.md", text.to_owned()).expect("examined");
        let prose = source.blocks.iter().flat_map(prose::tokens).collect();
        (source, prose)
    }

    const TABLE: [Phrase; 2] =
        [phrase("whoever|so many", "name it"), phrase("the library", "hyper").under("crates/")];

    fn phrases(text: &str) -> Vec<String> {
        let (source, prose) = prose_of(text);
        check_phrases(&source, &prose, &TABLE).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_phrase_is_found_in_any_case_and_across_lines() {
        assert_eq!(phrases("Whoever asks"), ["docs/a.md:1: phrase: \"whoever\": name it"]);
        assert_eq!(phrases("x\nof so\nmany."), ["docs/a.md:2: phrase: \"so many\": name it"]);
    }

    #[test]
    fn a_phrase_is_not_found_in_code_in_parts_of_words_or_across_sentences() {
        assert!(phrases("`whoever` and whoevers. It does so. Many keys").is_empty());
        assert!(phrases("the library of another prefix").is_empty());
    }

    fn rate_finding(text: &str) -> Option<String> {
        let (source, prose) = prose_of(text);
        check_rate(&source, &Rate::of(&prose)).map(|finding| finding.to_string())
    }

    #[test]
    fn a_short_file_may_have_two_counted_words() {
        assert_eq!(rate_finding("what\nnobody"), None);
        let found = rate_finding("what\nnobody\nso many whatever").expect("four");
        assert_eq!(
            found,
            "docs/a.md:1: rate: 4 of 5 words, 800.0 per 1,000; at most 2 are allowed here: \
             lines 1 (what), 2 (nobody), 3 (so many), 3 (whatever)"
        );
    }

    #[test]
    fn a_long_file_may_have_three_counted_words_in_a_thousand() {
        let filler = "word ".repeat(1994);
        assert_eq!(rate_finding(&format!("{filler} {}", "what ".repeat(6))), None);
        assert!(rate_finding(&format!("{filler} {}", "what ".repeat(7))).is_some());
    }

    #[test]
    fn code_blocks_are_neither_words_nor_counted() {
        assert_eq!(rate_finding("a\n\n```\nwhat what what\n```\n"), None);
        let (_, prose) = prose_of("a `b c` d\n\n```\ne\n```\n");
        assert_eq!(Rate::of(&prose).words, 3);
    }

    #[test]
    fn a_sentence_has_thirty_words_at_most() {
        let found = |text: &str| -> Vec<String> {
            check_sentences(&prose_of(text).0).iter().map(ToString::to_string).collect()
        };
        let words = |count: usize| "word ".repeat(count);
        assert!(found(&format!("{}. A {}`a` `b`.", words(29), words(29))).is_empty());
        assert!(found(&format!("- {}\n- {}\n", words(20), words(20))).is_empty());
        assert!(found(&format!("| {} |\n", words(40))).is_empty());
        let expected = ["docs/a.md:2: sentence: 31 words; a sentence has 30 at most"];
        assert_eq!(found(&format!("A title.\nA {}.", words(30))), expected);
    }

    #[test]
    fn long_sentences_are_advice() {
        let (source, prose) = prose_of(&format!("Short one. Long {}end. Short.", "word ".repeat(24)));
        let advice = advise(&source, &Rate::of(&prose));
        let shown: Vec<String> = advice.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["docs/a.md:1: sentence: 26 words; at most 25 as a rule"]);
    }
}
