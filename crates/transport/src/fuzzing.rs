//! Openings for the fuzz targets in `fuzz/`: what reads bytes of peers and files, and is nobody else's business.
//!
//! Nothing is decided here: bytes go in, and what was understood comes out as plain data, or encoded anew.

use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use bytes::{Bytes, BytesMut};
use prost::Message;
use rustls::ConnectionTrafficSecrets;
use rustls::client::UnbufferedClientConnection;
use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::control::tcp;
use crate::identity::{HostTrust, Identity, PublicKey, parse_known_hosts};
use crate::lane::buffer::Inbox;
use crate::lane::frame::{FRAME_HEADER_BYTES, FrameHeader, decode_numbers, encode_numbers};
use crate::lane::record::{Content, HEADER_BYTES, Opener, TRAILER_BYTES};
use crate::secure::{Keys, Shaken, Side, shake_hands};
use crate::session::message::{Body, Hello, SessionRequest, Welcome};
use crate::tls::{ClientTls, Purpose, SERVER_NAME, server_config};

/// A frame's header: its length of payload, and itself as this version writes it.
#[must_use]
pub fn frame_header(bytes: &[u8; FRAME_HEADER_BYTES]) -> Option<(u32, [u8; FRAME_HEADER_BYTES])> {
    FrameHeader::decode(bytes).ok().map(|header| (header.length, header.encode()))
}

/// The payload of a `Stored` or `Declined` frame, read and written again.
#[must_use]
pub fn piece_numbers(payload: &[u8]) -> Vec<u8> {
    encode_numbers(&decode_numbers(payload).collect::<Vec<_>>())
}

/// Length of the record at the start of `bytes`, if its header is there; an error when it is no record.
///
/// # Errors
/// In words.
pub fn record_bytes(bytes: &[u8]) -> Result<Option<usize>, String> {
    Opener::record_bytes(bytes).map_err(|e| e.to_string())
}

const RECORD_KEY: [u8; 32] = [7; 32];
const RECORD_IV: [u8; 12] = [9; 12];

/// Opens a record that is the first of a connection: the content type and the content.
#[must_use]
pub fn open_record(record: &[u8], room: usize) -> Option<(u8, Vec<u8>)> {
    let secrets =
        ConnectionTrafficSecrets::Aes256Gcm { key: AeadKey::from(RECORD_KEY), iv: Iv::from(RECORD_IV) };
    let mut opener = Opener::new((0, secrets)).ok()?;
    let mut out = vec![0; room];
    let (content, len) = opener.open(record, &mut out).ok()?;
    out.truncate(len);
    let code = match content {
        Content::Alert => 21,
        Content::Handshake => 22,
        Content::Data => 23,
    };
    Some((code, out))
}

/// Seals content, content type and padding as a peer that does as it likes, for [`open_record`].
///
/// # Panics
/// When `inner` is longer than a record's length can say.
#[must_use]
pub fn seal_record(inner: &[u8]) -> Vec<u8> {
    let length = u16::try_from(inner.len() + TRAILER_BYTES - 1).expect("fits a record's length");
    let mut record = vec![23, 3, 3, (length >> 8) as u8, length as u8];
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &RECORD_KEY).expect("32 bytes are a key"));
    let mut text = inner.to_vec();
    let nonce = Nonce::assume_unique_for_key(RECORD_IV); // sequence 0
    key.seal_in_place_append_tag(nonce, Aad::from(&record[..HEADER_BYTES]), &mut text)
        .expect("a short message");
    record.extend_from_slice(&text);
    record
}

/// Frames of the control channel over TCP.
#[derive(Debug, Default)]
pub struct ControlStream(BytesMut);

impl ControlStream {
    /// More bytes have come.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next whole frame, written again.
    ///
    /// # Errors
    /// In words, when there can be no frame any more.
    pub fn next_frame(&mut self) -> Result<Option<Vec<u8>>, String> {
        let frame = tcp::decode(&mut self.0).map_err(|e| e.to_string())?;
        Ok(frame.map(|frame| {
            let mut bytes = BytesMut::new();
            tcp::encode(&frame, &mut bytes);
            bytes.to_vec()
        }))
    }
}

