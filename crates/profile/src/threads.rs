//! Threads of this process.

use std::collections::HashMap;
use std::io;

const TASKS: &str = "/proc/self/task";
/// Name of a thread that ended before its name was read.
const ENDED_THREAD: &str = "(ended thread)";

/// Lists the ids of the threads.
///
/// # Errors
/// `/proc` cannot be read.
pub(crate) fn list_ids() -> io::Result<Vec<u32>> {
    let tasks = std::fs::read_dir(TASKS)?;
    Ok(tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// Names of threads. Each thread is read once.
#[derive(Debug, Default)]
pub(crate) struct ThreadNames {
    /// Thread id to index in `names`.
    indices: HashMap<u32, u32>,
    names: Vec<String>,
}

impl ThreadNames {
    /// Index of the thread's name.
    pub(crate) fn index_of(&mut self, thread: u32) -> u32 {
        *self.indices.entry(thread).or_insert_with(|| {
            let read = std::fs::read_to_string(format!("{TASKS}/{thread}/comm"));
            let name = read.map_or_else(|_| ENDED_THREAD.to_owned(), |name| name.trim_end().to_owned());
            let index = self.names.iter().position(|known| *known == name).unwrap_or_else(|| {
                self.names.push(name);
                self.names.len() - 1
            });
            u32::try_from(index).expect("fewer names than threads")
        })
    }

    pub(crate) fn name(&self, index: u32) -> &str {
        &self.names[index as usize]
    }
}
