//! `bench targets`: what longhaul promises, measured, each figure in every round.
//!
//! In each round every kind of run of a case takes its turn, in an order that turns by one place from round to round. The
//! record is written after every case: a series that is broken off keeps what it has.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, bail};
use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use longhaul_report::targets::{Case, Figure, Measure, Target, Trial};
use longhaul_report::{End, Targets, Trace};

use crate::course::{self, Course, Heat};
use crate::data::{Data, memory};
use crate::file::remove;
use crate::link::{Between, LinkShape, checked};
use crate::linux_source::LinuxSource;
use crate::places::Places;
use crate::stream::{self, Stream};
use crate::tool::{Tool, how_to_install, missing};
use crate::turn::in_turn;
use crate::{environment, profile, show};

/// Measure what longhaul promises: rates over long links, trees, and what encryption leaves of the machine
///
/// Every copy is made by `longhaul cp` from a server on the far host, over a link of its own, encrypted, with the kernel's
/// default settings, and compared with its source byte by byte. Memory and CPU time of both ends are in the table. Sources
/// are read once before, so that they are in memory.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask bench targets --quick
  cargo xtask bench targets --case 1g-300ms --case tree --rounds 5

Exit codes: 0 every target holds in every round (with --quick: every run ended well); 1 some do not; 2 the series
could not go on.")]
pub(crate) struct TargetsBench {
    /// Little data and one round, to see that all works; no target can be judged by it
    #[arg(long)]
    quick: bool,
    /// Only this case; can be given several times [default: all; veth needs root]
    #[arg(long = "case", value_name = "NAME", value_enum)]
    cases: Vec<Name>,
    /// Times that each run is made, those not counted in which this machine's host took more than 1 % of the
    /// processors' time; three times as many at the most [default: 3; quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Size of each big file [default: 4GiB, 10GiB, 2GiB and 8GiB, by case; quick: 256MiB, and 1GiB from memory]
    #[arg(long)]
    size: Option<ByteSize>,
    /// Longest time of a copy; one that is cut off holds no target
    #[arg(long, value_name = "TIME", default_value = "5m")]
    limit: humantime::Duration,
    /// Record with perf in which functions both ends of each copy spend processor time (root); what perf takes itself is
    /// missing from the rates
    #[arg(long)]
    profile: bool,
    #[command(flatten)]
    places: Places,
}

/// A case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    /// A big file around the world
    #[value(name = "1g-300ms")]
    World,
    /// A big file across a continent, fast
    #[value(name = "10g-200ms")]
    Fast,
    /// A big file, one packet in 1000 lost
    #[value(name = "1g-100ms-loss0.1%")]
    SomeLoss,
    /// A big file, one packet in 100 lost
    #[value(name = "1g-100ms-loss1%")]
    MuchLoss,
    /// Debian's Linux sources beside one file of as many bytes
    #[value(name = "tree")]
    Tree,
    /// No link between the hosts, beside iperf3 and openssl
    #[value(name = "veth")]
    Veth,
}

/// A copy that is made once a round.
#[derive(Debug)]
struct Transfer {
    what: &'static str,
    data: Data,
}

/// A run of each round.
#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    Transfer(&'a Transfer),
    Stream(Stream),
}

/// A case, made ready.
#[derive(Debug)]
struct Plan {
    about: String,
    /// None: a bare pair of interfaces.
    shape: Option<LinkShape>,
    transfers: Vec<Transfer>,
    streams: Vec<Stream>,
    figures: Vec<Figure>,
}

/// Names of the runs.
const DISK_TO_DISK: &str = "disk to disk";
const MEMORY_TO_DISK: &str = "memory to disk";
const TREE: &str = "tree";
const ONE_FILE: &str = "one file";

/// Undisturbed rounds, unless said otherwise.
const ROUNDS: u32 = 3;

/// The host of this machine may never be quiet.
const ATTEMPTS_PER_ROUND: u32 = 3;

/// A copy has risen at this share of its steady rate.
const RISEN: f64 = 0.9;

/// A trace is kept up to this size, compressed.
const TRACE_BYTES_MAX: u64 = 1 << 20;

