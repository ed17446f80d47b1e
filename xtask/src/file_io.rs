//! `bench io`: file I/O by the length of a call, longhaul's mount beside others, over emulated links.
//!
//! In each round each file system has a network, a server and a mount of its own, in an order that turns; what is done with
//! the mount is `longhaul bench io`, the same for all. The record is written after every link.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use bytesize::ByteSize;
use clap::Args;
use longhaul_report::io::{Io, Place, System};
use longhaul_report::{LeftOut, plot};

use crate::bench::in_turn;
use crate::data::Data;
use crate::file_system::{FileSystem, quoted};
use crate::limited::{Limited, Words, last_words};
use crate::link::{Between, Host, LinkShape, Network};
use crate::places::Places;
use crate::server::{Access, Server, remove};
use crate::{environment, show};

/// Write and read files on mounts over emulated links: longhaul, sshfs, rclone mount and GlusterFS, in one series
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
    #[command(flatten)]
    places: Places,
}

/// What is there to be read after mounting.
const THERE: &str = "there";

struct Series {
    access: Access,
    scratch: PathBuf,
    lengths: Vec<ByteSize>,
    patterns: Vec<String>,
    rounds: u32,
    size: u64,
    limit: u64,
}

impl IoBench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let longhaul = self.places.longhaul()?;
        let systems = if self.systems.is_empty() { &FileSystem::OVER_A_LINK } else { &self.systems[..] };
        let packages = FileSystem::check(systems)?;
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
        let series = Series {
            access: Access::prepare(&scratch.join("access"), &longhaul)?,
            scratch,
            lengths,
            patterns: self.patterns.clone(),
            rounds: self.rounds.unwrap_or(quick(1, 3) as u32),
            size: self.size.map_or(quick(16 << 20, 256 << 20), |size| size.as_u64()),
            limit: self.limit.unwrap_or(quick(5, 20)),
        };
        let mut record = Io::new("File I/O by the length of a call, over long links", environment);
        for link in &links {
            record.places.push(series.place(link, systems)?);
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

impl Series {
    fn place(&self, link: &LinkShape, systems: &[FileSystem]) -> anyhow::Result<Place> {
        let (served, at) = (self.scratch.join("far"), self.scratch.join("near"));
        for directory in [&served, &at] {
            remove(directory)?;
            fs::create_dir_all(directory)?;
        }
        let there = Data::random(&served, self.size)?;
        fs::rename(there.source(), served.join(THERE))?;
        let mut place = Place {
            name: link.name().to_owned(),
            link: Some(link.record()),
            file_bytes: self.size,
            limit_seconds: self.limit as f64,
            systems: Vec::new(),
            left_out: Vec::new(),
            runs: Vec::new(),
            verdicts: Vec::new(),
        };
        for system in systems {
            let command = system.command(&self.access, &served, &at);
            let hidden = |word: String| word.replace(&*self.scratch.to_string_lossy(), "SCRATCH");
            let program = self.access.longhaul().to_string_lossy();
            let command =
                command.into_iter().map(|word| hidden(word.replace(&*program, "longhaul"))).collect();
            let encrypted = system.is_encrypted();
            place.systems.push(System { name: system.name().to_owned(), encrypted, command });
        }
        for round in 1..=self.rounds {
            for system in in_turn(systems, round) {
                eprintln!("{}, round {round}: {}", link.name(), system.name());
                match self.once(link, system, &served, &at, round, &mut place) {
                    Ok(()) => {}
                    Err(error) if system == FileSystem::Longhaul => return Err(error),
                    Err(error) => {
                        let reason = format!("round {round}: {error:#}");
                        place.left_out.push(LeftOut { tool: system.name().to_owned(), reason });
                    }
                }
            }
        }
        Ok(place)
    }

    fn once(
        &self,
        link: &LinkShape,
        system: FileSystem,
        served: &Path,
        at: &Path,
        round: u32,
        place: &mut Place,
    ) -> anyhow::Result<()> {
        let network = Network::up(self.access.longhaul(), Between::Link(link), round)?;
        let start = |server: Server| server.start(&network, &self.access, served);
        let server = system.server().map(start).transpose()?;
        let mount = system.script(&self.access, served, at)?;
        // Everything in one shell, which has the mount in its own tree.
        let remount = format!("umount \"$DIR\" && {mount}");
        let mut bench = vec![
            quoted(&self.access.longhaul().display().to_string()),
            format!("bench io {}={}", quoted(system.name()), quoted(&at.display().to_string())),
            format!("--json --rounds 1 --size {} --limit {} --read {THERE}", self.size, self.limit),
            format!("--remount {}", quoted(&remount)),
        ];
        bench.extend(self.lengths.iter().map(|length| format!("--length {}", length.as_u64())));
        bench.extend(self.patterns.iter().map(|pattern| format!("--pattern {}", quoted(pattern))));
        let script = format!(
            "{mount} || exit 3; {}; code=$?; umount {}; exit $code",
            bench.join(" "),
            quoted(&at.display().to_string()),
        );
        let words: Vec<OsString> = ["sh", "-c", &script].map(OsString::from).to_vec();
        let (said, log) = (self.scratch.join("said.json"), self.scratch.join("log"));
        let words_to = Words::Apart { out: &said, err: &log };
        let mut measuring = Limited::start(&mut network.command(Host::Near, &words), words_to)?;
        let ended = measuring.wait(LIMIT)?;
        let verdict = network.verdict();
        drop((measuring, server, network));
        let complaint = || last_words(&log);
        let text = fs::read_to_string(&said).unwrap_or_default();
        if ended.status.is_none() || text.is_empty() {
            bail!("nothing was measured: {}", complaint());
        }
        let measured = Io::from_json(&text).with_context(complaint)?;
        for mut run in measured.places.into_iter().flat_map(|place| place.runs) {
            run.round = round;
            if let Some(rate) = run.mbps() {
                eprintln!("    {:<16}  {:>9}  {rate:>7.0} Mbit/s", run.pattern.to_string(), run.length);
            }
            place.runs.push(run);
        }
        place.verdicts.push(verdict);
        Ok(())
    }
}

/// All runs of one file system in one round; each has a limit of its own.
const LIMIT: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use longhaul_report::io::Pattern;

    #[test]
    fn patterns_are_called_as_in_the_record() {
        let names = ["create-write", "overwrite", "read-after-mount", "read-after-write"];
        for (name, pattern) in names.iter().zip(Pattern::ALL) {
            assert_eq!(serde_json::to_string(&pattern).unwrap(), format!("\"{name}\""));
        }
    }
}
