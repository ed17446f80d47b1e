//! What `longhaul cp --trace` writes: the state of lanes and buffers over time, as JSON lines.
//!
//! Only what is plotted is read. A last line that is cut short (the writer was killed) is passed over.

use serde::Deserialize;

/// A trace, in the order of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// The samples.
    pub samples: Vec<Sample>,
}

/// The state at a moment. Bytes; counters since the beginning.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// Since the session began.
    pub seconds: f64,
    /// Payload of files that has arrived.
    pub done_bytes: u64,
    /// Of this end's lanes.
    pub sent_bytes: u64,
    /// Of this end's lanes.
    pub received_bytes: u64,
    /// Taken by a lane and not stored at the far end yet.
    pub under_way_bytes: u64,
    /// Of this host's page cache, not on disk yet.
    pub dirty_bytes: u64,
    /// Of this host's sockets: received and not read.
    pub socket_bytes: u64,
    /// One for each lane.
    pub lanes: Vec<Lane>,
    /// The other host's buffers, some samples old.
    pub far: Option<Far>,
}

/// A lane at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Lane {
    /// Received and not taken by the copy yet.
    pub inbox_bytes: u64,
}

/// The other host at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Far {
    /// Of its sockets: received and not read.
    pub socket_bytes: u64,
    /// Received and not taken by the copy yet.
    pub inbox_bytes: u64,
    /// Of its page cache, not on disk yet.
    pub dirty_bytes: u64,
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A line is not a sample.
    #[error("line {line} of the trace is not a sample: {source}")]
    Line {
        /// From 1.
        line: usize,
        /// The parser's word.
        source: serde_json::Error,
    },
    /// Nothing to show.
    #[error("the trace has fewer than two samples")]
    Short,
}

/// The part of a copy that its steady rate is taken from, as shares of its bytes: after the rise, before the last
/// connections run dry.
pub const STEADY_FROM: f64 = 0.30;
/// The end of that part.
pub const STEADY_TO: f64 = 0.95;

/// On the line through two points `(x, y)`, `y` at `x`.
fn between(one: (f64, f64), other: (f64, f64), x: f64) -> f64 {
    let width = other.0 - one.0;
    if width > 0.0 { one.1 + (other.1 - one.1) * (x - one.0) / width } else { other.1 }
}

