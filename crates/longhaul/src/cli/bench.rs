//! `longhaul bench`: experiments that the reports made, for any file systems.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use longhaul_emulator::processors::Processors;
use longhaul_report::Environment;
use longhaul_report::io::{Io, Pattern, Place, Run, System};

use super::bench_reports::BenchReports;
use super::print_out;
use crate::units::size;

/// Measure file systems, and make the reports' experiments again
#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Io(FileIo),
    Reports(BenchReports),
}

impl Bench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.what {
            What::Io(io) => io.run(),
            What::Reports(reports) => reports.run(),
        }
    }
}

/// File I/O by the length of a call, of directories side by side
///
/// A file is written and read from its beginning to its end in calls of one length: as a new file, written over, read through the
/// mount that wrote it, and read through a mount that has just been made. The rate counts from the first call to the return of
/// the last, and of close(2) where the file was written. What is read back is compared with what was written. Directories take
/// turns. Published figures of SRFS on Ether and NFS (JAXA RR-05-004, 2005) stand beside.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  longhaul bench io longhaul=/mnt/far sshfs=/mnt/sshfs
  longhaul bench io ~/far --length 8KiB --length 1MiB --size 1GiB --rounds 1
  longhaul bench io far=/mnt/far --remount 'umount \"$DIR\" && mount \"$DIR\"'
  longhaul bench io /mnt/far --prepare 'head -c 1G /dev/zero | tail -c 1G >/dev/null'

The last has the memory that a run will take touched before it: a virtual machine's free memory may be its hypervisor's, whose
faults are many times slower than the copies that are to be timed.

Exit codes: 0 all was measured; 1 some runs failed, each is named; 2 it could not begin, or not mount anew.")]
struct FileIo {
    /// Directories to measure in, each with a name to show [default: the directory's own]
    #[arg(required = true, value_name = "[NAME=]DIR")]
    systems: Vec<String>,
    /// Bytes of a call; can be given several times [default: 8KiB to 96MiB in eight steps]
    #[arg(long = "length", value_name = "SIZE", value_parser = size)]
    lengths: Vec<u64>,
    /// Length of the file; at least one call's
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "256MiB")]
    size: u64,
    /// Only this pattern; can be given several times [default: all]
    #[arg(long = "pattern", value_name = "PATTERN", value_enum)]
    patterns: Vec<PatternName>,
    /// Times that each run is made
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Longest time of a run: it ends with the call that passes it
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    limit: u64,
    /// What mounts a directory anew, for `read after mount`: run by sh, the directory is $DIR [default: without, this pattern is left
    /// out]
    #[arg(long, value_name = "COMMAND")]
    remount: Option<String>,
    /// What is run by sh before each run and is not timed; the directory is $DIR, and $PATTERN what follows, as in --pattern
    #[arg(long, value_name = "COMMAND")]
    prepare: Option<String>,
    /// File that is in each directory already, to be read after mounting instead of one that was written here
    #[arg(long, value_name = "NAME")]
    read: Option<PathBuf>,
    /// Print the record as JSON (schema longhaul-io/1) instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PatternName {
    CreateWrite,
    Overwrite,
    ReadAfterMount,
    ReadAfterWrite,
}

impl From<PatternName> for Pattern {
    fn from(name: PatternName) -> Self {
        match name {
            PatternName::CreateWrite => Self::CreateWrite,
            PatternName::Overwrite => Self::Overwrite,
            PatternName::ReadAfterMount => Self::ReadAfterMount,
            PatternName::ReadAfterWrite => Self::ReadAfterWrite,
        }
    }
}

/// From a small file system's block to the reports' longest.
const LENGTHS: [u64; 8] = [8 << 10, 64 << 10, 512 << 10, 1 << 20, 4 << 20, 16 << 20, 48 << 20, 96 << 20];

/// Longest call: a buffer is as long.
const LENGTH_MAX: u64 = 1 << 30;

/// The file that is written. Nobody's own will have that name.
const FILE: &str = "longhaul-bench-io.tmp";

/// What is in the directory afterwards is not what was to be measured.
const REMOUNT_FAILED: &str = "it cannot be mounted anew";

/// What came before, a long file that is removed as well, is over then, at the far end, too.
const REST: Duration = Duration::from_millis(if cfg!(test) { 0 } else { 1000 });

/// Each such page of the file begins with its place and the number of the run that wrote it.
const PAGE: usize = 4096;
const STAMP: usize = 16;

