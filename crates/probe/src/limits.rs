//! Every bound of the measurements, with its derivation.

use std::time::Duration;

/// Streams of a test in one direction: as many as iperf3 allows. Flows of UDP have a thread each, so that two directions take 256
/// threads.
pub const STREAMS_MAX: u32 = 128;

/// Longest write of a TCP stream: as iperf3.
pub const WRITE_BYTES_MAX: usize = 1 << 20;

/// Memory that a TCP stream is written from, again and again, and the longest read of one: what stays in a core's cache beside the kernel's
/// own (512 KiB on the smaller of today's servers). With both directions of [`STREAMS_MAX`] a test takes 16 MiB at most: each
/// receiver has such a buffer, all senders share one.
pub const BLOCK_BYTES_MAX: usize = 128 << 10;

/// From this rate on a receiver need not be woken for less than [`BLOCK_BYTES_MAX`], which come within a millisecond then. Its buffer
/// has grown well beyond that: the kernel would make a smaller one larger, and that is what is to be measured.
pub const FAST_BYTES_PER_SECOND: f64 = 125e6;

/// Bytes of pages that one call of sendfile(2) sends: what goes through its pipe at a time. It does not return before all of it has been
/// taken, however slow the path, and what has been sent is counted then.
pub const PAGES_BYTES_PER_CALL: usize = 64 << 10;

/// Read or write of a TCP stream that a client of iperf3's protocol does not tell: iperf3's own.
pub const WRITE_BYTES_IPERF3: usize = 128 << 10;

/// Write of a TCP stream that has a rate: so much of its time, so that what it sends is no row of bursts.
pub const WRITE_TIME: Duration = Duration::from_millis(10);
/// But no shorter than this, most of a packet.
pub const WRITE_BYTES_LEAST: usize = 1 << 10;

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

/// What a paced sender may send at once: two full packets at 100 Mbit/s, so that the shortest of queues takes them; a sender wakes up
/// 5000 times a second.
pub const BURST: Duration = Duration::from_micros(200);

/// What a paced sender that was held up makes up for, at most: a scheduler's pause, but not a path's.
pub const CATCH_UP: Duration = Duration::from_millis(100);

/// So much faster than its rate it is while it makes up for more than a [`BURST`]: all at once would overrun a short queue, and
/// the loss would be taken for the path's.
pub const CATCH_UP_FASTER: f64 = 0.25;

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

/// Intervals that are kept for a record, of each direction: a day of seconds. Later ones are counted only.
pub const INTERVALS_MAX: usize = 100_000;

/// Longest test of `longhaul probe` against a server: twice the half hour in which a path has shown what it does, so that nobody
/// loads one for a day unawares.
pub const PATH_TEST_TIME_MAX: Duration = Duration::from_secs(3600);

/// A server ends a test that its client has not asked about for so long: several times the interval at which clients ask
/// ([`LOOK_AT_TESTS_EVERY`]), and three lost packets on the control channel.
pub const PATH_TEST_IDLE_MAX: Duration = Duration::from_secs(10);

/// How often a client asks about a test that it has nothing else to do with.
pub const LOOK_AT_TESTS_EVERY: Duration = Duration::from_secs(2);

/// Questions to the server about a test whose answers have not come: intervals of 0.1 s, the shortest, over a path that takes a
/// second and a half with its queues. Beyond that intervals become longer. Each is a small message, and what 128 flows have counted.
pub const LOOKS_UNDER_WAY_MAX: usize = 16;

/// A server's half of a test ends so much later than it was asked for: a client's clock begins a round trip later.
pub const PATH_TEST_OVERTIME: Duration = Duration::from_secs(5);

/// Tests of one session at a time: load both ways and the echoes beside it. With [`STREAMS_MAX`] each has 128 threads at most.
pub const PATH_TESTS_MAX: usize = 3;

/// Clients that a server may be told to be measured for at a time. When all of them load it both ways with [`STREAMS_MAX`] streams, that takes
/// 8192 threads, and 4 GiB for what they receive into.
pub const PATH_CLIENTS_MAX: usize = 32;

