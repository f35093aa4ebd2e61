//! veche: a highly available, distributed key-value store over plain HTTP.

mod allocator;
mod backup;
mod bench;
mod client;
mod cluster_settings;
mod export;
mod generate;
mod import;
mod interrupt;
mod layout;
mod layout_change;
mod logging;
mod node_url;
mod origin;
mod output;
mod profile;
mod progress;
mod quantity;
mod repair;
mod restore;
mod sd_notify;
mod serve;
mod settings;
mod slow;
mod status;
mod table;
mod verify;

use ::profile::alloc::SamplingAllocator;
use allocator::SplitAllocator;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: SamplingAllocator<SplitAllocator> = SamplingAllocator::new(SplitAllocator);

/// A highly available, distributed key-value store over plain HTTP.
#[derive(Debug, Parser)]
#[command(name = "veche", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a node.
    Serve(Box<serve::ServeArguments>),
    /// Show the state of a node. Exit code 0: the node serves.
    Status(status::StatusArguments),
    /// Show the layout of a cluster, and change its members.
    Layout(layout::LayoutArguments),
    /// Compare the data of a node with the other replicas, and exchange the differences.
    Repair(repair::RepairArguments),
    /// Verify every byte of a stopped node's data directory, or of a backup repository.
    Verify(verify::VerifyArguments),
    /// Back up a running node to a repository on the same machine.
    Backup(backup::BackupArguments),
    /// Restore a data directory from a backup.
    Restore(restore::RestoreArguments),
    /// Write the entries of the whole cluster, or of one node, to a file.
    Export(export::ExportArguments),
    /// Write the entries of a file to a node or cluster.
    Import(import::ImportArguments),
    /// Load a server, at a constant rate or in a closed loop, and report its latencies.
    Bench(Box<bench::BenchArguments>),
    /// List the slow requests of a node on this machine, and where their time went.
    Slow(slow::SlowArguments),
    /// Profile a running node on this machine, as flame graphs and lists.
    Profile(profile::ProfileArguments),
    /// Print a completion script for bash, zsh, fish and other shells.
    Completions(generate::CompletionArguments),
    /// Write the manual pages.
    Man(generate::Man),
}

fn main() -> ExitCode {
    let outcome = match arguments().command {
        Command::Serve(arguments) => serve::run(*arguments),
        Command::Status(arguments) => status::run(&arguments).map_err(Failure::from),
        Command::Layout(arguments) => layout::run(&arguments).map_err(Failure::from),
        Command::Repair(arguments) => repair::run(&arguments).map_err(Failure::from),
        Command::Verify(arguments) => verify::run(&arguments).map_err(Failure::from),
        Command::Backup(arguments) => backup::run(&arguments).map_err(Failure::from),
        Command::Restore(arguments) => restore::run(&arguments).map_err(Failure::from),
        Command::Export(arguments) => export::run(arguments),
        Command::Import(arguments) => import::run(&arguments).map_err(Failure::from),
        Command::Bench(arguments) => bench::run(*arguments).map_err(Failure::from),
        Command::Slow(arguments) => slow::run(&arguments).map_err(Failure::from),
        Command::Profile(arguments) => profile::run(&arguments).map_err(Failure::from),
        Command::Completions(arguments) => generate::completions(&arguments).map_err(Failure::from),
        Command::Man(arguments) => generate::man(&arguments).map_err(Failure::from),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::print_note!("veche: {}", failure.sentence);
            ExitCode::from(failure.code)
        }
    }
}

/// Reason why a command failed.
#[derive(Debug)]
struct Failure {
    sentence: String,
    code: u8,
}

impl Failure {
    /// Exit code of a command line that is not understood, as clap has it.
    const USAGE: u8 = 2;

    /// The command line alone shows that the command cannot succeed.
    const fn usage(sentence: String) -> Self {
        Self { sentence, code: Self::USAGE }
    }
}

impl From<String> for Failure {
    fn from(sentence: String) -> Self {
        Self { sentence, code: 1 }
    }
}

/// Parses the arguments. An empty environment variable counts as not set.
fn arguments() -> Arguments {
    let mut command = Arguments::command();
    for name in [
        "serve", "status", "repair", "verify", "backup", "restore", "export", "import", "bench", "slow",
        "profile",
    ] {
        command = command.mut_subcommand(name, |command| command.mut_args(without_empty_variable));
    }
    command = command.mut_subcommand("layout", |layout| {
        ["show", "recover"].into_iter().fold(layout, |layout, name| {
            layout.mut_subcommand(name, |command| command.mut_args(without_empty_variable))
        })
    });
    let matches = command
        .try_get_matches_from_mut(std::env::args_os())
        .unwrap_or_else(|answer| output::exit_with(&origin::name_variable(&command, answer)));
    refuse_two_targets(&mut command, &matches);
    Arguments::from_arg_matches(&matches).unwrap_or_else(|error| output::exit_with(&error))
}

/// Refuses `verify --data X --backup Y`. A declared conflict would refuse the variable `VECHE_DATA`
/// beside `--backup` too.
fn refuse_two_targets(command: &mut clap::Command, matches: &ArgMatches) {
    const NAME: &str = "verify";
    let is_typed = |of: &ArgMatches, flag: &str| of.value_source(flag) == Some(ValueSource::CommandLine);
    if let Some(of) = matches.subcommand_matches(NAME)
        && is_typed(of, "data")
        && is_typed(of, "backup")
        && let Some(verify) = command.find_subcommand_mut(NAME)
    {
        let detail = "--data and --backup exclude each other: verify one of them at a time";
        output::exit_with(&verify.error(ErrorKind::ArgumentConflict, detail));
    }
}

fn without_empty_variable(argument: clap::Arg) -> clap::Arg {
    let variable = argument.get_env().and_then(std::env::var_os);
    if variable.is_some_and(|value| value.is_empty()) { argument.env(None::<&str>) } else { argument }
}
