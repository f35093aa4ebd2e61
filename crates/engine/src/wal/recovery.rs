//! Recovery of the log when it is opened.
//!
//! **Promise.** Every acknowledged record is replayed, in order, or an error names the file and the
//! offset. The replayed records are durable when [`recover`] returns: the next crash does not undo
//! writes that a reader has seen after the start.
//!
//! **Mechanism.** Each segment header names the previous segment with its durable length. So the
//! chain of headers is read first: it reveals missing segments and the ends of all segments but the
//! last. Only the last can have a torn tail ([`replay_bytes`]). Its end is written again before it
//! is synced: after a failed sync the system may consider pages clean that the device never
//! received, and would sync nothing.
//!
//! **Caveats.** A whole segment is in memory while it is read. The torn tail stays in the file; the
//! header of the next segment excludes it from later reads.

use super::file_names::{self, FileKind, SpareNumber, segment_path, spare_path};
use super::format::{
    Epoch, GroupHeader, KnownLog, LogEnd, PreviousSegment, SEGMENT_HEADER_LEN, SegmentHeader, SegmentId,
};
use super::replay::{SegmentContents, SegmentEnd, replay_bytes};
use super::spares::read_header;
use super::{ReplayFn, WalRecovery};
use crate::Error;
use crate::sstable::VisitCell;
use env::{File, Fs, OpenMode};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Contents of the log's directory.
pub(super) struct Listing {
    /// Segments from the floor on, oldest first.
    pub(super) live: Vec<SegmentId>,
    /// Segments below the floor.
    pub(super) released: Vec<SegmentId>,
    /// Files that can become segments.
    pub(super) spares: Vec<SpareNumber>,
}

/// The last segment as it was read.
pub(super) struct LastSegment {
    pub(super) id: SegmentId,
    pub(super) header: SegmentHeader,
    pub(super) last_group: Option<GroupHeader>,
    pub(super) file: Arc<dyn File>,
    pub(super) path: PathBuf,
    /// Length of the valid part, all of it durable, in bytes.
    pub(super) len: u64,
    pub(super) has_no_group: bool,
}

impl LastSegment {
    pub(super) fn link(&self) -> PreviousSegment {
        PreviousSegment { id: self.id, len: self.len }
    }

    pub(super) fn last_group(&self) -> (Epoch, Option<GroupHeader>) {
        (self.header.epoch, self.last_group)
    }
}

/// The state that an opened log continues.
pub(super) struct RecoveredLog {
    /// The last segment.
    pub(super) segment: Option<LastSegment>,
    /// The needed segments, oldest first, without those that power loss took.
    pub(super) live: Vec<SegmentId>,
    /// Headers of these segments that are marked as unsynced. The segments are durable now.
    pub(super) unsynced: Vec<SegmentHeader>,
}

/// Classifies the files of the directory, and removes unfinished ones.
pub(super) fn list(fs: &dyn Fs, dir: &Path, floor: SegmentId) -> Result<Listing, Error> {
    let mut listing = Listing { live: Vec::new(), released: Vec::new(), spares: Vec::new() };
    for name in fs.read_dir(dir).map_err(|error| Error::io("list", dir, error))? {
        match file_names::parse(&name) {
            Some(FileKind::Segment(id)) if id >= floor => listing.live.push(id),
            Some(FileKind::Segment(id)) => listing.released.push(id),
            Some(FileKind::Spare(number)) if is_second_name(fs, &spare_path(dir, number), floor)? => {
                remove(fs, &spare_path(dir, number))?;
            }
            Some(FileKind::Spare(number)) => listing.spares.push(number),
            Some(FileKind::Unfinished) => remove(fs, &dir.join(name))?,
            None => {}
        }
    }
    listing.live.sort_unstable();
    Ok(listing)
}

/// Replays the live segments.
pub(super) fn recover(
    fs: &dyn Fs,
    dir: &Path,
    known: KnownLog,
    listing: &Listing,
    replay: ReplayFn<'_>,
) -> Result<(RecoveredLog, WalRecovery), Error> {
    let began = began(fs, dir, known, &listing.live, listing.released.iter().max().copied())?;
    let headers = read_chain(fs, dir, known.floor, began)?;
    let mut recovery = WalRecovery::default();
    let mut continued = RecoveredLog { segment: None, live: Vec::new(), unsynced: Vec::new() };
    for (header, end) in with_ends(&headers) {
        let source = SegmentSource { dir, id: header.id, end, known_end: known.known_end };
        recovery.segments += 1;
        continued.live.push(header.id);
        continued.unsynced.extend(header.is_unsynced.then_some(*header));
        continued.segment = recover_segment(fs, source, &mut recovery, replay)?;
        if continued.segment.is_some() {
            break;
        }
    }
    // Segments after one that power loss truncated are lost with its end.
    for id in listing.live.iter().skip(continued.live.len()) {
        let path = segment_path(dir, *id);
        tracing::warn!(file = %path.display(), "power was lost before this segment of the log was durable");
        remove(fs, &path)?;
    }
    if continued.live.len() < began.len() {
        check_newest(dir, known.known_end, &continued.live)?;
    }
    Ok((continued, recovery))
}

