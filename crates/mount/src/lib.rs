//! A server's files as a file system of this host, by FUSE.
//!
//! | module | holds |
//! | --- | --- |
//! | `fuse` | FUSE's requests as calls of the [files client](longhaul_files::client) |
//! | `listing` | directories as the kernel reads them, in parts of its choosing |
//! | `forgotten` | nodes that the kernel does not know any more, told to the server many at a time |
//! | [`mount`] | putting it into the tree of this host, and taking it out |

mod forgotten;
mod fuse;
mod listing;
pub mod mount;

pub use mount::{Mount, MountError, MountOptions};
