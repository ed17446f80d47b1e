//! How fast the parts of a file are stored. Pure: the caller passes `now`.

use std::time::Duration;

use super::super::Nanos;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the last was.
    last: Nanos,
    /// Of the last [`PARTS_OF_PACE`] or so, in which bursts are evened out.
    bytes: u64,
    time: Nanos,
}

const PARTS_OF_PACE: u64 = 16;

/// A pause counts as no more: so it is soon known that what follows is fast, and not before some parts have come of that.
const PAUSE_MAX: Nanos = 100_000_000;

impl Pace {
    /// What has become of a part of so many bytes is known. True: that is so of more than `rate` bytes a second.
    pub(super) fn is_above(&mut self, rate: u64, now: Nanos, bytes: usize) -> bool {
        let took = now.saturating_sub(std::mem::replace(&mut self.last, now)).min(PAUSE_MAX);
        self.bytes = self.bytes - self.bytes / PARTS_OF_PACE + bytes as u64;
        self.time = self.time - self.time / PARTS_OF_PACE + took;
        self.bytes as f64 / rate as f64 > Duration::from_nanos(self.time).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_known_when_some_parts_have_come() {
        const MS: Nanos = 1_000_000;
        let (mut pace, mut now) = (Pace::default(), 5_000_000 * MS);
        let mut parts = |count: u64, burst: u64, pause: Nanos| -> Vec<bool> {
            let mut part = |number: u64| {
                now += if number.is_multiple_of(burst) { pause } else { 0 };
                pace.is_above(256 << 20, now, crate::limits::WRITE_PART_BYTES)
            };
            (0..count).map(&mut part).collect()
        };
        // 500 MiB a second in bursts, then 100.
        let said = parts(60, 10, 20 * MS);
        assert!(!said[..12].contains(&true) && !said[30..].contains(&false), "{said:?}");
        let said = parts(40, 1, 10 * MS);
        assert!(!said[20..].contains(&true), "{said:?}");
        // As slow as can be, and then what was held up, at once.
        let said = parts(40, 1, 2 * PAUSE_MAX);
        assert!(!said.contains(&true), "{said:?}");
        assert!(!parts(16, 16, 2 * PAUSE_MAX).contains(&true));
    }
}
