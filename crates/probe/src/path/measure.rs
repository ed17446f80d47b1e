//! A whole measurement: which tests, in which order, and the record that they make.

mod tcp;

use std::time::Duration;

use longhaul_report::Environment;
use longhaul_report::path::{
    self as record, Bound, ETHERNET_BYTES, HostFacts, Mtu, Packets, Path, Rtt, Side, Udp,
};

use super::client::{Both, ProbeError, Prober};
use super::disks;
use super::echoes::{Echoes, Pings, header_bytes};
use super::plan::Plan;
use super::test::{Host, Seen, Way, What, Wish};
use super::udp_search::{Burst, Found, Search, Step};
use super::verdict::verdicts;
use crate::limits::{BURSTS_PER_SEARCH_MAX, DATAGRAM_BYTES_MIN, PROBE_RECEIVE_BUFFER};
use crate::traffic::Options;

impl From<Way> for record::Way {
    fn from(way: Way) -> Self {
        match way {
            Way::ToServer => Self::ToServer,
            Way::ToClient => Self::FromServer,
        }
    }
}

fn host_facts(host: &Host) -> HostFacts {
    HostFacts { version: host.version.clone(), cores: host.cores, settings: host.settings.clone() }
}

/// What is told of the progress.
pub type Tell<'a> = &'a mut (dyn FnMut(&str) + Send);

/// A measurement under way.
struct Measurement<'a> {
    prober: &'a Prober,
    plan: &'a Plan,
    path: Path,
    step: usize,
    tell: Tell<'a>,
}

/// Measures all of it. What fails is left out, and the record says why.
pub async fn measure(
    prober: &Prober,
    plan: &Plan,
    host: &str,
    environment: Environment,
    tell: Tell<'_>,
) -> Path {
    let mut path = Path::new(host, environment);
    path.hosts = [host_facts(&prober.near), host_facts(&prober.far)];
    let mut measurement = Measurement { prober, plan, path, step: 0, tell };
    if let Err(error) = measurement.all().await {
        measurement.path.left_out.push(format!("all that was to follow: {error}"));
    }
    let mut path = measurement.path;
    path.verdicts = verdicts(&path);
    path
}

