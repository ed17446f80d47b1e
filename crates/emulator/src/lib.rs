//! A long fat network on one machine.
//!
//! Two hosts (network namespaces `near` and `far`) are joined by a link whose delay, rate, queue and losses are
//! decided by a pure model and carried out by a packet driver in user space: no kernel module, no `tc netem`.
//!
//! ```no_run
//! use std::time::Duration;
//! use longhaul_emulator::{EngineChoice, Host, LinkConfig, LinkPair, TwoHosts};
//!
//! let mut link = LinkConfig::with_delay(Duration::from_millis(100));
//! link.rate_bps = Some(1_000_000_000);
//! let net = TwoHosts::start(LinkPair::symmetric(link), 1, EngineChoice::Auto)?;
//! let mut ping = std::process::Command::new("ping");
//! net.spawn(Host::Near, ping.args(["-c", "3", "far"]))?.wait()?;
//! println!("{}", net.report()?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Layers, top to bottom; the first four own no clock, socket or thread:
//!
//! | module | holds |
//! | --- | --- |
//! | [`link`] | one direction of a link: what happens to each packet, and when |
//! | [`dice`] | seeded decisions keyed by flow and packet number |
//! | [`aqm`], [`loss`], [`delay`], [`outage`] | how a queue is managed, which packets are lost, how the delay varies, when the link is down |
//! | [`packet`] | IP headers: segments of a GSO packet, flows, cutting a packet in two |
//! | [`memory`] | where packets wait |
//! | [`driver`] | takes, holds and delivers packets, by one of two engines |
//! | [`tun`], [`namespace`] | devices and hosts |
//! | `nfqueue`, `interface`, `netlink` | what is asked of the kernel |
//! | [`processors`] | what this machine's host leaves of them |
//! | [`spec`], [`presets`] | a link as its user describes it, or calls it |
//! | [`topology`] | two hosts and their link, running |
//! | [`control`] | a running topology by name: `up`, `exec`, `set`, `show`, `down` |

pub mod aqm;
pub mod control;
pub mod delay;
pub mod dice;
pub mod driver;
pub mod fair;
mod interface;
pub mod limits;
pub mod link;
pub mod loss;
pub mod memory;
pub mod namespace;
mod netlink;
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

pub use link::{LinkConfig, LinkPair, Nanos};
pub use report::Report;
pub use spec::LinkSpec;
pub use topology::{EngineChoice, Host, TwoHosts};
