//! The `longhaul` command.

mod cli;
mod config;
mod doctor;
mod far;
mod place;
mod service;
mod signals;
mod terminal;
mod trace;
mod units;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Parser;
use cli::mount_helper::Helper;

fn main() -> ExitCode {
    let run = match cli::mount_helper::helper(std::env::args_os()) {
        None => cli::Cli::parse().run(),
        Some(Ok(Helper::Pretend)) => return ExitCode::SUCCESS,
        Some(Ok(Helper::Mount(words))) => as_longhaul(&words),
        Some(Err(reason)) => Err(anyhow::Error::msg(reason)),
    };
    match run {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{}", terminal::harmless(&format!("longhaul: {error:#}")));
            ExitCode::from(2)
        }
    }
}

/// Begins anew under the program's own name.
fn as_longhaul(words: &[OsString]) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe()?;
    Err(Command::new(program).arg0("longhaul").args(words).exec().into())
}
