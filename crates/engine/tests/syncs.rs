//! Numbers of syncs: a flush and a compaction make those that durability needs, and no more.

mod support;

use engine::{Engine, Options, Progress};
use env::{FaultFs, FaultPlan, OperationKind};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use stdx::Cell;
use support::{DIR, World, batch_of, small_options};

const VALUE_BYTES: usize = 1 << 10;
const STEP_BYTES: u64 = 4 << 10;

/// Syncs by the file or directory that was synced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Syncs {
    tables: u64,
    tables_dir: u64,
    manifest: u64,
    log: u64,
    log_dir: u64,
}

struct Scene {
    world: World,
    engine: Engine,
    counted: Arc<Mutex<Syncs>>,
}

impl Scene {
    /// A scene whose memtables span many segments of the log, and whose compactions write many
    /// tables.
    fn new() -> Self {
        let (world, counted) = (World::new(1), Arc::<Mutex<Syncs>>::default());
        let counts = Arc::clone(&counted);
        let plan = FaultPlan::on_operation(move |operation| {
            let mut counts = counts.lock();
            let name = operation.path.file_name().unwrap_or_default().to_string_lossy();
            match (operation.kind, &*name) {
                (OperationKind::SyncData, name) if name.ends_with(".sst") => counts.tables += 1,
                (OperationKind::SyncDir, "tables") => counts.tables_dir += 1,
                (OperationKind::SyncDir, "wal") => counts.log_dir += 1,
                (OperationKind::SyncData, name) if name.starts_with("manifest") => counts.manifest += 1,
                (OperationKind::SyncData | OperationKind::SyncDir, _) => counts.log += 1,
                _ => {}
            }
            None
        });
        let disk = FaultFs::new(Arc::new(world.disk.clone()), plan);
        let options = Options {
            memtable_bytes: Some(1 << 20),
            wal_segment_bytes: 16 << 10,
            table_bytes: 32 << 10,
            level0_tables: 3,
            level1_bytes: 8 << 20,
            ..small_options()
        };
        let (engine, _) =
            Engine::open(world.env_over(Arc::new(disk)), Path::new(DIR), options).expect("opened");
        Self { world, engine, counted }
    }

    /// Writes 200 KiB to keys that each round shares.
    fn write(&mut self) {
        for number in 0..200_u32 {
            let mut value = vec![0; VALUE_BYTES];
            self.world.rng.fill(&mut value);
            let cell = Cell::value(self.world.next_version(), 1, value.into());
            let key = [&[2][..], &number.to_be_bytes()].concat();
            self.engine.write(batch_of([&(key, cell)])).expect("written");
        }
    }

    /// Runs `work`. Returns its syncs.
    fn count(&self, work: impl FnOnce(&Engine)) -> Syncs {
        *self.counted.lock() = Syncs::default();
        work(&self.engine);
        *self.counted.lock()
    }

    fn tables(&self) -> u64 {
        let names = self.world.disk.file_names();
        names.iter().filter(|name| name.extension().is_some_and(|extension| extension == "sst")).count()
            as u64
    }
}

fn settle_upkeep(engine: &Engine) {
    while engine.step_upkeep(STEP_BYTES).expect("upkeep") == Progress::Worked {}
}

#[test]
fn a_flush_syncs_its_table_the_directory_and_the_manifest_once() {
    let mut scene = Scene::new();
    for _ in 0..3 {
        scene.write();
        let syncs = scene.count(|engine| {
            engine.flush().expect("flushed");
            settle_upkeep(engine);
        });
        // Each released segment of the log becomes a spare by a rename and a sync of the directory.
        let log_dir = syncs.log_dir;
        assert_eq!(syncs, Syncs { tables: 1, tables_dir: 1, manifest: 1, log: 0, log_dir });
    }
}

#[test]
fn a_compaction_syncs_each_table_once_and_the_directory_and_the_manifest_once() {
    let mut scene = Scene::new();
    for _ in 0..3 {
        scene.write();
        scene.engine.flush().expect("flushed");
        settle_upkeep(&scene.engine);
    }
    let syncs = scene
        .count(|engine| while engine.step_compaction(0, STEP_BYTES).expect("stepped") == Progress::Worked {});
    settle_upkeep(&scene.engine);
    assert!(scene.tables() > 4, "{} tables", scene.tables());
    assert_eq!(syncs, Syncs { tables: scene.tables(), tables_dir: 1, manifest: 1, log: 0, log_dir: 0 });
}