impl TargetsBench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let longhaul = self.places.longhaul()?;
        let cases = if self.cases.is_empty() { Name::value_variants().to_vec() } else { self.cases.clone() };
        let mut packages = if cases.contains(&Name::Veth) { stream::PACKAGES.to_vec() } else { Vec::new() };
        if self.profile {
            packages.extend(profile::PACKAGES);
        }
        let missing = missing(&packages);
        if !missing.is_empty() {
            bail!("{}, or choose cases with --case", how_to_install(&missing));
        }
        if cases.contains(&Name::Veth) && !rustix::process::geteuid().is_root() {
            bail!("the case veth needs root; choose others with --case");
        }
        let environment = environment::environment(&longhaul, &packages);
        let out = self.places.out("targets", &environment)?;
        let scratch = self.places.scratch();
        let title =
            if self.quick { "Targets, tried quickly: too little data to judge by" } else { "Targets" };
        let series = Series {
            disk: Course::prepare(&longhaul, &scratch)?,
            memory: Course::prepare(&longhaul, &memory("targets"))?,
            rounds: self.rounds.unwrap_or(if self.quick { 1 } else { ROUNDS }),
            attempts: if self.quick {
                self.rounds.unwrap_or(1)
            } else {
                self.rounds.unwrap_or(ROUNDS) * ATTEMPTS_PER_ROUND
            },
            limit: self.limit.into(),
            profile: self.profile,
            stream_time: Duration::from_secs(if self.quick { 2 } else { 10 }),
            out,
        };
        let made = self.cases(&series, &cases, Targets::new(title, environment));
        remove(series.memory.scratch())?;
        series.disk.tidy()?;
        let targets = made?;
        show::print_out(&targets.markdown())?;
        eprintln!("results are in {}", series.out.display());
        let trials = targets.cases.iter().flat_map(|case| &case.trials);
        let all_well = trials.into_iter().all(|trial| trial.run.end == End::Complete);
        let good = if self.quick { all_well } else { targets.all_hold() };
        Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(1) })
    }

    fn cases(&self, series: &Series, names: &[Name], mut targets: Targets) -> anyhow::Result<Targets> {
        let mut order = 0;
        for name in names {
            let plan = self.plan(*name, series)?;
            targets.cases.push(series.case(name.as_written(), &plan, &mut order)?);
            show::record(&series.out.join("results.json"), &targets.to_json()?)?;
            show::write(&series.out.join("results.md"), &targets.markdown())?;
            for transfer in plan.transfers.iter().filter(|t| t.data.is_below(&memory("targets"))) {
                remove(transfer.data.source())?;
            }
        }
        Ok(targets)
    }

    fn plan(&self, name: Name, series: &Series) -> anyhow::Result<Plan> {
        match name {
            Name::World => self.one_file(
                name,
                series,
                4,
                vec![
                    Figure::wanted(steady(DISK_TO_DISK), Target::AtLeast(900.0)),
                    Figure::wanted(whole(DISK_TO_DISK), Target::AtLeast(850.0)),
                ],
            ),
            Name::SomeLoss => self.lossy(name, series, 800.0),
            Name::MuchLoss => self.lossy(name, series, 600.0),
            Name::Fast => self.fast(name),
            Name::Tree => self.tree(series),
            Name::Veth => self.veth(),
        }
    }

    fn big(&self, directory: &Path, default_gib: u64) -> anyhow::Result<Data> {
        let quick = if directory.starts_with("/dev/shm") { ByteSize::gib(1) } else { ByteSize::mib(256) };
        let default = if self.quick { quick } else { ByteSize::gib(default_gib) };
        Data::random(directory, self.size.unwrap_or(default).as_u64())
    }

    fn lossy(&self, name: Name, series: &Series, target: f64) -> anyhow::Result<Plan> {
        let wanted = Figure::wanted(whole(DISK_TO_DISK), Target::AtLeast(target));
        self.one_file(name, series, 2, vec![wanted, Figure::shown(steady(DISK_TO_DISK))])
    }

    fn one_file(
        &self,
        name: Name,
        series: &Series,
        default_gib: u64,
        figures: Vec<Figure>,
    ) -> anyhow::Result<Plan> {
        let data = self.big(&series.disk.scratch().join("far"), default_gib)?;
        Ok(Plan {
            about: "A big file from disk to disk.".to_owned(),
            shape: Some(name.shape()?),
            transfers: vec![Transfer { what: DISK_TO_DISK, data }],
            streams: Vec::new(),
            figures,
        })
    }

    fn fast(&self, name: Name) -> anyhow::Result<Plan> {
        let data = self.big(&memory("targets").join("far"), 10)?;
        Ok(Plan {
            about: "A big file from memory to disk; both ends and the link share this machine's cores."
                .to_owned(),
            shape: Some(name.shape()?),
            transfers: vec![Transfer { what: MEMORY_TO_DISK, data }],
            streams: Vec::new(),
            figures: vec![
                Figure::wanted(steady(MEMORY_TO_DISK), Target::AtLeast(6500.0)),
                Figure::wanted(Measure::Rise { of: MEMORY_TO_DISK.to_owned() }, Target::AtMost(6.0)),
                Figure::shown(whole(MEMORY_TO_DISK)),
            ],
        })
    }

    fn tree(&self, series: &Series) -> anyhow::Result<Plan> {
        let source = LinuxSource::in_cache(&crate::target_directory().join("demo"))?;
        let tree = if self.quick {
            Data::of(TREE, "the directory fs/ of Debian's Linux sources", &source.tree.join("fs"))?
        } else {
            Data::of(TREE, "Debian's Linux sources, unpacked", &source.tree)?
        };
        let file = Data::random(&series.disk.scratch().join("far"), tree.amount().bytes)?;
        let ratio = Measure::TimeRatio { of: TREE.to_owned(), to: ONE_FILE.to_owned() };
        Ok(Plan {
            about: "A tree of small files beside one file of as many bytes, from disk to disk.".to_owned(),
            shape: Some("1g-100ms".parse().map_err(anyhow::Error::msg)?),
            transfers: vec![Transfer { what: TREE, data: tree }, Transfer { what: ONE_FILE, data: file }],
            streams: Vec::new(),
            figures: vec![
                Figure::wanted(ratio, Target::AtMost(2.0)),
                Figure::shown(whole(TREE)),
                Figure::shown(whole(ONE_FILE)),
            ],
        })
    }

    fn veth(&self) -> anyhow::Result<Plan> {
        let data = self.big(&memory("targets").join("far"), 8)?;
        let streams =
            vec![Stream::Iperf3 { connections: 1 }, Stream::Iperf3 { connections: 4 }, Stream::TlsPair];
        let mut figures: Vec<Figure> =
            streams.iter().map(|stream| Figure::shown(whole(&stream.name()))).collect();
        let of = MEMORY_TO_DISK;
        figures.extend([Figure::shown(whole(of)), Figure::shown(steady(of))]);
        let ratios = streams.iter().map(|to| Measure::RateRatio { of: of.to_owned(), to: to.name() });
        figures.extend(ratios.map(Figure::shown));
        Ok(Plan {
            about: format!(
                "A bare veth pair between the hosts: both ends and whatever they encrypt share this machine's cores. \
                 iperf3 is plain TCP for {0} s, payload as its receiver tells it. The TLS pair is two concurrent \
                 connections of `openssl s_client </dev/zero` to `openssl s_server`, TLS 1.3 with {1}, which is also \
                 what longhaul's connections prefer at both ends; its rate is from the counter of the receiver's \
                 interface, frames' headers included, over {0} s after the first. Everything flows from far to near.",
                if self.quick { 2 } else { 10 },
                stream::CIPHER
            ),
            shape: None,
            transfers: vec![Transfer { what: MEMORY_TO_DISK, data }],
            streams,
            figures,
        })
    }
}

