//! A TCP connection after its TLS handshake: who is at the other end, and the keys to seal and open records with.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::pki_types::ServerName;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{CommonState, ExtractedSecrets};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::identity::{PublicKey, TrustError};
use crate::lane::record::{Content, Opener, RecordError, Sealer};
use crate::limits::HANDSHAKE_BYTES_MAX;
use crate::tls::{ClientTls, Purpose, SERVER_NAME, peer_key};

/// Why a connection was not made secure.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    /// The server's key.
    #[error(transparent)]
    Untrusted(#[from] TrustError),
    /// TLS' own word.
    #[error("TLS handshake")]
    Tls(#[from] rustls::Error),
    /// The socket.
    #[error("connection lost during the TLS handshake")]
    Io(#[from] std::io::Error),
    /// No end in sight.
    #[error("no TLS handshake within {0:?}")]
    Timeout(Duration),
    /// Not one of ours.
    #[error("the peer speaks TLS, but not longhaul's protocol")]
    Foreign,
}

/// Both directions' keys, and how to get the next ones.
#[derive(Debug)]
pub(crate) struct Keys {
    sealer: Sealer,
    opener: Opener,
    next: NextKeys,
}

enum NextKeys {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

impl std::fmt::Debug for NextKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Client(_) => "Client",
            Self::Server(_) => "Server",
        })
    }
}

/// KeyUpdate (RFC 8446, 4.6.3): type 24, length 1, and whether the other side shall update too: not needed.
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];

/// close_notify (RFC 8446, 6.1).
const CLOSE_NOTIFY: [u8; 2] = [1, 0];

/// What a record held, for the reader of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    /// So many bytes of the stream, at the start of the output.
    Data(usize),
    /// Nothing for the reader.
    Nothing,
    /// The peer has said goodbye.
    Closed,
}

impl Keys {
    fn new(secrets: ExtractedSecrets, next: NextKeys) -> Result<Self, RecordError> {
        Ok(Self { sealer: Sealer::new(secrets.tx)?, opener: Opener::new(secrets.rx)?, next })
    }

    /// Seals a record in place, as [`Sealer::seal`].
    pub(crate) fn seal(&mut self, record: &mut [u8]) {
        self.sealer.seal(Content::Data, record);
    }

    /// Seals bytes from where they are, as [`Sealer::seal_from`].
    pub(crate) fn seal_from(&mut self, text: &[u8], record: &mut [u8]) {
        self.sealer.seal_from(text, record);
    }

    /// Makes the next [`refresh`](Self::refresh) change the key.
    pub(crate) fn wear_out(&mut self) {
        self.sealer.wear_out();
    }

    /// When the sending key is worn: the record to be sent before any other, after which the next key is in force.
    pub(crate) fn refresh(&mut self) -> Result<Option<Vec<u8>>, RecordError> {
        if !self.sealer.key_is_worn() {
            return Ok(None);
        }
        let record = self.sealer.seal_message(Content::Handshake, &KEY_UPDATE);
        let secrets = match &mut self.next {
            NextKeys::Client(connection) => connection.update_tx_secret(),
            NextKeys::Server(connection) => connection.update_tx_secret(),
        };
        self.sealer = Sealer::new(secrets.map_err(|_| RecordError::UnknownCipher)?)?;
        Ok(Some(record))
    }

    /// The record that says goodbye.
    pub(crate) fn close_notify(&mut self) -> Vec<u8> {
        self.sealer.seal_message(Content::Alert, &CLOSE_NOTIFY)
    }

