//! The contract of file systems without faults: one suite for the real one and the one in memory.

use env::{Fs, MemFs, OpenMode, OsFs};
use std::io::{ErrorKind, IoSlice};
use std::path::Path;

type Claim = fn(&dyn Fs, &Path);

fn on_every_file_system(claim: Claim) {
    let dir = tempfile::tempdir().unwrap();
    claim(&OsFs::new(), dir.path());
    let mem = MemFs::new();
    mem.create_dir_all(Path::new("/some/where")).unwrap();
    claim(&mem, Path::new("/some/where"));
}

fn write(fs: &dyn Fs, path: &Path, bytes: &[u8]) {
    fs.open(path, OpenMode::CreateOrTruncate).unwrap().write_at(bytes, 0).unwrap();
}

fn read(fs: &dyn Fs, path: &Path) -> Vec<u8> {
    let file = fs.open(path, OpenMode::Read).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn error_kind<T>(result: std::io::Result<T>) -> ErrorKind {
    result.map(|_| ()).unwrap_err().kind()
}

#[test]
fn the_open_mode_decides_whether_the_file_must_exist() {
    on_every_file_system(|fs, root| {
        let path = root.join("file");
        assert_eq!(error_kind(fs.open(&path, OpenMode::Read)), ErrorKind::NotFound);
        assert_eq!(error_kind(fs.open(&path, OpenMode::ReadWrite)), ErrorKind::NotFound);
        fs.open(&path, OpenMode::CreateNew).unwrap().write_at(b"abc", 0).unwrap();
        assert_eq!(error_kind(fs.open(&path, OpenMode::CreateNew)), ErrorKind::AlreadyExists);
        fs.open(&path, OpenMode::ReadWrite).unwrap().write_at(b"X", 1).unwrap();
        assert_eq!(read(fs, &path), b"aXc");
        assert!(fs.open(&path, OpenMode::CreateOrTruncate).unwrap().is_empty().unwrap());
        let missing = root.join("missing/file");
        assert_eq!(error_kind(fs.open(&missing, OpenMode::CreateNew)), ErrorKind::NotFound);
        let below_file = path.join("file");
        assert_eq!(error_kind(fs.open(&below_file, OpenMode::CreateNew)), ErrorKind::NotADirectory);
    });
}

#[test]
fn a_file_opened_for_reading_refuses_writes() {
    on_every_file_system(|fs, root| {
        let path = root.join("file");
        write(fs, &path, b"abc");
        let file = fs.open(&path, OpenMode::Read).unwrap();
        assert!(file.write_at(b"x", 0).is_err());
        assert!(file.write_vectored_at(&[IoSlice::new(b"x")], 0).is_err());
        assert!(file.set_len(0).is_err());
        assert_eq!(read(fs, &path), b"abc");
    });
}

#[test]
fn reads_are_short_only_at_the_end() {
    on_every_file_system(|fs, root| {
        let file = fs.open(&root.join("file"), OpenMode::CreateNew).unwrap();
        file.write_at(b"0123456789", 0).unwrap();
        let mut buf = [0; 4];
        assert_eq!(file.read_at(&mut buf, 3).unwrap(), 4);
        assert_eq!(&buf, b"3456");
        assert_eq!(file.read_at(&mut buf, 8).unwrap(), 2);
        assert_eq!(&buf[..2], b"89");
        assert_eq!(file.read_at(&mut buf, 10).unwrap(), 0);
        assert_eq!(file.read_at(&mut buf, 1_000_000).unwrap(), 0);
        assert_eq!(file.read_at(&mut [], 0).unwrap(), 0);
        assert_eq!(error_kind(file.read_exact_at(&mut buf, 7)), ErrorKind::UnexpectedEof);
    });
}

#[test]
fn a_read_that_does_not_wait_gives_all_or_nothing() {
    on_every_file_system(|fs, root| {
        let file = fs.open(&root.join("file"), OpenMode::CreateNew).unwrap();
        let bytes: Vec<u8> = (0..20_000u32).map(|i| i as u8).collect();
        file.write_at(&bytes, 0).unwrap();
        for (offset, len, there) in
            [(0, 20_000, 20_000), (5, 10_000, 10_000), (19_990, 50, 10), (20_000, 5, 0)]
        {
            let mut buf = vec![0; len];
            if let Some(read) = file.read_at_nowait(&mut buf, offset).unwrap() {
                assert_eq!(read, there);
                assert_eq!(buf[..read], bytes[offset as usize..][..read]);
            }
        }
        // A file system that supports reads without waiting reports the end of the file without
        // waiting too.
        if file.read_at_nowait(&mut [0; 10], 19_990).unwrap().is_some() {
            assert_eq!(file.read_at_nowait(&mut [0; 50], 19_990).unwrap(), Some(10));
        }
    });
}

#[test]
fn writes_grow_a_file_and_leave_zeros_in_gaps() {
    on_every_file_system(|fs, root| {
        let file = fs.open(&root.join("file"), OpenMode::CreateNew).unwrap();
        file.write_at(b"ab", 10_000).unwrap();
        file.write_at(b"", 50_000).unwrap();
        assert_eq!(file.len().unwrap(), 10_002);
        let mut buf = [1; 6];
        assert_eq!(file.read_at(&mut buf, 9_996).unwrap(), 6);
        assert_eq!(&buf, b"\0\0\0\0ab");
    });
}

#[test]
fn a_vectored_write_puts_its_parts_in_a_row() {
    on_every_file_system(|fs, root| {
        let path = root.join("file");
        let file = fs.open(&path, OpenMode::CreateNew).unwrap();
        let bytes: Vec<u8> = (0..5_000u32).map(|i| (i % 251) as u8).collect();
        let parts: Vec<IoSlice<'_>> =
            bytes.chunks(3).flat_map(|part| [IoSlice::new(part), IoSlice::new(b"")]).collect();
        file.write_vectored_at(&parts, 0).unwrap();
        file.write_vectored_at(&[], 0).unwrap();
        assert_eq!(read(fs, &path), bytes);
    });
}

#[test]
fn set_len_cuts_and_extends_with_zeros() {
    on_every_file_system(|fs, root| {
        let path = root.join("file");
        let file = fs.open(&path, OpenMode::CreateNew).unwrap();
        file.write_at(b"abcdef", 0).unwrap();
        file.set_len(2).unwrap();
        file.set_len(5).unwrap();
        assert_eq!(read(fs, &path), b"ab\0\0\0");
    });
}

#[test]
fn syncs_and_hints_change_no_byte() {
    on_every_file_system(|fs, root| {
        let path = root.join("file");
        let file = fs.open(&path, OpenMode::CreateNew).unwrap();
        file.write_at(b"abc", 0).unwrap();
        file.start_writeback(0, 3).unwrap();
        file.start_writeback(0, 0).unwrap();
        file.sync_data().unwrap();
        fs.sync_dir(root).unwrap();
        file.prefetch(0, 3).unwrap();
        file.prefetch(0, 0).unwrap();
        assert_eq!(read(fs, &path), b"abc");
    });
}

#[test]
fn directories_are_made_listed_and_synced() {
    on_every_file_system(|fs, root| {
        let deep = root.join("a/b");
        fs.create_dir_all(&deep).unwrap();
        fs.create_dir_all(&deep).unwrap();
        write(fs, &deep.join("two"), b"");
        write(fs, &deep.join("one"), b"");
        assert_eq!(fs.read_dir(&deep).unwrap(), ["one", "two"]);
        assert_eq!(fs.read_dir(&root.join("a")).unwrap(), ["b"]);
        assert!(fs.exists(&deep).unwrap() && fs.exists(&deep.join("one")).unwrap());
        assert!(!fs.exists(&deep.join("three")).unwrap() && !fs.exists(&root.join("x/y")).unwrap());
        let file = deep.join("one");
        assert_eq!(error_kind(fs.read_dir(&file)), ErrorKind::NotADirectory);
        assert_eq!(error_kind(fs.sync_dir(&file)), ErrorKind::NotADirectory);
        assert_eq!(error_kind(fs.read_dir(&root.join("x"))), ErrorKind::NotFound);
        assert_eq!(error_kind(fs.sync_dir(&root.join("x"))), ErrorKind::NotFound);
        assert_eq!(error_kind(fs.open(&deep, OpenMode::CreateNew)), ErrorKind::AlreadyExists);
        assert_eq!(error_kind(fs.open(&deep, OpenMode::ReadWrite)), ErrorKind::IsADirectory);
        assert!(fs.create_dir_all(&file.join("below")).is_err());
    });
}

#[test]
fn a_directory_is_renamed_with_its_contents() {
    on_every_file_system(|fs, root| {
        fs.create_dir_all(&root.join("old/below")).unwrap();
        write(fs, &root.join("old/below/file"), b"abc");
        let handle = fs.open(&root.join("old/below/file"), OpenMode::ReadWrite).unwrap();
        fs.rename(&root.join("old"), &root.join("new")).unwrap();
        assert!(!fs.exists(&root.join("old")).unwrap());
        handle.write_at(b"X", 0).unwrap();
        assert_eq!(read(fs, &root.join("new/below/file")), b"Xbc");
        write(fs, &root.join("other"), b"");
        assert_eq!(error_kind(fs.rename(&root.join("new"), &root.join("other"))), ErrorKind::NotADirectory);
        assert_eq!(error_kind(fs.rename(&root.join("new"), &root.join("new/in"))), ErrorKind::InvalidInput);
        fs.create_dir_all(&root.join("full/entry")).unwrap();
        assert_eq!(
            error_kind(fs.rename(&root.join("new"), &root.join("full"))),
            ErrorKind::DirectoryNotEmpty
        );
    });
}

#[test]
fn a_directory_is_removed_when_it_is_empty() {
    on_every_file_system(|fs, root| {
        let dir = root.join("dir");
        fs.create_dir_all(&dir.join("below/deep")).unwrap();
        write(fs, &dir.join("below/file"), b"abc");
        write(fs, &dir.join("other"), b"");
        assert_eq!(error_kind(fs.remove_dir(&dir)), ErrorKind::DirectoryNotEmpty);
        assert_eq!(error_kind(fs.remove_dir(&dir.join("other"))), ErrorKind::NotADirectory);
        assert_eq!(error_kind(fs.remove_dir(&dir.join("none"))), ErrorKind::NotFound);
        fs.remove_dir(&dir.join("below/deep")).unwrap();
        assert_eq!(fs.read_dir(&dir.join("below")).unwrap(), ["file"]);
        fs.remove_dir_all(&dir).unwrap();
        assert!(!fs.exists(&dir).unwrap());
        assert_eq!(error_kind(fs.remove_dir_all(&dir)), ErrorKind::NotFound);
        fs.create_dir_all(&dir).unwrap();
        assert!(fs.read_dir(&dir).unwrap().is_empty());
    });
}

#[test]
fn a_file_is_removed_by_its_own_call_only() {
    on_every_file_system(|fs, root| {
        fs.create_dir_all(&root.join("dir")).unwrap();
        assert_eq!(error_kind(fs.remove_file(&root.join("dir"))), ErrorKind::IsADirectory);
        write(fs, &root.join("file"), b"abc");
        assert!(!fs.is_symlink(&root.join("file")).unwrap() && !fs.is_symlink(&root.join("dir")).unwrap());
        fs.remove_dir_all(&root.join("file")).unwrap();
        assert!(!fs.exists(&root.join("file")).unwrap());
    });
}

#[test]
fn the_target_of_a_removed_symbolic_link_stays() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let fs: &dyn Fs = &OsFs::new();
    fs.create_dir_all(&at("others/below")).unwrap();
    write(fs, &at("others/below/file"), b"precious");
    fs.create_dir_all(&at("checkpoints/one")).unwrap();
    std::os::unix::fs::symlink(at("others"), at("checkpoints/one/link")).unwrap();
    std::os::unix::fs::symlink(at("nowhere"), at("checkpoints/broken")).unwrap();
    assert!(
        fs.is_symlink(&at("checkpoints/one/link")).unwrap()
            && fs.is_symlink(&at("checkpoints/broken")).unwrap()
    );
    fs.remove_dir_all(&at("checkpoints")).unwrap();
    assert!(!fs.exists(&at("checkpoints")).unwrap());
    std::os::unix::fs::symlink(at("others"), at("checkpoints")).unwrap();
    fs.remove_dir_all(&at("checkpoints")).unwrap();
    assert!(!fs.exists(&at("checkpoints")).unwrap());
    assert_eq!(read(fs, &at("others/below/file")), b"precious");
}

