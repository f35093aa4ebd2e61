//! Symbolisation: from addresses to function names, including inlined functions.
//!
//! **Mechanism.** The dynamic loader reports the mapped files. A file's symbol table maps an
//! address to its function, and its debug information lists the functions inlined there; line
//! tables are enough. Kernel addresses are looked up in `/proc/kallsyms`.
//!
//! **Caveats.** An address without a symbol is named after its file, for example `[libc.so.6]`, or
//! `[kernel]`. Reading the debug information of a large program takes about a hundred megabytes.

mod kernel;
mod modules;
mod shorten;
mod source;

use kernel::Kernel;
use modules::Module;
use std::collections::HashMap;
use std::rc::Rc;

/// Lowest kernel address: the upper half of the address space is the kernel's.
const KERNEL_FROM: u64 = 1 << 63;
const KERNEL: &str = "[kernel]";
const UNKNOWN: &str = "[unknown]";

/// Symbols of this process, with a cache of resolved addresses.
pub(crate) struct Symbols {
    modules: Vec<Module>,
    kernel: Option<Kernel>,
    cache: HashMap<u64, Rc<[Rc<str>]>>,
}

impl Symbols {
    /// Captures the files that are mapped now.
    pub(crate) fn of_this_process() -> Self {
        Self { modules: modules::loaded_modules(), kernel: None, cache: HashMap::new() }
    }

    /// Functions that contain the instruction: first the called function, then those inlined into
    /// it.
    pub(crate) fn names_of(&mut self, address: u64) -> Rc<[Rc<str>]> {
        if let Some(names) = self.cache.get(&address) {
            return Rc::clone(names);
        }
        let names: Rc<[Rc<str>]> = self.resolve(address).into_iter().map(Rc::from).collect();
        self.cache.insert(address, Rc::clone(&names));
        names
    }

    fn resolve(&mut self, address: u64) -> Vec<String> {
        if address >= KERNEL_FROM {
            let kernel = self.kernel.get_or_insert_with(Kernel::read);
            return vec![kernel.name_of(address).map_or(KERNEL.to_owned(), |name| format!("{name}_[k]"))];
        }
        match self.modules.iter_mut().find(|module| module.contains(address)) {
            Some(module) => module.names_of(address),
            None => vec![UNKNOWN.to_owned()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn outer(address: &mut u64) {
        inner(address);
    }

    #[inline(always)]
    fn inner(address: &mut u64) {
        let frame = crate::stack::frame_pointer();
        std::hint::black_box(frame);
        *address = outer as *const () as u64 + 1;
    }

    #[test]
    fn a_function_of_ours_has_its_name() {
        let mut address = 0;
        outer(&mut address);
        let mut symbols = Symbols::of_this_process();
        let names = symbols.names_of(address);
        assert!(names[0].ends_with("symbols::tests::outer"), "{names:?}");
        assert_eq!(symbols.names_of(1)[..], [UNKNOWN.into()]);
    }

    #[test]
    fn a_function_of_the_c_library_has_its_name_or_its_file() {
        let names = Symbols::of_this_process().names_of(libc::getpid as *const () as u64 + 1);
        let name = names.last().unwrap();
        assert!(name.contains("getpid") || name.starts_with("[lib"), "{name}");
    }
}
