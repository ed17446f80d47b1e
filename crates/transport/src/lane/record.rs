//! TLS 1.3 records (RFC 8446, 5.2), sealed and opened in the buffers that the data lives in.
//!
//! rustls makes the connection; from then on a lane protects its records itself, because the general interface
//! would copy each byte twice more. Sealing is in place, or from the memory that the bytes are in; opening goes from the
//! socket's buffer straight to the place where the bytes are wanted.
//!
//! ```text
//! | 23 | 3 3 | length | plaintext ... | content type | tag (16) |
//!   5-byte header, authenticated     | sealed                  |
//! ```

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use rustls::ConnectionTrafficSecrets;

/// Bytes of a record's header.
pub(crate) const HEADER_BYTES: usize = 5;
/// Most plaintext in a record (RFC 8446, 5.1).
pub(crate) const PLAINTEXT_MAX: usize = 16_384;
/// The inner content type and the tag.
pub(crate) const TRAILER_BYTES: usize = 1 + TAG_BYTES;
/// Most bytes of a record that we send.
pub(crate) const RECORD_MAX: usize = HEADER_BYTES + PLAINTEXT_MAX + TRAILER_BYTES;
/// Most bytes after the header that a peer may send (RFC 8446, 5.2).
const CIPHERTEXT_MAX: usize = PLAINTEXT_MAX + 256;

const TAG_BYTES: usize = 16;
const APPLICATION_DATA: u8 = 23;

/// AES-GCM may protect 2^24.5 full records with one key (RFC 8446, 5.5); keys are changed well before.
pub(crate) const RECORDS_PER_KEY: u64 = 1 << 23;

/// What a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Bytes of the stream.
    Data,
    /// A post-handshake message: ours is only KeyUpdate.
    Handshake,
    /// The end, or an error.
    Alert,
}

impl Content {
    const fn code(self) -> u8 {
        match self {
            Self::Alert => 21,
            Self::Handshake => 22,
            Self::Data => APPLICATION_DATA,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        [Self::Alert, Self::Handshake, Self::Data].into_iter().find(|c| c.code() == code)
    }
}

/// A record that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    /// Another protocol, or garbage.
    #[error("not a TLS record")]
    NotARecord,
    /// Longer than the standard allows.
    #[error("a record of {0} bytes is longer than TLS allows")]
    TooLong(usize),
    /// The tag does not fit: the bytes were changed on their way.
    #[error("a record was changed on its way: its authentication tag does not fit")]
    NotAuthentic,
    /// Nothing inside, or an unknown kind.
    #[error("a record without a known content type")]
    NoContent,
    /// The secrets are of no cipher we know.
    #[error("the connection's cipher is unknown")]
    UnknownCipher,
}

/// The key of one direction and its counter.
struct Protection {
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
}

impl std::fmt::Debug for Protection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Protection {{ sequence: {} }}", self.sequence)
    }
}

impl Protection {
    fn new((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Self, RecordError> {
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(RecordError::UnknownCipher),
        };
        Self::with_key(algorithm, key.as_ref(), iv.as_ref(), sequence).ok_or(RecordError::UnknownCipher)
    }

    fn with_key(algorithm: &'static Algorithm, key: &[u8], iv: &[u8], sequence: u64) -> Option<Self> {
        let key = LessSafeKey::new(UnboundKey::new(algorithm, key).ok()?);
        Some(Self { key, iv: iv.try_into().ok()?, sequence })
    }

    /// The next nonce: the counter, xored into the right end of the IV (RFC 8446, 5.3).
    fn next_nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, count) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= count;
        }
        self.sequence += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// Seals outgoing records.
#[derive(Debug)]
pub(crate) struct Sealer {
    protection: Protection,
    records_left: u64,
}

impl Sealer {
    pub(crate) fn new(secrets: (u64, ConnectionTrafficSecrets)) -> Result<Self, RecordError> {
        Ok(Self { protection: Protection::new(secrets)?, records_left: RECORDS_PER_KEY })
    }

    /// Whether the key has done its work.
    pub(crate) fn key_is_worn(&self) -> bool {
        self.records_left == 0
    }

    /// Counts the key as worn: key changes are too rare to wait for.
    pub(crate) fn wear_out(&mut self) {
        self.records_left = 0;
    }

