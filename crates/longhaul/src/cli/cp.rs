//! `longhaul cp`: copies, to or from a far host.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use longhaul_copy::{Copy, CopyError, CopyOptions, Existing, Job, Problem, ProgressNow, Sync, Writing};
use longhaul_files::dir::raise_open_file_limit;
use longhaul_files::{RelPath, shown};
use longhaul_transport::Session;
use serde::Serialize;
use tokio::sync::mpsc;

use super::print_out;
use super::reach::Reach;
use crate::far::Far;
use crate::place::Place;
use crate::service::COPIES;
use crate::signals::until_told_to_stop;
use crate::terminal::{ProgressLine, Terminal, harmless};
use crate::trace::Trace;
use crate::units::{show_rate, show_size};

/// Copy files and trees to or from a far host, at the full speed of the network
///
/// One side is here, the other `longhaul://HOST/EXPORT/PATH` (a running `longhaul serve`) or `[USER@]HOST:PATH`
/// (longhaul is started there over ssh). A copy that was broken off goes on where it was when it is run again. Files
/// that are there already, of equal size and time, are passed over. A file is seen under its name only when it is whole.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  longhaul cp big.h5 alice@far:/data/
  longhaul cp -r results/ longhaul://far/data/2026
  longhaul cp -a --exclude '*.tmp' --rate 5Gbit run7 run8 longhaul://far/data/
  longhaul cp -r far:/data/run7 .

Exit codes: 0 all is copied; 1 some files are not, each is named; 2 the copy could not begin or broke off.")]
pub(crate) struct Cp {
    /// What to copy, and last where to: into a directory that is there, or to a new name
    #[arg(required = true, num_args = 2.., value_name = "SOURCE... DESTINATION")]
    paths: Vec<OsString>,

    /// Directories with all that is in them; links stay links
    #[arg(short, long)]
    recursive: bool,
    /// Exact permission bits and, for root, owners (times and rwx bits are always kept)
    #[arg(short, long)]
    preserve: bool,
    /// All there is to keep: -r -p, hard links, extended attributes and ACLs, pipes and devices
    #[arg(short, long)]
    archive: bool,
    /// Copy what links lead to
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Files with several names stay one file (part of -a)
    #[arg(short = 'H', long)]
    hard_links: bool,
    /// Extended attributes and ACLs (part of -a)
    #[arg(short = 'X', long)]
    xattrs: bool,
    /// The destination is a directory that must be there
    #[arg(short = 't', long)]
    into: bool,

    /// Leave destination files alone that are newer
    #[arg(short, long, group = "existing")]
    update: bool,
    /// Copy also what is there already and equal
    #[arg(short, long, group = "existing")]
    force: bool,
    /// Leave alone whatever is there already
    #[arg(long, group = "existing")]
    ignore_existing: bool,
    /// Leave out what matches: `*.o`, `build/` (directories), `/top` (at the top of a source)
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Copy just the files listed in FILE (`-`: standard input), relative to the one source
    #[arg(long, value_name = "FILE")]
    files_from: Option<PathBuf>,
    /// The list's names end with NUL, not newline
    #[arg(short = '0', long, requires = "files_from")]
    from0: bool,
    /// Only say what would be copied
    #[arg(short = 'n', long)]
    dry_run: bool,

