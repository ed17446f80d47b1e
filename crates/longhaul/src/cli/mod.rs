//! The command line: one module a command.

mod bench;
mod bench_reports;
mod cp;
mod doctor;
mod emulate;
mod key;
mod mount;
pub(crate) mod mount_helper;
mod probe;
mod reach;
mod report;
mod serve;
mod stats;
mod topology_file;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

/// Far storage at the speed of the network
#[derive(Debug, Parser)]
#[command(name = "longhaul", version, max_term_width = 110, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Cp(Box<cp::Cp>),
    Mount(Box<mount::MountCommand>),
    Stats(stats::Stats),
    Serve(serve::Serve),
    Key(key::Key),
    Emulate(Box<emulate::Emulate>),
    Bench(bench::Bench),
    Probe(Box<probe::Probe>),
    Report(report::ReportCommand),
    Doctor(doctor::Doctor),
    /// Print completions for a shell
    Completions {
        /// bash, zsh, fish, elvish or powershell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man {
        /// A command's own page
        command: Option<String>,
    },
}

impl Cli {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Cp(cp) => cp.run(),
            Command::Mount(mount) => mount.run(),
            Command::Stats(stats) => stats.run(),
            Command::Serve(serve) => serve.run(),
            Command::Key(key) => key.run(),
            Command::Emulate(emulate) => emulate.run(),
            Command::Bench(bench) => bench.run(),
            Command::Probe(probe) => probe.run(),
            Command::Report(report) => report.run(),
            Command::Doctor(doctor) => doctor.run(),
            Command::Completions { shell } => {
                let mut text = Vec::new();
                clap_complete::generate(shell, &mut Self::command(), "longhaul", &mut text);
                io::stdout().write_all(&text)?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Man { command } => man(command.as_deref()),
        }
    }
}

fn man(name: Option<&str>) -> anyhow::Result<ExitCode> {
    let mut command = Cli::command();
    command.build();
    let page = match name {
        None => command,
        Some(name) => {
            let found = command.find_subcommand(name).cloned();
            found
                .ok_or_else(|| anyhow::anyhow!("there is no command `{name}`"))?
                .name(format!("longhaul-{name}"))
        }
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text)?;
    io::stdout().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes to standard output at once.
pub(crate) fn print_out(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
