//! One end's half of a test of load, and what it counts.

use std::io;

use super::test::{FlowSeen, Processor, Seen};
use crate::processor::{Cores, Watch};
use crate::traffic::{Plan, Role, Socket, Traffic};

/// Flows that run, and what they take of the processors.
#[derive(Debug)]
pub(crate) struct Half {
    traffic: Traffic,
    watch: Watch,
    cores: Cores,
    /// When the senders were told to stop, in seconds since the beginning.
    stopped: Option<f64>,
}

impl Half {
    pub(crate) fn start(flows: Vec<(Socket, Role)>, plan: &Plan) -> io::Result<Self> {
        let (watch, cores) = (Watch::start(), Cores::start());
        Ok(Self { traffic: Traffic::start(flows, plan, false)?, watch, cores, stopped: None })
    }

    /// To be called now and then: keeps what TCP says.
    pub(crate) fn note(&mut self) {
        self.traffic.interval();
    }

    /// Senders stop; the time that they took is known.
    pub(crate) fn stop_sending(&mut self) {
        if self.stopped.is_none() {
            self.traffic.stop_sending();
            self.stopped = Some(self.traffic.seconds());
        }
    }

    pub(crate) fn bytes(&self, role: Role) -> u64 {
        self.traffic.bytes(role)
    }

    /// A flow that has failed.
    pub(crate) fn failure(&mut self) -> Option<io::Error> {
        self.traffic.failure()
    }

    /// What has been counted; a sender's time ends when it was told to stop.
    pub(crate) fn seen(&self) -> Seen {
        let totals = self.traffic.totals();
        let now = self.traffic.seconds();
        let busiest = totals.iter().map(|total| total.busy_s).fold(0.0, f64::max);
        let processor = Processor {
            process: self.watch.share().total,
            thread: (busiest * 100.0 / self.stopped.unwrap_or(now).max(1e-9)).min(100.0),
            interrupts: self.cores.interrupts(),
            host: self.cores.busy(),
            dropped: self.cores.dropped(),
        };
        let flows = totals.iter().map(FlowSeen::of).collect();
        Seen { seconds: self.stopped.unwrap_or(now), flows, processor, over: None }
    }
}