#[test]
fn a_file_that_is_not_regular_is_refused_without_blocking() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let fs = OsFs::new();
    for path in [&pipe, dir.path()] {
        for mode in [OpenMode::Read, OpenMode::ReadRegular] {
            assert_eq!(error_kind(fs.open(path, mode)), ErrorKind::InvalidInput, "{path:?} {mode:?}");
        }
    }
    for mode in [OpenMode::ReadWrite, OpenMode::CreateOrTruncate] {
        assert_eq!(error_kind(fs.open(&pipe, mode)), ErrorKind::InvalidInput, "{mode:?}");
    }
    assert_eq!(error_kind(fs.lock(&pipe)), ErrorKind::InvalidInput);
}

#[test]
fn a_rename_replaces_and_handles_stay_with_their_file() {
    on_every_file_system(|fs, root| {
        let (from, to) = (root.join("from"), root.join("to"));
        write(fs, &from, b"new");
        write(fs, &to, b"old");
        let (moved, replaced) =
            (fs.open(&from, OpenMode::ReadWrite).unwrap(), fs.open(&to, OpenMode::Read).unwrap());
        fs.rename(&from, &to).unwrap();
        moved.write_at(b"N", 0).unwrap();
        assert_eq!(read(fs, &to), b"New");
        assert_eq!(fs.read_dir(root).unwrap(), ["to"]);
        let mut buf = [0; 3];
        replaced.read_exact_at(&mut buf, 0).unwrap();
        assert_eq!(&buf, b"old");
        assert_eq!(error_kind(fs.rename(&from, &to)), ErrorKind::NotFound);
        fs.rename(&to, &to).unwrap();
        assert_eq!(read(fs, &to), b"New");
        fs.create_dir_all(&root.join("dir")).unwrap();
        assert_eq!(error_kind(fs.rename(&to, &root.join("dir"))), ErrorKind::IsADirectory);
    });
}

