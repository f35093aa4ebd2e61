//! The entries of a file, written to a node.
//!
//! **Promise.** When [`import`] returns, each entry of the file was answered: written, or counted as failed. Of entries of
//! one key the last counts. Entries that the node refuses for now (`503`), or finds too few replicas for (`504`), are
//! sent again, until nothing is taken any more for a minute.
//!
//! **Mechanism.** Entries are sent in *rounds*, each a batch of the node's: while the node answers one, the next are under
//! way, up to a limit. The first refusal ends the round: nothing more is sent, and all that is under way is answered, or
//! nothing of it is done: a node that has no room for the rest of a batch says so in its last result. After a pause the
//! next round begins with what was refused, and then what the node did not get to. But for entries whose key was written by
//! a later one meanwhile: those would bury what is newer.
//!
//! **Caveats.** Entries get new versions; their expiry stays. When the connection breaks, nobody knows which of the
//! entries under way were written. To import the file again does no harm, if nobody else writes its keys.

use super::QuorumWish;
use super::source;
use super::supply::Supply;
use crate::error::CtlError;
use crate::node::{Answer, BodySender, Node, body};
use crate::progress::{Observer, Progress};
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

/// So many failures are kept to be shown.
pub const FAILURES_SHOWN_MAX: usize = 10;

/// So much is under way at most, in bytes of keys and values ...
const UNDER_WAY_BYTES_MAX: usize = 16 << 20;
/// ... and entries.
const UNDER_WAY_MAX: usize = 16 << 10;
/// An entry is sent with others until they have so many bytes.
const PIECE_BYTES: usize = 64 << 10;
/// The first result of a round may take a request's time on the node, and what is before it in its queues.
const FIRST_RESULT_MAX: Duration = Duration::from_secs(60);
/// A round ends when the file gives nothing for so long.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// Between rounds, at least and at most.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A node that refuses everything for so long is taken at its word.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is imported, and how.
pub struct Import {
    /// The file.
    pub from: Box<dyn Read + Send>,
    /// What it is called.
    pub name: String,
    /// Its length, where that is known, in bytes.
    pub bytes_total: Option<u64>,
    /// How many replicas of each entry must answer.
    pub quorum: QuorumWish,
    /// Leaves out entries whose versions lie in the future: see [`is_in_future`](super::is_in_future).
    pub skip_future: bool,
}

/// What became of the entries.
#[derive(Debug, Default)]
pub struct Imported {
    /// Entries that were written or deleted.
    pub entries: u64,
    /// Of those, how many found a greater version on the node.
    pub superseded: u64,
    /// Entries that were left out, since their versions lie in the future.
    pub skipped: u64,
    /// Entries that failed.
    pub failed: u64,
    /// The first of them.
    pub failures: Vec<FailedEntry>,
    /// How often an entry was sent again.
    pub sent_again: u64,
    /// Entries whose fate nobody knows: the connection broke.
    pub unknown: u64,
    /// Why not all of the file was read or sent.
    pub ended_early: Option<CtlError>,
}

/// An entry that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedEntry {
    /// Its key.
    pub key: Vec<u8>,
    /// What a single request would have got.
    pub status: u16,
    /// What the node says.
    pub detail: String,
}

/// Writes the entries of a file to a node. Dropping the future ends it.
pub async fn import(node: &Node, import: Import, observer: &mut dyn Observer) -> Imported {
    let Import { from, name, bytes_total, quorum, skip_future } = import;
    let mut supply = Supply::new(source::read(from, name, skip_future));
    let mut importer = Importer {
        node,
        target: target(&quorum),
        imported: Imported::default(),
        progress: Progress { bytes_done: 0, bytes_total, entries_done: 0 },
        observer,
    };
    let ended_early = importer.run(&mut supply).await.err();
    Imported { ended_early, skipped: supply.skipped, ..importer.imported }
}

fn target(quorum: &QuorumWish) -> String {
    match quorum.parameters().join("&") {
        none if none.is_empty() => "/v0/entities".to_owned(),
        parameters => format!("/v0/entities?{parameters}"),
    }
}

struct Importer<'a> {
    node: &'a Node,
    target: String,
    imported: Imported,
    progress: Progress,
    observer: &'a mut dyn Observer,
}

