//! Control over QUIC (RFC 9000): each request and its reply are one short bidirectional stream, so that a lost packet
//! holds up nobody else's.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aws_lc_rs::hmac;
use bytes::Bytes;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    Connection, ConnectionError, ConnectionId, ConnectionIdGenerator, Endpoint, EndpointConfig, IdleTimeout,
    RecvStream, SendStream, TransportConfig, VarInt,
};

use super::{Arriving, ControlGone, ENVELOPE_BYTES, Envelope};
use crate::identity::PublicKey;
use crate::limits::{
    CONTROL_BODY_BYTES_MAX, CONTROL_STREAMS_MAX, CONTROL_WINDOW_BYTES, KEEP_ALIVE, LINK_IDLE_TIMEOUT,
};
use crate::secure::HandshakeError;
use crate::tls::{ClientTls, Purpose, SERVER_NAME, peer_key};

const MESSAGE_BYTES_MAX: usize = ENVELOPE_BYTES + CONTROL_BODY_BYTES_MAX;

/// Lets a whole message come at once.
const MESSAGE_WINDOW_BYTES: u32 = MESSAGE_BYTES_MAX as u32 + 1024;

/// `requests`: how many the peer may have open, `window`: how many bytes of them.
fn transport_config(requests: u32, window: u32) -> TransportConfig {
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(requests.into())
        .max_concurrent_uni_streams(0u32.into())
        .stream_receive_window(MESSAGE_WINDOW_BYTES.into())
        .receive_window(window.into())
        .send_window(CONTROL_WINDOW_BYTES.into())
        .datagram_receive_buffer_size(None)
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(LINK_IDLE_TIMEOUT.as_millis() as u32))))
        // Holds its rate where single packets are lost at random, as the lanes do.
        .congestion_controller_factory(Arc::new(quinn::congestion::BbrConfig::default()));
    config
}

/// Makes QUIC connections to servers.
#[derive(Debug)]
pub(crate) struct QuicClient {
    tls: ClientTls,
    config: quinn::ClientConfig,
}

impl QuicClient {
    pub(crate) fn new(tls: ClientTls) -> Result<Self, HandshakeError> {
        let crypto = QuicClientConfig::try_from(tls.config.clone()).map_err(|_| HandshakeError::Foreign)?;
        let mut config = quinn::ClientConfig::new(Arc::new(crypto));
        // A server has proved who it is before it may ask anything.
        let transport = transport_config(CONTROL_STREAMS_MAX, CONTROL_WINDOW_BYTES);
        config.transport_config(Arc::new(transport));
        Ok(Self { tls, config })
    }

    /// Connects to `remote`, and says whose key the server has.
    pub(crate) async fn connect(
        &self,
        remote: SocketAddr,
    ) -> Result<(Connection, PublicKey), HandshakeError> {
        let any: IpAddr =
            if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let endpoint = Endpoint::client(SocketAddr::new(any, 0))?;
        let connecting = endpoint
            .connect_with(self.config.clone(), remote, SERVER_NAME)
            .map_err(|_| HandshakeError::Foreign)?;
        let connection = connecting.await.map_err(|error| match self.tls.take_refusal() {
            Some(refusal) => HandshakeError::Untrusted(refusal),
            None => HandshakeError::Io(io::Error::from(error)),
        })?;
        let key = key_of(&connection).ok_or(HandshakeError::Foreign)?;
        Ok((connection, key))
    }
}

/// Numbers of connections, at random. quinn's own are signed with a key of the process: packets for the process before
/// would not be answered at all.
struct ConnectionIds;

const CONNECTION_ID_BYTES: usize = 8;

