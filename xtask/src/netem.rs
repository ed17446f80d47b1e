//! `bench netem`: the emulator's own link model beside the kernel's netem, the same links and the same traffic for both.
//!
//! What is compared is what happens to packets (how late they are, which are lost, what TCP makes of it), not how fast a
//! machine is: rates are low, so that a guest without processors to spare carries them. Engines take turns, round by round,
//! and each run has a link of its own.

mod statistics;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use longhaul_report::Environment;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::link::checked;
use crate::places::Places;
use crate::probe::{Asked, Drained, Missed};
use crate::{environment, limited, show};
use statistics::{chi_squared, deviation, ks_distance, ks_limit, mean, quantile, run_lengths, share, sorted};

/// Compare the emulator with the kernel's netem: delays, losses and a TCP stream over the same links
///
/// For a kernel that has netem, for instance a User Mode Linux guest; needs root and tc.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask bench netem
  cargo xtask bench netem --only losses --rounds 5
  cargo xtask bench netem --engine split        where there is no netem: to set beside a guest's results")]
pub(crate) struct NetemBench {
    /// Times that each link is measured with each engine
    #[arg(long, value_name = "N", default_value = "3")]
    rounds: NonZeroU32,
    /// Only this kind of measurement [default: all]
    #[arg(long, value_enum)]
    only: Option<Kind>,
    /// Only this engine: `split` runs on kernels without netem too [default: both]
    #[arg(long, value_parser = ENGINES)]
    engine: Option<String>,
    #[command(flatten)]
    places: Places,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    /// Times from packets to their answers
    Delays,
    /// Which of many packets are missing
    Losses,
    /// What one TCP connection carries
    Stream,
}

/// A link and what is sent over it.
#[derive(Clone, Copy, Debug)]
struct Experiment {
    kind: Kind,
    link: &'static str,
}

/// Loss and jitter are on the way out only: answers and acknowledgements come back as they are sent.
const EXPERIMENTS: [Experiment; 11] = [
    Experiment { kind: Kind::Delays, link: "--rtt 0ms" },
    Experiment { kind: Kind::Delays, link: "--rtt 10ms" },
    Experiment { kind: Kind::Delays, link: "--rtt 100ms" },
    Experiment { kind: Kind::Delays, link: "--delay 10ms,0ms --jitter 2ms:normal,0ms" },
    Experiment { kind: Kind::Delays, link: "--delay 10ms,0ms --jitter 2ms:pareto,0ms" },
    Experiment { kind: Kind::Losses, link: "--rtt 10ms --loss 1%,0" },
    Experiment { kind: Kind::Losses, link: "--rtt 10ms --loss gilbert:1%:25%,0" },
    Experiment { kind: Kind::Losses, link: "--rtt 10ms --loss markov:1%:30%:20%:40%:0.5%,0" },
    Experiment { kind: Kind::Stream, link: "--rtt 20ms --rate 10Mbit" },
    Experiment { kind: Kind::Stream, link: "--rtt 20ms --rate 40Mbit --loss 0.1%,0" },
    Experiment { kind: Kind::Stream, link: "--rtt 20ms --rate 10Mbit --loss 1%,0" },
];

const ASKED_PACKETS: u32 = 400;
const ASKED_INTERVAL: &str = "20ms";

/// In three rounds, 30,000 each.
const NUMBERED_PACKETS: u32 = 10_000;
const NUMBERED_INTERVAL: &str = "2ms";

const STREAM_TIME: &str = "20s";
/// Until then slow start and its losses show.
const STREAM_START_SECONDS: usize = 4;
const STREAM_END_SECONDS: usize = 20;

const ENGINES: [&str; 2] = ["split", "netem"];

/// Of a run: the longest takes 25 s, and a guest may be slow.
const RUN_LIMIT: Duration = Duration::from_secs(120);

/// The record that is kept.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    schema: String,
    environment: Environment,
    runs: Vec<Run>,
}

const SCHEMA: &str = "longhaul-netem/1";

