//! What a client and a server say to each other about tests, on the control channel. Protocol Buffers.
//!
//! ```text
//! client                                   server
//!   Greet --------------------------------->        once: what the server allows, and how its host is set up
//!         <--------------------------------- Facts
//!   Open {what, which way, how much} ------>        ports, and a token with which each flow proves itself there
//!         <--------------------------------- Opened
//!   (flows connect, and prove themselves)
//!   Begin {test} -------------------------->        answered when all flows are there; the server's half runs
//!         <--------------------------------- Seen
//!   Look {test} --------------------------->        what has been counted so far; a test that nobody looks at ends
//!         <--------------------------------- Seen
//!   End {test} ---------------------------->        the last counts
//!         <--------------------------------- Seen
//!   Disk {directory, how long} ------------>        answered when its disk has been written and read
//!         <--------------------------------- Disk
//!   Checkup ------------------------------>        what the server's host lacks
//!         <--------------------------------- Findings
//!   Clock -------------------------------->        what time it is there
//!         <--------------------------------- Clock
//! ```
//!
//! Whatever cannot be had is answered by `Refused`, in words.

mod checkup;
mod disk;

use bytes::Bytes;
use prost::{Message, Oneof};

pub(crate) use self::checkup::Findings;
pub(crate) use self::disk::{DiskAsk, DiskMessage};
use super::knock::Token;
use super::test::{FlowSeen, Host, Processor, Seen, TcpSeen, Way, What, Wish};
use crate::limits::{
    DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, PATH_SETTINGS_MAX, PATH_TEST_TIME_MAX, STREAMS_MAX,
    WINDOW_BYTES_MAX, WORDS_BYTES_MAX, WRITE_BYTES_MAX,
};
use crate::traffic::Options;

/// A request of the client's.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Request {
    #[prost(oneof = "Ask", tags = "1, 2, 3, 4, 5, 6, 7, 8")]
    pub(crate) ask: Option<Ask>,
}

/// The requests.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Ask {
    #[prost(bool, tag = "1")]
    Greet(bool),
    #[prost(message, tag = "2")]
    Open(Open),
    /// By the number of the test.
    #[prost(uint32, tag = "3")]
    Begin(u32),
    #[prost(uint32, tag = "4")]
    Look(u32),
    #[prost(uint32, tag = "5")]
    End(u32),
    #[prost(message, tag = "6")]
    Disk(DiskAsk),
    #[prost(bool, tag = "7")]
    Checkup(bool),
    #[prost(bool, tag = "8")]
    Clock(bool),
}

impl Ask {
    pub(crate) fn into_bytes(self) -> Bytes {
        Request { ask: Some(self) }.encode_to_vec().into()
    }

    pub(crate) fn from_bytes(bytes: Bytes) -> Option<Self> {
        Request::decode(bytes).ok()?.ask
    }
}

/// A reply of the server's.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Reply {
    #[prost(oneof = "Answer", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub(crate) answer: Option<Answer>,
}

/// The replies.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Answer {
    /// Why not, in words.
    #[prost(string, tag = "1")]
    Refused(String),
    #[prost(message, tag = "2")]
    Facts(Facts),
    #[prost(message, tag = "3")]
    Opened(Opened),
    #[prost(message, tag = "4")]
    Seen(SeenMessage),
    #[prost(message, tag = "5")]
    Disk(DiskMessage),
    #[prost(message, tag = "6")]
    Findings(Findings),
    /// Microseconds since 1970.
    #[prost(uint64, tag = "7")]
    Clock(u64),
}

impl Answer {
    pub(crate) fn into_bytes(self) -> Bytes {
        Reply { answer: Some(self) }.encode_to_vec().into()
    }

    pub(crate) fn from_bytes(bytes: Bytes) -> Option<Self> {
        Reply::decode(bytes).ok()?.answer
    }
}

/// A test that is wanted. Numbers that are 0 stand for no wish.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Open {
    /// 0 TCP, 1 UDP, 2 echoes.
    #[prost(uint32, tag = "1")]
    what: u32,
    /// From the server to the client.
    #[prost(bool, tag = "2")]
    reverse: bool,
    #[prost(uint32, tag = "3")]
    milliseconds: u32,
    #[prost(uint32, tag = "4")]
    streams: u32,
    #[prost(uint64, tag = "5")]
    window: u64,
    #[prost(string, tag = "6")]
    congestion: String,
    /// Bytes of a write, or of a packet's payload.
    #[prost(uint32, tag = "7")]
    length: u32,
    /// Bits of payload a second, of each stream.
    #[prost(uint64, tag = "8")]
    rate: u64,
    #[prost(uint32, tag = "9")]
    mss: u32,
    /// Bits a second of each stream, which its sender's kernel spaces packets for.
    #[prost(uint64, tag = "10")]
    pacing: u64,
    #[prost(bool, tag = "11")]
    zero_copy: bool,
}

