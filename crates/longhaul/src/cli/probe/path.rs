//! `longhaul probe HOST`: against a server of longhaul's own.

use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use longhaul_probe::path::client::{Both, Prober};
use longhaul_probe::path::echoes::header_bytes;
use longhaul_probe::path::measure::measure;
use longhaul_probe::path::plan::Plan;
use longhaul_probe::path::server::Service;
use longhaul_probe::path::test::{Seen, TcpSeen, Way, What, Wish};
use longhaul_probe::traffic::Options;
use longhaul_probe::{limits, tcp};
use longhaul_report::path::Path;
use longhaul_report::{Environment, Program};

use super::{Probe, TIME_DEFAULT, UDP_RATE_DEFAULT, disk_to_disk, print_out};
use crate::cli::reach::Reach;
use crate::place::Place;
use crate::service::PROBES;
use crate::terminal::{Terminal, harmless};
use crate::units::{show_rate, show_size};

const VERSION: &str = env!("CARGO_PKG_VERSION");

impl Probe {
    pub(super) fn probe_path(self) -> anyhow::Result<ExitCode> {
        let terminal = Terminal::new();
        terminal.log(0);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let code = runtime.block_on(self.connect_and_probe(&terminal));
        // Whoever still waits for a disk does not hold up the end.
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
    }

    async fn measure_path(
        &self,
        prober: &Prober,
        reach: &Reach,
        place: &Place,
        terminal: &Terminal,
    ) -> anyhow::Result<ExitCode> {
        if self.wants_one_test() {
            return self.one_test(prober).await;
        }
        let directory = Some(place.remote_path()).filter(|path| !path.is_empty());
        let plan = Plan {
            disk_there: directory.map(|path| PathBuf::from(OsStr::from_bytes(path))),
            disk_here: self.disk.clone(),
            steps_after: if directory.is_some() && self.disk.is_some() { disk_to_disk::STEPS } else { 0 },
            ..self.plan()
        };
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
        plan
    }

    fn wish(&self, prober: &Prober) -> anyhow::Result<Wish> {
        let time = self.time.unwrap_or(TIME_DEFAULT);
        if time > limits::PATH_TEST_TIME_MAX.as_secs() {
            bail!(
                "a test of {time} seconds (-t) cannot be had: at most {}",
                limits::PATH_TEST_TIME_MAX.as_secs()
            );
        }
        let rate = self.bitrate.unwrap_or(if self.udp { UDP_RATE_DEFAULT } else { 0 });
        let rate = (rate > 0).then_some(rate);
        let length = match (self.length, self.udp) {
            (Some(length), _) => usize::try_from(length).context("the length (-l)")?,
            (None, false) => tcp::write_bytes(rate),
            // Ethernet's 1500 bytes.
            (None, true) => 1500 - header_bytes(prober.session().remote()),
        };
        Ok(Wish {
            what: if self.udp { What::Udp } else { What::Tcp },
            way: if self.reverse { Way::ToClient } else { Way::ToServer },
            milliseconds: (time * 1000) as u32,
            streams: self.parallel.unwrap_or(1),
            length,
            rate,
            options: Options {
                window: self.window,
                congestion: self.congestion.clone(),
                mss: self.set_mss,
                no_delay: false,
            },
        })
    }

