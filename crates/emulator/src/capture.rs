//! A record of packets before and after a link, and of those that were lost on the way and why: pcapng
//! (draft-ietf-opsawg-pcapng), as Wireshark and tcpdump read it.
//!
//! Each direction of a link is three interfaces of the file: what was sent into it, what came out, and what was dropped,
//! each of those with the reason as its comment. Drivers only copy the beginning of a packet; a thread of its own
//! writes, so that a slow disk delays nobody: what it cannot take is counted and told.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use crate::limits::{CAPTURE_QUEUE_PACKETS, CAPTURE_SNAP_BYTES};
use crate::link::{Cause, Nanos};

/// Where on its way a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Sent = 0,
    Delivered = 1,
    Dropped = 2,
}

const STAGES: [(Stage, &str); 3] =
    [(Stage::Sent, "sent"), (Stage::Delivered, "delivered"), (Stage::Dropped, "dropped")];

/// A packet as it is recorded.
#[derive(Debug)]
struct Record {
    interface: u32,
    /// Since 1970.
    at: Duration,
    bytes: Vec<u8>,
    /// All of it.
    len: u32,
    comment: Option<&'static str>,
}

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct Capture {
    sender: Option<SyncSender<Record>>,
    writer: Option<JoinHandle<io::Result<()>>>,
}

impl Capture {
    /// Makes the file, with an interface for each stage of each direction in `ways`.
    pub(crate) fn create(file: &Path, ways: &[String]) -> io::Result<Self> {
        let mut out = BufWriter::new(File::create(file)?);
        out.write_all(&section())?;
        for way in ways {
            for (_, stage) in STAGES {
                out.write_all(&interface(&format!("{way} {stage}")))?;
            }
        }
        let (sender, records) = sync_channel(CAPTURE_QUEUE_PACKETS);
        let write = move || write_all(&records, &mut out);
        let writer = std::thread::Builder::new().name("capture".into()).spawn(write)?;
        Ok(Self { sender: Some(sender), writer: Some(writer) })
    }

    /// For the direction of that number.
    pub(crate) fn tap(&self, way: usize) -> Option<Tap> {
        let sender = self.sender.clone()?;
        Some(Tap { sender, first: (way * STAGES.len()) as u32, origin: None, missed: 0 })
    }

    /// Waits until all is in the file. The taps must be gone.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.sender = None;
        match self.writer.take().map(JoinHandle::join) {
            Some(Ok(written)) => written,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(()),
        }
    }
}

fn write_all(records: &Receiver<Record>, out: &mut impl Write) -> io::Result<()> {
    while let Ok(record) = records.recv() {
        out.write_all(&packet(&record))?;
        // What is there is written together; when nothing is, the file holds all.
        while let Ok(record) = records.try_recv() {
            out.write_all(&packet(&record))?;
        }
        out.flush()?;
    }
    Ok(())
}

/// One direction's way into the file.
#[derive(Debug)]
pub(crate) struct Tap {
    sender: SyncSender<Record>,
    first: u32,
    /// When the driver's clock began.
    origin: Option<Duration>,
    missed: u64,
}

impl Tap {
    /// Records a packet of `len` bytes that is given in parts, from the IP header on.
    pub(crate) fn record(&mut self, now: Nanos, stage: Stage, parts: [&[u8]; 2], why: Option<&'static str>) {
        let since = Duration::from_nanos(now);
        let origin = *self.origin.get_or_insert_with(|| {
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().saturating_sub(since)
        });
        let ethernet = ethernet_header(parts[0].first().or(parts[1].first()).map_or(0, |byte| byte >> 4));
        let len = ethernet.len() + parts[0].len() + parts[1].len();
        let mut bytes = Vec::with_capacity(len.min(CAPTURE_SNAP_BYTES));
        for part in [&ethernet[..], parts[0], parts[1]] {
            bytes.extend_from_slice(&part[..part.len().min(CAPTURE_SNAP_BYTES - bytes.len())]);
        }
        let record = Record {
            interface: self.first + stage as u32,
            at: origin + since,
            bytes,
            len: len as u32,
            comment: why,
        };
        self.missed += u64::from(self.sender.try_send(record).is_err());
    }

    /// Packets that could not be recorded.
    pub(crate) fn missed(&self) -> u64 {
        self.missed
    }
}

impl Cause {
    /// For a person who looks at a capture.
    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Self::Queue => "dropped: the queue was full",
            Self::Management => "dropped by the queue's management",
            Self::Loss => "lost on the wire",
            Self::Outage => "lost: the link was down",
        }
    }
}

/// Between hosts that have no Ethernet addresses. Wireshark needs none of this, but libpcap 1.10 reads no file with
/// several interfaces of bare IP.
fn ethernet_header(ip_version: u8) -> [u8; 14] {
    let mut header = [0; 14];
    header[12..].copy_from_slice(if ip_version == 6 { &[0x86, 0xdd] } else { &[0x08, 0x00] });
    header
}