impl ConnectionIdGenerator for ConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; CONNECTION_ID_BYTES];
        // Where the kernel has no randomness to give, there would be no keys either.
        let _ = rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty());
        ConnectionId::new(&id)
    }

    fn cid_len(&self) -> usize {
        CONNECTION_ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Accepts QUIC connections.
#[derive(Debug)]
pub(crate) struct QuicServer {
    endpoint: Endpoint,
}

impl QuicServer {
    /// Listens on a bound socket. By `secret`, which it keeps when it is started again, it can tell the clients of the
    /// process before that their connections are gone (RFC 9000, 10.3): else they would find out when nothing has
    /// answered for long.
    pub(crate) fn listen(socket: UdpSocket, tls: rustls::ServerConfig, secret: [u8; 32]) -> io::Result<Self> {
        let crypto = QuicServerConfig::try_from(tls).map_err(io::Error::other)?;
        let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        // Its hello is all that a client may say before it is let in.
        config.transport_config(Arc::new(transport_config(1, MESSAGE_WINDOW_BYTES)));
        let runtime = Arc::new(quinn::TokioRuntime);
        let mut endpoint = EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &secret)));
        endpoint.cid_generator(|| Box::new(ConnectionIds));
        Ok(Self { endpoint: Endpoint::new(endpoint, Some(config), socket, runtime)? })
    }

    /// The next connection attempt; `None` when the server is shutting down. An address that has not been proved
    /// is asked to prove itself first when many are waiting (RFC 9000, 8.1.2).
    pub(crate) async fn accept(&self) -> Option<quinn::Incoming> {
        loop {
            let incoming = self.endpoint.accept().await?;
            if self.endpoint.open_connections() > RETRY_ABOVE && !incoming.remote_address_validated() {
                let _ = incoming.retry(); // only fails for validated ones
                continue;
            }
            return Some(incoming);
        }
    }

    /// Finishes the handshake of an attempt.
    pub(crate) async fn finish(
        incoming: quinn::Incoming,
        limit: Duration,
    ) -> Result<(Connection, PublicKey), HandshakeError> {
        let connecting = incoming.accept().map_err(io::Error::from)?;
        let connection = tokio::time::timeout(limit, connecting)
            .await
            .map_err(|_| HandshakeError::Timeout(limit))?
            .map_err(io::Error::from)?;
        // The listener speaks for lanes, too, but those come by TCP.
        let alpn = connection
            .handshake_data()
            .and_then(|data| data.downcast::<quinn::crypto::rustls::HandshakeData>().ok())
            .and_then(|data| data.protocol);
        if alpn.as_deref().and_then(Purpose::from_alpn) != Some(Purpose::Control) {
            return Err(HandshakeError::Foreign);
        }
        let key = key_of(&connection).ok_or(HandshakeError::Foreign)?;
        Ok((connection, key))
    }

    /// Closes all connections.
    pub(crate) async fn close(&self) {
        self.endpoint.close(0u32.into(), b"server shuts down");
        self.endpoint.wait_idle().await;
    }
}

/// Open connections above which a new address must prove itself: an ordinary server never gets there.
const RETRY_ABOVE: usize = 256;

fn key_of(connection: &Connection) -> Option<PublicKey> {
    let identity = connection.peer_identity()?;
    let certificates = identity.downcast::<Vec<rustls::pki_types::CertificateDer<'static>>>().ok()?;
    peer_key(Some(&certificates))
}

/// A control link over QUIC.
#[derive(Debug)]
pub(crate) struct QuicLink {
    connection: Connection,
    /// Datagrams sent when it was closed: the next one says so.
    sent_at_close: OnceLock<u64>,
}

/// The code of a connection whose session is over; 0: another connection may follow.
const LEFT: u32 = 1;

impl QuicLink {
    pub(crate) fn new(connection: Connection) -> Self {
        Self { connection, sent_at_close: OnceLock::new() }
    }

    pub(super) async fn exchange(&self, envelope: &Envelope) -> Result<Bytes, ControlGone> {
        let (mut send, mut receive) = self.connection.open_bi().await.map_err(|_| ControlGone)?;
        send.write_chunk(envelope.encode()).await.map_err(|_| ControlGone)?;
        send.finish().map_err(|_| ControlGone)?;
        receive.read_to_end(MESSAGE_BYTES_MAX).await.map(Bytes::from).map_err(|_| ControlGone)
    }

