//! The end of what there is to send: nothing waits any more, and lanes have taken more or less ahead. Paced alike, those
//! with less are over first, and the path is not full for the rest.

use std::time::Duration;

/// Between two looks at what the lanes have left to send, where that is all there is: a part of what a lane takes ahead
/// ([`LANE_UNSENT_TIME`](crate::limits::LANE_UNSENT_TIME)).
const LOOK: Duration = Duration::from_millis(4);

/// A peer that takes nothing for so many looks, or a link that is down, is waited for without.
const UNMOVED_MAX: u32 = 16;

/// When to look at what lanes have left, and what each may send then. It does no input or output.
#[derive(Debug, Default)]
pub struct End {
    /// The bytes that were left when they were divided last; `None` while lanes are paced alike.
    divided: Option<u64>,
    /// Looks since when nothing has been sent of them.
    unmoved: u32,
}

impl End {
    /// Whether lanes are paced by what they have left.
    #[must_use]
    pub fn is_divided(&self) -> bool {
        self.divided.is_some()
    }

    /// The lanes are paced alike again.
    pub fn paced_alike(&mut self) {
        *self = Self::default();
    }

    /// How long before the next look, which is due in `until_due` at the latest. `cap`: bytes per second that all lanes
    /// together may send, `waiting`: bytes that none has taken.
    #[must_use]
    pub fn until_look(&self, cap: Option<f64>, waiting: u64, until_due: Duration) -> Duration {
        let Some(cap) = cap else { return until_due };
        // Sent by then; or there is more again, and the lanes are to be paced alike.
        let comes = waiting > 0 && (self.is_divided() || waiting as f64 <= cap * until_due.as_secs_f64());
        let moves = self.is_divided() && self.unmoved < UNMOVED_MAX;
        if comes || moves { until_due.min(LOOK) } else { until_due }
    }

    /// Bytes per second that each lane may send, where it has so many bytes `left`; `None`: all alike.
    pub fn divide(&mut self, cap: Option<f64>, waiting: u64, left: &[u64]) -> Option<Vec<f64>> {
        let cap = cap.filter(|_| waiting == 0)?;
        let total = left.iter().sum::<u64>();
        // Little is not worth it; a writer who is slower than the path leaves as much all the while.
        let least = if self.is_divided() { 1 } else { ((cap * LOOK.as_secs_f64()) as u64).max(1) };
        if total < least {
            return None;
        }
        self.unmoved = if self.divided == Some(total) { self.unmoved + 1 } else { 0 };
        self.divided = Some(total);
        Some(shares_of_rest(cap, left))
    }
}

/// What each lane may send, in bytes per second, that has so many bytes `left` when nothing more waits: all end at the same
/// time, and together they send hardly more than `cap`. None gets less than half of its even share: it would be over before
/// the others, and the kernel raises what it has lowered with the next acknowledgement only. Who has nothing left keeps
/// that share.
fn shares_of_rest(cap: f64, left: &[u64]) -> Vec<f64> {
    let total = left.iter().sum::<u64>() as f64;
    let even = cap / left.len().max(1) as f64;
    let share = |bytes: u64| (cap * bytes as f64 / total).max(even / 2.0);
    left.iter().map(|&bytes| if bytes > 0 { share(bytes) } else { even }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 Gbit/s.
    const CAP: f64 = 125e6;
    const DUE: Duration = Duration::from_millis(50);

    #[test]
    fn who_has_more_left_ends_with_the_others() {
        const LEFT: [u64; 5] = [600_000, 300_000, 200_000, 1000, 0];
        let shares = shares_of_rest(CAP, &LEFT);
        // 8.8 ms of the path; alike, the first would need 24 ms.
        let ends: Vec<f64> = LEFT.iter().zip(&shares).map(|(left, rate)| *left as f64 / rate * 1e3).collect();
        assert!(ends.iter().all(|ms| *ms < 9.0), "{ends:?} ms");
        assert!(
            shares[..3].iter().sum::<f64>() <= CAP && shares[3] == 12.5e6 && shares[4] == 25e6,
            "{shares:?}"
        );
    }

    #[test]
    fn the_end_is_looked_for_when_what_waits_is_sent_before_the_next_look() {
        let end = End::default();
        assert_eq!(end.until_look(Some(CAP), 6_000_000, DUE), LOOK);
        assert_eq!(end.until_look(Some(CAP), 7_000_000, DUE), DUE, "more than 50 ms of it");
        assert_eq!(end.until_look(Some(CAP), 0, DUE), DUE, "nothing to send, or slower than the path");
        assert_eq!(end.until_look(None, 6_000_000, DUE), DUE, "the path's rate is not known");
        assert_eq!(end.until_look(Some(CAP), 1, Duration::from_millis(1)), Duration::from_millis(1));
    }

    #[test]
    fn lanes_are_paced_alike_until_nothing_waits_and_enough_is_left() {
        let mut end = End::default();
        assert_eq!(end.divide(Some(CAP), 1, &[9_000_000, 1_000_000]), None);
        assert_eq!(end.divide(None, 0, &[9_000_000, 1_000_000]), None);
        assert_eq!(end.divide(Some(CAP), 0, &[400_000, 99_000]), None, "less than 4 ms of the path");
        assert!(!end.is_divided());
        assert_eq!(end.divide(Some(CAP), 0, &[400_000, 100_000]), Some(vec![100e6, 31.25e6]));
        // Once it is so, to the last byte; or until more comes.
        assert_eq!(end.divide(Some(CAP), 0, &[1, 0]), Some(vec![CAP, CAP / 2.0]));
        assert_eq!(end.divide(Some(CAP), 0, &[0, 0]), None);
        assert!(end.is_divided(), "nobody has been told yet");
        end.paced_alike();
        assert!(!end.is_divided());
    }

    #[test]
    fn what_does_not_move_is_not_looked_at_for_ever() {
        let mut end = End::default();
        for _ in 0..=UNMOVED_MAX {
            assert!(end.divide(Some(CAP), 0, &[600_000]).is_some());
        }
        assert_eq!(end.until_look(Some(CAP), 0, DUE), DUE, "a stalled peer, or a broken link");
        assert_eq!(
            end.until_look(Some(CAP), 900_000_000, DUE),
            LOOK,
            "more is to be sent by all lanes alike"
        );
        assert!(end.divide(Some(CAP), 0, &[599_999]).is_some());
        assert_eq!(end.until_look(Some(CAP), 0, DUE), LOOK);
        assert!(end.divide(Some(CAP), 0, &[599_999]).is_some());
        assert_eq!(end.until_look(Some(CAP), 0, DUE), LOOK, "a host's stall");
    }
}
