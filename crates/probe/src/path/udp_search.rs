//! Which rate to offer next, to find what a path carries: doubled until too little arrives, then bisected. Pure.
//!
//! A rate is *carried* when what arrives, in the time in which it arrives, falls short of what was sent by less than a threshold.
//! So loss counts, and so does what only stands in a queue. Once a rate was not carried, what arrived of it says where
//! the limit is: it is tried just above and just below that before anything is bisected. Invariant: what is carried is always
//! less than what is not, and each step narrows the gap or ends the search.

use std::ops::RangeInclusive;

/// What became of one burst; all rates in one unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst {
    /// What the sender was asked for.
    pub offered: f64,
    /// What it sent.
    pub sent: f64,
    /// What arrived, over the time in which it did.
    pub arrived: f64,
    /// Share of the packets that did not.
    pub lost: f64,
}

impl Burst {
    /// How much of what was sent is missing, or only waits: a share.
    #[must_use]
    pub fn shortfall(&self) -> f64 {
        (1.0 - self.arrived / self.sent.max(f64::MIN_POSITIVE)).max(self.lost)
    }
}

/// What a search has come to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Found {
    /// The path carries no more than what arrives at this rate.
    Limit(f64),
    /// The sender cannot send faster than what it sent at this one.
    Sender(f64),
    /// All that may be offered is carried.
    Most(f64),
    /// Even the least is not carried.
    Nothing,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// Offer this rate.
    Offer(f64),
    /// It is over.
    Done(Found),
}

/// How close the rates on both sides of the limit must come.
const CLOSE: f64 = 1.01;

/// Bursts of one path differ by less.
const HELD_UP: f64 = 0.99;

/// A sender that sends less than this share of what it should is at its own limit.
const SENDER_KEEPS_UP: f64 = 0.93;

/// Guesses from what arrived, before it is bisected.
const GUESSES: u32 = 4;

/// A search under way.
#[derive(Clone, Debug)]
pub struct Search {
    bounds: RangeInclusive<f64>,
    threshold: f64,
    start: f64,
    /// The highest rate that was carried.
    carried: Option<f64>,
    /// The lowest that was not, and what arrived of it.
    beyond: Option<(f64, f64)>,
    /// The sender's limit, once it was met.
    sender: Option<f64>,
    guesses: u32,
    /// What arrived of bursts that were not carried.
    limited: Vec<f64>,
}

impl Search {
    /// From `start` on, within `bounds`; a shortfall of `threshold` is too much.
    #[must_use]
    pub fn new(start: f64, bounds: RangeInclusive<f64>, threshold: f64) -> Self {
        let start = start.clamp(*bounds.start(), *bounds.end());
        Self {
            bounds,
            threshold,
            start,
            carried: None,
            beyond: None,
            sender: None,
            guesses: 0,
            limited: Vec::new(),
        }
    }

    /// A burst is over.
    pub fn note(&mut self, burst: Burst) {
        let rate = burst.offered;
        if burst.shortfall() >= self.threshold {
            self.limited.push(burst.arrived);
            if self.beyond.is_none_or(|(beyond, _)| rate < beyond) {
                self.beyond = Some((rate, burst.arrived));
            }
            // A path that is now worse than it was: what it carried then is no bound.
            if self.carried.is_some_and(|carried| carried >= rate) {
                self.carried = None;
            }
        } else {
            self.carried = Some(self.carried.map_or(rate, |carried| carried.max(rate)));
            if burst.sent < rate * SENDER_KEEPS_UP {
                self.sender = Some(rate);
            }
            if self.beyond.is_some_and(|(beyond, _)| beyond <= rate) {
                self.beyond = None;
            }
        }
    }

    /// Whether a longer burst has brought so much less than those before it that were not carried either that a host, or one on the
    /// way, may have paused.
    #[must_use]
    pub fn is_held_up(&self, arrived: f64) -> bool {
        let mut limited = self.limited.clone();
        limited.sort_by(f64::total_cmp);
        limited.get(limited.len() / 2).is_some_and(|median| arrived < median * HELD_UP)
    }

