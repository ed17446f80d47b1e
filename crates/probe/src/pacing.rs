//! When a sender that has a rate may send its next bytes.

use std::time::Duration;

use crate::limits::{BURST, CATCH_UP};

/// Keeps the mean rate of a sender. Times are since any common beginning.
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    bytes_per_s: f64,
    /// When the next bytes may go.
    due: Duration,
}

impl Pacer {
    /// The first bytes may go `now`.
    #[must_use]
    pub fn new(bits_per_s: u64, now: Duration) -> Self {
        Self { bytes_per_s: bits_per_s.max(1) as f64 / 8.0, due: now }
    }

    /// How long to wait before more is sent.
    #[must_use]
    pub fn wait(&self, now: Duration) -> Duration {
        self.due.saturating_sub(now)
    }

    /// So many bytes were sent, or are being sent.
    pub fn sent(&mut self, bytes: u64, now: Duration) {
        // Who was held up makes up for it, but not for all of a long pause.
        self.due = self.due.max(now.saturating_sub(CATCH_UP));
        // A day at one byte a second is far below what a Duration holds.
        self.due += Duration::from_secs_f64((bytes as f64 / self.bytes_per_s).min(1e9));
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
        fn pauses_are_made_up_for_within_bounds(pause_ms in 0u64..10_000) {
            let mut pacer = Pacer::new(8_000_000, Duration::ZERO); // 1000 bytes a millisecond
            let now = Duration::from_millis(pause_ms);
            let mut at_once = 0u64;
            while pacer.wait(now).is_zero() {
                pacer.sent(1000, now);
                at_once += 1;
            }
            prop_assert!(at_once <= pause_ms.min(CATCH_UP.as_millis() as u64) + 1, "{}", at_once);
        }
    }

    #[test]
    fn bursts_last_a_millisecond() {
        let burst = |bits_per_s| Pacer::new(bits_per_s, Duration::ZERO).burst(1250, 64);
        assert_eq!([1_000_000, 100_000_000, 1_000_000_000].map(burst), [1, 10, 64]);
        assert_eq!(Pacer::new(0, Duration::ZERO).burst(0, 0), 1);
    }
}
