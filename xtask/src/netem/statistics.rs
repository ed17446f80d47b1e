//! What is said of samples: quantiles, distances between distributions, confidence. Pure.

/// The value that a share `q` of the sorted samples lies below.
pub(super) fn quantile(sorted: &[f64], q: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let at = q * last as f64;
    let below = (at as usize).min(last);
    match (sorted.get(below), sorted.get((below + 1).min(last))) {
        (Some(low), Some(high)) => low + (high - low) * at.fract(),
        _ => f64::NAN,
    }
}

pub(super) fn sorted(mut samples: Vec<f64>) -> Vec<f64> {
    samples.sort_unstable_by(f64::total_cmp);
    samples
}

pub(super) fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len() as f64
}

/// Of the samples about their mean.
pub(super) fn deviation(samples: &[f64]) -> f64 {
    let mean = mean(samples);
    let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
    (squares / (samples.len().saturating_sub(1)) as f64).sqrt()
}

/// The Kolmogorov-Smirnov distance of two sorted sets of samples: the largest difference of the shares that lie below a
/// value.
pub(super) fn ks_distance(a: &[f64], b: &[f64]) -> f64 {
    let (mut i, mut j, mut most) = (0, 0, 0.0f64);
    while i < a.len() && j < b.len() {
        let value = a[i].min(b[j]);
        while i < a.len() && a[i] <= value {
            i += 1;
        }
        while j < b.len() && b[j] <= value {
            j += 1;
        }
        most = most.max((i as f64 / a.len() as f64 - j as f64 / b.len() as f64).abs());
    }
    most
}

/// The distance that two sets of so many samples of the same distribution exceed once in a hundred times.
pub(super) fn ks_limit(a: usize, b: usize) -> f64 {
    1.628 * ((a + b) as f64 / (a as f64 * b as f64)).sqrt()
}

/// Parts into which a series is cut for its confidence interval: longer than any burst.
const PARTS: usize = 40;

/// Student's t of 39 degrees of freedom that 0.5 % exceed.
const T_99: f64 = 2.708;

/// The share of `true`, and half of its 99 % confidence interval. Neighbours may depend on each other: the error is that of the
/// shares of parts of the series.
pub(super) fn share(series: &[bool]) -> (f64, f64) {
    let share = |part: &[bool]| part.iter().filter(|it| **it).count() as f64 / part.len() as f64;
    let parts: Vec<f64> = series.chunks_exact((series.len() / PARTS).max(1)).map(share).collect();
    (share(series), T_99 * deviation(&parts) / (parts.len() as f64).sqrt())
}

/// How many runs of `true` have which length, from 1.
pub(super) fn run_lengths(series: &[bool]) -> Vec<u64> {
    let mut counts = Vec::new();
    for run in series.split(|it| !it).filter(|run| !run.is_empty()) {
        if counts.len() < run.len() {
            counts.resize(run.len(), 0);
        }
        counts[run.len() - 1] += 1;
    }
    counts
}

/// Too few for the statistic to have its distribution.
const EXPECTED_MIN: f64 = 5.0;

/// Chi-squared of the hypothesis that two histograms are of the same distribution, its degrees of freedom, and the value that
/// it exceeds once in a hundred times. Neighbouring classes are put together where they are small. None: there is but one.
pub(super) fn chi_squared(a: &[u64], b: &[u64]) -> Option<(f64, usize, f64)> {
    let total = |counts: &[u64]| counts.iter().sum::<u64>() as f64;
    let (all_a, all_b) = (total(a), total(b));
    let least = all_a.min(all_b) / (all_a + all_b);
    let mut classes: Vec<[f64; 2]> = Vec::new();
    let mut open = [0.0; 2];
    for i in 0..a.len().max(b.len()) {
        for (sum, counts) in open.iter_mut().zip([a, b]) {
            *sum += counts.get(i).copied().unwrap_or(0) as f64;
        }
        if (open[0] + open[1]) * least >= EXPECTED_MIN {
            classes.push(std::mem::take(&mut open));
        }
    }
    let last = classes.last_mut()?;
    last[0] += open[0];
    last[1] += open[1];
    let freedom = classes.len() - 1;
    if freedom == 0 {
        return None;
    }
    let (up, down) = ((all_b / all_a).sqrt(), (all_a / all_b).sqrt());
    let chi = classes.iter().map(|[a, b]| (up * a - down * b).powi(2) / (a + b)).sum();
    // Wilson and Hilferty, 1931; 2.326 is the normal distribution's 99 % quantile.
    let part = 2.0 / (9.0 * freedom as f64);
    let limit = freedom as f64 * (1.0 - part + 2.326 * part.sqrt()).powi(3);
    Some((chi, freedom, limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_samples() {
        let samples = sorted(vec![3.0, 1.0, 2.0, 4.0, 5.0]);
        assert_eq!(
            (quantile(&samples, 0.5), quantile(&samples, 1.0), quantile(&samples, 0.1)),
            (3.0, 5.0, 1.4)
        );
        assert!(quantile(&[], 0.5).is_nan());
        assert!((deviation(&samples) - 2.5f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn distances_of_known_samples() {
        let a = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(ks_distance(&a, &a), 0.0);
        assert_eq!(ks_distance(&a, &[5.0, 6.0]), 1.0);
        assert_eq!(ks_distance(&a, &[3.0, 4.0, 5.0, 6.0]), 0.5);
        assert!((ks_limit(200, 200) - 0.1628).abs() < 1e-9);
    }

    #[test]
    fn runs_and_shares() {
        let series: Vec<bool> = "..x.xx..xxx.x".chars().map(|c| c == 'x').collect();
        assert_eq!(run_lengths(&series), [2, 1, 1]);
        let every_fourth: Vec<bool> = (0..4000).map(|i| i % 4 == 0).collect();
        assert_eq!(share(&every_fourth), (0.25, 0.0));
    }

    #[test]
    fn histograms_of_one_distribution_are_told_from_others() {
        let (chi, freedom, limit) =
            chi_squared(&[700, 200, 60, 20, 3, 1], &[1400, 400, 120, 40, 6, 2]).unwrap();
        assert!(chi < 0.1 && freedom == 3, "{chi} {freedom}");
        // The table's value is 11.345.
        assert!((limit - 11.345).abs() < 0.1, "{limit}");
        let (chi, _, limit) = chi_squared(&[700, 200, 60, 20], &[500, 300, 120, 60]).unwrap();
        assert!(chi > limit);
        assert!(chi_squared(&[100], &[90]).is_none() && chi_squared(&[], &[]).is_none());
    }
}
