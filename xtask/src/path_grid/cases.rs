//! Which links are measured, and what is right to say of them.

use longhaul_report::path::Limit;

use crate::link::Host;

/// A link, what is changed on its hosts, and what is known of it.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) link: Link,
    /// Of the kernel on both hosts, by sysctl(8).
    pub(super) settings: &'static [&'static str],
    /// More words of `longhaul probe`.
    pub(super) words: &'static [&'static str],
    /// The server has to share a core with a busy loop that goes first.
    pub(super) server_starves: bool,
    /// The host whose disk is measured, and slow.
    pub(super) slow_disk: Option<Host>,
    pub(super) expected: Expected,
}

/// What is between the hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Link {
    Emulated {
        mbps: f64,
        rtt_ms: f64,
        loss_percent: f64,
        /// As `longhaul emulate` takes it.
        queue: &'static str,
        /// What that would hold passes at once, and nothing waits.
        is_policed: bool,
    },
    /// A bare pair of interfaces.
    Pair,
}

impl Link {
    const fn plain(mbps: f64, rtt_ms: f64) -> Self {
        Self::queued(mbps, rtt_ms, "1bdp")
    }

    const fn lossy(mbps: f64, rtt_ms: f64, loss_percent: f64) -> Self {
        Self::Emulated { mbps, rtt_ms, loss_percent, queue: "1bdp", is_policed: false }
    }

    const fn queued(mbps: f64, rtt_ms: f64, queue: &'static str) -> Self {
        Self::Emulated { mbps, rtt_ms, loss_percent: 0.0, queue, is_policed: false }
    }

    const fn policed(mbps: f64, rtt_ms: f64, queue: &'static str) -> Self {
        Self::Emulated { mbps, rtt_ms, loss_percent: 0.0, queue, is_policed: true }
    }

    /// Words of `longhaul emulate up`; none for a pair.
    pub(super) fn options(self) -> Vec<String> {
        let Self::Emulated { mbps, rtt_ms, loss_percent, queue, is_policed } = self else {
            return Vec::new();
        };
        let mut words = vec![
            "--rate".to_owned(),
            format!("{mbps}Mbit"),
            "--rtt".to_owned(),
            format!("{rtt_ms}ms"),
            "--queue".to_owned(),
            queue.to_owned(),
        ];
        if loss_percent > 0.0 {
            words.extend(["--loss".to_owned(), format!("{loss_percent}%")]);
        }
        if is_policed {
            words.extend(["--aqm", "policer"].map(str::to_owned));
        }
        words
    }
}

/// What the measurement is compared with.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expected {
    /// Round-trip time, rate and loss are those of the link.
    Figures,
    /// The limit, both ways, is one of these, with or without bufferbloat.
    Verdict { limits: &'static [Limit], bufferbloat: bool },
}

/// A link's own figures, without anything that would hold up TCP alone.
const GRID: [Link; 14] = [
    Link::plain(10.0, 1.0),
    Link::plain(10.0, 50.0),
    Link::queued(10.0, 20.0, "8bdp"),
    Link::plain(100.0, 3.3),
    Link::plain(100.0, 20.0),
    Link::lossy(100.0, 20.0, 1.0),
    Link::lossy(100.0, 50.0, 0.1),
    Link::queued(100.0, 50.0, "4bdp"),
    Link::plain(300.0, 20.0),
    Link::lossy(300.0, 50.0, 0.1),
    Link::plain(300.0, 200.0),
    Link::plain(1000.0, 3.3),
    Link::plain(1000.0, 100.0),
    Link::lossy(1000.0, 20.0, 0.1),
];

/// Buffers of half a BDP of the slowest path below, and Linux's own.
const SMALL_BUFFERS: &[&str] =
    &["net.ipv4.tcp_rmem=4096 131072 1048576", "net.ipv4.tcp_wmem=4096 16384 1048576"];
const USUAL_BUFFERS: &[&str] =
    &["net.ipv4.tcp_rmem=4096 131072 6291456", "net.ipv4.tcp_wmem=4096 16384 4194304"];
const LARGE_BUFFERS: &[&str] =
    &["net.ipv4.tcp_rmem=4096 131072 134217728", "net.ipv4.tcp_wmem=4096 131072 134217728"];

