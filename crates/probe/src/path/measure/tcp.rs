//! TCP: by window and streams, by congestion control, and paced.

use std::time::Duration;

use longhaul_report::path::{self as record, Controlled, HostFacts, Loaded, Paced, Tcp};

use super::{Measurement, PING_LOADED_EVERY, rtt};
use crate::path::client::{Both, ProbeError};
use crate::path::echoes::Echoes;
use crate::path::tcp_theory::{mathis_rate, payload_rate, window_rate};
use crate::path::test::{FlowSeen, Way, What, Wish};
use crate::tcp::write_bytes;
use crate::traffic::Options;

/// A test of TCP: how many streams, with which window and congestion control, and how fast each may be, bits a second.
#[derive(Clone, Copy, Debug)]
struct Load<'a> {
    way: Way,
    window: Option<u64>,
    streams: u32,
    control: Option<&'a str>,
    pacing: Option<u64>,
}

impl Measurement<'_> {
    /// One window and number of streams; where these fill the path, with round-trip times meanwhile.
    pub(super) async fn tcp(
        &mut self,
        way: Way,
        window: Option<u64>,
        streams: u32,
        echoes: Option<&Echoes>,
    ) -> Result<(), ProbeError> {
        let words =
            window.map_or_else(|| "the kernels' window".to_owned(), |bytes| format!("{} KiB", bytes >> 10));
        let what = format!("TCP {}: {words}, streams: {streams}", record::Way::from(way));
        self.begin(&what);
        let fills = window.is_none() && self.plan.streams.iter().all(|most| *most <= streams);
        let control = self.plan.congestion.as_deref();
        let load = Load { way, window, streams, control, pacing: None };
        match self.load(load, echoes.filter(|_| fills)).await {
            Ok((row, loaded)) => {
                self.path.loaded.extend(loaded);
                self.path.tcp.push(row);
                Ok(())
            }
            Err(error) => self.leave_out(&what, error),
        }
    }

    /// One stream and many with each congestion control.
    pub(super) async fn controlled(&mut self, way: Way) -> Result<(), ProbeError> {
        for control in &self.plan.controls {
            for streams in self.plan.few_and_many() {
                let what = format!("TCP {}: {control}, streams: {streams}", record::Way::from(way));
                self.begin(&what);
                let load = Load { way, window: None, streams, control: Some(control), pacing: None };
                match self.load(load, None).await {
                    Ok((tcp, _)) => self.path.controlled.push(Controlled { control: control.clone(), tcp }),
                    Err(error) => self.leave_out(&what, error)?,
                }
            }
        }
        Ok(())
    }

    /// The most streams, each held to its share of what the path carries, by the sender's kernel: it is they that overrun a queue.
    pub(super) async fn paced(&mut self, way: Way) -> Result<(), ProbeError> {
        if self.plan.pacing.is_empty() {
            return Ok(());
        }
        let rows = || self.path.tcp.iter().filter(move |tcp| tcp.way == way.into());
        let Some(many) = rows()
            .max_by(|one, other| one.streams.cmp(&other.streams).then(one.mbps.total_cmp(&other.mbps)))
            .copied()
        else {
            self.step += self.plan.pacing.len();
            let why = "no TCP has been measured that way";
            self.path.left_out.push(format!("pacing {}: {why}", record::Way::from(way)));
            return Ok(());
        };
        let best_mbps = rows().map(|tcp| tcp.mbps).fold(0.0, f64::max);
        let mtu = self.path.mtu.iter().find(|mtu| mtu.way == way.into()).and_then(|mtu| mtu.bytes);
        let capacity =
            self.path.capacity(way.into()).map_or(0.0, |wire| payload_rate(wire, mtu)).max(best_mbps);
        for percent in self.plan.pacing.clone() {
            let rate_mbps = capacity * percent / 100.0;
            let what = format!("TCP {}: paced at {rate_mbps:.1} Mbit/s", many.way);
            self.begin(&what);
            let each = (rate_mbps * 1e6 / f64::from(many.streams)) as u64;
            let (window, streams, control) =
                (many.window_bytes, many.streams, self.plan.congestion.as_deref());
            let load = Load { way, window, streams, control, pacing: Some(each.max(8)) };
            match self.load(load, None).await {
                Ok((tcp, _)) => self.path.paced.push(Paced { percent, rate_mbps, tcp }),
                Err(error) => self.leave_out(&what, error)?,
            }
        }
        Ok(())
    }

    async fn load(
        &self,
        load: Load<'_>,
        echoes: Option<&Echoes>,
    ) -> Result<(Tcp, Option<Loaded>), ProbeError> {
        let Load { way, window, streams, control, pacing } = load;
        // A start-up takes some ten round trips, and is no more than a third of the test.
        let rtt_s = self.idle_rtt_s();
        let time = self.plan.tcp_time + Duration::from_secs_f64((20.0 * rtt_s).min(10.0));
        let start = Duration::from_secs_f64((10.0 * rtt_s).min(5.0)) + self.plan.tcp_time / 4;
        let wish = Wish {
            what: What::Tcp,
            way,
            milliseconds: time.as_millis() as u32,
            streams,
            length: write_bytes(None),
            rate: None,
            options: Options { window, congestion: control.map(str::to_owned), pacing, ..Options::default() },
        };
        let ping = async {
            let echoes = echoes?;
            tokio::time::sleep(start).await;
            echoes.ping(PING_LOADED_EVERY, time - start).await.ok()
        };
        let (counted, pings) = tokio::join!(self.prober.load(&wish, start), ping);
        let (first, last) = counted?;
        let row = tcp_row(&wish, rtt_s, &self.path.hosts, &first, &last);
        let loaded = pings.map(|pings| Loaded { way: way.into(), mbps: row.mbps, rtt: rtt(&pings) });
        Ok((row, loaded))
    }
}

