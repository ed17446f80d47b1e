//! What `iperf3 --json` tells at the end.

use anyhow::bail;
use serde::Deserialize;

#[derive(Deserialize, Default)]
pub(crate) struct Ended {
    pub(crate) sum_sent: Option<Sum>,
    pub(crate) sum_received: Option<Sum>,
    pub(crate) cpu_utilization_percent: Option<Processor>,
}

#[derive(Deserialize)]
pub(crate) struct Sum {
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) packets: Option<u64>,
    pub(crate) lost_packets: Option<i64>,
}

/// In percent of one.
#[derive(Deserialize)]
pub(crate) struct Processor {
    pub(crate) host_total: f64,
    pub(crate) remote_total: f64,
}

impl Ended {
    pub(crate) fn of(json: &str) -> anyhow::Result<Self> {
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
