//! `suites`: what others have written to try file systems, and programs that ask much of one, on longhaul's mount over an emulated
//! link.
//!
//! Each has a network, a server and a mount of its own; a shell on the near host runs it in the mounted directory. pjdfstest and fsx
//! are the crates of these names.

use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::{Args, ValueEnum};
use longhaul_report::Environment;
use longhaul_report::record::{Link, Verdict};
use serde::Serialize;

use crate::file::remove;
use crate::file_system::{FileSystem, quoted};
use crate::limited::{Limited, Words, last_words};
use crate::link::{Between, Host, LinkShape, Network};
use crate::places::Places;
use crate::server::{Access, program};
use crate::{environment, show, workspace};

/// Try longhaul's mount with pjdfstest, fsx, fio, sqlite and git
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask suites
  cargo xtask suites --suite pjdfstest --link 1g-100ms
  cargo xtask suites --suite fsx --operations 10000

Exit codes: 0 all passed; 1 something failed; 2 they could not be run.")]
pub(crate) struct Suites {
    /// Only this; can be given several times [default: all]
    #[arg(long = "suite", value_name = "NAME", value_enum)]
    suites: Vec<Suite>,
    /// The link
    #[arg(long, value_name = "NAME", default_value = "1g-3.3ms")]
    link: LinkShape,
    /// Operations of fsx, with each seed
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    operations: u32,
    /// A seed of fsx's; can be given several times
    #[arg(long = "seed", value_name = "N", default_values_t = [1, 2])]
    seeds: Vec<u32>,
    #[command(flatten)]
    places: Places,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Suite {
    /// POSIX system calls, one by one
    Pjdfstest,
    /// Reads, writes, truncations and mapped memory of one file at random, with each seed
    Fsx,
    /// Writes that are verified, at random places and in order
    Fio,
    /// Two programs that write to one database at a time, with a write-ahead log and with a rollback journal
    Sqlite,
    /// A clone of this repository onto the mount, and `git fsck`
    Git,
}

/// One run: what it is called, what a shell runs on the mount, and then, when that has been taken out, where it was served.
struct Step {
    name: String,
    script: String,
    at_server: String,
    limit: Duration,
}

impl Suite {
    /// Programs, and where they come from.
    fn needs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Pjdfstest => &[("pjdfstest", "cargo install pjdfstest")],
            Self::Fsx => &[("fsx", "cargo install fsx")],
            Self::Fio => &[("fio", "apt-get install fio")],
            Self::Sqlite => &[("sqlite3", "apt-get install sqlite3")],
            Self::Git => &[("git", "apt-get install git")],
        }
    }

    /// The shells know `BESIDE`, a directory that is not on the mount, and `SOURCES`, this repository.
    fn steps(self, operations: u32, seeds: &[u32]) -> Vec<Step> {
        let step = |name: &str, minutes: u64, script: String, at_server: String| Step {
            name: name.to_owned(),
            script,
            at_server,
            limit: Duration::from_secs(60 * minutes),
        };
        let nothing = String::new;
        match self {
            Self::Pjdfstest => {
                let script = r#"mkdir p; pjdfstest -c "$BESIDE/pjdfstest.toml" -p p -s "$BESIDE""#;
                vec![step("pjdfstest", 30, script.to_owned(), nothing())]
            }
            Self::Fsx => seeds
                .iter()
                .map(|seed| {
                    let script = format!("fsx -N {operations} -S {seed} -P \"$BESIDE\" fsx-{seed}");
                    step(&format!("fsx, seed {seed}"), 60, script, nothing())
                })
                .collect(),
            Self::Fio => {
                let fio =
                    "fio --ioengine=psync --verify=crc32c --verify_fatal=1 --do_verify=1 --group_reporting";
                let random = "--name=random --rw=randwrite --bs=4k --size=64m";
                let sequential = "--name=sequential --rw=write --bs=1m --size=512m";
                let step = |name, job: &str| {
                    step(name, 10, format!("{fio} {job}"), format!("{fio} {job} --verify_only"))
                };
                vec![step("fio --verify, random", random), step("fio --verify, sequential", sequential)]
            }
            Self::Sqlite => ["wal", "delete"]
                .map(|mode| {
                    let (script, at_server) = sqlite(mode);
                    step(&format!("sqlite, journal_mode={mode}"), 10, script, at_server)
                })
                .into(),
            Self::Git => {
                let check =
                    "git -C clone fsck --full --strict && test -z \"$(git -C clone status --porcelain)\"";
                let script = format!("git clone -q --no-hardlinks \"$SOURCES\" clone && {check}");
                // Without the index git reads all files anew.
                let at_server = format!("rm clone/.git/index && git -C clone reset -q && {check}");
                vec![step("git clone, git fsck", 10, script, at_server)]
            }
        }
    }
}

