//! The `longhaul` command.

mod cli;
mod config;
mod far;
mod place;
mod service;
mod signals;
mod terminal;
mod trace;
mod units;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match cli::Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{}", terminal::harmless(&format!("longhaul: {error:#}")));
            ExitCode::from(2)
        }
    }
}