/// The messages about a session, each read and written again.
#[must_use]
pub fn session_messages(bytes: &[u8]) -> [Option<Vec<u8>>; 4] {
    fn again<M: Message + Default>(bytes: &[u8]) -> Option<Vec<u8>> {
        M::decode(bytes).ok().map(|message| message.encode_to_vec())
    }
    let body = Body::decode(&Bytes::copy_from_slice(bytes)).map(|body| body.encode().to_vec());
    [body, again::<Hello>(bytes), again::<Welcome>(bytes), again::<SessionRequest>(bytes)]
}

/// The hosts of a `known_hosts` file.
#[must_use]
pub fn known_hosts(text: &str) -> Vec<(String, PublicKey)> {
    parse_known_hosts(text)
}

/// The public half of a private key file; an error in words.
///
/// # Errors
/// In words for its owner.
pub fn private_key(text: &str) -> Result<PublicKey, String> {
    let identity = Identity::from_openssh(text, Path::new("key"));
    identity.map(|identity| identity.public()).map_err(|e| e.to_string())
}

/// Keys and settings of both ends, made once.
struct Ends {
    client: ClientTls,
    server: Arc<rustls::ServerConfig>,
}

fn ends() -> &'static Ends {
    static ENDS: OnceLock<Ends> = OnceLock::new();
    ENDS.get_or_init(|| {
        let (client, server) = (Identity::ephemeral(), Identity::ephemeral());
        let trust = Arc::new(HostTrust::Pinned(server.public()));
        Ends {
            client: ClientTls::new(&client, trust, Purpose::Lane).expect("our own settings"),
            server: Arc::new(server_config(&server).expect("our own settings")),
        }
    })
}

fn client_side() -> Side {
    let name = ServerName::try_from(SERVER_NAME).expect("a name");
    let config = Arc::new(ends().client.config.clone());
    Side::Client(UnbufferedClientConnection::new(config, name).expect("our own settings"))
}

fn server_side() -> Side {
    Side::Server(UnbufferedServerConnection::new(Arc::clone(&ends().server)).expect("our own settings"))
}

/// Runs `work` as far as it comes by itself; `None`: it waits for what nobody will do, where a connection would wait
/// for its time limit.
fn run_alone<T>(work: impl Future<Output = T>) -> Option<T> {
    struct Woken(AtomicBool);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let woken = Arc::new(Woken(AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&woken));
    let mut work = pin!(work);
    loop {
        match work.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => return Some(result),
            Poll::Pending if woken.0.swap(false, Ordering::SeqCst) => {}
            Poll::Pending => return None,
        }
    }
}

/// A handshake whose peer says `bytes` and no more: whether it comes to its end, and what our side has said.
#[must_use]
pub fn handshake_with(bytes: &[u8], as_server: bool) -> (bool, Vec<u8>) {
    let (side, wanted) = if as_server { (server_side(), None) } else { (client_side(), Some(Purpose::Lane)) };
    let mut stream = tokio::io::join(bytes, Vec::new());
    let ended = run_alone(shake_hands(&mut stream, side, wanted)).is_some_and(|end| end.is_ok());
    (ended, stream.into_inner().1)
}

/// What happens to the bytes that one end of a handshake receives: the one at `at` is xored with `with`, and at the
/// most `chunk` come at a time.
#[derive(Clone, Copy, Debug)]
pub struct Harm {
    /// Counted from the first byte received.
    pub at: usize,
    /// 0: no harm.
    pub with: u8,
    /// At least 1.
    pub chunk: usize,
}

/// Which of client and server come to the end of a handshake with each other when the bytes each receives are harmed;
/// neither, where one waits for more bytes than there are.
#[must_use]
pub fn handshake_harmed(client: Harm, server: Harm) -> (bool, bool) {
    let (near, far) = run_alone(shake_both(client, server)).unwrap_or_default();
    (near.is_some(), far.is_some())
}

