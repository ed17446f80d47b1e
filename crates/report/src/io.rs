//! The record of file I/O by the length of a call: what the reports on SRFS on Ether measured (JAXA RR-05-004, 2005), for any
//! file systems side by side.
//!
//! A program writes and reads one file from its beginning to its end, in calls of one length. The rate is the bytes over
//! the time from the first call to the return of the last, and of close(2) where it wrote: what a file system still has to
//! do then is part of it.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use serde::{Deserialize, Serialize};

use crate::record::{Environment, LeftOut, Link, ReadError, Verdict};
use crate::series::counted;
use crate::table::{machine, markdown, significant};

/// Name and version of the schema, first in every record.
pub const SCHEMA: &str = "longhaul-io/1";

/// The name of the server's own disk, without a link, among systems.
pub const LOCAL: &str = "local disk";

/// What is done to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// A new file is written.
    CreateWrite,
    /// One that is there is written over.
    Overwrite,
    /// A file is read through a mount that has just been made.
    ReadAfterMount,
    /// The file that was written before is read through the same mount.
    ReadAfterWrite,
}

impl Pattern {
    /// All, in the reports' order.
    pub const ALL: [Self; 4] =
        [Self::CreateWrite, Self::Overwrite, Self::ReadAfterMount, Self::ReadAfterWrite];
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CreateWrite => "create write",
            Self::Overwrite => "overwrite",
            Self::ReadAfterMount => "read after mount",
            Self::ReadAfterWrite => "read after write",
        })
    }
}

/// Measurements over some links.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Io {
    /// [`SCHEMA`].
    pub schema: String,
    /// What was measured, in a few words.
    pub title: String,
    /// Where, when and with what.
    pub environment: Environment,
    /// Each link, in the order in which they were measured.
    pub places: Vec<Place>,
}

/// File systems beside each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// Short name.
    pub name: String,
    /// What is between the file systems and their files, where that is known.
    pub link: Option<Link>,
    /// Length of the file.
    pub file_bytes: u64,
    /// A run was ended after this long.
    pub limit_seconds: f64,
    /// What a shell was given before each run, which was not timed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepare: Option<String>,
    /// The commands that made the file systems, by their names.
    pub systems: Vec<System>,
    /// File systems without runs, and why.
    pub left_out: Vec<LeftOut>,
    /// Every one, in the order in which they were made.
    pub runs: Vec<Run>,
    /// The emulator's word on each network that was up, in the order of time.
    pub verdicts: Vec<Verdict>,
}

/// A file system that is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct System {
    /// Short name.
    pub name: String,
    /// Whether it encrypts what it sends, where that is known.
    pub encrypted: Option<bool>,
    /// How it was mounted.
    pub command: Vec<String>,
}

/// A file, written or read once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Of which file system.
    pub system: String,
    /// What was done.
    pub pattern: Pattern,
    /// Bytes of each call.
    pub length: u64,
    /// From 1.
    pub round: u32,
    /// Bytes that were written or read.
    pub bytes: u64,
    /// In so many calls.
    pub calls: u64,
    /// From the first call to the return of the last, and of close(2) where it wrote.
    pub seconds: f64,
    /// In the calls alone.
    pub call_seconds: f64,
    /// The longest of them.
    pub longest_seconds: f64,
    /// It was ended at its limit: fewer bytes than the file has.
    pub cut: bool,
    /// Share of the machine's processor time that its own host gave to others meanwhile, of 1 (`steal` in
    /// proc_stat(5)); unknown in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stolen: Option<f64>,
    /// Why it did not come to its end.
    pub failure: Option<String>,
}

/// A run that lost a larger share of the processors than this is not compared: with a full link, what two file systems differ by is less.
pub const STOLEN_MAX: f64 = 0.005;

impl Run {
    /// Whether it had the machine to itself, as far as is known.
    #[must_use]
    pub fn is_undisturbed(&self) -> bool {
        self.stolen.is_none_or(|share| share <= STOLEN_MAX)
    }

