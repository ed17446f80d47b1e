//! A server's files as a file system of this host, by FUSE.
//!
//! | module | holds |
//! | --- | --- |
//! | `awake` | keeping CPUs awake while many requests come |
//! | `fuse` | FUSE's requests as calls of the [files client](longhaul_files::client) |
//! | `signal` | whether somebody who waits is to stop |
//! | `translate` | FUSE's terms and the protocol's |
//! | [`mount`] | putting it into the tree of this host, and taking it out |

mod awake;
mod fuse;
pub mod mount;
mod signal;
mod translate;

pub use fuse::STATISTICS;
pub use mount::{Mount, MountError, MountOptions};
