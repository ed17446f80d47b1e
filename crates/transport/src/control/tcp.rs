//! Control over TCP and TLS, for where UDP is blocked: requests and replies as frames of one stream.
//!
//! ```text
//! | length (4) | kind: 0 request, 1 reply (1) | id (8) | oldest (8) | slot (4) | body |
//! ```

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use super::{Arriving, ControlGone, ENVELOPE_BYTES, Envelope};
use crate::lane::record::{HEADER_BYTES, Opener, PLAINTEXT_MAX, RECORD_MAX, TRAILER_BYTES};
use crate::limits::{CONTROL_BODY_BYTES_MAX, CONTROL_STREAMS_MAX, REQUEST_BYTES_CARRIED_MAX};
use crate::secure::{Opened, SecureTcp};
use crate::socket::TcpInfo;

const FRAME_HEADER_BYTES: usize = 4 + 1 + ENVELOPE_BYTES;
const REQUEST: u8 = 0;
const REPLY: u8 = 1;

#[derive(Debug)]
pub(crate) struct Frame {
    kind: u8,
    envelope: Envelope,
}

/// Appends a frame's bytes.
pub(crate) fn encode(frame: &Frame, to: &mut BytesMut) {
    to.put_u32_le((1 + ENVELOPE_BYTES + frame.envelope.body.len()) as u32);
    to.put_u8(frame.kind);
    to.put_u64_le(frame.envelope.id);
    to.put_u64_le(frame.envelope.oldest);
    to.put_u32_le(frame.envelope.slot);
    to.extend_from_slice(&frame.envelope.body);
}

/// Takes the first frame off `bytes`, when it is there whole.
pub(crate) fn decode(bytes: &mut BytesMut) -> io::Result<Option<Frame>> {
    let Some(length) = bytes.first_chunk::<4>().map(|l| u32::from_le_bytes(*l) as usize) else {
        return Ok(None);
    };
    if !(1 + ENVELOPE_BYTES..=1 + ENVELOPE_BYTES + CONTROL_BODY_BYTES_MAX).contains(&length) {
        return Err(io::Error::new(ErrorKind::InvalidData, "a control frame of impossible length"));
    }
    if bytes.len() < 4 + length {
        return Ok(None);
    }
    bytes.advance(4);
    let kind = bytes.get_u8();
    // A copy: a short body must not keep a long buffer.
    let rest = Bytes::copy_from_slice(&bytes[..length - 1]);
    bytes.advance(length - 1);
    let envelope = Envelope::decode(rest).ok_or(ErrorKind::InvalidData)?;
    Ok(Some(Frame { kind, envelope }))
}

type Pending = Arc<Mutex<HashMap<u64, oneshot::Sender<Bytes>>>>;

/// A control link over TCP.
#[derive(Debug)]
pub(crate) struct TcpLink {
    outgoing: mpsc::Sender<Frame>,
    incoming: tokio::sync::Mutex<mpsc::Receiver<Queued>>,
    admitted: Arc<AtomicBool>,
    pending: Pending,
    ended: watch::Sender<bool>,
    rtt: watch::Receiver<Option<Duration>>,
}

/// A request nobody has taken yet, with a permit for each byte of its body.
type Queued = (Envelope, OwnedSemaphorePermit);

/// Sends one reply.
#[derive(Debug)]
pub(crate) struct TcpReplier {
    id: u64,
    outgoing: mpsc::Sender<Frame>,
}

impl TcpReplier {
    pub(super) async fn send(self, reply: Bytes) {
        let envelope = Envelope { id: self.id, oldest: 0, slot: 0, body: reply };
        let _ = self.outgoing.send(Frame { kind: REPLY, envelope }).await; // a broken link is noticed elsewhere
    }
}

impl TcpLink {
    /// Starts the link's task on a secure connection. Until it is `admitted`, a peer may send one request.
    pub(crate) fn start(connection: SecureTcp, admitted: bool) -> Self {
        let (outgoing, to_send) = mpsc::channel(64);
        let (received, incoming) = mpsc::channel(CONTROL_STREAMS_MAX as usize);
        let pending = Pending::default();
        let (ended, end) = watch::channel(false);
        let (rtt_in, rtt) = watch::channel(None);
        let admitted = Arc::new(AtomicBool::new(admitted));
        let task = Task {
            to_send,
            received,
            room: Arc::new(Semaphore::new(REQUEST_BYTES_CARRIED_MAX)),
            admitted: Arc::clone(&admitted),
            greeted: false,
            pending: Arc::clone(&pending),
            rtt: rtt_in,
        };
        let ended_by_task = ended.clone();
        tokio::spawn(async move {
            if let Err(error) = task.run(connection, end).await {
                tracing::debug!(%error, "control link over TCP ended");
            }
            ended_by_task.send_replace(true);
        });
        Self { outgoing, incoming: incoming.into(), admitted, pending, ended, rtt }
    }

