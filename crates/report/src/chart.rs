//! Charts that are drawn for the page, and stand alone as SVG files too: bars with every run and the standard deviation,
//! lines over the length of a call or over time, and figures beside what was expected.
//!
//! All are [`WIDTH`] wide, which is what a phone has: a wide page sets several side by side, so that their words are as
//! large as those around them everywhere. Colours are classes, whose rules come from [`style`]: a page has light and
//! dark ones, a file light ones. A tool has the same colour in every chart, and beside it a name or a mark of its own,
//! since not everybody sees colours.

use std::fmt::Write;

use crate::markup::escaped;
use crate::palette::{COLOURS, LIGHT, style};
use crate::table::significant;
use crate::targets::Target;

/// Of every chart, in units that are pixels on a phone.
pub const WIDTH: f64 = 360.0;

/// A picture of some figures.
#[derive(Clone, Debug, PartialEq)]
pub enum Chart {
    /// One below the other.
    Bars(Bars),
    /// Over lengths or time.
    Lines(Lines),
    /// What was found over what was expected.
    Shares(Shares),
}

/// Means as bars.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bars {
    /// What they show.
    pub title: String,
    /// Of the values.
    pub unit: String,
    /// From top to bottom.
    pub rows: Vec<Bar>,
    /// A line that none can pass, and its name.
    pub limit: Option<(f64, String)>,
}

/// One bar.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bar {
    /// What it is of.
    pub label: String,
    /// Its [colour](crate::palette::Palette).
    pub colour: usize,
    /// The length.
    pub mean: Option<f64>,
    /// Of one run, to both sides of the mean.
    pub deviation: Option<f64>,
    /// Each run.
    pub runs: Vec<f64>,
    /// What stands beside the mean in the label.
    pub remark: String,
    /// It is not wholly measured.
    pub is_projected: bool,
    /// What it shall be.
    pub target: Option<Target>,
    /// It is what others have published, long ago and elsewhere.
    pub is_published: bool,
}

/// What lines run over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Over {
    /// Bytes of a call, each step a factor.
    #[default]
    CallBytes,
    /// Bytes of a frame on Ethernet, the same.
    FrameBytes,
    /// Bytes of a socket's buffer, the same.
    WindowBytes,
    /// Connections at a time, the same.
    Streams,
    /// Percent of something, linear from the least.
    Percent,
    /// Seconds.
    Time,
}

/// Lines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lines {
    /// What they show.
    pub title: String,
    /// Of the values.
    pub unit: String,
    /// What they run over.
    pub over: Over,
    /// In the order of the legend.
    pub lines: Vec<Line>,
}

/// One line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// In the legend; empty: not in it.
    pub name: String,
    /// Its colour and mark.
    pub look: Look,
    /// Means, or values over time.
    pub points: Vec<(f64, f64)>,
    /// Standard deviations around points: place, mean, deviation.
    pub deviations: Vec<(f64, f64, f64)>,
    /// Each run.
    pub runs: Vec<(f64, f64)>,
}

/// How a line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Look {
    /// In a colour of the palette, with its mark at each point.
    Marked(usize),
    /// The same without marks: many points.
    Plain(usize),
    /// Broad and pale, below the others.
    Behind,
    /// Thin and dashed: what others have published. The number tells them apart.
    #[default]
    Published,
    /// The same, dotted.
    PublishedToo,
}

/// Figures beside what theory or a publication expects of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shares {
    /// What they show.
    pub title: String,
    /// From top to bottom.
    pub rows: Vec<Share>,
}

/// One figure over what is expected.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Share {
    /// What it is of.
    pub label: String,
    /// Found over expected, for each run.
    pub runs: Vec<f64>,
    /// Within which they shall be.
    pub band: Option<(f64, f64)>,
    /// In numbers.
    pub words: String,
}

