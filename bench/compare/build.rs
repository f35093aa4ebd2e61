//! Links the system's RocksDB (Debian: `librocksdb-dev`).

fn main() {
    println!("cargo::rustc-link-lib=rocksdb");
}