/// One link with one engine.
#[derive(Debug, Serialize, Deserialize)]
struct Run {
    kind: Kind,
    link: String,
    engine: String,
    /// And the seed.
    round: u32,
    /// Packets sent.
    packets: u32,
    /// Times to the answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    rtt_us: Vec<f64>,
    /// Numbers of the packets that did not come.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    missing: Vec<u32>,
    /// Bytes in each second.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    bytes: Vec<u64>,
    /// What the emulator says of both directions.
    counters: [BTreeMap<String, u64>; 2],
    lateness: [BTreeMap<String, u64>; 2],
    doubts: Vec<String>,
}

impl NetemBench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let longhaul = self.places.longhaul()?;
        let environment = environment::environment(&longhaul, &[]);
        // Before a directory is made for results that cannot be.
        let engines =
            ENGINES.into_iter().filter(|one| self.engine.as_deref().is_none_or(|only| only == *one));
        let engines: Vec<&str> = engines.collect();
        for engine in &engines {
            drop(Lab::up(&longhaul, engine, "--rtt 1ms", 1)?);
        }
        let out = self.places.out("netem", &environment)?;
        let mut record = Record { schema: SCHEMA.to_owned(), environment, runs: Vec::new() };
        let chosen = EXPERIMENTS.into_iter().filter(|one| self.only.is_none_or(|only| only == one.kind));
        for experiment in chosen {
            for round in 1..=self.rounds.get() {
                for engine in crate::turn::in_turn(&engines, round) {
                    limited::check_interrupt()?;
                    eprintln!("{}  round {round}  {engine}", experiment.link);
                    let lab = Lab::up(&longhaul, engine, experiment.link, round)?;
                    record.runs.push(lab.measure(experiment, engine, round)?);
                }
            }
            show::record(&out.join("results.json"), &serde_json::to_string(&record)?)?;
            show::write(&out.join("results.md"), &markdown(&record)?)?;
        }
        show::print_out(&markdown(&record)?)?;
        eprintln!("results are in {}", out.display());
        Ok(ExitCode::SUCCESS)
    }
}

/// A link that is up; it goes down when this is dropped.
struct Lab {
    longhaul: PathBuf,
    name: String,
}

impl Lab {
    fn up(longhaul: &Path, engine: &str, link: &str, seed: u32) -> anyhow::Result<Self> {
        let name = format!("xtask-netem-{}", std::process::id());
        let mut up = Command::new(longhaul);
        up.args(["emulate", "up", &name, "--engine", engine, "--seed", &seed.to_string()]);
        checked(up.args(link.split_whitespace())).context("cannot bring up the link")?;
        Ok(Self { longhaul: longhaul.to_owned(), name })
    }

    fn on(&self, host: &str) -> Command {
        let mut command = Command::new(&self.longhaul);
        command.args(["emulate", "exec", &self.name, host, "--"]).stdin(Stdio::null());
        command
    }

    fn shell(&self, host: &str, line: &str) -> anyhow::Result<()> {
        checked(self.on(host).args(["sh", "-c", line])).map(drop)
    }

    fn probe(&self, host: &str, words: &str) -> anyhow::Result<Probing> {
        let mut command = self.on(host);
        command.arg(std::env::current_exe()?).arg("probe").args(words.split_whitespace());
        Ok(Probing(command.stdout(Stdio::piped()).spawn().context("cannot start a probe")?))
    }

    /// Starts a probe that listens, and waits until it does.
    fn listener(&self, words: &str) -> anyhow::Result<Probing> {
        let probing = self.probe("far", words)?;
        let deadline = Instant::now() + Duration::from_secs(10);
        // Port 7000, in either table.
        while self.shell("far", "grep -q ':1B58 ' /proc/net/udp /proc/net/tcp").is_err() {
            if Instant::now() > deadline {
                bail!("the far host does not listen");
            }
        }
        Ok(probing)
    }

