//! `longhaul probe HOST`: against a server of longhaul's own.

use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use longhaul_probe::path::client::Prober;
use longhaul_probe::path::measure::measure;
use longhaul_probe::path::plan::Plan;
use longhaul_probe::path::server::Service;
use longhaul_report::path::Path;
use longhaul_report::{Environment, Program};

use super::{Probe, disk_to_disk, print_out};
use crate::cli::reach::Reach;
use crate::place::Place;
use crate::service::PROBES;
use crate::terminal::{Terminal, harmless};

const VERSION: &str = env!("CARGO_PKG_VERSION");

impl Probe {
    pub(super) fn probe_path(self) -> anyhow::Result<ExitCode> {
        let terminal = Terminal::new();
        terminal.log(0);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let code = runtime.block_on(self.connect_and_probe(&terminal));
        // Neither who still waits for a disk, nor flows that were told to stop while they connected, hold up the end.
        runtime.shutdown_background();
        code
    }

    async fn connect_and_probe(self, terminal: &Terminal) -> anyhow::Result<ExitCode> {
        let given = self.host.clone().unwrap_or_default();
        let place = Place::host_and_directory(&given, self.port).map_err(anyhow::Error::msg)?;
        if self.wants_one_test() && (self.disk.is_some() || !place.remote_path().is_empty()) {
            bail!(
                "disks are measured with all of the path: leave out -t, -u and their like, or the directories"
            );
        }
        let reach = Reach::with(self.keys.clone());
        let far = reach.reach(&place).await?;
        // Nothing is asked of a client.
        let handler = Service::new(VERSION, None).station();
        let (session, _ssh) = reach.connect(far, PROBES, handler).await?;
        let prober = Prober::greet(session.clone(), VERSION).await?;
        let result = self.measure_path(&prober, &reach, &place, terminal).await;
        session.close().await;
        result
    }

    /// Whether one test is wanted, as of iperf3.
    fn wants_one_test(&self) -> bool {
        self.udp
            || self.reverse
            || self.time.is_some()
            || self.parallel.is_some()
            || self.bitrate.is_some()
            || self.window.is_some()
            || self.length.is_some()
            || self.set_mss.is_some()
            || self.fq_rate.is_some()
            || self.zerocopy
            || self.bidir
            || self.interval.is_some()
            || self.graph.is_some()
    }

    async fn measure_path(
        &self,
        prober: &Prober,
        reach: &Reach,
        place: &Place,
        terminal: &Terminal,
    ) -> anyhow::Result<ExitCode> {
        if self.wants_one_test() {
            return self.one_test(prober, terminal).await;
        }
        let directory = Some(place.remote_path()).filter(|path| !path.is_empty());
        let mut plan = Plan {
            disk_there: directory.map(|path| PathBuf::from(OsStr::from_bytes(path))),
            disk_here: self.disk.clone(),
            steps_after: if directory.is_some() && self.disk.is_some() { disk_to_disk::STEPS } else { 0 },
            ..self.plan()
        };
        if self.full && plan.controls.is_empty() {
            plan.controls = prober.controls();
        }
        let environment = Environment {
            command: std::env::args().collect(),
            program: Program { version: format!("longhaul {VERSION}"), revision: String::new() },
            ..Environment::default()
        };
        let host = host_as_given(&self.host.clone().unwrap_or_default().to_string_lossy(), place);
        let mut tell = |line: &str| terminal.say(line);
        let mut record = measure(prober, &plan, &host, environment, &mut tell).await;
        let ended = match &self.disk {
            Some(here) if plan.steps_after > 0 => {
                let trip =
                    disk_to_disk::Wish { reach, place, here, plan: &plan, rtt: prober.rtt(), terminal };
                trip.measure(&mut record).await
            }
            _ => disk_to_disk::End::Whole,
        };
        if self.json {
            print_out(&record.to_json()?)?;
        } else {
            print_out(&text(&record))?;
        }
        // Where not even round-trip times, TCP or a disk could be had, nothing was measured.
        let measured = record.rtt.is_some()
            || !(record.tcp.is_empty() && record.udp.is_empty() && record.disks.is_empty());
        Ok(ExitCode::from(u8::from(!measured || ended == disk_to_disk::End::BrokenOff)))
    }

    fn plan(&self) -> Plan {
        let mut plan = match (self.quick, self.full) {
            (true, _) => Plan::quick(),
            (_, true) => Plan::full(),
            _ => Plan::usual(),
        };
        plan.congestion = self.congestion.clone();
        plan.loss_max = self.loss_max / 100.0;
        if let Some(burst) = self.burst {
            plan.burst = burst;
        }
        if !self.frames.is_empty() {
            plan.frames.clone_from(&self.frames);
        }
        if !self.windows.is_empty() {
            plan.windows = self.windows.iter().map(|bytes| (*bytes > 0).then_some(*bytes)).collect();
        }
        if !self.streams.is_empty() {
            plan.streams.clone_from(&self.streams);
        }
        plan.controls.clone_from(&self.controls);
        if !self.pacing.is_empty() {
            plan.pacing.clone_from(&self.pacing);
        }
        plan
    }
}

/// What was given of the host, without a directory there.
fn host_as_given(given: &str, place: &Place) -> String {
    if let Place::Ssh { destination, .. } = place {
        return destination.clone();
    }
    let host = given.strip_prefix("longhaul://").unwrap_or(given);
    let Some((host, _)) = host.split_once('/') else { return host.to_owned() };
    host.strip_suffix(':').unwrap_or(host).to_owned()
}

/// What a person reads: sentences, then tables.
fn text(record: &Path) -> String {
    let mut text = String::new();
    for line in record.sentences() {
        let _ = writeln!(text, "{}", line.replace("**", ""));
    }
    for (caption, head, rows) in record.tables() {
        let _ = write!(text, "\n{caption}\n{}", columns(&head, &rows));
    }
    for line in &record.left_out {
        let _ = writeln!(text, "\nNot measured: {line}");
    }
    harmless(&text)
}

fn columns(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |place: usize| {
        let cells = rows.iter().filter_map(|row| row.get(place)).map(|cell| cell.chars().count());
        cells.chain([head[place].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let cells: Vec<String> =
            cells.into_iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        format!("  {}\n", cells.join("  "))
    };
    let body = rows.iter().map(|row| line(row.iter().map(String::as_str).collect()));
    std::iter::once(line(head.to_vec())).chain(body).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_called_as_it_was_given() {
        for (given, host) in [
            ("far", "far"),
            ("far:99", "far:99"),
            ("far:/data/x", "far"),
            ("[::1]:99:/data", "[::1]:99"),
            ("::1:/data", "::1"),
            ("longhaul://far:99/data", "far:99"),
            ("me@far:runs", "me@far"),
            ("me@far", "me@far"),
        ] {
            let place = Place::host_and_directory(OsStr::new(given), None).unwrap();
            assert_eq!(host_as_given(given, &place), host, "{given}");
        }
    }
}
