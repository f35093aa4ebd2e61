//! Findings: violations of a rule, with their place in a file.

use std::fmt;

/// A rule of style.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// Two types have one name.
    DuplicateType,
    /// An identifier contains a retired word.
    RetiredName,
    /// Prose contains a retired phrase.
    Phrase,
    /// A doc comment begins in the middle of a sentence.
    Fragment,
    /// A comment extends past column 100.
    Wide,
    /// A comment or page refers to a file that does not exist.
    Reference,
    /// A file uses pronouns without a subject too often.
    Rate,
    /// A sentence is too long.
    Sentence,
}

impl Rule {
    /// The rules whose findings fail the run.
    pub(crate) const FAILING: [Self; 8] = [
        Self::DuplicateType,
        Self::RetiredName,
        Self::Phrase,
        Self::Fragment,
        Self::Wide,
        Self::Reference,
        Self::Rate,
        Self::Sentence,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::DuplicateType => "duplicate-type",
            Self::RetiredName => "retired-name",
            Self::Phrase => "phrase",
            Self::Fragment => "fragment",
            Self::Wide => "wide",
            Self::Reference => "reference",
            Self::Rate => "rate",
            Self::Sentence => "sentence",
        }
    }
}

/// One violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) rule: Rule,
    pub(crate) message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule.name(), self.message)
    }
}
