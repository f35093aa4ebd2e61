//! `If-None-Match` (RFC 9110, section 13.1.2): the versions that a client has already.

use crate::Problem;
use http::HeaderValue;
use stdx::Version;

/// Versions that a client has already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IfNoneMatch {
    /// `*`: any version.
    Any,
    /// A list of versions. Entity tags that are not versions are left out, since they match
    /// nothing.
    Versions(Vec<Version>),
}

impl IfNoneMatch {
    /// Parses the lines of the header. Weak tags are compared as strong ones.
    ///
    /// # Errors
    /// `400` unless the header is `*` or a list of entity tags.
    pub fn parse<'a>(lines: impl IntoIterator<Item = &'a HeaderValue>) -> Result<Self, Problem> {
        let mut versions = Vec::new();
        let mut is_any = false;
        for line in lines {
            if line.as_bytes().trim_ascii() == b"*" {
                is_any = true;
            } else {
                parse_list(line.as_bytes(), &mut versions).ok_or_else(malformed)?;
            }
        }
        Ok(if is_any { Self::Any } else { Self::Versions(versions) })
    }

    /// Whether the client has this version.
    pub fn matches(&self, version: Version) -> bool {
        match self {
            Self::Any => true,
            Self::Versions(versions) => versions.contains(&version),
        }
    }
}

fn malformed() -> Problem {
    Problem::bad_request(
        "If-None-Match is neither * nor a list of entity tags in double quotes. Send the ETag of an earlier answer.",
    )
}

/// Adds the versions of a comma-separated list. Returns `None` if the list is malformed.
fn parse_list(mut rest: &[u8], versions: &mut Vec<Version>) -> Option<()> {
    loop {
        rest = rest.trim_ascii_start();
        while let Some(after) = rest.strip_prefix(b",") {
            rest = after.trim_ascii_start();
        }
        if rest.is_empty() {
            return Some(());
        }
        let quoted = rest.strip_prefix(b"W/").unwrap_or(rest).strip_prefix(b"\"")?;
        let tag_len = quoted.iter().position(|byte| *byte == b'"')?;
        let (tag, after) = (&quoted[..tag_len], quoted[tag_len + 1..].trim_ascii_start());
        let is_tag = tag.iter().all(|byte| *byte > b' ' && *byte != 0x7f);
        if !is_tag || !(after.is_empty() || after.starts_with(b",")) {
            return None;
        }
        versions.extend(version_of(tag));
        rest = after;
    }
}

/// Version whose entity tag has this text.
pub(super) fn version_of(tag: &[u8]) -> Option<Version> {
    let text = std::str::from_utf8(tag).ok()?;
    let has_upper_case = text.bytes().any(|byte| byte.is_ascii_uppercase());
    if has_upper_case { None } else { text.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::{Hlc, NodeTag};

    const VERSION: Version = Version::new(Hlc::from_bits(0xab), NodeTag(1));
    const TAG: &str = "\"00000000000000ab0000000000000001\"";

    fn matches(lines: &[&str]) -> Option<bool> {
        let lines: Vec<HeaderValue> =
            lines.iter().map(|line| HeaderValue::from_str(line).expect("a value")).collect();
        IfNoneMatch::parse(&lines).ok().map(|condition| condition.matches(VERSION))
    }

    #[test]
    fn lists_of_tags_match_by_their_text() {
        for line in ["*", " * ", TAG, &format!("W/{TAG}"), &format!("\"a,b\" , {TAG}"), &format!(",,{TAG},")]
        {
            assert_eq!(matches(&[line]), Some(true), "{line}");
        }
        for line in
            ["", "\"\"", "\"a\", W/\"b\"", &TAG.to_uppercase(), "\"00000000000000ab0000000000000002\""]
        {
            assert_eq!(matches(&[line]), Some(false), "{line}");
        }
        assert_eq!(matches(&["\"a\"", TAG]), Some(true));
        assert_eq!(matches(&["\"a\"", "*"]), Some(true));
    }

    #[test]
    fn malformed_lists_are_refused() {
        for line in ["a", "\"a", "\"a\" \"b\"", "w/\"a\"", "*, \"a\"", "\"a b\"", "\"a\"b"] {
            assert_eq!(matches(&[line]), None, "{line}");
        }
    }
}
