//! Emulated links: their names, and a network that is up for one run.
//!
//! Each run gets a network of its own, so that the emulator's verdict is about that run, no tool inherits what the
//! kernel has learnt about the path from the one before it, and nothing of a run that was cut off is still under way.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use longhaul_report::{Link, Verdict};
use serde::Deserialize;

use crate::pair::{self, Pair};

/// What a link does to packets. Written as `1g-100ms`, `10g-200ms`, `1g-3.3ms-loss0.1%`.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkShape {
    name: String,
    gbit: f64,
    rtt_ms: f64,
    loss_percent: f64,
}

/// The links of the copy benchmark: a region, a country and the world at 1 Gbit/s, a continent at 10, and what loss does.
pub const STANDARD_LINKS: [&str; 7] = [
    "1g-3.3ms",
    "1g-100ms",
    "1g-300ms",
    "10g-200ms",
    "1g-100ms-loss0.01%",
    "1g-100ms-loss0.1%",
    "1g-100ms-loss1%",
];

impl FromStr for LinkShape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!("`{text}` is not a link: write RATEg-RTTms or RATEg-RTTms-lossP%, as 1g-100ms-loss0.1%")
        };
        let number = |text: &str, before: &str, after: &str| -> Option<f64> {
            let number: f64 = text.strip_prefix(before)?.strip_suffix(after)?.parse().ok()?;
            (number.is_finite() && number >= 0.0).then_some(number)
        };
        let parts: Vec<&str> = text.split('-').collect();
        let (rate, rtt, loss) = match parts[..] {
            [rate, rtt] => (rate, rtt, "loss0%"),
            [rate, rtt, loss] => (rate, rtt, loss),
            _ => return Err(bad()),
        };
        let shape = Self {
            name: text.to_owned(),
            gbit: number(rate, "", "g").ok_or_else(bad)?,
            rtt_ms: number(rtt, "", "ms").ok_or_else(bad)?,
            loss_percent: number(loss, "loss", "%").ok_or_else(bad)?,
        };
        if shape.gbit > 0.0 && shape.loss_percent <= 100.0 { Ok(shape) } else { Err(bad()) }
    }
}

impl LinkShape {
    /// As it was written.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Above what a disk of a small machine reads while it writes.
    pub fn is_fast(&self) -> bool {
        self.gbit > 2.0
    }

    /// The least time that it takes to carry so many bytes.
    pub fn time_of(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 * 8.0 / (self.gbit * 1e9))
    }

    fn options(&self, seed: &str) -> Vec<String> {
        let mut options =
            vec!["--rate".into(), format!("{}Gbit", self.gbit), "--rtt".into(), format!("{}ms", self.rtt_ms)];
        if self.loss_percent > 0.0 {
            options.extend(["--loss".into(), format!("{}%", self.loss_percent)]);
        }
        options.extend(["--seed", seed, "--engine", "auto"].map(String::from));
        options
    }

    /// For the record.
    pub fn record(&self) -> Link {
        let words = ["longhaul", "emulate", "up", "NAME"].map(String::from);
        Link {
            name: self.name.clone(),
            rate_bps: (self.gbit * 1e9) as u64,
            rtt_us: (self.rtt_ms * 1e3) as u64,
            loss: self.loss_percent / 100.0,
            command: words.into_iter().chain(self.options("ROUND")).collect(),
        }
    }
}

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// Where data is copied to.
    Near,
    /// Where it is copied from, and servers run.
    Far,
}

impl Host {
    /// As the emulator calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
        }
    }
}

/// What is between the two hosts.
#[derive(Clone, Copy, Debug)]
pub enum Between<'a> {
    /// An emulated link.
    Link(&'a LinkShape),
    /// Nothing: see [`Pair`]. A directory is needed for their names.
    Pair {
        /// Where they find each other's names.
        scratch: &'a Path,
    },
}

impl Between<'_> {
    /// For the record.
    pub fn record(&self) -> Link {
        match self {
            Self::Link(shape) => shape.record(),
            Self::Pair { .. } => Link {
                name: "veth".to_owned(),
                rate_bps: 0,
                rtt_us: 0,
                loss: 0.0,
                command: pair::link_words(),
            },
        }
    }
}

/// A network that is up; it goes down, with all processes on its hosts, when this is dropped.
#[derive(Debug)]
pub struct Network {
    means: Means,
    /// The network namespaces of both hosts, as `/proc` names them.
    namespaces: Vec<PathBuf>,
}

/// What holds a network.
#[derive(Debug)]
enum Means {
    Emulated { longhaul: PathBuf, name: String },
    Pair(Pair),
}

impl Means {
    fn emulated(longhaul: &Path, options: &[String]) -> anyhow::Result<Self> {
        static LINKS: AtomicU32 = AtomicU32::new(0);
        // The name of a link that has just been taken down may be in use for another moment.
        let number = LINKS.fetch_add(1, Ordering::Relaxed);
        let name = format!("bench-{}-{number}", std::process::id());
        let mut up = Command::new(longhaul);
        up.args(["emulate", "up", &name]).args(options);
        checked(&mut up).context("cannot bring up the emulated link")?;
        Ok(Self::Emulated { longhaul: longhaul.to_owned(), name })
    }
}

