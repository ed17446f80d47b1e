//! `bench io`: file I/O by the length of a call, longhaul's mount beside others, over emulated links.
//!
//! In each round each file system has a network, a server and a mount of its own, in an order that turns; what is done with
//! the mount is `longhaul bench io`, the same for all. The record is written after every link.

use std::fs;
use std::process::ExitCode;

use anyhow::bail;
use bytesize::ByteSize;
use clap::Args;
use longhaul_report::LeftOut;
use longhaul_report::io::Io;
use longhaul_report::plot;

use crate::file::remove;
use crate::file_system::FileSystem;
use crate::link::LinkShape;
use crate::mounted::Mounts;
use crate::places::Places;
use crate::server::Access;
use crate::tool::{how_to_install, missing};
use crate::{environment, profile, show};

/// Write and read files on mounts over emulated links: longhaul, sshfs, rclone mount, GlusterFS and the kernel's NFS, in one series
///
/// Patterns, lengths and rates are those of `longhaul bench io`. What is read after mounting is there before, at the server.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask bench io --quick
  cargo xtask bench io --link 1g-3.3ms --link 1g-4ms
  cargo xtask bench io --link 1g-200ms --size 1GiB --system longhaul --length 1MiB

Exit codes: 0 all was measured, and longhaul has no run that failed; 1 it has; 2 the series could not go on.")]
pub(crate) struct IoBench {
    /// One round, two lengths and little data, to see that all works
    #[arg(long)]
    quick: bool,
    /// Times that each run is made [default: 3; quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Only this link; can be given several times [default: 1g-3.3ms and 1g-4ms, the reports' own]
    #[arg(long = "link", value_name = "NAME")]
    links: Vec<LinkShape>,
    /// Only this file system; can be given several times [default: all but local, the disk itself that all servers have]
    #[arg(long = "system", value_name = "NAME", value_enum)]
    systems: Vec<FileSystem>,
    /// Bytes of a call; can be given several times [default: those of `longhaul bench io`; quick: 8KiB and 1MiB]
    #[arg(long = "length", value_name = "SIZE")]
    lengths: Vec<ByteSize>,
    /// Length of the file [default: 256MiB; quick: 16MiB]
    #[arg(long)]
    size: Option<ByteSize>,
    /// Longest time of a run, in seconds [default: 20; quick: 5]
    #[arg(long, value_name = "SECONDS")]
    limit: Option<u64>,
    /// Only this pattern; can be given several times [default: all]
    #[arg(long = "pattern", value_name = "PATTERN")]
    patterns: Vec<String>,
    /// Record with perf where the processors' time goes (root), from the mount's making to its end; what perf takes itself is
    /// missing from the rates
    #[arg(long)]
    profile: bool,
    #[command(flatten)]
    places: Places,
}

impl IoBench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let longhaul = self.places.longhaul()?;
        let asked = if self.systems.is_empty() { &FileSystem::OVER_A_LINK } else { &self.systems[..] };
        let left_out: Vec<LeftOut> = asked.iter().filter_map(|system| system.refusal()).collect();
        let systems: Vec<FileSystem> = asked
            .iter()
            .copied()
            .filter(|system| !left_out.iter().any(|out| out.tool == system.name()))
            .collect();
        if let ([], [out, ..]) = (&systems[..], &left_out[..]) {
            bail!("{} cannot run here: {}; choose another file system with --system", out.tool, out.reason);
        }
        let mut packages = FileSystem::check(&systems)?;
        if self.profile {
            let missing = missing(&profile::PACKAGES);
            if !missing.is_empty() {
                bail!("{}, or leave out --profile", how_to_install(&missing));
            }
            packages.extend(profile::PACKAGES);
        }
        let links = match self.links.is_empty() {
            false => self.links.clone(),
            true => vec!["1g-3.3ms", "1g-4ms"]
                .into_iter()
                .map(|name| name.parse().map_err(anyhow::Error::msg))
                .collect::<anyhow::Result<_>>()?,
        };
        let quick = |quick: u64, full: u64| if self.quick { quick } else { full };
        let lengths = match (self.lengths.is_empty(), self.quick) {
            (true, true) => vec![ByteSize::kib(8), ByteSize::mib(1)],
            _ => self.lengths.clone(),
        };
        let environment = environment::environment(&longhaul, &packages);
        let out = self.places.out("io", &environment)?;
        let scratch = self.places.scratch().join("io");
        fs::create_dir_all(&scratch)?;
        let scratch = scratch.canonicalize()?;
        let series = Mounts {
            access: Access::prepare(&scratch.join("access"), &longhaul)?,
            scratch,
            lengths: lengths.iter().map(ByteSize::as_u64).collect(),
            patterns: self.patterns.clone(),
            rounds: self.rounds.unwrap_or(quick(1, 3) as u32),
            size: self.size.map_or(quick(16 << 20, 256 << 20), |size| size.as_u64()),
            limit: self.limit.unwrap_or(quick(5, 20)),
            profiles: self.profile.then(|| out.clone()),
        };
        let mut record = Io::new("File I/O by the length of a call, over long links", environment);
        for link in &links {
            let mut place = series.place(link, &systems)?;
            place.left_out.extend(left_out.iter().cloned());
            record.places.push(place);
            show::record(&out.join("results.json"), &record.to_json()?)?;
            show::write(&out.join("results.md"), &record.markdown())?;
            for place in &record.places {
                let svg = plot::file_io(place)?;
                show::write(&out.join(format!("{}.svg", place.name)), &svg)?;
            }
        }
        remove(&series.scratch)?;
        show::print_out(&record.markdown())?;
        eprintln!("results are in {}", out.display());
        let mut own = record.places.iter().flat_map(|place| {
            let ours = |run: &&longhaul_report::io::Run| run.system == longhaul_report::record::OURS;
            place.runs.iter().filter(ours)
        });
        Ok(if own.any(|run| run.failure.is_some()) { ExitCode::from(1) } else { ExitCode::SUCCESS })
    }
}
