//! Plots as SVG: bars of a scenario's tools, many scenarios on one sheet, a copy's throughput and a link's traffic over time.

use std::collections::BTreeSet;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::FontTransform;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::io::{Pattern, Place, published_line};
use crate::record::{OURS, Run, Scenario};
use crate::summary::Summary;
use crate::trace::Trace;
use crate::traffic::Traffic;

/// Why a plot could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw the plot: {0}")]
pub struct PlotError(String);

impl PlotError {
    pub(crate) fn new(why: impl std::fmt::Display) -> Self {
        Self(why.to_string())
    }
}

impl<E: std::error::Error + Send + Sync> From<DrawingAreaErrorKind<E>> for PlotError {
    fn from(error: DrawingAreaErrorKind<E>) -> Self {
        Self::new(error)
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const FONT: &str = "sans-serif";
const OWN_COLOUR: RGBColor = RGBColor(0x1b, 0x6c, 0xa8);
const RIVAL_COLOUR: RGBColor = RGBColor(0x9a, 0xa5, 0xb1);
const AREA_COLOUR: RGBColor = RGBColor(0x5c, 0xb8, 0x5c);
const INK: RGBColor = RGBColor(0x26, 0x2b, 0x33);
const FAINT: RGBColor = RGBColor(0xe3, 0xe7, 0xec);

/// Of one panel of bars.
const PANEL_WIDTH: u32 = 720;
const BAR_HEIGHT: u32 = 30;
const PANEL_MARGINS: u32 = 86;

/// Of the width of the longest bar, so that what stands beside it has its place.
const ROOM_FOR_LABELS: f64 = 1.45;

/// Points of throughput are means over this: several samples, and below the time in which a rate changes visibly.
const RATE_WINDOW_SECONDS: f64 = 0.3;

/// The tools of one scenario: mean rate as a bar, each run as a dot, the wire's limit as a line.
///
/// # Errors
/// [`PlotError`].
pub fn bars(scenario: &Scenario) -> Result<String, PlotError> {
    draw((PANEL_WIDTH, panel_height(scenario)), |root| panel(root, scenario))
}

/// Several scenarios on one sheet, two beside each other.
///
/// # Errors
/// [`PlotError`].
pub fn overview(scenarios: &[Scenario]) -> Result<String, PlotError> {
    const COLUMNS: usize = 2;
    let rows: Vec<&[Scenario]> = scenarios.chunks(COLUMNS).collect();
    let heights: Vec<u32> = rows.iter().map(|row| row.iter().map(panel_height).max().unwrap_or(0)).collect();
    let size = (PANEL_WIDTH * COLUMNS as u32, heights.iter().sum::<u32>().max(1));
    draw(size, |root| {
        let mut rest = root.clone();
        for (row, height) in rows.iter().zip(&heights) {
            let (line, below) = rest.split_vertically(*height);
            rest = below;
            for (cell, scenario) in line.split_evenly((1, COLUMNS)).iter().zip(*row) {
                let (cell, _) = cell.split_vertically(panel_height(scenario));
                panel(&cell, scenario)?;
            }
        }
        Ok(())
    })
}

/// A copy over time: its rate, the number of its lanes, and what waits in the buffers on the way.
///
/// # Errors
/// [`PlotError`].
pub fn throughput(trace: &Trace, title: &str) -> Result<String, PlotError> {
    draw((860, 640), |root| {
        let root = root.titled(title, (FONT, 17).into_font().color(&INK))?;
        let (top, rest) = root.split_vertically(270);
        let (middle, bottom) = rest.split_vertically(110);
        let end = trace.seconds().max(0.1);
        let window = RATE_WINDOW_SECONDS.max(end / 200.0);
        let wire = trace.rate(window, |s| s.sent_bytes + s.received_bytes);
        let files = trace.rate(window, |s| s.done_bytes);
        lines(
            &top,
            "Mbit/s",
            end,
            &[("on the lanes", RIVAL_COLOUR, 5, wire), ("of files, arrived", OWN_COLOUR, 2, files)],
        )?;
        lines(&middle, "lanes", end, &[("", OWN_COLOUR, 2, trace.value(|s| s.lanes.len() as f64))])?;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let sockets = trace.value(|s| mib(s.socket_bytes + s.far.map_or(0, |far| far.socket_bytes)));
        let inboxes = trace.value(|s| {
            let near: u64 = s.lanes.iter().map(|lane| lane.inbox_bytes).sum();
            mib(near + s.far.map_or(0, |far| far.inbox_bytes))
        });
        let cache = trace.value(|s| mib(s.dirty_bytes));
        lines(
            &bottom,
            "MiB waiting",
            end,
            &[
                ("received, in sockets", RGBColor(0xd9, 0x7b, 0x29), 2, sockets),
                ("in the program", RGBColor(0x3b, 0x8f, 0x5a), 2, inboxes),
                ("in the page cache, not on disk", RGBColor(0x8a, 0x5f, 0xb0), 2, cache),
            ],
        )
    })
}

/// File I/O by the length of a call, a panel for each pattern, as the reports draw it; what they published is thin.
///
/// # Errors
/// [`PlotError`].
pub fn file_io(place: &Place) -> Result<String, PlotError> {
    draw((1000, 760), |root| {
        let root = root.titled(&place.name, (FONT, 17).into_font().color(&INK))?;
        for (area, pattern) in root.split_evenly((2, 2)).iter().zip(Pattern::ALL) {
            let own = place.systems.iter().zip(COLOURS.iter().cycle()).map(|(system, colour)| {
                let rate = |length| Some((length, place.mean(&system.name, pattern, length)?));
                let lengths: BTreeSet<u64> = place.runs.iter().map(|run| run.length).collect();
                let points = lengths.into_iter().filter_map(rate).collect();
                (system.name.clone(), *colour, 2, points)
            });
            let published =
                [("SRFS", RGBColor(0x55, 0x55, 0x55)), ("NFS", RIVAL_COLOUR)].map(|(system, colour)| {
                    (format!("{system} 2005"), colour, 1, published_line(place.connection(), system, pattern))
                });
            by_length(area, &pattern.to_string(), own.chain(published).collect())?;
        }
        Ok(())
    })
}

/// Name, colour, width of the line, rate by length.
type ByLength = (String, RGBColor, u32, Vec<(u64, f64)>);

fn by_length(area: &Area<'_>, title: &str, series: Vec<ByLength>) -> Result<(), PlotError> {
    let values = || series.iter().flat_map(|(.., points)| points.iter().copied());
    let top = values().map(|point| point.1).fold(10.0, f64::max) * 1.5;
    let lengths = values().map(|point| point.0 as f64);
    let (first, last) = lengths.fold((4096.0_f64, 1e6_f64), |(a, b), x| (a.min(x), b.max(x)));
    let mut chart = ChartBuilder::on(area)
        .margin(6)
        .margin_right(18)
        .caption(title, (FONT, 14).into_font().color(&INK))
        .x_label_area_size(34)
        .y_label_area_size(60)
        .build_cartesian_2d((first..last * 1.3).log_scale(), (1.0..top).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(FAINT)
        .axis_style(FAINT)
        .x_desc("bytes of a call")
        .y_desc("Mbit/s")
        .x_label_formatter(&|x| {
            if *x >= 1e6 { format!("{:.0} M", x / 1e6) } else { format!("{:.0} k", x / 1e3) }
        })
        .label_style((FONT, 11).into_font().color(&INK))
        .draw()?;
    for (name, colour, width, points) in series {
        let points: Vec<(f64, f64)> = points.iter().map(|&(x, y)| (x as f64, y.max(1.0))).collect();
        if points.is_empty() {
            continue;
        }
        let style = colour.stroke_width(width);
        let dots = points.iter().map(|point| Circle::new(*point, width + 1, colour.filled()));
        chart.draw_series(dots.collect::<Vec<_>>())?;
        let drawn = chart.draw_series(LineSeries::new(points, style))?;
        drawn.label(name).legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 16, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.7))
        .label_font((FONT, 11).into_font().color(&INK))
        .draw()?;
    Ok(())
}

/// Of file systems beside each other; the first is longhaul's.
const COLOURS: [RGBColor; 5] = [
    OWN_COLOUR,
    RGBColor(0xd9, 0x7b, 0x29),
    RGBColor(0x3b, 0x8f, 0x5a),
    RGBColor(0x8a, 0x5f, 0xb0),
    RGBColor(0xb0, 0x3a, 0x48),
];

/// Traffic of links over time, as MRTG draws it: one way as an area, the other as a line; below it what waits and what
/// is dropped.
///
/// # Errors
/// [`PlotError`].
pub fn traffic(links: &[Traffic]) -> Result<String, PlotError> {
    const HEIGHT: u32 = 430;
    draw((860, HEIGHT * links.len().max(1) as u32), |root| {
        let areas = root.split_evenly((links.len().max(1), 1));
        for (area, link) in areas.iter().zip(links) {
            let area = area.titled(&link.name, (FONT, 17).into_font().color(&INK))?;
            let (top, rest) = area.split_vertically(210);
            let (middle, bottom) = rest.split_vertically(95);
            let end = link.seconds().max(0.1);
            let [forward, backward] = &link.ways;
            let rate = |way| link.rate(way, |sample| sample.delivered_bytes as f64 * 8e-6);
            let series = [(&**forward, AREA_COLOUR, 1, rate(0)), (&**backward, OWN_COLOUR, 2, rate(1))];
            lines_over(&top, "Mbit/s", end, true, &series)?;
            let waits = |way| link.value(way, |sample| sample.queue_bytes as f64 / f64::from(1 << 20));
            let series = [("", AREA_COLOUR, 2, waits(0)), ("", OWN_COLOUR, 2, waits(1))];
            lines_over(&middle, "MiB waiting", end, false, &series)?;
            let drops = |way| link.rate(way, |sample| sample.dropped as f64);
            let series = [("", AREA_COLOUR, 2, drops(0)), ("", OWN_COLOUR, 2, drops(1))];
            lines_over(&bottom, "drops a second", end, false, &series)?;
        }
        Ok(())
    })
}

fn draw(
    size: (u32, u32),
    content: impl FnOnce(&Area<'_>) -> Result<(), PlotError>,
) -> Result<String, PlotError> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE)?;
        content(&root)?;
        root.present()?;
    }
    Ok(text)
}

