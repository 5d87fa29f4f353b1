//! Parses the command line and maps outcomes to exit codes; does no work itself.

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use crate::printing::report;

/// A store for rows: read and write just the fields you name.
#[derive(Debug, Parser)]
#[command(name = "hedgerow", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves a store to Redis clients.
    Serve(crate::serve::Args),
    /// Shows a running server in the terminal: what it does, how full it is, what it has still to do.
    Top(crate::top::TopArgs),
    /// Measures a store.
    Bench(crate::bench::Args),
    /// Shows what a store, or a key-value device, that nobody has open has where, without changing it.
    Inspect(crate::inspect::Args),
    /// Verifies every byte of a store, or of key-value devices, without changing it.
    Check(crate::check::Args),
    /// Copies a store that no server has open, verified, or brings an earlier copy up to date.
    Backup(crate::backup::BackupArgs),
    /// Makes a store of a backup.
    Restore(crate::backup::RestoreArgs),
    /// Copies what can be read of a damaged store into a new one, and lists what is lost.
    Repair(crate::repair::Args),
    /// Writes a table of a store that no server has open as lines of JSON.
    Export(crate::transfer::ExportArgs),
    /// Reads a table from lines of JSON.
    Import(crate::transfer::ImportArgs),
    /// Runs or shows a pool of memory that many nodes share: gone with its machines.
    Pool(crate::pool::PoolArgs),
    /// Shows an array of key-value devices that nobody has open, and adds, removes and replaces devices.
    Kvssd(crate::kvssd::KvssdArgs),
    /// Prints `docs/commands.md`: the Redis commands `serve` knows.
    #[command(hide = true)]
    Commands,
}

/// Runs the command line; 0 on success, 1 on failure, 2 on wrong usage.
pub fn run() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return wrong_usage(&error),
    };
    let outcome = match command {
        Command::Serve(args) => crate::serve::run(args),
        Command::Top(args) => crate::top::run(args),
        Command::Bench(args) => crate::bench::run(args),
        Command::Inspect(args) => crate::inspect::run(args),
        Command::Check(args) => crate::check::run(args),
        Command::Backup(args) => crate::backup::run_backup(args),
        Command::Restore(args) => crate::backup::run_restore(args),
        Command::Repair(args) => crate::repair::run(args),
        Command::Export(args) => crate::transfer::run_export(args),
        Command::Import(args) => crate::transfer::run_import(args),
        Command::Pool(args) => crate::pool::run(args),
        Command::Kvssd(args) => crate::kvssd::run(args),
        Command::Commands => {
            print!("{}", crate::serve::commands::docs::markdown());
            Ok(())
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            report(format_args!("{message}"));
            ExitCode::FAILURE
        }
    }
}

/// Help if that was asked for, else one line that says what is wrong.
fn wrong_usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        error.exit();
    }
    let text = error.to_string();
    let what: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
    let what = what.join(" ");
    report(format_args!("{} (hedgerow --help shows what there is)", what.trim_start_matches("error: ")));
    ExitCode::from(2)
}
