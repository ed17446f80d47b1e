//! `bench probe`: longhaul's measurement of a path beside iperf3's, over a bare pair of interfaces.
//!
//! Both speak iperf3's protocol, each with itself at both ends; they take turns in each round. Nothing delays or shapes what
//! passes, so that it is the programs, and the kernel, that are measured.

use std::fmt::Write;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use crate::limited::check_interrupt;
use crate::link::{Between, Network, checked};
use crate::memory_to_memory::{self, Asked, Prober};
use crate::places::Places;
use crate::turn::in_turn;
use crate::{environment, show};

/// TCP and UDP from memory to memory with `longhaul probe --iperf3` and with iperf3, over a veth pair (root)
#[derive(Debug, Args)]
pub(crate) struct PathBench {
    /// Times that each is measured; the median counts
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: u32,
    /// Length of a run
    #[arg(long, value_name = "SECONDS", default_value_t = 3)]
    seconds: u64,
    /// Only cases whose name contains this
    #[arg(long, value_name = "NAME")]
    case: Option<String>,
    /// One more iperf3, built from other sources, as a third
    #[arg(long, value_name = "PROGRAM")]
    iperf3: Option<String>,
    #[command(flatten)]
    places: Places,
}

/// What is measured, by the words that both programs take.
const CASES: [(&str, &str); 8] = [
    ("TCP, 1 stream", ""),
    ("TCP, 4 streams", "-P 4"),
    ("TCP, 1 stream, reverse", "-R"),
    ("UDP, 64 bytes", "-u -b 0 -l 64"),
    ("UDP, 512 bytes", "-u -b 0 -l 512"),
    ("UDP, 1024 bytes", "-u -b 0 -l 1024"),
    ("UDP, 1472 bytes", "-u -b 0 -l 1472"),
    ("UDP, 8 KiB (fragments)", "-u -b 0 -l 8K"),
];

/// One test.
#[derive(Clone, Debug, Serialize)]
struct Run {
    case: String,
    tool: String,
    round: u32,
    command: String,
    /// Payload that arrived.
    bits_per_second: f64,
    /// UDP: packets that arrived, and that were sent.
    packets_received: u64,
    packets_sent: u64,
    seconds: f64,
    /// Of one processor, both ends together.
    processor_percent: f64,
    /// Both ends together, for each gigabyte that arrived.
    processor_seconds_per_gb: f64,
}

impl PathBench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let longhaul = self.places.longhaul()?;
        let tools: Vec<Prober> =
            Prober::ALL.into_iter().chain(self.iperf3.as_deref().map(Prober::Iperf3)).collect();
        let mut environment = environment::environment(&longhaul, &[memory_to_memory::IPERF3]);
        if let Some(program) = &self.iperf3 {
            environment.rivals.insert(program.clone(), version(program)?);
        }
        let out = self.places.out("probe", &environment)?;
        let scratch = std::env::temp_dir().join(format!("longhaul-bench-probe-{}", std::process::id()));
        std::fs::create_dir(&scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
        let measured = self.measure(&longhaul, &scratch, &tools);
        std::fs::remove_dir_all(&scratch).with_context(|| format!("{} stays", scratch.display()))?;
        let runs = measured?;
        let text = table(&runs, &tools, &format!("{}; {}", environment.date, environment.command.join(" ")))?;
        let record =
            serde_json::json!({"schema": "longhaul-probe/1", "environment": environment, "runs": runs});
        show::record(&out.join("results.json"), &serde_json::to_string_pretty(&record)?)?;
        show::write(&out.join("results.md"), &text)?;
        show::print_out(&text)?;
        eprintln!("results are in {}", out.display());
        Ok(ExitCode::SUCCESS)
    }

    fn measure(&self, longhaul: &Path, scratch: &Path, tools: &[Prober]) -> anyhow::Result<Vec<Run>> {
        let network = Network::up(longhaul, Between::Pair { scratch }, 1)?;
        let mut runs = Vec::new();
        let wanted = |name: &str| self.case.as_ref().is_none_or(|part| name.contains(part.as_str()));
        for round in 1..=self.rounds {
            for (case, words) in CASES.iter().filter(|(case, _)| wanted(case)) {
                for prober in in_turn(tools, round) {
                    check_interrupt()?;
                    let run = self.once(&network, longhaul, scratch, (case, words), prober, round)?;
                    let tool = prober.name();
                    eprintln!("round {round}, {case}, {tool}: {:.2} Gbit/s", run.bits_per_second / 1e9);
                    runs.push(run);
                }
            }
        }
        Ok(runs)
    }

    fn once(
        &self,
        network: &Network,
        longhaul: &Path,
        scratch: &Path,
        (case, words): (&str, &str),
        prober: Prober,
        round: u32,
    ) -> anyhow::Result<Run> {
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        let asked = Asked { prober, words: &words, seconds: self.seconds };
        let (command, measured) = asked.measure(network, longhaul, scratch)?;
        let processor_percent = measured.processor_percent;
        let gigabytes = measured.bits_per_second / 8e9 * measured.seconds;
        Ok(Run {
            case: case.to_owned(),
            tool: prober.name().to_owned(),
            round,
            command: command.join(" "),
            bits_per_second: measured.bits_per_second,
            packets_received: measured.packets_received,
            packets_sent: measured.packets_sent,
            seconds: measured.seconds,
            processor_percent,
            processor_seconds_per_gb: processor_percent / 100.0 * measured.seconds / gigabytes.max(1e-9),
        })
    }
}

