//! What longhaul promises, and whether it holds.

use super::{
    Cell, Part, Sheet, Table, Tone, doubt, every_run, facts, left_out, link_command, plural, trust_in_words,
};
use crate::chart::{Bar, Bars, Chart};
use crate::record::{End, OURS, Usage};
use crate::series::{Better, Series, Value};
use crate::table::{amount, disturbance, significant, size};
use crate::targets::{Case, Figure, Measure, Target, Targets, Trial};

pub(crate) fn series(targets: &Targets) -> Vec<Series> {
    targets.cases.iter().flat_map(series_of).collect()
}

fn series_of(case: &Case) -> Vec<Series> {
    case.figures.iter().map(|figure| series_of_figure(case, figure)).collect()
}

fn series_of_figure(case: &Case, figure: &Figure) -> Series {
    let (of, name) = named(&figure.measure);
    let values: Vec<Value> = (1..)
        .zip(&figure.rounds)
        .filter_map(|(round, value)| {
            Some(Value {
                is_doubted: is_emulated(case) && is_doubted(case, &figure.measure, round),
                is_disturbed: case.disturbed.contains(&round),
                ..Value::of(round, (*value)?)
            })
        })
        .collect();
    Series {
        scenario: case.name.clone(),
        tool: of,
        figure: name,
        call_bytes: None,
        better: better(figure),
        failed: (figure.rounds.len() - values.len()) as u32,
        values,
    }
}

/// What a measure is of, and what it says.
fn named(measure: &Measure) -> (String, String) {
    match measure {
        Measure::Whole { of } => (of.clone(), "whole, Mbit/s".to_owned()),
        Measure::Steady { of } => (of.clone(), "steady, Mbit/s".to_owned()),
        Measure::Rise { of } => (of.clone(), "until 90 % of steady, s".to_owned()),
        Measure::TimeRatio { of, to } => (of.clone(), format!("time / that of {to}")),
        Measure::RateRatio { of, to } => (of.clone(), format!("rate / that of {to}")),
    }
}

fn better(figure: &Figure) -> Better {
    match (figure.target, &figure.measure) {
        (Some(Target::AtLeast(_)), _) => Better::More,
        (Some(Target::AtMost(_)), _) => Better::Less,
        (_, Measure::Rise { .. } | Measure::TimeRatio { .. }) => Better::Less,
        _ => Better::More,
    }
}

fn is_doubted(case: &Case, measure: &Measure, round: u32) -> bool {
    let (of, to) = match measure {
        Measure::Whole { of } | Measure::Steady { of } | Measure::Rise { of } => (of, None),
        Measure::TimeRatio { of, to } | Measure::RateRatio { of, to } => (of, Some(to)),
    };
    let trials = case.trials.iter().filter(|trial| trial.run.round == round);
    trials.filter(|trial| trial.what == *of || Some(&trial.what) == to).any(|trial| !trial.run.link.trusted)
}

fn is_emulated(case: &Case) -> bool {
    case.link.rate_bps > 0
}

pub(crate) fn sheet(targets: &Targets) -> Sheet {
    Sheet {
        title: targets.title.clone(),
        facts: facts(&targets.environment),
        summary: summary(targets),
        parts: targets.cases.iter().map(part).collect(),
    }
}

