//! What a client asks of the server's host itself: what it lacks, and what time it is there.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::client::{ProbeError, Prober, ask};
use super::clocks::Reading;
use super::finding::Finding;
use super::message::{Answer, Ask};
use crate::limits::STEP_TIMEOUT;

/// By this host's clock. Before 1970: 0.
pub(super) fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// A number of readings on a long path, and on a short one as many as there is time for: the shortest round trip of them says most.
const READINGS_MIN: usize = 5;
const READINGS_MAX: usize = 20;
const READINGS_TIME: Duration = Duration::from_millis(500);

impl Prober {
    /// What the server's host lacks, in its own words.
    ///
    /// # Errors
    /// [`ProbeError`]; [`ProbeError::Older`]: it does not look at its host for others.
    pub async fn findings(&self) -> Result<Vec<Finding>, ProbeError> {
        match self.ask_soon(Ask::Checkup(true)).await? {
            Answer::Findings(findings) => Ok(findings.findings()),
            _ => Err(ProbeError::Answer),
        }
    }

    /// Asks for the time, one question after the other: round-trip times of messages in the session, and both clocks.
    ///
    /// # Errors
    /// As [`findings`](Self::findings).
    pub async fn clocks(&self) -> Result<Vec<Reading>, ProbeError> {
        let mut readings = Vec::with_capacity(READINGS_MAX);
        let began = Instant::now();
        while readings.len() < READINGS_MIN
            || (readings.len() < READINGS_MAX && began.elapsed() < READINGS_TIME)
        {
            let (asked_us, asked) = (now_us(), Instant::now());
            let Answer::Clock(told_us) = self.ask_soon(Ask::Clock(true)).await? else {
                return Err(ProbeError::Answer);
            };
            readings.push(Reading { asked_us, round_trip: asked.elapsed(), told_us });
        }
        Ok(readings)
    }

    /// For what a server answers without having to do much.
    async fn ask_soon(&self, question: Ask) -> Result<Answer, ProbeError> {
        let answer = tokio::time::timeout(STEP_TIMEOUT, ask(self.session(), question));
        answer.await.map_err(|_| ProbeError::Late(STEP_TIMEOUT))?
    }
}