/// Of a long link without loss that one stream shall fill.
const ALL: &[Labelled] = &[
    Labelled::new("window-small", Link::plain(1000.0, 100.0), SMALL_BUFFERS, &[], &[Limit::Window]),
    Labelled::new("window-usual", Link::plain(1000.0, 200.0), USUAL_BUFFERS, &[], &[Limit::Window]),
    Labelled::new(
        "loss-cubic",
        Link::lossy(100.0, 50.0, 1.0),
        LARGE_BUFFERS,
        &["-C", "cubic"],
        &[Limit::Loss],
    ),
    Labelled::new("loss-reno", Link::lossy(300.0, 50.0, 1.0), LARGE_BUFFERS, &["-C", "reno"], &[Limit::Loss]),
    Labelled::new("rate-100m", Link::plain(100.0, 20.0), LARGE_BUFFERS, &["-C", "cubic"], &[Limit::Rate]),
    Labelled::new("rate-20m", Link::plain(20.0, 30.0), LARGE_BUFFERS, &["-C", "cubic"], &[Limit::Rate]),
    Labelled {
        bufferbloat: true,
        ..Labelled::new(
            "bloat-20m",
            Link::queued(20.0, 20.0, "10bdp"),
            LARGE_BUFFERS,
            &["-C", "cubic"],
            &[Limit::Rate],
        )
    },
    Labelled {
        bufferbloat: true,
        ..Labelled::new(
            "bloat-10m",
            Link::queued(10.0, 50.0, "6bdp"),
            LARGE_BUFFERS,
            &["-C", "cubic"],
            &[Limit::Rate],
        )
    },
    Labelled::new(
        "policer-100m",
        Link::policed(100.0, 20.0, "50p"),
        LARGE_BUFFERS,
        &["-C", "cubic"],
        &[Limit::Policer],
    ),
    Labelled::new(
        "policer-300m",
        Link::policed(300.0, 5.0, "200p"),
        LARGE_BUFFERS,
        &["-C", "cubic"],
        &[Limit::Policer],
    ),
    Labelled {
        server_starves: true,
        ..Labelled::new("cpu-server", Link::Pair, &[], &[], &[Limit::CpuThere])
    },
    Labelled::new("cpu-pair", Link::Pair, &[], &[], &[Limit::CpuHere, Limit::CpuThere]),
    Labelled {
        slow_disk: Some(Host::Near),
        ..Labelled::new(
            "disk-here",
            Link::plain(100.0, 20.0),
            LARGE_BUFFERS,
            &["-C", "cubic"],
            &[Limit::DiskHere],
        )
    },
    Labelled {
        slow_disk: Some(Host::Far),
        ..Labelled::new(
            "disk-server",
            Link::plain(100.0, 20.0),
            LARGE_BUFFERS,
            &["-C", "cubic"],
            &[Limit::DiskThere],
        )
    },
];

/// A case of the verdict.
struct Labelled {
    name: &'static str,
    link: Link,
    settings: &'static [&'static str],
    words: &'static [&'static str],
    limits: &'static [Limit],
    bufferbloat: bool,
    server_starves: bool,
    slow_disk: Option<Host>,
}

impl Labelled {
    const fn new(
        name: &'static str,
        link: Link,
        settings: &'static [&'static str],
        words: &'static [&'static str],
        limits: &'static [Limit],
    ) -> Self {
        Self {
            name,
            link,
            settings,
            words,
            limits,
            bufferbloat: false,
            server_starves: false,
            slow_disk: None,
        }
    }
}

/// All of them: the grid, and then those with a verdict.
pub(super) fn cases() -> Vec<Case> {
    let figures = GRID.iter().map(|link| Case {
        name: grid_name(*link),
        link: *link,
        settings: LARGE_BUFFERS,
        words: &[],
        server_starves: false,
        slow_disk: None,
        expected: Expected::Figures,
    });
    let verdicts = ALL.iter().map(|one| Case {
        name: one.name.to_owned(),
        link: one.link,
        settings: one.settings,
        words: one.words,
        server_starves: one.server_starves,
        slow_disk: one.slow_disk,
        expected: Expected::Verdict { limits: one.limits, bufferbloat: one.bufferbloat },
    });
    figures.chain(verdicts).collect()
}

fn grid_name(link: Link) -> String {
    let Link::Emulated { mbps, rtt_ms, loss_percent, queue, .. } = link else { return "pair".to_owned() };
    let mut name = format!("{mbps}m-{rtt_ms}ms");
    if loss_percent > 0.0 {
        name += &format!("-loss{loss_percent}%");
    }
    if queue != "1bdp" {
        name += &format!("-queue{queue}");
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_the_grid_is_large_enough() {
        let all = cases();
        let mut names: Vec<_> = all.iter().map(|case| case.name.clone()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len());
        assert!(all.iter().filter(|case| case.expected == Expected::Figures).count() >= 12);
    }

    #[test]
    fn a_link_in_words_of_the_emulator() {
        let link = Link::lossy(100.0, 3.3, 0.1);
        assert_eq!(link.options().join(" "), "--rate 100Mbit --rtt 3.3ms --queue 1bdp --loss 0.1%");
        assert_eq!(grid_name(link), "100m-3.3ms-loss0.1%");
        assert_eq!(grid_name(Link::queued(10.0, 20.0, "8bdp")), "10m-20ms-queue8bdp");
        let policed = Link::policed(10.0, 5.0, "20p").options().join(" ");
        assert_eq!(policed, "--rate 10Mbit --rtt 5ms --queue 20p --aqm policer");
        assert!(Link::Pair.options().is_empty());
    }
}