impl Name {
    /// As on the command line.
    fn as_written(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The link that has the case's name.
    fn shape(self) -> anyhow::Result<LinkShape> {
        self.as_written().parse().map_err(anyhow::Error::msg)
    }
}

fn steady(of: &str) -> Measure {
    Measure::Steady { of: of.to_owned() }
}

fn whole(of: &str) -> Measure {
    Measure::Whole { of: of.to_owned() }
}

/// What all cases of a series share.
struct Series {
    disk: Course,
    /// Where sources in memory are, locked.
    memory: Course,
    /// Undisturbed ones that are wanted.
    rounds: u32,
    attempts: u32,
    limit: Duration,
    profile: bool,
    stream_time: Duration,
    out: PathBuf,
}

impl Series {
    fn case(&self, name: String, plan: &Plan, order: &mut u32) -> anyhow::Result<Case> {
        let between = match &plan.shape {
            Some(shape) => Between::Link(shape),
            None => Between::Pair { scratch: self.disk.scratch() },
        };
        let mut steps: Vec<Step<'_>> = plan.streams.iter().copied().map(Step::Stream).collect();
        for transfer in &plan.transfers {
            transfer.data.warm()?;
            steps.push(Step::Transfer(transfer));
        }
        let record = |transfer: &Transfer| longhaul_report::Data {
            name: transfer.what.to_owned(),
            ..transfer.data.record(&self.disk.destination())
        };
        let mut case = Case {
            name,
            about: plan.about.clone(),
            link: between.record(),
            data: plan.transfers.iter().map(record).collect(),
            left_out: Vec::new(),
            trials: Vec::new(),
            figures: plan.figures.clone(),
            disturbed: Vec::new(),
        };
        for round in 1..=self.attempts {
            if case.undisturbed() == self.rounds {
                break;
            }
            for step in in_turn(&steps, round) {
                *order += 1;
                let what = step.what();
                eprint!("{order:>4}  {:<18}  round {round}  {what:<17}  ", case.name);
                let trial = match step {
                    Step::Transfer(transfer) => self.copy(&case.name, transfer, between, round, *order)?,
                    Step::Stream(stream) => self.stream(stream, round, *order)?,
                };
                case.trials.push(trial);
            }
            case.derive();
        }
        Ok(case)
    }

