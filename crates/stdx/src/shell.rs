//! Words for a shell line that a person may paste.
//!
//! **Promise.** A POSIX shell of 2024, bash, zsh or ksh reads [`shell_word`] as exactly one word of exactly these bytes, and
//! it has no control character that a terminal would obey.
//!
//! **Mechanism.** Plain words stay as they are. Others stand between single quotes, and those with control characters or
//! bytes that are not UTF-8 between `$'` and `'`, with octal escapes.

use std::fmt::Write;
use std::path::Path;

/// `bytes` as one word of a shell line.
pub fn shell_word(bytes: &[u8]) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(byte);
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.is_empty() && bytes.iter().all(is_plain) => text.to_owned(),
        Ok(text) if !text.chars().any(char::is_control) => format!("'{}'", text.replace('\'', r"'\''")),
        _ => {
            let mut word = "$'".to_owned();
            for byte in bytes {
                match byte {
                    b'\\' | b'\'' => word.extend(['\\', char::from(*byte)]),
                    b' '..=b'~' => word.push(char::from(*byte)),
                    _ => write!(word, "\\{byte:03o}").expect("a string takes all"),
                }
            }
            word + "'"
        }
    }
}

/// `path` as one word of a shell line, which no command takes for a flag.
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
            (b"a\nb'\\", r"$'a\012b\'\\'"),
            (b"\x1b[2J", r"$'\033[2J'"),
            (b"\xff", r"$'\377'"),
        ] {
            assert_eq!(shell_word(bytes), word);
        }
        assert_eq!(shell_path(Path::new("-rf")), "./-rf");
    }
}
