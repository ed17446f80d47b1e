//! The emulated link beside what it should do.

use super::{Cell, Part, Sheet, Table, Tone, code, doubt, every_run, facts, left_out, trust_in_words};
use crate::chart::{Bar, Bars, Chart, Share, Shares, with_deviation};
use crate::emulator::{Case, Emulator, Figure, Trial, number};
use crate::series::{Better, Series, Value};
use crate::table::stolen_in_words;
use crate::targets::Target;

pub(crate) fn series(emulator: &Emulator) -> Vec<Series> {
    emulator.cases.iter().flat_map(series_of).collect()
}

fn series_of(case: &Case) -> Vec<Series> {
    case.figures.iter().map(|figure| series_of_figure(case, figure)).collect()
}

fn series_of_figure(case: &Case, figure: &Figure) -> Series {
    let trials = case.trials.iter().filter(|trial| trial.what == figure.trial);
    let values: Vec<Value> = trials
        .zip(&figure.found)
        .filter_map(|(trial, found)| {
            Some(Value {
                is_doubted: trial.verdict.as_ref().is_some_and(|verdict| !verdict.trusted),
                is_disturbed: !trial.is_undisturbed(),
                ..Value::of(trial.round, (*found)?)
            })
        })
        .collect();
    let better = match figure.targets.first() {
        Some(Target::AtLeast(_)) => Better::More,
        Some(Target::AtMost(_)) => Better::Less,
        _ => Better::Neither,
    };
    Series {
        scenario: case.name.clone(),
        tool: figure.trial.clone(),
        figure: figure.what.clone(),
        call_bytes: None,
        better,
        failed: (figure.found.len() - values.len()) as u32,
        values,
    }
}

pub(crate) fn sheet(emulator: &Emulator) -> Sheet {
    Sheet {
        title: emulator.title.clone(),
        facts: facts(&emulator.environment),
        summary: summary(emulator),
        parts: emulator.cases.iter().map(part).collect(),
    }
}

fn summary(emulator: &Emulator) -> Vec<String> {
    let figures = || emulator.cases.iter().flat_map(|case| &case.figures).filter_map(|figure| figure.holds);
    let (all, held) = (figures().count(), figures().filter(|holds| *holds).count());
    let mut words = Vec::new();
    if all > 0 {
        words.push(format!("{held} of {all} targets hold in every run that counts."));
    }
    for case in &emulator.cases {
        let judged = case.figures.iter().filter(|figure| figure.holds.is_some()).count();
        let missed: Vec<&Figure> = case.figures.iter().filter(|figure| figure.holds == Some(false)).collect();
        let told = match (judged, missed.len()) {
            (0, _) => format!("{} figures, without targets", case.figures.len()),
            (all, 0) => format!("all {all} targets hold in every run that counts"),
            (all, none) => {
                let names: Vec<String> =
                    missed.iter().map(|figure| format!("{} ({})", figure.trial, figure.what)).collect();
                format!("{none} of {all} targets are missed: {}", names.join("; "))
            }
        };
        words.push(format!("{}: {told}.", case.name));
    }
    let verdicts =
        emulator.cases.iter().flat_map(|case| &case.trials).filter_map(|trial| trial.verdict.as_ref());
    words.extend(trust_in_words(&verdicts.collect::<Vec<_>>()));
    words
}

fn part(case: &Case) -> Part {
    let all = series_of(case);
    let mut notes: Vec<String> = left_out(&case.left_out).collect();
    let (mut doubts, mut commands): (Vec<String>, Vec<(&str, String)>) = (Vec::new(), Vec::new());
    for trial in &case.trials {
        if commands.iter().all(|(what, _)| *what != trial.what) {
            commands.push((&trial.what, commands_of(trial)));
        }
        let place = format!("{}, round {}", trial.what, trial.round);
        notes.extend(trial.failure.iter().map(|reason| format!("{place}: failed: {reason}")));
        doubts.extend(trial.verdict.as_ref().and_then(|verdict| doubt(&place, verdict)));
        let stolen = trial.stolen.filter(|_| !trial.is_undisturbed());
        notes.extend(stolen.map(|share| format!("{place}: {}", stolen_in_words(share))));
    }
    let rows = commands.into_iter().map(|(what, words)| vec![Cell::of(what), Cell::of(words)]).collect();
    let commands =
        Table { is_detail: true, ..Table::new("Links and commands", &["experiment", "commands"], rows) };
    Part {
        title: case.name.clone(),
        about: vec![case.about.clone()],
        charts: rates(case, &all).into_iter().chain(shares(case)).collect(),
        tables: vec![table(case, &all), every_run(&all.iter().collect::<Vec<_>>()), commands],
        doubts,
        notes,
    }
}

fn commands_of(trial: &Trial) -> String {
    let all = std::iter::once(&trial.link).chain(&trial.commands);
    all.filter(|words| !words.is_empty()).map(|words| code(words)).collect::<Vec<_>>().join(", ")
}

