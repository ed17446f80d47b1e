//! What a graph over time is drawn from: rates of intervals, as many as there are, in a bounded number of columns.
//!
//! When they are full, each two neighbours become one: what was counted stays exact, and so do the lowest and the highest rate of all
//! intervals; only when they were is known less exactly.

/// Columns that are kept: twice the widest terminals, so that after two became one there are still as many as places. 40 bytes each.
pub(super) const COLUMNS_MAX: usize = 1024;

/// Neighbouring intervals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Column {
    /// Of the first, since the beginning of the test.
    pub(super) start_s: f64,
    /// Of all of them.
    pub(super) seconds: f64,
    /// Payload.
    pub(super) bytes: u64,
    /// Bits a second of the lowest interval.
    pub(super) min: f64,
    /// Of the highest.
    pub(super) max: f64,
}

impl Column {
    fn of(start_s: f64, seconds: f64, bytes: u64) -> Self {
        let rate = bytes as f64 * 8.0 / seconds;
        Self { start_s, seconds, bytes, min: rate, max: rate }
    }

    fn and(self, next: &Self) -> Self {
        Self {
            start_s: self.start_s,
            seconds: self.seconds + next.seconds,
            bytes: self.bytes.saturating_add(next.bytes),
            min: self.min.min(next.min),
            max: self.max.max(next.max),
        }
    }

    /// Bits a second.
    pub(super) fn mean(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.seconds
    }

    pub(super) fn end_s(&self) -> f64 {
        self.start_s + self.seconds
    }
}

/// The intervals of one direction of a test.
#[derive(Clone, Debug)]
pub(super) struct Columns {
    kept: Vec<Column>,
    /// Intervals of each but the last one.
    intervals_each: u64,
    intervals_of_last: u64,
    lowest: Option<Column>,
    /// Seconds of the interval before.
    before_s: f64,
}

/// An interval that is so much shorter than the one before is counted with it: what is left at the end of a test that was interrupted
/// says nothing of how low or high a rate was.
const SHORT: f64 = 0.25;

impl Columns {
    pub(super) fn new() -> Self {
        Self { kept: Vec::new(), intervals_each: 1, intervals_of_last: 0, lowest: None, before_s: 0.0 }
    }

    /// The next interval; one that took no time is left out.
    pub(super) fn push(&mut self, start_s: f64, end_s: f64, bytes: u64) {
        let seconds = end_s - start_s;
        if !(seconds > 0.0 && seconds.is_finite()) {
            return;
        }
        let is_short = seconds < self.before_s * SHORT;
        self.before_s = seconds;
        if let Some(last) = self.kept.last_mut().filter(|_| is_short) {
            last.seconds += seconds;
            last.bytes = last.bytes.saturating_add(bytes);
            return;
        }
        let next = Column::of(start_s, seconds, bytes);
        if self.lowest.is_none_or(|lowest| next.min < lowest.min) {
            self.lowest = Some(next);
        }
        if let Some(last) = self.kept.last_mut().filter(|_| self.intervals_of_last < self.intervals_each) {
            *last = last.and(&next);
            self.intervals_of_last += 1;
            return;
        }
        if self.kept.len() >= COLUMNS_MAX {
            self.kept = merged(&self.kept, 2);
            self.intervals_each *= 2;
        }
        self.kept.push(next);
        self.intervals_of_last = 1;
    }

    /// No more than `places`: as many neighbours together as that takes.
    pub(super) fn in_places(&self, places: usize) -> Vec<Column> {
        merged(&self.kept, self.kept.len().div_ceil(places.max(1)).max(1))
    }

    /// All of them as one.
    pub(super) fn whole(&self) -> Option<Column> {
        merged(&self.kept, self.kept.len().max(1)).first().copied()
    }

    /// The interval with the lowest rate, the earliest of several.
    pub(super) fn lowest(&self) -> Option<Column> {
        self.lowest
    }
}

