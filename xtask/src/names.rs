//! `bench names`: what programs wait for that look at many names, or make many files, longhaul's mount beside others, over an
//! emulated link; and what a change waits for that another mount is in the way of.
//!
//! In each round each file system has a network, a server and a mount of its own. Shells on the near host run the programs and
//! say how long they took; requests are those that the mount itself has counted (`longhaul stats`).

use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use longhaul_report::Environment;
use longhaul_report::record::{Link, Verdict};
use serde::Serialize;

use crate::file::remove;
use crate::file_system::{FileSystem, quoted};
use crate::limited::{Limited, Words, last_words};
use crate::link::{Between, Host, LinkShape, Network, checked};
use crate::linux_source::LinuxSource;
use crate::places::Places;
use crate::server::Access;
use crate::turn::in_turn;
use crate::{environment, show};

/// Walk through Debian's Linux sources on mounts: find, git status, grep -r; unpack them; and take a lease from another mount
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask bench names
  cargo xtask bench names --system longhaul --case git
  cargo xtask bench names --case conflict --link 1g-200ms

Exit codes: 0 all was measured; 2 the series could not go on.")]
pub(crate) struct NamesBench {
    /// Only this; can be given several times [default: all]
    #[arg(long = "case", value_name = "NAME", value_enum)]
    cases: Vec<Case>,
    /// Only this file system; can be given several times [default: longhaul, sshfs and rclone]
    #[arg(long = "system", value_name = "NAME", value_enum)]
    systems: Vec<FileSystem>,
    /// The link
    #[arg(long, value_name = "NAME", default_value = "1g-100ms")]
    link: LinkShape,
    /// Times that each is done
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Longest time of a program, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    limit: u64,
    #[command(flatten)]
    places: Places,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Case {
    /// `find` through the tree, and again
    Find,
    /// `git status` of the tree, and again
    Git,
    /// `grep -r` through the tree: all files are read
    Grep,
    /// `tar x` of the sources: many small files are made
    Unpack,
    /// A change to a file that another mount keeps, beside one that nobody keeps (longhaul alone)
    Conflict,
}

impl Case {
    /// Each program: its name, what a shell runs in the mounted directory, and what it runs before, unmeasured.
    fn steps(self) -> &'static [(&'static str, &'static str, &'static str)] {
        match self {
            Self::Find => &[("find", "find tree", ""), ("find again", "find tree", "")],
            Self::Git => &[
                ("git status", "git -C tree status --short", ""),
                ("git status again", "git -C tree status --short", ""),
                (
                    "git status again, GIT_OPTIONAL_LOCKS=0",
                    "GIT_OPTIONAL_LOCKS=0 git -C tree status --short",
                    "",
                ),
            ],
            // A line for each file, as soon as it has been read.
            Self::Grep => {
                &[("grep -r", "grep -rc --line-buffered --exclude-dir=.git EXPORT_SYMBOL tree", "")]
            }
            // As for a user: root's tar would give each file its owner, too. A line for each file that is begun.
            Self::Unpack => &[(
                "tar x --no-same-owner",
                "tar xvf ../sources.tar --no-same-owner --directory=unpacked",
                "mkdir unpacked",
            )],
            Self::Conflict => &[
                ("chmod of a file that nobody else keeps", "chmod 604 kept", "sleep 2"),
                ("chmod of a file that another mount keeps", "chmod 600 kept", "cat ../other/kept; sleep 2"),
                ("the same again", "chmod 604 kept", "cat ../other/kept; sleep 2"),
                (
                    "append of 100 bytes to it, and close",
                    "head -c 100 /dev/zero >>kept",
                    "cat ../other/kept; sleep 2",
                ),
            ],
        }
    }
}

#[derive(Debug, Serialize)]
struct Record<'a> {
    schema: &'static str,
    environment: &'a Environment,
    link: Link,
    limit_seconds: u64,
    runs: Vec<Run>,
    verdicts: Vec<Verdict>,
}

/// One program's.
#[derive(Debug, Serialize)]
struct Run {
    system: &'static str,
    step: &'static str,
    round: u32,
    seconds: f64,
    /// It was not at its end when the time was over.
    cut_off: bool,
    /// Lines that it had said by then: names that were found, differ, or were made.
    lines: u64,
    /// That its mount asked the server for and waited for; longhaul alone.
    requests: Option<u64>,
}

