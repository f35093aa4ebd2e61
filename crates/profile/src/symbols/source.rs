//! Module paths derived from source files.

/// Prefixes a bare function name with the crate and modules of its source file: `poll` in
/// `hyper-1.12.0/src/proto/h1/conn.rs` becomes `hyper::proto::h1::conn::poll`.
pub(super) fn qualify(name: &str, file: Option<&str>) -> String {
    match file.and_then(module_of) {
        Some(module) if !name.contains("::") => format!("{module}::{name}"),
        _ => name.to_owned(),
    }
}

/// Module path of a Rust source file in cargo's directory layout.
fn module_of(file: &str) -> Option<String> {
    let path = file.strip_suffix(".rs")?;
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    let src = parts.iter().rposition(|part| *part == "src")?;
    let package = without_version(parts.get(src.checked_sub(1)?)?);
    let is_named = |part: &&&str| !matches!(**part, "mod" | "lib" | "main");
    let modules = parts[src + 1..].iter().filter(is_named).copied();
    let path: Vec<&str> = std::iter::once(package).chain(modules).collect();
    Some(path.join("::").replace('-', "_"))
}

/// Package name without its version: `hyper-util-0.1.20` becomes `hyper-util`.
fn without_version(package: &str) -> &str {
    match package.rsplit_once('-') {
        Some((name, version)) if version.starts_with(|c: char| c.is_ascii_digit()) => name,
        _ => package,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_tells_the_module() {
        let registry = "/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f";
        for (file, name) in [
            (format!("{registry}/hyper-1.12.0/src/proto/h1/conn.rs"), "hyper::proto::h1::conn::poll"),
            (format!("{registry}/hyper-util-0.1.20/src/rt/mod.rs"), "hyper_util::rt::poll"),
            ("/rustc/5980/library/core/src/ops/function.rs".to_owned(), "core::ops::function::poll"),
            ("/home/x/veche/crates/engine/./src/lib.rs".to_owned(), "engine::poll"),
            ("src/lib.rs".to_owned(), "poll"),
            ("/usr/src/zstd/lib.c".to_owned(), "poll"),
            ("generated.rs".to_owned(), "poll"),
        ] {
            assert_eq!(qualify("poll", Some(&file)), name, "{file}");
        }
        assert_eq!(qualify("poll", None), "poll");
        assert_eq!(qualify("a::poll", Some("/a/b/src/c.rs")), "a::poll");
    }
}
