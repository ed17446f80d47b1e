//! How a flow proves that it belongs to a test, and that its address is its own.
//!
//! TCP: the token of the test are the first bytes; the kernel's own handshake has proved the address.
//!
//! UDP, a port of its own for each flow:
//!
//! ```text
//! client                                   server
//!   Hello {token} ------------------------->        a fresh cookie, kept for this address alone
//!         <--------------------------------- Cookie {cookie}: no longer than the hello
//!   Proof {token, cookie} ----------------->        the cookie that this address was sent
//!         <--------------------------------- Ready: from now on the socket knows this address only
//! ```
//!
//! So who gives another's address as his own has it sent [`COOKIES_MAX`](crate::limits::COOKIES_MAX) datagrams of [`BYTES`]
//! at most. Each datagram begins with eight bytes of its own and eight zeros: where one comes too late a receiver of traffic
//! takes it for a packet with the number 0, which is none.

use std::net::SocketAddr;

use crate::limits::COOKIES_MAX;

/// What makes a flow one of a test.
pub(crate) type Token = [u8; TOKEN_BYTES];
pub(crate) const TOKEN_BYTES: usize = 16;

/// What an address has to send back.
pub(crate) type Cookie = [u8; 16];

/// Every datagram is of this length.
pub(crate) const BYTES: usize = 56;

const MAGIC: [u8; 8] = *b"longhaul";

/// A datagram of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Knock {
    Hello(Token),
    Cookie(Cookie),
    Proof(Token, Cookie),
    Ready,
}

impl Knock {
    pub(crate) fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        let (kind, one, other) = match self {
            Self::Hello(token) => (1, *token, [0; 16]),
            Self::Cookie(cookie) => (2, [0; 16], *cookie),
            Self::Proof(token, cookie) => (3, *token, *cookie),
            Self::Ready => (4, [0; 16], [0; 16]),
        };
        bytes[16] = kind;
        bytes[24..40].copy_from_slice(&one);
        bytes[40..56].copy_from_slice(&other);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != BYTES || bytes[..8] != MAGIC || bytes[8..16] != [0; 8] {
            return None;
        }
        let part = |at: usize| <[u8; 16]>::try_from(&bytes[at..at + 16]).ok();
        match bytes[16] {
            1 => Some(Self::Hello(part(24)?)),
            2 => Some(Self::Cookie(part(40)?)),
            3 => Some(Self::Proof(part(24)?, part(40)?)),
            4 => Some(Self::Ready),
            _ => None,
        }
    }
}

/// What is to be done with a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// Nothing.
    Ignore,
    /// This is sent back.
    Answer(Knock),
    /// The address is its own; so is the flow. [`Knock::Ready`] is sent back.
    Proved,
}

/// The server's memory of one flow's port.
#[derive(Debug)]
pub(crate) struct Gate {
    token: Token,
    /// Each was sent to its address. None is forgotten: when there are too many, nobody else gets one.
    sent: Vec<(SocketAddr, Cookie, u32)>,
}

impl Gate {
    pub(crate) fn new(token: Token) -> Self {
        Self { token, sent: Vec::new() }
    }

    /// A datagram came; `fresh` is random.
    pub(crate) fn hear(&mut self, from: SocketAddr, bytes: &[u8], fresh: Cookie) -> Reaction {
        match Knock::decode(bytes) {
            Some(Knock::Hello(token)) if token == self.token => {
                let all: u32 = self.sent.iter().map(|(_, _, times)| times).sum();
                if all >= COOKIES_MAX {
                    return Reaction::Ignore;
                }
                match self.sent.iter_mut().find(|(address, _, _)| *address == from) {
                    // It was lost: the same again.
                    Some((_, cookie, times)) => {
                        *times += 1;
                        Reaction::Answer(Knock::Cookie(*cookie))
                    }
                    None => {
                        self.sent.push((from, fresh, 1));
                        Reaction::Answer(Knock::Cookie(fresh))
                    }
                }
            }
            Some(Knock::Proof(token, cookie)) if token == self.token => {
                let known = self.sent.iter().any(|(address, own, _)| *address == from && *own == cookie);
                if known { Reaction::Proved } else { Reaction::Ignore }
            }
            _ => Reaction::Ignore,
        }
    }
}

/// Random bytes.
pub(crate) fn random() -> std::io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TOKEN: Token = [9; 16];

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    #[test]
    fn datagrams_survive_and_are_no_packets_of_traffic() {
        for knock in
            [Knock::Hello([1; 16]), Knock::Cookie([2; 16]), Knock::Proof([3; 16], [4; 16]), Knock::Ready]
        {
            let bytes = knock.encode();
            assert_eq!(Knock::decode(&bytes), Some(knock));
            let mut account = crate::udp::Account::default();
            account.note(&bytes, true, 5);
            assert_eq!(account.counts().bytes, 0);
        }
    }

    #[test]
    fn who_has_the_cookie_of_its_address_comes_in() {
        let mut gate = Gate::new(TOKEN);
        let answer = gate.hear(address(1), &Knock::Hello(TOKEN).encode(), [5; 16]);
        assert_eq!(answer, Reaction::Answer(Knock::Cookie([5; 16])));
        let proof = Knock::Proof(TOKEN, [5; 16]).encode();
        assert_eq!(gate.hear(address(2), &proof, [6; 16]), Reaction::Ignore, "another's cookie");
        let wrong = Knock::Proof([0; 16], [5; 16]).encode();
        assert_eq!(gate.hear(address(1), &wrong, [6; 16]), Reaction::Ignore, "no token");
        assert_eq!(gate.hear(address(1), &proof, [6; 16]), Reaction::Proved);
        assert_eq!(gate.hear(address(1), &Knock::Hello([1; 16]).encode(), [6; 16]), Reaction::Ignore);
    }

    proptest! {
        /// Whoever sends whatever from whichever address: an address that does not send its cookie back gets no more than that.
        #[test]
        fn others_addresses_are_sent_little(
            events in prop::collection::vec((0u16..3, 0u8..4, any::<[u8; 16]>()), 0..200),
        ) {
            let mut gate = Gate::new(TOKEN);
            let mut sent = 0;
            for (port, kind, fresh) in events {
                let knock = match kind {
                    0 => Knock::Hello(TOKEN),
                    1 => Knock::Proof(TOKEN, [0; 16]),
                    2 => Knock::Cookie(fresh),
                    _ => Knock::Ready,
                };
                match gate.hear(address(port), &knock.encode(), fresh) {
                    Reaction::Ignore => {}
                    Reaction::Answer(_) => sent += 1,
                    Reaction::Proved => prop_assume!(false),
                }
            }
            prop_assert!(sent <= COOKIES_MAX);
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = Knock::decode(&bytes);
        }
    }
}
