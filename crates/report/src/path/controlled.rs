//! TCP by congestion control.

use serde::{Deserialize, Serialize};

use super::{Path, Table, Tcp, Way, percent};
use crate::table::significant;

/// TCP with a congestion control that was asked for, at both ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Controlled {
    /// As the kernel names it.
    pub control: String,
    /// What came of it.
    pub tcp: Tcp,
}

impl Path {
    /// Of one way; none where none were compared.
    pub(crate) fn controlled_table(&self, way: Way) -> Option<Table> {
        let of_way = self.controlled.iter().filter(|controlled| controlled.tcp.way == way);
        let rows: Vec<_> = of_way.map(Controlled::row).collect();
        let caption = format!("TCP {way}, by congestion control, Mbit/s of payload");
        let head = vec!["control", "streams", "measured", "Mathis", "sent again", "RTT ms"];
        (!rows.is_empty()).then_some((caption, head, rows))
    }
}

impl Controlled {
    fn row(&self) -> Vec<String> {
        let Self { control, tcp } = self;
        vec![
            control.clone(),
            tcp.streams.to_string(),
            significant(tcp.mbps),
            tcp.mathis_mbps.map_or_else(|| "-".to_owned(), significant),
            percent(tcp.retransmitted_percent),
            format!("{:.2}", tcp.rtt_ms),
        ]
    }
}
