//! The kernel's own emulator, netem, between the hosts: so that this crate's model can be compared with it.
//!
//! Each direction has one or two qdiscs on the router's device to the receiver: at the root the *path* (delay, jitter,
//! loss, duplication, reordering), and where there is a rate, in it, the *wire* (rate, and a queue of so many packets).
//! A packet passes the path first: netem hands packets to its child when they are due. The other way round, many kernels
//! would count packets on their way as packets in the queue. With a constant delay both orders give the same times.
//!
//! [`Qdiscs::of`] is pure: from a link's settings to the words that `tc` is given, or the option for which netem has no
//! counterpart. Every word is given each time: what `tc qdisc change` is not told stays as it was.

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;

use crate::delay::{Jitter, Shape};
use crate::dice::Probability;
use crate::limits::{ETHERNET_OVERHEAD_BYTES, FULL_PACKET_BYTES, HELD_PACKETS_MAX};
use crate::link::{Counters, LinkConfig, LinkPair};
use crate::loss::LossModel;
use crate::namespace::{Namespace, NamespaceError};
use crate::processors::Processors;
use crate::report::{DirectionReport, Lateness, Report};

/// The engine's name in reports.
const NAME: &str = "netem, lateness unknown";

/// Why netem does not do what a link needs.
#[derive(Debug, thiserror::Error)]
pub enum NetemError {
    /// A setting that it does not know.
    #[error("`{option}` has no counterpart in netem: {why}; leave it out, or use `--engine split`")]
    NoCounterpart {
        /// As on the command line.
        option: &'static str,
        /// What netem has instead.
        why: &'static str,
    },
    /// The kernel has none.
    #[error(
        "this kernel has no netem (sch_netem): {0}; load it with `modprobe sch_netem` if it is a module, or use \
         `--engine split`"
    )]
    NoNetem(String),
    /// There is nothing to speak to it with.
    #[error(
        "cannot start `tc` to speak to the kernel's netem: {0}; install iproute2, or use `--engine split`"
    )]
    NoTc(io::Error),
    /// Anything else.
    #[error("cannot use the kernel's netem: `tc {words}`: {said}; `--engine split` does without")]
    Tc {
        /// The command.
        words: String,
        /// Its answer.
        said: String,
    },
    /// The delays' distribution could not be given to `tc`.
    #[error("cannot write the distribution of delays for `tc`: {0}")]
    Table(io::Error),
    /// The router's namespace.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
}

/// The words that describe one direction to `tc qdisc`, after device and place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qdiscs {
    /// Of the one at the root.
    path: Vec<String>,
    /// Of the one in it.
    wire: Option<Vec<String>>,
    /// The distribution that `path` calls `jitter`, as `tc` reads it.
    table: Option<String>,
}

/// What the kernel's length of a packet on a veth device lacks of Ethernet's overhead: the device counts 14 bytes of header.
const OVERHEAD_BEYOND_DEVICE: u32 = ETHERNET_OVERHEAD_BYTES - 14;

/// A rate keeps netem's packets in order, which a delay that varies alone does not; at this one it does nothing else: a
/// full packet takes 12 ns.
const RATE_FOR_ORDER: &str = "1tbit";

/// Samples of a distribution: at most 16,384 fit in netem, `tc` itself brings 4096.
const TABLE_SAMPLES: usize = 8192;

/// netem's unit of a deviation of 1; samples have 16 bits, so none exceeds 4.
const TABLE_SCALE: f64 = 8192.0;

/// Just below it.
const TABLE_DEVIATION_MAX: f64 = 3.999;

