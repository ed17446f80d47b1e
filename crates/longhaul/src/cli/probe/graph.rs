//! A graph of rates over time, of letters.
//!
//! A column's bar is its mean, in eighths of a letter; the light letters above it go up to the highest of its intervals.

use super::columns::Column;
use crate::terminal::show_seconds;

/// Letters left of the bars: `2.5 Gbit/s `, and the axis.
const MARGIN: usize = 12;
/// Fewer bars say nothing.
const BARS_MIN: usize = 8;
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ABOVE: char = '░';
/// The top of the axis, times a power of ten: half of each is a round number as well.
const TOPS: [f64; 9] = [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
/// Between marks of time.
const STEPS_S: [f64; 18] = [
    1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 10_800.0,
    14_400.0, 21_600.0, 43_200.0,
];
/// Letters between marks of time, at least: the longest has seven.
const STEP_LETTERS: f64 = 10.0;

/// How many bars there is room for in lines of so many letters.
pub(super) fn bars_in(letters: usize) -> usize {
    letters.saturating_sub(MARGIN).max(BARS_MIN)
}

/// `rows` lines of bars, from the top, and two of the axis of time.
pub(super) fn draw(columns: &[Column], rows: usize, bars: usize) -> Vec<String> {
    let top = top_of(columns.iter().map(|column| column.max).fold(0.0, f64::max));
    let height = |rate: f64| (rate / top * (rows * 8) as f64).round() as usize;
    let mut lines: Vec<String> = (0..rows)
        .map(|row| {
            let below = (rows - 1 - row) * 8;
            let letter = |column: &Column| {
                // What is not nothing is seen.
                let mean = height(column.mean()).max(usize::from(column.bytes > 0));
                match mean.saturating_sub(below).min(8) {
                    0 if height(column.max) > below => ABOVE,
                    eighths => EIGHTHS[eighths],
                }
            };
            let label = match row {
                0 => rate(top),
                _ if rows >= 4 && row * 2 == rows => rate(top / 2.0),
                _ => String::new(),
            };
            let axis = if label.is_empty() { '│' } else { '┤' };
            let bars: String = columns.iter().map(letter).collect();
            format!("{label:>10} {axis}{bars}").trim_end().to_owned()
        })
        .collect();
    lines.extend(time_axis(columns, bars));
    lines
}

fn time_axis(columns: &[Column], bars: usize) -> [String; 2] {
    let mut line: Vec<char> = vec!['─'; bars];
    let mut marks = String::new();
    let seconds = columns.last().map_or(0.0, Column::end_s);
    let each_s = seconds / columns.len().max(1) as f64;
    let last = STEPS_S[STEPS_S.len() - 1];
    let step = STEPS_S.into_iter().find(|step| *step >= STEP_LETTERS * each_s).unwrap_or_else(|| {
        // Days.
        (STEP_LETTERS * each_s / last).ceil() * last
    });
    let mut number = 0.0;
    for (place, column) in columns.iter().enumerate() {
        let time = number * step;
        if column.end_s() <= time {
            continue;
        }
        number = (column.end_s() / step).ceil().max(number + 1.0);
        let mark = mark(time, step, seconds);
        // No mark goes beyond the line, nor into the next one.
        if place + mark.len() <= bars && (place == 0 || place > marks.len()) {
            line[place] = '┬';
            marks.extend(std::iter::repeat_n(' ', place - marks.len()));
            marks.push_str(&mark);
        }
    }
    let line: String = line.into_iter().collect();
    [format!("{:>10} ┼{line}", "0"), format!("{:MARGIN$}{marks}", "")]
}

/// The next round number.
fn top_of(rate: f64) -> f64 {
    if rate.is_nan() || rate < 1.0 {
        return 1.0;
    }
    let power = 10f64.powf(rate.log10().floor());
    // A logarithm may be off by its last digit.
    TOPS.into_iter().map(|top| top * power).find(|top| *top >= rate).unwrap_or(10.0 * power)
}

/// `2.5 Gbit/s`: a round one.
fn rate(bits_per_second: f64) -> String {
    let (value, unit) = match bits_per_second {
        rate if rate >= 1e12 => (rate / 1e12, "Tbit/s"),
        rate if rate >= 1e9 => (rate / 1e9, "Gbit/s"),
        rate if rate >= 1e6 => (rate / 1e6, "Mbit/s"),
        rate if rate >= 1e3 => (rate / 1e3, "kbit/s"),
        rate => (rate, "bit/s"),
    };
    format!("{} {unit}", (value * 100.0).round() / 100.0)
}

fn mark(time_s: f64, step_s: f64, all_s: f64) -> String {
    let time = time_s as u64;
    match step_s as u64 {
        _ if time == 0 => "0".to_owned(),
        step if step < 60 && all_s < 120.0 => format!("{time} s"),
        step if step % 3600 == 0 => format!("{} h", time / 3600),
        step if step % 60 == 0 && all_s < 7200.0 => format!("{} min", time / 60),
        _ => show_seconds(time),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::columns::Columns;
    use super::*;

    fn graph(rates: impl Fn(u64) -> u64, seconds: u64, rows: usize, letters: usize) -> String {
        let mut columns = Columns::new();
        for second in 0..seconds {
            columns.push(second as f64, second as f64 + 1.0, rates(second) / 8);
        }
        let bars = bars_in(letters);
        draw(&columns.in_places(bars), rows, bars).join("\n")
    }

    #[test]
    fn bars_stand_on_an_axis_of_time() {
        let rates = |second| [0, 125, 500, 1000, 1010, 2000][(second as usize).min(5)] * 1_000_000;
        let drawn = graph(rates, 12, 4, 40);
        let lines: Vec<&str> = drawn.lines().collect();
        assert_eq!(lines[0], "  2 Gbit/s ┤     ███████", "{drawn}");
        assert_eq!(lines[1], "           │     ███████", "{drawn}");
        assert_eq!(lines[2], "  1 Gbit/s ┤   █████████", "{drawn}");
        assert_eq!(lines[3], "           │ ▂██████████", "{drawn}");
        assert_eq!(lines[4], "         0 ┼┬─────────┬─────────────────");
        assert_eq!(lines[5], "            0         10 s");
    }

    #[test]
    fn a_day_is_as_wide_as_a_minute() {
        for (seconds, marks) in [
            (45, "10 s"),
            (100, "30 s"),
            (1800, "5 min"),
            (9000, "30:00"),
            (86_400, "4 h"),
            (864_000, "48 h"),
        ] {
            let drawn = graph(|second| 1_000_000_000 + second % 7, seconds, 8, 79);
            assert!(drawn.lines().all(|line| line.chars().count() <= 79), "{drawn}");
            assert_eq!(drawn.lines().count(), 10);
            assert!(drawn.lines().last().unwrap().contains(marks), "{seconds}: {marks}\n{drawn}");
            let bars = drawn.lines().nth(7).unwrap().chars().filter(|letter| *letter == '█').count();
            assert!(bars > 33, "{drawn}");
        }
    }

    #[test]
    fn what_was_high_for_a_while_is_light_and_nothing_is_nothing() {
        let drawn = graph(|second| if second % 1000 == 3 { 8_000_000 } else { 1_000_000 }, 3000, 4, 79);
        assert!(drawn.lines().next().unwrap().contains('░'), "{drawn}");
        let drawn = graph(|second| u64::from(second != 1) * 800, 3, 4, 79);
        assert!(drawn.lines().nth(3).unwrap().ends_with("│█ █"), "{drawn}");
        let drawn = graph(|_| 0, 3, 4, 79);
        assert!(!drawn.contains(['█', '▁', '░']), "{drawn}");
        assert_eq!(draw(&[], 4, 60).len(), 6);
    }

    #[test]
    fn tops_are_round() {
        for (rate_bits, word) in [
            (0.0, "1 bit/s"),
            (1.0, "1 bit/s"),
            (999.0, "1 kbit/s"),
            (1e6, "1 Mbit/s"),
            (1.01e6, "1.5 Mbit/s"),
            (9.41e9, "10 Gbit/s"),
            (41e9, "50 Gbit/s"),
            (f64::NAN, "1 bit/s"),
        ] {
            assert_eq!(rate(top_of(rate_bits)), word);
        }
    }

    proptest! {
        #[test]
        fn a_graph_keeps_to_its_place(
            intervals in prop::collection::vec((0.05f64..100.0, 0u64..1 << 40), 0..2000),
            rows in 1usize..12,
            letters in 0usize..300,
        ) {
            let (mut columns, mut start) = (Columns::new(), 0.0);
            for (seconds, bytes) in intervals {
                columns.push(start, start + seconds, bytes);
                start += seconds;
            }
            let bars = bars_in(letters);
            let lines = draw(&columns.in_places(bars), rows, bars);
            prop_assert_eq!(lines.len(), rows + 2);
            let most = letters.max(MARGIN + BARS_MIN);
            prop_assert!(lines.iter().all(|line| line.chars().count() <= most), "{:?}", lines);
        }
    }
}
