//! Export of a range of entries from a node to a file.
//!
//! **Promise.** When [`export`] returns, the whole range was written, as the node sent it. A stream
//! that is cut short or malformed is an error.
//!
//! **Mechanism.** The stream is decoded while it is written: entries are counted, and an
//! undecodable stream cannot pass for a complete one. If entries are skipped, the others are
//! encoded again with their versions. HTTP distinguishes the end of a stream from a broken
//! connection, and the binary format marks its end for the file as well. For an export of keys only
//! lines are counted.

use super::zstd_decoder::ZstdDecoder;
use super::{RequestedQuorum, VALUE_BYTES_MAX, is_in_future};
use crate::error::CtlError;
use crate::node::{Answer, NodeAddress, SILENCE_MAX};
use crate::percent;
use crate::progress::{OperationProgress, ProgressObserver};
use api::entries::{BatchEntry, Coding, EntryDecoder, EntryEncoder, Format};
use bytes::Bytes;
use http::{Method, StatusCode, header};
use http_body_util::Empty;
use std::io;
use std::time::Duration;
use stdx::Version;

/// Timeout of a count.
const COUNT_MAX: Duration = Duration::from_secs(3_600);

/// Entries to export, and their format.
#[derive(Clone, Debug)]
pub struct Export {
    /// Export from the whole cluster with this quorum. `None`: the entries that the node itself
    /// holds.
    pub cluster: Option<RequestedQuorum>,
    /// Prefix of the keys; `None`: any.
    pub prefix: Option<Vec<u8>>,
    /// First key, inclusive; `None`: no bound.
    pub start: Option<Vec<u8>>,
    /// Last key, exclusive; `None`: no bound.
    pub end: Option<Vec<u8>>,
    /// Maximum number of entries.
    pub limit: Option<u64>,
    /// Export only keys and versions, as [`Format::Ndjson`]. Excludes `skip_future`.
    pub keys: bool,
    /// [`Format::Binary`] or [`Format::Ndjson`].
    pub format: Format,
    /// Have the node compress the stream. Excludes `skip_future`.
    pub zstd: bool,
    /// Skip entries whose versions lie in the future; see [`is_in_future`](super::is_in_future).
    pub skip_future: bool,
}

/// Result of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportReport {
    /// Number of exported entries.
    pub entries: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Number of entries skipped because their versions lie in the future.
    pub skipped: u64,
}

/// Writes the entries of a range to `to`. Dropping the future cancels it.
///
/// # Errors
/// [`CtlError`]; the output is then incomplete.
pub async fn export(
    node: &NodeAddress,
    export: &Export,
    to: &mut dyn io::Write,
    observer: &mut dyn ProgressObserver,
) -> Result<ExportReport, CtlError> {
    let coding = if export.zstd { Coding::Zstd } else { Coding::Identity };
    let request = node
        .request(Method::GET, &target(export))
        .header(header::ACCEPT, export.format.media_type())
        .header(header::ACCEPT_ENCODING, coding.name().unwrap_or("identity"))
        .body(Empty::<Bytes>::new())
        .expect("a valid request");
    let mut answer = node.send(request, SILENCE_MAX).await?.expect(StatusCode::OK).await?;
    let mut check = StreamCheck::new(node, export, coding, &answer)?;
    check.filter = export.skip_future.then(|| FutureFilter {
        encoder: EntryEncoder::new(export.format),
        out: Vec::new(),
        skipped: 0,
    });
    let mut exported = ExportReport::default();
    let mut write = |bytes: &[u8]| to.write_all(bytes).map_err(|source| CtlError::Output { source });
    while let Some(piece) = answer.next().await? {
        match &mut check.filter {
            None => {
                write(&piece)?;
                exported.bytes += piece.len() as u64;
                check.feed(piece)?;
                exported.entries = check.content.entries();
            }
            Some(_) => {
                check.feed(piece)?;
                exported.write_filtered(check.filter.as_mut().expect("it was just seen"), &mut write)?;
            }
        }
        let ExportReport { entries, bytes, .. } = exported;
        observer.on_progress(OperationProgress {
            bytes_done: bytes,
            bytes_total: None,
            entries_done: entries,
        });
    }
    check.end()?;
    if let Some(filter) = &mut check.filter {
        filter.encoder.end(&mut filter.out);
        exported.write_filtered(filter, &mut write)?;
    }
    to.flush().map_err(|source| CtlError::Output { source })?;
    Ok(exported)
}

