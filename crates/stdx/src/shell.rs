//! Words of a shell line that a person may paste.
//!
//! **Promise.** Every POSIX shell reads [`shell_word`] as exactly one word of these bytes. It
//! contains no control character that a terminal would obey.
//!
//! **Mechanism.** Words without special characters stay unchanged. Other words are put between
//! single quotes. For control characters and bytes that are not UTF-8, the shell itself prints the
//! word: `"$(printf '...')"` with octal escapes. Older shells misread `$'...'` as a dollar sign and
//! a quoted word.
//!
//! **Caveats.** A shell drops line ends at the end of such a word.

use std::fmt::Write;
use std::path::Path;

/// Returns `bytes` as one word of a shell line.
pub fn shell_word(bytes: &[u8]) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(byte);
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.is_empty() && bytes.iter().all(is_plain) => text.to_owned(),
        Ok(text) if !text.chars().any(char::is_control) => format!("'{}'", text.replace('\'', r"'\''")),
        _ => {
            let mut word = r#""$(printf '"#.to_owned();
            for byte in bytes {
                match byte {
                    b' ' | b'/' | b'.' | b'_' => word.push(char::from(*byte)),
                    byte if byte.is_ascii_alphanumeric() => word.push(char::from(*byte)),
                    _ => write!(word, "\\{byte:03o}").expect("a string takes all"),
                }
            }
            word + r#"')""#
        }
    }
}

/// Returns `path` as one word of a shell line, in a form that no command mistakes for a flag.
pub fn shell_path(path: &Path) -> String {
    let bytes = path.as_os_str().as_encoded_bytes();
    if bytes.starts_with(b"-") { shell_word(&[b"./", bytes].concat()) } else { shell_word(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_read_back_as_it_is() {
        for (bytes, word) in [
            (&b"/var/lib/veche-1"[..], "/var/lib/veche-1"),
            (b"", "''"),
            (b"my data", "'my data'"),
            (b"it's", r"'it'\''s'"),
            (b"$(reboot);`x`", "'$(reboot);`x`'"),
            (b"~", "'~'"),
            ("d\u{fc}".as_bytes(), "'d\u{fc}'"),
            (b"a\nb'\\", r#""$(printf 'a\012b\047\134')""#),
            (b"\x1b[2J%s", r#""$(printf '\033\1332J\045s')""#),
            (b"\xff", r#""$(printf '\377')""#),
        ] {
            assert_eq!(shell_word(bytes), word);
        }
        assert_eq!(shell_path(Path::new("-rf")), "./-rf");
    }
}