impl Trace {
    /// Reads a trace.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let mut samples = Vec::new();
        for (number, line) in text.split_inclusive('\n').enumerate() {
            match serde_json::from_str(line) {
                Ok(sample) => samples.push(sample),
                Err(_) if !line.ends_with('\n') => {} // cut short
                Err(source) => return Err(TraceError::Line { line: number + 1, source }),
            }
        }
        if samples.len() < 2 { Err(TraceError::Short) } else { Ok(Self { samples }) }
    }

    /// How long it lasted.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.samples.last().map_or(0.0, |sample| sample.seconds)
    }

    /// Mean payload rate of the middle of a copy of `whole` bytes, in bit/s: from [`STEADY_FROM`] to [`STEADY_TO`] of
    /// them. None when it did not get that far.
    #[must_use]
    pub fn steady_bps(&self, whole: u64) -> Option<f64> {
        let (from, to) = (whole as f64 * STEADY_FROM, whole as f64 * STEADY_TO);
        let seconds = self.seconds_at(to)? - self.seconds_at(from)?;
        (seconds > 0.0).then(|| (to - from) * 8.0 / seconds)
    }

    /// The end of the first second in which a payload rate of `bps` was reached, since the session began.
    #[must_use]
    pub fn seconds_until(&self, bps: f64) -> Option<f64> {
        const WINDOW_SECONDS: f64 = 1.0;
        let in_window = |end: &Sample| end.done_bytes as f64 - self.done_at(end.seconds - WINDOW_SECONDS);
        let reached = |sample: &&Sample| in_window(sample) * 8.0 / WINDOW_SECONDS >= bps;
        self.samples.iter().find(reached).map(|sample| sample.seconds)
    }

    /// When so many bytes had arrived; between samples the rate is taken as even.
    fn seconds_at(&self, bytes: f64) -> Option<f64> {
        let mut before = (0.0, 0.0);
        for sample in &self.samples {
            let now = (sample.seconds, sample.done_bytes as f64);
            if now.1 >= bytes {
                return Some(between((before.1, before.0), (now.1, now.0), bytes));
            }
            before = now;
        }
        None
    }

    /// Bytes that had arrived at a moment; none before the session began.
    fn done_at(&self, seconds: f64) -> f64 {
        let mut before = (0.0, 0.0);
        for sample in &self.samples {
            let now = (sample.seconds, sample.done_bytes as f64);
            if now.0 >= seconds {
                return if seconds <= 0.0 { 0.0 } else { between(before, now, seconds) };
            }
            before = now;
        }
        before.1
    }

    /// Growth of a counter in Mbit/s over time, from the beginning of the session, each point over `window` seconds or
    /// more.
    #[must_use]
    pub fn rate(&self, window: f64, counter: impl Fn(&Sample) -> u64) -> Vec<(f64, f64)> {
        let mut points = Vec::new();
        let begin = Sample::default();
        let mut from = &begin;
        for sample in &self.samples {
            let seconds = sample.seconds - from.seconds;
            if seconds >= window {
                let bytes = counter(sample).saturating_sub(counter(from));
                points.push((f64::midpoint(from.seconds, sample.seconds), bytes as f64 * 8e-6 / seconds));
                from = sample;
            }
        }
        points
    }

    /// A value over time.
    #[must_use]
    pub fn value(&self, of: impl Fn(&Sample) -> f64) -> Vec<(f64, f64)> {
        self.samples.iter().map(|sample| (sample.seconds, of(sample))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_trace() {
        let text = r#"{"seconds":0.0,"done_bytes":0,"lanes":[],"far":null,"new_field":{"a":1}}
{"seconds":0.5,"done_bytes":62500000,"lanes":[{"id":1,"inbox_bytes":7}],"far":{"dirty_bytes":9}}
{"seconds":1.0,"done_by"#;
        let trace = Trace::parse(text).unwrap();
        assert_eq!(trace.samples.len(), 2);
        assert_eq!(trace.samples[1].lanes, [Lane { inbox_bytes: 7 }]);
        assert_eq!(trace.samples[1].far.map(|far| far.dirty_bytes), Some(9));
        assert_eq!(trace.rate(0.4, |s| s.done_bytes), [(0.25, 1000.0)]);
        assert_eq!(trace.seconds(), 0.5);
    }

    #[test]
    fn rates_are_taken_over_the_window() {
        let samples = (0..=10u32)
            .map(|i| Sample {
                seconds: f64::from(i) / 8.0,
                done_bytes: u64::from(i) * 1_000_000,
                ..Sample::default()
            })
            .collect();
        let trace = Trace { samples };
        assert_eq!(trace.rate(0.5, |s| s.done_bytes), [(0.25, 64.0), (0.75, 64.0)]);
        let late =
            Trace { samples: vec![Sample { seconds: 2.0, done_bytes: 1_000_000, ..Sample::default() }] };
        assert_eq!(
            late.rate(0.5, |s| s.done_bytes),
            [(1.0, 4.0)],
            "the session began before the first sample"
        );
        assert!(Trace::default().rate(0.5, |s| s.done_bytes).is_empty());
    }

    /// Samples every 100 ms of a copy whose rate in bytes a second is `rate` at each moment.
    fn copy(whole: u64, rate: impl Fn(f64) -> f64) -> Trace {
        let (mut samples, mut done) = (Vec::new(), 0.0);
        for tick in 1.. {
            let seconds = f64::from(tick) / 10.0;
            done = (done + rate(seconds) / 10.0).min(whole as f64);
            samples.push(Sample { seconds, done_bytes: done as u64, ..Sample::default() });
            if done >= whole as f64 {
                return Trace { samples };
            }
        }
        unreachable!("every rate here is above 0 in the end")
    }

    fn close(found: Option<f64>, expected: f64) -> bool {
        found.is_some_and(|found| (found - expected).abs() < expected * 1e-3)
    }

    #[test]
    fn the_steady_rate_knows_neither_the_rise_nor_the_end() {
        // 2 s of nothing, then 100 MB/s, and the last 4 % at a tenth of it.
        let trace = copy(1_000_000_000, |t| {
            if t <= 2.0 {
                0.0
            } else if t <= 11.6 {
                100e6
            } else {
                10e6
            }
        });
        assert!(close(trace.steady_bps(1_000_000_000), 800e6), "{:?}", trace.steady_bps(1_000_000_000));
        assert_eq!(trace.steady_bps(2_000_000_000), None, "it did not get that far");
        let one_rate = copy(1_000_000_000, |_| 50e6);
        assert!(close(one_rate.steady_bps(1_000_000_000), 400e6));
        assert_eq!(Trace::default().steady_bps(1), None);
        let at_once = Trace { samples: vec![Sample { seconds: 1.0, ..Sample::default() }; 2] };
        assert_eq!(at_once.steady_bps(0), None, "nothing has no rate");
    }

    #[test]
    fn a_rate_is_reached_at_the_end_of_its_first_second() {
        let trace = copy(1_000_000_000, |t| if t <= 2.0 { 0.0 } else { 100e6 });
        assert!(close(trace.seconds_until(720e6), 2.9), "{:?}", trace.seconds_until(720e6));
        assert!(close(trace.seconds_until(80e6), 2.1));
        assert_eq!(trace.seconds_until(900e6), None, "it never was that fast");
        // What arrived before the first sample arrived within the second before it.
        let late =
            Trace { samples: vec![Sample { seconds: 0.5, done_bytes: 1_000_000, ..Sample::default() }] };
        assert_eq!(late.seconds_until(8e6), Some(0.5));
    }

    #[test]
    fn what_is_not_a_trace_is_refused_with_the_line() {
        let error = Trace::parse("{\"seconds\":1}\nhello\n").unwrap_err();
        assert!(error.to_string().starts_with("line 2"), "{error}");
        assert!(matches!(Trace::parse("{\"seconds\":1}\n"), Err(TraceError::Short)));
    }
}
