//! `--trace`: the state of all buffers over time, as JSON lines.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context;
use longhaul_copy::{FarBuffers, ProgressNow, dirty_bytes, far_buffers};
use longhaul_files::Statistics;
use longhaul_transport::Session;
use longhaul_transport::session::LaneSample;
use serde::Serialize;

/// A trace file.
#[derive(Debug)]
pub(crate) struct Trace {
    out: BufWriter<File>,
    begun: Instant,
    far: Arc<Mutex<Far>>,
    /// Of a mount: what had been done at the last line.
    done: Option<(u64, u64)>,
}

/// What the far end said last.
#[derive(Debug, Default)]
struct Far {
    buffers: Option<FarBuffers>,
    asked: bool,
}

/// One line. Bytes unless a unit is named; counters since the beginning.
#[derive(Debug, Serialize)]
struct Line {
    seconds: f64,
    /// Payload of files that has arrived.
    done_bytes: u64,
    sent_bytes: u64,
    received_bytes: u64,
    repeated_bytes: u64,
    /// Not taken by a lane yet.
    waiting_bytes: u64,
    /// Taken by a lane and not stored at the far end yet.
    under_way_bytes: u64,
    /// Bytes per second that all lanes together may send.
    pacing_cap: Option<u64>,
    /// Summed over the threads that move bytes.
    reading_ms: u64,
    storing_ms: u64,
    /// Of this host's page cache, not on disk yet.
    dirty_bytes: u64,
    /// Of this host's sockets: received and not read.
    socket_bytes: u64,
    lanes: Vec<Lane>,
    #[serde(skip_serializing_if = "Option::is_none")]
    far: Option<FarLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mount: Option<MountLine>,
}

#[derive(Debug, Serialize)]
struct Lane {
    id: u64,
    cwnd_packets: u32,
    in_flight_packets: u32,
    unsent_bytes: u32,
    peer_window_bytes: u32,
    rtt_us: u32,
    min_rtt_us: u32,
    delivery_rate: u64,
    pacing_rate: u64,
    retransmitted_bytes: u64,
    busy_us: u64,
    rwnd_limited_us: u64,
    sndbuf_limited_us: u64,
    inbox_bytes: u64,
}

#[derive(Debug, Serialize)]
struct FarLine {
    socket_bytes: u64,
    inbox_bytes: u64,
    dirty_bytes: u64,
    storing_ms: u64,
    reading_ms: u64,
    received_bytes: u64,
}

/// Of a mount alone.
#[derive(Debug, Serialize)]
struct MountLine {
    /// Requests that the server was asked.
    asked: u64,
    /// Of files, in memory.
    kept_bytes: u64,
    /// Written here, and not stored by the server yet.
    unsent_bytes: u64,
}

impl Trace {
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { out: BufWriter::new(file), begun: Instant::now(), far: Arc::default(), done: None })
    }

    /// Of a copy: writes a line, and asks the far end for its part of a later one.
    pub(crate) fn copying(&mut self, session: &Session, progress: &ProgressNow) -> anyhow::Result<()> {
        let far = self.ask_far(session);
        self.write(session, progress.done_bytes, far, None)
    }

    /// Of a mount, if something has been done since the last line.
    pub(crate) fn mounted(&mut self, session: &Session, statistics: &Statistics) -> anyhow::Result<()> {
        let &Statistics { asked, received_bytes, stored_bytes, kept_bytes, unsent_bytes, .. } = statistics;
        let moved = session.sample();
        let done = Some((asked, moved.sent_bytes + moved.received_bytes));
        if std::mem::replace(&mut self.done, done) == done {
            return Ok(());
        }
        let mount = MountLine { asked, kept_bytes, unsent_bytes };
        self.write(session, received_bytes + stored_bytes, None, Some(mount))?;
        Ok(self.out.flush()?)
    }

    fn write(
        &mut self,
        session: &Session,
        done_bytes: u64,
        far: Option<FarLine>,
        mount: Option<MountLine>,
    ) -> anyhow::Result<()> {
        let sample = session.sample();
        let line = Line {
            seconds: self.begun.elapsed().as_secs_f64(),
            done_bytes,
            sent_bytes: sample.sent_bytes,
            received_bytes: sample.received_bytes,
            repeated_bytes: sample.repeated_bytes,
            waiting_bytes: sample.waiting_bytes,
            under_way_bytes: sample.under_way_bytes,
            pacing_cap: sample.pacing_cap,
            reading_ms: sample.reading.as_millis() as u64,
            storing_ms: sample.storing.as_millis() as u64,
            dirty_bytes: dirty_bytes(),
            socket_bytes: sample.socket_bytes,
            lanes: sample.lanes.iter().map(Lane::of).collect(),
            far,
            mount,
        };
        serde_json::to_writer(&mut self.out, &line)?;
        self.out.write_all(b"\n")?;
        Ok(())
    }

    /// One question at a time: far away an answer takes several samples.
    fn ask_far(&self, session: &Session) -> Option<FarLine> {
        let mut state = self.far.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.asked {
            state.asked = true;
            let (session, far) = (session.clone(), Arc::clone(&self.far));
            tokio::spawn(async move {
                let buffers = far_buffers(&session).await.ok();
                let mut state = far.lock().unwrap_or_else(PoisonError::into_inner);
                *state = Far { buffers, asked: false };
            });
        }
        state.buffers.map(|b| FarLine {
            socket_bytes: b.socket_bytes,
            inbox_bytes: b.inbox_bytes,
            dirty_bytes: b.dirty_bytes,
            storing_ms: b.storing_us / 1000,
            reading_ms: b.reading_us / 1000,
            received_bytes: b.received_bytes,
        })
    }
}

impl Lane {
    fn of(lane: &LaneSample) -> Self {
        let tcp = &lane.tcp;
        Self {
            id: lane.id,
            cwnd_packets: tcp.snd_cwnd,
            in_flight_packets: tcp.unacked,
            unsent_bytes: tcp.notsent_bytes,
            peer_window_bytes: tcp.snd_wnd,
            rtt_us: tcp.rtt_us,
            min_rtt_us: tcp.min_rtt_us,
            delivery_rate: tcp.delivery_rate,
            pacing_rate: tcp.pacing_rate,
            retransmitted_bytes: tcp.bytes_retrans,
            busy_us: tcp.busy_us,
            rwnd_limited_us: tcp.rwnd_limited_us,
            sndbuf_limited_us: tcp.sndbuf_limited_us,
            inbox_bytes: lane.inbox_bytes,
        }
    }
}