    /// Seals a record in place. `record` has the plaintext at [`HEADER_BYTES`] and [`TRAILER_BYTES`] of room after it.
    ///
    /// # Panics
    /// When `record` is shorter than a record without plaintext, or its plaintext longer than [`PLAINTEXT_MAX`].
    pub(crate) fn seal(&mut self, content: Content, record: &mut [u8]) {
        let (nonce, header, body) = self.begin(record);
        let (text, tag_place) = body.split_at_mut(body.len() - TAG_BYTES);
        text[text.len() - 1] = content.code();
        // The lengths are within the cipher's own limits, its only cause of failure.
        let tag = self.protection.key.seal_in_place_separate_tag(nonce, header, text);
        tag_place.copy_from_slice(tag.expect("a short message").as_ref());
    }

    /// Seals bytes of the stream from where they are into `record`, which has room for them and for both its ends.
    ///
    /// # Panics
    /// When `record` has not that length, or `text` is longer than [`PLAINTEXT_MAX`].
    pub(crate) fn seal_from(&mut self, text: &[u8], record: &mut [u8]) {
        let (nonce, header, body) = self.begin(record);
        let (sealed, trailer) = body.split_at_mut(body.len() - TRAILER_BYTES);
        let key = &self.protection.key;
        let done =
            key.seal_out_of_place_scatter(nonce, header, text, sealed, &[Content::Data.code()], trailer);
        done.expect("a short message, and as much room");
    }

    /// Writes the header of the next record, and gives the rest of it.
    fn begin<'a>(&mut self, record: &'a mut [u8]) -> (Nonce, Aad<[u8; HEADER_BYTES]>, &'a mut [u8]) {
        let inner = record.len() - HEADER_BYTES;
        assert!((TRAILER_BYTES..=PLAINTEXT_MAX + TRAILER_BYTES).contains(&inner), "size of a record");
        let header = [APPLICATION_DATA, 3, 3, (inner >> 8) as u8, inner as u8];
        let (head, body) = record.split_at_mut(HEADER_BYTES);
        head.copy_from_slice(&header);
        self.records_left = self.records_left.saturating_sub(1);
        (self.protection.next_nonce(), Aad::from(header), body)
    }

    /// Seals a short message as a whole new record.
    pub(crate) fn seal_message(&mut self, content: Content, message: &[u8]) -> Vec<u8> {
        let mut record = vec![0; HEADER_BYTES + message.len() + TRAILER_BYTES];
        record[HEADER_BYTES..HEADER_BYTES + message.len()].copy_from_slice(message);
        self.seal(content, &mut record);
        record
    }
}

/// Opens incoming records.
#[derive(Debug)]
pub(crate) struct Opener(Protection);

impl Opener {
    pub(crate) fn new(secrets: (u64, ConnectionTrafficSecrets)) -> Result<Self, RecordError> {
        Protection::new(secrets).map(Self)
    }

    /// Length of the whole record that `bytes` begin with, once its header is there.
    pub(crate) fn record_bytes(bytes: &[u8]) -> Result<Option<usize>, RecordError> {
        let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        match header {
            [APPLICATION_DATA, 3, 3, ..] if length <= CIPHERTEXT_MAX => Ok(Some(HEADER_BYTES + length)),
            [APPLICATION_DATA, 3, 3, ..] => Err(RecordError::TooLong(length)),
            // A middlebox-compatibility record (RFC 8446, D.4) comes only during the handshake.
            _ => Err(RecordError::NotARecord),
        }
    }

    /// Bytes that opening `record` writes: plaintext, content type and padding.
    pub(crate) fn opened_bytes(record: &[u8]) -> usize {
        record.len().saturating_sub(HEADER_BYTES + TAG_BYTES)
    }

