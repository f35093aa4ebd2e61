//! Symbols of the kernel.

use std::io::{BufRead, BufReader};

const SYMBOLS: &str = "/proc/kallsyms";

/// Kernel functions in order of address; empty if the system hides them.
pub(super) struct Kernel(Vec<(u64, Box<str>)>);

impl Kernel {
    /// Reads the kernel's symbols.
    pub(super) fn read() -> Self {
        let lines = std::fs::File::open(SYMBOLS).map(BufReader::new);
        Self::of(lines.into_iter().flat_map(BufRead::lines).map_while(Result::ok))
    }

    fn of(lines: impl Iterator<Item = String>) -> Self {
        let mut functions: Vec<_> = lines.filter_map(|line| function(&line)).collect();
        functions.sort_by_key(|(address, _)| *address);
        Self(functions)
    }

    pub(super) fn name_of(&self, address: u64) -> Option<&str> {
        let after = self.0.partition_point(|(start, _)| *start <= address);
        self.0[..after].last().map(|(_, name)| &**name)
    }
}

/// Parses a line such as `ffffffff81000000 T _stext`, followed by `[module]` for functions of a
/// module. The kernel shows all addresses as 0 to unprivileged processes.
fn function(line: &str) -> Option<(u64, Box<str>)> {
    let mut words = line.split_ascii_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok().filter(|address| *address != 0)?;
    let is_code = matches!(words.next()?, "t" | "T" | "w" | "W");
    is_code.then_some(())?;
    Some((address, words.next()?.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_function_before_it() {
        let lines = ["20 T write", "10 t read [disk]", "18 d table", "0 T hidden", "nonsense"];
        let kernel = Kernel::of(lines.map(str::to_owned).into_iter());
        let names = [0x0f, 0x10, 0x1f, 0x20, u64::MAX].map(|address| kernel.name_of(address));
        assert_eq!(names, [None, Some("read"), Some("read"), Some("write"), Some("write")]);
    }
}
