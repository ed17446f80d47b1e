//! The reports' own experiments, made again: longhaul, its rivals and what was published, side by side.

use std::collections::BTreeSet;

use super::{
    Cell, Part, Sheet, Table, Tone, code, doubt, every_run, facts, left_out, size_of_call, trust_in_words,
};
use crate::chart::{Bar, Bars, Chart, Line, Lines, Look, Over, with_deviation};
use crate::palette::colours;
use crate::published::{Figure, Site};
use crate::record::{Link, OURS, Scenario, Verdict};
use crate::reports::{Experiment, Found, LOSS_MAX, Reports, Run, UDP_FRAMING, WIRE_FRAMING, trace};
use crate::series::{Better, Series, Spread, Value};
use crate::table::significant;

/// Where a run stands in a table: its frame, or its window and streams.
type Place = (u64, u64, u64);

/// Which runs count at a place, and what for.
type Counted = fn(&[Run], Place) -> Vec<(&Run, f64)>;

fn place(run: &Run) -> Place {
    (run.frame_bytes, run.window_bytes, run.streams)
}

fn place_of(figure: &Figure) -> Place {
    let Figure { frame_bytes, window_bytes, streams, .. } = *figure;
    if window_bytes == 0 { (frame_bytes, 0, 0) } else { (0, window_bytes, streams) }
}

pub(crate) fn series(reports: &Reports) -> Vec<Series> {
    reports.experiments.iter().flat_map(series_of).collect()
}

fn series_of(experiment: &Experiment) -> Vec<Series> {
    let all = match &experiment.found {
        Found::Udp(runs) if counts_frames(experiment) => traffic(runs, "Mbit/s of frames", frames),
        Found::Udp(runs) | Found::Tcp(runs) => traffic(runs, "Mbit/s", payload),
        Found::Files(place) => super::io::series_of(place),
        Found::Copies { scenario, .. } => super::copies::series_of(scenario),
    };
    let named = |series: Series| Series {
        scenario: [experiment.name.as_str(), series.scenario.as_str()]
            .join(", ")
            .trim_end_matches(", ")
            .to_owned(),
        ..series
    };
    all.into_iter().map(named).collect()
}

/// A series for each tool and place.
fn traffic<'a>(
    runs: &'a [Run],
    figure: &str,
    of: impl Fn(&'a [Run], Place) -> Vec<(&'a Run, f64)>,
) -> Vec<Series> {
    let mut all = Vec::new();
    for at in runs.iter().map(place).collect::<BTreeSet<_>>() {
        for tool in tools(runs) {
            let values: Vec<Value> = of(runs, at)
                .into_iter()
                .filter(|(run, _)| run.tool == tool)
                .map(|(run, value)| Value { is_doubted: !run.link.trusted, ..Value::of(run.round, value) })
                .collect();
            let own = runs.iter().filter(|run| run.tool == tool && place(run) == at);
            let rounds: BTreeSet<u32> = own.map(|run| run.round).collect();
            if rounds.is_empty() {
                continue;
            }
            let failed = rounds.len().saturating_sub(values.len()) as u32;
            all.push(Series {
                scenario: in_words(at),
                tool: tool.to_owned(),
                figure: figure.to_owned(),
                call_bytes: None,
                better: Better::More,
                values,
                failed,
            });
        }
    }
    all
}

fn payload(runs: &[Run], at: Place) -> Vec<(&Run, f64)> {
    let own = runs.iter().filter(|run| place(run) == at);
    own.filter_map(|run| Some((run, run.mbps()?))).collect()
}

/// The burst with the highest rate that lost little enough, of each tool and round.
fn frames(runs: &[Run], at: Place) -> Vec<(&Run, f64)> {
    let mut best: Vec<(&Run, f64)> = Vec::new();
    for run in runs.iter().filter(|run| place(run) == at && run.loss() <= LOSS_MAX) {
        let Some(rate) = run.frames_mbps() else { continue };
        match best.iter_mut().find(|(known, _)| (&known.tool, known.round) == (&run.tool, run.round)) {
            Some(known) if rate > known.1 => *known = (run, rate),
            Some(_) => {}
            None => best.push((run, rate)),
        }
    }
    best
}