impl Measurement<'_> {
    fn begin(&mut self, what: &str) {
        self.step += 1;
        (self.tell)(&format!("[{}/{}] {what}", self.step, self.plan.steps()));
    }

    /// Something that fails alone is left out; without a session nothing goes on.
    fn leave_out(&mut self, what: &str, error: ProbeError) -> Result<(), ProbeError> {
        if matches!(error, ProbeError::Session(_)) {
            return Err(error);
        }
        self.path.left_out.push(format!("{what}: {error}"));
        Ok(())
    }

    async fn all(&mut self) -> Result<(), ProbeError> {
        self.begin("round-trip time");
        let echoes = match Echoes::open(self.prober).await {
            Ok(echoes) => Some(echoes),
            Err(error) => {
                self.leave_out("round-trip times and path MTU", error)?;
                None
            }
        };
        if let Some(echoes) = &echoes
            && let Err(error) = self.at_rest(echoes).await
        {
            self.leave_out("round-trip times and path MTU", error)?;
        }
        for way in Way::BOTH {
            for window in self.plan.windows.clone() {
                for streams in self.plan.streams.clone() {
                    self.tcp(way, window, streams, echoes.as_ref()).await?;
                }
            }
        }
        for way in Way::BOTH {
            self.controlled(way).await?;
        }
        if let Some(echoes) = echoes {
            echoes.close().await;
        }
        for way in Way::BOTH {
            // What TCP has reached saves most of the doubling, and a round trip is long on long paths.
            let of_way = self.path.tcp.iter().filter(|tcp| tcp.way == way.into());
            let mut start = of_way.map(|tcp| tcp.mbps * 0.6).fold(UDP_START_MBPS, f64::max);
            let mut frames = self.plan.frames.clone();
            // The longest first: what it finds is where the others begin.
            frames.sort_by_key(|frame| std::cmp::Reverse((*frame == 1518, *frame)));
            for frame in frames {
                self.udp(way, frame, &mut start).await?;
            }
        }
        self.path.udp.sort_by_key(|udp| (udp.way, udp.frame_bytes));
        for way in Way::BOTH {
            self.paced(way).await?;
        }
        // Nothing is on the network meanwhile. The server's first: it is another client's when it has been left alone for a while.
        let Plan { disk_there, disk_here, .. } = self.plan;
        for (side, directory) in [(Side::Server, disk_there), (Side::Here, disk_here)] {
            if let Some(directory) = directory {
                self.disk(side, directory).await?;
            }
        }
        Ok(())
    }

    async fn disk(&mut self, side: Side, directory: &std::path::Path) -> Result<(), ProbeError> {
        let what = format!("the disk of {side} ({})", directory.display());
        self.begin(&what);
        let measured = match side {
            Side::Here => disks::here(directory, self.plan.disk_time).await,
            Side::Server => self.prober.disk(directory, self.plan.disk_time).await,
        };
        match measured {
            Ok(measured) => self.path.disks.push(disks::disk(side, directory, &measured)),
            Err(error) => self.leave_out(&what, error)?,
        }
        Ok(())
    }

    async fn at_rest(&mut self, echoes: &Echoes) -> Result<(), ProbeError> {
        let pings = echoes.ping(PING_EVERY, PING_EVERY * self.plan.pings).await?;
        self.path.rtt = Some(rtt(&pings));
        self.begin("path MTU");
        let rtt = Duration::from_secs_f64(pings.quantile(0.99).unwrap_or(0.2));
        for way in Way::BOTH {
            let bytes = echoes.path_mtu(way, rtt).await?;
            self.path.mtu.push(Mtu { way: way.into(), bytes });
        }
        Ok(())
    }

    fn idle_rtt_s(&self) -> f64 {
        let measured = self.path.rtt.filter(|rtt| rtt.back > 0).map(|rtt| rtt.median_ms / 1e3);
        measured.unwrap_or_else(|| self.prober.rtt().as_secs_f64())
    }

    async fn udp(&mut self, way: Way, frame: u32, start_mbps: &mut f64) -> Result<(), ProbeError> {
        let what = format!("UDP {}: frames of {frame} bytes", record::Way::from(way));
        let mtu = self.path.mtu.iter().find(|mtu| mtu.way == way.into()).and_then(|mtu| mtu.bytes);
        let headers = header_bytes(self.prober.session().remote());
        self.begin(&what);
        if frame > 1518 && mtu.is_none_or(|mtu| frame - 18 > mtu) {
            let mtu = mtu.map_or_else(|| "not known".to_owned(), |mtu| format!("{mtu} bytes"));
            self.path.left_out.push(format!("{what}: the path's MTU is {mtu}"));
            return Ok(());
        }
        let Some(payload) =
            (frame as usize).checked_sub(18 + headers).filter(|payload| *payload >= DATAGRAM_BYTES_MIN)
        else {
            self.path.left_out.push(format!("{what}: no room for a number and a time"));
            return Ok(());
        };
        let size = Size { payload, wire: payload + headers + ETHERNET_BYTES as usize };
        match self.search(way, frame, size, *start_mbps).await {
            Ok(udp) => {
                if udp.bound == Bound::Path {
                    *start_mbps = udp.above.arrived_mbps * 0.6;
                }
                self.path.udp.push(udp);
                Ok(())
            }
            Err(error) => self.leave_out(&what, error),
        }
    }

    async fn search(&self, way: Way, frame: u32, size: Size, start: f64) -> Result<Udp, ProbeError> {
        let allowed = self.prober.far.rate_max.map_or(f64::INFINITY, |rate| rate as f64 * 0.99 / 1e6);
        let most = UDP_MOST_MBPS.min(allowed * size.factor());
        let least = UDP_LEAST_MBPS.min(most);
        let mut search = Search::new(start, least..=most, self.plan.loss_max);
        let short = (self.plan.burst / 4).max(UDP_SHORTEST);
        let mut bursts = Vec::new();
        let (bound, above) = loop {
            let is_enough = bursts.len() >= BURSTS_PER_SEARCH_MAX;
            let found = match search.step() {
                Step::Offer(rate) if !is_enough => Err(rate),
                // A path that changes all the time.
                Step::Offer(rate) => Ok(Found::Limit(rate)),
                Step::Done(found) => Ok(found),
            };
            let rate = match found {
                Err(rate) => rate,
                Ok(found) => {
                    let (bound, rate) = match found {
                        Found::Limit(rate) => (Bound::Path, rate),
                        Found::Sender(rate) => (Bound::Sender, rate),
                        Found::Most(rate) => (Bound::Allowed, rate),
                        Found::Nothing => (Bound::Nothing, least),
                    };
                    let above = self.burst(way, size, rate, self.plan.burst).await?;
                    let above = if bound == Bound::Path && search.is_held_up(above.arrived_mbps) {
                        self.middle_with_two_more(way, size, rate, above).await?
                    } else {
                        above
                    };
                    let burst = as_burst(rate, &above);
                    // A short burst has fallen short here, and this long one does not: that was no limit of the path.
                    if bound == Bound::Path && !is_enough && burst.shortfall() < self.plan.loss_max / 2.0 {
                        bursts.push([rate, above.arrived_mbps, above.lost_percent()]);
                        search.note(burst);
                        continue;
                    }
                    break (bound, above);
                }
            };
            let mut packets = self.burst(way, size, rate, short).await?;
            if packets.sent_mbps < 0.93 * rate {
                // A sender that was held up by others for a moment gets a second chance.
                let again = self.burst(way, size, rate, short).await?;
                packets = if again.sent_mbps > packets.sent_mbps { again } else { packets };
            }
            bursts.push([rate, packets.arrived_mbps, packets.lost_percent()]);
            search.note(as_burst(rate, &packets));
        };
        let below = self.burst(way, size, 0.9 * above.arrived_mbps.max(least), self.plan.burst).await?;
        let half = if below.lost > 0 && bound != Bound::Nothing {
            Some(self.burst(way, size, 0.5 * above.arrived_mbps.max(least), self.plan.burst).await?)
        } else {
            None
        };
        Ok(Udp { way: way.into(), frame_bytes: frame, bound, above, below: Some(below), half, bursts })
    }

    /// The middle one of three long bursts: what paused once is not taken for the path. (A policer lets short ones pass, and all long ones are alike.)
    async fn middle_with_two_more(
        &self,
        way: Way,
        size: Size,
        rate: f64,
        first: Packets,
    ) -> Result<Packets, ProbeError> {
        let second = self.burst(way, size, rate, self.plan.burst).await?;
        let third = self.burst(way, size, rate, self.plan.burst).await?;
        let mut all = [first, second, third];
        all.sort_by(|one, other| one.arrived_mbps.total_cmp(&other.arrived_mbps));
        let [_, middle, _] = all;
        Ok(middle)
    }

    /// Packets at a rate of the wire, for a while.
    async fn burst(&self, way: Way, size: Size, mbps: f64, time: Duration) -> Result<Packets, ProbeError> {
        let wish = Wish {
            what: What::Udp,
            way,
            milliseconds: (time.as_millis() as u32).max(1),
            streams: 1,
            length: size.payload,
            rate: Some(((mbps * 1e6 / size.factor()) as u64).max(1)),
            options: Options { window: Some(PROBE_RECEIVE_BUFFER), ..Options::default() },
        };
        let (_, both) = self.prober.load(&wish, Duration::ZERO).await?;
        Ok(packets(&both, way, size))
    }
}

