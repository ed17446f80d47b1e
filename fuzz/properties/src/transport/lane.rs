//! A lane's inbox, fed by a peer that has the keys and says what it likes.

use longhaul_transport::fuzzing::{self, Lane};
use longhaul_transport::limits::{ACKS_PER_FRAME_MAX, FRAME_PAYLOAD_MAX, INBOX_BYTES};

use crate::script::Script;

const HEADER_BYTES: usize = 40;
const PLAINTEXT_MAX: usize = 1 << 14;

/// Bytes said by one input, so that it stays fast.
const SAID_MAX: usize = 2 << 20;

/// A frame as it was read: its header and its payload.
type Frame = ([u8; HEADER_BYTES], Vec<u8>);

/// Whatever records the peer's bytes are cut into, and whatever parts they come in: the frames are those that were
/// said, in order; changed bytes are noticed; there is always room for more; what is held is bounded.
pub fn lane(data: &[u8]) {
    let mut script = Script::new(data);
    let mut run = Run::new();
    while !script.is_over() && run.said.len() + run.plain.len() < SAID_MAX && run.step(&mut script) {}
    run.seal_all();
    let end = run.deliver(usize::MAX);
    run.judge(end);
}

/// What the reader has come to.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Open,
    Broken,
}

struct Run {
    lane: Lane,
    /// Said and not sealed yet.
    plain: Vec<u8>,
    /// Sealed before any goodbye.
    said: Vec<u8>,
    /// Sealed and on its way.
    raw: Vec<u8>,
    harmed: bool,
    goodbye: bool,
    frames: Vec<Frame>,
    end: End,
}

impl Run {
    fn new() -> Self {
        Self {
            lane: Lane::open(),
            plain: Vec::new(),
            said: Vec::new(),
            raw: Vec::new(),
            harmed: false,
            goodbye: false,
            frames: Vec::new(),
            end: End::Open,
        }
    }

    /// False when the reader is at its end.
    fn step(&mut self, script: &mut Script<'_>) -> bool {
        match script.u8() % 11 {
            0 => {
                let length = script.u8().into();
                self.plain.extend_from_slice(script.take(length));
            }
            1 => self.say_frame(script, 3, |script| 1 + script.u32() as usize % FRAME_PAYLOAD_MAX),
            2 => self.say_frame(script, 4, |script| 8 * (1 + script.u16() as usize % ACKS_PER_FRAME_MAX)),
            3 => self.plain.extend_from_slice(script.take(HEADER_BYTES)),
            4 => self.seal(usize::from(script.u16()) % (PLAINTEXT_MAX + 1)),
            5 => self.seal_all(),
            6 => {
                let update = self.lane.seal_key_update();
                self.raw.extend(update);
            }
            7 => {
                let goodbye = self.lane.seal_goodbye();
                self.raw.extend(goodbye);
                self.goodbye = true;
            }
            8 => {
                let (at, with) = (script.u16(), script.u8());
                let length = self.raw.len().max(1);
                if let Some(byte) = self.raw.get_mut(usize::from(at) % length) {
                    *byte ^= with;
                    self.harmed |= with != 0;
                }
            }
            9 => {
                let length = script.u8().into();
                let garbage = script.take(length);
                self.harmed |= !garbage.is_empty();
                self.raw.extend_from_slice(garbage);
            }
            _ => {
                let bytes = usize::from(script.u16()) * 8;
                return self.deliver(bytes) == End::Open;
            }
        }
        true
    }

    /// A frame that is allowed, of any length.
    fn say_frame(&mut self, script: &mut Script<'_>, kind: u8, length: fn(&mut Script<'_>) -> usize) {
        let mut header = [0; HEADER_BYTES];
        header[0] = kind;
        header[1] = script.u8() % 2;
        let length = length(script);
        header[4..8].copy_from_slice(&(length as u32).to_le_bytes());
        header[8..16].copy_from_slice(&script.u64().to_le_bytes());
        let fill = script.u8();
        self.plain.extend_from_slice(&header);
        self.plain.extend((0..length).map(|i| fill.wrapping_add((i / 251) as u8)));
    }

    fn seal(&mut self, bytes: usize) {
        let content: Vec<u8> = self.plain.drain(..bytes.min(self.plain.len())).collect();
        let record = self.lane.seal(&content);
        self.raw.extend(record);
        if !self.goodbye {
            self.said.extend_from_slice(&content);
        }
    }

    fn seal_all(&mut self) {
        while !self.plain.is_empty() {
            self.seal(PLAINTEXT_MAX);
        }
    }

    /// Lets the reader have so many more bytes, and takes the frames that are whole.
    fn deliver(&mut self, bytes: usize) -> End {
        let arriving: Vec<u8> = self.raw.drain(..bytes.min(self.raw.len())).collect();
        let mut rest = &arriving[..];
        loop {
            loop {
                match self.lane.next_frame() {
                    Ok(Some((header, payload))) => self.frames.push((header, payload.to_vec())),
                    Ok(None) => break,
                    Err(_) => {
                        self.end = End::Broken;
                        return End::Broken;
                    }
                }
            }
            assert!(self.lane.held_bytes() <= INBOX_BYTES + FRAME_PAYLOAD_MAX + 2 * PLAINTEXT_MAX);
            if rest.is_empty() || self.lane.is_closed() {
                return End::Open;
            }
            let taken = self.lane.receive(rest);
            assert!(taken > 0, "no room for more");
            rest = &rest[taken..];
        }
    }

    fn judge(self, last: End) {
        let broken = self.end == End::Broken || last == End::Broken;
        let (said, bad) = frames_in(&self.said);
        let came = self.frames.len();
        assert!(came <= said.len() && said[..came] == self.frames, "frames that were not said");
        if !self.harmed {
            assert_eq!(broken, bad, "broken without cause, or not when it should");
            assert!(came == said.len(), "{came} frames of {}", said.len());
            assert_eq!(self.lane.is_closed(), self.goodbye && !bad);
        }
    }
}

/// The slow way: all bytes at once. The whole frames, and whether what follows them is none.
fn frames_in(mut bytes: &[u8]) -> (Vec<Frame>, bool) {
    let mut frames = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk() {
        let Some((length, header)) = fuzzing::frame_header(header) else { return (frames, true) };
        let Some((payload, rest)) = rest.split_at_checked(length as usize) else { break };
        frames.push((header, payload.to_vec()));
        bytes = rest;
    }
    (frames, false)
}
