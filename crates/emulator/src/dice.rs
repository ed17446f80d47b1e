//! Seeded decisions, each a pure function of (seed, direction, purpose, flow, packet number).
//!
//! No generator state: the fate of the 17th packet of the third flow does not depend on how the packets of other
//! flows interleave with it, so a run repeats although its timing differs. A flow is numbered by its order of
//! appearance, not by its ports, which the kernel draws anew each time.

use serde::{Deserialize, Serialize};

/// What a decision is about; a part of its key, so that decisions on one packet are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Is the packet lost on the wire?
    Loss = 1,
    /// Is a bit of the packet flipped on the wire?
    Corruption = 2,
    /// Which bit?
    CorruptedBit = 3,
    /// Does the loss model change its state?
    LossState = 4,
    /// Does the packet arrive twice?
    Duplication = 5,
    /// Does it overtake others?
    Reordering = 6,
    /// How much later or earlier does it arrive?
    Jitter = 7,
    /// The same, the second of two rolls.
    JitterAngle = 8,
    /// Is it dropped from the queue at random?
    Drd = 9,
}

/// A probability in `0..=1`, as a threshold on a 64-bit roll.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Probability(f64);

/// A number that is no probability.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("{0} is not a probability: it must lie between 0 and 1 (0 % and 100 %)")]
pub struct NotAProbability(f64);

impl Probability {
    /// Never.
    pub const ZERO: Self = Self(0.0);

    /// `p` itself.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }

    /// Above 0.
    #[must_use]
    pub fn is_possible(self) -> bool {
        self.0 > 0.0
    }

    /// 1.
    #[must_use]
    pub fn is_certain(self) -> bool {
        self.0 >= 1.0
    }

    fn holds(self, roll: u64) -> bool {
        // 2^64 is exact as f64; the cast saturates, so p = 1 is "always" but for one roll in 2^64, handled here.
        self.0 >= 1.0 || roll < (self.0 * 18_446_744_073_709_551_616.0) as u64
    }
}

impl TryFrom<f64> for Probability {
    type Error = NotAProbability;
    fn try_from(p: f64) -> Result<Self, NotAProbability> {
        if (0.0..=1.0).contains(&p) { Ok(Self(p)) } else { Err(NotAProbability(p)) }
    }
}

impl From<Probability> for f64 {
    fn from(p: Probability) -> f64 {
        p.0
    }
}

/// The source of all decisions of one direction of a link.
#[derive(Clone, Copy, Debug)]
pub struct Dice {
    seed: u64,
}

impl Dice {
    /// Dice for one direction; the two directions of a link take different `direction` numbers.
    #[must_use]
    pub fn new(seed: u64, direction: u64) -> Self {
        Self { seed: mix(seed ^ mix(direction)) }
    }

    /// Other dice, for a part of the direction's traffic.
    #[must_use]
    pub fn branch(self, number: u64) -> Self {
        Self { seed: mix(self.seed ^ mix(!number)) }
    }

    /// A uniform 64-bit number for this decision.
    #[must_use]
    pub fn roll(self, purpose: Purpose, flow: u64, packet: u64) -> u64 {
        mix(mix(mix(self.seed ^ purpose as u64) ^ flow) ^ packet)
    }

    /// A uniform number in 0..1, of 53 bits, neither 0 nor 1.
    #[must_use]
    pub fn fraction(self, purpose: Purpose, flow: u64, packet: u64) -> f64 {
        ((self.roll(purpose, flow, packet) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Whether an event of probability `p` happens to this packet.
    #[must_use]
    pub fn happens(self, p: Probability, purpose: Purpose, flow: u64, packet: u64) -> bool {
        p.0 > 0.0 && p.holds(self.roll(purpose, flow, packet))
    }
}

/// SplitMix64's output function (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014),
/// a bijection whose output passes BigCrush when its input counts.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_of_events_lies_in_the_99_percent_confidence_interval() {
        for (seed, p) in [(1, 0.0001), (2, 0.001), (3, 0.01), (4, 0.5)] {
            let dice = Dice::new(seed, 0);
            let prob = Probability::try_from(p).unwrap();
            let n = 2_000_000u64;
            let hits = (0..n).filter(|&i| dice.happens(prob, Purpose::Loss, i % 7, i / 7)).count() as f64;
            let sigma = (n as f64 * p * (1.0 - p)).sqrt();
            assert!((hits - n as f64 * p).abs() < 2.576 * sigma, "p {p}: {hits} of {n}");
        }
    }

    #[test]
    fn always_and_never() {
        let dice = Dice::new(9, 1);
        let one = Probability::try_from(1.0).unwrap();
        assert!((0..1000).all(|i| dice.happens(one, Purpose::Loss, 0, i)));
        assert!(!(0..1000).any(|i| dice.happens(Probability::ZERO, Purpose::Loss, 0, i)));
        assert!(Probability::try_from(1.01).is_err() && Probability::try_from(f64::NAN).is_err());
    }

    #[test]
    fn directions_and_purposes_are_independent() {
        let half = Probability::try_from(0.5).unwrap();
        let (a, b) = (Dice::new(5, 0), Dice::new(5, 1));
        let n = 100_000u64;
        let agree = |f: &dyn Fn(u64) -> (bool, bool)| (0..n).filter(|&i| f(i).0 == f(i).1).count() as f64;
        let near_half = |c: f64| (c - n as f64 / 2.0).abs() < 4.0 * (n as f64 / 4.0).sqrt();
        assert!(near_half(agree(&|i| (
            a.happens(half, Purpose::Loss, 0, i),
            b.happens(half, Purpose::Loss, 0, i)
        ))));
        assert!(near_half(agree(&|i| (
            a.happens(half, Purpose::Loss, 0, i),
            a.happens(half, Purpose::Corruption, 0, i)
        ))));
    }
}
