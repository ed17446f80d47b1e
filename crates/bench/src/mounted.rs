//! File I/O by the length of a call on mounts over an emulated link.
//!
//! In each round each file system has a network, a server and a mount of its own; what is done with the mount is `longhaul bench io`,
//! the same for all.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use longhaul_report::LeftOut;
use longhaul_report::io::{Io, Place, System};

use crate::data::Data;
use crate::environment::memory;
use crate::file::remove;
use crate::file_system::{FileSystem, quoted};
use crate::limited::{Limited, Words, last_words};
use crate::link::{Between, Host, LinkShape, Network};
use crate::profile::Recording;
use crate::server::{Access, Server};
use crate::turn::in_turn;

/// What is there to be read after mounting.
const THERE: &str = "there";

/// What is done with each of them.
#[derive(Debug)]
pub struct Mounts {
    /// Keys and settings.
    pub access: Access,
    /// A directory for what is served and where it is mounted.
    pub scratch: PathBuf,
    /// Bytes of a call; none: those of `longhaul bench io`.
    pub lengths: Vec<u64>,
    /// None: all.
    pub patterns: Vec<String>,
    /// Times that each run is made.
    pub rounds: u32,
    /// Length of the file.
    pub size: u64,
    /// Longest time of a run, in seconds.
    pub limit: u64,
    /// Where the processors' time goes is recorded, in files of this directory: `LINK-SYSTEM-roundN.profile.md` and `.profile.tsv`.
    pub profiles: Option<PathBuf>,
}

impl Mounts {
    /// Measures file systems over a link: each in each round, in an order that turns. What goes wrong with a rival is in the
    /// record.
    ///
    /// # Errors
    /// About the machine, or longhaul.
    pub fn place(&self, link: &LinkShape, systems: &[FileSystem]) -> anyhow::Result<Place> {
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
            prepare: Some(prepare(self.size, link)),
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
            format!("--prepare {}", quoted(place.prepare.as_deref().unwrap_or("true"))),
        ];
        bench.extend(self.lengths.iter().map(|length| format!("--length {}", length)));
        bench.extend(self.patterns.iter().map(|pattern| format!("--pattern {}", quoted(pattern))));
        let script = format!(
            "{mount} || exit 3; {}; code=$?; umount {}; exit $code",
            bench.join(" "),
            quoted(&at.display().to_string()),
        );
        let words: Vec<OsString> = ["sh", "-c", &script].map(OsString::from).to_vec();
        let (said, log) = (self.scratch.join("said.json"), self.scratch.join("log"));
        let words_to = Words::Apart { out: &said, err: &log };
        let recording =
            self.profiles.as_ref().map(|_| Recording::begin(self.scratch.join("perf.data"))).transpose()?;
        let mut measuring = Limited::start(&mut network.command(Host::Near, &words), words_to)?;
        let ended = measuring.wait(LIMIT)?;
        if let (Some(recording), Some(directory)) = (recording, &self.profiles) {
            let ends: Vec<(u32, &str)> = server.iter().map(|server| (server.id(), "far")).collect();
            let profile = recording.end(&ends)?;
            let name = format!("{}-{}-round{round}", link.name(), system.name()).replace(' ', "-");
            let tables = [profile.processes(), profile.table("far"), profile.table("mover")];
            profile.keep(&directory.join(name), &tables)?;
        }
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

/// Has what the last run left to be written be on disk first, so that it is not written during the next.
///
/// What a guest does not use may be its hypervisor's (free page reporting, the kernel's Documentation/mm/free_page_reporting.rst). It comes
/// back page by page, each with a fault; and two seconds after something was freed the hypervisor takes it, and the processors' time for
/// that (`PAGE_REPORTING_DELAY` of mm/page_reporting.c). A run that is over by then has as much memory touched and given back before it
/// as it fills at both ends (the kernel's pages there and here, and what a mount's own process keeps), at most half of what is available.
/// A longer one has not, which would be in the middle of it. That is the machine's, of all file systems alike.
fn prepare(size: u64, link: &LinkShape) -> String {
    if link.time_of(size) > REPORTED_AFTER {
        return "sync".to_owned();
    }
    let available = memory("MemAvailable").unwrap_or(0);
    let bytes = (3 * size).min(available / 2) / MIB * MIB;
    // tail(1) keeps in memory what it may have to print.
    format!("sync; head -c {bytes} /dev/zero | tail -c {bytes} >/dev/null")
}

/// When a guest tells its hypervisor of what it has freed.
const REPORTED_AFTER: Duration = Duration::from_secs(2);

const MIB: u64 = 1 << 20;

/// All runs of one file system in one round; each has a limit of its own.
const LIMIT: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use longhaul_report::io::Pattern;

    use super::{MIB, prepare};

    #[test]
    fn memory_is_given_back_only_before_runs_that_are_soon_over() {
        let prepared = |size, link: &str| prepare(size, &link.parse().unwrap());
        assert_eq!(prepared(256 * MIB, "1g-4ms"), "sync");
        assert_eq!(prepared(1024 * MIB, "1g-100ms"), "sync");
        assert!(prepared(MIB, "10g-20ms").starts_with("sync; head -c 3145728 /dev/zero |"));
    }

    #[test]
    fn patterns_are_called_as_in_the_record() {
        let names = ["create-write", "overwrite", "read-after-mount", "read-after-write"];
        for (name, pattern) in names.iter().zip(Pattern::ALL) {
            assert_eq!(serde_json::to_string(&pattern).unwrap(), format!("\"{name}\""));
        }
    }
}
