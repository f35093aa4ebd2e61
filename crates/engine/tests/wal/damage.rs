//! Damage to durable data is detected; unfinished writes are cut.

use crate::support::{OPTIONS, append, dir, new_disk, open, open_mem, record, segment_path};
use engine::internals::wal::replay::{SegmentEnd, replay_bytes};
use engine::internals::wal::{self, KnownLog, LogEnd, SegmentId, WalOptions};
use engine::{Durability, Error, ErrorKind};
use env::{Fs, MemFs, OpenMode};
use proptest::prelude::*;
use std::sync::Arc;
use stdx::Rng;

/// A segment of three groups, the last with two records, and the end of each group.
fn segment(options: &WalOptions, close: bool) -> (Vec<u8>, Vec<usize>) {
    let disk = new_disk();
    let mut log = open(disk.clone(), options, SegmentId(0)).unwrap();
    let bytes = || disk.read_file(segment_path(SegmentId(0))).unwrap();
    let mut ends = Vec::new();
    for number in 0..2 {
        append(&mut log.wal, number, 30).unwrap();
        ends.push(bytes().len());
    }
    log.wal.append(&[&record(2, 5), &record(3, 6)]).unwrap();
    ends.push(bytes().len());
    if close {
        log.wal.idle().unwrap();
        ends.push(bytes().len());
    }
    (bytes(), ends)
}

fn records_in(bytes: &[u8]) -> Result<usize, u64> {
    replay_bytes(bytes, SegmentEnd::Torn)
        .map(|contents| contents.iter().map(Iterator::count).count())
        .map_err(|damage| damage.offset)
}

#[test]
fn every_flipped_bit_below_the_last_durable_offset_is_damage_and_says_where() {
    let (bytes, ends) = segment(&OPTIONS, true);
    let durable = ends[2];
    for bit in 0..durable * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let begin = ends.iter().rev().find(|end| **end <= bit / 8).copied().unwrap_or(512);
        match records_in(&flipped) {
            Err(0) => assert!(bit / 8 < 52, "bit {bit}"),
            Err(offset) => assert_eq!(offset, begin as u64, "bit {bit}"),
            // The rest of the header's sector is unused.
            Ok(records) => assert!(records == 4 && (52..512).contains(&(bit / 8)), "bit {bit}"),
        }
    }
}

#[test]
fn flipped_bits_of_the_closing_record_cost_nothing() {
    let (bytes, ends) = segment(&OPTIONS, true);
    for bit in ends[2] * 8..ends[3] * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(records_in(&flipped), Ok(4), "bit {bit}");
    }
}

#[test]
fn a_segment_cut_anywhere_in_its_last_group_loses_that_group_only() {
    let (bytes, ends) = segment(&OPTIONS, false);
    for len in ends[1]..ends[2] {
        assert_eq!(records_in(&bytes[..len]), Ok(2), "cut to {len}");
    }
    assert_eq!(records_in(&bytes), Ok(4));
}

#[test]
fn a_known_end_is_the_end_of_a_group_or_damage_to_the_group_across_it() {
    let (bytes, ends) = segment(&OPTIONS, true);
    let begins = [&[512], &ends[..]].concat();
    for len in 0..bytes.len() + 100 {
        let across = begins.iter().rev().find(|begin| **begin < len).copied().unwrap_or(512);
        match replay_bytes(&bytes, SegmentEnd::Known(len as u64)) {
            Ok(contents) => assert!(begins.contains(&len) && contents.len == len as u64, "end {len}"),
            Err(damage) => assert!(!begins.contains(&len) && damage.offset == across as u64, "end {len}"),
        }
    }
}

