//! The command line: one module a command.

mod emulate;

use std::process::ExitCode;

use clap::Parser;

/// Far storage at the speed of the network.
#[derive(Debug, Parser)]
#[command(name = "longhaul", version, max_term_width = 110, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Emulate(emulate::Emulate),
}

impl Cli {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Emulate(emulate) => emulate.run(),
        }
    }
}
