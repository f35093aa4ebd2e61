//! The checksum used throughout the log.

/// CRC32C (Castagnoli), with the processor's instructions where available.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// CRC32C over the checksums of a group's records, in order.
pub(super) struct Digest(crc_fast::Digest);

impl Digest {
    pub(super) fn new() -> Self {
        Self(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
    }

    pub(super) fn add(&mut self, crc: u32) {
        self.0.update(&crc.to_le_bytes());
    }

    pub(super) fn finish(&self) -> u32 {
        self.0.finalize() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of RFC 3720, appendix B.4, which is also in every catalogue of CRCs.
    #[test]
    fn the_checksum_is_crc32c() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn a_digest_is_the_checksum_of_the_checksums() {
        let mut digest = Digest::new();
        assert_eq!(digest.finish(), crc32c(&[]));
        digest.add(0x0403_0201);
        digest.add(0x0807_0605);
        assert_eq!(digest.finish(), crc32c(&[1, 2, 3, 4, 5, 6, 7, 8]));
    }
}