/// Power loss leaves any subset of the sectors that a synced log had not synced yet: only those of
/// the last group.
#[test]
fn any_sectors_of_the_last_group_may_be_missing() {
    let disk = new_disk();
    let options = WalOptions { segment_bytes: 1 << 16, ..OPTIONS };
    let mut log = open(disk.clone(), &options, SegmentId(0)).unwrap();
    append(&mut log.wal, 1, 100).unwrap();
    let before = disk.read_file(segment_path(SegmentId(0))).unwrap().len();
    append(&mut log.wal, 2, 1_500).unwrap();
    let bytes = disk.read_file(segment_path(SegmentId(0))).unwrap();
    let sectors: Vec<_> = (before / 512..bytes.len().div_ceil(512)).collect();
    assert!((6..12).contains(&sectors.len()));
    for lost in 1u32..1 << sectors.len() {
        let mut torn = bytes.clone();
        for (_, sector) in sectors.iter().enumerate().filter(|(i, _)| lost & (1 << i) != 0) {
            let end = ((sector + 1) * 512).min(torn.len());
            torn[(sector * 512).max(before)..end].fill(0);
        }
        assert_eq!(records_in(&torn), Ok(1), "sectors {lost:b} lost");
    }
}

/// The header of a new group in front of an old record, which is whole by itself.
#[test]
fn an_old_record_under_a_new_header_is_not_replayed() {
    let disk = new_disk();
    let mut log = open_mem(&disk);
    append(&mut log.wal, 1, 600).unwrap();
    let old = disk.read_file(segment_path(SegmentId(0))).unwrap();
    let disk = new_disk();
    let mut log = open_mem(&disk);
    append(&mut log.wal, 2, 600).unwrap();
    let mut torn = disk.read_file(segment_path(SegmentId(0))).unwrap();
    assert_eq!(torn.len(), old.len());
    torn[512 + 48..].copy_from_slice(&old[512 + 48..]);
    assert_eq!(records_in(&torn), Ok(0));
}

#[test]
fn without_syncs_a_gap_cuts_all_behind_it() {
    let (bytes, ends) = segment(&WalOptions { durability: Durability::Os, ..OPTIONS }, false);
    let mut torn = bytes.clone();
    torn[ends[0] + 60] ^= 1;
    let contents = replay_bytes(&torn, SegmentEnd::Torn).unwrap();
    assert_eq!((contents.records, contents.len), (1, ends[0] as u64));
    assert_eq!(contents.cut_bytes, (ends[2] - ends[0]) as u64);
    // A closing record states that everything was synced.
    let (mut bytes, _) = segment(&WalOptions { durability: Durability::Os, ..OPTIONS }, true);
    bytes[ends[0] + 60] ^= 1;
    assert_eq!(records_in(&bytes), Err(ends[0] as u64));
}

#[test]
fn damage_names_the_file_and_the_place() {
    let disk = new_disk();
    let mut log = open_mem(&disk);
    for number in 0..100 {
        append(&mut log.wal, number, 100).unwrap();
    }
    disk.corrupt(segment_path(SegmentId(1)), 600, 3).unwrap();
    match open(disk, &OPTIONS, SegmentId(0)).err().unwrap() {
        Error::Corrupt { path, offset: 512, .. } => assert_eq!(path, segment_path(SegmentId(1))),
        error => panic!("{error}"),
    }
}