impl Qdiscs {
    /// For a link with these settings.
    ///
    /// # Errors
    /// [`NetemError::NoCounterpart`].
    pub fn of(config: &LinkConfig) -> Result<Self, NetemError> {
        // By name, each: a setting that is new to the link needs a word here.
        let LinkConfig {
            delay,
            jitter,
            rate_bps,
            queue_bytes,
            queue_packets,
            aqm,
            loss,
            corrupt,
            duplicate,
            reorder,
            outage,
            trace,
        } = config;
        let none = |option, why| Err(NetemError::NoCounterpart { option, why });
        if corrupt.is_possible() {
            return none("--corrupt", "it flips bits anywhere in a packet, where checksums see them");
        }
        if outage.is_some() {
            return none("--outage", "it has no schedule");
        }
        if trace.is_some() {
            return none("--trace", "its settings stay as they are");
        }
        if aqm.is_some() {
            return none("--aqm", "its own queue is drop-tail");
        }
        if duplicate.is_possible() && rate_bps.is_some() {
            return none(
                "--duplicate with --rate",
                "the kernel takes no qdisc of netem in one that duplicates",
            );
        }
        let mut path = words("netem limit");
        path.push(HELD_PACKETS_MAX.to_string());
        path.extend(delay_words(*delay, jitter.as_ref()));
        path.extend(loss_words(loss)?);
        if duplicate.is_possible() {
            path.extend(["duplicate".to_owned(), percent(*duplicate)]);
        }
        if let Some(reorder) = reorder {
            if rate_bps.is_some() {
                return none("--reorder with --rate", "what overtakes others there is not held to the rate");
            }
            if reorder.gap.get() > 1 && !reorder.probability.is_certain() {
                return none(
                    "--reorder with both a share and a gap",
                    "it begins to count anew with each packet that overtakes",
                );
            }
            // Where nothing is delayed there is nobody to overtake, and `tc` refuses.
            if !delay.is_zero() || jitter.is_some() {
                path.extend(["reorder".to_owned(), percent(reorder.probability)]);
                path.extend(["gap".to_owned(), reorder.gap.to_string()]);
            }
        }
        let queue = match (queue_packets, queue_bytes) {
            (Some(packets), _) => packets.get(),
            (None, Some(bytes)) => (bytes / FULL_PACKET_BYTES).max(1),
            (None, None) => u64::from(HELD_PACKETS_MAX),
        };
        let queue = queue.min(HELD_PACKETS_MAX.into());
        Ok(Self {
            path,
            wire: rate_bps.map(|rate| words(&format!("netem limit {queue} rate {rate}bit"))),
            table: jitter.as_ref().map(|jitter| table(&jitter.shape)),
        })
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// With as many digits as netem's 32 bits hold.
fn percent(p: Probability) -> String {
    format!("{:.9}%", p.get() * 100.0)
}

fn microseconds(time: Duration) -> String {
    format!("{:.3}us", time.as_secs_f64() * 1e6)
}

fn delay_words(delay: Duration, jitter: Option<&Jitter>) -> Vec<String> {
    let Some(jitter) = jitter else { return words(&format!("delay {} rate 0bit", microseconds(delay))) };
    // `tc` refuses a distribution around 0.
    let delay = microseconds(delay.max(Duration::from_micros(1)));
    let spread = microseconds(jitter.spread.mul_f64(stretch(&jitter.shape)));
    let correlation = percent(jitter.correlation);
    let rate = if jitter.overtakes { "0bit" } else { RATE_FOR_ORDER };
    words(&format!("delay {delay} {spread} {correlation} distribution jitter rate {rate}"))
}

fn loss_words(loss: &LossModel) -> Result<Vec<String>, NetemError> {
    let with = |model: &str, numbers: &[Probability]| {
        words(model).into_iter().chain(numbers.iter().map(|p| percent(*p))).collect()
    };
    Ok(match *loss {
        _ if !loss.is_possible() => Vec::new(),
        LossModel::Random(p) => with("loss random", &[p]),
        LossModel::GilbertElliott { fail, recover, bad, good } => {
            with("loss gemodel", &[fail, recover, bad, good])
        }
        LossModel::Markov { p13, p31, p32, p23, p14 } => with("loss state", &[p13, p31, p32, p23, p14]),
        LossModel::Burst { .. } => {
            return Err(NetemError::NoCounterpart {
                option: "--loss burst",
                why: "its bursts have no fixed length",
            });
        }
    })
}

/// The distribution's value below which a share `u` of all lies, in units of its spread.
fn quantile(shape: &Shape, u: f64) -> f64 {
    shape.quantile(u).unwrap_or_else(|| {
        // The normal distribution: its integral rises, so that halving an interval finds the value.
        let (mut low, mut high) = (-40.0, 40.0);
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            let below = libm::erfc(-middle / std::f64::consts::SQRT_2) / 2.0;
            if below < u { low = middle } else { high = middle }
        }
        low
    })
}

fn samples(shape: &Shape) -> impl Iterator<Item = f64> + '_ {
    (0..TABLE_SAMPLES).map(|i| quantile(shape, (i as f64 + 0.5) / TABLE_SAMPLES as f64))
}

/// By how much a distribution's spread is multiplied, and its samples divided, so that they have room in 16 bits.
fn stretch(shape: &Shape) -> f64 {
    samples(shape).fold(1.0, |most, sample| most.max(sample.abs() / TABLE_DEVIATION_MAX))
}

/// All shapes go by a table, the even one too: a table that was given once cannot be taken back.
fn table(shape: &Shape) -> String {
    let stretch = stretch(shape);
    let line = |sample: f64| format!("{}\n", (sample / stretch * TABLE_SCALE).round() as i16);
    samples(shape).map(line).collect()
}

