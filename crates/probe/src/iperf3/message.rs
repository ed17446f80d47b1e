//! What the two ends tell each other: cookies, parameters and results.
//!
//! Whatever a peer says is bounded here; what comes out needs no further look.

use serde_json::{Map, Value, json};

use crate::iperf3::VERSION;
use crate::limits::{
    DATAGRAM_BYTES_DEFAULT, DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, MESSAGE_BYTES_MAX, OMIT_MAX, STREAMS_MAX,
    TIME_MAX, WINDOW_BYTES_MAX, WRITE_BYTES_IPERF3, WRITE_BYTES_MAX,
};

/// What marks the connections of one test: 36 letters and digits, and a zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie([u8; Cookie::BYTES]);

impl Cookie {
    /// Its length on the wire.
    pub const BYTES: usize = 37;

    /// From 36 random bytes.
    #[must_use]
    pub fn new(random: [u8; Self::BYTES - 1]) -> Self {
        const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
        let mut bytes = [0; Self::BYTES];
        for (byte, random) in bytes.iter_mut().zip(random) {
            *byte = LETTERS[usize::from(random % 32)];
        }
        Self(bytes)
    }

    /// As it came: any bytes will do.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// As it is sent.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// As people see it.
    #[must_use]
    pub fn text(&self) -> String {
        self.0.iter().filter(|byte| byte.is_ascii_graphic()).map(|byte| char::from(*byte)).collect()
    }
}

/// Why a message of a peer was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// By its own word.
    #[error("a message of {0} bytes is longer than any of iperf3's")]
    TooLong(usize),
    /// Not JSON, or no object.
    #[error("a message that is not understood")]
    Garbled,
    /// Something is missing, or beyond all bounds.
    #[error("`{0}` is missing, or out of bounds")]
    Bad(&'static str),
    /// Something else than TCP and UDP.
    #[error("a protocol other than TCP and UDP")]
    Protocol,
}

/// The length of a message, by the four bytes before it.
///
/// # Errors
/// [`MessageError::TooLong`].
pub fn length(prefix: [u8; 4]) -> Result<usize, MessageError> {
    let length = u32::from_be_bytes(prefix) as usize;
    if length > MESSAGE_BYTES_MAX { Err(MessageError::TooLong(length)) } else { Ok(length) }
}

/// A message with its length before it.
#[must_use]
pub fn framed(message: &Value) -> Vec<u8> {
    let text = message.to_string();
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

/// How bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Streams.
    Tcp,
    /// Packets.
    Udp,
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Forward,
    /// From the server to the client.
    Reverse,
    /// Both at once.
    Both,
}

/// What a client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// How bytes travel.
    pub protocol: Protocol,
    /// Which way.
    pub direction: Direction,
    /// Seconds that count; 0: until something else ends the test.
    pub seconds: u64,
    /// Seconds before them that do not.
    pub omit: u64,
    /// Bytes to be moved instead of a time; 0: none.
    pub bytes: u64,
    /// Packets or writes instead of a time; 0: none.
    pub blocks: u64,
    /// Streams in each direction.
    pub parallel: u32,
    /// Bytes of a write or packet.
    pub length: usize,
    /// Bits a second of each stream; 0: as fast as it goes.
    pub bandwidth: u64,
    /// Socket buffers; 0: the kernel's own.
    pub window: u64,
    /// TCP's segments; 0: the kernel's own.
    pub mss: u32,
    /// TCP sends what there is at once.
    pub no_delay: bool,
    /// TCP's congestion control.
    pub congestion: Option<String>,
    /// Bits a second of each stream, which its sender's kernel spaces packets for; 0: none.
    pub pacing: u64,
    /// TCP: what is sent is not copied into the kernel.
    pub zero_copy: bool,
    /// UDP: numbers of 64 bits.
    pub wide_numbers: bool,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            protocol: Protocol::Tcp,
            direction: Direction::Forward,
            seconds: 10,
            omit: 0,
            bytes: 0,
            blocks: 0,
            parallel: 1,
            length: WRITE_BYTES_IPERF3,
            bandwidth: 0,
            window: 0,
            mss: 0,
            no_delay: false,
            congestion: None,
            pacing: 0,
            zero_copy: false,
            wide_numbers: false,
        }
    }
}

