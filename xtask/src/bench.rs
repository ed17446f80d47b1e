//! `bench copy`: longhaul beside its rivals, interleaved in one series.
//!
//! For each link and kind of data every tool runs once a round; the order turns by one place from round to round, so
//! that no tool always follows the same other. The record is written after every scenario: a series that is broken off
//! keeps what it has.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use longhaul_report::{LeftOut, Report, Scenario, table};

use crate::course::{self, Course, Heat};
use crate::data::{Data, memory};
use crate::link::{Between, LinkShape, STANDARD_LINKS};
use crate::linux_source::LinuxSource;
use crate::places::Places;
use crate::tool::{Tool, how_to_install, missing, packages};
use crate::turn::in_turn;
use crate::{environment, show};

/// Copy over emulated links with longhaul, scp, rsync, rclone, aria2c and xrdcp, in one series
///
/// All tools copy from the far host to the near one. Each run has a link and a server of its own, an empty destination, and
/// a time limit; at the limit it is ended and its time is projected from what has arrived. Complete copies are compared
/// with their source byte by byte.
#[derive(Debug, Args)]
#[command(
    after_help = "Links: 1g-3.3ms 1g-100ms 1g-300ms 10g-200ms 1g-100ms-loss0.01% 1g-100ms-loss0.1% 1g-100ms-loss1%,
or any other in that form.

Examples:
  cargo xtask bench copy --quick
  cargo xtask bench copy --link 1g-100ms --link 1g-100ms-loss0.1% --data big --rounds 5
  cargo xtask bench copy --link 10g-200ms --data big --size 4GiB --tool longhaul --tool xrdcp --trace

Exit codes: 0 every run ended or was cut off at its limit; 1 some failed; 2 the series could not go on."
)]
pub(crate) struct CopyBench {
    /// Little data, one round and a short limit, to see that all works
    #[arg(long)]
    quick: bool,
    /// Times that each tool runs [default: 3; quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Only this link; can be given several times [default: the seven below]
    #[arg(long = "link", value_name = "NAME")]
    links: Vec<LinkShape>,
    /// Only this tool; can be given several times [default: all]
    #[arg(long = "tool", value_name = "NAME", value_enum)]
    tools: Vec<Tool>,
    /// Only the one big file, or only the tree of Debian's Linux sources [default: both]
    #[arg(long, value_enum)]
    data: Option<Kind>,
    /// Size of the big file [default: 4GiB, and 10GiB on links above 2 Gbit/s; quick: 256MiB and 1GiB]
    #[arg(long)]
    size: Option<ByteSize>,
    /// Longest time of a run [default: 60s; quick: 15s]
    #[arg(long, value_name = "TIME")]
    limit: Option<humantime::Duration>,
    /// Have longhaul write traces, and plot them; the same command is measured in every round
    #[arg(long)]
    trace: bool,
    #[command(flatten)]
    places: Places,
}

/// What is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Big,
    Tree,
}

