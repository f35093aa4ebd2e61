//! The threads of this process, as the system lists them.

use std::collections::HashMap;
use std::io;

const TASKS: &str = "/proc/self/task";
/// The name of a thread that has ended before it was asked.
const ENDED: &str = "(ended thread)";

/// Their numbers.
///
/// # Errors
/// `/proc` cannot be read.
pub(crate) fn list() -> io::Result<Vec<u32>> {
    let tasks = std::fs::read_dir(TASKS)?;
    Ok(tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// The names of threads, each asked for once.
#[derive(Debug, Default)]
pub(crate) struct ThreadNames {
    /// By number: the place among `names`.
    places: HashMap<u32, u32>,
    names: Vec<String>,
}

impl ThreadNames {
    /// The place of the thread's name among all names.
    pub(crate) fn place_of(&mut self, thread: u32) -> u32 {
        *self.places.entry(thread).or_insert_with(|| {
            let read = std::fs::read_to_string(format!("{TASKS}/{thread}/comm"));
            let name = read.map_or_else(|_| ENDED.to_owned(), |name| name.trim_end().to_owned());
            let place = self.names.iter().position(|known| *known == name).unwrap_or_else(|| {
                self.names.push(name);
                self.names.len() - 1
            });
            u32::try_from(place).expect("fewer names than threads")
        })
    }

    pub(crate) fn name(&self, place: u32) -> &str {
        &self.names[place as usize]
    }
}
