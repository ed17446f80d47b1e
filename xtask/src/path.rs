//! `bench probe`: longhaul's measurement of a path beside iperf3's, over a bare pair of interfaces.
//!
//! Both speak iperf3's protocol, each with itself at both ends; they take turns in each round. Nothing delays or shapes what
//! passes, so that it is the programs, and the kernel, that are measured.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;

use crate::iperf3::Ended;
use crate::limited::{Limited, Words, check_interrupt, last_words};
use crate::link::Host;
use crate::pair::Pair;
use crate::places::Places;
use crate::tool::Package;
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

const TOOLS: [&str; 2] = ["longhaul", "iperf3"];

/// Where both listen.
const PORT: u16 = 5201;

/// Beyond the time of the test itself.
const PATIENCE: Duration = Duration::from_secs(15);

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
        const PACKAGES: [Package; 1] = [Package { name: "iperf3", program: "iperf3" }];
        let environment = environment::environment(&longhaul, &PACKAGES);
        let out = self.places.out("probe", &environment)?;
        let scratch = std::env::temp_dir().join(format!("longhaul-bench-probe-{}", std::process::id()));
        std::fs::create_dir(&scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
        let measured = self.measure(&longhaul, &scratch);
        std::fs::remove_dir_all(&scratch).with_context(|| format!("{} stays", scratch.display()))?;
        let runs = measured?;
        let text = table(&runs, &format!("{}; {}", environment.date, environment.command.join(" ")))?;
        let record =
            serde_json::json!({"schema": "longhaul-probe/1", "environment": environment, "runs": runs});
        show::record(&out.join("results.json"), &serde_json::to_string_pretty(&record)?)?;
        show::write(&out.join("results.md"), &text)?;
        show::print_out(&text)?;
        eprintln!("results are in {}", out.display());
        Ok(ExitCode::SUCCESS)
    }

    fn measure(&self, longhaul: &Path, scratch: &Path) -> anyhow::Result<Vec<Run>> {
        let pair = Pair::up(scratch)?;
        let mut runs = Vec::new();
        let wanted = |name: &str| self.case.as_ref().is_none_or(|part| name.contains(part.as_str()));
        for round in 1..=self.rounds {
            for (case, words) in CASES.iter().filter(|(case, _)| wanted(case)) {
                for place in 0..TOOLS.len() {
                    check_interrupt()?;
                    let tool = TOOLS[(place + round as usize) % TOOLS.len()];
                    let run = self.once(&pair, longhaul, scratch, (case, words), tool, round)?;
                    eprintln!("round {round}, {case}, {tool}: {:.2} Gbit/s", run.bits_per_second / 1e9);
                    runs.push(run);
                }
            }
        }
        Ok(runs)
    }

    fn once(
        &self,
        pair: &Pair,
        longhaul: &Path,
        scratch: &Path,
        (case, words): (&str, &str),
        tool: &str,
        round: u32,
    ) -> anyhow::Result<Run> {
        let program = longhaul.display().to_string();
        let (server, client) = if tool == "iperf3" {
            ("iperf3 -s -1".to_owned(), "iperf3 -c far -J".to_owned())
        } else {
            (
                format!("{program} probe --iperf3 --listen --one-off"),
                format!("{program} probe --iperf3 far -J"),
            )
        };
        let client = format!("{client} -t {} {words}", self.seconds);
        let (log, out, err) = (scratch.join("server"), scratch.join("out"), scratch.join("err"));
        let mut command = pair.command(Host::Far);
        command.args(server.split_whitespace());
        let mut server = Limited::start(&mut command, Words::Kept(&log))?;
        wait_for_listener(&mut server, &log)?;
        let mut command = pair.command(Host::Near);
        command.args(client.split_whitespace());
        let words_to = Words::Apart { out: &out, err: &err };
        let limit = Duration::from_secs(self.seconds) + PATIENCE;
        let ended = Limited::start(&mut command, words_to)?.wait(limit)?;
        if ended.status.is_none() {
            bail!("{client} does not end");
        }
        let said = std::fs::read_to_string(&out)?;
        let run = read(&said).with_context(|| format!("{client} has no result; {}", last_words(&err)))?;
        Ok(Run { case: case.to_owned(), tool: tool.to_owned(), round, command: client, ..run })
    }
}