impl Network {
    /// Brings it up. The same `seed` loses the same packets.
    pub fn up(longhaul: &Path, between: Between<'_>, seed: u32) -> anyhow::Result<Self> {
        let means = match between {
            Between::Link(shape) => Means::emulated(longhaul, &shape.options(&seed.to_string()))?,
            Between::Pair { scratch } => Means::Pair(Pair::up(scratch).context("cannot make two hosts")?),
        };
        Self::of(means)
    }

    /// Brings up a link by options of `longhaul emulate up`.
    pub fn emulated(longhaul: &Path, options: &[String]) -> anyhow::Result<Self> {
        Self::of(Means::emulated(longhaul, options)?)
    }

    fn of(means: Means) -> anyhow::Result<Self> {
        let mut network = Self { means, namespaces: Vec::new() };
        let ours = std::fs::read_link("/proc/self/ns/net")?;
        for host in [Host::Near, Host::Far] {
            let mut ask = network.command(host, &["readlink".into(), "/proc/self/ns/net".into()]);
            let text = String::from_utf8(checked(&mut ask)?.stdout)?;
            let namespace = PathBuf::from(text.trim());
            if namespace == ours {
                bail!("the other host {} is this host", host.name());
            }
            network.namespaces.push(namespace);
        }
        Ok(network)
    }

    /// A command on a host.
    pub fn command(&self, host: Host, words: &[OsString]) -> Command {
        let mut command = self.start_of_command(host);
        if let Means::Emulated { .. } = self.means {
            command.args(as_own_user());
        }
        command.args(words);
        command
    }

    /// A command on a host that may change the host's settings.
    pub fn command_with_rights(&self, host: Host, words: &[OsString]) -> Command {
        let mut command = self.start_of_command(host);
        command.args(words);
        command
    }

    fn start_of_command(&self, host: Host) -> Command {
        match &self.means {
            Means::Emulated { longhaul, name } => {
                let mut command = Command::new(longhaul);
                command.args(["emulate", "exec", name, host.name(), "--"]);
                command
            }
            Means::Pair(pair) => pair.command(host),
        }
    }

    /// The process that carries the packets of an emulated link: the one with the words that `up` gives it.
    pub fn daemon(&self) -> Option<u32> {
        let Means::Emulated { name, .. } = &self.means else { return None };
        let numbers = std::fs::read_dir("/proc").ok()?.flatten();
        numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(|pid: &u32| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = words.split(|byte| *byte == 0).skip(1);
            [b"emulate".as_slice(), b"daemon", name.as_bytes()]
                .into_iter()
                .all(|word| words.next() == Some(word))
        })
    }

    /// What the emulator counts; none between a bare pair.
    pub fn shown(&self) -> anyhow::Result<Option<Shown>> {
        match &self.means {
            Means::Emulated { longhaul, name } => show(longhaul, name).map(Some),
            Means::Pair(_) => Ok(None),
        }
    }

    /// Whether a process is on that host.
    pub fn has_entered(&self, host: Host, pid: u32) -> bool {
        let namespace = match host {
            Host::Near => self.namespaces.first(),
            Host::Far => self.namespaces.get(1),
        };
        std::fs::read_link(format!("/proc/{pid}/ns/net")).ok().as_ref() == namespace
    }

    /// What the emulator says about all that has passed since it came up.
    pub fn verdict(&self) -> Verdict {
        match self.shown() {
            Ok(Some(shown)) => shown.verdict(),
            // Nothing between the hosts that could be late.
            Ok(None) => Verdict { engine: "none".to_owned(), trusted: true, ..Verdict::default() },
            Err(error) => Verdict {
                trusted: false,
                doubts: vec![format!("the emulator does not answer: {error:#}")],
                ..Verdict::default()
            },
        }
    }

    /// Processes on the hosts. Whatever runs in these namespaces was started through them, and only here.
    fn processes(&self) -> Vec<rustix::process::Pid> {
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        numbers
            .filter(|pid| {
                let namespace = std::fs::read_link(format!("/proc/{pid}/ns/net"));
                namespace.is_ok_and(|namespace| self.namespaces.contains(&namespace))
            })
            .filter_map(rustix::process::Pid::from_raw)
            .collect()
    }

    /// Ends what servers have left running for clients that are gone: some leave the group of their server.
    fn end_processes(&self) {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let left = self.processes();
            if left.is_empty() || Instant::now() > deadline {
                return;
            }
            for pid in left {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL); // gone: fine
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.end_processes();
        // A pair goes when it is dropped, after this.
        if let Means::Emulated { longhaul, name } = &self.means
            && let Err(error) = checked(Command::new(longhaul).args(["emulate", "down", name]))
        {
            eprintln!("longhaul: the emulated link stays up: {error:#}");
        }
    }
}