/// JAXA counts frames, iperf counts payload: what is measured is counted as what it stands beside.
fn counts_frames(experiment: &Experiment) -> bool {
    published(experiment).iter().any(|figure| figure.frame_bytes > 0)
}

fn tools(runs: &[Run]) -> Vec<&str> {
    let mut tools: Vec<&str> = Vec::new();
    for run in runs {
        if !tools.contains(&run.tool.as_str()) {
            tools.push(&run.tool);
        }
    }
    tools.sort_by_key(|tool| *tool != OURS);
    tools
}

fn in_words((frame, window, streams): Place) -> String {
    match (frame, window) {
        (0, 0) => count(streams),
        (0, window) => format!("{}, {}", window_words(window), count(streams)),
        (frame, _) => format!("{frame} B"),
    }
}

fn window_words(window: u64) -> String {
    // UsadaFox counts in powers of ten.
    if window.is_multiple_of(1_000_000) { format!("{} MB", window / 1_000_000) } else { size_of_call(window) }
}

fn count(streams: u64) -> String {
    if streams == 1 { "1 stream".to_owned() } else { format!("{streams} streams") }
}

pub(crate) fn sheet(reports: &Reports) -> Sheet {
    let mut summary: Vec<String> = reports.experiments.iter().filter_map(sentence).collect();
    summary.extend(reports.experiments.iter().flat_map(|experiment| match &experiment.found {
        Found::Files(place) => super::io::sentences(place),
        _ => Vec::new(),
    }));
    let verdicts: Vec<&Verdict> = reports.experiments.iter().flat_map(verdicts).collect();
    summary.extend(trust_in_words(&verdicts));
    let all = series(reports);
    if !all.is_empty() && all.iter().all(|series| series.values.len() <= 1) {
        summary.push("Each tool ran once: how far runs differ is not known.".to_owned());
    }
    Sheet {
        title: reports.title.clone(),
        facts: facts(&reports.environment),
        summary,
        parts: reports.experiments.iter().map(part).collect(),
    }
}

fn verdicts(experiment: &Experiment) -> Vec<&Verdict> {
    match &experiment.found {
        Found::Udp(runs) | Found::Tcp(runs) => runs.iter().map(|run| &run.link).collect(),
        Found::Files(place) => place.verdicts.iter().collect(),
        Found::Copies { scenario, .. } => scenario.runs.iter().map(|run| &run.link).collect(),
    }
}

/// The highest of longhaul's, of the others, and of what was published.
fn sentence(experiment: &Experiment) -> Option<String> {
    if matches!(experiment.found, Found::Files(_)) {
        return None; // what a mount keeps in memory is read at its speed: the highest figure says nothing
    }
    let all = series_of(experiment);
    let highest = |is_ours: bool| {
        let own = all.iter().filter(|series| (series.tool == OURS) == is_ours);
        own.filter_map(|series| Some((series, series.spread()?.mean)))
            .max_by(|one, other| one.1.total_cmp(&other.1))
    };
    let (_, ours) = highest(true)?;
    let mut words = format!("{}: at most {OURS} {}", experiment.title, significant(ours));
    if let Some((series, rate)) = highest(false) {
        words += &format!(", {} {}", series.tool, significant(rate));
    }
    let figures = published(experiment);
    let high = figures.iter().max_by(|one, other| one.mbps.total_cmp(&other.mbps));
    if let Some(figure) = high {
        words += &format!(", {} {}", figure.whose, significant(figure.mbps));
    }
    Some(words + " Mbit/s.")
}

fn published(experiment: &Experiment) -> Vec<Figure> {
    let Some(site) = Site::of(&experiment.name) else { return Vec::new() };
    match &experiment.found {
        Found::Udp(_) => site.udp(),
        Found::Tcp(_) => site.tcp(),
        Found::Copies { .. } => site.copies(),
        Found::Files(_) => Vec::new(), // the part of file I/O has its own
    }
}