    /// Opens a whole record into `out`, which has [`opened_bytes`](Self::opened_bytes) of room; says what it held
    /// and how many bytes of `out` are that.
    pub(crate) fn open(&mut self, record: &[u8], out: &mut [u8]) -> Result<(Content, usize), RecordError> {
        let (header, body) = record.split_first_chunk::<HEADER_BYTES>().ok_or(RecordError::NotARecord)?;
        let text_len = body.len().checked_sub(TAG_BYTES).ok_or(RecordError::NotAuthentic)?;
        let (text, tag) = body.split_at(text_len);
        let out = out.get_mut(..text_len).ok_or(RecordError::TooLong(text_len))?;
        let nonce = self.0.next_nonce();
        self.0
            .key
            .open_separate_gather(nonce, Aad::from(*header), text, tag, out)
            .map_err(|_| RecordError::NotAuthentic)?;
        // The content type is the last byte that is not padding.
        let end = out.iter().rposition(|&b| b != 0).ok_or(RecordError::NoContent)?;
        if end > PLAINTEXT_MAX {
            return Err(RecordError::TooLong(end));
        }
        Ok((Content::from_code(out[end]).ok_or(RecordError::NoContent)?, end))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rustls::crypto::cipher::{AeadKey, Iv};

    use super::*;

    fn secrets(sequence: u64) -> (u64, ConnectionTrafficSecrets) {
        let key = AeadKey::from([7; 32]);
        (sequence, ConnectionTrafficSecrets::Aes256Gcm { key, iv: Iv::from([9; 12]) })
    }

    fn pair(sequence: u64) -> (Sealer, Opener) {
        (Sealer::new(secrets(sequence)).unwrap(), Opener::new(secrets(sequence)).unwrap())
    }

    #[test]
    fn the_sealed_form_is_that_of_the_standard() {
        // RFC 8448, 3: the client's first application data record, 50 bytes 00..31, sequence 0, AES-128-GCM.
        let hex = |s: &str| -> Vec<u8> {
            (0..s.len()).step_by(2).map(|i| u8::from_str_radix(&s[i..i + 2], 16).unwrap()).collect()
        };
        let (key, iv) = (hex("17422dda596ed5d9acd890e3c63f5051"), hex("5b78923dee08579033e523d9"));
        let protection = Protection::with_key(&AES_128_GCM, &key, &iv, 0).unwrap();
        let mut sealer = Sealer { protection, records_left: 1 };
        let message: Vec<u8> = (0..50).collect();
        let record = sealer.seal_message(Content::Data, &message);
        assert_eq!(
            record,
            hex(concat!(
                "1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b39",
                "5bd54a9a20441e2b62974e1f5a6292a2977014bd1e3deae63aeebb21694915e4"
            ))
        );
    }

    #[test]
    fn garbage_is_refused() {
        assert_eq!(Opener::record_bytes(b"GET /"), Err(RecordError::NotARecord));
        assert_eq!(Opener::record_bytes(&[23, 3, 3, 0xff, 0xff]), Err(RecordError::TooLong(65535)));
        assert_eq!(Opener::record_bytes(&[23, 3]), Ok(None));
        let (_, mut opener) = pair(0);
        assert_eq!(opener.open(&[23, 3, 3, 0, 2, 1, 2], &mut [0; 64]), Err(RecordError::NotAuthentic));
    }

    #[test]
    fn a_repeated_or_missing_record_is_noticed() {
        let (mut sealer, mut opener) = pair(0);
        let (one, two) =
            (sealer.seal_message(Content::Data, b"one"), sealer.seal_message(Content::Data, b"two"));
        let mut out = [0; 64];
        assert_eq!(opener.open(&two, &mut out), Err(RecordError::NotAuthentic));
        let (_, mut opener) = pair(0);
        assert_eq!(opener.open(&one, &mut out), Ok((Content::Data, 3)));
        assert_eq!(opener.open(&one, &mut out), Err(RecordError::NotAuthentic));
    }

    proptest! {
        #[test]
        fn sealed_records_open_and_changed_ones_do_not(
            message in prop::collection::vec(any::<u8>(), 0..2000), sequence in 0u64..1 << 40,
            flip in any::<prop::sample::Index>(), bit in 0u8..8,
        ) {
            let (mut sealer, mut opener) = pair(sequence);
            let mut record = sealer.seal_message(Content::Data, &message);
            prop_assert_eq!(Opener::record_bytes(&record), Ok(Some(record.len())));
            let mut out = vec![0; Opener::opened_bytes(&record)];
            prop_assert_eq!(opener.open(&record, &mut out), Ok((Content::Data, message.len())));
            prop_assert_eq!(&out[..message.len()], &message[..]);
            let mut from_elsewhere = vec![0; record.len()];
            pair(sequence).0.seal_from(&message, &mut from_elsewhere);
            prop_assert_eq!(&from_elsewhere, &record);
            let (_, mut opener) = pair(sequence);
            let at = flip.index(record.len());
            record[at] ^= 1 << bit;
            prop_assert!(opener.open(&record, &mut out).is_err());
        }
    }
}