fn show(longhaul: &Path, name: &str) -> anyhow::Result<Shown> {
    let output = checked(Command::new(longhaul).args(["emulate", "show", name, "--json"]))?;
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// What `longhaul emulate show --json` prints, as far as it is kept.
#[derive(Clone, Debug, Deserialize)]
pub struct Shown {
    engine: String,
    /// From `near` to `far`.
    pub forward: Direction,
    /// From `far` to `near`.
    pub backward: Direction,
    doubts: BTreeSet<String>,
}

/// One way.
#[derive(Clone, Debug, Deserialize)]
pub struct Direction {
    /// What has passed.
    pub counters: Counters,
    /// How late packets left.
    pub lateness: Lateness,
}

/// Packets of the wire.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// That came in.
    pub segments: u64,
    /// Lost by the link's own loss.
    pub lost: u64,
    /// Dropped by full queues.
    pub dropped_queue: u64,
    /// That went out.
    pub delivered: u64,
    /// That went out twice.
    pub duplicated: u64,
    /// That overtook others.
    pub reordered: u64,
    /// With a flipped bit.
    pub corrupted: u64,
}

/// Beyond what the link asks for.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Lateness {
    /// Half of all packets were less late.
    pub p50_us: u64,
    p99_us: u64,
}

impl Shown {
    /// For the record.
    pub fn verdict(self) -> Verdict {
        let both = [self.forward, self.backward];
        Verdict {
            engine: self.engine,
            trusted: self.doubts.is_empty(),
            packets_lost: both.iter().map(|d| d.counters.lost).sum(),
            packets_dropped: both.iter().map(|d| d.counters.dropped_queue).sum(),
            late_p99_us: both.iter().map(|d| d.lateness.p99_us).max().unwrap_or(0),
            doubts: self.doubts.into_iter().collect(),
        }
    }
}

/// Without root, a process on an emulated host is root of a user namespace that knows only one user, and servers such as
/// sshd try to become others. One namespace further in it is the user again.
fn as_own_user() -> Vec<OsString> {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return Vec::new();
    }
    let gid = rustix::process::getegid();
    vec![
        "unshare".into(),
        "--user".into(),
        format!("--map-user={}", uid.as_raw()).into(),
        format!("--map-group={}", gid.as_raw()).into(),
        "--".into(),
    ]
}

/// Runs a short command; its error holds its words.
pub fn checked(command: &mut Command) -> anyhow::Result<Output> {
    let name = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("cannot start {name}"))?;
    if !output.status.success() {
        bail!("{name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_links_are_links() {
        for name in STANDARD_LINKS {
            let shape: LinkShape = name.parse().unwrap();
            assert_eq!(shape.name(), name);
        }
        let lossy: LinkShape = "1g-3.3ms-loss0.01%".parse().unwrap();
        let options = lossy.options("7").join(" ");
        assert_eq!(options, "--rate 1Gbit --rtt 3.3ms --loss 0.01% --seed 7 --engine auto");
        let record = lossy.record();
        assert_eq!((record.rate_bps, record.rtt_us), (1_000_000_000, 3300));
        assert!((record.loss - 1e-4).abs() < 1e-12);
        assert!(!lossy.is_fast() && "10g-200ms".parse::<LinkShape>().unwrap().is_fast());
    }

    #[test]
    fn other_words_are_not() {
        for bad in [
            "",
            "1g",
            "1g-100",
            "g-1ms",
            "0g-1ms",
            "1g-1ms-loss101%",
            "1g--1ms",
            "1g-1ms-loss1%-x",
            "nang-1ms",
        ] {
            let error = bad.parse::<LinkShape>().unwrap_err();
            assert!(error.contains("1g-100ms-loss0.1%"), "{error}");
        }
    }

    #[test]
    fn the_emulator_s_report_becomes_a_verdict() {
        let direction = |lost, p99| {
            format!(
                r#"{{"config":{{}},"counters":{{"segments":9,"bytes":9,"lost":{lost},"dropped_queue":2}},"lateness":{{"p50_us":1,"p99_us":{p99},"max_us":9}},"own_drops":0}}"#
            )
        };
        let text = |doubts| {
            format!(
                r#"{{"engine":"TUN","realtime":true,"forward":{},"backward":{},"doubts":{doubts}}}"#,
                direction(3, 40),
                direction(4, 50)
            )
        };
        let good = serde_json::from_str::<Shown>(&text("[]")).unwrap().verdict();
        let expected = Verdict {
            engine: "TUN".to_owned(),
            trusted: true,
            doubts: Vec::new(),
            packets_lost: 7,
            packets_dropped: 4,
            late_p99_us: 50,
        };
        assert_eq!(good, expected);
        let bad = serde_json::from_str::<Shown>(&text(r#"["it stalled"]"#)).unwrap().verdict();
        assert!(!bad.trusted && bad.doubts == ["it stalled"]);
    }
}
