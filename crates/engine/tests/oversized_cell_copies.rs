//! The number of copies of a large value in memory, measured by a counting allocator.

use engine::{Batch, Compression, Cursor, Engine, Options, OwnedValue, Progress};
use env::Env;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell as LocalCell;
use stdx::{Cell, Hlc, NodeTag, Rng, Version};

/// The system allocator with counters: bytes that the thread holds, and their maximum.
struct Counting;

thread_local! {
    static HELD_BYTES: LocalCell<isize> = const { LocalCell::new(0) };
    static PEAK_BYTES: LocalCell<isize> = const { LocalCell::new(0) };
}

fn count(bytes: isize) {
    let held = HELD_BYTES.get() + bytes;
    HELD_BYTES.set(held);
    PEAK_BYTES.set(PEAK_BYTES.get().max(held));
}

// SAFETY: every call is forwarded to the system allocator unchanged; the counters do not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Maximum number of bytes that the thread held during `work`, beyond the bytes before it.
fn peak_of<T>(work: impl FnOnce() -> T) -> usize {
    let before = HELD_BYTES.get();
    PEAK_BYTES.set(before);
    drop(work());
    (PEAK_BYTES.get() - before) as usize
}

const MIB: usize = 1 << 20;
/// Length of the value, in bytes.
const VALUE_BYTES: usize = 6 * MIB;
/// Other memory, less than a value: a block, a filter, file buffers, an empty memtable.
const BESIDES_BYTES: usize = 3 * MIB;
/// Number of tables to merge.
const TABLES: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Sort {
    Noise,
    /// Half of it compresses to nothing.
    HalfNoise,
}

/// An engine on a disk whose files are not in the memory of the process.
struct Fixture {
    engine: Engine,
    value: Vec<u8>,
    _dir: tempfile::TempDir,
}

impl Fixture {
    fn new(sort: Sort) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let options = Options {
            memory_bytes: 16 << 20,
            memtable_bytes: Some(2 * VALUE_BYTES as u64),
            compression: Compression::Lz4,
            level0_tables: TABLES as usize,
            ..Options::default()
        };
        let (engine, _) = Engine::open(Env::os(), dir.path(), options).expect("open");
        let mut value = vec![0; VALUE_BYTES];
        let noisy = if sort == Sort::Noise { VALUE_BYTES } else { VALUE_BYTES / 2 };
        Rng::new(1).fill(&mut value[..noisy]);
        Self { engine, value, _dir: dir }
    }

    /// Writes the value under the key and flushes it. Returns the peak memory beside the memtable.
    fn flush(&self, key: &[u8], number: u64) -> usize {
        let cell =
            Cell::value(Version::new(Hlc::from_bits(number), NodeTag(1)), 1, self.value.clone().into());
        let mut batch = Batch::new();
        batch.put(key, cell.as_ref());
        drop(cell);
        self.engine.write(batch).expect("write");
        peak_of(|| self.engine.flush().expect("flush"))
    }

    /// Merges all tables. Returns the peak memory.
    fn compact(&self) -> usize {
        peak_of(|| while self.engine.step_compaction(0, u64::MAX).expect("compaction") == Progress::Worked {})
    }
}

#[test]
fn a_large_value_is_flushed_without_a_copy_if_it_does_not_compress_and_with_two_if_it_does() {
    for (sort, most) in [(Sort::Noise, 0), (Sort::HalfNoise, VALUE_BYTES + VALUE_BYTES * 11 / 10)] {
        let fixture = Fixture::new(sort);
        let peak = fixture.flush(b"key", 1);
        assert!(peak < most + BESIDES_BYTES, "{sort:?}: {peak}");
    }
}