fn part(experiment: &Experiment) -> Part {
    let all = series_of(experiment);
    let mut part = match &experiment.found {
        Found::Udp(runs) => udp(experiment, runs, &all),
        Found::Tcp(runs) => tcp(experiment, runs, &all),
        Found::Files(place) => super::io::part(place),
        Found::Copies { scenario, levels } => {
            let mut part = copies(experiment, scenario);
            if levels.len() > 1 {
                part.charts.extend(super::trace::charts(&trace(levels)));
            }
            part
        }
    };
    part.title = format!("{}: {}", experiment.name, experiment.title);
    let mut about =
        vec![format!("Link: {}; {}.", experiment.link.in_words(), code(&experiment.link.command))];
    about.splice(0..0, experiment.about.iter().cloned());
    about.extend(part.about.into_iter().filter(|line| !line.starts_with("Link: ")));
    part.about = about;
    part.notes.extend(left_out(&experiment.left_out));
    part
}

/// What goes wrong, and what the emulator says against its link.
fn remarks(runs: &[Run]) -> (Vec<String>, Vec<String>) {
    let of = |run: &Run| format!("{}, {}, round {}", run.tool, in_words(place(run)), run.round);
    let failed = runs.iter().filter_map(|run| Some(format!("{}: {}", of(run), run.failure.as_ref()?)));
    let doubts = runs.iter().filter_map(|run| doubt(&of(run), &run.link));
    (super::once(failed), super::once(doubts))
}

const FAILED: &str = "FAILED";

fn cell(series: Option<&Series>, best: f64) -> Cell {
    let Some(series) = series else { return Cell::of("-") };
    let Some(Spread { mean, deviation, .. }) = series.spread() else {
        return Cell::toned(FAILED, Tone::Bad);
    };
    let doubt = if series.values.iter().any(|value| value.is_doubted) { "†" } else { "" };
    let words = format!("{}{doubt}", with_deviation(mean, deviation));
    match series.failed {
        0 if mean >= best => Cell::toned(words, Tone::Best),
        0 => Cell::of(words),
        failed => Cell::toned(format!("{words}, {failed} FAILED"), Tone::Bad),
    }
}

/// Behind the experiment's name.
fn is_at(series: &Series, at: &str) -> bool {
    series.scenario.split_once(", ").is_some_and(|(_, words)| words == at)
}

/// The series of each tool at a place, as cells.
fn cells(all: &[Series], tools: &[&str], at: &str) -> Vec<Cell> {
    let own: Vec<Option<&Series>> = tools
        .iter()
        .map(|tool| all.iter().find(|series| series.tool == *tool && is_at(series, at)))
        .collect();
    let best = own.iter().flatten().filter_map(|series| series.spread()).map(|spread| spread.mean);
    let best = best.fold(0.0, f64::max);
    own.into_iter().map(|series| cell(series, best)).collect()
}

/// All figures of a place: one, or from the lowest to the highest.
fn beside(figures: &[&Figure]) -> Cell {
    let low = figures.iter().map(|figure| figure.mbps).fold(f64::INFINITY, f64::min);
    let high = figures.iter().map(|figure| figure.mbps).fold(0.0, f64::max);
    Cell::of(match (figures.is_empty(), significant(low), significant(high)) {
        (true, ..) => "-".to_owned(),
        (false, low, high) if low == high => low,
        (false, low, high) => format!("{low} to {high}"),
    })
}

/// What was published, how, in one sentence.
fn sources(figures: &[Figure]) -> Option<String> {
    let all = figures.iter().map(|figure| format!("{}: {}", figure.about, significant(figure.mbps)));
    let all: Vec<String> = all.collect();
    Some(format!("{}, in Mbit/s: {}.", figures.first()?.whose, all.join("; ")))
}

