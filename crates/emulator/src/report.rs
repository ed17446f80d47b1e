//! What a run of the emulator did, and whether its results can be trusted.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::link::{Counters, LinkConfig};
use crate::rules::Rule;
use crate::trace::Summary;

/// How late packets were delivered, in microseconds after the time the model named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lateness {
    /// Median.
    pub p50_us: u64,
    /// 99th percentile.
    pub p99_us: u64,
    /// The worst.
    pub max_us: u64,
}

impl Lateness {
    /// Reads the percentiles off a histogram in microseconds.
    #[must_use]
    pub fn of(histogram: &Histogram<u64>) -> Self {
        Self {
            p50_us: histogram.value_at_quantile(0.5),
            p99_us: histogram.value_at_quantile(0.99),
            max_us: histogram.max(),
        }
    }

    /// Packets in classes of lateness, each twice as wide as the one before; the upper end of each in microseconds.
    #[must_use]
    pub fn classes(histogram: &Histogram<u64>) -> Vec<(u64, u64)> {
        let classes = histogram.iter_log(1, 2.0);
        classes.map(|class| (class.value_iterated_to(), class.count_since_last_iteration())).collect()
    }
}

/// The traffic that fitted a rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleReport {
    /// The rule's name.
    pub name: String,
    /// What it looks for.
    pub rule: Rule,
    /// Settings in force.
    pub config: LinkConfig,
    /// What the model did.
    pub counters: Counters,
    /// Bytes waiting for its wire now.
    pub queue_bytes: u64,
}

/// One direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DirectionReport {
    /// Settings in force, for what fits no rule.
    pub config: LinkConfig,
    /// What changes of them with time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Summary>,
    /// What the model did to all traffic.
    pub counters: Counters,
    /// Bytes waiting for the wire now.
    pub queue_bytes: u64,
    /// Of it, what fitted each rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleReport>,
    /// How late the driver was.
    pub lateness: Lateness,
    /// The same as a histogram: up to so many microseconds late, so many packets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lateness_histogram: Vec<(u64, u64)>,
    /// Packets the emulator itself dropped: memory full, or refused by the device.
    pub own_drops: u64,
    /// Packets of many segments that the link's full queue dropped or took as a whole, where a real one takes a part.
    pub coarse_drops: u64,
    /// Packets that a capture has missed.
    #[serde(default)]
    pub not_captured: u64,
}

/// Both directions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The way through the kernel.
    pub engine: String,
    /// Whether the driver runs with real-time priority.
    pub realtime: bool,
    /// Share of the processors' time, of 1, that this machine's own host gave to others since the link came up; none:
    /// the kernel does not tell.
    pub stolen: Option<f64>,
    /// From `near` to `far`.
    pub forward: DirectionReport,
    /// From `far` to `near`.
    pub backward: DirectionReport,
    /// Why the results should not be trusted; empty: they can be.
    pub doubts: Vec<String>,
}

/// A link among several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// Its name.
    pub name: String,
    /// Its hosts.
    pub between: [String; 2],
    /// What it did; `forward` is from the first host to the second.
    #[serde(flatten)]
    pub report: Report,
}

impl fmt::Display for LinkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Told { report: &self.report, link: &self.name, ways: ways(&self.between) })
    }
}

/// What the two directions between hosts are called.
#[must_use]
pub fn ways([first, second]: &[String; 2]) -> [String; 2] {
    [format!("{first}->{second}"), format!("{second}->{first}")]
}

/// Late by less than this is within the error of a host's own scheduling.
const LATENESS_P99_MAX: Duration = Duration::from_millis(2);

/// With more than this taken away, hosts under test are slower than they are.
const STOLEN_MAX: f64 = 0.01;

/// A stall longer than this, or a quarter of the delay where that is more, changes what TCP does.
const STALL_MAX: Duration = Duration::from_millis(50);

