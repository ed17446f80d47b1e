//! A link as its user describes it: each setting optional, each way of its own, the queue in bytes or in BDPs.
//!
//! [`LinkSpec::resolve`] turns it into the numbers the model works with; [`LinkSpec::merge`] lays a change over it.

use std::num::NonZeroU64;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::aqm::Aqm;
use crate::delay::Jitter;
use crate::dice::Probability;
use crate::limits::{DELAY_MAX, FULL_PACKET_BYTES};
use crate::link::{LinkConfig, LinkPair, Reorder};
use crate::loss::LossModel;
use crate::outage::Outage;
use crate::trace::Trace;

/// A setting for each way: `[near to far, far to near]`.
pub type EachWay<T> = [Option<T>; 2];

/// How much may wait for the wire.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueSpec {
    /// So many bytes, Ethernet's overhead included.
    Bytes(u64),
    /// So many packets.
    Packets(NonZeroU64),
    /// A multiple of rate x round-trip time.
    Bdp(f64),
    /// As if none were asked for.
    Default,
}

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinkSpec {
    /// One-way delay; without it 0.
    pub delay: EachWay<Duration>,
    /// How it varies.
    pub jitter: EachWay<Jitter>,
    /// Bits per second; without it as fast as the machine.
    pub rate_bps: EachWay<u64>,
    /// Without it 1 BDP, where there is a rate.
    pub queue: EachWay<QueueSpec>,
    /// How the queue is managed before it is full.
    pub aqm: EachWay<Aqm>,
    /// Which segments are lost.
    pub loss: EachWay<LossModel>,
    /// Probability of a flipped bit in a segment.
    pub corrupt: EachWay<Probability>,
    /// Probability that a segment arrives twice.
    pub duplicate: EachWay<Probability>,
    /// Segments that overtake others.
    pub reorder: EachWay<Reorder>,
    /// When the link is down.
    pub outage: EachWay<Outage>,
    /// What changes by a timetable.
    pub trace: EachWay<Trace>,
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
    /// Ways out of a state that are taken more often than always.
    #[error("the chances to leave a state add up to more than 100 % (p13 + p14, or p31 + p32)")]
    LossChain,
    /// There is no queue to manage.
    #[error("a managed queue (`--aqm`) needs `--rate`")]
    AqmWithoutRate,
    /// A queue in BDPs where the BDP is not defined.
    #[error("a queue in BDPs needs `--rate`")]
    BdpWithoutRate,
}

/// The smallest queue a BDP is rounded up to: 64 full packets, so that short links pass the bursts TCP sends.
const QUEUE_BYTES_MIN: u64 = 64 * FULL_PACKET_BYTES;

/// Room beyond what random drop lets a queue become, in multiples of its maximum.
const DRD_QUEUE: NonZeroU64 = NonZeroU64::new(2).unwrap();

impl LinkSpec {
    /// The same with all that is not named said to be as it is by default, so that it replaces another link when it is
    /// [merged](Self::merge) into it. A rate cannot be taken away.
    #[must_use]
    pub fn in_full(&self) -> Self {
        let ways = |value: Jitter| [Some(value.clone()), Some(value)];
        Self {
            delay: [Some(Duration::ZERO); 2],
            jitter: ways(Jitter::NONE),
            rate_bps: [None; 2],
            queue: self.rate_bps.map(|rate| rate.map(|_| QueueSpec::Default)),
            aqm: [Some(Aqm::None); 2],
            loss: [Some(LossModel::default()); 2],
            corrupt: [Some(Probability::ZERO); 2],
            duplicate: [Some(Probability::ZERO); 2],
            reorder: [Some(Reorder { probability: Probability::ZERO, gap: NonZeroU64::MIN }); 2],
            outage: [Some(Outage::NEVER); 2],
            trace: [Some(Trace::nothing()), Some(Trace::nothing())],
        }
        .merge(self)
    }

