//! What is to be shown of a record, before it is decided how: facts, a summary in words, charts, tables, doubts.
//!
//! A terminal ([`plain`](crate::plain)) and a page ([`page`](crate::page)) show the same sheet. Words may hold `code`
//! between backquotes.

pub(crate) mod copies;
pub(crate) mod emulator;
pub(crate) mod io;
pub(crate) mod path;
pub(crate) mod reports;
pub(crate) mod targets;
pub(crate) mod trace;

use crate::chart::Chart;
use crate::record::{Environment, LeftOut, Link, Verdict};
use crate::series::{Series, Value};
use crate::table::{significant, size};

/// A record, to be shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sheet {
    /// Of the record.
    pub title: String,
    /// Where, when and with what: names and values.
    pub facts: Vec<(&'static str, String)>,
    /// What it shows, in sentences.
    pub summary: Vec<String>,
    /// One for each link, case or place.
    pub parts: Vec<Part>,
}

/// What belongs to one link, case or place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Part {
    /// Of what.
    pub title: String,
    /// What must be known to read the rest.
    pub about: Vec<String>,
    /// Pictures.
    pub charts: Vec<Chart>,
    /// Figures.
    pub tables: Vec<Table>,
    /// Why the emulator does not vouch for its link.
    pub doubts: Vec<String>,
    /// What else there is to say.
    pub notes: Vec<String>,
}

/// Some figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// What they are, with their unit.
    pub caption: String,
    /// Names of the columns; the first one's cells are words, the others' figures.
    pub head: Vec<String>,
    /// From top to bottom.
    pub rows: Vec<Vec<Cell>>,
    /// Shown when it is asked for, where that can be.
    pub is_detail: bool,
}

/// One field of a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// What stands in it.
    pub words: String,
    /// What it means.
    pub tone: Tone,
}

/// What a cell means, beyond its words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Nothing.
    #[default]
    Plain,
    /// It is the best.
    Best,
    /// It is not as it shall be, or in doubt.
    Bad,
}

/// What marks in tables mean: shown once a page.
pub const MARKS: &str = "~ cut off at the limit, and projected; † the emulator does not vouch for its link; ( ) disturbed: more than 1 % (of runs on mounts, 0.5 %) of \
     the processors' time went to other machines on the same host; ± standard deviation of one run";

impl Cell {
    fn of(words: impl Into<String>) -> Self {
        Self { words: words.into(), tone: Tone::Plain }
    }

    fn toned(words: impl Into<String>, tone: Tone) -> Self {
        Self { words: words.into(), tone }
    }

    fn or_dash(words: Option<String>) -> Self {
        Self::of(words.unwrap_or_else(|| "-".to_owned()))
    }
}

impl Table {
    fn new(caption: impl Into<String>, head: &[&str], rows: Vec<Vec<Cell>>) -> Self {
        let head = head.iter().map(|name| (*name).to_owned()).collect();
        Self { caption: caption.into(), head, rows, is_detail: false }
    }
}

/// `~3.25`, `941†`, `(812)`.
fn marked(value: &Value) -> String {
    let cut = if value.is_cut { "~" } else { "" };
    let doubt = if value.is_doubted { "†" } else { "" };
    let words = format!("{cut}{}{doubt}", significant(value.value));
    if value.is_disturbed { format!("({words})") } else { words }
}

/// All raw runs of some series.
fn every_run(all: &[&Series]) -> Table {
    let with_lengths = all.iter().any(|series| series.call_bytes.is_some());
    let mut head = vec!["of", "figure"];
    head.extend(with_lengths.then_some("call"));
    head.push("every run, in order");
    let rows = all
        .iter()
        .map(|series| {
            let mut runs: Vec<String> = series.values.iter().map(marked).collect();
            runs.extend((0..series.failed).map(|_| "FAILED".to_owned()));
            let mut row = vec![Cell::of(&series.tool), Cell::of(&series.figure)];
            row.extend(with_lengths.then(|| Cell::or_dash(series.call_bytes.map(size_of_call))));
            row.push(Cell::of(runs.join(" ")));
            row
        })
        .collect();
    Table { is_detail: true, ..Table::new("Every run", &head, rows) }
}

/// `64 KiB`.
fn size_of_call(bytes: u64) -> String {
    crate::io::in_words(bytes)
}

/// The machine and the programs.
fn facts(environment: &Environment) -> Vec<(&'static str, String)> {
    let Environment { date, system, kernel, cpu, cores, memory_bytes, sysctls, program, rivals, command } =
        environment;
    let join = |pairs: Vec<String>, between: &str| pairs.join(between);
    let settings = sysctls.iter().map(|(name, value)| format!("`{name} = {value}`")).collect();
    let beside = rivals.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let revision =
        if program.revision.is_empty() { String::new() } else { format!(" ({})", program.revision) };
    let host = if *cores == 0 {
        String::new()
    } else {
        format!("{cores} × {cpu}, {} of memory", size(*memory_bytes))
    };
    let all = [
        ("When", date.clone()),
        ("Program", format!("{}{revision}", program.version)),
        ("Host", host),
        ("System", system.clone()),
        ("Kernel", kernel.clone()),
        ("Settings", join(settings, ", ")),
        ("Beside", join(beside, ", ")),
        ("Command", code(command)),
    ];
    // `longhaul bench` keeps none of it: then that is said, and not left out in silence.
    if all.iter().all(|fact| fact.1.is_empty()) {
        return vec![("Host", "not recorded".to_owned())];
    }
    all.into_iter().filter(|fact| !fact.1.is_empty()).collect()
}

/// A command, as words of a sheet; nothing for none.
fn code(command: &[String]) -> String {
    if command.is_empty() { String::new() } else { format!("`{}`", command.join(" ")) }
}

fn link_command(link: &Link) -> Option<String> {
    (!link.command.is_empty()).then(|| format!("Link: {}", code(&link.command)))
}

fn left_out(all: &[LeftOut]) -> impl Iterator<Item = String> {
    all.iter().map(|out| format!("{}: not run: {}", out.tool, out.reason))
}

fn doubt(of: &str, verdict: &Verdict) -> Option<String> {
    (!verdict.trusted).then(|| format!("{of}: {}", verdict.doubts.join("; ")))
}

/// How far the emulator vouches for what was measured.
fn trust_in_words(verdicts: &[&Verdict]) -> Option<String> {
    let doubted = verdicts.iter().filter(|verdict| !verdict.trusted).count();
    match (verdicts.len(), doubted) {
        (0, _) => None,
        (1, 0) => Some("The emulator vouches for its link.".to_owned()),
        (all, 0) => Some(format!("The emulator vouches for its link in all {all} runs.")),
        (all, _) => Some(format!(
            "The emulator doubts its own link in {doubted} of {all} runs: they count, and are marked with †."
        )),
    }
}

/// Words without those that were there before.
fn once(words: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for each in words {
        if !all.contains(&each) {
            all.push(each);
        }
    }
    all
}

/// `file` or `files`.
fn plural(count: usize, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}