    pub(super) async fn exchange(&self, envelope: &Envelope) -> Result<Bytes, ControlGone> {
        let (reply, answer) = oneshot::channel();
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).insert(envelope.id, reply);
        let mut ended = self.ended.subscribe();
        let sent = self.outgoing.send(Frame { kind: REQUEST, envelope: envelope.clone() });
        let exchange = async {
            sent.await.map_err(|_| ControlGone)?;
            answer.await.map_err(|_| ControlGone)
        };
        let result = tokio::select! {
            result = exchange => result,
            _ = ended.wait_for(|ended| *ended) => Err(ControlGone),
        };
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).remove(&envelope.id);
        result
    }

    pub(super) async fn accept(&self) -> Result<Arriving, ControlGone> {
        let (envelope, _room) = self.incoming.lock().await.recv().await.ok_or(ControlGone)?;
        let replier = TcpReplier { id: envelope.id, outgoing: self.outgoing.clone() };
        Ok(Arriving::Tcp(envelope, replier))
    }

    pub(super) fn admit(&self) {
        self.admitted.store(true, Ordering::SeqCst);
    }

    pub(super) fn close(&self) {
        self.ended.send_replace(true);
    }

    pub(super) fn rtt(&self) -> Option<Duration> {
        *self.rtt.borrow()
    }
}

/// Owns the connection: one place that reads, opens, seals and writes.
struct Task {
    to_send: mpsc::Receiver<Frame>,
    received: mpsc::Sender<Queued>,
    /// One permit for each byte that may wait in `received`.
    room: Arc<Semaphore>,
    admitted: Arc<AtomicBool>,
    /// The peer has sent a request.
    greeted: bool,
    pending: Pending,
    rtt: watch::Sender<Option<Duration>>,
}

/// Sealed bytes waiting for the socket, beyond which no further frame is taken.
const UNSENT_MAX: usize = 256 << 10;

impl Task {
    async fn run(mut self, connection: SecureTcp, mut end: watch::Receiver<bool>) -> io::Result<()> {
        let SecureTcp { tcp, mut keys, received, .. } = connection;
        let mut raw = BytesMut::from(&received[..]);
        let (mut plain, mut unsent) = (BytesMut::new(), BytesMut::new());
        let mut opened = vec![0; RECORD_MAX + 256];
        loop {
            while let Some(len) =
                Opener::record_bytes(&raw).map_err(io::Error::other)?.filter(|l| *l <= raw.len())
            {
                let record = raw.split_to(len);
                match keys.open(&record, &mut opened).map_err(io::Error::other)? {
                    Opened::Data(len) => plain.extend_from_slice(&opened[..len]),
                    Opened::Nothing => {}
                    Opened::Closed => return Ok(()),
                }
            }
            while let Some(frame) = decode(&mut plain)? {
                self.deliver(frame)?;
            }
            // Reading goes on while the peer does not: otherwise two full sides would wait for each other.
            let interest =
                if unsent.is_empty() { Interest::READABLE } else { Interest::READABLE | Interest::WRITABLE };
            tokio::select! {
                _ = end.wait_for(|end| *end) => {
                    seal(&mut keys, &mut unsent, &[], true)?;
                    let _ = tcp.try_write(&unsent); // a goodbye is a courtesy
                    return Ok(());
                }
                Some(frame) = self.to_send.recv(), if unsent.len() < UNSENT_MAX => {
                    let mut bytes = BytesMut::with_capacity(FRAME_HEADER_BYTES + frame.envelope.body.len());
                    encode(&frame, &mut bytes);
                    seal(&mut keys, &mut unsent, &bytes, false)?;
                }
                ready = tcp.ready(interest) => {
                    let ready = ready?;
                    if ready.is_readable() && !read_some(&tcp, &mut raw)? {
                        return Ok(());
                    }
                    if ready.is_writable() {
                        write_some(&tcp, &mut unsent)?;
                    }
                    let rtt = TcpInfo::of(&tcp).ok().filter(|i| i.rtt_us > 0).map(|i| i.rtt_us);
                    self.rtt.send_replace(rtt.map(|us| Duration::from_micros(us.into())));
                }
            }
        }
    }

    fn deliver(&mut self, frame: Frame) -> io::Result<()> {
        match frame.kind {
            REQUEST => {
                let too_early = self.greeted && !self.admitted.load(Ordering::SeqCst);
                self.greeted = true;
                // The asker keeps its open requests below the channel's length and room; more is misuse.
                let room = Arc::clone(&self.room).try_acquire_many_owned(frame.envelope.body.len() as u32);
                let queued = room.is_ok_and(|room| self.received.try_send((frame.envelope, room)).is_ok());
                if queued && !too_early { Ok(()) } else { Err(misuse("more requests than it may send")) }
            }
            REPLY => {
                let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(asker) = pending.remove(&frame.envelope.id) {
                    let _ = asker.send(frame.envelope.body); // the asker may have given up
                }
                Ok(())
            }
            kind => Err(misuse(&format!("a frame of kind {kind}"))),
        }
    }
}