/// A line of each tool over something of its place.
fn lines(all: &[Series], tools: &[&str], at: &[(f64, String)]) -> Vec<Line> {
    let line = |(tool, colour): (&&str, usize)| {
        let mut line = Line { name: (*tool).to_owned(), look: Look::Marked(colour), ..Line::default() };
        for (x, words) in at {
            let found = all.iter().find(|series| series.tool == **tool && is_at(series, words));
            let Some((series, spread)) = found.and_then(|series| Some((series, series.spread()?))) else {
                continue;
            };
            line.points.push((*x, spread.mean));
            line.deviations.extend(spread.deviation.map(|deviation| (*x, spread.mean, deviation)));
            if series.values.len() > 1 {
                line.runs.extend(series.numbers().into_iter().map(|value| (*x, value)));
            }
        }
        line
    };
    tools.iter().zip(colours(tools)).map(line).filter(|line| !line.points.is_empty()).collect()
}

fn udp(experiment: &Experiment, runs: &[Run], all: &[Series]) -> Part {
    let tools = tools(runs);
    let figures = published(experiment);
    let places: BTreeSet<Place> = runs.iter().map(place).collect();
    let by_frame = counts_frames(experiment);
    let wire = |frame: u64| {
        let counted = if by_frame { frame } else { frame.saturating_sub(UDP_FRAMING) };
        experiment.link.rate_bps as f64 * 1e-6 * counted as f64 / frame.saturating_add(WIRE_FRAMING) as f64
    };
    let (unit, counted): (&str, Counted) =
        if by_frame { ("Mbit/s of frames", frames) } else { ("Mbit/s of payload", payload) };
    let ways: Vec<&str> = figures.iter().fold(Vec::new(), |mut ways, figure| {
        if figure.frame_bytes > 0 && !ways.contains(&figure.about.as_str()) {
            ways.push(&figure.about);
        }
        ways
    });
    let mut head = vec!["frame".to_owned()];
    for tool in &tools {
        head.extend([(*tool).to_owned(), "lost".to_owned()]);
    }
    head.push("the wire".to_owned());
    let whose = figures.first().map_or("published", |figure| figure.whose);
    if ways.is_empty() {
        head.push(whose.to_owned());
    }
    head.extend(ways.iter().map(|way| format!("{whose}, {way}")));
    let rows = places.iter().map(|at| {
        let mut row = vec![Cell::of(format!("{} B", at.0))];
        for (tool, cell) in tools.iter().zip(cells(all, &tools, &in_words(*at))) {
            let mut own = runs.iter().filter(|run| run.tool == *tool && place(run) == *at);
            let is_none = cell.words == FAILED && own.all(|run| run.failure.is_none());
            let cell = if is_none { Cell::toned("none", Tone::Bad) } else { cell };
            let lost: Vec<f64> = counted(runs, *at)
                .iter()
                .filter(|(run, _)| run.tool == *tool)
                .map(|(run, _)| run.loss() * 100.0)
                .collect();
            let lost = Spread::of(&lost).map(|spread| format!("{:.1} %", spread.mean.abs()));
            row.extend([cell, Cell::or_dash(lost)]);
        }
        row.push(Cell::of(significant(wire(at.0))));
        if ways.is_empty() {
            row.push(beside(&figures.iter().collect::<Vec<_>>()));
        }
        for way in &ways {
            let own: Vec<&Figure> =
                figures.iter().filter(|figure| figure.frame_bytes == at.0 && figure.about == *way).collect();
            row.push(beside(&own));
        }
        row
    });
    let mut table = Table::new(format!("{unit} that arrived, and what was lost then"), &[], rows.collect());
    table.head = head;
    let (notes, doubts) = remarks(runs);
    let mut notes = notes;
    if ways.is_empty() {
        notes.extend(sources(&figures));
    }
    let chart = if places.len() > 1 {
        let at: Vec<(f64, String)> = places.iter().map(|at| (at.0 as f64, in_words(*at))).collect();
        let mut all_lines = lines(all, &tools, &at);
        for (way, look) in ways.iter().zip([Look::Published, Look::PublishedToo]) {
            let own = figures.iter().filter(|figure| figure.about == *way);
            let points = own.map(|figure| (figure.frame_bytes as f64, figure.mbps)).collect();
            all_lines.push(Line { name: format!("{whose}, {way}"), look, points, ..Line::default() });
        }
        let points = places.iter().map(|at| (at.0 as f64, wire(at.0))).collect();
        all_lines.push(Line { name: "the wire".to_owned(), look: Look::Behind, points, ..Line::default() });
        Chart::Lines(Lines {
            title: format!("{}: UDP by frame size", experiment.name),
            unit: unit.to_owned(),
            over: Over::FrameBytes,
            lines: all_lines,
        })
    } else {
        let limit =
            places.first().map(|at| (wire(at.0), format!("the wire carries {}", significant(wire(at.0)))));
        bars(&format!("{}: UDP", experiment.name), unit, all, &figures, limit)
    };
    Part {
        about: by_frame
            .then(|| {
                format!(
                    "The rate of frames (payload and {UDP_FRAMING} bytes) that arrive, at the highest load of which at most {:.0} % is \
                     lost; none: more is lost of every load that was tried.",
                    LOSS_MAX * 100.0
                )
            })
            .into_iter()
            .collect(),
        charts: vec![chart],
        tables: vec![table, bursts(runs)],
        doubts,
        notes,
        ..Part::default()
    }
}

