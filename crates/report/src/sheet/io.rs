//! File systems beside each other, by the length of a call.

use std::collections::BTreeSet;

use super::{Cell, Part, Sheet, Table, Tone, code, every_run, facts, left_out, size_of_call, trust_in_words};
use crate::chart::{Chart, Line, Lines, Look, Over, with_deviation};
use crate::io::{Io, Pattern, Place, Run, published, published_line};
use crate::palette::colours;
use crate::record::OURS;
use crate::series::{Better, Series, Value};
use crate::table::significant;

pub(crate) fn series(io: &Io) -> Vec<Series> {
    io.places.iter().flat_map(series_of).collect()
}

pub(crate) fn series_of(place: &Place) -> Vec<Series> {
    let lengths: BTreeSet<u64> = place.runs.iter().map(|run| run.length).collect();
    let mut all = Vec::new();
    for pattern in Pattern::ALL {
        for system in &place.systems {
            for &length in &lengths {
                let runs: Vec<&Run> = place.runs_of(&system.name, pattern, length).collect();
                let values: Vec<Value> = runs
                    .iter()
                    .filter_map(|run| {
                        let is_disturbed = !run.is_undisturbed();
                        Some(Value { is_cut: run.cut, is_disturbed, ..Value::of(run.round, run.mbps()?) })
                    })
                    .collect();
                let failed = (runs.len() - values.len()) as u32;
                if !runs.is_empty() {
                    all.push(Series {
                        scenario: scenario(place, pattern),
                        tool: system.name.clone(),
                        figure: "Mbit/s".to_owned(),
                        call_bytes: Some(length),
                        better: Better::More,
                        values,
                        failed,
                    });
                }
            }
        }
    }
    all
}

fn scenario(place: &Place, pattern: Pattern) -> String {
    format!("{}: {pattern}", place.name)
}

pub(crate) fn sheet(io: &Io) -> Sheet {
    let mut summary: Vec<String> = fastest(io).into_iter().collect();
    summary.extend(io.places.iter().flat_map(sentences));
    let emulated = io.places.iter().filter(|place| place.link.is_some());
    summary.extend(trust_in_words(&emulated.flat_map(|place| &place.verdicts).collect::<Vec<_>>()));
    Sheet {
        title: io.title.clone(),
        facts: facts(&io.environment),
        summary,
        parts: io.places.iter().map(part).collect(),
    }
}

/// In how many of all comparisons longhaul is ahead.
fn fastest(io: &Io) -> Option<String> {
    let all = series(io);
    let mean = |series: &Series| series.counted_spread().map(|spread| spread.mean);
    let (mut first, mut count) = (0, 0);
    for own in all.iter().filter(|series| series.tool == OURS) {
        let beside = all.iter().filter(|other| {
            (&other.scenario, other.call_bytes) == (&own.scenario, own.call_bytes) && other.tool != OURS
        });
        let best =
            beside.filter_map(mean).fold(None, |best: Option<f64>, rate| Some(best.unwrap_or(0.0).max(rate)));
        if let (Some(own), Some(best)) = (mean(own), best) {
            count += 1;
            first += u32::from(own > best);
        }
    }
    (count > 0).then(|| {
        format!("{OURS} is the fastest in {first} of {count} pairs of a pattern and a length of calls.")
    })
}

/// Lowest and highest mean of a file system over all lengths.
fn range(all: &[Series], system: &str, scenario: &str) -> Option<(f64, f64)> {
    let own = all.iter().filter(|series| series.tool == system && series.scenario == scenario);
    let means: Vec<f64> = own.filter_map(|series| Some(series.counted_spread()?.mean)).collect();
    let low = means.iter().copied().fold(f64::INFINITY, f64::min);
    let high = means.iter().copied().fold(0.0, f64::max);
    (!means.is_empty()).then_some((low, high))
}

pub(crate) fn sentences(place: &Place) -> Vec<String> {
    let all = series_of(place);
    let mut sentences = Vec::new();
    for pattern in Pattern::ALL {
        let scenario = scenario(place, pattern);
        let mut ranges: Vec<(&str, (f64, f64))> = place
            .systems
            .iter()
            .filter_map(|system| Some((system.name.as_str(), range(&all, &system.name, &scenario)?)))
            .collect();
        ranges.sort_by(|one, other| other.1.0.total_cmp(&one.1.0));
        ranges.sort_by_key(|(name, _)| *name != OURS); // stable: the others by their slowest length
        let words: Vec<String> = ranges
            .iter()
            .map(|(name, (low, high))| match (significant(*low), significant(*high)) {
                (low, high) if low == high => format!("{name} {low}"),
                (low, high) => format!("{name} {low} to {high}"),
            })
            .collect();
        if !words.is_empty() {
            sentences.push(format!("{scenario}, by the length of a call: {} Mbit/s.", words.join("; ")));
        }
    }
    sentences
}

