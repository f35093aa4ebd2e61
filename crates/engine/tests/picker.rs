//! Golden scripts of the compaction picker: tables in, plans out.
//!
//! Each file of `scripts/picker` is a conversation: commands at the start of a line, answers behind
//! `> `. `UPDATE=1 cargo test -p engine --test picker` rewrites the answers.
//!
//! ```text
//! options level0_tables=4 level1_mb=100 growth=10 table_mb=10 grace=10 local_end=b
//! table L1 7 a-f mb=10 cells=100 tombstones=0 expiring=0 versions=1..5 dead=3
//! now 20              the time; all times are days since 2020-01-01
//! memtable 19         the least version in memory
//! memtable local 19   the least version of a value of a local key in memory
//! purged 9            tables with ids below this one may hold cells of disowned ranges
//! pick                shows the next plan
//! run                 same as pick, and starts the plan: its tables are busy
//! done 1              ends the first plan that was started
//! settle              runs one plan after the other until there is none
//! levels, debt, clear
//! ```
//!
//! A merge that ends leaves one table with all its inputs: the least favorable outcome.

use bytes::Bytes;
use engine::Options;
use engine::internals::compaction::{
    CompactionDebt, Horizon, LocalHorizon, Plan, PlanId, RunningPlans, level_target_bytes, pick,
};
use engine::internals::manifest::{LEVELS, Levels, VersionEdit};
use engine::internals::sstable::{TableId, TableMeta};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Hlc, NodeTag, Rng, Version, WallTime};

const MB: u64 = 1 << 20;
const SETTLE_MAX: usize = 200;

struct World {
    options: Options,
    levels: Levels<TableMeta>,
    busy: RunningPlans,
    running: BTreeMap<usize, (PlanId, Plan<TableMeta>)>,
    begun: usize,
    now: u64,
    memtable: Option<u64>,
    local_memtable: Option<u64>,
    purged_from: Option<u64>,
    next_id: u64,
}

fn day(day: u64) -> WallTime {
    WallTime::EPOCH_2020.saturating_add(Duration::from_secs(day * 24 * 3600))
}

fn version(at: u64) -> Version {
    Version::new(Hlc::at(day(at)), NodeTag(1))
}

fn options() -> Options {
    Options {
        level0_tables: 4,
        level1_bytes: 100 * MB,
        level_growth: 10,
        table_bytes: 10 * MB,
        ..Options::default()
    }
}

impl World {
    fn new() -> Self {
        Self {
            options: options(),
            levels: Levels::default(),
            busy: RunningPlans::default(),
            running: BTreeMap::new(),
            begun: 0,
            now: 0,
            memtable: None,
            local_memtable: None,
            purged_from: None,
            next_id: 1_000,
        }
    }