fn as_burst(offered: f64, packets: &Packets) -> Burst {
    let (sent, arrived) = (packets.sent_mbps, packets.arrived_mbps);
    Burst { offered, sent, arrived, lost: packets.lost_percent() / 100.0 }
}

const PING_EVERY: Duration = Duration::from_millis(10);
const PING_LOADED_EVERY: Duration = Duration::from_millis(20);
const UDP_START_MBPS: f64 = 2.0;
const UDP_LEAST_MBPS: f64 = 0.1;
const UDP_MOST_MBPS: f64 = 400_000.0;
/// Shorter bursts say too little.
const UDP_SHORTEST: Duration = Duration::from_millis(150);

/// Of a packet, in bytes.
#[derive(Clone, Copy, Debug)]
struct Size {
    payload: usize,
    /// With all that it has on Ethernet.
    wire: usize,
}

impl Size {
    /// Of the wire, for each of payload.
    fn factor(self) -> f64 {
        self.wire as f64 / self.payload as f64
    }
}

fn rtt(pings: &Pings) -> Rtt {
    let ms = |share| pings.quantile(share).unwrap_or(0.0) * 1e3;
    let (sent, back) = (pings.sent, pings.rtts_s.len() as u32);
    Rtt { sent, back, min_ms: ms(0.0), median_ms: ms(0.5), p99_ms: ms(0.99) }
}

