//! How a test goes on while it runs: lines of intervals, a graph, or nothing; and the intervals for a record.

use std::time::Duration;

use longhaul_probe::limits::INTERVALS_MAX;
use longhaul_probe::path::client::Both;
use longhaul_probe::path::load::Moment;
use longhaul_probe::path::test::{Way, What, Wish};

use super::columns::Columns;
use super::intervals::{Count, Interval, Meter};
use super::{graph, print_out};
use crate::terminal::{Picture, Size, show_seconds};
use crate::units::show_rate;

/// How often it is looked what a test has done, or more often, where intervals are shorter: what a graph is drawn from.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What is shown and kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    /// Of what is printed, and kept; `None`: nothing is.
    pub(super) interval: Option<Duration>,
    pub(super) lines: bool,
    pub(super) graph: bool,
    pub(super) keep: bool,
}

/// Intervals of one direction.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept {
    pub(super) intervals: Vec<Interval>,
    /// Those after them, which found no room.
    pub(super) left_out: u64,
}

/// One direction.
struct Direction {
    way: Way,
    what: What,
    of_interval: Meter,
    kept: Kept,
    of_look: Meter,
    columns: Columns,
    newest: Option<Interval>,
    count: Count,
}

/// A test that is told of.
pub(super) struct Live {
    shown: Shown,
    seconds: u64,
    directions: Vec<Direction>,
    /// The end of the interval under way.
    next: Duration,
    picture: Picture,
}

/// How often a test is looked at, so that its intervals end with looks.
pub(super) fn look_every(interval: Option<Duration>) -> Duration {
    let Some(interval) = interval else { return LOOK_EVERY };
    let looks = interval.as_secs_f64() / LOOK_EVERY.as_secs_f64();
    interval.div_f64(looks.ceil().max(1.0))
}

impl Live {
    pub(super) fn new(shown: Shown, wishes: &[Wish], picture: Picture) -> Self {
        let direction = |wish: &Wish| Direction {
            way: wish.way,
            what: wish.what,
            of_interval: Meter::new(wish.what, wish.way),
            kept: Kept::default(),
            of_look: Meter::new(wish.what, wish.way),
            columns: Columns::new(),
            newest: None,
            count: Count::default(),
        };
        Self {
            shown,
            seconds: wishes.iter().map(|wish| u64::from(wish.milliseconds) / 1000).max().unwrap_or(0),
            directions: wishes.iter().map(direction).collect(),
            next: shown.interval.unwrap_or(Duration::MAX),
            picture,
        }
    }

    /// What has been counted in each direction by now.
    pub(super) fn look(&mut self, moment: Moment, boths: &[Both], rtt: Option<Duration>) {
        if self.shown.graph {
            for (direction, both) in self.directions.iter_mut().zip(boths) {
                direction.note(both);
            }
            let lines = |size| self.graph(size, rtt);
            self.picture.show(&lines, moment.is_last);
        }
        let Some(interval) = self.shown.interval else { return };
        // What is added up may be off by a nanosecond a look.
        if moment.is_last || moment.at + interval / 20 >= self.next {
            self.tell(boths);
            self.next = moment.at + interval;
        }
    }

    /// The end of an interval.
    fn tell(&mut self, boths: &[Both]) {
        let shown = self.shown;
        let is_alone = self.directions.len() == 1;
        let decimals = if shown.interval.is_some_and(|interval| interval < LOOK_EVERY) { 2 } else { 1 };
        for (direction, both) in self.directions.iter_mut().zip(boths) {
            let Some(interval) = direction.of_interval.interval(both) else { continue };
            if shown.keep {
                direction.kept.keep(interval);
            }
            if shown.lines {
                let way = if is_alone { String::new() } else { format!("{:<17}", words(direction.way)) };
                let rate = show_rate(interval.bits_per_second);
                // Nobody can be told that standard output is closed.
                let _ = print_out(&format!(
                    "{:6.decimals$} to {:.decimals$} s  {way}{rate}\n",
                    interval.start, interval.end
                ));
            }
        }
    }

    /// The intervals of each direction.
    pub(super) fn into_kept(self) -> Vec<Kept> {
        self.directions.into_iter().map(|direction| direction.kept).collect()
    }

    fn graph(&self, size: Size, rtt: Option<Duration>) -> Vec<String> {
        let count = self.directions.len().max(1);
        let figures =
            |direction: &Direction| wrapped(&direction.figures(count > 1, self.seconds, rtt), size.letters);
        let figures: Vec<_> = self.directions.iter().map(figures).collect();
        // The cursor has a line of its own, and each axis of time two.
        let room = size.lines.saturating_sub(1 + figures.iter().map(Vec::len).sum::<usize>()) / count;
        let rows = room.saturating_sub(2).min(if count == 1 { 8 } else { 4 });
        let bars = graph::bars_in(size.letters);
        let mut lines = Vec::new();
        for (direction, figures) in self.directions.iter().zip(figures) {
            if rows > 0 {
                lines.extend(graph::draw(&direction.columns.in_places(bars), rows, bars));
            }
            lines.extend(figures);
        }
        lines
    }
}

impl Kept {
    fn keep(&mut self, interval: Interval) {
        if self.intervals.len() < INTERVALS_MAX {
            self.intervals.push(interval);
        } else {
            self.left_out += 1;
        }
    }
}

impl Direction {
    fn note(&mut self, both: &Both) {
        self.count = Count::of(both, self.way);
        if let Some(interval) = self.of_look.interval(both) {
            self.columns.push(interval.start, interval.end, interval.bytes);
            self.newest = Some(interval);
        }
    }