    /// Of its bytes; `None` where it failed.
    #[must_use]
    pub fn mbps(&self) -> Option<f64> {
        let rate = self.bytes as f64 * 8e-6 / self.seconds;
        (self.failure.is_none() && rate.is_finite()).then_some(rate)
    }
}

impl Io {
    /// A record without measurements.
    #[must_use]
    pub fn new(title: &str, environment: Environment) -> Self {
        Self { schema: SCHEMA.to_owned(), title: title.to_owned(), environment, places: Vec::new() }
    }

    /// As JSON, for people too.
    ///
    /// # Errors
    /// When a figure is not a number JSON can hold.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Reads a record.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn from_json(text: &str) -> Result<Self, ReadError> {
        crate::record::read(SCHEMA, text)
    }

    /// Everything as Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!("# {}\n\n{}", self.title, machine(&self.environment));
        text.push_str(LEGEND);
        for place in &self.places {
            let _ = write!(text, "\n## {}\n{}", place.name, place.markdown());
        }
        text
    }
}

/// A line for each link of each record, in the order in which they are given: how fast `subject` is by pattern, the lowest and the highest mean
/// of its lengths in Mbit/s, and at how many of them it is ahead of every rival's mean.
#[must_use]
pub fn overview(records: &[(String, Io)], subject: &str) -> String {
    let mut head = vec!["record", "CPU", "program", "link", "file", "rivals", "rounds", "doubted"];
    let patterns = Pattern::ALL.map(|pattern| pattern.to_string());
    head.extend(patterns.iter().map(String::as_str));
    let rows: Vec<Vec<String>> = records
        .iter()
        .flat_map(|(name, record)| record.places.iter().map(move |place| (name, &record.environment, place)))
        .map(|(name, environment, place)| {
            let lengths = place.lengths().len();
            let rivals: Vec<&str> = place.rivals(subject).collect();
            let doubted = place.verdicts.iter().filter(|verdict| !verdict.trusted).count();
            let mut row = vec![
                name.clone(),
                environment.cpu.clone(),
                environment.program.revision.chars().take(7).collect(),
                place.name.clone(),
                format!(
                    "{}, {lengths} length{}",
                    in_words(place.file_bytes),
                    if lengths == 1 { "" } else { "s" }
                ),
                if rivals.is_empty() { "-".to_owned() } else { rivals.join(", ") },
                place.runs.iter().map(|run| run.round).max().unwrap_or(0).to_string(),
                format!("{doubted} of {}", place.verdicts.len()),
            ];
            row.extend(Pattern::ALL.map(|pattern| place.standing(subject, pattern)));
            row
        })
        .collect();
    markdown(&head, &rows)
}

const LEGEND: &str = "\nMbit/s of files' bytes, from the first call to the return of the last, and of close(2) where it \
    wrote: the mean of the rounds, and each round. `~`: ended at the limit; `( )` of one round: disturbed, the machine's own host had more than 0.5 % of its processors \
    meanwhile; such rounds do not count where there are others. \"2005\": the means that JAXA RR-05-004 gives for SRFS and NFS, over a \
    link of 4 ms those of its path through a VPN, else of its direct path (1 Gbit/s x 3.3 ms).\n";

/// One of the two networks that JAXA RR-05-004 measured over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// 1 Gbit/s x 3.3 ms.
    Direct,
    /// Through a VPN: 4.0 ms.
    Vpn,
}

impl Connection {
    fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Vpn => "vpn",
        }
    }

    /// For people.
    #[must_use]
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Direct => "its direct path, 1 Gbit/s x 3.3 ms",
            Self::Vpn => "its path through a VPN, 4.0 ms",
        }
    }
}

impl Place {
    /// The one that what is measured here stands beside.
    #[must_use]
    pub fn connection(&self) -> Connection {
        const VPN_US: u64 = 4000;
        if self.link.as_ref().is_some_and(|link| link.rtt_us == VPN_US) {
            Connection::Vpn
        } else {
            Connection::Direct
        }
    }