// Block types, link type and options by the draft's names.
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const LINKTYPE_ETHERNET: u16 = 1;
const OPT_COMMENT: u16 = 1;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;

/// A block: its type, its length on both sides of its body, all in whole words.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let len = 12 + body.len() as u32;
    [&kind.to_le_bytes()[..], &len.to_le_bytes(), body, &len.to_le_bytes()].concat()
}

fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn option(code: u16, value: &[u8]) -> Vec<u8> {
    let head = [code.to_le_bytes(), (value.len() as u16).to_le_bytes()].concat();
    padded([head, value.to_vec()].concat())
}

const END_OF_OPTIONS: [u8; 4] = [0; 4];

fn section() -> Vec<u8> {
    let mut body = BYTE_ORDER_MAGIC.to_le_bytes().to_vec();
    body.extend(1u16.to_le_bytes()); // version 1.0
    body.extend(0u16.to_le_bytes());
    body.extend(u64::MAX.to_le_bytes()); // length: not said
    body.extend(option(SHB_USERAPPL, b"longhaul emulate"));
    body.extend(END_OF_OPTIONS);
    block(SECTION_HEADER, &body)
}

fn interface(name: &str) -> Vec<u8> {
    let mut body = LINKTYPE_ETHERNET.to_le_bytes().to_vec();
    body.extend(0u16.to_le_bytes());
    body.extend((CAPTURE_SNAP_BYTES as u32).to_le_bytes());
    body.extend(option(IF_NAME, name.as_bytes()));
    body.extend(option(IF_TSRESOL, &[9])); // nanoseconds
    body.extend(END_OF_OPTIONS);
    block(INTERFACE_DESCRIPTION, &body)
}

fn packet(record: &Record) -> Vec<u8> {
    let at = u64::try_from(record.at.as_nanos()).unwrap_or(u64::MAX);
    let mut body = record.interface.to_le_bytes().to_vec();
    body.extend(((at >> 32) as u32).to_le_bytes());
    body.extend((at as u32).to_le_bytes());
    body.extend((record.bytes.len() as u32).to_le_bytes());
    body.extend(record.len.to_le_bytes());
    body.extend(padded(record.bytes.clone()));
    if let Some(comment) = record.comment {
        body.extend(option(OPT_COMMENT, comment.as_bytes()));
        body.extend(END_OF_OPTIONS);
    }
    block(ENHANCED_PACKET, &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn the_file_holds_what_was_recorded() {
        let dir = std::env::temp_dir().join(format!("longhaul-capture-{}", std::process::id()));
        let mut capture = Capture::create(&dir, &["near->far".to_owned(), "far->near".to_owned()]).unwrap();
        let mut tap = capture.tap(1).unwrap();
        let long = [7u8; 3000];
        tap.record(5_000, Stage::Sent, [&[0x45; 3], &[1, 2]], None);
        tap.record(6_001, Stage::Dropped, [&[0x45; 20], &long], Some(Cause::Loss.in_words()));
        assert_eq!(tap.missed(), 0);
        drop(tap);
        capture.finish().unwrap();
        let bytes = std::fs::read(&dir).unwrap();
        std::fs::remove_file(&dir).unwrap();
        let (mut at, mut blocks) = (0, Vec::new());
        while at < bytes.len() {
            let len = word(&bytes, at + 4) as usize;
            assert_eq!((len % 4, word(&bytes, at + len - 4) as usize), (0, len));
            blocks.push(&bytes[at..at + len]);
            at += len;
        }
        let kinds: Vec<u32> = blocks.iter().map(|block| word(block, 0)).collect();
        assert_eq!(
            kinds,
            [&[SECTION_HEADER][..], &[INTERFACE_DESCRIPTION; 6], &[ENHANCED_PACKET; 2]].concat()
        );
        let (sent, dropped) = (blocks[7], blocks[8]);
        assert_eq!((word(sent, 8), word(sent, 20), word(sent, 24)), (3, 19, 19));
        assert_eq!(sent[40..47], [0x08, 0, 0x45, 0x45, 0x45, 1, 2]);
        assert_eq!(
            (word(dropped, 8), word(dropped, 20), word(dropped, 24)),
            (5, CAPTURE_SNAP_BYTES as u32, 3034)
        );
        let time = |block: &[u8]| u64::from(word(block, 12)) << 32 | u64::from(word(block, 16));
        assert_eq!(time(dropped) - time(sent), 1001);
        assert!(dropped.windows(16).any(|part| part == b"lost on the wire"));
        assert!(blocks[6].windows(17).any(|part| part == b"far->near dropped"));
    }
}