/// Most letters of a congestion control's name: TCP_CA_NAME_MAX, less its zero.
const CONGESTION_NAME_MAX: usize = 15;

impl Parameters {
    /// As they are sent.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut all = json!({
            "omit": self.omit, "time": self.seconds, "num": self.bytes, "blockcount": self.blocks,
            "parallel": self.parallel, "len": self.length, "pacing_timer": 1000, "client_version": VERSION,
        });
        let mut add = |name: &str, value: Value| all[name] = value;
        add(if self.protocol == Protocol::Udp { "udp" } else { "tcp" }, true.into());
        match self.direction {
            Direction::Forward => {}
            Direction::Reverse => add("reverse", true.into()),
            Direction::Both => add("bidirectional", true.into()),
        }
        if self.bandwidth > 0 {
            add("bandwidth", self.bandwidth.into());
        }
        if self.window > 0 {
            add("window", self.window.into());
        }
        if self.mss > 0 {
            add("MSS", self.mss.into());
        }
        if self.no_delay {
            add("nodelay", true.into());
        }
        if let Some(name) = &self.congestion {
            add("congestion", name.as_str().into());
        }
        if self.pacing > 0 {
            add("fqrate", self.pacing.into());
        }
        if self.zero_copy {
            add("zerocopy", 1.into());
        }
        if self.wide_numbers {
            add("udp_counters_64bit", 1.into());
        }
        all
    }

    /// Reads what a client sent.
    ///
    /// # Errors
    /// [`MessageError`], where it is not understood or beyond the bounds of a test.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MessageError> {
        let all = object(bytes)?;
        let flag = |name: &str| match all.get(name) {
            Some(Value::Bool(set)) => *set,
            Some(Value::Number(number)) => number.as_f64() != Some(0.0),
            _ => false,
        };
        let number = |name: &'static str, default: u64, most: u64| match all.get(name) {
            None => Ok(default),
            Some(value) => whole(value).filter(|value| *value <= most).ok_or(MessageError::Bad(name)),
        };
        let protocol = match (flag("tcp"), flag("udp")) {
            (true, false) => Protocol::Tcp,
            (false, true) => Protocol::Udp,
            _ => return Err(MessageError::Protocol),
        };
        let direction = match (flag("reverse"), flag("bidirectional")) {
            (false, false) => Direction::Forward,
            (true, false) => Direction::Reverse,
            (false, true) => Direction::Both,
            (true, true) => return Err(MessageError::Bad("reverse")),
        };
        let (length_default, lengths) = match protocol {
            Protocol::Tcp => (WRITE_BYTES_IPERF3, 1..=WRITE_BYTES_MAX),
            Protocol::Udp => (DATAGRAM_BYTES_DEFAULT, DATAGRAM_BYTES_MIN..=DATAGRAM_BYTES_MAX),
        };
        let length = number("len", length_default as u64, u64::MAX)? as usize;
        if !lengths.contains(&length) {
            return Err(MessageError::Bad("len"));
        }
        let parallel = number("parallel", 1, u64::from(STREAMS_MAX))? as u32;
        if parallel == 0 {
            return Err(MessageError::Bad("parallel"));
        }
        let named = |name: &&str| {
            let fits = (1..=CONGESTION_NAME_MAX).contains(&name.len());
            fits && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
        };
        let congestion = match all.get("congestion") {
            None => None,
            Some(name) => {
                Some(name.as_str().filter(named).ok_or(MessageError::Bad("congestion"))?.to_owned())
            }
        };
        Ok(Self {
            protocol,
            direction,
            seconds: number("time", 0, TIME_MAX.as_secs())?,
            omit: number("omit", 0, OMIT_MAX.as_secs())?,
            bytes: number("num", 0, u64::MAX)?,
            blocks: number("blockcount", 0, u64::MAX)?,
            parallel,
            length,
            bandwidth: number("bandwidth", 0, u64::MAX)?,
            window: number("window", 0, WINDOW_BYTES_MAX)?,
            mss: number("MSS", 0, 65_535)? as u32,
            no_delay: flag("nodelay"),
            congestion,
            pacing: number("fqrate", 0, u64::MAX)?,
            zero_copy: flag("zerocopy"),
            wide_numbers: flag("udp_counters_64bit"),
        })
    }

    /// Streams of the test, both directions together.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.parallel as usize * if self.direction == Direction::Both { 2 } else { 1 }
    }
}

