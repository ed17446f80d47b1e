//! The record of `bench targets`: what the product promises, measured, and whether it holds.
//!
//! JSON of its own beside [`Report`](crate::Report), since a figure here may come from a trace or from two kinds of runs;
//! runs, links, data and the machine are kept in the same shapes as there. Figures are derived from trials here and
//! nowhere else.
//!
//! Invariant: a target holds only when every round has its figure and every figure is within it. Rounds in which the
//! machine's own host gave processor time to others ([`Run::is_undisturbed`]) are shown and not judged by, unless there
//! are no others.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::record::{Data, End, Environment, LeftOut, Link, ReadError, Run, Usage};
use crate::summary::median;
use crate::table::{amount, disturbance, machine, markdown, significant};

/// Name and version of the schema, first in every record.
pub const SCHEMA: &str = "longhaul-targets/1";

/// A series of cases on one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Targets {
    /// [`SCHEMA`].
    pub schema: String,
    /// What was measured, in a few words.
    pub title: String,
    /// Where, when and with what.
    pub environment: Environment,
    /// In the order in which they were measured.
    pub cases: Vec<Case>,
}

/// What is measured over one link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Short name, as on the command line.
    pub name: String,
    /// In words, with all that must be known to read the figures.
    pub about: String,
    /// Between the two hosts.
    pub link: Link,
    /// What is copied: one for each kind of trial that copies, and of its name.
    pub data: Vec<Data>,
    /// Kinds of trials that were not made, and why.
    pub left_out: Vec<LeftOut>,
    /// Every one, in the order in which they were made.
    pub trials: Vec<Trial>,
    /// What follows from the trials: [`Case::derive`].
    pub figures: Vec<Figure>,
    /// Rounds that were disturbed, and so do not count while there are others; derived as well.
    #[serde(default)]
    pub disturbed: Vec<u32>,
}

/// One run, and what its trace says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Its kind: `disk to disk`, `tree`, `iperf3 -P 4`. Each occurs once a round.
    pub what: String,
    /// The run.
    pub run: Run,
    /// [`Trace::steady_bps`](crate::Trace::steady_bps).
    pub steady_bps: Option<f64>,
    /// [`Trace::seconds_until`](crate::Trace::seconds_until) 90 % of the steady rate.
    pub rise_seconds: Option<f64>,
}

/// A figure, from every round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// How it is computed.
    pub measure: Measure,
    /// What it shall be, if anything.
    pub target: Option<Target>,
    /// One for each round; none where a run did not end well.
    pub rounds: Vec<Option<f64>>,
    /// Over the rounds that count and have one.
    pub median: Option<f64>,
    /// In every round that counts.
    pub holds: Option<bool>,
}

/// How a figure is computed from the trials of a round, which are named by their kinds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Measure {
    /// All bytes over the time of the command from its start to its exit, in Mbit/s.
    Whole {
        /// Of which trial.
        of: String,
    },
    /// [`Trial::steady_bps`], in Mbit/s.
    Steady {
        /// Of which trial.
        of: String,
    },
    /// [`Trial::rise_seconds`].
    Rise {
        /// Of which trial.
        of: String,
    },
    /// The time of one over the time of another.
    TimeRatio {
        /// The one.
        of: String,
        /// The other.
        to: String,
    },
    /// The whole rate of one over that of another.
    RateRatio {
        /// The one.
        of: String,
        /// The other.
        to: String,
    },
}

/// The bound of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
    /// Neither less than the first nor more than the second.
    Between(f64, f64),
}

impl Target {
    pub(crate) fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
            Self::Between(low, high) => (low..=high).contains(&value),
        }
    }

    /// What values are compared with: one bound or two.
    pub(crate) fn bounds(self) -> Vec<f64> {
        match self {
            Self::AtLeast(bound) | Self::AtMost(bound) => vec![bound],
            Self::Between(low, high) => vec![low, high],
        }
    }

    pub(crate) fn in_words(self) -> String {
        match self {
            Self::AtLeast(bound) => format!(">= {bound}"),
            Self::AtMost(bound) => format!("<= {bound}"),
            Self::Between(low, high) => format!("{} to {}", significant(low), significant(high)),
        }
    }
}