impl CopyBench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let longhaul = self.places.longhaul()?;
        let tools = if self.tools.is_empty() { Tool::ALL.to_vec() } else { self.tools.clone() };
        let missing = missing(&packages(&tools));
        if !missing.is_empty() {
            bail!("{}, or choose tools with --tool", how_to_install(&missing));
        }
        let environment = environment::environment(&longhaul, &packages(&tools));
        let out = self.places.out("copy", &environment)?;
        let scratch = self.places.scratch();
        let series = Series {
            rounds: self.rounds.unwrap_or(if self.quick { 1 } else { 3 }),
            limit: self.limit.map_or(Duration::from_secs(if self.quick { 15 } else { 60 }), Into::into),
            course: Course::prepare(&longhaul, &scratch)?,
            tools,
            out,
            trace: self.trace,
        };
        let report = Report::new("Copies over long links", environment);
        let made = self.scenarios(&series, &scratch, report);
        crate::file::remove(&memory("bench"))?;
        series.course.tidy()?;
        let report = made?;
        show::print_out(&table::report(&report))?;
        eprintln!("results are in {}", series.out.display());
        let runs = report.scenarios.iter().flat_map(|scenario| &scenario.runs);
        let failed = runs.filter(|run| matches!(run.end, longhaul_report::End::Failed { .. })).count();
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
    }

    fn links(&self) -> anyhow::Result<Vec<LinkShape>> {
        if !self.links.is_empty() {
            return Ok(self.links.clone());
        }
        STANDARD_LINKS.iter().map(|name| name.parse().map_err(anyhow::Error::msg)).collect()
    }

    fn scenarios(&self, series: &Series, scratch: &Path, mut report: Report) -> anyhow::Result<Report> {
        let kinds = self.data.map_or(vec![Kind::Big, Kind::Tree], |kind| vec![kind]);
        let links = self.links()?;
        let most = links.len() * kinds.len() * series.tools.len() * series.rounds as usize;
        eprintln!(
            "{most} runs at most, each up to {:?}: {:.0} minutes and what lies between them",
            series.limit,
            most as f64 * series.limit.as_secs_f64() / 60.0
        );
        let mut order = 0;
        for link in &links {
            for kind in &kinds {
                let data = self.data(*kind, link, scratch)?;
                data.warm()?;
                report.scenarios.push(series.scenario(link, &data, &mut order)?);
                series.keep(&report)?;
            }
        }
        Ok(report)
    }

    fn data(&self, kind: Kind, link: &LinkShape, scratch: &Path) -> anyhow::Result<Data> {
        if kind == Kind::Big {
            let default = match (self.quick, link.is_fast()) {
                (true, false) => ByteSize::mib(256),
                (true, true) => ByteSize::gib(1),
                (false, false) => ByteSize::gib(4),
                (false, true) => ByteSize::gib(10),
            };
            let directory = if link.is_fast() { memory("bench") } else { scratch.join("far") };
            return Data::random(&directory, self.size.unwrap_or(default).as_u64());
        }
        let source = LinuxSource::in_cache(&crate::target_directory().join("demo"))?;
        if self.quick {
            return Data::of("tree", "the directory fs/ of Debian's Linux sources", &source.tree.join("fs"));
        }
        Data::of("tree", "Debian's Linux sources, unpacked", &source.tree)
    }
}

/// What all scenarios of a series share.
struct Series {
    course: Course,
    tools: Vec<Tool>,
    rounds: u32,
    limit: Duration,
    out: PathBuf,
    trace: bool,
}

impl Series {
    fn scenario(&self, link: &LinkShape, data: &Data, order: &mut u32) -> anyhow::Result<Scenario> {
        let (left_out, tools): (Vec<Tool>, Vec<Tool>) =
            self.tools.iter().partition(|tool| tool.refusal(data).is_some());
        let mut scenario = Scenario {
            link: link.record(),
            data: data.record(&self.course.destination()),
            limit_seconds: self.limit.as_secs_f64(),
            left_out: left_out
                .iter()
                .map(|tool| LeftOut {
                    tool: tool.name().to_owned(),
                    reason: tool.refusal(data).unwrap_or_default().to_owned(),
                })
                .collect(),
            runs: Vec::new(),
            summaries: Vec::new(),
        };
        for round in 1..=self.rounds {
            for tool in in_turn(&tools, round) {
                *order += 1;
                let stem = format!("{}-{}-round{round}", link.name().replace('%', ""), data.name());
                let trace = self.out.join(format!("{stem}.trace.jsonl"));
                let trace = (self.trace && tool == Tool::Longhaul).then_some(trace.as_path());
                eprint!(
                    "{order:>4}  {:<18}  {:<4}  round {round}  {:<11}  ",
                    link.name(),
                    data.name(),
                    tool.name()
                );
                let heat = Heat {
                    tool,
                    between: Between::Link(link),
                    data,
                    limit: self.limit,
                    round,
                    order: *order,
                    trace,
                    progress: false,
                    profile: None,
                };
                let run = self.course.run(&heat)?;
                eprintln!("{}", course::in_words(&run, data.amount()));
                scenario.runs.push(run);
                if let Some(trace) = trace {
                    let title = format!("longhaul cp over {}: {}", scenario.link.in_words(), data.name());
                    show::draw_trace(trace, &self.out.join(format!("{stem}.svg")), &title)?;
                }
            }
        }
        scenario.derive();
        Ok(scenario)
    }

    /// Writes all results so far.
    fn keep(&self, report: &Report) -> anyhow::Result<()> {
        show::record(&self.out.join("results.json"), &report.to_json()?)?;
        show::write(&self.out.join("results.md"), &table::report(report))?;
        show::draw_bars(report, &self.out)
    }
}