impl Importer<'_> {
    /// Until all entries were answered.
    async fn run(&mut self, supply: &mut Supply) -> Result<(), CtlError> {
        let (mut pause, mut heard_well) = (PAUSE_MIN, Instant::now());
        while supply.wait().await? {
            let entries_before = self.imported.entries;
            let refusal = self.round(supply).await?;
            if self.imported.entries > entries_before {
                (pause, heard_well) = (PAUSE_MIN, Instant::now());
            }
            let Some(Refusal { status, retry_after, detail }) = refusal else { continue };
            if heard_well.elapsed() > PATIENCE {
                let node = self.node.to_string();
                return Err(CtlError::Refused { node, status, detail, retry_after });
            }
            tokio::time::sleep(retry_after.unwrap_or(pause).clamp(pause, PAUSE_MAX)).await;
            pause = (2 * pause).min(PAUSE_MAX);
        }
        Ok(())
    }

    /// One batch. What is refused for now goes back to the supply; then it says why.
    async fn round(&mut self, supply: &mut Supply) -> Result<Option<Refusal>, CtlError> {
        let flight = Flight::default();
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
                feed(sender, &flight, supply).await;
                std::future::pending().await
            } => never,
        };
        let Flight { under_way, refusal, refused, last_is_refusal, .. } = flight;
        let under_way = under_way.into_inner();
        let mut again = refused.into_inner().into_entries();
        match answered {
            Ok(()) if under_way.is_empty() || last_is_refusal.get() => again.extend(under_way),
            Ok(()) => {
                self.imported.unknown = under_way.len() as u64;
                let detail = format!("it left {} entries without an answer", under_way.len());
                return Err(CtlError::BrokenOff { node: self.node.to_string(), detail });
            }
            Err(CtlError::Refused { status, detail, retry_after, .. }) if is_for_now(status) => {
                supply.put_back(under_way.into());
                return Ok(Some(Refusal { status, retry_after, detail }));
            }
            Err(error) => {
                let is_refused = matches!(error, CtlError::Refused { .. } | CtlError::Unreachable { .. });
                self.imported.unknown = if is_refused { 0 } else { under_way.len() as u64 };
                return Err(error);
            }
        }
        self.imported.sent_again += again.len() as u64;
        supply.put_back(again);
        Ok(refusal.into_inner())
    }

    /// Takes in the results.
    async fn collect(&mut self, answer: Answer, flight: &Flight) -> Result<(), CtlError> {
        let mut answer = answer.expect(StatusCode::OK).await?;
        let broken = |detail: String| CtlError::BrokenOff { node: self.node.to_string(), detail };
        if answer.header(header::CONTENT_TYPE) != Some(Format::Binary.media_type()) {
            return Err(broken("it answers in another format than it was asked for".to_owned()));
        }
        let mut results = ResultDecoder::new(Format::Binary);
        while let Some(piece) = answer.next().await? {
            results.feed(piece);
            while let Some(result) = results.next().map_err(|error| broken(error.to_string()))? {
                match flight.land() {
                    Some(entry) => settle(&mut self.imported, entry, result, flight),
                    None => match Refusal::of(&result) {
                        // There was no room for what might have come.
                        Some(refusal) => flight.end(refusal),
                        None => return Err(broken("it answers entries that it was not sent".to_owned())),
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
fn settle(imported: &mut Imported, entry: BatchEntry, result: EntryResult, flight: &Flight) {
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

/// Sends entries until there are no more for now, or one was refused.
async fn feed(sender: BodySender, flight: &Flight, supply: &mut Supply) {
    let mut encoder = EntryEncoder::new(Format::Binary);
    let mut piece = Vec::with_capacity(2 * PIECE_BYTES);
    while !flight.is_refused() {
        let entry = if flight.has_room() { supply.next() } else { None };
        if let Some(entry) = entry {
            encoder.put_batch_entry(&entry, &mut piece);
            flight.bytes_read.set(supply.bytes_read);
            flight.begin(entry);
            if piece.len() < PIECE_BYTES {
                continue;
            }
        }
        if !piece.is_empty() {
            // Where nobody wants it, whoever collects learns why.
            sender.send(Bytes::from(std::mem::take(&mut piece))).await;
        } else if !flight.has_room() {
            flight.changed.notified().await;
        } else {
            // A file that comes slowly: the node is not kept waiting.
            let more = tokio::select! {
                more = tokio::time::timeout(IDLE_MAX, supply.fill()) => more.unwrap_or(false),
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

/// Whether a node that says this may do later what it was asked: it has too much to do, or misses replicas. A write that
/// may have been stored on some of them is repeated without harm.
const fn is_for_now(status: u16) -> bool {
    matches!(status, 503 | 504)
}

/// Why entries are to be sent again later.
#[derive(Debug)]
struct Refusal {
    status: u16,
    retry_after: Option<Duration>,
    detail: String,
}

impl Refusal {
    /// That of an entry; `None`: it was not refused, or for good.
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

/// What was sent in a round, and not answered or refused. Shared by whoever sends and whoever takes the answers.
#[derive(Default)]
struct Flight {
    under_way: RefCell<VecDeque<BatchEntry>>,
    bytes: Cell<usize>,
    refused: RefCell<Refused>,
    refusal: RefCell<Option<Refusal>>,
    /// The last result was a refusal. If results end with it, it is of all entries behind it too.
    last_is_refusal: Cell<bool>,
    /// There is more room, or the round is to end.
    changed: Notify,
    /// So much of the file was read when the last entry was sent.
    bytes_read: Cell<u64>,
}

impl Flight {
    fn has_room(&self) -> bool {
        self.bytes.get() < UNDER_WAY_BYTES_MAX && self.under_way.borrow().len() < UNDER_WAY_MAX
    }

    fn is_refused(&self) -> bool {
        self.refusal.borrow().is_some()
    }

    fn begin(&self, entry: BatchEntry) {
        self.bytes.set(self.bytes.get() + bytes_of(&entry));
        self.under_way.borrow_mut().push_back(entry);
    }

    /// The entry that is answered next.
    fn land(&self) -> Option<BatchEntry> {
        let entry = self.under_way.borrow_mut().pop_front()?;
        self.bytes.set(self.bytes.get() - bytes_of(&entry));
        self.changed.notify_one();
        Some(entry)
    }

    fn refuse(&self, entry: BatchEntry, refusal: Refusal) {
        self.refused.borrow_mut().push(entry);
        self.end(refusal);
    }

    /// Nothing more is sent.
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

/// Entries that were refused in a round, in their order.
#[derive(Default)]
struct Refused {
    entries: Vec<Option<BatchEntry>>,
    places: BTreeMap<Key, Vec<usize>>,
}

impl Refused {
    fn push(&mut self, entry: BatchEntry) {
        self.places.entry(entry.key.clone()).or_default().push(self.entries.len());
        self.entries.push(Some(entry));
    }

    /// Forgets the entries of a key: a later one was written. Returns how many.
    fn forget(&mut self, key: &Key) -> u64 {
        let places = self.places.remove(key).unwrap_or_default();
        places.iter().for_each(|place| self.entries[*place] = None);
        places.len() as u64
    }

    fn into_entries(self) -> Vec<BatchEntry> {
        self.entries.into_iter().flatten().collect()
    }
}
