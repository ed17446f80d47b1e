//! `cargo xtask`: measurements and demonstrations of longhaul on this machine.
//!
//! Each measurement runs the product's own binary, beside rivals from the distribution's packages where there are any, over
//! links that the product emulates, and keeps every raw run in a record of `longhaul-report`. Nothing here is part of the
//! product.
//!
//! Map: [`bench`], [`file_io`], [`names`], [`targets`], [`emulator`], [`model`], [`netem`], [`path`], [`path_grid`], [`suites`] and [`demo`] are the commands; networks, servers, tools
//! and time limits are those of `longhaul-bench`; [`stream`] is what the machine carries without a copy, [`probe`] what [`netem`] runs on its
//! hosts, [`linux_source`] a tree of many files, [`environment`] the machine and the sources.

mod bench;
mod demo;
mod emulator;
mod environment;
mod file_io;
mod linux_source;
mod model;
mod names;
mod netem;
mod path;
mod path_grid;
mod places;
mod probe;
mod show;
mod stream;
mod suites;
mod targets;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
// The rooms of `crates/bench`, by the names that they have here.
use longhaul_bench::{
    course, data, file, file_system, iperf3, limited, link, memory_to_memory, mounted, pair, profile, server,
    tool, turn, usage,
};

/// Measurements and demonstrations of longhaul on this machine
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    after_help = "Build the program first: cargo build --release

Examples:
  cargo xtask demo                                     the main job, on real data, in a few minutes
  cargo xtask bench copy --quick                       every tool and link once, with little data
  cargo xtask bench copy --link 1g-100ms --data big    one column of the full benchmark
  cargo xtask bench targets --case tree --rounds 1     one of the figures that the documents name
  cargo xtask bench emulator --case delay              how true the emulated link is to its settings
  cargo xtask suites --suite git                       what others try file systems with, on a mount
  cargo xtask table benches/results/copy-2026-01-31/results.json"
)]
struct Cli {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Measure longhaul beside its rivals, against its own targets, and its link emulator
    Bench {
        #[command(subcommand)]
        what: Bench,
    },
    Demo(demo::Demo),
    Plot(show::Plot),
    Suites(suites::Suites),
    Table(show::Table),
    #[command(hide = true)]
    Probe {
        #[command(subcommand)]
        what: probe::Probe,
    },
}

#[derive(Debug, Subcommand)]
enum Bench {
    Copy(bench::CopyBench),
    Io(file_io::IoBench),
    Model(model::ModelBench),
    Names(names::NamesBench),
    Targets(targets::TargetsBench),
    Netem(netem::NetemBench),
    Emulator(emulator::EmulatorBench),
    Probe(path::PathBench),
    PathGrid(path_grid::GridBench),
}

fn main() -> ExitCode {
    limited::note_interrupts();
    let result = match Cli::parse().action {
        Action::Bench { what: Bench::Copy(copy) } => copy.run(),
        Action::Bench { what: Bench::Io(io) } => io.run(),
        Action::Bench { what: Bench::Model(model) } => model.run(),
        Action::Bench { what: Bench::Names(names) } => names.run(),
        Action::Bench { what: Bench::Targets(targets) } => targets.run(),
        Action::Bench { what: Bench::Netem(netem) } => netem.run(),
        Action::Bench { what: Bench::Probe(probe) } => probe.run(),
        Action::Bench { what: Bench::PathGrid(grid) } => grid.run(),
        Action::Probe { what } => what.run(),
        Action::Bench { what: Bench::Emulator(emulator) } => emulator.run(),
        Action::Demo(demo) => demo.run(),
        Action::Plot(plot) => plot.run(),
        Action::Suites(suites) => suites.run(),
        Action::Table(table) => table.run(),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// The top of the source tree.
fn workspace() -> PathBuf {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    own.parent().map_or(own.clone(), PathBuf::from)
}

/// Where cargo builds to.
fn target_directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

/// The program to measure: the one that is named, or the release build.
fn longhaul_program(named: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let path = named.unwrap_or_else(|| target_directory().join("release/longhaul"));
    path.canonicalize()
        .with_context(|| format!("{} is not there; build it with `cargo build --release`", path.display()))
}
