//! The fuzz targets without a fuzzer: seeds, mutations of them, and random bytes.

use fuzzing::{FuzzTarget, TARGETS, mutate, repair, targets};
use stdx::Rng;

const MUTATIONS: usize = 1_500;
/// Fewer for the engine: its scripts take longer than other inputs.
const MUTATIONS_OF_ENGINE: usize = 60;

fn seed() -> u64 {
    std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// Runs an input. Prints it before a panic of the target.
fn run(target: &FuzzTarget, input: &[u8]) {
    let outcome = std::panic::catch_unwind(|| (target.run)(input));
    if let Err(panic) = outcome {
        eprintln!("{}: fails at the input b\"{}\"", target.name, input.escape_ascii());
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn every_target_takes_its_seeds_and_mutations_of_them_and_random_bytes() {
    println!("seed {}", seed());
    for target in TARGETS {
        let mut rng = Rng::new(seed());
        let seeds = (target.seeds)();
        assert!(!seeds.is_empty(), "{} has no seeds", target.name);
        seeds.iter().for_each(|seed| run(&target, seed));
        let mutations = if target.name == "engine" { MUTATIONS_OF_ENGINE } else { MUTATIONS };
        for _ in 0..mutations {
            let seed = &seeds[rng.below(seeds.len() as u64) as usize];
            run(&target, &mutate::mutated(&mut rng, seed));
            run(&target, &mutate::random(&mut rng));
        }
    }
}

#[test]
fn a_repair_leaves_a_valid_file_as_it_is() {
    for table in targets::files::table_seeds() {
        assert!(repair::table(&table) == table);
        engine::internals::sstable::check_bytes(&table).expect("a table");
    }
    for manifest in targets::files::manifest_seeds() {
        // The mark ends a manifest: the preallocated bytes after it are no frames.
        assert!(repair::manifest(&manifest) == manifest);
        engine::internals::manifest::check_bytes(&manifest).expect("a manifest");
    }
    for record in targets::layout::record_seeds() {
        assert!(repair::layout_record(&record) == record);
        cluster::LayoutRecord::decode(&record).expect("a layout record");
    }
    for votes in targets::layout::votes_seeds() {
        assert!(repair::votes(&votes) == votes);
        store::internals::encode_votes_again(&votes).expect("votes");
    }
    for segment in targets::files::wal_segment_seeds() {
        assert!(repair::wal_segment(&segment) == segment);
    }
    for record in targets::files::wal_record_seeds() {
        assert!(repair::wal_record(&record) == record);
    }
}

#[test]
fn a_repair_reaches_behind_the_checksums() {
    let flipped = |valid: &[u8], at: usize| {
        let mut bytes = valid.to_vec();
        bytes[at] ^= 1;
        bytes
    };
    let tables = targets::files::table_seeds();
    // A byte in a value of the first data block: only the block's checksum detects the change.
    let table = flipped(&tables[1], 24 + 200);
    assert!(engine::internals::sstable::check_bytes(&table).is_err());
    let repaired = engine::internals::sstable::check_bytes(&repair::table(&table));
    assert!(!repaired.is_err_and(|error| error.to_string().contains("checksum")));
    let manifests = targets::files::manifest_seeds();
    let manifest = flipped(&manifests[0], 24 + 9 + 2);
    let repaired = engine::internals::manifest::check_bytes(&repair::manifest(&manifest));
    // The weight of the first member of epoch 1.
    let record = flipped(&targets::layout::record_seeds()[2], 89);
    assert!(cluster::LayoutRecord::decode(&record).is_err());
    let reached = cluster::LayoutRecord::decode(&repair::layout_record(&record));
    assert!(matches!(reached, Err(cluster::LayoutDecodeError::Record(_))), "{reached:?}");
    assert!(!repaired.is_err_and(|error| error.to_string().contains("no frame")));
}
