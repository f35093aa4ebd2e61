//! Any bytes on a connection, split in two anywhere: no panic, and the split changes nothing.
#![no_main]

use api::{HeadCheck, HeadLimits, Verdict};

/// What passes of `pieces` that come one after the other, and whether the rest was refused.
fn passed(pieces: &[&[u8]]) -> (Vec<u8>, bool) {
    let mut check = HeadCheck::new(HeadLimits::default());
    let (mut waiting, mut passed) = (Vec::new(), Vec::new());
    for piece in pieces {
        waiting.extend_from_slice(piece);
        loop {
            match check.check(&waiting) {
                Verdict::Pass(len) => passed.extend(waiting.drain(..len)),
                Verdict::NeedMore => break,
                Verdict::Refuse(_) => return (passed, true),
                Verdict::Ended => return (passed, false),
            }
        }
    }
    (passed, false)
}

libfuzzer_sys::fuzz_target!(|input: (u16, &[u8])| {
    let (at, bytes) = input;
    let (head, tail) = bytes.split_at(usize::from(at).min(bytes.len()));
    assert_eq!(passed(&[bytes]), passed(&[head, tail]));
});
