//! Copies of several tools beside each other.

use super::{
    Cell, Part, Sheet, Table, Tone, doubt, every_run, facts, left_out, link_command, once, trust_in_words,
};
use crate::chart::{Bar, Bars, Chart};
use crate::palette::colours;
use crate::record::{End, OURS, Report, Run, Scenario};
use crate::series::{Better, Series, Value};
use crate::summary::Summary;
use crate::table::{amount, disturbance, duration, significant};

pub(crate) fn series(report: &Report) -> Vec<Series> {
    report.scenarios.iter().flat_map(series_of).collect()
}

pub(crate) fn series_of(scenario: &Scenario) -> Vec<Series> {
    let of_tool = |summary: &Summary| {
        let runs = || scenario.runs.iter().filter(|run| run.tool == summary.tool);
        let value = |run: &Run| {
            let value = run.rate_bps(scenario.data.bytes).filter(|bps| bps.is_finite())? / 1e6;
            Some(Value {
                round: run.round,
                value,
                is_cut: matches!(run.end, End::Cut { .. }),
                is_doubted: is_emulated(scenario) && !run.link.trusted,
                is_disturbed: !run.is_undisturbed(),
            })
        };
        let values: Vec<Value> = runs().filter_map(value).collect();
        let failed = (runs().count() - values.len()) as u32;
        Series {
            scenario: name(scenario),
            tool: summary.tool.clone(),
            figure: "Mbit/s".to_owned(),
            call_bytes: None,
            better: Better::More,
            values,
            failed,
        }
    };
    scenario.summaries.iter().map(of_tool).collect()
}

fn name(scenario: &Scenario) -> String {
    format!("{}: {}", scenario.link.in_words(), scenario.data.name)
}

fn is_emulated(scenario: &Scenario) -> bool {
    scenario.link.rate_bps > 0
}

pub(crate) fn sheet(report: &Report) -> Sheet {
    Sheet {
        title: report.title.clone(),
        facts: facts(&report.environment),
        summary: summary(report),
        parts: report.scenarios.iter().map(part).collect(),
    }
}

fn summary(report: &Report) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let compared: Vec<f64> = report.scenarios.iter().filter_map(ratio).collect();
    let (first, count) = (compared.iter().filter(|ratio| **ratio > 1.0).count(), compared.len());
    if count > 1 {
        let (low, high) = compared
            .iter()
            .fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), r| (low.min(*r), high.max(*r)));
        words.push(format!(
            "{OURS} is the fastest in {first} of {count} scenarios, with {} to {} times the rate of the best other tool.",
            significant(low),
            significant(high)
        ));
    }
    words.extend(report.scenarios.iter().filter_map(sentence));
    let runs = || report.scenarios.iter().flat_map(|scenario| &scenario.runs);
    let cut = runs().filter(|run| matches!(run.end, End::Cut { .. })).count();
    if cut > 0 {
        words.push(format!(
            "{cut} of {} runs were cut off at the limit; their rates are projected and marked with ~.",
            runs().count()
        ));
    }
    let verdicts: Vec<_> = report
        .scenarios
        .iter()
        .filter(|each| is_emulated(each))
        .flat_map(|each| &each.runs)
        .map(|run| &run.link)
        .collect();
    words.extend(trust_in_words(&verdicts));
    if !report.scenarios.is_empty() && series(report).iter().all(|series| series.values.len() <= 1) {
        words.push("Each tool ran once: how far runs differ is not known.".to_owned());
    }
    words
}

fn own(scenario: &Scenario) -> Option<&Summary> {
    scenario.summaries.iter().find(|summary| summary.tool == OURS)
}

/// Of longhaul to the best other tool.
fn ratio(scenario: &Scenario) -> Option<f64> {
    own(scenario)?.ratio_to_best_rival
}

fn best_rival(scenario: &Scenario) -> Option<&Summary> {
    let rivals = scenario.summaries.iter().filter(|summary| summary.tool != OURS);
    rivals
        .filter(|summary| summary.mbit_s_mean.is_some())
        .max_by(|one, other| one.mbit_s_mean.unwrap_or(0.0).total_cmp(&other.mbit_s_mean.unwrap_or(0.0)))
}

fn sentence(scenario: &Scenario) -> Option<String> {
    let summary = own(scenario)?;
    let rate = summary.mbit_s_mean?;
    let projected = |summary: &Summary| if summary.projected { "~" } else { "" };
    let mut words = format!("{}: {OURS} {}{} Mbit/s", name(scenario), projected(summary), significant(rate));
    if is_emulated(scenario) {
        words += &format!(", {:.0} % of what the wire carries", rate * 1e8 / scenario.link.payload_bps());
    }
    if let (Some(rival), Some(ratio)) = (best_rival(scenario), summary.ratio_to_best_rival) {
        let theirs = significant(rival.mbit_s_mean.unwrap_or(0.0));
        let (tool, about) = (&rival.tool, projected(rival));
        words += &format!(
            "; best of the others is {tool} with {about}{theirs}: a ratio of {}",
            significant(ratio)
        );
    }
    Some(words + ".")
}