/// Clears the unsynced flag in these headers. The segments, their names and their successors are
/// durable.
pub(super) fn settle(fs: &dyn Fs, dir: &Path, unsynced: &[SegmentHeader]) -> Result<(), Error> {
    for header in unsynced {
        let path = segment_path(dir, header.id);
        let bytes = SegmentHeader { is_unsynced: false, ..*header }.encode();
        let file = fs.open(&path, OpenMode::ReadWrite).map_err(|error| Error::io("open", &path, error))?;
        let written = file.write_at(&bytes, 0).and_then(|()| file.sync_data());
        written.map_err(|error| Error::io("settle", &path, error))?;
    }
    Ok(())
}

/// The live segments, without a newest one that never began: its header is missing, and the
/// previous segment, which may be released, was not synced. The known end must be in the result,
/// unless the result is empty because of power loss.
fn began<'a>(
    fs: &dyn Fs,
    dir: &Path,
    known: KnownLog,
    live: &'a [SegmentId],
    released: Option<SegmentId>,
) -> Result<&'a [SegmentId], Error> {
    let is_unsynced = |id: Option<SegmentId>| -> Result<bool, Error> {
        let header = id.map_or(Ok(None), |id| whole_header(fs, dir, id))?;
        Ok(header.is_some_and(|header| header.is_unsynced))
    };
    let began = match live.split_last() {
        Some((newest, before)) if whole_header(fs, dir, *newest)?.is_none() => {
            let previous = before.last().copied().or(released).filter(|id| id.0 + 1 == newest.0);
            if is_unsynced(previous)? { before } else { live }
        }
        _ => live,
    };
    let ended_below = known.known_end.is_some_and(|end| end.segment < known.floor);
    if !(began.is_empty() && ended_below && is_unsynced(released)?) {
        check_newest(dir, known.known_end, began)?;
    }
    Ok(began)
}

/// The header of a segment, if it is whole.
fn whole_header(fs: &dyn Fs, dir: &Path, id: SegmentId) -> Result<Option<SegmentHeader>, Error> {
    match read_live_header(fs, dir, id) {
        Ok(header) => Ok(Some(header)),
        Err(Error::Corrupt { .. } | Error::Lost { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Checks the live segments as [`recover`] does, without changes, and continues after damage. Calls
/// `show` with the cells of intact segments.
pub(super) fn inspect(
    fs: &dyn Fs,
    dir: &Path,
    known: KnownLog,
    show: VisitCell<'_>,
) -> Result<WalRecovery, Vec<Error>> {
    let KnownLog { floor, known_end } = known;
    let names = fs.read_dir(dir).map_err(|error| vec![Error::io("list", dir, error)])?;
    let live = names.iter().filter_map(|name| match file_names::parse(name) {
        Some(FileKind::Segment(id)) if id >= floor => Some(id),
        _ => None,
    });
    let mut live: Vec<SegmentId> = live.collect();
    live.sort_unstable();
    let released = names.iter().filter_map(|name| match file_names::parse(name) {
        Some(FileKind::Segment(id)) if id < floor => Some(id),
        _ => None,
    });
    let mut damage = Vec::new();
    match began(fs, dir, known, &live, released.max()) {
        Ok(began) => live.truncate(began.len()),
        Err(error) => damage.push(error),
    }
    let mut recovery = WalRecovery { segments: live.len() as u64, ..WalRecovery::default() };
    let mut headers = Vec::with_capacity(live.len());
    for (i, &id) in live.iter().enumerate() {
        let header = read_live_header(fs, dir, id).map_err(|error| damage.push(error)).ok();
        let before = i.checked_sub(1).map(|before| live[before]);
        let checked = header.as_ref().map_or(Ok(()), |header| check_predecessor(dir, floor, before, header));
        damage.extend(checked.err());
        headers.push(header);
    }
    for (i, header) in headers.iter().enumerate() {
        if let Some(header) = header {
            // If the next header is damaged, the end of this segment is not known.
            let next = headers.get(i + 1).and_then(Option::as_ref);
            let end = end_of(header, next, i + 2 == headers.len());
            let source = SegmentSource { dir, id: header.id, end, known_end };
            match inspect_segment(fs, source, &mut recovery, show) {
                // Later segments are lost with the end of this one.
                Ok(true) => break,
                Ok(false) => {}
                Err(error) => damage.push(error),
            }
        }
    }
    if damage.is_empty() { Ok(recovery) } else { Err(damage) }
}

fn inspect_segment(
    fs: &dyn Fs,
    source: SegmentSource<'_>,
    recovery: &mut WalRecovery,
    show: VisitCell<'_>,
) -> Result<bool, Error> {
    let path = source.path();
    let file = fs.open(&path, OpenMode::Read).map_err(|error| Error::io("open", &path, error))?;
    let bytes = read_up_to(&*file, source.end).map_err(|error| Error::io("read", &path, error))?;
    let contents = source.contents_of(&bytes)?;
    recovery.add(&contents);
    contents.iter().flatten().for_each(|(key, cell)| show(key, &cell.meta));
    Ok(source.is_cut(&contents))
}

/// A segment to be read.
#[derive(Clone, Copy)]
struct SegmentSource<'a> {
    dir: &'a Path,
    id: SegmentId,
    end: SegmentEnd,
    known_end: Option<LogEnd>,
}

impl SegmentSource<'_> {
    fn path(&self) -> PathBuf {
        segment_path(self.dir, self.id)
    }

    /// Decodes the groups in `bytes`, the contents of the file up to its end.
    fn contents_of<'a>(&self, bytes: &'a [u8]) -> Result<SegmentContents<'a>, Error> {
        if let SegmentEnd::Known(len) = self.end
            && (bytes.len() as u64) < len
        {
            return Err(self.cut_short(bytes.len() as u64, len));
        }
        let contents = replay_bytes(bytes, self.end)
            .map_err(|damage| Error::corrupt(&self.path(), damage.offset, damage.detail))?;
        match self.known_end {
            Some(end) if end.segment == self.id && contents.len < end.len => {
                Err(self.cut_short(contents.len, end.len))
            }
            _ => Ok(contents),
        }
    }

    /// Whether power loss has truncated a segment that has a successor.
    fn is_cut(&self, contents: &SegmentContents<'_>) -> bool {
        matches!(self.end, SegmentEnd::Unsynced(len) if contents.len != len)
    }

    fn cut_short(&self, found: u64, expected: u64) -> Error {
        let detail =
            format!("is cut short: {expected} bytes of the log were durable there, and {found} are left");
        Error::lost(&self.path(), detail)
    }
}

