//! `bench path-grid`: what `longhaul probe` says of links that are known.
//!
//! Each case has a network of its own, a server on `far`, and one quick measurement from `near`. The record is written after every
//! case, and a later piece with the same `--out` goes on with it. A case whose network the emulator doubts is measured again; that has
//! nothing to do with what was measured, and what is set aside for it stays in the record.
//!
//! Map: [`cases`] says what is measured and what is right, [`compare`] judges figures, [`record`] keeps and shows them, [`slow_disk`] makes
//! a disk the limit.

mod cases;
mod compare;
mod record;
mod slow_disk;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};
use clap::Args;
use longhaul_report::path::Path as Measured;

use self::cases::{Case, Link, cases};
use self::record::{Counts, Grid, Run};
use self::slow_disk::SlowDisk;
use crate::file::remove;
use crate::limited::{Limited, Words, check_interrupt, last_words};
use crate::link::{Between, Host, Network, checked};
use crate::places::Places;
use crate::server::{Access, Server};
use crate::{environment, show};

/// Measure known links with `longhaul probe HOST --quick`, and compare: RTT, capacity, loss, verdicts (root)
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask bench path-grid --case 100m-
  cargo xtask bench path-grid --case window --case loss-reno --out benches/results/path-grid-2026-01-31

Exit codes: 0 all figures are within their bounds and all verdicts right; 1 some are not; 2 the series could not go on.")]
pub(crate) struct GridBench {
    /// Only cases whose name contains this; can be given several times [default: all]
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Times that a case is measured until the emulator does not doubt its network; what comes out does not matter for that
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    tries: u32,
    #[command(flatten)]
    places: Places,
}

/// A measurement of the longest path takes half of it.
const LIMIT: Duration = Duration::from_secs(150);

/// Both a starving server and the loop that it shares with.
const STARVED_CORE: &str = "0";

impl GridBench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let longhaul = self.places.longhaul()?;
        let wanted: Vec<Case> = cases()
            .into_iter()
            .filter(|case| self.cases.is_empty() || self.cases.iter().any(|part| case.name.contains(part)))
            .collect();
        if wanted.is_empty() {
            let names: Vec<String> = cases().into_iter().map(|case| case.name).collect();
            bail!("no case has such a name; there are: {}", names.join(" "));
        }
        let environment = environment::environment(&longhaul, &[]);
        let out = self.places.out("path-grid", &environment)?;
        let file = out.join("results.json");
        let mut grid = if file.exists() {
            Grid::resumed(&show::read(&file)?, environment)
                .with_context(|| format!("cannot go on with {}; choose another --out", file.display()))?
        } else {
            Grid::new(environment)
        };
        let scratch = self.places.scratch().join(format!("path-grid-{}", std::process::id()));
        std::fs::create_dir_all(&scratch)?;
        let stage = Stage { scratch: scratch.canonicalize()?, longhaul };
        let measured = stage.all(&wanted, self.tries, &mut grid, &out);
        remove(&scratch)?;
        measured?;
        show::print_out(&grid.markdown())?;
        eprintln!("results are in {}", out.display());
        Ok(if grid.holds() { ExitCode::SUCCESS } else { ExitCode::from(1) })
    }
}

/// What all cases share.
struct Stage {
    longhaul: PathBuf,
    scratch: PathBuf,
}

impl Stage {
    fn all(&self, wanted: &[Case], tries: u32, grid: &mut Grid, out: &Path) -> anyhow::Result<()> {
        let access = Access::prepare(&self.scratch.join("access"), &self.longhaul)?;
        for case in wanted {
            for attempt in 1..=tries {
                eprint!("{:<24}  ", case.name);
                let run = self.case(case, &access)?;
                eprintln!("{} ({:.0} s)", run.in_words(), run.seconds);
                let is_last = run.emulator.trusted || attempt == tries;
                grid.push(run);
                show::record(&out.join("results.json"), &grid.to_json()?)?;
                show::write(&out.join("results.md"), &grid.markdown())?;
                if is_last {
                    break;
                }
            }
        }
        Ok(())
    }