/// A directory to measure in.
struct Directory {
    name: String,
    path: PathBuf,
}

impl FileIo {
    fn run(self) -> anyhow::Result<ExitCode> {
        let directories = self.directories()?;
        let lengths = if self.lengths.is_empty() { LENGTHS.to_vec() } else { self.lengths.clone() };
        if let Some(length) = lengths.iter().find(|length| !(1..=LENGTH_MAX).contains(*length)) {
            bail!("a call of {length} bytes cannot be measured: --length is from 1 to 1GiB");
        }
        let mut patterns: Vec<Pattern> = self.patterns.iter().map(|name| (*name).into()).collect();
        if patterns.is_empty() {
            patterns = Pattern::ALL.to_vec();
        }
        if self.remount.is_none() && patterns.contains(&Pattern::ReadAfterMount) {
            if patterns.len() == 1 {
                bail!("`read-after-mount` takes --remount COMMAND");
            }
            patterns.retain(|pattern| *pattern != Pattern::ReadAfterMount);
            eprintln!("read after mount is left out: it takes --remount COMMAND");
        }
        // A write before what reads it; the file that was written over is read after mounting.
        let order =
            [Pattern::CreateWrite, Pattern::ReadAfterWrite, Pattern::Overwrite, Pattern::ReadAfterMount];
        let mut place = Place {
            name: "file I/O by the length of a call".to_owned(),
            link: None,
            file_bytes: self.size,
            limit_seconds: self.limit as f64,
            prepare: self.prepare.clone(),
            systems: directories.iter().map(Directory::record).collect(),
            left_out: Vec::new(),
            runs: Vec::new(),
            verdicts: Vec::new(),
        };
        let mut number = 0;
        for round in 1..=self.rounds {
            for &length in &lengths {
                let mut turn: Vec<&Directory> = directories.iter().collect();
                turn.rotate_left((round as usize - 1) % directories.len());
                for directory in turn {
                    for pattern in order.into_iter().filter(|pattern| patterns.contains(pattern)) {
                        number += 1;
                        let run = self.measure(directory, pattern, length, round, number);
                        if run.failure.as_ref().is_some_and(|failure| failure.starts_with(REMOUNT_FAILED)) {
                            bail!("{}: {}", directory.name, run.failure.unwrap_or_default());
                        }
                        eprintln!("{}", in_words(&run));
                        place.runs.push(run);
                    }
                    let _ = std::fs::remove_file(directory.path.join(FILE)); // it was never made
                }
            }
        }
        let failed = place.runs.iter().any(|run| run.failure.is_some());
        let mut record = Io::new("File I/O by the length of a call", Environment::default());
        record.places.push(place);
        if self.json {
            print_out(&record.to_json()?)?;
        } else {
            print_out(&record.places[0].markdown())?;
        }
        Ok(if failed { ExitCode::from(1) } else { ExitCode::SUCCESS })
    }

    fn directories(&self) -> anyhow::Result<Vec<Directory>> {
        let mut directories: Vec<Directory> = Vec::new();
        for text in &self.systems {
            let (name, path) = match text.split_once('=') {
                Some((name, path)) if !name.contains('/') => (name.to_owned(), PathBuf::from(path)),
                _ => (text.clone(), PathBuf::from(text)),
            };
            if !path.is_dir() {
                bail!("{} is no directory", path.display());
            }
            if directories.iter().any(|there| there.name == name) {
                bail!("two directories have the name {name}: write NAME=DIR");
            }
            directories.push(Directory { name, path });
        }
        Ok(directories)
    }

    fn measure(&self, directory: &Directory, pattern: Pattern, length: u64, round: u32, number: u64) -> Run {
        let mut run = Run {
            system: directory.name.clone(),
            pattern,
            length,
            round,
            bytes: 0,
            calls: 0,
            seconds: 0.0,
            call_seconds: 0.0,
            longest_seconds: 0.0,
            cut: false,
            stolen: None,
            failure: None,
        };
        let ready = self.make_ready(directory, pattern);
        std::thread::sleep(REST);
        let prepared = ready.and_then(|path| self.prepare(directory, pattern).map(|()| path));
        let processors = Processors::now();
        let done = prepared.and_then(|path| match pattern {
            Pattern::CreateWrite => self.write(&path, true, number, &mut run),
            Pattern::Overwrite => self.write(&path, false, number, &mut run),
            Pattern::ReadAfterMount | Pattern::ReadAfterWrite => self.read(&path, &mut run),
        });
        run.stolen = processors.and_then(Processors::stolen);
        run.failure = done.err().map(|error| format!("{error:#}"));
        run
    }

