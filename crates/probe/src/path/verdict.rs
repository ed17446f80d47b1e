//! What limits a path, from what was measured of it. Pure.
//!
//! The question is what holds up *one* TCP stream with the kernels' own windows, as other programs have it: what many streams
//! reach beside it says what there is to gain. A processor that is busy all the time comes first, since then the figures are the
//! host's, not the network's; a full link next; then windows and loss, each with the figures that show it.
//!
//! Where disks were measured, and one is slower than the network was shown to be by whatever means, that disk is the verdict: it is
//! what limits a transfer of files.

use longhaul_report::path::{Bound, Limit, Limited, Loaded, Packets, Path, Tcp, Udp, Way};

use super::slow_disk::{SlowDisk, slow_disk};
use super::tcp_theory::{payload_rate, window_rate};

/// A thread that is busy for so much of the time, in percent, is the limit.
const BUSY: f64 = 90.0;

/// The same where something else has shown that the path carries more than a core can handle, UDP or more streams: what one
/// stream misses of a whole core then goes with waking up and with interrupts on the way.
const BUSY_ENOUGH: f64 = 70.0;

/// Of what the link can carry, a stream that has so much fills it.
const FULL: f64 = 0.8;

/// Time with a full window, in percent of the busy time, that shows a window that is too small.
const WINDOW_FULL: f64 = 30.0;

/// Loss below the capacity that TCP feels, in percent: one packet in fifty thousand halves Reno's window on long paths.
const LOSS_FELT: f64 = 0.002;

/// Segments sent again, in percent, that are no more the few of a start-up.
const SENT_AGAIN: f64 = 0.2;

/// Below half of the capacity a policer drops nothing; some packets in a thousand that a host loses by itself are none of it.
const LOSS_AT_HALF: f64 = 0.1;

/// Loss at half of the load that is so much rarer is of the load. Told from chance where so many would have been lost.
const RARER: f64 = 5.0;

/// A delay under load that people notice, in ms (voice and video calls bear some 60 more), or so many times the idle one.
const BLOAT_MS: f64 = 60.0;
const BLOAT_TIMES: f64 = 3.0;
const BLOAT_LEAST_MS: f64 = 10.0;

/// A verdict for each way in which something was measured.
#[must_use]
pub fn verdicts(path: &Path) -> Vec<Limited> {
    Way::BOTH.into_iter().filter_map(|way| verdict(path, way)).collect()
}

/// What is known of one way.
struct Facts<'a> {
    path: &'a Path,
    way: Way,
    /// One stream with the kernels' window, or what comes nearest.
    one: Tcp,
    /// The best of all.
    best: Tcp,
    /// Most streams at a time.
    most: Tcp,
    /// Of payload by TCP, if the path has shown its limit: no less than TCP has carried, whatever UDP's receiver has missed.
    capacity: Option<f64>,
    /// Loss below the capacity that has nothing to do with the load, in percent.
    loss: Option<f64>,
    /// Loss below the capacity that half of the load does not have, in percent.
    loss_of_load: f64,
    /// Largest frames.
    udp: Option<&'a Udp>,
    rtt_ms: f64,
    /// Delay that the load adds.
    added_ms: Option<f64>,
}

fn verdict(path: &Path, way: Way) -> Option<Limited> {
    let facts = Facts::of(path, way)?;
    let (mut limit, mut evidence) = facts.limit();
    let slow_disk = slow_disk(path, way, facts.capacity.unwrap_or(facts.best.mbps));
    let advice = match slow_disk {
        Some(SlowDisk { limit: disk, evidence: slower, advice }) => {
            evidence.extend([slower, format!("Without that disk: {limit}.")]);
            limit = disk;
            vec![advice]
        }
        None => facts.advice(limit),
    };
    let bloated = facts.added_ms.is_some_and(|added| {
        added > BLOAT_MS || (added > BLOAT_LEAST_MS && added > BLOAT_TIMES * facts.rtt_ms)
    });
    let mut verdict = Limited {
        way,
        limit,
        bufferbloat: bloated,
        evidence,
        by_itself: by_itself(limit).to_owned(),
        advice,
    };
    if bloated {
        let added = facts.added_ms.unwrap_or_default();
        verdict.evidence.push(format!(
            "Under load a round trip takes {added:.0} ms more than the {:.1} ms at rest: a long queue fills.",
            facts.rtt_ms
        ));
        let rate = facts.capacity.unwrap_or(facts.best.mbps) * 0.95;
        verdict.advice.push(format!(
            "At the router before the narrow link: `tc qdisc replace dev DEV root cake bandwidth {rate:.0}mbit` (or fq_codel)."
        ));
    }
    Some(verdict)
}

