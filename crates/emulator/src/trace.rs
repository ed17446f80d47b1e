//! A link that changes by a timetable: its rate, delay or loss as they were measured, or as somebody wants them.
//!
//! What a step does not name is as the link's own settings say. A packet on the wire when the rate changes goes on at the
//! new one; its delay is that of the moment when it has left the wire, its loss that of the moment when it begins.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::dice::Probability;
use crate::limits::{DELAY_MAX, FULL_PACKET_BYTES, TRACE_RATE_BPS_MIN, TRACE_STEP_MIN, TRACE_STEPS_MAX};
use crate::link::Nanos;

/// What holds from one moment to the next step's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Step {
    /// Since the link came up, or since the trace began anew.
    pub at: Duration,
    /// Bits per second of the wire; 0: what is on it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<u64>,
    /// One way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<Duration>,
    /// Instead of the link's model: each packet, independently.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<Probability>,
}

/// Steps in the order of their times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Steps", into = "Steps")]
pub struct Trace {
    steps: Vec<Step>,
    period: Option<Duration>,
}

/// A trace in short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// How many.
    pub steps: usize,
    /// After which they begin anew.
    pub period: Option<Duration>,
    /// Bits per second in the long run.
    pub mean_rate_bps: Option<u64>,
}

/// A trace as it travels, not yet checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Steps {
    steps: Vec<Step>,
    period: Option<Duration>,
}

impl From<Trace> for Steps {
    fn from(Trace { steps, period }: Trace) -> Self {
        Self { steps, period }
    }
}

impl TryFrom<Steps> for Trace {
    type Error = BadTrace;
    fn try_from(Steps { steps, period }: Steps) -> Result<Self, BadTrace> {
        Self::new(steps, period)
    }
}

/// Steps that make no trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTrace {
    /// Nothing is said.
    #[error("a trace needs at least one step")]
    Empty,
    /// Too much to hold.
    #[error("a trace of more than {TRACE_STEPS_MAX} steps")]
    Long,
    /// Time goes on.
    #[error("the step at {0:?} is not after the one before it")]
    Order(Duration),
    /// Steps too small to tell from each other.
    #[error("a step or a period shorter than {TRACE_STEP_MIN:?}")]
    Short,
    /// The first step says what holds from the beginning.
    #[error("the first step is at {0:?}, not at 0")]
    Begin(Duration),
    /// A period that ends before its last step begins.
    #[error("it begins anew after {0:?}, before its last step")]
    Period(Duration),
    /// A delay beyond all reason.
    #[error("a delay of {0:?} is longer than the hour the emulator allows")]
    LongDelay(Duration),
    /// A packet would wait for ever.
    #[error("it carries less than 1 kbit/s in the long run; use a loss of 100 % for a dead link")]
    Slow,
    /// Some steps have a rate, some leave it to a link that may have none.
    #[error("some steps name a rate and others do not: name it in all of them or in none")]
    SomeRates,
    /// Not a number.
    #[error("line {line}: `{text}` is not a time in milliseconds")]
    NotMilliseconds {
        /// Counted from 1.
        line: usize,
        /// What stands there.
        text: String,
    },
}

/// One chance to send, as mahimahi means it: a full packet. Here with Ethernet's overhead, so that full packets leave at
/// the trace's pace.
const OPPORTUNITY_BITS: u64 = FULL_PACKET_BYTES * 8;

impl Trace {
    /// Checks the steps; with `period` they begin anew after it.
    ///
    /// # Errors
    /// [`BadTrace`].
    pub fn new(steps: Vec<Step>, period: Option<Duration>) -> Result<Self, BadTrace> {
        let (Some(first), Some(last)) = (steps.first(), steps.last()) else { return Err(BadTrace::Empty) };
        if steps.len() > TRACE_STEPS_MAX {
            return Err(BadTrace::Long);
        }
        if !first.at.is_zero() {
            return Err(BadTrace::Begin(first.at));
        }
        if let Some(pair) = steps.windows(2).find(|pair| pair[1].at <= pair[0].at) {
            return Err(BadTrace::Order(pair[1].at));
        }
        if let Some(period) = period.filter(|period| *period <= last.at) {
            return Err(BadTrace::Period(period));
        }
        let lengths = steps.windows(2).map(|pair| pair[1].at - pair[0].at);
        if lengths.chain(period.map(|period| period - last.at)).any(|length| length < TRACE_STEP_MIN) {
            return Err(BadTrace::Short);
        }
        if let Some(long) = steps.iter().filter_map(|step| step.delay).find(|delay| *delay > DELAY_MAX) {
            return Err(BadTrace::LongDelay(long));
        }
        if steps.iter().any(|step| step.rate_bps.is_some() != first.rate_bps.is_some()) {
            return Err(BadTrace::SomeRates);
        }
        let trace = Self { steps, period };
        match trace.mean_rate_bps() {
            Some(mean) if mean < TRACE_RATE_BPS_MIN => Err(BadTrace::Slow),
            _ => Ok(trace),
        }
    }

