//! The record of `bench emulator`: what the emulated link does to traffic, beside what it should.
//!
//! Invariant: figures are derived from findings here and nowhere else. A target holds only when every run that counts has
//! the figure and is within its bound; the bound may differ from run to run, since some follow from what a run has sent.
//! Runs in which the machine's own host gave processor time to others are shown and not judged by, unless there are no
//! others.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::record::{Environment, LeftOut, ReadError, Verdict, is_undisturbed};
use crate::series::counted;
use crate::summary::median;
use crate::table::{machine, markdown, significant, stolen_in_words};
use crate::targets::Target;

/// Name and version of the schema, first in every record.
pub const SCHEMA: &str = "longhaul-emulator/1";

/// A series of cases on one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Emulator {
    /// [`SCHEMA`].
    pub schema: String,
    /// What was measured, in a few words.
    pub title: String,
    /// Where, when and with what.
    pub environment: Environment,
    /// In the order in which they were measured.
    pub cases: Vec<Case>,
}

/// One property of the emulator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Short name, as on the command line.
    pub name: String,
    /// In words, with all that must be known to read the figures.
    pub about: String,
    /// Experiments that were not made, and why.
    pub left_out: Vec<LeftOut>,
    /// Every run, in the order in which they were made.
    pub trials: Vec<Trial>,
    /// What follows from the trials: [`Case::derive`].
    pub figures: Vec<Figure>,
}

/// One run of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The experiment.
    pub what: String,
    /// From 1; each experiment has one run in a round at the most.
    pub round: u32,
    /// Place in the whole series, from 1.
    pub order: u32,
    /// The command that made the link.
    pub link: Vec<String>,
    /// Commands on the hosts, in the order in which they were started, each after the name of its host.
    pub commands: Vec<Vec<String>>,
    /// From the start of the traffic to its end.
    pub seconds: f64,
    /// What was measured; nothing if the run failed.
    pub findings: Vec<Finding>,
    /// Why it has no result, if so.
    pub failure: Option<String>,
    /// The emulator's own word on this run; none of a rival.
    pub verdict: Option<Verdict>,
    /// Share of the processors' time that this machine's host gave to others, of 1; none: the kernel does not tell.
    pub stolen: Option<f64>,
}

/// A number of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Its name, with the unit.
    pub what: String,
    /// The number.
    pub value: f64,
    /// What theory or a publication says; the case tells which.
    pub expected: Option<f64>,
    /// What it shall be, if anything.
    pub target: Option<Target>,
}

impl Finding {
    /// A number that is only shown.
    #[must_use]
    pub fn shown(what: &str, value: f64) -> Self {
        Self { what: what.to_owned(), value, expected: None, target: None }
    }

    /// With what is expected of it.
    #[must_use]
    pub fn beside(self, expected: f64) -> Self {
        Self { expected: Some(expected), ..self }
    }

    /// With a bound.
    #[must_use]
    pub fn wanted(self, target: Target) -> Self {
        Self { target: Some(target), ..self }
    }

    /// To be within this share of what is expected.
    #[must_use]
    pub fn within(self, expected: f64, share: f64) -> Self {
        let around = Target::Between(expected * (1.0 - share), expected * (1.0 + share));
        self.beside(expected).wanted(around)
    }

    fn holds(&self) -> Option<bool> {
        self.target.map(|target| target.holds(self.value))
    }
}

/// A figure of an experiment, from all its runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The experiment.
    pub trial: String,
    /// [`Finding::what`].
    pub what: String,
    /// One for each run of the experiment; none where it failed.
    pub found: Vec<Option<f64>>,
    /// Which of them were disturbed.
    pub disturbed: Vec<bool>,
    /// Over the runs that count.
    pub median: Option<f64>,
    /// Of each run with a number; one only when all are the same.
    pub expected: Vec<f64>,
    /// Likewise.
    pub targets: Vec<Target>,
    /// In every run that counts.
    pub holds: Option<bool>,
}

