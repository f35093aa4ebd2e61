//! The part of RocksDB's C interface (`rocksdb/c.h`) that the comparison needs, declared by hand.

#![allow(non_camel_case_types, reason = "the names are those of c.h")]

use std::ffi::{c_char, c_double, c_int, c_uchar};

macro_rules! opaque {
    ($($name:ident),* $(,)?) => {
        $(#[repr(C)] pub(crate) struct $name { _opaque: [u8; 0] })*
    };
}

opaque!(
    rocksdb_t,
    rocksdb_options_t,
    rocksdb_block_based_table_options_t,
    rocksdb_cache_t,
    rocksdb_filterpolicy_t,
    rocksdb_writeoptions_t,
    rocksdb_readoptions_t,
    rocksdb_flushoptions_t,
    rocksdb_writebatch_t,
    rocksdb_iterator_t,
    rocksdb_pinnableslice_t,
);

/// Value of `rocksdb_lz4_compression`.
pub(crate) const LZ4: c_int = 4;

unsafe extern "C" {
    pub(crate) fn rocksdb_open(
        options: *const rocksdb_options_t,
        name: *const c_char,
        error: *mut *mut c_char,
    ) -> *mut rocksdb_t;
    pub(crate) fn rocksdb_close(db: *mut rocksdb_t);
    pub(crate) fn rocksdb_free(pointer: *mut std::ffi::c_void);

    pub(crate) fn rocksdb_options_create() -> *mut rocksdb_options_t;
    pub(crate) fn rocksdb_options_destroy(options: *mut rocksdb_options_t);
    pub(crate) fn rocksdb_options_set_create_if_missing(options: *mut rocksdb_options_t, on: c_uchar);
    pub(crate) fn rocksdb_options_set_write_buffer_size(options: *mut rocksdb_options_t, bytes: usize);
    pub(crate) fn rocksdb_options_set_max_write_buffer_number(options: *mut rocksdb_options_t, count: c_int);
    pub(crate) fn rocksdb_options_set_max_background_jobs(options: *mut rocksdb_options_t, count: c_int);
    pub(crate) fn rocksdb_options_set_compression(options: *mut rocksdb_options_t, kind: c_int);
    pub(crate) fn rocksdb_options_set_block_based_table_factory(
        options: *mut rocksdb_options_t,
        table: *mut rocksdb_block_based_table_options_t,
    );

    pub(crate) fn rocksdb_block_based_options_create() -> *mut rocksdb_block_based_table_options_t;
    pub(crate) fn rocksdb_block_based_options_destroy(table: *mut rocksdb_block_based_table_options_t);
    pub(crate) fn rocksdb_block_based_options_set_block_size(
        table: *mut rocksdb_block_based_table_options_t,
        bytes: usize,
    );
    pub(crate) fn rocksdb_block_based_options_set_format_version(
        table: *mut rocksdb_block_based_table_options_t,
        version: c_int,
    );
    pub(crate) fn rocksdb_block_based_options_set_filter_policy(
        table: *mut rocksdb_block_based_table_options_t,
        policy: *mut rocksdb_filterpolicy_t,
    );
    pub(crate) fn rocksdb_block_based_options_set_block_cache(
        table: *mut rocksdb_block_based_table_options_t,
        cache: *mut rocksdb_cache_t,
    );
    pub(crate) fn rocksdb_block_based_options_set_cache_index_and_filter_blocks(
        table: *mut rocksdb_block_based_table_options_t,
        on: c_uchar,
    );
    pub(crate) fn rocksdb_block_based_options_set_cache_index_and_filter_blocks_with_high_priority(
        table: *mut rocksdb_block_based_table_options_t,
        on: c_uchar,
    );
    pub(crate) fn rocksdb_block_based_options_set_pin_l0_filter_and_index_blocks_in_cache(
        table: *mut rocksdb_block_based_table_options_t,
        on: c_uchar,
    );
    pub(crate) fn rocksdb_filterpolicy_create_bloom_full(
        bits_per_key: c_double,
    ) -> *mut rocksdb_filterpolicy_t;
    pub(crate) fn rocksdb_cache_create_lru(bytes: usize) -> *mut rocksdb_cache_t;
    pub(crate) fn rocksdb_cache_destroy(cache: *mut rocksdb_cache_t);

    pub(crate) fn rocksdb_writeoptions_create() -> *mut rocksdb_writeoptions_t;
    pub(crate) fn rocksdb_writeoptions_destroy(options: *mut rocksdb_writeoptions_t);
    pub(crate) fn rocksdb_writeoptions_set_sync(options: *mut rocksdb_writeoptions_t, on: c_uchar);
    pub(crate) fn rocksdb_readoptions_create() -> *mut rocksdb_readoptions_t;
    pub(crate) fn rocksdb_readoptions_destroy(options: *mut rocksdb_readoptions_t);
    pub(crate) fn rocksdb_flushoptions_create() -> *mut rocksdb_flushoptions_t;
    pub(crate) fn rocksdb_flushoptions_destroy(options: *mut rocksdb_flushoptions_t);
    pub(crate) fn rocksdb_flushoptions_set_wait(options: *mut rocksdb_flushoptions_t, on: c_uchar);

    pub(crate) fn rocksdb_put(
        db: *mut rocksdb_t,
        options: *const rocksdb_writeoptions_t,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
        error: *mut *mut c_char,
    );
    pub(crate) fn rocksdb_delete(
        db: *mut rocksdb_t,
        options: *const rocksdb_writeoptions_t,
        key: *const c_char,
        key_len: usize,
        error: *mut *mut c_char,
    );
    pub(crate) fn rocksdb_get_pinned(
        db: *mut rocksdb_t,
        options: *const rocksdb_readoptions_t,
        key: *const c_char,
        key_len: usize,
        error: *mut *mut c_char,
    ) -> *mut rocksdb_pinnableslice_t;
    pub(crate) fn rocksdb_pinnableslice_value(
        slice: *const rocksdb_pinnableslice_t,
        len: *mut usize,
    ) -> *const c_char;
    pub(crate) fn rocksdb_pinnableslice_destroy(slice: *mut rocksdb_pinnableslice_t);

    pub(crate) fn rocksdb_writebatch_create() -> *mut rocksdb_writebatch_t;
    pub(crate) fn rocksdb_writebatch_destroy(batch: *mut rocksdb_writebatch_t);
    pub(crate) fn rocksdb_writebatch_put(
        batch: *mut rocksdb_writebatch_t,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
    );
    pub(crate) fn rocksdb_write(
        db: *mut rocksdb_t,
        options: *const rocksdb_writeoptions_t,
        batch: *mut rocksdb_writebatch_t,
        error: *mut *mut c_char,
    );

    pub(crate) fn rocksdb_create_iterator(
        db: *mut rocksdb_t,
        options: *const rocksdb_readoptions_t,
    ) -> *mut rocksdb_iterator_t;
    pub(crate) fn rocksdb_iter_destroy(iterator: *mut rocksdb_iterator_t);
    pub(crate) fn rocksdb_iter_seek(iterator: *mut rocksdb_iterator_t, key: *const c_char, key_len: usize);
    pub(crate) fn rocksdb_iter_next(iterator: *mut rocksdb_iterator_t);
    pub(crate) fn rocksdb_iter_valid(iterator: *const rocksdb_iterator_t) -> c_uchar;
    pub(crate) fn rocksdb_iter_key(iterator: *const rocksdb_iterator_t, len: *mut usize) -> *const c_char;
    pub(crate) fn rocksdb_iter_value(iterator: *const rocksdb_iterator_t, len: *mut usize) -> *const c_char;
    pub(crate) fn rocksdb_iter_get_error(iterator: *const rocksdb_iterator_t, error: *mut *mut c_char);

    pub(crate) fn rocksdb_flush(
        db: *mut rocksdb_t,
        options: *const rocksdb_flushoptions_t,
        error: *mut *mut c_char,
    );
    pub(crate) fn rocksdb_property_int(db: *mut rocksdb_t, name: *const c_char, value: *mut u64) -> c_int;
}