impl Measure {
    fn in_words(&self) -> String {
        match self {
            Self::Whole { of } => format!("{of}: whole, Mbit/s"),
            Self::Steady { of } => format!("{of}: steady, Mbit/s"),
            Self::Rise { of } => format!("{of}: seconds to 90 % of steady"),
            Self::TimeRatio { of, to } => format!("time of {of} / {to}"),
            Self::RateRatio { of, to } => format!("rate of {of} / {to}"),
        }
    }

    /// Of the trials of one round.
    fn value(&self, round: &[&Trial]) -> Option<f64> {
        let trial = |what: &str| {
            round.iter().find(|trial| trial.what == what && trial.run.end == End::Complete).copied()
        };
        let ratio = |one: f64, other: f64| (other > 0.0).then(|| one / other);
        match self {
            Self::Whole { of } => trial(of).and_then(Trial::whole_mbit_s),
            Self::Steady { of } => Some(trial(of)?.steady_bps? / 1e6),
            Self::Rise { of } => trial(of)?.rise_seconds,
            Self::TimeRatio { of, to } => ratio(trial(of)?.run.seconds, trial(to)?.run.seconds),
            Self::RateRatio { of, to } => ratio(trial(of)?.whole_mbit_s()?, trial(to)?.whole_mbit_s()?),
        }
    }
}

impl Figure {
    /// A figure that is only shown.
    #[must_use]
    pub fn shown(measure: Measure) -> Self {
        Self { measure, target: None, rounds: Vec::new(), median: None, holds: None }
    }

    /// A figure with a target.
    #[must_use]
    pub fn wanted(measure: Measure, target: Target) -> Self {
        Self { target: Some(target), ..Self::shown(measure) }
    }
}

impl Trial {
    fn whole_mbit_s(&self) -> Option<f64> {
        Some(self.run.rate_bps(self.run.bytes)? / 1e6)
    }
}

impl Case {
    /// Computes the figures from the trials.
    pub fn derive(&mut self) {
        let rounds = self.rounds();
        let disturbed = self.trials.iter().filter(|trial| !trial.run.is_undisturbed());
        let disturbed: BTreeSet<u32> = disturbed.map(|trial| trial.run.round).collect();
        self.disturbed = disturbed.into_iter().collect();
        let count_all = self.undisturbed() == 0;
        let counts = |round: u32| count_all || !self.disturbed.contains(&round);
        for figure in &mut self.figures {
            figure.rounds = (1..=rounds)
                .map(|round| {
                    let trials: Vec<&Trial> =
                        self.trials.iter().filter(|trial| trial.run.round == round).collect();
                    figure.measure.value(&trials)
                })
                .collect();
            let counted: Vec<Option<f64>> = (1..=rounds)
                .zip(&figure.rounds)
                .filter(|(round, _)| counts(*round))
                .map(|(_, v)| *v)
                .collect();
            let values: Vec<f64> = counted.iter().flatten().copied().collect();
            figure.median = median(&values);
            figure.holds = figure.target.map(|target| {
                !values.is_empty()
                    && counted.iter().all(|value| value.is_some_and(|value| target.holds(value)))
            });
        }
    }

    fn rounds(&self) -> u32 {
        self.trials.iter().map(|trial| trial.run.round).max().unwrap_or(0)
    }

    /// How many rounds nothing has disturbed, as derived.
    #[must_use]
    pub fn undisturbed(&self) -> u32 {
        self.rounds().saturating_sub(self.disturbed.len() as u32)
    }