    /// Lays `change` over this: what it names replaces, the rest stays.
    #[must_use]
    pub fn merge(&self, change: &Self) -> Self {
        fn over<T: Clone>(old: &EachWay<T>, new: &EachWay<T>) -> EachWay<T> {
            [0, 1].map(|way| new[way].clone().or_else(|| old[way].clone()))
        }
        Self {
            delay: over(&self.delay, &change.delay),
            jitter: over(&self.jitter, &change.jitter),
            rate_bps: over(&self.rate_bps, &change.rate_bps),
            queue: over(&self.queue, &change.queue),
            aqm: over(&self.aqm, &change.aqm),
            loss: over(&self.loss, &change.loss),
            corrupt: over(&self.corrupt, &change.corrupt),
            duplicate: over(&self.duplicate, &change.duplicate),
            reorder: over(&self.reorder, &change.reorder),
            outage: over(&self.outage, &change.outage),
            trace: over(&self.trace, &change.trace),
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
        let is_too_much = |a: Probability, b: Probability| a.get() + b.get() > 1.0;
        for loss in self.loss.iter().flatten() {
            if let LossModel::Markov { p13, p31, p32, p14, .. } = *loss
                && (is_too_much(p13, p14) || is_too_much(p31, p32))
            {
                return Err(SpecError::LossChain);
            }
        }
        // Of a trace the longest delay that it names.
        let traced = |i: usize| self.trace[i].as_ref().and_then(Trace::delay_max).unwrap_or(delay[i]);
        let rtt = traced(0) + traced(1);
        let way = |i: usize| {
            let rate_bps = self.rate_bps[i];
            let trace = self.trace[i].clone().filter(|trace| !trace.is_nothing());
            let rate = trace.as_ref().and_then(Trace::mean_rate_bps).or(rate_bps);
            if rate_bps == Some(0) {
                return Err(SpecError::ZeroRate);
            }
            let aqm = self.aqm[i].filter(|aqm| *aqm != Aqm::None);
            if aqm.is_some() && rate.is_none() {
                return Err(SpecError::AqmWithoutRate);
            }
            let is_fair = matches!(aqm, Some(Aqm::FqCoDel { .. }));
            // Random drop goes by packets, beyond which a queue in bytes might never come.
            let drop_max = match aqm {
                Some(Aqm::Drd { max, .. }) => Some(max.saturating_mul(DRD_QUEUE)),
                _ => None,
            };
            let bdp = rate.map(|rate| rate as f64 * rtt.as_secs_f64() / 8.0);
            let queue = self.queue[i].filter(|queue| *queue != QueueSpec::Default);
            let queue_bytes = match (queue, bdp) {
                (Some(QueueSpec::Bytes(bytes)), _) => Some(bytes),
                (Some(QueueSpec::Packets(_) | QueueSpec::Default), _) => None,
                (Some(QueueSpec::Bdp(_)), None) => return Err(SpecError::BdpWithoutRate),
                (Some(QueueSpec::Bdp(times)), Some(bdp)) => Some(((bdp * times) as u64).max(QUEUE_BYTES_MIN)),
                // Random drop and fair queues have limits of their own.
                (None, _) if drop_max.is_some() || is_fair => None,
                (None, Some(bdp)) => Some((bdp as u64).max(QUEUE_BYTES_MIN)),
                (None, None) => None,
            };
            Ok(LinkConfig {
                delay: delay[i],
                jitter: self.jitter[i].clone().filter(|jitter| !jitter.spread.is_zero()),
                rate_bps,
                queue_bytes,
                queue_packets: match queue {
                    Some(QueueSpec::Packets(packets)) => Some(packets),
                    None => drop_max,
                    Some(_) => None,
                },
                aqm,
                loss: self.loss[i].unwrap_or_default(),
                corrupt: self.corrupt[i].unwrap_or_default(),
                duplicate: self.duplicate[i].unwrap_or_default(),
                reorder: self.reorder[i].filter(|reorder| reorder.probability.is_possible()),
                outage: self.outage[i].filter(|outage| !outage.lasts.is_zero()),
                trace,
            })
        };
        Ok(LinkPair { forward: way(0)?, backward: way(1)?, rules: Vec::new() })
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
    fn a_link_in_full_replaces_another() {
        let plain =
            LinkSpec { delay: [Some(MS100); 2], rate_bps: [Some(1_000_000); 2], ..LinkSpec::default() };
        let p = Probability::try_from(0.5).unwrap();
        let rough = LinkSpec {
            jitter: [Some(Jitter { spread: MS100, ..Jitter::NONE }), None],
            aqm: [Some(Aqm::Drd { min: 1, max: NonZeroU64::MIN, ecn: false }), None],
            queue: [None, Some(QueueSpec::Bytes(7))],
            loss: [Some(LossModel::Random(p)); 2],
            corrupt: [Some(p); 2],
            duplicate: [Some(p); 2],
            reorder: [Some(Reorder { probability: p, gap: NonZeroU64::MIN }); 2],
            outage: [Some(Outage { lasts: MS100, ..Outage::NEVER }); 2],
            ..plain.clone()
        };
        assert_ne!(rough.merge(&plain).resolve(), plain.resolve());
        assert_eq!(rough.merge(&plain.in_full()).resolve(), plain.resolve());
    }

    #[test]
    fn random_drop_has_a_queue_in_packets() {
        let aqm = Some(Aqm::Drd { min: 100, max: NonZeroU64::new(500).unwrap(), ecn: false });
        let spec = LinkSpec { rate_bps: [Some(1_000_000); 2], aqm: [aqm; 2], ..LinkSpec::default() };
        let found = spec.resolve().unwrap().forward;
        assert_eq!((found.queue_bytes, found.queue_packets), (None, NonZeroU64::new(1000)));
    }

    #[test]
    fn impossible_links_are_refused() {
        let spec = |rate, queue| LinkSpec { rate_bps: [rate; 2], queue: [queue; 2], ..LinkSpec::default() };
        assert_eq!(spec(Some(0), None).resolve(), Err(SpecError::ZeroRate));
        assert_eq!(spec(None, Some(QueueSpec::Bdp(1.0))).resolve(), Err(SpecError::BdpWithoutRate));
        let long = LinkSpec { delay: [Some(Duration::from_secs(3601)), None], ..LinkSpec::default() };
        assert!(matches!(long.resolve(), Err(SpecError::LongDelay(_))));
        let p = |p| Probability::try_from(p).unwrap();
        let chain = LossModel::Markov { p13: p(0.6), p31: p(0.5), p32: p(0.5), p23: p(1.0), p14: p(0.5) };
        let chain = LinkSpec { loss: [None, Some(chain)], ..LinkSpec::default() };
        assert_eq!(chain.resolve(), Err(SpecError::LossChain));
    }
}
