//! One tool, once, over a fresh link, under a time limit, and the judgement of what came out.
//!
//! Order: an empty destination and a quiet disk; the link; the server; the tool. Then, at the limit, the tool is
//! stopped and what has arrived is counted; else the copy is compared with its source, after the link is down so that
//! the comparison is no part of the emulator's verdict.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::Context;
use longhaul_emulator::processors::Processors;
use longhaul_report::record::projected_seconds;
use longhaul_report::{Amount, End, Run, Said, Usage, Verdict};
use rustix::fs::FlockOperation;

use crate::data::{Comparison, Data, Links, arrived};
use crate::file::remove;
use crate::limited::{Ended, Limited, Words, last_words};
use crate::link::{Between, Host, Network};
use crate::profile::Recording;
use crate::server::Access;
use crate::tool::{Job, Tool};
use crate::usage;

/// What all runs share.
#[derive(Debug)]
pub struct Course {
    access: Access,
    /// The parent of the destination and of the tools' words.
    scratch: PathBuf,
    /// Locked: two series in one directory would clear each other's copies.
    _lock: File,
}

/// One run to make.
#[derive(Clone, Copy, Debug)]
pub struct Heat<'a> {
    /// What runs.
    pub tool: Tool,
    /// Between which hosts.
    pub between: Between<'a>,
    /// What is copied.
    pub data: &'a Data,
    /// Longest time.
    pub limit: Duration,
    /// From 1; also the seed of the link.
    pub round: u32,
    /// Place in the series, from 1.
    pub order: u32,
    /// longhaul only.
    pub trace: Option<&'a Path>,
    /// longhaul only: its progress is shown on this terminal.
    pub progress: bool,
    /// Where the processors' time goes is recorded, in this file, with `.profile.md` and `.profile.tsv` after its name.
    pub profile: Option<&'a Path>,
}

/// A run that was made, before its copy is judged.
struct Made {
    ended: Ended,
    /// At the destination, for a run that was cut off.
    arrived: Amount,
    command: Vec<String>,
    /// Its last words, where they were not shown already.
    words: String,
    verdict: Verdict,
    stolen: Option<f64>,
    said: Option<Said>,
    far: Option<Usage>,
}

/// Copies of more files are not removed between runs.
const FILES_REMOVED_MAX: u64 = 1000;

/// Room on the disk below which they are: two of the largest files, and then some.
const ROOM_BYTES: u64 = 24 << 30;

