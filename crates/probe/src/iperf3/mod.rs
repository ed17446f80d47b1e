//! iperf3's protocol, so that either end can be iperf3 itself.
//!
//! A client connects by TCP and sends a [`Cookie`](message::Cookie). From then on the server says which [`State`](state::State) the test
//! is in, one byte each; parameters and results are JSON with a length before it. Streams are further connections to the
//! same port that begin with the same cookie, or UDP sockets that exchange four bytes. There is no encryption and no key:
//! whoever reaches a server may use it.
//!
//! | module | holds | |
//! | --- | --- | --- |
//! | [`message`] | cookies, parameters, results | pure |
//! | [`state`] | the bytes of the states | pure |
//! | `wire` | reading and writing them within a time | |
//! | [`client`], [`server`] | the two ends | |
//! | [`report`] | what people read; and programs | pure |

pub mod client;
pub mod message;
pub mod report;
pub mod server;
pub mod state;
mod wire;

/// The port of a server that is told no other.
pub const DEFAULT_PORT: u16 = 5201;

/// The version whose messages these are, as both ends tell each other.
pub const VERSION: &str = "3.12";

/// What opens a UDP stream, and its answers: each is a number that iperf3 sends in the order of its own machine; `9876` and
/// `6789` on little-endian ones. The second pair is that of versions before 3.10.
pub(crate) const UDP_HELLOS: [[u8; 4]; 3] = [*b"9876", *b"6789", 123_456_789_u32.to_le_bytes()];
pub(crate) const UDP_ANSWERS: [[u8; 4]; 3] = [*b"6789", *b"9876", 987_654_321_u32.to_le_bytes()];

/// The number of a stream in the results, by its place: iperf3 leaves out 2.
#[must_use]
pub fn stream_id(place: usize) -> u64 {
    if place == 0 { 1 } else { place as u64 + 2 }
}
