//! Adapter of RocksDB, through its C interface.

use crate::rocks_sys::{self as sys};
use crate::store::{
    BACKGROUND_THREADS, FILTER_BITS, MEMTABLES, Outcome, Settings, Store, Visit, wait_until_quiet,
};
use std::ffi::{CStr, CString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{null_mut, slice_from_raw_parts};

/// Format version that RocksDB 7.8 writes by default.
const FORMAT_VERSION: c_int = 5;
const OWN_BLOCK_BYTES: u32 = 4096;
/// Properties that are zero when no background work is left.
const BACKGROUND: [&CStr; 4] = [
    c"rocksdb.num-running-flushes",
    c"rocksdb.num-running-compactions",
    c"rocksdb.compaction-pending",
    c"rocksdb.mem-table-flush-pending",
];

/// An open RocksDB.
pub struct Rocks {
    db: *mut sys::rocksdb_t,
    options: *mut sys::rocksdb_options_t,
    table: *mut sys::rocksdb_block_based_table_options_t,
    cache: *mut sys::rocksdb_cache_t,
    write: *mut sys::rocksdb_writeoptions_t,
    read: *mut sys::rocksdb_readoptions_t,
    description: String,
}

// SAFETY: RocksDB documents `DB` as safe for concurrent use. The option objects do not change after
// opening.
unsafe impl Send for Rocks {}
// SAFETY: as above.
unsafe impl Sync for Rocks {}

impl Rocks {
    pub fn open(dir: &Path, settings: &Settings) -> Outcome<Self> {
        let path = CString::new(dir.as_os_str().as_bytes())?;
        let block_bytes = settings.block_bytes.unwrap_or(OWN_BLOCK_BYTES);
        // SAFETY: every pointer comes from the matching `create` just before, and is destroyed
        // once, in `drop`. `set_filter_policy` takes ownership of the policy; the table options
        // share the cache by reference count.
        unsafe {
            let table = sys::rocksdb_block_based_options_create();
            let cache = sys::rocksdb_cache_create_lru(usize::try_from(settings.cache_bytes)?);
            let bloom = sys::rocksdb_filterpolicy_create_bloom_full(f64::from(FILTER_BITS));
            sys::rocksdb_block_based_options_set_block_size(table, block_bytes as usize);
            sys::rocksdb_block_based_options_set_format_version(table, FORMAT_VERSION);
            sys::rocksdb_block_based_options_set_filter_policy(table, bloom);
            sys::rocksdb_block_based_options_set_block_cache(table, cache);
            sys::rocksdb_block_based_options_set_cache_index_and_filter_blocks(table, 1);
            sys::rocksdb_block_based_options_set_cache_index_and_filter_blocks_with_high_priority(table, 1);
            sys::rocksdb_block_based_options_set_pin_l0_filter_and_index_blocks_in_cache(table, 1);
            let options = sys::rocksdb_options_create();
            sys::rocksdb_options_set_create_if_missing(options, 1);
            sys::rocksdb_options_set_write_buffer_size(options, usize::try_from(settings.memtable_bytes)?);
            sys::rocksdb_options_set_max_write_buffer_number(options, MEMTABLES as c_int);
            sys::rocksdb_options_set_max_background_jobs(options, BACKGROUND_THREADS as c_int);
            sys::rocksdb_options_set_compression(options, sys::LZ4);
            sys::rocksdb_options_set_block_based_table_factory(options, table);
            let write = sys::rocksdb_writeoptions_create();
            sys::rocksdb_writeoptions_set_sync(write, u8::from(settings.sync));
            let read = sys::rocksdb_readoptions_create();
            let mut rocks =
                Self { db: null_mut(), options, table, cache, write, read, description: String::new() };
            rocks.db = checked(|error| sys::rocksdb_open(options, path.as_ptr(), error))?;
            rocks.description = format!(
                "sync={} write_buffer_size={} max_write_buffer_number={MEMTABLES} max_background_jobs={BACKGROUND_THREADS} \
                 compression=lz4 block_size={block_bytes} format_version={FORMAT_VERSION} bloom_full={FILTER_BITS} \
                 lru_cache={} cache_index_and_filter_blocks=1 (high priority, level 0 pinned), all else default",
                settings.sync, settings.memtable_bytes, settings.cache_bytes
            );
            Ok(rocks)
        }
    }

    fn property(&self, name: &CStr) -> u64 {
        let mut value = 0;
        // SAFETY: the database is open, the name is NUL-terminated, and the value is written before
        // it is read.
        let known = unsafe { sys::rocksdb_property_int(self.db, name.as_ptr(), &raw mut value) } == 0;
        if known { value } else { 0 }
    }
}

impl Store for Rocks {
    fn put(&self, key: &[u8], value: &[u8]) -> Outcome<()> {
        // SAFETY: both slices are valid during the call, which copies them.
        checked(|error| unsafe {
            let (key_at, value_at) = (key.as_ptr().cast(), value.as_ptr().cast());
            sys::rocksdb_put(self.db, self.write, key_at, key.len(), value_at, value.len(), error);
        })
    }

    fn put_batch(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> Outcome<()> {
        // SAFETY: the batch exists from `create` to `destroy`, and copies its entries.
        unsafe {
            let batch = sys::rocksdb_writebatch_create();
            for (key, value) in entries {
                let (key_at, value_at) = (key.as_ptr().cast(), value.as_ptr().cast());
                sys::rocksdb_writebatch_put(batch, key_at, key.len(), value_at, value.len());
            }
            let written = checked(|error| sys::rocksdb_write(self.db, self.write, batch, error));
            sys::rocksdb_writebatch_destroy(batch);
            written
        }
    }

    fn get(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        // SAFETY: the value is borrowed from the pinned slice, which is destroyed after `show` has
        // returned.
        unsafe {
            let key_at = key.as_ptr().cast();
            let pinned =
                checked(|error| sys::rocksdb_get_pinned(self.db, self.read, key_at, key.len(), error))?;
            if pinned.is_null() {
                return Ok(false);
            }
            let mut len = 0;
            let value = sys::rocksdb_pinnableslice_value(pinned, &raw mut len);
            show(bytes(value, len));
            sys::rocksdb_pinnableslice_destroy(pinned);
            Ok(true)
        }
    }

    fn delete(&self, key: &[u8]) -> Outcome<()> {
        // SAFETY: the key is valid during the call, which copies it.
        checked(|error| unsafe {
            sys::rocksdb_delete(self.db, self.write, key.as_ptr().cast(), key.len(), error);
        })
    }

    fn scan(&self, start: &[u8], limit: usize, visit: Visit<'_>) -> Outcome<usize> {
        // SAFETY: the iterator exists from `create` to `destroy`; key and value are used before it
        // moves.
        unsafe {
            let iterator = sys::rocksdb_create_iterator(self.db, self.read);
            sys::rocksdb_iter_seek(iterator, start.as_ptr().cast(), start.len());
            let mut count = 0;
            while count < limit && sys::rocksdb_iter_valid(iterator) != 0 {
                let (mut key_len, mut value_len) = (0, 0);
                let key = sys::rocksdb_iter_key(iterator, &raw mut key_len);
                let value = sys::rocksdb_iter_value(iterator, &raw mut value_len);
                visit(bytes(key, key_len), bytes(value, value_len));
                sys::rocksdb_iter_next(iterator);
                count += 1;
            }
            let result = checked(|error| sys::rocksdb_iter_get_error(iterator, error));
            sys::rocksdb_iter_destroy(iterator);
            result.map(|()| count)
        }
    }

    fn settle(&self) -> Outcome<()> {
        // SAFETY: the flush options exist from `create` to `destroy`.
        unsafe {
            let options = sys::rocksdb_flushoptions_create();
            sys::rocksdb_flushoptions_set_wait(options, 1);
            let flushed = checked(|error| sys::rocksdb_flush(self.db, options, error));
            sys::rocksdb_flushoptions_destroy(options);
            flushed?;
        }
        wait_until_quiet(|| BACKGROUND.iter().all(|name| self.property(name) == 0))
    }

    fn describe(&self) -> String {
        self.description.clone()
    }
}

impl Drop for Rocks {
    fn drop(&mut self) {
        // SAFETY: all pointers came from the matching `create`, and are not used after this. `db`
        // is null if opening failed.
        unsafe {
            if !self.db.is_null() {
                sys::rocksdb_close(self.db);
            }
            sys::rocksdb_readoptions_destroy(self.read);
            sys::rocksdb_writeoptions_destroy(self.write);
            sys::rocksdb_options_destroy(self.options);
            sys::rocksdb_block_based_options_destroy(self.table);
            sys::rocksdb_cache_destroy(self.cache);
        }
    }
}

/// Calls a function that reports errors through an out pointer.
fn checked<T>(call: impl FnOnce(*mut *mut c_char) -> T) -> Outcome<T> {
    let mut error = null_mut();
    let result = call(&raw mut error);
    if error.is_null() {
        return Ok(result);
    }
    // SAFETY: RocksDB sets the pointer to a NUL-terminated text that the caller must free.
    unsafe {
        let text = CStr::from_ptr(error).to_string_lossy().into_owned();
        sys::rocksdb_free(error.cast());
        Err(text.into())
    }
}

/// # Safety
/// `at` must point to `len` bytes that are valid as long as the result is used.
unsafe fn bytes<'a>(at: *const c_char, len: usize) -> &'a [u8] {
    // SAFETY: the caller upholds the contract of this function.
    unsafe { if len == 0 { &[] } else { &*slice_from_raw_parts(at.cast(), len) } }
}