/// Until somebody listens where the server is.
fn wait_for_listener(server: &mut Limited, log: &Path) -> anyhow::Result<()> {
    let began = Instant::now();
    let port = format!(":{PORT:04X} ");
    loop {
        check_interrupt()?;
        let listens = ["tcp", "tcp6"].iter().any(|table| {
            let text = std::fs::read_to_string(format!("/proc/{}/net/{table}", server.id()));
            // State 0A is LISTEN.
            text.unwrap_or_default().lines().any(|line| line.contains(&port) && line.contains(" 0A "))
        });
        if listens {
            return Ok(());
        }
        if server.has_ended()? || began.elapsed() > PATIENCE {
            bail!("the server does not listen; {}", last_words(log));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What a record of iperf3's form says.
fn read(json: &str) -> anyhow::Result<Run> {
    let end = Ended::of(json)?;
    let (Some(sent), Some(received), Some(processor)) =
        (end.sum_sent, end.sum_received, end.cpu_utilization_percent)
    else {
        bail!("no sums");
    };
    let packets_sent = sent.packets.unwrap_or(0);
    let lost = received.lost_packets.unwrap_or(0).max(0).cast_unsigned();
    let packets_received = received.packets.unwrap_or(0).saturating_sub(lost);
    // iperf3 3.12 gives the bytes that were sent as those of a UDP receiver.
    let bytes = match (received.packets, sent.packets) {
        (Some(_), Some(packets)) if packets > 0 => sent.bytes / packets * packets_received,
        _ => received.bytes,
    };
    let seconds = received.seconds.max(1e-9);
    let processor_percent = processor.host_total + processor.remote_total;
    Ok(Run {
        case: String::new(),
        tool: String::new(),
        round: 0,
        command: String::new(),
        bits_per_second: bytes as f64 * 8.0 / seconds,
        packets_received,
        packets_sent,
        seconds,
        processor_percent,
        processor_seconds_per_gb: processor_percent / 100.0 * seconds / (bytes.max(1) as f64 / 1e9),
    })
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

fn table(runs: &[Run], heading: &str) -> anyhow::Result<String> {
    let mut text = format!("# `longhaul probe --iperf3` beside iperf3, over a veth pair\n\n{heading}\n\n");
    text += "What arrived; medians of all rounds, and the rounds. CPU: both ends together.\n\n";
    text += "| case | longhaul | iperf3 | ratio | longhaul CPU s/GB | iperf3 CPU s/GB | rounds: longhaul; iperf3 |\n";
    text += "| --- | ---: | ---: | ---: | ---: | ---: | --- |\n";
    for (case, words) in CASES {
        let udp = words.contains("-u");
        let of = |tool: &str, figure: fn(&Run) -> f64| -> Vec<f64> {
            runs.iter().filter(|run| run.case == case && run.tool == tool).map(figure).collect()
        };
        if of(TOOLS[0], |_| 0.0).is_empty() {
            continue;
        }
        let rate = |run: &Run| match run.packets_sent {
            0 => run.bits_per_second / 1e9,
            _ => run.packets_received as f64 / run.seconds / 1e3,
        };
        let unit = if udp { "kpacket/s" } else { "Gbit/s" };
        let [own, rival] = TOOLS.map(|tool| of(tool, rate));
        let [own_cpu, rival_cpu] = TOOLS.map(|tool| median(of(tool, |run| run.processor_seconds_per_gb)));
        let list = |all: &[f64]| all.iter().map(|one| format!("{one:.1}")).collect::<Vec<_>>().join(" ");
        let (both, own, rival) = (format!("{}; {}", list(&own), list(&rival)), median(own), median(rival));
        writeln!(
            text,
            "| {case} | {own:.1} {unit} | {rival:.1} {unit} | {:.2} | {own_cpu:.2} | {rival_cpu:.2} | {both} |",
            own / rival
        )?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_both_protocols() {
        let processor = r#""cpu_utilization_percent":{"host_total":50.0,"remote_total":50.0}"#;
        let tcp = format!(
            r#"{{"end":{{"sum_sent":{{"bytes":3,"seconds":2}},"sum_received":{{"bytes":2000000000,"seconds":2}},{processor}}}}}"#
        );
        let run = read(&tcp).unwrap();
        assert_eq!((run.bits_per_second, run.processor_seconds_per_gb), (8e9, 1.0));
        let udp = format!(
            r#"{{"end":{{"sum_sent":{{"bytes":1000,"seconds":1,"packets":10}},
            "sum_received":{{"bytes":1000,"seconds":1,"packets":10,"lost_packets":4}},{processor}}}}}"#
        );
        let run = read(&udp).unwrap();
        assert_eq!((run.packets_received, run.bits_per_second), (6, 4800.0));
        assert!(read(r#"{"end":{},"error":"no"}"#).is_err());
    }
}