    fn measure(&self, experiment: Experiment, engine: &str, round: u32) -> anyhow::Result<Run> {
        let far = "10.77.0.2";
        let (mut packets, mut rtt_us, mut missing, mut bytes) = (0, Vec::new(), Vec::new(), Vec::new());
        match experiment.kind {
            Kind::Delays => {
                let _answerer = self.listener("answer")?;
                packets = ASKED_PACKETS;
                let words = format!("ask {far} {packets} {ASKED_INTERVAL}");
                let asked: Asked = self.probe("near", &words)?.said()?;
                // A tenth of a microsecond is more than is known.
                rtt_us = asked.rtt_us.iter().map(|rtt| (rtt * 10.0).round() / 10.0).collect();
            }
            Kind::Losses => {
                packets = NUMBERED_PACKETS;
                let counter = self.listener(&format!("miss {packets}"))?;
                let mut sender =
                    self.probe("near", &format!("number {far} {packets} {NUMBERED_INTERVAL}"))?;
                sender.end()?;
                missing = counter.said::<Missed>()?.missing;
            }
            Kind::Stream => {
                let drain = self.listener("drain")?;
                let mut sender = self.probe("near", &format!("fill {far} {STREAM_TIME}"))?;
                sender.end()?;
                bytes = drain.said::<Drained>()?.bytes;
            }
        }
        let shown = checked(Command::new(&self.longhaul).args(["emulate", "show", &self.name, "--json"]))?;
        let shown: Shown = serde_json::from_slice(&shown.stdout)?;
        let mut doubts = shown.doubts;
        let lost = ["lost", "dropped_queue"].map(|what| shown.forward.counters.get(what).unwrap_or(&0));
        let unexplained = missing.len() as i64 - lost.into_iter().sum::<u64>() as i64;
        if experiment.kind == Kind::Losses && unexplained != 0 {
            doubts.push(format!("{unexplained} packets are missing that the link has not lost"));
        }
        Ok(Run {
            kind: experiment.kind,
            link: experiment.link.to_owned(),
            engine: engine.to_owned(),
            round,
            packets,
            rtt_us,
            missing,
            bytes,
            counters: [shown.forward.counters, shown.backward.counters],
            lateness: [shown.forward.lateness, shown.backward.lateness],
            doubts,
        })
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Err(error) = checked(Command::new(&self.longhaul).args(["emulate", "down", &self.name])) {
            eprintln!("xtask: the emulated link stays up: {error:#}");
        }
    }
}

