//! Imports to a node that refuses or delays entries.

mod fake_node;

use api::entries::{
    BatchAction, EntryDecoder, EntryEncoder, EntryResult, Format, ResultEncoder, ResultScope,
};
use bytes::Bytes;
use ctl::{CtlError, Export, Import, ImportReport, RequestedQuorum, export, import};
use fake_node::with_server;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use stdx::{Hlc, NodeTag, Version};

/// A node that reads a batch completely, then answers each entry with the verdict of `judge`, which
/// receives the number of earlier entries.
struct FakeNode<J> {
    judge: J,
    entries_seen: usize,
    stored: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Whether a refusal follows the last entry, as if the batch had more entries.
    refuses_more: bool,
}

/// Verdict on an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Judgement {
    Stored,
    Refused(StatusCode),
    /// Neither the entry nor the following ones are answered.
    Hangup,
    /// The entry is refused temporarily, the results end regularly, and no later entry is executed.
    Closed,
}

impl<J: FnMut(usize, &[u8]) -> Judgement> FakeNode<J> {
    fn new(judge: J) -> Self {
        Self { judge, entries_seen: 0, stored: BTreeMap::new(), refuses_more: false }
    }

    /// Body of the response.
    fn answer(&mut self, body: Bytes) -> Vec<u8> {
        let mut entries = EntryDecoder::of_export(Format::Binary, 1 << 20);
        let (mut results, mut out) = (ResultEncoder::new(Format::Binary, ResultScope::All), Vec::new());
        entries.feed(body);
        while let Some(entry) = entries.next().expect("entries") {
            let key = entry.key.as_bytes().to_vec();
            let judgement = (self.judge)(self.entries_seen, &key);
            self.entries_seen += 1;
            let version = Version::new(Hlc::from_bits(1), NodeTag(1));
            let result = match (judgement, entry.action) {
                (Judgement::Hangup, _) => return out,
                (Judgement::Closed, _) => {
                    results.put(&refused(StatusCode::SERVICE_UNAVAILABLE), &mut out);
                    results.end(&mut out);
                    return out;
                }
                (Judgement::Stored, BatchAction::Put { value, .. }) => {
                    self.stored.insert(key, value.to_vec());
                    EntryResult::Done { is_delete: false, version, superseded: false }
                }
                (Judgement::Stored, BatchAction::Delete) => {
                    self.stored.remove(&key);
                    EntryResult::Done { is_delete: true, version, superseded: false }
                }
                (Judgement::Refused(status), _) => refused(status),
            };
            results.put(&result, &mut out);
        }
        entries.end().expect("a whole batch");
        if self.refuses_more {
            results.put(&refused(StatusCode::SERVICE_UNAVAILABLE), &mut out);
        }
        results.end(&mut out);
        out
    }
}

fn refused(status: StatusCode) -> EntryResult {
    EntryResult::Failed { status, detail: "not now".into(), retry_after_secs: None }
}

/// Imports `lines` to such a node. Returns the result and the entries of the node.
fn import_lines(
    lines: &str,
    judge: impl FnMut(usize, &[u8]) -> Judgement + 'static,
) -> (ImportReport, BTreeMap<Vec<u8>, Vec<u8>>) {
    import_to(FakeNode::new(judge), lines)
}

fn import_to(
    node: FakeNode<impl FnMut(usize, &[u8]) -> Judgement + 'static>,
    lines: &str,
) -> (ImportReport, BTreeMap<Vec<u8>, Vec<u8>>) {
    import_file(node, Box::new(std::io::Cursor::new(lines.to_owned().into_bytes())))
}

fn import_file(
    node: FakeNode<impl FnMut(usize, &[u8]) -> Judgement + 'static>,
    from: Box<dyn std::io::Read + Send>,
) -> (ImportReport, BTreeMap<Vec<u8>, Vec<u8>>) {
    let node = Rc::new(RefCell::new(node));
    let serving = Rc::clone(&node);
    let imported = with_server(
        move |request: Request<Incoming>| {
            let node = Rc::clone(&serving);
            async move {
                let body = request.into_body().collect().await?.to_bytes();
                let answer = node.borrow_mut().answer(body);
                let response = Response::builder().header(header::CONTENT_TYPE, Format::Binary.media_type());
                Ok(response.body(Full::new(Bytes::from(answer))).expect("a response"))
            }
        },
        async |node| {
            let quorum = RequestedQuorum::default();
            import(
                &node,
                Import { from, name: "lines".to_owned(), bytes_total: None, quorum, skip_future: false },
                &mut (),
            )
            .await
        },
    );
    let stored = node.borrow().stored.clone();
    (imported, stored)
}

fn lines(entries: &[(&str, &str)]) -> String {
    entries.iter().map(|(key, value)| format!("{{\"key\":\"{key}\",\"value\":\"{value}\"}}\n")).collect()
}

#[test]
fn a_compressed_file_that_is_cut_anywhere_is_not_called_empty() {
    let whole = zstd::encode_all(lines(&[("a", "1"), ("b", "2")]).as_bytes(), 3).expect("it is in memory");
    for len in 1..whole.len() {
        let from = Box::new(std::io::Cursor::new(whole[..len].to_vec()));
        let imported = import_file(FakeNode::new(|_, _| Judgement::Stored), from).0;
        let error = imported.ended_early.expect("it is cut").to_string();
        assert!(error.contains("cut short"), "{len} bytes: {error}");
    }
}