fn tcp_row(wish: &Wish, rtt_s: f64, hosts: &[HostFacts; 2], first: &Both, last: &Both) -> Tcp {
    let way = wish.way;
    let (before, after) = (first.receiver(way), last.receiver(way));
    let seconds = (after.seconds - before.seconds).max(1e-9);
    let mbps = after.bytes().saturating_sub(before.bytes()) as f64 * 8e-6 / seconds;
    let grown =
        |of: fn(&FlowSeen) -> u64| last.sender(way).sum(of).saturating_sub(first.sender(way).sum(of)) as f64;
    let tcp = |flow: &FlowSeen| flow.tcp.unwrap_or_default();
    let (again, segments) = (
        grown(|flow| flow.tcp.unwrap_or_default().retransmits),
        grown(|flow| flow.tcp.unwrap_or_default().segments),
    );
    let loss = again / segments.max(1.0);
    let busy = grown(|flow| flow.tcp.unwrap_or_default().busy_us).max(1.0);
    let flows = &last.sender(way).flows;
    let rtt_ms =
        flows.iter().map(|flow| tcp(flow).rtt_mean_us as f64 / 1e3).sum::<f64>() / flows.len().max(1) as f64;
    let mss = flows.first().map_or(1448.0, |flow| tcp(flow).mss as f64);
    // What a user may not have the kernels cut in silence.
    let [here, there] = hosts;
    let (sender, receiver) = if way == Way::ToServer { (here, there) } else { (there, here) };
    let window =
        wish.window_bytes(sender.number("net.core.wmem_max", 0), receiver.number("net.core.rmem_max", 0));
    let (last_sender, last_receiver) = (&last.sender(way).processor, &after.processor);
    Tcp {
        way: way.into(),
        window_bytes: wish.options.window,
        streams: wish.streams,
        mbps,
        window_mbps: window.map(|bytes| window_rate(bytes as f64, rtt_s, wish.streams) / 1e6),
        mathis_mbps: mathis_rate(mss, rtt_s, loss, wish.streams).map(|rate| rate / 1e6),
        retransmitted_percent: loss * 100.0,
        rtt_ms,
        rwnd_limited_percent: grown(|flow| flow.tcp.unwrap_or_default().rwnd_limited_us) * 100.0 / busy,
        sndbuf_limited_percent: grown(|flow| flow.tcp.unwrap_or_default().sndbuf_limited_us) * 100.0 / busy,
        cpu: [last_sender.thread, last_receiver.thread],
        interrupts: [last_sender.interrupts, last_receiver.interrupts],
        hosts: [last_sender.host, last_receiver.host],
    }
}

impl Wish {
    /// The window that the kernels make of what was asked for.
    fn window_bytes(&self, wmem_max: Option<u64>, rmem_max: Option<u64>) -> Option<u64> {
        let asked = self.options.window?;
        Some([wmem_max, rmem_max].into_iter().flatten().fold(asked, u64::min))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::test::{Seen, TcpSeen};

    fn seen(seconds: f64, flow: FlowSeen) -> Seen {
        Seen { seconds, flows: vec![flow], ..Seen::default() }
    }

    #[test]
    fn rates_of_tcp_are_those_after_the_start() {
        let tcp =
            |retransmits, segments| Some(TcpSeen { retransmits, segments, mss: 1448, ..TcpSeen::default() });
        let at = |seconds, bytes, again, segments| Both {
            near: seen(seconds, FlowSeen { bytes, tcp: tcp(again, segments), ..FlowSeen::default() }),
            far: seen(seconds, FlowSeen { bytes, ..FlowSeen::default() }),
        };
        let options = Options { window: Some(16 << 20), ..Options::default() };
        let wish = Wish {
            what: What::Tcp,
            way: Way::ToServer,
            milliseconds: 3000,
            streams: 1,
            length: 1,
            rate: None,
            options,
        };
        let settings = vec![("net.core.wmem_max".to_owned(), "1000000".to_owned())];
        let hosts = [HostFacts { settings, ..HostFacts::default() }, HostFacts::default()];
        let row = tcp_row(&wish, 0.1, &hosts, &at(1.0, 1_000_000, 5, 1000), &at(3.0, 26_000_000, 6, 2000));
        assert!((row.mbps - 100.0).abs() < 1e-9 && (row.retransmitted_percent - 0.1).abs() < 1e-9, "{row:?}");
        // A million bytes is all that the kernel gives.
        assert!((row.window_mbps.unwrap() - 80.0).abs() < 1e-9, "{row:?}");
    }
}