/// Fails when the newest live segment is older than the segment of the known end.
fn check_newest(dir: &Path, known_end: Option<LogEnd>, live: &[SegmentId]) -> Result<(), Error> {
    match known_end {
        Some(end) if live.last().is_none_or(|newest| *newest < end.segment) => {
            let detail = format!("is missing: {} bytes of the log were durable there", end.len);
            Err(Error::lost(&segment_path(dir, end.segment), detail))
        }
        _ => Ok(()),
    }
}

/// Whether a spare's file is also a live segment. A crash during a rename can leave both names.
fn is_second_name(fs: &dyn Fs, path: &Path, floor: SegmentId) -> Result<bool, Error> {
    let file = fs.open(path, OpenMode::Read).map_err(|error| Error::io("open", path, error))?;
    let header = read_header(&*file).map_err(|error| Error::io("read", path, error))?;
    Ok(header.is_some_and(|header| header.id >= floor))
}

fn remove(fs: &dyn Fs, path: &Path) -> Result<(), Error> {
    fs.remove_file(path).map_err(|error| Error::io("remove", path, error))
}

/// Reads the headers of the live segments; each must name the previous one.
fn read_chain(
    fs: &dyn Fs,
    dir: &Path,
    floor: SegmentId,
    live: &[SegmentId],
) -> Result<Vec<SegmentHeader>, Error> {
    let mut headers: Vec<SegmentHeader> = Vec::with_capacity(live.len());
    for &id in live {
        let header = read_live_header(fs, dir, id)?;
        check_predecessor(dir, floor, headers.last().map(|before| before.id), &header)?;
        headers.push(header);
    }
    Ok(headers)
}

fn read_live_header(fs: &dyn Fs, dir: &Path, id: SegmentId) -> Result<SegmentHeader, Error> {
    let path = segment_path(dir, id);
    let file = fs.open(&path, OpenMode::Read).map_err(|error| Error::io("open", &path, error))?;
    let mut bytes = [0; SEGMENT_HEADER_LEN];
    let len = file.read_at(&mut bytes, 0).map_err(|error| Error::io("read", &path, error))?;
    if len < SEGMENT_HEADER_LEN {
        // A segment gets its name only after its header is durable.
        return Err(Error::lost(&path, format!("is cut short: {len} bytes are left, less than its header")));
    }
    let header = SegmentHeader::decode(&bytes[..len]).map_err(|detail| Error::corrupt(&path, 0, detail))?;
    if header.id != id {
        let detail = format!("the header is that of segment {:016x}", header.id.0);
        return Err(Error::corrupt(&path, 0, detail));
    }
    Ok(header)
}

