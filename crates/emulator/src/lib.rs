//! A long fat network on one machine.
//!
//! Hosts (network namespaces) are joined by links whose delay, rate, queue and losses are decided by a pure model and
//! carried out by a packet driver in user space: no kernel module, and no netem unless it is asked for.
//!
//! ```no_run
//! use std::time::Duration;
//! use longhaul_emulator::{EngineChoice, LinkSpec, Network, Topology};
//!
//! let delay = Some(Duration::from_millis(50));
//! let link = LinkSpec { delay: [delay; 2], rate_bps: [Some(1_000_000_000); 2], ..LinkSpec::default() };
//! let net = Network::start(Topology::two_hosts(link, EngineChoice::Auto), 1, None)?;
//! let mut ping = std::process::Command::new("ping");
//! net.spawn("near", ping.args(["-c", "3", "far"]))?.wait()?;
//! println!("{}", net.report()?[0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Layers, top to bottom; the first five own no clock, socket or thread:
//!
//! | module | holds |
//! | --- | --- |
//! | [`link`] | one direction of a link: its settings; what happens to each packet, and when |
//! | [`dice`] | seeded decisions keyed by flow and packet number |
//! | [`aqm`], [`fair`], [`loss`], [`delay`], [`outage`], [`trace`] | how a queue is managed, a queue for each flow, which packets are lost, how the delay varies, when the link is down, what changes with time |
//! | [`rules`] | which packets have a link of their own |
//! | [`packet`] | IP headers: segments of a GSO packet, flows, cutting a packet in two |
//! | [`memory`] | where packets wait |
//! | `driver` | takes, holds and delivers packets, by one of two engines |
//! | [`tun`], [`namespace`] | devices and hosts |
//! | [`netem`] | the kernel's own emulator between the hosts, to compare with |
//! | `nfqueue`, `interface`, `netlink` | what is asked of the kernel |
//! | [`processors`] | what this machine's host leaves of them |
//! | `capture` | a record of packets before and after a link |
//! | [`spec`], [`presets`] | a link as its user describes it, or calls it |
//! | [`topology`] | hosts and links, their addresses and routes |
//! | [`network`] | the same, running |
//! | [`control`] | a running topology by name: `up`, `exec`, `set`, `show`, `down` |

pub mod aqm;
mod capture;
pub mod control;
pub mod delay;
pub mod dice;
mod driver;
pub mod fair;
mod interface;
pub mod limits;
pub mod link;
pub mod loss;
pub mod memory;
pub mod namespace;
pub mod netem;
mod netlink;
pub mod network;
mod nfqueue;
pub mod outage;
pub mod packet;
pub mod presets;
pub mod processors;
pub mod report;
pub mod rules;
pub mod spec;
pub mod topology;
pub mod trace;
pub mod tun;

pub use driver::DriverGone;
pub use link::{LinkConfig, LinkPair, Nanos};
pub use network::Network;
pub use report::Report;
pub use spec::LinkSpec;
pub use topology::{EngineChoice, Topology};