/// Every burst, with its load.
fn bursts(runs: &[Run]) -> Table {
    let rows = runs.iter().map(|run| {
        let found = match run.frames_mbps() {
            Some(rate) => format!("{}, {:.2} % lost", significant(rate), run.loss() * 100.0),
            None => "FAILED".to_owned(),
        };
        vec![
            Cell::of(format!("{} B, round {}, {}", run.frame_bytes, run.round, run.tool)),
            Cell::of(significant(run.offered_bps * 1e-6)),
            Cell::of(found),
        ]
    });
    let head = ["burst", "load on the wire, Mbit/s", "Mbit/s of frames that arrived"];
    Table { is_detail: true, ..Table::new("Every burst", &head, rows.collect()) }
}

fn bars(title: &str, unit: &str, all: &[Series], figures: &[Figure], limit: Option<(f64, String)>) -> Chart {
    let tools: Vec<&str> = all.iter().map(|series| series.tool.as_str()).collect();
    let own = all.iter().zip(colours(&tools)).map(|(series, colour)| {
        let spread = series.spread();
        Bar {
            label: series.tool.clone(),
            colour,
            mean: spread.map(|spread| spread.mean),
            deviation: spread.and_then(|spread| spread.deviation),
            runs: series.numbers(),
            ..Bar::default()
        }
    });
    let rows = own.chain(figures.iter().map(bar_of)).collect();
    Chart::Bars(Bars { title: title.to_owned(), unit: unit.to_owned(), rows, limit })
}

/// What was published looks as what is not measured here.
fn bar_of(figure: &Figure) -> Bar {
    const COLOUR: usize = 6;
    Bar {
        label: figure.whose.to_owned(),
        colour: COLOUR,
        mean: Some(figure.mbps),
        is_published: true,
        ..Bar::default()
    }
}

/// What a path carries when each stream has a window in flight in each round trip.
fn theory(link: &Link, (_, window, streams): Place) -> f64 {
    let rtt = link.rtt_us.max(1) as f64 * 1e-6;
    (window as f64 * streams as f64 * 8.0 / rtt).min(link.payload_bps()) * 1e-6
}

