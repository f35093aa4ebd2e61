//! The checksum of everything in the log.

/// CRC32C (Castagnoli), by the processor's instructions where it has them.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of RFC 3720, appendix B.4, and of every catalogue of CRCs.
    #[test]
    fn the_checksum_is_crc32c() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }
}
