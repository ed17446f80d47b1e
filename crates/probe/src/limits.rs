//! Every bound of the measurements, with its derivation.

use std::time::Duration;

/// Streams of a test in one direction: as many as iperf3 allows. Each has a thread of its own here, so that two directions
/// take 256 threads.
pub const STREAMS_MAX: u32 = 128;

/// Longest read or write of a TCP stream: as iperf3. With both directions of [`STREAMS_MAX`] a test takes 129 MiB for them at
/// most: each receiver has a buffer, all senders share one.
pub const WRITE_BYTES_MAX: usize = 1 << 20;

/// Read or write of a TCP stream unless told otherwise: as iperf3, and it stays in a core's second-level cache.
pub const WRITE_BYTES_DEFAULT: usize = 128 << 10;

/// Longest payload of a UDP packet: 65,535 less the headers of IPv4 and UDP.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;

/// Shortest payload of a UDP packet: its time and its number.
pub const DATAGRAM_BYTES_MIN: usize = 16;

/// Payload of a UDP packet unless told otherwise: what Ethernet's 1500 bytes leave when IPv6 and a tunnel's or TCP-like headers
/// take their share; iperf3's own value where it does not know the path.
pub const DATAGRAM_BYTES_DEFAULT: usize = 1448;

/// Largest socket buffer that can be asked for: as iperf3; 10 Gbit/s x 400 ms.
pub const WINDOW_BYTES_MAX: u64 = 512 << 20;

/// Longest test, and longest start of a test that does not count: as iperf3, a day and ten minutes.
pub const TIME_MAX: Duration = Duration::from_secs(86_400);
/// See [`TIME_MAX`].
pub const OMIT_MAX: Duration = Duration::from_secs(600);

/// UDP packets handed to the kernel as one (UDP_SEGMENT): all kernels that know it take 64.
pub const SEGMENTS_MAX: usize = 64;

/// Trains of [`SEGMENTS_MAX`] packets in one call: with the shortest packets 512 a call, so that the call itself costs a packet
/// a few nanoseconds.
pub const TRAINS_PER_CALL: usize = 8;

/// Packets in one call where the kernel cannot cut trains.
pub const PACKETS_PER_CALL: usize = 64;

/// Messages that one call receives. Each may be a train of 64 KiB, so a receiver has 1 MiB for them: more than a socket's
/// buffer of usual size holds.
pub const MESSAGES_PER_CALL: usize = 16;

/// What a paced sender may send at once: a switch port of 1 Gbit/s with 128 KiB for it takes that without loss.
pub const BURST: Duration = Duration::from_millis(1);

/// What a paced sender that was held up makes up for, at most: a scheduler's pause, but not a path's.
pub const CATCH_UP: Duration = Duration::from_millis(100);

/// Packets behind the newest one that a late packet is still told from a second copy of one that has come: one bit each, so
/// 8 KiB. At 1 million packets a second, 65 ms of reordering.
pub const REORDER_WINDOW: u64 = 64 << 10;

/// How soon a thread that waits for a socket sees that the test is over.
pub const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How often a test by bytes looks whether they have been moved.
pub const LOOK_AT_BYTES_EVERY: Duration = Duration::from_millis(2);

/// Parameters or results of a test as JSON: iperf3 writes up to 200 bytes a stream, of at most 256, and some hundred more.
/// With spaces and long numbers it stays below this.
pub const MESSAGE_BYTES_MAX: usize = 256 << 10;

/// A step of the peer's that is no traffic: its cookie, parameters, results, the opening of a stream. Three lost SYNs (1 + 2 + 4 s)
/// and a long path.
pub const STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// A server gives up a test in which nothing has moved for so long.
pub const SILENCE_MAX: Duration = Duration::from_secs(30);

/// A client's own clock ends its test; a server waits so much longer before it does so itself.
pub const OVERTIME_MAX: Duration = Duration::from_secs(30);

/// Connections whose cookie has not come: enough for all streams of a test to be opened at once, in both directions, and 64 more.
/// Each costs a socket and 100 bytes, for [`STEP_TIMEOUT`].
pub const STRANGERS_MAX: usize = 2 * STREAMS_MAX as usize + 64;

/// Of these, connections of one address that is not the client's under test: others find a place.
pub const STRANGERS_PER_SOURCE_MAX: usize = 16;

/// Intervals that are kept for a record: a day of seconds.
pub const INTERVALS_MAX: usize = 100_000;
