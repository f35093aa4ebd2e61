//! `veche completions` and `veche man`: files about the command line, generated from its definition.

use crate::output;
use clap::CommandFactory;
use clap_complete::Shell;
use std::path::PathBuf;

/// Print a script that completes the command line of veche in a shell.
///
/// bash: veche completions bash > ~/.local/share/bash-completion/completions/veche
///
/// zsh: veche completions zsh > a file _veche in a directory of $fpath
///
/// fish: veche completions fish > ~/.config/fish/completions/veche.fish
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

/// Write the manual pages of veche and of its commands.
#[derive(Debug, clap::Args)]
pub(crate) struct Man {
    /// Directory for the pages; made where it is missing
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Prints the script.
pub(crate) fn completions(arguments: &Completions) -> Result<(), String> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut crate::Arguments::command(), "veche", &mut script);
    let script = String::from_utf8(script).map_err(|error| error.to_string())?;
    output::to_stdout(format_args!("{}", script.trim_end()));
    Ok(())
}

/// Writes the pages.
pub(crate) fn man(arguments: &Man) -> Result<(), String> {
    let dir = &arguments.dir;
    std::fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let command = crate::Arguments::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, dir).map_err(|error| format!("{}: {error}", dir.display()))
}