fn panel_height(scenario: &Scenario) -> u32 {
    PANEL_MARGINS + BAR_HEIGHT * scenario.summaries.len().max(1) as u32
}

fn panel(area: &Area<'_>, scenario: &Scenario) -> Result<(), PlotError> {
    let title = format!("{}: {}", scenario.link.in_words(), scenario.data.name);
    let summaries: Vec<&Summary> = scenario.summaries.iter().rev().collect(); // the first one on top
    let count = summaries.len().max(1);
    let wire = scenario.link.payload_bps() / 1e6;
    let rate = |run: &Run| run.rate_bps(scenario.data.bytes).map(|bps| bps / 1e6);
    let fastest = scenario.runs.iter().filter_map(rate).fold(wire, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 16).into_font().color(&INK))
        .margin(8)
        .margin_right(16)
        .x_label_area_size(36)
        .y_label_area_size(96)
        .build_cartesian_2d(0.0..fastest * ROOM_FOR_LABELS, 0.0..count as f64)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(FAINT)
        .axis_style(FAINT)
        .x_labels(8)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .x_desc("Mbit/s of payload")
        .y_labels(0)
        .label_style((FONT, 13).into_font().color(&INK))
        .draw()?;
    for (i, summary) in summaries.iter().enumerate() {
        let (low, middle, high) = (i as f64 + 0.22, i as f64 + 0.5, i as f64 + 0.78);
        let mean = summary.mbit_s_mean.unwrap_or(0.0);
        let colour = if summary.tool == OURS { OWN_COLOUR } else { RIVAL_COLOUR };
        chart.draw_series([Rectangle::new([(0.0, low), (mean, high)], colour.filled())])?;
        let own = scenario.runs.iter().filter(|run| run.tool == summary.tool);
        let rates: Vec<f64> = own.filter_map(rate).collect();
        if rates.len() > 1 {
            chart.draw_series(rates.iter().map(|rate| Circle::new((*rate, middle), 2, INK.filled())))?;
        }
        let right = rates.iter().copied().fold(mean, f64::max);
        let name = EmptyElement::at((0.0, middle))
            + Text::new(summary.tool.clone(), (-8, 0), text_style(HPos::Right));
        let figure =
            EmptyElement::at((right, middle)) + Text::new(label(summary), (7, 0), text_style(HPos::Left));
        chart.draw_series([name])?;
        chart.draw_series([figure])?;
    }
    let limit = vec![(wire, 0.0), (wire, count as f64)];
    chart.draw_series([PathElement::new(limit, INK.mix(0.5).stroke_width(1))])?;
    Ok(())
}

