//! Any method, target and headers as a request: understood, or a problem that says why not.
#![no_main]

use std::num::NonZeroU8;

const RULES: api::Rules =
    api::Rules { nodes: NonZeroU8::new(3).unwrap(), default_from: 3, value_bytes_max: 16 << 20 };

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let builder = http::Request::builder()
        .method(lines.next().unwrap_or_default())
        .uri(lines.next().unwrap_or_default());
    let builder = lines.fold(builder, |builder, line| match line.iter().position(|byte| *byte == b':') {
        Some(colon) => builder.header(&line[..colon], &line[colon + 1..]),
        None => builder,
    });
    if let Ok(request) = builder.body(()) {
        let _ = api::decode_head(&request.into_parts().0, &RULES);
    }
});