struct Series {
    access: Access,
    scratch: PathBuf,
    cases: Vec<Case>,
    limit: u64,
}

impl NamesBench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let longhaul = self.places.longhaul()?;
        const USUAL: [FileSystem; 3] = [FileSystem::Longhaul, FileSystem::Sshfs, FileSystem::Rclone];
        let systems = if self.systems.is_empty() { &USUAL[..] } else { &self.systems };
        let cases = if self.cases.is_empty() { Case::value_variants() } else { &self.cases };
        let packages = FileSystem::check(systems)?;
        let environment = environment::environment(&longhaul, &packages);
        let out = self.places.out("names", &environment)?;
        let scratch = self.places.scratch().join("names");
        fs::create_dir_all(&scratch)?;
        let scratch = scratch.canonicalize()?;
        let access = Access::prepare(&scratch.join("access"), &longhaul)?;
        let series = Series { access, scratch, cases: cases.to_vec(), limit: self.limit };
        series.make_tree()?;
        series.make_archive()?;
        let mut record = Record {
            schema: "longhaul-names/1",
            environment: &environment,
            link: self.link.record(),
            limit_seconds: self.limit,
            runs: Vec::new(),
            verdicts: Vec::new(),
        };
        for round in 1..=self.rounds {
            for system in in_turn(systems, round) {
                let network = Network::up(series.access.longhaul(), Between::Link(&self.link), round)?;
                record.runs.extend(series.once(&network, system, round)?);
                record.verdicts.push(network.verdict());
                show::record(&out.join("results.json"), &serde_json::to_string_pretty(&record)?)?;
                show::write(&out.join("results.md"), &markdown(&record)?)?;
            }
        }
        show::print_out(&markdown(&record)?)?;
        eprintln!("results are in {}", out.display());
        Ok(ExitCode::SUCCESS)
    }
}

impl Series {
    fn served(&self) -> PathBuf {
        self.scratch.join("far")
    }

    /// The sources under git, and a small file; made once.
    fn make_tree(&self) -> anyhow::Result<()> {
        let served = self.served();
        fs::create_dir_all(&served)?;
        fs::write(served.join("kept"), "a few words\n")?;
        let tree = served.join("tree");
        let needs_it = |case: &Case| !matches!(case, Case::Unpack | Case::Conflict);
        if !self.cases.iter().any(needs_it) || tree.exists() {
            return Ok(());
        }
        let source = sources()?;
        let part = served.join("part");
        remove(&part)?;
        eprintln!("copying the sources, and putting them under git ...");
        checked(Command::new("cp").args(["-a", "--reflink=auto"]).arg(&source.tree).arg(&part))?;
        let git = |words: &[&str]| {
            let who = ["-c", "user.name=bench", "-c", "user.email=bench@example.org", "-c", "gc.auto=0"];
            checked(Command::new("git").arg("-C").arg(&part).args(who).args(words)).map(drop)
        };
        git(&["init", "-q"])?;
        // Inode numbers and times of change are others on a mount: with these in its index git would read all files anew.
        git(&["config", "core.checkStat", "minimal"])?;
        git(&["config", "core.trustctime", "false"])?;
        git(&["add", "--all", "--force", "."])?;
        git(&["commit", "-q", "-m", "Debian's sources"])?;
        fs::rename(&part, &tree).context("cannot put the tree in its place")
    }

    /// The sources as one file beside the mounts, in an order that is the same each time; made once.
    fn make_archive(&self) -> anyhow::Result<()> {
        let archive = self.scratch.join("sources.tar");
        if !self.cases.contains(&Case::Unpack) || archive.exists() {
            return Ok(());
        }
        let part = self.scratch.join("sources.part");
        let mut tar = Command::new("tar");
        tar.args(["--sort=name", "-cf"]).arg(&part).arg("-C").arg(sources()?.tree).arg(".");
        checked(&mut tar)?;
        fs::rename(&part, &archive).context("cannot put the archive in its place")
    }