fn misuse(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("the peer has sent {what}"))
}

/// False at the end of the stream.
fn read_some(tcp: &TcpStream, raw: &mut BytesMut) -> io::Result<bool> {
    raw.reserve(RECORD_MAX);
    match tcp.try_read_buf(raw) {
        Ok(0) => Ok(false),
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error),
    }
}

fn write_some(tcp: &TcpStream, unsent: &mut BytesMut) -> io::Result<()> {
    match tcp.try_write(unsent) {
        Ok(written) => {
            unsent.advance(written);
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}

/// Appends `bytes` as sealed records, and a goodbye if wanted.
fn seal(
    keys: &mut crate::secure::Keys,
    unsent: &mut BytesMut,
    bytes: &[u8],
    goodbye: bool,
) -> io::Result<()> {
    if let Some(update) = keys.refresh().map_err(io::Error::other)? {
        unsent.extend_from_slice(&update);
    }
    for part in bytes.chunks(PLAINTEXT_MAX) {
        let start = unsent.len();
        unsent.resize(start + HEADER_BYTES + part.len() + TRAILER_BYTES, 0);
        unsent[start + HEADER_BYTES..][..part.len()].copy_from_slice(part);
        keys.seal(&mut unsent[start..]);
    }
    if goodbye {
        unsent.extend_from_slice(&keys.close_notify());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frames_round_trip_and_wait_for_their_rest() {
        let frame = |id, body: &'static [u8]| Frame {
            kind: REQUEST,
            envelope: Envelope { id, oldest: 1, slot: 2, body: Bytes::from_static(body) },
        };
        let mut bytes = BytesMut::new();
        encode(&frame(7, b"hello"), &mut bytes);
        encode(&frame(8, b""), &mut bytes);
        let whole = bytes.clone();
        assert_eq!(decode(&mut bytes).unwrap().unwrap().envelope, frame(7, b"hello").envelope);
        assert_eq!(decode(&mut bytes).unwrap().unwrap().envelope, frame(8, b"").envelope);
        assert!(decode(&mut bytes).unwrap().is_none());
        for cut in 0..20 {
            assert!(decode(&mut BytesMut::from(&whole[..cut])).unwrap().is_none());
        }
    }

    fn request(id: u64, bytes: usize) -> Envelope {
        Envelope { id, oldest: 0, slot: 0, body: Bytes::from(vec![0; bytes]) }
    }

    async fn links(admitted: bool) -> (Arc<TcpLink>, TcpLink) {
        let (near, far) = crate::secure::tests::pair().await;
        (Arc::new(TcpLink::start(near, true)), TcpLink::start(far, admitted))
    }

    /// Sends requests without waiting for replies.
    fn ask(near: &Arc<TcpLink>, requests: impl Iterator<Item = Envelope>) {
        for envelope in requests {
            let near = Arc::clone(near);
            tokio::spawn(async move { near.exchange(&envelope).await });
        }
    }

    async fn cut_off(link: &TcpLink) {
        let mut ended = link.ended.subscribe();
        let ended = ended.wait_for(|ended| *ended);
        tokio::time::timeout(Duration::from_secs(60), ended).await.expect("cut off").unwrap();
    }

    #[tokio::test]
    async fn a_peer_that_is_not_let_in_yet_may_send_one_request() {
        let (near, far) = links(false).await;
        ask(&near, [request(0, 10), request(1, 10)].into_iter());
        cut_off(&far).await;
        let (near, far) = links(false).await;
        ask(&near, [request(0, 10)].into_iter());
        assert!(far.accept().await.is_ok());
        far.admit();
        ask(&near, (1..=100).map(|id| request(id, 10)));
        for _ in 1..=100 {
            assert!(far.accept().await.is_ok());
        }
    }

    #[tokio::test]
    async fn requests_that_wait_are_bounded_in_bytes() {
        let (near, far) = links(true).await;
        let fit = (REQUEST_BYTES_CARRIED_MAX / CONTROL_BODY_BYTES_MAX) as u64;
        ask(&near, (0..=fit).map(|id| request(id, CONTROL_BODY_BYTES_MAX)));
        cut_off(&far).await;
        // Those that are taken make room.
        let (near, far) = links(true).await;
        for round in 0..3 {
            ask(&near, (0..fit).map(|id| request(round * fit + id, CONTROL_BODY_BYTES_MAX)));
            for _ in 0..fit {
                assert!(far.accept().await.is_ok());
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_frames_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut bytes = BytesMut::from(&bytes[..]);
            while let Ok(Some(frame)) = decode(&mut bytes) {
                prop_assert!(frame.envelope.body.len() <= CONTROL_BODY_BYTES_MAX);
            }
        }
    }
}
