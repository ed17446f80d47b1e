//! Two records beside each other: the ratio of each figure's means, and how sure it is.
//!
//! Method: Welch's t interval on the logarithms of the runs (B. L. Welch, "The generalization of 'Student's' problem when several
//! different population variances are involved", Biometrika 34, 1947; degrees of freedom as F. E. Satterthwaite gave them in
//! 1946), taken back by the exponential: an interval of 95 % for the ratio of geometric means. Rates differ by factors and not
//! by terms, their logarithms are nearer to a normal distribution than they are, and the two sides need not spread alike.
//! From three runs on it keeps what it promises for log-normal runs (see the tests); with few runs it is wide, with one run
//! there is none.
//!
//! Invariant: where no interval can be had nothing is called better or worse.

use crate::chart::with_deviation;
use crate::series::{Better, Series, Spread};
use crate::sheet::{Cell, Table, Tone};

/// A figure of two records.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// As it was before.
    pub before: Series,
    /// As it is now.
    pub after: Series,
    /// After over before.
    pub ratio: Option<Ratio>,
}

/// How many times one is the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Of geometric means; of arithmetic ones where a value is 0 or less.
    pub ratio: f64,
    /// Holds the true ratio in 95 of 100 cases; none with a single run on either side, or values of 0 or less.
    pub interval: Option<(f64, f64)>,
    /// Runs that count, before and after.
    pub counts: (usize, usize),
}

/// What a comparison says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The interval is wholly on the good side of 1.
    Better,
    /// Wholly on the bad side.
    Worse,
    /// Wholly on one side, and neither is the better one.
    Changed,
    /// The interval holds 1.
    NotShown,
    /// There is no interval.
    Unknown,
}

/// The share of cases in which an interval holds the true ratio.
const CONFIDENCE: f64 = 0.95;

/// Name and version of the schema of what [`json`] is part of.
pub const SCHEMA: &str = "longhaul-comparison/1";

/// What is said under every comparison.
pub const METHOD: &str = "Ratio of geometric means, after / before, with an interval of 95 % by Welch's t on the logarithms of the runs. With \
     two or three runs a side it is wide; with one run there is none, and nothing is judged. Of a hundred figures that \
     have not changed about five are outside of their interval by chance.";

/// Figures that both records have, in the order of the first.
#[must_use]
pub fn compare(before: &[Series], after: &[Series]) -> Vec<Comparison> {
    let pair = |one: &Series| {
        let other = after.iter().find(|other| one.is_of(other))?;
        let ratio = Ratio::of(&other.counted(), &one.counted());
        Some(Comparison { before: one.clone(), after: other.clone(), ratio })
    };
    before.iter().filter_map(pair).collect()
}

/// How many of the figures of the one are not in the other.
#[must_use]
pub fn missing(of: &[Series], from: &[Series]) -> usize {
    of.iter().filter(|one| !from.iter().any(|other| one.is_of(other))).count()
}

impl Ratio {
    /// Of `above` to `below`; none where one of them has no runs, or nothing to divide by.
    #[must_use]
    pub fn of(above: &[f64], below: &[f64]) -> Option<Self> {
        let counts = (below.len(), above.len());
        if above.iter().chain(below).any(|value| *value <= 0.0) {
            let ratio = Spread::of(above)?.mean / Spread::of(below)?.mean;
            return ratio.is_finite().then_some(Self { ratio, interval: None, counts });
        }
        let logs = |values: &[f64]| Spread::of(&values.iter().map(|value| value.ln()).collect::<Vec<_>>());
        let (one, other) = (logs(above)?, logs(below)?);
        let middle = one.mean - other.mean;
        let interval = half_width(one, other).map(|half| ((middle - half).exp(), (middle + half).exp()));
        Some(Self { ratio: middle.exp(), interval, counts })
    }
}

