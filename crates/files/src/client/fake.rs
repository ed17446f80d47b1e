//! A server for tests that says what a test would have it say.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use longhaul_transport::identity::{HostTrust, Identity, PublicKey};
use longhaul_transport::session::{
    ConnectOptions, ControlChoice, Door, LaneSettings, Refused, Server, ServerOptions, connect,
};
use longhaul_transport::{Handler, Pieces, Session, Stored};

use super::{FilesClient, Reconnect};
use crate::message::{Ask, Reply, Slot};

/// What it says to a request; `None`: nothing, ever.
pub(super) type Says = dyn Fn(Session, Ask, Slot) -> Option<Reply> + Send + Sync;

/// What it does with bytes that come over the lanes: of an object, and from where on.
pub(super) type Stores = dyn Fn(u64, u64, &[u8]) -> Stored + Send + Sync;

#[derive(Clone)]
struct Fake {
    says: Arc<Says>,
    stores: Arc<Stores>,
}

impl Pieces for Fake {
    fn store(&self, object: u64, offset: u64, data: &[u8], _checksum: u64) -> Stored {
        (self.stores)(object, offset, data)
    }
}

impl Handler for Fake {
    fn request(
        self: Arc<Self>,
        session: Session,
        body: Bytes,
    ) -> Pin<Box<dyn Future<Output = Bytes> + Send + 'static>> {
        let said = Ask::from_bytes(body).and_then(|(ask, _, slot)| (self.says)(session, ask, slot));
        Box::pin(async move {
            match said {
                Some(reply) => reply.into_bytes(),
                None => std::future::pending().await,
            }
        })
    }
}

struct Open(Fake);

impl Door for Open {
    fn admit(&self, _: PublicKey, _: SocketAddr, _: &str) -> Result<Arc<dyn Handler>, Refused> {
        Ok(Arc::new(self.0.clone()))
    }
}

/// The way to a server, for one client.
pub(super) struct Way {
    address: SocketAddr,
    key: PublicKey,
    pub(super) client: Arc<FilesClient>,
}

/// Starts a server that takes no bytes.
pub(super) fn serve(says: Arc<Says>) -> Way {
    serve_storing(says, Arc::new(|_, _, _| Stored::Unwanted))
}

/// Starts a server.
pub(super) fn serve_storing(says: Arc<Says>, stores: Arc<Stores>) -> Way {
    let identity = Identity::ephemeral();
    let key = identity.public();
    let options =
        ServerOptions { listen: "127.0.0.1:0".parse().unwrap(), identity, lanes: LaneSettings::default() };
    let server = Server::bind(options, Open(Fake { says, stores })).unwrap();
    let address = server.address();
    tokio::spawn(async move { server.run().await });
    Way { address, key, client: FilesClient::new(4 << 20, None) }
}

impl Way {
    pub(super) async fn session(&self) -> Session {
        let to = ConnectOptions {
            host: "far".into(),
            addresses: vec![self.address],
            identity: Identity::ephemeral(),
            trust: HostTrust::Pinned(self.key),
            service: "files",
            control: ControlChoice::Auto,
            lanes: LaneSettings::default(),
        };
        connect(to, Arc::clone(&self.client) as _).await.unwrap()
    }
}

impl Reconnect for Way {
    fn connect(&self) -> Pin<Box<dyn Future<Output = Result<Session, String>> + Send + '_>> {
        Box::pin(async { Ok(self.session().await) })
    }
}