    async fn one_test(&self, prober: &Prober) -> anyhow::Result<ExitCode> {
        let wish = self.wish(prober)?;
        let (json, way) = (self.json, wish.way);
        let (mut seconds, mut bytes) = (0.0, 0);
        let mut each = |both: &Both| {
            let receiver = both.receiver(way);
            let rate =
                receiver.bytes().saturating_sub(bytes) as f64 * 8.0 / (receiver.seconds - seconds).max(1e-9);
            if !json {
                // Nobody can be told that standard output is closed.
                let _ =
                    print_out(&format!("{seconds:6.1} to {:.1} s  {}\n", receiver.seconds, show_rate(rate)));
            }
            (seconds, bytes) = (receiver.seconds, receiver.bytes());
        };
        let (_, both) = prober.load(&wish, Duration::ZERO, &mut each).await?;
        print_out(&if json { format!("{:#}\n", test_json(&wish, &both)) } else { test_text(&wish, &both) })?;
        Ok(ExitCode::SUCCESS)
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

/// Packets that were sent, and those that the path has lost.
fn lost(wish: &Wish, both: &Both) -> (u64, u64) {
    let (sender, receiver) = (both.sender(wish.way), both.receiver(wish.way));
    let sent = sender.sum(|flow| flow.packets);
    let came = receiver.sum(|flow| flow.packets.saturating_sub(flow.lost).saturating_add(flow.dropped_here));
    (sent, sent.saturating_sub(came))
}

fn bits_a_second(wish: &Wish, both: &Both) -> f64 {
    both.receiver(wish.way).bytes() as f64 * 8.0 / both.sender(wish.way).seconds.max(1e-9)
}

fn test_text(wish: &Wish, both: &Both) -> String {
    let (sender, receiver) = (both.sender(wish.way), both.receiver(wish.way));
    let way = if wish.way == Way::ToServer { "to the server" } else { "from the server" };
    let mut text = format!(
        "{} {way} in {:.1} s: {} of payload\n",
        show_size(receiver.bytes()),
        sender.seconds,
        show_rate(bits_a_second(wish, both))
    );
    if wish.what == What::Udp {
        let (sent, lost) = lost(wish, both);
        let jitter = receiver.flows.iter().map(|flow| flow.jitter_s).fold(0.0, f64::max) * 1e3;
        let _ = writeln!(
            text,
            "{sent} packets: {lost} lost ({:.3} %), {} out of order, {} twice; jitter {jitter:.3} ms",
            lost as f64 * 100.0 / sent.max(1) as f64,
            receiver.sum(|flow| flow.reordered),
            receiver.sum(|flow| flow.duplicates)
        );
        let dropped = receiver.sum(|flow| flow.dropped_here);
        if dropped > 0 {
            let _ = writeln!(text, "{dropped} more reached the receiver's host and found its socket full");
        }
    } else {
        let tcp = |of: fn(&TcpSeen) -> u64| sender.sum(|flow| flow.tcp.as_ref().map_or(0, of));
        let _ = writeln!(
            text,
            "{} of {} segments sent again",
            tcp(|tcp| tcp.retransmits),
            tcp(|tcp| tcp.segments)
        );
    }
    let (near, far) = (&both.near.processor, &both.far.processor);
    let _ = writeln!(
        text,
        "Processors: here {:.0} % of one (busiest flow {:.0} %), server {:.0} % ({:.0} %)",
        near.process, near.thread, far.process, far.thread
    );
    text
}

fn test_json(wish: &Wish, both: &Both) -> serde_json::Value {
    let end = |seen: &Seen| {
        serde_json::json!({
            "seconds": seen.seconds,
            "bytes": seen.bytes(),
            "cpu_percent": { "process": seen.processor.process, "flow": seen.processor.thread },
            "flows": seen.flows.iter().map(|flow| serde_json::json!({
                "bytes": flow.bytes, "packets": flow.packets, "reordered": flow.reordered,
                "duplicates": flow.duplicates, "jitter_ms": flow.jitter_s * 1e3,
                "dropped_by_socket": flow.dropped_here,
                "retransmits": flow.tcp.map(|tcp| tcp.retransmits),
                "segments": flow.tcp.map(|tcp| tcp.segments),
            })).collect::<Vec<_>>(),
        })
    };
    let (sent, lost) = lost(wish, both);
    serde_json::json!({
        "protocol": if wish.what == What::Udp { "UDP" } else { "TCP" },
        "reverse": wish.way == Way::ToClient,
        "bits_per_second": bits_a_second(wish, both),
        "packets": (wish.what == What::Udp).then_some(sent),
        "lost": (wish.what == What::Udp).then_some(lost),
        "here": end(&both.near),
        "server": end(&both.far),
    })
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