    fn command(&mut self, line: &str) -> String {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            ["options", ref settings @ ..] => self.set(settings),
            ["table", level, id, range, ref facts @ ..] => self.table(level, id, range, facts),
            ["now", at] => self.now = number(at),
            ["memtable", "local", at] => self.local_memtable = Some(number(at)),
            ["memtable", at] => self.memtable = Some(number(at)),
            ["purged", from] => self.purged_from = Some(number(from)),
            ["clear"] => *self = Self { options: self.options.clone(), ..Self::new() },
            ["pick"] => return self.pick().map_or("nothing".into(), |plan| show(&plan)),
            ["run"] => return self.run(),
            ["done", which] => {
                let (id, plan) = self.running.remove(&(number(which) as usize)).expect("it runs");
                self.busy.end(id);
                self.finish(&plan);
            }
            ["settle"] => return self.settle(),
            ["levels"] => return self.show_levels(),
            ["debt"] => return format!("{} MB", CompactionDebt::of(&self.levels, &self.options).bytes / MB),
            _ => panic!("not a command: {line}"),
        }
        String::new()
    }

    fn set(&mut self, settings: &[&str]) {
        for (name, value) in settings.iter().map(|setting| fact(setting)) {
            match name {
                "level0_tables" => self.options.level0_tables = number(value) as usize,
                "level1_mb" => self.options.level1_bytes = number(value) * MB,
                "growth" => self.options.level_growth = number(value),
                "table_mb" => self.options.table_bytes = number(value) * MB,
                "local_end" => self.options.local_keys_end = Some(value.into()),
                "grace" => self.options.tombstone_grace = Duration::from_secs(number(value) * 24 * 3600),
                _ => panic!("not an option: {name}"),
            }
        }
    }

    fn table(&mut self, level: &str, id: &str, range: &str, facts: &[&str]) {
        let (min, max) = range.split_once('-').expect("a range");
        let mut meta = TableMeta {
            id: TableId(number(id)),
            file_bytes: 10 * MB,
            data_bytes: 10 * MB,
            cells: 100,
            tombstones: 0,
            expiring: 0,
            key_min: Bytes::copy_from_slice(min.as_bytes()),
            key_max: Bytes::copy_from_slice(max.as_bytes()),
            version_min: version(self.now),
            version_max: version(self.now),
            droppable_from: None,
        };
        for (name, value) in facts.iter().map(|setting| fact(setting)) {
            match name {
                "mb" => meta.file_bytes = number(value) * MB,
                "cells" => meta.cells = number(value),
                "tombstones" => meta.tombstones = number(value),
                "expiring" => meta.expiring = number(value),
                "versions" => {
                    let (least, greatest) = value.split_once("..").expect("a range");
                    (meta.version_min, meta.version_max) =
                        (version(number(least)), version(number(greatest)));
                }
                "dead" => meta.droppable_from = Some(day(number(value))),
                _ => panic!("not a fact: {name}"),
            }
        }
        self.add(level.strip_prefix('L').expect("a level").parse().unwrap(), meta);
    }

    fn add(&mut self, level: u8, meta: TableMeta) {
        self.edit(&VersionEdit { added: vec![(level, meta)], ..VersionEdit::default() });
    }

    fn edit(&mut self, edit: &VersionEdit) {
        self.levels =
            self.levels.apply(edit, &mut |meta| Arc::new(meta.clone())).expect("plans keep the levels whole");
    }

    fn pick(&self) -> Option<Plan<TableMeta>> {
        let horizon = Horizon {
            now: day(self.now),
            grace: self.options.tombstone_grace,
            version_min: self.memtable.map_or(Version::MAX, version),
            purged_from: self.purged_from.map(TableId),
            local: self.options.local_keys_end.clone().map(|end| LocalHorizon {
                end: end.into(),
                version_min: self.local_memtable.map_or(Version::MAX, version),
            }),
        };
        pick(&self.levels, &self.busy, &self.options, &horizon)
    }

    fn run(&mut self) -> String {
        let Some(plan) = self.pick() else { return "nothing".into() };
        self.begun += 1;
        let shown = format!("{}: {}", self.begun, show(&plan));
        self.running.insert(self.begun, (self.busy.begin(&plan), plan));
        shown
    }

    fn finish(&mut self, plan: &Plan<TableMeta>) {
        let removed = plan
            .inputs
            .iter()
            .flat_map(|input| input.tables.iter().map(|table| (input.level as u8, table.id)));
        let removed = removed.collect();
        let level = plan.output_level as u8;
        let added = if plan.is_move {
            plan.tables().map(|table| (level, (**table).clone())).collect()
        } else {
            vec![(level, self.merged(plan))]
        };
        self.edit(&VersionEdit { added, removed, ..VersionEdit::default() });
    }

    /// One table with all inputs, less the cells that a rewrite in place certainly drops.
    fn merged(&mut self, plan: &Plan<TableMeta>) -> TableMeta {
        self.next_id += 1;
        let (key_min, key_max) = plan.key_range();
        let sum = |of: fn(&TableMeta) -> u64| plan.tables().map(|table| of(table)).sum::<u64>();
        let in_place = plan.inputs.iter().all(|input| input.level == plan.output_level);
        let buried = if in_place { sum(|table| table.expiring) } else { 0 };
        let dropped = if in_place && buried == 0 { sum(|table| table.tombstones) } else { 0 };
        TableMeta {
            id: TableId(self.next_id),
            file_bytes: plan.bytes(),
            data_bytes: plan.bytes(),
            cells: sum(|table| table.cells) - dropped,
            tombstones: sum(|table| table.tombstones) + buried - dropped,
            expiring: sum(|table| table.expiring) - buried,
            key_min,
            key_max,
            version_min: plan.tables().map(|table| table.version_min).min().unwrap(),
            version_max: plan.tables().map(|table| table.version_max).max().unwrap(),
            droppable_from: plan
                .tables()
                .filter_map(|table| table.droppable_from)
                .min()
                .filter(|_| dropped == 0),
        }
    }

    fn settle(&mut self) -> String {
        let mut shown = Vec::new();
        while let Some(plan) = self.pick() {
            shown.push(show(&plan));
            self.finish(&plan);
            assert!(shown.len() < SETTLE_MAX, "choosing does not come to an end: {shown:?}");
        }
        shown.push("settled".into());
        shown.join("\n")
    }

    fn show_levels(&self) -> String {
        let occupied = (0..LEVELS).filter(|level| !self.levels.level(*level).is_empty());
        let lines = occupied.map(|level| {
            let tables =
                self.levels.level(level).iter().map(|table| {
                    format!("{}({}-{})", table.id.0, text(&table.key_min), text(&table.key_max))
                });
            format!("L{level} {}", tables.collect::<Vec<_>>().join(" "))
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

fn fact(text: &str) -> (&str, &str) {
    text.split_once('=').expect("name=value")
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("not a number: {text}"))
}

fn text(key: &[u8]) -> &str {
    std::str::from_utf8(key).unwrap()
}

fn show(plan: &Plan<TableMeta>) -> String {
    let inputs = plan.inputs.iter().map(|input| {
        let ids: Vec<_> = input.tables.iter().map(|table| table.id.0.to_string()).collect();
        format!("L{}[{}]", input.level, ids.join(" "))
    });
    let how = if plan.is_move { "moves" } else { "merges" };
    let inputs: Vec<_> = inputs.collect();
    format!("{:?}: {how} {} to L{}", plan.reason, inputs.join(" + "), plan.output_level)
}

fn answer(script: &str) -> String {
    let mut world = World::new();
    let mut told = String::new();
    for line in script.lines().filter(|line| !line.starts_with("> ")) {
        writeln!(told, "{line}").unwrap();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        for answer in world.command(line).lines() {
            writeln!(told, "> {answer}").unwrap();
        }
    }
    told
}

#[test]
fn the_picker_matches_its_scripts() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts/picker");
    let mut scripts = 0;
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        let script = std::fs::read_to_string(&path).unwrap();
        let told = answer(&script);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &told).unwrap();
        } else {
            assert_eq!(told, script, "{}: UPDATE=1 writes the answers anew", path.display());
        }
        scripts += 1;
    }
    assert!(scripts > 0, "no scripts in {}", dir.display());
}

