//! From disk to disk: what a file takes that `longhaul cp` copies, beside what each part of its way does alone.

use serde::{Deserialize, Serialize};

use super::{Path, Side, Table, Way};
use crate::table::significant;

/// A file was copied from one disk to the other, by longhaul's own lanes: encrypted, verified, durable.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskToDisk {
    /// Which way.
    pub way: Way,
    /// Of the file.
    pub bytes: u64,
    /// From the start of the copy, over a session that was connected before, until the whole file was on the receiver's disk under its name.
    pub seconds: f64,
    /// Both as a rate, Mbit/s.
    pub mbps: f64,
    /// Connections that carried it, at the most.
    pub lanes: u32,
    /// The sender's page cache had the file, as far as is known: its disk had nothing to read.
    pub from_memory: bool,
}

/// A part of a file's way that was measured alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartOfWay {
    /// The sender's disk.
    Reading(Side),
    /// TCP at its best.
    Network,
    /// The receiver's disk.
    Writing(Side),
}

impl PartOfWay {
    fn in_words(self) -> String {
        match self {
            Self::Reading(side) => format!("disk of {side}, read"),
            Self::Network => "network".to_owned(),
            Self::Writing(side) => format!("disk of {side}, written"),
        }
    }
}

/// Of what the slowest part does alone, a copy with less than so much has another thing that holds it up.
const WELL_BELOW: f64 = 0.7;

/// A copy with more than so much of it is faster than that part was alone, beyond the spread of both figures.
const BEYOND: f64 = 1.1;

/// Round trips that the start of a copy takes at the most before its lanes are at their rate.
pub const START_RTTS: f64 = 20.0;

/// What start and end take beside, in seconds: threads, the search for the rate, the disk's last word.
const START_S: f64 = 1.0;

impl Path {
    /// Parts of a file's way and what each does alone, Mbit/s, in the file's order; those that were measured.
    #[must_use]
    pub fn parts_of_way(&self, way: Way) -> Vec<(PartOfWay, f64)> {
        let (sender, receiver) = match way {
            Way::ToServer => (Side::Here, Side::Server),
            Way::FromServer => (Side::Server, Side::Here),
        };
        let disk = |side| self.disks.iter().find(move |disk| disk.side == side);
        let reading = disk(sender).map(|disk| (PartOfWay::Reading(sender), disk.read_mbps));
        let writing = disk(receiver).map(|disk| (PartOfWay::Writing(receiver), disk.write_mbps));
        let tcp = self.tcp.iter().filter(|tcp| tcp.way == way).map(|tcp| tcp.mbps).max_by(f64::total_cmp);
        let network = tcp.map(|mbps| (PartOfWay::Network, mbps));
        [reading, network, writing].into_iter().flatten().collect()
    }

    /// One for each way that was measured.
    pub(crate) fn disk_to_disk_sentences(&self) -> impl Iterator<Item = String> {
        self.disk_to_disk.iter().map(|one| self.disk_to_disk_sentence(one))
    }

    fn disk_to_disk_sentence(&self, one: &DiskToDisk) -> String {
        let parts = self.parts_of_way(one.way);
        let counts = |part: &PartOfWay| !(one.from_memory && matches!(part, PartOfWay::Reading(_)));
        let slowest = parts.iter().filter(|(part, _)| counts(part)).min_by(|a, b| a.1.total_cmp(&b.1));
        let mut text = format!("From disk to disk: {} Mbit/s {}", significant(one.mbps), one.way);
        if let Some((part, mbps)) = slowest.filter(|(_, mbps)| *mbps > 0.0) {
            let (share, part) = (one.mbps / mbps, part.in_words());
            text += &format!(", {:.0} % of the slowest part ({part}).", share * 100.0);
            if share > BEYOND {
                text += " longhaul has more streams, or more threads at the disk, than the test of that part had.";
            } else if share < WELL_BELOW {
                text += self.what_else(one, *mbps);
            }
        } else {
            text.push('.');
        }
        if one.from_memory {
            text += " The sender had the file in its page cache, so its disk had nothing to read.";
        }
        let alone = |(part, mbps): &(PartOfWay, f64)| format!("{} {}", part.in_words(), significant(*mbps));
        let alone: Vec<String> = parts.iter().map(alone).collect();
        if !alone.is_empty() {
            text += &format!(" Each alone, Mbit/s: {}.", alone.join("; "));
        }
        text
    }