impl Trial {
    /// Whether it had the machine to itself, as far as is known.
    #[must_use]
    pub fn is_undisturbed(&self) -> bool {
        is_undisturbed(self.stolen)
    }

    /// By its name.
    #[must_use]
    pub fn finding(&self, what: &str) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.what == what)
    }
}

impl Case {
    /// Computes the figures from the trials.
    pub fn derive(&mut self) {
        let mut named: Vec<(&str, &str)> = Vec::new();
        // In the order of the experiments, which the order of the runs turns by one place each round.
        for trial in &self.trials {
            for finding in &trial.findings {
                if !named.contains(&(&trial.what, &finding.what)) {
                    named.push((&trial.what, &finding.what));
                }
            }
        }
        self.figures = named.into_iter().map(|(trial, what)| self.figure(trial, what)).collect();
    }

    fn figure(&self, name: &str, what: &str) -> Figure {
        let trials: Vec<&Trial> = self.trials.iter().filter(|trial| trial.what == name).collect();
        let counted: Vec<Option<&Finding>> =
            counted(&trials, |trial| !trial.is_undisturbed()).map(|trial| trial.finding(what)).collect();
        let all: Vec<&Finding> = trials.iter().filter_map(|trial| trial.finding(what)).collect();
        let values: Vec<f64> = counted.iter().flatten().map(|finding| finding.value).collect();
        let has_target = all.iter().any(|finding| finding.target.is_some());
        Figure {
            trial: name.to_owned(),
            what: what.to_owned(),
            found: trials.iter().map(|trial| trial.finding(what).map(|finding| finding.value)).collect(),
            disturbed: trials.iter().map(|trial| !trial.is_undisturbed()).collect(),
            median: median(&values),
            expected: once_if_same(all.iter().filter_map(|finding| finding.expected).collect()),
            targets: once_if_same(all.iter().filter_map(|finding| finding.target).collect()),
            holds: has_target.then(|| {
                counted.iter().all(|finding| finding.is_some_and(|finding| finding.holds() != Some(false)))
            }),
        }
    }

    /// How many runs of an experiment nothing has disturbed; one that failed is none.
    #[must_use]
    pub fn undisturbed(&self, what: &str) -> u32 {
        let trials = self.trials.iter().filter(|trial| trial.what == what);
        trials.filter(|trial| trial.is_undisturbed() && trial.failure.is_none()).count() as u32
    }

    /// Whether there is an experiment of which no run has a result.
    fn has_failed_altogether(&self) -> bool {
        self.trials.iter().any(|trial| {
            self.trials.iter().filter(|other| other.what == trial.what).all(|other| other.failure.is_some())
        })
    }
}

fn once_if_same<T: PartialEq>(mut all: Vec<T>) -> Vec<T> {
    if all.windows(2).all(|pair| pair[0] == pair[1]) {
        all.truncate(1);
    }
    all
}

impl Emulator {
    /// A record with no case yet.
    #[must_use]
    pub fn new(title: &str, environment: Environment) -> Self {
        Self { schema: SCHEMA.to_owned(), title: title.to_owned(), environment, cases: Vec::new() }
    }

    /// Whether every target holds, and every experiment has a result.
    #[must_use]
    pub fn all_hold(&self) -> bool {
        let mut figures = self.cases.iter().flat_map(|case| &case.figures);
        self.has_all_results() && figures.all(|figure| figure.holds != Some(false))
    }

    /// Whether every experiment has a result.
    #[must_use]
    pub fn has_all_results(&self) -> bool {
        !self.cases.iter().any(Case::has_failed_altogether)
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

    /// As Markdown: a table of figures for each case, and what must be known of its runs.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!("# {}\n\n{}{LEGEND}", self.title, machine(&self.environment));
        for case in &self.cases {
            let _ = write!(text, "\n{}", section(case));
        }
        text
    }
}

/// What the columns mean.
const LEGEND: &str = "
`found` is the median of the runs that count, which are beside it. A target holds when it holds in every one of them. Runs
in parentheses were disturbed: more than 1 % of the processors' time went to other machines on the same host. They do not
count where there are others. `link` is the emulator's own word on all runs of the experiment: `ok`, or the doubts below.
";

