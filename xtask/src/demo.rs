//! `demo`: the main job on real input, beside scp and rsync, in a few minutes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use longhaul_report::{End, Report, Scenario, table};

use crate::course::{self, Course, Heat};
use crate::data::Data;
use crate::link::{Between, LinkShape};
use crate::linux_source::LinuxSource;
use crate::tool::{Tool, how_to_install, missing, packages};
use crate::{environment, show};

/// Copy Debian's Linux sources over an emulated 1 Gbit/s x 200 ms link, beside scp and rsync
///
/// The package linux-source-6.1 is fetched once. Its tarball and the unpacked tree are copied with `longhaul cp`, compared
/// with their sources, and then copied with scp and rsync, each for 30 s at the most.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask demo
  cargo xtask demo --data /srv/experiment --link 1g-300ms-loss0.1%

Exit codes: 0 longhaul's copies are complete and equal; 1 they are not; 2 the demo could not run.")]
pub(crate) struct Demo {
    /// A file or directory of your own, instead of the Linux sources
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The link, as RATEg-RTTms or RATEg-RTTms-lossP%
    #[arg(long, value_name = "NAME", default_value = "1g-200ms")]
    link: LinkShape,
    /// Longest time of scp and rsync, each
    #[arg(long, value_name = "TIME", default_value = "30s")]
    limit: humantime::Duration,
    /// Where copies go to [default: target/demo]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// The program to show [default: target/release/longhaul]
    #[arg(long, value_name = "FILE")]
    longhaul: Option<PathBuf>,
}

/// longhaul's own limit: far beyond what the sources take on any link that the demo is meant for.
const OWN_LIMIT: Duration = Duration::from_secs(600);

impl Demo {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let longhaul = crate::longhaul_program(self.longhaul.clone())?;
        let scratch = self.scratch.clone().unwrap_or_else(|| crate::target_directory().join("demo"));
        let tools = tools_here();
        let all_data = self.data(&scratch)?;
        let course = Course::prepare(&longhaul, &scratch)?;
        let mut report =
            Report::new("longhaul's demo", environment::environment(&longhaul, &packages(&tools)));
        let record = self.link.record();
        eprintln!("\nThe link: {}, emulated on this machine", record.in_words());
        for data in &all_data {
            data.warm()?;
            report.scenarios.push(self.scenario(&course, &tools, data, &scratch)?);
        }
        course.tidy()?;
        show::record(&scratch.join("results.json"), &report.to_json()?)?;
        eprintln!();
        for scenario in &report.scenarios {
            let text = table::scenario(scenario);
            show::print_out(&format!("{}, {}:\n\n{text}\n", scenario.link.in_words(), scenario.data.about))?;
        }
        eprintln!("the record and plots over time are in {}", scratch.display());
        let own =
            report.scenarios.iter().flat_map(|s| &s.runs).filter(|run| run.tool == Tool::Longhaul.name());
        let all_equal =
            own.clone().count() == all_data.len() && own.into_iter().all(|run| run.end == End::Complete);
        Ok(if all_equal { ExitCode::SUCCESS } else { ExitCode::from(1) })
    }

    fn data(&self, scratch: &Path) -> anyhow::Result<Vec<Data>> {
        if let Some(path) = &self.data {
            return Ok(vec![Data::of("data", &path.display().to_string(), path)?]);
        }
        let source = LinuxSource::in_cache(scratch)?;
        Ok(vec![
            Data::of("tarball", "Debian's Linux sources as a tarball", &source.tarball)?,
            Data::of("tree", "Debian's Linux sources, unpacked", &source.tree)?,
        ])
    }

    fn scenario(
        &self,
        course: &Course,
        tools: &[Tool],
        data: &Data,
        scratch: &Path,
    ) -> anyhow::Result<Scenario> {
        let mut scenario = Scenario {
            link: self.link.record(),
            data: data.record(&course.destination()),
            limit_seconds: self.limit.as_secs_f64(),
            left_out: Vec::new(),
            runs: Vec::new(),
            summaries: Vec::new(),
        };
        let amount = data.amount();
        eprintln!("\n{}: {} files, {:.0} MB", scenario.data.about, amount.files, amount.bytes as f64 / 1e6);
        for tool in tools {
            let own = *tool == Tool::Longhaul;
            let trace = scratch.join(format!("{}.trace.jsonl", data.name()));
            let heat = Heat {
                tool: *tool,
                between: Between::Link(&self.link),
                data,
                limit: if own { OWN_LIMIT } else { self.limit.into() },
                round: 1,
                order: scenario.runs.len() as u32 + 1,
                trace: own.then_some(trace.as_path()),
                progress: own,
                profile: None,
            };
            eprintln!("  {} ...", tool.name());
            let run = course.run(&heat)?;
            eprintln!("  {}: {}", tool.name(), course::in_words(&run, data.amount()));
            if own && run.end == End::Complete {
                let title = format!("longhaul cp over {}: {}", scenario.link.in_words(), data.name());
                show::draw_trace(&trace, &scratch.join(format!("{}.svg", data.name())), &title)?;
            }
            scenario.runs.push(run);
        }
        scenario.derive();
        Ok(scenario)
    }
}

/// longhaul, and of scp and rsync what is installed; the others are named.
fn tools_here() -> Vec<Tool> {
    let mut tools = vec![Tool::Longhaul];
    for rival in [Tool::Scp, Tool::Rsync] {
        let missing = missing(rival.packages());
        if missing.is_empty() {
            tools.push(rival);
        } else {
            eprintln!("without {}: {}", rival.name(), how_to_install(&missing));
        }
    }
    tools
}