    /// Whether a run has ended as it should, or was cut off in a round that does not count.
    fn is_well(&self, trial: &Trial) -> bool {
        let is_cut = matches!(trial.run.end, End::Cut { .. });
        trial.run.end == End::Complete
            || (is_cut && self.undisturbed() > 0 && self.disturbed.contains(&trial.run.round))
    }
}

impl Targets {
    /// A record with no case yet.
    #[must_use]
    pub fn new(title: &str, environment: Environment) -> Self {
        Self { schema: SCHEMA.to_owned(), title: title.to_owned(), environment, cases: Vec::new() }
    }

    /// Whether every target holds in every round, and every run ended well.
    #[must_use]
    pub fn all_hold(&self) -> bool {
        self.cases.iter().all(|case| {
            case.trials.iter().all(|trial| case.is_well(trial))
                && case.figures.iter().all(|figure| figure.holds != Some(false))
        })
    }

    /// As JSON, for people too: indented, with a newline at the end.
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

    /// As Markdown: all figures first, then the runs of each case.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!("# {}\n\n{}{LEGEND}\n", self.title, machine(&self.environment));
        let rows: Vec<Vec<String>> = self
            .cases
            .iter()
            .flat_map(|case| case.figures.iter().map(|figure| figure_row(case, figure)))
            .collect();
        text += &markdown(&["case", "figure", "median", "every round", "target", "holds"], &rows);
        for case in &self.cases {
            let _ = write!(text, "\n{}", runs(case));
        }
        text
    }
}

/// What the columns mean.
const LEGEND: &str = "
All bytes go from far to near. The time of a run, and with it the whole rate, is that of the command from its start to
its exit; `own word` is the time that `longhaul cp --json` tells, which leaves out the start of the program and its
parting from the server. The steady rate is the mean from 30 % to 95 % of the bytes, from `--trace`. `90 % after` is
the end of the first second with 90 % of the steady rate, since the session began. CPU is that of the process on both
sides of the kernel's border, memory its peak (VmHWM; of the command as read last, at most 50 ms before its end). A
target holds when it holds in every round. Rounds in parentheses were disturbed: more than 1 % of the processors' time
went to other machines on the same host. They do not count where there are others. `link` is the emulator's own word:
`ok`, or the doubts below.
";

fn figure_row(case: &Case, figure: &Figure) -> Vec<String> {
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), significant);
    let rounds: Vec<String> = (1..)
        .zip(&figure.rounds)
        .map(|(round, value)| match number(*value) {
            number if case.disturbed.contains(&round) => format!("({number})"),
            number => number,
        })
        .collect();
    vec![
        case.name.clone(),
        figure.measure.in_words(),
        number(figure.median),
        rounds.join(" "),
        figure.target.map_or_else(|| "-".to_owned(), Target::in_words),
        match figure.holds {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "-",
        }
        .to_owned(),
    ]
}

/// The runs of a case, one by one.
fn runs(case: &Case) -> String {
    const HEAD: [&str; 13] = [
        "run",
        "round",
        "Mbit/s",
        "steady",
        "90 % after",
        "time",
        "own word",
        "lanes",
        "near CPU",
        "near peak",
        "far CPU",
        "far peak",
        "link",
    ];
    let mut text = format!("## {}: {}\n\n{}\n\n", case.name, case.link.in_words(), case.about);
    for data in &case.data {
        let _ = writeln!(text, "- {}: {}", data.name, amount(data));
    }
    let rows: Vec<Vec<String>> =
        case.trials.iter().map(|trial| run_row(trial, case.link.rate_bps > 0)).collect();
    let _ = write!(text, "- link: `{}`\n\n{}", case.link.command.join(" "), markdown(&HEAD, &rows));
    let mut notes: Vec<String> =
        case.left_out.iter().map(|out| format!("{}: not run: {}", out.tool, out.reason)).collect();
    for Trial { what, run, .. } in &case.trials {
        match &run.end {
            End::Complete => {}
            End::Cut { .. } => notes.push(format!("{what}: round {}: cut off at the limit", run.round)),
            End::Failed { reason } => notes.push(format!("{what}: round {}: failed: {reason}", run.round)),
        }
        if !run.link.trusted {
            notes.push(format!("{what}: round {}: not trusted: {}", run.round, run.link.doubts.join("; ")));
        }
        notes.extend(disturbance(run).map(|share| format!("{what}: round {}: {share}", run.round)));
    }
    for (place, note) in notes.iter().enumerate() {
        let _ = writeln!(text, "{}- {note}", if place == 0 { "\n" } else { "" });
    }
    text
}

