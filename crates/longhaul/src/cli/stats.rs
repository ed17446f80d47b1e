//! `longhaul stats`: what a mount has done.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use longhaul_files::Statistics;
use longhaul_mount::STATISTICS;
use rustix::io::Errno;
use serde_json::json;

use super::print_out;

/// Show what a mount has done: requests, round trips, what was known, times, bytes
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  longhaul stats /mnt/data
  longhaul stats /mnt/data --every 2s
  longhaul stats /mnt/data --prometheus > /var/lib/node_exporter/longhaul.prom

Exit codes: 0 shown; 2 it is not the top of a mount.")]
pub(crate) struct Stats {
    /// Where it is mounted
    directory: PathBuf,
    /// Show it again and again, until Ctrl-C
    #[arg(long, value_name = "TIME", value_parser = crate::units::duration)]
    every: Option<Duration>,
    /// As JSON, an object a line
    #[arg(long, conflicts_with = "prometheus")]
    json: bool,
    /// In the text format of Prometheus
    #[arg(long)]
    prometheus: bool,
}

/// More than the statistics of all operations take.
const BYTES_MAX: usize = 64 << 10;

impl Stats {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        loop {
            let statistics = self.read()?;
            print_out(&match (self.json, self.prometheus) {
                (true, _) => format!("{}\n", as_json(&statistics)),
                (_, true) => as_prometheus(&statistics, &self.directory.to_string_lossy()),
                _ => as_text(&statistics),
            })?;
            let Some(pause) = self.every else { return Ok(ExitCode::SUCCESS) };
            std::thread::sleep(pause);
        }
    }

    fn read(&self) -> anyhow::Result<Statistics> {
        let mut bytes = vec![0; BYTES_MAX];
        let shown = self.directory.display();
        match rustix::fs::getxattr(&self.directory, STATISTICS, bytes.as_mut_slice()) {
            Ok(length) => Statistics::from_bytes(&bytes[..length])
                .with_context(|| format!("{shown}: of a later version")),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => bail!("{shown} is not the top of a mount of longhaul's"),
            Err(error) => Err(error).with_context(|| format!("cannot look at {shown}")),
        }
    }
}

/// Requests to the server for each of the kernel's.
fn trips(statistics: &Statistics) -> f64 {
    statistics.asked as f64 / statistics.kernel_requests.max(1) as f64
}

fn as_text(statistics: &Statistics) -> String {
    let Statistics { asked, known, behind, kernel_requests, received_bytes, stored_bytes, .. } = statistics;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let mut text = format!(
        "requests of the kernel      {kernel_requests}\n\
         requests to the server      {asked}, {:.2} for each of the kernel's\n\
         known without asking        {known}\n\
         writes told later           {behind}\n\
         read from the server        {:.1} MiB\n\
         stored by the server        {:.1} MiB\n\
         kept now                    {:.1} MiB\n\
         not at the server yet       {:.1} MiB\n\
         leases may be used for      {:.1} s\n\n\
         {:<12} {:>9} {:>11} {:>11} {:>11}\n",
        trips(statistics),
        mib(*received_bytes),
        mib(*stored_bytes),
        mib(statistics.kept_bytes),
        mib(statistics.unsent_bytes),
        statistics.lease_ms as f64 / 1e3,
        "operation",
        "count",
        "median, ms",
        "p99, ms",
        "longest, ms",
    );
    for operation in &statistics.operations {
        let ms = |us: u64| us as f64 / 1e3;
        let (median, p99) = (ms(operation.median_us), ms(operation.p99_us));
        let _ = writeln!(
            text,
            "{:<12} {:>9} {median:>11.2} {p99:>11.2} {:>11.2}",
            operation.name,
            operation.count,
            ms(operation.longest_us)
        ); // a String takes it
    }
    text
}

fn as_json(statistics: &Statistics) -> serde_json::Value {
    let operations: Vec<serde_json::Value> = statistics
        .operations
        .iter()
        .map(|operation| {
            json!({
                "name": operation.name, "count": operation.count, "median_us": operation.median_us,
                "p99_us": operation.p99_us, "longest_us": operation.longest_us,
            })
        })
        .collect();
    json!({
        "kernel_requests": statistics.kernel_requests, "asked": statistics.asked, "known": statistics.known,
        "behind": statistics.behind, "received_bytes": statistics.received_bytes,
        "stored_bytes": statistics.stored_bytes, "kept_bytes": statistics.kept_bytes,
        "unsent_bytes": statistics.unsent_bytes, "lease_ms": statistics.lease_ms, "operations": operations,
    })
}

/// Prometheus' text format 0.0.4.
fn as_prometheus(statistics: &Statistics, directory: &str) -> String {
    let directory = directory.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
    let mut text = String::new();
    let counters = [
        ("kernel_requests_total", "counter", statistics.kernel_requests),
        ("known_total", "counter", statistics.known),
        ("writes_told_later_total", "counter", statistics.behind),
        ("received_bytes_total", "counter", statistics.received_bytes),
        ("stored_bytes_total", "counter", statistics.stored_bytes),
        ("kept_bytes", "gauge", statistics.kept_bytes),
        ("unsent_bytes", "gauge", statistics.unsent_bytes),
    ];
    // A String takes everything below.
    for (name, kind, value) in counters {
        let _ = writeln!(text, "# TYPE longhaul_mount_{name} {kind}");
        let _ = writeln!(text, "longhaul_mount_{name}{{mount=\"{directory}\"}} {value}");
    }
    let _ = writeln!(text, "# TYPE longhaul_mount_operation_seconds summary");
    for operation in &statistics.operations {
        let labels = format!("mount=\"{directory}\",operation=\"{}\"", operation.name);
        for (quantile, us) in [("0.5", operation.median_us), ("0.99", operation.p99_us)] {
            let seconds = us as f64 / 1e6;
            let _ = writeln!(
                text,
                "longhaul_mount_operation_seconds{{{labels},quantile=\"{quantile}\"}} {seconds}"
            );
        }
        let _ = writeln!(text, "longhaul_mount_operation_seconds_count{{{labels}}} {}", operation.count);
    }
    text
}

#[cfg(test)]
mod tests {
    use longhaul_files::message::OperationStatistics;

    use super::*;

    fn statistics() -> Statistics {
        let operation = OperationStatistics {
            name: "Read".to_owned(),
            count: 3,
            median_us: 1500,
            p99_us: 9000,
            longest_us: 9000,
        };
        Statistics { operations: vec![operation], asked: 3, kernel_requests: 12, ..Statistics::default() }
    }

    #[test]
    fn people_and_programs_see_the_same() {
        let statistics = Statistics::from_bytes(&statistics().to_bytes()).unwrap();
        let text = as_text(&statistics);
        assert!(text.contains("3, 0.25 for each") && text.contains("1.50        9.00"), "{text}");
        assert_eq!(as_json(&statistics)["operations"][0]["p99_us"], 9000);
        let text = as_prometheus(&statistics, "/a \"b\"");
        assert!(text.contains(r#"longhaul_mount_kernel_requests_total{mount="/a \"b\""} 12"#), "{text}");
        assert!(text.contains(r#"operation="Read",quantile="0.5"} 0.0015"#), "{text}");
    }
}