impl Course {
    /// Makes keys and settings below `scratch`, which is nobody else's until this is dropped.
    pub fn prepare(longhaul: &Path, scratch: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
        let scratch = scratch.canonicalize()?;
        let lock = File::create(scratch.join("lock"))?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).with_context(|| {
            format!("{} is in use by another run; choose another with --scratch", scratch.display())
        })?;
        let access = Access::prepare(&scratch.join("access"), longhaul)?;
        Ok(Self { access, scratch, _lock: lock })
    }

    /// The program under test.
    pub fn longhaul(&self) -> &Path {
        self.access.longhaul()
    }

    /// The directory of all that it makes.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// Where copies go to.
    pub fn destination(&self) -> PathBuf {
        self.scratch.join("near")
    }

    /// Runs a tool. What goes wrong with the tool is in the run; an error is about the machine.
    pub fn run(&self, heat: &Heat<'_>) -> anyhow::Result<Run> {
        self.clear()?;
        let made = self.make(heat)?;
        let (end, remarks) = self.judge(heat, &made)?;
        let whole = heat.data.amount();
        let amount = if end == End::Complete { whole } else { made.arrived };
        let run = Run {
            tool: heat.tool.name().to_owned(),
            encrypted: heat.tool.is_encrypted(),
            round: heat.round,
            order: heat.order,
            command: made.command,
            seconds: made.ended.seconds,
            bytes: amount.bytes,
            files: amount.files,
            end,
            remarks,
            link: made.verdict,
            stolen: made.stolen,
            said: made.said,
            // Rivals start further processes at both ends, which would have to be counted too.
            near: made.ended.usage.filter(|_| heat.tool == Tool::Longhaul),
            far: made.far,
        };
        if whole.files > FILES_REMOVED_MAX && self.has_room()? {
            self.set_aside(heat)?;
        }
        self.clear()?;
        Ok(run)
    }

    /// An empty destination, and nothing that the disk still has to write.
    fn clear(&self) -> anyhow::Result<()> {
        remove(&self.destination())?;
        fs::create_dir(self.destination())?;
        rustix::fs::sync();
        Ok(())
    }

    /// Keeps a copy until the end: ext4 does not give the number of a file that was removed in the last minutes to a new
    /// one, and looks past each of them, so that the next run would pay for the removal of many.
    fn set_aside(&self, heat: &Heat<'_>) -> anyhow::Result<()> {
        fs::create_dir_all(self.aside())?;
        let name = format!("{}-{}-{}", heat.tool.name(), heat.round, heat.order);
        let mut to = self.aside().join(name);
        while to.exists() {
            to.as_mut_os_string().push("+");
        }
        Ok(fs::rename(self.destination(), to)?)
    }

    fn aside(&self) -> PathBuf {
        self.scratch.join("aside")
    }

    fn has_room(&self) -> anyhow::Result<bool> {
        let disk = rustix::fs::statvfs(&self.scratch)?;
        Ok(disk.f_bavail * disk.f_frsize > ROOM_BYTES)
    }

    /// Removes all copies.
    pub fn tidy(&self) -> anyhow::Result<()> {
        remove(&self.destination())?;
        remove(&self.aside())
    }

    fn make(&self, heat: &Heat<'_>) -> anyhow::Result<Made> {
        let network = Network::up(self.access.longhaul(), heat.between, heat.round)?;
        let server = heat.tool.server().start(&network, &self.access, heat.data.parent())?;
        let into = self.destination();
        let job = Job {
            data: heat.data,
            into: &into,
            access: &self.access,
            trace: heat.trace,
            progress: heat.progress,
        };
        let command = heat.tool.command(&job);
        let log = self.scratch.join("access/tool.log");
        let own = heat.tool == Tool::Longhaul;
        let shown = heat.progress && own;
        let summary = self.scratch.join("access/tool.json");
        let words = match (own, shown) {
            (_, true) => Words::Shown,
            (true, false) => Words::Apart { out: &summary, err: &log },
            (false, false) => Words::Kept(&log),
        };
        let recording = heat.profile.map(|_| Recording::begin(self.scratch.join("perf.data"))).transpose()?;
        let processors = Processors::now();
        let mut tool = Limited::start(&mut network.command(Host::Near, &command), words)?;
        let ended = tool.wait(heat.limit)?;
        let stolen = processors.and_then(Processors::stolen);
        let far = own.then(|| usage::of(server.id())).flatten();
        if let (Some(recording), Some(path)) = (recording, heat.profile) {
            let ends = [(server.id(), "far"), (tool.id(), "near")];
            let profile = recording.end(&ends)?;
            profile.keep(path, &ends.map(|(_, end)| profile.table(end)))?;
        }
        let verdict = network.verdict();
        let arrived = if ended.status.is_none() { arrived(&into)? } else { Amount::default() };
        drop(tool);
        drop(server);
        drop(network);
        let words = if shown { String::new() } else { last_words(&log) };
        let said = (own && !shown).then(|| said(&last_words(&summary))).flatten();
        let command = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        Ok(Made { ended, arrived, command, words, verdict, stolen, said, far })
    }

    fn judge(&self, heat: &Heat<'_>, made: &Made) -> anyhow::Result<(End, Vec<String>)> {
        let whole = heat.data.amount();
        let Some(status) = made.ended.status else {
            let projected_seconds = projected_seconds(made.arrived, whole, made.ended.seconds);
            return Ok((End::Cut { projected_seconds }, Vec::new()));
        };
        if !status.success() {
            return Ok((End::Failed { reason: failure(status, &made.words) }, Vec::new()));
        }
        let copy = self.destination().join(heat.data.file_name());
        let comparison = Comparison::of(heat.data.source(), &copy, heat.tool.links())?;
        if !comparison.differences.is_empty() {
            let reason = format!("the copy is not equal: {}", comparison.differences.join("; "));
            return Ok((End::Failed { reason }, Vec::new()));
        }
        let remarks = match heat.tool.links() {
            Links::LeftOut if comparison.links > 0 => {
                vec![format!("leaves out symbolic links ({} here)", comparison.links)]
            }
            Links::Followed if comparison.links > 0 => {
                vec![format!("copies what symbolic links lead to in their place ({} here)", comparison.links)]
            }
            _ => Vec::new(),
        };
        Ok((End::Complete, remarks))
    }
}

/// From the line of JSON that `longhaul cp --json` ends with.
fn said(words: &str) -> Option<Said> {
    serde_json::from_str(words).ok()
}

fn failure(status: ExitStatus, words: &str) -> String {
    if words.is_empty() { status.to_string() } else { format!("{status}: {words}") }
}

/// A run in a few words, for those who wait.
pub fn in_words(run: &Run, whole: Amount) -> String {
    let rate = run.rate_bps(whole.bytes).unwrap_or(0.0) / 1e6;
    let trust = match (run.is_undisturbed(), run.link.trusted) {
        (false, _) => "; disturbed from outside this machine",
        (true, false) => "; the link is not to be trusted",
        (true, true) => "",
    };
    match &run.end {
        End::Complete => format!("{:.1} s, {rate:.0} Mbit/s, equal{trust}", run.seconds),
        End::Cut { projected_seconds: Some(whole) } => {
            format!("cut off after {:.0} s, {whole:.0} s and {rate:.2} Mbit/s projected{trust}", run.seconds)
        }
        End::Cut { projected_seconds: None } => {
            format!("cut off after {:.0} s, nothing had arrived{trust}", run.seconds)
        }
        End::Failed { reason } => format!("FAILED after {:.1} s: {reason}", run.seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_command_says_of_itself() {
        let line = r#"{"files":1,"bytes":9,"seconds":1.5,"bits_per_second":48.0,"repeated_bytes":3,"lanes":4,"control":"QUIC"}"#;
        assert_eq!(said(line), Some(Said { seconds: 1.5, lanes: 4, repeated_bytes: 3 }));
        assert_eq!(said("cannot reach far; try again"), None);
        assert_eq!(said(""), None);
    }
}