    /// What stands below a graph.
    fn figures(&self, is_named: bool, seconds: u64, rtt: Option<Duration>) -> Vec<String> {
        let mut words = Vec::new();
        if is_named {
            words.push(format!("{}:", self::words(self.way)));
        }
        let (Some(newest), Some(whole)) = (self.newest, self.columns.whole()) else { return words };
        words.push(format!("now {}", show_rate(newest.bits_per_second)));
        words.push(format!("mean {}", show_rate(whole.mean())));
        if let Some(lowest) = self.columns.lowest() {
            let at = show_seconds(lowest.start_s as u64);
            words.push(format!("lowest {} at {at}", show_rate(lowest.min)));
        }
        words.push(if self.what == What::Udp {
            let percent = self.count.lost as f64 * 100.0 / self.count.packets.max(1) as f64;
            format!("{} lost ({percent:.3} %)", self.count.lost)
        } else {
            format!("{} sent again", self.count.retransmits)
        });
        if let Some(rtt) = rtt {
            words.push(format!("RTT {:.1} ms", rtt.as_secs_f64() * 1e3));
        }
        words.push(format!("{} of {}", show_seconds(newest.end as u64), show_seconds(seconds)));
        words
    }
}

/// As records call it.
pub(super) fn words(way: Way) -> String {
    longhaul_report::path::Way::from(way).to_string()
}

/// In lines of so many letters, two blanks between.
fn wrapped(parts: &[String], letters: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut().filter(|line| line.chars().count() + 2 + part.chars().count() <= letters) {
            Some(line) => *line = format!("{line}  {part}"),
            None => lines.push(part.clone()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use longhaul_probe::path::test::{FlowSeen, Seen};
    use longhaul_probe::traffic::Options;

    use super::*;

    fn live(shown: Shown, ways: &[Way]) -> Live {
        let wish = |way: &Way| Wish {
            what: What::Tcp,
            way: *way,
            milliseconds: 60_000,
            streams: 1,
            length: 1,
            rate: None,
            options: Options::default(),
        };
        Live::new(shown, &ways.iter().map(wish).collect::<Vec<_>>(), Picture::nowhere())
    }

    fn at(seconds: f64) -> (Moment, Both) {
        let flow = FlowSeen { bytes: (seconds * 1e6) as u64, ..FlowSeen::default() };
        let seen = Seen { seconds, flows: vec![flow], ..Seen::default() };
        let moment = Moment { at: Duration::from_secs_f64(seconds), is_last: false };
        (moment, Both { near: seen.clone(), far: seen })
    }

    const KEPT: Shown = Shown { interval: None, lines: false, graph: false, keep: true };

    #[test]
    fn intervals_end_with_looks() {
        for (interval, every) in
            [(0.1, 0.1), (1.0, 1.0), (1.5, 0.75), (5.0, 1.0), (60.0, 1.0), (2.3, 2.3 / 3.0)]
        {
            let found = look_every(Some(Duration::from_secs_f64(interval)));
            assert!((found.as_secs_f64() - every).abs() < 1e-6, "{interval}: {found:?}");
        }
        assert_eq!(look_every(None), LOOK_EVERY);
    }

    #[test]
    fn an_interval_takes_as_many_looks_as_it_needs() {
        for (interval, looks, expected) in
            [(0.1, 0.1, 300), (1.5, 0.75, 20), (2.5, 2.5 / 3.0, 12), (7.0, 1.0, 5)]
        {
            let shown = Shown { interval: Some(Duration::from_secs_f64(interval)), ..KEPT };
            let mut live = live(shown, &Way::BOTH);
            let every = look_every(shown.interval);
            let count = (30.0f64 / looks).round() as u32;
            for number in 1..=count {
                let (mut moment, both) = at((every * number).as_secs_f64());
                moment.is_last = number == count;
                live.look(moment, &[both.clone(), both], None);
            }
            let kept = live.into_kept();
            assert_eq!(kept.len(), 2);
            for kept in kept {
                assert_eq!((kept.intervals.len(), kept.left_out), (expected, 0), "{interval}");
                assert!(kept.intervals.iter().all(|each| (each.bits_per_second - 8e6).abs() < 1e3));
            }
        }
    }

    #[test]
    fn intervals_of_a_record_are_bounded() {
        let (_, both) = at(1.0);
        let interval = Meter::new(What::Tcp, Way::ToServer).interval(&both).unwrap();
        let mut kept = Kept::default();
        (0..INTERVALS_MAX + 3).for_each(|_| kept.keep(interval));
        assert_eq!((kept.intervals.len(), kept.left_out), (INTERVALS_MAX, 3));
    }

    #[test]
    fn a_graph_has_room_on_every_terminal() {
        for ways in [&Way::BOTH[..1], &Way::BOTH] {
            let mut live = live(Shown { graph: true, ..KEPT }, ways);
            for second in 1..=2000 {
                let (moment, both) = at(second.into());
                live.look(moment, &vec![both; ways.len()], Some(Duration::from_millis(20)));
            }
            for (lines, letters) in [(24, 79), (60, 200), (14, 60), (9, 79)] {
                let drawn = live.graph(Size { lines, letters }, Some(Duration::from_millis(20)));
                assert!(drawn.len() < lines, "{lines}: {drawn:#?}");
                assert!(drawn.iter().all(|line| line.chars().count() <= letters), "{drawn:#?}");
            }
            let drawn = live.graph(Size { lines: 24, letters: 120 }, None).join("\n");
            for words in
                ["now 8.00 Mbit/s", "mean 8.00 Mbit/s", "lowest 8.00 Mbit/s at ", "0 sent again", "of 1:00"]
            {
                assert!(drawn.contains(words), "{words}: {drawn}");
            }
            assert_eq!(drawn.contains("from the server:"), ways.len() == 2);
        }
    }
}
