//! Moves made-up bytes from one end of a session to the other and says how fast: the ceiling of the data path.
//!
//! ```text
//! rate serve ADDRESS
//! rate send ADDRESS GIB [LANES]
//! ```
#![allow(clippy::print_stdout, reason = "its output is for the person who measures")]

use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use longhaul_transport::identity::{HostTrust, Identity, KnownHosts, PublicKey};
use longhaul_transport::session::{
    ConnectOptions, ControlChoice, Door, LaneSettings, Refused, Server, ServerOptions, connect,
};
use longhaul_transport::{Extent, Handler, Pieces, Session, Stored, Withdrawn};

#[derive(Default)]
struct Nothing {
    delivered: AtomicU64,
}

impl Pieces for Nothing {
    fn fill(&self, _object: u64, _offset: u64, _into: &mut [IoSliceMut<'_>]) -> Result<(), Withdrawn> {
        Ok(())
    }
    fn delivered(&self, extent: Extent) {
        self.delivered.fetch_add(extent.length, Ordering::SeqCst);
    }
    fn declined(&self, _extent: Extent) {}
    fn store(&self, _object: u64, _offset: u64, _data: &[u8], _checksum: u64) -> Stored {
        Stored::Kept
    }
}

impl Handler for Nothing {
    fn request(
        self: Arc<Self>,
        _s: Session,
        _b: Bytes,
    ) -> Pin<Box<dyn Future<Output = Bytes> + Send + 'static>> {
        Box::pin(async { Bytes::new() })
    }
}

struct Everyone;

impl Door for Everyone {
    fn admit(&self, _key: PublicKey, _from: SocketAddr) -> Result<Arc<dyn Handler>, Refused> {
        Ok(Arc::<Nothing>::default())
    }
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let address: SocketAddr = arguments[2].parse().unwrap();
    if arguments[1] == "serve" {
        let options = ServerOptions {
            listen: address,
            identity: Identity::ephemeral(),
            lanes: LaneSettings::default(),
        };
        Server::bind(options, Everyone).unwrap().run().await;
        return;
    }
    let total = (arguments[3].parse::<f64>().unwrap() * f64::from(1 << 30)) as u64;
    let lanes =
        LaneSettings { lanes: arguments.get(4).map(|n| n.parse().unwrap()), ..LaneSettings::default() };
    let dir = std::env::temp_dir().join(format!("rate-{}", std::process::id()));
    let options = ConnectOptions {
        host: "far".into(),
        addresses: vec![address],
        identity: Identity::ephemeral(),
        trust: HostTrust::known("far".into(), KnownHosts::load(&dir).unwrap()),
        control: ControlChoice::Auto,
        lanes,
    };
    let began = Instant::now();
    let near = Arc::<Nothing>::default();
    let session = connect(options, near.clone()).await.unwrap();
    println!("session after {:?}, rtt {:?}", began.elapsed(), session.rtt());
    session.lanes().push(Extent { object: 1, offset: 0, length: total, whole: false }).await;
    let (mut last, mut times) = (0, Vec::new());
    while last < total {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = near.delivered.load(Ordering::SeqCst);
        times.push((began.elapsed().as_secs_f64(), now));
        if times.len() % 5 == 0 {
            let s = session.sample();
            let limited: u64 = s.lanes.iter().map(|l| l.tcp.sndbuf_limited_us).sum();
            let rwnd: u64 = s.lanes.iter().map(|l| l.tcp.rwnd_limited_us).sum();
            let busy: u64 = s.lanes.iter().map(|l| l.tcp.busy_us).sum();
            let unacked: u64 =
                s.lanes.iter().map(|l| u64::from(l.tcp.unacked) * u64::from(l.tcp.snd_mss)).sum();
            let rtt = s.lanes.iter().map(|l| l.tcp.rtt_us).sum::<u32>() / s.lanes.len().max(1) as u32;
            let retrans: u64 = s.lanes.iter().map(|l| l.tcp.bytes_retrans).sum();
            println!(
                "{:6.1} s {:7.3} Gbit/s {:4} lanes, in flight {:4} MB, rtt {:4} ms, cap {:5} snd {:3}% rwnd {:3}%, retrans {} MB repeated {} MB",
                times[times.len() - 1].0,
                (now - times[times.len().saturating_sub(6)].1) as f64 * 8e-9
                    / (times[times.len() - 1].0 - times[times.len().saturating_sub(6)].0).max(0.2),
                s.lanes.len(),
                unacked / 1_000_000,
                rtt / 1000,
                s.pacing_cap.unwrap_or(0) * 8 / 1_000_000,
                limited * 100 / busy.max(1),
                rwnd * 100 / busy.max(1),
                retrans / 1_000_000,
                s.repeated_bytes / 1_000_000,
            );
        }
        last = now;
    }
    let took = began.elapsed().as_secs_f64();
    let at = |share: f64| times.iter().find(|t| t.1 as f64 >= share * total as f64).unwrap();
    let steady = (at(0.95).1 - at(0.3).1) as f64 * 8e-9 / (at(0.95).0 - at(0.3).0);
    println!("total {took:.2} s, {:.3} Gbit/s; steady {steady:.3} Gbit/s", total as f64 * 8e-9 / took);
    session.close().await;
}