impl ExportReport {
    /// Writes the encoded entries.
    fn write_filtered(
        &mut self,
        filter: &mut FutureFilter,
        write: &mut dyn FnMut(&[u8]) -> Result<(), CtlError>,
    ) -> Result<(), CtlError> {
        write(&filter.out)?;
        self.bytes += filter.out.len() as u64;
        (self.entries, self.skipped) = (filter.encoder.entries(), filter.skipped);
        filter.out.clear();
        Ok(())
    }
}

/// Counts the entries of a range on the node. Dropping the future cancels it.
///
/// # Errors
/// [`CtlError`].
pub async fn count(node: &NodeAddress, export: &Export) -> Result<u64, CtlError> {
    let request = node
        .request(Method::GET, &format!("{}&count=1", target(export)))
        .body(Empty::<Bytes>::new())
        .expect("a valid request");
    // The node responds only after it has counted the last entry.
    let mut answer = node.send(request, COUNT_MAX).await?.expect(StatusCode::OK).await?;
    let mut text = Vec::new();
    while let Some(piece) = answer.next_within(COUNT_MAX).await? {
        text.extend_from_slice(&piece);
    }
    let number = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok());
    number.ok_or_else(|| {
        let detail = "it answers a count with something other than a number".to_owned();
        CtlError::BrokenAnswer { node: node.to_string(), detail }
    })
}

fn target(export: &Export) -> String {
    let Export { cluster, prefix, start, end, limit, keys, .. } = export;
    let mut parameters = Vec::new();
    parameters.extend(prefix.as_ref().map(|prefix| format!("prefix={}", percent::encode(prefix))));
    // The least possible key.
    let least = prefix.is_none().then_some(&b"\0"[..]);
    parameters.extend(start.as_deref().or(least).map(|start| format!("start={}", percent::encode(start))));
    parameters.extend(end.as_ref().map(|end| format!("end={}", percent::encode(end))));
    parameters.extend(limit.map(|limit| format!("limit={limit}")));
    parameters.extend(keys.then(|| "keys=1".to_owned()));
    if let Some(quorum) = cluster {
        parameters.push("cluster=1".to_owned());
        parameters.extend(quorum.parameters());
    }
    format!("/v0/entities?{}", parameters.join("&"))
}

/// Decodes the stream, to verify it.
struct StreamCheck {
    node: String,
    zstd: Option<ZstdDecoder>,
    content: Content,
    /// Encoder of the remaining entries, if entries of the future are skipped.
    filter: Option<FutureFilter>,
}

/// Content of a stream.
enum Content {
    Entries(Box<EntryDecoder>),
    /// Keys as lines of JSON, with their number.
    Keys {
        lines: u64,
        is_in_line: bool,
    },
}

impl Content {
    const fn entries(&self) -> u64 {
        match self {
            Self::Entries(entries) => entries.entries(),
            Self::Keys { lines, .. } => *lines,
        }
    }
}

/// Encoder of the entries that are not skipped.
struct FutureFilter {
    encoder: EntryEncoder,
    out: Vec<u8>,
    skipped: u64,
}

impl FutureFilter {
    fn take(&mut self, entry: &BatchEntry, version: Option<Version>) {
        match is_in_future(version) {
            true => self.skipped += 1,
            false => self.encoder.put_decoded(entry, version, &mut self.out),
        }
    }
}