/// Whether netem does what a link needs.
pub(crate) fn check(link: &LinkPair) -> Result<(), NetemError> {
    if !link.rules.is_empty() {
        let why = "its qdiscs here are not told packets apart";
        return Err(NetemError::NoCounterpart { option: "a rule", why });
    }
    Qdiscs::of(&link.forward)?;
    Qdiscs::of(&link.backward)?;
    Ok(())
}

/// Both directions in the router, running.
#[derive(Debug)]
pub(crate) struct Netem {
    /// What they are called.
    ways: [String; 2],
    router: Namespace,
    sides: Mutex<[Side; 2]>,
    processors: Option<Processors>,
}

/// One direction.
#[derive(Debug)]
struct Side {
    /// The router's device to the receiver.
    device: &'static str,
    config: LinkConfig,
    has_wire: bool,
    drops: PathDrops,
}

/// Packets that the path dropped. netem has one count for those it was to lose and those it had no room for: which they were
/// is known from the settings in force.
#[derive(Clone, Copy, Debug, Default)]
struct PathDrops {
    seen: u64,
    lost: u64,
    own: u64,
}

impl PathDrops {
    fn note(&mut self, seen: u64, loss: &LossModel) {
        let fresh = seen.saturating_sub(self.seen);
        self.seen = seen;
        *(if loss.is_possible() { &mut self.lost } else { &mut self.own }) += fresh;
    }
}

impl Netem {
    /// In `router`, whose devices to the receivers of both directions are given.
    pub(crate) fn start(
        router: Namespace,
        devices: [&'static str; 2],
        ways: [String; 2],
        link: LinkPair,
    ) -> Result<Self, NetemError> {
        let [forward, backward] = [link.forward, link.backward];
        let side = |device, config| Side { device, config, has_wire: false, drops: PathDrops::default() };
        let mut sides = [side(devices[0], forward), side(devices[1], backward)];
        for side in &mut sides {
            let qdiscs = Qdiscs::of(&side.config)?;
            side.install("add", &router, &qdiscs)?;
        }
        Ok(Self { ways, router, sides: Mutex::new(sides), processors: Processors::now() })
    }

    /// Changes the link in place: packets on their way keep their times.
    pub(crate) fn set(&self, link: LinkPair) -> Result<(), NetemError> {
        let configs = [link.forward, link.backward];
        // Neither direction is touched for a link that cannot be.
        let both = [Qdiscs::of(&configs[0])?, Qdiscs::of(&configs[1])?];
        let mut sides = self.sides.lock().unwrap_or_else(PoisonError::into_inner);
        for ((side, config), qdiscs) in sides.iter_mut().zip(configs).zip(both) {
            side.read(&self.router)?;
            side.install("change", &self.router, &qdiscs)?;
            side.config = config;
        }
        Ok(())
    }

    pub(crate) fn report(&self) -> Result<Report, NetemError> {
        let mut sides = self.sides.lock().unwrap_or_else(PoisonError::into_inner);
        let [forward, backward] = &mut *sides;
        let [forward, backward] = [forward.report(&self.router)?, backward.report(&self.router)?];
        let stolen = self.processors.and_then(Processors::stolen);
        Ok(Report::new(NAME, &self.ways, false, stolen, forward, backward))
    }
}

impl Side {
    /// Gives the device its qdiscs; `verb` is for the one at the root.
    fn install(&mut self, verb: &str, router: &Namespace, qdiscs: &Qdiscs) -> Result<(), NetemError> {
        let wire = |verb| words(&format!("qdisc {verb} dev {} parent 1: handle 2:", self.device));
        // First, in case that the path shall duplicate from now on.
        if self.has_wire && qdiscs.wire.is_none() {
            run_tc(router, &wire("delete"), None)?;
        }
        let stab = OVERHEAD_BEYOND_DEVICE;
        let root = format!("qdisc {verb} dev {} root handle 1: stab overhead {stab}", self.device);
        let root: Vec<String> = words(&root).into_iter().chain(qdiscs.path.iter().cloned()).collect();
        run_tc(router, &root, qdiscs.table.as_deref())?;
        if let Some(own) = &qdiscs.wire {
            let mut wire = wire(if self.has_wire { "change" } else { "add" });
            wire.extend(own.iter().cloned());
            run_tc(router, &wire, None)?;
        }
        self.has_wire = qdiscs.wire.is_some();
        Ok(())
    }

