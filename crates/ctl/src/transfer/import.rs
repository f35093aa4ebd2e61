//! Import of the entries of a file to a node.
//!
//! **Promise.** When [`import`] returns, the node has answered each entry of the file: it was
//! written, or is counted as failed. Of several entries with one key the last one counts. Entries
//! that the node refuses temporarily (`503`) or for lack of replicas (`504`) are sent again, until
//! no entry was accepted for a minute.
//!
//! **Mechanism.** Entries are sent in *rounds*; each round is one batch request. Entries are
//! pipelined up to a limit. The first refusal ends the round: nothing more is sent. The entries in
//! flight are then either answered or not executed: a node without capacity for the rest of a batch
//! says so in its last result.
//!
//! After a pause the next round begins with the refused entries, followed by those that the node
//! did not reach. Entries whose key was meanwhile written by a later entry are omitted, because
//! they would overwrite the newer value.
//!
//! **Caveats.** Entries receive new versions; their expiry is kept. If the connection breaks, it is
//! unknown which of the entries in flight were written. Importing the file again is harmless,
//! unless other clients write the same keys.

use super::RequestedQuorum;
use super::entry_queue::EntryQueue;
use super::source;
use crate::error::CtlError;
use crate::node::{Answer, BodySender, NodeAddress, body};
use crate::progress::{OperationProgress, ProgressObserver};
use api::entries::{BatchAction, BatchEntry, EntryEncoder, EntryResult, Format, ResultDecoder};
use bytes::Bytes;
use cluster::Key;
use http::{Method, StatusCode, header};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Maximum number of failures that are kept for display.
pub const FAILURES_SHOWN_MAX: usize = 10;

/// Maximum size of the entries in flight, in bytes of keys and values.
const IN_FLIGHT_BYTES_MAX: usize = 16 << 20;
/// Maximum number of entries in flight.
const IN_FLIGHT_ENTRIES_MAX: usize = 16 << 10;
/// Entries are collected until they have this many bytes.
const PIECE_BYTES: usize = 64 << 10;
/// Timeout of a round's first result: the node's request timeout and its queues.
const FIRST_RESULT_MAX: Duration = Duration::from_secs(60);
/// Time without input from the file after which a round ends.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// Minimum and maximum pause between rounds.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Time of continuous refusal after which the import fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Parameters of an import.
pub struct Import {
    /// File to import.
    pub from: Box<dyn Read + Send>,
    /// Name of the file, for messages.
    pub name: String,
    /// Length of the file in bytes, if known.
    pub bytes_total: Option<u64>,
    /// Quorum of the writes.
    pub quorum: RequestedQuorum,
    /// Skip entries whose versions lie in the future; see [`is_in_future`](super::is_in_future).
    pub skip_future: bool,
}

/// Result of an import.
#[derive(Debug, Default)]
pub struct ImportReport {
    /// Number of entries that were written or deleted.
    pub entries: u64,
    /// Number of those entries for which the node had a greater version.
    pub superseded: u64,
    /// Number of entries skipped because their versions lie in the future.
    pub skipped: u64,
    /// Number of failed entries.
    pub failed: u64,
    /// The first [`FAILURES_SHOWN_MAX`] failed entries.
    pub failures: Vec<FailedEntry>,
    /// Number of repeated sends.
    pub sent_again: u64,
    /// Number of entries with an unknown result, because the connection broke.
    pub unknown: u64,
    /// Error because of which not all of the file was read or sent.
    pub ended_early: Option<CtlError>,
}

/// An entry that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedEntry {
    /// Key of the entry.
    pub key: Vec<u8>,
    /// Status that a single request would have received.
    pub status: u16,
    /// Detail from the node.
    pub detail: String,
}

/// Writes the entries of a file to a node. Dropping the future cancels it.
pub async fn import(node: &NodeAddress, import: Import, observer: &mut dyn ProgressObserver) -> ImportReport {
    let Import { from, name, bytes_total, quorum, skip_future } = import;
    let mut queue = EntryQueue::new(source::read(from, name, skip_future));
    let mut importer = Importer {
        node,
        target: target(&quorum),
        imported: ImportReport::default(),
        progress: OperationProgress { bytes_done: 0, bytes_total, entries_done: 0 },
        observer,
    };
    let ended_early = importer.run(&mut queue).await.err();
    ImportReport { ended_early, skipped: queue.skipped, ..importer.imported }
}

fn target(quorum: &RequestedQuorum) -> String {
    match quorum.parameters().join("&") {
        none if none.is_empty() => "/v0/entities".to_owned(),
        parameters => format!("/v0/entities?{parameters}"),
    }
}

struct Importer<'a> {
    node: &'a NodeAddress,
    target: String,
    imported: ImportReport,
    progress: OperationProgress,
    observer: &'a mut dyn ProgressObserver,
}