/// Two writers at a time, and what has become of it: on the mount, and at the server.
fn sqlite(mode: &str) -> (String, String) {
    let each = 100;
    let sql = format!("sqlite3 -bail -cmd '.timeout 60000' {mode}.db");
    let insert = "BEGIN IMMEDIATE; INSERT INTO t(b) VALUES (hex(randomblob(2000))); COMMIT;";
    let check = format!(
        "said=$({sql} 'SELECT count(*) FROM t; PRAGMA integrity_check;') && \
         test \"$said\" = \"$(printf '{}\\nok')\"",
        2 * each
    );
    // A mode that the file system does not do is none that sqlite takes.
    let make = format!(
        "test \"$({sql} 'PRAGMA journal_mode={mode};')\" = {mode} && {sql} 'CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);'"
    );
    let write = format!("write() {{ for i in $(seq {each}); do echo '{insert}'; done | {sql}; }}");
    let script = format!("{make} && {write} && {{ write & one=$!; write && wait $one; }} && {check}");
    (script, check)
}

#[derive(Debug, Serialize)]
struct Record<'a> {
    schema: &'static str,
    environment: &'a Environment,
    link: Link,
    runs: Vec<Run>,
    verdicts: Vec<Verdict>,
}

#[derive(Debug, Serialize)]
struct Run {
    suite: Suite,
    name: String,
    script: String,
    at_server: String,
    seconds: f64,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Debug, Default, PartialEq, Serialize)]
struct Outcome {
    passed: u64,
    /// Names, each with what was said of it.
    failed: Vec<(String, String)>,
    skipped: Vec<(String, String)>,
}