#[test]
fn temporarily_refused_entries_are_sent_again() {
    let many: Vec<(String, String)> =
        (0..2_000).map(|number| (format!("k{number}"), number.to_string())).collect();
    let many: Vec<_> = many.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let busy = [StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT];
    let (imported, stored) = import_lines(&lines(&many), move |seen, _| match seen {
        10..20 => Judgement::Refused(busy[seen % 2]),
        _ => Judgement::Stored,
    });
    assert_eq!((imported.entries, imported.sent_again, imported.failed), (2_000, 10, 0), "{imported:?}");
    assert!(imported.ended_early.is_none());
    assert_eq!(stored.len(), 2_000);
}

#[test]
fn of_entries_of_one_key_the_last_counts_also_when_one_was_refused() {
    let twice = lines(&[("a", "first"), ("b", "first"), ("a", "last"), ("b", "last")]);
    // The first entry of `a` is refused when the last one is stored; both entries of `b` are
    // refused once.
    let (imported, stored) = import_lines(&twice, |seen, key| match (seen, key) {
        (0, b"a") | (1 | 3, b"b") => Judgement::Refused(StatusCode::SERVICE_UNAVAILABLE),
        _ => Judgement::Stored,
    });
    assert_eq!((imported.entries, imported.sent_again), (4, 2), "{imported:?}");
    assert_eq!(
        stored,
        BTreeMap::from([(b"a".to_vec(), b"last".to_vec()), (b"b".to_vec(), b"last".to_vec())])
    );
}

#[test]
fn entries_behind_a_final_refusal_are_sent_again() {
    let lines = lines(&[("a", "1"), ("b", "first"), ("c", "3"), ("b", "last"), ("d", "4")]);
    let (imported, stored) = import_lines(&lines, |seen, _| match seen {
        1 => Judgement::Closed,
        _ => Judgement::Stored,
    });
    assert_eq!((imported.entries, imported.sent_again, imported.unknown), (5, 4, 0), "{imported:?}");
    assert!(imported.ended_early.is_none(), "{imported:?}");
    assert_eq!((stored.len(), &stored[&b"b"[..]][..]), (4, &b"last"[..]), "in their order");
}

#[test]
fn unanswered_entries_after_a_refusal_that_was_not_final_are_unknown() {
    let lines = lines(&[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")]);
    let (imported, _) = import_lines(&lines, |seen, _| match seen {
        0 => Judgement::Refused(StatusCode::SERVICE_UNAVAILABLE),
        1 => Judgement::Stored,
        _ => Judgement::Hangup,
    });
    assert_eq!(imported.unknown, 2, "{imported:?}");
    assert!(matches!(imported.ended_early, Some(CtlError::BrokenAnswer { .. })), "{imported:?}");
}

#[test]
fn a_refusal_behind_all_entries_ends_the_batch_and_not_the_import() {
    let (imported, stored) = import_to(
        FakeNode { refuses_more: true, ..FakeNode::new(|_, _| Judgement::Stored) },
        &lines(&[("a", "1")]),
    );
    assert_eq!((imported.entries, imported.unknown, stored.len()), (1, 0, 1), "{imported:?}");
    assert!(imported.ended_early.is_none(), "{imported:?}");
}

#[test]
fn permanent_failures_are_listed_and_the_other_entries_are_written() {
    let (imported, stored) =
        import_lines(&lines(&[("a", "1"), ("b", "2"), ("c", "3")]), |_, key| match key {
            b"b" => Judgement::Refused(StatusCode::INSUFFICIENT_STORAGE),
            _ => Judgement::Stored,
        });
    assert_eq!((imported.entries, imported.failed, stored.len()), (2, 1, 2));
    assert_eq!((&imported.failures[0].key[..], imported.failures[0].status), (&b"b"[..], 507));
}

#[test]
fn answers_that_are_missing_are_not_taken_for_success() {
    let (imported, _) = import_lines(&lines(&[("a", "1"), ("b", "2"), ("c", "3")]), |seen, _| match seen {
        0 => Judgement::Stored,
        _ => Judgement::Hangup,
    });
    assert_eq!((imported.entries, imported.unknown), (1, 2));
    assert!(matches!(imported.ended_early, Some(CtlError::BrokenAnswer { .. })), "{imported:?}");
}

#[test]
fn an_export_without_its_end_is_none() {
    let mut whole = Vec::new();
    let mut encoder = EntryEncoder::new(Format::Binary);
    let key = cluster::Key::new(Bytes::from_static(b"key")).expect("a key");
    let action =
        BatchAction::Put { value: Bytes::from_static(b"value"), lifetime: cluster::Lifetime::Forever };
    encoder.put_batch_entry(&api::entries::BatchEntry { key, action }, &mut whole);
    let without_end = whole.len();
    encoder.end(&mut whole);
    for (body, is_whole) in
        [(whole.clone(), true), (whole[..without_end].to_vec(), false), (b"VECHEEN2".to_vec(), false)]
    {
        let mut out = Vec::new();
        let respond = move |_: Request<Incoming>| {
            let response = Response::builder().header(header::CONTENT_TYPE, Format::Binary.media_type());
            let response = response.body(Full::new(Bytes::from(body.clone()))).expect("a response");
            async { Ok(response) }
        };
        let exported = with_server(respond, async |node| {
            let all = Export {
                prefix: None,
                keys: false,
                cluster: None,
                start: None,
                end: None,
                limit: None,
                format: Format::Binary,
                zstd: false,
                skip_future: false,
            };
            export(&node, &all, &mut out, &mut ()).await
        });
        assert_eq!(exported.is_ok(), is_whole, "{exported:?}");
    }
}