impl Chart {
    /// What it shows.
    #[must_use]
    pub fn title(&self) -> &str {
        match self {
            Self::Bars(bars) => &bars.title,
            Self::Lines(lines) => &lines.title,
            Self::Shares(shares) => &shares.title,
        }
    }

    /// For a page that has the rules of [`style`] and shows the title itself.
    #[must_use]
    pub fn inline(&self) -> String {
        self.svg(0.0, "")
    }

    /// As a file.
    #[must_use]
    pub fn file(&self) -> String {
        const TITLE: f64 = 30.0;
        let head = format!(
            "<style>text{{font-family:sans-serif}}{}</style><rect x=\"-{MARGIN}\" y=\"-{MARGIN}\" width=\"100%\" height=\"100%\" \
             fill=\"{}\"/>{}",
            style(&LIGHT),
            LIGHT.ground,
            text(0.0, 14.0, "t b", "start", 13.0, &fitting(self.title(), 13.0, WIDTH))
        );
        self.svg(TITLE, &head)
    }

    fn svg(&self, above: f64, head: &str) -> String {
        let (body, height) = match self {
            Self::Bars(bars) => bars.drawn(),
            Self::Lines(lines) => lines.drawn(),
            Self::Shares(shares) => shares.drawn(),
        };
        let margin = if head.is_empty() { 0.0 } else { MARGIN };
        let from = 0.0 - margin;
        let (width, whole) = (WIDTH + 2.0 * margin, height + above + 2.0 * margin);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" aria-label=\"{}\" width=\"{width}\" height=\"{whole:.0}\" \
             viewBox=\"{from} {from} {width} {whole:.0}\">{head}<g transform=\"translate(0 {above})\">{body}</g></svg>",
            escaped(self.title())
        )
    }
}

/// Around a chart that stands alone.
const MARGIN: f64 = 12.0;

const LABEL: f64 = 12.0;
const SMALL: f64 = 11.0;

/// Part of its size that a letter is wide, in the fonts that pages are set in; with room to spare.
const LETTER: f64 = 0.56;

fn width_of(words: &str, size: f64) -> f64 {
    words.chars().count() as f64 * size * LETTER
}