fn tcp(experiment: &Experiment, runs: &[Run], all: &[Series]) -> Part {
    let tools = tools(runs);
    let figures = published(experiment);
    let link = &experiment.link;
    let whose = figures.first().map_or("published", |figure| figure.whose);
    let places: BTreeSet<Place> =
        runs.iter().map(place).chain(figures.iter().map(place_of)).filter(|at| at.1 > 0).collect();
    let mut head = vec!["window, streams"];
    head.extend(&tools);
    head.extend(["window / RTT", whose]);
    let of = |at: &Place| figures.iter().filter(|figure| place_of(figure) == *at).collect::<Vec<_>>();
    let rows = places.iter().map(|at| {
        let mut row = vec![Cell::of(in_words(*at))];
        row.extend(cells(all, &tools, &in_words(*at)));
        row.extend([Cell::of(significant(theory(link, *at))), beside(&of(at))]);
        row
    });
    let caption = "Payload that arrived, Mbit/s: mean ± sd of the rounds; window / RTT for all streams, at most what the wire carries";
    let table = Table::new(caption, &head, rows.collect());
    let (mut notes, doubts) = remarks(runs);
    notes.extend(sources(&figures));
    let chart = |over: Over, what: &str, at: Vec<(f64, Place)>| {
        let named: Vec<(f64, String)> = at.iter().map(|(x, at)| (*x, in_words(*at))).collect();
        let mut all_lines = lines(all, &tools, &named);
        let published: Vec<(f64, f64)> =
            at.iter().flat_map(|(x, at)| of(at).into_iter().map(|figure| (*x, figure.mbps))).collect();
        let ours = whose.to_owned();
        all_lines.push(Line { name: ours, look: Look::Published, points: published, ..Line::default() });
        let points = at.iter().map(|(x, at)| (*x, theory(link, *at))).collect();
        all_lines.push(Line {
            name: "window / RTT".to_owned(),
            look: Look::Behind,
            points,
            ..Line::default()
        });
        all_lines.retain(|line| !line.points.is_empty());
        Chart::Lines(Lines {
            title: format!("{}: TCP {what}", experiment.name),
            unit: "Mbit/s".to_owned(),
            over,
            lines: all_lines,
        })
    };
    let mut charts = Vec::new();
    for streams in places.iter().map(|at| at.2).collect::<BTreeSet<_>>() {
        let at: Vec<(f64, Place)> =
            places.iter().filter(|at| at.2 == streams).map(|at| (at.1 as f64, *at)).collect();
        if at.len() > 2 {
            charts.push(chart(Over::WindowBytes, &format!("by window, {}", count(streams)), at));
        }
    }
    for window in places.iter().map(|at| at.1).collect::<BTreeSet<_>>() {
        let at: Vec<(f64, Place)> =
            places.iter().filter(|at| at.1 == window).map(|at| (at.2 as f64, *at)).collect();
        if at.len() > 2 {
            charts.push(chart(Over::Streams, &format!("by streams, {} each", window_words(window)), at));
        }
    }
    if charts.is_empty() {
        for at in &places {
            let own: Vec<Series> =
                all.iter().filter(|series| is_at(series, &in_words(*at))).cloned().collect();
            let figures: Vec<Figure> = of(at).into_iter().cloned().collect();
            let title = format!("{}: TCP, {}", experiment.name, in_words(*at));
            let limit = theory(link, *at);
            let limit = Some((limit, format!("window / RTT {}", significant(limit))));
            charts.push(bars(&title, "Mbit/s", &own, &figures, limit));
        }
    }
    let runs_table = every_run(&all.iter().collect::<Vec<_>>());
    let mut detail = Table { head: vec!["of".to_owned(), "every run, in order".to_owned()], ..runs_table };
    for (row, series) in detail.rows.iter_mut().zip(all) {
        let runs = row.pop().unwrap_or_default();
        *row = vec![Cell::of(format!("{}: {}", series.scenario, series.tool)), runs];
    }
    Part { charts, tables: vec![table, detail], doubts, notes, ..Part::default() }
}

