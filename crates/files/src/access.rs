//! What a session's client may reach on a server.

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
}
