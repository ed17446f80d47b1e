//! Every bound of the transport, with its derivation.

use std::time::Duration;

/// A `known_hosts` or `authorized_keys` file: 10,000 keys of 100 bytes.
pub const KEY_FILE_BYTES_MAX: u64 = 1 << 20;

/// Most bytes a handshake may take: TLS 1.3 with one key and no chain of certificates needs a few KiB of them.
pub const HANDSHAKE_BYTES_MAX: usize = 64 << 10;

/// Payload of a lane's frame: what one step reads, seals, opens and writes. It and its sealed form fit a core's
/// second-level cache (1 MiB on today's servers), and a write of it is large enough for direct I/O.
pub const FRAME_PAYLOAD_MAX: usize = 256 << 10;

/// Piece numbers in one `Stored` or `Declined` frame: with its header it fits one TLS record.
pub const ACKS_PER_FRAME_MAX: usize = 1024;

/// A lane's buffer for bytes from the socket: a frame's worth, and a record that is not whole yet.
pub const INBOX_BYTES: usize = (256 + 64) << 10;

/// Alignment of memory for direct I/O: a page, which satisfies every block device.
pub const ALIGNMENT: usize = 4096;

/// The shortest piece a lane takes of a longer extent: its 40 bytes of frame header and its answer stay below 0.1 %.
pub const PIECE_BYTES_MIN: u32 = 64 << 10;

/// The longest piece by default: at 1 Gbit/s a lane it lasts 8 ms, and what a lost lane loses stays small.
pub const PIECE_BYTES_DEFAULT: u32 = 1 << 20;

/// The longest piece that can be asked for.
pub const PIECE_BYTES_MAX: u32 = 64 << 20;

/// Extents waiting for a lane: 32 bytes each, so 128 KiB; as bundles of small files, a gigabyte's worth.
pub const EXTENTS_WAITING_MAX: usize = 4096;

/// Pieces a lane carries at a time: at 10 Gbit/s x 300 ms, pieces of 6 KiB.
pub const LANE_PIECES_MAX: usize = 64 << 10;

/// Piece numbers that a lane has yet to tell the peer of: 8 bytes each, so 1 MiB. A sender has no more than
/// [`LANE_PIECES_MAX`] unanswered on a lane, and few more that another lane's answer has taken off its list; one that
/// goes on sending without reading answers loses the lane. To stop reading instead could leave two ends waiting for
/// each other.
pub const ACKS_WAITING_MAX: usize = 2 * LANE_PIECES_MAX;

/// Bytes a lane's socket may hold that TCP has not sent yet (TCP_NOTSENT_LOWAT): two frames, so that the next one is
/// there when the window opens, and no more than that waits behind a slow lane.
pub const LANE_UNSENT_BYTES_MAX: u32 = 512 << 10;

/// And at first, while a lane sends a few packets in a round trip: what it has taken nobody else sends, and whoever reads in
/// order waits for it.
pub const LANE_UNSENT_BYTES_MIN: u32 = 64 << 10;

/// What a lane sends in this time may wait in its socket: longer than a mover is kept from its work.
pub const LANE_UNSENT_TIME: Duration = Duration::from_millis(50);

/// Unacknowledged for so long, a lane is dead; a link may be down for a minute.
pub const LANE_USER_TIMEOUT: Duration = Duration::from_secs(90);

/// The longest wait between retransmissions, so that lanes go on within seconds of a link's return.
pub const RTO_MAX: Duration = Duration::from_secs(2);

/// Lanes of one session.
pub const LANES_MAX: usize = 256;

/// Threads that move a session's bytes, two for each core: while one waits for a disk the other has the CPU. Eight
/// keep four cores busy, and cost at most 8 MiB.
pub const MOVERS_MAX: usize = 8;

/// Bytes moved for one lane before the next one gets its turn.
pub const TURN_BYTES: usize = 1 << 20;

/// Body of a control message, either way.
pub const CONTROL_BODY_BYTES_MAX: usize = 64 << 10;

/// Requests a peer may have open at a time; at 300 ms it makes 3,400 requests a second.
pub const CONTROL_STREAMS_MAX: u32 = 1024;

/// Control bytes in flight each way: 64 KiB messages at 1 Gbit/s x 100 ms, or 64 full ones, twice over.
pub const CONTROL_WINDOW_BYTES: u32 = 16 << 20;

/// Bytes of the requests a side has open: a copy's 128 offers of 24 KiB, and then some.
pub const REQUEST_BYTES_OPEN_MAX: usize = 4 << 20;

/// Bytes of a peer's requests that are carried out at a time, and those that wait for it: twice what it may have open,
/// since it may give up waiting for some. A peer that goes beyond it loses its link: it has been told nothing else, and
/// to stop reading a TCP link would keep our own replies from coming.
pub const REQUEST_BYTES_CARRIED_MAX: usize = 2 * REQUEST_BYTES_OPEN_MAX;

/// Requests read off QUIC streams at a time, each of 64 KiB: 4 MiB. The others wait within QUIC's window.
pub const REQUESTS_READ_AT_ONCE: usize = 64;

/// Requests of a peer's that are carried out at a time: those it has open, and as many that it has given up waiting for.
/// (Replies are kept, for an asker that may ask again on another link, of those that it may have open.)
pub const REQUESTS_AT_ONCE_MAX: usize = 2 * CONTROL_STREAMS_MAX as usize;

/// A control link that was silent for so long is broken.
pub const LINK_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// An idle control link says so often that it is there: NATs may forget UDP after 30 s (RFC 4787
/// asks for 2 minutes, many keep less).
pub const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// A connection attempt: three lost SYNs (1 + 2 + 4 s) and a long path.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// UDP gets so much of a start before TCP is tried as well.
pub const QUIC_HEAD_START: Duration = Duration::from_millis(700);

/// A session whose ends cannot reach each other for so long is over.
pub const OUT_OF_REACH_LIMIT: Duration = Duration::from_secs(120);

/// Lanes connecting at a time: below what a server takes from one source, and no more than a few round trips for as
/// many as a session may have.
pub const LANES_AT_ONCE_MAX: usize = 64;

/// Connections a server holds whose peers it has not let in, each for three [`CONNECT_TIMEOUT`] at the most. One takes
/// up to 64 KiB for TLS, and then either a record and what it holds (2 x 17 KiB), or a control link with a hello of
/// 64 KiB, another one that is arriving, and records (3 x 17 KiB): below 256 KiB, or 128 MiB for all.
pub const HANDSHAKES_MAX: usize = 512;

/// Of these, connections from one IPv4 address or IPv6 /64: a client that opens lanes as fast as it can, and half of
/// another one behind the same address. It takes several hosts to keep others out.
pub const HANDSHAKES_PER_SOURCE_MAX: usize = 96;

/// Sessions of one server.
pub const SESSIONS_MAX: usize = 1024;

/// Sessions of one key: more copies at a time than a person or a batch runs, and room for 15 other keys.
pub const SESSIONS_PER_KEY_MAX: usize = 64;
