//! Mapped object files of this process.

use super::shorten::shorten;
use super::source;
use addr2line::Loader;
use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Path of the running program. It stays valid when its file is replaced.
const SELF: &str = "/proc/self/exe";

/// A mapped object file.
pub(super) struct Module {
    path: PathBuf,
    /// Difference between mapped addresses and the addresses in the file.
    bias: u64,
    ranges: Vec<Range<u64>>,
    symbols: LazyLoader,
}

/// Symbols of a module, loaded when the first address is resolved.
enum LazyLoader {
    NotLoaded,
    Loaded(Box<Loader>),
    Unavailable,
}

impl Module {
    pub(super) fn contains(&self, address: u64) -> bool {
        self.ranges.iter().any(|range| range.contains(&address))
    }

    /// Functions that contain the address, the outermost first.
    pub(super) fn names_of(&mut self, address: u64) -> Vec<String> {
        let probe = address.wrapping_sub(self.bias);
        let names = self.symbols().map(|loader| resolve_names(loader, probe)).unwrap_or_default();
        if !names.is_empty() {
            return names;
        }
        let real = if self.path == Path::new(SELF) { std::fs::read_link(SELF).ok() } else { None };
        let file = real.as_ref().unwrap_or(&self.path).file_name().unwrap_or_default().to_string_lossy();
        vec![format!("[{file}]")]
    }

    fn symbols(&mut self) -> Option<&Loader> {
        if let LazyLoader::NotLoaded = self.symbols {
            self.symbols = match Loader::new(&self.path) {
                Ok(loader) => LazyLoader::Loaded(Box::new(loader)),
                Err(_) => LazyLoader::Unavailable,
            };
        }
        match &self.symbols {
            LazyLoader::Loaded(loader) => Some(loader),
            LazyLoader::NotLoaded | LazyLoader::Unavailable => None,
        }
    }
}

/// Names of the functions at `probe`, the outermost first. The symbol table has the full name of
/// the called function. Line tables have only the last path segment of inlined functions; the rest
/// follows from their source files.
fn resolve_names(loader: &Loader, probe: u64) -> Vec<String> {
    let mut names = Vec::new();
    if let Ok(mut frames) = loader.find_frames(probe) {
        while let Ok(Some(frame)) = frames.next() {
            let name = frame.function.as_ref().and_then(|function| function.demangle().ok());
            let file = frame.location.and_then(|location| location.file);
            names.extend(name.map(|name| source::qualify(&shorten(&name), file)));
        }
    }
    if let Some(symbol) = loader.find_symbol(probe) {
        names.pop();
        names.push(shorten(&addr2line::demangle_auto(symbol.into(), None)));
    }
    names.reverse();
    names
}

/// All modules of this process.
pub(super) fn loaded_modules() -> Vec<Module> {
    let mut modules: Vec<Module> = Vec::new();
    // SAFETY: the callback runs only during this call, each time with the pointer that is passed
    // here.
    unsafe {
        libc::dl_iterate_phdr(Some(add_module), (&raw mut modules).cast());
    }
    modules
}

unsafe extern "C" fn add_module(info: *mut libc::dl_phdr_info, _: usize, modules: *mut c_void) -> c_int {
    // SAFETY: the loader passes a description that is valid during the call, and the pointer from
    // `loaded_modules`.
    let (info, modules) = unsafe { (&*info, &mut *modules.cast::<Vec<Module>>()) };
    let name = if info.dlpi_name.is_null() {
        c""
    } else {
        // SAFETY: a name that is not null is terminated by 0 and valid during the call.
        unsafe { CStr::from_ptr(info.dlpi_name) }
    };
    let headers = if info.dlpi_phdr.is_null() {
        &[]
    } else {
        // SAFETY: the loader states the number of headers, and they are valid during the call.
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) }
    };
    let bias = info.dlpi_addr;
    let range = |header: &libc::Elf64_Phdr| {
        let start = bias.wrapping_add(header.p_vaddr);
        start..start.saturating_add(header.p_memsz)
    };
    let ranges = headers.iter().filter(|header| header.p_type == libc::PT_LOAD).map(range).collect();
    let path = PathBuf::from(if name.is_empty() { SELF.into() } else { name.to_string_lossy().into_owned() });
    modules.push(Module { path, bias, ranges, symbols: LazyLoader::NotLoaded });
    0
}