impl StreamCheck {
    fn new(node: &NodeAddress, export: &Export, coding: Coding, answer: &Answer) -> Result<Self, CtlError> {
        let (node, format) = (node.to_string(), export.format);
        let is_of = |name: header::HeaderName, wanted: Option<&str>| answer.header(name) == wanted;
        if !is_of(header::CONTENT_TYPE, Some(format.media_type()))
            || !is_of(header::CONTENT_ENCODING, coding.name())
        {
            let detail = "its answer is not in the requested format".to_owned();
            return Err(CtlError::BrokenAnswer { node, detail });
        }
        let zstd = match coding {
            Coding::Zstd => Some(ZstdDecoder::new().map_err(|source| CtlError::Output { source })?),
            _ => None,
        };
        let content = match export.keys {
            true => Content::Keys { lines: 0, is_in_line: false },
            false => Content::Entries(Box::new(EntryDecoder::of_export(format, VALUE_BYTES_MAX))),
        };
        Ok(Self { node, zstd, content, filter: None })
    }

    fn feed(&mut self, piece: Bytes) -> Result<(), CtlError> {
        let Self { node, zstd, content, filter } = self;
        match zstd {
            None => pass(content, filter.as_mut(), piece),
            Some(zstd) => zstd.feed(&piece, |out| pass(content, filter.as_mut(), out.into())),
        }
        .map_err(|InvalidStream(detail)| CtlError::BrokenAnswer { node: node.clone(), detail })
    }

    fn end(&mut self) -> Result<(), CtlError> {
        let broken = |detail: String| CtlError::BrokenAnswer { node: self.node.clone(), detail };
        if !self.zstd.as_ref().is_none_or(ZstdDecoder::is_complete) {
            return Err(broken("its response ends inside a compressed frame".to_owned()));
        }
        match &mut self.content {
            Content::Entries(entries) => entries.end().map_err(|error| broken(error.to_string())),
            Content::Keys { is_in_line: true, .. } => {
                Err(broken("its response ends inside a line".to_owned()))
            }
            Content::Keys { .. } => Ok(()),
        }
    }
}

/// Description of a malformed stream.
struct InvalidStream(String);

impl From<io::Error> for InvalidStream {
    fn from(error: io::Error) -> Self {
        Self(format!("its response cannot be decompressed: {error}"))
    }
}

fn pass(
    content: &mut Content,
    mut filter: Option<&mut FutureFilter>,
    piece: Bytes,
) -> Result<(), InvalidStream> {
    let entries = match content {
        Content::Entries(entries) => entries,
        Content::Keys { lines, is_in_line } => {
            *lines += piece.iter().filter(|byte| **byte == b'\n').count() as u64;
            *is_in_line = piece.last().map_or(*is_in_line, |last| *last != b'\n');
            return Ok(());
        }
    };
    entries.feed(piece);
    loop {
        match entries.next() {
            Ok(Some(entry)) => {
                if let Some(filter) = &mut filter {
                    filter.take(&entry, entries.last_version());
                }
            }
            Ok(None) => return Ok(()),
            Err(error) => return Err(InvalidStream(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_parameters_of_its_export() {
        let all = Export {
            cluster: None,
            prefix: None,
            keys: false,
            start: None,
            end: None,
            limit: None,
            format: Format::Binary,
            zstd: false,
            skip_future: false,
        };
        assert_eq!(target(&all), "/v0/entities?start=%00");
        let quorum = RequestedQuorum { ack: Some(2), from: Some(3) };
        let part = Export {
            cluster: Some(quorum),
            start: Some(b"a b".to_vec()),
            end: Some(b"\xff".to_vec()),
            limit: Some(5),
            ..all
        };
        assert_eq!(target(&part), "/v0/entities?start=a%20b&end=%FF&limit=5&cluster=1&ack=2&from=3");
        let keys = Export { prefix: Some(b"a b".to_vec()), keys: true, ..all };
        assert_eq!(target(&keys), "/v0/entities?prefix=a%20b&keys=1");
    }
}
