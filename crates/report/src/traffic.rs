//! What passed a link over time.

/// One direction at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Delivered since the link came up.
    pub delivered_bytes: u64,
    /// Packets lost or dropped since then.
    pub dropped: u64,
    /// Waiting now.
    pub queue_bytes: u64,
}

/// A link's traffic, sampled.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// The link's name.
    pub name: String,
    /// What its directions are called.
    pub ways: [String; 2],
    /// Seconds since the first, and both directions.
    samples: Vec<(f64, [Sample; 2])>,
    /// Of so many samples one is kept.
    every: u64,
    seen: u64,
}

/// A day in samples of half a minute, and far more than a plot has points.
const SAMPLES_MAX: usize = 3000;

impl Traffic {
    /// Nothing yet.
    #[must_use]
    pub fn new(name: &str, ways: [String; 2]) -> Self {
        Self { name: name.to_owned(), ways, samples: Vec::new(), every: 1, seen: 0 }
    }

    /// Adds what is at `seconds`, not before the last. When there are too many every second one is forgotten, and only
    /// every second one of the next is kept.
    pub fn add(&mut self, seconds: f64, both: [Sample; 2]) {
        self.seen += 1;
        if !(self.seen - 1).is_multiple_of(self.every) {
            return;
        }
        self.samples.push((seconds, both));
        if self.samples.len() >= SAMPLES_MAX {
            let mut number = 0;
            self.samples.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.every *= 2;
        }
    }

    /// From the first sample to the last.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.samples.last().map_or(0.0, |last| last.0 - self.samples[0].0)
    }

    /// Points of a value that only grows, as its growth a second.
    #[must_use]
    pub fn rate(&self, way: usize, value: impl Fn(&Sample) -> f64) -> Vec<(f64, f64)> {
        let Some(first) = self.samples.first() else { return Vec::new() };
        let pairs = self.samples.windows(2).filter(|pair| pair[1].0 > pair[0].0);
        pairs
            .map(|pair| {
                let growth = value(&pair[1].1[way]) - value(&pair[0].1[way]);
                (pair[1].0 - first.0, growth / (pair[1].0 - pair[0].0))
            })
            .collect()
    }

    /// Points of a value as it is.
    #[must_use]
    pub fn value(&self, way: usize, value: impl Fn(&Sample) -> f64) -> Vec<(f64, f64)> {
        let Some(first) = self.samples.first() else { return Vec::new() };
        self.samples.iter().map(|(at, both)| (at - first.0, value(&both[way]))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_becomes_a_rate_however_long_it_lasts() {
        let mut traffic = Traffic::new("l", [String::new(), String::new()]);
        for i in 0..20_000u64 {
            let sample = Sample { delivered_bytes: i * 125, ..Sample::default() };
            traffic.add(5.0 + i as f64, [sample, Sample::default()]);
        }
        assert!(traffic.samples.len() < SAMPLES_MAX);
        let rate = traffic.rate(0, |sample| sample.delivered_bytes as f64 * 8.0);
        assert!(rate.iter().all(|(_, bps)| (bps - 1000.0).abs() < 1e-6));
        assert!(rate.len() > SAMPLES_MAX / 3 && traffic.seconds() > 19_900.0);
        assert!(traffic.value(1, |sample| sample.queue_bytes as f64).iter().all(|(_, waits)| *waits == 0.0));
    }
}