impl<'a> Facts<'a> {
    fn of(path: &'a Path, way: Way) -> Option<Self> {
        let rows = || path.tcp.iter().filter(move |tcp| tcp.way == way);
        let best = *rows().max_by(|one, other| one.mbps.total_cmp(&other.mbps))?;
        let one = *rows()
            .filter(|tcp| tcp.window_bytes.is_none())
            .min_by_key(|tcp| tcp.streams)
            .or_else(|| rows().max_by_key(|tcp| (tcp.window_bytes, std::cmp::Reverse(tcp.streams))))?;
        let most = *rows().max_by_key(|tcp| tcp.streams)?;
        let udp = path.udp.iter().filter(|udp| udp.way == way).max_by_key(|udp| udp.frame_bytes.min(1518));
        let mtu = path.mtu.iter().find(|mtu| mtu.way == way).and_then(|mtu| mtu.bytes);
        let capacity = path.capacity(way).map(|wire| payload_rate(wire, mtu).max(best.mbps));
        let rtt_ms = path.rtt.filter(|rtt| rtt.back > 0).map_or(one.rtt_ms, |rtt| rtt.median_ms);
        let loaded: Option<&Loaded> =
            path.loaded.iter().find(|loaded| loaded.way == way && loaded.rtt.back > 0);
        let (loss, loss_of_load) = udp.map_or((None, 0.0), losses);
        Some(Self {
            path,
            way,
            one,
            best,
            most,
            capacity,
            loss,
            loss_of_load,
            udp,
            rtt_ms,
            added_ms: loaded.map(|loaded| (loaded.rtt.median_ms - rtt_ms).max(0.0)),
        })
    }

    /// Percent of a processor at the sender and the receiver of a row: the thread's or the interrupts', or both where no core of
    /// the host is idle, so that they take it from each other.
    fn busiest(row: &Tcp) -> [f64; 2] {
        [0, 1].map(|end| {
            let (thread, interrupts, host) = (row.cpu[end], row.interrupts[end], row.hosts[end]);
            if host >= BUSY { (thread + interrupts).min(100.0) } else { thread.max(interrupts) }
        })
    }

    fn is_here(&self, sender: bool) -> bool {
        (self.way == Way::ToServer) == sender
    }

    fn cpu(&self, sender: bool) -> Limit {
        if self.is_here(sender) { Limit::CpuHere } else { Limit::CpuThere }
    }

    fn limit(&self) -> (Limit, Vec<String>) {
        let one = &self.one;
        let mut evidence = vec![self.reached()];
        let [sender, receiver] = Self::busiest(one);
        let is_full = self.capacity.is_some_and(|capacity| one.mbps >= FULL * capacity);
        let udp_busy = self.udp.filter(|udp| udp.bound == Bound::Sender && udp.above.cpu[0] >= BUSY);
        // On a host that others keep busy, more streams need not be faster.
        let [best, most] = [&self.best, &self.most].map(Self::busiest);
        let many = [best[0].max(most[0]), best[1].max(most[1])];
        let is_busy = |busy: f64, with_many: f64| {
            busy >= BUSY || busy >= BUSY_ENOUGH && (udp_busy.is_some() || with_many >= BUSY)
        };
        if (is_busy(sender, many[0]) || is_busy(receiver, many[1])) && !is_full {
            if let Some(udp) = udp_busy {
                evidence.push(format!(
                    "UDP's sender came to {:.0} Mbit/s and kept a core busy.",
                    udp.above.sent_mbps
                ));
            }
            let end = if sender >= receiver { "sender" } else { "receiver" };
            evidence.push(format!(
                "A core of the {end} was busy {:.0} % of the time: the figures are the host's, not the network's.",
                sender.max(receiver)
            ));
            return (self.cpu(sender >= receiver), evidence);
        }
        if let (Some(capacity), Some(udp)) = (self.capacity, self.udp) {
            let wire = udp.above.arrived_mbps;
            evidence
                .push(format!("UDP arrives at {wire:.1} Mbit/s of the wire, {capacity:.1} by TCP at best."));
        }
        if self.is_policed() {
            evidence.push(format!(
                "{:.2} % of TCP's segments were sent again, but the load adds only {:.1} ms of delay, and a lower load loses {:.3} %: \
                 what is above a rate is dropped, not queued.",
                one.retransmitted_percent.max(self.best.retransmitted_percent),
                self.added_ms.unwrap_or_default(),
                self.loss.unwrap_or_default()
            ));
            return (Limit::Policer, evidence);
        }
        if is_full {
            return (Limit::Rate, evidence);
        }
        if let Some(why) = self.window() {
            evidence.push(why);
            return (Limit::Window, evidence);
        }
        if let Some(why) = self.lossy() {
            evidence.push(why);
            return (Limit::Loss, evidence);
        }
        // No capacity by UDP: a sender that cannot fill the path says so.
        if let Some(udp) = self.udp.filter(|udp| udp.bound == Bound::Sender) {
            evidence.push(format!(
                "The sender of UDP came to {:.0} Mbit/s, and its thread was busy {:.0} %.",
                udp.above.sent_mbps, udp.above.cpu[0]
            ));
            if udp.above.cpu[0] >= BUSY {
                return (self.cpu(true), evidence);
            }
        }
        (Limit::Unknown, evidence)
    }