/// With any tables and any concurrent plans that end in any order, the levels stay consistent,
/// which `apply` checks. The sequence of plans terminates, and then every level is within its size.
#[test]
fn any_levels_converge_to_their_sizes() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut world = World::new();
        world.options.tombstone_grace = Duration::from_secs(rng.below(20) * 24 * 3600);
        world.options.level1_bytes = 20 * MB;
        let local_end = format!("{:06}", rng.below(1_000)).into_bytes();
        world.options.local_keys_end = rng.chance(0.5).then_some(local_end);
        for id in 1..80 {
            world.now += rng.below(2);
            world.memtable = rng.chance(0.5).then(|| world.now.saturating_sub(rng.below(30)));
            world.local_memtable = world.memtable.map(|least| least + rng.below(10));
            let first = rng.below(1_000);
            let width = if rng.chance(0.5) { 10 } else { 400 };
            let last = first + rng.below(width);
            let oldest = world.now.saturating_sub(rng.below(40));
            let mut meta = TableMeta {
                id: TableId(id),
                file_bytes: (1 + rng.below(20)) * MB,
                data_bytes: 0,
                cells: 100,
                tombstones: if rng.chance(0.4) { rng.below(100) } else { 0 },
                expiring: 0,
                key_min: format!("{first:06}").into(),
                key_max: format!("{last:06}").into(),
                version_min: version(oldest),
                version_max: version(world.now),
                droppable_from: None,
            };
            meta.expiring = if rng.chance(0.3) { rng.below(100 - meta.tombstones) } else { 0 };
            if meta.tombstones + meta.expiring > 0 {
                meta.droppable_from = Some(day(oldest + rng.below(10)));
            }
            world.add(0, meta);
            while world.running.len() < 3 && world.run() != "nothing" {}
            while !world.running.is_empty() && rng.chance(0.6) {
                let which =
                    *world.running.keys().nth(rng.below(world.running.len() as u64) as usize).unwrap();
                world.command(&format!("done {which}"));
            }
        }
        while let Some(which) = world.running.keys().next().copied() {
            world.command(&format!("done {which}"));
        }
        world.settle();
        assert!(world.levels.level(0).len() < world.options.level0_tables, "seed {seed}");
        for level in 1..LEVELS {
            let target = level_target_bytes(level, &world.options);
            assert!(world.levels.bytes(level) < target, "seed {seed}: level {level} is above its size");
        }
    }
}
