//! The `usher` command.
//!
//! What it prints: data on stdout, everything else on stderr. Exit codes: 0 done, 1 failed while running, 2 could not start
//! (bad flags, a port or data directory that cannot be used); then one sentence says what to do and nothing was changed.

mod cluster;
mod config;
mod controller;
mod manifests;
mod node;
mod process;
mod queueing_config;
mod selection;
mod simulate;
mod up;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[derive(Parser)]
#[command(name = "usher", version, about = "A batch control plane that speaks the Kubernetes API")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run everything on this machine: API server, durable store, controllers, and pods as processes
    Up(Box<config::UpFlags>),
    /// Run the controllers of queues against a cluster that is already there
    Controller(controller::ControllerFlags),
    /// Play nodes, and the pods on them, for a cluster that is already there
    Node(simulate::SimulateFlags),
    /// Print everything that installs Usher on a cluster
    Manifests(manifests::ManifestsFlags),
}

fn main() -> ExitCode {
    if let Some(code) = usher_node::shim::run_if_asked() {
        return code;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            print!("{error}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("{}", config::flag_error(&error));
            return ExitCode::from(2);
        }
    };
    let failed = match cli.command {
        Command::Up(flags) => config::UpConfig::from_flags(*flags)
            .map_err(up::StartError::from)
            .and_then(up::run)
            .map_err(|error| (error.to_string(), error.is_before_start())),
        Command::Controller(flags) => {
            controller::run(flags).map_err(|error| (error.to_string(), error.is_before_start()))
        }
        Command::Node(flags) => simulate::run(flags).map_err(|error| (error.to_string(), true)),
        Command::Manifests(flags) => manifests::run(flags).map_err(|error| (error, true)),
    };
    match failed {
        Ok(()) => ExitCode::SUCCESS,
        Err((message, is_before_start)) => {
            eprintln!("error: {message}");
            ExitCode::from(if is_before_start { 2 } else { 1 })
        }
    }
}