/// Checks that a header names `expected`, the live segment before it.
fn check_predecessor(
    dir: &Path,
    floor: SegmentId,
    expected: Option<SegmentId>,
    header: &SegmentHeader,
) -> Result<(), Error> {
    let named = header.previous.map(|link| link.id);
    // Older segments may have existed before the first live one, but only below the floor.
    if expected == named || (expected.is_none() && named < Some(floor)) {
        return Ok(());
    }
    let id = header.id.0;
    Err(match named {
        Some(missing) if Some(missing) > expected => {
            let detail = format!("is missing: segment {id:016x} of the log follows it");
            Error::lost(&segment_path(dir, missing), detail)
        }
        _ => Error::corrupt(&segment_path(dir, header.id), 0, "it does not follow the segment before it"),
    })
}

/// Replays one segment; returns it when it is the last.
fn recover_segment(
    fs: &dyn Fs,
    source: SegmentSource<'_>,
    recovery: &mut WalRecovery,
    replay: ReplayFn<'_>,
) -> Result<Option<LastSegment>, Error> {
    let (path, id, end) = (source.path(), source.id, source.end);
    let is_durable = matches!(end, SegmentEnd::Known(_));
    let mode = if is_durable { OpenMode::Read } else { OpenMode::ReadWrite };
    let file = fs.open(&path, mode).map_err(|error| Error::io("open", &path, error))?;
    let bytes = read_up_to(&*file, end).map_err(|error| Error::io("read", &path, error))?;
    let contents = source.contents_of(&bytes)?;
    for cells in &contents {
        replay(id, cells)?;
    }
    recovery.add(&contents);
    if is_durable {
        return Ok(None);
    }
    make_durable(&*file, &contents).map_err(|error| Error::io("sync", &path, error))?;
    if matches!(end, SegmentEnd::Unsynced(_)) && !source.is_cut(&contents) {
        return Ok(None);
    }
    if contents.cut_bytes > 0 {
        let (file, offset, cut_bytes) = (path.display(), contents.len, contents.cut_bytes);
        tracing::warn!(%file, offset, cut_bytes, "cut the torn tail of the write-ahead log");
    }
    let (header, last_group, len) = (contents.header, contents.last_group, contents.len);
    let has_no_group = contents.groups == 0;
    Ok(Some(LastSegment { id, header, last_group, file, path, len, has_no_group }))
}

/// Each segment with its end. Only the last can have a torn tail.
fn with_ends(headers: &[SegmentHeader]) -> impl Iterator<Item = (&SegmentHeader, SegmentEnd)> {
    headers.iter().enumerate().map(|(i, header)| {
        let is_last_but_one = i + 2 == headers.len();
        (header, end_of(header, headers.get(i + 1), is_last_but_one))
    })
}

/// The end of a segment, from the header of its successor.
fn end_of(header: &SegmentHeader, next: Option<&SegmentHeader>, is_last_but_one: bool) -> SegmentEnd {
    match next.and_then(|next| next.previous) {
        // The segment after the successor begins once the successor is durable.
        Some(link) if header.is_unsynced && is_last_but_one => SegmentEnd::Unsynced(link.len),
        Some(link) => SegmentEnd::Known(link.len),
        None => SegmentEnd::Torn,
    }
}

/// The contents of the file up to its end.
fn read_up_to(file: &dyn File, end: SegmentEnd) -> std::io::Result<Vec<u8>> {
    let len = match end {
        SegmentEnd::Known(len) => len.min(file.len()?),
        SegmentEnd::Torn | SegmentEnd::Unsynced(_) => file.len()?,
    };
    let mut bytes = vec![0; usize::try_from(len).map_err(|_| std::io::ErrorKind::FileTooLarge)?];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Writes the bytes again that no header marks as durable, and syncs the file.
fn make_durable(file: &dyn File, contents: &SegmentContents<'_>) -> std::io::Result<()> {
    let doubtful = contents.bytes_from(contents.durable);
    if !doubtful.is_empty() {
        file.write_at(doubtful, contents.durable)?;
    }
    file.sync_data()
}

impl WalRecovery {
    fn add(&mut self, contents: &SegmentContents<'_>) {
        self.records += contents.records;
        self.cells += contents.cells;
        self.bytes += contents.len;
        self.cut_bytes += contents.cut_bytes;
        self.is_closed = contents.last_group.is_none_or(|group| group.records == 0);
        self.end = Some(LogEnd { segment: contents.header.id, len: contents.len });
    }
}