    fn lengths(&self) -> BTreeSet<u64> {
        self.runs.iter().map(|run| run.length).collect()
    }

    pub(crate) fn runs_of(&self, system: &str, pattern: Pattern, length: u64) -> impl Iterator<Item = &Run> {
        self.runs
            .iter()
            .filter(move |run| (run.system.as_str(), run.pattern, run.length) == (system, pattern, length))
    }

    /// The mean of all rounds that nothing disturbed, or of all where there is no such; `None` where one failed, or there is none.
    #[must_use]
    pub fn mean(&self, system: &str, pattern: Pattern, length: u64) -> Option<f64> {
        let runs: Vec<&Run> = self.runs_of(system, pattern, length).collect();
        if runs.iter().any(|run| run.mbps().is_none()) {
            return None;
        }
        let rates: Vec<f64> =
            counted(&runs, |run| !run.is_undisturbed()).filter_map(|run| run.mbps()).collect();
        (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64)
    }

    /// All that took part but `subject`, and but a disk without a link, which is a ceiling.
    fn rivals<'a>(&'a self, subject: &'a str) -> impl Iterator<Item = &'a str> {
        let names = self.systems.iter().map(|system| system.name.as_str());
        names.filter(move |name| *name != subject && *name != LOCAL)
    }

    /// `904 to 932, ahead at 8 of 8`.
    fn standing(&self, subject: &str, pattern: Pattern) -> String {
        let (mut means, mut ahead, mut compared) = (Vec::new(), 0, 0);
        for length in self.lengths() {
            let Some(mean) = self.mean(subject, pattern, length) else { continue };
            means.push(mean);
            let rivals: Vec<f64> =
                self.rivals(subject).filter_map(|rival| self.mean(rival, pattern, length)).collect();
            compared += usize::from(!rivals.is_empty());
            ahead += usize::from(!rivals.is_empty() && rivals.iter().all(|rival| mean > *rival));
        }
        let Some(least) = means.iter().copied().reduce(f64::min) else { return "-".to_owned() };
        let most = means.iter().copied().fold(least, f64::max);
        let mut text = significant(least);
        if most > least {
            let _ = write!(text, " to {}", significant(most));
        }
        if compared > 0 {
            let _ = write!(text, ", ahead at {ahead} of {compared}");
        }
        text
    }

    /// A table for each pattern, and what there is to say.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        for pattern in Pattern::ALL {
            if !self.runs.iter().any(|run| run.pattern == pattern) {
                continue;
            }
            let _ = write!(text, "\n{pattern}\n\n");
            let mut head = vec!["length"];
            head.extend(self.systems.iter().map(|system| system.name.as_str()));
            head.extend(["SRFS 2005", "NFS 2005"]);
            let rows: Vec<Vec<String>> = self
                .lengths()
                .into_iter()
                .map(|length| {
                    let own = self.systems.iter().map(|system| self.cell(&system.name, pattern, length));
                    let published = ["SRFS", "NFS"].map(|system| {
                        published(self.connection(), system, pattern, length)
                            .map_or_else(|| "-".to_owned(), significant)
                    });
                    std::iter::once(in_words(length)).chain(own).chain(published).collect()
                })
                .collect();
            text.push_str(&markdown(&head, &rows));
        }
        let mut notes: Vec<String> = Vec::new();
        for system in &self.systems {
            let secret = match system.encrypted {
                Some(true) => ", encrypted",
                Some(false) => ", in the clear",
                None => "",
            };
            let command = system.command.join(" ");
            notes.push(format!("{}{secret}: `{command}`", system.name));
        }
        notes.extend(self.prepare.iter().map(|prepare| format!("before each run: `{prepare}`")));
        notes.extend(self.link.iter().map(|link| format!("link: `{}`", link.command.join(" "))));
        notes.push(format!(
            "a file of {}, each run at most {} s",
            in_words(self.file_bytes),
            significant(self.limit_seconds)
        ));
        let doubted = self.verdicts.iter().filter(|verdict| !verdict.trusted).count();
        if self.link.is_some() {
            notes.push(format!(
                "the emulator doubts {doubted} of {} networks that were up",
                self.verdicts.len()
            ));
        }
        notes.extend(self.left_out.iter().map(|out| format!("{}: not run: {}", out.tool, out.reason)));
        for run in &self.runs {
            if let Some(failure) = &run.failure {
                let (system, length) = (&run.system, in_words(run.length));
                let note = format!("{system}, {}, {length}, round {}: {failure}", run.pattern, run.round);
                notes.push(note);
            }
        }
        text.push('\n');
        for note in notes {
            let _ = writeln!(text, "- {note}");
        }
        text
    }

    fn cell(&self, system: &str, pattern: Pattern, length: u64) -> String {
        let runs: Vec<&Run> = self.runs_of(system, pattern, length).collect();
        if runs.is_empty() {
            return "-".to_owned();
        }
        let each: Vec<String> = runs
            .iter()
            .map(|run| {
                let Some(rate) = run.mbps().map(significant) else { return "FAILED".to_owned() };
                let rate = if run.cut { format!("~{rate}") } else { rate };
                if run.is_undisturbed() { rate } else { format!("({rate})") }
            })
            .collect();
        match self.mean(system, pattern, length) {
            Some(mean) if each.len() > 1 => format!("{} ({})", significant(mean), each.join(" ")),
            _ => each.join(" "),
        }
    }
}

