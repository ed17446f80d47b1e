//! Packets that come back: round-trip times, and how long a packet may be each way.
//!
//! ```text
//! 0        4              6              8        16         24
//! "lhe1"   reply wanted   came as long   number   time       padding
//! ```
//!
//! Lengths are of the UDP payload, numbers in network order; the time is of the asker's clock, in microseconds. An answer adds to it how long
//! the question lay at the far end, so that what the asker subtracts from the time of the arrival is not the path's. Packets are sent with
//! DF set (RFC 8899's probes), so one that is too long for the path does not arrive.

use std::io;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use crate::limits::{ECHO_BYTES_MAX, ECHOES_PER_SECOND_MAX};
use crate::socket;

/// Shortest echo.
pub(crate) const ECHO_BYTES_MIN: usize = 24;

const MAGIC: [u8; 4] = *b"lhe1";

/// What an echo says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Echo {
    /// The length that the answer is to have.
    pub(crate) wanted: u16,
    /// The length with which the question came.
    pub(crate) came: u16,
    pub(crate) number: u64,
    pub(crate) time_us: u64,
}

impl Echo {
    pub(crate) fn write(&self, into: &mut [u8]) {
        into[..4].copy_from_slice(&MAGIC);
        into[4..6].copy_from_slice(&self.wanted.to_be_bytes());
        into[6..8].copy_from_slice(&self.came.to_be_bytes());
        into[8..16].copy_from_slice(&self.number.to_be_bytes());
        into[16..24].copy_from_slice(&self.time_us.to_be_bytes());
    }

    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < ECHO_BYTES_MIN || bytes[..4] != MAGIC {
            return None;
        }
        let short = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let long = |at: usize| bytes[at..at + 8].try_into().ok().map(u64::from_be_bytes);
        Some(Self { wanted: short(4), came: short(6), number: long(8)?, time_us: long(16)? })
    }
}

/// Answers on a socket that knows its peer.
#[derive(Debug)]
pub(crate) struct Answerer {
    socket: UdpSocket,
    buffer: Vec<u8>,
    /// Of the second under way.
    second: Instant,
    answered: u32,
    /// In all.
    pub(crate) total: u64,
}

impl Answerer {
    pub(crate) fn new(socket: UdpSocket) -> io::Result<Self> {
        socket::never_fragment(&socket)?;
        socket::wait_at_most(&socket, Duration::from_millis(50))?;
        let buffer = vec![0; ECHO_BYTES_MAX];
        Ok(Self { socket, buffer, second: Instant::now(), answered: 0, total: 0 })
    }

    /// Answers one question, or waits for one for a moment.
    pub(crate) fn answer(&mut self) -> io::Result<()> {
        let length = match self.socket.recv(&mut self.buffer) {
            Ok(length) => length,
            // A far end that is gone is noticed elsewhere.
            Err(error) if socket::is_pause(&error) || error.kind() == io::ErrorKind::ConnectionRefused => {
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let Some(echo) = Echo::read(&self.buffer[..length]) else { return Ok(()) };
        let lay = socket::since_arrival(&self.socket);
        if self.second.elapsed() >= Duration::from_secs(1) {
            (self.second, self.answered) = (Instant::now(), 0);
        }
        if self.answered >= ECHOES_PER_SECOND_MAX {
            return Ok(());
        }
        self.answered += 1;
        self.total += 1;
        let time_us = echo.time_us.saturating_add(lay.as_micros() as u64);
        let answer = Echo { came: length as u16, time_us, ..echo };
        let length = usize::from(echo.wanted).clamp(ECHO_BYTES_MIN, ECHO_BYTES_MAX);
        answer.write(&mut self.buffer);
        // What is too long for the first link, or finds no room, does not arrive.
        let _ = self.socket.send(&self.buffer[..length]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn echoes_survive(wanted: u16, came: u16, number: u64, time_us: u64) {
            let echo = Echo { wanted, came, number, time_us };
            let mut bytes = [0; ECHO_BYTES_MIN];
            echo.write(&mut bytes);
            prop_assert_eq!(Echo::read(&bytes), Some(echo));
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = Echo::read(&bytes);
        }
    }

    /// An asker, and who answers it.
    fn pair() -> (UdpSocket, Answerer) {
        let (near, far) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        near.connect(far.local_addr().unwrap()).unwrap();
        far.connect(near.local_addr().unwrap()).unwrap();
        near.set_read_timeout(Some(LIMIT)).unwrap();
        (near, Answerer::new(far).unwrap())
    }

    /// Answers one more question.
    fn answer(answerer: &mut Answerer) {
        let (before, began) = (answerer.total, Instant::now());
        while answerer.total == before {
            assert!(began.elapsed() < LIMIT, "no question has come");
            answerer.answer().unwrap();
        }
    }

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn how_long_a_question_lay_is_no_part_of_the_round_trip() {
        let (near, mut answerer) = pair();
        let mut bytes = [0; ECHO_BYTES_MIN];
        let mut ask = |number: u64, wait: Duration| {
            Echo { wanted: 0, came: 0, number, time_us: 0 }.write(&mut bytes);
            near.send(&bytes).unwrap();
            std::thread::sleep(wait); // so long it lies there
            answer(&mut answerer);
            near.recv(&mut bytes).unwrap();
            Echo::read(&bytes).unwrap().time_us
        };
        // The kernel notes arrivals from some moment after the first question on.
        let lay = (1..100).map(|number| ask(number, Duration::from_millis(20))).find(|lay| *lay >= 20_000);
        assert!(lay.is_some());
    }

    #[test]
    fn an_answer_is_as_long_as_it_is_wanted_and_says_how_long_the_question_was() {
        let (near, mut answerer) = pair();
        let mut bytes = [0; 2000];
        for (length, wanted, comes) in [(24, 1500, 1500), (1500, 24, 24), (100, 0, 24)] {
            let echo = Echo { wanted, came: 0, number: 7, time_us: 9 };
            echo.write(&mut bytes);
            near.send(&bytes[..length]).unwrap();
            answer(&mut answerer);
            assert_eq!(near.recv(&mut bytes).unwrap(), comes);
            let answer = Echo::read(&bytes).unwrap();
            assert!(answer.time_us >= echo.time_us);
            assert_eq!(answer, Echo { came: length as u16, time_us: answer.time_us, ..echo });
        }
    }
}
