//! Items of Rust source: test code, and definitions of types.

use super::lexer::RustToken;
use super::source::TypeDefinition;

/// Directories whose files are test code or examples.
const TEST_DIRECTORIES: [&str; 3] = ["benches", "examples", "tests"];

/// Whether the file at `path` is test code by its place.
pub(crate) fn is_test_path(path: &str) -> bool {
    path.split('/').any(|component| TEST_DIRECTORIES.contains(&component))
}

/// The prefixes of the paths that the module `name`, declared in the file at `path`, can have.
pub(crate) fn module_paths(path: &str, name: &str) -> [String; 2] {
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    let (directory, file) = stem.rsplit_once('/').unwrap_or(("", stem));
    let parent = if matches!(file, "mod" | "lib" | "main") { directory } else { stem };
    [format!("{parent}/{name}.rs"), format!("{parent}/{name}/")]
}

/// The tokens outside of items with `#[cfg(test)]`, and the names of modules in other files that
/// have this attribute.
pub(crate) fn without_tests(tokens: &[RustToken]) -> (Vec<&RustToken>, Vec<String>) {
    let mut rest = Vec::new();
    let mut modules = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if is_test_attribute(&tokens[at..]) {
            let end = at + item_length(&tokens[at..]);
            let item = &tokens[at..end];
            if let [.., module, RustToken::Identifier { name, .. }, RustToken::Delimiter(';')] = item
                && is_word(module, &["mod"])
            {
                modules.push(name.clone());
            }
            at = end;
        } else {
            rest.push(&tokens[at]);
            at += 1;
        }
    }
    (rest, modules)
}

/// Whether `tokens` begin with `cfg(test)` or `cfg(all(test, ..))`.
fn is_test_attribute(tokens: &[RustToken]) -> bool {
    match tokens {
        [cfg, all, test, ..] if is_word(cfg, &["cfg"]) && is_word(all, &["all"]) => is_word(test, &["test"]),
        [cfg, test, ..] => is_word(cfg, &["cfg"]) && is_word(test, &["test"]),
        _ => false,
    }
}

/// The number of tokens of the first item: through its body, or through its semicolon.
fn item_length(tokens: &[RustToken]) -> usize {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate() {
        match token {
            RustToken::Delimiter('{') => depth += 1,
            RustToken::Delimiter('}') if depth <= 1 => return index + 1,
            RustToken::Delimiter('}') => depth -= 1,
            RustToken::Delimiter(';') if depth == 0 => return index + 1,
            _ => {}
        }
    }
    tokens.len()
}

/// The definitions of types and traits that are visible outside their own module.
pub(crate) fn visible_types(tokens: &[&RustToken]) -> Vec<TypeDefinition> {
    let follows_pub = |index: usize| -> Option<TypeDefinition> {
        let mut rest = tokens[index..].iter().copied();
        let mut word = rest.next()?;
        if is_word(word, &["in"]) {
            word = rest.find(|token| is_word(token, &ITEM_KEYWORDS))?;
        } else if is_word(word, &["crate", "super"]) {
            word = rest.next()?;
        }
        if is_word(word, &["unsafe"]) {
            word = rest.next()?;
        }
        if !is_word(word, &TYPE_KEYWORDS) {
            return None;
        }
        match rest.next()? {
            RustToken::Identifier { line, name } if name.starts_with(char::is_uppercase) => {
                Some(TypeDefinition { line: *line, name: name.clone() })
            }
            _ => None,
        }
    };
    let after_pub = tokens.iter().enumerate().filter(|(_, token)| is_word(token, &["pub"]));
    after_pub.filter_map(|(index, _)| follows_pub(index + 1)).collect()
}

/// The keywords that define a type or trait.
const TYPE_KEYWORDS: [&str; 5] = ["enum", "struct", "trait", "type", "union"];

/// The keywords with which an item can begin.
const ITEM_KEYWORDS: [&str; 13] = [
    "async", "const", "enum", "extern", "fn", "mod", "static", "struct", "trait", "type", "union", "unsafe",
    "use",
];

fn is_word(token: &RustToken, words: &[&str]) -> bool {
    matches!(token, RustToken::Identifier { name, .. } if words.contains(&&name[..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::lexer;

    fn visible(source: &str) -> Vec<String> {
        let tokens = lexer::tokens(source);
        let (rest, _) = without_tests(&tokens);
        visible_types(&rest).into_iter().map(|definition| definition.name).collect()
    }

    #[test]
    fn types_of_all_kinds_and_visibilities_are_found() {
        let source = "pub struct A; pub(crate) enum B {} pub(super) trait C {} pub union D {}
            pub type E = u8; pub unsafe trait F {} pub(in crate::a) struct G(u8); pub(crate) unsafe trait H {}";
        assert_eq!(visible(source), ["A", "B", "C", "D", "E", "F", "G", "H"]);
    }

    #[test]
    fn private_types_and_other_items_are_not_found() {
        let source = "struct A; enum B { C } type D = u8; trait E { type F; } pub fn g() { struct H; }
            pub(self) struct I; pub mod j { struct K; } pub use L; pub(crate) const M: u8 = 1; struct N;
            pub(crate) fn o() { struct P; } pub struct $name;";
        assert!(visible(source).is_empty(), "{:?}", visible(source));
    }

    #[test]
    fn test_code_is_omitted() {
        let source = "pub struct A; #[cfg(test)] mod tests { pub struct B { c: [u8; 3] } pub struct C; }
            #[cfg(test)] pub struct D(u8); pub struct E; #[cfg(test)] pub(crate) mod f; pub struct G;
            #[cfg(all(test, not(miri)))] mod h { pub struct I; } pub struct J;
            #[cfg(not(test))] pub struct K; struct L { #[cfg(test)] m: u8 } pub struct N;";
        assert_eq!(visible(source), ["A", "E", "G", "J", "K", "N"]);
    }

    #[test]
    fn test_modules_in_other_files_are_named() {
        let tokens = lexer::tokens("#[cfg(test)]\nmod a;\n#[cfg(test)]\npub(crate) mod b;\nmod c;");
        assert_eq!(without_tests(&tokens).1, ["a", "b"]);
        assert_eq!(module_paths("a/mod.rs", "b"), ["a/b.rs", "a/b/"]);
        assert_eq!(module_paths("a/b.rs", "c"), ["a/b/c.rs", "a/b/c/"]);
    }

    #[test]
    fn directories_of_tests_are_test_code() {
        for path in ["crates/a/tests/b.rs", "crates/a/examples/b.rs", "crates/a/src/tests/b.rs"] {
            assert!(is_test_path(path), "{path}");
        }
        assert!(!is_test_path("crates/a/src/testing.rs"));
    }
}