    fn reached(&self) -> String {
        let (one, best) = (&self.one, &self.best);
        let window = if one.window_bytes.is_none() {
            "the kernels' windows".to_owned()
        } else {
            format!("windows of {}", one.window_in_words())
        };
        let streams =
            |count: u32| if count == 1 { "one stream".to_owned() } else { format!("{count} streams") };
        format!(
            "TCP: {} with {window} {:.1} Mbit/s, {} {:.1} at best.",
            streams(one.streams),
            one.mbps,
            streams(best.streams),
            best.mbps
        )
    }

    /// Loss comes with load only, and no queue with it.
    fn is_policed(&self) -> bool {
        let sent_again = self.one.retransmitted_percent.max(self.best.retransmitted_percent);
        let (Some(_), Some(added), Some(loss)) = (self.capacity, self.added_ms, self.loss) else {
            return false;
        };
        // A tenth of the way, or a fifth of a short one: queues there are short too, and hosts not that punctual.
        let no_queue = added < (0.1 * self.rtt_ms).max((0.2 * self.rtt_ms).min(1.0));
        let dropped = sent_again.max(self.loss_of_load);
        no_queue && dropped >= SENT_AGAIN && loss < dropped / RARER && loss < LOSS_AT_HALF
    }

    fn window(&self) -> Option<String> {
        let one = &self.one;
        let (receiver, sender) = (one.rwnd_limited_percent, one.sndbuf_limited_percent);
        let most =
            self.window_max().map(|bytes| window_rate(bytes as f64, self.rtt_ms / 1e3, one.streams) / 1e6);
        let near_most = most.is_some_and(|most| one.mbps >= 0.6 * most && one.mbps <= 1.5 * most);
        let felt = one.retransmitted_percent >= SENT_AGAIN;
        if receiver.max(sender) < WINDOW_FULL && (!near_most || felt) {
            return None;
        }
        let whose = if sender > receiver { "sender's buffer" } else { "receiver's window" };
        let most = most.map_or_else(String::new, |most| {
            format!(" The largest window over {:.1} ms makes {most:.1} Mbit/s.", self.rtt_ms)
        });
        Some(format!("The {whose} was full {:.0} % of the time.{most}", receiver.max(sender)))
    }

    /// The largest window that the kernels give by themselves, or that was asked for.
    fn window_max(&self) -> Option<u64> {
        if let Some(bytes) = self.one.window_bytes {
            return Some(bytes);
        }
        let [receiver, sender] = self.receiver_and_sender();
        // Half of a receive buffer, and 0.7 of a send buffer, is payload (Linux 6).
        let receives = receiver.number("net.ipv4.tcp_rmem", 2).map(|bytes| bytes / 2);
        let sends = sender.number("net.ipv4.tcp_wmem", 2).map(|bytes| bytes * 7 / 10);
        receives.into_iter().chain(sends).min()
    }

    fn receiver_and_sender(&self) -> [&longhaul_report::path::HostFacts; 2] {
        let [here, there] = &self.path.hosts;
        if self.way == Way::ToServer { [there, here] } else { [here, there] }
    }

    fn lossy(&self) -> Option<String> {
        let one = &self.one;
        let loss = self.loss.unwrap_or(0.0);
        let lossy_at_any_rate = self.udp.is_some_and(|udp| udp.bound == Bound::Nothing);
        if loss < LOSS_FELT && one.retransmitted_percent < SENT_AGAIN && !lossy_at_any_rate {
            return None;
        }
        let theory = one
            .mathis_mbps
            .map_or_else(String::new, |rate| format!(" Mathis's formula allows {rate:.1} Mbit/s (Reno)."));
        Some(format!(
            "Below the capacity {loss:.3} % of UDP's packets are lost, and {:.3} % of TCP's segments were sent again.{theory}",
            one.retransmitted_percent
        ))
    }