/// `64 KiB`.
pub(crate) fn in_words(bytes: u64) -> String {
    match bytes {
        whole if whole >= 1 << 30 && whole.is_multiple_of(1 << 30) => format!("{} GiB", whole >> 30),
        whole if whole >= 1 << 20 && whole.is_multiple_of(1 << 20) => format!("{} MiB", whole >> 20),
        whole if whole >= 1 << 10 && whole.is_multiple_of(1 << 10) => format!("{} KiB", whole >> 10),
        bytes => format!("{bytes} B"),
    }
}

/// What JAXA RR-05-004 (2005) gives: Mbit/s, the mean of three runs.
#[must_use]
pub fn published(on: Connection, system: &str, pattern: Pattern, length: u64) -> Option<f64> {
    published_line(on, system, pattern).into_iter().find(|row| row.0 == length).map(|row| row.1)
}

/// Pattern, length and mean of each of its rows.
fn published_rows(on: Connection, of: &str) -> impl Iterator<Item = (&'static str, u64, f64)> {
    let lines = include_str!("../reference/srfs-file-io.csv").lines().skip(1);
    lines.filter_map(move |line| {
        let fields: Vec<&str> = line.split(',').collect();
        let &[connection, system, pattern, length, .., mbps] = fields.as_slice() else { return None };
        (connection == on.name() && system == of).then_some(())?;
        Some((pattern, length.parse().ok()?, mbps.parse().ok()?))
    })
}