    /// The file to write or read, with what has to be there before.
    fn make_ready(&self, directory: &Directory, pattern: Pattern) -> anyhow::Result<PathBuf> {
        let mut path = directory.path.join(FILE);
        match pattern {
            Pattern::CreateWrite => match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            },
            Pattern::ReadAfterMount => {
                if let Some(read) = &self.read {
                    path = directory.path.join(read);
                } else if !path.exists() {
                    self.fill(&path)?;
                }
                let remount = self.remount.as_deref().context("--remount is missing")?;
                let status = directory.shell(remount).status()?;
                if !status.success() {
                    bail!("{REMOUNT_FAILED}: {status}");
                }
            }
            Pattern::Overwrite | Pattern::ReadAfterWrite => {
                if !path.exists() {
                    self.fill(&path)?;
                }
            }
        }
        Ok(path)
    }

    fn prepare(&self, directory: &Directory, pattern: Pattern) -> anyhow::Result<()> {
        let Some(prepare) = &self.prepare else { return Ok(()) };
        let pattern = pattern.to_string().replace(' ', "-"); // as in --pattern
        let status =
            directory.shell(prepare).env("PATTERN", pattern).status().context("--prepare cannot be run")?;
        if !status.success() {
            bail!("--prepare failed: {status}");
        }
        Ok(())
    }

    /// Writes a file that no time is taken of.
    fn fill(&self, path: &Path) -> anyhow::Result<()> {
        let mut unmeasured = Run {
            system: String::new(),
            pattern: Pattern::CreateWrite,
            length: 1 << 20,
            round: 0,
            bytes: 0,
            calls: 0,
            seconds: 0.0,
            call_seconds: 0.0,
            longest_seconds: 0.0,
            cut: false,
            stolen: None,
            failure: None,
        };
        self.write(path, true, 0, &mut unmeasured)
    }

    fn write(&self, path: &Path, is_new: bool, number: u64, run: &mut Run) -> anyhow::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(is_new).open(path).context("cannot open")?;
        let mut buffer = noise(run.length as usize);
        let begun = Instant::now();
        while run.bytes < self.size.max(run.length) && !self.is_at_limit(begun, run) {
            stamp(&mut buffer, run.bytes, number);
            let wanted = run.length.min(self.size.max(run.length) - run.bytes) as usize;
            let written = timed(run, || file.write(&buffer[..wanted])).context("cannot write")?;
            if written == 0 {
                bail!("nothing more can be written");
            }
            run.bytes += written as u64;
        }
        let closed = nix::unistd::close(file); // the standard library does not tell how that went
        run.seconds = begun.elapsed().as_secs_f64();
        closed.context("cannot close")
    }

    fn read(&self, path: &Path, run: &mut Run) -> anyhow::Result<()> {
        let mut file = File::open(path).context("cannot open")?;
        let checks = self.read.is_none() || run.pattern == Pattern::ReadAfterWrite;
        // Zeros would be pages that come one by one as they are read into: the longer the call, the more of them are timed.
        let mut buffer = vec![1; run.length as usize];
        let begun = Instant::now();
        while !self.is_at_limit(begun, run) {
            let read = timed(run, || file.read(&mut buffer)).context("cannot read")?;
            if read == 0 {
                break;
            }
            run.seconds = begun.elapsed().as_secs_f64();
            if checks && !is_stamped(&buffer[..read], run.bytes) {
                bail!("what was read at byte {} is not what was written", run.bytes);
            }
            run.bytes += read as u64;
        }
        if run.bytes == 0 {
            bail!("the file is empty");
        }
        Ok(())
    }

    fn is_at_limit(&self, begun: Instant, run: &mut Run) -> bool {
        run.cut = begun.elapsed() >= Duration::from_secs(self.limit);
        run.cut
    }
}

impl Directory {
    fn record(&self) -> System {
        System { name: self.name.clone(), encrypted: None, command: vec![self.path.display().to_string()] }
    }

    /// What a user's command says does not get into the record that is printed.
    fn shell(&self, command: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).env("DIR", &self.path).stdout(io::stderr());
        shell
    }
}

fn timed(run: &mut Run, call: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
    let begun = Instant::now();
    let result = call();
    let seconds = begun.elapsed().as_secs_f64();
    run.calls += 1;
    run.call_seconds += seconds;
    run.longest_seconds = run.longest_seconds.max(seconds);
    result
}