#[test]
fn a_merge_holds_one_large_value_at_a_time() {
    // The value itself and its compressed form.
    for (sort, most) in [(Sort::Noise, VALUE_BYTES), (Sort::HalfNoise, VALUE_BYTES * 3 / 2)] {
        for keys in [1, TABLES] {
            let fixture = Fixture::new(sort);
            for number in 0..TABLES {
                fixture.flush(&[b'k', (number % keys) as u8], number);
            }
            let peak = fixture.compact();
            assert!(peak < most + BESIDES_BYTES, "{sort:?}, {keys} keys: {peak}");
            assert_eq!(fixture.engine.stats().levels[1].cells, keys);
        }
    }
}

#[test]
fn a_merge_holds_no_large_value_between_two_steps() {
    const KEYS: u64 = 2;
    let fixture = Fixture::new(Sort::Noise);
    for number in 0..TABLES {
        let version = Version::new(Hlc::from_bits(number), NodeTag(1));
        let cell = Cell::value(version, 1, fixture.value.clone().into());
        let mut batch = Batch::new();
        (0..KEYS).for_each(|key| batch.put(&[b'k', key as u8], cell.as_ref()));
        drop(cell);
        fixture.engine.write(batch).expect("write");
        fixture.engine.flush().expect("flush");
    }
    let before = HELD_BYTES.get();
    for _ in 0..KEYS {
        assert_eq!(fixture.engine.step_compaction(0, 1).expect("compaction"), Progress::Worked);
        let held = HELD_BYTES.get() - before;
        assert!(held < BESIDES_BYTES as isize, "{held}");
    }
    fixture.compact();
    assert_eq!(fixture.engine.stats().levels[1].cells, KEYS);
}

#[test]
fn cells_of_one_version_are_compared_two_at_a_time() {
    let fixture = Fixture::new(Sort::Noise);
    for _ in 0..TABLES {
        fixture.flush(b"key", 7);
    }
    let peak = fixture.compact();
    assert!(peak < 2 * VALUE_BYTES + BESIDES_BYTES, "{peak}");
}

#[test]
fn a_scan_holds_one_large_value_and_none_when_it_is_released() {
    let fixture = Fixture::new(Sort::Noise);
    for number in 0..TABLES - 1 {
        fixture.flush(&[b'k', number as u8], number);
    }
    let mut cursor = fixture.engine.snapshot().cursor();
    let peak = peak_of(|| {
        let mut seen = 0;
        cursor.seek_to_first().expect("seek");
        while let Some((_, cell)) = cursor.entry() {
            assert!(cell.value == fixture.value);
            seen += 1;
            if seen < TABLES - 1 {
                cursor.advance().expect("advance");
            } else {
                break;
            }
        }
        assert_eq!(seen, TABLES - 1);
    });
    assert!(peak < VALUE_BYTES + BESIDES_BYTES, "{peak}");
    let before = HELD_BYTES.get();
    cursor.release_value();
    assert!((before - HELD_BYTES.get()) as usize >= VALUE_BYTES, "it is freed");
    cursor.reload_value().expect("it is read again");
    assert!(cursor.entry().is_some_and(|(_, cell)| cell.value == fixture.value));
}

#[test]
fn a_scan_hands_over_a_large_value_without_a_copy_and_continues() {
    let fixture = Fixture::new(Sort::Noise);
    for number in 0..TABLES - 1 {
        fixture.flush(&[b'k', number as u8], number);
    }
    let mut cursor = fixture.engine.snapshot().cursor();
    let peak = peak_of(|| {
        cursor.seek_to_first().expect("seek");
        for _ in 0..TABLES - 1 {
            let OwnedValue { bytes, range: at } = cursor.take_value().expect("nobody else has it");
            assert!(bytes[at] == fixture.value);
            assert!(cursor.take_value().is_none(), "it is given away once");
            drop(bytes);
            cursor.reload_value().expect("it is read again");
            assert!(cursor.entry().is_some_and(|(_, cell)| cell.value == fixture.value));
            cursor.advance().expect("advance");
        }
    });
    assert!(cursor.entry().is_none());
    assert!(peak < VALUE_BYTES + BESIDES_BYTES, "{peak}");
}
