//! A small disk that fills up: values are refused before it is full, deletes free space again, and
//! no acknowledged write is lost, in any number of cycles and restarts.

use bytes::Bytes;
use engine::{Batch, DiskSpace, Engine, ErrorKind, Options};
use env::{Env, Fs, ManualClock, MemFs};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stdx::{CellMeta, CellRef, Hlc, NodeTag, Rng, Version, WallTime};

const DISK_BYTES: u64 = 48 << 20;
const CYCLES: u64 = 5;

struct Scene {
    disk: MemFs,
    clock: Arc<ManualClock>,
    engine: Engine,
    version: u64,
    rng: Rng,
    acknowledged: BTreeMap<Vec<u8>, Bytes>,
}

fn open(disk: &MemFs, clock: &Arc<ManualClock>) -> Engine {
    let env = Env { fs: Arc::new(disk.clone()), clock: clock.clone() };
    let options = Options { memory_bytes: 64 << 20, ..Options::default() };
    Engine::open(env, Path::new("/data"), options).expect("it opens, however full the disk is").0
}

impl Scene {
    fn begin(seed: u64) -> Self {
        let disk = MemFs::new();
        disk.set_capacity(DISK_BYTES);
        let clock = Arc::new(ManualClock::new(WallTime::EPOCH_2020));
        let engine = open(&disk, &clock);
        Self { disk, clock, engine, version: 0, rng: Rng::new(seed), acknowledged: BTreeMap::new() }
    }

    /// Runs the jobs as workers would; a job without space waits.
    fn work(&mut self) {
        for _ in 0..40 {
            self.clock.advance(Duration::from_millis(200));
            for result in [
                self.engine.step_flush(1 << 20),
                self.engine.step_compaction(0, 1 << 20),
                self.engine.step_upkeep(1 << 20),
            ] {
                if let Err(error) = result {
                    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                }
            }
        }
    }

    fn write(&mut self, key: &[u8], value: Option<Bytes>) -> Result<(), ErrorKind> {
        self.version += 1;
        let version = Version::new(Hlc::from_bits(self.version << 12), NodeTag(1));
        let (meta, bytes) = match &value {
            Some(value) => (CellMeta::value(version, 1), &value[..]),
            None => (CellMeta::tombstone(version, 1), &[][..]),
        };
        let mut batch = Batch::new();
        batch.put(key, CellRef { meta, value: bytes });
        let written = self.engine.write(batch).map(drop).map_err(|error| error.kind());
        if written.is_ok() {
            match value {
                Some(value) => self.acknowledged.insert(key.to_vec(), value),
                None => self.acknowledged.remove(key),
            };
        }
        written
    }

    /// Writes values until one is refused for lack of space. When the backlog refuses one, runs the
    /// jobs.
    fn fill(&mut self, cycle: u64) {
        let len = [500, 5_000, 50_000][self.rng.below(3) as usize];
        for number in 0..u64::MAX {
            let mut value = vec![0; len];
            value.iter_mut().for_each(|byte| *byte = self.rng.next_u64() as u8);
            match self.write(format!("{cycle}-{number}").as_bytes(), Some(value.into())) {
                Ok(()) => {}
                Err(ErrorKind::Full) => return,
                Err(error) => panic!("{error:?}"),
            }
            if number % 64 == 0 {
                self.work();
            }
        }
    }

    fn assert_all_there(&self) {
        for (key, value) in &self.acknowledged {
            let cell = self.engine.get(key).expect("reads go on").expect("acknowledged");
            assert!(cell.value == *value, "{}", String::from_utf8_lossy(key));
        }
    }

    fn wait_for_room(&mut self) {
        self.work();
        for _ in 0..100 {
            if self.engine.disk_stats().space != DiskSpace::Full {
                return;
            }
            self.work();
        }
        let available = self.disk.available_bytes(Path::new("/"));
        panic!(
            "the disk stays full: {:?}, {available:?} bytes are free, {:?}",
            self.engine.disk_stats(),
            self.engine.stats().levels
        );
    }

    fn start_again(&mut self) {
        self.disk = self.disk.kill();
        self.engine = open(&self.disk, &self.clock);
    }
}

#[test]
fn deletes_free_space_on_a_disk_that_this_engine_has_filled() {
    let mut scene = Scene::begin(1);
    for cycle in 0..CYCLES {
        scene.fill(cycle);
        scene.assert_all_there();
        if cycle % 3 == 2 {
            scene.start_again();
            scene.assert_all_there();
        }
        let keys: Vec<_> = scene.acknowledged.keys().filter(|_| scene.rng.chance(0.7)).cloned().collect();
        let refused = keys.iter().filter(|key| scene.write(key, None).is_err()).count();
        assert!(refused * 2 <= keys.len(), "{refused} of {} deletes were refused", keys.len());
        scene.wait_for_room();
        scene.assert_all_there();
    }
    scene.start_again();
    scene.assert_all_there();
}

#[test]
fn an_engine_opens_reads_and_deletes_on_a_full_disk() {
    let mut scene = Scene::begin(2);
    for number in 0..500 {
        scene.write(format!("k{number}").as_bytes(), Some(vec![7; 5_000].into())).expect("there is room");
    }
    scene.work();
    let free = scene.disk.available_bytes(Path::new("/")).expect("it tells");
    scene.disk.set_capacity(DISK_BYTES - free);
    scene.start_again();
    scene.assert_all_there();
    scene.work();
    assert_eq!(scene.write(b"one more", Some(vec![7; 1_000].into())), Err(ErrorKind::Full));
    scene.write(b"k0", None).expect("deletes go on");
    scene.start_again();
    assert!(scene.engine.get(b"k0").expect("reads go on").is_none_or(|cell| cell.value.is_empty()));
    scene.assert_all_there();
    scene.disk.set_capacity(DISK_BYTES);
    scene.wait_for_room();
    scene.write(b"one more", Some(vec![7; 1_000].into())).expect("there is room again");
}

#[test]
fn deletes_take_a_bounded_part_of_the_reserve() {
    let mut scene = Scene::begin(3);
    scene.fill(0);
    let reserve = scene.engine.disk_stats().reserve_bytes;
    // Deletes of absent keys free no space.
    let refused = (0..2_000_000u64).find(|number| {
        if number % 256 == 0 {
            scene.work();
        }
        let mut key = vec![b'x'; 1_000];
        key.extend(number.to_be_bytes());
        scene.write(&key, None) == Err(ErrorKind::Full)
    });
    assert!(refused.is_some(), "deletes were taken without end");
    scene.work();
    let left = scene.disk.available_bytes(Path::new("/")).expect("it tells");
    assert!(left > reserve / 4, "{left} of {reserve} bytes are left");
    scene.assert_all_there();
}
