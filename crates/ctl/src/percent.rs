//! Percent-encoding of keys in a query.

/// Encodes `bytes` as the value of a query parameter.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                text.push(char::from(*byte));
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_characters_are_encoded() {
        assert_eq!(encode(b"a-Z_0.9~"), "a-Z_0.9~");
        assert_eq!(encode(b"a b&c=d+e%\0\xff"), "a%20b%26c%3Dd%2Be%25%00%FF");
    }
}