/// Half of Welch's interval for the difference of two means.
fn half_width(one: Spread, other: Spread) -> Option<f64> {
    // The variance of each mean.
    let of_mean = |spread: Spread| Some(spread.deviation?.powi(2) / spread.count as f64);
    let (a, b) = (of_mean(one)?, of_mean(other)?);
    if a + b == 0.0 {
        return Some(0.0);
    }
    let part = |variance: f64, spread: Spread| variance.powi(2) / (spread.count - 1) as f64;
    let freedom = (a + b).powi(2) / (part(a, one) + part(b, other));
    Some(quantile(freedom) * (a + b).sqrt())
}

/// The bound that |t| stays below in [`CONFIDENCE`] of all cases, t having Student's distribution of so many degrees of freedom.
///
/// With t = sqrt(freedom) tan(angle) its density is that of cos(angle) to the power of freedom - 1, which is smooth and
/// bounded between 0 and a right angle: it is summed up by Simpson's rule until the share is reached.
fn quantile(freedom: f64) -> f64 {
    /// From here on it is the normal distribution's to four digits.
    const MANY: f64 = 20_000.0;
    const NORMAL: f64 = 1.959_964;
    const STEPS: u32 = 4000;
    if freedom.is_nan() || freedom >= MANY {
        return NORMAL;
    }
    let power = freedom.max(1.0) - 1.0;
    let width = std::f64::consts::FRAC_PI_2 / f64::from(STEPS);
    let density = |at: f64| (at * width).cos().max(0.0).powf(power);
    let piece = |step: u32| {
        let from = f64::from(step);
        (density(from) + 4.0 * density(from + 0.5) + density(from + 1.0)) / 6.0
    };
    let wanted = (0..STEPS).map(piece).sum::<f64>() * CONFIDENCE;
    let mut sum = 0.0;
    for step in 0..STEPS {
        let here = piece(step);
        if sum + here >= wanted {
            let angle = (f64::from(step) + (wanted - sum) / here) * width;
            return freedom.max(1.0).sqrt() * angle.tan();
        }
        sum += here;
    }
    NORMAL
}

impl Comparison {
    /// What it says, whatever the size of the difference.
    #[must_use]
    pub fn finding(&self) -> Finding {
        let Some((low, high)) = self.ratio.and_then(|ratio| ratio.interval) else { return Finding::Unknown };
        let is_more = match (low > 1.0, high < 1.0) {
            (true, _) => true,
            (_, true) => false,
            _ => return Finding::NotShown,
        };
        match (self.before.better, is_more) {
            (Better::More, true) | (Better::Less, false) => Finding::Better,
            (Better::More, false) | (Better::Less, true) => Finding::Worse,
            (Better::Neither, _) => Finding::Changed,
        }
    }

    /// Whether it is worse beyond the interval, and by more than `tolerance`, a share.
    #[must_use]
    pub fn is_worse_than(&self, tolerance: f64) -> bool {
        let Some(ratio) = self.ratio else { return false };
        let share = if self.before.better == Better::Less { 1.0 / ratio.ratio } else { ratio.ratio };
        self.finding() == Finding::Worse && share < 1.0 - tolerance
    }

    /// Whether anything can be said of it.
    #[must_use]
    pub fn is_judged(&self) -> bool {
        !matches!(self.finding(), Finding::Unknown)
    }

    /// As words of the table.
    #[must_use]
    pub fn in_words(&self) -> &'static str {
        match self.finding() {
            Finding::Better => "better",
            Finding::Worse => "WORSE",
            Finding::Changed => "changed",
            Finding::NotShown => "no difference shown",
            Finding::Unknown => match self.ratio {
                Some(Ratio { counts: (1, _) | (_, 1), .. }) => "one run: not judged",
                Some(_) => "0 or less: not judged",
                None => "no result",
            },
        }
    }
}

