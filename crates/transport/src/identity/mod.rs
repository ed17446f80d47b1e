//! Who is who: Ed25519 keys in OpenSSH's formats, the hosts one trusts, the users one lets in.

mod authorized_keys;
mod key;
mod known_hosts;

pub use authorized_keys::{AuthorizedKeys, Grant, IdRange};
pub use key::{Fingerprint, Identity, KeyError, PublicKey};
pub(crate) use known_hosts::parse as parse_known_hosts;
pub use known_hosts::{HostTrust, KnownHosts, TrustError};
