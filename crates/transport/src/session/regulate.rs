//! What a session does ten to fifty times a second, and more often where a transfer ends: read the kernel's words, tune
//! the number of lanes, pace them together, replace lanes that hang.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::message::{Ask, Body};
use super::{Session, Shared};
use crate::governor::{End, Governor, PathReading, share};
use crate::lane::mover::LaneStatus;
use crate::limits::{LANE_UNSENT_BYTES_MIN, LANES_MAX, PIECE_BYTES_MIN};
use crate::scheduler::{LaneId, Nanos};
use crate::socket::{TcpInfo, set_congestion_control, set_pacing_rate, set_unsent_bytes, unsent_bytes};
use crate::tuner::{LaneReading, Tuner};

/// Between two looks at what the number of lanes should be, and at lanes that hang. The governor says when its own are due.
const TUNER_TICK: Duration = Duration::from_millis(100);

/// With nothing to send, a look this often is enough.
const IDLE_TICK: Duration = Duration::from_secs(1);

/// Without an acknowledgement for so long, or four round trips, while the control channel works, a lane hangs: its
/// retransmissions have backed off, and a new connection gets through sooner.
const HANGS_AFTER: Duration = Duration::from_secs(4);

/// A lane at one time.
#[derive(Clone, Debug)]
pub struct LaneSample {
    /// Its number.
    pub id: LaneId,
    /// The kernel's words.
    pub tcp: TcpInfo,
    /// Bytes received and not yet handled by the application.
    pub inbox_bytes: u64,
    /// It takes no more pieces.
    pub draining: bool,
}

/// A session at one time.
#[derive(Clone, Debug, Default)]
pub struct SessionSample {
    /// Time since the session began.
    pub at: Duration,
    /// Its lanes.
    pub lanes: Vec<LaneSample>,
    /// Bytes no lane has taken yet.
    pub waiting_bytes: u64,
    /// Bytes taken by a lane and not yet stored by the peer.
    pub under_way_bytes: u64,
    /// Payload put on lanes so far.
    pub sent_bytes: u64,
    /// Payload taken from lanes so far.
    pub received_bytes: u64,
    /// Payload that had to go again because its lane was lost, or that went twice because it was overdue.
    pub repeated_bytes: u64,
    /// Bytes per second that all lanes together may send; `None`: no cap.
    pub pacing_cap: Option<u64>,
    /// Bytes in the receive queues of all sockets.
    pub socket_bytes: u64,
    /// Time spent reading what is sent, summed over the movers.
    pub reading: Duration,
    /// Time spent storing what was received, summed over the movers.
    pub storing: Duration,
}

pub(super) fn sample(shared: &Shared) -> SessionSample {
    let statuses = shared.lanes.status();
    let lanes = statuses.iter().filter_map(lane_sample).collect();
    let socket_bytes = statuses.iter().filter_map(|lane| rustix::io::ioctl_fionread(&lane.tcp).ok()).sum();
    let traffic = &shared.lanes.traffic;
    let (waiting_bytes, under_way_bytes, hedged) = {
        let scheduler = shared.lanes.scheduler();
        (scheduler.waiting_bytes(), scheduler.under_way_bytes(), scheduler.hedged_bytes())
    };
    SessionSample {
        at: Duration::from_nanos(shared.lanes.now()),
        lanes,
        waiting_bytes,
        under_way_bytes,
        sent_bytes: traffic.sent.load(Ordering::Relaxed),
        received_bytes: traffic.received.load(Ordering::Relaxed),
        repeated_bytes: traffic.returned.load(Ordering::Relaxed) + hedged,
        pacing_cap: Some(shared.pacing_cap.load(Ordering::Relaxed)).filter(|cap| *cap > 0),
        socket_bytes,
        reading: Duration::from_nanos(traffic.fill_ns.load(Ordering::Relaxed)),
        storing: Duration::from_nanos(traffic.store_ns.load(Ordering::Relaxed)),
    }
}

fn lane_sample(lane: &Arc<LaneStatus>) -> Option<LaneSample> {
    // A socket whose state cannot be read is about to be removed.
    let tcp = TcpInfo::of(&lane.tcp).ok()?;
    Some(LaneSample {
        id: lane.id,
        tcp,
        inbox_bytes: lane.inbox_bytes.load(Ordering::Relaxed),
        draining: lane.draining.load(Ordering::Relaxed),
    })
}

