//! Where a series of measurements has its program, its data and its results.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use longhaul_report::Environment;

use crate::environment::results_directory;

#[derive(Debug, Args)]
pub(crate) struct Places {
    /// Where results go [default: a directory with today's date in benches/results]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Where data is made and copied to; on the disk to measure [default: target/bench]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// The program to measure [default: target/release/longhaul]
    #[arg(long, value_name = "FILE")]
    longhaul: Option<PathBuf>,
}

impl Places {
    pub(crate) fn longhaul(&self) -> anyhow::Result<PathBuf> {
        crate::longhaul_program(self.longhaul.clone())
    }

    pub(crate) fn scratch(&self) -> PathBuf {
        self.scratch.clone().unwrap_or_else(|| crate::target_directory().join("bench"))
    }

    /// The directory for results of this kind, made.
    pub(crate) fn out(&self, kind: &str, environment: &Environment) -> anyhow::Result<PathBuf> {
        let out = self.out.clone().unwrap_or_else(|| results_directory(kind, environment));
        std::fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
        Ok(out)
    }
}
