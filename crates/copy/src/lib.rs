//! Copies of files and trees over a [session](longhaul_transport::Session).
//!
//! Either end of a session may send. The sending end ([`source`], fed by [`walk`]) offers what it finds, the receiving
//! end ([`target`]) says what it wants, and the bytes travel on the session's lanes: large files in pieces on all
//! lanes, small ones in bundles. There is no round trip per file, and what an earlier run has brought is not sent
//! again.
//!
//! | module | holds | |
//! | --- | --- | --- |
//! | [`copy`] | a copy as the client starts it | |
//! | [`station`] | one end of the session: hands requests and bytes to its engine | |
//! | `source`, `walk` | the sending end | |
//! | `target`, `partial`, `rivals` | the receiving end: offers, files and directories, bytes on disk | |
//! | `destination` | what a path in a copy means | |
//! | `message` | requests and replies | pure |
//! | `journal` | what has arrived | pure |
//! | `bundle` | small files together | pure |
//! | [`exclude`] | patterns | pure |
//! | [`options`], [`progress`], [`limits`] | | |

mod bundle;
pub mod copy;
mod destination;
pub mod exclude;
#[doc(hidden)]
pub mod fuzzing;
mod journal;
pub mod limits;
mod message;
pub mod options;
mod partial;
pub mod progress;
mod rivals;
mod source;
pub mod station;
mod target;
#[cfg(test)]
mod tests;
mod walk;

pub use copy::{Copy, FarBuffers, Job, far_buffers};
pub use exclude::Excludes;
pub use options::{CopyOptions, Existing, Sync, Writing};
pub use partial::unfinished_names;
pub use progress::{Problem, Progress, ProgressNow};
pub use source::CopyError;
pub use station::{Station, dirty_bytes, own_files};
