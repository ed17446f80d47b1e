//! Sessions over long fat networks: who is who, a control channel for requests, and as many data lanes as the path
//! needs.
//!
//! | module | holds | |
//! | --- | --- | --- |
//! | [`session`] | both ends of a session: connecting, serving, keeping links and lanes up | |
//! | [`identity`] | keys, `known_hosts`, `authorized_keys` | |
//! | `control` | requests and replies, over QUIC or TCP, carried out at most once | |
//! | `lane` | records, frames, buffers, and the threads that move bytes | records, frames, buffers: pure |
//! | [`scheduler`] | which lane carries which bytes | pure |
//! | [`tuner`] | how many lanes there are | pure |
//! | `secure`, `tls` | TLS 1.3 with raw public keys | |
//! | [`socket`] | TCP's options and its own words | |
//! | [`limits`] | every bound, with its derivation | |
//!
//! Protocol state that is *pure* owns no socket, clock or thread.

mod control;
#[doc(hidden)]
pub mod fuzzing;
pub mod governor;
pub mod identity;
mod lane;
pub mod limits;
pub mod scheduler;
mod secure;
pub mod session;
pub mod socket;
mod tls;
pub mod tuner;

pub use lane::mover::{Lanes, Pieces, Stored, Withdrawn};
pub use scheduler::Extent;
pub use session::{Handler, Session, SessionEnd};

/// The port of a server that is told no other.
pub const DEFAULT_PORT: u16 = 7473;
