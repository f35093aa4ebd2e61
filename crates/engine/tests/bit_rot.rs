//! Any bit of any file may flip: then opening or reading fails and names the file, or the result is
//! right. Never a wrong result, never a panic. A flipped bit of a table stops no opening.

mod support;

use engine::{Engine, Error, Options};
use env::{Env, MemFs};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use support::{DIR, World, batch_of, small_options};

const KEYS: u64 = 40;
/// Bits flipped in each file, evenly distributed.
const FLIPS_PER_FILE: u64 = 1_000;

/// A cleanly closed data directory with tables on several levels, a log and a manifest.
fn prepared(options: &Options) -> World {
    let mut world = World::new(11);
    let engine = world.open(options);
    for round in 0..400 {
        let write = world.random_write(KEYS);
        engine.write(batch_of([&write])).expect("write");
        world.acknowledge(&write.0, &write.1);
        if round % 100 == 99 && round < 399 {
            engine.flush().expect("flush");
            engine.run_jobs().expect("jobs");
        }
    }
    engine.close().expect("close");
    world
}

/// Checks that all results are right, or that an error names `path`.
fn check(world: &World, disk: &MemFs, options: &Options, path: &Path) -> Outcome {
    let env = Env { fs: Arc::new(disk.clone()), clock: Arc::clone(&world.clock) as _ };
    let engine = match Engine::open(env, Path::new(DIR), options.clone()) {
        Ok((engine, _)) => engine,
        Err(error) => {
            assert!(!is_table(path), "a flipped bit of {} stops an opening: {error}", path.display());
            return names(&error, path);
        }
    };
    let found = check_reads(world, &engine, path);
    // A compaction that meets the damage fails, and the next one goes on without the table.
    if let Err(error) = engine.run_jobs() {
        names(&error, path);
        engine.run_jobs().expect("a damaged table is set aside or rewritten");
    }
    check_reads(world, &engine, path);
    found
}

/// Checks the reads of all keys.
fn check_reads(world: &World, engine: &Engine, path: &Path) -> Outcome {
    let mut outcome = Outcome::Right;
    for (key, expected) in &world.model {
        match engine.get(key) {
            Ok(seen) => assert!(
                world.agrees(Some(expected), seen.as_ref()),
                "{}: key {} is {seen:?}, not {expected:?}",
                path.display(),
                key.escape_ascii()
            ),
            Err(error) => outcome = names(&error, path),
        }
    }
    outcome
}

fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "sst")
}

#[derive(PartialEq, Eq)]
enum Outcome {
    Right,
    Found,
}

fn names(error: &Error, path: &Path) -> Outcome {
    let text = error.to_string();
    let name = path.file_name().expect("a file").to_string_lossy();
    assert!(
        text.contains(&*name) || name == "CURRENT" || text.contains("CURRENT"),
        "a flipped bit of {} gives an error that does not name it: {text}",
        path.display()
    );
    Outcome::Found
}

#[test]
fn a_flipped_bit_is_found_or_harmless() {
    let options = small_options();
    let world = prepared(&options);
    let (mut found, mut right) = (0, 0);
    for path in world.disk.file_names() {
        let bits = world.disk.read_file(&path).expect("read").len() as u64 * 8;
        let step = (bits / FLIPS_PER_FILE).max(1) | 1;
        for bit in (0..bits).step_by(step as usize) {
            let disk = world.disk.kill();
            disk.corrupt(&path, bit / 8, (bit % 8) as u8).expect("flip");
            match check(&world, &disk, &options, &path) {
                Outcome::Found => found += 1,
                Outcome::Right => right += 1,
            }
        }
    }
    assert!(found > 500, "most flips of live bytes are found: {found} found, {right} harmless");
}

fn is_segment(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "wal")
}

#[test]
fn a_missing_file_is_found() {
    let options = small_options();
    let world = prepared(&options);
    // No file names the newest segment of the log: without it the log looks like one that ended
    // earlier.
    let newest_segment = world.disk.file_names().into_iter().filter(|path| is_segment(path)).max();
    let needed = |path: &PathBuf| !path.ends_with("LOCK") && Some(path) != newest_segment.as_ref();
    for path in world.disk.file_names().into_iter().filter(needed) {
        let disk = world.disk.kill();
        env::Fs::remove_file(&disk, &path).expect("remove");
        let env = Env { fs: Arc::new(disk.clone()), clock: Arc::clone(&world.clock) as _ };
        let Ok((engine, _)) = Engine::open(env, Path::new(DIR), options.clone()) else { continue };
        for (key, expected) in &world.model {
            if let Ok(seen) = engine.get(key) {
                assert!(
                    world.agrees(Some(expected), seen.as_ref()),
                    "without {}: key {} is {seen:?}, not {expected:?}",
                    path.display(),
                    key.escape_ascii()
                );
            }
        }
    }
}

#[test]
fn all_files_that_are_damaged_are_named_once() {
    let world = prepared(&small_options());
    let mut damaged = BTreeSet::new();
    for path in world.disk.file_names() {
        let bytes = world.disk.read_file(&path).expect("read").len() as u64;
        // A block of a table; the header of a log segment.
        let at = match path.extension().and_then(|extension| extension.to_str()) {
            Some("sst") => bytes / 2,
            Some("wal") => 0,
            _ => continue,
        };
        world.disk.corrupt(&path, at, 3).expect("flip");
        damaged.insert(path);
    }
    let found = engine::verify(&world.env(), Path::new(DIR), None, &mut |_| ()).expect_err("much is damaged");
    let path_of = |error: &Error| match error {
        Error::Corrupt { path, .. } => path.clone(),
        error => panic!("{error}"),
    };
    let named: BTreeSet<PathBuf> = found.iter().map(path_of).collect();
    assert_eq!((named.len(), named.is_subset(&damaged)), (found.len(), true), "{found:?}");
    // Tables and segments that are no longer needed are not read.
    assert!(named.len() > 2 && named.iter().any(|path| path.extension().is_some_and(|of| of == "wal")));
    let engine = Engine::open(world.env(), Path::new(DIR), small_options());
    assert!(engine.is_err(), "a log that cannot be replayed is not passed over");
}