impl Importer<'_> {
    /// Runs rounds until all entries are answered.
    async fn run(&mut self, queue: &mut EntryQueue) -> Result<(), CtlError> {
        let (mut pause, mut last_progress) = (PAUSE_MIN, Instant::now());
        while queue.wait().await? {
            let entries_before = self.imported.entries;
            let refusal = self.round(queue).await?;
            if self.imported.entries > entries_before {
                (pause, last_progress) = (PAUSE_MIN, Instant::now());
            }
            let Some(Refusal { status, retry_after, detail }) = refusal else { continue };
            if last_progress.elapsed() > PATIENCE {
                let node = self.node.to_string();
                return Err(CtlError::Refused { node, status, detail, retry_after });
            }
            tokio::time::sleep(retry_after.unwrap_or(pause).clamp(pause, PAUSE_MAX)).await;
            pause = (2 * pause).min(PAUSE_MAX);
        }
        Ok(())
    }

    /// Runs one round. Puts temporarily refused entries back to the queue, and returns the
    /// refusal.
    async fn round(&mut self, queue: &mut EntryQueue) -> Result<Option<Refusal>, CtlError> {
        let flight = InFlight::default();
        let (sender, body) = body();
        let request = self
            .node
            .request(Method::POST, &self.target)
            .header(header::CONTENT_TYPE, Format::Binary.media_type())
            .header(header::ACCEPT, Format::Binary.media_type())
            .body(body)
            .expect("a valid request");
        let answered = tokio::select! {
            answered = async {
                let answer = self.node.send(request, FIRST_RESULT_MAX).await?;
                self.collect(answer, &flight).await
            } => answered,
            never = async {
                feed(sender, &flight, queue).await;
                std::future::pending().await
            } => never,
        };
        let InFlight { in_flight, refusal, refused, last_is_refusal, .. } = flight;
        let in_flight = in_flight.into_inner();
        let mut again = refused.into_inner().into_entries();
        match answered {
            Ok(()) if in_flight.is_empty() || last_is_refusal.get() => again.extend(in_flight),
            Ok(()) => {
                self.imported.unknown = in_flight.len() as u64;
                let detail = format!("it did not answer {} entries", in_flight.len());
                return Err(CtlError::BrokenAnswer { node: self.node.to_string(), detail });
            }
            Err(CtlError::Refused { status, detail, retry_after, .. }) if is_for_now(status) => {
                queue.put_back(in_flight.into());
                return Ok(Some(Refusal { status, retry_after, detail }));
            }
            Err(error) => {
                let is_refused = matches!(error, CtlError::Refused { .. } | CtlError::Unreachable { .. });
                self.imported.unknown = if is_refused { 0 } else { in_flight.len() as u64 };
                return Err(error);
            }
        }
        self.imported.sent_again += again.len() as u64;
        queue.put_back(again);
        Ok(refusal.into_inner())
    }

    /// Reads the results of a round.
    async fn collect(&mut self, answer: Answer, flight: &InFlight) -> Result<(), CtlError> {
        let mut answer = answer.expect(StatusCode::OK).await?;
        let broken = |detail: String| CtlError::BrokenAnswer { node: self.node.to_string(), detail };
        if answer.header(header::CONTENT_TYPE) != Some(Format::Binary.media_type()) {
            return Err(broken("its answer is not in the requested format".to_owned()));
        }
        let mut results = ResultDecoder::new(Format::Binary);
        while let Some(piece) = answer.next().await? {
            results.feed(piece);
            while let Some(result) = results.next().map_err(|error| broken(error.to_string()))? {
                match flight.complete_first() {
                    Some(entry) => settle(&mut self.imported, entry, result, flight),
                    None => match Refusal::of(&result) {
                        // The node has no capacity for further entries of the batch.
                        Some(refusal) => flight.end(refusal),
                        None => return Err(broken("it answers more entries than it was sent".to_owned())),
                    },
                }
            }
            self.progress.entries_done = self.imported.entries;
            self.progress.bytes_done = flight.bytes_read.get().max(self.progress.bytes_done);
            self.observer.on_progress(self.progress);
        }
        results.end().map_err(|error| broken(error.to_string()))
    }
}

/// Counts the result of an entry.
fn settle(imported: &mut ImportReport, entry: BatchEntry, result: EntryResult, flight: &InFlight) {
    let refusal = Refusal::of(&result);
    flight.last_is_refusal.set(refusal.is_some());
    if let Some(refusal) = refusal {
        return flight.refuse(entry, refusal);
    }
    match result {
        EntryResult::Done { superseded, .. } => {
            imported.entries += 1;
            imported.superseded += u64::from(superseded);
            imported.entries += flight.refused.borrow_mut().forget(&entry.key);
        }
        EntryResult::Failed { status, detail, .. } => {
            imported.failed += 1;
            if imported.failures.len() < FAILURES_SHOWN_MAX {
                let (key, status) = (entry.key.as_bytes().to_vec(), status.as_u16());
                imported.failures.push(FailedEntry { key, status, detail: detail.into_owned() });
            }
        }
    }
}