/// Where the flows of a test are waited for.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Opened {
    #[prost(uint32, tag = "1")]
    pub(crate) test: u32,
    #[prost(bytes = "bytes", tag = "2")]
    token: Bytes,
    /// TCP: one for all streams; else one for each.
    #[prost(uint32, repeated, tag = "3")]
    ports: Vec<u32>,
}

/// See [`Host`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Facts {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(uint32, tag = "2")]
    cores: u32,
    #[prost(uint64, tag = "3")]
    rate_max: u64,
    #[prost(message, repeated, tag = "4")]
    settings: Vec<Setting>,
}

#[derive(Clone, PartialEq, Message)]
struct Setting {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// See [`Seen`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SeenMessage {
    #[prost(double, tag = "1")]
    seconds: f64,
    #[prost(message, repeated, tag = "2")]
    flows: Vec<FlowMessage>,
    #[prost(message, optional, tag = "3")]
    processor: Option<ProcessorMessage>,
    /// Why it is over, if it is.
    #[prost(string, tag = "4")]
    over: String,
}

#[derive(Clone, PartialEq, Message)]
struct FlowMessage {
    #[prost(uint64, tag = "1")]
    bytes: u64,
    #[prost(uint64, tag = "2")]
    packets: u64,
    #[prost(uint64, tag = "3")]
    lost: u64,
    #[prost(uint64, tag = "4")]
    reordered: u64,
    #[prost(uint64, tag = "5")]
    duplicates: u64,
    #[prost(uint64, tag = "6")]
    jitter_ns: u64,
    #[prost(uint64, tag = "7")]
    span_ns: u64,
    #[prost(uint64, tag = "8")]
    span_bytes: u64,
    #[prost(uint64, tag = "10")]
    dropped_here: u64,
    #[prost(message, optional, tag = "9")]
    tcp: Option<TcpMessage>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct TcpMessage {
    #[prost(uint64, tag = "1")]
    retransmits: u64,
    #[prost(uint64, tag = "2")]
    segments: u64,
    #[prost(uint64, tag = "3")]
    cwnd_max: u64,
    #[prost(uint64, tag = "4")]
    send_window_max: u64,
    #[prost(uint64, tag = "5")]
    rtt_mean_us: u64,
    #[prost(uint64, tag = "6")]
    mss: u64,
    #[prost(uint64, tag = "7")]
    busy_us: u64,
    #[prost(uint64, tag = "8")]
    rwnd_limited_us: u64,
    #[prost(uint64, tag = "9")]
    sndbuf_limited_us: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ProcessorMessage {
    #[prost(double, tag = "1")]
    process: f64,
    #[prost(double, tag = "2")]
    thread: f64,
    #[prost(double, tag = "3")]
    interrupts: f64,
    #[prost(double, tag = "4")]
    host: f64,
    #[prost(uint64, tag = "5")]
    dropped: u64,
}

impl Open {
    pub(crate) fn of(wish: &Wish) -> Self {
        let what = match wish.what {
            What::Tcp => 0,
            What::Udp => 1,
            What::Echoes => 2,
        };
        Self {
            what,
            reverse: wish.way == Way::ToClient,
            milliseconds: wish.milliseconds,
            streams: wish.streams,
            window: wish.options.window.unwrap_or(0),
            congestion: wish.options.congestion.clone().unwrap_or_default(),
            length: wish.length as u32,
            rate: wish.rate.unwrap_or(0),
            mss: wish.options.mss.unwrap_or(0),
            pacing: wish.options.pacing.unwrap_or(0),
            zero_copy: wish.options.zero_copy,
        }
    }

    /// What is wanted; else what is wrong with it.
    pub(crate) fn wish(self) -> Result<Wish, String> {
        let what = match self.what {
            0 => What::Tcp,
            1 => What::Udp,
            2 => What::Echoes,
            _ => return Err("this server does not know such a test: it may be older".to_owned()),
        };
        let lengths = match what {
            What::Tcp => 1..=WRITE_BYTES_MAX,
            What::Udp | What::Echoes => DATAGRAM_BYTES_MIN..=DATAGRAM_BYTES_MAX,
        };
        let wrong = |what: &str, most: u64| Err(format!("{what} of that size cannot be had: at most {most}"));
        if !(1..=STREAMS_MAX).contains(&self.streams) || (what == What::Echoes && self.streams != 1) {
            return wrong("streams", STREAMS_MAX.into());
        }
        if u64::from(self.milliseconds) > PATH_TEST_TIME_MAX.as_millis() as u64 || self.milliseconds == 0 {
            return wrong("tests (milliseconds)", PATH_TEST_TIME_MAX.as_millis() as u64);
        }
        if !lengths.contains(&(self.length as usize)) {
            return wrong("writes or packets (bytes)", *lengths.end() as u64);
        }
        if self.window > WINDOW_BYTES_MAX {
            return wrong("windows (bytes)", WINDOW_BYTES_MAX);
        }
        // TCP_CA_NAME_MAX of Linux, and socket.rs tells the rest.
        if self.congestion.len() > 15 || !self.congestion.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("that is no congestion control's name".to_owned());
        }
        if self.mss != 0 && !(88..=32_767).contains(&self.mss) {
            return wrong("segments (bytes, from 88)", 32_767);
        }
        let options = Options {
            window: (self.window > 0).then_some(self.window),
            congestion: (!self.congestion.is_empty()).then_some(self.congestion),
            mss: (self.mss > 0).then_some(self.mss),
            no_delay: false,
            pacing: (self.pacing > 0).then_some(self.pacing),
            zero_copy: self.zero_copy,
        };
        Ok(Wish {
            what,
            way: if self.reverse { Way::ToClient } else { Way::ToServer },
            milliseconds: self.milliseconds,
            streams: self.streams,
            length: self.length as usize,
            rate: (self.rate > 0).then_some(self.rate),
            options,
        })
    }
}

/// Words of the peer's, that are to be shown.
pub(super) fn short(words: &str) -> String {
    cut(words, WORDS_BYTES_MAX)
}

/// No more than so many letters, on one line.
fn cut(words: &str, letters_max: usize) -> String {
    words.chars().filter(|c| !c.is_control()).take(letters_max).collect()
}

impl Opened {
    pub(crate) fn new(test: u32, token: Token, ports: &[u16]) -> Self {
        let token = Bytes::copy_from_slice(&token);
        Self { test, token, ports: ports.iter().map(|port| u32::from(*port)).collect() }
    }