pub(crate) fn part(place: &Place) -> Part {
    let all = series_of(place);
    let limit = significant(place.limit_seconds);
    let mut about =
        vec![format!("A file of {}; each run at most {limit} s.", size_of_call(place.file_bytes))];
    about.extend(
        place.link.as_ref().map(|link| format!("Link: {}; {}.", link.in_words(), code(&link.command))),
    );
    for system in &place.systems {
        let secret = match system.encrypted {
            Some(true) => ", encrypted",
            Some(false) => ", in the clear",
            None => "",
        };
        about.push(format!("{}{secret}: {}", system.name, code(&system.command)));
    }
    about.push(format!(
        "SRFS 2005 and NFS 2005 are the means that JAXA RR-05-004 gives for {}.",
        place.connection().in_words()
    ));
    let there =
        Pattern::ALL.into_iter().filter(|pattern| place.runs.iter().any(|run| run.pattern == *pattern));
    let there: Vec<Pattern> = there.collect();
    let mut tables: Vec<Table> = there.iter().map(|pattern| table(place, *pattern, &all)).collect();
    for pattern in &there {
        let own: Vec<&Series> =
            all.iter().filter(|series| series.scenario == scenario(place, *pattern)).collect();
        let table = every_run(&own);
        tables.push(Table { caption: format!("Every run: {pattern}"), ..table });
    }
    let networks = (1..).zip(&place.verdicts).filter(|_| place.link.is_some());
    let mut failed: Vec<(String, Vec<String>)> = Vec::new();
    for run in &place.runs {
        let Some(why) = &run.failure else { continue };
        let (what, round) = (format!("{}, {}: {why}", run.system, run.pattern), run.round);
        let when = format!("{}, round {round}", size_of_call(run.length));
        match failed.iter_mut().find(|(known, _)| *known == what) {
            Some((_, all)) => all.push(when),
            None => failed.push((what, vec![when])),
        }
    }
    let failed = failed.into_iter().map(|(what, when)| match when.as_slice() {
        [only] => format!("{what} ({only})"),
        all => format!("{what} ({} runs)", all.len()),
    });
    Part {
        title: place.name.clone(),
        about,
        charts: there.iter().map(|pattern| lines(place, *pattern, &all)).collect(),
        tables,
        doubts: networks
            .filter_map(|(number, verdict)| super::doubt(&format!("network {number}"), verdict))
            .collect(),
        notes: left_out(&place.left_out).chain(failed).collect(),
    }
}

fn lines(place: &Place, pattern: Pattern, all: &[Series]) -> Chart {
    let scenario = scenario(place, pattern);
    let names: Vec<&str> = place.systems.iter().map(|system| system.name.as_str()).collect();
    let own = names.iter().zip(colours(&names)).map(|(name, colour)| {
        let mut line = Line { name: (*name).to_owned(), look: Look::Marked(colour), ..Line::default() };
        for series in all.iter().filter(|series| series.tool == **name && series.scenario == scenario) {
            let (Some(spread), Some(length)) = (series.counted_spread(), series.call_bytes) else {
                continue;
            };
            let at = length as f64;
            line.points.push((at, spread.mean));
            line.deviations.extend(spread.deviation.map(|deviation| (at, spread.mean, deviation)));
            if series.values.len() > 1 {
                line.runs.extend(series.numbers().into_iter().map(|value| (at, value)));
            }
        }
        line
    });
    let lengths: Vec<u64> = place.runs.iter().map(|run| run.length).collect();
    let (first, last) = (lengths.iter().min().copied(), lengths.iter().max().copied());
    let both = [("SRFS", Look::Published), ("NFS", Look::PublishedToo)].map(|(system, look)| {
        // Where there is nothing of ours to compare them with, they would only take room.
        let near = published_line(place.connection(), system, pattern).into_iter().filter(|(length, _)| {
            first.is_some_and(|first| *length >= first) && last.is_some_and(|last| *length <= last)
        });
        let points: Vec<(f64, f64)> = near.map(|(length, rate)| (length as f64, rate)).collect();
        Line { name: format!("{system} 2005"), look, points, ..Line::default() }
    });
    let lines = own.chain(both).filter(|line| !line.points.is_empty()).collect();
    Chart::Lines(Lines {
        title: format!("{}: {pattern}", place.name),
        unit: "Mbit/s".to_owned(),
        over: Over::CallBytes,
        lines,
    })
}