/// What the path did to a burst. Packets that reached the receiver's host, and found its socket full or its cores too slow, are
/// none that the path has lost.
fn packets(both: &Both, way: Way, size: Size) -> Packets {
    let flow = |seen: &Seen| seen.flows.first().copied().unwrap_or_default();
    let (sender, receiver) = (both.sender(way), both.receiver(way));
    let (sent, got) = (flow(sender), flow(receiver));
    let sent_mbps = sent.bytes as f64 * 8e-6 * size.factor() / sender.seconds.max(1e-9);
    let came = got.packets.saturating_sub(got.lost);
    let missing = sent.packets.saturating_sub(came);
    let dropped = got.dropped_here.saturating_add(receiver.processor.dropped).min(missing);
    let lost = missing - dropped;
    let reached = (came + dropped) as f64 / came.max(1) as f64;
    let arrived_mbps = if got.span_s > 0.0 && got.span_bytes > 0 {
        got.span_bytes as f64 * 8e-6 * size.factor() / got.span_s * reached
    } else {
        sent_mbps * (1.0 - lost as f64 / sent.packets.max(1) as f64)
    };
    Packets {
        sent_mbps,
        arrived_mbps,
        packets: sent.packets,
        lost,
        dropped_by_receiver: dropped,
        reordered: got.reordered,
        duplicates: got.duplicates,
        jitter_ms: got.jitter_s * 1e3,
        cpu: [sender.processor.thread, receiver.processor.thread],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::test::FlowSeen;

    fn seen(seconds: f64, flow: FlowSeen) -> Seen {
        Seen { seconds, flows: vec![flow], ..Seen::default() }
    }

    #[test]
    fn what_a_full_socket_drops_the_path_has_carried() {
        let sent = FlowSeen { bytes: 1_472_000, packets: 1000, ..FlowSeen::default() };
        let got = FlowSeen {
            bytes: 1_177_600,
            packets: 950,
            lost: 150,
            dropped_here: 100,
            span_s: 0.1,
            span_bytes: 1_176_128,
            ..FlowSeen::default()
        };
        let both = Both { near: seen(0.1, sent), far: seen(0.2, got) };
        let size = Size { payload: 1472, wire: 1538 };
        let packets = packets(&both, Way::ToServer, size);
        assert_eq!((packets.lost, packets.dropped_by_receiver), (100, 100));
        assert!((packets.sent_mbps - 123.04).abs() < 0.01, "{packets:?}");
        // 900 of 1000 reached the host.
        assert!((packets.arrived_mbps - 110.6).abs() < 0.2, "{packets:?}");
    }
}