    /// When files are made durable: each before it gets its name, all at the end (large ones before), or never
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = SyncArg::End)]
    sync: SyncArg,
    /// How large files are written: past the page cache (direct), through it (buffered), or by the kind of disk
    #[arg(long, value_name = "HOW", value_enum, default_value_t = WritingArg::Auto)]
    write: WritingArg,
    #[command(flatten)]
    reach: Reach,

    /// One JSON object on standard output at the end
    #[arg(long)]
    json: bool,
    /// No progress
    #[arg(short, long)]
    quiet: bool,
    /// Say more; twice: everything
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Write lanes, windows, buffers and disk waits over time to FILE, as JSON lines
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum SyncArg {
    Each,
    End,
    Never,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum WritingArg {
    Auto,
    Direct,
    Buffered,
}

/// The last word in JSON.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    files: u64,
    bytes: u64,
    skipped_files: u64,
    skipped_bytes: u64,
    seconds: f64,
    bits_per_second: f64,
    repeated_bytes: u64,
    lanes: usize,
    control: Option<&'a str>,
    rtt_ms: Option<f64>,
    problems: &'a [Told],
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct Told {
    path: String,
    reason: String,
}

/// How a copy ended.
struct Ended {
    result: anyhow::Result<()>,
    progress: ProgressNow,
    repeated_bytes: u64,
    seconds: f64,
    lanes: usize,
    control: Option<&'static str>,
    rtt: Option<Duration>,
    problems: Vec<Told>,
}

const TICK: Duration = Duration::from_millis(100);

impl Cp {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let terminal = Terminal::new();
        terminal.log(self.verbose);
        raise_open_file_limit();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let code = runtime.block_on(self.copy(&terminal));
        // Whoever still waits for a disk or a dead host does not hold up the end.
        runtime.shutdown_background();
        code
    }

    async fn copy(&self, terminal: &Terminal) -> anyhow::Result<ExitCode> {
        let (job, remote) = self.job()?;
        let only = self.listed_files()?;
        let (copy, told) = Copy::prepare(job, self.options(), only)?;
        let trace = self.trace.as_deref().map(Trace::create).transpose()?;
        let far = self.reach.reach(&remote).await?;
        let ended = self.run_session(terminal, copy, told, far, trace).await?;
        let code = match &ended.result {
            Ok(_) if ended.problems.is_empty() => ExitCode::SUCCESS,
            Ok(_) => ExitCode::from(1),
            Err(_) => ExitCode::from(2),
        };
        self.report(terminal, &ended)?;
        Ok(code)
    }

    async fn run_session(
        &self,
        terminal: &Terminal,
        copy: Copy,
        mut told: mpsc::UnboundedReceiver<Problem>,
        far: Far,
        mut trace: Option<Trace>,
    ) -> anyhow::Result<Ended> {
        let began = Instant::now();
        let (session, ssh) = self.reach.connect(far, COPIES, copy.handler()).await?;
        let control = session.control_kind();
        let progress = copy.progress();
        let mut line = (!self.quiet).then(|| ProgressLine::new(terminal, progress.clone()));
        let mut problems = Vec::new();
        let mut lanes = 0;
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let result = {
            let run = copy.run(&session);
            let stop = until_told_to_stop();
            tokio::pin!(run, stop);
            loop {
                tokio::select! {
                    result = &mut run => break result.map_err(say_what_next),
                    Some(problem) = told.recv() => problems.push(tell(terminal, problem)),
                    _ = ticks.tick() => {
                        lanes = lanes.max(session.lane_count());
                        if let Some(line) = &mut line {
                            line.tick(session.lane_count());
                        }
                        if let Some(trace) = &mut trace {
                            trace.copying(&session, &progress.now())?;
                        }
                    }
                    () = &mut stop => {
                        break Err(anyhow::anyhow!("interrupted; the same command goes on from here"));
                    }
                }
            }
        };
        let seconds = began.elapsed().as_secs_f64();
        let rtt = session.rtt();
        let repeated_bytes = session.sample().repeated_bytes;
        if let Some(trace) = &mut trace {
            trace.copying(&session, &progress.now())?;
        }
        end_session(session, ssh).await;
        // The far end's last problems came before its last word.
        while let Ok(problem) = told.try_recv() {
            problems.push(tell(terminal, problem));
        }
        if let Some(line) = line {
            line.clear();
        }
        let progress = progress.now();
        Ok(Ended { result, progress, repeated_bytes, seconds, lanes, control, rtt, problems })
    }

    fn report(&self, terminal: &Terminal, ended: &Ended) -> anyhow::Result<()> {
        let progress = ended.progress;
        let bits_per_second = progress.done_bytes as f64 * 8.0 / ended.seconds;
        if let Err(error) = &ended.result {
            terminal.say(&harmless(&format!("longhaul: {error:#}")));
        } else if !self.quiet {
            let did = if self.dry_run { "would copy" } else { "copied" };
            let skipped = match progress.skipped_files {
                0 => String::new(),
                n => format!("; {n} were there already"),
            };
            let problems = match ended.problems.len() {
                0 => String::new(),
                n => format!("; {n} PROBLEMS, named above"),
            };
            terminal.say(&format!(
                "{did} {} files, {} in {:.1} s ({}), {} lanes{skipped}{problems}",
                progress.done_files,
                show_size(progress.done_bytes),
                ended.seconds,
                show_rate(bits_per_second),
                ended.lanes,
            ));
        }
        if self.json {
            let summary = Summary {
                files: progress.done_files,
                bytes: progress.done_bytes,
                skipped_files: progress.skipped_files,
                skipped_bytes: progress.skipped_bytes,
                seconds: ended.seconds,
                bits_per_second,
                repeated_bytes: ended.repeated_bytes,
                lanes: ended.lanes,
                control: ended.control,
                rtt_ms: ended.rtt.map(|rtt| rtt.as_secs_f64() * 1e3),
                problems: &ended.problems,
                error: ended.result.as_ref().err().map(|error| format!("{error:#}")),
            };
            print_out(&format!("{}\n", serde_json::to_string(&summary)?))?;
        }
        Ok(())
    }

    /// What goes where, and the far host.
    fn job(&self) -> anyhow::Result<(Job, Place)> {
        let places: Vec<Place> = self
            .paths
            .iter()
            .map(|path| Place::parse(path).map_err(anyhow::Error::msg))
            .collect::<Result<_, _>>()?;
        let (to, from) = places.split_last().context("a destination is needed")?;
        let hosts: Vec<String> = from.iter().filter_map(Place::host).collect();
        match (to, hosts.first()) {
            (Place::Here(_), None) => bail!(
                "both sides are on this host: use cp; a far place is written longhaul://HOST/EXPORT/PATH or HOST:PATH"
            ),
            (Place::Here(here), Some(host)) => {
                if hosts.len() != from.len() || hosts.iter().any(|other| other != host) {
                    bail!("all sources must be on one far host");
                }
                let sources = from.iter().filter_map(|place| far_path(place).map(<[u8]>::to_vec)).collect();
                let in_exports = matches!(from[0], Place::Server { .. });
                Ok((Job::Pull { sources, in_exports, destination: here.clone() }, from[0].clone()))
            }
            (_, Some(_)) => bail!("both sides are far away: run longhaul on one of the two hosts"),
            (far, None) => {
                let sources = from
                    .iter()
                    .filter_map(|place| match place {
                        Place::Here(path) => Some(path.clone()),
                        _ => None,
                    })
                    .collect();
                let destination = far_path(far).unwrap_or_default().to_vec();
                Ok((Job::Push { sources, destination }, far.clone()))
            }
        }
    }

    fn options(&self) -> CopyOptions {
        let ends_in_slash = self.paths.last().is_some_and(|to| to.as_bytes().ends_with(b"/"));
        let existing = match () {
            () if self.force => Existing::Replace,
            () if self.update => Existing::SkipNewer,
            () if self.ignore_existing => Existing::SkipAll,
            () => Existing::SkipEqual,
        };
        let sync = match self.sync {
            SyncArg::Each => Sync::Each,
            SyncArg::End => Sync::End,
            SyncArg::Never => Sync::Never,
        };
        let writing = match self.write {
            WritingArg::Auto => Writing::Auto,
            WritingArg::Direct => Writing::Direct,
            WritingArg::Buffered => Writing::Buffered,
        };
        CopyOptions {
            recursive: self.recursive || self.archive,
            preserve: self.preserve || self.archive,
            xattrs: self.xattrs || self.archive,
            hard_links: self.hard_links || self.archive,
            specials: self.archive,
            follow_links: self.dereference,
            existing: existing.into(),
            sync: sync.into(),
            writing: writing.into(),
            dry_run: self.dry_run,
            excludes: self.exclude.clone(),
            into_directory: self.into || ends_in_slash,
        }
    }

    /// The list of `--files-from`.
    fn listed_files(&self) -> anyhow::Result<Vec<RelPath>> {
        let Some(file) = &self.files_from else { return Ok(Vec::new()) };
        if self.paths.len() != 2 {
            bail!("--files-from needs exactly one source, which its names are relative to");
        }
        let bytes = if file.as_os_str() == "-" {
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut std::io::stdin(), &mut bytes)?;
            bytes
        } else {
            std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?
        };
        let end = if self.from0 { 0 } else { b'\n' };
        let names = bytes.split(|&b| b == end).filter(|name| !name.is_empty());
        let paths = names.map(|name| {
            RelPath::new(name)
                .with_context(|| format!("in the list of files: `{}`", String::from_utf8_lossy(name)))
        });
        let paths = paths.collect::<anyhow::Result<Vec<_>>>()?;
        if paths.is_empty() {
            bail!("{} lists no files", file.display());
        }
        Ok(paths)
    }
}

