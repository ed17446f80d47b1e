//! Files as longhaul sees them.
//!
//! | module | holds | |
//! | --- | --- | --- |
//! | [`message`] | what a client and a server say to each other about files | pure |
//! | [`server`] | their operations at a server | |
//! | [`client`] | and at a client | |
//! | [`name`] | names and relative paths that cannot leave a directory | pure |
//! | [`dir`] | directories held by descriptor; every operation is confined to them | |
//! | [`direct`] | writing past the page cache | |
//! | [`attr`] | what a file is, besides its bytes | |
//! | [`access`], [`export`] | the directories a server shows, by name | |
//! | [`rights`] | acting as a user | |
//! | [`lease`] | what clients may keep, and when not any more | pure |
//! | [`pages`] | the same of pages that kernels keep | pure |
//! | [`locks`] | locks that programs put on files | pure |
//! | [`ranges`] | sets of bytes | pure |
//! | [`limits`] | every bound, with its derivation | |

pub mod access;
pub mod attr;
mod cached;
pub mod client;
pub mod dir;
pub mod direct;
pub mod export;
#[doc(hidden)]
pub mod fuzzing;
pub mod lease;
pub mod limits;
pub mod locks;
pub mod message;
pub mod name;
pub mod pages;
pub mod ranges;
pub mod rights;
pub mod server;

pub use access::{Access, ForAll};
pub use attr::{Attr, Kind, Time, Xattr};
pub use client::{FilesClient, Remote};
pub use dir::Dir;
pub use export::{Export, Exports};
pub use longhaul_transport::identity::IdRange;
pub use message::{Listed, Statistics, TOP};
pub use name::{Name, RelPath, Shown, shown};
pub use ranges::RangeSet;
pub use server::FilesServer;