impl Suites {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let longhaul = self.places.longhaul()?;
        FileSystem::check(&[FileSystem::Longhaul])?;
        let suites = if self.suites.is_empty() { Suite::value_variants() } else { &self.suites };
        for (name, how) in suites.iter().flat_map(|suite| suite.needs()) {
            if program(name).is_none() {
                bail!("{name} is not there; try `{how}`, or choose others with --suite");
            }
        }
        let environment = environment::environment(&longhaul, &[]);
        let out = self.places.out("suites", &environment)?;
        let scratch = self.places.scratch().join("suites");
        fs::create_dir_all(&scratch)?;
        let scratch = scratch.canonicalize()?;
        let access = Access::prepare(&scratch.join("access"), &longhaul)?;
        let mut record = Record {
            schema: "longhaul-suites/1",
            environment: &environment,
            link: self.link.record(),
            runs: Vec::new(),
            verdicts: Vec::new(),
        };
        for (number, &suite) in suites.iter().enumerate() {
            for step in suite.steps(self.operations, &self.seeds) {
                let network = Network::up(access.longhaul(), Between::Link(&self.link), number as u32 + 1)?;
                record.runs.push(once(&network, &access, &scratch, suite, step)?);
                record.verdicts.push(network.verdict());
                show::record(&out.join("results.json"), &serde_json::to_string_pretty(&record)?)?;
                show::write(&out.join("results.md"), &markdown(&record)?)?;
            }
        }
        show::print_out(&markdown(&record)?)?;
        eprintln!("results are in {}", out.display());
        let all_well = record.runs.iter().all(|run| run.outcome.failed.is_empty());
        Ok(if all_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Of pjdfstest: `[features]` are those that Linux has, `[settings]` how long it waits for a clock to go on (of ext4's, 4 ms).
const PJDFSTEST: &str = "[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.02

[dummy_auth]
entries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]
";

fn once(network: &Network, access: &Access, scratch: &Path, suite: Suite, step: Step) -> anyhow::Result<Run> {
    let [served, at, beside] = ["far", "near", "beside"].map(|name| scratch.join(name));
    for directory in [&served, &at, &beside] {
        remove(directory)?;
        fs::create_dir_all(directory)?;
    }
    fs::write(beside.join("pjdfstest.toml"), PJDFSTEST)?;
    let longhaul = FileSystem::Longhaul;
    let start = |server: crate::server::Server| server.start(network, access, &served);
    let _server = longhaul.server().map(start).transpose()?;
    let Step { name, script, at_server, limit } = step;
    // Other users' programs, set-user-id and device files are what some of them try.
    let mut mount = longhaul.command(access, &served, &at);
    mount.extend(["-o", "allow_other,suid,dev"].map(str::to_owned));
    let mount: Vec<String> = mount.iter().map(|word| quoted(word)).collect();
    let [said, took, mount_log] = ["said", "took", "mount.log"].map(|name| scratch.join(name));
    remove(&took)?;
    let shown = |path: &Path| quoted(&path.display().to_string());
    let (directory, far, log_of_mount) = (shown(&at), shown(&served), shown(&mount_log));
    let words = format!(
        "export BESIDE={} SOURCES={}\n{} >{log_of_mount} 2>&1 </dev/null || {{ cat {log_of_mount} >&2; exit 3; }}\n\
         begin=$(date +%s%N)\ncd {directory} && sh -c {}\ncode=$?\necho $(($(date +%s%N) - begin)) >{}\ncd / && umount {directory} || exit 4\n\
         test $code = 0 || exit $code\ncd {far} && sh -c {} || {{ echo 'not so at the server' >&2; exit 5; }}",
        shown(&beside),
        shown(&workspace()),
        mount.join(" "),
        quoted(&script),
        shown(&took),
        quoted(if at_server.is_empty() { ":" } else { &at_server }),
    );
    let words: Vec<OsString> = ["sh", "-c", &words].map(OsString::from).to_vec();
    let begun = Instant::now();
    let log = scratch.join("log");
    let words_to = Words::Apart { out: &said, err: &log };
    let mut running = Limited::start(&mut network.command(Host::Near, &words), words_to)?;
    let ended = running.wait(limit)?;
    // Without mounting, if it came so far.
    let nanos = fs::read_to_string(&took).ok().and_then(|nanos| nanos.trim().parse::<f64>().ok());
    let seconds = nanos.map_or_else(|| begun.elapsed().as_secs_f64(), |nanos| nanos / 1e9);
    let text = String::from_utf8_lossy(&fs::read(&said)?).into_owned();
    let fine = ended.status.is_some_and(|status| status.success());
    let complaint = match ended.status {
        None => format!("not at its end after {} s", limit.as_secs()),
        Some(_) => last_words(&log),
    };
    let outcome = outcome(suite, &text, fine, &complaint);
    eprintln!("{name:<32}  {seconds:>7.1} s  {}", in_words(&outcome));
    Ok(Run { suite, name, script, at_server, seconds, outcome })
}

/// What has come of a run that has said this; `fine`: by its exit code.
fn outcome(suite: Suite, said: &str, fine: bool, complaint: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let mut is_all = fine;
    if suite == Suite::Pjdfstest {
        let lines: Vec<&str> = said.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let mut words = line.split_whitespace();
            let (Some(name), Some(result), None) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            let why = || (name.to_owned(), lines.get(number + 1).map_or("", |line| line.trim()).to_owned());
            match result {
                "ok" => outcome.passed += 1,
                "skipped" => outcome.skipped.push(why()),
                "FAILED" => outcome.failed.push(why()),
                _ => {}
            }
        }
        let told = outcome.passed + (outcome.failed.len() + outcome.skipped.len()) as u64;
        is_all = told > 0 && said.contains(&format!(" 0 expected failures, {told} total"));
    } else if fine {
        outcome.passed = 1;
    }
    if !is_all || outcome.failed.is_empty() && !fine {
        outcome.failed.push(("not to its end".to_owned(), complaint.to_owned()));
    }
    outcome
}

fn in_words(Outcome { passed, failed, skipped }: &Outcome) -> String {
    format!("{passed} passed, {} failed, {} skipped", failed.len(), skipped.len())
}

fn markdown(record: &Record<'_>) -> anyhow::Result<String> {
    let Record { environment, link, runs, verdicts, .. } = record;
    let mut text = String::from("# Suites on a mount\n\n");
    writeln!(text, "- {}; {}", environment.date, environment.command.join(" "))?;
    writeln!(text, "- link: `{}`\n", link.command.join(" "))?;
    writeln!(text, "| | seconds | passed | failed | skipped |\n| --- | --- | --- | --- | --- |")?;
    for Run { name, seconds, outcome: Outcome { passed, failed, skipped }, .. } in runs {
        writeln!(text, "| {name} | {seconds:.0} | {passed} | {} | {} |", failed.len(), skipped.len())?;
    }
    for (what, of) in [
        ("failed", (|outcome: &Outcome| &outcome.failed) as fn(&Outcome) -> &Vec<(String, String)>),
        ("skipped", |outcome: &Outcome| &outcome.skipped),
    ] {
        for run in runs {
            for (name, why) in of(&run.outcome) {
                write!(text, "\n- {what}: {}, {name}: {why}", run.name)?;
            }
        }
    }
    let doubted = verdicts.iter().filter(|verdict| !verdict.trusted).count();
    writeln!(text, "\n- the emulator doubts {doubted} of {} networks that were up", verdicts.len())?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pjdfstest_says_is_counted() {
        let said = "chmod::a      ok\nopen::b        skipped\n\tnot allowed\nmkdir::c    FAILED\n\tno times\n\
                    Summary: 1 failed, 1 skipped, 1 passed, 0 expected failures, 3 total\n";
        let told = outcome(Suite::Pjdfstest, said, false, "some have failed");
        let named = |name: &str, why: &str| vec![(name.to_owned(), why.to_owned())];
        let failed = named("mkdir::c", "no times");
        assert_eq!(told, Outcome { passed: 1, failed, skipped: named("open::b", "not allowed") });
    }

    #[test]
    fn what_is_not_at_its_end_has_failed_whatever_else_has() {
        for said in ["a::b FAILED\n\tno times\n", "a::b ok\n"] {
            let told = outcome(Suite::Pjdfstest, said, false, "killed");
            assert_eq!(told.failed.last().unwrap().1, "killed");
        }
        // All is told of, and something after it has gone wrong.
        let said = "a::b ok\nSummary: 0 failed, 0 skipped, 1 passed, 0 expected failures, 1 total\n";
        assert!(outcome(Suite::Pjdfstest, said, true, "").failed.is_empty());
        assert_eq!(outcome(Suite::Pjdfstest, said, false, "no umount").failed.len(), 1);
    }

    #[test]
    fn what_says_nothing_has_failed() {
        for (suite, fine) in [(Suite::Pjdfstest, true), (Suite::Pjdfstest, false), (Suite::Fsx, false)] {
            let told = outcome(suite, "", fine, "killed");
            assert_eq!((told.passed, told.failed.len()), (0, 1), "{suite:?}");
        }
        assert_eq!(outcome(Suite::Git, "", true, ""), Outcome { passed: 1, ..Outcome::default() });
    }
}