/// All comparisons.
#[must_use]
pub fn table(all: &[Comparison]) -> Table {
    const HEAD: [&str; 6] = ["figure", "before", "after", "ratio", "95 % interval", "says"];
    let row = |comparison: &Comparison| {
        let Comparison { before, after, ratio } = comparison;
        let length =
            before.call_bytes.map_or_else(String::new, |bytes| format!(", {}", crate::io::in_words(bytes)));
        let tone = match comparison.finding() {
            Finding::Better => Tone::Best,
            Finding::Worse => Tone::Bad,
            _ => Tone::Plain,
        };
        let cell = |words: String, tone| Cell { words, tone };
        let plain = |words: Option<String>| cell(words.unwrap_or_else(|| "-".to_owned()), Tone::Plain);
        vec![
            plain(Some(format!("{}; {}, {}{length}", before.scenario, before.tool, before.figure))),
            plain(Some(side(before))),
            plain(Some(side(after))),
            cell(ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.3}", ratio.ratio)), tone),
            plain(ratio.and_then(|ratio| ratio.interval).map(|(low, high)| format!("{low:.3} to {high:.3}"))),
            cell(comparison.in_words().to_owned(), if tone == Tone::Bad { tone } else { Tone::Plain }),
        ]
    };
    Table {
        caption: "After beside before".to_owned(),
        head: HEAD.map(str::to_owned).to_vec(),
        rows: all.iter().map(row).collect(),
        is_detail: false,
    }
}

/// `925 ± 4 (3†)`: mean, deviation and number of the runs that count.
fn side(series: &Series) -> String {
    let Some(spread) = series.counted_spread() else { return "-".to_owned() };
    let cut = if series.values.iter().any(|value| value.is_cut) { "~" } else { "" };
    let doubt = if series.values.iter().any(|value| value.is_doubted) { "†" } else { "" };
    format!("{cut}{} ({}{doubt})", with_deviation(spread.mean, spread.deviation), spread.count)
}

