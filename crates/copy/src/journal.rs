//! What has arrived of a file that is not whole yet, so that a later run can go on from there. Pure: bytes in and out.
//!
//! ```text
//! header  | "LHJOURN2" | boot (16) | size | mtime s | mtime ns | mark (4) | run | check |   64 bytes
//! record  | offset | length | check of the record (4) | checksum of the bytes |   24 bytes, one per stored frame
//! ```
//!
//! Little-endian. A record is appended after its bytes were written to the partial file. While the machine has not
//! been restarted, what was written is there (a killed process loses nothing); after a restart the bytes of each
//! record are read back and must have their checksum. A record torn by a crash does not have its check and ends the
//! journal.

use std::io::{self, Read};

use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use longhaul_files::Time;
use longhaul_transport::limits::FRAME_PAYLOAD_MAX;

const MAGIC: [u8; 8] = *b"LHJOURN2";

/// Which file of which run of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalHead {
    /// Random number of the machine's start.
    pub(crate) boot: [u8; 16],
    /// Size of the source.
    pub(crate) size: u64,
    /// Time of the source's last change.
    pub(crate) modified: Time,
    /// The sender's mark of the source.
    pub(crate) mark: u32,
    /// Drawn at random for this journal: it tells whether a journal is still the one that was read.
    pub(crate) run: u64,
}

/// Bytes that have been stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalRecord {
    pub(crate) offset: u64,
    pub(crate) length: u32,
    /// CRC-64/NVME of the bytes.
    pub(crate) checksum: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct WireHead {
    magic: [u8; 8],
    boot: [u8; 16],
    size: U64,
    seconds: I64,
    nanos: U32,
    mark: U32,
    run: U64,
    check: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct WireRecord {
    offset: U64,
    length: U32,
    check: U32,
    checksum: U64,
}

/// Bytes of a header.
pub(crate) const HEAD_BYTES: usize = size_of::<WireHead>();
/// Bytes of a record.
pub(crate) const RECORD_BYTES: usize = size_of::<WireRecord>();

impl JournalHead {
    pub(crate) fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut wire = WireHead {
            magic: MAGIC,
            boot: self.boot,
            size: self.size.into(),
            seconds: self.modified.seconds.into(),
            nanos: self.modified.nanos.into(),
            mark: self.mark.into(),
            run: self.run.into(),
            check: 0.into(),
        };
        wire.check = crc64(&wire.as_bytes()[..HEAD_BYTES - 8]).into();
        zerocopy::transmute!(wire)
    }

    fn decode(bytes: &[u8; HEAD_BYTES]) -> Option<Self> {
        let wire: WireHead = zerocopy::transmute!(*bytes);
        let whole = wire.magic == MAGIC && wire.check.get() == crc64(&wire.as_bytes()[..HEAD_BYTES - 8]);
        whole.then(|| Self {
            boot: wire.boot,
            size: wire.size.get(),
            modified: Time { seconds: wire.seconds.get(), nanos: wire.nanos.get() },
            mark: wire.mark.get(),
            run: wire.run.get(),
        })
    }
}

impl JournalRecord {
    pub(crate) fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut wire = WireRecord {
            offset: self.offset.into(),
            length: self.length.into(),
            check: 0.into(),
            checksum: self.checksum.into(),
        };
        wire.check = record_check(&wire).into();
        zerocopy::transmute!(wire)
    }
}

impl JournalRecord {
    fn decode(bytes: &[u8; RECORD_BYTES], size: u64) -> Option<Self> {
        let wire: WireRecord = zerocopy::transmute!(*bytes);
        let record =
            Self { offset: wire.offset.get(), length: wire.length.get(), checksum: wire.checksum.get() };
        let end = record.offset.checked_add(u64::from(record.length))?;
        let of_a_frame = record.length as usize <= FRAME_PAYLOAD_MAX && end <= size;
        (wire.check.get() == record_check(&wire) && of_a_frame).then_some(record)
    }
}