fn copies(experiment: &Experiment, scenario: &Scenario) -> Part {
    let figures = published(experiment);
    let mut part = super::copies::part(scenario);
    for chart in &mut part.charts {
        if let Chart::Bars(bars) = chart {
            bars.title = format!("{}: rate of the whole copy", experiment.name);
            bars.rows.extend(figures.iter().map(bar_of));
        }
    }
    if !figures.is_empty() {
        let rows = figures.iter().map(|figure| {
            vec![Cell::of(figure.whose), Cell::of(significant(figure.mbps)), Cell::of(figure.about.as_str())]
        });
        let head = ["published", "Mbit/s", "how"];
        part.tables.insert(1, Table::new("What was published", &head, rows.collect()));
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Environment;
    use crate::reports::tests::burst;

    fn link() -> Link {
        Link {
            name: "1g-3.3ms".to_owned(),
            rate_bps: 1_000_000_000,
            rtt_us: 3300,
            loss: 0.0,
            command: vec!["longhaul".to_owned()],
        }
    }

    fn reports(name: &str, found: Found) -> Reports {
        let mut reports = Reports::new("r", Environment::default());
        reports.experiments.push(Experiment {
            name: name.to_owned(),
            title: "an experiment".to_owned(),
            about: vec!["how".to_owned()],
            link: link(),
            left_out: Vec::new(),
            found,
        });
        reports
    }

    fn words(row: &[Cell]) -> Vec<&str> {
        row.iter().map(|cell| cell.words.as_str()).collect()
    }

    #[test]
    fn the_highest_load_that_loses_little_counts() {
        let frame = |run: Run| Run { frame_bytes: 1518, ..run };
        let runs = vec![
            frame(burst(OURS, 1e9, 90_000)),
            frame(burst(OURS, 0.8e9, 80_000)),
            Run { packets_sent: 81_000, ..frame(burst(OURS, 0.9e9, 80_900)) },
            Run { packets_sent: 70_000, ..frame(burst("iperf3", 0.9e9, 70_000)) },
            Run { failure: Some("no".to_owned()), ..frame(burst("iperf3", 0.9e9, 1)) },
        ];
        let reports = reports("jaxa-udp", Found::Udp(runs));
        let sheet = sheet(&reports);
        let part = &sheet.parts[0];
        assert_eq!(
            words(&part.tables[0].rows[0]),
            ["1518 B", "982", "0.1 %", "850", "0.0 %", "987", "971", "960"]
        );
        assert_eq!(part.tables[1].rows.len(), 5, "every burst is shown");
        let lossy = reports_of_two_lossy_bursts();
        assert_eq!(words(&lossy)[1..3], ["none", "-"]);
        assert_eq!(part.notes, ["iperf3, 1518 B, round 1: no"]);
        assert!(
            sheet.summary[0].contains("at most longhaul 982, iperf3 850, JAXA 2005 972 Mbit/s"),
            "{sheet:?}"
        );
    }

    fn reports_of_two_lossy_bursts() -> Vec<Cell> {
        let runs = vec![burst(OURS, 1e9, 90_000), burst(OURS, 0.5e9, 80_000)];
        sheet(&reports("jaxa-udp", Found::Udp(runs))).parts[0].tables[0].rows[0].clone()
    }

    #[test]
    fn windows_and_streams_stand_beside_theory_and_publications() {
        let run = |tool: &str, window: u64, streams: u64, mbps: f64| Run {
            tool: tool.to_owned(),
            window_bytes: window,
            streams,
            bits_per_second: mbps * 1e6,
            ..burst(tool, 0.0, 0)
        };
        let run =
            |tool: &str, window, streams, mbps| Run { frame_bytes: 0, ..run(tool, window, streams, mbps) };
        let runs = vec![
            run(OURS, 128 << 10, 1, 300.0),
            run(OURS, 128 << 10, 1, 310.0),
            run("iperf3", 128 << 10, 1, 290.0),
            run(OURS, 128 << 10, 16, 930.0),
        ];
        let sheet = sheet(&reports("jaxa-tcp", Found::Tcp(runs)));
        let rows = &sheet.parts[0].tables[0].rows;
        assert_eq!(words(&rows[0]), ["128 KiB, 1 stream", "305 ± 7.1", "290", "318", "236 to 253"]);
        assert_eq!(words(&rows[1]), ["128 KiB, 16 streams", "930", "-", "941", "-"]);
        assert_eq!(sheet.parts[0].charts.len(), 2, "too few places for a line: bars");
    }

    #[test]
    fn one_load_counts_with_what_it_lost() {
        let sheet = sheet(&reports(
            "cern-udp",
            Found::Udp(vec![Run { bits_per_second: 867e6, ..burst(OURS, 1e9, 90_000) }]),
        ));
        let row = &sheet.parts[0].tables[0].rows[0];
        assert_eq!(words(row), ["1250 B", "867", "10.0 %", "948", "906"], "payload, as iperf counts");
        assert!(sheet.parts[0].notes[0].contains("5.3 % of datagrams lost"), "{:?}", sheet.parts[0].notes);
    }
}