/// Runs until the session is over. `is_client`: this side opens the lanes; the other one asks for them.
pub(super) async fn run(shared: Arc<Shared>, first_lanes: usize, is_client: bool) {
    let mut regulation = Regulation {
        tuner: Tuner::new(first_lanes, LANES_MAX),
        governor: Governor::default(),
        path: PathTotals::default(),
        tuned_at: None,
        asked: 0,
        paced: None,
        end: End::default(),
        cubic: BTreeSet::new(),
        unsent: BTreeMap::new(),
        unanswered: Unanswered::default(),
        is_client,
    };
    let mut demand = false;
    let mut due = 0;
    loop {
        let pause = if demand { regulation.until_look(&shared, due) } else { IDLE_TICK };
        tokio::select! {
            () = shared.over() => return,
            () = tokio::time::sleep(pause) => {}
            () = shared.lanes.until_busy(), if !demand => {}
        }
        if demand && shared.lanes.now() < due {
            regulation.look_at_the_end(&shared);
            continue;
        }
        demand = regulation.tick(&shared);
        due = shared.lanes.now() + regulation.governor.tick().as_nanos() as Nanos;
    }
}

struct Regulation {
    tuner: Tuner,
    governor: Governor,
    path: PathTotals,
    tuned_at: Option<Nanos>,
    /// The number last asked of the other side.
    asked: usize,
    /// Bytes per second that each lane was last allowed, and the newest of them: it has not been told anything yet.
    paced: Option<(u64, Option<LaneId>)>,
    end: End,
    /// Lanes that run CUBIC. New ones run BBR.
    cubic: BTreeSet<LaneId>,
    /// What each lane takes ahead. New ones take the least.
    unsent: BTreeMap<LaneId, u32>,
    unanswered: Unanswered,
    is_client: bool,
}

/// The kernel's counters over all lanes of the path, those that are gone included.
#[derive(Default)]
struct PathTotals {
    seen: BTreeMap<LaneId, TcpInfo>,
    reading: PathReading,
    min_rtt_us: Option<u32>,
}

impl PathTotals {
    fn add(&mut self, infos: &BTreeMap<LaneId, TcpInfo>) -> PathReading {
        for (id, info) in infos {
            let last = self.seen.get(id).copied().unwrap_or_default();
            self.reading.retransmitted += info.bytes_retrans.saturating_sub(last.bytes_retrans);
            // Counted in packets, selectively acknowledged ones included: no jumps when a hole is filled.
            let packets = info.delivered.wrapping_sub(last.delivered);
            self.reading.delivered += u64::from(packets) * u64::from(info.snd_mss);
            if info.min_rtt_us > 0 && info.min_rtt_us != u32::MAX {
                self.min_rtt_us = Some(self.min_rtt_us.map_or(info.min_rtt_us, |m| m.min(info.min_rtt_us)));
            }
        }
        let busy = infos.values().filter(|i| i.unacked > 0);
        let mut rtts: Vec<u32> = busy.map(|i| i.rtt_us.saturating_sub(i.rttvar_us)).collect();
        rtts.sort_unstable();
        let min_rtt_us = self.min_rtt_us.unwrap_or(0);
        let rtt_us = rtts.get(rtts.len() / 2).copied().unwrap_or(min_rtt_us);
        self.reading.rtt = Duration::from_micros(rtt_us.into());
        self.reading.min_rtt = Duration::from_micros(min_rtt_us.into());
        self.seen.clone_from(infos);
        self.reading
    }
}

impl Regulation {
    /// The next tick is at `due`; the end may come before.
    fn until_look(&self, shared: &Shared, due: Nanos) -> Duration {
        let until_due = Duration::from_nanos(due.saturating_sub(shared.lanes.now()));
        let waiting = shared.lanes.scheduler().waiting_bytes();
        self.end.until_look(self.governor.cap(), waiting, until_due)
    }

    /// Between two ticks.
    fn look_at_the_end(&mut self, shared: &Shared) {
        let waiting = shared.lanes.scheduler().waiting_bytes();
        if waiting > 0 && !self.end.is_divided() {
            return;
        }
        let (statuses, infos) = look_at_lanes(shared);
        if !self.end_together(shared, waiting, &statuses, &infos) && self.end.is_divided() {
            self.pace(shared, &statuses, &infos, self.governor.cap());
        }
    }