/// A server that has been measured for one session is that session's for so long after its last test: another's load would
/// spoil the next.
pub const PATH_HELD_FOR: Duration = Duration::from_secs(3);

/// Datagrams of the handshake that one port answers, to whichever addresses: the handshake's losses on the worst of paths.
pub const COOKIES_MAX: u32 = 16;

/// Settings of its kernel that a server may tell: twice as many as today.
pub const PATH_SETTINGS_MAX: usize = 16;

/// Congestion controls that are compared unless told which: Linux 6 comes with sixteen, few hosts load more than three, and each takes four tests.
pub const CONTROLS_MAX: usize = 8;

/// Letters of a word of the peer's that is shown.
pub const WORDS_BYTES_MAX: usize = 200;

/// Findings about its host that a server may tell: four times as many as today. Its answer is a control message, so 64 KiB at the most.
pub const FINDINGS_MAX: usize = 64;

/// Letters of each part of such a finding: twice the longest today.
pub const FINDING_LETTERS_MAX: usize = 1000;

/// A server that has not looked at its host after so long says so, before its client gives up ([`STEP_TIMEOUT`]): it takes some tens of
/// milliseconds, unless a directory of its PATH does not answer.
pub const CHECKUP_TIME_MAX: Duration = Duration::from_secs(5);

/// Echoes that a server sends a second: 10 us of a core each, so a hundredth of it; a client asks for a hundred.
pub const ECHOES_PER_SECOND_MAX: u32 = 1000;

/// Longest echo: Ethernet's largest usual frames.
pub const ECHO_BYTES_MAX: usize = 9216;

/// Receive buffer that is asked for where UDP is measured: 100 ms at 1 Gbit/s; kernels give no more than their rmem_max.
pub const PROBE_RECEIVE_BUFFER: u64 = 12 << 20;

/// Bursts of a search for UDP's limit: twice what doubling from 100 kbit/s to 400 Gbit/s and bisecting take.
pub const BURSTS_PER_SEARCH_MAX: usize = 64;

/// Bytes that a disk is given or asked for in one call: some stripes of usual arrays, so that all their disks have work, and the call
/// itself costs nothing beside it. The only memory that a measurement of a disk takes.
pub const DISK_CALL_BYTES: usize = 4 << 20;

/// Through the page cache, calls of which the disk may have to write something still: it never waits for the next, and no more than
/// these two are left when the time is over.
pub const DISK_CALLS_BEHIND: u64 = 2;

/// Bytes that are written to a disk to measure it: a second of the fastest today.
pub const DISK_BYTES_MAX: u64 = 8 << 30;

/// Least bytes of a file that is copied from disk to disk: lanes have at least a piece of it, and the slowest paths are held up for a minute
/// at 140 kbit/s.
pub const FILE_BYTES_MIN: u64 = 1 << 20;

/// The start of such a copy, some round trips in which lanes open and come to their rate, makes the file no longer than by so much: as a
/// test of TCP.
pub const FILE_START_MAX: Duration = Duration::from_secs(10);

/// One file goes there and comes back. Where the way back is faster, the file is longer than its way there needs, but takes no more than so
/// many times as long.
pub const FILE_STRETCH: f64 = 3.0;

/// Such a copy is given up after so many times the time that it should take ...
pub const FILE_LATE_TIMES: u32 = 10;
/// ... and this, in which a busy disk answers (see [`DISK_LATE_MAX`]).
pub const FILE_LATE: Duration = DISK_LATE_MAX;

/// Of what is free, one in so many is written at the most: nobody else's write fails because of a measurement.
pub const DISK_FREE_SHARE: u64 = 10;

/// Longest writing, and longest reading, of a disk that a client may ask for: twice the longest that ours asks for.
pub const DISK_TIME_MAX: Duration = Duration::from_secs(10);

/// A server says that its disk does not answer when it is so late: a call, and what brings the rest to the disk, at 1 Mbit/s.
pub const DISK_LATE_MAX: Duration = Duration::from_secs(60);

/// Bytes of the path of a directory that is to be measured: PATH_MAX.
pub const DISK_PATH_BYTES_MAX: usize = 4096;
