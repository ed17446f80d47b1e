//! What a client learns of a server's host in a session; and of a server that is older, or does not answer.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use longhaul_probe::path::client::{ProbeError, Prober};
use longhaul_probe::path::clocks::Difference;
use longhaul_probe::path::finding::{Finding, Job};
use longhaul_probe::path::server::{Service, Station};
use longhaul_transport::identity::{HostTrust, Identity, PublicKey};
use longhaul_transport::session::{
    ConnectOptions, ControlChoice, Door, LaneSettings, Refused, Server, ServerOptions, connect,
};
use longhaul_transport::{Handler, Pieces, Session};

/// As the server of an earlier version: what it does not know it answers by nothing.
struct Older(Arc<Station>);

/// The last request that it knows, as Protocol Buffers tag it.
const KNOWN_MAX: u8 = 6;

impl Handler for Older {
    fn request(
        self: Arc<Self>,
        session: Session,
        body: Bytes,
    ) -> Pin<Box<dyn Future<Output = Bytes> + Send + 'static>> {
        if body.first().is_some_and(|tag| tag >> 3 <= KNOWN_MAX) {
            return Arc::clone(&self.0).request(session, body);
        }
        Box::pin(async { Bytes::new() })
    }
}

impl Pieces for Older {}

struct Open {
    service: Arc<Service>,
    is_old: bool,
}

impl Door for Open {
    fn admit(&self, _: PublicKey, _: SocketAddr, _: &str) -> Result<Arc<dyn Handler>, Refused> {
        let station = self.service.station();
        Ok(if self.is_old { Arc::new(Older(station)) } else { station })
    }
}

/// A session with such a server, which is there as long as the runtime is.
async fn prober(service: Arc<Service>, is_old: bool) -> Prober {
    let identity = Identity::ephemeral();
    let key = identity.public();
    let listen = "127.0.0.1:0".parse().unwrap();
    let options = ServerOptions { listen, identity, lanes: LaneSettings::default() };
    let server = Server::bind(options, Open { service, is_old }).unwrap();
    let address = server.address();
    tokio::spawn(async move { server.run().await });
    let options = ConnectOptions {
        host: "far".to_owned(),
        addresses: vec![address],
        identity: Identity::ephemeral(),
        trust: HostTrust::Pinned(key),
        service: "probe",
        control: ControlChoice::Auto,
        lanes: LaneSettings { lanes: Some(1), ..LaneSettings::default() },
    };
    let session = connect(options, Service::new("1", None).station()).await.unwrap();
    Prober::greet(session, "1").await.unwrap()
}

fn checkup() -> Vec<Finding> {
    vec![Finding::fine("FUSE", "gone", "mounts").stops(&[Job::Mount], "modprobe fuse")]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_tells_what_its_host_lacks_and_what_time_it_is_there() {
    let prober = prober(Service::with_checkup("1", None, checkup), false).await;
    assert_eq!(prober.findings().await.unwrap(), checkup());
    let readings = prober.clocks().await.unwrap();
    assert!((5..=20).contains(&readings.len()), "{readings:?}");
    // Both are this host's clock.
    let clocks = Difference::of(&readings).unwrap();
    assert!(!clocks.exceeds(0.0) && clocks.within_s < 60.0, "{clocks:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_know_or_does_not_want_says_so() {
    let old = prober(Service::with_checkup("1", None, checkup), true).await;
    let error = old.findings().await.unwrap_err();
    assert!(matches!(error, ProbeError::Older) && error.to_string().contains("older"), "{error}");
    assert!(matches!(old.clocks().await, Err(ProbeError::Older)));
    assert_eq!(old.far.version, "1");
    let silent = prober(Service::new("1", None), false).await;
    let error = silent.findings().await.unwrap_err();
    assert!(error.to_string().contains("does not look at its host for others"), "{error}");
    assert!(silent.clocks().await.is_ok());
}