/// Sends entries until none is available, or one was refused.
async fn feed(sender: BodySender, flight: &InFlight, queue: &mut EntryQueue) {
    let mut encoder = EntryEncoder::new(Format::Binary);
    let mut piece = Vec::with_capacity(2 * PIECE_BYTES);
    while !flight.is_refused() {
        let entry = if flight.has_room() { queue.next() } else { None };
        if let Some(entry) = entry {
            encoder.put_batch_entry(&entry, &mut piece);
            flight.bytes_read.set(queue.bytes_read);
            flight.push(entry);
            if piece.len() < PIECE_BYTES {
                continue;
            }
        }
        if !piece.is_empty() {
            // If the body was dropped, `collect` reports the reason.
            sender.send(Bytes::from(std::mem::take(&mut piece))).await;
        } else if !flight.has_room() {
            flight.changed.notified().await;
        } else {
            // The file is read slowly: end the round instead of keeping the node waiting.
            let more = tokio::select! {
                more = tokio::time::timeout(IDLE_MAX, queue.fill()) => more.unwrap_or(false),
                () = flight.changed.notified() => true,
            };
            if !more {
                break;
            }
        }
    }
    encoder.end(&mut piece);
    sender.send(piece.into()).await;
}

/// Whether a later attempt may succeed: the node is overloaded, or lacks replicas. Repeating a
/// write that some replicas may have stored is harmless.
const fn is_for_now(status: u16) -> bool {
    matches!(status, 503 | 504)
}

/// Reason why entries have to be sent again later.
#[derive(Debug)]
struct Refusal {
    status: u16,
    retry_after: Option<Duration>,
    detail: String,
}

impl Refusal {
    /// The temporary refusal of an entry; `None` if it was not refused, or permanently.
    fn of(result: &EntryResult) -> Option<Self> {
        match result {
            EntryResult::Failed { status, detail, retry_after_secs } if is_for_now(status.as_u16()) => {
                let retry_after = retry_after_secs.map(|secs| Duration::from_secs(secs.into()));
                Some(Self { status: status.as_u16(), retry_after, detail: detail.clone().into_owned() })
            }
            _ => None,
        }
    }
}

/// Entries of a round in flight, and refused ones. Shared by the sender and the receiver of
/// results.
#[derive(Default)]
struct InFlight {
    in_flight: RefCell<VecDeque<BatchEntry>>,
    bytes: Cell<usize>,
    refused: RefCell<RefusedEntries>,
    refusal: RefCell<Option<Refusal>>,
    /// Whether the last result was a refusal. If the results end with it, it applies to all later
    /// entries too.
    last_is_refusal: Cell<bool>,
    /// Notified when capacity becomes available, or the round has to end.
    changed: Notify,
    /// Bytes of the file that were read when the last entry was sent.
    bytes_read: Cell<u64>,
}

impl InFlight {
    fn has_room(&self) -> bool {
        self.bytes.get() < IN_FLIGHT_BYTES_MAX && self.in_flight.borrow().len() < IN_FLIGHT_ENTRIES_MAX
    }

    fn is_refused(&self) -> bool {
        self.refusal.borrow().is_some()
    }

    fn push(&self, entry: BatchEntry) {
        self.bytes.set(self.bytes.get() + bytes_of(&entry));
        self.in_flight.borrow_mut().push_back(entry);
    }

    /// Removes the entry that is answered next.
    fn complete_first(&self) -> Option<BatchEntry> {
        let entry = self.in_flight.borrow_mut().pop_front()?;
        self.bytes.set(self.bytes.get() - bytes_of(&entry));
        self.changed.notify_one();
        Some(entry)
    }

    fn refuse(&self, entry: BatchEntry, refusal: Refusal) {
        self.refused.borrow_mut().push(entry);
        self.end(refusal);
    }

    /// Ends the round: nothing more is sent.
    fn end(&self, refusal: Refusal) {
        *self.refusal.borrow_mut() = Some(refusal);
        self.changed.notify_one();
    }
}

fn bytes_of(entry: &BatchEntry) -> usize {
    let value_len = match &entry.action {
        BatchAction::Put { value, .. } => value.len(),
        BatchAction::Delete => 0,
    };
    entry.key.as_bytes().len() + value_len
}

/// Entries that were refused in a round, in order.
#[derive(Default)]
struct RefusedEntries {
    entries: Vec<Option<BatchEntry>>,
    positions: BTreeMap<Key, Vec<usize>>,
}

impl RefusedEntries {
    fn push(&mut self, entry: BatchEntry) {
        self.positions.entry(entry.key.clone()).or_default().push(self.entries.len());
        self.entries.push(Some(entry));
    }

    /// Drops the entries of a key of which a later entry was written. Returns their number.
    fn forget(&mut self, key: &Key) -> u64 {
        let positions = self.positions.remove(key).unwrap_or_default();
        positions.iter().for_each(|position| self.entries[*position] = None);
        positions.len() as u64
    }

    fn into_entries(self) -> Vec<BatchEntry> {
        self.entries.into_iter().flatten().collect()
    }
}