fn table(place: &Place, pattern: Pattern, all: &[Series]) -> Table {
    let scenario = scenario(place, pattern);
    let mut head = vec!["call"];
    head.extend(place.systems.iter().map(|system| system.name.as_str()));
    head.extend(["SRFS 2005", "NFS 2005"]);
    let lengths: BTreeSet<u64> = place.runs.iter().map(|run| run.length).collect();
    let rows = lengths.into_iter().map(|length| {
        let own: Vec<Option<&Series>> = place
            .systems
            .iter()
            .map(|system| {
                all.iter().find(|series| {
                    (series.tool.as_str(), series.scenario.as_str(), series.call_bytes)
                        == (system.name.as_str(), scenario.as_str(), Some(length))
                })
            })
            .collect();
        let mean = |series: &Series| series.counted_spread().map(|spread| spread.mean);
        let best = own.iter().flatten().filter_map(|series| mean(series)).fold(0.0, f64::max);
        let cell = |series: &Option<&Series>| {
            let Some(series) = series else { return Cell::of("-") };
            let Some(spread) = series.counted_spread() else { return Cell::toned("FAILED", Tone::Bad) };
            let cut = if series.values.iter().any(|value| value.is_cut) { "~" } else { "" };
            let words = format!("{cut}{}", with_deviation(spread.mean, spread.deviation));
            match series.failed {
                0 if spread.mean >= best => Cell::toned(words, Tone::Best),
                0 => Cell::of(words),
                failed => Cell::toned(format!("{words}, {failed} FAILED"), Tone::Bad),
            }
        };
        let beside = ["SRFS", "NFS"].map(|system| {
            Cell::or_dash(published(place.connection(), system, pattern, length).map(significant))
        });
        std::iter::once(Cell::of(size_of_call(length))).chain(own.iter().map(cell)).chain(beside).collect()
    });
    let caption = format!("{pattern}, Mbit/s: mean ± sd of the rounds, by the length of a call");
    Table::new(caption, &head, rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Environment;
    use crate::io::System;

    fn run(system: &str, length: u64, round: u32, seconds: f64) -> Run {
        Run {
            system: system.to_owned(),
            pattern: Pattern::CreateWrite,
            length,
            round,
            bytes: 100_000_000,
            calls: 10,
            seconds,
            call_seconds: seconds,
            longest_seconds: seconds,
            cut: false,
            stolen: None,
            failure: None,
        }
    }

    #[test]
    fn lengths_are_in_lines_and_tables_with_what_was_published() {
        let mut io = Io::new("io", Environment::default());
        let system = |name: &str| System { name: name.to_owned(), encrypted: None, command: Vec::new() };
        let failed = Run { failure: Some("no room".to_owned()), ..run("other", 65536, 2, 1.0) };
        io.places.push(Place {
            name: "here".to_owned(),
            link: None,
            file_bytes: 1 << 20,
            limit_seconds: 9.0,
            prepare: None,
            systems: vec![system(OURS), system("other")],
            left_out: Vec::new(),
            runs: vec![
                run(OURS, 8192, 1, 1.0),
                run(OURS, 8192, 2, 2.0),
                run("other", 8192, 1, 4.0),
                run("other", 65536, 1, 4.0),
                failed,
            ],
            verdicts: Vec::new(),
        });
        let sheet = sheet(&io);
        assert_eq!(
            sheet.summary,
            [
                "longhaul is the fastest in 1 of 1 pairs of a pattern and a length of calls.",
                "here: create write, by the length of a call: longhaul 600; other 200 Mbit/s."
            ]
        );
        let words = |row: usize| -> Vec<String> {
            sheet.parts[0].tables[0].rows[row].iter().map(|cell| cell.words.clone()).collect()
        };
        assert_eq!(words(0), ["8 KiB", "600 ± 283", "200", "7.99", "14.4"]);
        assert_eq!(words(1), ["64 KiB", "-", "200, 1 FAILED", "3.63", "13.8"]);
        let Chart::Lines(lines) = &sheet.parts[0].charts[0] else { panic!("lines") };
        let names: Vec<&str> = lines.lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names, [OURS, "other", "SRFS 2005", "NFS 2005"]);
        assert_eq!((lines.lines[0].runs.len(), lines.lines[0].deviations.len()), (2, 1));
        assert_eq!(sheet.parts[0].notes, ["other, create write: no room (64 KiB, round 2)"]);
    }
}
