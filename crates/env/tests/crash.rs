//! The data that the disk in memory keeps, and the data that it may lose, when its power fails.

use env::{File, Fs, MemFs, OpenMode};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use stdx::Rng;

const SEEDS: u64 = 2_000;
const SECTOR: usize = 512;

fn root() -> &'static Path {
    Path::new("/")
}

fn create(fs: &MemFs, path: &str) -> Arc<dyn File> {
    fs.open(Path::new(path), OpenMode::CreateNew).unwrap()
}

fn rename(fs: &MemFs, from: &str, to: &str) {
    fs.rename(Path::new(from), Path::new(to)).unwrap();
}

/// The disks that result from a power loss, one per seed.
fn crashes(fs: &MemFs) -> impl Iterator<Item = MemFs> {
    (0..SEEDS).map(|seed| fs.crash(&mut Rng::new(seed)))
}

/// All paths and contents of a disk.
fn image(fs: &MemFs) -> Vec<(String, Vec<u8>)> {
    let files = fs.file_names().into_iter();
    files.map(|path| (path.display().to_string(), fs.read_file(&path).unwrap())).collect()
}

fn images(fs: &MemFs) -> BTreeSet<Vec<(String, Vec<u8>)>> {
    crashes(fs).map(|after| image(&after)).collect()
}

fn files(pairs: &[(&str, &[u8])]) -> Vec<(String, Vec<u8>)> {
    pairs.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect()
}

#[test]
fn synced_bytes_survive() {
    let fs = MemFs::new();
    fs.write_file("/a/b/file", b"synced").unwrap();
    assert_eq!(images(&fs), BTreeSet::from([files(&[("/a/b/file", b"synced")])]));
}

#[test]
fn an_unsynced_name_may_vanish_with_all_its_synced_bytes() {
    let fs = MemFs::new();
    let file = create(&fs, "/file");
    file.write_at(b"synced", 0).unwrap();
    file.sync_data().unwrap();
    assert_eq!(images(&fs), BTreeSet::from([files(&[]), files(&[("/file", b"synced")])]));
    fs.sync_dir(root()).unwrap();
    assert_eq!(images(&fs), BTreeSet::from([files(&[("/file", b"synced")])]));
}

#[test]
fn an_unsynced_write_may_survive_vanish_or_leave_its_length() {
    let fs = MemFs::new();
    fs.write_file("/file", b"old").unwrap();
    fs.open(Path::new("/file"), OpenMode::ReadWrite).unwrap().write_at(b"new", 2).unwrap();
    let expected = [b"old".to_vec(), b"olnew".to_vec(), b"old\0\0".to_vec()];
    assert_eq!(images(&fs), expected.iter().map(|bytes| files(&[("/file", bytes)])).collect());
}

#[test]
fn an_unsynced_length_may_vanish() {
    let fs = MemFs::new();
    fs.write_file("/file", b"abcdef").unwrap();
    fs.open(Path::new("/file"), OpenMode::ReadWrite).unwrap().set_len(2).unwrap();
    assert_eq!(images(&fs), BTreeSet::from([files(&[("/file", b"abcdef")]), files(&[("/file", b"ab")])]));
}

#[test]
fn a_synced_cut_does_not_come_back_as_bytes() {
    let fs = MemFs::new();
    fs.write_file("/file", &[7; 10_000]).unwrap();
    let file = fs.open(Path::new("/file"), OpenMode::ReadWrite).unwrap();
    file.set_len(100).unwrap();
    file.set_len(9_000).unwrap();
    file.sync_data().unwrap();
    let mut expected = vec![7; 100];
    expected.resize(9_000, 0);
    assert_eq!(images(&fs), BTreeSet::from([files(&[("/file", &expected)])]));
}

#[test]
fn a_write_is_torn_into_sectors_in_any_order() {
    let fs = MemFs::new();
    fs.write_file("/file", &[0; 4 * SECTOR]).unwrap();
    let file = fs.open(Path::new("/file"), OpenMode::ReadWrite).unwrap();
    file.write_at(&[1; 3 * SECTOR], SECTOR as u64 / 2).unwrap();
    let mut patterns = BTreeSet::new();
    for after in crashes(&fs) {
        let bytes = after.read_file("/file").unwrap();
        assert!(bytes[..SECTOR / 2].iter().chain(&bytes[7 * SECTOR / 2..]).all(|byte| *byte == 0));
        let sectors = &bytes[SECTOR / 2..7 * SECTOR / 2];
        let edges = [0, SECTOR / 2, 3 * SECTOR / 2, 5 * SECTOR / 2, 3 * SECTOR];
        let pattern = edges.windows(2).map(|edge| {
            let sector = &sectors[edge[0]..edge[1]];
            assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is whole");
            sector[0]
        });
        patterns.insert(pattern.collect::<Vec<_>>());
    }
    assert_eq!(patterns.len(), 16, "every subset of the four sectors");
}

