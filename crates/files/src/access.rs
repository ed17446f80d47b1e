//! What a session's client may reach on a server.

use longhaul_transport::identity::IdRange;

use crate::dir::Dir;
use crate::name::RelPath;

/// What a client may reach on the server, and with whose rights.
pub trait Access: Send + Sync + 'static {
    /// Finds the directory that `path` is below, and the rest of it.
    ///
    /// # Errors
    /// In words for the client.
    fn resolve(&self, path: &[u8], to_write: bool) -> Result<(Dir, RelPath), String>;

    /// Takes on the rights of the client's user, on a thread that will do nothing else.
    fn enter_thread(&self) {}

    /// Of a client for all whose users the server acts, with root's rights.
    fn for_all(&self) -> ForAll {
        ForAll::default()
    }
}

/// How a server that acts for all users of a client takes them.
#[derive(Clone, Debug, Default)]
pub struct ForAll {
    /// Its root is nobody here.
    pub squashes_root: bool,
    /// What numbers its users have here; none: the same.
    pub users: Vec<IdRange>,
    /// And its groups.
    pub groups: Vec<IdRange>,
}
