//! `longhaul bench reports`: the reports' experiments, made again.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use longhaul_bench::experiment::{self, Experiment};
use longhaul_bench::file::{remove, write};
use longhaul_bench::rerun::{self, Rerun};
use longhaul_bench::{environment, limited};
use longhaul_report::record::{End, OURS};
use longhaul_report::reports::{Found, Reports};
use longhaul_report::{Kept, page, plain};

use super::print_out;
use crate::terminal::harmless;

/// The experiments of the reports that longhaul's systems come from, made again on emulated links
///
/// UDP by frame size, TCP by window and streams, file I/O by length, copies and a download, over links with the rates and round-trip
/// times of JAXA (2005), Tokyo-CERN (2004) and UsadaFox (2010). longhaul, its rivals that are installed here, and what was published stand
/// side by side. Each run has an emulated network of its own, which ends with it. Takes root, for namespaces, mounts and ssh's server.
#[derive(Debug, Args)]
#[command(
    after_help = "Experiments: jaxa-tcp jaxa-udp jaxa-files vpn-tcp vpn-files cern-udp cern-tcp cern-copy kek-udp kek-tcp
kek-copy usadafox-tcp usadafox-download; or all of a place or a kind: jaxa, tcp.

Examples:
  sudo longhaul bench reports --only jaxa-tcp
  sudo longhaul bench reports --only kek --runs 3 --json kek.json --html kek.html
  sudo longhaul bench reports --seconds 10 --runs 3 --html reports.html
  longhaul report kek.json

Without root: `longhaul emulate run --rtt 3.3ms --rate 1Gbit --far 'longhaul probe --iperf3 --listen --one-off' -- longhaul probe --iperf3 far -w 128K`
measures one point of it where users may make namespaces.

Exit codes: 0 all was measured; 1 some of longhaul's own runs failed, each is named; 2 it could not go on."
)]
pub(crate) struct BenchReports {
    /// Only these experiments; can be given several times [default: all]
    #[arg(long = "only", value_name = "NAME")]
    only: Vec<String>,
    /// Length of each test; a copy may take five times as long, then it is cut off
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Times that each run is made
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Write the record as JSON (schema longhaul-reports/1), anew after each experiment
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write one page that needs nothing but itself, anew after each experiment
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Where files are made and copied to; on the disk to measure
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    scratch: PathBuf,
}

impl BenchReports {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let wanted = experiment::wanted(&self.only).map_err(anyhow::Error::msg)?;
        if !rustix::process::geteuid().is_root() {
            bail!(
                "the experiments need root, for network namespaces, mounts and ssh's server: run it with sudo; without root \
                 `longhaul emulate run ... --far 'longhaul probe --iperf3 --listen --one-off' -- longhaul probe --iperf3 far` \
                 measures a point of them (`longhaul bench reports --help`)"
            );
        }
        limited::note_interrupts();
        let longhaul = std::env::current_exe().context("cannot tell which program this is")?;
        let rerun = Rerun {
            scratch: rerun::scratch(&self.scratch)?,
            longhaul,
            seconds: self.seconds,
            rounds: self.runs,
        };
        let made = self.series(&rerun, &wanted);
        remove(&rerun.scratch)?;
        let record = made?;
        let failed = has_failed(&record);
        let sheet = Kept::Reports(Box::new(record)).sheet("");
        print_out(&harmless(&plain::sheet(&sheet, false)))?;
        Ok(if failed { ExitCode::from(1) } else { ExitCode::SUCCESS })
    }

    /// What is made is kept, whatever becomes of the rest.
    fn series(&self, rerun: &Rerun, wanted: &[&Experiment]) -> anyhow::Result<Reports> {
        let environment = environment::environment(&rerun.longhaul, &rerun::PACKAGES);
        let mut record = Reports::new("The reports' experiments, made again", environment);
        for (number, experiment) in (1..).zip(wanted) {
            eprintln!("{number} of {}: {}: {}", wanted.len(), experiment.name, experiment.title);
            record.experiments.push(rerun.experiment(experiment)?);
            if let Some(file) = &self.json {
                write(file, &record.to_json()?)?;
            }
            if let Some(file) = &self.html {
                let sheet = Kept::Reports(Box::new(record.clone())).sheet("");
                write(file, &page::page(&[(file.display().to_string(), sheet)]))?;
            }
        }
        Ok(record)
    }
}

fn has_failed(record: &Reports) -> bool {
    record.experiments.iter().any(|experiment| match &experiment.found {
        Found::Udp(runs) | Found::Tcp(runs) => {
            runs.iter().any(|run| run.tool == OURS && run.failure.is_some())
        }
        Found::Files(place) => place.runs.iter().any(|run| run.system == OURS && run.failure.is_some()),
        Found::Copies { scenario, .. } => {
            scenario.runs.iter().any(|run| run.tool == OURS && matches!(run.end, End::Failed { .. }))
        }
    })
}