/// Ends a session in order, and the far program.
pub(super) async fn end_session(session: Session, ssh: Option<tokio::process::Child>) {
    session.close().await;
    if let Some(mut ssh) = ssh {
        drop(ssh.stdin.take());
        // It ends by itself; if the host is out of reach, with this process.
        let _ = tokio::time::timeout(Duration::from_secs(2), ssh.wait()).await;
    }
}

/// What broke off can go on; what was refused would be refused again.
fn say_what_next(error: CopyError) -> anyhow::Error {
    match error {
        CopyError::Session(_) | CopyError::Abandoned => {
            anyhow::anyhow!("{error}; run the command again: it goes on from here")
        }
        error => error.into(),
    }
}

fn far_path(place: &Place) -> Option<&[u8]> {
    match place {
        Place::Here(_) => None,
        Place::Server { path, .. } | Place::Ssh { path, .. } => Some(path),
    }
}

fn tell(terminal: &Terminal, problem: Problem) -> Told {
    // Names, and the words of a far host, may hold line ends and escapes.
    let path = shown(&problem.path).to_string();
    let reason = harmless(&problem.reason);
    let of = if path.is_empty() { String::new() } else { format!("{path}: ") };
    terminal.say(&format!("longhaul: {of}{reason}"));
    Told { path, reason }
}
