//! Makes the reports' experiments again: longhaul and its rivals in turns, each run over a network of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use longhaul_report::record::OURS;
use longhaul_report::reports::{self, Found, LOSS_MAX, Run, UDP_FRAMING, WIRE_FRAMING, levels};
use longhaul_report::{LeftOut, Scenario, Trace};

use crate::course::{self, Course, Heat};
use crate::data::{Data, memory};
use crate::experiment::{Experiment, Measures, Search, omitted};
use crate::file::remove;
use crate::file_system::FileSystem;
use crate::limited::check_interrupt;
use crate::link::{Between, LinkShape, Network};
use crate::memory_to_memory::{Asked, IPERF3, Measured, Prober};
use crate::mounted::Mounts;
use crate::server::Access;
use crate::tool::{Package, Tool, missing};
use crate::turn::in_turn;

/// A series of experiments.
#[derive(Debug)]
pub struct Rerun {
    /// The program under test.
    pub longhaul: PathBuf,
    /// A directory of its own, on the disk to measure.
    pub scratch: PathBuf,
    /// Length of a burst or a test; copies and file I/O have a multiple of it.
    pub seconds: u64,
    /// Times that each run is made.
    pub rounds: u32,
}

/// Of a copy, in lengths of a test: a file of 1 GiB takes 9 s at 1 Gbit/s.
const COPY_LIMIT: u32 = 5;

/// Length of the file that is written and read.
const FILE_BYTES: u64 = 64 << 20;

/// Packages of everything that may run beside longhaul.
pub const PACKAGES: [Package; 5] = [
    IPERF3,
    Package { name: "openssh-client", program: "ssh" },
    Package { name: "openssh-server", program: "sshd" },
    Package { name: "rsync", program: "rsync" },
    Package { name: "sshfs", program: "sshfs" },
];

/// Why a tool cannot run here.
fn absence(tool: &str, packages: &[Package]) -> Option<LeftOut> {
    let missing = missing(packages);
    let names: Vec<&str> = missing.iter().map(|package| package.name).collect();
    (!names.is_empty()).then(|| LeftOut {
        tool: tool.to_owned(),
        reason: format!("not installed here: `apt-get install --no-install-recommends {}`", names.join(" ")),
    })
}

/// A limit of the kernel for buffers that a program asks for.
fn buffer_max(name: &str) -> Option<u64> {
    std::fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok()?.trim().parse().ok()
}

/// What one of the programs measured of a place, once.
struct Place<'a> {
    shape: &'a LinkShape,
    prober: Prober<'static>,
    round: u32,
}

impl Rerun {
    /// Makes one.
    ///
    /// # Errors
    /// About the machine, or when the user has asked for the end; what goes wrong with a tool is in the result.
    pub fn experiment(&self, experiment: &Experiment) -> anyhow::Result<reports::Experiment> {
        let shape: LinkShape = experiment.link.parse().map_err(anyhow::Error::msg)?;
        let mut left_out = Vec::new();
        let found = match experiment.measures {
            Measures::UdpSearch(frames) => Found::Udp(self.udp(&shape, frames, None, &mut left_out)?),
            Measures::Udp(load, frame) => {
                Found::Udp(self.udp(&shape, &[frame], Some(load as f64), &mut left_out)?)
            }
            Measures::Tcp(grid) => Found::Tcp(self.tcp(&shape, grid, &mut left_out)?),
            Measures::Files(lengths) => self.files(&shape, lengths, &mut left_out)?,
            Measures::Copy(bytes) => self.copies(&shape, bytes, false, &mut left_out)?,
            Measures::Download(bytes) => self.copies(&shape, bytes, true, &mut left_out)?,
        };
        Ok(reports::Experiment {
            name: experiment.name.to_owned(),
            title: experiment.title.to_owned(),
            about: vec![experiment.about.to_owned()],
            link: shape.record(),
            left_out,
            found,
        })
    }

