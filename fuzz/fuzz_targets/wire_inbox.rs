//! Any bytes on a link, split in two anywhere: no panic, and the split changes nothing. Once as they are, once as
//! the payload of a frame, past its checksum.
#![no_main]

use wire::{Inbox, InboxLimits, Incoming, WireError};

const LIMITS: InboxLimits = InboxLimits { fragmented_bytes_max: 1 << 20 };

/// What comes of `pieces` that come one after the other.
fn incoming(pieces: &[&[u8]]) -> (Vec<Incoming>, Option<WireError>) {
    let mut inbox = Inbox::new(LIMITS);
    let mut all = Vec::new();
    for piece in pieces {
        inbox.feed(piece);
        loop {
            match inbox.next() {
                Ok(Some(came)) => all.push(came),
                Ok(None) => break,
                Err(error) => return (all, Some(error)),
            }
        }
    }
    (all, None)
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 4];
    frame.extend_from_slice(&[b'v', b'F', 1, 1 + kind % 2]);
    frame.extend_from_slice(&[0; 8]);
    frame.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    frame.extend_from_slice(payload);
    let crc = crc_fast::crc32_iscsi(&frame[4..]);
    frame[..4].copy_from_slice(&crc.to_le_bytes());
    frame
}

libfuzzer_sys::fuzz_target!(|input: (u16, u8, &[u8])| {
    let (at, kind, bytes) = input;
    let sealed = frame(kind, bytes);
    for bytes in [bytes, &sealed, &[&sealed[..], bytes].concat()] {
        let (head, tail) = bytes.split_at(usize::from(at).min(bytes.len()));
        assert_eq!(incoming(&[bytes]), incoming(&[head, tail]));
    }
});