/// For other programs.
#[must_use]
pub fn json(all: &[Comparison]) -> serde_json::Value {
    let each = |comparison: &Comparison| {
        let Comparison { before, after, ratio } = comparison;
        serde_json::json!({
            "scenario": before.scenario, "tool": before.tool, "figure": before.figure, "call_bytes": before.call_bytes,
            "before": before.counted(), "after": after.counted(), "ratio": ratio.map(|ratio| ratio.ratio),
            "interval": ratio.and_then(|ratio| ratio.interval), "says": comparison.in_words().to_lowercase(),
        })
    };
    all.iter().map(each).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::series::tests::series;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        // Student's t, two-sided 5 %: any table has these.
        for (freedom, expected) in [
            (1.0, 12.706),
            (2.0, 4.303),
            (4.0, 2.776),
            (10.0, 2.228),
            (30.0, 2.042),
            (1e4, 1.960),
            (1e9, 1.960),
        ] {
            let found = quantile(freedom);
            assert!((found - expected).abs() < 0.001, "{freedom}: {found}");
        }
    }

    #[test]
    fn a_regression_is_told_and_a_few_runs_tell_nothing() {
        let judge = |before: &[f64], after: &[f64]| {
            compare(&[series("a", before)], &[series("b", &[1.0]), series("a", after)]).remove(0)
        };
        let worse = judge(&[900.0, 905.0, 910.0], &[700.0, 705.0, 710.0]);
        assert_eq!(worse.finding(), Finding::Worse);
        assert!(worse.is_worse_than(0.05) && !worse.is_worse_than(0.3));
        let noise = judge(&[900.0, 700.0, 800.0], &[700.0, 650.0, 900.0]);
        assert_eq!((noise.finding(), noise.is_worse_than(0.0)), (Finding::NotShown, false));
        let single = judge(&[900.0], &[100.0, 101.0]);
        assert_eq!((single.in_words(), single.is_worse_than(0.0)), ("one run: not judged", false));
        assert_eq!(single.ratio.map(|ratio| ratio.interval), Some(None));
        assert_eq!(judge(&[], &[1.0]).in_words(), "no result");
        assert_eq!(judge(&[0.0, 1.0], &[1.0, 2.0]).in_words(), "0 or less: not judged");
        let alike = judge(&[5.0, 5.0], &[5.0, 5.0]);
        assert_eq!(alike.ratio.and_then(|ratio| ratio.interval), Some((1.0, 1.0)));
    }

    #[test]
    fn less_time_is_better_and_disturbed_runs_do_not_count() {
        let times = |values: &[f64]| Series { better: Better::Less, ..series("a", values) };
        let found = compare(&[times(&[9.0, 9.1, 9.2])], &[times(&[4.0, 4.1, 4.2])]).remove(0);
        assert_eq!(found.finding(), Finding::Better);
        let mut disturbed = times(&[9.0, 9.1, 40.0]);
        disturbed.values[2].is_disturbed = true;
        let found = compare(&[times(&[9.0, 9.1, 9.2])], &[disturbed]).remove(0);
        assert_eq!(
            (found.finding(), found.ratio.map(|ratio| ratio.counts)),
            (Finding::NotShown, Some((3, 2)))
        );
        let theory = Series { better: Better::Neither, ..series("a", &[2.0, 2.1]) };
        let found = compare(&[series("a", &[1.0, 1.01])], std::slice::from_ref(&theory)).remove(0);
        assert_eq!(found.finding(), Finding::Better);
        let found = compare(&[theory], &[series("a", &[1.0, 1.01])]).remove(0);
        assert_eq!((found.finding(), found.is_worse_than(0.0)), (Finding::Changed, false));
        assert_eq!(missing(&[series("a", &[1.0]), series("b", &[1.0])], &[series("a", &[1.0])]), 1);
    }

    /// Normal numbers from a seed: splitmix64, and the polar way of Marsaglia.
    struct Dice(u64);

    impl Dice {
        fn uniform(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
        }

        fn normal(&mut self) -> f64 {
            loop {
                let (x, y) = (self.uniform().mul_add(2.0, -1.0), self.uniform().mul_add(2.0, -1.0));
                let square = x * x + y * y;
                if square > 0.0 && square < 1.0 {
                    return x * (-2.0 * square.ln() / square).sqrt();
                }
            }
        }

        fn runs(&mut self, count: usize, mean: f64, spread: f64) -> Vec<f64> {
            (0..count).map(|_| mean * (self.normal() * spread).exp()).collect()
        }
    }

    #[test]
    fn the_interval_holds_the_true_ratio_as_often_as_it_says() {
        const CASES: usize = 1000;
        // Runs a side, and how far they spread: alike, and ten times as far on one side.
        for (seed, counts, spreads) in [
            (1, (3, 3), (0.05, 0.05)),
            (2, (3, 3), (0.02, 0.2)),
            (3, (3, 10), (0.2, 0.02)),
            (4, (5, 5), (0.3, 0.1)),
            (5, (10, 10), (0.05, 0.05)),
        ] {
            let mut dice = Dice(seed);
            let held = (0..CASES)
                .filter(|_| {
                    let (above, below) =
                        (dice.runs(counts.0, 800.0, spreads.0), dice.runs(counts.1, 1000.0, spreads.1));
                    let (low, high) = Ratio::of(&above, &below).unwrap().interval.unwrap();
                    (low..=high).contains(&0.8)
                })
                .count();
            let share = held as f64 / CASES as f64;
            assert!((0.93..0.985).contains(&share), "seed {seed}: {share} of {CASES}");
        }
    }

    fn runs() -> impl Strategy<Value = Vec<f64>> {
        prop::collection::vec(1e-3f64..1e6, 2..8)
    }

    proptest! {
        #[test]
        fn before_and_after_are_each_other_s_inverse(above in runs(), below in runs(), unit in 1e-3f64..1e3) {
            let close = |one: f64, other: f64| (one - other).abs() <= one.abs() * 1e-6;
            let there = Ratio::of(&above, &below).unwrap();
            let back = Ratio::of(&below, &above).unwrap();
            prop_assert!(close(there.ratio, 1.0 / back.ratio));
            let ((low, high), (back_low, back_high)) = (there.interval.unwrap(), back.interval.unwrap());
            prop_assert!(low <= there.ratio && there.ratio <= high);
            // Intervals over many powers of ten may end beyond all numbers.
            prop_assume!(low > 1e-200 && high < 1e200);
            prop_assert!(close(low, 1.0 / back_high) && close(high, 1.0 / back_low));
            let scaled = |values: &[f64]| values.iter().map(|value| value * unit).collect::<Vec<_>>();
            let same = Ratio::of(&scaled(&above), &scaled(&below)).unwrap();
            prop_assert!(close(same.ratio, there.ratio), "another unit");
        }
    }
}
