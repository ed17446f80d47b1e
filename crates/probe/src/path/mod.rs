//! Measuring a path against `longhaul serve`, or `longhaul probe --listen`.
//!
//! The client has an authenticated session and asks for tests over its control channel; data goes over sockets of their own, to
//! ports that the server opens for one test. What is measured, and in which order, is the client's business: a server knows
//! only tests.
//!
//! | module | holds | |
//! | --- | --- | --- |
//! | [`test`] | what a test is asked for, what is counted in it | pure |
//! | `message` | what is said about tests | pure |
//! | `knock` | how flows prove themselves, without anybody being flooded | pure |
//! | `echo` | packets that come back: their form, who answers them | |
//! | `half` | one end's half of a test of load | |
//! | `gather`, `running`, [`server`] | the server: sockets, a test, the service | |
//! | [`disks`] | the disks at both ends | |
//! | [`udp_search`], [`tcp_theory`], [`verdict`] | which rate to offer next; what TCP can reach by the book; what the limit is | pure |
//! | `slow_disk` | whether it is a disk | pure |
//! | [`finding`], [`clocks`] | what a host lacks; how far two clocks are apart | pure |
//! | `checkup` | the client: asks the server's host what it lacks, and what time it is | |
//! | [`plan`] | what a whole measurement has | pure |
//! | [`file_size`] | how large a file shows what a transfer takes | pure |
//! | [`measure`] | a whole measurement | |
//! | [`client`], [`echoes`] | the client: tests, round-trip times, path MTU | |

mod checkup;
pub mod client;
pub mod clocks;
pub mod disks;
mod echo;
pub mod echoes;
pub mod file_size;
pub mod finding;
mod gather;
mod half;
pub(crate) mod knock;
pub mod measure;
pub(crate) mod message;
pub mod plan;
mod running;
pub mod server;
mod slow_disk;
pub mod tcp_theory;
pub mod test;
pub mod udp_search;
pub mod verdict;

/// The word for sessions about tests of the path.
pub const SERVICE: &str = "probe";