    /// Who has more left sends faster, where this is the end; what the user allows is not divided. True where it is so.
    fn end_together(
        &mut self,
        shared: &Shared,
        waiting: u64,
        statuses: &[Arc<LaneStatus>],
        infos: &BTreeMap<LaneId, TcpInfo>,
    ) -> bool {
        let cap = self.governor.cap().filter(|_| shared.settings.rate_max.is_none());
        let left: Vec<u64> =
            statuses.iter().map(|lane| infos.get(&lane.id).map_or(0, unsent_or_lost_bytes)).collect();
        let Some(rates) = self.end.divide(cap, waiting, &left) else { return false };
        for (lane, rate) in statuses.iter().zip(rates) {
            let _ = set_pacing_rate(&lane.tcp, (rate as u64).max(1)); // a dying lane sends nothing
        }
        true
    }

    /// True while there is something to send.
    fn tick(&mut self, shared: &Arc<Shared>) -> bool {
        let (statuses, infos) = look_at_lanes(shared);
        let (waiting, under_way) = {
            let mut scheduler = shared.lanes.scheduler();
            // What a burst was delivered with is not what the lane carries.
            let most = self.paced.map_or(u64::MAX, |(each, _)| each);
            for (&id, info) in &infos {
                scheduler.set_lane_rate(id, info.delivery_rate.min(most));
            }
            (scheduler.waiting_bytes(), scheduler.under_way_bytes())
        };
        let reading = self.path.add(&infos);
        let cap = if tells_of_path(self.governor.bandwidth().is_some(), waiting, &infos) {
            self.governor.on_tick(shared.lanes.now(), reading)
        } else {
            self.governor.pause(shared.lanes.now());
            self.governor.cap()
        };
        if !self.end_together(shared, waiting, &statuses, &infos) {
            self.pace(shared, &statuses, &infos, cap);
        }
        self.let_take_ahead(&statuses, &infos);
        let idle = waiting + under_way == 0;
        self.choose_congestion_control(&statuses, &infos, idle);
        if idle {
            self.unanswered = Unanswered::default();
            return false;
        }
        // An idle lane may now take over an overdue piece.
        shared.lanes.kick();
        let now = shared.lanes.now();
        if self.tuned_at.is_some_and(|before| now < before + TUNER_TICK.as_nanos() as Nanos) {
            return true;
        }
        self.tuned_at = Some(now);
        self.replace_hanging_lanes(shared, &statuses, &infos);
        if shared.settings.lanes.is_none() {
            let readings: Vec<LaneReading> = statuses
                .iter()
                .filter(|lane| !lane.draining.load(Ordering::Relaxed))
                .filter_map(|lane| Some(lane_reading(lane.id, infos.get(&lane.id)?)))
                .collect();
            let target = self.tuner.on_tick(now, &readings, waiting);
            self.want(shared, target);
            self.drain_surplus(shared, &statuses, target);
        }
        true
    }

    fn want(&mut self, shared: &Arc<Shared>, target: usize) {
        if self.is_client {
            shared.wanted.send_if_modified(|wanted| {
                let changed = wanted.here != target;
                wanted.here = target;
                changed
            });
        } else if self.asked != target {
            self.asked = target;
            tracing::debug!(lanes = target, "asking for lanes");
            let ask = Body::Session(Ask::Lanes(target as u32)).encode();
            let shared = Arc::clone(shared);
            // If the session ends first, nobody wants lanes any more.
            tokio::spawn(async move { shared.control.request(ask).await.ok() });
        }
    }

    /// Cuts off lanes whose data is not acknowledged although the peer can be reached: their pieces go to others.
    fn replace_hanging_lanes(
        &mut self,
        shared: &Shared,
        statuses: &[Arc<LaneStatus>],
        infos: &BTreeMap<LaneId, TcpInfo>,
    ) {
        let hanging = self.unanswered.hanging(shared.lanes.now(), infos);
        if !shared.control.heard_from_peer_within(HANGS_AFTER / 2) {
            return;
        }
        for (id, silent) in hanging {
            let Some(lane) = statuses.iter().find(|lane| lane.id == id) else { continue };
            tracing::info!(lane = id, ?silent, "lane hangs: it is replaced");
            let _ = lane.tcp.shutdown(std::net::Shutdown::Both); // its mover sees the end
        }
    }

    /// Lanes beyond the target, when it has come down, take no more pieces and close: the newest first.
    fn drain_surplus(&self, shared: &Shared, statuses: &[Arc<LaneStatus>], target: usize) {
        let keep = target.max(shared.wanted.borrow().there);
        for lane in statuses.iter().skip(keep) {
            if !lane.draining.swap(true, Ordering::Relaxed) {
                tracing::debug!(lane = lane.id, "surplus lane drains");
            }
        }
    }