fn summary(targets: &Targets) -> Vec<String> {
    let figures =
        || targets.cases.iter().flat_map(|case| case.figures.iter().map(move |figure| (case, figure)));
    let judged = figures().filter(|(_, figure)| figure.holds.is_some()).count();
    let held = figures().filter(|(_, figure)| figure.holds == Some(true)).count();
    let mut words = Vec::new();
    if judged > 0 {
        words.push(match judged - held {
            0 => format!("All {judged} targets hold, in every round that counts."),
            missed => format!(
                "{} of {judged} targets {} not hold.",
                missed,
                if missed == 1 { "does" } else { "do" }
            ),
        });
    }
    // Those without a target are in the tables.
    for (case, figure) in figures().filter(|(_, figure)| judged == 0 || figure.target.is_some()) {
        let (of, name) = named(&figure.measure);
        let Some(median) = figure.median else {
            words.push(format!("{}: {of}: {name}: no result.", case.name));
            continue;
        };
        let verdict = match (figure.target, figure.holds) {
            (Some(target), Some(true)) => format!("; {} holds", target.in_words()),
            (Some(target), _) => format!("; {} does NOT hold", target.in_words()),
            (None, _) => String::new(),
        };
        let rounds = plural(figure.rounds.len(), "round");
        words.push(format!(
            "{}: {of}: {name}: {}, the median of {rounds}{verdict}.",
            case.name,
            significant(median)
        ));
    }
    let emulated = targets.cases.iter().filter(|case| is_emulated(case));
    words.extend(trust_in_words(
        &emulated.flat_map(|case| &case.trials).map(|trial| &trial.run.link).collect::<Vec<_>>(),
    ));
    words
}

fn part(case: &Case) -> Part {
    let all = series_of(case);
    let mut about = vec![case.about.clone()];
    about.extend(case.data.iter().map(|data| format!("{}: {}.", data.name, amount(data))));
    about.extend(link_command(&case.link));
    let place = |trial: &Trial| format!("{}, round {}", trial.what, trial.run.round);
    let mut notes: Vec<String> = left_out(&case.left_out).collect();
    for trial in &case.trials {
        match &trial.run.end {
            End::Complete => {}
            End::Cut { .. } => notes.push(format!("{}: cut off at the limit", place(trial))),
            End::Failed { reason } => notes.push(format!("{}: failed: {reason}", place(trial))),
        }
        notes.extend(disturbance(&trial.run).map(|what| format!("{}: {what}", place(trial))));
    }
    let doubts = if is_emulated(case) {
        case.trials.iter().filter_map(|trial| doubt(&place(trial), &trial.run.link)).collect()
    } else {
        Vec::new()
    };
    Part {
        title: format!("{}: {}", case.name, case.link.in_words()),
        about,
        charts: bars(case, &all).into_iter().collect(),
        tables: vec![figures(case, &all), trials(case), every_run(&all.iter().collect::<Vec<_>>())],
        doubts,
        notes,
    }
}

/// Rates alone: they have one unit.
fn bars(case: &Case, all: &[Series]) -> Option<Chart> {
    let rates = case
        .figures
        .iter()
        .zip(all)
        .filter(|(figure, _)| matches!(figure.measure, Measure::Whole { .. } | Measure::Steady { .. }));
    let row = |(figure, series): (&Figure, &Series)| {
        let spread = series.spread();
        let kind = if matches!(figure.measure, Measure::Steady { .. }) { "steady" } else { "whole" };
        let is_rival = case.trials.iter().any(|trial| trial.what == series.tool && trial.run.tool != OURS);
        Bar {
            label: format!("{}, {kind}", series.tool),
            colour: if is_rival { 6 } else { 0 },
            mean: spread.map(|spread| spread.mean),
            deviation: spread.and_then(|spread| spread.deviation),
            runs: series.numbers(),
            remark: if series.values.iter().any(|value| value.is_doubted) { "†" } else { "" }.to_owned(),
            is_projected: false,
            target: figure.target,
            is_published: false,
        }
    };
    let rows: Vec<Bar> = rates.map(row).collect();
    let wire = case.link.payload_bps() / 1e6;
    (!rows.is_empty()).then(|| {
        Chart::Bars(Bars {
            title: format!("{}: whole and steady rates, and their targets", case.name),
            unit: "Mbit/s of payload".to_owned(),
            rows,
            limit: is_emulated(case).then(|| (wire, format!("the wire carries {}", significant(wire)))),
        })
    })
}