/// Bytes that do not compress.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        // xorshift64 (Marsaglia: Xorshift RNGs, 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut noise: Vec<u8> = std::iter::repeat_with(&mut next).take(bytes.div_ceil(8)).flatten().collect();
    noise.truncate(bytes);
    noise
}

/// Marks the pages of a buffer that will be at this place in the file.
fn stamp(buffer: &mut [u8], at: u64, number: u64) {
    for (page, place) in pages(buffer.len(), at) {
        buffer[page..page + 8].copy_from_slice(&place.to_le_bytes());
        buffer[page + 8..page + STAMP].copy_from_slice(&number.to_le_bytes());
    }
}

/// Whether all pages are at their places, and all of one run.
fn is_stamped(buffer: &[u8], at: u64) -> bool {
    let mut numbers = pages(buffer.len(), at).map(|(page, _)| &buffer[page + 8..page + STAMP]);
    let first = numbers.next();
    numbers.all(|number| Some(number) == first)
        && pages(buffer.len(), at).all(|(page, place)| buffer[page..page + 8] == place.to_le_bytes())
}

/// The pages that begin in a buffer, with their stamps: where in it, and where in the file.
fn pages(length: usize, at: u64) -> impl Iterator<Item = (usize, u64)> {
    let first = (at.next_multiple_of(PAGE as u64) - at) as usize;
    (first..length)
        .step_by(PAGE)
        .filter(move |page| page + STAMP <= length)
        .map(move |page| (page, at + page as u64))
}

fn in_words(run: &Run) -> String {
    let Run { system, pattern, length, round, .. } = run;
    let what = format!("{system}, round {round}, {pattern}, calls of {} KiB", length >> 10);
    match (&run.failure, run.mbps()) {
        (Some(failure), _) => format!("{what}: FAILED: {failure}"),
        (None, Some(rate)) => {
            format!("{what}: {rate:.0} Mbit/s{}", if run.cut { ", ended at the limit" } else { "" })
        }
        (None, None) => format!("{what}: over at once"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_tell_places_and_runs() {
        let mut buffer = noise(3 * PAGE);
        stamp(&mut buffer, 1000, 7);
        assert!(is_stamped(&buffer, 1000));
        assert!(!is_stamped(&buffer, 1000 + PAGE as u64), "elsewhere");
        let other = buffer.clone();
        stamp(&mut buffer, 1000, 8);
        buffer[2 * PAGE..].copy_from_slice(&other[2 * PAGE..]);
        assert!(!is_stamped(&buffer, 1000), "of two runs");
        // No page begins in it.
        assert!(is_stamped(&buffer[..8], 1000));
    }

    #[test]
    fn all_patterns_of_a_directory_are_measured() {
        let dir = tempfile::tempdir().unwrap();
        let io = FileIo {
            systems: vec![format!("here={}", dir.path().display())],
            lengths: vec![8192],
            size: 100_000,
            patterns: Vec::new(),
            rounds: 1,
            limit: 10,
            remount: Some("test -f \"$DIR/longhaul-bench-io.tmp\"".to_owned()),
            prepare: Some("echo $PATTERN >> \"$DIR/prepared\"".to_owned()),
            read: None,
            json: true,
        };
        let directory = &io.directories().unwrap()[0];
        for pattern in Pattern::ALL {
            let run = io.measure(directory, pattern, 8192, 1, 1);
            assert_eq!((run.failure.clone(), run.bytes, run.cut), (None, 100_000, false), "{pattern}");
            assert!(run.mbps().unwrap() > 0.0 && run.calls >= 13);
        }
        let prepared = std::fs::read_to_string(dir.path().join("prepared")).unwrap();
        assert!(prepared.lines().all(|pattern| PatternName::from_str(pattern, false).is_ok()));
        assert_eq!(prepared.lines().count(), Pattern::ALL.len());
        let unprepared = FileIo { prepare: Some("false".to_owned()), ..io };
        let run = unprepared.measure(directory, Pattern::ReadAfterWrite, 8192, 1, 1);
        assert!(run.failure.unwrap().starts_with("--prepare failed"));
        let io = FileIo { prepare: None, ..unprepared };
        // What was written by another run in the middle is found.
        let path = dir.path().join(FILE);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[5 * PAGE + 3] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let run = io.measure(directory, Pattern::ReadAfterWrite, 8192, 1, 1);
        assert!(run.failure.unwrap().contains("not what was written"));
    }
}
