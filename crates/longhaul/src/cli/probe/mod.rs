//! `longhaul probe`: what a path carries.

mod columns;
mod disk_to_disk;
mod graph;
mod intervals;
mod iperf3;
mod listen;
mod live;
mod one_test;
mod path;

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::{Args, ValueEnum};
use longhaul_probe::limits;

use super::print_out;
use super::reach::Keys;
use crate::units;

/// What a path carries, and what limits it
///
/// Against a `longhaul serve`, or `longhaul probe --listen`: keys as for all commands. Without -t, -u and their like it measures
/// all there is: round-trip times, path MTU, UDP by frame size, TCP by window and streams; and says what the limit is. With
/// them it makes one test, as iperf3 does. Ctrl-C ends it before its time, and what was measured until then is printed.
///
/// HOST:/EXPORT/DIR or longhaul://HOST/EXPORT/DIR names a directory of the server (USER@HOST:DIR one of that user's), and --disk one
/// of this host: their disks are written and read as well, a tenth of what is free and 8 GiB at the most, in a file that nobody sees and
/// that is gone afterwards. The verdict says then whether the network or a disk holds up a transfer. The key must be one that may write
/// there. Where both are named, a file of some seconds is copied from disk to disk besides, each way, as `longhaul cp` does it: called
/// .longhaul-probe-..., within the same bounds, and removed afterwards, also after Ctrl-C. Over ssh longhaul is started there for each copy.
///
/// With --iperf3 either end can be iperf3 itself; letters, meanings and reports are iperf3's. Nothing is encrypted then, and
/// nobody proves who he is.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  longhaul probe far.example.org                          all of the path to a host where `longhaul serve` runs
  longhaul probe alice@far.example.org --quick            the least that a verdict needs; started there over ssh
  longhaul probe far.example.org:/data --disk ~/runs      a transfer from ~/runs to there: how fast, and the network, or a disk?
  longhaul probe far.example.org -u -b 1G -t 10           UDP at 1 Gbit/s: what is lost?
  longhaul probe far.example.org -R -P 4                  TCP from there to here, over four streams
  longhaul probe far.example.org --bidir -t 300           both ways at once, for five minutes, with a graph
  longhaul probe --listen                                 be measured, without exports; keys as `longhaul serve`
  longhaul probe --iperf3 far.example.org                 TCP to a host where `iperf3 -s` runs, for ten seconds
  longhaul probe --iperf3 far.example.org -R -P 4         from there to here, over four streams
  longhaul probe --iperf3 far.example.org -u -b 2G -l 1400  UDP packets of 1400 bytes at 2 Gbit/s: what is lost?
  longhaul probe --iperf3 far.example.org --bidir -t 30 --json
  longhaul probe --iperf3 --listen                        serve `iperf3 -c` and others, one test at a time
  longhaul probe --iperf3 --listen --rate-max 500M --one-off

