//! Openings for the fuzz targets in `fuzz/`: what reads bytes of peers and of the kernel, and is nobody else's business.
//!
//! Nothing is decided here: bytes go in, and what was understood comes out, encoded anew or as plain data.

use bytes::Bytes;
use prost::Message;

use crate::message::{Ask, Attached, Content, Created, Listing, Notice, Reply};
use crate::server::noticed_in;

/// A request, written again.
#[must_use]
pub fn request(bytes: &[u8]) -> Option<Vec<u8>> {
    Ask::from_bytes(Bytes::copy_from_slice(bytes))
        .map(|(ask, order, slot)| ask.into_bytes(order, slot).to_vec())
}

/// A notice of the server's, written again.
#[must_use]
pub fn notice(bytes: &[u8]) -> Option<Vec<u8>> {
    Notice::decode(bytes).ok().map(|notice| notice.encode_to_vec())
}

/// The errors of a reply, as outcomes of several kinds; 0: none.
#[must_use]
pub fn reply_errors(bytes: &[u8]) -> [i32; 4] {
    fn error<T: Message + Default>(bytes: &[u8]) -> i32 {
        Reply::read::<T>(Bytes::copy_from_slice(bytes)).0.err().map_or(0, rustix::io::Errno::raw_os_error)
    }
    [error::<Attached>(bytes), error::<Content>(bytes), error::<Created>(bytes), error::<Listing>(bytes)]
}

/// Events of fanotify(7): how many files they are about, of those that are watched; `None`: any.
#[must_use]
pub fn events(bytes: &[u8]) -> Option<usize> {
    noticed_in(bytes)
}
