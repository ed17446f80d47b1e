//! Whether a disk is the limit of a transfer: it is slower than the network is known to be. Pure.

use longhaul_report::path::{Disk, Limit, Path, Side, Way};

/// Of what the network carries, a disk with less than so much holds it up.
const SLOWER: f64 = 0.9;

/// A disk that holds up a transfer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SlowDisk {
    pub(super) limit: Limit,
    pub(super) evidence: String,
    pub(super) advice: String,
}

/// The slower of the disks that a transfer comes from and goes to, if the network carries more than it.
pub(super) fn slow_disk(path: &Path, way: Way, network_mbps: f64) -> Option<SlowDisk> {
    let (sender, receiver) = match way {
        Way::ToServer => (Side::Here, Side::Server),
        Way::FromServer => (Side::Server, Side::Here),
    };
    let of = |side| path.disks.iter().filter(move |disk| disk.side == side);
    let reads = of(sender).map(|disk| (disk, "reads", disk.read_mbps));
    let writes = of(receiver).map(|disk| (disk, "writes", disk.write_mbps));
    let (disk, does, mbps) = reads.chain(writes).min_by(|one, other| one.2.total_cmp(&other.2))?;
    (mbps < SLOWER * network_mbps).then(|| SlowDisk {
        limit: limit(disk),
        evidence: format!(
            "The disk of {} ({}) {does} {mbps:.1} Mbit/s, and the network carries {network_mbps:.1}.",
            disk.side, disk.directory
        ),
        advice: format!(
            "{}: a faster disk than that of {}, or several under a file system that stripes over them.",
            if disk.side == Side::Here { "On this host" } else { "On the server" },
            disk.directory
        ),
    })
}

fn limit(disk: &Disk) -> Limit {
    match disk.side {
        Side::Here => Limit::DiskHere,
        Side::Server => Limit::DiskThere,
    }
}
