//! `veche completions` and `veche man`: files generated from the definition of the command line.

use crate::output;
use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man as ManPage;
use std::path::{Path, PathBuf};

/// Print a script that completes the command line of veche in a shell.
///
/// bash: veche completions bash > ~/.local/share/bash-completion/completions/veche
///
/// zsh: veche completions zsh > a file _veche in a directory of $fpath
///
/// fish: veche completions fish > ~/.config/fish/completions/veche.fish
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct CompletionArguments {
    /// The shell
    shell: Shell,
}

/// Write the manual pages of veche and of its commands.
#[derive(Debug, clap::Args)]
pub(crate) struct Man {
    /// Directory for the pages; created if missing
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Prints the script.
pub(crate) fn completions(arguments: &CompletionArguments) -> Result<(), String> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut crate::Arguments::command(), "veche", &mut script);
    let script = String::from_utf8(script).map_err(|error| error.to_string())?;
    output::to_stdout(format_args!("{}", script.trim_end()));
    Ok(())
}

/// Writes a page for `veche` and one for each of its commands, in place of older ones.
pub(crate) fn man(arguments: &Man) -> Result<(), String> {
    let dir = &arguments.dir;
    std::fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let mut command = crate::Arguments::command().disable_help_subcommand(true);
    command.build();
    write_pages(command, dir)
}

/// Writes the pages of `command` and, recursively, of its subcommands.
fn write_pages(command: clap::Command, dir: &Path) -> Result<(), String> {
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        write_pages(subcommand.clone(), dir)?;
    }
    let page = ManPage::new(command);
    let path = dir.join(page.get_filename());
    let mut text = Vec::new();
    page.render(&mut text).map_err(|error| format!("{}: {error}", path.display()))?;
    output::write_public_file(&path, &text)
}