    fn copy(
        &self,
        case: &str,
        transfer: &Transfer,
        between: Between<'_>,
        round: u32,
        order: u32,
    ) -> anyhow::Result<Trial> {
        let Transfer { what, data } = transfer;
        let stem = format!("{case}-{what}-round{round}").replace('%', "").replace(' ', "-");
        let path = self.out.join(format!("{stem}.trace.jsonl"));
        let profile = self.profile.then(|| self.out.join(&stem));
        let heat = Heat {
            tool: Tool::Longhaul,
            between,
            data,
            limit: self.limit,
            round,
            order,
            trace: Some(&path),
            progress: false,
            profile: profile.as_deref(),
        };
        let run = self.disk.run(&heat)?;
        eprint!("{}", course::in_words(&run, data.amount()));
        if run.end != End::Complete {
            eprintln!();
            remove(&path)?; // of another copy than the one that is measured
            return Ok(Trial { what: (*what).to_owned(), run, steady_bps: None, rise_seconds: None });
        }
        let trace =
            Trace::parse(&show::read(&path)?).with_context(|| format!("cannot read {}", path.display()))?;
        keep_small(&path)?;
        let steady_bps = trace.steady_bps(run.bytes);
        let rise_seconds = steady_bps.and_then(|bps| trace.seconds_until(RISEN * bps));
        eprintln!("; steady {:.0} Mbit/s", steady_bps.unwrap_or(0.0) / 1e6);
        Ok(Trial { what: (*what).to_owned(), run, steady_bps, rise_seconds })
    }

    fn stream(&self, stream: Stream, round: u32, order: u32) -> anyhow::Result<Trial> {
        let run = stream.run(self.disk.longhaul(), self.disk.scratch(), self.stream_time, round, order)?;
        match &run.end {
            End::Failed { reason } => eprintln!("FAILED: {reason}"),
            _ => eprintln!("{:.0} Mbit/s", run.rate_bps(run.bytes).unwrap_or(0.0) / 1e6),
        }
        Ok(Trial { what: stream.name(), run, steady_bps: None, rise_seconds: None })
    }
}

impl Step<'_> {
    fn what(&self) -> String {
        match self {
            Self::Transfer(transfer) => transfer.what.to_owned(),
            Self::Stream(stream) => stream.name(),
        }
    }
}

/// Compresses a trace, and drops it if it is large even so.
fn keep_small(trace: &Path) -> anyhow::Result<()> {
    checked(Command::new("gzip").args(["-n", "-9", "-f"]).arg(trace)).context("cannot compress a trace")?;
    let compressed = trace.with_extension("jsonl.gz");
    if std::fs::metadata(&compressed)?.len() > TRACE_BYTES_MAX { remove(&compressed) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_that_are_links_bear_their_names() {
        for name in [Name::World, Name::Fast, Name::SomeLoss, Name::MuchLoss] {
            assert_eq!(name.shape().unwrap().name(), name.as_written());
        }
        assert!(Name::Tree.shape().is_err() && Name::Veth.shape().is_err());
    }

    #[test]
    fn a_trace_is_kept_when_it_is_small() {
        let dir = tempfile::tempdir().unwrap();
        let trace = dir.path().join("a.trace.jsonl");
        std::fs::write(&trace, "{}\n".repeat(100_000)).unwrap();
        keep_small(&trace).unwrap();
        assert!(!trace.exists() && dir.path().join("a.trace.jsonl.gz").exists());
        let mut random = std::fs::File::open("/dev/urandom").unwrap();
        let mut bytes = vec![0; TRACE_BYTES_MAX as usize + 1000];
        std::io::Read::read_exact(&mut random, &mut bytes).unwrap();
        std::fs::write(&trace, bytes).unwrap();
        keep_small(&trace).unwrap();
        assert!(!trace.exists() && !dir.path().join("a.trace.jsonl.gz").exists());
    }
}