    /// The token, and so many ports.
    pub(crate) fn parts(&self, ports: usize) -> Option<(Token, Vec<u16>)> {
        let token = Token::try_from(&self.token[..]).ok()?;
        let all: Option<Vec<u16>> = self
            .ports
            .iter()
            .map(|port| u16::try_from(*port).ok().filter(|port| *port > 0))
            .take(ports + 1)
            .collect();
        all.filter(|all| all.len() == ports).map(|all| (token, all))
    }
}

impl Facts {
    pub(crate) fn of(host: &Host) -> Self {
        let setting = |(name, value): &(String, String)| Setting { name: name.clone(), value: value.clone() };
        Self {
            version: host.version.clone(),
            cores: host.cores,
            rate_max: host.rate_max.unwrap_or(0),
            settings: host.settings.iter().map(setting).collect(),
        }
    }

    /// Words are cut where they are too long, and more than there can be are left out.
    pub(crate) fn host(self) -> Host {
        let settings = self.settings.into_iter().take(PATH_SETTINGS_MAX);
        Host {
            version: short(&self.version),
            cores: self.cores,
            rate_max: (self.rate_max > 0).then_some(self.rate_max),
            settings: settings.map(|one| (short(&one.name), short(&one.value))).collect(),
        }
    }
}

impl SeenMessage {
    pub(crate) fn of(seen: &Seen) -> Self {
        let tcp = |tcp: TcpSeen| TcpMessage {
            retransmits: tcp.retransmits,
            segments: tcp.segments,
            cwnd_max: tcp.cwnd_max,
            send_window_max: tcp.send_window_max,
            rtt_mean_us: tcp.rtt_mean_us,
            mss: tcp.mss,
            busy_us: tcp.busy_us,
            rwnd_limited_us: tcp.rwnd_limited_us,
            sndbuf_limited_us: tcp.sndbuf_limited_us,
        };
        let flow = |flow: &FlowSeen| FlowMessage {
            bytes: flow.bytes,
            packets: flow.packets,
            lost: flow.lost,
            reordered: flow.reordered,
            duplicates: flow.duplicates,
            jitter_ns: (flow.jitter_s * 1e9) as u64,
            span_ns: (flow.span_s * 1e9) as u64,
            span_bytes: flow.span_bytes,
            dropped_here: flow.dropped_here,
            tcp: flow.tcp.map(tcp),
        };
        let Processor { process, thread, interrupts, host, dropped } = seen.processor;
        Self {
            seconds: seen.seconds,
            flows: seen.flows.iter().map(flow).collect(),
            processor: Some(ProcessorMessage { process, thread, interrupts, host, dropped }),
            over: seen.over.clone().unwrap_or_default(),
        }
    }

