//! A link as its user describes it: each setting optional, each way of its own, the queue in bytes or in BDPs.
//!
//! [`LinkSpec::resolve`] turns it into the numbers the model works with; [`LinkSpec::merge`] lays a change over it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limits::{ETHERNET_OVERHEAD_BYTES, MTU};
use crate::link::{LinkConfig, LinkPair};
use crate::loss::Probability;

/// A setting for each way: `[near to far, far to near]`.
pub type EachWay<T> = [Option<T>; 2];

/// How much may wait for the wire.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueSpec {
    /// So many bytes, Ethernet's overhead included.
    Bytes(u64),
    /// A multiple of rate x round-trip time.
    Bdp(f64),
}

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinkSpec {
    /// One-way delay; without it 0.
    pub delay: EachWay<Duration>,
    /// Bits per second; without it as fast as the machine.
    pub rate_bps: EachWay<u64>,
    /// Without it 1 BDP, where there is a rate.
    pub queue: EachWay<QueueSpec>,
    /// Probability of loss of a segment.
    pub loss: EachWay<Probability>,
    /// Probability of a flipped bit in a segment.
    pub corrupt: EachWay<Probability>,
}

/// A link that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Rate 0 would hold every packet for ever.
    #[error("a rate of 0 carries nothing; use `--loss 100%` for a dead link")]
    ZeroRate,
    /// More than the model's clock can hold.
    #[error("a delay of {0:?} is longer than the hour the emulator allows")]
    LongDelay(Duration),
    /// A queue in BDPs where the BDP is not defined.
    #[error("a queue in BDPs needs `--rate`")]
    BdpWithoutRate,
}

/// The smallest queue a BDP is rounded up to: 64 full packets, so that short links pass the bursts TCP sends.
const QUEUE_BYTES_MIN: u64 = 64 * (MTU + ETHERNET_OVERHEAD_BYTES) as u64;

const DELAY_MAX: Duration = Duration::from_secs(3600);

impl LinkSpec {
    /// Lays `change` over this: what it names replaces, the rest stays.
    #[must_use]
    pub fn merge(&self, change: &Self) -> Self {
        fn over<T: Copy>(old: &EachWay<T>, new: &EachWay<T>) -> EachWay<T> {
            [new[0].or(old[0]), new[1].or(old[1])]
        }
        Self {
            delay: over(&self.delay, &change.delay),
            rate_bps: over(&self.rate_bps, &change.rate_bps),
            queue: over(&self.queue, &change.queue),
            loss: over(&self.loss, &change.loss),
            corrupt: over(&self.corrupt, &change.corrupt),
        }
    }

    /// The numbers.
    ///
    /// # Errors
    /// [`SpecError`].
    pub fn resolve(&self) -> Result<LinkPair, SpecError> {
        let delay = self.delay.map(Option::unwrap_or_default);
        if let Some(long) = delay.into_iter().find(|d| *d > DELAY_MAX) {
            return Err(SpecError::LongDelay(long));
        }
        let rtt = delay[0] + delay[1];
        let way = |i: usize| {
            let rate_bps = self.rate_bps[i];
            if rate_bps == Some(0) {
                return Err(SpecError::ZeroRate);
            }
            let bdp = rate_bps.map(|rate| rate as f64 * rtt.as_secs_f64() / 8.0);
            let queue_bytes = match (self.queue[i], bdp) {
                (Some(QueueSpec::Bytes(bytes)), _) => Some(bytes),
                (Some(QueueSpec::Bdp(_)), None) => return Err(SpecError::BdpWithoutRate),
                (Some(QueueSpec::Bdp(times)), Some(bdp)) => Some(((bdp * times) as u64).max(QUEUE_BYTES_MIN)),
                (None, Some(bdp)) => Some((bdp as u64).max(QUEUE_BYTES_MIN)),
                (None, None) => None,
            };
            Ok(LinkConfig {
                delay: delay[i],
                rate_bps,
                queue_bytes,
                loss: self.loss[i].unwrap_or_default(),
                corrupt: self.corrupt[i].unwrap_or_default(),
            })
        };
        Ok(LinkPair { forward: way(0)?, backward: way(1)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS100: Duration = Duration::from_millis(100);

    #[test]
    fn the_queue_defaults_to_one_bdp() {
        let spec =
            LinkSpec { delay: [Some(MS100); 2], rate_bps: [Some(1_000_000_000); 2], ..LinkSpec::default() };
        assert_eq!(spec.resolve().unwrap().forward.queue_bytes, Some(25_000_000));
        let half = LinkSpec { queue: [Some(QueueSpec::Bdp(0.5)), None], ..LinkSpec::default() };
        let merged = spec.merge(&half).resolve().unwrap();
        assert_eq!(merged.forward.queue_bytes, Some(12_500_000));
        assert_eq!(merged.backward.queue_bytes, Some(25_000_000));
        let short = LinkSpec { delay: [None; 2], ..spec };
        assert_eq!(short.resolve().unwrap().forward.queue_bytes, Some(QUEUE_BYTES_MIN));
    }

    #[test]
    fn impossible_links_are_refused() {
        let spec = |rate, queue| LinkSpec { rate_bps: [rate; 2], queue: [queue; 2], ..LinkSpec::default() };
        assert_eq!(spec(Some(0), None).resolve(), Err(SpecError::ZeroRate));
        assert_eq!(spec(None, Some(QueueSpec::Bdp(1.0))).resolve(), Err(SpecError::BdpWithoutRate));
        let long = LinkSpec { delay: [Some(Duration::from_secs(3601)), None], ..LinkSpec::default() };
        assert!(matches!(long.resolve(), Err(SpecError::LongDelay(_))));
    }
}