    /// Opens a whole record into `out`, as [`Opener::open`]; what is not data is dealt with here.
    pub(crate) fn open(&mut self, record: &[u8], out: &mut [u8]) -> Result<Opened, RecordError> {
        let (content, len) = self.opener.open(record, out)?;
        match content {
            Content::Data => Ok(Opened::Data(len)),
            Content::Alert => Ok(Opened::Closed),
            Content::Handshake if out[..len] == KEY_UPDATE => {
                let secrets = match &mut self.next {
                    NextKeys::Client(connection) => connection.update_rx_secret(),
                    NextKeys::Server(connection) => connection.update_rx_secret(),
                };
                self.opener = Opener::new(secrets.map_err(|_| RecordError::UnknownCipher)?)?;
                Ok(Opened::Nothing)
            }
            // Session tickets are switched off, and our side never asks for a key update.
            Content::Handshake => Err(RecordError::NoContent),
        }
    }
}

/// A connection whose peer is known and whose bytes are protected.
#[derive(Debug)]
pub(crate) struct SecureTcp {
    pub(crate) tcp: TcpStream,
    pub(crate) keys: Keys,
    /// Received after the handshake: the beginning of the first records.
    pub(crate) received: Vec<u8>,
    pub(crate) peer: PublicKey,
    pub(crate) peer_address: SocketAddr,
    pub(crate) purpose: Purpose,
}

impl SecureTcp {
    /// The client's side of the handshake.
    pub(crate) async fn connect(
        mut tcp: TcpStream,
        tls: &ClientTls,
        purpose: Purpose,
        limit: Duration,
    ) -> Result<Self, HandshakeError> {
        let name = ServerName::try_from(SERVER_NAME).map_err(|_| HandshakeError::Foreign)?;
        let connection = UnbufferedClientConnection::new(Arc::new(tls.config.clone()), name)?;
        let handshake = shake_hands(&mut tcp, Side::Client(connection), Some(purpose));
        match tokio::time::timeout(limit, handshake).await {
            Err(_) => Err(HandshakeError::Timeout(limit)),
            Ok(Err(error)) => Err(tls.take_refusal().map_or(error, HandshakeError::Untrusted)),
            Ok(Ok(shaken)) => Self::over(tcp, shaken),
        }
    }

    /// The server's side of the handshake.
    pub(crate) async fn accept(
        mut tcp: TcpStream,
        config: Arc<rustls::ServerConfig>,
        limit: Duration,
    ) -> Result<Self, HandshakeError> {
        let connection = UnbufferedServerConnection::new(config)?;
        let handshake = shake_hands(&mut tcp, Side::Server(connection), None);
        let shaken = tokio::time::timeout(limit, handshake).await;
        Self::over(tcp, shaken.map_err(|_| HandshakeError::Timeout(limit))??)
    }

    fn over(tcp: TcpStream, shaken: Shaken) -> Result<Self, HandshakeError> {
        let Shaken { keys, received, peer, purpose } = shaken;
        let peer_address = tcp.peer_addr()?;
        Ok(Self { tcp, keys, received, peer, peer_address, purpose })
    }
}

/// What a handshake leaves behind.
pub(crate) struct Shaken {
    pub(crate) keys: Keys,
    pub(crate) received: Vec<u8>,
    pub(crate) peer: PublicKey,
    pub(crate) purpose: Purpose,
}

/// Either side's handshake, over anything that carries bytes.
pub(crate) async fn shake_hands<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    mut side: Side,
    wanted: Option<Purpose>,
) -> Result<Shaken, HandshakeError> {
    let mut received = Vec::with_capacity(8 << 10);
    // rustls is shown only whole records, and a further one only when it has used up the last: it must not
    // touch the records that follow the handshake, which are the lane's.
    let mut shown_records = 0;
    loop {
        let shown = whole_records(&received, shown_records);
        let step = side.step(&mut received[..shown])?;
        received.drain(..step.used);
        if step.used > 0 {
            shown_records = 0;
        }
        stream.write_all(&step.to_send).await?;
        match step.next {
            Next::Again => {}
            Next::Done => break,
            Next::Failed(error) => return Err(error.into()),
            Next::MoreInput => {
                shown_records += 1;
                while whole_records(&received, shown_records) == whole_records(&received, shown_records - 1) {
                    if received.len() > HANDSHAKE_BYTES_MAX {
                        return Err(HandshakeError::Foreign);
                    }
                    if stream.read_buf(&mut received).await? == 0 {
                        return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
                    }
                }
            }
        }
    }
    let common = side.common();
    let peer = peer_key(common.peer_certificates()).ok_or(HandshakeError::Foreign)?;
    let purpose = common.alpn_protocol().and_then(Purpose::from_alpn).ok_or(HandshakeError::Foreign)?;
    if wanted.is_some_and(|wanted| wanted != purpose) {
        return Err(HandshakeError::Foreign);
    }
    let keys = side.into_keys()?;
    Ok(Shaken { keys, received, peer, purpose })
}

