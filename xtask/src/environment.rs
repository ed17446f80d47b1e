//! What there is to say of this machine and of the sources, for the record.

use std::path::{Path, PathBuf};
use std::process::Command;

use longhaul_report::Environment;

use crate::link::checked;
use crate::tool::Package;

/// What there is to say now. What cannot be found out is called unknown.
pub(crate) fn environment(longhaul: &Path, packages: &[Package]) -> Environment {
    let mut environment = longhaul_bench::environment::environment(longhaul, packages);
    environment.program.revision = revision();
    environment.command = std::iter::once("cargo xtask".to_owned()).chain(std::env::args().skip(1)).collect();
    environment
}

/// Where the results of a benchmark go unless the user wants them elsewhere.
pub(crate) fn results_directory(benchmark: &str, environment: &Environment) -> PathBuf {
    let date: String = environment.date.chars().filter(|c| *c != ':').collect();
    crate::workspace().join(format!("benches/results/{benchmark}-{date}"))
}

fn revision() -> String {
    let git = |args: &[&str]| {
        checked(Command::new("git").arg("-C").arg(crate::workspace()).args(args))
            .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    match git(&["rev-parse", "--short=12", "HEAD"]) {
        Err(_) => "unknown".to_owned(),
        Ok(revision) => match git(&["status", "--porcelain", "--untracked-files=no"]) {
            Ok(changes) if changes.is_empty() => revision,
            _ => format!("{revision}-dirty"),
        },
    }
}
