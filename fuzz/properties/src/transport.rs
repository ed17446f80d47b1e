//! Keys, handshakes, records, frames and session messages.

mod lane;

use longhaul_transport::fuzzing::{self, ControlStream, Harm};
use longhaul_transport::identity::{AuthorizedKeys, Grant, PublicKey};
use longhaul_transport::limits::{CONTROL_BODY_BYTES_MAX, FRAME_PAYLOAD_MAX, HANDSHAKE_BYTES_MAX};

use crate::script::Script;
use crate::{assert_stable, text};

pub use lane::lane;

/// A frame's header: its payload fits a frame, and it survives being written again. Piece numbers are whole ones.
pub fn lane_frame(data: &[u8]) {
    if let Some(header) = data.first_chunk()
        && let Some((payload_bytes, again)) = fuzzing::frame_header(header)
    {
        assert!(payload_bytes as usize <= FRAME_PAYLOAD_MAX);
        assert_eq!(fuzzing::frame_header(&again), Some((payload_bytes, again)));
    }
    assert_eq!(fuzzing::piece_numbers(data), data[..data.len() / 8 * 8]);
}

/// Most plaintext in a record, and most bytes after its header (RFC 8446, 5.1 and 5.2).
const PLAINTEXT_MAX: usize = 1 << 14;
const CIPHERTEXT_MAX: usize = PLAINTEXT_MAX + 256;

/// A record: garbage is never opened; what a peer has sealed is opened as RFC 8446, 5.2 says, or refused.
pub fn tls_record(data: &[u8]) {
    let mut script = Script::new(data);
    let sealed = script.u8() % 2 == 1;
    if !sealed {
        let record = script.rest();
        if let Ok(Some(length)) = fuzzing::record_bytes(record) {
            assert!(length <= 5 + CIPHERTEXT_MAX);
        }
        assert_eq!(fuzzing::open_record(record, record.len()), None, "a forged record");
        return;
    }
    let room_less = usize::from(script.u8() % 4);
    // Zeros are padding: so many that every length there is can be reached.
    let padding = usize::from(script.u16()) % (CIPHERTEXT_MAX + 64);
    let mut inner = script.rest().to_vec();
    inner.resize((inner.len() + padding).min(CIPHERTEXT_MAX + 64), 0);
    let record = fuzzing::seal_record(&inner);
    let fits = record.len() - 5 <= CIPHERTEXT_MAX;
    assert_eq!(fuzzing::record_bytes(&record).ok().flatten(), fits.then_some(record.len()));
    let expected = inner.iter().rposition(|&b| b != 0).and_then(|end| {
        let known = (21..=23).contains(&inner[end]) && end <= PLAINTEXT_MAX;
        known.then(|| (inner[end], inner[..end].to_vec()))
    });
    let enough_room = room_less == 0 || inner.is_empty();
    let opened = fuzzing::open_record(&record, inner.len().saturating_sub(room_less));
    assert_eq!(opened, expected.filter(|_| enough_room));
}

/// A handshake with anybody: it ends, says little, and succeeds only with a peer that has proved its key.
pub fn tls_handshake(data: &[u8]) {
    let mut script = Script::new(data);
    let mode = script.u8() % 4;
    if mode < 2 {
        let (ended, said) = fuzzing::handshake_with(script.rest(), mode == 0);
        assert!(!ended, "a handshake without a proof");
        assert!(said.len() <= HANDSHAKE_BYTES_MAX);
        return;
    }
    let mut harm = || Harm {
        at: usize::from(script.u16() % 2048),
        with: script.u8(),
        chunk: usize::from(script.u16()).max(1),
    };
    let (client, server) = (harm(), harm());
    let ends = fuzzing::handshake_harmed(client, server);
    if client.with == 0 && server.with == 0 {
        assert_eq!(ends, (true, true), "whole, in whatever parts it comes");
    }
}

/// Frames on a control stream: the same however the bytes come, each written again as it was.
pub fn control_frames(data: &[u8]) {
    let mut script = Script::new(data);
    let chunk = usize::from(script.u8()).max(1);
    let bytes = script.rest();
    let whole = read_control(std::iter::once(bytes));
    assert_eq!(whole, read_control(bytes.chunks(chunk)), "in parts");
    let (frames, _) = whole;
    assert!(frames.iter().all(|frame| frame.len() <= 4 + 1 + 16 + CONTROL_BODY_BYTES_MAX));
    assert!(bytes.starts_with(&frames.concat()));
}

/// The frames in `parts`, and whether the stream is broken after them.
fn read_control<'a>(parts: impl Iterator<Item = &'a [u8]>) -> (Vec<Vec<u8>>, bool) {
    let (mut stream, mut frames) = (ControlStream::default(), Vec::new());
    for part in parts {
        stream.feed(part);
        loop {
            match stream.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(_) => return (frames, true),
            }
        }
    }
    (frames, false)
}

/// Messages about the session, of all kinds.
pub fn session_message(data: &[u8]) {
    for kind in 0..4 {
        assert_stable(data, |bytes| fuzzing::session_messages(bytes)[kind].clone());
    }
}

/// An `authorized_keys` file: it grants what its lines grant, one by one, and nothing if one is not understood.
pub fn authorized_keys(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let list = |keys: AuthorizedKeys| -> Vec<(PublicKey, Grant)> {
        keys.grants().map(|(key, grant)| (*key, grant.clone())).collect()
    };
    let whole = AuthorizedKeys::parse(text).map(list);
    let single: Result<Vec<_>, _> = text.lines().map(|line| AuthorizedKeys::parse(line).map(list)).collect();
    match (&whole, single) {
        (Ok(whole), Ok(single)) => assert_eq!(*whole, single.concat()),
        (Err(bad), Err(_)) => assert!((1..=text.lines().count()).contains(&bad.line)),
        (whole, single) => panic!("{whole:?} as a whole, {single:?} line by line"),
    }
    for (key, grant) in whole.unwrap_or_default() {
        assert_eq!(PublicKey::from_openssh(&key.to_openssh()).ok(), Some(key));
        assert!(grant.user.is_none_or(|user| !user.is_empty()));
        assert!(grant.exports.iter().all(|export| !export.is_empty()));
    }
}

/// A `known_hosts` file: what is learnt from it and written as longhaul writes it is learnt again.
pub fn known_hosts(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let known = fuzzing::known_hosts(text);
    assert!(known.len() <= text.lines().count());
    let written: String = known.iter().map(|(host, key)| format!("{host} {}\n", key.to_openssh())).collect();
    assert_eq!(fuzzing::known_hosts(&written), known);
}

/// A private key file: a key, or an error that repeats nothing of it at length.
pub fn private_key(data: &[u8]) {
    let Some(text) = text(data) else { return };
    match fuzzing::private_key(text) {
        Ok(key) => assert_eq!(PublicKey::from_spki(&key.to_spki()), Some(key)),
        Err(reason) => assert!(reason.len() < 300, "{reason}"),
    }
}

/// A public key, as a line of text and as TLS carries it.
pub fn public_key(data: &[u8]) {
    if let Some(key) = text(data).and_then(|line| PublicKey::from_openssh(line).ok()) {
        assert_eq!(PublicKey::from_openssh(&key.to_openssh()).ok(), Some(key));
    }
    if let Some(key) = PublicKey::from_spki(data) {
        assert_eq!(&key.to_spki()[..], data, "another form of the same key");
    }
}
