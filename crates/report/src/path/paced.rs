//! TCP whose senders space their packets.

use serde::{Deserialize, Serialize};

use super::{Path, Table, Tcp, Way, percent};
use crate::table::significant;

/// TCP, held to a rate by the senders' kernels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Paced {
    /// Of what the path carries.
    pub percent: f64,
    /// Of all streams together, Mbit/s of payload.
    pub rate_mbps: f64,
    /// What came of it.
    pub tcp: Tcp,
}

/// Rates that differ by less are the same, as chance has it.
const SAME: f64 = 0.02;

impl Path {
    /// Of one way; none where nothing was paced.
    pub(crate) fn paced_table(&self, way: Way) -> Option<Table> {
        let rows = self.paced_of(way).map(|paced| row(Some(paced), &paced.tcp));
        let rows: Vec<_> = rows.chain(self.unpaced(way).map(|tcp| row(None, tcp))).collect();
        let caption = format!("TCP {way}, paced by the sender's kernel, Mbit/s of payload");
        let head = vec!["paced at", "of capacity", "streams", "measured", "sent again", "RTT ms"];
        self.paced_of(way).next().map(|_| (caption, head, rows))
    }

    /// The rate at which pacing has brought most, and what it is like without.
    pub(super) fn paced_in_words(&self, way: Way) -> Option<String> {
        let most = self.paced_of(way).map(|paced| paced.tcp.mbps).fold(0.0, f64::max);
        let near = self.paced_of(way).filter(|paced| paced.tcp.mbps >= (1.0 - SAME) * most);
        let cost = |paced: &&Paced| (paced.tcp.retransmitted_percent, paced.rate_mbps);
        let best = near.min_by(|one, other| {
            let (one, other) = (cost(one), cost(other));
            one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1))
        })?;
        let seen = |tcp: &Tcp| {
            format!(
                "{} Mbit/s, {} sent again, {:.1} ms a round trip",
                significant(tcp.mbps),
                percent(tcp.retransmitted_percent),
                tcp.rtt_ms
            )
        };
        let without = self.unpaced(way).map_or_else(String::new, |tcp| format!("; not paced: {}", seen(tcp)));
        if let Some(tcp) = self.unpaced(way).filter(|tcp| tcp.mbps * (1.0 - SAME) > most) {
            return Some(format!(
                "TCP {way}, streams: {}, is faster without pacing, which brings at best {}; not paced: {}.",
                tcp.streams,
                seen(&best.tcp),
                seen(tcp)
            ));
        }
        Some(format!(
            "TCP {way}, streams: {}, is best paced at {} Mbit/s, {:.0} % of the capacity: {}{without}.",
            best.tcp.streams,
            significant(best.rate_mbps),
            best.percent,
            seen(&best.tcp)
        ))
    }

    pub(crate) fn paced_of(&self, way: Way) -> impl Iterator<Item = &Paced> {
        self.paced.iter().filter(move |paced| paced.tcp.way == way)
    }

    /// As many streams, with the same windows.
    pub(crate) fn unpaced(&self, way: Way) -> Option<&Tcp> {
        let like = self.paced_of(way).next()?.tcp;
        self.tcp.iter().find(|tcp| {
            tcp.way == way && tcp.streams == like.streams && tcp.window_bytes == like.window_bytes
        })
    }
}

fn row(paced: Option<&Paced>, tcp: &Tcp) -> Vec<String> {
    vec![
        paced.map_or_else(|| "not".to_owned(), |paced| significant(paced.rate_mbps)),
        paced.map_or_else(|| "-".to_owned(), |paced| format!("{:.0} %", paced.percent)),
        tcp.streams.to_string(),
        significant(tcp.mbps),
        percent(tcp.retransmitted_percent),
        format!("{:.2}", tcp.rtt_ms),
    ]
}

#[cfg(test)]
mod tests {
    use crate::path::tests::path;

    use super::*;

    #[test]
    fn the_best_rate_is_the_one_that_loses_least_of_those_that_bring_most() {
        let mut path = path();
        let tcp = path.tcp[0];
        let mut add = |percent: f64, mbps: f64, retransmitted_percent: f64| {
            let tcp = Tcp { mbps, retransmitted_percent, ..tcp };
            path.paced.push(Paced { percent, rate_mbps: percent, tcp });
        };
        add(50.0, 50.0, 0.0);
        add(90.0, 90.0, 0.0);
        add(95.0, 94.5, 0.0);
        add(100.0, 95.0, 0.4);
        add(110.0, 93.0, 2.0);
        let words = path.paced_in_words(Way::ToServer).unwrap();
        assert!(
            words.contains("best paced at 95.0 Mbit/s, 95 % of the capacity: 94.5 Mbit/s, 0 sent again"),
            "{words}"
        );
        assert!(words.contains("not paced: 94.0 Mbit/s"), "{words}");
        assert_eq!(path.paced_in_words(Way::FromServer), None);
        path.tcp[0].mbps = 99.0;
        let words = path.paced_in_words(Way::ToServer).unwrap();
        assert!(words.contains("is faster without pacing, which brings at best 94.5 Mbit/s"), "{words}");
        let (_, _, rows) = path.paced_table(Way::ToServer).unwrap();
        assert_eq!((rows.len(), rows[5][0].as_str()), (6, "not"));
        assert!(path.paced_table(Way::FromServer).is_none());
    }
}