    fn once(&self, network: &Network, system: FileSystem, round: u32) -> anyhow::Result<Vec<Run>> {
        let served = self.served();
        let [at, other] = ["near", "other"].map(|name| self.scratch.join(name));
        for directory in [&at, &other] {
            remove(directory)?;
            fs::create_dir_all(directory)?;
        }
        let start = |server: crate::server::Server| server.start(network, &self.access, &served);
        let _server = system.server().map(start).transpose()?;
        let is_ours = system == FileSystem::Longhaul;
        let mut runs = Vec::new();
        for case in self.cases.iter().filter(|case| is_ours || **case != Case::Conflict) {
            remove(&served.join("unpacked"))?;
            let mount = system.script(&self.access, &served, &at)?;
            let code = quoted(&self.scratch.join("code").display().to_string());
            let mut script = format!("CODE={code}\n{mount} || exit 3\n");
            let mut directories = vec![&at];
            if *case == Case::Conflict {
                writeln!(script, "{} || exit 3", system.script(&self.access, &served, &other)?)?;
                directories.push(&other);
            }
            for (number, (_, program, before)) in case.steps().iter().enumerate() {
                let stats = is_ours.then(|| {
                    let longhaul = quoted(&self.access.longhaul().display().to_string());
                    format!("{longhaul} stats --json {}", quoted(&at.display().to_string()))
                });
                script += &step(number, program, before, &at, self.limit, stats.as_deref());
            }
            for directory in directories {
                writeln!(script, "umount -l {}", quoted(&directory.display().to_string()))?;
            }
            let (said, log) = (self.scratch.join("said"), self.scratch.join("log"));
            let words: Vec<OsString> = ["sh", "-c", &script].map(OsString::from).to_vec();
            let words_to = Words::Apart { out: &said, err: &log };
            let mut running = Limited::start(&mut network.command(Host::Near, &words), words_to)?;
            let ended = running.wait(Duration::from_secs((self.limit + 60) * case.steps().len() as u64))?;
            if !ended.status.is_some_and(|status| status.success()) {
                bail!("{}, {case:?}: {}", system.name(), last_words(&log));
            }
            let said = fs::read_to_string(&said)?;
            let answers = answers(&said).with_context(|| last_words(&log))?;
            for ((name, ..), answer) in case.steps().iter().zip(answers) {
                let Answer { seconds, code, lines, requests } = answer;
                eprintln!("round {round}  {:<14}  {name:<40}  {seconds:.3} s", system.name());
                if code != 0 && code != CUT_OFF {
                    bail!("{}, {name}: exit code {code}: {}", system.name(), last_words(&log));
                }
                let cut_off = code == CUT_OFF;
                runs.push(Run {
                    system: system.name(),
                    step: name,
                    round,
                    seconds,
                    cut_off,
                    lines,
                    requests,
                });
            }
        }
        Ok(runs)
    }
}

fn sources() -> anyhow::Result<LinuxSource> {
    LinuxSource::in_cache(&crate::target_directory().join("demo"))
}

/// What timeout(1) says.
const CUT_OFF: i32 = 124;

/// Runs a program, and says: seconds, exit code, lines, and what its mount has counted before and after.
fn step(number: usize, program: &str, before: &str, at: &Path, limit: u64, stats: Option<&str>) -> String {
    let stats = stats.map_or_else(|| "echo".to_owned(), |stats| format!("{stats} | tr -d '\\n'; echo"));
    let (at, program) = (quoted(&at.display().to_string()), quoted(program));
    let before = if before.is_empty() { ":" } else { before };
    // A pipe's exit code is that of its last program.
    let code = "\"$CODE\"";
    format!(
        "cd {at}\n{{ {before}; }} >/dev/null\necho step {number}\n{stats}\nbegin=$(date +%s%N)\n\
         {{ lines=$({{ timeout -k 5 {limit} sh -c {program}; echo $? >&3; }} | wc -l); }} 3>{code}\n\
         end=$(date +%s%N)\necho $((end - begin)) $lines $(cat {code})\n{stats}\ncd /\n"
    )
}

#[derive(Debug, PartialEq)]
struct Answer {
    seconds: f64,
    code: i32,
    lines: u64,
    requests: Option<u64>,
}

fn answers(said: &str) -> anyhow::Result<Vec<Answer>> {
    said.split("step ").skip(1).map(answer).collect()
}

