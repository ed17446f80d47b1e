//! States and messages on the connection that directs a test, each within a time.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use serde_json::Value;

use crate::iperf3::message::{self, MessageError};
use crate::iperf3::state::State;
use crate::socket::wait_for;

/// Why the connection is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// Broken, or nothing came in time.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// What came is no state of a test.
    #[error("the other end says {0}, which means nothing; it may not be iperf3")]
    Unknown(u8),
    /// What came is no message.
    #[error(transparent)]
    Message(#[from] MessageError),
}

/// The connection that directs a test. It does not block: whoever has others to look after does that between.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) stream: TcpStream,
}

/// What is done while the control connection has nothing to say. It waits for the sockets of its own as well as for the one
/// that it is given, but not beyond the time.
pub(crate) trait Meanwhile {
    fn wait(&mut self, control: PollFd<'_>, until: Instant) -> io::Result<()>;
}

/// Nothing.
pub(crate) struct Idle;

impl Meanwhile for Idle {
    fn wait(&mut self, control: PollFd<'_>, until: Instant) -> io::Result<()> {
        wait_for(&mut [control], until)
    }
}

impl Control {
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream })
    }

    /// The next byte, if it is there.
    pub(crate) fn look(&mut self) -> Result<Option<State>, WireError> {
        let mut byte = [0];
        match (&self.stream).read(&mut byte) {
            Ok(0) => Err(closed().into()),
            Ok(_) => State::from_code(byte[0]).map(Some).ok_or(WireError::Unknown(byte[0])),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for the next state.
    pub(crate) fn state(
        &mut self,
        until: Instant,
        meanwhile: &mut dyn Meanwhile,
    ) -> Result<State, WireError> {
        let mut byte = [0];
        self.read(&mut byte, until, meanwhile)?;
        State::from_code(byte[0]).ok_or(WireError::Unknown(byte[0]))
    }

    pub(crate) fn read(
        &mut self,
        bytes: &mut [u8],
        until: Instant,
        meanwhile: &mut dyn Meanwhile,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match (&self.stream).read(&mut bytes[done..]) {
                Ok(0) => return Err(closed()),
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.pause(PollFlags::IN, until, meanwhile)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits for a message, and bounds it before it is kept.
    pub(crate) fn message(
        &mut self,
        until: Instant,
        meanwhile: &mut dyn Meanwhile,
    ) -> Result<Vec<u8>, WireError> {
        let mut prefix = [0; 4];
        self.read(&mut prefix, until, meanwhile)?;
        let mut bytes = vec![0; message::length(prefix)?];
        self.read(&mut bytes, until, meanwhile)?;
        Ok(bytes)
    }

    pub(crate) fn say(&mut self, state: State) -> io::Result<()> {
        // A byte always fits the buffer of a peer that heeds the protocol.
        (&self.stream).write_all(&[state.code()])
    }

    pub(crate) fn write(
        &mut self,
        bytes: &[u8],
        until: Instant,
        meanwhile: &mut dyn Meanwhile,
    ) -> io::Result<()> {
        let mut left = bytes;
        while !left.is_empty() {
            match (&self.stream).write(left) {
                Ok(written) => left = &left[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.pause(PollFlags::OUT, until, meanwhile)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(crate) fn send(
        &mut self,
        message: &Value,
        until: Instant,
        meanwhile: &mut dyn Meanwhile,
    ) -> io::Result<()> {
        self.write(&message::framed(message), until, meanwhile)
    }

    fn pause(&self, flags: PollFlags, until: Instant, meanwhile: &mut dyn Meanwhile) -> io::Result<()> {
        if Instant::now() >= until {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the other end says nothing"));
        }
        meanwhile.wait(PollFd::new(&self.stream, flags), until)
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the other end has closed the connection")
}
