//! How large a file shows what a transfer from disk to disk takes: enough for some seconds, and bounded as what is written to measure a disk.
//! Pure.

use std::time::Duration;

use longhaul_report::path::{Path, START_RTTS, Way};

use crate::limits::{DISK_BYTES_MAX, DISK_FREE_SHARE, FILE_BYTES_MIN, FILE_START_MAX, FILE_STRETCH};

/// Of one file that goes there and comes back; it may be cut in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSizes {
    /// Bytes that go to the server.
    pub to_server: u64,
    /// Of these, bytes that come back.
    pub from_server: u64,
}

/// Why no size can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileSizeError {
    /// Rates are missing.
    #[error("what a disk or TCP {0} does alone was not measured")]
    NotMeasured(Way),
    /// A part of what is free would be too little.
    #[error(
        "only {} MiB are free there, of which a file takes one in {DISK_FREE_SHARE} at the most; it needs {} MiB",
        .0 >> 20,
        FILE_BYTES_MIN >> 20
    )]
    TooSmall(u64),
}

/// Such that it takes `time` each way, and a start over a path of `rtt`, at the rate of the slowest part that was measured; `free` are the
/// bytes of both disks.
///
/// # Errors
/// [`FileSizeError`].
pub fn file_sizes(
    path: &Path,
    time: Duration,
    rtt: Duration,
    free: [u64; 2],
) -> Result<FileSizes, FileSizeError> {
    let free = free[0].min(free[1]);
    let most = (free / DISK_FREE_SHARE).min(DISK_BYTES_MAX);
    if most < FILE_BYTES_MIN {
        return Err(FileSizeError::TooSmall(free));
    }
    let start_s = (START_RTTS * rtt.as_secs_f64()).min(FILE_START_MAX.as_secs_f64());
    let wanted = |way| {
        let parts = path.parts_of_way(way);
        // Two disks and a network: two of them say too little.
        let slowest = parts.iter().map(|(_, mbps)| *mbps).fold(f64::INFINITY, f64::min);
        let bytes = slowest * 1e6 / 8.0 * (time.as_secs_f64() + start_s);
        (parts.len() == 3).then_some(bytes).ok_or(FileSizeError::NotMeasured(way))
    };
    let (there, back) = (wanted(Way::ToServer)?, wanted(Way::FromServer)?);
    let bounded = |bytes: f64| (bytes as u64 >> 20 << 20).clamp(FILE_BYTES_MIN, most >> 20 << 20);
    let to_server = bounded(there.max(back.min(FILE_STRETCH * there)));
    Ok(FileSizes { to_server, from_server: bounded(back).min(to_server) })
}

#[cfg(test)]
mod tests {
    use longhaul_report::Environment;
    use longhaul_report::path::{Disk, Side, Tcp};
    use proptest::prelude::*;

    use super::*;

    const PLENTY: [u64; 2] = [1 << 50; 2];
    const SECOND: Duration = Duration::from_secs(1);
    const MIB: u64 = 1 << 20;

    fn tcp(way: Way, mbps: f64) -> Tcp {
        Tcp {
            way,
            window_bytes: None,
            streams: 1,
            mbps,
            window_mbps: None,
            mathis_mbps: None,
            retransmitted_percent: 0.0,
            rtt_ms: 0.0,
            rwnd_limited_percent: 0.0,
            sndbuf_limited_percent: 0.0,
            cpu: [0.0; 2],
            interrupts: [0.0; 2],
            hosts: [0.0; 2],
        }
    }

    fn disk(side: Side, write_mbps: f64, read_mbps: f64) -> Disk {
        Disk { side, directory: String::new(), write_mbps, read_mbps, direct: true }
    }

    /// Rates of TCP both ways; writing and reading here, and there.
    fn path(tcps: [f64; 2], here: [f64; 2], there: [f64; 2]) -> Path {
        let mut path = Path::new("far", Environment::default());
        path.tcp = vec![tcp(Way::ToServer, 1.0), tcp(Way::ToServer, tcps[0]), tcp(Way::FromServer, tcps[1])];
        path.disks = vec![disk(Side::Here, here[0], here[1]), disk(Side::Server, there[0], there[1])];
        path
    }