/// What one end says of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StreamResult {
    /// Its number, see [`stream_id`](crate::iperf3::stream_id).
    pub id: u64,
    /// Payload that it sent or received.
    pub bytes: u64,
    /// Segments sent again; `None`: this end does not send, or does not know.
    pub retransmits: Option<u64>,
    /// Seconds.
    pub jitter: f64,
    /// Packets that were lost.
    pub errors: i64,
    /// Packets that were sent.
    pub packets: u64,
    /// Seconds that it took.
    pub seconds: f64,
}

/// What one end says of a test.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// Processor time in percent of one processor: all, in the program, in the kernel.
    pub processor: [f64; 3],
    /// This end knows of segments sent again.
    pub has_retransmits: bool,
    /// TCP's congestion control.
    pub congestion: Option<String>,
    /// One for each stream.
    pub streams: Vec<StreamResult>,
}

impl Results {
    /// As they are sent.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let stream = |stream: &StreamResult| {
            json!({
                "id": stream.id, "bytes": stream.bytes, "retransmits": unknown_as_minus_one(stream.retransmits),
                "jitter": stream.jitter, "errors": stream.errors, "packets": stream.packets,
                "start_time": 0, "end_time": stream.seconds,
            })
        };
        let mut all = json!({
            "cpu_util_total": self.processor[0], "cpu_util_user": self.processor[1],
            "cpu_util_system": self.processor[2],
            "sender_has_retransmits": if self.has_retransmits { 1 } else { -1 },
            "streams": self.streams.iter().map(stream).collect::<Vec<_>>(),
        });
        if let Some(name) = &self.congestion {
            all["congestion_used"] = name.as_str().into();
        }
        all
    }

    /// Reads what a peer sent about a test of so many streams.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn from_bytes(bytes: &[u8], streams: usize) -> Result<Self, MessageError> {
        let all = object(bytes)?;
        let percent = |name: &str| all.get(name).and_then(plain);
        let listed = all.get("streams").and_then(Value::as_array).ok_or(MessageError::Bad("streams"))?;
        if listed.len() != streams {
            return Err(MessageError::Bad("streams"));
        }
        let congestion = all.get("congestion_used").and_then(Value::as_str);
        let name =
            |name: &str| name.chars().filter(char::is_ascii_graphic).take(CONGESTION_NAME_MAX).collect();
        Ok(Self {
            processor: ["cpu_util_total", "cpu_util_user", "cpu_util_system"]
                .map(|name| percent(name).unwrap_or(0.0)),
            has_retransmits: all.get("sender_has_retransmits").and_then(known).is_some_and(|has| has > 0),
            congestion: congestion.map(name),
            streams: listed.iter().map(StreamResult::read).collect::<Result<_, _>>()?,
        })
    }

    /// What is said of one stream.
    #[must_use]
    pub fn stream(&self, id: u64) -> Option<&StreamResult> {
        self.streams.iter().find(|stream| stream.id == id)
    }
}

impl StreamResult {
    fn read(value: &Value) -> Result<Self, MessageError> {
        let seconds = |name: &str| plain(&value[name]);
        let time = seconds("end_time").unwrap_or(0.0) - seconds("start_time").unwrap_or(0.0);
        Ok(Self {
            id: whole(&value["id"]).ok_or(MessageError::Bad("id"))?,
            bytes: whole(&value["bytes"]).ok_or(MessageError::Bad("bytes"))?,
            retransmits: known(&value["retransmits"]),
            jitter: seconds("jitter").unwrap_or(0.0),
            errors: value["errors"].as_i64().unwrap_or(0),
            packets: whole(&value["packets"]).unwrap_or(0),
            seconds: to_billionths(time.max(0.0)),
        })
    }
}

