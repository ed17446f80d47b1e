//! How far two hosts' clocks are apart, by questions and answers. Pure.
//!
//! An answer's time was read between question and answer. So each pair bounds the difference of the clocks by a whole round trip, whatever the
//! ways of the path are like, and all pairs together bound it by what their bounds have in common.

use std::time::Duration;

/// One question for the time, and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// When it was asked, by this host's clock: microseconds since 1970.
    pub asked_us: u64,
    /// From the question to the answer.
    pub round_trip: Duration,
    /// What the other host's clock said.
    pub told_us: u64,
}

/// What is known of two clocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// Seconds that the other host's clock is ahead; less than 0: behind.
    pub ahead_s: f64,
    /// No more than this away from it.
    pub within_s: f64,
}

impl Difference {
    /// What these readings say together; `None`: there are none.
    #[must_use]
    pub fn of(readings: &[Reading]) -> Option<Self> {
        // A clock that is read is up to a microsecond older than it says, at either end.
        let bounds = |reading: &Reading| {
            let least = reading.told_us as i128 - reading.asked_us as i128 - 1;
            (least - reading.round_trip.as_micros() as i128 - 1, least + 2)
        };
        let least = readings.iter().map(|reading| bounds(reading).0).max()?;
        let most = readings.iter().map(|reading| bounds(reading).1).min()?;
        // A clock that was set meanwhile: the shortest round trip says most.
        let (least, most) = if least <= most {
            (least, most)
        } else {
            bounds(readings.iter().min_by_key(|reading| reading.round_trip)?)
        };
        Some(Self { ahead_s: (least + most) as f64 / 2e6, within_s: (most - least) as f64 / 2e6 })
    }

    /// They are further apart than this for sure.
    #[must_use]
    pub fn exceeds(&self, seconds: f64) -> bool {
        self.ahead_s.abs() - self.within_s > seconds
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn many_readings_bound_it_closer_than_one() {
        // The other clock is 5 ms ahead; once the way there took long, and once the way back.
        let reading = |asked_us, there_us, back_us| Reading {
            asked_us,
            round_trip: Duration::from_micros(there_us + back_us),
            told_us: asked_us + there_us + 5000,
        };
        let one = Difference::of(&[reading(1_000_000, 90_000, 10_000)]).unwrap();
        assert!((one.ahead_s - 0.045).abs() < 1e-5 && (one.within_s - 0.05).abs() < 1e-5, "{one:?}");
        let both = Difference::of(&[reading(1_000_000, 90_000, 10_000), reading(2_000_000, 10_000, 90_000)])
            .unwrap();
        assert!((both.ahead_s - 0.005).abs() < 1e-5 && (both.within_s - 0.01).abs() < 1e-5, "{both:?}");
        assert!(!both.exceeds(0.0) && Difference { ahead_s: -0.2, within_s: 0.05 }.exceeds(0.14));
        assert_eq!(Difference::of(&[]), None);
    }

    #[test]
    fn a_clock_that_was_set_meanwhile_is_bounded_by_the_shortest_round_trip() {
        let at = |asked_us, trip_ms, told_us| Reading {
            asked_us,
            round_trip: Duration::from_millis(trip_ms),
            told_us,
        };
        let both = Difference::of(&[at(0, 10, 5_000), at(100_000, 2, 9_101_000)]).unwrap();
        assert!((both.ahead_s - 9.0).abs() < 1e-5 && (both.within_s - 0.001).abs() < 1e-5, "{both:?}");
    }

    proptest! {
        /// Whatever the path is like, and wherever the clock is read on the way.
        #[test]
        fn the_difference_is_where_it_is_said_to_be(
            ahead_us in -1_000_000_000_i64..1_000_000_000,
            ways in prop::collection::vec((0_u64..300_000, 0_u64..300_000), 1..9),
        ) {
            let mut asked_us = 5_000_000_000_u64;
            let mut readings = Vec::new();
            for (there, back) in ways {
                let told_us = (asked_us + there).checked_add_signed(ahead_us).unwrap();
                readings.push(Reading { asked_us, round_trip: Duration::from_micros(there + back), told_us });
                asked_us += there + back;
            }
            let found = Difference::of(&readings).unwrap();
            prop_assert!((found.ahead_s - ahead_us as f64 / 1e6).abs() <= found.within_s + 1e-9, "{:?}", found);
            prop_assert!(!found.exceeds(ahead_us.abs() as f64 / 1e6 + 1e-9));
        }

        #[test]
        fn no_times_panic(readings in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 0..4)) {
            let readings: Vec<Reading> = readings
                .into_iter()
                .map(|(asked_us, trip, told_us)| Reading { asked_us, round_trip: Duration::from_nanos(trip), told_us })
                .collect();
            prop_assert_eq!(Difference::of(&readings).is_some(), !readings.is_empty());
        }
    }
}
