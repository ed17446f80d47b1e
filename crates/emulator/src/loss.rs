//! Which packets a wire loses: independently, or in bursts, by chains whose steps are packets of a flow.
//!
//! Every flow has a chain of its own, and every packet of it is a step, whatever else becomes of the packet: what is lost
//! depends on the seed and on the packet's number in its flow, and not on timing or on other flows.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::dice::{Dice, Probability, Purpose};

/// How packets are lost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum LossModel {
    /// Each with this probability, independently.
    Random(Probability),
    /// Two states (Gilbert 1960, Elliott 1963). Bursts last 1 / `recover` packets on average.
    GilbertElliott {
        /// From the good to the bad state, a packet.
        fail: Probability,
        /// From the bad to the good state, a packet.
        recover: Probability,
        /// Loss in the bad state.
        bad: Probability,
        /// Loss in the good state.
        good: Probability,
    },
    /// Four states: gaps in which single packets are lost, and bursts in which single ones get through (Salsano, Ludovici,
    /// Ordine, "Definition of a general and intuitive loss model for packet networks and its implementation in the Netem
    /// module in the Linux kernel", 2009). Their numbers are those of netem's `loss state`.
    Markov {
        /// From a gap to a burst.
        p13: Probability,
        /// From a lost packet of a burst to a gap.
        p31: Probability,
        /// From a lost packet of a burst to one that gets through.
        p32: Probability,
        /// And back.
        p23: Probability,
        /// A single loss in a gap.
        p14: Probability,
    },
    /// Now and then so many packets of a flow in a row.
    Burst {
        /// That one begins, a packet that is not in one.
        begin: Probability,
        /// Packets lost in each.
        length: NonZeroU32,
    },
}

impl Default for LossModel {
    fn default() -> Self {
        Self::Random(Probability::ZERO)
    }
}

impl From<Probability> for LossModel {
    fn from(p: Probability) -> Self {
        Self::Random(p)
    }
}

/// Where a flow's chain is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossState {
    /// All is well: state 1 of [`LossModel::Markov`].
    #[default]
    Good,
    /// A packet that gets through in a burst: state 2.
    Spared,
    /// In a burst, with so many packets of it to come where that is known: state 3.
    Bad(u32),
    /// A single loss: state 4.
    Single,
}