    /// As the governor says; but who is idle runs BBR, and until it has sent again. From others the kernel takes the window
    /// when they have sent nothing for a retransmission timeout (tcp_slow_start_after_idle, RFC 5681 section 4.1), and
    /// they would begin anew with ten packets, which on a long path takes a second. Here the cap that they are paced by
    /// keeps their first packets from coming as a burst, which is what that rule is for.
    fn choose_congestion_control(
        &mut self,
        statuses: &[Arc<LaneStatus>],
        infos: &BTreeMap<LaneId, TcpInfo>,
        idle: bool,
    ) {
        let wants_bbr = idle || self.governor.wants_bbr();
        self.cubic.retain(|id| infos.contains_key(id));
        for lane in statuses {
            let Some(info) = infos.get(&lane.id) else { continue };
            let is_cubic = self.cubic.contains(&lane.id);
            if wants_bbr && is_cubic {
                self.cubic.remove(&lane.id);
            } else if !wants_bbr && !is_cubic && info.unacked > 0 {
                self.cubic.insert(lane.id);
            } else {
                continue;
            }
            set_congestion_control(&lane.tcp, wants_bbr);
        }
    }

    /// Fast lanes take more ahead than those that begin.
    fn let_take_ahead(&mut self, statuses: &[Arc<LaneStatus>], infos: &BTreeMap<LaneId, TcpInfo>) {
        self.unsent.retain(|id, _| infos.contains_key(id));
        for lane in statuses {
            let Some(info) = infos.get(&lane.id) else { continue };
            let wanted = unsent_bytes(info.delivery_rate);
            let before = self.unsent.insert(lane.id, wanted).unwrap_or(LANE_UNSENT_BYTES_MIN);
            if wanted != before {
                set_unsent_bytes(&lane.tcp, wanted);
            }
        }
    }

    /// Spreads the governor's cap, or the user's where that is lower, over the lanes.
    fn pace(
        &mut self,
        shared: &Shared,
        statuses: &[Arc<LaneStatus>],
        infos: &BTreeMap<LaneId, TcpInfo>,
        cap: Option<f64>,
    ) {
        let rate_max = shared.settings.rate_max;
        let lowest = cap.map(|cap| cap as u64).into_iter().chain(rate_max).min();
        shared.pacing_cap.store(lowest.unwrap_or(0), Ordering::Relaxed);
        let lanes: Vec<_> = statuses.iter().filter(|lane| !lane.draining.load(Ordering::Relaxed)).collect();
        let governed = cap.map(|cap| {
            share(cap, lanes.iter().map(|lane| window_rate(infos.get(&lane.id))).collect()) as u64
        });
        // The user's word holds whatever becomes of the lanes' windows before the next look.
        let allowed = rate_max.map(|rate| rate / lanes.len().max(1) as u64);
        let each = governed.into_iter().chain(allowed).min().unwrap_or(u64::MAX).max(1);
        let paced = Some((each, statuses.iter().map(|lane| lane.id).max()));
        if self.paced == paced && !self.end.is_divided() {
            return;
        }
        self.paced = paced;
        self.end.paced_alike();
        for lane in statuses {
            let _ = set_pacing_rate(&lane.tcp, each); // a dying lane sends nothing
        }
    }
}

/// The open lanes, and the kernel's words about those whose state can be read; another is about to be removed.
fn look_at_lanes(shared: &Shared) -> (Vec<Arc<LaneStatus>>, BTreeMap<LaneId, TcpInfo>) {
    let statuses = shared.lanes.status();
    let infos = statuses.iter().filter_map(|lane| Some((lane.id, TcpInfo::of(&lane.tcp).ok()?))).collect();
    (statuses, infos)
}

/// With little left to send, or nothing, what is seen is not the path's doing. What a writer who is hardly faster than the path has
/// written the lanes take as it comes; until the path's rate is known they overfill it all the same, and that has to be seen.
fn tells_of_path(is_known: bool, waiting: u64, infos: &BTreeMap<LaneId, TcpInfo>) -> bool {
    let taken = if is_known { 0 } else { infos.values().map(unsent_or_lost_bytes).sum() };
    waiting + taken > infos.len() as u64 * u64::from(PIECE_BYTES_MIN)
}

/// What a lane has to send: what it has not sent yet, and what is lost.
fn unsent_or_lost_bytes(info: &TcpInfo) -> u64 {
    u64::from(info.notsent_bytes) + u64::from(info.lost) * u64::from(info.snd_mss)
}

