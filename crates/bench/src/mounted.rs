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
        let prepare = prepare(self.size, link, &self.scratch.join("holes"));
        remove(&self.scratch.join("holes"))?;
        let mut place = Place {
            name: link.name().to_owned(),
            link: Some(link.record()),
            file_bytes: self.size,
            limit_seconds: self.limit as f64,
            prepare: Some(self.hidden(&prepare)),
            systems: Vec::new(),
            left_out: Vec::new(),
            runs: Vec::new(),
            verdicts: Vec::new(),
        };
        for system in systems {
            let command = system.command(&self.access, &served, &at);
            let program = self.access.longhaul().to_string_lossy();
            let command =
                command.into_iter().map(|word| self.hidden(&word.replace(&*program, "longhaul"))).collect();
            let encrypted = system.is_encrypted();
            place.systems.push(System { name: system.name().to_owned(), encrypted, command });
        }
        for round in 1..=self.rounds {
            for system in in_turn(systems, round) {
                eprintln!("{}, round {round}: {}", link.name(), system.name());
                match self.once(link, system, (&served, &at), &prepare, round, &mut place) {
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

    /// As it is recorded: where the scratch directory is says nothing.
    fn hidden(&self, word: &str) -> String {
        word.replace(&*self.scratch.to_string_lossy(), "SCRATCH")
    }

    fn once(
        &self,
        link: &LinkShape,
        system: FileSystem,
        (served, at): (&Path, &Path),
        prepare: &str,
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
            format!("--prepare {}", quoted(prepare)),
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
/// that (`PAGE_REPORTING_DELAY` of mm/page_reporting.c). So a run that is over by then begins with memory full of files' pages, as it is on a
/// host that has been up for a while: what is free is read from `holes`, a file that nothing of is on disk, grown by as much. Not before what was
/// just written is read, which would make way for that; nor before a longer run, since what makes way for its own pages would be reported in
/// the middle of it. That is the machine's, of all file systems alike.
fn prepare(size: u64, link: &LinkShape, holes: &Path) -> String {
    if link.time_of(size) > REPORTED_AFTER {
        return "sync".to_owned();
    }
    let holes = quoted(&holes.display().to_string());
    format!(
        "sync; [ \"$PATTERN\" = read-after-write ] && exit; free=$(awk '/^MemFree/ {{ print $2 }}' /proc/meminfo)K; \
         truncate -s +$free {holes}; tail -c $free {holes} >/dev/null"
    )
}

/// When a guest tells its hypervisor of what it has freed.
const REPORTED_AFTER: Duration = Duration::from_secs(2);

/// All runs of one file system in one round; each has a limit of its own.
const LIMIT: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use longhaul_report::io::Pattern;

    use super::*;

    #[test]
    fn memory_is_filled_only_before_runs_that_are_soon_over() {
        const MIB: u64 = 1 << 20;
        let prepared = |size, link: &str| prepare(size, &link.parse().unwrap(), Path::new("/scratch/holes"));
        assert_eq!(prepared(256 * MIB, "1g-4ms"), "sync");
        assert_eq!(prepared(1024 * MIB, "1g-100ms"), "sync");
        let fills = prepared(1024 * MIB, "10g-20ms");
        assert!(fills.ends_with("tail -c $free '/scratch/holes' >/dev/null"));
        let but_for = serde_json::to_string(&Pattern::ReadAfterWrite).unwrap().replace('"', "");
        assert!(fills.starts_with(&format!("sync; [ \"$PATTERN\" = {but_for} ] && exit; ")));
    }

    #[test]
    fn patterns_are_called_as_in_the_record() {
        let names = ["create-write", "overwrite", "read-after-mount", "read-after-write"];
        for (name, pattern) in names.iter().zip(Pattern::ALL) {
            assert_eq!(serde_json::to_string(&pattern).unwrap(), format!("\"{name}\""));
        }
    }
}