Exit codes: 0 the test is over; 1 it failed on the way (of a server: the one test of --one-off); 2 it could not begin; 130 one test was
interrupted, and what was measured until then printed.")]
pub(crate) struct Probe {
    /// The host to measure to, and a directory whose disk is measured; with a user's name it is started there over ssh
    #[arg(
        value_name = "[USER@]HOST[:PORT][:/EXPORT/DIR]",
        required_unless_present = "listen",
        conflicts_with = "listen"
    )]
    host: Option<OsString>,
    /// A directory of this host whose disk is measured
    #[arg(long, value_name = "DIR", conflicts_with_all = ["iperf3", "listen"])]
    disk: Option<PathBuf>,
    /// Speak iperf3's protocol
    #[arg(long)]
    iperf3: bool,
    /// Be the server, on this address [default: all addresses]
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "::")]
    listen: Option<IpAddr>,
    /// The server's port [default: 7473; with --iperf3 5201]
    #[arg(short, long)]
    port: Option<u16>,
    /// Send UDP packets instead of TCP streams
    #[arg(short, long)]
    udp: bool,
    /// Seconds that the test takes [default: 10]
    #[arg(short = 't', long, value_name = "SECONDS", conflicts_with = "bytes",
          value_parser = clap::value_parser!(u64).range(1..=limits::TIME_MAX.as_secs()))]
    time: Option<u64>,
    /// Bytes to move instead of a time, as in 10G (1024-based)
    #[arg(short = 'n', long, value_parser = size)]
    bytes: Option<u64>,
    /// Seconds at the start that do not count
    #[arg(short = 'O', long, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(0..=limits::OMIT_MAX.as_secs()))]
    omit: Option<u64>,
    /// Seconds between reports, 0.1 to 60; 0: only one at the end [default: 1]
    #[arg(short, long, value_name = "SECONDS", value_parser = interval)]
    interval: Option<Interval>,
    /// Streams at a time [default: 1]
    #[arg(short = 'P', long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(limits::STREAMS_MAX)))]
    parallel: Option<u32>,
    /// From the server to here
    #[arg(short = 'R', long, conflicts_with = "bidir")]
    reverse: bool,
    /// Both ways at once
    #[arg(long)]
    bidir: bool,
    /// Bits a second of each stream, as in 500M; 0: as fast as it goes [default: 1M for UDP, 0 for TCP]
    #[arg(short = 'b', long, value_name = "RATE", value_parser = rate_or_none)]
    bitrate: Option<u64>,
    /// Bytes of a write or a packet [default: for TCP 128K, or what its rate (-b) sends in 10 ms; for UDP what fits the path]
    #[arg(short, long, value_parser = size)]
    length: Option<u64>,
    /// Bytes of the sockets' buffers, at both ends [default: as the kernels tune them]
    #[arg(short, long, value_name = "BYTES", value_parser = size)]
    window: Option<u64>,
    /// TCP's congestion control at both ends [default: each host's own]
    #[arg(short = 'C', long, value_name = "NAME")]
    congestion: Option<String>,
    /// TCP's largest segment
    #[arg(short = 'M', long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(88..=32_767))]
    set_mss: Option<u32>,
    /// TCP: bits a second that the sender's kernel spaces each stream's packets for (SO_MAX_PACING_RATE), as in 500M
    #[arg(long, value_name = "RATE", value_parser = rate)]
    fq_rate: Option<u64>,
    /// TCP sends what there is at once
    #[arg(short = 'N', long)]
    no_delay: bool,
    /// TCP: send pages that the kernel takes as they are, as sendfile(2) does, instead of copying them in; at both ends
    #[arg(short = 'Z', long)]
    zerocopy: bool,
    /// Only IPv4
    #[arg(short = '4', long, conflicts_with = "ipv6")]
    ipv4: bool,
    /// Only IPv6
    #[arg(short = '6', long)]
    ipv6: bool,
    /// TCP: have the kernel drop what arrives here instead of copying it out; faster than any program that wants its data
    #[arg(long)]
    skip_rx_copy: bool,
    /// Server: bits a second that a test may have in one direction [default: no bound]
    #[arg(long, value_name = "RATE", value_parser = rate, requires = "listen")]
    rate_max: Option<u64>,
    /// Server: clients that may load it at a time; of --rate-max each has its share [default: 1, since each would spoil the others' figures]
    #[arg(long, value_name = "N", requires = "listen", conflicts_with = "iperf3",
          value_parser = clap::value_parser!(u32).range(1..=limits::PATH_CLIENTS_MAX as i64))]
    clients: Option<u32>,
    /// Server: end after one test
    #[arg(short = '1', long, requires = "listen")]
    one_off: bool,
    /// Draw one test's throughput over time on standard error; where standard output is the same terminal, instead of a line for each
    /// interval. auto: on a terminal, from 20 seconds on, without --json. What is no terminal gets it at the end [default: auto]
    #[arg(long, value_name = "WHEN", value_enum, conflicts_with_all = ["iperf3", "listen"])]
    graph: Option<When>,
    /// Print JSON instead of text: a record for `longhaul report`; of one test what both ends have counted, and each way's first 100,000
    /// intervals; with --iperf3 of iperf3's form
    #[arg(short = 'J', long)]
    json: bool,

    /// The least that a verdict needs: a fraction of a minute on a short path, about one over 200 ms
    #[arg(long, conflicts_with_all = ["iperf3", "listen"])]
    quick: bool,
    /// All of RFC 2544's frame sizes, five windows, congestion controls, six rates of pacing, bursts of three seconds: several minutes
    #[arg(long, conflicts_with_all = ["iperf3", "listen", "quick"])]
    full: bool,
    /// Ethernet frames of UDP, in bytes with the check sum, as in 64,1518,9018
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', conflicts_with = "iperf3",
          value_parser = clap::value_parser!(u32).range(64..=9234))]
    frames: Vec<u32>,
    /// TCP's windows, as in 256K,4M,0; 0: as the kernels tune it
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', conflicts_with = "iperf3", value_parser = size)]
    windows: Vec<u64>,
    /// TCP's streams at a time, as in 1,8
    #[arg(long, value_name = "N,...", value_delimiter = ',', conflicts_with = "iperf3",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(limits::STREAMS_MAX)))]
    streams: Vec<u32>,
    /// TCP's congestion controls to compare, as in cubic,bbr: one stream and many [default: none; --full those that both hosts have]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', conflicts_with = "iperf3")]
    controls: Vec<String>,
    /// TCP's streams paced at these rates, in percent of what the path carries [default: none; --full 50,80,90,95,100,110]
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',', conflicts_with = "iperf3",
          value_parser = |text: &str| percent(text, (1.0, 400.0)))]
    pacing: Vec<f64>,
    /// How long a burst of UDP takes, as in 3s [default: 1s; --quick 0.7s; --full 3s]
    #[arg(long, value_name = "TIME", value_parser = units::duration, conflicts_with = "iperf3")]
    burst: Option<Duration>,
    /// Percent of what UDP sends that is too much when it does not arrive
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, conflicts_with = "iperf3",
          value_parser = |text: &str| percent(text, (0.1, 90.0)))]
    loss_max: f64,
    #[command(flatten)]
    keys: Keys,
    /// Server: who may come in [default: as `longhaul serve`]
    #[arg(long, value_name = "FILE", requires = "listen")]
    authorized_keys: Option<PathBuf>,
    /// Server: its key, made when it is not there [default: as `longhaul serve`]
    #[arg(long, value_name = "FILE", requires = "listen")]
    host_key: Option<PathBuf>,
}