    pub(super) async fn accept(&self) -> Result<Arriving, ControlGone> {
        let accepted = self.connection.accept_bi().await.map_err(|_| ControlGone);
        accepted.map(|(send, receive)| Arriving::Quic(send, receive))
    }

    pub(super) fn admit(&self) {
        self.connection.set_receive_window(CONTROL_WINDOW_BYTES.into());
        self.connection.set_max_concurrent_bi_streams(CONTROL_STREAMS_MAX.into());
    }

    pub(super) fn close(&self) {
        self.connection.close(0u32.into(), b"done");
        self.sent_at_close.get_or_init(|| self.sent());
    }

    /// Closes the link and tells the peer, in the same packet, that no other will follow.
    pub(super) fn leave(&self) {
        self.connection.close(LEFT.into(), b"bye");
        self.sent_at_close.get_or_init(|| self.sent());
    }

    /// Whether the peer has closed it so.
    pub(super) fn peer_has_left(&self) -> bool {
        let reason = self.connection.close_reason();
        matches!(reason, Some(ConnectionError::ApplicationClosed(close)) if close.error_code == LEFT.into())
    }

    /// Waits until the peer has been sent word that the link was closed here.
    pub(super) async fn until_told(&self) {
        while self.sent_at_close.get().is_some_and(|sent| self.sent() <= *sent) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn sent(&self) -> u64 {
        self.connection.stats().udp_tx.datagrams
    }

    pub(super) fn rtt(&self) -> Duration {
        self.connection.rtt()
    }
}

pub(super) async fn read(mut stream: RecvStream) -> Option<Envelope> {
    Envelope::decode(stream.read_to_end(MESSAGE_BYTES_MAX).await.ok()?.into())
}

pub(super) async fn reply(mut stream: SendStream, reply: Bytes) {
    if stream.write_chunk(reply).await.is_ok() {
        let _ = stream.finish(); // fails only when the connection is gone
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::identity::{HostTrust, Identity};
    use crate::tls::server_config;

    /// A client's and a server's end of one connection.
    pub(crate) async fn pair() -> (Connection, Connection) {
        let (server, client) = (Identity::ephemeral(), Identity::ephemeral());
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let secret = server.derived_secret(address.port());
        let listener = QuicServer::listen(socket, server_config(&server).unwrap(), secret).unwrap();
        let trust = Arc::new(HostTrust::Pinned(server.public()));
        let dialer = QuicClient::new(ClientTls::new(&client, trust, Purpose::Control).unwrap()).unwrap();
        let (near, far) = tokio::join!(dialer.connect(address), async {
            QuicServer::finish(listener.accept().await.unwrap(), Duration::from_secs(10)).await
        });
        (near.unwrap().0, far.unwrap().0)
    }

    #[tokio::test]
    async fn a_client_that_is_not_let_in_yet_may_send_one_request() {
        let (near, far) = pair().await;
        let far = QuicLink::new(far);
        let (mut hello, _reply) = near.open_bi().await.unwrap();
        let whole = Bytes::from(vec![0; MESSAGE_BYTES_MAX]);
        hello.write_chunk(whole.clone()).await.unwrap();
        hello.finish().unwrap();
        let Ok(Arriving::Quic(reply, incoming)) = far.accept().await else { panic!() };
        assert_eq!(read(incoming).await.unwrap().body.len(), CONTROL_BODY_BYTES_MAX);
        let second = tokio::time::timeout(Duration::from_millis(100), near.open_bi()).await;
        assert!(second.is_err(), "a second stream before the first was answered");
        far.admit();
        let mut streams = Vec::new();
        for _ in 0..100 {
            let (mut send, receive) = near.open_bi().await.unwrap();
            send.write_chunk(whole.clone()).await.unwrap();
            streams.push((send, receive));
        }
        drop(reply);
    }
}
