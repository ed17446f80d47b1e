//! What `iperf3 --json` tells at the end.

use anyhow::bail;
use serde::Deserialize;

/// The object `end`.
#[derive(Deserialize, Default)]
pub struct Ended {
    /// Of all streams, where they come from.
    pub sum_sent: Option<Sum>,
    /// Of all streams, where they arrive.
    pub sum_received: Option<Sum>,
    /// Of both ends.
    pub cpu_utilization_percent: Option<Processor>,
}

/// All streams.
#[derive(Deserialize)]
pub struct Sum {
    /// Payload.
    pub bytes: u64,
    /// Length of the test.
    pub seconds: f64,
    /// UDP: packets.
    pub packets: Option<u64>,
    /// UDP: of these lost; below 0 where some came twice.
    pub lost_packets: Option<i64>,
}

/// In percent of one.
#[derive(Deserialize)]
pub struct Processor {
    /// Here.
    pub host_total: f64,
    /// There.
    pub remote_total: f64,
}

impl Ended {
    /// Of what was printed.
    ///
    /// # Errors
    /// When it is no such record, or tells an error.
    pub fn of(json: &str) -> anyhow::Result<Self> {
        #[derive(Deserialize)]
        struct Said {
            #[serde(default)]
            end: Ended,
            error: Option<String>,
        }
        let said: Said = serde_json::from_str(json)?;
        match said.error {
            None => Ok(said.end),
            Some(error) => bail!("{error}"),
        }
    }
}
