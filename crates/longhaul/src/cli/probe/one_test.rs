//! One test of a host, as iperf3 makes it: `longhaul probe HOST -t` and its like.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::{Context, bail};
use longhaul_probe::path::client::{Both, Prober};
use longhaul_probe::path::echoes::header_bytes;
use longhaul_probe::path::load::{Follow, Loads};
use longhaul_probe::path::test::{Processor, Seen, TcpSeen, Way, What, Wish};
use longhaul_probe::traffic::Options;
use longhaul_probe::{limits, tcp};
use tokio::sync::watch;

use super::live::{Kept, Live, Shown, look_every, words};
use super::{INTERRUPTED, INTERVAL_DEFAULT, Probe, TIME_DEFAULT, UDP_RATE_DEFAULT, When, print_out};
use crate::signals::until_told_to_stop;
use crate::terminal::{Picture, Terminal};
use crate::units::{show_rate, show_size};

/// A test that takes as long has a graph.
const GRAPH_FROM_S: u64 = 20;

impl Probe {
    fn seconds(&self) -> u64 {
        self.time.unwrap_or(TIME_DEFAULT)
    }

    /// A test, or one each way.
    fn wishes(&self, prober: &Prober) -> anyhow::Result<Vec<Wish>> {
        let time = self.seconds();
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
        let wish = |way| Wish {
            what: if self.udp { What::Udp } else { What::Tcp },
            way,
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
        };
        Ok(match (self.bidir, self.reverse) {
            (true, _) => Way::BOTH.map(wish).to_vec(),
            (_, true) => vec![wish(Way::ToClient)],
            _ => vec![wish(Way::ToServer)],
        })
    }

    /// What is told while it runs. A graph and lines on the same terminal would tear each other: the graph has it.
    fn shown(&self, terminal: &Terminal) -> Shown {
        let graph = match self.graph.unwrap_or(When::Auto) {
            When::Auto => terminal.is_terminal() && !self.json && self.seconds() >= GRAPH_FROM_S,
            When::Always => true,
            When::Never => false,
        };
        Shown {
            interval: self.interval.unwrap_or(INTERVAL_DEFAULT).0,
            lines: !(self.json || graph && terminal.has_standard_output()),
            graph,
            keep: self.json,
        }
    }

    pub(super) async fn one_test(&self, prober: &Prober, terminal: &Terminal) -> anyhow::Result<ExitCode> {
        let wishes = self.wishes(prober)?;
        let shown = self.shown(terminal);
        let mut live = Live::new(shown, &wishes, Picture::new(terminal));
        let follow = Follow { start: std::time::Duration::ZERO, every: look_every(shown.interval) };
        let mut told = once_told_to_stop();
        let stop = async move {
            // Where nobody can tell it any more, it is not told.
            if told.wait_for(|is_told| *is_told).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let session = prober.session();
        let mut each = |moment, boths: &[Both]| live.look(moment, boths, session.rtt());
        let loads = prober.loads(&wishes, follow, stop, &mut each).await?;
        if loads.stopped {
            terminal.say("longhaul: interrupted; what was measured until then:");
        }
        let kept = live.into_kept();
        print_out(&if self.json {
            format!("{:#}\n", json(&wishes, &loads, &kept))
        } else {
            text(&wishes, &loads)
        })?;
        Ok(if loads.stopped { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
    }
}

/// Becomes true by the first signal; who sends a second one does not wait for an end in order.
fn once_told_to_stop() -> watch::Receiver<bool> {
    let (tell, told) = watch::channel(false);
    tokio::spawn(async move {
        until_told_to_stop().await;
        let _ = tell.send(true); // it may be over
        until_told_to_stop().await;
        std::process::exit(INTERRUPTED.into());
    });
    told
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

fn text(wishes: &[Wish], loads: &Loads) -> String {
    let last = || loads.counted.iter().map(|(_, last)| last);
    let mut text: String = wishes.iter().zip(last()).map(|(wish, both)| way_text(wish, both)).collect();
    // The program is the same both ways, and so are the seconds; the flows are not.
    let most = |of: fn(&Processor) -> f64, at: fn(&Both) -> &Seen| {
        last().map(|both| of(&at(both).processor)).fold(0.0, f64::max)
    };
    let _ = writeln!(
        text,
        "Processors: here {:.0} % of one (busiest flow {:.0} %), server {:.0} % ({:.0} %)",
        most(|processor| processor.process, |both| &both.near),
        most(|processor| processor.thread, |both| &both.near),
        most(|processor| processor.process, |both| &both.far),
        most(|processor| processor.thread, |both| &both.far),
    );
    text
}

fn way_text(wish: &Wish, both: &Both) -> String {
    let (sender, receiver) = (both.sender(wish.way), both.receiver(wish.way));
    let mut text = format!(
        "{} {} in {:.1} s: {} of payload\n",
        show_size(receiver.bytes()),
        words(wish.way),
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
    text
}

/// Of both ways at once, each as if it were alone, under `directions`.
fn json(wishes: &[Wish], loads: &Loads, kept: &[Kept]) -> serde_json::Value {
    let counted = loads.counted.iter().map(|(_, last)| last);
    let mut ways: Vec<_> =
        wishes.iter().zip(counted).zip(kept).map(|((wish, both), kept)| way_json(wish, both, kept)).collect();
    let mut all = if ways.len() == 1 { ways.remove(0) } else { serde_json::json!({ "directions": ways }) };
    all["bidir"] = (wishes.len() > 1).into();
    all["interrupted"] = loads.stopped.into();
    all
}

fn way_json(wish: &Wish, both: &Both, kept: &Kept) -> serde_json::Value {
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
        "intervals": kept.intervals,
        "intervals_left_out": (kept.left_out > 0).then_some(kept.left_out),
    })
}
