//! A copy over time.

use super::{Cell, Part, Sheet, Table};
use crate::chart::{Chart, Line, Lines, Look, Over};
use crate::series::{Better, Series, Value};
use crate::table::{duration, significant, size};
use crate::trace::{Sample, Trace};

/// Points of a line: more than one for each pixel are not seen.
const POINTS_MAX: usize = 400;

/// Rates are means over this: several samples, and below the time in which a rate changes visibly.
const RATE_WINDOW_SECONDS: f64 = 0.3;

pub(crate) fn series(trace: &Trace) -> Vec<Series> {
    let one = |figure: &str, value: Option<f64>, better| {
        let value = value.filter(|value| value.is_finite());
        Series {
            scenario: "trace".to_owned(),
            tool: crate::record::OURS.to_owned(),
            figure: figure.to_owned(),
            call_bytes: None,
            better,
            values: value.map(|value| Value::of(1, value)).into_iter().collect(),
            failed: 0,
        }
    };
    let done = done(trace);
    let steady = trace.steady_bps(done);
    vec![
        one("mean of the session, Mbit/s", Some(done as f64 * 8e-6 / trace.seconds()), Better::More),
        one("steady, Mbit/s", steady.map(|bps| bps / 1e6), Better::More),
        one("until 90 % of steady, s", steady.and_then(|bps| trace.seconds_until(bps * 0.9)), Better::Less),
    ]
}

fn done(trace: &Trace) -> u64 {
    trace.samples.last().map_or(0, |sample| sample.done_bytes)
}

fn most_lanes(trace: &Trace) -> usize {
    trace.samples.iter().map(|sample| sample.lanes.len()).max().unwrap_or(0)
}

pub(crate) fn sheet(trace: &Trace, name: &str) -> Sheet {
    let all = series(trace);
    let figures: Vec<String> = all
        .iter()
        .filter_map(|series| {
            Some(format!("{}: {}", series.figure, significant(series.values.first()?.value)))
        })
        .collect();
    let (done, seconds, lanes) = (size(done(trace)), duration(trace.seconds()), most_lanes(trace));
    let told = format!("{done} arrived in {seconds}, over {lanes} lanes at the most.");
    let rows = all
        .iter()
        .map(|series| {
            let value = series.values.first().map(|value| significant(value.value));
            vec![Cell::of(&series.figure), Cell::or_dash(value)]
        })
        .collect();
    Sheet {
        title: format!("A copy over time: {}", name.rsplit('/').next().unwrap_or(name)),
        facts: vec![("Host", "not recorded: a trace has times and bytes alone".to_owned())],
        summary: vec![told, format!("{}.", figures.join("; "))],
        parts: vec![Part {
            title: "Rate, lanes and buffers".to_owned(),
            about: vec![
                "The steady rate is the mean from 30 % to 95 % of the bytes; it is reached at the end of the first second with 90 % of it."
                    .to_owned(),
            ],
            charts: charts(trace),
            tables: vec![Table::new("The whole session", &["figure", "value"], rows)],
            ..Part::default()
        }],
    }
}

pub(crate) fn markdown(trace: &Trace, name: &str) -> String {
    let sheet = sheet(trace, name);
    let rows: Vec<Vec<String>> = sheet.parts[0].tables[0]
        .rows
        .iter()
        .map(|row| row.iter().map(|cell| cell.words.clone()).collect())
        .collect();
    let table = crate::table::markdown(&["figure", "value"], &rows);
    format!("# {}\n\n{}\n\n{table}", sheet.title, sheet.summary.join("\n"))
}

pub(crate) fn charts(trace: &Trace) -> Vec<Chart> {
    let chart = |title: &str, unit: &str, lines| {
        Chart::Lines(Lines { title: title.to_owned(), unit: unit.to_owned(), over: Over::Time, lines })
    };
    let line = |name: &str, look, points| Line { name: name.to_owned(), look, points, ..Line::default() };
    let window = RATE_WINDOW_SECONDS.max(trace.seconds() / POINTS_MAX as f64);
    let every = trace.samples.len().div_ceil(POINTS_MAX).max(1);
    let value = |of: &dyn Fn(&Sample) -> f64| -> Vec<(f64, f64)> {
        trace.value(of).into_iter().step_by(every).collect()
    };
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let sockets = |sample: &Sample| {
        mib(sample.socket_bytes.saturating_add(sample.far.map_or(0, |far| far.socket_bytes)))
    };
    let inboxes = |sample: &Sample| {
        let near = sample.lanes.iter().fold(0u64, |sum, lane| sum.saturating_add(lane.inbox_bytes));
        mib(near.saturating_add(sample.far.map_or(0, |far| far.inbox_bytes)))
    };
    let caches =
        |sample: &Sample| mib(sample.dirty_bytes.saturating_add(sample.far.map_or(0, |far| far.dirty_bytes)));
    vec![
        chart(
            "Rate",
            "Mbit/s",
            vec![
                line("of files, arrived", Look::Plain(0), trace.rate(window, |sample| sample.done_bytes)),
                line(
                    "on the lanes",
                    Look::Behind,
                    trace.rate(window, |sample| sample.sent_bytes.saturating_add(sample.received_bytes)),
                ),
            ],
        ),
        chart("Lanes", "lanes", vec![line("", Look::Plain(0), value(&|sample| sample.lanes.len() as f64))]),
        chart(
            "Waiting at both ends",
            "MiB",
            vec![
                line("in sockets, received", Look::Plain(1), value(&sockets)),
                line("in the program", Look::Plain(2), value(&inboxes)),
                line("in page caches, not on disk", Look::Plain(3), value(&caches)),
            ],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_trace_stays_small() {
        let samples = (1..=20_000u32)
            .map(|tick| Sample {
                seconds: f64::from(tick) / 10.0,
                done_bytes: u64::from(tick) * 1_250_000,
                ..Sample::default()
            })
            .collect();
        let trace = Trace { samples };
        let all = series(&trace);
        assert_eq!(all[0].values[0].value, 100.0);
        assert!((all[1].values[0].value - 100.0).abs() < 0.1);
        let sheet = sheet(&trace, "a.jsonl");
        assert!(sheet.summary[0].starts_with("23.3 GiB arrived in 2000 s"), "{:?}", sheet.summary);
        for chart in &sheet.parts[0].charts {
            assert!(chart.inline().len() < 40_000, "{}", chart.inline().len());
        }
        assert!(markdown(&trace, "a.jsonl").contains("| mean of the session, Mbit/s |"));
    }
}