    /// What to do now.
    pub fn step(&mut self) -> Step {
        let (least, most) = (*self.bounds.start(), *self.bounds.end());
        match (self.carried, self.beyond) {
            (None, None) => Step::Offer(self.start),
            (Some(_), None) if self.sender.is_some() => {
                Step::Done(Found::Sender(self.sender.unwrap_or_default()))
            }
            (Some(carried), None) if carried >= most => Step::Done(Found::Most(carried)),
            (Some(carried), None) => Step::Offer((carried * 2.0).min(most)),
            (None, Some((beyond, _))) if beyond <= least => Step::Done(Found::Nothing),
            (None, Some((beyond, arrived))) => {
                // Below what arrived nearly everything should.
                Step::Offer((arrived * 0.9).min(beyond / 2.0).max(least))
            }
            (Some(carried), Some((beyond, _))) if beyond <= carried * CLOSE => {
                Step::Done(Found::Limit(beyond))
            }
            (Some(carried), Some((beyond, arrived))) => {
                if self.guesses < GUESSES {
                    self.guesses += 1;
                    let limit = arrived / (1.0 - self.threshold);
                    for guess in [limit * 1.004, limit * 0.996] {
                        if guess > carried * 1.002 && guess < beyond / 1.002 {
                            return Step::Offer(guess);
                        }
                    }
                }
                Step::Offer((carried * beyond).sqrt())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A path of a rate, with loss at random, a queue that holds what is too much for a while, and a sender that may be slow.
    #[derive(Clone, Copy, Debug)]
    struct Model {
        rate: f64,
        loss: f64,
        /// Seconds of the link's rate.
        queue: f64,
        sender: f64,
        /// Of each measured rate, as a share.
        noise: f64,
        seed: u64,
    }

    impl Model {
        fn burst(&mut self, offered: f64) -> Burst {
            let seconds = 0.3;
            let sent = offered.min(self.sender);
            let passes = (sent * seconds).min(self.rate * (seconds + self.queue));
            let lasts = (passes / self.rate).max(seconds);
            // Knuth's 64-bit linear congruential generator.
            self.seed =
                self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let noise = 1.0 + self.noise * ((self.seed >> 33) as f64 / f64::from(1u32 << 30) - 1.0);
            let through = passes * (1.0 - self.loss);
            Burst { offered, sent, arrived: through / lasts * noise, lost: 1.0 - through / (sent * seconds) }
        }
    }

    /// The rate that was found, and after how many bursts.
    fn search(mut model: Model, start: f64) -> (Found, f64, u32) {
        let mut search = Search::new(start, 1e5..=1e11, 0.05);
        for bursts in 0..60 {
            match search.step() {
                Step::Offer(rate) => {
                    assert!((1e5..=1e11).contains(&rate));
                    search.note(model.burst(rate));
                }
                Step::Done(found) => {
                    let arrived = match found {
                        Found::Limit(rate) | Found::Sender(rate) | Found::Most(rate) => {
                            model.burst(rate).arrived
                        }
                        Found::Nothing => 0.0,
                    };
                    return (found, arrived, bursts);
                }
            }
        }
        panic!("it does not end: {search:?}");
    }

    fn model(rate: f64) -> Model {
        Model { rate, loss: 0.0, queue: 0.0, sender: f64::INFINITY, noise: 0.0, seed: 1 }
    }

    #[test]
    fn a_link_is_found_with_and_without_a_queue() {
        for (rate, queue) in [(2e6, 0.0), (1e8, 0.0), (1e8, 2.0), (9.5e8, 0.01), (4e10, 0.1)] {
            let (found, arrived, bursts) = search(Model { queue, ..model(rate) }, 1e6);
            let Found::Limit(beyond) = found else { panic!("{found:?}") };
            assert!((arrived / rate - 1.0).abs() < 1e-6, "{arrived} of {rate}");
            assert!(beyond > rate && beyond < rate * 1.08, "{beyond} for {rate}");
            assert!(bursts <= 6 + (rate / 1e6).log2() as u32, "{bursts} bursts");
        }
    }

    #[test]
    fn a_start_that_is_too_high_or_near_is_no_harm() {
        for start in [1e5, 9e7, 1.02e8, 3e8, 1e11] {
            let (found, arrived, _) = search(model(1e8), start);
            assert!(
                matches!(found, Found::Limit(_)) && (arrived / 1e8 - 1.0).abs() < 1e-6,
                "{start}: {found:?}"
            );
        }
    }

    #[test]
    fn a_pause_is_seen_beside_the_bursts_before() {
        let burst = |arrived| Burst { offered: 110.0, sent: 110.0, arrived, lost: 0.0 };
        let carried = Burst { offered: 50.0, sent: 50.0, arrived: 50.0, lost: 0.0 };
        let mut search = Search::new(50.0, 1.0..=1000.0, 0.05);
        search.note(carried);
        assert!(!search.is_held_up(10.0));
        [100.0, 80.0, 100.5].into_iter().for_each(|arrived| search.note(burst(arrived)));
        assert_eq!([97.0, 99.5, 103.0].map(|arrived| search.is_held_up(arrived)), [true, false, false]);
    }

    #[test]
    fn other_limits_are_told_apart() {
        let slow = Model { sender: 5e7, ..model(1e9) };
        assert!(matches!(search(slow, 1e6).0, Found::Sender(_)));
        assert_eq!(search(model(1e13), 1e6).0, Found::Most(1e11));
        assert_eq!(search(Model { loss: 0.2, ..model(1e9) }, 1e6).0, Found::Nothing);
    }

    #[test]
    fn a_limit_that_turns_out_to_be_none_is_left_behind() {
        let burst =
            |offered, arrived| Burst { offered, sent: offered, arrived, lost: 1.0 - arrived / offered };
        let mut search = Search::new(500.0, 1.0..=10_000.0, 0.05);
        // A host that was busy elsewhere for a moment.
        search.note(burst(500.0, 400.0));
        let limit = loop {
            match search.step() {
                Step::Offer(rate) => search.note(burst(rate, rate)),
                Step::Done(found) => break found,
            }
        };
        assert_eq!(limit, Found::Limit(500.0));
        search.note(burst(500.0, 500.0));
        assert_eq!(search.step(), Step::Offer(1000.0));
    }

    proptest! {
        /// Measured rates are off by a percent either way.
        #[test]
        fn it_ends_near_the_link_s_rate(
            rate in 2e5f64..5e10,
            start in 1e5f64..1e11,
            loss in 0.0f64..0.03,
            queue in 0.0f64..3.0,
            noise in 0.0f64..0.01,
            seed: u64,
        ) {
            let (found, arrived, bursts) = search(Model { loss, queue, noise, seed, ..model(rate) }, start);
            prop_assert!(matches!(found, Found::Limit(_)), "{:?}", found);
            let true_rate = rate * (1.0 - loss);
            prop_assert!((arrived / true_rate - 1.0).abs() < 0.02 + noise, "{} of {}", arrived, true_rate);
            prop_assert!(bursts < 45, "{}", bursts);
        }

        #[test]
        fn whatever_is_measured_it_ends(values in prop::collection::vec((0.0f64..2.0, 0.0f64..1.0), 60)) {
            let mut search = Search::new(1e6, 1e5..=1e10, 0.05);
            for (arrived, lost) in values {
                match search.step() {
                    Step::Offer(offered) => {
                        search.note(Burst { offered, sent: offered, arrived: offered * arrived, lost });
                    }
                    Step::Done(_) => return Ok(()),
                }
            }
            // A path that changes with each burst: whoever runs a search bounds the number of bursts.
        }
    }
}