    /// Of a test with so many flows; `None` where it is of another, or says what cannot be.
    pub(crate) fn seen(self, flows: usize) -> Option<Seen> {
        let sane = |value: f64| value.is_finite() && (0.0..1e9).contains(&value);
        let ProcessorMessage { process, thread, interrupts, host, dropped } =
            self.processor.unwrap_or_default();
        let processor = Processor { process, thread, interrupts, host, dropped };
        if self.flows.len() != flows
            || ![self.seconds, process, thread, interrupts, host].into_iter().all(sane)
        {
            return None;
        }
        let tcp = |tcp: TcpMessage| TcpSeen {
            retransmits: tcp.retransmits,
            segments: tcp.segments,
            cwnd_max: tcp.cwnd_max,
            send_window_max: tcp.send_window_max,
            rtt_mean_us: tcp.rtt_mean_us,
            mss: tcp.mss,
            busy_us: tcp.busy_us,
            rwnd_limited_us: tcp.rwnd_limited_us,
            sndbuf_limited_us: tcp.sndbuf_limited_us,
        };
        let flow = |flow: FlowMessage| FlowSeen {
            bytes: flow.bytes,
            packets: flow.packets,
            lost: flow.lost,
            reordered: flow.reordered,
            duplicates: flow.duplicates,
            jitter_s: flow.jitter_ns as f64 / 1e9,
            span_s: flow.span_ns as f64 / 1e9,
            span_bytes: flow.span_bytes,
            dropped_here: flow.dropped_here,
            tcp: flow.tcp.map(tcp),
        };
        let over = short(&self.over);
        Some(Seen {
            seconds: self.seconds,
            flows: self.flows.into_iter().map(flow).collect(),
            processor,
            over: (!over.is_empty()).then_some(over),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limits::FINDINGS_MAX;

    fn wish() -> Wish {
        Wish {
            what: What::Udp,
            way: Way::ToClient,
            milliseconds: 3000,
            streams: 2,
            length: 1472,
            rate: Some(1_000_000),
            options: Options {
                window: Some(1 << 20),
                mss: Some(1000),
                pacing: Some(500_000),
                zero_copy: true,
                ..Options::default()
            },
        }
    }

    #[test]
    fn wishes_survive() {
        assert_eq!(Open::of(&wish()).wish(), Ok(wish()));
        let ask = Ask::Open(Open::of(&wish()));
        assert_eq!(Ask::from_bytes(ask.clone().into_bytes()), Some(ask));
    }

    #[test]
    fn what_is_too_much_is_refused() {
        let refused: [fn(&mut Wish); 7] = [
            |wish| wish.streams = 0,
            |wish| wish.streams = STREAMS_MAX + 1,
            |wish| wish.milliseconds = 0,
            |wish| wish.milliseconds = u32::MAX,
            |wish| wish.length = DATAGRAM_BYTES_MIN - 1,
            |wish| wish.options.window = Some(WINDOW_BYTES_MAX + 1),
            |wish| wish.options.congestion = Some("a name that is long".to_owned()),
        ];
        for change in refused {
            let mut wish = wish();
            change(&mut wish);
            assert!(Open::of(&wish).wish().is_err(), "{wish:?}");
        }
    }

    #[test]
    fn counts_survive() {
        let flow =
            FlowSeen { bytes: 7, jitter_s: 0.25, tcp: Some(TcpSeen::default()), ..FlowSeen::default() };
        let seen = Seen { seconds: 1.5, flows: vec![flow; 2], ..Seen::default() };
        assert_eq!(SeenMessage::of(&seen).seen(2), Some(seen.clone()));
        assert_eq!(SeenMessage::of(&seen).seen(3), None);
        assert_eq!(SeenMessage::of(&Seen { seconds: f64::NAN, ..seen }).seen(2), None);
    }

    #[test]
    fn ports_are_as_many_as_there_should_be() {
        let opened = Opened::new(1, [7; 16], &[1, 2]);
        assert_eq!(opened.parts(2), Some(([7; 16], vec![1, 2])));
        assert_eq!(opened.parts(1), None);
        assert_eq!(Opened::new(1, [7; 16], &[0]).parts(1), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let bytes = Bytes::from(bytes);
            match Ask::from_bytes(bytes.clone()) {
                Some(Ask::Open(open)) => drop(open.wish()),
                Some(Ask::Disk(disk)) => drop(disk.wish()),
                _ => {}
            }
            match Answer::from_bytes(bytes) {
                Some(Answer::Facts(facts)) => prop_assert!(facts.host().settings.len() <= PATH_SETTINGS_MAX),
                Some(Answer::Opened(opened)) => drop(opened.parts(1)),
                Some(Answer::Seen(seen)) => drop(seen.seen(1)),
                Some(Answer::Disk(disk)) => drop(disk.outcome()),
                Some(Answer::Findings(findings)) => prop_assert!(findings.findings().len() <= FINDINGS_MAX),
                _ => {}
            }
        }
    }
}
