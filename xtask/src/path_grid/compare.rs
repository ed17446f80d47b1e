//! What was measured beside what is known: tolerances and intervals. Pure.

use serde::{Deserialize, Serialize};

/// A figure that is known, what was measured of it, and where that may lie.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Figure {
    pub(super) what: String,
    pub(super) unit: String,
    pub(super) known: f64,
    /// None: the probe names no figure.
    pub(super) measured: Option<f64>,
    /// Least and most, both allowed.
    pub(super) allowed: [f64; 2],
    pub(super) within: bool,
}

impl Figure {
    pub(super) fn new(what: &str, unit: &str, known: f64, measured: Option<f64>, allowed: [f64; 2]) -> Self {
        let within = measured.is_some_and(|it| allowed[0] <= it && it <= allowed[1]);
        Self { what: what.to_owned(), unit: unit.to_owned(), known, measured, allowed, within }
    }
}

/// A round-trip time in ms may be off by half a millisecond, or by 1 % where that is more.
pub(super) fn rtt_allowed(known_ms: f64) -> [f64; 2] {
    let off = (known_ms * 0.01).max(0.5);
    [known_ms - off, known_ms + off]
}

/// A capacity may be off by 2 %.
pub(super) fn capacity_allowed(known: f64) -> [f64; 2] {
    [known * 0.98, known * 1.02]
}

/// Outside on each side: 99 % of all counts are inside.
const TAIL: f64 = 0.005;

/// Which of `trials` packets may be lost where each is with the chance `share`: the binomial distribution's own quantiles, which are
/// those shares that the test of Clopper and Pearson (1934) does not reject.
pub(super) fn lost_allowed(trials: u64, share: f64) -> [f64; 2] {
    if trials == 0 || share <= 0.0 {
        return [0.0, 0.0];
    }
    if share >= 1.0 {
        return [trials as f64; 2];
    }
    let (n, odds) = (trials as f64, (share / (1.0 - share)).ln());
    // Logarithms: the chance that none is lost is below what a float can hold.
    let mut chance = n * (-share).ln_1p();
    let (mut below, mut least) = (0.0, None);
    for lost in 0..=trials {
        if lost > 0 {
            chance += ((n - lost as f64 + 1.0) / lost as f64).ln() + odds;
        }
        below += chance.exp();
        if below >= TAIL {
            least = least.or(Some(lost));
        }
        if below >= 1.0 - TAIL {
            return [least.unwrap_or(lost) as f64, lost as f64];
        }
    }
    [least.unwrap_or(trials) as f64, n]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tolerance_is_the_larger_of_both() {
        assert_eq!(rtt_allowed(3.0), [2.5, 3.5]);
        assert_eq!(rtt_allowed(200.0), [198.0, 202.0]);
        assert_eq!(capacity_allowed(100.0), [98.0, 102.0]);
    }

    #[test]
    fn bounds_are_within_and_nothing_is_not() {
        let figure = |measured| Figure::new("RTT", "ms", 3.0, measured, rtt_allowed(3.0)).within;
        assert!(figure(Some(2.5)) && figure(Some(3.5)));
        assert!(!figure(Some(3.51)) && !figure(Some(2.49)) && !figure(Some(f64::NAN)) && !figure(None));
    }

    #[test]
    fn a_link_without_loss_loses_nothing() {
        assert_eq!(lost_allowed(50_000, 0.0), [0.0, 0.0]);
        assert_eq!(lost_allowed(0, 0.01), [0.0, 0.0]);
        assert_eq!(lost_allowed(7, 1.0), [7.0, 7.0]);
    }

    /// By the sum over all subsets: each of three is lost or not.
    #[test]
    fn small_counts_by_hand() {
        // Chances of 0 to 3 lost: 1/8, 3/8, 3/8, 1/8.
        assert_eq!(lost_allowed(3, 0.5), [0.0, 3.0]);
        // None of ten at 0.1 %: 0.990; one more makes 0.99996.
        assert_eq!(lost_allowed(10, 0.001), [0.0, 1.0]);
        // None of a thousand at 1 %: 4e-5; the mean is 10, quantiles 3 and 19 (tables of the binomial distribution).
        assert_eq!(lost_allowed(1000, 0.01), [3.0, 19.0]);
    }

    #[test]
    fn many_packets_are_as_the_normal_distribution_says() {
        for (trials, share) in [(51_000u64, 0.01), (500_000, 0.001), (51_000, 0.5)] {
            let mean = trials as f64 * share;
            let half = 2.5758 * (mean * (1.0 - share)).sqrt();
            let [least, most] = lost_allowed(trials, share);
            assert!((least - (mean - half)).abs() < 3.0, "{least} for {mean} - {half}");
            assert!((most - (mean + half)).abs() < 3.0, "{most} for {mean} + {half}");
        }
    }
}