impl Report {
    /// Puts both directions together, which are called `ways`, and judges them.
    #[must_use]
    pub fn new(
        engine: &str,
        ways: &[String; 2],
        realtime: bool,
        stolen: Option<f64>,
        forward: DirectionReport,
        backward: DirectionReport,
    ) -> Self {
        let mut doubts = Vec::new();
        if let Some(share) = stolen.filter(|share| *share > STOLEN_MAX) {
            let percent = share * 100.0;
            doubts.push(format!(
                "{percent:.0} % of the processors' time went to other machines on the same host"
            ));
        }
        for (name, direction) in ways.iter().zip([&forward, &backward]) {
            if direction.own_drops > 0 {
                doubts.push(format!("{name}: the emulator itself dropped {} packets", direction.own_drops));
            }
            if direction.coarse_drops > 0 {
                doubts.push(format!(
                    "{name}: the full queue dropped or took {} big packets whole (`--engine split` cuts them)",
                    direction.coarse_drops
                ));
            }
            if direction.not_captured > 0 {
                doubts.push(format!("{name}: the capture has missed {} packets", direction.not_captured));
            }
            let p99 = Duration::from_micros(direction.lateness.p99_us);
            if p99 > LATENESS_P99_MAX {
                doubts.push(format!("{name}: 1 % of packets were more than {p99:?} late"));
            }
            let worst = Duration::from_micros(direction.lateness.max_us);
            if worst > STALL_MAX.max(direction.config.delay / 4) {
                doubts.push(format!("{name}: it stalled for {worst:?} (the CPUs are too busy)"));
            }
        }
        Self { engine: engine.to_owned(), realtime, stolen, forward, backward, doubts }
    }
}

/// A report, with the names of what it is about.
struct Told<'a> {
    report: &'a Report,
    link: &'a str,
    ways: [String; 2],
}

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { report, link, ways } = self;
        let priority = if report.realtime { "real-time priority" } else { "normal priority" };
        writeln!(f, "{link} emulated by {} at {priority}", report.engine)?;
        for (name, d) in ways.iter().zip([&report.forward, &report.backward]) {
            write!(f, "  {name}  ")?;
            write_counters(f, &d.counters)?;
            // An engine that cannot tell has none.
            if d.lateness != Lateness::default() {
                let Lateness { p50_us, p99_us, max_us } = d.lateness;
                write!(f, "; late by p50 {p50_us} us, p99 {p99_us} us, max {max_us} us")?;
            }
            writeln!(f)?;
            for rule in d.rules.iter().filter(|rule| rule.counters.segments > 0) {
                write!(f, "    rule {}: ", rule.name)?;
                write_counters(f, &rule.counters)?;
                writeln!(f)?;
            }
        }
        if report.doubts.is_empty() {
            write!(f, "  trusted: yes")
        } else {
            write!(f, "  trusted: NO: {}", report.doubts.join("; "))
        }
    }
}

fn write_counters(f: &mut fmt::Formatter<'_>, c: &Counters) -> fmt::Result {
    let share = |n: u64| if c.segments == 0 { 0.0 } else { n as f64 / c.segments as f64 * 100.0 };
    write!(
        f,
        "{} packets, {:.1} MB; lost {} ({:.4} %), dropped by the queue {} ({:.4} %)",
        c.segments,
        c.bytes as f64 / 1e6,
        c.lost,
        share(c.lost),
        c.dropped_queue,
        share(c.dropped_queue),
    )?;
    for (what, count) in [
        ("lost while the link was down", c.lost_outage),
        ("dropped by its management", c.dropped_aqm),
        ("marked", c.marked),
        ("corrupted", c.corrupted),
        ("duplicated", c.duplicated),
        ("sent ahead", c.reordered),
    ] {
        if count > 0 {
            write!(f, ", {what} {count}")?;
        }
    }
    if c.idle_ns > 0 {
        write!(f, ", wire idle between packets {:.1} ms", c.idle_ns as f64 / 1e6)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_lateness_hold_every_packet() {
        let mut histogram = Histogram::new_with_bounds(1, 1 << 20, 2).unwrap();
        for late in [0, 1, 3, 3, 90, 100_000] {
            histogram.record(late).unwrap();
        }
        let classes = Lateness::classes(&histogram);
        assert_eq!(classes.iter().map(|(_, packets)| packets).sum::<u64>(), 6);
        assert!(
            classes.iter().any(|(up_to, packets)| (64..128).contains(up_to) && *packets == 1),
            "{classes:?}"
        );
        assert!(classes.is_sorted());
    }
}