/// The published points of a pattern, by length.
pub(crate) fn published_line(on: Connection, system: &str, pattern: Pattern) -> Vec<(u64, f64)> {
    let pattern = pattern.to_string();
    published_rows(on, system).filter(|row| row.0 == pattern).map(|row| (row.1, row.2)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(system: &str, round: u32, seconds: f64) -> Run {
        Run {
            system: system.to_owned(),
            pattern: Pattern::Overwrite,
            length: 8192,
            round,
            bytes: 100_000_000,
            calls: 10,
            seconds,
            call_seconds: 0.5,
            longest_seconds: 0.1,
            cut: seconds > 5.0,
            stolen: None,
            failure: None,
        }
    }

    fn place(runs: Vec<Run>) -> Place {
        let system = |name: &str| System { name: name.to_owned(), encrypted: Some(true), command: vec![] };
        Place {
            name: "here".to_owned(),
            link: None,
            file_bytes: 100_000_000,
            limit_seconds: 10.0,
            prepare: None,
            systems: vec![system("one"), system("other")],
            left_out: Vec::new(),
            runs,
            verdicts: Vec::new(),
        }
    }

    #[test]
    fn an_overview_says_where_one_is_ahead_of_all() {
        let mut place = place(vec![run("one", 1, 1.0), run("one", 2, 2.0), run("other", 1, 8.0)]);
        let longer = |system: &str, seconds| Run { length: 1 << 20, ..run(system, 1, seconds) };
        place.runs.extend([longer("one", 4.0), longer("other", 2.0)]);
        // A ceiling is no rival.
        place.systems.push(System { name: LOCAL.to_owned(), encrypted: None, command: vec![] });
        place.runs.push(run(LOCAL, 1, 0.1));
        let mut io = Io::new("test", Environment::default());
        io.places.push(place);
        let text = overview(&[("then".to_owned(), io)], "one");
        let line = text.lines().last().unwrap();
        assert!(line.contains(" other |") && line.contains("200 to 600, ahead at 1 of 2"), "{text}");
        assert_eq!(line.matches(" - |").count(), 3, "what was not measured: {text}");
    }

    #[test]
    fn means_are_of_all_rounds() {
        let place = place(vec![run("one", 1, 1.0), run("one", 2, 2.0), run("other", 1, 8.0)]);
        assert_eq!(place.mean("one", Pattern::Overwrite, 8192), Some(600.0));
        assert_eq!(place.mean("one", Pattern::CreateWrite, 8192), None);
        let text = place.markdown();
        assert!(text.contains("| 8 KiB  | 600 (800 400) |  ~100 |"), "{text}");
        assert!(text.contains("8.50") || text.contains("8.5 "), "the published mean: {text}");
    }

    #[test]
    fn rounds_that_were_disturbed_count_only_where_there_are_no_others() {
        let disturbed = |round, seconds| Run { stolen: Some(0.006), ..run("one", round, seconds) };
        let mut place = place(vec![disturbed(1, 2.0)]);
        assert_eq!(place.mean("one", Pattern::Overwrite, 8192), Some(400.0));
        place.runs.push(Run { stolen: Some(0.004), ..run("one", 2, 1.0) });
        assert_eq!(place.mean("one", Pattern::Overwrite, 8192), Some(800.0));
        let text = place.markdown();
        assert!(text.contains("| 800 ((400) 800) |"), "{text}");
    }

    #[test]
    fn a_run_that_failed_has_no_rate() {
        let failed = Run { failure: Some("no room".to_owned()), ..run("one", 2, 1.0) };
        let place = place(vec![run("one", 1, 1.0), failed]);
        assert_eq!(place.mean("one", Pattern::Overwrite, 8192), None);
        let text = place.markdown();
        assert!(text.contains("800 FAILED") && text.contains("round 2: no room"), "{text}");
    }

    #[test]
    fn the_published_table_is_read_whole() {
        let rows = |on| published_rows(on, "SRFS").count() + published_rows(on, "NFS").count();
        assert_eq!((rows(Connection::Direct), rows(Connection::Vpn)), (84, 84));
        let direct = |system, pattern, length| published(Connection::Direct, system, pattern, length);
        assert_eq!(direct("NFS", Pattern::CreateWrite, 8192), Some(14.4373));
        assert_eq!(direct("SRFS", Pattern::ReadAfterMount, 65536), Some(15.6));
        assert_eq!(published(Connection::Vpn, "SRFS", Pattern::ReadAfterMount, 65536), Some(12.125));
        assert_eq!(published_line(Connection::Direct, "SRFS", Pattern::Overwrite).len(), 15);
    }

    #[test]
    fn records_round_trip() {
        let mut io = Io::new("t", Environment::default());
        io.places.push(place(vec![run("one", 1, 1.0)]));
        let text = io.to_json().unwrap();
        assert_eq!(Io::from_json(&text).unwrap(), io);
    }
}