/// What a lane's congestion window allows, in bytes per second.
fn window_rate(info: Option<&TcpInfo>) -> f64 {
    // A lane that has just opened, or sends nothing, has not been seen: soon its window allows for more.
    let Some(info) = info.filter(|info| info.rtt_us > 0 && info.unacked > 0) else { return f64::INFINITY };
    f64::from(info.snd_cwnd) * f64::from(info.snd_mss) / (f64::from(info.rtt_us) / 1e6)
}

fn lane_reading(id: LaneId, info: &TcpInfo) -> LaneReading {
    LaneReading {
        id,
        rtt_us: info.rtt_us,
        min_rtt_us: info.min_rtt_us,
        busy_us: info.busy_us,
        rwnd_limited_us: info.rwnd_limited_us,
        sndbuf_limited_us: info.sndbuf_limited_us,
        bytes_acked: info.bytes_acked,
        window_bytes: u64::from(info.snd_wnd),
    }
}

/// Since when each lane has had data under way. What the kernel counts, the time since the last acknowledgement, goes on while
/// a lane is idle, and says nothing of what it has just begun to send.
#[derive(Debug, Default)]
struct Unanswered(BTreeMap<LaneId, Nanos>);

impl Unanswered {
    /// Takes what was read of the open lanes; gives those that hang, and for how long they have been silent.
    fn hanging(&mut self, now: Nanos, infos: &BTreeMap<LaneId, TcpInfo>) -> Vec<(LaneId, Duration)> {
        self.0.retain(|id, _| infos.get(id).is_some_and(|info| info.unacked > 0));
        let sending = infos.iter().filter(|(_, info)| info.unacked > 0);
        sending
            .filter_map(|(&id, info)| {
                let since = *self.0.entry(id).or_insert(now);
                let limit = HANGS_AFTER.max(Duration::from_micros(info.rtt_us.into()) * 4);
                let silent = Duration::from_millis(info.last_ack_recv_ms.into());
                let silent = silent.min(Duration::from_nanos(now.saturating_sub(since)));
                (silent > limit).then_some((id, silent))
            })
            .collect()
    }
}

impl Session {
    /// The number of lanes open now.
    #[must_use]
    pub fn lane_count(&self) -> usize {
        self.shared.lanes.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    fn infos(unacked: u32, last_ack_recv_ms: u32) -> BTreeMap<LaneId, TcpInfo> {
        [(7, TcpInfo { unacked, last_ack_recv_ms, rtt_us: 200_000, ..TcpInfo::default() })].into()
    }

    #[test]
    fn what_lanes_have_taken_tells_of_the_path_until_its_rate_is_known() {
        let lane = |notsent_bytes| TcpInfo { notsent_bytes, ..TcpInfo::default() };
        let infos = BTreeMap::from([(1, lane(PIECE_BYTES_MIN)), (2, lane(PIECE_BYTES_MIN))]);
        for (is_known, waiting, tells) in [(true, 1, false), (false, 0, false), (false, 1, true)] {
            assert_eq!(tells_of_path(is_known, waiting, &infos), tells, "{is_known} {waiting}");
        }
        assert!(
            tells_of_path(true, 2 * u64::from(PIECE_BYTES_MIN) + 1, &infos),
            "a queue of its own always does"
        );
    }

    #[test]
    fn a_lane_that_was_idle_for_long_does_not_hang_when_it_begins_to_send() {
        let mut unanswered = Unanswered::default();
        assert_eq!(unanswered.hanging(60 * SECOND, &infos(10, 60_000)), []);
        assert_eq!(unanswered.hanging(60 * SECOND + SECOND / 10, &infos(10, 60_100)), []);
        // What it sent has been acknowledged, and it pauses again.
        assert_eq!(unanswered.hanging(61 * SECOND, &infos(0, 700)), []);
        assert_eq!(unanswered.hanging(90 * SECOND, &infos(10, 29_700)), []);
    }

    #[test]
    fn a_lane_that_nobody_answers_for_so_long_hangs() {
        let mut unanswered = Unanswered::default();
        assert_eq!(unanswered.hanging(60 * SECOND, &infos(10, 60_000)), []);
        assert_eq!(unanswered.hanging(64 * SECOND, &infos(10, 64_000)), []);
        let silent = Duration::from_millis(4100);
        assert_eq!(unanswered.hanging(64 * SECOND + SECOND / 10, &infos(10, 64_100)), [(7, silent)]);
        // It was answered in between.
        assert_eq!(unanswered.hanging(70 * SECOND, &infos(10, 2000)), []);
        // It is gone.
        assert_eq!(unanswered.hanging(71 * SECOND, &BTreeMap::new()), []);
        assert!(unanswered.0.is_empty());
    }
}