fn answer(said: &str) -> anyhow::Result<Answer> {
    let lines: Vec<&str> = said.lines().skip(1).collect();
    let &[before, measured, after, ..] = &lines[..] else { bail!("a program was not measured: {said}") };
    let mut words = measured.split_whitespace();
    let mut number = || -> anyhow::Result<i64> { Ok(words.next().context("too few words")?.parse()?) };
    let (nanos, lines, code) = (number()?, number()?, number()?);
    let requests = match before.is_empty() {
        true => None,
        false => Some(waited_for(after)?.saturating_sub(waited_for(before)?)),
    };
    Ok(Answer { seconds: nanos as f64 / 1e9, code: code as i32, lines: lines as u64, requests })
}

/// Requests that somebody waited for, of all that a mount counts.
fn waited_for(stats: &str) -> anyhow::Result<u64> {
    let stats: serde_json::Value = serde_json::from_str(stats)?;
    let operations = stats["operations"].as_array().context("no operations")?.iter();
    let counted = operations
        .filter(|operation| !matches!(operation["name"].as_str(), Some("Renew" | "Forget" | "Close")));
    Ok(counted.filter_map(|operation| operation["count"].as_u64()).sum())
}

fn markdown(record: &Record<'_>) -> anyhow::Result<String> {
    let Record { environment, link, runs, .. } = record;
    let mut text = String::from("# Names on mounts\n\n");
    writeln!(text, "- {}; {}", environment.date, environment.command.join(" "))?;
    writeln!(text, "- link: `{}`", link.command.join(" "))?;
    writeln!(
        text,
        "- `~`: cut off at {} s, with so many lines said by then; requests that the mount waited for, where it counts them\n",
        record.limit_seconds
    )?;
    let mut systems: Vec<&str> = Vec::new();
    let mut steps: Vec<&str> = Vec::new();
    for run in runs {
        if !systems.contains(&run.system) {
            systems.push(run.system);
        }
        if !steps.contains(&run.step) {
            steps.push(run.step);
        }
    }
    writeln!(text, "| seconds | {} |", systems.join(" | "))?;
    writeln!(text, "| --- |{}", " --- |".repeat(systems.len()))?;
    let rtt = link.rtt_us as f64 / 1e6;
    for step in steps {
        write!(text, "| {step} |")?;
        for system in &systems {
            let of_both = runs.iter().filter(|run| run.step == step && run.system == *system);
            let each: Vec<String> = of_both
                .map(|run| {
                    let asked = run.requests.map(|requests| format!(", {requests} requests"));
                    let asked = asked.unwrap_or_default();
                    match run.cut_off {
                        true => format!("~{:.0} ({} lines{asked})", run.seconds, run.lines),
                        false => format!("{:.2} ({:.2} RTT{asked})", run.seconds, run.seconds / rtt),
                    }
                })
                .collect();
            write!(text, " {} |", each.join("; "))?;
        }
        writeln!(text)?;
    }
    let doubted = record.verdicts.iter().filter(|verdict| !verdict.trusted).count();
    writeln!(text, "\n- the emulator doubts {doubted} of {} networks that were up", record.verdicts.len())?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_shell_says_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let script = step(0, "echo one; echo two; exit 3", "", dir.path(), 9, None);
        let code = dir.path().join("code");
        let said = Command::new("sh").args(["-c", &script]).env("CODE", code).output().unwrap();
        let said = answers(&String::from_utf8(said.stdout).unwrap()).unwrap();
        let [Answer { seconds, code: 3, lines: 2, requests: None }] = said[..] else { panic!("{said:?}") };
        assert!(seconds < 5.0);
    }

    #[test]
    fn requests_are_those_of_the_step_alone() {
        let stats = |read| {
            format!(
                r#"{{"operations": [{{"name": "Read", "count": {read}}}, {{"name": "Renew", "count": 9}}]}}"#
            )
        };
        let said = format!("step 0\n{}\n1500000000 7 124\n{}\n", stats(3), stats(5));
        let expected = Answer { seconds: 1.5, code: CUT_OFF, lines: 7, requests: Some(2) };
        assert_eq!(answers(&said).unwrap(), [expected]);
        assert!(answers("step 0\n").is_err());
    }
}
