//! What a path carries, measured from memory to memory, and the disks at its ends.
//!
//! | module | holds | |
//! | --- | --- | --- |
//! | [`traffic`] | the flows of a test under way: their threads, counts by interval | |
//! | [`tcp`], [`udp`] | what such a thread does | |
//! | [`counts`] | what was moved, by interval | pure, but for the shared counters |
//! | [`sequence`] | loss, reordering, duplicates and jitter by the packets' numbers | pure |
//! | [`pacing`] | when the next bytes may go | pure |
//! | [`disk`] | how fast a disk takes bytes and gives them back | |
//! | [`iperf3`] | iperf3's protocol: client, server, reports | messages, states and reports: pure |
//! | [`limits`] | every bound, with its derivation | |
//!
//! The engines (`traffic` and what is below it) know nothing of iperf3's protocol.

pub mod counts;
pub mod disk;
#[doc(hidden)]
pub mod fuzzing;
pub mod iperf3;
pub mod limits;
mod memory;
pub mod pacing;
pub mod path;
pub mod processor;
pub mod sequence;
mod socket;
pub mod tcp;
pub mod traffic;
pub mod udp;
