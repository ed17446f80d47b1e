//! `bench emulator`: what the product's own link emulator does to traffic, beside what its settings say.
//!
//! The release build is driven as a user would: `longhaul emulate up`, `exec`, `show` and `down`, with iperf3 and ping on
//! the hosts. Every run has a link of its own. In each round every experiment of a case takes its turn, in an order that
//! turns by one place from round to round. The record is written after every case: a series that is broken off keeps what
//! it has.
//!
//! Map: [`cases`] says what is measured and judges it, [`stage`] runs it, [`traffic`] knows the tools, [`theory`] is
//! arithmetic.

mod cases;
mod stage;
mod theory;
mod traffic;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, ValueEnum};
use longhaul_report::Emulator;
use longhaul_report::emulator::{Case, Finding, Trial};

use self::cases::{Experiment, Name, Over};
use self::stage::{Observed, Stage};
use crate::file::remove;
use crate::limited::check_interrupt;
use crate::places::Places;
use crate::tool::{Package, how_to_install, missing};
use crate::turn::in_turn;
use crate::{environment, show};

/// Measure the link emulator itself: what it carries, and how true it is to its settings
///
/// iperf3 and ping run on the two hosts of `longhaul emulate up`. Each figure stands beside what theory or a publication
/// says, and holds or not. Settings of the kernel are changed on the emulated hosts only.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask bench emulator --quick
  cargo xtask bench emulator --case delay --case rate --rounds 3
  cargo xtask bench emulator --case capacity --mm-delay /usr/bin/mm-delay

Exit codes: 0 every target holds in every run that counts (with --quick: every experiment has a result); 1 some do not;
2 the series could not go on.")]
pub(crate) struct EmulatorBench {
    /// A few short runs of each case, to see that all works; no target can be judged by it
    #[arg(long)]
    quick: bool,
    /// Only this case; can be given several times [default: all]
    #[arg(long = "case", value_name = "NAME", value_enum)]
    cases: Vec<Name>,
    /// Times that each run is made, those not counted in which this machine's host took more than 1 % of the
    /// processors' time; three times as many at the most, but with --quick
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// mahimahi's mm-delay, set-user-ID root, to be measured beside it in the case capacity; needs root
    #[arg(long, value_name = "FILE")]
    mm_delay: Option<PathBuf>,
    #[command(flatten)]
    places: Places,
}

const PACKAGES: [Package; 2] =
    [Package { name: "iperf3", program: "iperf3" }, Package { name: "iputils-ping", program: "ping" }];

/// The host of this machine may never be quiet.
const ATTEMPTS_PER_ROUND: u32 = 3;

impl EmulatorBench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let longhaul = self.places.longhaul()?;
        let missing = missing(&PACKAGES);
        if !missing.is_empty() {
            bail!("{}", how_to_install(&missing));
        }
        let environment = environment::environment(&longhaul, &PACKAGES);
        let out = self.places.out("emulator", &environment)?;
        let directory = self.places.scratch().join(format!("emulator-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let title = if self.quick {
            "The link emulator, tried quickly: too little to judge by"
        } else {
            "The link emulator"
        };
        let series = Series {
            longhaul,
            mm_delay: self.mm_delay.as_deref().map(Path::canonicalize).transpose()?,
            quick: self.quick,
            rounds: self.rounds,
            directory,
            out,
        };
        let names = if self.cases.is_empty() { Name::value_variants() } else { self.cases.as_slice() };
        let made = series.cases(names, Emulator::new(title, environment));
        remove(&series.directory)?;
        let emulator = made?;
        show::print_out(&emulator.markdown())?;
        eprintln!("results are in {}", series.out.display());
        let good = if self.quick { emulator.has_all_results() } else { emulator.all_hold() };
        Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(1) })
    }
}

/// What all cases share.
#[derive(Debug)]
struct Series {
    longhaul: PathBuf,
    mm_delay: Option<PathBuf>,
    quick: bool,
    /// Undisturbed ones that are wanted.
    rounds: u32,
    /// For the words of programs.
    directory: PathBuf,
    out: PathBuf,
}

impl Series {
    fn cases(&self, names: &[Name], mut emulator: Emulator) -> anyhow::Result<Emulator> {
        let mut order = 0;
        for name in names {
            emulator.cases.push(self.case(*name, &mut order)?);
            show::record(&self.out.join("results.json"), &emulator.to_json()?)?;
            show::write(&self.out.join("results.md"), &emulator.markdown())?;
        }
        Ok(emulator)
    }