pub(crate) fn part(scenario: &Scenario) -> Part {
    let all = series_of(scenario);
    let mut about =
        vec![format!("{}; each run at most {} s.", amount(&scenario.data), scenario.limit_seconds)];
    about.extend(link_command(&scenario.link));
    let place = |run: &Run| format!("{}, round {}", run.tool, run.round);
    let mut notes: Vec<String> = Vec::new();
    for run in &scenario.runs {
        notes.extend(run.remarks.iter().map(|remark| format!("{}: {remark}", run.tool)));
        if let End::Failed { reason } = &run.end {
            notes.push(format!("{}: failed: {reason}", place(run)));
        }
        notes.extend(disturbance(run).map(|what| format!("{}: {what}", place(run))));
    }
    notes.extend(left_out(&scenario.left_out));
    let doubts = if is_emulated(scenario) {
        scenario.runs.iter().filter_map(|run| doubt(&place(run), &run.link)).collect()
    } else {
        Vec::new()
    };
    Part {
        title: name(scenario),
        about,
        charts: vec![bars(scenario, &all)],
        tables: vec![table(scenario, &all), every_run(&all.iter().collect::<Vec<_>>())],
        doubts,
        notes: once(notes),
    }
}

fn bars(scenario: &Scenario, all: &[Series]) -> Chart {
    let tools: Vec<&str> = all.iter().map(|series| series.tool.as_str()).collect();
    let row = |(series, colour): (&Series, usize)| {
        let spread = series.spread();
        let doubted = series.values.iter().any(|value| value.is_doubted);
        let remark = match (spread, doubted) {
            (None, _) => "failed",
            (_, true) => "†",
            _ => "",
        };
        Bar {
            label: series.tool.clone(),
            colour,
            mean: spread.map(|spread| spread.mean),
            deviation: spread.and_then(|spread| spread.deviation),
            runs: series.numbers(),
            remark: remark.to_owned(),
            is_projected: series.values.iter().any(|value| value.is_cut),
            target: None,
            is_published: false,
        }
    };
    let wire = scenario.link.payload_bps() / 1e6;
    Chart::Bars(Bars {
        title: format!("Rate of the whole copy: {}", name(scenario)),
        unit: "Mbit/s of payload".to_owned(),
        rows: all.iter().zip(colours(&tools)).map(row).collect(),
        limit: is_emulated(scenario).then(|| (wire, format!("the wire carries {}", significant(wire)))),
    })
}

fn table(scenario: &Scenario, all: &[Series]) -> Table {
    const HEAD: [&str; 7] =
        ["tool", "Mbit/s, mean ± sd", "time", "× best other", "encrypted", "complete", "link trusted"];
    let best = scenario.summaries.iter().filter_map(|summary| summary.mbit_s_mean).fold(0.0, f64::max);
    let row = |(summary, series): (&Summary, &Series)| {
        let about = if summary.projected { "~" } else { "" };
        let is_best = summary.mbit_s_mean.is_some_and(|mean| mean >= best && mean > 0.0);
        let rate = series.spread().map(|spread| crate::chart::with_deviation(spread.mean, spread.deviation));
        let all_complete = summary.complete == summary.runs;
        let all_trusted = summary.trusted == summary.runs || !is_emulated(scenario);
        let bad = |is_good: bool| if is_good { Tone::Plain } else { Tone::Bad };
        vec![
            Cell::of(&summary.tool),
            Cell::toned(
                rate.map_or_else(|| "failed".to_owned(), |rate| format!("{about}{rate}")),
                if is_best { Tone::Best } else { Tone::Plain },
            ),
            Cell::or_dash(summary.seconds_median.map(|seconds| format!("{about}{}", duration(seconds)))),
            Cell::or_dash(summary.ratio_to_best_rival.map(significant)),
            Cell::of(if summary.encrypted { "yes" } else { "no" }),
            Cell::toned(format!("{}/{}", summary.complete, summary.runs), bad(all_complete)),
            Cell::toned(
                if is_emulated(scenario) {
                    format!("{}/{}", summary.trusted, summary.runs)
                } else {
                    "-".to_owned()
                },
                bad(all_trusted),
            ),
        ]
    };
    let rows = scenario.summaries.iter().zip(all).map(row).collect();
    Table::new("Payload over the time of the command, from its start to its exit", &HEAD, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Environment;
    use crate::record::tests::{run, scenario};

    #[test]
    fn the_summary_tells_what_is_measured_and_what_is_not() {
        let mut doubted = run("aria2c -x16", 1_000_000_000, 20.0, End::Complete);
        doubted.link.trusted = false;
        doubted.link.doubts = vec!["it stalled".to_owned()];
        let runs = vec![
            run(OURS, 1_000_000_000, 9.0, End::Complete),
            run("scp", 10_000_000, 60.0, End::Cut { projected_seconds: Some(6000.0) }),
            doubted,
        ];
        let mut report = Report::new("Copies", Environment::default());
        report.scenarios.push(scenario(runs));
        let sheet = sheet(&report);
        let words = sheet.summary.join("\n");
        assert!(words.contains("longhaul 889 Mbit/s, 94 % of what the wire carries; best of the others is aria2c -x16 with 400: a ratio of 2.22"), "{words}");
        assert!(
            words.contains("1 of 3 runs were cut off") && words.contains("doubts its own link in 1 of 3"),
            "{words}"
        );
        assert!(words.contains("Each tool ran once"), "{words}");
        assert_eq!(sheet.parts[0].doubts, ["aria2c -x16, round 1: it stalled"]);
        let runs = &sheet.parts[0].tables[1];
        assert_eq!(runs.rows[1][2].words, "~1.33");
        assert_eq!(runs.rows[2][2].words, "400†");
    }

    #[test]
    fn a_run_that_failed_has_no_value_and_is_counted() {
        let mut report = Report::new("Copies", Environment::default());
        let failed = || run("scp", 0, 1.0, End::Failed { reason: "no".to_owned() });
        report.scenarios.push(scenario(vec![failed(), failed()]));
        let all = series(&report);
        assert_eq!((all[0].values.len(), all[0].failed, all[0].spread()), (0, 2, None));
        assert_eq!(sheet(&report).parts[0].tables[0].rows[0][1].words, "failed");
    }
}
