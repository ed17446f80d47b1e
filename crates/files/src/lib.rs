//! Files as longhaul sees them.
//!
//! | module | holds | |
//! | --- | --- | --- |
//! | [`name`] | names and relative paths that cannot leave a directory | pure |
//! | [`dir`] | directories held by descriptor; every operation is confined to them | |
//! | [`attr`] | what a file is, besides its bytes | |
//! | [`export`] | the directories a server shows, by name | |
//! | [`rights`] | acting as a user | |
//! | [`limits`] | every bound, with its derivation | |

pub mod attr;
pub mod dir;
pub mod export;
pub mod limits;
pub mod name;
pub mod rights;

pub use attr::{Attr, Kind, Time, Xattr};
pub use dir::Dir;
pub use export::{Export, Exports};
pub use name::{Name, RelPath, Shown, shown};