/// iperf3 says -1 where it does not know.
fn unknown_as_minus_one(number: Option<u64>) -> Value {
    number.map_or(Value::from(-1), Value::from)
}

/// Above this, a number stands for -1, which versions of iperf3 write as the largest there is.
const KNOWN_MAX: u64 = u64::MAX / 2;

fn known(value: &Value) -> Option<u64> {
    whole(value).filter(|number| *number <= KNOWN_MAX)
}

/// A number that is whole and not below zero; it may be written as a fraction, as 1e6 is.
fn whole(value: &Value) -> Option<u64> {
    let fraction =
        || value.as_f64().filter(|number| (0.0..1.8e19).contains(number)).map(|number| number as u64);
    value.as_u64().or_else(fraction)
}

/// Seconds, or percent: not below zero, less than twelve days, and no finer than is worth telling.
fn plain(value: &Value) -> Option<f64> {
    value.as_f64().filter(|number| (0.0..1e6).contains(number)).map(to_billionths)
}

/// So that a figure stays the same when it is written and read again.
fn to_billionths(number: f64) -> f64 {
    (number * 1e9).round() / 1e9
}

fn object(bytes: &[u8]) -> Result<Map<String, Value>, MessageError> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(MessageError::TooLong(bytes.len()));
    }
    // Older versions of iperf3 send the zero that ends their text, too.
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    serde_json::from_slice(bytes).map_err(|_| MessageError::Garbled)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parameters() -> impl Strategy<Value = Parameters> {
        let direction = prop::sample::select(vec![Direction::Forward, Direction::Reverse, Direction::Both]);
        let numbers = (0u64..=86_400, 0u64..=600, any::<u64>(), any::<u64>(), 1u32..=128, 16usize..=65_507);
        let options = (any::<u64>(), 0u64..=512 << 20, 0u32..=65_535, any::<[bool; 3]>(), any::<u64>());
        let congestion = prop::option::of("[a-z_]{1,15}");
        (any::<bool>(), direction, numbers, options, congestion).prop_map(
            |(tcp, direction, numbers, options, congestion)| {
                let (seconds, omit, bytes, blocks, parallel, length) = numbers;
                let (bandwidth, window, mss, [no_delay, zero_copy, wide_numbers], pacing) = options;
                Parameters {
                    protocol: if tcp { Protocol::Tcp } else { Protocol::Udp },
                    direction,
                    seconds,
                    omit,
                    bytes,
                    blocks,
                    parallel,
                    length,
                    bandwidth,
                    window,
                    mss,
                    no_delay,
                    congestion,
                    pacing,
                    zero_copy,
                    wide_numbers,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn parameters_survive(parameters in parameters()) {
            let framed = framed(&parameters.to_json());
            let length = length([framed[0], framed[1], framed[2], framed[3]]).unwrap();
            prop_assert_eq!(length, framed.len() - 4);
            prop_assert_eq!(Parameters::from_bytes(&framed[4..]), Ok(parameters));
        }

        #[test]
        fn results_survive(
            numbers in prop::collection::vec((any::<u64>(), prop::option::of(0..KNOWN_MAX), any::<i64>(), 0u32..1_000_000), 0..9),
            has_retransmits: bool,
        ) {
            let stream = |(place, (bytes, retransmits, errors, seconds)): (usize, (u64, Option<u64>, i64, u32))| {
                let id = crate::iperf3::stream_id(place);
                StreamResult { id, bytes, retransmits, jitter: 0.5, errors, packets: 9, seconds: seconds.into() }
            };
            let streams: Vec<_> = numbers.into_iter().enumerate().map(stream).collect();
            let results = Results {
                processor: [3.0, 1.0, 2.0], has_retransmits, congestion: Some("bbr".to_owned()), streams,
            };
            let bytes = results.to_json().to_string();
            let count = results.streams.len();
            prop_assert_eq!(Results::from_bytes(bytes.as_bytes(), count), Ok(results));
            prop_assert!(Results::from_bytes(bytes.as_bytes(), count + 1).is_err());
        }

        #[test]
        fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Parameters::from_bytes(&bytes), Results::from_bytes(&bytes, 1));
        }
    }

    #[test]
    fn what_iperf3_sends_is_understood() {
        let text = br#"{"tcp":true,"omit":1,"time":1,"num":0,"blockcount":0,"MSS":1000,"parallel":2,"reverse":true,
            "window":65536,"len":131072,"bandwidth":1000000,"pacing_timer":1000,"congestion":"cubic","client_version":"3.12"}"#;
        let expected = Parameters {
            direction: Direction::Reverse,
            seconds: 1,
            omit: 1,
            parallel: 2,
            mss: 1000,
            window: 65_536,
            bandwidth: 1_000_000,
            congestion: Some("cubic".to_owned()),
            ..Parameters::default()
        };
        assert_eq!(Parameters::from_bytes(text), Ok(expected));
        let text = br#"{"cpu_util_total":18.7,"cpu_util_user":0,"cpu_util_system":18.6,
            "sender_has_retransmits":18446744073709551615,"congestion_used":"bbr","streams":[{"id":1,"bytes":524288,
            "retransmits":18446744073709551615,"jitter":0,"errors":0,"packets":0,"start_time":0,"end_time":0.002313}]}"#;
        let results = Results::from_bytes(text, 1).unwrap();
        assert!(!results.has_retransmits && results.streams[0].retransmits.is_none(), "{results:?}");
        assert_eq!((results.streams[0].bytes, results.streams[0].seconds), (524_288, 0.002_313));
    }

    #[test]
    fn what_no_client_asks_for_is_refused() {
        let refused = [
            (r#"{"tcp":true,"parallel":129}"#, MessageError::Bad("parallel")),
            (r#"{"tcp":true,"parallel":0}"#, MessageError::Bad("parallel")),
            (r#"{"tcp":true,"parallel":-1}"#, MessageError::Bad("parallel")),
            (r#"{"tcp":true,"len":0}"#, MessageError::Bad("len")),
            (r#"{"tcp":true,"len":4294967296}"#, MessageError::Bad("len")),
            (r#"{"udp":true,"len":15}"#, MessageError::Bad("len")),
            (r#"{"tcp":true,"time":86401}"#, MessageError::Bad("time")),
            (r#"{"tcp":true,"congestion":"../../x"}"#, MessageError::Bad("congestion")),
            (r#"{"tcp":true,"reverse":true,"bidirectional":true}"#, MessageError::Bad("reverse")),
            (r#"{"sctp":true}"#, MessageError::Protocol),
            ("[]", MessageError::Garbled),
            ("", MessageError::Garbled),
        ];
        for (text, error) in refused {
            assert_eq!(Parameters::from_bytes(text.as_bytes()), Err(error), "{text}");
        }
        assert_eq!(length([0, 4, 0, 0]), Ok(MESSAGE_BYTES_MAX));
        assert_eq!(length([255; 4]), Err(MessageError::TooLong(u32::MAX as usize)));
    }

    #[test]
    fn the_results_of_the_largest_test_fit() {
        let stream = StreamResult {
            id: 300,
            bytes: u64::MAX,
            retransmits: Some(KNOWN_MAX),
            jitter: 1.234_567_890_123_456e-300,
            errors: i64::MIN,
            packets: u64::MAX,
            seconds: 86_400.123_456_789,
        };
        let results = Results { streams: vec![stream; 2 * STREAMS_MAX as usize], ..Results::default() };
        assert!(framed(&results.to_json()).len() < MESSAGE_BYTES_MAX / 3);
    }

    #[test]
    fn cookies_are_letters_and_a_zero() {
        let cookie = Cookie::new([255; 36]);
        assert_eq!((cookie.text().len(), cookie.as_bytes()[36]), (36, 0));
        assert_eq!(Cookie::from_bytes(*cookie.as_bytes()), cookie);
    }
}