fn figures(case: &Case, all: &[Series]) -> Table {
    let row = |(figure, series): (&Figure, &Series)| {
        let spread = series.spread();
        let (holds, tone) = match figure.holds {
            Some(true) => ("yes", Tone::Plain),
            Some(false) => ("NO", Tone::Bad),
            None => ("-", Tone::Plain),
        };
        vec![
            Cell::of(format!("{}: {}", series.tool, series.figure)),
            Cell::or_dash(figure.median.map(significant)),
            Cell::or_dash(spread.map(|spread| crate::chart::with_deviation(spread.mean, spread.deviation))),
            Cell::or_dash(figure.target.map(Target::in_words)),
            Cell::toned(holds, tone),
        ]
    };
    let rows = case.figures.iter().zip(all).map(row).collect();
    Table::new("Figures and targets", &["figure", "median", "mean ± sd", "target", "holds"], rows)
}

fn trials(case: &Case) -> Table {
    const HEAD: [&str; 9] = [
        "run",
        "round",
        "time, s",
        "steady, Mbit/s",
        "lanes",
        "near CPU, s",
        "near peak",
        "far CPU, s",
        "far peak",
    ];
    let cpu = |usage: Option<Usage>| Cell::or_dash(usage.map(|usage| significant(usage.cpu_seconds)));
    let peak = |usage: Option<Usage>| Cell::or_dash(usage.map(|usage| size(usage.peak_bytes)));
    let row = |Trial { what, run, steady_bps, .. }: &Trial| {
        vec![
            Cell::of(what),
            Cell::of(run.round.to_string()),
            Cell::of(format!("{:.2}", run.seconds)),
            Cell::or_dash(steady_bps.map(|bps| significant(bps / 1e6))),
            Cell::or_dash(run.said.map(|said| said.lanes.to_string())),
            cpu(run.near),
            peak(run.near),
            cpu(run.far),
            peak(run.far),
        ]
    };
    Table {
        is_detail: true,
        ..Table::new("Runs, and what they used", &HEAD, case.trials.iter().map(row).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Environment;
    use crate::record::tests::{run, scenario};

    #[test]
    fn a_missed_target_is_told_first_and_doubts_are_marked() {
        let mut doubted = run(OURS, 1_000_000_000, 8.0, End::Complete);
        doubted.round = 2;
        doubted.link.trusted = false;
        doubted.link.doubts = vec!["late".to_owned()];
        let trial = |run| Trial { what: "file".to_owned(), run, steady_bps: Some(900e6), rise_seconds: None };
        let whole = Measure::Whole { of: "file".to_owned() };
        let mut case = Case {
            name: "1g".to_owned(),
            about: "About.".to_owned(),
            link: scenario(Vec::new()).link,
            data: Vec::new(),
            left_out: Vec::new(),
            trials: vec![trial(run(OURS, 1_000_000_000, 10.0, End::Complete)), trial(doubted)],
            figures: vec![
                Figure::wanted(whole, Target::AtLeast(900.0)),
                Figure::shown(Measure::Rise { of: "file".to_owned() }),
            ],
            disturbed: Vec::new(),
        };
        case.derive();
        let mut targets = Targets::new("Targets", Environment::default());
        targets.cases.push(case);
        let sheet = sheet(&targets);
        assert_eq!(sheet.summary[0], "1 of 1 targets does not hold.");
        assert_eq!(
            sheet.summary[1],
            "1g: file: whole, Mbit/s: 900, the median of 2 rounds; >= 900 does NOT hold."
        );
        assert_eq!(
            sheet.summary[2],
            "The emulator doubts its own link in 1 of 2 runs: they count, and are marked with †."
        );
        let all = series(&targets);
        assert_eq!((all[0].better, all[1].better, all[1].failed), (Better::More, Better::Less, 2));
        assert_eq!(sheet.parts[0].tables[2].rows[0][2].words, "800 1000†");
        assert_eq!(sheet.parts[0].tables[0].rows[0][4], Cell::toned("NO", Tone::Bad));
    }
}