fn section(case: &Case) -> String {
    const HEAD: [&str; 8] =
        ["experiment", "figure", "found", "every run", "expected", "target", "holds", "link"];
    let rows: Vec<Vec<String>> = case.figures.iter().map(|figure| row(case, figure)).collect();
    let mut text = format!("## {}\n\n{}\n\n{}", case.name, case.about, markdown(&HEAD, &rows));
    for (place, note) in notes(case).iter().enumerate() {
        let _ = writeln!(text, "{}- {note}", if place == 0 { "\n" } else { "" });
    }
    text
}

fn row(case: &Case, figure: &Figure) -> Vec<String> {
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
    let runs = figure.found.iter().zip(&figure.disturbed).map(|(value, disturbed)| match disturbed {
        true => format!("({})", number(*value)),
        false => number(*value),
    });
    let or_dash = |texts: Vec<String>| if texts.is_empty() { "-".to_owned() } else { texts.join("; ") };
    vec![
        figure.trial.clone(),
        figure.what.clone(),
        number(figure.median),
        runs.collect::<Vec<_>>().join(" "),
        or_dash(figure.expected.iter().map(|value| number(Some(*value))).collect()),
        or_dash(figure.targets.iter().map(|target| target.in_words()).collect()),
        match figure.holds {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "-",
        }
        .to_owned(),
        trust(case, &figure.trial).to_owned(),
    ]
}

pub(crate) fn trust(case: &Case, trial: &str) -> &'static str {
    let trials = case.trials.iter().filter(|each| each.what == trial);
    let verdicts: Vec<&Verdict> = trials.filter_map(|each| each.verdict.as_ref()).collect();
    match (verdicts.is_empty(), verdicts.iter().all(|verdict| verdict.trusted)) {
        (true, _) => "-",
        (false, true) => "ok",
        (false, false) => "DOUBTED",
    }
}

/// Counts stay whole.
pub(crate) fn number(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 { format!("{value:.0}") } else { significant(value) }
}

fn notes(case: &Case) -> Vec<String> {
    let mut notes: Vec<String> =
        case.left_out.iter().map(|out| format!("{}: not run: {}", out.tool, out.reason)).collect();
    let mut told: Vec<&str> = Vec::new();
    for trial in &case.trials {
        if !told.contains(&trial.what.as_str()) {
            told.push(&trial.what);
            notes.push(format!("{}: `{}`; {}", trial.what, trial.link.join(" "), commands(trial)));
        }
        let place = format!("{}: round {}", trial.what, trial.round);
        notes.extend(trial.failure.iter().map(|reason| format!("{place}: failed: {reason}")));
        if let Some(verdict) = trial.verdict.as_ref().filter(|verdict| !verdict.trusted) {
            notes.push(format!("{place}: not trusted: {}", verdict.doubts.join("; ")));
        }
        if let Some(share) = trial.stolen.filter(|_| !trial.is_undisturbed()) {
            notes.push(format!("{place}: {}", stolen_in_words(share)));
        }
    }
    notes
}