#[test]
fn a_rename_is_whole_or_undone() {
    let fs = MemFs::new();
    fs.write_file("/CURRENT", b"old").unwrap();
    fs.write_file("/tmp", b"new").unwrap();
    rename(&fs, "/tmp", "/CURRENT");
    let undone = files(&[("/CURRENT", b"old"), ("/tmp", b"new")]);
    let done = files(&[("/CURRENT", b"new")]);
    assert_eq!(images(&fs), BTreeSet::from([undone, done.clone()]));
    fs.sync_dir(root()).unwrap();
    assert_eq!(images(&fs), BTreeSet::from([done]));
}

#[test]
fn a_renamed_directory_has_its_files_under_the_one_name_or_the_other() {
    let fs = MemFs::new();
    fs.write_file("/old/file", b"abc").unwrap();
    rename(&fs, "/old", "/new");
    let mut seen = [0, 0];
    for seed in 0..64 {
        let names = fs.crash(&mut Rng::new(seed)).file_names();
        let places = [Path::new("/old/file"), Path::new("/new/file")];
        let place = places.iter().position(|place| names == [*place]);
        seen[place.unwrap_or_else(|| panic!("seed {seed}: {names:?}"))] += 1;
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    fs.sync_dir(Path::new("/")).unwrap();
    for seed in 0..64 {
        assert_eq!(fs.crash(&mut Rng::new(seed)).file_names(), [Path::new("/new/file")]);
    }
}

#[test]
fn renames_are_undone_out_of_order() {
    let fs = MemFs::new();
    fs.write_file("/a", b"1").unwrap();
    fs.write_file("/b", b"2").unwrap();
    rename(&fs, "/a", "/c");
    rename(&fs, "/b", "/d");
    let seen = images(&fs);
    assert!(seen.contains(&files(&[("/a", b"1"), ("/d", b"2")])), "the second without the first");
    assert_eq!(seen.len(), 4);
}

#[test]
fn a_file_moved_twice_is_in_one_place() {
    let fs = MemFs::new();
    fs.write_file("/a", b"1").unwrap();
    rename(&fs, "/a", "/b");
    rename(&fs, "/b", "/c");
    let expected = ["/a", "/b", "/c"].map(|name| files(&[(name, b"1")]));
    assert_eq!(images(&fs), BTreeSet::from(expected));
}

#[test]
fn a_rename_between_directories_needs_both_synced() {
    let fs = MemFs::new();
    fs.write_file("/from/file", b"1").unwrap();
    fs.write_file("/to/other", b"2").unwrap();
    rename(&fs, "/from/file", "/to/file");
    let (undone, done) = (
        files(&[("/from/file", b"1"), ("/to/other", b"2")]),
        files(&[("/to/file", b"1"), ("/to/other", b"2")]),
    );
    let both = BTreeSet::from([undone, done.clone()]);
    assert_eq!(images(&fs), both);
    fs.sync_dir(Path::new("/to")).unwrap();
    assert_eq!(images(&fs), both);
    fs.sync_dir(Path::new("/to")).unwrap();
    assert_eq!(images(&fs), both);
    fs.sync_dir(Path::new("/from")).unwrap();
    assert_eq!(images(&fs), BTreeSet::from([done]));
}

#[test]
fn a_synced_name_is_not_taken_by_an_earlier_rename() {
    let fs = MemFs::new();
    fs.write_file("/from/file", b"1").unwrap();
    fs.write_file("/to/next", b"2").unwrap();
    rename(&fs, "/from/file", "/to/file");
    rename(&fs, "/to/next", "/to/file");
    fs.sync_dir(Path::new("/to")).unwrap();
    assert!(crashes(&fs).all(|after| after.read_file("/to/file").unwrap() == b"2"));
}

#[test]
fn a_removed_file_may_come_back_until_its_directory_is_synced() {
    let fs = MemFs::new();
    fs.write_file("/file", b"1").unwrap();
    fs.remove_file(Path::new("/file")).unwrap();
    assert_eq!(images(&fs), BTreeSet::from([files(&[]), files(&[("/file", b"1")])]));
    fs.sync_dir(root()).unwrap();
    assert_eq!(images(&fs), BTreeSet::from([files(&[])]));
}

#[test]
fn a_directory_without_a_durable_name_takes_its_files_along() {
    let fs = MemFs::new();
    fs.create_dir_all(Path::new("/dir")).unwrap();
    create(&fs, "/dir/file");
    fs.sync_dir(Path::new("/dir")).unwrap();
    assert_eq!(images(&fs), BTreeSet::from([files(&[]), files(&[("/dir/file", b"")])]));
}

#[test]
fn a_kill_loses_nothing_but_leaves_it_unsynced() {
    let fs = MemFs::new();
    let file = create(&fs, "/file");
    file.write_at(b"unsynced", 0).unwrap();
    let held = fs.lock(Path::new("/LOCK")).unwrap();
    let after = fs.kill();
    assert_eq!(image(&after), files(&[("/LOCK", b""), ("/file", b"unsynced")]));
    after.lock(Path::new("/LOCK")).unwrap();
    let power = images(&after);
    assert!(power.contains(&files(&[])) && power.contains(&image(&after)));
    drop(held);
}

#[test]
fn old_handles_stay_on_the_old_disk() {
    let fs = MemFs::new();
    fs.write_file("/file", b"old").unwrap();
    let file = fs.open(Path::new("/file"), OpenMode::ReadWrite).unwrap();
    for after in [fs.crash(&mut Rng::new(1)), fs.kill()] {
        file.write_at(b"new", 0).unwrap();
        assert_eq!(after.read_file("/file").unwrap(), b"old");
        after.write_file("/file", b"other").unwrap();
        assert_eq!(fs.read_file("/file").unwrap(), b"new");
        file.write_at(b"old", 0).unwrap();
    }
}

#[test]
fn a_full_disk_refuses_growth_and_nothing_else() {
    let fs = MemFs::with_capacity(10);
    let file = create(&fs, "/file");
    file.write_at(&[1; 10], 0).unwrap();
    assert_eq!(file.write_at(&[2; 5], 6).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(file.set_len(11).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(fs.read_file("/file").unwrap(), [1; 10]);
    file.write_at(&[3; 10], 0).unwrap();
    fs.remove_file(Path::new("/file")).unwrap();
    assert_eq!(fs.available_bytes(root()).unwrap(), 0, "an open file still takes its space");
    drop(file);
    assert_eq!(fs.available_bytes(root()).unwrap(), 10);
    fs.set_capacity(12);
    create(&fs, "/other").set_len(12).unwrap();
    fs.set_capacity(4);
    fs.open(Path::new("/other"), OpenMode::ReadWrite).unwrap().set_len(6).unwrap();
    assert_eq!(fs.available_bytes(root()).unwrap(), 0);
}

#[test]
fn a_wild_offset_is_an_error() {
    let file = create(&MemFs::new(), "/file");
    assert_eq!(file.write_at(b"x", u64::MAX).unwrap_err().kind(), ErrorKind::FileTooLarge);
    assert_eq!(file.set_len(u64::MAX).unwrap_err().kind(), ErrorKind::FileTooLarge);
    assert_eq!(file.read_at(&mut [0], u64::MAX).unwrap(), 0);
}

#[test]
fn a_cold_disk_answers_only_reads_that_wait() {
    let fs = MemFs::new();
    fs.write_file("/file", b"abc").unwrap();
    let file = fs.open(Path::new("/file"), OpenMode::Read).unwrap();
    fs.set_cold(true);
    assert_eq!(file.read_at_nowait(&mut [0; 3], 0).unwrap(), None);
    assert_eq!(file.read_at(&mut [0; 3], 0).unwrap(), 3);
    assert_eq!(fs.counters().counts().reads_would_wait, 1);
    fs.set_cold(false);
    assert_eq!(file.read_at_nowait(&mut [0; 3], 0).unwrap(), Some(3));
}

#[test]
fn rot_shows_now_and_after_a_crash() {
    let fs = MemFs::new();
    fs.write_file("/file", &[0; 3]).unwrap();
    fs.corrupt("/file", 1, 7).unwrap();
    assert_eq!(fs.read_file("/file").unwrap(), [0, 0x80, 0]);
    assert!(crashes(&fs).all(|after| after.read_file("/file").unwrap() == [0, 0x80, 0]));
    assert_eq!(fs.corrupt("/file", 3, 0).unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn a_removed_directory_is_gone_once_its_parent_was_synced() {
    let (mut back, mut gone) = (0, 0);
    for seed in 0..40 {
        let fs = MemFs::new();
        fs.create_dir_all(Path::new("/dir/below")).unwrap();
        fs.write_file("/dir/below/file", b"abc").unwrap();
        for dir in ["/", "/dir", "/dir/below"] {
            fs.sync_dir(Path::new(dir)).unwrap();
        }
        (&fs as &dyn Fs).remove_dir_all(Path::new("/dir")).unwrap();
        let after = fs.crash(&mut Rng::new(seed));
        match after.exists(Path::new("/dir")).unwrap() {
            true => back += 1,
            false => gone += 1,
        }
        if after.exists(Path::new("/dir")).unwrap() {
            (&after as &dyn Fs).remove_dir_all(Path::new("/dir")).unwrap();
        }
        assert!(after.file_names().is_empty());
        fs.sync_dir(root()).unwrap();
        assert!(!fs.crash(&mut Rng::new(seed)).exists(Path::new("/dir")).unwrap());
    }
    assert!(back > 0 && gone > 0, "{back} back, {gone} gone");
}

/// One step of a random history of one file.
#[derive(Clone, Debug)]
enum Step {
    Write { offset: u64, len: usize, byte: u8 },
    SetLen(u64),
    Sync,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let write = (0..6_000u64, 1..3_000usize, 1..=255u8).prop_map(|(offset, len, byte)| Step::Write {
        offset,
        len,
        byte,
    });
    let step = prop_oneof![6 => write, 1 => (0..9_000u64).prop_map(Step::SetLen), 2 => Just(Step::Sync)];
    prop::collection::vec(step, 1..25)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// After a crash, each byte is one that it had since the last sync, or a zero of an unsynced
    /// truncation or extension. Without unsynced changes, the content is unique.
    #[test]
    fn every_byte_after_a_crash_was_there_since_the_last_sync(steps in steps(), seed: u64) {
        let fs = MemFs::new();
        fs.write_file("/file", b"").unwrap();
        let file = fs.open(Path::new("/file"), OpenMode::ReadWrite).unwrap();
        let mut since_sync = vec![Vec::new()];
        for step in &steps {
            let mut now = since_sync.last().unwrap().clone();
            match *step {
                Step::Write { offset, len, byte } => {
                    file.write_at(&vec![byte; len], offset).unwrap();
                    now.resize(now.len().max(offset as usize + len), 0);
                    now[offset as usize..offset as usize + len].fill(byte);
                }
                Step::SetLen(len) => {
                    file.set_len(len).unwrap();
                    now.resize(len as usize, 0);
                }
                Step::Sync => {
                    file.sync_data().unwrap();
                    since_sync.clear();
                }
            }
            since_sync.push(now);
        }
        prop_assert_eq!(&fs.read_file("/file").unwrap(), since_sync.last().unwrap());
        let after = fs.crash(&mut Rng::new(seed)).read_file("/file").unwrap();
        let lens = since_sync.iter().map(Vec::len);
        prop_assert!(after.len() >= lens.clone().min().unwrap() && after.len() <= lens.max().unwrap());
        if since_sync.len() == 1 {
            prop_assert_eq!(&after, &since_sync[0]);
        }
        for (at, byte) in after.iter().enumerate() {
            // Zeros appear where the length changed; elsewhere a byte has one of its earlier
            // values.
            let length_changed = since_sync.iter().any(|then| then.len() <= at);
            let known = since_sync.iter().any(|then| then.get(at) == Some(byte));
            prop_assert!(known || (*byte == 0 && length_changed), "byte {at} is {byte}");
        }
    }

    /// The same seed gives the same disk, and the content after a crash is durable.
    #[test]
    fn a_crash_is_repeatable_and_final(steps in steps(), seed: u64) {
        let fs = MemFs::new();
        for (number, step) in steps.iter().enumerate() {
            let file = fs.open(Path::new(&format!("/{}", number % 4)), OpenMode::CreateOrTruncate).unwrap();
            match *step {
                Step::Write { offset, len, byte } => file.write_at(&vec![byte; len], offset).unwrap(),
                Step::SetLen(len) => file.set_len(len).unwrap(),
                Step::Sync => fs.sync_dir(root()).unwrap(),
            }
        }
        let after = fs.crash(&mut Rng::new(seed));
        prop_assert_eq!(image(&after), image(&fs.crash(&mut Rng::new(seed))));
        prop_assert_eq!(image(&after), image(&after.crash(&mut Rng::new(!seed))));
        prop_assert_eq!(image(&fs.kill()), image(&fs));
    }
}
