//! When a sender that has a rate may send its next bytes.

use std::time::Duration;

use crate::limits::{BURST, CATCH_UP, CATCH_UP_FASTER};

/// Keeps the mean rate of a sender. Times are since any common beginning.
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    bytes_per_s: f64,
    /// When the next bytes may go.
    due: Duration,
    /// Time in which it was held up and that it has not made up for yet.
    owed: Duration,
}

impl Pacer {
    /// The first bytes may go `now`.
    #[must_use]
    pub fn new(bits_per_s: u64, now: Duration) -> Self {
        Self { bytes_per_s: bits_per_s.max(1) as f64 / 8.0, due: now, owed: Duration::ZERO }
    }

    /// How long to wait before more is sent.
    #[must_use]
    pub fn wait(&self, now: Duration) -> Duration {
        self.due.saturating_sub(now)
    }

    /// So many bytes were sent, or are being sent.
    pub fn sent(&mut self, bytes: u64, now: Duration) {
        // Who was held up makes up for it, but not for all of a long pause, and but for a burst not at once.
        let at_once = now.saturating_sub(BURST);
        if self.due < at_once {
            self.owed = (self.owed + (at_once - self.due)).min(CATCH_UP);
            self.due = at_once;
        }
        // A day at one byte a second is far below what a Duration holds.
        let takes = Duration::from_secs_f64((bytes as f64 / self.bytes_per_s).min(1e9));
        let made_up = self.owed.min(takes.mul_f64(CATCH_UP_FASTER / (1.0 + CATCH_UP_FASTER)));
        self.owed -= made_up;
        self.due += takes - made_up;
    }

    /// Pieces of `bytes` each that may go at once: at least one, at most `most`.
    #[must_use]
    pub fn burst(&self, bytes: usize, most: usize) -> usize {
        let pieces = self.bytes_per_s * BURST.as_secs_f64() / bytes.max(1) as f64;
        (pieces as usize).clamp(1, most.max(1))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_sender_that_is_never_held_up_keeps_its_rate(
            rate in 10_000u64..100_000_000_000,
            pieces in prop::collection::vec(1u64..200_000, 2..100),
        ) {
            let began = Duration::from_secs(5);
            let mut pacer = Pacer::new(rate, began);
            let (mut now, mut sent) = (began, 0);
            // Time is counted in nanoseconds.
            let exact = 2.0 + pieces.len() as f64 * rate as f64 / 8e9;
            for bytes in &pieces {
                now += pacer.wait(now);
                // What has gone so far took its time.
                let allowed = (now - began).as_secs_f64() * rate as f64 / 8.0;
                prop_assert!(sent as f64 <= allowed + exact, "{sent} of {allowed}");
                pacer.sent(*bytes, now);
                sent += bytes;
            }
            now += pacer.wait(now);
            let allowed = (now - began).as_secs_f64() * rate as f64 / 8.0;
            prop_assert!((sent as f64 - allowed).abs() <= exact);
        }

        #[test]
        fn pauses_are_made_up_for_little_by_little(pause_ms in 1u64..10_000) {
            let mut pacer = Pacer::new(8_000_000, Duration::ZERO); // 1000 bytes a millisecond
            let pause = Duration::from_millis(pause_ms);
            let mut now = pause;
            let mut sent = 0u64;
            while pacer.wait(now).is_zero() {
                pacer.sent(10, now);
                sent += 10;
            }
            prop_assert!(sent <= 1000 * BURST.as_micros() as u64 / 1000 + 260, "{} at once", sent);
            // Long enough for all that is made up for.
            let end = pause + CATCH_UP.mul_f64(1.1 / CATCH_UP_FASTER);
            let mut fastest: f64 = 0.0;
            while now < end {
                let (began, before) = (now, sent);
                while now < began + Duration::from_millis(10) {
                    now += pacer.wait(now);
                    pacer.sent(10, now);
                    sent += 10;
                }
                fastest = fastest.max((sent - before) as f64 / (now - began).as_secs_f64());
            }
            prop_assert!(fastest < 1e6 * (1.0 + CATCH_UP_FASTER) * 1.03, "{} bytes/s", fastest);
            let made_up = pause.min(CATCH_UP + BURST);
            let right = (now - pause + made_up).as_secs_f64() * 1e6;
            prop_assert!((sent as f64 - right).abs() < 40.0, "{} for {}", sent, right);
        }
    }

    #[test]
    fn bursts_last_a_fifth_of_a_millisecond() {
        let burst = |bits_per_s| Pacer::new(bits_per_s, Duration::ZERO).burst(1250, 64);
        assert_eq!([1_000_000, 100_000_000, 1_000_000_000, 10_000_000_000].map(burst), [1, 2, 20, 64]);
        assert_eq!(Pacer::new(0, Duration::ZERO).burst(0, 0), 1);
    }
}