fn merged(columns: &[Column], each: usize) -> Vec<Column> {
    let one = |some: &[Column]| some.iter().skip(1).fold(some[0], |sum, next| sum.and(next));
    columns.chunks(each).map(one).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(intervals: impl IntoIterator<Item = (f64, u64)>) -> Columns {
        let (mut columns, mut start) = (Columns::new(), 0.0);
        for (seconds, bytes) in intervals {
            columns.push(start, start + seconds, bytes);
            start += seconds;
        }
        columns
    }

    #[test]
    fn an_interval_is_a_column_while_there_is_room() {
        let columns = of((0..COLUMNS_MAX as u64).map(|number| (1.0, number)));
        assert_eq!((columns.kept.len(), columns.intervals_each), (COLUMNS_MAX, 1));
        assert_eq!(columns.kept[3], Column { start_s: 3.0, seconds: 1.0, bytes: 3, min: 24.0, max: 24.0 });
        // One more than fit.
        let columns = of((0..=COLUMNS_MAX as u64).map(|number| (1.0, number)));
        assert_eq!((columns.kept.len(), columns.intervals_each), (COLUMNS_MAX / 2 + 1, 2));
        assert_eq!(columns.kept[1], Column { start_s: 2.0, seconds: 2.0, bytes: 5, min: 16.0, max: 24.0 });
        assert_eq!(columns.in_places(1).len(), 1);
    }

    #[test]
    fn a_day_of_tenths_of_seconds_has_its_place_and_its_lowest_second() {
        let bytes = |number: u64| if number == 500_000 { 7 } else { 1000 + number % 10 };
        let columns = of((0..864_000).map(|number| (0.1, bytes(number))));
        assert!(columns.kept.len() <= COLUMNS_MAX && columns.kept.len() > COLUMNS_MAX / 2);
        let whole = columns.whole().unwrap();
        assert_eq!(whole.bytes, (0..864_000).map(bytes).sum::<u64>());
        assert!((whole.seconds - 86_400.0).abs() < 1e-3, "{whole:?}");
        let lowest = columns.lowest().unwrap();
        assert!(lowest.bytes == 7 && (lowest.start_s - 50_000.0).abs() < 1e-3, "{lowest:?}");
        assert!((whole.min - lowest.min).abs() < 1e-9);
    }

    #[test]
    fn what_took_no_time_is_left_out() {
        let columns = of([(0.0, 5), (f64::NAN, 5), (-1.0, 5)]);
        assert!(columns.whole().is_none() && columns.lowest().is_none() && columns.in_places(80).is_empty());
    }

    #[test]
    fn what_is_left_at_the_end_is_neither_low_nor_high() {
        let columns = of([(1.0, 1000), (1.0, 1100), (0.01, 900)]);
        let whole = columns.whole().unwrap();
        assert_eq!((columns.kept.len(), whole.bytes), (2, 3000));
        assert_eq!((whole.min, whole.max), (8000.0, 8800.0));
        assert_eq!(columns.lowest().unwrap().start_s, 0.0);
    }

    proptest! {
        /// Against all intervals, kept.
        #[test]
        fn nothing_is_lost_by_merging(
            intervals in prop::collection::vec((1.0f64..3.9, 0u64..1 << 40), 1..5 * COLUMNS_MAX),
            places in 1usize..300,
        ) {
            let columns = of(intervals.iter().copied());
            let bytes: u64 = intervals.iter().map(|(_, bytes)| bytes).sum();
            let seconds: f64 = intervals.iter().map(|(seconds, _)| seconds).sum();
            let rate = |(seconds, bytes): &(f64, u64)| *bytes as f64 * 8.0 / seconds;
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * a.abs().max(b.abs());
            prop_assert!(columns.kept.len() <= COLUMNS_MAX);
            for shown in [columns.in_places(places), columns.kept.clone()] {
                prop_assert_eq!(shown.iter().map(|column| column.bytes).sum::<u64>(), bytes);
                prop_assert!(near(shown.iter().map(|column| column.seconds).sum(), seconds));
                // A clock that tells when an interval was is not as exact as the time that it took.
                prop_assert!(shown.windows(2).all(|two| (two[0].end_s() - two[1].start_s).abs() < 1e-6 * seconds));
                let (least, most) = (intervals.iter().map(rate).fold(f64::MAX, f64::min), intervals.iter().map(rate).fold(0.0, f64::max));
                prop_assert!(near(shown.iter().map(|column| column.min).fold(f64::MAX, f64::min), least));
                prop_assert!(near(shown.iter().map(|column| column.max).fold(0.0, f64::max), most));
                for column in &shown {
                    prop_assert!(column.min <= column.mean() * (1.0 + 1e-6));
                    prop_assert!(column.mean() <= column.max * (1.0 + 1e-6));
                }
            }
            prop_assert!(columns.in_places(places).len() <= places);
            prop_assert!(near(columns.whole().unwrap().mean(), bytes as f64 * 8.0 / seconds));
            for (each, column) in intervals.chunks(columns.intervals_each as usize).zip(&columns.kept) {
                prop_assert_eq!(each.iter().map(|(_, bytes)| bytes).sum::<u64>(), column.bytes);
            }
        }
    }
}