/// Length of the first `count` whole records in `bytes`, or of as many as there are. A handshake record's header
/// has the length in bytes 3 and 4 whatever its type.
fn whole_records(bytes: &[u8], count: usize) -> usize {
    let mut end = 0;
    for _ in 0..count {
        match bytes.get(end + 3..end + 5) {
            Some(length) => {
                let next = end + 5 + usize::from(u16::from_be_bytes([length[0], length[1]]));
                if next > bytes.len() {
                    break;
                }
                end = next;
            }
            None => break,
        }
    }
    end
}

/// Either end of a handshake.
pub(crate) enum Side {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

struct Step {
    used: usize,
    to_send: Vec<u8>,
    next: Next,
}

enum Next {
    Again,
    MoreInput,
    Done,
    /// After `to_send`, which tells the peer why.
    Failed(rustls::Error),
}

impl Side {
    fn step(&mut self, input: &mut [u8]) -> Result<Step, HandshakeError> {
        match self {
            Self::Client(connection) => step(connection.process_tls_records(input)),
            Self::Server(connection) => step(connection.process_tls_records(input)),
        }
        .map(|mut step| {
            // "May write" comes before "may read": the handshake is over when neither is missing.
            if matches!(step.next, Next::Done) && self.common().is_handshaking() {
                step.next = Next::MoreInput;
            }
            step
        })
    }

    fn common(&self) -> &CommonState {
        match self {
            Self::Client(connection) => connection,
            Self::Server(connection) => connection,
        }
    }

    fn into_keys(self) -> Result<Keys, HandshakeError> {
        let keys = match self {
            Self::Client(connection) => {
                let (secrets, next) = connection.dangerous_into_kernel_connection()?;
                Keys::new(secrets, NextKeys::Client(next))
            }
            Self::Server(connection) => {
                let (secrets, next) = connection.dangerous_into_kernel_connection()?;
                Keys::new(secrets, NextKeys::Server(next))
            }
        };
        keys.map_err(|_| HandshakeError::Foreign)
    }
}

fn step<Data>(status: UnbufferedStatus<'_, '_, Data>) -> Result<Step, HandshakeError> {
    let UnbufferedStatus { discard, state, .. } = status;
    let mut to_send = Vec::new();
    let next = match state {
        Err(error) => Next::Failed(error),
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            if let Err(EncodeError::InsufficientSize(need)) = data.encode(&mut to_send) {
                to_send.resize(need.required_size, 0);
                data.encode(&mut to_send).map_err(|_| HandshakeError::Foreign)?;
            }
            Next::Again
        }
        // What was encoded is sent at once.
        Ok(ConnectionState::TransmitTlsData(transmit)) => {
            transmit.done();
            Next::Again
        }
        Ok(ConnectionState::BlockedHandshake) => Next::MoreInput,
        Ok(ConnectionState::WriteTraffic(_)) => Next::Done,
        Ok(_) => return Err(HandshakeError::Foreign),
    };
    Ok(Step { used: discard, to_send, next })
}