    fn case(&self, name: Name, order: &mut u32) -> anyhow::Result<Case> {
        let mm_delay = self.mm_delay.as_deref();
        let experiments = name.experiments(self.quick, mm_delay);
        let mut case = Case {
            name: name.as_written(),
            about: name.about().to_owned(),
            left_out: name.left_out(mm_delay),
            trials: Vec::new(),
            figures: Vec::new(),
        };
        let all: Vec<&Experiment> = experiments.iter().collect();
        let attempts = self.rounds * if self.quick { 1 } else { ATTEMPTS_PER_ROUND };
        for round in 1..=attempts {
            for experiment in in_turn(&all, round) {
                if case.undisturbed(&experiment.what) >= self.rounds {
                    continue;
                }
                *order += 1;
                eprint!("{order:>4}  {:<8}  round {round}  {:<42}  ", case.name, experiment.what);
                let trial = self.trial(experiment, round, *order)?;
                eprintln!("{}", in_words(&trial));
                case.trials.push(trial);
            }
        }
        case.derive();
        Ok(case)
    }

    /// What goes wrong in an experiment is in the trial; an error is about the machine.
    fn trial(&self, experiment: &Experiment, round: u32, order: u32) -> anyhow::Result<Trial> {
        let (link, seen) = match &experiment.over {
            Over::Link(options) => {
                let seed = ["--seed".to_owned(), round.to_string()];
                let options: Vec<String> = options.iter().cloned().chain(seed).collect();
                let stage = Stage::link(&self.longhaul, &options)?;
                let words = ["longhaul", "emulate", "up", "NAME"].map(str::to_owned);
                (words.into_iter().chain(options).collect(), self.observe(&stage, experiment))
            }
            Over::MmDelay { one_way_ms } => {
                let program = self.mm_delay.as_deref().unwrap_or(Path::new("mm-delay"));
                let stage = Stage::rival(program, *one_way_ms, &self.directory);
                let words = vec![program.display().to_string(), one_way_ms.to_string()];
                (words, stage.and_then(|stage| self.observe(&stage, experiment)))
            }
        };
        check_interrupt()?;
        let (observed, failure) = match seen {
            Ok(observed) => (observed, None),
            Err(error) => (Observed::default(), Some(format!("{error:#}"))),
        };
        let findings = experiment.judge.findings(&observed);
        let failure = failure
            .or_else(|| findings.is_empty().then(|| "it does not show what the figures need".to_owned()));
        Ok(Trial {
            what: experiment.what.clone(),
            round,
            order,
            link,
            commands: observed.commands,
            seconds: observed.seconds,
            findings,
            failure,
            verdict: observed.shown.map(crate::link::Shown::verdict),
            stolen: observed.stolen,
        })
    }

    fn observe(&self, stage: &Stage, experiment: &Experiment) -> anyhow::Result<Observed> {
        stage.observe(&experiment.traffic, experiment.buffers, &self.directory)
    }
}

/// A run in a few words, for those who wait.
fn in_words(trial: &Trial) -> String {
    if let Some(reason) = &trial.failure {
        return format!("FAILED: {reason}");
    }
    let finding = |Finding { what, value, expected, target: _ }: &Finding| match expected {
        Some(expected) => format!("{what} {value:.3} ({expected:.3})"),
        None => format!("{what} {value:.3}"),
    };
    let mut text = trial.findings.iter().map(finding).collect::<Vec<_>>().join("; ");
    if !trial.is_undisturbed() {
        text += "; disturbed from outside this machine";
    }
    if trial.verdict.as_ref().is_some_and(|verdict| !verdict.trusted) {
        text += "; the link is not to be trusted";
    }
    text
}

#[cfg(test)]
mod tests {
    use longhaul_report::Verdict;

    use super::*;

    #[test]
    fn a_run_in_a_few_words() {
        let mut trial = Trial {
            what: "TCP".to_owned(),
            round: 1,
            order: 1,
            link: Vec::new(),
            commands: Vec::new(),
            seconds: 1.0,
            findings: vec![Finding::shown("Mbit/s", 940.0).within(941.5, 0.01), Finding::shown("lost", 0.0)],
            failure: None,
            verdict: Some(Verdict { trusted: true, ..Verdict::default() }),
            stolen: None,
        };
        assert_eq!(in_words(&trial), "Mbit/s 940.000 (941.500); lost 0.000");
        trial.stolen = Some(0.5);
        trial.verdict = Some(Verdict::default());
        assert!(in_words(&trial).ends_with("machine; the link is not to be trusted"));
        trial.failure = Some("no route".to_owned());
        assert_eq!(in_words(&trial), "FAILED: no route");
    }
}