#[test]
fn damage_to_the_last_group_of_a_segment_that_another_follows_is_found() {
    let disk = new_disk();
    append(&mut open_mem(&disk).wal, 1, 10).unwrap();
    open_mem(&disk);
    let last = disk.read_file(segment_path(SegmentId(0))).unwrap().len() as u64 - 1;
    disk.corrupt(segment_path(SegmentId(0)), last, 0).unwrap();
    let error = open(disk, &OPTIONS, SegmentId(0)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn a_missing_a_swapped_and_a_cut_segment_are_found() {
    let disk = new_disk();
    let mut log = open_mem(&disk);
    while log.wal.segment() < SegmentId(4) {
        append(&mut log.wal, 1, 100).unwrap();
    }
    let kind_after = |harm: &dyn Fn(&MemFs), floor: u64| {
        let disk = disk.kill();
        harm(&disk);
        open(disk, &OPTIONS, SegmentId(floor)).err().map(|error| error.kind())
    };
    let path = |id| segment_path(SegmentId(id));
    assert_eq!(kind_after(&|_| (), 0), None);
    assert_eq!(kind_after(&|disk| disk.remove_file(&path(2)).unwrap(), 0), Some(ErrorKind::Corrupt));
    assert_eq!(kind_after(&|disk| disk.remove_file(&path(0)).unwrap(), 0), Some(ErrorKind::Corrupt));
    assert_eq!(kind_after(&|disk| disk.remove_file(&path(0)).unwrap(), 1), None);
    assert_eq!(kind_after(&|disk| disk.rename(&path(2), &path(3)).unwrap(), 0), Some(ErrorKind::Corrupt));
    let cut = |disk: &MemFs| disk.open(&path(1), OpenMode::ReadWrite).unwrap().set_len(1_000).unwrap();
    assert_eq!(kind_after(&cut, 0), Some(ErrorKind::Corrupt));
}

#[test]
fn all_that_is_damaged_is_found_at_once() {
    let disk = new_disk();
    let mut log = open_mem(&disk);
    while log.wal.segment() < SegmentId(6) {
        append(&mut log.wal, 1, 100).unwrap();
    }
    let path = |id| segment_path(SegmentId(id));
    let fs: Arc<dyn Fs> = Arc::new(disk.clone());
    let verified = wal::verify(&fs, dir(), SegmentId(0).into()).unwrap();
    assert_eq!(verified.segments, 7);
    disk.corrupt(path(1), 0, 3).unwrap();
    disk.corrupt(path(3), 600, 3).unwrap();
    disk.remove_file(&path(5)).unwrap();
    let damage = wal::verify(&fs, dir(), SegmentId(0).into()).unwrap_err();
    let places: Vec<_> = damage
        .into_iter()
        .map(|error| match error {
            Error::Corrupt { path, offset, .. } => (path, offset),
            Error::Lost { path, .. } => (path, 0),
            error => panic!("{error}"),
        })
        .collect();
    assert_eq!(places, [(path(1), 0), (path(5), 0), (path(3), 512)]);
}

/// Removed groups must not reappear when groups of the same length are written at their offset.
#[test]
fn a_tail_that_was_cut_stays_cut() {
    let options = WalOptions { durability: Durability::Os, ..OPTIONS };
    let mut cut_at_the_first_group = 0;
    for seed in 0..400 {
        let disk = new_disk();
        let mut log = open(disk.clone(), &options, SegmentId(0)).unwrap();
        for number in 0..4 {
            append(&mut log.wal, number, 150).unwrap();
        }
        let crashed = disk.crash(&mut Rng::new(seed));
        let mut log = open(crashed.clone(), &options, SegmentId(0)).unwrap();
        let mut expected = log.numbers();
        assert_eq!(expected, (0..expected.len() as u64).collect::<Vec<_>>(), "seed {seed}");
        cut_at_the_first_group += u32::from(expected.is_empty() && log.recovery.cut_bytes > 0);
        for number in 100..103 {
            append(&mut log.wal, number, 150).unwrap();
            expected.push(number);
            let again = open(crashed.kill(), &options, SegmentId(0)).unwrap();
            assert_eq!(again.numbers(), expected, "seed {seed}");
        }
        log.wal.idle().unwrap();
        let again = open(crashed.crash(&mut Rng::new(!seed)), &options, SegmentId(0)).unwrap();
        assert_eq!(again.numbers(), expected, "seed {seed}");
    }
    assert!(cut_at_the_first_group > 10, "only {cut_at_the_first_group} crashes put it to the test");
}

proptest! {
    #[test]
    fn any_bytes_are_a_segment_or_refused(bytes: Vec<u8>, known: Option<u16>) {
        let end = known.map_or(SegmentEnd::Torn, |len| SegmentEnd::Known(u64::from(len)));
        prop_assert!(replay_bytes(&bytes, end).is_err(), "no bytes by chance are a header");
    }

    /// A valid segment with parts overwritten, moved and cut: replayed records were written, and
    /// are in order.
    #[test]
    fn a_mutated_segment_gives_a_prefix_or_an_error(
        mutations in prop::collection::vec((0usize..1200, 0usize..1200, 0usize..64, any::<u8>()), 1..5),
        cut in 0usize..1200,
        known: Option<u16>,
    ) {
        let (valid, _) = segment(&OPTIONS, true);
        let mut bytes = valid.clone();
        for (to, from, len, xor) in mutations {
            for i in 0..len {
                let source = valid[(from + i) % valid.len()];
                let target = (to + i) % valid.len();
                bytes[target] = source ^ xor;
            }
        }
        bytes.truncate(valid.len().saturating_sub(cut / 4));
        let end = known.map_or(SegmentEnd::Torn, |len| SegmentEnd::Known(u64::from(len)));
        if let Ok(contents) = replay_bytes(&bytes, end) {
            let all = replay_bytes(&valid, SegmentEnd::Torn).unwrap();
            let replayed: Vec<Vec<_>> = contents.iter().map(Iterator::collect).collect();
            let expected: Vec<Vec<_>> = all.iter().map(Iterator::collect).collect();
            prop_assert!(expected.starts_with(&replayed));
        }
    }
}

/// A log of several segments, and its durable end after each group of the last one.
fn log_with_ends() -> (MemFs, Vec<LogEnd>) {
    let disk = new_disk();
    let mut log = open_mem(&disk);
    let mut ends = Vec::new();
    for number in 0..40 {
        append(&mut log.wal, number, 100).unwrap();
        ends.push(log.wal.status().durable_end().expect("there is a segment"));
    }
    let last = ends[ends.len() - 1].segment;
    assert!(last > SegmentId(1));
    ends.retain(|end| end.segment == last);
    assert!(ends.len() > 1);
    (disk, ends)
}

fn opens_with(disk: &MemFs, end: LogEnd) -> Result<(), Error> {
    let known = KnownLog { floor: SegmentId(0), known_end: Some(end) };
    let fs: Arc<dyn Fs> = Arc::new(disk.clone());
    let verified = wal::verify(&fs, dir(), known).map(drop);
    let opened = open(disk.clone(), &OPTIONS, known).map(drop);
    assert_eq!(verified.is_ok(), opened.is_ok(), "{verified:?}, {opened:?}");
    opened
}

#[test]
fn a_log_that_was_cut_before_its_known_end_is_lost_also_at_the_end_of_a_group() {
    let (disk, ends) = log_with_ends();
    let end = *ends.last().unwrap();
    let path = segment_path(end.segment);
    for len in 0..=end.len {
        let disk = disk.kill();
        disk.open(&path, OpenMode::ReadWrite).unwrap().set_len(len).unwrap();
        match opens_with(&disk, end) {
            Ok(()) => assert_eq!(len, end.len),
            Err(Error::Lost { path: named, detail }) => {
                assert!(len < end.len);
                assert_eq!(named, path);
                let of_group = ends.iter().any(|end| end.len == len);
                assert!(!of_group || detail.contains(&format!("{} bytes", end.len)), "{detail}");
                assert!(!of_group || detail.contains(&format!("{len} are left")), "{detail}");
            }
            Err(error) => panic!("{len} bytes: {error}"),
        }
    }
}

#[test]
fn a_log_that_lacks_its_newest_segments_is_lost() {
    let (disk, ends) = log_with_ends();
    let end = ends[0];
    opens_with(&disk.kill(), end).unwrap();
    disk.remove_file(&segment_path(end.segment)).unwrap();
    let Err(Error::Lost { path, .. }) = opens_with(&disk.kill(), end) else { panic!("it was opened") };
    assert_eq!(path, segment_path(end.segment));
    let before = LogEnd { segment: SegmentId(end.segment.0 - 1), len: 512 };
    opens_with(&disk, before).expect("an end in a segment that is there");
}
