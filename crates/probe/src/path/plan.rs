//! What a whole measurement has.

use std::path::PathBuf;
use std::time::Duration;

/// What is to be measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Packets for round-trip times at rest, ten milliseconds apart.
    pub pings: u32,
    /// Ethernet frames of UDP, in bytes, check sum included; longer ones than the path takes are left out.
    pub frames: Vec<u32>,
    /// A burst that counts; those of the search are shorter.
    pub burst: Duration,
    /// A share of what is sent that is too much when it does not arrive.
    pub loss_max: f64,
    /// Windows of TCP; `None`: the kernels'.
    pub windows: Vec<Option<u64>>,
    /// Streams of TCP at a time.
    pub streams: Vec<u32>,
    /// Of each test of TCP.
    pub tcp_time: Duration,
    /// Of TCP.
    pub congestion: Option<String>,
    /// Congestion controls of TCP that are compared, with the kernels' windows.
    pub controls: Vec<String>,
    /// Rates at which streams of TCP are paced, all together, in percent of what the path carries.
    pub pacing: Vec<f64>,
    /// How long a disk is written, and read.
    pub disk_time: Duration,
    /// A directory of this host whose disk is measured, as the user has named it.
    pub disk_here: Option<PathBuf>,
    /// A directory of the server, in an export; over ssh, of the user's own there.
    pub disk_there: Option<PathBuf>,
    /// Steps that its maker takes afterwards, which are counted with its own.
    pub steps_after: usize,
}

/// RFC 2544, 9.1, and the usual jumbo frame.
const FRAMES: [u32; 8] = [64, 128, 256, 512, 1024, 1280, 1518, 9018];

/// From where nothing should be lost to where a queue fills, close together around the capacity.
const PACING: [f64; 6] = [50.0, 80.0, 90.0, 95.0, 100.0, 110.0];

impl Plan {
    /// The least that a verdict needs. Each burst takes some round trips more.
    #[must_use]
    pub fn quick() -> Self {
        Self {
            pings: 60,
            frames: vec![1518],
            burst: Duration::from_millis(700),
            loss_max: 0.05,
            windows: vec![None],
            streams: vec![1, 8],
            tcp_time: Duration::from_millis(1500),
            congestion: None,
            controls: Vec::new(),
            pacing: Vec::new(),
            disk_time: Duration::from_millis(1500),
            disk_here: None,
            disk_there: None,
            steps_after: 0,
        }
    }

    /// One to two minutes.
    #[must_use]
    pub fn usual() -> Self {
        Self {
            pings: 100,
            frames: vec![64, 512, 1518, 9018],
            burst: Duration::from_secs(1),
            windows: vec![Some(256 << 10), Some(4 << 20), None],
            tcp_time: Duration::from_secs(4),
            disk_time: Duration::from_secs(3),
            ..Self::quick()
        }
    }

    /// All frame sizes, windows and streams, and pacing, with bursts of three seconds.
    #[must_use]
    pub fn full() -> Self {
        Self {
            frames: FRAMES.to_vec(),
            burst: Duration::from_secs(3),
            windows: vec![Some(256 << 10), Some(1 << 20), Some(4 << 20), Some(16 << 20), None],
            streams: vec![1, 4, 8],
            tcp_time: Duration::from_secs(5),
            pacing: PACING.to_vec(),
            disk_time: Duration::from_secs(5),
            ..Self::usual()
        }
    }

    /// The least and the most streams at a time.
    pub(super) fn few_and_many(&self) -> Vec<u32> {
        let mut ends: Vec<u32> =
            self.streams.iter().min().into_iter().chain(self.streams.iter().max()).copied().collect();
        ends.dedup();
        ends
    }

    /// How many are told of.
    #[must_use]
    pub fn steps(&self) -> usize {
        let disks = usize::from(self.disk_here.is_some()) + usize::from(self.disk_there.is_some());
        let controls = self.controls.len() * self.few_and_many().len();
        let tcp = self.windows.len() * self.streams.len() + controls + self.pacing.len();
        2 + 2 * (self.frames.len() + tcp) + disks + self.steps_after
    }
}
