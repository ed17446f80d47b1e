//! When a link is down: everything that would begin on the wire is lost.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::link::Nanos;

/// A schedule, in time since the link began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outage {
    /// When it is down for the first time.
    pub at: Duration,
    /// For how long.
    pub lasts: Duration,
    /// From the beginning of one outage to that of the next; none: only once.
    #[serde(default)]
    pub every: Option<Duration>,
}

impl Outage {
    /// None at all.
    pub const NEVER: Self = Self { at: Duration::ZERO, lasts: Duration::ZERO, every: None };

    /// Whether the link is down.
    #[must_use]
    pub fn is_on(&self, now: Nanos) -> bool {
        let Some(since) = Duration::from_nanos(now).checked_sub(self.at) else { return false };
        let since = match self.every.filter(|every| !every.is_zero()) {
            Some(every) => Duration::from_nanos((since.as_nanos() % every.as_nanos()) as u64),
            None => since,
        };
        since < self.lasts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_down_when_it_should_be() {
        let seconds = Duration::from_secs;
        let once = Outage { at: seconds(10), lasts: seconds(2), every: None };
        let again = Outage { every: Some(seconds(60)), ..once };
        let on = |outage: Outage| (0..200).filter(|s| outage.is_on(s * 1_000_000_000)).collect::<Vec<u64>>();
        assert_eq!(on(once), [10, 11]);
        assert_eq!(on(again), [10, 11, 70, 71, 130, 131, 190, 191]);
        let never_again = Outage { every: Some(Duration::ZERO), ..once };
        assert_eq!(on(never_again), [10, 11]);
    }
}
