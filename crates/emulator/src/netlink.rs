//! Netlink messages: built attribute by attribute, read with every length checked (netlink(7)).

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

/// `struct nlmsghdr`.
pub(crate) const HEADER_BYTES: usize = 16;

const ALIGN: usize = 4;

/// A message being built. Numbers are in the host's byte order unless the family says otherwise.
#[derive(Debug)]
pub(crate) struct Message {
    bytes: Vec<u8>,
}

/// An open nested attribute; see [`Message::nest`].
#[must_use]
pub(crate) struct Nest(usize);

impl Message {
    /// A request of type `kind` that begins with the family's own header.
    pub(crate) fn new(kind: u16, flags: i32, family_header: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&((flags | libc::NLM_F_REQUEST) as u16).to_ne_bytes());
        bytes.extend_from_slice(family_header);
        Self { bytes }
    }

    /// Adds an attribute.
    pub(crate) fn put(&mut self, kind: u16, value: &[u8]) {
        let length = (4 + value.len()) as u16;
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGN), 0);
    }

    /// Opens an attribute that holds attributes, after `header` where its kind has one.
    pub(crate) fn nest(&mut self, kind: u16, header: &[u8]) -> Nest {
        let at = self.bytes.len();
        self.put(kind, header);
        Nest(at)
    }

    /// Closes it.
    pub(crate) fn close(&mut self, nest: Nest) {
        let length = (self.bytes.len() - nest.0) as u16;
        self.bytes[nest.0..nest.0 + 2].copy_from_slice(&length.to_ne_bytes());
    }

    /// The message as it is sent.
    pub(crate) fn finish(&mut self) -> &[u8] {
        let length = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&length.to_ne_bytes());
        &self.bytes
    }
}

/// The attributes in `bytes`, kind first. Ends at the first that does not fit.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let head: &[u8; 4] = bytes.first_chunk()?;
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let kind = u16::from_ne_bytes([head[2], head[3]]) & 0x3fff; // without the flags for nesting and byte order
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// A socket of a netlink protocol; `None`: routing.
pub(crate) fn socket(protocol: Option<Protocol>) -> io::Result<OwnedFd> {
    let socket =
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    Ok(socket)
}

/// Sends a message that has `NLM_F_ACK` and reads the kernel's answer.
pub(crate) fn ask(socket: &OwnedFd, message: &mut Message) -> io::Result<()> {
    rustix::net::send(socket, message.finish(), SendFlags::empty())?;
    let mut answer = [0u8; 1024];
    let (got, _) = rustix::net::recv(socket, &mut answer[..], RecvFlags::empty())?;
    // struct nlmsgerr: the header, then the negated errno.
    let code: Option<&[u8; 4]> = answer[..got].get(HEADER_BYTES..).and_then(<[u8]>::first_chunk);
    match code.map(|code| i32::from_ne_bytes(*code)) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_in_comes_out() {
        let mut message = Message::new(1, libc::NLM_F_ACK, &[9; 4]);
        message.put(3, b"link0\0");
        let nest = message.nest(4, &[]);
        message.put(5, &7u32.to_ne_bytes());
        message.close(nest);
        message.put(6, &[]);
        let bytes = message.finish().to_vec();
        assert_eq!(u32::from_ne_bytes(bytes[..4].try_into().unwrap()) as usize, bytes.len());
        let found: Vec<_> = attributes(&bytes[HEADER_BYTES + 4..]).collect();
        assert_eq!(found[0], (3, &b"link0\0"[..]));
        assert_eq!(attributes(found[1].1).collect::<Vec<_>>(), [(5, &7u32.to_ne_bytes()[..])]);
        assert_eq!(found[2], (6, &[][..]));
        assert_eq!(found.len(), 3);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_to_an_end(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            assert!(attributes(&bytes).count() <= bytes.len() / 4);
        }
    }
}
