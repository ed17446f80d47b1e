//! How much a packet's delay varies.
//!
//! Each packet's deviation is decided by the seed, its flow and its number in it. Where deviations are correlated, each is
//! the next value of a stationary Gaussian process of first order, turned into the wanted distribution: the
//! distribution is exact whatever the correlation.

use std::f64::consts::{SQRT_2, TAU};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::dice::{Dice, Probability, Purpose};

/// How the deviations are distributed, in units of [`Jitter::spread`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// Between -1 and 1, evenly.
    #[default]
    Uniform,
    /// Normal, with the standard deviation 1.
    Normal,
    /// Pareto's with a = 3, moved and scaled to the mean 0 and the standard deviation 1: never below -0.58, and now and
    /// then very large.
    Pareto,
    /// As measured: quantiles at even steps from the least to the largest, with straight lines between them.
    Table(Vec<f64>),
}

/// Deviations from a link's delay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Jitter {
    /// What a deviation of 1 is.
    pub spread: Duration,
    /// Their distribution.
    #[serde(default)]
    pub shape: Shape,
    /// Of a packet's deviation with the next one's of its flow: of the normal values that they are made from.
    #[serde(default)]
    pub correlation: Probability,
    /// Packets may overtake each other. Otherwise none arrives before one that was sent earlier, as on a real wire, and
    /// those sent close together are later than the distribution alone would have them.
    #[serde(default)]
    pub overtakes: bool,
}

const PARETO_EXPONENT: f64 = 3.0;
/// a / (a - 1)
const PARETO_MEAN: f64 = 1.5;
/// sqrt(a / (a - 2)) / (a - 1)
const PARETO_DEVIATION: f64 = 0.866_025_403_784_438_6;

impl Shape {
    /// The value that a share `u` of all lies below; none for the normal distribution, which has no such formula.
    pub(crate) fn quantile(&self, u: f64) -> Option<f64> {
        match self {
            Self::Uniform => Some(2.0 * u - 1.0),
            Self::Normal => None,
            Self::Pareto => Some(((1.0 - u).powf(-1.0 / PARETO_EXPONENT) - PARETO_MEAN) / PARETO_DEVIATION),
            Self::Table(quantiles) => {
                let last = quantiles.len().checked_sub(1)?;
                let at = u * last as f64;
                let below = (at as usize).min(last);
                let above = (below + 1).min(last);
                Some(quantiles[below] + (quantiles[above] - quantiles[below]) * at.fract())
            }
        }
    }
}

/// A table of the distribution of `samples`.
///
/// # Errors
/// Without a sample, or with one that is no number.
pub fn table_of(mut samples: Vec<f64>) -> Result<Shape, NoTable> {
    if samples.is_empty() || samples.iter().any(|sample| !sample.is_finite()) {
        return Err(NoTable);
    }
    samples.sort_unstable_by(f64::total_cmp);
    let last = samples.len() - 1;
    let steps = last.min(TABLE_MAX - 1);
    let quantiles = (0..=steps).map(|i| samples[(i * last).checked_div(steps).unwrap_or(0)]);
    Ok(Shape::Table(quantiles.collect()))
}

/// Values of a table: it travels in one message.
pub const TABLE_MAX: usize = 1024;

/// Nothing to make a table of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a table of delays needs at least one number, and nothing else")]
pub struct NoTable;

impl Jitter {
    /// None at all.
    pub const NONE: Self = Self {
        spread: Duration::ZERO,
        shape: Shape::Uniform,
        correlation: Probability::ZERO,
        overtakes: false,
    };

    /// The deviation of a packet, in seconds. `before`: the Gaussian value of the flow's packet before it.
    pub fn deviation(&self, before: &mut Option<f64>, dice: Dice, flow: u64, packet: u64) -> f64 {
        let u = dice.fraction(Purpose::Jitter, flow, packet);
        let correlation = self.correlation.get();
        let direct = self.shape.quantile(u).filter(|_| correlation == 0.0);
        let value = direct.unwrap_or_else(|| {
            // Box and Muller, 1958.
            let angle = TAU * dice.fraction(Purpose::JitterAngle, flow, packet);
            let fresh = (-2.0 * u.ln()).sqrt() * angle.cos();
            let normal = match *before {
                Some(before) => correlation * before + (1.0 - correlation * correlation).sqrt() * fresh,
                None => fresh,
            };
            *before = Some(normal);
            self.shape.quantile(libm::erfc(-normal / SQRT_2) / 2.0).unwrap_or(normal)
        });
        value * self.spread.as_secs_f64()
    }