impl LossModel {
    /// Whether any packet is ever lost.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        match self {
            Self::Random(p) => p.is_possible(),
            Self::GilbertElliott { fail, bad, good, .. } => {
                good.is_possible() || (fail.is_possible() && bad.is_possible())
            }
            Self::Markov { p13, p14, .. } => p13.is_possible() || p14.is_possible(),
            Self::Burst { begin, .. } => begin.is_possible(),
        }
    }

    /// Whether all are.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        matches!(self, Self::Random(p) if p.is_certain())
    }

    /// The share of packets lost in the long run.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        match *self {
            Self::Random(p) => p.get(),
            Self::GilbertElliott { fail, recover, bad, good } => {
                let in_bad = share(fail.get(), fail.get() + recover.get());
                in_bad * bad.get() + (1.0 - in_bad) * good.get()
            }
            Self::Markov { p13, p31, p32, p23, p14 } => {
                let [p13, p31, p32, p23, p14] = [p13, p31, p32, p23, p14].map(Probability::get);
                if p13 > 0.0 && p32 > 0.0 && p23 == 0.0 {
                    return 0.0; // sooner or later all get through
                }
                // Balance across each cut; where no burst begins or none ends, its states are all or nothing.
                let gap = if p13 > 0.0 { p31 } else { 1.0 };
                let (bad, single) = (p13, p14 * gap);
                let spared = share(bad * p32, p23);
                share(bad + single, gap + spared + bad + single)
            }
            Self::Burst { begin, length } => {
                let lost = begin.get() * f64::from(length.get());
                share(lost, lost + 1.0 - begin.get())
            }
        }
    }

    /// The next packet's fate, and the chain's step to it.
    pub fn loses(&self, state: &mut LossState, dice: Dice, flow: u64, packet: u64) -> bool {
        let happens = |p: Probability| dice.happens(p, Purpose::LossState, flow, packet);
        match *self {
            Self::Random(p) => dice.happens(p, Purpose::Loss, flow, packet),
            Self::GilbertElliott { fail, recover, bad, good } => {
                let was_bad = matches!(state, LossState::Bad(_));
                let is_bad = was_bad ^ happens(if was_bad { recover } else { fail });
                *state = if is_bad { LossState::Bad(0) } else { LossState::Good };
                dice.happens(if is_bad { bad } else { good }, Purpose::Loss, flow, packet)
            }
            Self::Markov { p13, p31, p32, p23, p14 } => {
                let roll = dice.fraction(Purpose::LossState, flow, packet);
                // The first with its probability, else the second with its own, else the third.
                let one_of =
                    |first: (Probability, LossState), second: (Probability, LossState), third| match roll {
                        roll if roll < first.0.get() => first.1,
                        roll if roll < first.0.get() + second.0.get() => second.1,
                        _ => third,
                    };
                let never = (Probability::ZERO, LossState::Good);
                *state = match *state {
                    LossState::Good => {
                        one_of((p14, LossState::Single), (p13, LossState::Bad(0)), LossState::Good)
                    }
                    LossState::Spared => one_of((p23, LossState::Bad(0)), never, LossState::Spared),
                    LossState::Bad(_) => {
                        one_of((p32, LossState::Spared), (p31, LossState::Good), LossState::Bad(0))
                    }
                    LossState::Single => LossState::Good,
                };
                matches!(state, LossState::Bad(_) | LossState::Single)
            }
            Self::Burst { begin, length } => {
                *state = match *state {
                    LossState::Bad(left) if left > 0 => LossState::Bad(left - 1),
                    _ if happens(begin) => LossState::Bad(length.get() - 1),
                    _ => LossState::Good,
                };
                *state != LossState::Good
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn p(p: f64) -> Probability {
        Probability::try_from(p).unwrap()
    }

    /// The fates of the first packets of a flow: true is lost.
    fn fates(model: LossModel, seed: u64, packets: u64) -> Vec<bool> {
        let (dice, mut state) = (Dice::new(seed, 0), LossState::default());
        (0..packets).map(|packet| model.loses(&mut state, dice, 1, packet)).collect()
    }

    /// Lengths of the runs of lost packets.
    fn bursts(fates: &[bool]) -> Vec<usize> {
        fates.split(|lost| !lost).map(<[bool]>::len).filter(|length| *length > 0).collect()
    }

    #[test]
    fn bursts_of_gilbert_elliott_last_as_long_as_they_should() {
        let recover = 0.25;
        let model =
            LossModel::GilbertElliott { fail: p(0.01), recover: p(recover), bad: p(1.0), good: p(0.0) };
        let bursts = bursts(&fates(model, 3, 2_000_000));
        // Geometric: P(length > k) = (1 - r)^k. Chi-squared over lengths 1..15 and the rest, 15 degrees of freedom.
        let n = bursts.len() as f64;
        let mut chi = 0.0;
        for k in 1..=16usize {
            let (expected, seen) = match k {
                16 => ((1.0 - recover).powi(15), bursts.iter().filter(|l| **l >= 16).count()),
                k => {
                    (recover * (1.0 - recover).powi(k as i32 - 1), bursts.iter().filter(|l| **l == k).count())
                }
            };
            chi += (seen as f64 - n * expected).powi(2) / (n * expected);
        }
        assert!(n > 15_000.0 && chi < 30.58, "chi-squared {chi} of {n} bursts: beyond the 99 % quantile");
    }

    #[test]
    fn a_burst_has_its_length() {
        let model = LossModel::Burst { begin: p(0.001), length: NonZeroU32::new(12).unwrap() };
        let bursts = bursts(&fates(model, 5, 1_000_000));
        // Two may follow each other.
        assert!(bursts.len() > 900 && bursts.iter().all(|length| length % 12 == 0), "{bursts:?}");
    }

    #[test]
    fn single_losses_and_spared_packets() {
        let model = LossModel::Markov { p13: p(0.0), p31: p(0.5), p32: p(0.3), p23: p(0.5), p14: p(0.05) };
        assert!(bursts(&fates(model, 2, 100_000)).iter().all(|length| *length == 1), "gaps alone");
        let model = LossModel::Markov { p13: p(1.0), p31: p(0.0), p32: p(1.0), p23: p(1.0), p14: p(0.0) };
        assert_eq!(fates(model, 2, 6), [true, false, true, false, true, false], "every other one of a burst");
    }

    fn any_model() -> impl Strategy<Value = LossModel> {
        let small = 0.001f64..0.05;
        let large = 0.1f64..0.9;
        prop_oneof![
            small.clone().prop_map(|a| LossModel::Random(super::tests::p(a))),
            (small.clone(), large.clone(), 0.5f64..1.0, 0.0f64..0.01).prop_map(|(a, b, c, d)| {
                let [fail, recover, bad, good] = [a, b, c, d].map(super::tests::p);
                LossModel::GilbertElliott { fail, recover, bad, good }
            }),
            (small.clone(), 0.1f64..0.5, 0.0f64..0.5, large, small).prop_map(|(a, b, c, d, e)| {
                let [p13, p31, p32, p23, p14] = [a, b, c, d, e].map(super::tests::p);
                LossModel::Markov { p13, p31, p32, p23, p14 }
            }),
            (0.0005f64..0.005, 1u32..30).prop_map(|(a, length)| LossModel::Burst {
                begin: super::tests::p(a),
                length: NonZeroU32::new(length).unwrap(),
            }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn as_many_are_lost_as_the_model_says(model in any_model(), seed in any::<u64>()) {
            let fates = fates(model, seed, 300_000);
            let share = |fates: &[bool]| fates.iter().filter(|lost| **lost).count() as f64 / fates.len() as f64;
            // Fates within a burst depend on each other: the error is taken from parts that are longer than bursts.
            let parts: Vec<f64> = fates.chunks(3000).map(share).collect();
            let mean = share(&fates);
            let variance = parts.iter().map(|part| (part - mean).powi(2)).sum::<f64>() / (parts.len() - 1) as f64;
            let error = (variance / parts.len() as f64).sqrt();
            // Beyond five of them once in a million.
            prop_assert!((mean - model.mean()).abs() < 5.0 * error + 1e-5, "{mean} of {}", model.mean());
        }
    }
}