async fn shake_both(client: Harm, server: Harm) -> (Option<Shaken>, Option<Shaken>) {
    let (near, far) = tokio::io::duplex(64 << 10);
    tokio::join!(
        async {
            let mut near = Harmed { stream: near, harm: client, read: 0 };
            shake_hands(&mut near, client_side(), Some(Purpose::Lane)).await.ok()
        },
        async {
            let mut far = Harmed { stream: far, harm: server, read: 0 };
            shake_hands(&mut far, server_side(), None).await.ok()
        },
    )
}

/// A stream whose reader is served as [`Harm`] says.
struct Harmed<S> {
    stream: S,
    harm: Harm,
    read: usize,
}

impl<S: AsyncRead + Unpin> AsyncRead for Harmed<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        let mut some = vec![0; to.remaining().min(this.harm.chunk.max(1))];
        let mut part = ReadBuf::new(&mut some);
        std::task::ready!(Pin::new(&mut this.stream).poll_read(context, &mut part))?;
        let bytes = part.filled_mut();
        if let Some(byte) = this.harm.at.checked_sub(this.read).and_then(|at| bytes.get_mut(at)) {
            *byte ^= this.harm.with;
        }
        this.read += bytes.len();
        to.put_slice(bytes);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Harmed<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

/// A frame as it arrives: its header, written again, and its payload.
pub type ArrivedFrame<'a> = ([u8; FRAME_HEADER_BYTES], &'a [u8]);

/// Both ends of one direction of a lane: a peer with the right keys that says what it likes, and its reader.
#[derive(Debug)]
pub struct Lane {
    peer: Keys,
    reader: Keys,
    inbox: Inbox,
}

impl Lane {
    /// After a handshake.
    ///
    /// # Panics
    /// When both ends, undisturbed, do not understand each other.
    #[must_use]
    pub fn open() -> Self {
        let unharmed = Harm { at: 0, with: 0, chunk: usize::MAX };
        let Some((Some(client), Some(server))) = run_alone(shake_both(unharmed, unharmed)) else {
            panic!("an undisturbed handshake fails")
        };
        Self { peer: client.keys, reader: server.keys, inbox: Inbox::new(&server.received) }
    }

    /// A record with `content`, of at most 2^14 bytes.
    pub fn seal(&mut self, content: &[u8]) -> Vec<u8> {
        let mut record = vec![0; HEADER_BYTES + content.len() + TRAILER_BYTES];
        record[HEADER_BYTES..][..content.len()].copy_from_slice(content);
        self.peer.seal(&mut record);
        record
    }

    /// The record that changes the peer's key.
    pub fn seal_key_update(&mut self) -> Vec<u8> {
        self.peer.wear_out();
        self.peer.refresh().ok().flatten().unwrap_or_default()
    }

    /// The record that ends the lane.
    pub fn seal_goodbye(&mut self) -> Vec<u8> {
        self.peer.close_notify()
    }

    /// Takes as many of `bytes` as the inbox has room for.
    pub fn receive(&mut self, bytes: &[u8]) -> usize {
        let room = self.inbox.room();
        let taken = room.len().min(bytes.len());
        room[..taken].copy_from_slice(&bytes[..taken]);
        self.inbox.filled(taken);
        taken
    }

    /// The next whole frame.
    ///
    /// # Errors
    /// In words; the lane is at its end.
    pub fn next_frame(&mut self) -> Result<Option<ArrivedFrame<'_>>, String> {
        let frame = self.inbox.next_frame(&mut self.reader).map_err(|e| e.to_string())?;
        Ok(frame.map(|frame| (frame.encode(), self.inbox.payload(&frame))))
    }

    /// Bytes the reader holds.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.inbox.held_bytes()
    }

    /// Whether the peer has said goodbye.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.inbox.is_closed()
    }
}