    /// Most that it adds, but for what is rare.
    #[must_use]
    pub fn usually_below(&self) -> Duration {
        let times = match &self.shape {
            Shape::Uniform => 1.0,
            Shape::Normal => 4.0,
            Shape::Pareto => 10.0,
            Shape::Table(quantiles) => quantiles.last().map_or(0.0, |last| last.max(0.0)),
        };
        Duration::try_from_secs_f64(self.spread.as_secs_f64() * times).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deviations(shape: Shape, correlation: f64, packets: u64) -> Vec<f64> {
        let jitter = Jitter {
            spread: Duration::from_secs(1),
            shape,
            correlation: Probability::try_from(correlation).unwrap(),
            overtakes: true,
        };
        let (dice, mut before) = (Dice::new(7, 0), None);
        (0..packets).map(|packet| jitter.deviation(&mut before, dice, 1, packet)).collect()
    }

    /// The Kolmogorov-Smirnov distance of the samples from a distribution.
    fn distance(mut samples: Vec<f64>, below: impl Fn(f64) -> f64) -> f64 {
        samples.sort_unstable_by(f64::total_cmp);
        let n = samples.len() as f64;
        let gap = |(i, x): (usize, &f64)| {
            let p = below(*x);
            (p - i as f64 / n).abs().max((p - (i as f64 + 1.0) / n).abs())
        };
        samples.iter().enumerate().map(gap).fold(0.0, f64::max)
    }

    fn below(shape: &Shape, x: f64) -> f64 {
        match shape {
            Shape::Uniform => f64::midpoint(x, 1.0).clamp(0.0, 1.0),
            Shape::Normal => libm::erfc(-x / SQRT_2) / 2.0,
            Shape::Pareto => 1.0 - (x * PARETO_DEVIATION + PARETO_MEAN).max(1.0).powf(-PARETO_EXPONENT),
            Shape::Table(_) => (x / 10.0).clamp(0.0, 1.0),
        }
    }

    fn shapes() -> [Shape; 4] {
        [Shape::Uniform, Shape::Normal, Shape::Pareto, Shape::Table(vec![0.0, 2.5, 5.0, 7.5, 10.0])]
    }

    #[test]
    fn deviations_follow_their_distribution() {
        for shape in shapes() {
            let n = 200_000;
            let found = distance(deviations(shape.clone(), 0.0, n), |x| below(&shape, x));
            // The 99 % quantile of Kolmogorov's distribution.
            assert!(found < 1.628 / (n as f64).sqrt(), "{shape:?}: {found}");
        }
    }

    #[test]
    fn correlated_ones_do_too_and_are_correlated() {
        for shape in shapes() {
            let all = deviations(shape.clone(), 0.8, 2_000_000);
            // Every 50th: 0.8^50 is 1e-5.
            let apart: Vec<f64> = all.iter().step_by(50).copied().collect();
            let n = apart.len() as f64;
            let found = distance(apart, |x| below(&shape, x));
            assert!(found < 1.628 / n.sqrt(), "{shape:?}: {found}");
            if shape == Shape::Normal {
                let mean = all.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>() / (all.len() - 1) as f64;
                assert!((mean - 0.8).abs() < 0.005, "{mean}");
            }
        }
    }

    #[test]
    fn pareto_has_mean_0_and_deviation_1() {
        let all = deviations(Shape::Pareto, 0.0, 2_000_000);
        let n = all.len() as f64;
        let mean = all.iter().sum::<f64>() / n;
        assert!(mean.abs() < 0.005, "{mean}");
        assert!(all.iter().all(|x| *x > -0.578));
    }

    #[test]
    fn a_table_is_made_of_samples() {
        let Ok(Shape::Table(table)) = table_of((0..5000).rev().map(f64::from).collect()) else { panic!() };
        assert_eq!((table.len(), table[0], table[TABLE_MAX - 1]), (TABLE_MAX, 0.0, 4999.0));
        assert!(table.is_sorted());
        assert_eq!(table_of(vec![3.0]), Ok(Shape::Table(vec![3.0])));
        assert_eq!(Shape::Table(vec![3.0]).quantile(0.7), Some(3.0));
        assert_eq!(table_of(vec![]), Err(NoTable));
        assert_eq!(table_of(vec![1.0, f64::NAN]), Err(NoTable));
    }
}