    fn advice(&self, limit: Limit) -> Vec<String> {
        let ends = |receiver: bool| match self.is_here(!receiver) {
            true => "On this host",
            false => "On the server",
        };
        match limit {
            Limit::Window => {
                // Twice the product: the kernel counts its own overhead, and a stream that grows needs room.
                let rate = self.capacity.unwrap_or(self.best.mbps.max(self.one.mbps * 2.0)) * 1e6 / 8.0;
                let bytes = ((2.0 * rate * self.rtt_ms / 1e3) as u64).div_ceil(1 << 20).max(1) << 20;
                let [receiver, sender] = self.receiver_and_sender();
                let set = |host: &longhaul_report::path::HostFacts, is_receiver: bool| {
                    let (letter, usual) = if is_receiver { ('r', "131072") } else { ('w', "16384") };
                    let name = format!("net.ipv4.tcp_{letter}mem");
                    // What is larger already stays.
                    let is_small = host.number(&name, 2).is_none_or(|now| now < bytes);
                    is_small.then(|| {
                        format!(
                            "{}: `sysctl -w {name}=\"4096 {usual} {bytes}\" net.core.{letter}mem_max={bytes}`.",
                            ends(is_receiver)
                        )
                    })
                };
                [set(receiver, true), set(sender, false)].into_iter().flatten().collect()
            }
            Limit::Loss => {
                let [_, sender] = self.receiver_and_sender();
                let (_, available) = sender
                    .settings
                    .iter()
                    .find(|(name, _)| name == "net.ipv4.tcp_available_congestion_control")
                    .cloned()
                    .unwrap_or_default();
                let load = if available.contains("bbr") { "" } else { "modprobe tcp_bbr; " };
                vec![format!(
                    "{}: `{load}sysctl -w net.core.default_qdisc=fq net.ipv4.tcp_congestion_control=bbr`; and find where the packets \
                     are lost: cables, optics, duplex, a queue that is too short.",
                    ends(false)
                )]
            }
            Limit::CpuHere | Limit::CpuThere => {
                let host = if limit == Limit::CpuHere { "On this host" } else { "On the server" };
                vec![format!(
                    "{host}: more or faster cores; longer packets (MTU 9000) where all of the path takes them; receive queues on several \
                     cores (`ethtool -L DEV combined N`)."
                )]
            }
            Limit::Policer => vec![format!(
                "Send a little below the rate: `--rate {:.0}Mbit`; or ask who runs the link for a queue instead of a policer.",
                self.capacity.unwrap_or(self.best.mbps) * 0.97
            )],
            Limit::Rate | Limit::Unknown | Limit::DiskHere | Limit::DiskThere => Vec::new(),
        }
    }
}

/// Percent of packets that were lost below the capacity whatever the load, where that was measured, and because of it.
fn losses(udp: &Udp) -> (Option<f64>, f64) {
    let (Some(below), half) = (udp.below, udp.half) else { return (None, 0.0) };
    let Some(half) = half.filter(|half| half.packets > 0) else { return (Some(below.lost_percent()), 0.0) };
    let expected = below.lost_percent() / 100.0 * half.packets as f64;
    if expected >= RARER && (half.lost as f64) < expected / RARER {
        return (Some(half.lost_percent()), below.lost_percent());
    }
    let both = Packets { packets: below.packets + half.packets, lost: below.lost + half.lost, ..below };
    (Some(both.lost_percent()), 0.0)
}

fn by_itself(limit: Limit) -> &'static str {
    match limit {
        Limit::Window => "longhaul opens as many connections as it takes to fill the path.",
        Limit::Loss => "longhaul spreads over several connections, and takes BBR where the kernel has it.",
        Limit::Rate => "longhaul paces itself just under this rate, so that the queue stays short.",
        Limit::Policer => "longhaul paces itself under the rate at which loss begins.",
        Limit::CpuHere | Limit::CpuThere => "longhaul moves bytes on all cores.",
        Limit::DiskHere | Limit::DiskThere => {
            "longhaul reads and writes from several threads, past the page cache where that is faster."
        }
        Limit::Unknown => "Nothing that was measured explains it.",
    }
}

#[cfg(test)]
mod tests;