    /// Where to look when no part that was measured alone explains the time.
    fn what_else(&self, one: &DiskToDisk, slowest_mbps: f64) -> &'static str {
        let rtt_ms = self.rtt.filter(|rtt| rtt.back > 0).map_or(0.0, |rtt| rtt.median_ms);
        let least_s = one.bytes as f64 * 8e-6 / slowest_mbps;
        if one.seconds - least_s < START_RTTS * rtt_ms / 1e3 + START_S {
            return " The file was short for this path: the start of a copy, some round trips and up to a second, explains that; `--full` \
                    copies a longer one.";
        }
        " No part alone explains that: look at the processors of both hosts while a copy runs (encryption, check sums; `top`), at what else \
         uses the disks then (`iostat -x 1`), and at the lanes (`longhaul cp --trace FILE`)."
    }

    /// None where it was not measured.
    pub(crate) fn disk_to_disk_table(&self) -> Option<Table> {
        let rows: Vec<_> = self.disk_to_disk.iter().map(DiskToDisk::row).collect();
        let caption = "Disk to disk, Mbit/s, one file copied as `longhaul cp` does".to_owned();
        let head = vec!["way", "measured", "MiB", "seconds", "lanes", "read from"];
        (!rows.is_empty()).then_some((caption, head, rows))
    }
}

impl DiskToDisk {
    fn row(&self) -> Vec<String> {
        vec![
            self.way.to_string(),
            significant(self.mbps),
            (self.bytes >> 20).to_string(),
            format!("{:.2}", self.seconds),
            self.lanes.to_string(),
            if self.from_memory { "page cache" } else { "disk" }.to_owned(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::tests::path;
    use crate::path::{Disk, Rtt};

    fn disk(side: Side, write_mbps: f64, read_mbps: f64) -> Disk {
        Disk { side, directory: "/d".to_owned(), write_mbps, read_mbps, direct: true }
    }

    fn copied(mbps: f64) -> DiskToDisk {
        let bytes = 512 << 20;
        let seconds = bytes as f64 * 8e-6 / mbps;
        DiskToDisk { way: Way::ToServer, bytes, seconds, mbps, lanes: 16, from_memory: false }
    }

    fn said(reads: f64, tcp: f64, writes: f64, one: DiskToDisk) -> String {
        let mut path = path();
        path.disks = vec![disk(Side::Server, writes, 1.0), disk(Side::Here, 1.0, reads)];
        path.tcp[0].mbps = tcp;
        path.disk_to_disk = vec![one];
        let said: Vec<_> = path.disk_to_disk_sentences().collect();
        assert_eq!(said.len(), 1);
        assert!(path.sentences().contains(&said[0]));
        said[0].clone()
    }

    #[test]
    fn the_slowest_part_is_named() {
        let text = said(3000.0, 940.0, 2000.0, copied(912.0));
        assert!(
            text.starts_with(
                "From disk to disk: 912 Mbit/s to the server, 97 % of the slowest part (network). "
            ),
            "{text}"
        );
        assert!(
            text.ends_with("disk of this host, read 3000; network 940; disk of the server, written 2000."),
            "{text}"
        );
        assert!(!text.contains("explains") && !text.contains("page cache"), "{text}");
        let text = said(3000.0, 940.0, 500.0, copied(490.0));
        assert!(text.contains("98 % of the slowest part (disk of the server, written)"), "{text}");
        let text = said(100.0, 940.0, 500.0, copied(99.0));
        assert!(text.contains("99 % of the slowest part (disk of this host, read)"), "{text}");
    }

    #[test]
    fn what_no_part_explains_is_said_with_where_to_look() {
        let text = said(3000.0, 2000.0, 2500.0, copied(1000.0));
        assert!(text.contains("50 % of") && text.contains("No part alone explains that"), "{text}");
        let text = said(3000.0, 2000.0, 2500.0, copied(1450.0));
        assert!(!text.contains("explains"), "{text}");
        let text = said(3000.0, 300.0, 2500.0, copied(900.0));
        assert!(text.contains("300 % of the slowest part (network). longhaul has more streams"), "{text}");
        // Some ms of data.
        let short = DiskToDisk { bytes: 10 << 20, seconds: 0.084, ..copied(1000.0) };
        let text = said(30_000.0, 10_000.0, 20_000.0, short);
        assert!(text.contains("10 % of") && text.contains("short for this path"), "{text}");
    }

    #[test]
    fn a_disk_that_had_nothing_to_read_is_not_the_slowest_part() {
        let text = said(100.0, 940.0, 500.0, DiskToDisk { from_memory: true, ..copied(490.0) });
        assert!(
            text.contains("98 % of the slowest part (disk of the server, written). The sender had"),
            "{text}"
        );
    }

    #[test]
    fn without_figures_of_the_parts_nothing_is_compared() {
        let mut path = path();
        (path.disks, path.tcp, path.rtt) = (Vec::new(), Vec::new(), None::<Rtt>);
        path.disk_to_disk = vec![copied(10.0)];
        assert_eq!(
            path.disk_to_disk_sentences().collect::<Vec<_>>(),
            ["From disk to disk: 10.0 Mbit/s to the server."]
        );
    }
}