    /// Reads mahimahi's format: on each line a time in milliseconds at which one full packet can be sent, not
    /// decreasing; the last line's time is the period. What can be sent in a millisecond is spread over it.
    ///
    /// # Errors
    /// [`BadTrace`].
    pub fn from_mahimahi(text: &str) -> Result<Self, BadTrace> {
        let mut steps: Vec<Step> = Vec::new();
        let (mut previous, mut chances) = (0u64, 0u64);
        let mut put = |ms: u64, chances: u64| {
            let rate_bps = Some(chances * OPPORTUNITY_BITS * 1000);
            if steps.last().is_none_or(|last| last.rate_bps != rate_bps) {
                steps.push(Step { at: Duration::from_millis(ms), rate_bps, ..Step::default() });
            }
            steps.len() <= TRACE_STEPS_MAX
        };
        let mut seen = false;
        // A chance at the end of a millisecond is what the millisecond brought: line `t` stands for t - 1 to t.
        for (index, line) in text.lines().enumerate() {
            let number = line.split('#').next().unwrap_or_default().trim();
            if number.is_empty() {
                continue;
            }
            let bad = || BadTrace::NotMilliseconds { line: index + 1, text: number.to_owned() };
            let ms = number.parse::<u64>().map_err(|_| bad())?.max(1);
            // A year: beyond it nobody measures, and sums stay far from their ends.
            if ms > 366 * 86_400_000 {
                return Err(bad());
            }
            if seen && ms < previous {
                return Err(BadTrace::Order(Duration::from_millis(ms)));
            }
            if ms != previous {
                let mut kept = true;
                if chances > 0 {
                    kept &= put(previous - 1, chances);
                }
                if ms - 1 > previous {
                    kept &= put(previous, 0);
                }
                if !kept {
                    return Err(BadTrace::Long);
                }
                (previous, chances) = (ms, 0);
            }
            chances += 1;
            seen = true;
        }
        if !seen {
            return Err(BadTrace::Empty);
        }
        put(previous - 1, chances);
        Self::new(steps, Some(Duration::from_millis(previous)))
    }

    /// One that says nothing.
    #[must_use]
    pub fn nothing() -> Self {
        Self { steps: vec![Step::default()], period: None }
    }

    /// Whether it is.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::nothing()
    }

    /// Whether it sets the delay anywhere.
    #[must_use]
    pub fn has_delay(&self) -> bool {
        self.steps.iter().any(|step| step.delay.is_some())
    }

    /// Bits per second over its period, or of its last step where that holds for ever; none: it sets no rate.
    #[must_use]
    pub fn mean_rate_bps(&self) -> Option<u64> {
        let last = self.steps.last()?;
        let Some(period) = self.period else { return last.rate_bps };
        let ends = self.steps.iter().skip(1).map(|step| step.at).chain([period]);
        let bits = self.steps.iter().zip(ends).map(|(step, end)| {
            step.rate_bps.map(|rate| rate as f64 * (end.saturating_sub(step.at)).as_secs_f64())
        });
        Some((bits.sum::<Option<f64>>()? / period.as_secs_f64()) as u64)
    }

    /// The longest delay that it names.
    #[must_use]
    pub fn delay_max(&self) -> Option<Duration> {
        self.steps.iter().filter_map(|step| step.delay).max()
    }

    /// The shortest.
    #[must_use]
    pub fn delay_min(&self) -> Option<Duration> {
        self.steps.iter().filter_map(|step| step.delay).min()
    }

    /// The highest rate that it names.
    #[must_use]
    pub fn rate_bps_max(&self) -> Option<u64> {
        self.steps.iter().filter_map(|step| step.rate_bps).max()
    }

    /// What a report tells of it.
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary { steps: self.steps.len(), period: self.period, mean_rate_bps: self.mean_rate_bps() }
    }

    /// What holds at `now`, and until when (exclusive).
    #[must_use]
    pub fn at(&self, now: Nanos) -> (Step, Nanos) {
        let (begun, since) = match self.period {
            Some(period) => {
                let period = nanos(period).max(1);
                (now - now % period, now % period)
            }
            None => (0, now),
        };
        let next = self.steps.partition_point(|step| nanos(step.at) <= since);
        let until = match (self.steps.get(next), self.period) {
            (Some(step), _) => begun.saturating_add(nanos(step.at)),
            (None, Some(period)) => begun.saturating_add(nanos(period)),
            (None, None) => Nanos::MAX,
        };
        (self.steps[next.saturating_sub(1)], until)
    }
}

fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn step(ms: u64, rate_bps: Option<u64>) -> Step {
        Step { at: Duration::from_millis(ms), rate_bps, ..Step::default() }
    }

    #[test]
    fn steps_hold_until_the_next_and_begin_anew() {
        let steps = vec![step(0, Some(1_000_000)), step(10, Some(0)), step(15, Some(2_000_000))];
        let once = Trace::new(steps.clone(), None).unwrap();
        let again = Trace::new(steps, Some(Duration::from_millis(20))).unwrap();
        let rate = |trace: &Trace, ms: u64| (trace.at(ms * MS).0.rate_bps.unwrap(), trace.at(ms * MS).1);
        assert_eq!(rate(&once, 9), (1_000_000, 10 * MS));
        assert_eq!(rate(&once, 10), (0, 15 * MS));
        assert_eq!(rate(&once, 500), (2_000_000, Nanos::MAX));
        assert_eq!(rate(&again, 19), (2_000_000, 20 * MS));
        assert_eq!(rate(&again, 29), (1_000_000, 30 * MS));
        assert_eq!(rate(&again, 31), (0, 35 * MS));
        assert_eq!((once.mean_rate_bps(), again.mean_rate_bps()), (Some(2_000_000), Some(1_000_000)));
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        let new = |steps: &[Step]| Trace::new(steps.to_vec(), None).map(drop);
        assert_eq!(new(&[]), Err(BadTrace::Empty));
        assert_eq!(new(&[step(1, None)]), Err(BadTrace::Begin(Duration::from_millis(1))));
        assert_eq!(new(&[step(0, None), step(0, None)]), Err(BadTrace::Order(Duration::ZERO)));
        assert_eq!(new(&[step(0, None), step(5, Some(1))]), Err(BadTrace::SomeRates));
        assert_eq!(new(&[step(0, Some(1 << 20)), step(5, Some(0))]), Err(BadTrace::Slow));
        let late = Trace::new(vec![step(0, None), step(5, None)], Some(Duration::from_millis(5)));
        assert_eq!(late, Err(BadTrace::Period(Duration::from_millis(5))));
        let micro = Duration::from_micros;
        assert_eq!(new(&[step(0, None), Step { at: micro(99), ..Step::default() }]), Err(BadTrace::Short));
        assert_eq!(Trace::new(vec![step(0, None)], Some(micro(50))), Err(BadTrace::Short));
        let unchecked = serde_json::json!({"steps": [], "period": null});
        assert!(serde_json::from_value::<Trace>(unchecked).is_err());
    }

    #[test]
    fn chances_to_send_become_rates() {
        // Two packets in the first millisecond, none in the second and third, one in the fourth, and so on.
        let trace = Trace::from_mahimahi("1\n1\n# a pause\n4\n").unwrap();
        let rates: Vec<u64> = (0..8).map(|ms| trace.at(ms * MS + 5).0.rate_bps.unwrap() / 1000).collect();
        let one = OPPORTUNITY_BITS;
        assert_eq!(rates, [2 * one, 0, 0, one, 2 * one, 0, 0, one]);
        assert_eq!(trace.mean_rate_bps(), Some(OPPORTUNITY_BITS * 3 * 1000 / 4));
        // A silent beginning.
        let late = Trace::from_mahimahi("3\n").unwrap();
        let rates: Vec<u64> = (0..3).map(|ms| late.at(ms * MS).0.rate_bps.unwrap() / 1000).collect();
        assert_eq!(rates, [0, 0, one]);
        assert_eq!(Trace::from_mahimahi("\n# nothing\n"), Err(BadTrace::Empty));
        assert_eq!(Trace::from_mahimahi("5\n4\n"), Err(BadTrace::Order(Duration::from_millis(4))));
        let words = BadTrace::NotMilliseconds { line: 2, text: "soon".into() };
        assert_eq!(Trace::from_mahimahi("5\nsoon\n"), Err(words));
    }
}