/// What `longhaul emulate show --json` prints, as far as it is kept.
#[derive(Debug, Deserialize)]
struct Shown {
    forward: Direction,
    backward: Direction,
    doubts: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Direction {
    counters: BTreeMap<String, u64>,
    lateness: BTreeMap<String, u64>,
}

/// A probe that runs; it is ended when this is dropped.
struct Probing(Child);

impl Probing {
    /// Waits for its end.
    fn end(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + RUN_LIMIT;
        loop {
            match self.0.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("a probe ended: {status}"),
                None if Instant::now() > deadline => bail!("a probe has not ended in {RUN_LIMIT:?}"),
                None => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    /// What it says until its end. The pipe is read meanwhile: it may say more than that holds.
    fn said<T: DeserializeOwned>(mut self) -> anyhow::Result<T> {
        let mut output = self.0.stdout.take().context("the probe's output is piped")?;
        let reader = std::thread::spawn(move || std::io::read_to_string(&mut output));
        self.end()?;
        let text = reader.join().map_err(|_| anyhow::anyhow!("the reader failed"))??;
        serde_json::from_str(&text).context("a probe's words")
    }
}

impl Drop for Probing {
    fn drop(&mut self) {
        let _ = self.0.kill(); // gone: fine
        let _ = self.0.wait();
    }
}

/// The runs of a link, by engine; one that was not measured has none.
type ByEngine<'a> = [Vec<&'a Run>; 2];

/// Longer bursts are counted together.
const LENGTHS_SHOWN: usize = 12;

/// The tables.
fn markdown(record: &Record) -> anyhow::Result<String> {
    let mut text = String::from("# The emulator beside the kernel's netem\n\n");
    let Environment { date, system, kernel, cpu, program, .. } = &record.environment;
    writeln!(text, "{date}, {system}, Linux {kernel}, {cpu}; {} ({}).", program.version, program.revision)?;
    for (kind, title, columns) in [
        (
            Kind::Delays,
            "Round trips of small UDP packets, ms",
            "mean | sd | p1 | p50 | p99 | p99.9 | KS distance, of p50-centred",
        ),
        (
            Kind::Losses,
            "Losses of UDP packets with numbers",
            "packets | lost, 99 % confidence | bursts | mean length | lengths 1, 2, ... | chi-squared of lengths",
        ),
        (
            Kind::Stream,
            "One TCP stream, CUBIC",
            "Mbit/s, seconds 4 to 20 | of each run | lost | dropped by the queue",
        ),
    ] {
        let links: Vec<&str> =
            EXPERIMENTS.iter().filter(|one| one.kind == kind).map(|one| one.link).collect();
        let of = |link: &str, engine: &str| -> Vec<&Run> {
            record.runs.iter().filter(|run| run.link == link && run.engine == engine).collect()
        };
        let measured = links.into_iter().map(|link| (link, ENGINES.map(|engine| of(link, engine))));
        let measured: Vec<(&str, ByEngine<'_>)> =
            measured.filter(|(_, both)| both.iter().any(|runs| !runs.is_empty())).collect();
        if measured.is_empty() {
            continue;
        }
        let bars = "| --- ".repeat(columns.split(" | ").count());
        writeln!(text, "\n## {title}\n\n| link | engine | {columns} |\n| --- | --- {bars}|")?;
        for (link, both) in &measured {
            let rows = match kind {
                Kind::Delays => delay_rows(both),
                Kind::Losses => loss_rows(both),
                Kind::Stream => stream_rows(both),
            };
            for ((engine, row), _) in ENGINES.iter().zip(rows).zip(both).filter(|(_, runs)| !runs.is_empty())
            {
                writeln!(text, "| `{link}` | {engine} | {row} |")?;
            }
        }
    }
    let doubtful = record.runs.iter().filter(|run| !run.doubts.is_empty());
    for run in doubtful {
        writeln!(
            text,
            "\nDoubts: `{}`, {}, round {}: {}",
            run.link,
            run.engine,
            run.round,
            run.doubts.join("; ")
        )?;
    }
    Ok(text)
}

fn delay_rows(both: &ByEngine<'_>) -> [String; 2] {
    let samples = both
        .each_ref()
        .map(|runs| sorted(runs.iter().flat_map(|run| &run.rtt_us).map(|us| us / 1e3).collect()));
    let centred = samples.each_ref().map(|all| {
        let middle = quantile(all, 0.5);
        all.iter().map(|rtt| rtt - middle).collect::<Vec<f64>>()
    });
    let [a, b] = &samples;
    let mut distance = format!(
        "{:.3}, {:.3} (99 %: {:.3})",
        ks_distance(a, b),
        ks_distance(&centred[0], &centred[1]),
        ks_limit(a.len(), b.len())
    );
    if a.is_empty() || b.is_empty() {
        distance.clear();
    }
    let mut shown = [String::new(), distance].into_iter();
    samples.each_ref().map(|all| {
        let q = |q| quantile(all, q);
        format!(
            "{:.3} | {:.3} | {:.3} | {:.3} | {:.3} | {:.3} | {}",
            mean(all),
            deviation(all),
            q(0.01),
            q(0.5),
            q(0.99),
            q(0.999),
            shown.next().unwrap_or_default()
        )
    })
}

/// Which packets of all runs are lost.
fn losses(runs: &[&Run]) -> Vec<bool> {
    let one = |run: &&Run| {
        let mut lost = vec![false; run.packets as usize];
        for number in &run.missing {
            lost[*number as usize] = true;
        }
        lost
    };
    runs.iter().flat_map(one).collect()
}

fn loss_rows(both: &ByEngine<'_>) -> [String; 2] {
    let series = both.each_ref().map(|runs| losses(runs));
    let lengths = series.each_ref().map(|series| run_lengths(series));
    let compared = match chi_squared(&lengths[0], &lengths[1]) {
        _ if series.iter().any(Vec::is_empty) => String::new(),
        Some((chi, freedom, limit)) => format!("{chi:.1}, {freedom} degrees of freedom (99 %: {limit:.1})"),
        None => "too few".to_owned(),
    };
    let mut shown = [String::new(), compared].into_iter();
    let mut rows = series.iter().zip(&lengths).map(|(series, lengths)| {
        let (lost, error) = share(series);
        let bursts: u64 = lengths.iter().sum();
        let packets = series.iter().filter(|lost| **lost).count();
        let mut counts: Vec<String> = lengths.iter().take(LENGTHS_SHOWN).map(u64::to_string).collect();
        let longer: u64 = lengths.iter().skip(LENGTHS_SHOWN).sum();
        counts.extend((longer > 0).then(|| format!("longer: {longer}")));
        format!(
            "{} | {:.3} % +- {:.3} | {bursts} | {:.2} | {} | {}",
            series.len(),
            lost * 100.0,
            error * 100.0,
            packets as f64 / bursts.max(1) as f64,
            counts.join(", "),
            shown.next().unwrap_or_default()
        )
    });
    [rows.next().unwrap_or_default(), rows.next().unwrap_or_default()]
}

fn stream_rows(both: &ByEngine<'_>) -> [String; 2] {
    both.each_ref().map(|runs| {
        let rate = |run: &&Run| {
            let seconds = run.bytes.iter().take(STREAM_END_SECONDS).skip(STREAM_START_SECONDS);
            seconds.sum::<u64>() as f64 * 8.0 / (STREAM_END_SECONDS - STREAM_START_SECONDS) as f64 / 1e6
        };
        let rates: Vec<f64> = runs.iter().map(rate).collect();
        let each: Vec<String> = rates.iter().map(|rate| format!("{rate:.2}")).collect();
        let count = |name: &str| -> String {
            let counts = runs.iter().map(|run| run.counters[0].get(name).copied().unwrap_or(0).to_string());
            counts.collect::<Vec<_>>().join(", ")
        };
        format!("{:.2} | {} | {} | {}", mean(&rates), each.join(", "), count("lost"), count("dropped_queue"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(engine: &str, kind: Kind, link: &str) -> Run {
        Run {
            kind,
            link: link.to_owned(),
            engine: engine.to_owned(),
            round: 1,
            packets: 4000,
            rtt_us: (0..101).map(|i| 10_000.0 + f64::from(i)).collect(),
            missing: (0..4000).filter(|number| number % 100 < 2).collect(),
            bytes: vec![1_000_000; 21],
            counters: [BTreeMap::from([("lost".to_owned(), 7)]), BTreeMap::new()],
            lateness: [BTreeMap::new(), BTreeMap::new()],
            doubts: if engine == "split" { vec!["late".to_owned()] } else { Vec::new() },
        }
    }

    #[test]
    fn tables_show_both_engines() {
        let runs = EXPERIMENTS.iter().flat_map(|one| ENGINES.map(|engine| run(engine, one.kind, one.link)));
        let environment = Environment::default();
        let record = Record { schema: SCHEMA.to_owned(), environment, runs: runs.collect() };
        let text = markdown(&record).unwrap();
        for expected in [
            "| `--rtt 10ms` | netem | 10.050 | 0.029 | 10.001 | 10.050 | 10.099 | 10.100 | 0.000, 0.000 (99 %: 0.229) |",
            "| `--rtt 10ms --loss 1%,0` | split | 4000 | 2.000 % +- 0.000 | 40 | 2.00 | 0, 40 |  |",
            "| `--rtt 20ms --rate 10Mbit` | netem | 8.00 | 8.00 | 7 | 0 |",
            "Doubts: `--rtt 0ms`, split, round 1: late",
        ] {
            assert!(text.contains(expected), "{expected} in: {text}");
        }
        let again: Record = serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
        assert_eq!(markdown(&again).unwrap(), text);
    }
}