#[cfg(test)]
pub(crate) mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::identity::{HostTrust, Identity};
    use crate::lane::record::{HEADER_BYTES, TRAILER_BYTES};
    use crate::tls::server_config;

    const LIMIT: Duration = Duration::from_secs(60);

    async fn connect(
        trust: HostTrust,
        server: &Identity,
        client: &Identity,
    ) -> (Result<SecureTcp, HandshakeError>, Result<SecureTcp, HandshakeError>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = Arc::new(server_config(server).unwrap());
        let tls = ClientTls::new(client, Arc::new(trust), Purpose::Lane).unwrap();
        tokio::join!(
            async {
                let tcp = TcpStream::connect(address).await.unwrap();
                SecureTcp::connect(tcp, &tls, Purpose::Lane, LIMIT).await
            },
            async {
                let (tcp, _) = listener.accept().await.unwrap();
                SecureTcp::accept(tcp, config, LIMIT).await
            },
        )
    }

    /// Both ends of a connection: the client's, the server's.
    pub(crate) async fn pair() -> (SecureTcp, SecureTcp) {
        let (server, client) = (Identity::ephemeral(), Identity::ephemeral());
        let (near, far) = connect(HostTrust::Pinned(server.public()), &server, &client).await;
        (near.unwrap(), far.unwrap())
    }

    fn message(text: &[u8]) -> Vec<u8> {
        let mut record = vec![0; HEADER_BYTES + text.len() + TRAILER_BYTES];
        record[HEADER_BYTES..HEADER_BYTES + text.len()].copy_from_slice(text);
        record
    }

    #[tokio::test]
    async fn both_know_each_other_and_understand_each_other_across_key_changes() {
        let (server, client) = (Identity::ephemeral(), Identity::ephemeral());
        let (near, far) = connect(HostTrust::Pinned(server.public()), &server, &client).await;
        let (mut near, mut far) = (near.unwrap(), far.unwrap());
        assert_eq!((near.peer, far.peer), (server.public(), client.public()));
        assert_eq!(far.purpose, Purpose::Lane);
        for _ in 0..3 {
            let mut out = [0; 100];
            let mut record = message(b"to far");
            near.keys.seal(&mut record);
            assert_eq!(far.keys.open(&record, &mut out), Ok(Opened::Data(6)));
            let mut record = message(b"to near");
            far.keys.seal(&mut record);
            assert_eq!(near.keys.open(&record, &mut out), Ok(Opened::Data(7)));
            near.keys.wear_out();
            far.keys.wear_out();
            let update = near.keys.refresh().unwrap().unwrap();
            assert_eq!(far.keys.open(&update, &mut out), Ok(Opened::Nothing));
            let update = far.keys.refresh().unwrap().unwrap();
            assert_eq!(near.keys.open(&update, &mut out), Ok(Opened::Nothing));
            assert_eq!(near.keys.refresh().unwrap(), None);
        }
        let goodbye = near.keys.close_notify();
        assert_eq!(far.keys.open(&goodbye, &mut [0; 100]), Ok(Opened::Closed));
    }

    #[tokio::test]
    async fn a_server_with_another_key_is_refused_with_the_reason() {
        let (server, other) = (Identity::ephemeral(), Identity::ephemeral());
        let (near, far) = connect(HostTrust::Pinned(other.public()), &server, &Identity::ephemeral()).await;
        let error = near.unwrap_err();
        assert!(matches!(error, HandshakeError::Untrusted(TrustError::NotPinned { .. })), "{error}");
        assert!(far.is_err());
    }

    #[tokio::test]
    async fn garbage_and_silence_end_the_handshake() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = Arc::new(server_config(&Identity::ephemeral()).unwrap());
        for garbage in
            [&b"GET / HTTP/1.1\r\nHost: far\r\n\r\n"[..], &[0x16, 3, 1, 0xff, 0xff], &[0; 4096], &[]]
        {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(garbage).await.unwrap();
            let (tcp, _) = listener.accept().await.unwrap();
            let error =
                SecureTcp::accept(tcp, Arc::clone(&config), Duration::from_millis(50)).await.unwrap_err();
            assert!(matches!(error, HandshakeError::Tls(_) | HandshakeError::Timeout(_)), "{error:?}");
        }
    }
}