/// The first line of what an iperf3 says of itself.
fn version(program: &str) -> anyhow::Result<String> {
    let output = checked(Command::new(program).arg("--version"))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or("unknown").to_owned())
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Rates, how many times a rival's ours are, and the processor's time, for each case.
fn table(runs: &[Run], tools: &[Prober], heading: &str) -> anyhow::Result<String> {
    let names: Vec<&str> = tools.iter().map(|tool| tool.name()).collect();
    let mut text = format!("# `longhaul probe --iperf3` beside iperf3, over a veth pair\n\n{heading}\n\n");
    text += "What arrived; medians of all rounds, and the rounds. Ratio: longhaul's to a rival's. CPU: both ends together.\n\n| case |";
    for name in &names {
        write!(text, " {name} |")?;
    }
    for name in &names[1..] {
        write!(text, " ratio to {name} |")?;
    }
    writeln!(text, " CPU, s/GB: {} | rounds: {} |", names.join(", "), names.join("; "))?;
    writeln!(text, "| --- |{} --- | --- |", " ---: |".repeat(2 * names.len() - 1))?;
    for (case, words) in CASES {
        let of = |tool: &str, figure: fn(&Run) -> f64| -> Vec<f64> {
            runs.iter().filter(|run| run.case == case && run.tool == tool).map(figure).collect()
        };
        if of(names[0], |_| 0.0).is_empty() {
            continue;
        }
        let rate = |run: &Run| match run.packets_sent {
            0 => run.bits_per_second / 1e9,
            _ => run.packets_received as f64 / run.seconds / 1e3,
        };
        let unit = if words.contains("-u") { "kpacket/s" } else { "Gbit/s" };
        let rounds: Vec<Vec<f64>> = names.iter().map(|name| of(name, rate)).collect();
        let medians: Vec<f64> = rounds.iter().map(|all| median(all.clone())).collect();
        let cpu = names.iter().map(|name| median(of(name, |run| run.processor_seconds_per_gb)));
        write!(text, "| {case} |")?;
        for median in &medians {
            write!(text, " {median:.1} {unit} |")?;
        }
        for rival in &medians[1..] {
            write!(text, " {:.2} |", medians[0] / rival)?;
        }
        let list = |all: &[f64], digits: usize, between: &str| -> String {
            all.iter().map(|one| format!("{one:.digits$}")).collect::<Vec<_>>().join(between)
        };
        let all: Vec<String> = rounds.iter().map(|all| list(all, 1, " ")).collect();
        writeln!(text, " {} | {} |", list(&cpu.collect::<Vec<_>>(), 2, ", "), all.join("; "))?;
    }
    Ok(text)
}