    /// What the qdiscs of the path and of the wire have counted.
    fn read(&mut self, router: &Namespace) -> Result<[Counted; 2], NetemError> {
        let ask = words(&format!("-s -j qdisc show dev {}", self.device));
        let said = run_tc(router, &ask, None)?;
        let all: Vec<Counted> = serde_json::from_slice(&said)
            .map_err(|error| NetemError::Tc { words: ask.join(" "), said: error.to_string() })?;
        let of = |handle| all.iter().find(|one| one.handle == handle).cloned().unwrap_or_default();
        let [path, wire] = [of("1:"), of("2:")];
        // What the wire's queue has no room for is counted in both.
        self.drops.note(path.drops.saturating_sub(wire.drops), &self.config.loss);
        Ok([path, wire])
    }

    fn report(&mut self, router: &Namespace) -> Result<DirectionReport, NetemError> {
        let [path, wire] = self.read(router)?;
        Ok(DirectionReport {
            config: self.config.clone(),
            counters: counters(&path, &wire, self.drops),
            queue_bytes: wire.backlog,
            lateness: Lateness::default(),
            lateness_histogram: Vec::new(),
            own_drops: self.drops.own,
            coarse_drops: 0,
            rules: Vec::new(),
            trace: None,
            not_captured: 0,
        })
    }
}

/// One qdisc's statistics, as `tc -s -j` prints them.
#[derive(Clone, Debug, Default, Deserialize)]
struct Counted {
    handle: String,
    #[serde(default)]
    bytes: u64,
    #[serde(default)]
    packets: u64,
    #[serde(default)]
    drops: u64,
    #[serde(default)]
    requeues: u64,
    #[serde(default)]
    backlog: u64,
    #[serde(default)]
    qlen: u64,
}

/// Bytes of what was dropped, duplicates and the longest queue are not counted by netem.
fn counters(path: &Counted, wire: &Counted, drops: PathDrops) -> Counters {
    let alive = path.packets + path.qlen;
    Counters {
        segments: alive + path.drops,
        bytes: (path.bytes + path.backlog).saturating_sub(alive * u64::from(ETHERNET_OVERHEAD_BYTES)),
        dropped_queue: wire.drops,
        lost: drops.lost,
        // So netem counts what it lets overtake.
        reordered: path.requeues,
        delivered: path.packets,
        delivered_bytes: path.bytes.saturating_sub(path.packets * u64::from(ETHERNET_OVERHEAD_BYTES)),
        ..Counters::default()
    }
}

/// The search path of a user may lack the directories of the system's programs.
const TC: [&str; 3] = ["tc", "/usr/sbin/tc", "/sbin/tc"];

/// Runs `tc` in the router's namespace and returns what it prints.
fn run_tc(router: &Namespace, words: &[String], table: Option<&str>) -> Result<Vec<u8>, NetemError> {
    let table = table.map(TableFile::write).transpose().map_err(NetemError::Table)?;
    let mut missing = io::Error::from(io::ErrorKind::NotFound);
    for program in TC {
        let mut command = Command::new(program);
        command.args(words);
        if let Some(table) = &table {
            command.env("TC_LIB_DIR", &table.directory);
        }
        let output = match router.run(|| command.output())? {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                missing = error;
                continue;
            }
            output => output.map_err(NetemError::NoTc)?,
        };
        return match output.status.success() {
            true => Ok(output.stdout),
            false => Err(refusal(words, &String::from_utf8_lossy(&output.stderr))),
        };
    }
    Err(NetemError::NoTc(missing))
}

/// What `tc` says, understood where it can be.
fn refusal(words: &[String], said: &str) -> NetemError {
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = said.trim_start_matches("Error: ").trim_end_matches('.').to_owned();
    // The kernel's answer in words, and what older ones answer.
    let unknown = ["qdisc kind is unknown", "RTNETLINK answers: No such file or directory"];
    if words.iter().any(|word| word == "netem") && unknown.iter().any(|answer| said.contains(answer)) {
        return NetemError::NoNetem(said);
    }
    NetemError::Tc { words: words.join(" "), said }
}

/// A distribution where `tc` looks for one; it vanishes when this is dropped.
#[derive(Debug)]
struct TableFile {
    directory: PathBuf,
}

impl TableFile {
    fn write(table: &str) -> io::Result<Self> {
        let own = format!(".longhaul-netem-{}", rustix::thread::gettid().as_raw_nonzero());
        let directory = std::env::temp_dir().join(own);
        // Fails where somebody else has put something there.
        std::fs::create_dir(&directory)?;
        let file = Self { directory };
        std::fs::write(file.directory.join("jitter.dist"), table)?;
        Ok(file)
    }
}

impl Drop for TableFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory); // a temporary directory is tidied by others too
    }
}

#[cfg(test)]
mod tests;
