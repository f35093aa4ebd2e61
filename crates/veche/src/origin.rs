//! The origin of a setting's value: a flag, an environment variable or the configuration file.
//!
//! **Promise.** An error about a setting names what the operator wrote: the variable or the file,
//! if the flag was not typed.

use clap::error::{ContextKind, ContextValue};
use std::ffi::OsStr;
use std::path::Path;

/// `error` with the name of the environment variable instead of that of its flag, if the invalid
/// value is the variable's.
pub(crate) fn name_variable(command: &clap::Command, mut error: clap::Error) -> clap::Error {
    let variable = match error.get(ContextKind::InvalidArg) {
        // The flag, and a name for its value.
        Some(ContextValue::String(argument)) => {
            argument.split(' ').next().and_then(|flag| variable_of(command, flag))
        }
        _ => None,
    };
    if let Some(variable) = variable {
        error.insert(ContextKind::InvalidArg, ContextValue::String(variable));
    }
    error
}

/// `sentence` with the variable or the setting of `file` instead of the flag with which it begins,
/// if the flag was not typed.
pub(crate) fn name_setting(command: &clap::Command, sentence: String, file: Option<&Path>) -> String {
    let is_of_flag = |character: char| character == '-' || character.is_ascii_alphanumeric();
    let flag_len = sentence.find(|character| !is_of_flag(character)).unwrap_or(sentence.len());
    let (flag, rest) = sentence.split_at(flag_len);
    let Some(name) = flag.strip_prefix("--").filter(|_| !is_typed(flag)) else { return sentence };
    if let Some(variable) = variable_of(command, flag) {
        return format!("{variable}{rest}");
    }
    match file.filter(|file| is_set_in(file, name)) {
        Some(file) => format!("{name} in {}{rest}", file.display()),
        None => sentence,
    }
}

/// The environment variable that sets `flag` of the running subcommand, if the flag was not typed.
fn variable_of(command: &clap::Command, flag: &str) -> Option<String> {
    let subcommand = std::env::args_os().nth(1)?;
    let name = flag.strip_prefix("--").filter(|_| !is_typed(flag))?;
    let mut arguments = command.find_subcommand(subcommand)?.get_arguments();
    let variable = arguments.find(|argument| argument.get_long() == Some(name))?.get_env()?;
    let is_set = std::env::var_os(variable).is_some_and(|value| !value.is_empty());
    is_set.then(|| variable.to_string_lossy().into_owned())
}

fn is_typed(flag: &str) -> bool {
    let is_flag = |argument: &OsStr| {
        let rest = argument.as_encoded_bytes().strip_prefix(flag.as_bytes());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"="))
    };
    std::env::args_os().skip(1).any(|argument| is_flag(&argument))
}

/// Whether the file has a setting of this name, with dashes or underscores.
fn is_set_in(file: &Path, name: &str) -> bool {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let settings = text.parse::<toml::Table>().unwrap_or_default();
    settings.contains_key(name) || settings.contains_key(&name.replace('-', "_"))
}