/// As much of it as there is room for.
fn fitting(words: &str, size: f64, room: f64) -> String {
    let most = (room.max(0.0) / (size * LETTER)) as usize;
    if words.chars().count() <= most {
        return words.to_owned();
    }
    let kept: String = words.chars().take(most.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

fn text(x: f64, y: f64, class: &str, anchor: &str, size: f64, words: &str) -> String {
    let words = escaped(words);
    format!(
        "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{words}</text>"
    )
}

fn line(class: &str, width: f64, [x1, y1, x2, y2]: [f64; 4], more: &str) -> String {
    format!("<path class=\"{class}\" stroke-width=\"{width}\" d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\"{more}/>")
}

const DASHED: &str = " stroke-dasharray=\"4 3\"";

/// A place on the drawing, for whatever number a record has.
fn placed(share: f64, from: f64, to: f64) -> f64 {
    if share.is_finite() { (to - from).mul_add(share.clamp(0.0, 1.0), from) } else { from }
}

/// Steps of 1, 2 or 5 times a power of ten, at most `count` of them up to `top`.
fn steps(top: f64, count: f64) -> (f64, Vec<f64>) {
    let top = if top.is_finite() && top > 0.0 { top } else { 1.0 };
    let rough = top / count;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|nice| nice * power).find(|step| *step >= rough);
    let step = step.unwrap_or(10.0 * power);
    let ticks: Vec<f64> = (0..=count as u32 + 1).map(|number| f64::from(number) * step).collect();
    (step, ticks.into_iter().filter(|tick| *tick <= top * 1.000_1).collect())
}

/// A number on an axis.
fn tick_label(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{} M", trimmed(value / 1e6)),
        v if v >= 1e4 => format!("{} k", trimmed(value / 1e3)),
        _ => trimmed(value),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// `925 ± 4`, or the mean alone.
#[must_use]
pub fn with_deviation(mean: f64, deviation: Option<f64>) -> String {
    let words = |value: f64| if value == 0.0 { "0".to_owned() } else { significant(value) };
    let Some(deviation) = deviation.filter(|deviation| *deviation > 0.0) else { return words(mean) };
    // One digit more than the mean has after the point, and two in all: the deviation of a few runs is not known better.
    let (of_mean, own) = (decimals(mean) + 1, decimals(deviation * 10.0));
    format!("{} ± {deviation:.*}", words(mean), of_mean.min(own))
}

/// How many digits [`significant`] has after the point.
fn decimals(value: f64) -> usize {
    significant(value).split_once('.').map_or(0, |parts| parts.1.len())
}

impl Bars {
    fn drawn(&self) -> (String, f64) {
        const ROW: f64 = 41.0;
        const BAR: f64 = 13.0;
        let above = if self.limit.is_some() { 16.0 } else { 0.0 };
        let end = above + ROW * self.rows.len() as f64;
        let values = self.rows.iter().flat_map(|row| {
            let high = row.mean.map(|mean| mean + row.deviation.unwrap_or(0.0));
            row.runs.iter().copied().chain(high).chain(row.target.into_iter().flat_map(Target::bounds))
        });
        let top = values.chain(self.limit.iter().map(|limit| limit.0)).filter(|value| value.is_finite());
        let top = top.fold(0.0, f64::max).max(1e-9) * 1.01;
        let x = |value: f64| placed(value / top, 0.0, WIDTH);
        let mut body = String::new();
        for tick in steps(top, 5.0).1 {
            body += &line("g", 1.0, [x(tick), above, x(tick), end], "");
            let anchor = if tick == 0.0 {
                "start"
            } else if x(tick) > WIDTH - 20.0 {
                "end"
            } else {
                "middle"
            };
            body += &text(x(tick), end + 14.0, "q", anchor, SMALL, &tick_label(tick));
        }
        if let Some((limit, name)) = &self.limit {
            // Beside the bars only: a line through the figures could not be read.
            for place in 0..self.rows.len() {
                let y = above + ROW * place as f64 + 16.0;
                body += &line("m", 1.0, [x(*limit), y, x(*limit), y + BAR + 6.0], DASHED);
            }
            body += &text(x(*limit), above - 5.0, "q", "end", SMALL, name);
        }
        for (place, row) in self.rows.iter().enumerate() {
            body += &row.drawn(above + ROW * place as f64, BAR, &x);
        }
        body += &text(WIDTH, end + 28.0, "q", "end", SMALL, &self.unit);
        (body, end + 32.0)
    }
}

impl Bar {
    fn drawn(&self, y: f64, bar: f64, x: &impl Fn(f64) -> f64) -> String {
        let projected = if self.is_projected { "~" } else { "" };
        let mean = self.mean.map_or_else(|| "-".to_owned(), |mean| with_deviation(mean, self.deviation));
        let target = self.target.map_or_else(String::new, |target| format!(" ({})", target.in_words()));
        let remark = if self.remark.is_empty() { String::new() } else { format!(" {}", self.remark) };
        let figure = format!("{projected}{mean}{target}{remark}");
        let room = WIDTH - width_of(&figure, LABEL) - 8.0;
        let class = if self.colour == 0 { "t b" } else { "t" };
        let mut body = text(0.0, y + 13.0, class, "start", LABEL, &fitting(&self.label, LABEL, room));
        body += &text(WIDTH, y + 13.0, "t", "end", LABEL, &figure);
        let (top, middle) = (y + 19.0, y + 19.0 + bar / 2.0);
        if let Some(mean) = self.mean {
            let (colour, width) = (self.colour % COLOURS, x(mean).max(1.0));
            // What was not measured is drawn as an outline.
            let look = if self.is_projected || self.is_published {
                format!("class=\"s{colour}\" stroke-dasharray=\"3 2\"")
            } else {
                format!("class=\"f{colour}\"")
            };
            let _ =
                write!(body, "<rect {look} x=\"0.5\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{bar}\"/>");
            for target in self.target.into_iter().flat_map(Target::bounds) {
                body += &line("x", 2.0, [x(target), top - 3.0, x(target), top + bar + 3.0], "");
            }
            if let Some(deviation) = self.deviation {
                let (low, high) = (x(mean - deviation), x(mean + deviation));
                body += &line("x", 1.2, [low, middle, high, middle], "");
                for end in [low, high] {
                    body += &line("x", 1.2, [end, middle - 4.0, end, middle + 4.0], "");
                }
            }
            // A single run is the bar's end itself.
            for run in self.runs.iter().filter(|_| self.runs.len() > 1) {
                let _ = write!(
                    body,
                    "<circle class=\"d\" stroke-width=\"1\" cx=\"{:.1}\" cy=\"{middle:.1}\" r=\"2.6\"/>",
                    x(*run)
                );
            }
        }
        body
    }
}

/// A scale from values to places.
struct Scale {
    from: f64,
    to: f64,
    is_log: bool,
}

impl Scale {
    fn place(&self, value: f64, start: f64, end: f64) -> f64 {
        let share = if self.is_log {
            (value.max(f64::MIN_POSITIVE) / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        placed(share, start, end)
    }
}

impl Lines {
    fn drawn(&self) -> (String, f64) {
        const PLOT: f64 = 170.0;
        const LEFT: f64 = 40.0;
        const RIGHT: f64 = WIDTH - 8.0;
        let (legend, above) = self.legend();
        let (top, bottom) = (above + 18.0, above + 18.0 + PLOT);
        let (across, up) = (self.across(), self.up());
        let x = |value: f64| across.place(value, LEFT, RIGHT);
        let y = |value: f64| up.place(value, bottom, top);
        let mut body = legend;
        body += &text(0.0, above + 10.0, "q", "start", SMALL, &self.unit);
        for tick in ticks_up(&up) {
            body += &line("g", 1.0, [LEFT, y(tick), RIGHT, y(tick)], "");
            body += &text(LEFT - 5.0, y(tick) + 4.0, "q", "end", SMALL, &tick_label(tick));
        }
        for (tick, label) in self.ticks_across(&across) {
            body += &line("g", 1.0, [x(tick), bottom, x(tick), bottom + 4.0], "");
            let anchor = if x(tick) > RIGHT - 18.0 { "end" } else { "middle" };
            body += &text(x(tick), bottom + 16.0, "q", anchor, SMALL, &label);
        }
        let below = match self.over {
            Over::CallBytes => "length of a call",
            Over::FrameBytes => "bytes of a frame",
            Over::WindowBytes => "window of a stream",
            Over::Streams => "streams",
            Over::Percent => "percent of the capacity",
            Over::Time => "seconds",
        };
        body += &text(RIGHT, bottom + 31.0, "q", "end", SMALL, below);
        // The first one on top of the others.
        for each in self.lines.iter().rev() {
            body += &each.drawn(&x, &y);
        }
        (body, bottom + 36.0)
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        let all = self.lines.iter().flat_map(|line| line.points.iter().chain(&line.runs));
        all.map(|point| point.1).filter(|value| value.is_finite() && *value >= 0.0)
    }

    /// A scale that shows differences of several powers of ten only where there are some.
    fn up(&self) -> Scale {
        const FACTOR: f64 = 30.0;
        // Far above all that is measured, and far below what has no logarithm.
        let high = self.values().fold(0.0, f64::max).min(1e30);
        let least = |all: &mut dyn Iterator<Item = f64>| {
            all.filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min)
        };
        // What others have published years ago decides nothing: differences between the tools are to be seen.
        let own = self.lines.iter().filter(|line| matches!(line.look, Look::Marked(_)));
        let own = least(&mut own.flat_map(|line| &line.points).map(|point| point.1));
        let spans = self.over != Over::Time && high / own > FACTOR;
        let low = least(&mut self.values());
        if spans {
            let (from, to) =
                (10f64.powf(low.log10().floor()).min(1e29), 10f64.powf((high * 1.01).log10().ceil()));
            return Scale { from: from.max(1e-3), to, is_log: true };
        }
        // Nothing but zeros has no scale of its own.
        let high = if high > 0.0 { high } else { 1.0 };
        Scale { from: 0.0, to: high * 1.05, is_log: false }
    }

    fn across(&self) -> Scale {
        let places = self.lines.iter().flat_map(|line| &line.points).map(|point| point.0);
        let places: Vec<f64> = places.filter(|place| place.is_finite()).collect();
        let low = places.iter().copied().fold(f64::INFINITY, f64::min);
        let high = places.iter().copied().fold(0.0, f64::max);
        match self.over {
            Over::Time => Scale { from: 0.0, to: high.max(0.1), is_log: false },
            Over::Percent if !places.is_empty() => {
                let room = ((high - low) * 0.03).max(1.0);
                Scale { from: low - room, to: high + room, is_log: false }
            }
            _ if places.is_empty() => Scale { from: 1.0, to: 2.0, is_log: true },
            _ => {
                let (low, high) = (low.max(1.0), high.max(1.0));
                Scale { from: low / 1.15, to: high * 1.15, is_log: true }
            }
        }
    }

    fn ticks_across(&self, across: &Scale) -> Vec<(f64, String)> {
        if !across.is_log {
            let ticks = steps(across.to, 6.0).1.into_iter();
            let shown = ticks.filter(|tick| (across.from..=across.to).contains(tick));
            return shown.map(|tick| (tick, tick_label(tick))).collect();
        }
        // Powers of two, few enough that their labels stand apart.
        let powers: Vec<u32> =
            (0..50).filter(|power| (across.from..=across.to).contains(&2f64.powi(*power as i32))).collect();
        let every = powers.len().div_ceil(5).max(1);
        let counts = matches!(self.over, Over::Streams | Over::FrameBytes);
        let label = |power: u32| match power {
            power if counts => (1u64 << power).to_string(),
            30.. => format!("{} GiB", 1u64 << (power - 30)),
            20.. => format!("{} MiB", 1u64 << (power - 20)),
            10.. => format!("{} KiB", 1u64 << (power - 10)),
            _ => format!("{} B", 1u64 << power),
        };
        powers.iter().step_by(every).map(|power| (2f64.powi(*power as i32), label(*power))).collect()
    }

    /// Names in rows, and how high they are.
    fn legend(&self) -> (String, f64) {
        const ROW: f64 = 17.0;
        const KEY: f64 = 26.0;
        let (mut body, mut x, mut y) = (String::new(), 0.0, 0.0);
        let named: Vec<&Line> = self.lines.iter().filter(|line| !line.name.is_empty()).collect();
        for each in &named {
            let name = fitting(&each.name, SMALL, WIDTH - KEY);
            let width = KEY + width_of(&name, SMALL) + 10.0;
            if x > 0.0 && x + width > WIDTH {
                (x, y) = (0.0, y + ROW);
            }
            body += &each.look.stroke(&format!("M{x:.1} {:.1}h20", y + 8.0));
            if let Look::Marked(colour) = each.look {
                body += &mark(colour, x + 10.0, y + 8.0);
            }
            body += &text(x + KEY, y + 12.0, "t", "start", SMALL, &name);
            x += width;
        }
        (body, if named.is_empty() { 0.0 } else { y + ROW + 6.0 })
    }
}

fn ticks_up(up: &Scale) -> Vec<f64> {
    if !up.is_log {
        return steps(up.to, 5.0).1;
    }
    let (first, last) = (up.from.log10().round() as i32, up.to.log10().round() as i32);
    let every = (last - first).div_euclid(7).max(0) as usize + 1;
    (first..=last).step_by(every).map(|power| 10f64.powi(power)).collect()
}

impl Look {
    fn stroke(self, path: &str) -> String {
        let (class, width, more) = match self {
            Self::Marked(colour) => (format!("s{}", colour % COLOURS), 2.0, ""),
            Self::Plain(colour) => (format!("s{}", colour % COLOURS), 1.6, ""),
            Self::Behind => ("m".to_owned(), 5.0, " stroke-opacity=\"0.4\""),
            Self::Published => ("m".to_owned(), 1.2, " stroke-dasharray=\"5 3\""),
            Self::PublishedToo => ("m".to_owned(), 1.2, " stroke-dasharray=\"1.5 2.5\""),
        };
        format!(
            "<path class=\"{class}\" stroke-width=\"{width}\" stroke-linejoin=\"round\" d=\"{path}\"{more}/>"
        )
    }
}

impl Line {
    fn drawn(&self, x: &impl Fn(f64) -> f64, y: &impl Fn(f64) -> f64) -> String {
        let mut path = String::new();
        for (place, (at, value)) in self.points.iter().enumerate() {
            let _ = write!(path, "{}{:.1} {:.1}", if place == 0 { "M" } else { "L" }, x(*at), y(*value));
        }
        let mut body = if path.is_empty() { String::new() } else { self.look.stroke(&path) };
        let Look::Marked(colour) = self.look else {
            if matches!(self.look, Look::Published | Look::PublishedToo) {
                for (at, value) in &self.points {
                    let (at, value) = (x(*at), y(*value));
                    let _ = write!(
                        body,
                        "<circle class=\"m\" stroke-width=\"1\" cx=\"{at:.1}\" cy=\"{value:.1}\" r=\"2\"/>"
                    );
                }
            }
            return body;
        };
        let colour = colour % COLOURS;
        for (at, mean, deviation) in &self.deviations {
            let ends = [x(*at), y(mean - deviation), x(*at), y(mean + deviation)];
            body += &line(&format!("s{colour}"), 1.0, ends, "");
        }
        for (at, value) in &self.runs {
            let (at, value) = (x(*at), y(*value));
            let _ = write!(
                body,
                "<circle class=\"f{colour}\" fill-opacity=\"0.55\" cx=\"{at:.1}\" cy=\"{value:.1}\" r=\"1.8\"/>"
            );
        }
        for (at, value) in &self.points {
            body += &mark(colour, x(*at), y(*value));
        }
        body
    }
}

/// A shape that goes with a colour.
fn mark(colour: usize, x: f64, y: f64) -> String {
    let class = format!("f{}", colour % COLOURS);
    let path = match colour % COLOURS {
        0 => return format!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.4\"/>"),
        1 => "m-3-3h6v6h-6z",
        2 => "m0-4l3.8 6.8h-7.6z",
        3 => "m0-4.2l4.2 4.2l-4.2 4.2l-4.2-4.2z",
        4 => "m0 4l3.8-6.8h-7.6z",
        5 => "m-1.2-4h2.4v2.8h2.8v2.4h-2.8v2.8h-2.4v-2.8h-2.8v-2.4h2.8z",
        6 => "m-4-1.5h8v3h-8z",
        _ => "m-1.5-4h3v8h-3z",
    };
    format!("<path class=\"{class}\" d=\"M{x:.1} {y:.1}{path}\"/>")
}

impl Shares {
    fn drawn(&self) -> (String, f64) {
        const ROW: f64 = 32.0;
        let end = ROW * self.rows.len() as f64;
        let far = |share: f64| if share > 0.0 && share.is_finite() { share.ln().abs() } else { 0.0 };
        let all = self.rows.iter().flat_map(|row| {
            row.runs.iter().copied().chain(row.band.into_iter().flat_map(|(low, high)| [low, high]))
        });
        // Nothing is drawn farther off than a factor of a thousand.
        let half = all.map(far).fold(0.02, f64::max).min(1000f64.ln()) * 1.06;
        let x = |share: f64| placed((share.max(1e-9).ln() + half) / (2.0 * half), WIDTH * 0.02, WIDTH * 0.98);
        let mut body = String::new();
        for (tick, label) in Self::ticks(half) {
            let class = if tick == 1.0 { "m" } else { "g" };
            // Beside the figures, not through their names.
            for place in 0..self.rows.len() {
                let y = ROW * place as f64 + 15.0;
                body += &line(class, 1.0, [x(tick), y, x(tick), y + 15.0], "");
            }
            body += &text(x(tick), end + 14.0, "q", "middle", SMALL, &label);
        }
        for (place, row) in self.rows.iter().enumerate() {
            let y = ROW * place as f64;
            let room = WIDTH - width_of(&row.words, SMALL) - 8.0;
            body += &text(0.0, y + 12.0, "t", "start", LABEL, &fitting(&row.label, LABEL, room));
            body += &text(WIDTH, y + 12.0, "q", "end", SMALL, &row.words);
            if let Some((low, high)) = row.band {
                let width = (x(high) - x(low)).max(2.0);
                let _ = write!(
                    body,
                    "<rect class=\"n\" x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"9\" rx=\"2\"/>",
                    x(low),
                    y + 18.0
                );
            }
            for run in &row.runs {
                let _ = write!(
                    body,
                    "<circle class=\"f0\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"/>",
                    x(*run),
                    y + 22.5
                );
            }
        }
        body += &text(WIDTH, end + 28.0, "q", "end", SMALL, "found / expected");
        (body, end + 32.0)
    }

    /// Per cent where all is close, else factors.
    fn ticks(half: f64) -> Vec<(f64, String)> {
        if half < 0.25 {
            let (step, _) = steps((half.exp() - 1.0) * 100.0, 3.0);
            let all = (-3..=3).map(|number| f64::from(number) * step);
            let close = all.filter(|percent| (1.0 + percent / 100.0).ln().abs() <= half);
            return close
                .map(|percent| {
                    let sign = if percent > 0.0 { "+" } else { "" };
                    (1.0 + percent / 100.0, format!("{sign}{} %", trimmed(percent)).replace('-', "−"))
                })
                .collect();
        }
        let factors = [0.001, 0.01, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0, 1000.0];
        let wide = half > 10f64.ln();
        let fit =
            |factor: &f64| factor.ln().abs() <= half && !(wide && [0.2, 0.5, 2.0, 5.0].contains(factor));
        factors.into_iter().filter(fit).map(|factor| (factor, trimmed(factor))).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bars(rows: Vec<Bar>) -> Chart {
        Chart::Bars(Bars {
            title: "a <b>".to_owned(),
            unit: "Mbit/s".to_owned(),
            rows,
            limit: Some((941.0, "the wire".to_owned())),
        })
    }

    fn bar(label: &str, mean: f64, runs: &[f64]) -> Bar {
        Bar {
            label: label.to_owned(),
            mean: Some(mean),
            deviation: Some(3.0),
            runs: runs.to_vec(),
            target: Some(Target::AtLeast(900.0)),
            ..Bar::default()
        }
    }

    #[test]
    fn bars_bear_every_run_and_the_deviation() {
        let svg = bars(vec![bar("<script>", 920.0, &[915.0, 920.0, 925.0])]).inline();
        assert_eq!(svg.matches("class=\"d\"").count(), 3);
        assert!(svg.contains("920 ± 3.0 (&gt;= 900)") && svg.contains("the wire"), "{svg}");
        assert!(svg.contains("&lt;script&gt;") && !svg.contains("<script>") && !svg.contains("<b>"));
        let projected = Bar { is_projected: true, deviation: None, ..bar("x", 3.0, &[3.0]) };
        let svg = bars(vec![projected]).inline();
        assert!(svg.contains("~3.00") && svg.contains("stroke-dasharray") && !svg.contains("class=\"d\""));
    }

    #[test]
    fn lines_take_powers_of_ten_only_where_they_span_some() {
        let chart = |values: &[f64]| Lines {
            over: Over::CallBytes,
            lines: vec![Line {
                name: "one".to_owned(),
                look: Look::Marked(2),
                points: (13..).map(|power| 2f64.powi(power)).zip(values.iter().copied()).collect(),
                ..Line::default()
            }],
            ..Lines::default()
        };
        assert!(!chart(&[100.0, 900.0]).up().is_log);
        let wide = chart(&[8.0, 900.0]);
        let up = wide.up();
        assert_eq!((up.is_log, up.from, up.to), (true, 1.0, 1000.0));
        let svg = Chart::Lines(wide).inline();
        assert!(
            svg.contains(">1000</text>") && svg.contains("8 KiB") && svg.contains(">one</text>"),
            "{svg}"
        );
    }

    #[test]
    fn a_share_of_one_is_in_the_middle() {
        let row = Share { runs: vec![1.0], band: Some((0.99, 1.01)), ..Share::default() };
        let svg = Chart::Shares(Shares { title: String::new(), rows: vec![row] }).inline();
        assert!(svg.contains("cx=\"180.0\"") && svg.contains("+1 %") && svg.contains("−1 %"), "{svg}");
        let far = Shares::ticks(100f64.ln()).into_iter().map(|tick| tick.1).collect::<Vec<_>>();
        assert_eq!(far, ["0.01", "0.1", "1", "10", "100"]);
    }

    #[test]
    fn a_file_has_its_own_style_and_becomes_pixels() {
        let svg = bars(vec![bar("longhaul", 920.0, &[920.0])]).file();
        assert!(svg.contains("<style>") && svg.contains("a &lt;b&gt;"));
        match crate::picture::for_file(std::path::Path::new("a.png"), svg) {
            Ok(bytes) => assert!(bytes.starts_with(b"\x89PNG")),
            Err(error) => assert!(error.to_string().contains("no fonts"), "{error}"),
        }
    }

    fn number() -> impl Strategy<Value = f64> {
        prop_oneof![any::<f64>(), 0.0f64..1e4, Just(0.0)]
    }

    proptest! {
        #[test]
        fn whatever_the_numbers_are_places_are_numbers(
            values in prop::collection::vec((number(), number()), 0..20), limit in number()
        ) {
            let (points, runs): (Vec<_>, Vec<_>) = (values.clone(), values.iter().map(|v| v.1).collect::<Vec<_>>());
            let row = Bar { mean: runs.first().copied(), deviation: runs.get(1).copied(), runs: runs.clone(), ..Bar::default() };
            let share = Share { runs, band: values.first().copied(), ..Share::default() };
            let mut charts = vec![
                Chart::Bars(Bars { rows: vec![row], limit: Some((limit, String::new())), ..Bars::default() }),
                Chart::Shares(Shares { rows: vec![share], ..Shares::default() }),
            ];
            for over in [Over::CallBytes, Over::Percent, Over::Time] {
                let deviations = values.iter().map(|value| (value.0, value.1, limit)).collect();
                let line = Line {
                    look: Look::Marked(1), points: points.clone(), runs: points.clone(), deviations, ..Line::default()
                };
                charts.push(Chart::Lines(Lines { over, lines: vec![line], ..Lines::default() }));
            }
            for chart in charts {
                let svg = chart.inline();
                for coordinate in svg.split(['"', ' ', 'M', 'L']) {
                    prop_assert!(!["NaN", "inf", "-inf"].contains(&coordinate), "{}", svg);
                }
                prop_assert!(svg.len() < 1 << 20);
            }
        }
    }
}