fn run_row(trial: &Trial, emulated: bool) -> Vec<String> {
    let run = &trial.run;
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let seconds = |value: f64| format!("{value:.2} s");
    let cpu = |usage: Option<Usage>| or_dash(usage.map(|usage| seconds(usage.cpu_seconds)));
    let peak = |usage: Option<Usage>| {
        or_dash(usage.map(|usage| format!("{} MiB", usage.peak_bytes.div_ceil(1 << 20))))
    };
    let complete = run.end == End::Complete;
    vec![
        trial.what.clone(),
        run.round.to_string(),
        or_dash(trial.whole_mbit_s().filter(|_| complete).map(significant)),
        or_dash(trial.steady_bps.map(|bps| significant(bps / 1e6))),
        or_dash(trial.rise_seconds.map(seconds)),
        seconds(run.seconds),
        or_dash(run.said.map(|said| seconds(said.seconds))),
        or_dash(run.said.map(|said| said.lanes.to_string())),
        cpu(run.near),
        peak(run.near),
        cpu(run.far),
        peak(run.far),
        match (emulated, run.link.trusted) {
            (false, _) => "-",
            (true, true) => "ok",
            (true, false) => "DOUBTED",
        }
        .to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::{run, scenario};
    use crate::record::{OURS, Said};

    const MB: u64 = 1_000_000;

    fn trial(what: &str, round: u32, seconds: f64) -> Trial {
        let mut run = run(OURS, 1000 * MB, seconds, End::Complete);
        run.round = round;
        run.said = Some(Said { seconds: seconds - 0.5, lanes: 7, repeated_bytes: 0 });
        run.near = Some(Usage { cpu_seconds: 1.25, peak_bytes: 20 << 20 });
        Trial { what: what.to_owned(), run, steady_bps: Some(900e6), rise_seconds: Some(2.0) }
    }

    fn case(trials: Vec<Trial>, figures: Vec<Figure>) -> Case {
        let mut case = Case {
            name: "tree".to_owned(),
            about: "a tree beside a file".to_owned(),
            link: scenario(Vec::new()).link,
            data: vec![scenario(Vec::new()).data],
            left_out: vec![LeftOut { tool: "to memory".to_owned(), reason: "too little of it".to_owned() }],
            trials,
            figures,
            disturbed: Vec::new(),
        };
        case.derive();
        case
    }

    fn whole(of: &str) -> Measure {
        Measure::Whole { of: of.to_owned() }
    }

    #[test]
    fn a_target_holds_only_in_every_round() {
        let trials = vec![trial("file", 1, 10.0), trial("file", 2, 8.0), trial("file", 3, 16.0)];
        let wanted = |bound| Figure::wanted(whole("file"), Target::AtLeast(bound));
        let found = case(trials, vec![wanted(500.0), wanted(501.0), Figure::shown(whole("file"))]).figures;
        assert_eq!(found[0].rounds, [Some(800.0), Some(1000.0), Some(500.0)]);
        assert_eq!(found[0].median, Some(800.0));
        let holds: Vec<Option<bool>> = found.iter().map(|figure| figure.holds).collect();
        assert_eq!(holds, [Some(true), Some(false), None]);
    }

    #[test]
    fn disturbed_rounds_do_not_count_while_there_are_others() {
        let disturbed = |round, seconds| {
            let mut trial = trial("file", round, seconds);
            trial.run.stolen = Some(0.2);
            trial
        };
        let wanted = || vec![Figure::wanted(whole("file"), Target::AtLeast(800.0))];
        let found = case(vec![trial("file", 1, 10.0), disturbed(2, 20.0)], wanted());
        assert_eq!((found.undisturbed(), found.figures[0].median), (1, Some(800.0)));
        assert_eq!(found.figures[0].holds, Some(true));
        assert_eq!(figure_row(&found, &found.figures[0])[3], "800 (400)");
        assert!(runs(&found).contains("\n- file: round 2: disturbed: 20 % of"));
        let only = case(vec![disturbed(1, 20.0)], wanted());
        assert_eq!((only.undisturbed(), only.figures[0].holds), (0, Some(false)));
    }

    #[test]
    fn a_round_without_its_figure_holds_nothing() {
        let mut failed = trial("file", 2, 1.0);
        failed.run.end = End::Failed { reason: "no".to_owned() };
        let wanted = || vec![Figure::wanted(whole("file"), Target::AtLeast(1.0))];
        let found = case(vec![trial("file", 1, 10.0), failed], wanted());
        assert_eq!(found.figures[0].rounds, [Some(800.0), None]);
        assert_eq!(found.figures[0].holds, Some(false));
        let never_run = case(vec![trial("other", 1, 10.0)], wanted());
        assert_eq!((never_run.figures[0].median, never_run.figures[0].holds), (None, Some(false)));
        assert_eq!(case(Vec::new(), wanted()).figures[0].holds, Some(false));
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let trials = vec![
            trial("tree", 1, 15.0),
            trial("file", 1, 10.0),
            trial("file", 2, 10.0),
            trial("tree", 2, 30.0),
        ];
        let of = |measure: fn(String, String) -> Measure, target| {
            Figure::wanted(measure("tree".to_owned(), "file".to_owned()), target)
        };
        let found = case(
            trials,
            vec![
                of(|of, to| Measure::TimeRatio { of, to }, Target::AtMost(2.0)),
                of(|of, to| Measure::RateRatio { of, to }, Target::AtLeast(0.25)),
                Figure::shown(Measure::Steady { of: "tree".to_owned() }),
                Figure::shown(Measure::Rise { of: "tree".to_owned() }),
            ],
        );
        assert_eq!(found.figures[0].rounds, [Some(1.5), Some(3.0)]);
        assert_eq!(found.figures[0].holds, Some(false));
        assert_eq!(found.figures[1].holds, Some(true));
        assert_eq!(found.figures[2].median, Some(900.0));
        assert_eq!(found.figures[3].median, Some(2.0));
    }

    #[test]
    fn a_record_comes_back_and_reads_well() {
        let mut doubted = trial("file", 2, 8.0);
        doubted.run.link.trusted = false;
        doubted.run.link.doubts = vec!["it stalled".to_owned()];
        let figures = vec![Figure::wanted(whole("file"), Target::AtLeast(900.0))];
        let mut targets = Targets::new("Targets", Environment::default());
        targets.cases.push(case(vec![trial("file", 1, 10.0), doubted], figures));
        assert!(!targets.all_hold());
        let read = Targets::from_json(&targets.to_json().unwrap()).unwrap();
        assert_eq!(read, targets);
        let text = read.markdown();
        let squeezed = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(squeezed.contains("| tree | file: whole, Mbit/s | 900 | 800 1000 | >= 900 | NO |"), "{text}");
        assert!(squeezed.contains("| 10.00 s | 9.50 s | 7 | 1.25 s | 20 MiB | - | - | ok |"), "{text}");
        assert!(text.contains("\n- to memory: not run: too little of it\n"), "{text}");
        assert!(text.contains("\n- file: round 2: not trusted: it stalled\n"), "{text}");
        let report = crate::Report::new("copies", Environment::default()).to_json().unwrap();
        assert!(matches!(Targets::from_json(&report), Err(ReadError::Schema { .. })));
    }
}