fn commands(trial: &Trial) -> String {
    trial.commands.iter().map(|words| format!("`{}`", words.join(" "))).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(what: &str, round: u32, findings: Vec<Finding>) -> Trial {
        Trial {
            what: what.to_owned(),
            round,
            order: round,
            link: vec!["longhaul".to_owned(), "emulate".to_owned()],
            commands: vec![vec!["near".to_owned(), "ping".to_owned()]],
            seconds: 1.0,
            findings,
            failure: None,
            verdict: Some(Verdict { trusted: true, ..Verdict::default() }),
            stolen: Some(0.0),
        }
    }

    fn case(trials: Vec<Trial>) -> Case {
        let mut case = Case {
            name: "rate".to_owned(),
            about: "About.".to_owned(),
            left_out: vec![LeftOut { tool: "UDP".to_owned(), reason: "too slow".to_owned() }],
            trials,
            figures: Vec::new(),
        };
        case.derive();
        case
    }

    fn rate(value: f64) -> Finding {
        Finding::shown("Mbit/s", value).within(941.5, 0.01)
    }

    #[test]
    fn a_figure_holds_in_every_run_that_counts() {
        let good = case(vec![trial("TCP", 1, vec![rate(940.0)]), trial("TCP", 2, vec![rate(942.0)])]);
        assert_eq!((good.figures.len(), good.figures[0].holds), (1, Some(true)));
        assert_eq!(good.figures[0].median, Some(941.0));
        assert_eq!((good.figures[0].expected.len(), good.figures[0].targets.len()), (1, 1));

        let short = case(vec![trial("TCP", 1, vec![rate(940.0)]), trial("TCP", 2, vec![rate(900.0)])]);
        assert_eq!(short.figures[0].holds, Some(false));

        let mut disturbed = trial("TCP", 2, vec![rate(900.0)]);
        disturbed.stolen = Some(0.2);
        let both = case(vec![trial("TCP", 1, vec![rate(940.0)]), disturbed.clone()]);
        assert_eq!((both.figures[0].holds, both.figures[0].median), (Some(true), Some(940.0)));
        assert_eq!(case(vec![disturbed]).figures[0].holds, Some(false), "there is no other");
    }

    #[test]
    fn a_run_without_a_result_holds_nothing() {
        let mut failed = trial("TCP", 2, Vec::new());
        failed.failure = Some("no route".to_owned());
        let case = case(vec![trial("TCP", 1, vec![rate(940.0)]), failed.clone()]);
        assert_eq!(case.figures[0].holds, Some(false));
        assert_eq!(case.figures[0].found, [Some(940.0), None]);
        let mut series = Emulator::new("Emulator", Environment::default());
        assert!(series.all_hold());
        series.cases.push(self::case(vec![failed]));
        assert!(!series.all_hold(), "an experiment without any result");
    }

    #[test]
    fn bounds_may_follow_from_what_a_run_has_sent() {
        let count = |value: f64, low, high| {
            Finding::shown("lost", value).wanted(Target::Between(low, high)).beside((low + high) / 2.0)
        };
        let case = case(vec![
            trial("loss", 1, vec![count(1000.0, 950.0, 1050.0)]),
            trial("loss", 2, vec![count(2000.0, 1900.0, 2100.0)]),
        ]);
        assert_eq!(case.figures[0].holds, Some(true));
        assert_eq!(
            (case.figures[0].targets.len(), case.figures[0].expected.clone()),
            (2, vec![1000.0, 2000.0])
        );
    }

    #[test]
    fn the_record_can_be_read_back_and_tells_all() {
        let mut doubted = trial("UDP", 1, vec![rate(930.0)]);
        doubted.verdict = Some(Verdict { doubts: vec!["it stalled".to_owned()], ..Verdict::default() });
        doubted.stolen = Some(0.25);
        let mut series = Emulator::new("Emulator", Environment::default());
        series.cases.push(case(vec![trial("TCP", 1, vec![rate(940.0), Finding::shown("x", 7.0)]), doubted]));
        assert_eq!(Emulator::from_json(&series.to_json().unwrap()).unwrap(), series);
        let text = series.markdown();
        let squeezed = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(squeezed.contains("| TCP | Mbit/s | 940 | 940 | 942 | 932 to 951 | yes | ok |"), "{text}");
        assert!(squeezed.contains("| TCP | x | 7 | 7 | - | - | - | ok |"), "{text}");
        assert!(
            squeezed.contains("| UDP | Mbit/s | 930 | (930) | 942 | 932 to 951 | NO | DOUBTED |"),
            "{text}"
        );
        assert!(text.contains("\n- UDP: round 1: not trusted: it stalled\n"), "{text}");
        assert!(text.contains("\n- UDP: round 1: disturbed: 25 %"), "{text}");
        assert!(text.contains("\n- UDP: not run: too slow\n"), "{text}");
        assert!(text.contains("\n- TCP: `longhaul emulate`; `near ping`\n"), "{text}");
        assert!(!series.all_hold());
    }
}