/// Whether something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum When {
    Auto,
    Always,
    Never,
}

/// Between reports; `None`: there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Interval(Option<Duration>);

const INTERVAL_DEFAULT: Interval = Interval(Some(Duration::from_secs(1)));
const INTERVAL_SECONDS: std::ops::RangeInclusive<f64> = 0.1..=60.0;

fn interval(text: &str) -> Result<Interval, String> {
    match text.parse() {
        Ok(0.0) => Ok(Interval(None)),
        Ok(seconds) if INTERVAL_SECONDS.contains(&seconds) => {
            Ok(Interval(Some(Duration::from_secs_f64(seconds))))
        }
        Ok(_) => Err("it cannot be had: 0, or 0.1 to 60 seconds".to_owned()),
        Err(_) => Err(format!("`{text}` is no number")),
    }
}

/// iperf3 takes small letters, too.
fn large_letters(text: &str) -> String {
    match text.char_indices().last() {
        Some((at, letter)) if "kmgt".contains(letter) && at > 0 => {
            format!("{}{}", &text[..at], letter.to_ascii_uppercase())
        }
        _ => text.to_owned(),
    }
}

/// Percent within these.
fn percent(text: &str, (least, most): (f64, f64)) -> Result<f64, String> {
    let value: f64 = text.trim_end_matches('%').parse().map_err(|_| format!("`{text}` is no number"))?;
    let is_within = (least..=most).contains(&value);
    is_within.then_some(value).ok_or_else(|| format!("{least} to {most} percent can be had"))
}

fn size(text: &str) -> Result<u64, String> {
    units::size(&large_letters(text))
}

fn rate(text: &str) -> Result<u64, String> {
    units::rate(&large_letters(text))
}

fn rate_or_none(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { rate(text) }
}

/// What UDP sends unless told otherwise: as iperf3, so that nobody floods a path unawares.
const UDP_RATE_DEFAULT: u64 = 1_000_000;

/// Exit code of one test that was interrupted: 128 and SIGINT, as shells have it.
const INTERRUPTED: u8 = 130;

/// Seconds of a test, as iperf3.
const TIME_DEFAULT: u64 = 10;

impl Probe {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if self.iperf3 {
            return self.run_iperf3();
        }
        // What has no meaning here is not passed over in silence.
        let only_iperf3 = [
            ("-n", self.bytes.is_some()),
            ("-O", self.omit.is_some()),
            ("-N", self.no_delay),
            ("-4", self.ipv4),
            ("-6", self.ipv6),
            ("--skip-rx-copy", self.skip_rx_copy),
        ];
        if let Some((letter, _)) = only_iperf3.iter().find(|(_, given)| *given) {
            bail!("{letter} goes with --iperf3 only");
        }
        match self.listen {
            Some(address) => self.listen_for_probes(address),
            None => self.probe_path(),
        }
    }
}