fn text_style(side: HPos) -> TextStyle<'static> {
    (FONT, 13).into_font().color(&INK).pos(Pos::new(side, VPos::Center))
}

/// What stands beside a bar.
fn label(summary: &Summary) -> String {
    let rate = match summary.mbit_s_mean {
        None => return "failed".to_owned(),
        Some(rate) if rate >= 10.0 => format!("{rate:.0}"),
        Some(rate) => format!("{rate:.2}"),
    };
    let cut = if summary.projected { ", projected" } else { "" };
    let clear = if summary.encrypted { "" } else { ", not encrypted" };
    let doubt = if summary.trusted < summary.runs { ", link not trusted" } else { "" };
    format!("{rate}{cut}{clear}{doubt}")
}

/// Name, colour, width of the line, points.
type Series<'a> = (&'a str, RGBColor, u32, Vec<(f64, f64)>);

/// Lines over time, with a legend where they have names.
fn lines(area: &Area<'_>, unit: &str, end: f64, series: &[Series<'_>]) -> Result<(), PlotError> {
    lines_over(area, unit, end, false, series)
}

/// The same, the first of them as an area if so.
fn lines_over(
    area: &Area<'_>,
    unit: &str,
    end: f64,
    is_filled: bool,
    series: &[Series<'_>],
) -> Result<(), PlotError> {
    let values = series.iter().flat_map(|(_, _, _, points)| points.iter().map(|point| point.1));
    let top = values.fold(1.0, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .margin(6)
        .margin_right(18)
        .x_label_area_size(34)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..end, 0.0..top)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(FAINT)
        .axis_style(FAINT)
        .y_labels(5)
        .y_label_formatter(&|y| format!("{y:.*}", usize::from(top < 5.0)))
        .x_desc("seconds")
        .y_desc(unit)
        .label_style((FONT, 12).into_font().color(&INK))
        .axis_desc_style((FONT, 12).into_font().transform(FontTransform::None).color(&INK))
        .draw()?;
    let mut named = false;
    for (number, (name, colour, width, points)) in series.iter().enumerate() {
        let points = points.iter().copied();
        let drawn = if is_filled && number == 0 {
            chart.draw_series(AreaSeries::new(points, 0.0, colour.mix(0.6)))?
        } else {
            chart.draw_series(LineSeries::new(points, colour.stroke_width(*width)))?
        };
        if !name.is_empty() {
            named = true;
            let (colour, width) = (*colour, *width);
            drawn.label(*name).legend(move |(x, y)| {
                PathElement::new(vec![(x, y), (x + 16, y)], colour.stroke_width(width))
            });
        }
    }
    if named {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.7))
            .label_font((FONT, 12).into_font().color(&INK))
            .draw()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::End;
    use crate::record::tests::{run, scenario};
    use crate::trace::Sample;
    use crate::traffic;

    fn example() -> Scenario {
        scenario(vec![
            run(OURS, 1_000_000_000, 9.0, End::Complete),
            run("scp", 10_000_000, 60.0, End::Cut { projected_seconds: Some(6000.0) }),
            run("xrdcp", 1_000_000_000, 20.0, End::Complete),
            run("rsync", 0, 0.1, End::Failed { reason: "no".to_owned() }),
        ])
    }

    #[test]
    fn bars_bear_names_figures_and_their_reservations() {
        let svg = bars(&example()).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for text in ["longhaul", "889", "1.33, projected", "400, not encrypted", "failed", "loss 0.1 %"] {
            assert!(svg.contains(text), "no `{text}` in {svg}");
        }
    }

    #[test]
    fn a_sheet_holds_all_scenarios() {
        let svg = overview(&[example(), example(), example()]).unwrap();
        assert_eq!(svg.matches("889").count(), 3);
        assert!(overview(&[]).is_ok());
        assert!(bars(&scenario(Vec::new())).is_ok());
    }

    #[test]
    fn traffic_becomes_an_area_and_a_line() {
        let mut link = Traffic::new("wan", ["a->b".to_owned(), "b->a".to_owned()]);
        for i in 0..50u32 {
            let sample =
                traffic::Sample { delivered_bytes: u64::from(i) << 20, ..traffic::Sample::default() };
            link.add(f64::from(i) / 10.0, [sample, sample]);
        }
        let svg = super::traffic(&[link.clone(), link]).unwrap();
        assert!(svg.contains("<polygon") && svg.contains("<polyline"));
        assert_eq!((svg.matches("wan").count(), svg.matches("b-&gt;a").count()), (2, 2));
        assert!(super::traffic(&[]).is_ok());
    }

    #[test]
    fn a_trace_becomes_lines() {
        let samples = (0..50u32)
            .map(|i| Sample {
                seconds: f64::from(i) / 10.0,
                done_bytes: u64::from(i) << 20,
                ..Sample::default()
            })
            .collect();
        let svg = throughput(&Trace { samples }, "1g-100ms").unwrap();
        assert!(svg.contains("1g-100ms") && svg.contains("of files, arrived") && svg.contains("<polyline"));
    }
}
