//! The reports' own experiments: which there are, over which links, and what is varied in each. What was published of them is in
//! `longhaul-report`, by the same names.

use std::time::Duration;

/// An experiment that can be made again.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// Short name; its first word is the place.
    pub name: &'static str,
    /// What it is, and of which report.
    pub title: &'static str,
    /// The link, as [`LinkShape`](crate::link::LinkShape) is written.
    pub link: &'static str,
    /// How it is made, and what is different from then.
    pub about: &'static str,
    /// What is measured.
    pub measures: Measures,
}

/// What is measured, and over what.
#[derive(Clone, Copy, Debug)]
pub enum Measures {
    /// The highest load of UDP of which little is lost, by the size of a frame.
    UdpSearch(&'static [u64]),
    /// One load of UDP: bits of frames, preambles and gaps a second, and the size of a frame.
    Udp(u64, u64),
    /// TCP: window and streams.
    Tcp(&'static [(u64, u64)]),
    /// Read and write calls on a mount, by their lengths.
    Files(&'static [u64]),
    /// One file of so many bytes.
    Copy(u64),
    /// The same, from memory, with buffers over time.
    Download(u64),
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

const FRAMES: &[u64] = &[64, 128, 256, 512, 1024, 1280, 1518];
const CALLS: &[u64] = &[8 * KIB, 64 * KIB, MIB, 16 * MIB];

/// JAXA's one window, and what its file system had: 1 MB, and up to 8 streams.
const JAXA_TCP: &[(u64, u64)] = &[
    (128 * KIB, 1),
    (128 * KIB, 4),
    (128 * KIB, 8),
    (256 * KIB, 1),
    (512 * KIB, 1),
    (MIB, 1),
    (MIB, 4),
    (MIB, 8),
];

/// As published, but for 160 streams, which neither program has.
const CERN_TCP: &[(u64, u64)] = &[
    (64 * KIB, 128),
    (128 * KIB, 128),
    (256 * KIB, 4),
    (256 * KIB, 8),
    (256 * KIB, 16),
    (256 * KIB, 32),
    (256 * KIB, 64),
    (256 * KIB, 128),
    (4 * MIB, 12),
    (4 * MIB, 16),
    (4 * MIB, 24),
    (4 * MIB, 30),
    (4 * MIB, 32),
    (8 * MIB, 28),
];

const KEK_TCP: &[(u64, u64)] = &[(256 * KIB, 1), (8 * MIB, 1)];

/// The published six, and below them what most kernels let a program have.
const USADAFOX_TCP: &[(u64, u64)] = &[
    (MIB, 1),
    (2 * MIB, 1),
    (4 * MIB, 1),
    (25_000_000, 1),
    (50_000_000, 1),
    (75_000_000, 1),
    (100_000_000, 1),
    (125_000_000, 1),
    (150_000_000, 1),
];

const TCP_ABOUT: &str = "From memory to memory, both programs by the letters of iperf3 (-w, -P), each with itself at both ends; the slow start does \
    not count. A window is what is asked for as SO_RCVBUF and SO_SNDBUF; Linux gives twice as much, for its own needs, of which a part is \
    window, too.";
const UDP_ABOUT: &str = "Each burst from the near host to the far one; the load is halved between what got through and what did not, at first all \
    that the wire carries. The reports raised it in steps.";
const FILES_ABOUT: &str = "Calls of `longhaul bench io` on mounts, a network, a server and a mount for each round. The reports' program and rival (NFS of \
    2005) were others.";

/// All of them, in the order in which they are made.
pub const ALL: &[Experiment] = &[
    Experiment {
        name: "jaxa-tcp",
        title: "TCP by window and streams, JAXA's direct path (RR-05-004, 2005)",
        link: "1g-3.3ms",
        about: TCP_ABOUT,
        measures: Measures::Tcp(JAXA_TCP),
    },
    Experiment {
        name: "jaxa-udp",
        title: "UDP by frame size, JAXA's direct path (RR-05-004, 2005)",
        link: "1g-3.3ms",
        about: UDP_ABOUT,
        measures: Measures::UdpSearch(FRAMES),
    },
    Experiment {
        name: "jaxa-files",
        title: "File I/O by the length of a call, JAXA's direct path (RR-05-004, 2005)",
        link: "1g-3.3ms",
        about: FILES_ABOUT,
        measures: Measures::Files(CALLS),
    },
    Experiment {
        name: "vpn-tcp",
        title: "TCP by window and streams, JAXA's path through a VPN (RR-05-004, 2005)",
        link: "1g-4ms",
        about: "As on the direct path; the link has the VPN's RTT, and nothing of what its boxes could not carry.",
        measures: Measures::Tcp(&[(128 * KIB, 1), (256 * KIB, 1), (MIB, 1), (MIB, 8)]),
    },
    Experiment {
        name: "vpn-files",
        title: "File I/O by the length of a call, JAXA's path through a VPN (RR-05-004, 2005)",
        link: "1g-4ms",
        about: FILES_ABOUT,
        measures: Measures::Files(CALLS),
    },
    Experiment {
        name: "cern-udp",
        title: "UDP, Tokyo-CERN (ICEPP, 2004)",
        link: "1g-300ms",
        about: "One load, 1000 Mbit/s with all framing, in packets of 1470 bytes; theirs was as much without framing, more than the wire \
            carries.",
        measures: Measures::Udp(1_000_000_000, 1516),
    },
    Experiment {
        name: "cern-tcp",
        title: "TCP by window and streams, Tokyo-CERN (ICEPP, 2004)",
        link: "1g-300ms",
        about: TCP_ABOUT,
        measures: Measures::Tcp(CERN_TCP),
    },
    Experiment {
        name: "cern-copy",
        title: "disk to disk, Tokyo-CERN (ICEPP, 2004)",
        link: "1g-300ms",
        about: "One file; no figure of bbftp was published for this path.",
        measures: Measures::Copy(1 << 30),
    },
    Experiment {
        name: "kek-udp",
        title: "UDP, Tokyo-KEK (ICEPP, 2004)",
        link: "1g-3ms",
        about: "One load, 1000 Mbit/s with all framing, in packets of 1470 bytes.",
        measures: Measures::Udp(1_000_000_000, 1516),
    },
    Experiment {
        name: "kek-tcp",
        title: "TCP by window, Tokyo-KEK (ICEPP, 2004)",
        link: "1g-3ms",
        about: TCP_ABOUT,
        measures: Measures::Tcp(KEK_TCP),
    },
    Experiment {
        name: "kek-copy",
        title: "disk to disk, Tokyo-KEK (ICEPP, 2004)",
        link: "1g-3ms",
        about: "One file; the published figures are bbftp's, from one PC on each side and from several.",
        measures: Measures::Copy(1 << 30),
    },
    Experiment {
        name: "usadafox-tcp",
        title: "one stream by its socket's buffer, UsadaFox (2010)",
        link: "10g-200ms",
        about: TCP_ABOUT,
        measures: Measures::Tcp(USADAFOX_TCP),
    },
    Experiment {
        name: "usadafox-download",
        title: "a download at 10 Gbit/s x 200 ms, and its buffers over time, UsadaFox (2010)",
        link: "10g-200ms",
        about: "Theirs was one TCP stream into a browser; longhaul has no browser's download yet: it is `longhaul cp` of one file from the far \
            host's memory to this one's disk, as are scp and rsync.",
        measures: Measures::Download(2 << 30),
    },
];

/// Those whose name is wanted; a place or a kind alone names all of it. None named: all.
///
/// # Errors
/// A name that is of none.
pub fn wanted(names: &[String]) -> Result<Vec<&'static Experiment>, String> {
    let is_named = |experiment: &Experiment, name: &str| {
        experiment.name == name || experiment.name.split('-').any(|word| word == name)
    };
    if let Some(unknown) = names.iter().find(|name| !ALL.iter().any(|each| is_named(each, name))) {
        let all: Vec<&str> = ALL.iter().map(|each| each.name).collect();
        return Err(format!("there is no experiment `{unknown}`: one of {}", all.join(", ")));
    }
    let is_wanted = |each: &&Experiment| names.is_empty() || names.iter().any(|name| is_named(each, name));
    Ok(ALL.iter().filter(is_wanted).collect())
}

/// Time in which slow start is over, and then some: ten doublings of what is in flight.
#[must_use]
pub fn omitted(rtt: Duration) -> u64 {
    (rtt * 10).as_secs_f64().ceil().max(1.0) as u64
}

/// Loads to try, from the first on: the wire's whole rate, then the middle of what is known to pass and what is not.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    passes: f64,
    fails: f64,
    left: u32,
    next: f64,
}

impl Search {
    /// Steps after the first: within 1/16 of the wire's rate.
    const STEPS: u32 = 4;

    /// Up to `rate`.
    #[must_use]
    pub fn up_to(rate: f64) -> Self {
        Self { passes: 0.0, fails: rate, left: Self::STEPS + 1, next: rate }
    }

    /// The load to try, if any is left.
    pub fn load(&mut self) -> Option<f64> {
        self.left = self.left.checked_sub(1)?;
        Some(self.next)
    }

    /// What became of it.
    pub fn found(&mut self, passes: bool) {
        if passes {
            self.passes = self.next;
        } else {
            self.fails = self.next;
        }
        if self.passes >= self.fails {
            self.left = 0;
        }
        self.next = f64::midpoint(self.passes, self.fails);
    }
}

#[cfg(test)]
mod tests {
    use longhaul_report::published::Site;

    use super::*;

    #[test]
    fn every_experiment_has_its_place_and_a_link() {
        for each in ALL {
            assert!(Site::of(each.name).is_some(), "{}", each.name);
            assert!(each.link.parse::<crate::link::LinkShape>().is_ok(), "{}", each.link);
        }
        let mut names: Vec<&str> = ALL.iter().map(|each| each.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }

    #[test]
    fn what_was_published_is_measured() {
        for each in ALL {
            let (Some(site), Measures::Tcp(grid)) = (Site::of(each.name), each.measures) else { continue };
            for figure in site.tcp().iter().filter(|figure| figure.streams <= 128) {
                assert!(grid.contains(&(figure.window_bytes, figure.streams)), "{}: {figure:?}", each.name);
            }
        }
    }

    #[test]
    fn names_are_whole_or_a_part() {
        let names = |words: &[&str]| -> Vec<&str> {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            wanted(&words).unwrap().iter().map(|each| each.name).collect()
        };
        assert_eq!(names(&["kek"]), ["kek-udp", "kek-tcp", "kek-copy"]);
        assert_eq!(names(&["jaxa-tcp", "download"]), ["jaxa-tcp", "usadafox-download"]);
        assert_eq!(names(&[]).len(), ALL.len());
        assert!(wanted(&["nasa".to_owned()]).unwrap_err().contains("jaxa-tcp"));
    }

    #[test]
    fn the_load_is_halved_between_what_passes_and_what_does_not() {
        let tried = |limit: f64| {
            let (mut search, mut all) = (Search::up_to(16.0), Vec::new());
            while let Some(load) = search.load() {
                all.push(load);
                search.found(load <= limit);
            }
            all
        };
        assert_eq!(tried(20.0), [16.0]);
        assert_eq!(tried(5.5), [16.0, 8.0, 4.0, 6.0, 5.0]);
        assert_eq!(tried(0.0).len(), 5);
    }

    #[test]
    fn slow_start_is_over_when_it_counts() {
        assert_eq!(omitted(Duration::from_millis(300)), 3);
        assert_eq!(omitted(Duration::from_micros(3300)), 1);
    }
}