    /// Those that are there.
    fn probers(left_out: &mut Vec<LeftOut>) -> Vec<Prober<'static>> {
        match absence(IPERF3.program, &[IPERF3]) {
            Some(absent) => {
                left_out.push(absent);
                vec![Prober::Longhaul]
            }
            None => Prober::ALL.to_vec(),
        }
    }

    fn udp(
        &self,
        shape: &LinkShape,
        frames: &[u64],
        load: Option<f64>,
        left_out: &mut Vec<LeftOut>,
    ) -> anyhow::Result<Vec<Run>> {
        let mut runs = Vec::new();
        let probers = Self::probers(left_out);
        for round in 1..=self.rounds {
            for &frame_bytes in frames {
                for prober in in_turn(&probers, round) {
                    let place = Place { shape, prober, round };
                    let mut search = Search::up_to(load.unwrap_or(shape.record().rate_bps as f64));
                    while let Some(offered_bps) = search.load() {
                        let run = self.burst(&place, frame_bytes, offered_bps)?;
                        search.found(run.failure.is_none() && run.loss() <= LOSS_MAX);
                        let is_over = load.is_some() || run.failure.is_some();
                        runs.push(run);
                        if is_over {
                            break;
                        }
                    }
                }
            }
        }
        Ok(runs)
    }

    fn burst(&self, place: &Place<'_>, frame_bytes: u64, offered_bps: f64) -> anyhow::Result<Run> {
        let payload = frame_bytes - UDP_FRAMING;
        // The programs count payload alone.
        let rate = offered_bps * payload as f64 / (frame_bytes + WIRE_FRAMING) as f64;
        let words = ["-u", "-b", &format!("{rate:.0}"), "-l", &payload.to_string()].map(str::to_owned);
        let run = self.measured(place, &words)?;
        let run = Run { frame_bytes, offered_bps, ..run };
        let found = run.frames_mbps().map_or_else(
            || format!("FAILED: {}", run.failure.as_deref().unwrap_or_default()),
            |rate| format!("{rate:.0} Mbit/s of frames, {:.1} % lost", run.loss() * 100.0),
        );
        let (link, tool, load) = (place.shape.name(), place.prober.name(), offered_bps / 1e6);
        eprintln!(
            "{link}, round {}, {tool}: frames of {frame_bytes} B, {load:.0} Mbit/s: {found}",
            place.round
        );
        Ok(run)
    }

    fn tcp(
        &self,
        shape: &LinkShape,
        grid: &[(u64, u64)],
        left_out: &mut Vec<LeftOut>,
    ) -> anyhow::Result<Vec<Run>> {
        let mut runs = Vec::new();
        let probers = Self::probers(left_out);
        let most = ["rmem_max", "wmem_max"].map(buffer_max).into_iter().flatten().min().unwrap_or(u64::MAX);
        let (grid, too_long): (Vec<_>, Vec<_>) =
            grid.iter().copied().partition(|(window, _)| *window <= most);
        left_out.extend(too_long.iter().map(|(window, streams)| LeftOut {
            tool: format!("{window} bytes x {streams}"),
            reason: format!(
                "this kernel lets a program ask for {most} bytes: `sysctl net.core.rmem_max={window} net.core.wmem_max={window}`"
            ),
        }));
        let rtt = Duration::from_micros(shape.record().rtt_us);
        for round in 1..=self.rounds {
            for &(window_bytes, streams) in &grid {
                for prober in in_turn(&probers, round) {
                    let words = ["-w", &window_bytes.to_string(), "-P", &streams.to_string()];
                    let omit = ["-O".to_owned(), omitted(rtt).to_string()];
                    let words: Vec<String> = words.map(str::to_owned).into_iter().chain(omit).collect();
                    let run = self.measured(&Place { shape, prober, round }, &words)?;
                    let run = Run { window_bytes, streams, ..run };
                    let found = run.mbps().map_or_else(
                        || format!("FAILED: {}", run.failure.as_deref().unwrap_or_default()),
                        |rate| format!("{rate:.0} Mbit/s"),
                    );
                    let (link, tool, window) = (shape.name(), prober.name(), window_bytes >> 10);
                    eprintln!("{link}, round {round}, {tool}: {window} KiB x {streams}: {found}");
                    runs.push(run);
                }
            }
        }
        Ok(runs)
    }

    /// One test over a network of its own.
    fn measured(&self, place: &Place<'_>, words: &[String]) -> anyhow::Result<Run> {
        check_interrupt()?;
        let network = Network::up(&self.longhaul, Between::Link(place.shape), place.round)?;
        let asked = Asked { prober: place.prober, words, seconds: self.seconds };
        let measured = asked.measure(&network, &self.longhaul, &self.scratch);
        check_interrupt()?;
        let link = network.verdict();
        let of = Run { tool: place.prober.name().to_owned(), round: place.round, link, ..Run::default() };
        Ok(match measured {
            Err(error) => Run { failure: Some(format!("{error:#}")), ..of },
            Ok((command, Measured { bits_per_second, packets_received, packets_sent, seconds, .. })) => Run {
                command: named(command, &self.longhaul),
                seconds,
                bits_per_second,
                packets_sent,
                packets_received,
                ..of
            },
        })
    }

    fn files(
        &self,
        shape: &LinkShape,
        lengths: &[u64],
        left_out: &mut Vec<LeftOut>,
    ) -> anyhow::Result<Found> {
        let mut systems = vec![FileSystem::Longhaul];
        match absence(FileSystem::Sshfs.name(), FileSystem::Sshfs.packages()) {
            Some(absent) => left_out.push(absent),
            None => systems.push(FileSystem::Sshfs),
        }
        left_out.push(LeftOut {
            tool: "NFS".to_owned(),
            reason:
                "its server is the kernel's, one for the whole machine; what was published of it is beside"
                    .to_owned(),
        });
        let scratch = self.scratch.join("files");
        let mounts = Mounts {
            access: Access::prepare(&self.scratch.join("access"), &self.longhaul)?,
            scratch: scratch.clone(),
            lengths: lengths.to_vec(),
            patterns: Vec::new(),
            rounds: self.rounds,
            size: FILE_BYTES,
            limit: self.seconds,
            profiles: None,
        };
        let place = mounts.place(shape, &systems);
        let mut place = place?;
        for system in &mut place.systems {
            system.command = named(std::mem::take(&mut system.command), &self.scratch);
        }
        remove(&scratch)?;
        Ok(Found::Files(place))
    }

    fn copies(
        &self,
        shape: &LinkShape,
        bytes: u64,
        is_download: bool,
        left_out: &mut Vec<LeftOut>,
    ) -> anyhow::Result<Found> {
        let course = Course::prepare(&self.longhaul, &self.scratch.join("course"))?;
        // A disk that is read while it is written would be what is measured.
        let own = memory(&format!("reports-{}", std::process::id()));
        let from = if is_download { own.clone() } else { course.scratch().join("far") };
        let made = self.copied(&course, shape, &from, bytes, is_download, left_out);
        remove(&own)?;
        remove(course.scratch())?;
        made
    }

    fn copied(
        &self,
        course: &Course,
        shape: &LinkShape,
        from: &Path,
        bytes: u64,
        is_download: bool,
        left_out: &mut Vec<LeftOut>,
    ) -> anyhow::Result<Found> {
        let data = Data::random(from, bytes)?;
        data.warm()?;
        let mut tools = vec![Tool::Longhaul];
        for tool in [Tool::Scp, Tool::Rsync] {
            match absence(tool.name(), tool.packages()) {
                Some(absent) => left_out.push(absent),
                None => tools.push(tool),
            }
        }
        let limit = Duration::from_secs(self.seconds) * COPY_LIMIT;
        let mut scenario = Scenario {
            link: shape.record(),
            data: data.record(&course.destination()),
            limit_seconds: limit.as_secs_f64(),
            left_out: Vec::new(),
            runs: Vec::new(),
            summaries: Vec::new(),
        };
        // Whose machine it was is nobody's business.
        scenario.data.source = if is_download { "memory" } else { "disk" }.to_owned();
        scenario.data.destination = "disk".to_owned();
        let trace = self.scratch.join("trace.jsonl");
        let mut kept = Vec::new();
        let mut order = 0;
        for round in 1..=self.rounds {
            for tool in in_turn(&tools, round) {
                check_interrupt()?;
                order += 1;
                let heat = Heat {
                    tool,
                    between: Between::Link(shape),
                    data: &data,
                    limit,
                    round,
                    order,
                    trace: (tool == Tool::Longhaul).then_some(&trace),
                    progress: false,
                    profile: None,
                };
                let mut run = course.run(&heat)?;
                eprintln!(
                    "{}, round {round}, {}: {}",
                    shape.name(),
                    tool.name(),
                    course::in_words(&run, data.amount())
                );
                run.command = named(named(named(run.command, &self.longhaul), &self.scratch), from);
                scenario.runs.push(run);
                if tool == Tool::Longhaul && kept.is_empty() {
                    let text = std::fs::read_to_string(&trace).unwrap_or_default();
                    kept = Trace::parse(&text).map(|trace| levels(&trace)).unwrap_or_default();
                }
            }
        }
        scenario.derive();
        Ok(Found::Copies { scenario, levels: kept })
    }
}

/// A command without the names of this machine's directories: the program is called by its name, the scratch directory SCRATCH.
fn named(words: Vec<String>, path: &Path) -> Vec<String> {
    let name = if path.is_dir() { "SCRATCH" } else { OURS };
    words.into_iter().map(|word| word.replace(&*path.to_string_lossy(), name)).collect()
}

/// A new directory for a series, below `parent`; nobody else reads what is in it.
///
/// # Errors
/// When it cannot be made.
pub fn scratch(parent: &Path) -> anyhow::Result<PathBuf> {
    let path = parent.join(format!("longhaul-reports-{}", std::process::id()));
    std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(path.canonicalize()?)
}