#[test]
fn a_removed_file_lives_as_long_as_it_is_open() {
    on_every_file_system(|fs, root| {
        let path = root.join("file");
        write(fs, &path, b"abc");
        let file = fs.open(&path, OpenMode::ReadWrite).unwrap();
        fs.remove_file(&path).unwrap();
        fs.sync_dir(root).unwrap();
        assert_eq!(error_kind(fs.remove_file(&path)), ErrorKind::NotFound);
        write(fs, &path, b"another");
        file.write_at(b"d", 3).unwrap();
        let mut buf = [0; 4];
        file.read_exact_at(&mut buf, 0).unwrap();
        assert_eq!((&buf[..], read(fs, &path)), (&b"abcd"[..], b"another".to_vec()));
    });
}

#[test]
fn a_hard_link_is_a_second_name_of_one_file() {
    on_every_file_system(|fs, root| {
        let (first, second) = (root.join("first"), root.join("second"));
        write(fs, &first, b"abc");
        fs.hard_link(&first, &second).unwrap();
        assert_eq!(error_kind(fs.hard_link(&first, &second)), ErrorKind::AlreadyExists);
        fs.open(&second, OpenMode::ReadWrite).unwrap().write_at(b"X", 0).unwrap();
        assert_eq!(read(fs, &first), b"Xbc");
        fs.rename(&first, &second).unwrap();
        assert_eq!(fs.read_dir(root).unwrap(), ["first", "second"]);
        fs.remove_file(&first).unwrap();
        assert_eq!(read(fs, &second), b"Xbc");
    });
}