/// Over the whole record but the check itself.
fn record_check(wire: &WireRecord) -> u32 {
    let bytes = wire.as_bytes();
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
    digest.update(b"record"); // a record of zeros, as a hole reads, has no check of zero
    digest.update(&bytes[..12]);
    digest.update(&bytes[16..]);
    digest.finalize() as u32
}

fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes)
}

/// Reads a journal: its header, and the records up to the first that is torn, or of more than a frame: whoever can
/// write in the directory must not decide how much is read back at a time. `None`: not a journal.
pub(crate) fn read(
    mut source: impl Read,
) -> io::Result<Option<(JournalHead, impl Iterator<Item = JournalRecord>)>> {
    let mut head = [0; HEAD_BYTES];
    match source.read_exact(&mut head) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let Some(head) = JournalHead::decode(&head) else { return Ok(None) };
    let records = std::iter::from_fn(move || {
        let mut bytes = [0; RECORD_BYTES];
        source.read_exact(&mut bytes).ok()?; // what cannot be read has not been stored
        JournalRecord::decode(&bytes, head.size)
    });
    Ok(Some((head, records.fuse())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn records() -> impl Strategy<Value = Vec<JournalRecord>> {
        let record = (0u64..1 << 40, 0..=FRAME_PAYLOAD_MAX as u32, any::<u64>())
            .prop_map(|(offset, length, checksum)| JournalRecord { offset, length, checksum });
        prop::collection::vec(record, 0..20)
    }

    fn head() -> JournalHead {
        JournalHead {
            boot: [7; 16],
            size: 1 << 50,
            modified: Time { seconds: -3, nanos: 5 },
            mark: 8,
            run: 9,
        }
    }

    fn read(bytes: &[u8]) -> Option<(JournalHead, Vec<JournalRecord>)> {
        super::read(bytes).unwrap().map(|(head, records)| (head, records.collect()))
    }

    fn encode(records: &[JournalRecord]) -> Vec<u8> {
        let mut bytes = head().encode().to_vec();
        bytes.extend(records.iter().flat_map(JournalRecord::encode));
        bytes
    }

    #[test]
    fn holes_and_other_files_are_no_journal() {
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[0; 200]), None);
        let mut bytes = encode(&[]);
        bytes.extend([0; 5 * RECORD_BYTES]);
        assert_eq!(read(&bytes), Some((head(), vec![])));
    }

    #[test]
    fn a_record_beyond_the_end_of_the_file_is_none() {
        let record = JournalRecord { offset: 1 << 50, length: 1, checksum: 0 };
        assert_eq!(read(&encode(&[record])), Some((head(), vec![])));
    }

    #[test]
    fn a_record_of_more_than_a_frame_is_none() {
        let record = |length| JournalRecord { offset: 0, length, checksum: 0 };
        let frame = record(FRAME_PAYLOAD_MAX as u32);
        let longer = record(FRAME_PAYLOAD_MAX as u32 + 1);
        assert_eq!(read(&encode(&[frame, longer, frame])), Some((head(), vec![frame])));
    }

    proptest! {
        #[test]
        fn journals_round_trip_and_end_where_they_are_torn(
            records in records(), cut in any::<prop::sample::Index>(), bit in 0usize..RECORD_BYTES * 8,
        ) {
            let bytes = encode(&records);
            prop_assert_eq!(read(&bytes), Some((head(), records.clone())));
            let kept = cut.index(bytes.len() - HEAD_BYTES + 1);
            let (_, read_back) = read(&bytes[..HEAD_BYTES + kept]).unwrap();
            prop_assert_eq!(&read_back[..], &records[..kept / RECORD_BYTES]);
            if !records.is_empty() {
                let at = cut.index(records.len());
                let mut bytes = bytes;
                bytes[HEAD_BYTES + at * RECORD_BYTES + bit / 8] ^= 1 << (bit % 8);
                let (_, read_back) = read(&bytes).unwrap();
                prop_assert_eq!(&read_back[..], &records[..at]);
            }
        }

        #[test]
        fn any_bytes_are_a_journal_or_none(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&bytes);
        }
    }
}