/// Rates of one unit, where theory gives nothing to divide them by.
fn rates(case: &Case, all: &[Series]) -> Option<Chart> {
    let any_expected = case.figures.iter().any(|figure| !figure.expected.is_empty());
    let is_rate = |figure: &Figure| {
        let is_told_elsewhere = any_expected && figure.targets.is_empty() || !figure.expected.is_empty();
        figure.what.contains("bit/s") && !is_told_elsewhere
    };
    let unit = case.figures.iter().find(|figure| is_rate(figure))?.what.clone();
    let own = case.figures.iter().zip(all).filter(|(figure, _)| is_rate(figure) && figure.what == unit);
    let row = |(figure, series): (&Figure, &Series)| {
        let spread = series.spread();
        Bar {
            label: series.tool.clone(),
            colour: 0,
            mean: spread.map(|spread| spread.mean),
            deviation: spread.and_then(|spread| spread.deviation),
            runs: series.numbers(),
            remark: if series.values.iter().any(|value| value.is_doubted) { "†" } else { "" }.to_owned(),
            is_projected: false,
            target: figure.targets.first().copied(),
            is_published: false,
        }
    };
    let rows: Vec<Bar> = own.map(row).collect();
    let title = format!("{}: rates, and what they shall be", case.name);
    Some(Chart::Bars(Bars { title, unit, rows, limit: None }))
}

/// Figures for which something is expected.
fn shares(case: &Case) -> Option<Chart> {
    let row = |figure: &Figure| {
        let of = |place: usize| figure.expected.get(place).or(figure.expected.first()).copied();
        let found = figure.found.iter().flatten().enumerate();
        let runs: Vec<f64> = found
            .filter_map(|(place, found)| Some(found / of(place).filter(|expected| *expected != 0.0)?))
            .collect();
        let expected = of(0)?;
        let band = match figure.targets.first() {
            Some(Target::Between(low, high)) if expected != 0.0 => Some((low / expected, high / expected)),
            _ => None,
        };
        let median = figure.median.map_or_else(|| "-".to_owned(), number);
        Some(Share {
            label: format!("{}: {}", figure.trial, figure.what),
            runs,
            band,
            words: format!("{median} of {}", number(expected)),
        })
    };
    let rows: Vec<Share> = case.figures.iter().filter_map(row).filter(|row| !row.runs.is_empty()).collect();
    let title = format!("{}: what was found over what is expected", case.name);
    (!rows.is_empty()).then_some(Chart::Shares(Shares { title, rows }))
}

fn table(case: &Case, all: &[Series]) -> Table {
    const HEAD: [&str; 8] =
        ["experiment", "figure", "median", "mean ± sd", "expected", "target", "holds", "link"];
    let row = |(figure, series): (&Figure, &Series)| {
        let spread = series.spread();
        let joined = |words: Vec<String>| Cell::or_dash((!words.is_empty()).then(|| words.join("; ")));
        let (holds, tone) = match figure.holds {
            Some(true) => ("yes", Tone::Plain),
            Some(false) => ("NO", Tone::Bad),
            None => ("-", Tone::Plain),
        };
        let trust = crate::emulator::trust(case, &figure.trial);
        let of_link = if trust == "DOUBTED" { Tone::Bad } else { Tone::Plain };
        vec![
            Cell::of(&figure.trial),
            Cell::of(&figure.what),
            Cell::or_dash(figure.median.map(number)),
            Cell::or_dash(spread.map(|spread| with_deviation(spread.mean, spread.deviation))),
            joined(figure.expected.iter().map(|value| number(*value)).collect()),
            joined(figure.targets.iter().map(|target| target.in_words()).collect()),
            Cell::toned(holds, tone),
            Cell::toned(trust, of_link),
        ]
    };
    let rows = case.figures.iter().zip(all).map(row).collect();
    Table::new("Figures; each has its unit in its name", &HEAD, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Environment;
    use crate::emulator::Finding;
    use crate::record::Verdict;

    #[test]
    fn what_is_expected_is_drawn_as_one() {
        let trial = |round: u32, value: f64, trusted: bool| Trial {
            what: "TCP".to_owned(),
            round,
            order: round,
            link: vec!["longhaul".to_owned(), "emulate".to_owned()],
            commands: vec![vec!["near".to_owned(), "ping".to_owned()]],
            seconds: 1.0,
            findings: vec![Finding::shown("Mbit/s", value).within(1000.0, 0.01), Finding::shown("x", 3.0)],
            failure: None,
            verdict: Some(Verdict { trusted, doubts: vec!["late".to_owned()], ..Verdict::default() }),
            stolen: None,
        };
        let mut case = Case {
            name: "rate".to_owned(),
            about: "About.".to_owned(),
            left_out: Vec::new(),
            trials: vec![trial(1, 1000.0, true), trial(2, 900.0, false)],
            figures: Vec::new(),
        };
        case.derive();
        let mut emulator = Emulator::new("Emulator", Environment::default());
        emulator.cases.push(case);
        let sheet = sheet(&emulator);
        assert_eq!(sheet.summary[0], "0 of 1 targets hold in every run that counts.");
        assert_eq!(sheet.summary[1], "rate: 1 of 1 targets are missed: TCP (Mbit/s).");
        assert!(sheet.summary[2].contains("in 1 of 2 runs"), "{:?}", sheet.summary);
        let [Chart::Shares(shares)] = sheet.parts[0].charts.as_slice() else {
            panic!("{:?}", sheet.parts[0].charts)
        };
        assert_eq!(shares.rows[0].runs, [1.0, 0.9]);
        assert_eq!(shares.rows[0].band, Some((0.99, 1.01)));
        assert_eq!(sheet.parts[0].doubts, ["TCP, round 2: late"]);
        assert_eq!(series(&emulator)[0].better, Better::Neither);
        assert_eq!(sheet.parts[0].tables[2].rows[0][1].words, "`longhaul emulate`, `near ping`");
    }
}