#[test]
fn a_lock_has_one_holder_until_dropped() {
    on_every_file_system(|fs, root| {
        let path = root.join("LOCK");
        let held = fs.lock(&path).unwrap();
        assert_eq!(error_kind(fs.lock(&path)), ErrorKind::WouldBlock);
        assert!(fs.exists(&path).unwrap());
        let other = fs.lock(&root.join("OTHER")).unwrap();
        drop(held);
        drop(fs.lock(&path).unwrap());
        drop(other);
        assert_eq!(error_kind(fs.lock(&root.join("x/LOCK"))), ErrorKind::NotFound);
    });
}

#[test]
fn calls_are_counted() {
    on_every_file_system(|fs, root| {
        let before = fs.counters().counts();
        let file = fs.open(&root.join("file"), OpenMode::CreateNew).unwrap();
        file.write_at(b"abc", 0).unwrap();
        file.write_vectored_at(&[IoSlice::new(b"de"), IoSlice::new(b"f")], 3).unwrap();
        file.read_at(&mut [0; 4], 0).unwrap();
        file.read_at(&mut [0; 4], 4).unwrap();
        file.sync_data().unwrap();
        fs.sync_dir(root).unwrap();
        let after = fs.counters().counts();
        assert_eq!((after.writes - before.writes, after.written_bytes - before.written_bytes), (2, 6));
        assert_eq!((after.reads - before.reads, after.read_bytes - before.read_bytes), (2, 6));
        assert_eq!(after.syncs - before.syncs, 2);
        let nowait = file.read_at_nowait(&mut [0; 2], 0).unwrap();
        let last = fs.counters().counts();
        let counted = (last.reads - after.reads, last.reads_would_wait - after.reads_would_wait);
        assert_eq!(counted, if nowait.is_some() { (1, 0) } else { (0, 1) });
    });
}

#[test]
fn free_space_is_known() {
    on_every_file_system(|fs, root| {
        assert!(fs.available_bytes(root).unwrap() > 0);
        assert_eq!(error_kind(fs.available_bytes(&root.join("missing"))), ErrorKind::NotFound);
    });
}
