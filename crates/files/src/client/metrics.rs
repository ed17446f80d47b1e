//! How long the server takes to answer, by operation.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use super::lock;
use crate::message::OperationStatistics;

/// Of all operations of a session.
#[derive(Debug, Default)]
pub(super) struct Metrics(Mutex<BTreeMap<&'static str, Times>>);

/// Counts by time: in each bucket what took less than its bound and not less than that of the one before.
#[derive(Clone, Debug)]
struct Times {
    count: u64,
    longest: Duration,
    buckets: [u64; BUCKETS],
}

/// Up to 2^32 us, more than an hour.
const BUCKETS: usize = 128;

impl Default for Times {
    fn default() -> Self {
        Self { count: 0, longest: Duration::ZERO, buckets: [0; BUCKETS] }
    }
}

/// The bound of a bucket, in microseconds: each is 2^(1/4) times that of the one before, so that what is told is at most
/// 19 % too long.
fn bound_us(bucket: usize) -> f64 {
    2.0_f64.powf((bucket + 1) as f64 / 4.0)
}

impl Times {
    fn add(&mut self, time: Duration) {
        let us = time.as_secs_f64() * 1e6;
        let bucket = (us.max(1.0).log2() * 4.0) as usize;
        self.buckets[bucket.min(BUCKETS - 1)] += 1;
        self.count += 1;
        self.longest = self.longest.max(time);
    }

    /// So much of all took at most this long, in microseconds.
    fn quantile_us(&self, share: f64) -> u64 {
        let wanted = (self.count as f64 * share).ceil() as u64;
        let mut seen = 0;
        let found = self.buckets.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        found.map_or(0, |bucket| bound_us(bucket) as u64).min(self.longest.as_micros() as u64)
    }
}

impl Metrics {
    /// An operation has been answered after this time.
    pub(super) fn add(&self, operation: &'static str, time: Duration) {
        lock(&self.0).entry(operation).or_default().add(time);
    }

    pub(super) fn statistics(&self) -> Vec<OperationStatistics> {
        let of = |(name, times): (&&str, &Times)| OperationStatistics {
            name: (*name).to_owned(),
            count: times.count,
            median_us: times.quantile_us(0.5),
            p99_us: times.quantile_us(0.99),
            longest_us: times.longest.as_micros() as u64,
        };
        lock(&self.0).iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_near_and_not_below() {
        let metrics = Metrics::default();
        for ms in 1..=1000 {
            metrics.add("Read", Duration::from_millis(ms));
        }
        metrics.add("Write", Duration::from_nanos(3));
        let [read, write] = &metrics.statistics()[..] else { panic!("two operations") };
        assert_eq!((read.name.as_str(), read.count, read.longest_us), ("Read", 1000, 1_000_000));
        assert!((500_000..=595_000).contains(&read.median_us), "{}", read.median_us);
        assert!((990_000..=1_000_000).contains(&read.p99_us), "{}", read.p99_us);
        assert_eq!((write.count, write.median_us), (1, 0));
    }
}