    fn sizes(path: &Path, time: Duration, rtt_ms: u64) -> FileSizes {
        file_sizes(path, time, Duration::from_millis(rtt_ms), PLENTY).unwrap()
    }

    fn mib(to_server: u64, from_server: u64) -> FileSizes {
        FileSizes { to_server: to_server * MIB, from_server: from_server * MIB }
    }

    #[test]
    fn the_slowest_part_is_busy_for_the_time_and_a_start() {
        let fast = [4000.0; 2];
        // 1000 Mbit/s are 119.2 MiB a second.
        assert_eq!(sizes(&path([1000.0; 2], fast, fast), 3 * SECOND, 0), mib(357, 357));
        assert_eq!(sizes(&path([1000.0; 2], fast, fast), 3 * SECOND, 100), mib(596, 596));
        // A start is ten seconds at the most.
        assert_eq!(sizes(&path([1000.0; 2], fast, fast), 3 * SECOND, 60_000), mib(1549, 1549));
        // What is read here goes there, and what is read there comes here.
        assert_eq!(sizes(&path(fast, [1000.0, 4000.0], [4000.0, 1000.0]), SECOND, 0), mib(476, 119));
        assert_eq!(sizes(&path(fast, [4000.0, 1000.0], [1000.0, 4000.0]), SECOND, 0), mib(357, 357));
    }

    #[test]
    fn ways_that_differ_have_files_that_do() {
        let fast = [4000.0; 2];
        // The way back is slower: less comes back.
        assert_eq!(sizes(&path([1000.0, 100.0], fast, fast), SECOND, 0), mib(119, 11));
        // The way back is faster: more goes there, but not for ever.
        assert_eq!(sizes(&path([100.0, 200.0], fast, fast), SECOND, 0), mib(23, 23));
        assert_eq!(sizes(&path([100.0, 2000.0], fast, fast), SECOND, 0), mib(35, 35));
    }

    #[test]
    fn a_tenth_of_what_is_free_at_either_end_is_the_most() {
        let path = path([1000.0; 2], [4000.0; 2], [4000.0; 2]);
        for free in [[100 * MIB, 1 << 50], [1 << 50, 100 * MIB]] {
            assert_eq!(file_sizes(&path, SECOND, SECOND, free), Ok(mib(10, 10)));
        }
        let none = file_sizes(&path, SECOND, SECOND, [1 << 50, 9 * MIB]).unwrap_err().to_string();
        assert!(none.starts_with("only 9 MiB are free there"), "{none}");
        let most = file_sizes(&path, 3600 * SECOND, SECOND, PLENTY).unwrap();
        assert_eq!(most.to_server, DISK_BYTES_MAX);
    }

    #[test]
    fn what_was_not_measured_is_not_guessed() {
        let mut path = path([1000.0; 2], [4000.0; 2], [4000.0; 2]);
        path.tcp.retain(|tcp| tcp.way == Way::ToServer);
        let missing = file_sizes(&path, SECOND, SECOND, PLENTY);
        assert_eq!(missing, Err(FileSizeError::NotMeasured(Way::FromServer)));
        path.disks.pop();
        let missing = file_sizes(&path, SECOND, SECOND, PLENTY).unwrap_err().to_string();
        assert_eq!(missing, "what a disk or TCP to the server does alone was not measured");
    }

    proptest! {
        #[test]
        fn bounds_hold_whatever_was_measured(
            rates in prop::array::uniform6(prop_oneof![0.0..1e7, Just(f64::NAN), Just(f64::INFINITY)]),
            free in prop::array::uniform2(any::<u64>()),
            seconds in 0u64..100, rtt_ms in 0u64..100_000,
        ) {
            let [a, b, c, d, e, f] = rates;
            let rtt = Duration::from_millis(rtt_ms);
            if let Ok(sizes) = file_sizes(&path([a, b], [c, d], [e, f]), Duration::from_secs(seconds), rtt, free) {
                prop_assert!(FILE_BYTES_MIN <= sizes.from_server && sizes.from_server <= sizes.to_server);
                prop_assert!(sizes.to_server <= DISK_BYTES_MAX);
                prop_assert!(sizes.to_server <= free[0].min(free[1]) / DISK_FREE_SHARE);
            }
        }
    }
}