    /// What goes wrong in a measurement is in the run; an error is about the machine.
    fn case(&self, case: &Case, access: &Access) -> anyhow::Result<Run> {
        check_interrupt()?;
        // Each measurement meets a server that it does not know.
        remove(&access.longhaul_known_hosts())?;
        let network = match case.link {
            Link::Emulated { .. } => Network::emulated(&self.longhaul, &case.link.options())?,
            Link::Pair => Network::up(&self.longhaul, Between::Pair { scratch: &self.scratch }, 1)?,
        };
        for setting in case.settings {
            for host in [Host::Near, Host::Far] {
                let words: Vec<OsString> = ["sysctl", "-qw", setting].map(OsString::from).to_vec();
                checked(&mut network.command_with_rights(host, &words))?;
            }
        }
        let command = self.command(case, access);
        let began = Instant::now();
        let measured = self.measure(&network, case, access, &command);
        check_interrupt()?;
        let shown = network.shown()?;
        let counts = shown.iter().flat_map(|shown| [&shown.forward, &shown.backward]).map(|way| Counts {
            segments: way.counters.segments,
            lost: way.counters.lost,
            dropped_queue: way.counters.dropped_queue,
        });
        let hidden = |word: &str| {
            word.replace(&*self.scratch.to_string_lossy(), "SCRATCH")
                .replace(&*self.longhaul.to_string_lossy(), "longhaul")
        };
        let mut run = Run {
            case: case.name.clone(),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            link: link_words(case.link),
            settings: case.settings.iter().map(|setting| (*setting).to_owned()).collect(),
            command: command.iter().map(|word| hidden(word)).collect(),
            seconds: began.elapsed().as_secs_f64(),
            figures: Vec::new(),
            verdicts: Vec::new(),
            failure: None,
            counts: counts.collect(),
            emulator: network.verdict(),
            path: serde_json::Value::Null,
        };
        match measured {
            Ok(path) => {
                run.compare(case, &path);
                run.path = serde_json::from_str(&hidden(&path.to_json()?))?;
                if let Some(fields) = run.path.as_object_mut() {
                    fields.remove("environment");
                }
            }
            Err(error) => run.failure = Some(hidden(&format!("{error:#}"))),
        }
        Ok(run)
    }

    fn command(&self, case: &Case, access: &Access) -> Vec<String> {
        let directory = if case.slow_disk == Some(Host::Far) { ":/data" } else { "" };
        let far = format!("far:{}{directory}", server(case).port());
        let disk = (case.slow_disk == Some(Host::Near)).then(|| self.disk_here().display().to_string());
        [&self.longhaul.to_string_lossy(), "probe", &far, "--quick", "--json"]
            .map(str::to_owned)
            .into_iter()
            .chain(["--identity".to_owned(), access.client_key().display().to_string()])
            .chain(["--known-hosts".to_owned(), access.longhaul_known_hosts().display().to_string()])
            .chain(disk.into_iter().flat_map(|disk| ["--disk".to_owned(), disk]))
            .chain(case.words.iter().map(|word| (*word).to_owned()))
            .collect()
    }

    fn disk_here(&self) -> PathBuf {
        self.scratch.join("disk-here")
    }

    fn measure(
        &self,
        network: &Network,
        case: &Case,
        access: &Access,
        command: &[String],
    ) -> anyhow::Result<Measured> {
        let served = self.scratch.join("served");
        for directory in [&served, &self.disk_here()] {
            std::fs::create_dir_all(directory)?;
        }
        let slow_disk = case.slow_disk.map(|host| SlowDisk::of(&self.scratch).map(|slow| (host, slow)));
        let slow_disk = slow_disk.transpose()?;
        let hold_back = |host, process| match &slow_disk {
            Some((slow, disk)) if *slow == host => disk.hold_back(process),
            _ => Ok(()),
        };
        let server = server(case).start(network, access, &served)?;
        hold_back(Host::Far, server.id())?;
        let _busy = case.server_starves.then(|| starve(server.id())).transpose()?;
        let [out, err] = ["probe-out", "probe-err"].map(|name| self.scratch.join(name));
        let words: Vec<OsString> = command.iter().map(Into::into).collect();
        let words_to = Words::Apart { out: &out, err: &err };
        let mut measurement = Limited::start(&mut network.command(Host::Near, &words), words_to)?;
        // Disks are measured last.
        hold_back(Host::Near, measurement.id())?;
        let ended = measurement.wait(LIMIT)?;
        if ended.status.is_none() {
            bail!("no end after {LIMIT:?}; {}", last_words(&err));
        }
        Measured::from_json(&show::read(&out)?)
            .with_context(|| format!("there is no result; {}", last_words(&err)))
    }
}

fn server(case: &Case) -> Server {
    Server::Longhaul { read_only: case.slow_disk != Some(Host::Far) }
}

fn link_words(link: Link) -> Vec<String> {
    match link {
        Link::Emulated { .. } => {
            let words = ["longhaul", "emulate", "up", "NAME"].map(str::to_owned);
            words.into_iter().chain(link.options()).collect()
        }
        Link::Pair => Between::Pair { scratch: Path::new("") }.record().command,
    }
}

/// Gives a process, with all its threads, what a busy loop on the same core leaves to the least important.
fn starve(pid: u32) -> anyhow::Result<Limited> {
    let mut words = Command::new("taskset");
    let busy = words.args(["-c", STARVED_CORE, "sh", "-c", "while :; do :; done"]);
    let busy = Limited::start(busy, Words::Shown)?;
    checked(Command::new("taskset").args(["-a", "-c", "-p", STARVED_CORE, &pid.to_string()]))?;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread = thread?.file_name();
        checked(Command::new("renice").args(["-n", "19", "-p"]).arg(thread))?;
    }
    Ok(busy)
}
