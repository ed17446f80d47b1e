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

    #[test]
    fn what_is_not_a_trace_is_refused_with_the_line() {
        let error = Trace::parse("{\"seconds\":1}\nhello\n").unwrap_err();
        assert!(error.to_string().starts_with("line 2"), "{error}");
        assert!(matches!(Trace::parse("{\"seconds\":1}\n"), Err(TraceError::Short)));
    }
}
